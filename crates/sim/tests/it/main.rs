//! The simulated host, seen from outside.

mod adopt;
mod cancel;
mod checks;
mod churn;
mod conformance;
mod constant;
mod counters;
mod definitions;
mod facts;
mod faults;
mod hvm;
mod hypercalls;
mod identity;
mod journal;
mod lifecycle;
mod plug;
mod preemption;
mod records;
mod save;
mod saved;
mod sharing;
mod shutdown;
mod storage;
mod support;
mod suspend;
mod troubles;
