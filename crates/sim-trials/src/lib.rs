//! Trials: long runs on the simulated host, each from a seed, that look for broken promises.
//!
//! A trial only drives [`sim`] as a client would and checks what it sees; no product code is here, and none
//! depends on it. `cargo xtask ci` runs them with fixed seeds, other commands with fresh ones.

pub mod churn;
pub mod demo;
pub mod identity;
pub mod kills;
pub mod listings;
pub mod mass;
mod rival;
pub mod storm;
pub mod swarm;
