//! The life of VMs: what is wanted, what is observed, and the steps in between.
//!
//! [`Toolstack`](machine::Toolstack) is a state machine: events in, actions out, time as an argument.
//! It never learns whether it runs on Linux or in the simulator. What an action does to Xen, to the
//! store and to the host is in [`perform`], over the traits it is handed.

pub mod config;
pub mod xlcfg;
