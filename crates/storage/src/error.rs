//! [`StorageError`]: why an SR or VDI is not as was asked.

use crate::HostError;

/// What a caller can do about it differs by case; the text names the SR or VDI.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StorageError {
    /// There is no such SR or VDI.
    #[error("{0}")]
    Missing(String),
    /// Somebody uses it: possible once they have let go.
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

/// Names what the host refused something for.
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
