//! Where domains are: what the daemon needs of Xen, and a machine without it.

use std::os::fd::BorrowedFd;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::ring::RingPage;
use xenstore::server::{DomainNews, LookFor};

/// Rings, event channels and the list of domains.
pub(crate) trait Platform {
    /// The control domain's own ring and the port that its kernel offers for it, once at the start.
    fn control_ring(&mut self) -> anyhow::Result<(Box<dyn RingPage>, EvtchnPort)>;

    /// Maps a guest's ring page.
    fn map_ring(&mut self, domid: DomId, gfn: Gfn) -> anyhow::Result<Box<dyn RingPage>>;

    /// Binds to a domain's event channel; returns our end.
    fn bind(&mut self, domid: DomId, port: EvtchnPort) -> anyhow::Result<EvtchnPort>;

    fn unbind(&mut self, port: EvtchnPort) -> anyhow::Result<()>;

    fn notify(&mut self, port: EvtchnPort) -> anyhow::Result<()>;

    /// Ports that fired. They can fire again from now on.
    fn fired(&mut self) -> anyhow::Result<Vec<EvtchnPort>>;

    /// The port that fires when a domain stopped or died.
    fn exception_port(&self) -> EvtchnPort;

    /// Looks at the domains.
    fn look_at_domains(&mut self, what: LookFor) -> anyhow::Result<DomainNews>;

    fn domain_exists(&mut self, domid: DomId) -> bool;

    /// What tells this domain from every other one that has or had its domid, if Xen knows.
    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        let _unused = domid;
        None
    }

    /// Another process is about to be told when domains stop or die; see
    /// [`claim_exceptions`](Self::claim_exceptions).
    fn yield_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// This process is told again.
    fn claim_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Readable when a port fired.
    fn events(&self) -> BorrowedFd<'_>;
}
