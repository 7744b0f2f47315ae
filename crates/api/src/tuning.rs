//! Changes of running domains.

use serde::{Deserialize, Serialize};

use crate::Target;
use crate::request::is_unset;
use crate::sched::{Scheduler, VcpuBudget};

/// A change of a running domain, also of domain 0. Each is answered by [`Reply::Done`](crate::Reply::Done).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum TuneRequest {
    /// The most memory that it may be given.
    MemMax { target: Target, kib: u64 },
    /// The memory that it is to have.
    MemSet { target: Target, kib: u64 },
    /// How many vCPUs are online.
    VcpuSet {
        target: Target,
        vcpus: u32,
        /// More than the host has CPUs.
        #[serde(default, skip_serializing_if = "is_unset")]
        ignore_host: bool,
    },
    /// Where vCPUs may run, and where they run best, in xl's syntax; what is not given stays.
    VcpuPin {
        target: Target,
        /// `None`: all of them.
        #[serde(default)]
        vcpu: Option<u32>,
        #[serde(default)]
        hard: Option<String>,
        #[serde(default)]
        soft: Option<String>,
        /// End a pinning by the domain's own kernel first.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// The share of the CPUs that it has under a scheduler that is not the real-time one.
    Share {
        target: Target,
        scheduler: Scheduler,
        #[serde(default)]
        weight: Option<u16>,
        #[serde(default)]
        cap: Option<u16>,
    },
    /// The same under that one.
    Budgets { target: Target, budgets: Vec<VcpuBudget> },
    /// A key for the guest's kernel.
    Sysrq { target: Target, key: char },
    Trigger {
        target: Target,
        trigger: Trigger,
        #[serde(default)]
        vcpu: u32,
    },
    /// Another configuration, which the VM has from its next reboot or start on. Not of domain 0.
    ConfigUpdate(ConfigUpdate),
    /// Also of a VM that is only defined. Not of domain 0.
    Rename { target: Target, name: String },
}

/// What a domain is sent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    Nmi,
    Reset,
    Init,
    Power,
    Sleep,
    S3resume,
}

/// Another configuration of a VM that runs.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigUpdate {
    pub target: Target,
    /// The file's name as the user gave it, for error messages.
    pub file: String,
    pub config_text: String,
    /// `key=value` settings of the command line, which override the file's.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// The client's working directory, for relative paths in the file.
    pub cwd: String,
    /// Change nothing, and answer with [`Reply::Configs`](crate::Reply::Configs) of one entry that has no domid.
    #[serde(default)]
    pub dry_run: bool,
}
