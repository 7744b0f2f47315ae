//! [`EventChannels`]: ports of `/dev/xen/evtchn`. Source: Linux `uapi/xen/evtchn.h`.
//!
//! A port that fired stays masked until [`EventChannels::unmask`]: events of one port do not queue
//! up.

use std::collections::BTreeSet;
use std::ffi::c_ulong;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use xen::{DomId, EvtchnPort};

use crate::HostError;
use crate::error::Refused;
use crate::ioctl::{ioctl, ioctl_number, open_device, request};

/// `VIRQ_DOM_EXC`: some domain shut down or was destroyed. Only one port of the host can be bound
/// to it.
pub const VIRQ_DOM_EXC: u32 = 3;

#[repr(C)]
struct BindInterdomain {
    remote_domain: u32,
    remote_port: u32,
}

// The other requests take one `unsigned int`.
const WORD_BYTES: usize = size_of::<u32>();
const BIND_VIRQ: c_ulong = request(b'E', 0, WORD_BYTES);
const BIND_INTERDOMAIN: c_ulong = request(b'E', 1, size_of::<BindInterdomain>());
const BIND_UNBOUND: c_ulong = request(b'E', 2, WORD_BYTES);
const UNBIND: c_ulong = request(b'E', 3, WORD_BYTES);
const NOTIFY: c_ulong = request(b'E', 4, WORD_BYTES);
const RESET: c_ulong = request(b'E', 5, 0);

/// An open event channel device. Its ports close with it.
#[derive(Debug)]
pub struct EventChannels {
    fd: OwnedFd,
    /// Ports bound through this descriptor.
    bound: BTreeSet<u32>,
    /// Ports to report although the kernel lost their events.
    lost: BTreeSet<u32>,
}

impl EventChannels {
    const PATH: &str = "/dev/xen/evtchn";

    /// The ioctls issued on this device, for seccomp filters.
    pub const REQUESTS: &[c_ulong] =
        &[BIND_VIRQ, BIND_INTERDOMAIN, BIND_UNBOUND, UNBIND, NOTIFY, RESET];

    /// # Errors
    /// If the device cannot be opened.
    pub fn open() -> Result<Self, HostError> {
        let advice = "is the module xen-evtchn loaded, and are we root?";
        let fd = open_device(Self::PATH, OFlags::NONBLOCK, advice)?;
        Ok(Self { fd, bound: BTreeSet::new(), lost: BTreeSet::new() })
    }

