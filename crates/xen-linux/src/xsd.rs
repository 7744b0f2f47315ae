//! Dom0's own store ring, which its kernel made for the store daemon: `/proc/xen/xsd_kva`, `xsd_port`.

use rustix::fs::OFlags;
use rustix::io::Errno;
use xen::EvtchnPort;

use crate::error::Refused;
use crate::ioctl::open_device;
use crate::mapping::{Access, Mapping};
use crate::{HostError, SharedPage};

/// The store ring between this domain's kernel and the store daemon running in it.
#[derive(Debug)]
pub struct OwnStoreRing {
    pub page: SharedPage,
    /// The kernel's port, to [bind](crate::EventChannels::bind_interdomain) to in this very domain.
    pub port: EvtchnPort,
}

impl OwnStoreRing {
    /// Maps the ring and reads its port.
    ///
    /// # Errors
    /// If xenfs is not mounted on `/proc/xen`, or this domain is not the store's.
    pub fn open() -> Result<Self, HostError> {
        let port_path = "/proc/xen/xsd_port";
        let advice = "is xenfs mounted on /proc/xen, and is this the control domain?";
        let text = std::fs::read_to_string(port_path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .refused(|| format!("cannot read {port_path} ({advice})"))?;
        let port: u32 = text
            .trim()
            .parse()
            .map_err(|_| Errno::INVAL)
            .refused(|| format!("{port_path} holds no port number but {text:?}"))?;

        let page_path = "/proc/xen/xsd_kva";
        let device = open_device(page_path, OFlags::empty(), advice)?;
        let mapping = Mapping::new(&device, 1, 0, Access::ReadWrite)
            .refused(|| format!("cannot map this domain's store ring from {page_path}"))?;
        Ok(Self { page: SharedPage::new(mapping), port: EvtchnPort(port) })
    }
}
