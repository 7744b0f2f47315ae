//! The interface of XAPI, XenAPI, in front of Xylem: for clients that speak it already.
//!
//! Objects of XenAPI are derived from the daemon's live model; calls become requests of the local protocol. This crate
//! decides: a shell serves HTTP, asks the daemon, keeps time and draws random numbers. [`Facade`] says how they go
//! together, [`rpc`] reads and writes bodies, [`model`] has the classes.
//!
//! What a shell does:
//!
//! - It sends [`Facade::follow`] to the daemon and gives the answer to [`Facade::learn`], for ever; and beside that
//!   [`Facade::due`], as long as there is something, a few times a second.
//! - It decodes the body of a POST with [`rpc::decode`], calls [`Facade::call`], does what the [`Outcome`] says, and
//!   encodes the answer. A body that is no call is answered by status 500.
//! - It wakes whoever waits when [`Facade::revision`] has changed, and at the deadline.
//! - It keeps [`Facade::labels`] in a file when their number has changed.
//! - It serves consoles and the like with [`Facade::user`] and [`Facade::console`], and contents of VDIs with
//!   [`Facade::begin_contents`].

mod calls;
mod contents;
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
pub use contents::{Broken, Contents, InOrder, Refusal, Run, Wanted, Way};
pub use facade::{Asking, Facade, Identity, Login, Moment, Outcome, Waiting};
pub use failure::Failure;
pub use records::Shown;
pub use refs::{derived, opaque};
pub use value::{Answer, Record, Value};
