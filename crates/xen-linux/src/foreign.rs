//! Mapping other domains' frames through `/dev/xen/privcmd`. Source: Linux `uapi/xen/privcmd.h`.
//!
//! A mapped frame keeps its domain's domid in use: the domain stays a zombie until it is unmapped.

use std::ffi::{c_int, c_ulong};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use xen::DomId;

use crate::error::Refused;
use crate::ioctl::{ioctl, open_device, request};
use crate::mapping::{Access, Mapping};
use crate::{HostError, SharedPage};

pub(crate) const PRIVCMD_PATH: &str = "/dev/xen/privcmd";
pub(crate) const PRIVCMD_ADVICE: &str =
    "is this a Xen control domain with the module xen-privcmd loaded, and are we root?";

#[repr(C)]
struct MmapBatch {
    frames: u32,
    domid: u16,
    address: u64,
    frame_array: *const u64,
    error_array: *mut c_int,
}

const MMAP_BATCH_V2: c_ulong = request(b'P', 4, size_of::<MmapBatch>());

/// A paged-out frame is fetched by the pager; how often and how long we retry.
const PAGED_OUT_TRIES: u32 = 1000;
const PAGED_OUT_PAUSE: Duration = Duration::from_millis(1);

/// Maps `frames` of a domain contiguously, in this order.
pub(crate) fn map_frames(
    privcmd: impl AsFd,
    domid: DomId,
    frames: &[u64],
    access: Access,
) -> Result<Mapping, Errno> {
    let privcmd = privcmd.as_fd();
    let mapping = Mapping::new(privcmd, frames.len(), 0, access)?;
    let mut errors: Vec<c_int> = vec![0; frames.len()];
    // The first call must cover the whole mapping.
    let first = batch(privcmd, domid, mapping.address(), frames, &mut errors);
    if !matches!(first, Ok(()) | Err(Errno::NOENT)) {
        return first.map(|()| mapping);
    }
    for (i, frame) in frames.iter().enumerate() {
        let address = mapping.address() + (i * xen::PAGE_BYTES) as u64;
        let mut error = errors[i];
        for _ in 0..PAGED_OUT_TRIES {
            if error != -libc::ENOENT {
                break;
            }
            std::thread::sleep(PAGED_OUT_PAUSE);
            match batch(privcmd, domid, address, &[*frame], std::slice::from_mut(&mut error)) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        if error != 0 {
            return Err(Errno::from_raw_os_error(-error));
        }
    }
    Ok(mapping)
}

/// One MMAPBATCH_V2 over part of a mapping. `errors` receives a negative number for each bad frame.
fn batch(
    privcmd: impl AsFd,
    domid: DomId,
    address: u64,
    frames: &[u64],
    errors: &mut [c_int],
) -> Result<(), Errno> {
    assert_eq!(frames.len(), errors.len());
    let mut batch = MmapBatch {
        frames: u32::try_from(frames.len()).map_err(|_| Errno::TOOBIG)?,
        domid: domid.0,
        address,
        frame_array: frames.as_ptr(),
        error_array: errors.as_mut_ptr(),
    };
    // SAFETY: the structure is the request's; both arrays have as many elements as it announces and
    // outlive the call. It only changes the pages of a mapping to which no reference exists.
    unsafe { ioctl(privcmd, MMAP_BATCH_V2, &mut batch) }.map(drop)
}

/// Maps single frames of other domains permanently, as a store does with rings.
#[derive(Debug)]
pub struct ForeignMemory {
    privcmd: OwnedFd,
}

impl ForeignMemory {
    /// The ioctls issued on this device, for seccomp filters.
    pub const REQUESTS: &[c_ulong] = &[MMAP_BATCH_V2];

    /// # Errors
    /// If the device cannot be opened.
    pub fn open() -> Result<Self, HostError> {
        let privcmd = open_device(PRIVCMD_PATH, OFlags::empty(), PRIVCMD_ADVICE)?;
        Ok(Self { privcmd })
    }

    /// Maps one frame: a gfn of a translated domain, an mfn of a PV domain.
    ///
    /// # Errors
    /// If the domain has no such frame.
    pub fn map_page(&self, domid: DomId, frame: u64) -> Result<SharedPage, HostError> {
        map_frames(&self.privcmd, domid, &[frame], Access::ReadWrite)
            .map(SharedPage::new)
            .refused(|| format!("cannot map frame {frame:#x} of domain {domid}"))
    }
}
