//! The three xenstore servers on this machine: ours and the two packaged ones, each on a host made of
//! files, so that they can be compared without Xen.
//!
//! ```text
//! peers: packages, the shim -> daemon: a running server, its domains -> client, guest: who talks to it
//!                                                                  stage: all of them at once
//! ```
//! What is compared is said elsewhere: `bench::store` measures, `store_diff` and `store_scripts` ask
//! the same questions of two servers.

mod bare;
mod client;
mod daemon;
mod guest;
mod message;
mod peers;
mod stage;

pub(crate) use bare::serve as serve_without_a_store;
pub(crate) use client::Connection;
pub(crate) use daemon::{Daemon, Placement, Programs};
pub(crate) use guest::Guest;
pub(crate) use message::{Answer, Event, Message, request};
pub(crate) use peers::unpack_packages;
pub(crate) use stage::{Change, Stage, domid_of};
