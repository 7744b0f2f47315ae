//! [`GrantDevice`]: mapping pages that other domains grant. Source: Linux `uapi/xen/gntdev.h`.

use std::ffi::c_ulong;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use xen::{DomId, GrantRef};

use crate::error::Refused;
use crate::ioctl::{ioctl, open_device, request};
use crate::mapping::{Access, Mapping};
use crate::{HostError, SharedPage};

#[repr(C)]
struct MapGrantRef {
    count: u32,
    pad: u32,
    index: u64,
    domid: u32,
    reference: u32,
}

#[repr(C)]
struct UnmapGrantRef {
    index: u64,
    count: u32,
    pad: u32,
}

const MAP_GRANT_REF: c_ulong = request(b'G', 0, size_of::<MapGrantRef>());
const UNMAP_GRANT_REF: c_ulong = request(b'G', 1, size_of::<UnmapGrantRef>());

/// An open `/dev/xen/gntdev`.
#[derive(Debug)]
pub struct GrantDevice {
    fd: Arc<OwnedFd>,
}

impl GrantDevice {
    const PATH: &str = "/dev/xen/gntdev";

    /// The ioctls issued on this device, for seccomp filters.
    pub const REQUESTS: &[c_ulong] = &[MAP_GRANT_REF, UNMAP_GRANT_REF];

    /// # Errors
    /// If the device cannot be opened.
    pub fn open() -> Result<Self, HostError> {
        let advice = "is the module xen-gntdev loaded, and are we root?";
        open_device(Self::PATH, OFlags::empty(), advice).map(|fd| Self { fd: Arc::new(fd) })
    }

    /// Takes over a device that another program opened; the mappings remain the other program's.
    #[must_use]
    pub fn adopt(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Maps a page that `domid` granted to us, readable and writable.
    ///
    /// # Errors
    /// If there is no such grant, or it is for another domain, or read-only.
    pub fn map_grant(&self, domid: DomId, grant: GrantRef) -> Result<SharedPage, HostError> {
        let refused = || format!("cannot map grant {} of domain {domid}", grant.0);
        let mut map =
            MapGrantRef { count: 1, pad: 0, index: 0, domid: domid.0.into(), reference: grant.0 };
        // SAFETY: the structure is the request's, with the one reference that `count` announces.
        unsafe { ioctl(&*self.fd, MAP_GRANT_REF, &mut map) }.refused(refused)?;
        // From here on the kernel holds an entry for it, which `release` frees.
        let release = GrantRelease { fd: Arc::clone(&self.fd), index: map.index };
        let mapping = Mapping::new(&*self.fd, 1, map.index, Access::ReadWrite).refused(refused)?;
        Ok(SharedPage::of_grant(mapping, release))
    }
}

impl AsFd for GrantDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Frees a grant's entry in the kernel when dropped. The page must be unmapped first.
#[derive(Debug)]
pub(crate) struct GrantRelease {
    fd: Arc<OwnedFd>,
    index: u64,
}

impl Drop for GrantRelease {
    fn drop(&mut self) {
        let mut unmap = UnmapGrantRef { index: self.index, count: 1, pad: 0 };
        // SAFETY: the structure is the request's; it points to nothing.
        let released: Result<u32, Errno> = unsafe { ioctl(&*self.fd, UNMAP_GRANT_REF, &mut unmap) };
        debug_assert!(released.is_ok(), "a grant of ours could not be released: {released:?}");
    }
}
