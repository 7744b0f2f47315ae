//! [`StorageError`]: why a request on an SR or VDI failed.

use crate::HostError;

/// The cases differ in what a caller can do; the text names the SR or VDI.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StorageError {
    /// There is no such SR or VDI.
    #[error("{0}")]
    Missing(String),
    /// In use: possible once the users have detached.
    #[error("{0}")]
    InUse(String),
    /// Anything else.
    #[error("{0}")]
    Refused(String),
}

impl StorageError {
    pub(crate) fn refused(what: impl Into<String>) -> Self {
        Self::Refused(what.into())
    }
}

/// Adds the name of the SR or VDI to an error of the host.
pub(crate) trait Naming<T> {
    fn of(self, name: impl std::fmt::Display) -> Result<T, StorageError>;
}

impl<T> Naming<T> for Result<T, HostError> {
    fn of(self, name: impl std::fmt::Display) -> Result<T, StorageError> {
        self.map_err(|error| {
            let text = format!("{name}: {error}");
            match error {
                HostError::Missing => StorageError::Missing(text),
                HostError::Busy => StorageError::InUse(text),
                HostError::Refused(_) => StorageError::Refused(text),
            }
        })
    }
}
