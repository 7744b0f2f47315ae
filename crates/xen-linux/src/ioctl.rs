//! The only callers of `ioctl(2)`, and opening of device files.

use std::ffi::{c_int, c_ulong};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::HostError;
use crate::error::Refused;

/// A request number of the form `_IOC(_IOC_NONE, group, number, bytes)`, which all Xen devices use.
pub(crate) const fn request(group: u8, number: u8, bytes: usize) -> c_ulong {
    assert!(bytes < 1 << 14, "an ioctl argument has at most 14 bits of length");
    (bytes as c_ulong) << 16 | (group as c_ulong) << 8 | number as c_ulong
}

/// Issues an `ioctl` whose argument is a structure, and returns its non-negative result.
///
/// # Safety
/// `T` must be the structure that `request` takes on this kind of file, and everything it points to
/// must be valid for what the kernel does with it until the call returns.
pub(crate) unsafe fn ioctl<T>(
    fd: impl AsFd,
    request: c_ulong,
    argument: &mut T,
) -> Result<u32, Errno> {
    // SAFETY: the caller vouches for the structure; the descriptor is open while it is borrowed.
    let result =
        unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, std::ptr::from_mut(argument)) };
    checked(result)
}

/// Issues an `ioctl` whose argument is a number or nothing.
///
/// # Safety
/// `request` must not take a pointer on this kind of file.
pub(crate) unsafe fn ioctl_number(
    fd: impl AsFd,
    request: c_ulong,
    argument: c_ulong,
) -> Result<u32, Errno> {
    // SAFETY: no memory is involved; the descriptor is open while it is borrowed.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, argument) };
    checked(result)
}

fn checked(result: c_int) -> Result<u32, Errno> {
    match u32::try_from(result) {
        Ok(result) => Ok(result),
        Err(_) if result == -1 => Err(last_errno()),
        // A hypercall's 64-bit result, truncated to `int` by the kernel, may look like this.
        Err(_) => Err(Errno::OVERFLOW),
    }
}

/// The calling thread's `errno`.
pub(crate) fn last_errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.expect("the last OS error is one of the OS"))
}

/// Opens a device for reading and writing; `advice` says what to do if it is missing.
pub(crate) fn open_device(path: &str, flags: OFlags, advice: &str) -> Result<OwnedFd, HostError> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty())
        .refused(|| format!("cannot open {path} ({advice})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_those_of_the_kernel_headers() {
        // `_IOC` with direction "none": IOCTL_PRIVCMD_HYPERCALL and IOCTL_EVTCHN_RESET.
        assert_eq!(request(b'P', 0, 48), 0x30_5000);
        assert_eq!(request(b'E', 5, 0), 0x4505);
    }
}
