//! Two simulated hosts with a network between them and storage that they share, determined by one
//! seed.
//!
//! Each host is `sim`'s, with the shipped toolstack on it. Its code waits for the other host in the
//! middle of its work, so each host has a thread; a baton decides which of them runs.

mod baton;
pub mod checks;
mod lab;
mod line;
pub mod moves;
mod pair;

pub use baton::Side;
pub use lab::{AfterDeath, Lab, Visit};
pub use pair::{Pair, PairConfig, Task};
