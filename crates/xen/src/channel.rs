//! The caller's own event channels.

use crate::{DomId, Errno, EvtchnPort, Hypervisor, Xen};

impl<H: Hypervisor> Xen<H> {
    /// Binds to an unbound port that `domid` has for us; returns our end. It is pending at first, as
    /// a bind cannot tell what was sent before it.
    ///
    /// # Errors
    /// EINVAL if that port is not unbound and ours to bind, ESRCH.
    pub fn bind_channel(&mut self, domid: DomId, port: EvtchnPort) -> Result<EvtchnPort, Errno> {
        self.timed("bind_interdomain", |hypervisor| hypervisor.bind_channel(domid, port))
    }

    /// Sends an event to the other end.
    ///
    /// # Errors
    /// EINVAL if the port is not bound.
    pub fn notify_channel(&mut self, port: EvtchnPort) -> Result<(), Errno> {
        self.timed("evtchn_send", |hypervisor| hypervisor.notify_channel(port))
    }

    /// Closes a bound port. The other end becomes unbound again.
    ///
    /// # Errors
    /// EINVAL if the port is not bound.
    pub fn unbind_channel(&mut self, port: EvtchnPort) -> Result<(), Errno> {
        self.timed("evtchn_close", |hypervisor| hypervisor.unbind_channel(port))
    }

    /// Waits for an event on any bound port, which is told once; false if there is none within the time. This
    /// is no hypercall and not counted.
    ///
    /// # Errors
    /// The errno of the device.
    pub fn wait_channel(&mut self, timeout_ns: u64) -> Result<bool, Errno> {
        self.hypervisor.wait_channel(timeout_ns)
    }

    /// Lets so much time pass, between two looks at what gives no event.
    pub fn let_pass(&mut self, ns: u64) {
        self.hypervisor.let_pass(ns);
    }

    /// The monotonic clock that calls are timed with, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.hypervisor.now_ns()
    }
}
