//! Plans: what has to be done, as a graph of steps, before anything is done.
//!
//! A plan leaves no choices to its execution. After a failure nothing is replayed: what was reached
//! is looked at ([`Reached`]) and a new plan takes it down.

use std::fmt;

use crate::config::{Access, VmConfig};
use crate::layout::{self, DeviceKind, DeviceRef};
use crate::scheduler::{Class, Track};

/// One thing to do for a VM. Devices go by the number that the guest knows them by.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Step {
    /// Read and check kernel and ramdisk.
    LoadImages,
    /// Attach the disk with this `virtual-device`.
    AttachDisk(u32),
    /// See that the bridge of this vif exists.
    CheckBridge(u32),
    /// Write our own record, which outlives the daemon.
    Record,
    CreateDomain,
    Build,
    /// Start the process that emulates the hardware of an HVM domain.
    StartModel,
    /// Wait until it says that it is ready.
    AwaitModel,
    EndModel,
    /// Write the domain's and its devices' nodes and the end of our record, all as one: from here on a
    /// restarted daemon goes on with the rest.
    WriteNodes(Start),
    Introduce,
    /// Wait until the backend has seen its device.
    AwaitBackend(DeviceRef),
    /// Put the host's end of this vif on its bridge.
    JoinBridge(u32),
    Unpause,
    Pause,
    /// Tell all backends that their devices go.
    CloseDevices,
    AwaitClosed(DeviceRef),
    DestroyDomain,
    DetachDisk(u32),
    /// Take back what says that the VM is whole: whoever comes after a kill takes it down too.
    Condemn,
    /// Remove all nodes, our record last.
    RemoveNodes,
    /// Remove the nodes of a domain whose VM goes on in another; the record stays.
    RemoveDomainNodes,
    /// Write the nodes of one more device, and the record with it.
    AddDevice(DeviceRef),
    /// Write down that a device is there for its user.
    SettleDevice(DeviceRef),
    /// Wait until the two halves of a device have found each other. Asked to close while they do, a frontend closes and then
    /// meets a backend that has just connected: Linux's loses its xenbus thread over that.
    AwaitConnected(DeviceRef),
    /// Ask the guest to let go of a device.
    AskToClose(DeviceRef),
    /// Wait until the guest has let go.
    AwaitConsent(DeviceRef),
    /// Take a device from its guest.
    CloseDevice(DeviceRef),
    /// Remove the nodes of one device, and write the record without it.
    RemoveDevice(DeviceRef),
}

impl Step {
    /// What takes this step back, for those that leave something behind.
    #[must_use]
    pub fn undo(self) -> Option<Self> {
        match self {
            Self::AttachDisk(devid) => Some(Self::DetachDisk(devid)),
            Self::CreateDomain => Some(Self::DestroyDomain),
            Self::StartModel => Some(Self::EndModel),
            Self::Record | Self::WriteNodes(_) => Some(Self::RemoveNodes),
            Self::AwaitBackend(device) => Some(Self::AwaitClosed(device)),
            Self::AddDevice(device) => Some(Self::RemoveDevice(device)),
            _ => None,
        }
    }

    /// Whether nothing may follow where this step has failed. A domain that cannot be destroyed keeps
    /// its record, so that it stays ours and can be tried again.
    #[must_use]
    pub fn is_essential(self) -> bool {
        matches!(self, Self::DestroyDomain)
    }

