//! [`HostError`]: an error of the kernel, described for an operator.

use std::fmt::Display;

use rustix::io::Errno;

/// An error of the kernel. The message names the object, the errno says why.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{refused}: {reason}")]
pub struct HostError {
    /// What failed, and what to do about it if known.
    refused: String,
    reason: Errno,
}

impl HostError {
    pub(crate) fn new(refused: impl Display, reason: Errno) -> Self {
        Self { refused: refused.to_string(), reason }
    }

    /// The errno, in the numbering that Xen shares with Linux.
    #[must_use]
    pub fn errno(&self) -> xen::Errno {
        xen::Errno(self.reason.raw_os_error())
    }
}

/// Adds the object's name to an errno.
pub(crate) trait Refused<T> {
    fn refused<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, HostError>;
}

impl<T> Refused<T> for Result<T, Errno> {
    fn refused<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, HostError> {
        self.map_err(|reason| HostError::new(what(), reason))
    }
}
