//! The simulated host, seen from outside.

mod adopt;
mod churn;
mod conformance;
mod constant;
mod counters;
mod days;
mod definitions;
mod faults;
mod hvm;
mod hypercalls;
mod identity;
mod kills;
mod lifecycle;
mod mass;
mod plug;
mod preemption;
mod storage;
mod story;
mod support;
mod swarm;
mod troubles;