    /// The stage of an operation that this step belongs to, for tables of where time goes.
    #[must_use]
    pub fn stage(self) -> &'static str {
        match self {
            Self::LoadImages => "load images",
            Self::AttachDisk(_) => "attach disks",
            Self::CheckBridge(_) => "check bridges",
            Self::Record => "record",
            Self::CreateDomain => "create domain",
            Self::Build => "build",
            Self::StartModel => "start device model",
            Self::AwaitModel => "await device model",
            Self::EndModel => "end device model",
            Self::WriteNodes(_) => "write nodes",
            Self::Introduce => "introduce",
            Self::AwaitBackend(_) => "await backends",
            Self::JoinBridge(_) => "join bridges",
            Self::Unpause => "unpause",
            Self::Pause => "pause",
            Self::CloseDevices | Self::CloseDevice(_) => "close devices",
            Self::AwaitClosed(_) => "await closed",
            Self::DestroyDomain => "destroy domain",
            Self::DetachDisk(_) => "detach disks",
            Self::Condemn => "condemn",
            Self::RemoveNodes => "remove nodes",
            Self::RemoveDomainNodes => "remove the domain's nodes",
            Self::AddDevice(_) => "add devices",
            Self::SettleDevice(_) => "settle devices",
            Self::AwaitConnected(_) => "await connected",
            Self::AskToClose(_) => "ask the guest",
            Self::AwaitConsent(_) => "await the guest",
            Self::RemoveDevice(_) => "remove devices",
        }
    }

    /// The device that a step is about, if it is about one.
    #[must_use]
    pub fn device(self) -> Option<DeviceRef> {
        let vbd = |devid| DeviceRef { kind: DeviceKind::Vbd, devid };
        let vif = |devid| DeviceRef { kind: DeviceKind::Vif, devid };
        match self {
            Self::AttachDisk(devid) | Self::DetachDisk(devid) => Some(vbd(devid)),
            Self::CheckBridge(devid) | Self::JoinBridge(devid) => Some(vif(devid)),
            Self::AwaitBackend(device)
            | Self::AwaitClosed(device)
            | Self::AddDevice(device)
            | Self::SettleDevice(device)
            | Self::AwaitConnected(device)
            | Self::AskToClose(device)
            | Self::AwaitConsent(device)
            | Self::CloseDevice(device)
            | Self::RemoveDevice(device) => Some(device),
            _ => None,
        }
    }

    /// The counts and the limit that it falls under.
    #[must_use]
    pub fn class(self) -> (Track, Class) {
        match self {
            Self::AttachDisk(_) => (Track::Build, Class::Storage),
            Self::LoadImages | Self::CreateDomain | Self::Build | Self::StartModel => {
                (Track::Build, Class::Domain)
            }
            Self::DetachDisk(_) => (Track::Teardown, Class::Storage),
            Self::DestroyDomain | Self::EndModel => (Track::Teardown, Class::Domain),
            Self::AddDevice(_)
            | Self::SettleDevice(_)
            | Self::AskToClose(_)
            | Self::CloseDevice(_)
            | Self::RemoveDevice(_) => (Track::Short, Class::Record),
            _ => (Track::Short, Class::Short),
        }
    }

    /// Whether backends have something to do because of it: what makes, joins or ends their devices.
    #[must_use]
    pub fn gives_backends_work(self) -> bool {
        matches!(
            self,
            Self::WriteNodes(_)
                | Self::JoinBridge(_)
                | Self::CloseDevices
                | Self::AddDevice(_)
                | Self::CloseDevice(_)
                | Self::RemoveDevice(_)
        )
    }

    /// Whether it only waits for a guest or a backend, and for how long at most.
    #[must_use]
    pub fn waits_seconds(self) -> Option<u64> {
        match self {
            Self::AwaitBackend(_) => Some(BACKEND_SECONDS),
            Self::AwaitModel => Some(MODEL_SECONDS),
            Self::AwaitClosed(_) => Some(CLOSE_SECONDS),
            Self::AwaitConnected(_) => Some(CONNECT_SECONDS),
            Self::AwaitConsent(_) => Some(CONSENT_SECONDS),
            _ => None,
        }
    }
}

/// How long a backend may take to see its device. xen-blkback and xen-netback take milliseconds;
/// the rest is for a loaded dom0.
const BACKEND_SECONDS: u64 = 30;
/// How long a device model may take to be ready. It takes a fraction of a second; the rest is for a loaded dom0.
const MODEL_SECONDS: u64 = 60;
/// How long a backend may take to let go. After that the domain is destroyed all the same.
const CLOSE_SECONDS: u64 = 30;
/// How long a guest may take to connect a device that it is to let go of. One that has no driver for it never does.
const CONNECT_SECONDS: u64 = 10;
/// How long a guest may take to let go of a device: what it has in its caches has to be written first.
const CONSENT_SECONDS: u64 = 30;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttachDisk(devid) => write!(f, "attach disk {devid}"),
            Self::DetachDisk(devid) => write!(f, "detach disk {devid}"),
            Self::CheckBridge(devid) => write!(f, "check the bridge of vif {devid}"),
            Self::JoinBridge(devid) => write!(f, "put vif {devid} on its bridge"),
            Self::AwaitBackend(device) => write!(f, "await the backend of {device}"),
            Self::AwaitClosed(device) => write!(f, "await the end of {device}"),
            Self::AddDevice(device) => write!(f, "add {device}"),
            Self::SettleDevice(device) => write!(f, "settle {device}"),
            Self::AskToClose(device) => write!(f, "ask the guest for {device}"),
            Self::AwaitConnected(device) => write!(f, "await that {device} is connected"),
            Self::AwaitConsent(device) => write!(f, "await that the guest lets go of {device}"),
            Self::CloseDevice(device) => write!(f, "close {device}"),
            Self::RemoveDevice(device) => write!(f, "remove {device}"),
            other => f.write_str(other.stage()),
        }
    }
}

