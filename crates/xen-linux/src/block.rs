//! Block devices by number, as the `physical-device` node of a backend wants them.

use std::fmt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, major, minor, open, stat};
use rustix::io::Errno;

use crate::HostError;
use crate::error::Refused;

/// A device number. It prints as xenstore spells it: major and minor in hexadecimal.
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
/// If there is nothing at the path, or no block device.
pub fn block_device(path: &Path) -> Result<DeviceNumber, HostError> {
    let found = stat(path).refused(|| format!("cannot find {}", path.display()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return Err(Errno::NOTBLK).refused(|| format!("{} is not usable as it is", path.display()));
    }
    Ok(DeviceNumber { major: major(found.st_rdev), minor: minor(found.st_rdev) })
}

/// Whether nobody has a block device, its whole disk or a partition of it to himself: asked by trying for a moment.
///
/// # Errors
/// If the device cannot be opened.
pub fn is_unclaimed(path: &Path) -> Result<bool, HostError> {
    match open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        // A drive without a medium is nobody's.
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
    fn what_is_no_block_device_is_refused_by_name() {
        let error = block_device(Path::new("/dev/null")).unwrap_err();
        assert_eq!((error.errno().0, error.to_string().contains("/dev/null")), (15, true));
        assert_eq!(block_device(Path::new("/nowhere")).unwrap_err().errno(), xen::Errno::ENOENT);
    }
}
