//! The daemon's interface to Xen, or to a host without it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::ring::RingPage;
use xenstore::server::{DomainNews, DomainState, PollScope};

/// Rings, event channels and the list of domains.
pub(crate) trait Platform {
    /// Maps the control domain's own ring, once at the start.
    fn map_control_ring(&mut self) -> anyhow::Result<Box<dyn RingPage>>;

    /// The control domain's port for its ring, to bind to it again.
    fn control_port(&mut self) -> anyhow::Result<EvtchnPort>;

    /// Maps a guest's ring page.
    fn map_ring(&mut self, domid: DomId, gfn: Gfn) -> anyhow::Result<Box<dyn RingPage>>;

    /// Binds to a domain's event channel; returns our end.
    fn bind(&mut self, domid: DomId, port: EvtchnPort) -> anyhow::Result<EvtchnPort>;

    fn unbind(&mut self, port: EvtchnPort) -> anyhow::Result<()>;

    fn notify(&mut self, port: EvtchnPort) -> anyhow::Result<()>;

    /// Ports that fired, unmasked again.
    fn fired(&mut self) -> anyhow::Result<Vec<EvtchnPort>>;

    /// The port that fires when a domain stopped or died.
    fn exception_port(&self) -> EvtchnPort;

    /// Polls the domains.
    fn poll_domains(&mut self, what: PollScope) -> anyhow::Result<DomainNews>;

    /// CPU time of the last poll in another process.
    fn poll_cpu(&self) -> Duration {
        Duration::ZERO
    }

    /// Polls one domain.
    fn domain(&mut self, domid: DomId) -> Option<DomainState>;

    /// Releases VIRQ_DOM_EXC for another process; see [`claim_exceptions`](Self::claim_exceptions).
    fn yield_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Binds VIRQ_DOM_EXC again.
    fn claim_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The broker's descriptor, which hangs up when it exits, if there is a broker.
    fn broker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How the broker was lost, if it was. Returned once.
    fn take_loss(&mut self) -> Option<anyhow::Error> {
        None
    }

    /// Starts the broker, if needed. Only while there is none.
    fn start_broker(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Ends the broker: another program follows in this process and does not use it.
    fn end_broker(&mut self) {}

    /// Descriptors that another daemon of ours cannot open itself if this one is confined.
    fn lend(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Leaves what was [lent](Self::lend) to another daemon, also after this process has exited.
    fn leave_to_borrower(&mut self) {}

    /// Whether another kind of daemon in this process must open devices, which only root may.
    fn opens_devices(&self) -> bool {
        false
    }

    /// Readable when a port fired.
    fn events(&self) -> BorrowedFd<'_>;
}

/// CPU time of this thread since it began.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Both parts of a monotonic clock are positive.
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
