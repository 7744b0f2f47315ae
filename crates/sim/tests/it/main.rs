//! The simulated host, seen from outside.

mod hypercalls;
mod story;
