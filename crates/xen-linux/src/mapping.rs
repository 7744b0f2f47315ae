//! [`Mapping`]: a range of this process's address space backed by a device, unmapped when dropped.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xen::PAGE_BYTES;

/// Pages mapped shared, readable and (unless asked otherwise) writable.
///
/// Invariant: `bytes` bytes from `start` belong to this value alone, as an address range. The pages
/// may be shared with another domain, so no reference to them is ever made.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is a plain address range of the process, not tied to a thread.
unsafe impl Send for Mapping {}

/// Whether writing is allowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

impl Mapping {
    /// Maps `pages` pages of a device from `offset` bytes.
    pub(crate) fn new(
        device: impl AsFd,
        pages: usize,
        offset: u64,
        access: Access,
    ) -> Result<Self, Errno> {
        Self::with_flags(device, pages, offset, access, MapFlags::SHARED)
    }

    /// Maps `pages` pages of a file for writing, prefaulted.
    pub(crate) fn populated(file: impl AsFd, pages: usize, offset: u64) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        Self::with_flags(file, pages, offset, Access::ReadWrite, flags)
    }

    fn with_flags(
        device: impl AsFd,
        pages: usize,
        offset: u64,
        access: Access,
        flags: MapFlags,
    ) -> Result<Self, Errno> {
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(Errno::INVAL)?;
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses an unused range, which nothing else refers to.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, device, offset) }?;
        let start = NonNull::new(start.cast()).expect("the kernel never maps at address zero");
        Ok(Self { start, bytes })
    }

    /// The first byte's address, for device structures.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer to `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not all inside the mapping.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} lie outside a mapping of {} bytes",
            self.bytes
        );
        // SAFETY: checked above: the offset stays inside the mapping or one past its end.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start: *mut c_void = self.start.as_ptr().cast();
        // SAFETY: this value owns the range, and no reference to it outlives this value.
        let unmapped = unsafe { munmap(start, self.bytes) };
        // This fails only for a range that is not ours.
        debug_assert!(unmapped.is_ok(), "cannot unmap a mapping: {unmapped:?}");
    }
}
