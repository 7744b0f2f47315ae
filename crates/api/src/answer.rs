//! Answers of the daemon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::checkpoints::CheckpointRow;
use crate::config::ListedConfig;
use crate::host::{BootRow, PciRow, PoolRow, Topology};
use crate::objects::Objects;
use crate::peers::{PeerCheck, PeerKey, PeerRow};
use crate::psr::{PsrHardware, PsrSamples, PsrShares};
use crate::request::is_unset;
use crate::sched::SchedPool;
use crate::storage::{ImageRow, SrRow, VdiList};
use crate::store::{StoreQuotaRow, StoreTree};
use crate::traffic::Traffic;
use crate::vms::{StartedAll, StateChanges, VmRow};

/// One line from the daemon. [`Answer::Ok`] and [`Answer::Error`] end the request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Progress(Progress),
    Event(DomainEvent),
    /// One line about a configuration, to clients that asked for warnings.
    Warning(String),
    /// Paths of the store, to a client that watches.
    Changed(Vec<String>),
    Ok(Reply),
    /// One line for the operator: the object, the error, and what to do.
    Error(String),
}

/// Progress of a request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    pub vm: String,
    pub done: u32,
    pub total: u32,
    /// The step that just ended; empty at the beginning.
    pub step: String,
    /// The step in progress.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
}

/// An event of a domain during a request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DomainEvent {
    pub domid: u16,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    Channels(Vec<ChannelRow>),
    Keyboards(Vec<KeyboardRow>),
    Vcpus(Vec<VcpuRow>),
    Sched(Vec<SchedPool>),
    Srs(Vec<SrRow>),
    Vdis(VdiList),
    Images(Vec<ImageRow>),
    StoreTree(StoreTree),
    /// For each path.
    StoreValues(Vec<Option<String>>),
    StoreNames(Vec<Option<Vec<String>>>),
    StoreQuota(Vec<StoreQuotaRow>),
    /// Whatever the daemon tells: numbers, objects and lists of them.
    StoreStats(serde_json::Value),
    Checkpointed {
        name: String,
    },
    Checkpoints(Vec<CheckpointRow>),
    Info(Info),
    Topology(Topology),
    /// By domain: `all`, `none` or numbers.
    NodeAffinity(BTreeMap<u16, String>),
    Boot(BootRow),
    Pools(Vec<PoolRow>),
    Pci(Vec<PciRow>),
    PsrHardware(PsrHardware),
    PsrSamples(PsrSamples),
    /// By socket.
    PsrShares(Vec<PsrShares>),
    /// Whether Xen's security module enforces its policy; `None` without one.
    Enforcing(Option<bool>),
    /// What holds for VMs that do not say otherwise.
    Defaults {
        /// Of Linux; empty if interfaces are on another network.
        bridge: String,
    },
    Counters(Counters),
    Activity(Activity),
    Traffic(Traffic),
    Defined {
        uuid: String,
    },
    Vms(Vec<VmRow>),
    PeerKey(PeerKey),
    Peers(Vec<PeerRow>),
    PeerCheck(PeerCheck),
    StartedAll(StartedAll),
    Changes(StateChanges),
    Objects(Objects),
    Operations(Operations),
    Trace(Trace),
    /// Lines for a reader.
    Text(String),
    Limits(Limits),
}

/// Faults of a configuration on this host, now.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Checked {
    /// A line each; if there are none, a create would start.
    pub faults: Vec<String>,
    /// A line each.
    pub warnings: Vec<String>,
    /// The resulting configuration, as far as it is valid.
    pub config: Option<ListedConfig>,
}

/// Limits of concurrent steps, and the current number.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Limits {
    /// `worker-pool-size`: on the whole host.
    pub host: usize,
    pub vm: usize,
    pub sr: usize,
    pub backend: usize,
    /// Attaches and detaches on the whole host, if limited.
    pub storage: Option<usize>,
    /// Domains being created or destroyed on the whole host, if limited.
    pub domain: Option<usize>,
    /// Scans of SRs, if limited.
    pub scan: Option<usize>,
    /// Changes of SRs and VDIs, if limited; always one at a time for each SR.
    pub change: Option<usize>,
    /// Saves and restores, which copy a domain's memory.
    pub memory: Option<usize>,
    /// Domains that are sent to other hosts, and that come from them.
    pub send: Option<usize>,
    pub receive: Option<usize>,
    pub waiting: usize,
    pub under_way: usize,
}

/// Identification of the daemon.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pong {
    /// The daemon's release.
    pub release: String,
    pub pid: u32,
}

/// A created domain, and the timing of its create.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateReport {
    pub name: String,
    pub domid: u16,
    pub uuid: String,
    /// In the order of their start; they may overlap.
    pub stages: Vec<Stage>,
    pub cost: Cost,
}

