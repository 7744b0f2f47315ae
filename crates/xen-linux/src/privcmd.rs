//! [`LinuxHypervisor`]: hypercalls through `/dev/xen/privcmd`. Source: Linux `uapi/xen/privcmd.h`.
//!
//! The kernel continues a preempted hypercall inside the `ioctl`, which signals do not interrupt: a
//! long one blocks its thread until it completes.

use std::ffi::c_ulong;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use xen::{
    ARENA_BYTES_MIN, DomId, EvtchnPort, ForeignRange, Hypervisor, Op, PAGE_BYTES, Piece, Resource,
};

use crate::HostError;
use crate::error::Refused;
use crate::evtchn::OwnChannels;
use crate::foreign::{PRIVCMD_ADVICE, PRIVCMD_PATH, map_frames};
use crate::ioctl::{ioctl, open_device, request};
use crate::mapping::{Access, Mapping};

#[repr(C)]
struct Hypercall {
    op: u64,
    args: [u64; 5],
}

#[repr(C)]
struct MmapResource {
    domid: u16,
    kind: u32,
    id: u32,
    first: u32,
    frames: u64,
    address: u64,
}

const HYPERCALL: c_ulong = request(b'P', 0, size_of::<Hypercall>());
const MMAP_RESOURCE: c_ulong = request(b'P', 7, size_of::<MmapResource>());

/// Frames mapped at a time for a copy: larger maps gain nothing and hold the mmap lock for longer.
const WINDOW_FRAMES: usize = 1024;
/// Smaller windows are left to `munmap`.
const CLEARED_PAGES_MIN: usize = 8;

/// The hypervisor under a Linux control domain.
///
/// The arena comes from `/dev/xen/hypercall`: kernel pages that never fault while Xen writes to
/// them. One further page is private to this type, for structures that wrap a call.
#[derive(Debug)]
pub struct LinuxHypervisor {
    privcmd: OwnedFd,
    arena: Mapping,
    arena_bytes: usize,
    /// Open only while a port is bound.
    channels: Option<OwnChannels>,
    /// Entries of page tables can be cleared by calls.
    clears_windows: bool,
}

impl LinuxHypervisor {
    /// The ioctls issued on this device, for seccomp filters.
    pub const REQUESTS: &[c_ulong] = &[HYPERCALL];

    const HYPERCALL_PATH: &str = "/dev/xen/hypercall";

    /// Opens the devices and allocates an arena of at least `arena_bytes` (see
    /// [`xen::ARENA_BYTES_FULL`] and [`ARENA_BYTES_MIN`]).
    ///
    /// # Errors
    /// If a device is missing or not accessible, or memory is short.
    pub fn open(arena_bytes: usize) -> Result<Self, HostError> {
        let privcmd = open_device(PRIVCMD_PATH, OFlags::empty(), PRIVCMD_ADVICE)?;
        let advice = "Linux 4.18 or newer with the module xen-privcmd is needed";
        let hypercall = open_device(Self::HYPERCALL_PATH, OFlags::empty(), advice)?;
        let pages = arena_bytes.max(ARENA_BYTES_MIN).div_ceil(PAGE_BYTES);
        let arena = Mapping::new(&hypercall, pages + 1, 0, Access::ReadWrite)
            .refused(|| format!("cannot map {} pages of {}", pages + 1, Self::HYPERCALL_PATH))?;
        Ok(Self {
            privcmd,
            arena,
            arena_bytes: pages * PAGE_BYTES,
            channels: None,
            clears_windows: true,
        })
    }

    fn issue(&mut self, op: Op, args: [u64; 5]) -> Result<u64, Errno> {
        let mut call = Hypercall { op: op as u64, args };
        // SAFETY: the structure is the request's. What its words point to, if anything, is in the
        // arena: `&mut self` prevents access until Xen is done with it.
        unsafe { ioctl(&self.privcmd, HYPERCALL, &mut call) }.map(u64::from)
    }

    /// Issues a call inside a multicall of one entry, which has room for a 64-bit result.
    fn issue_wide(&mut self, op: Op, args: [u64; 5]) -> Result<u64, Errno> {
        let own = self.own_address();
        put_call(&mut self.own_page()[..CALL_BYTES], op as u64, args);
        self.issue(Op::Multicall, [own, 1, 0, 0, 0])?;
        let result = call_result(self.own_page());
        u64::try_from(result).map_err(|_| errno_of(result))
    }

    fn own_address(&self) -> u64 {
        self.arena.address() + self.arena_bytes as u64
    }

