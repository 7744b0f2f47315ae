//! The xenstore: its tree, transactions, watches and protocol, and both ends of a connection.
//!
//! Bytes and domain states come in, bytes and calls on a [`Host`](server::Host) go out. Nothing here
//! touches the operating system; `xylem-xenstored` and the simulator are the two shells around it.
#![no_std]

extern crate alloc;

pub mod client;
mod error;
mod permission;
pub mod wire;

pub use error::Error;
pub use permission::{Access, Permission};
