//! Signals as something to poll for: [`StopSignals`] are SIGTERM and SIGINT, [`HangupSignals`] SIGHUP.

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
        descriptor(&[libc::SIGTERM, libc::SIGINT]).map(|fd| Self { fd })
    }

    /// Whether somebody asked this process to end since the last question.
    ///
    /// # Errors
    /// Whatever the descriptor says; nothing is expected.
    pub fn received(&self) -> Result<bool, HostError> {
        received(&self.fd)
    }
}

/// Requests to open log files again, turned into a readable descriptor as [`StopSignals`] is.
#[derive(Debug)]
pub struct HangupSignals {
    fd: OwnedFd,
}

impl HangupSignals {
    /// # Errors
    /// If no descriptor is left.
    pub fn open() -> Result<Self, HostError> {
        descriptor(&[libc::SIGHUP]).map(|fd| Self { fd })
    }

    /// Whether a hangup came since the last question.
    ///
    /// # Errors
    /// Whatever the descriptor says; nothing is expected.
    pub fn received(&self) -> Result<bool, HostError> {
        received(&self.fd)
    }
}

/// Blocks the signals and opens a descriptor that tells of them.
fn descriptor(signals: &[libc::c_int]) -> Result<OwnedFd, HostError> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by `sigemptyset` before it is used, and the numbers are signals;
    // `pthread_sigmask` reads it and writes nothing.
    let (blocked, raw) = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        (blocked, libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
    };
    assert_eq!(blocked, 0, "blocking signals cannot be refused");
    if raw < 0 {
        return Err(last_errno()).refused(|| "cannot open a descriptor for signals");
    }
    // SAFETY: just opened, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn received(fd: &OwnedFd) -> Result<bool, HostError> {
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    let mut any = false;
    loop {
        match rustix::io::read(fd, &mut record) {
            Ok(_) => any = true,
            Err(Errno::AGAIN) => return Ok(any),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).refused(|| "cannot read signals"),
        }
    }
}

impl AsFd for StopSignals {
    /// Readable when a signal came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for HangupSignals {
    /// Readable when a signal came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
