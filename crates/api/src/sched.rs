//! Schedulers of CPU pools, and domains' shares of the CPUs.

use serde::{Deserialize, Serialize};

use crate::Target;
use crate::request::is_unset;

/// A scheduler of Xen's.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    Credit,
    Credit2,
    Rtds,
}

/// A request about pools with one scheduler. A pool is named by its name or number; without one the first is meant.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum SchedRequest {
    /// The pools, or one of them, with their domains. Answered by [`Reply::Sched`](crate::Reply::Sched).
    Pools {
        scheduler: Scheduler,
        #[serde(default)]
        pool: Option<String>,
        /// A row for each vCPU.
        #[serde(default, skip_serializing_if = "is_unset")]
        vcpus: bool,
    },
    /// One domain, of any toolstack. Answered by [`Reply::Sched`](crate::Reply::Sched), with its pool.
    Domain {
        scheduler: Scheduler,
        target: Target,
        /// A row for each of these vCPUs; if there are none, for all.
        #[serde(default)]
        vcpus: Option<Vec<u32>>,
    },
    /// Answered by [`Reply::Sched`](crate::Reply::Sched), with a pool without rows.
    Parameters {
        scheduler: Scheduler,
        #[serde(default)]
        pool: Option<String>,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    Change {
        scheduler: Scheduler,
        #[serde(default)]
        pool: Option<String>,
        #[serde(default)]
        timeslice_ms: Option<u32>,
        #[serde(default)]
        ratelimit_us: Option<u32>,
        #[serde(default)]
        migration_delay_us: Option<u32>,
    },
}

/// A CPU pool. Parameters that its scheduler has not are left out.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SchedPool {
    pub name: String,
    pub timeslice_ms: Option<u32>,
    pub ratelimit_us: Option<u32>,
    pub migration_delay_us: Option<u32>,
    pub rows: Vec<SchedRow>,
}

/// The share of a domain or vCPU. What its scheduler does not know is left out.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SchedRow {
    pub name: Option<String>,
    pub domid: u16,
    pub vcpu: Option<u32>,
    pub weight: Option<u16>,
    /// In percent of a CPU; 0 is none.
    pub cap: Option<u16>,
    pub period_us: Option<u32>,
    pub budget_us: Option<u32>,
    pub extra: bool,
}

/// What a vCPU may use of a period.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VcpuBudget {
    /// `None`: each of the domain's.
    #[serde(default)]
    pub vcpu: Option<u32>,
    pub period_us: u32,
    pub budget_us: u32,
    /// More, while CPUs are idle.
    pub extra: bool,
}
