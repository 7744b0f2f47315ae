//! [`StopSignals`]: SIGTERM and SIGINT as something to poll for.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::HostError;
use crate::error::Refused;
use crate::ioctl::last_errno;

/// Requests to end, turned into a readable descriptor.
///
/// Opening it blocks the signals in the calling thread and in those that it starts afterwards, so a
/// daemon opens it before it starts any.
#[derive(Debug)]
pub struct StopSignals {
    fd: OwnedFd,
}

impl StopSignals {
    /// # Errors
    /// If no descriptor is left.
    pub fn open() -> Result<Self, HostError> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is initialised by `sigemptyset` before it is used, and both numbers are
        // signals; `pthread_sigmask` reads it and writes nothing.
        let (blocked, raw) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            let blocked =
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            (blocked, libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
        };
        assert_eq!(blocked, 0, "blocking two signals cannot be refused");
        if raw < 0 {
            return Err(last_errno()).refused(|| "cannot open a descriptor for signals");
        }
        // SAFETY: just opened, and nobody else knows it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// Whether somebody asked this process to end since the last question.
    ///
    /// # Errors
    /// Whatever the descriptor says; nothing is expected.
    pub fn received(&self) -> Result<bool, HostError> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let mut any = false;
        loop {
            match rustix::io::read(&self.fd, &mut record) {
                Ok(_) => any = true,
                Err(Errno::AGAIN) => return Ok(any),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).refused(|| "cannot read signals"),
            }
        }
    }
}

impl AsFd for StopSignals {
    /// Readable when a signal came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
