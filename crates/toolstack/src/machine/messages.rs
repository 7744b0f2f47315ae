//! Input and output of the machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use live::Cursor;
use xen::{DomId, DomainInfo, ShutdownReason, Uuid};
use xenstore::client::DomainUpdate;
use xenstore::wire::changes::DomainIdentity;

use super::{
    Classes, ClientId, Copy, Device, Fallback, Instant, LogRecord, Objects, PermitRequest, PlanOf,
    Progress, StartedAll, StateChanges, Summary, Targets, Told, Trace, VmRow, VmState, Wanted,
    WorkId,
};
use crate::channel::ChannelId;
use crate::checkpoint::Checkpoint;
use crate::config::{DiskConfig, PciName, VmConfig};
use crate::device_model::Process;
use crate::layout::DeviceRef;
use crate::listing::Listing;
use crate::moves::{MigrateRequest, ReceiveRequest, Verdict};
use crate::plan::{Start, Step, Unplug};
use crate::saved::{DumpTo, SaveTo, SavedFile};
use crate::scheduler::{Limits, Ticket};
use crate::tuning::{SchedQuestion, Tuning};
use crate::work::{
    Cost, DeviceReading, Failure, Far, HostInfo, Output, PoolReading, VcpuReadings, Work,
};
use crate::xen_host::{HostAsk, HostTold};

