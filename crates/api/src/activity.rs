//! What the daemon has done since it began, and how long it took: the answer to `hypercalls`.

use serde::{Deserialize, Serialize};

/// Times of something that was done often. Quantiles are the bounds of buckets that grow by twos: what is told
/// is never less than the truth, and less than twice as much.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Latency {
    pub count: u64,
    pub total_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub longest_ns: u64,
}

/// A kind of hypercall, whatever it was made for.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct HypercallRow {
    pub hypercall: String,
    pub count: u64,
    /// Of those that were timed; a few rare ones are not.
    pub latency: Latency,
}

/// A kind of work, and the hypercalls that it makes.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct OperationRow {
    pub operation: String,
    pub failed: u64,
    /// CPU time of the threads that did it.
    pub cpu_ns: u64,
    pub latency: Latency,
    pub hypercalls: Vec<HypercallRow>,
}

/// A queue of the pool, and those who take from it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct QueueRow {
    pub queue: String,
    pub performers: u64,
    pub busy: u64,
    pub depth: u64,
    pub depth_max: u64,
    /// Of the work that had to wait.
    pub waited: Latency,
}

/// All of it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Activity {
    /// How long the daemon has been running.
    pub seconds: u64,
    pub hypercalls: Vec<HypercallRow>,
    pub operations: Vec<OperationRow>,
    pub queues: Vec<QueueRow>,
}
