//! Trials: long seeded runs on the simulated host that check invariants.
//!
//! A trial only uses [`sim`] as a client would and checks the results; there is no product code
//! here, and none depends on it. `cargo xtask ci` runs them with fixed seeds, other commands with
//! fresh ones.

pub mod churn;
pub mod demo;
pub mod identity;
pub mod kills;
pub mod listings;
pub mod mass;
mod rival;
pub mod storm;
pub mod swarm;