/// A step and the steps that must have ended before it begins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedStep {
    pub step: Step,
    /// Indexes into the plan, each smaller than this step's own.
    pub after: Vec<usize>,
    pub on_failure: OnFailure,
}

/// Whether a step begins after another one has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnFailure {
    Stop,
    /// It goes on: half a teardown would leave more behind.
    GoOn,
}

/// A graph of steps.
///
/// Invariant: every edge points to an earlier step, so the graph has no cycle.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    pub steps: Vec<PlannedStep>,
}

impl Plan {
    fn put(&mut self, step: Step, after: &[usize], on_failure: OnFailure) -> usize {
        let index = self.steps.len();
        assert!(after.iter().all(|&earlier| earlier < index), "an edge points forward");
        self.steps.push(PlannedStep { step, after: after.to_vec(), on_failure });
        index
    }

    /// A step that is of no use after a failure.
    fn add(&mut self, step: Step, after: &[usize]) -> usize {
        self.put(step, after, OnFailure::Stop)
    }

    /// A step of a way down.
    fn take_down(&mut self, step: Step, after: &[usize]) -> usize {
        self.put(step, after, OnFailure::GoOn)
    }

    /// Whether a failure or a cancel keeps some of its steps from being begun.
    #[must_use]
    pub fn can_stop(&self) -> bool {
        self.steps.iter().any(|planned| planned.on_failure == OnFailure::Stop)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, planned) in self.steps.iter().enumerate() {
            write!(f, "{index:<3} {}", planned.step)?;
            if !planned.after.is_empty() {
                let after: Vec<String> = planned.after.iter().map(usize::to_string).collect();
                write!(f, "  (after {})", after.join(", "))?;
            }
            if let Some(undo) = planned.step.undo() {
                write!(f, "  [undo: {undo}]")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// How a new domain begins.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Start {
    Running,
    Paused,
}

impl Start {
    /// The word for it in a record.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
        }
    }

    pub(crate) fn decode(word: &str) -> Option<Self> {
        [Self::Running, Self::Paused].into_iter().find(|start| start.as_str() == word)
    }
}

/// The steps from a configuration to a domain.
///
/// What can be refused without a domain comes first and side by side. Disks are attached while the domain is
/// made and built; its nodes need both. The device model starts beside all that, as soon as there are the domain and
/// the disks that it emulates.
#[must_use]
pub fn plan_create(config: &VmConfig, start: Start) -> Plan {
    let mut plan = Plan::default();
    let ready = add_checks(&mut plan, config);
    // The record names the VM before anything of it exists, so that a restarted daemon finds what
    // an earlier one left half-made.
    let record = plan.add(Step::Record, &ready);
    let domain = plan.add(Step::CreateDomain, &[record]);
    let mut parts = vec![plan.add(Step::Build, &[domain])];
    let disks = add_disks(&mut plan, config, record);
    parts.extend(disks.iter().map(|(_, step)| *step));
    let model = add_model(&mut plan, config, domain, &disks);
    let nodes = plan.add(Step::WriteNodes(start), &parts);
    add_finish(&mut plan, config, start, &[nodes], model);
    plan
}

/// Starts the device model of an HVM domain after the disks that it emulates, of those that are being attached.
fn add_model(
    plan: &mut Plan,
    config: &VmConfig,
    domain: usize,
    disks: &[(u32, usize)],
) -> Option<usize> {
    config.hvm.as_ref()?;
    let emulated: Vec<u32> = config.emulated_disks().map(|(_, it)| it.vdev.number).collect();
    let mut after = vec![domain];
    after.extend(disks.iter().filter(|(devid, _)| emulated.contains(devid)).map(|(_, step)| step));
    Some(plan.add(Step::StartModel, &after))
}

fn add_checks(plan: &mut Plan, config: &VmConfig) -> Vec<usize> {
    let mut ready = vec![plan.add(Step::LoadImages, &[])];
    for vif in &config.vifs {
        ready.push(plan.add(Step::CheckBridge(vif.devid), &[]));
    }
    ready
}