    fn own_page(&mut self) -> &mut [u8] {
        // SAFETY: the page behind the arena lies in the mapping and is this process's own memory;
        // Xen writes to it only during a call, when nobody holds this reference.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.arena.at(self.arena_bytes, PAGE_BYTES).as_ptr(),
                PAGE_BYTES,
            )
        }
    }

    /// Maps the first frame of a resource.
    fn map_resource(&self, domid: DomId, resource: Resource) -> Result<Mapping, Errno> {
        let mapping = Mapping::new(&self.privcmd, 1, 0, Access::ReadWrite)?;
        let mut map = MmapResource {
            domid: domid.0,
            kind: resource as u32,
            id: 0,
            first: 0,
            frames: 1,
            address: mapping.address(),
        };
        // SAFETY: the structure is the request's; it changes the pages of a mapping of ours to
        // which no reference exists.
        unsafe { ioctl(&self.privcmd, MMAP_RESOURCE, &mut map) }?;
        Ok(mapping)
    }

    /// Maps a grant table's first frame by its number from Xen, for kernels and hypervisors without
    /// that resource. Works for PV domains.
    fn map_grant_table_frame(&mut self, domid: DomId) -> Result<Mapping, Errno> {
        const GNTTABOP_SETUP_TABLE: u64 = 2;
        /// Offset of the frame list after `struct gnttab_setup_table`.
        const LIST: usize = 64;
        let own = self.own_address();
        let page = self.own_page();
        page[..LIST + 8].fill(0);
        page[..2].copy_from_slice(&domid.0.to_ne_bytes());
        page[4..8].copy_from_slice(&1_u32.to_ne_bytes());
        page[16..24].copy_from_slice(&(own + LIST as u64).to_ne_bytes());
        self.issue(Op::GrantTable, [GNTTABOP_SETUP_TABLE, own, 1, 0, 0])?;
        let page = self.own_page();
        let status = i16::from_ne_bytes([page[8], page[9]]);
        let frame = page[LIST..].first_chunk().expect("a page is longer");
        let frame = u64::from_ne_bytes(*frame);
        if status != 0 {
            return Err(Errno::INVAL);
        }
        map_frames(&self.privcmd, domid, &[frame], Access::ReadWrite)
    }

    /// Clears the entries of a window in this process's page tables before it is unmapped. In a PV control domain `munmap`
    /// alone takes several times as long: Xen emulates each of its writes to a page table. The kernel has set these
    /// entries by calls, too, keeps no account of their pages and skips those that are empty.
    ///
    /// Xen has no such call for other control domains, and they do not need it.
    fn clear_window(&mut self, window: &Mapping) {
        let pages = window.bytes() / PAGE_BYTES;
        if !self.clears_windows || pages < CLEARED_PAGES_MIN {
            return;
        }
        // One flush for all: with several vCPUs each costs an interrupt on the others. Also after a failure, for the pages
        // before it: the kernel does not flush what it finds empty.
        let cleared = self.clear_pages(window, pages);
        self.clears_windows = self.flush_tlbs().is_ok() && cleared;
    }

    /// Returns whether Xen did it.
    fn clear_pages(&mut self, window: &Mapping, pages: usize) -> bool {
        /// `__HYPERVISOR_update_va_mapping`. Source: `xen/include/public/xen.h`.
        const UPDATE_VA_MAPPING: u64 = 14;
        for first in (0..pages).step_by(CALLS_PER_PAGE) {
            let count = (pages - first).min(CALLS_PER_PAGE);
            let own = self.own_address();
            let calls = &mut self.own_page()[..count * CALL_BYTES];
            for (call, page) in calls.chunks_exact_mut(CALL_BYTES).zip(first..) {
                let address = window.address() + (page * PAGE_BYTES) as u64;
                put_call(call, UPDATE_VA_MAPPING, [address, 0, 0, 0, 0]);
            }
            let issued = self.issue(Op::Multicall, [own, count as u64, 0, 0, 0]);
            let mut calls = self.own_page()[..count * CALL_BYTES].chunks_exact(CALL_BYTES);
            if issued.is_err() || calls.any(|call| call_result(call) != 0) {
                return false;
            }
        }
        true
    }

    /// Flushes the TLBs of all of this domain's vCPUs.
    fn flush_tlbs(&mut self) -> Result<(), Errno> {
        /// `MMUEXT_TLB_FLUSH_ALL`, and the size of `struct mmuext_op`, which begins with it. Source:
        /// `xen/include/public/xen.h`.
        const TLB_FLUSH_ALL: u32 = 10;
        const OPERATION_BYTES: usize = 24;
        let own = self.own_address();
        let operation = &mut self.own_page()[..OPERATION_BYTES];
        operation.fill(0);
        operation[..4].copy_from_slice(&TLB_FLUSH_ALL.to_ne_bytes());
        self.issue(Op::Mmuext, [own, 1, 0, u64::from(DomId::SELF.0), 0]).map(|_| ())
    }

    /// Maps the frames of a range window by window and calls `copy` for each part of `bytes` bytes.
    fn through_windows(
        &mut self,
        range: ForeignRange<'_>,
        bytes: usize,
        access: Access,
        mut copy: impl FnMut(*mut u8, std::ops::Range<usize>),
    ) -> Result<(), Errno> {
        let end = range.offset_bytes.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end.div_ceil(PAGE_BYTES) <= range.frames.len()),
            "{bytes} bytes at {} do not fit into {} frames",
            range.offset_bytes,
            range.frames.len()
        );
        let mut done = 0;
        while done < bytes {
            let position = range.offset_bytes + done;
            let (frame, offset) = (position / PAGE_BYTES, position % PAGE_BYTES);
            let part = (bytes - done).min(WINDOW_FRAMES * PAGE_BYTES - offset);
            let frames = &range.frames[frame..frame + (offset + part).div_ceil(PAGE_BYTES)];
            let window = map_frames(&self.privcmd, range.domid, frames, access)?;
            copy(window.at(offset, part).as_ptr(), done..done + part);
            self.clear_window(&window);
            done += part;
        }
        Ok(())
    }
}