/// A client's request.
#[derive(Clone, Debug)]
pub enum Request {
    /// `fresh_uuid` is used if the configuration has none.
    Create {
        config: Box<VmConfig>,
        fresh_uuid: Uuid,
        start: Start,
    },
    /// All errors of a create; nothing is created.
    Check {
        config: Box<VmConfig>,
        fresh_uuid: Uuid,
        /// The configuration has no faults of its own.
        is_whole: bool,
    },
    List,
    Destroy {
        target: String,
    },
    /// Writes `control/shutdown`; the reply comes at once or when the domain is gone.
    Shutdown {
        target: String,
        how: ShutdownRequest,
        reply: ReplyWhen,
    },
    /// As `Shutdown`, for several at once; each is reported by [`Action::Told`].
    ShutdownEach {
        targets: Targets,
        how: ShutdownRequest,
        fallback: Fallback,
        reply: ReplyWhen,
    },
    Pause {
        target: String,
    },
    Unpause {
        target: String,
    },
    /// Changes a running domain, also domain 0. Answered by [`Reply::Done`].
    Tune {
        target: String,
        tuning: Tuning,
    },
    /// Suspends the guest and keeps its domain; answered when it has suspended.
    Suspend {
        target: String,
    },
    /// Writes the guest's state to a file. Answered when the VM is as it is to be afterwards: by
    /// [`Reply::Gone`] if it is destroyed, otherwise by [`Reply::Done`].
    Save {
        target: String,
        to: Box<SaveTo>,
    },
    /// Writes a domain's memory to a core file. Answered by [`Reply::Done`].
    Dump {
        target: String,
        to: Box<DumpTo>,
    },
    /// Cancels this save or dump of a VM and no other, if it is under way; its guest runs on.
    CancelSave {
        target: String,
        id: Uuid,
    },
    /// Reads what a file of a saved VM says of itself. Answered by [`Reply::SavedFile`].
    ReadSaved {
        path: String,
    },
    /// Creates the VM of a file, where it was when it was saved.
    Restore {
        file: Box<SavedFile>,
        config: Box<VmConfig>,
        start: Start,
    },
    /// Shuts down, saves or leaves alone each VM, as it is to be when the host is shut down. As for
    /// `ShutdownEach`, with [`ReplyWhen::Gone`].
    HostShutdown,
    /// Keeps the guest's memory and disks as they are at one moment; it goes on. Answered by
    /// [`Reply::Done`].
    Checkpoint {
        target: String,
        name: String,
        /// Of this checkpoint and no other.
        id: Uuid,
    },
    /// All checkpoints of this host. Answered by [`Reply::Checkpoints`].
    Checkpoints,
    DestroyCheckpoint {
        uuid: Uuid,
        name: String,
    },
    /// Takes the VM of a checkpoint down and lets it go on where it was then, with its disks as they
    /// were. Answered by [`Reply::Created`].
    Revert {
        file: Box<SavedFile>,
        config: Box<VmConfig>,
        start: Start,
    },
    /// Creates copies of a saved VM. Answered by [`Reply::StartedAll`].
    Clone {
        file: Box<SavedFile>,
        copies: Vec<Copy>,
    },
    /// Sends a VM to another host. Answered when nothing of it is left here.
    Migrate(Box<MigrateRequest>),
    /// Serves a connection from another host: a VM comes, or a question is answered.
    Receive(ReceiveRequest),
    /// Nobody waits for this move any more. One that was not given to the other host ends; the guest runs on.
    CancelMove {
        transfer: Uuid,
    },
    /// An operator knows where a VM runs that was given to another host.
    Settle {
        target: String,
        verdict: Verdict,
    },
    /// Resumes a suspended guest where it was.
    Resume {
        target: String,
    },
    Console {
        target: String,
        /// `None`: the primary console's.
        kind: Option<ConsoleKind>,
        number: u32,
    },
    /// Where a screen's server listens. Answered by [`Reply::Text`]: an address with a port.
    Screen {
        target: String,
    },
    /// Gives a device model's monitor a command for people. Answered by [`Reply::Text`].
    SpeakToModel {
        target: String,
        command: String,
    },
    Devices {
        target: String,
    },
    /// Adopts a running domain of another toolstack, with the boot configuration `base`.
    Adopt {
        target: String,
        base: Option<Box<VmConfig>>,
    },
    /// Gives a running VM to xl.
    Disown {
        target: String,
    },
    /// Resolves a name, domid or UUID to a domain.
    Resolve {
        target: String,
    },
    HostInfo,
    /// What concerns Xen and the machine as a whole. Answered by [`Reply::Host`].
    Host(Box<HostAsk>),
    /// One domain, without a list of all.
    Find {
        wanted: Wanted,
    },
    /// vCPU placement and affinity of these domains, of any toolstack. Domains that no longer exist
    /// are omitted.
    Vcpus {
        of: Vec<(DomId, Uuid)>,
    },
    /// Schedulers, and domains' shares of the CPUs, of any toolstack. Answered by [`Reply::Sched`].
    Sched(SchedQuestion),
    /// Start times of these domains, as far as recorded by their toolstacks.
    StartTimes {
        of: Vec<(DomId, Uuid)>,
    },
    /// Plugs a device into a running domain.
    Plug {
        target: String,
        device: Box<Device>,
    },
    /// Inserts or ejects a CD.
    ChangeMedium {
        target: String,
        change: Box<MediumChange>,
    },
    Unplug {
        target: String,
        device: DeviceRef,
        how: Unplug,
    },
    /// Unplugs what an entry of `pci` names.
    UnplugPci {
        target: String,
        entry: PciName,
        how: Unplug,
    },
    /// A VM's configuration as text: of its definition, or of the running VM if it has none.
    ConfigText {
        target: String,
    },
    /// Operations on a VM, and what each step waits for.
    Explain {
        target: String,
    },
    /// The plan of a possible operation.
    Plan {
        target: String,
        what: PlanOf,
    },
    /// The limits, after applying the given changes.
    Limits {
        wanted: Option<Limits>,
    },
    /// A permit for work done by the client itself.
    Permit(PermitRequest),
    /// The objects that have changed since the cursor, or all without one. Answered by [`Reply::Objects`].
    Objects {
        cursor: Option<Cursor>,
        classes: Classes,
        /// If there are none, the answer comes with the next change.
        waits: bool,
    },
    /// Changes of VMs' states after a revision; without one, or if it is too old, the states.
    Events {
        since: Option<u64>,
        /// The answer comes when there is a change.
        waits: bool,
    },
    /// Answered once the VM is in that state.
    Wait {
        target: String,
        state: VmState,
    },
    /// Defines a VM; `fresh_uuid` as for `Create`.
    Define {
        config: Box<VmConfig>,
        fresh_uuid: Uuid,
        autostart: Option<u32>,
    },
    /// Defines the VM with the UUID of `config` in place of what it is: the text of its configuration. Nothing else of its
    /// definition changes.
    Redefine {
        config: Box<VmConfig>,
        before: String,
    },
    Undefine {
        target: String,
    },
    /// All VMs, defined or only running.
    Vms,
    /// Starts a defined VM.
    Start {
        target: String,
        start: Start,
    },
    /// Starts all defined VMs that are not running.
    StartAll,
    /// The current operations and the last that have ended.
    Operations,
    /// An operation, by number or the last one of a VM.
    Trace {
        target: String,
    },
}

/// A request to the guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShutdownRequest {
    Poweroff,
    Reboot,
}

impl ShutdownRequest {
    /// The word in `control/shutdown`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Poweroff => "poweroff",
            Self::Reboot => "reboot",
        }
    }
}

/// Who serves a console.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConsoleKind {
    /// xenconsoled, or the server of a channel.
    Pv,
    /// The device model, as a serial port.
    Serial,
}

/// When a shutdown is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplyWhen {
    Asked,
    Gone,
}

/// One domain of a listing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainRow {
    /// `None` if its store node could not be read.
    pub name: Option<String>,
    pub info: DomainInfo,
    /// The configuration, if the VM is ours.
    pub config: Option<Arc<VmConfig>>,
}

/// Timing of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StepTime {
    pub step: Step,
    /// When all its dependencies had ended.
    pub ready: Instant,
    pub started: Instant,
    /// `None`: it is in progress.
    pub ended: Option<Instant>,
    /// What it waited for between `ready` and `started`.
    pub waited_for: Option<String>,
    pub failed: bool,
}

