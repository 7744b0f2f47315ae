//! The seam between Xylem and a hypervisor: raw hypercalls and foreign memory, as bytes.
//!
//! `xen-linux` implements it on `/dev/xen/privcmd`, `sim` on a simulated Xen. It is the lowest
//! possible boundary, so that encoders, probing and quirks are tested too.

use alloc::vec::Vec;

use crate::{DomId, Errno, EvtchnPort};

/// Hypercall numbers. Source: `xen/include/public/xen.h`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum Op {
    Platform = 7,
    Memory = 12,
    Multicall = 13,
    Version = 17,
    GrantTable = 20,
    Mmuext = 26,
    Xsm = 27,
    Sched = 29,
    EventChannel = 32,
    Physdev = 33,
    Hvm = 34,
    Sysctl = 35,
    Domctl = 36,
    Dm = 41,
    Hypfs = 42,
}

/// Resources of `XENMEM_acquire_resource`. Source: `xen/include/public/memory.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Resource {
    /// Shared frames of the grant table (id 0 of type 1).
    GrantTable = 1,
}

impl Resource {
    /// As Xen's 16-bit field.
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::GrantTable => 1,
        }
    }
}

/// A range of bytes in frames of another domain, `offset_bytes` into the first frame.
///
/// Frames are gfns for a translated domain and mfns for a PV domain, as for Xen's foreign mappings.
#[derive(Clone, Copy, Debug)]
pub struct ForeignRange<'a> {
    pub domid: DomId,
    pub frames: &'a [u64],
    pub offset_bytes: usize,
}

/// A part of a write to foreign memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Piece<'a> {
    Bytes(&'a [u8]),
    /// This many zero bytes.
    Zeros(usize),
}

impl Piece<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(count) => *count,
        }
    }

    /// The piece before `at` and the rest.
    ///
    /// # Panics
    /// If it is shorter than that.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let (now, later) = bytes.split_at(at);
                (Self::Bytes(now), Self::Bytes(later))
            }
            Self::Zeros(count) => (Self::Zeros(at), Self::Zeros(count - at)),
        }
    }

    /// All pieces joined, for an implementation that cannot use them separately.
    #[must_use]
    pub fn joined(pieces: &[Self]) -> Vec<u8> {
        let mut all = Vec::with_capacity(pieces.iter().map(Self::bytes).sum());
        for piece in pieces {
            match piece {
                Self::Bytes(bytes) => all.extend_from_slice(bytes),
                Self::Zeros(count) => all.resize(all.len() + count, 0),
            }
        }
        all
    }
}

/// Size of an arena that holds the list of all domains a host can have (32,752 entries of 112
/// bytes) and the structures around it, in bytes.
pub const ARENA_BYTES_FULL: usize = 32_752 * 112 + 64 * 1024;
/// The smallest arena, in bytes: it lists some hundred domains.
pub const ARENA_BYTES_MIN: usize = 128 * 1024;

/// A hypervisor and the memory that hypercalls read and write.
///
/// Everything a hypercall points to lies in the [arena](Hypervisor::arena): memory that never faults
/// and never moves, owned for as long as this value lives. A pointer inside a hypercall structure is
/// `arena_address() + offset`.
pub trait Hypervisor {
    /// The hypercall memory, at least [`ARENA_BYTES_MIN`] bytes.
    fn arena(&mut self) -> &mut [u8];

    /// The address of the arena's first byte, as Xen sees it.
    fn arena_address(&self) -> u64;

    /// Issues one hypercall and waits for its end.
    ///
    /// # Errors
    /// The error that Xen (or the kernel in front of it) returned.
    fn hypercall(&mut self, op: Op, args: [u64; 5]) -> Result<u64, Errno>;

    /// Writes pieces one after the other into another domain's memory.
    ///
    /// # Errors
    /// The mapping's errno; an unspecified part may have been written.
    ///
    /// # Panics
    /// If the pieces do not fit into the range's frames.
    fn write_foreign(&mut self, range: ForeignRange<'_>, pieces: &[Piece<'_>])
    -> Result<(), Errno>;

    /// Copies bytes out of another domain's memory.
    ///
    /// # Errors
    /// The mapping's errno.
    ///
    /// # Panics
    /// If `into` is longer than the range's frames.
    fn read_foreign(&mut self, range: ForeignRange<'_>, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies bytes into the first frame of a domain's resource, `offset_bytes` from its start.
    ///
    /// # Errors
    /// The mapping's errno.
    fn write_resource(
        &mut self,
        domid: DomId,
        resource: Resource,
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), Errno>;

    /// A monotonic clock to time calls with. Without one, all calls take no time.
    fn now_ns(&self) -> u64 {
        0
    }

    /// Lets so much time pass.
    fn let_pass(&mut self, ns: u64) {
        let _no_clock = ns;
    }

    /// Binds to an unbound port that `domid` has for the caller's domain; returns our end, which is
    /// pending at first. All of them close with this value.
    ///
    /// # Errors
    /// The errno of `EVTCHNOP_bind_interdomain`; EOPNOTSUPP without event channels.
    fn bind_channel(&mut self, domid: DomId, port: EvtchnPort) -> Result<EvtchnPort, Errno> {
        let _none_here = (domid, port);
        Err(Errno::EOPNOTSUPP)
    }

    /// Sends an event to the other end of a port bound by [`bind_channel`](Self::bind_channel).
    ///
    /// # Errors
    /// The errno of `EVTCHNOP_send`.
    fn notify_channel(&mut self, port: EvtchnPort) -> Result<(), Errno> {
        let _none_here = port;
        Err(Errno::EOPNOTSUPP)
    }

    /// Closes a bound port. The other end becomes unbound again.
    ///
    /// # Errors
    /// The errno of `EVTCHNOP_close`.
    fn unbind_channel(&mut self, port: EvtchnPort) -> Result<(), Errno> {
        let _none_here = port;
        Err(Errno::EOPNOTSUPP)
    }

    /// Waits until one of the bound ports is signalled; false if none is within `timeout_ns`. The events are
    /// taken at the latest when the next wait begins, so a caller has no other call between an event and what
    /// it does about it.
    ///
    /// # Errors
    /// The errno of the device.
    fn wait_channel(&mut self, timeout_ns: u64) -> Result<bool, Errno> {
        let _none_here = timeout_ns;
        Err(Errno::EOPNOTSUPP)
    }
}
