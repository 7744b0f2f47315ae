//! [`HostError`]: what the kernel refused, in words for an operator.

use std::fmt::Display;

use rustix::io::Errno;

/// The kernel refused something. The message names the object; the number says why.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{refused}: {reason}")]
pub struct HostError {
    /// What was refused, and what to do about it where that is known.
    refused: String,
    reason: Errno,
}

impl HostError {
    pub(crate) fn new(refused: impl Display, reason: Errno) -> Self {
        Self { refused: refused.to_string(), reason }
    }

    /// The error number, in the numbering that Xen shares with Linux.
    #[must_use]
    pub fn errno(&self) -> xen::Errno {
        xen::Errno(self.reason.raw_os_error())
    }
}

/// Turns a bare error number into one that names its object.
pub(crate) trait Refused<T> {
    fn refused<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, HostError>;
}

impl<T> Refused<T> for Result<T, Errno> {
    fn refused<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, HostError> {
        self.map_err(|reason| HostError::new(what(), reason))
    }
}
