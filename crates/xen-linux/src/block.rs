//! Block devices by number, as in a backend's `physical-device` node.

use std::fmt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, major, minor, open, stat};
use rustix::io::Errno;

use crate::HostError;
use crate::error::Refused;

/// A device number. It is printed as in xenstore: major and minor in hexadecimal.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.major, self.minor)
    }
}

/// The number of a block device, given its path.
///
/// # Errors
/// If the path does not exist or is not a block device.
pub fn block_device(path: &Path) -> Result<DeviceNumber, HostError> {
    let found = stat(path).refused(|| format!("cannot find {}", path.display()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return Err(Errno::NOTBLK).refused(|| format!("cannot use {} as a disk", path.display()));
    }
    Ok(DeviceNumber { major: major(found.st_rdev), minor: minor(found.st_rdev) })
}

/// Whether a block device, its whole disk and its partitions are not opened exclusively: tested by
/// opening it with O_EXCL for a moment.
///
/// # Errors
/// If the device cannot be opened.
pub fn is_unclaimed(path: &Path) -> Result<bool, HostError> {
    match open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        // A drive without a medium is not in use.
        Err(Errno::NOMEDIUM) => Ok(true),
        Err(errno) => Err(errno).refused(|| format!("cannot open {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_is_printed_as_backends_read_it() {
        assert_eq!(DeviceNumber { major: 7, minor: 26 }.to_string(), "7:1a");
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let error = block_device(Path::new("/dev/null")).unwrap_err();
        assert_eq!((error.errno().0, error.to_string().contains("/dev/null")), (15, true));
        assert_eq!(block_device(Path::new("/nowhere")).unwrap_err().errno(), xen::Errno::ENOENT);
    }
}
