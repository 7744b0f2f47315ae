//! What the daemon answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::config::ListedConfig;
use crate::storage::{SrRow, VdiList};
use crate::vms::{StartedAll, StateChanges, VmRow};

/// One line from the daemon. [`Answer::Ok`] and [`Answer::Error`] end the request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Progress(Progress),
    Event(DomainEvent),
    /// One line about a configuration, to clients that asked for warnings.
    Warning(String),
    Ok(Reply),
    /// One line for the operator: what went wrong with what, and what to do.
    Error(String),
}

/// How far a request has come.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Progress {
    pub vm: String,
    pub done: u32,
    pub total: u32,
    /// What has just ended; empty at the beginning.
    pub step: String,
    /// What is waited for now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
}

/// Something that happened to a domain while a request waited.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DomainEvent {
    pub domid: u16,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum EventKind {
    /// The domain was asked to shut down.
    ShutdownRequested,
    /// The domain was asked to reboot.
    RebootRequested,
    /// It has no PV drivers and was sent the ACPI event of the power button.
    PowerButtonSent,
    /// It has no PV drivers and was sent an ACPI reset.
    ResetSent,
    /// The domain stopped, with Xen's code for the reason.
    ShutDown { reason: u8 },
    /// The domain is gone.
    Destroyed,
}

/// The result of a request that succeeded.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    Done,
    Pong(Pong),
    Created(CreateReport),
    Domains(Vec<DomainRow>),
    Configs(Vec<ListedConfig>),
    Checked(Box<Checked>),
    Domid(u16),
    Domname(String),
    Console(Console),
    Blocks(Vec<BlockRow>),
    Networks(Vec<NetworkRow>),
    Vcpus(Vec<VcpuRow>),
    Srs(Vec<SrRow>),
    Vdis(VdiList),
    Info(Info),
    Counters(Counters),
    Activity(Activity),
    Defined {
        uuid: String,
    },
    Vms(Vec<VmRow>),
    StartedAll(StartedAll),
    Changes(StateChanges),
    Operations(Operations),
    Trace(Trace),
    /// Lines for a reader.
    Text(String),
    Limits(Limits),
}

/// What is wrong with a configuration, on this host and now.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Checked {
    /// A line each; without any, a create would begin.
    pub faults: Vec<String>,
    /// A line each.
    pub warnings: Vec<String>,
    /// What would be made, as far as it could be read.
    pub config: Option<ListedConfig>,
}

/// How many steps the daemon has under way at most, and how many it has now.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Limits {
    /// `worker-pool-size`: on the whole host.
    pub host: usize,
    pub vm: usize,
    pub sr: usize,
    pub backend: usize,
    /// Attaches and detaches on the whole host, if they have a limit of their own.
    pub storage: Option<usize>,
    /// Domains being made or destroyed on the whole host, if they have a limit of their own.
    pub domain: Option<usize>,
    /// Looks at what SRs have, if they have a limit of their own.
    pub scan: Option<usize>,
    /// Changes of SRs and VDIs, if they have a limit of their own; always one at a time for each SR.
    pub change: Option<usize>,
    pub waiting: usize,
    pub under_way: usize,
}

/// Who answers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Pong {
    /// The daemon's release.
    pub release: String,
    pub pid: u32,
}

/// A domain that was made, and where its time went.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CreateReport {
    pub name: String,
    pub domid: u16,
    pub uuid: String,
    /// In the order in which they began; they may overlap.
    pub stages: Vec<Stage>,
    pub cost: Cost,
}

/// A part of a create, in microseconds since the request was read.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Stage {
    pub name: String,
    pub start_us: u64,
    pub end_us: u64,
}

/// What an operation asked of Xen, of the store and of the host.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Cost {
    /// Calls by hypercall and sub-operation.
    pub hypercalls: BTreeMap<String, u64>,
    pub store_messages: u64,
    /// Times the daemon had to wait for the store before it could go on.
    pub store_round_trips: u64,
    pub transactions: u64,
    /// Transactions that had to be repeated.
    pub conflicts: u64,
}

