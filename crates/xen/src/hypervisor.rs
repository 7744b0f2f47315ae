//! The seam between Xylem and a hypervisor: raw hypercalls and foreign memory, as bytes.
//!
//! `xen-linux` implements it on `/dev/xen/privcmd`, `sim` on a simulated Xen. It is the lowest
//! boundary there is, so that encoders, probing and quirks are under test as well.

use alloc::vec::Vec;

use crate::{DomId, Errno};

/// Hypercall numbers. Source: `xen/include/public/xen.h`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum Op {
    Memory = 12,
    Multicall = 13,
    Version = 17,
    GrantTable = 20,
    Mmuext = 26,
    Sched = 29,
    EventChannel = 32,
    Physdev = 33,
    Hvm = 34,
    Sysctl = 35,
    Domctl = 36,
    Dm = 41,
    Hypfs = 42,
}

/// What `XENMEM_acquire_resource` can hand out. Source: `xen/include/public/memory.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Resource {
    /// Shared frames of the grant table (id 0 of type 1).
    GrantTable = 1,
}

impl Resource {
    /// As the 16 bits in which Xen takes it.
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::GrantTable => 1,
        }
    }
}

/// A run of bytes in frames of another domain: it begins `offset_bytes` into the first frame.
///
/// Frames are gfns of a translated domain and mfns of a PV domain, as Xen's foreign mappings want.
#[derive(Clone, Copy, Debug)]
pub struct ForeignRange<'a> {
    pub domid: DomId,
    pub frames: &'a [u64],
    pub offset_bytes: usize,
}

/// Part of what is written into foreign memory, one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Piece<'a> {
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(usize),
}

impl Piece<'_> {
    /// Bytes that it fills.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(count) => *count,
        }
    }

    /// The piece up to `at` and the rest of it.
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

    /// All pieces in one, for a hypervisor that has nothing to gain from their being apart.
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

/// An arena that holds the list of all domains a host can have (32,752 entries of 112 bytes) and the
/// structures around it, in bytes.
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

    /// Writes pieces, one behind the other, into another domain's memory.
    ///
    /// # Errors
    /// The mapping's error; nothing may be assumed about what was written then.
    ///
    /// # Panics
    /// If the pieces do not fit into the range's frames.
    fn write_foreign(&mut self, range: ForeignRange<'_>, pieces: &[Piece<'_>])
    -> Result<(), Errno>;

    /// Copies bytes out of another domain's memory.
    ///
    /// # Errors
    /// The mapping's error.
    ///
    /// # Panics
    /// If `into` is longer than the range's frames.
    fn read_foreign(&mut self, range: ForeignRange<'_>, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies bytes into the first frame of a domain's resource, `offset_bytes` from its start.
    ///
    /// # Errors
    /// The mapping's error.
    fn write_resource(
        &mut self,
        domid: DomId,
        resource: Resource,
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), Errno>;

    /// A clock that never runs back, for the times that calls take. Where there is none, nothing takes time.
    fn now_ns(&self) -> u64 {
        0
    }
}
