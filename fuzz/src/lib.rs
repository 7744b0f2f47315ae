//! What the fuzz targets do with their input. `cargo xtask fuzz` runs them.
//!
//! All but `streams` and `image` take arbitrary bytes where the store takes untrusted ones, and then check that
//! the store is still what it has to be: no panic, every counter equal to a recount, bounded memory, and
//! whatever it saves can be loaded again.

pub mod client;
pub mod image;
pub mod input;
pub mod journal;
pub mod load;
pub mod machine;
pub mod ring;
pub mod seeds;
pub mod socket;
pub mod state;
pub mod streams;