/// A part of a create, in microseconds since the request was read.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stage {
    pub name: String,
    pub start_us: u64,
    pub end_us: u64,
}

/// Cost of an operation: requests to Xen, the store and the host.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cost {
    /// Calls by hypercall and sub-operation.
    pub hypercalls: BTreeMap<String, u64>,
    pub store_messages: u64,
    /// Times that the daemon had to wait for the store.
    pub store_round_trips: u64,
    pub transactions: u64,
    /// Transactions that had to be repeated.
    pub conflicts: u64,
}

/// Operations of the daemon. All times are nanoseconds since its start.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Operations {
    pub now_ns: u64,
    /// The oldest first.
    pub rows: Vec<TraceRow>,
}

/// An operation on a VM.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceRow {
    pub id: u64,
    /// `start`, `stop`, `reboot`, `attach`, `detach`, or `undo` of a failed one.
    pub what: String,
    pub vm: String,
    pub started_ns: u64,
    /// `None`: it is in progress.
    pub ended_ns: Option<u64>,
    pub failure: Option<String>,
    /// Steps of its plan.
    pub steps: u64,
    /// Steps that have ended, well or not.
    pub done: u64,
}

/// Timing of an operation. All times are nanoseconds since the daemon's start.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceStep {
    pub name: String,
    /// Name of its kind of step.
    pub stage: String,
    /// When all its dependencies had ended.
    pub ready_ns: u64,
    pub started_ns: u64,
    /// `None`: it is in progress.
    pub ended_ns: Option<u64>,
    /// What it waited for between being ready and its start.
    pub waited_for: Option<String>,
    pub failed: bool,
}

/// Totals since the daemon's start.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Counters {
    pub cost: Cost,
    /// Everything else that is counted, by name: ignored errors, events, retries.
    pub counts: BTreeMap<String, u64>,
}

/// A line of `list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DomainRow {
    /// `None` if the store has no name for it.
    pub name: Option<String>,
    pub domid: u16,
    pub uuid: String,
    /// `pv`, `pvh` or `hvm`.
    pub kind: String,
    /// Memory allocated and claimed.
    pub mem_kib: u64,
    /// Of it, what other domains have too.
    #[serde(skip_serializing_if = "is_unset")]
    pub shared_kib: u64,
    pub mem_max_kib: u64,
    /// Of `mem_kib`, what is claimed and not allocated yet.
    #[serde(skip_serializing_if = "is_unset")]
    pub claimed_kib: u64,
    pub vcpus_online: u32,
    pub running: bool,
    pub blocked: bool,
    pub paused: bool,
    /// Set once the domain has shut down: Xen's code for the reason.
    pub shutdown_reason: Option<u8>,
    pub dying: bool,
    pub cpu_time_ns: u64,
    pub cpupool: u32,
    /// Start time of the domain, in seconds since 1970, if in the store.
    pub started_unix_s: Option<u64>,
    /// The VM is managed by the daemon; others belong to another toolstack and are only shown.
    pub managed: bool,
}

/// A line of `block-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BlockRow {
    pub vdev: u32,
    pub backend_domid: u16,
    pub frontend_domid: u16,
    /// The frontend's xenbus state.
    pub state: u32,
    /// `None` until the frontend has set one.
    pub evtchn: Option<u32>,
    pub ring_ref: Option<u32>,
    pub backend_path: String,
}

/// A line of `network-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NetworkRow {
    pub devid: u32,
    pub backend_domid: u16,
    pub mac: String,
    /// The frontend's xenbus state.
    pub state: u32,
    /// `None` until the frontend has set one.
    pub evtchn: Option<u32>,
    pub tx_ring_ref: Option<u32>,
    pub rx_ring_ref: Option<u32>,
    pub backend_path: String,
}

/// A line of `channel-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChannelRow {
    /// Counted from 0, as `xl` does; the console has one more.
    pub devid: u32,
    pub name: String,
    pub backend_domid: u16,
    /// The frontend's xenbus state.
    pub state: u32,
    /// `None` until the frontend has set one.
    pub evtchn: Option<u32>,
    pub ring_ref: Option<u32>,
    /// `pty` or `socket`.
    pub connection: String,
    /// Of the pty, once QEMU has opened it.
    pub tty: Option<String>,
}

/// A line of `vkb-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KeyboardRow {
    pub devid: u32,
    pub backend_domid: u16,
    /// The frontend's xenbus state.
    pub state: u32,
    /// `None` until the frontend has set one.
    pub evtchn: Option<u32>,
    pub ring_ref: Option<u32>,
    pub unique_id: Option<String>,
    pub backend_path: String,
}

/// A line of `vcpu-list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Info(pub Vec<(String, String)>);

/// Where a domain's console can be reached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Console {
    pub domid: u16,
    /// Path of the pseudo-terminal.
    pub tty: String,
}