/// A call of a multicall. Source: `struct multicall_entry` of `xen/include/public/xen.h`: call, result, six arguments.
const CALL_BYTES: usize = 64;
const CALLS_PER_PAGE: usize = PAGE_BYTES / CALL_BYTES;

fn put_call(call: &mut [u8], number: u64, args: [u64; 5]) {
    call.fill(0);
    call[..8].copy_from_slice(&number.to_ne_bytes());
    for (slot, arg) in call[16..].chunks_exact_mut(8).zip(args) {
        slot.copy_from_slice(&arg.to_ne_bytes());
    }
}

fn call_result(call: &[u8]) -> i64 {
    i64::from_ne_bytes(*call[8..].first_chunk().expect("a call is longer"))
}

const WORD: usize = size_of::<u64>();

/// Whether memory can be accessed by words.
fn is_in_words(address: usize, bytes: usize) -> bool {
    address.is_multiple_of(WORD) && bytes.is_multiple_of(WORD)
}

/// Copies from or to memory of another domain, which may change meanwhile. Whole pages go word by word: that is as
/// fast as the C library on hardware, and many times faster where the library's string instructions are emulated.
///
/// # Safety
/// Both have that many bytes, and no reference to the foreign one exists.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if !is_in_words(from as usize | to as usize, bytes) {
        // SAFETY: handed on to the caller.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        return;
    }
    let (from, to) = (from.cast::<u64>(), to.cast::<u64>());
    for at in 0..bytes / WORD {
        // SAFETY: inside of both, and aligned as was checked.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// Clears memory of another domain.
///
/// # Safety
/// As for [`copy`].
unsafe fn clear(to: *mut u8, bytes: usize) {
    if !is_in_words(to as usize, bytes) {
        // SAFETY: handed on to the caller.
        unsafe { std::ptr::write_bytes(to, 0, bytes) };
        return;
    }
    let to = to.cast::<u64>();
    for at in 0..bytes / WORD {
        // SAFETY: inside, and aligned as was checked.
        unsafe { to.add(at).write_volatile(0) };
    }
}

/// The errno in a negative result.
fn errno_of(result: i64) -> Errno {
    Errno::from_raw_os_error(
        result.checked_neg().and_then(|n| i32::try_from(n).ok()).unwrap_or(libc::EIO),
    )
}

fn as_xen(errno: Errno) -> xen::Errno {
    xen::Errno(errno.raw_os_error())
}

impl Hypervisor for LinuxHypervisor {
    fn arena(&mut self) -> &mut [u8] {
        let start = self.arena.at(0, self.arena_bytes);
        // SAFETY: the range lies in the mapping and is this process's own memory; Xen writes to it
        // only during a call, when nobody holds this reference.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.arena_bytes) }
    }

    fn arena_address(&self) -> u64 {
        self.arena.address()
    }

    fn hypercall(&mut self, op: Op, args: [u64; 5]) -> Result<u64, xen::Errno> {
        match op {
            // Counts of pages may exceed the `int` in which a result comes back.
            Op::Memory => self.issue_wide(op, args),
            _ => self.issue(op, args),
        }
        .map_err(as_xen)
    }

    fn write_foreign(
        &mut self,
        range: ForeignRange<'_>,
        pieces: &[Piece<'_>],
    ) -> Result<(), xen::Errno> {
        let bytes = pieces.iter().map(Piece::bytes).sum();
        let mut later = pieces.iter().copied();
        let mut piece = Piece::Zeros(0);
        self.through_windows(range, bytes, Access::ReadWrite, |window, part| {
            let mut done = 0;
            while done < part.len() {
                if piece.bytes() == 0 {
                    piece = later.next().expect("windows are as long as the pieces together");
                }
                let now;
                (now, piece) = piece.split_at(piece.bytes().min(part.len() - done));
                // SAFETY: the window holds as many bytes as the part has.
                let to = unsafe { window.add(done) };
                match now {
                    // SAFETY: the rest of the window is not shorter, and no reference to it exists.
                    // A domain that runs meanwhile can only spoil its own memory.
                    Piece::Bytes(from) => unsafe { copy(from.as_ptr(), to, from.len()) },
                    // SAFETY: as above.
                    Piece::Zeros(count) => unsafe { clear(to, count) },
                }
                done += now.bytes();
            }
        })
        .map_err(as_xen)
    }

    fn read_foreign(&mut self, range: ForeignRange<'_>, into: &mut [u8]) -> Result<(), xen::Errno> {
        self.through_windows(range, into.len(), Access::ReadOnly, |window, part| {
            let to = &mut into[part];
            // SAFETY: the window holds that many bytes, and no reference to it exists. A domain that
            // runs meanwhile can only make the copy a mixture of old and new bytes.
            unsafe { copy(window, to.as_mut_ptr(), to.len()) };
        })
        .map_err(as_xen)
    }

    fn write_resource(
        &mut self,
        domid: DomId,
        resource: Resource,
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), xen::Errno> {
        let mapping = match self.map_resource(domid, resource) {
            Ok(mapping) => mapping,
            // The kernel lacks the request; its errno is returned if the fallback fails too.
            Err(errno @ (Errno::NOTTY | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)) => {
                match resource {
                    Resource::GrantTable => {
                        self.map_grant_table_frame(domid).map_err(|_| as_xen(errno))?
                    }
                }
            }
            Err(errno) => return Err(as_xen(errno)),
        };
        let to = mapping.at(offset_bytes, bytes.len()).as_ptr();
        // SAFETY: checked by `at`; no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let number = |part: i64| u64::try_from(part).unwrap_or_default();
        number(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(number(now.tv_nsec))
    }

    fn let_pass(&mut self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }

    fn bind_channel(&mut self, domid: DomId, port: EvtchnPort) -> Result<EvtchnPort, xen::Errno> {
        let mut channels = match self.channels.take() {
            Some(channels) => channels,
            None => OwnChannels::open().map_err(|error| error.errno())?,
        };
        let bound = channels.bind(domid, port);
        self.channels = channels.in_use();
        bound.map_err(|error| error.errno())
    }

    fn notify_channel(&mut self, port: EvtchnPort) -> Result<(), xen::Errno> {
        let channels = self.channels.as_ref().ok_or(xen::Errno::EINVAL)?;
        channels.notify(port).map_err(|error| error.errno())
    }

    fn unbind_channel(&mut self, port: EvtchnPort) -> Result<(), xen::Errno> {
        let mut channels = self.channels.take().ok_or(xen::Errno::EINVAL)?;
        let closed = channels.close(port);
        self.channels = channels.in_use();
        closed.map_err(|error| error.errno())
    }

    fn wait_channel(&mut self, timeout_ns: u64) -> Result<bool, xen::Errno> {
        let channels = self.channels.as_mut().ok_or(xen::Errno::EINVAL)?;
        channels.wait(timeout_ns).map_err(|error| error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_parts_of_them_are_copied_and_cleared_in_full() {
        let from: Vec<u8> = (0..=255).cycle().take(2 * PAGE_BYTES).collect();
        for (start, bytes) in [(0, 2 * PAGE_BYTES), (8, 64), (1, PAGE_BYTES), (16, 13), (5, 0)] {
            let mut to = vec![0xee; 2 * PAGE_BYTES];
            let part = start..start + bytes;
            let mut expected = to.clone();
            expected[part.clone()].copy_from_slice(&from[part.clone()]);
            // SAFETY: both are that long.
            unsafe { copy(from[part.clone()].as_ptr(), to[part.clone()].as_mut_ptr(), bytes) };
            assert_eq!(to, expected);
            expected[part.clone()].fill(0);
            // SAFETY: as above.
            unsafe { clear(to[part].as_mut_ptr(), bytes) };
            assert_eq!(to, expected);
        }
    }
}
