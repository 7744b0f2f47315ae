//! Where domains are: what the daemon needs of Xen, and a machine without it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::ring::RingPage;
use xenstore::server::{DomainNews, DomainState, PollScope};

/// Rings, event channels and the list of domains.
pub(crate) trait Platform {
    /// Maps the control domain's own ring, once at the start.
    fn map_control_ring(&mut self) -> anyhow::Result<Box<dyn RingPage>>;

    /// The port that the control domain's kernel offers for its ring, for who binds to it anew.
    fn control_port(&mut self) -> anyhow::Result<EvtchnPort>;

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
    fn poll_domains(&mut self, what: PollScope) -> anyhow::Result<DomainNews>;

    /// What the last look at the domains has cost another process.
    fn poll_cpu(&self) -> Duration {
        Duration::ZERO
    }

    /// Looks at one domain.
    fn domain(&mut self, domid: DomId) -> Option<DomainState>;

    /// Another process is about to be told when domains stop or die; see
    /// [`claim_exceptions`](Self::claim_exceptions).
    fn yield_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// This process is told again.
    fn claim_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Hangs up when the process that looks at domains for this one ends, where there is such a process.
    fn broker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How that process was lost, if it was. Told once.
    fn take_loss(&mut self) -> Option<anyhow::Error> {
        None
    }

    /// Starts that process, where there is to be one. Only while there is none.
    fn start_broker(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Ends that process: another program follows in this one, and has no use for it.
    fn end_broker(&mut self) {}

    /// What another daemon of ours cannot open itself if this one is confined.
    fn lend(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Another daemon goes on with what was [lent](Self::lend), also when this process has ended.
    fn leave_to_borrower(&mut self) {}

    /// Whether a daemon of another kind that follows in this process has to open devices, which only root may.
    fn opens_devices(&self) -> bool {
        false
    }

    /// Readable when a port fired.
    fn events(&self) -> BorrowedFd<'_>;
}

/// CPU time of this thread since it began.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Both parts of a clock that never goes back are positive.
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