    /// Takes over a device that another program opened, with these bound ports.
    ///
    /// # Errors
    /// If the descriptor cannot be made non-blocking.
    pub fn adopt(
        fd: OwnedFd,
        ports: impl IntoIterator<Item = EvtchnPort>,
    ) -> Result<Self, HostError> {
        let context = || "cannot use the event channel device that was handed over".to_owned();
        let flags = rustix::fs::fcntl_getfl(&fd).refused(context)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).refused(context)?;
        let bound = ports.into_iter().map(|port| port.0).collect();
        Ok(Self { fd, bound, lost: BTreeSet::new() })
    }

    /// Binds to an unbound port that another domain allocated for us; returns our end.
    ///
    /// # Errors
    /// If the domain has no such port, or it was allocated for another domain.
    pub fn bind_interdomain(
        &mut self,
        domid: DomId,
        port: EvtchnPort,
    ) -> Result<EvtchnPort, HostError> {
        let mut bind = BindInterdomain { remote_domain: domid.0.into(), remote_port: port.0 };
        // SAFETY: the structure is the request's; it points to nothing.
        let local = unsafe { ioctl(&self.fd, BIND_INTERDOMAIN, &mut bind) }
            .refused(|| format!("cannot bind to event channel {port} of domain {domid}"))?;
        Ok(self.bound_to(local))
    }

    /// Binds a virtual interrupt.
    ///
    /// # Errors
    /// EEXIST or EBUSY if it is bound already.
    pub fn bind_virq(&mut self, virq: u32) -> Result<EvtchnPort, HostError> {
        let mut argument = virq;
        // SAFETY: the request takes one word.
        let local = unsafe { ioctl(&self.fd, BIND_VIRQ, &mut argument) }
            .refused(|| format!("cannot bind virtual interrupt {virq}"))?;
        Ok(self.bound_to(local))
    }

    /// Allocates a port that `domid` may bind to.
    ///
    /// # Errors
    /// If no port is left.
    pub fn bind_unbound(&mut self, domid: DomId) -> Result<EvtchnPort, HostError> {
        let mut argument = u32::from(domid.0);
        // SAFETY: the request takes one word.
        let local = unsafe { ioctl(&self.fd, BIND_UNBOUND, &mut argument) }
            .refused(|| format!("cannot allocate an event channel for domain {domid}"))?;
        Ok(self.bound_to(local))
    }

    fn bound_to(&mut self, local: u32) -> EvtchnPort {
        self.bound.insert(local);
        EvtchnPort(local)
    }

    /// Closes a port. The peer's end becomes unbound.
    ///
    /// # Errors
    /// If the port is not ours.
    pub fn unbind(&mut self, port: EvtchnPort) -> Result<(), HostError> {
        let mut argument = port.0;
        // SAFETY: the request takes one word.
        unsafe { ioctl(&self.fd, UNBIND, &mut argument) }
            .refused(|| format!("cannot close event channel {port}"))?;
        self.bound.remove(&port.0);
        self.lost.remove(&port.0);
        Ok(())
    }

    /// Sends an event to the other end. On a port without a peer it is lost.
    ///
    /// # Errors
    /// If the port is not ours.
    pub fn notify(&self, port: EvtchnPort) -> Result<(), HostError> {
        let mut argument = port.0;
        // SAFETY: the request takes one word.
        unsafe { ioctl(&self.fd, NOTIFY, &mut argument) }
            .refused(|| format!("cannot notify event channel {port}"))
            .map(drop)
    }

    /// Fetches ports that fired, without waiting, and returns how many. Each must be
    /// [unmasked](Self::unmask) before it can fire again.
    ///
    /// Should the kernel have lost events, every bound port counts as fired.
    ///
    /// # Errors
    /// Any errno of the device; none is expected.
    pub fn pending(&mut self, ports: &mut [EvtchnPort]) -> Result<usize, HostError> {
        let refused = || format!("cannot read events from {}", Self::PATH);
        if ports.is_empty() {
            return Ok(0);
        }
        let mut found = self.take_lost(ports);
        while found < ports.len() {
            let mut bytes = [0; 64 * WORD_BYTES];
            let room = bytes.len().min((ports.len() - found) * WORD_BYTES);
            match rustix::io::read(&self.fd, &mut bytes[..room]) {
                Ok(read) => {
                    for word in bytes[..read].chunks_exact(WORD_BYTES) {
                        let port = u32::from_ne_bytes(word.try_into().expect("four bytes"));
                        ports[found] = EvtchnPort(port);
                        found += 1;
                    }
                    if read < room {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // The kernel's ring overflowed. It has room for every port, so this should not
                // happen; still no event may be missed.
                Err(Errno::FBIG) => {
                    // SAFETY: the request takes no argument.
                    unsafe { ioctl_number(&self.fd, RESET, 0) }.refused(refused)?;
                    self.lost.clone_from(&self.bound);
                    found += self.take_lost(&mut ports[found..]);
                }
                Err(errno) => return Err(errno).refused(refused),
            }
        }
        Ok(found)
    }

    fn take_lost(&mut self, ports: &mut [EvtchnPort]) -> usize {
        let mut found = 0;
        for slot in ports {
            let Some(port) = self.lost.pop_first() else { break };
            *slot = EvtchnPort(port);
            found += 1;
        }
        found
    }

    /// Unmasks a port; an event that arrived meanwhile is delivered at once.
    ///
    /// # Errors
    /// Any errno of the device; none is expected.
    pub fn unmask(&self, port: EvtchnPort) -> Result<(), HostError> {
        rustix::io::write(&self.fd, &port.0.to_ne_bytes())
            .refused(|| format!("cannot unmask event channel {port}"))
            .map(drop)
    }
}

impl AsFd for EventChannels {
    /// Readable when a port fired.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Channels of one operation, which waits for their events itself.
#[derive(Debug)]
pub(crate) struct OwnChannels {
    device: EventChannels,
    /// Whether events that were told are still to be taken.
    is_told: bool,
}

impl OwnChannels {
    pub(crate) fn open() -> Result<Self, HostError> {
        Ok(Self { device: EventChannels::open()?, is_told: false })
    }

    /// `None` if no port is bound: the device is closed.
    pub(crate) fn in_use(self) -> Option<Self> {
        (!self.device.bound.is_empty()).then_some(self)
    }

    pub(crate) fn bind(&mut self, domid: DomId, port: EvtchnPort) -> Result<EvtchnPort, HostError> {
        self.device.bind_interdomain(domid, port)
    }

    pub(crate) fn notify(&self, port: EvtchnPort) -> Result<(), HostError> {
        self.device.notify(port)
    }

    pub(crate) fn close(&mut self, port: EvtchnPort) -> Result<(), HostError> {
        self.device.unbind(port)
    }

    /// Waits until a port is signalled. Its event is left: to take it are two system calls, which can wait until
    /// the caller has looked at what the event is about.
    pub(crate) fn wait(&mut self, timeout_ns: u64) -> Result<bool, HostError> {
        let refused = || "cannot wait for an event channel".to_owned();
        self.take()?;
        let timeout = std::time::Duration::from_nanos(timeout_ns);
        let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL).refused(refused)?;
        match poll(&mut [PollFd::new(&self.device, PollFlags::IN)], Some(&timeout)) {
            // Interrupted: the caller looks at the clock and waits again.
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => {
                self.is_told = true;
                Ok(true)
            }
            Err(errno) => Err(errno).refused(refused),
        }
    }

    fn take(&mut self) -> Result<(), HostError> {
        const PORTS: usize = 8;
        if std::mem::take(&mut self.is_told) {
            let mut ports = [EvtchnPort(0); PORTS];
            let found = self.device.pending(&mut ports)?;
            for port in &ports[..found] {
                self.device.unmask(*port)?;
            }
        }
        Ok(())
    }
}
