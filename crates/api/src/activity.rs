//! Activity of the daemon since its start, with timings: the answer to `hypercalls`.

use serde::{Deserialize, Serialize};

/// Latencies. Quantiles are rounded up to power-of-two buckets, so by less than a factor of two.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Latency {
    pub count: u64,
    pub total_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub longest_ns: u64,
    /// Of an operation: bounds in nanoseconds, the least first, each with how many took no longer. Some may have taken
    /// longer than the last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub up_to: Vec<(u64, u64)>,
}

/// One kind of hypercall.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HypercallRow {
    pub hypercall: String,
    pub count: u64,
    /// Of timed calls; a few rare ones are not timed.
    pub latency: Latency,
}

/// One kind of work and its hypercalls.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OperationRow {
    pub operation: String,
    pub failed: u64,
    /// CPU time of its threads.
    pub cpu_ns: u64,
    pub latency: Latency,
    pub hypercalls: Vec<HypercallRow>,
}

/// A queue of the pool and its performers.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// The whole activity.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Activity {
    /// How long the daemon has been running.
    pub seconds: u64,
    pub hypercalls: Vec<HypercallRow>,
    pub operations: Vec<OperationRow>,
    pub queues: Vec<QueueRow>,
}
