//! The three xenstore servers on this machine: ours and the two packaged ones, each on a host made of
//! files, so that they can be compared without Xen.
//!
//! ```text
//! peers: packages, the shim -> daemon: a running server, its domains -> client, guest: who talks to it
//!                                                                  stage: all of them at once
//! ```
//! The comparisons are elsewhere: `bench::store` measures, `store_diff` and `store_scripts` ask
//! the same questions of two servers.

mod bare;
mod client;
mod daemon;
mod guest;
mod message;
mod peers;
mod stage;

pub use bare::serve as serve_without_a_store;
pub use client::Connection;
pub use daemon::{Daemon, Placement, Programs};
pub use guest::Guest;
pub use message::{Answer, Event, Message, request};
pub use peers::unpack_packages;
pub use stage::{Stage, Transition, domid_of};

/// The command of the program that runs the trials which makes it a server without a store.
pub const BARE_STORE: &str = "bare-store";