impl StepTime {
    /// Nanoseconds from start to end; none if it has not ended.
    #[must_use]
    pub fn took_ns(&self) -> u64 {
        self.ended.map_or(0, |ended| ended.0.saturating_sub(self.started.0))
    }
}

/// A VM that was created.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Created {
    pub name: String,
    pub uuid: Uuid,
    pub domid: DomId,
    pub started: Instant,
    pub ended: Instant,
    pub steps: Vec<StepTime>,
    pub cost: Cost,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Done {
        domid: DomId,
    },
    Ok,
    Changes(Box<StateChanges>),
    Objects(Box<Objects>),
    /// A line for each fault.
    Checked {
        faults: Vec<String>,
    },
    Defined {
        uuid: Uuid,
    },
    Vms(Vec<VmRow>),
    StartedAll(Box<StartedAll>),
    Created(Box<Created>),
    /// The domain is gone; why it stopped, if it did so by itself.
    Gone {
        domid: DomId,
        reason: Option<ShutdownReason>,
    },
    Domains(Arc<Listing>),
    Found(Option<Box<DomainRow>>),
    Resolved {
        domid: DomId,
        name: String,
        uuid: Uuid,
    },
    /// The VM has no domain yet.
    Starting {
        name: String,
        uuid: Uuid,
    },
    Console {
        domid: DomId,
        tty: Option<String>,
    },
    Devices {
        domid: DomId,
        devices: Vec<DeviceReading>,
    },
    HostInfo(Box<HostInfo>),
    Host(Box<HostTold>),
    SavedFile(Box<SavedFile>),
    Checkpoints(Vec<Checkpoint>),
    Vcpus(Box<VcpuReadings>),
    Sched(Vec<PoolReading>),
    /// In seconds since 1970.
    StartTimes(BTreeMap<DomId, u64>),
    /// A text of several lines.
    Text(String),
    Limits {
        limits: Limits,
        waiting: usize,
        held: usize,
    },
    /// Held until it is returned.
    Permit(Ticket),
    GivenBack,
    Operations {
        now: Instant,
        operations: Vec<Summary>,
    },
    Trace {
        now: Instant,
        trace: Box<Trace>,
    },
    /// One line that names the problem.
    Failed(String),
}

/// An event for the machine.
#[derive(Debug)]
pub enum Event {
    /// The first event: observe the host.
    Started,
    Request {
        client: ClientId,
        request: Request,
    },
    Worked {
        work: WorkId,
        result: Result<Output, Failure>,
        cost: Cost,
    },
    /// Work in progress has come this far. Reports are optional, and may come at any rate.
    Reached {
        work: WorkId,
        far: Far,
    },
    /// A watched node changed, or the watch was just set; its value now.
    Node {
        path: String,
        value: Option<Vec<u8>>,
    },
    /// A domain was introduced to the store; which one, if the store says so.
    Introduced {
        domid: Option<DomId>,
    },
    /// The store reported changes of domains.
    Domains(DomainUpdate),
    /// Domains stopped or died, and the store cannot tell which.
    DomainsChanged,
    /// A followed device model has exited.
    ModelEnded {
        process: Process,
        /// Its exit status and last output, if known.
        how: String,
    },
    /// A time requested by [`Toolstack::next_wakeup`] has come.
    Tick,
}

/// An action requested by the machine.
#[derive(Debug)]
pub enum Action {
    Work {
        id: WorkId,
        work: Work,
    },
    /// This work is cancelled. If it has not begun, it is not done and reported as failed; if in
    /// progress, it may end early. It is reported in any case.
    Cancel {
        work: WorkId,
    },
    Watch {
        path: String,
    },
    Unwatch {
        path: String,
    },
    /// Requests [`Event::ModelEnded`] when this process has exited, or at once if it has.
    Follow {
        process: Process,
        /// Its log file.
        log: String,
    },
    /// Releases these dead domains in the store: no more work is done on them.
    Release {
        domains: Vec<DomainIdentity>,
    },
    Reply {
        client: ClientId,
        reply: Reply,
    },
    Progress {
        client: ClientId,
        progress: Box<Progress>,
    },
    /// The result for one of several VMs.
    Told {
        client: ClientId,
        told: Told,
    },
    /// The result for one VM of a bulk start.
    Started {
        client: ClientId,
        vm: String,
        done: usize,
        total: usize,
        failure: Option<String>,
    },
    /// No work uses this connection any more.
    CloseChannel {
        channel: ChannelId,
    },
    /// A line for the daemon's log.
    Log(Box<LogRecord>),
    /// A further line: a fault that did not stop anything.
    Note {
        message: String,
    },
}

/// A change of a CD drive's medium.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MediumChange {
    pub drive: DeviceRef,
    /// `None`: eject.
    pub medium: Option<DiskConfig>,
    /// How the current medium is unplugged.
    pub how: Unplug,
}
