//! The xenstore: tree, transactions, watches and protocol, and both ends of a connection.
//!
//! Bytes and domain states come in, bytes and calls on a [`Host`](server::Host) go out. The crate
//! does not use the operating system; `xylem-xenstored` and the simulator are its shells.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod access;
mod acl;
pub mod client;
mod error;
mod escape;
mod journal;
mod path;
mod permission;
mod quota;
pub mod ring;
pub mod server;
pub mod state;
mod store;
mod transaction;
mod tree;
mod watch;
pub mod wire;

pub use error::Error;
pub use escape::{escape, unescape};
pub use journal::RECORD_VERSION;
pub use path::{CanonicalPath, OwnedPath, Path};
pub use permission::{Access, Permission};
pub use quota::Quota;
