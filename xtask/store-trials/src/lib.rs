//! Trials of the store daemon as a program, beside the packaged ones: what clients see, what a random script gets
//! as answers, what a kill or a hand-over does to guests.
//!
//! `cargo xtask store-...` runs them; the benches use the same servers and guests.

pub mod clients;
pub mod crash;
pub mod diff;
pub mod hostile;
pub mod scripts;
pub mod stores;
pub mod take_over;
pub mod unit;
