//! Loop devices: files as block devices. Source: Linux `uapi/linux/loop.h`.
//!
//! An attached device outlives the process that attached it, so it must be detached explicitly.

use std::ffi::c_ulong;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, major, minor, open, stat};
use rustix::io::Errno;

use crate::error::Refused;
use crate::ioctl::{ioctl, ioctl_number, open_device};
use crate::{Access, DeviceNumber, HostError, block_device, lock};

const CLR_FD: c_ulong = 0x4c01;
const SET_STATUS64: c_ulong = 0x4c04;
const GET_STATUS64: c_ulong = 0x4c05;
const SET_CAPACITY: c_ulong = 0x4c07;
const CONFIGURE: c_ulong = 0x4c0a;
const CTL_GET_FREE: c_ulong = 0x4c82;

const FLAG_READ_ONLY: u32 = 1;
const FLAG_DIRECT_IO: u32 = 16;

/// Size of the kernel's name field, with its terminating zero.
const NAME_BYTES: usize = 64;

/// `struct loop_info64`
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset_bytes: u64,
    size_bytes_max: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_bytes: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopInfo {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset_bytes: 0,
        size_bytes_max: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_bytes: 0,
        flags: 0,
        file_name: [0; NAME_BYTES],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

impl LoopInfo {
    fn identity(&self) -> FileIdentity {
        // Older kernels repeat the file system's device number for a file.
        if self.rdevice != 0 && self.rdevice != self.device {
            return FileIdentity::Device(device_number(self.rdevice));
        }
        FileIdentity::File { filesystem: device_number(self.device), inode: self.inode }
    }
}

/// `struct loop_config`
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// Attempts to get a free device while others compete for them.
const ATTACH_TRIES: u32 = 64;

/// A loop device, by its number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LoopDevice(pub u32);

/// The file behind a loop device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Backing {
    /// Its path when it was attached, as reported by the kernel.
    pub path: PathBuf,
    /// The name given to [`LoopDevice::attach`]; other tools put the path there.
    pub name: String,
    pub access: Access,
    /// Whether the page cache is bypassed.
    pub direct_io: bool,
    /// Its identity, independent of its path.
    pub identity: FileIdentity,
}

/// Identity of a file or block device.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum FileIdentity {
    File { filesystem: DeviceNumber, inode: u64 },
    Device(DeviceNumber),
}

/// Whether a file is locked for as long as it is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FileLock {
    /// As QEMU locks its disks: many readers or one writer.
    Qemu,
    None,
}

fn device_number(raw: u64) -> DeviceNumber {
    DeviceNumber { major: major(raw), minor: minor(raw) }
}

fn identity(found: &Stat) -> FileIdentity {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => FileIdentity::Device(device_number(found.st_rdev)),
        _ => {
            let filesystem = device_number(found.st_dev);
            FileIdentity::File { filesystem, inode: found.st_ino }
        }
    }
}

/// Identifies the target of a path, following symbolic links.
///
/// # Errors
/// ENOENT if it does not exist.
pub fn identify(path: &Path) -> Result<FileIdentity, HostError> {
    stat(path).map(|it| identity(&it)).refused(|| format!("cannot find {}", path.display()))
}

impl LoopDevice {
    const CONTROL_PATH: &str = "/dev/loop-control";
    const ADVICE: &str = "is the module loop loaded, and are we root?";