/// All disks side by side; one that is only read waits for those that write the same volume, because
/// storage that was attached for reading cannot be turned into one for writing. Returns the step of each.
fn add_disks(plan: &mut Plan, config: &VmConfig, record: usize) -> Vec<(u32, usize)> {
    let mut attached = Vec::with_capacity(config.disks.len());
    let mut writers: Vec<(&str, usize)> = Vec::new();
    let of = |access| config.disks.iter().filter(move |disk| disk.access == access);
    for disk in of(Access::ReadWrite) {
        let index = plan.add(Step::AttachDisk(disk.vdev.number), &[record]);
        writers.push((&disk.target, index));
        attached.push((disk.vdev.number, index));
    }
    writers.sort_unstable();
    for disk in of(Access::ReadOnly) {
        let first = writers.partition_point(|(target, _)| *target < disk.target.as_str());
        let same = writers[first..].iter().take_while(|(target, _)| *target == disk.target);
        let after: Vec<usize> = std::iter::once(record).chain(same.map(|(_, at)| *at)).collect();
        let number = disk.vdev.number;
        attached.push((number, plan.add(Step::AttachDisk(number), &after)));
    }
    attached
}

/// The steps from a domain whose nodes are written to one that is there for its user. Each can be taken
/// once more. The device model of an HVM domain has been started.
#[must_use]
pub fn plan_finish(config: &VmConfig, start: Start) -> Plan {
    let mut plan = Plan::default();
    add_finish(&mut plan, config, start, &[], None);
    plan
}

fn add_finish(
    plan: &mut Plan,
    config: &VmConfig,
    start: Start,
    after: &[usize],
    model: Option<usize>,
) {
    let mut done = vec![plan.add(Step::Introduce, after)];
    let ready = config.hvm.as_ref().map(|_| plan.add(Step::AwaitModel, model.as_slice()));
    done.extend(ready);
    for device in layout::devices(config) {
        let seen = plan.add(Step::AwaitBackend(device), after);
        done.push(seen);
        if device.kind == DeviceKind::Vif {
            let mut after = vec![seen];
            // An emulated card's end is there when its device model is.
            let is_emulated = config.emulated_vifs().any(|(_, vif)| vif.devid == device.devid);
            after.extend(ready.filter(|_| is_emulated));
            done.push(plan.add(Step::JoinBridge(device.devid), &after));
        }
    }
    if start == Start::Running {
        // Last: what the guest wants of dom0 would keep everything behind it waiting.
        plan.add(Step::Unpause, &done);
    }
}

/// How far a VM has come: what a teardown has to take back.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reached<'a> {
    pub recorded: bool,
    pub domain: bool,
    /// Nodes of the domain and its devices were written, or may have been.
    pub nodes: bool,
    /// The record says that the VM is whole, and somebody wants it gone: a daemon that finds it so while it is
    /// taken down would take a paused domain for one that is to run.
    pub condemned: bool,
    /// `virtual-device`s of attached disks.
    pub disks: &'a [u32],
}

/// The steps from whatever was reached back to nothing.
#[must_use]
pub fn plan_teardown(config: &VmConfig, reached: Reached<'_>) -> Plan {
    let mut plan = Plan::default();
    let condemned: Vec<usize> =
        reached.condemned.then(|| plan.take_down(Step::Condemn, &[])).into_iter().collect();
    let mut gone = take_down_domain(&mut plan, config, reached, &condemned);
    let after = gone.clone();
    gone.extend(reached.disks.iter().map(|devid| {
        let detached = Step::DetachDisk(*devid);
        plan.take_down(detached, &after)
    }));
    if reached.recorded {
        plan.take_down(Step::RemoveNodes, &gone);
    }
    plan
}

/// Up to the domain's end: its devices are closed side by side.
fn take_down_domain(
    plan: &mut Plan,
    config: &VmConfig,
    reached: Reached<'_>,
    after: &[usize],
) -> Vec<usize> {
    if !reached.domain {
        return after.to_vec();
    }
    let pause = plan.take_down(Step::Pause, after);
    let mut closed = vec![pause];
    if config.hvm.is_some() {
        // It keeps disks open and memory of the domain mapped, and leaves nodes.
        closed.push(plan.take_down(Step::EndModel, &[pause]));
    }
    let devices = layout::devices(config);
    if reached.nodes && !devices.is_empty() {
        let close = plan.take_down(Step::CloseDevices, &[pause]);
        closed.extend(devices.iter().map(|it| plan.take_down(Step::AwaitClosed(*it), &[close])));
    }
    vec![plan.take_down(Step::DestroyDomain, &closed)]
}