/// What the daemon has been doing. All times are nanoseconds since it began.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Operations {
    pub now_ns: u64,
    /// The oldest first.
    pub rows: Vec<TraceRow>,
}

/// An operation on a VM.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TraceRow {
    pub id: u64,
    /// `start`, `stop`, `reboot`, `attach`, `detach`, or `undo` of what failed.
    pub what: String,
    pub vm: String,
    pub started_ns: u64,
    /// `None`: it is under way.
    pub ended_ns: Option<u64>,
    pub failure: Option<String>,
    /// Steps of its plan.
    pub steps: u64,
    /// Steps that have ended, well or not.
    pub done: u64,
}

/// Where the time of an operation went. All times are nanoseconds since the daemon began.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Trace {
    pub now_ns: u64,
    pub uuid: String,
    pub operation: TraceRow,
    /// Steps that have begun.
    pub steps: Vec<TraceStep>,
    pub cost: Cost,
}

/// A step of an operation.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TraceStep {
    pub name: String,
    /// What steps of its kind are called.
    pub stage: String,
    /// When everything that it had to come after had ended.
    pub ready_ns: u64,
    pub started_ns: u64,
    /// `None`: it is under way.
    pub ended_ns: Option<u64>,
    /// What kept it between being ready and its start.
    pub waited_for: Option<String>,
    pub failed: bool,
}

/// Totals since the daemon began.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Counters {
    pub cost: Cost,
    /// Everything else that is counted, by name: ignored errors, events, retries.
    pub counts: BTreeMap<String, u64>,
}

/// A line of `list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct DomainRow {
    /// `None` if the store has no name for it.
    pub name: Option<String>,
    pub domid: u16,
    pub uuid: String,
    /// `pv`, `pvh` or `hvm`.
    pub kind: String,
    /// Memory held and claimed.
    pub mem_kib: u64,
    pub mem_max_kib: u64,
    pub vcpus_online: u32,
    pub running: bool,
    pub blocked: bool,
    pub paused: bool,
    /// Set once the domain has shut down: Xen's code for the reason.
    pub shutdown_reason: Option<u8>,
    pub dying: bool,
    pub cpu_time_ns: u64,
    pub cpupool: u32,
    /// When the domain was made, in seconds since 1970, if the store says.
    pub started_unix_s: Option<u64>,
    /// The daemon owns this VM; others belong to another toolstack and are only shown.
    pub managed: bool,
}

/// A line of `block-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct BlockRow {
    pub vdev: u32,
    pub backend_domid: u16,
    pub frontend_domid: u16,
    /// The frontend's xenbus state.
    pub state: u32,
    /// `None` until the frontend has one.
    pub evtchn: Option<u32>,
    pub ring_ref: Option<u32>,
    pub backend_path: String,
}

/// A line of `network-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct NetworkRow {
    pub devid: u32,
    pub backend_domid: u16,
    pub mac: String,
    /// The frontend's xenbus state.
    pub state: u32,
    /// `None` until the frontend has one.
    pub evtchn: Option<u32>,
    pub tx_ring_ref: Option<u32>,
    pub rx_ring_ref: Option<u32>,
    pub backend_path: String,
}

/// A line of `vcpu-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct VcpuRow {
    pub name: Option<String>,
    pub domid: u16,
    pub vcpu: u32,
    pub online: bool,
    pub running: bool,
    pub blocked: bool,
    /// Physical CPU it runs on or ran on last.
    pub cpu: u32,
    pub cpu_time_ns: u64,
    /// `all`, or ranges of physical CPUs as in `0-3,8`.
    pub affinity_hard: String,
    pub affinity_soft: String,
}

/// The lines of `info`, in order: key and value.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Info(pub Vec<(String, String)>);

/// Where a domain's console can be reached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Console {
    pub domid: u16,
    /// Path of the pseudo-terminal.
    pub tty: String,
}
