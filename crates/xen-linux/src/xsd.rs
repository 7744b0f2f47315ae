//! Dom0's own store ring, which its kernel set up for the store daemon: `/proc/xen/xsd_kva`,
//! `xsd_port`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use xen::EvtchnPort;

use crate::error::Refused;
use crate::ioctl::open_device;
use crate::mapping::{Access, Mapping};
use crate::{HostError, SharedPage};

const PAGE_PATH: &str = "/proc/xen/xsd_kva";
const PORT_PATH: &str = "/proc/xen/xsd_port";
const ADVICE: &str = "is xenfs mounted on /proc/xen, and is this the control domain?";

/// The file of the store ring between this domain's kernel and the store daemon running in it.
#[derive(Debug)]
pub struct OwnStoreRing {
    fd: OwnedFd,
}

impl OwnStoreRing {
    /// # Errors
    /// If xenfs is not mounted on `/proc/xen`, or this is not the store domain.
    pub fn open() -> Result<Self, HostError> {
        open_device(PAGE_PATH, OFlags::empty(), ADVICE).map(|fd| Self { fd })
    }

    /// Takes over a file that another program opened.
    #[must_use]
    pub fn adopt(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// # Errors
    /// If the kernel has no ring there, or this is another file.
    pub fn map(&self) -> Result<SharedPage, HostError> {
        let mapping = Mapping::new(&self.fd, 1, 0, Access::ReadWrite)
            .refused(|| format!("cannot map this domain's store ring from {PAGE_PATH}"))?;
        Ok(SharedPage::new(mapping))
    }

    /// The kernel's port, to [bind](crate::EventChannels::bind_interdomain) to in this same domain.
    /// Only root can read it.
    ///
    /// # Errors
    /// If this is not the store domain.
    pub fn port() -> Result<EvtchnPort, HostError> {
        let text = std::fs::read_to_string(PORT_PATH)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .refused(|| format!("cannot read {PORT_PATH} ({ADVICE})"))?;
        let port: u32 = text
            .trim()
            .parse()
            .map_err(|_| Errno::INVAL)
            .refused(|| format!("{PORT_PATH} does not contain a port number: {text:?}"))?;
        Ok(EvtchnPort(port))
    }
}

impl AsFd for OwnStoreRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