/// From a domain that has stopped to the next of the same VM, in one graph: the record and the attached
/// disks stay, and what the next one needs is looked at while the old one goes.
#[must_use]
pub fn plan_reboot(config: &VmConfig, start: Start, reached: Reached<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut ready = take_down_domain(&mut plan, config, reached, &[]);
    let is_wanted = |devid| config.disks.iter().any(|disk| disk.vdev.number == devid);
    for devid in reached.disks.iter().filter(|devid| !is_wanted(**devid)) {
        // Its detach had come as far as the record when the domain stopped.
        plan.take_down(Step::DetachDisk(*devid), &ready);
    }
    // The new domain has the old one's handle: before it comes nothing may say that this VM is whole.
    ready = vec![plan.take_down(Step::RemoveDomainNodes, &ready)];
    ready.extend(add_checks(&mut plan, config));
    let domain = plan.add(Step::CreateDomain, &ready);
    let mut parts = vec![plan.add(Step::Build, &[domain])];
    let missing = config.disks.iter().filter(|disk| !reached.disks.contains(&disk.vdev.number));
    let mut disks = Vec::new();
    for disk in missing {
        let number = disk.vdev.number;
        disks.push((number, plan.add(Step::AttachDisk(number), &[])));
    }
    parts.extend(disks.iter().map(|(_, step)| *step));
    let model = add_model(&mut plan, config, domain, &disks);
    let nodes = plan.add(Step::WriteNodes(start), &parts);
    add_finish(&mut plan, config, start, &[nodes], model);
    plan
}

/// One more device for a running domain.
#[must_use]
pub fn plan_plug(device: DeviceRef) -> Plan {
    let mut plan = Plan::default();
    let ready = match device.kind {
        DeviceKind::Vbd => plan.add(Step::AttachDisk(device.devid), &[]),
        DeviceKind::Vif => plan.add(Step::CheckBridge(device.devid), &[]),
    };
    let added = plan.add(Step::AddDevice(device), &[ready]);
    add_plugged(&mut plan, device, &[added]);
    plan
}

/// The rest of a plug once the device's nodes are written. Each step can be taken once more.
#[must_use]
pub fn plan_finish_plug(device: DeviceRef) -> Plan {
    let mut plan = Plan::default();
    add_plugged(&mut plan, device, &[]);
    plan
}

fn add_plugged(plan: &mut Plan, device: DeviceRef, after: &[usize]) {
    let seen = plan.add(Step::AwaitBackend(device), after);
    if device.kind == DeviceKind::Vif {
        let joined = plan.add(Step::JoinBridge(device.devid), &[seen]);
        // A disk that its backend has seen needs nothing more; a vif may have missed its bridge.
        plan.add(Step::SettleDevice(device), &[joined]);
    }
}

/// How a device is taken from its guest.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Unplug {
    /// With its consent: the guest closes the device first, or keeps it.
    Clean,
    /// Without asking.
    Forced,
}

/// The steps that take one device from a running domain.
#[must_use]
pub fn plan_unplug(device: DeviceRef, how: Unplug, is_attached: bool) -> Plan {
    let mut plan = Plan::default();
    match how {
        Unplug::Clean => {
            let connected = plan.add(Step::AwaitConnected(device), &[]);
            let asked = plan.add(Step::AskToClose(device), &[connected]);
            let let_go = plan.add(Step::AwaitConsent(device), &[asked]);
            let removed = plan.add(Step::RemoveDevice(device), &[let_go]);
            if is_attached {
                plan.add(Step::DetachDisk(device.devid), &[removed]);
            }
        }
        Unplug::Forced => {
            let closed = plan.take_down(Step::CloseDevice(device), &[]);
            let ended = plan.take_down(Step::AwaitClosed(device), &[closed]);
            let removed = plan.take_down(Step::RemoveDevice(device), &[ended]);
            if is_attached {
                plan.take_down(Step::DetachDisk(device.devid), &[removed]);
            }
        }
    }
    plan
}

/// The steps that take back a plug that failed.
#[must_use]
pub fn plan_undo_plug(device: DeviceRef, is_added: bool, is_attached: bool) -> Plan {
    if is_added {
        return plan_unplug(device, Unplug::Forced, is_attached);
    }
    let mut plan = Plan::default();
    if is_attached {
        plan.take_down(Step::DetachDisk(device.devid), &[]);
    }
    plan
}
