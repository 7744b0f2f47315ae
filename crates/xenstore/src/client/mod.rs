//! The store's client: a sans-I/O machine and a blocking adapter over it.
//!
//! [`ClientMachine`] turns requests into bytes and bytes into replies and events. [`Client`] drives
//! it over a [`Transport`], which is a socket, a ring, or the simulator calling the server directly.

mod batch;
mod blocking;
mod exchange;
mod follow;
mod machine;
mod nodes;
mod transaction;
mod tree;

pub use batch::{Batch, HasChildren, Replies};
pub use blocking::{Client, ClientCounters};
pub use follow::DomainUpdate;
pub use machine::{ClientMachine, ProtocolError, WatchEvent};
pub use nodes::Nodes;
pub use transaction::{PreparedCommit, Transaction};
pub use tree::{
    Cursor, Extent, Parents, Part, PartMax, TreeFailed, TreeNode, join, list, part, remove,
    set_permissions,
};

use alloc::string::String;

use crate::Error;

/// A blocking byte stream to a store.
pub trait Transport {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The errno; the connection is unusable.
    fn send(&mut self, bytes: &[u8]) -> Result<(), xen::Errno>;

    /// Receives at least one byte, and returns the number; 0 means that the store closed the
    /// connection.
    ///
    /// # Errors
    /// The errno. `EAGAIN` from a non-blocking transport is passed on by [`Client::receive`];
    /// elsewhere it ends the request.
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, xen::Errno>;

    /// Reconnects after a broken connection, waiting for the store within a timeout.
    ///
    /// # Errors
    /// The errno; `EOPNOTSUPP` if not supported.
    fn reconnect(&mut self) -> Result<(), xen::Errno> {
        Err(xen::Errno::EOPNOTSUPP)
    }
}

impl<T: Transport + ?Sized> Transport for alloc::boxed::Box<T> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), xen::Errno> {
        (**self).send(bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, xen::Errno> {
        (**self).recv(into)
    }

    fn reconnect(&mut self) -> Result<(), xen::Errno> {
        (**self).reconnect()
    }
}

impl<T: Transport + ?Sized> Transport for &mut T {
    fn send(&mut self, bytes: &[u8]) -> Result<(), xen::Errno> {
        (**self).send(bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, xen::Errno> {
        (**self).recv(into)
    }

    fn reconnect(&mut self) -> Result<(), xen::Errno> {
        (**self).reconnect()
    }
}

/// Why a request to the store failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ClientError {
    /// The store answered with an error. `request` is such as `read /local/domain/3/name`.
    #[error("xenstore {request}: {error}")]
    Refused { request: String, error: Error },
    /// Every attempt of a transaction conflicted.
    #[error("a xenstore transaction met a conflicting change {attempts} times in a row")]
    Conflict { attempts: u32 },
    /// The list of children changed during every attempt to read it in parts.
    #[error("the children of xenstore node {path} changed {attempts} times while they were listed")]
    Unsteady { path: String, attempts: u32 },
    /// The list of children is too long for this store.
    #[error(
        "xenstore node {path} has more children than fit into one message, and this store cannot \
         list them in parts (DIRECTORY_PART)"
    )]
    TooManyChildren { path: String },
    /// The connection broke before the reply; there is a new one.
    #[error(
        "the store was restarted during the request {request}: look whether it took effect before \
         you repeat it"
    )]
    OutcomeUnknown { request: String },
    /// A value that should be text is not UTF-8.
    #[error("xenstore node {path} holds bytes that are not text")]
    NotText { path: String },
    /// The connection broke.
    #[error("the connection to xenstore failed: {0}")]
    Transport(xen::Errno),
    /// The store closed the connection.
    #[error("xenstore closed the connection; see the store daemon's log")]
    Closed,
    /// The store violated the protocol.
    #[error("xenstore broke its protocol: {0}")]
    Protocol(#[from] ProtocolError),
}

impl ClientError {
    /// The store's error, if it sent one.
    #[must_use]
    pub fn refusal(&self) -> Option<Error> {
        match self {
            Self::Refused { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// Whether the error is that a node does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.refusal() == Some(Error::ENOENT)
    }
}