    /// Attaches a file to a free device. Direct I/O is used where the file allows it, so that a
    /// guest's acknowledged write is not only in the host's memory.
    ///
    /// The device has the name `name` (truncated to 63 bytes) while the file is attached.
    ///
    /// # Errors
    /// If the file cannot be opened, is not a regular file, or no loop device is free; EAGAIN if
    /// the file is locked.
    pub fn attach(
        file: &Path,
        access: Access,
        name: &str,
        lock: FileLock,
    ) -> Result<(Self, FileIdentity), HostError> {
        let (backing, identity) = open_backing(file, access)?;
        if lock == FileLock::Qemu {
            // The device keeps the open file and thus its locks, also after this process has ended.
            lock::lock(&backing, access).refused(|| format!("cannot lock {}", file.display()))?;
        }
        let refused = || format!("cannot attach {} to a loop device", file.display());
        let control = open_device(Self::CONTROL_PATH, OFlags::empty(), Self::ADVICE)?;
        let read_only = match access {
            Access::ReadOnly => FLAG_READ_ONLY,
            Access::ReadWrite => 0,
        };
        let mut flags = read_only | FLAG_DIRECT_IO;
        for _ in 0..ATTACH_TRIES {
            // SAFETY: the request takes no argument.
            let free = unsafe { ioctl_number(&control, CTL_GET_FREE, 0) }.refused(refused)?;
            let device = Self(free);
            match configure(&device.open(access)?, &backing, name, flags) {
                Ok(()) => return Ok((device, identity)),
                // Another process was faster.
                Err(Errno::BUSY) => {}
                Err(Errno::INVAL) if flags & FLAG_DIRECT_IO != 0 => flags = read_only,
                Err(errno) => return Err(errno).refused(refused),
            }
        }
        Err(Errno::BUSY).refused(refused)
    }

    /// Detaches the file. If the device is still open, it is detached on the last close.
    ///
    /// # Errors
    /// ENXIO if nothing is attached.
    pub fn detach(self) -> Result<(), HostError> {
        let fd = self.open(Access::ReadOnly)?;
        // SAFETY: the request takes no argument.
        unsafe { ioctl_number(&fd, CLR_FD, 0) }
            .refused(|| format!("cannot detach {}", self.path().display()))
            .map(drop)
    }

    /// Changes only the device's name: pending requests are completed first, and new ones wait for
    /// a moment.
    ///
    /// # Errors
    /// ENXIO if nothing is attached.
    pub fn rename(self, name: &str) -> Result<(), HostError> {
        let refused = || format!("cannot rename {}", self.path().display());
        let fd = self.open(Access::ReadOnly)?;
        let mut info = LoopInfo::EMPTY;
        // SAFETY: the structure is the request's; it points to nothing.
        unsafe { ioctl(&fd, GET_STATUS64, &mut info) }.refused(refused)?;
        info.file_name = file_name(name);
        // SAFETY: as above.
        unsafe { ioctl(&fd, SET_STATUS64, &mut info) }.refused(refused).map(drop)
    }

    /// Updates the device to its file's current size.
    ///
    /// # Errors
    /// ENXIO if nothing is attached.
    pub fn see_new_size(self) -> Result<(), HostError> {
        let fd = self.open(Access::ReadOnly)?;
        // SAFETY: the request takes no argument.
        unsafe { ioctl_number(&fd, SET_CAPACITY, 0) }
            .refused(|| format!("cannot resize {}", self.path().display()))
            .map(drop)
    }

