//! The host: files, loop devices, bridges.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use storage::{Access, BlockDevice, BlockHost, DeviceNumber, FileKind, HostError, TaggedLoop};
use toolstack::host::{Host, KernelError};
use xen_build::KernelImage;
use xen_linux::{Links, LoopDevice};

use crate::images::Images;

/// How long an interface may take to appear.
const LINK_WAIT: Duration = Duration::from_secs(10);

/// A path as it is seen from `cwd`.
pub(crate) fn absolute(cwd: &Path, path: &str) -> String {
    // Both came as text, so nothing is lost on the way back.
    cwd.join(path).to_string_lossy().into_owned()
}

/// The words for what a file refuses.
pub(crate) fn refusal(error: &io::Error) -> HostError {
    match error.kind() {
        io::ErrorKind::NotFound => HostError::Missing,
        _ => HostError::Refused(error.to_string()),
    }
}

/// The words of a refusal by the kernel.
fn refused(error: &xen_linux::HostError) -> HostError {
    match error.errno() {
        xen::Errno::ENOENT | xen::Errno::ENODEV => HostError::Missing,
        xen::Errno::EBUSY => HostError::Busy,
        _ => HostError::Refused(error.to_string()),
    }
}

/// This machine, for one thread.
#[derive(Debug)]
pub(crate) struct LinuxHost {
    images: Images,
    links: Links,
}

impl LinuxHost {
    pub(crate) fn open(images: Images) -> Result<Self, xen_linux::HostError> {
        Ok(Self { images, links: Links::open()? })
    }
}

fn loop_access(access: Access) -> xen_linux::Access {
    match access {
        Access::ReadOnly => xen_linux::Access::ReadOnly,
        Access::ReadWrite => xen_linux::Access::ReadWrite,
    }
}

fn number(number: xen_linux::DeviceNumber) -> DeviceNumber {
    DeviceNumber { major: number.major, minor: number.minor }
}

fn loop_device(device: LoopDevice) -> Result<BlockDevice, xen_linux::HostError> {
    let path = device.path().to_string_lossy().into_owned();
    Ok(BlockDevice { path, number: number(device.number()?) })
}

impl BlockHost for LinuxHost {
    fn inspect(&mut self, path: &str) -> Result<FileKind, HostError> {
        let metadata = fs::metadata(path).map_err(|error| refusal(&error))?;
        let kind = metadata.file_type();
        Ok(if kind.is_file() {
            FileKind::Regular { bytes: metadata.len() }
        } else if kind.is_dir() {
            FileKind::Directory
        } else if kind.is_block_device() {
            let found = xen_linux::block_device(Path::new(path)).map_err(|e| refused(&e))?;
            FileKind::Block(number(found))
        } else {
            FileKind::Other
        })
    }

    fn attach_loop(
        &mut self,
        path: &str,
        access: Access,
        tag: &str,
    ) -> Result<BlockDevice, HostError> {
        let device = LoopDevice::attach(Path::new(path), loop_access(access), tag)
            .map_err(|error| refused(&error))?;
        loop_device(device).map_err(|error| {
            // Without its number it is of no use to a backend; the first error is the one to tell.
            let _undone = device.detach();
            refused(&error)
        })
    }

    fn detach_loop(&mut self, device: &str) -> Result<(), HostError> {
        let Some(index) = device.strip_prefix("/dev/loop").and_then(|n| n.parse().ok()) else {
            return Err(HostError::Refused("not a loop device".to_owned()));
        };
        match LoopDevice(index).detach() {
            Ok(()) => Ok(()),
            Err(error) if error.errno() == ENXIO => Ok(()),
            Err(error) => Err(refused(&error)),
        }
    }

    fn tagged_loops(&mut self, prefix: &str) -> Result<Vec<TaggedLoop>, HostError> {
        let all = LoopDevice::all().map_err(|error| refused(&error))?;
        let ours = all.into_iter().filter(|(_, backing)| backing.name.starts_with(prefix));
        ours.map(|(device, backing)| {
            let device = loop_device(device).map_err(|error| refused(&error))?;
            Ok(TaggedLoop { device, tag: backing.name })
        })
        .collect()
    }
}

/// "No such device or address": the loop device has no file.
const ENXIO: xen::Errno = xen::Errno(6);

impl Host for LinuxHost {
    fn kernel(&mut self, path: &str) -> Result<Arc<KernelImage>, KernelError> {
        Ok(self.images.kernel(path)?)
    }

    fn ramdisk(&mut self, path: &str) -> Result<Arc<[u8]>, HostError> {
        self.images.ramdisk(path)
    }

    fn check_bridge(&mut self, bridge: &str) -> Result<(), HostError> {
        self.links.bridge(bridge).map(drop).map_err(|error| refused(&error))
    }

    fn join_bridge(&mut self, bridge: &str, link: &str, mtu: Option<u32>) -> Result<(), HostError> {
        let told = |error: xen_linux::HostError| HostError::Refused(error.to_string());
        // netback says InitWait a moment before it has made its interface.
        self.links.wait_for(link, LINK_WAIT).map_err(told)?;
        self.links.add_port(bridge, link).map_err(told)?;
        mtu.map_or(Ok(()), |bytes| self.links.set_mtu(link, bytes)).map_err(told)
    }
}
