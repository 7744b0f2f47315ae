//! The client's side of the store: a machine without I/O and a blocking adapter over it.
//!
//! [`ClientMachine`] turns requests into bytes and bytes into replies and events. [`Client`] drives
//! it over a [`Transport`], which is a socket, a ring, or the simulator calling the server directly.

mod batch;
mod blocking;
mod machine;
mod nodes;

pub use batch::{Batch, Replies};
pub use blocking::{Client, ClientCounters, Transaction};
pub use machine::{ClientMachine, ProtocolError, WatchEvent};
pub use nodes::Nodes;

use alloc::string::String;

use crate::Error;

/// A byte stream to a store. Both calls wait until they can do something.
pub trait Transport {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// What went wrong, as an error number; the connection is of no further use.
    fn send(&mut self, bytes: &[u8]) -> Result<(), xen::Errno>;

    /// Receives at least one byte, and says how many; 0 means that the store closed the connection.
    ///
    /// # Errors
    /// What went wrong, as an error number. `EAGAIN` from a transport that does not wait is passed
    /// on by [`Client::receive`] as "nothing now"; elsewhere it ends the request.
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, xen::Errno>;
}

impl<T: Transport + ?Sized> Transport for &mut T {
    fn send(&mut self, bytes: &[u8]) -> Result<(), xen::Errno> {
        (**self).send(bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, xen::Errno> {
        (**self).recv(into)
    }
}

/// Why a request to the store has no result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ClientError {
    /// The store answered with an error. `request` is such as `read /local/domain/3/name`.
    #[error("xenstore {request}: {error}")]
    Refused { request: String, error: Error },
    /// Every attempt of a transaction met a conflicting change.
    #[error("a xenstore transaction met a conflicting change {attempts} times in a row")]
    Conflict { attempts: u32 },
    /// A value that should be text is not UTF-8.
    #[error("xenstore node {path} holds bytes that are not text")]
    NotText { path: String },
    /// The connection broke.
    #[error("the connection to xenstore failed: {0}")]
    Transport(xen::Errno),
    /// The store closed the connection.
    #[error("xenstore closed the connection; see the store daemon's log")]
    Closed,
    /// The store's bytes make no sense.
    #[error("xenstore broke its protocol: {0}")]
    Protocol(#[from] ProtocolError),
}

impl ClientError {
    /// The error name that the store sent, if this is a refusal.
    #[must_use]
    pub fn refusal(&self) -> Option<Error> {
        match self {
            Self::Refused { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// Whether the store said that a node does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.refusal() == Some(Error::ENOENT)
    }
}
