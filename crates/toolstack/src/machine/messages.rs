//! What goes into the machine and what comes out of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use xen::{DomId, DomainInfo, ShutdownReason, Uuid};
use xenstore::client::DomainUpdate;
use xenstore::wire::changes::DomainIdentity;

use super::{
    ClientId, Device, Fallback, Instant, LogRecord, PermitRequest, PlanOf, Progress, StartedAll,
    StateChanges, Summary, Targets, Told, Trace, VmRow, VmState, Wanted, WorkId,
};
use crate::config::{DiskConfig, VmConfig};
use crate::device_model::Process;
use crate::layout::DeviceRef;
use crate::listing::Listing;
use crate::plan::{Start, Step, Unplug};
use crate::scheduler::{Limits, Ticket};
use crate::work::{Cost, DeviceReading, Failure, HostInfo, Output, VcpuReadings, Work};

/// What a client asks.
#[derive(Clone, Debug)]
pub enum Request {
    /// `fresh_uuid` is used if the configuration has none.
    Create {
        config: Box<VmConfig>,
        fresh_uuid: Uuid,
        start: Start,
    },
    /// All that a create would be refused for; nothing is made.
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
    /// `control/shutdown`; the reply comes at once or when the domain is gone.
    Shutdown {
        target: String,
        how: ShutdownRequest,
        reply: ReplyWhen,
    },
    /// As `Shutdown`, for several at once; a client is told of each by [`Action::Told`].
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
    Console {
        target: String,
    },
    Devices {
        target: String,
    },
    /// Takes over a running domain that another toolstack made. What it starts from again is `base`'s.
    Adopt {
        target: String,
        base: Option<Box<VmConfig>>,
    },
    /// Which domain a name, number or UUID means.
    Resolve {
        target: String,
    },
    HostInfo,
    /// One domain, without a list of all.
    Find {
        wanted: Wanted,
    },
    /// Where the vCPUs of these domains run and may run, whoever made them. A domain that is gone, or whose
    /// number is another's by now, is left out.
    Vcpus {
        of: Vec<(DomId, Uuid)>,
    },
    /// When these domains were started, as far as their toolstacks have noted it.
    StartTimes {
        of: Vec<(DomId, Uuid)>,
    },
    /// One more device for a running domain.
    Plug {
        target: String,
        device: Box<Device>,
    },
    /// Another CD in a drive, or none.
    ChangeMedium {
        target: String,
        change: Box<MediumChange>,
    },
    Unplug {
        target: String,
        device: DeviceRef,
        how: Unplug,
    },
    /// What is under way for a VM, and what each step waits for.
    Explain {
        target: String,
    },
    /// The graph of something that could be asked for.
    Plan {
        target: String,
        what: PlanOf,
    },
    /// The limits, after they were changed if they are given.
    Limits {
        wanted: Option<Limits>,
    },
    /// A permit for something that the client does itself.
    Permit(PermitRequest),
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
    /// A VM that outlives its domain; `fresh_uuid` as for `Create`.
    Define {
        config: Box<VmConfig>,
        fresh_uuid: Uuid,
        autostart: Option<u32>,
    },
    Undefine {
        target: String,
    },
    /// All VMs, defined or only running.
    Vms,
    /// A VM that is defined.
    Start {
        target: String,
        start: Start,
    },
    /// All that are defined and do not run.
    StartAll,
    /// The operations under way and the last that have ended.
    Operations,
    /// An operation, by its number or as the last of a VM.
    Trace {
        target: String,
    },
}

/// What the guest is asked to do.
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

/// Where the time of a step went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StepTime {
    pub step: Step,
    /// When everything that it had to come after had ended.
    pub ready: Instant,
    pub started: Instant,
    /// `None`: it is under way.
    pub ended: Option<Instant>,
    /// What kept it between `ready` and `started`.
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
    Vcpus(Box<VcpuReadings>),
    /// In seconds since 1970.
    StartTimes(BTreeMap<DomId, u64>),
    /// A text of several lines.
    Text(String),
    Limits {
        limits: Limits,
        waiting: usize,
        held: usize,
    },
    /// Held until it is given back.
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
    /// One line that names what is wrong.
    Failed(String),
}

/// What happens to the machine.
#[derive(Debug)]
pub enum Event {
    /// The first event: look at what is there.
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
    /// A watched node changed, or the watch was just set; its value now.
    Node {
        path: String,
        value: Option<Vec<u8>>,
    },
    /// A domain was introduced to the store; which one, if the store says so.
    Introduced {
        domid: Option<DomId>,
    },
    /// The store told what became of domains.
    Domains(DomainUpdate),
    /// Domains stopped or died, and the store cannot tell which.
    DomainsChanged,
    /// A device model that was followed has ended.
    ModelEnded {
        process: Process,
        /// How, and what it said last, if anybody knows.
        how: String,
    },
    /// A moment that [`Toolstack::next_wakeup`] asked for has come.
    Tick,
}

/// What the machine wants done.
#[derive(Debug)]
pub enum Action {
    Work {
        id: WorkId,
        work: Work,
    },
    /// Nobody waits for this work any more. Whoever has not begun it need not, and reports it as failed; what is under
    /// way may end early. It is reported in any case.
    Cancel {
        work: WorkId,
    },
    Watch {
        path: String,
    },
    Unwatch {
        path: String,
    },
    /// [`Event::ModelEnded`] shall come when this process has ended, or at once if it has.
    Follow {
        process: Process,
        /// File that has its words.
        log: String,
    },
    /// The store may forget these dead domains: nothing more is done with them.
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
    /// What has become of one of several VMs.
    Told {
        client: ClientId,
        told: Told,
    },
    /// One of many VMs was started for the client, or was not.
    Started {
        client: ClientId,
        vm: String,
        done: usize,
        total: usize,
        failure: Option<String>,
    },
    /// A line for the daemon's log.
    Log(Box<LogRecord>),
    /// One more: something went wrong that stopped nothing.
    Note {
        message: String,
    },
}

/// What is to be in a CD drive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MediumChange {
    pub drive: DeviceRef,
    /// `None`: it is to be empty.
    pub medium: Option<DiskConfig>,
    /// How what is in it is taken from the guest.
    pub how: Unplug,
}
