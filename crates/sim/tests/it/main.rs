//! The simulated host, seen from outside.

mod conformance;
mod constant;
mod faults;
mod hypercalls;
mod identity;
mod lifecycle;
mod plug;
mod storage;
mod story;
mod support;
mod swarm;