    /// The file behind the device, if one is attached.
    ///
    /// # Errors
    /// If the device does not exist.
    pub fn backing(self) -> Result<Option<Backing>, HostError> {
        let refused = || format!("cannot read the backing file of {}", self.path().display());
        let mut info = LoopInfo::EMPTY;
        // SAFETY: the structure is the request's; it points to nothing.
        match unsafe { ioctl(&self.open(Access::ReadOnly)?, GET_STATUS64, &mut info) } {
            Ok(_) => {}
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno).refused(refused),
        }
        let name = info.file_name.split(|&b| b == 0).next().unwrap_or_default();
        // The name in `info` is truncated to 63 bytes; sysfs has all of it.
        let path = std::fs::read(format!("/sys/block/loop{}/loop/backing_file", self.0));
        let path = path.as_deref().map_or(name, <[u8]>::trim_ascii_end);
        Ok(Some(Backing {
            path: PathBuf::from(std::ffi::OsStr::from_bytes(path)),
            name: String::from_utf8_lossy(name).into_owned(),
            access: if info.flags & FLAG_READ_ONLY == 0 {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            },
            direct_io: info.flags & FLAG_DIRECT_IO != 0,
            identity: info.identity(),
        }))
    }

    /// All devices that have a file attached.
    ///
    /// # Errors
    /// If the devices cannot be listed.
    pub fn all() -> Result<Vec<(Self, Backing)>, HostError> {
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let mut devices = Vec::new();
        let listing = std::fs::read_dir("/sys/block").map_err(io);
        for entry in listing.refused(|| "cannot list /sys/block")? {
            let name = entry.map_err(io).refused(|| "cannot list /sys/block")?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
            let Some(device) = number.map(Self) else { continue };
            // A device that disappears meanwhile has no file.
            match device.backing() {
                Ok(Some(backing)) => devices.push((device, backing)),
                Ok(None) => {}
                Err(error)
                    if error.errno().0 == libc::ENXIO || error.errno() == xen::Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        devices.sort_by_key(|(device, _)| *device);
        Ok(devices)
    }

    /// All devices backed by this very file, whatever path it was attached by.
    ///
    /// # Errors
    /// If the file does not exist or the devices cannot be listed.
    pub fn backed_by(file: &Path) -> Result<Vec<Self>, HostError> {
        let found = stat(file).refused(|| format!("cannot find {}", file.display()))?;
        let identity = identity(&found);
        let all = Self::all()?;
        let same = all.into_iter().filter(|(_, backing)| backing.identity == identity);
        Ok(same.map(|(device, _)| device).collect())
    }

    #[must_use]
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.0))
    }

    /// # Errors
    /// If the device does not exist.
    pub fn number(self) -> Result<DeviceNumber, HostError> {
        block_device(&self.path())
    }

    /// Opens the device. If it is opened read-only to be configured, it stays read-only.
    fn open(self, access: Access) -> Result<OwnedFd, HostError> {
        let path = self.path();
        open(&path, open_flags(access), Mode::empty())
            .refused(|| format!("cannot open {} ({})", path.display(), Self::ADVICE))
    }
}

fn open_flags(access: Access) -> OFlags {
    OFlags::CLOEXEC
        | match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        }
}

fn open_backing(file: &Path, access: Access) -> Result<(OwnedFd, FileIdentity), HostError> {
    let backing = open(file, open_flags(access) | OFlags::NONBLOCK, Mode::empty())
        .refused(|| format!("cannot open {}", file.display()))?;
    let found = fstat(&backing).refused(|| format!("cannot stat {}", file.display()))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok((backing, identity(&found))),
        _ => Err(Errno::INVAL).refused(|| format!("{} is not a regular file", file.display())),
    }
}

/// A name as the kernel keeps it, truncated to 63 bytes.
fn file_name(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let kept = name.len().min(NAME_BYTES - 1);
    bytes[..kept].copy_from_slice(&name.as_bytes()[..kept]);
    bytes
}

fn configure(device: &OwnedFd, backing: &OwnedFd, name: &str, flags: u32) -> Result<(), Errno> {
    let info = LoopInfo { flags, file_name: file_name(name), ..LoopInfo::EMPTY };
    let fd = u32::try_from(backing.as_raw_fd()).expect("an open descriptor is not negative");
    let mut config = LoopConfig { fd, block_bytes: 0, info, reserved: [0; 8] };
    // SAFETY: the structure is the request's; it points to nothing.
    unsafe { ioctl(device, CONFIGURE, &mut config) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel_headers() {
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }

    #[test]
    fn a_file_that_cannot_be_attached_is_named() {
        let lock = FileLock::Qemu;
        let nowhere = Path::new("/nowhere/disk.img");
        let error = LoopDevice::attach(nowhere, Access::ReadWrite, "", lock);
        assert_eq!(
            error.unwrap_err().to_string(),
            "cannot open /nowhere/disk.img: No such file or directory (os error 2)"
        );
        let error = LoopDevice::attach(Path::new("/dev"), Access::ReadOnly, "", lock).unwrap_err();
        assert_eq!(error.to_string(), "/dev is not a regular file: Invalid argument (os error 22)");
    }
}
