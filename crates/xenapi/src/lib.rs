//! The interface of XAPI, XenAPI, in front of Xylem: for clients that speak it already.
//!
//! Objects of XenAPI are derived from the daemon's live model; calls become requests of the local protocol. This crate
//! decides: a shell serves HTTP, asks the daemon, keeps time and draws random numbers. [`Facade`] says how they go
//! together, [`rpc`] reads and writes bodies, [`model`] has the classes.

mod calls;
mod events;
mod facade;
mod failure;
pub mod jsonrpc;
mod labels;
mod mirror;
pub mod model;
mod objects;
mod polls;
mod records;
mod refs;
mod rights;
pub mod rpc;
mod session;
mod settle;
mod spec;
mod tasks;
#[cfg(test)]
mod tests;
mod value;
pub mod xmlrpc;

pub use calls::methods;
pub use facade::{Asking, Facade, Identity, Login, Moment, Outcome, Waiting};
pub use failure::Failure;
pub use refs::{derived, opaque};
pub use rights::Role;
pub use value::{Answer, Record, Value};
