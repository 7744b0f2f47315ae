//! Signals as descriptors to poll: [`StopSignals`] are SIGTERM and SIGINT, [`HangupSignals`]
//! SIGHUP.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::HostError;
use crate::error::Refused;
use crate::ioctl::last_errno;

/// Requests to stop, as a readable descriptor.
///
/// Opening it blocks the signals in the calling thread and in threads that it starts later, so a
/// daemon opens it before it starts any.
#[derive(Debug)]
pub struct StopSignals {
    fd: OwnedFd,
}

impl StopSignals {
    /// # Errors
    /// If there are too many open files.
    pub fn open() -> Result<Self, HostError> {
        descriptor(&[libc::SIGTERM, libc::SIGINT]).map(|fd| Self { fd })
    }

    /// Whether such a signal arrived since the last call.
    ///
    /// # Errors
    /// Any errno of the descriptor; none is expected.
    pub fn received(&self) -> Result<bool, HostError> {
        received(&self.fd)
    }
}

/// Requests to reopen log files, as a readable descriptor like [`StopSignals`].
#[derive(Debug)]
pub struct HangupSignals {
    fd: OwnedFd,
}

impl HangupSignals {
    /// # Errors
    /// If there are too many open files.
    pub fn open() -> Result<Self, HostError> {
        descriptor(&[libc::SIGHUP]).map(|fd| Self { fd })
    }

    /// Whether a hangup arrived since the last call.
    ///
    /// # Errors
    /// Any errno of the descriptor; none is expected.
    pub fn received(&self) -> Result<bool, HostError> {
        received(&self.fd)
    }
}

/// Blocks the signals and opens a signalfd for them.
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
    // SAFETY: just opened, and not shared yet.
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
    /// Readable when a signal is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for HangupSignals {
    /// Readable when a signal is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
