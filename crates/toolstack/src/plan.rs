//! Plans: an operation as a graph of steps, made before it begins.
//!
//! A plan leaves no choices to its execution. After a failure there is no rollback: a new plan
//! takes down what was reached ([`Reached`]).

mod plug;

use std::collections::BTreeMap;
use std::fmt;

pub use plug::{
    Unplug, plan_change, plan_eject, plan_finish_plug, plan_insert, plan_plug, plan_swap,
    plan_undo_insert, plan_undo_plug, plan_unplug,
};

pub use crate::config::Start;
use crate::config::{Access, DiskConfig, VifConfig, VmConfig};
use crate::hotplug::Way;
use crate::layout::{self, DeviceKind, DeviceRef};
use crate::network::Network;
pub use crate::steps::{
    CreateStep, DeviceStep, GoOn, MoveStep, SaveStep, Step, SuspendStep, TeardownStep, Wait,
};

/// A step and its dependencies.
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
    /// It continues: half a teardown would leave more behind.
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
    fn put(&mut self, step: impl Into<Step>, after: &[usize], on_failure: OnFailure) -> usize {
        let index = self.steps.len();
        assert!(after.iter().all(|&earlier| earlier < index), "an edge points forward");
        self.steps.push(PlannedStep { step: step.into(), after: after.to_vec(), on_failure });
        index
    }

    /// Adds a step that is skipped after a failure.
    fn add(&mut self, step: impl Into<Step>, after: &[usize]) -> usize {
        self.put(step, after, OnFailure::Stop)
    }

    /// Adds a step of a teardown.
    fn take_down(&mut self, step: impl Into<Step>, after: &[usize]) -> usize {
        self.put(step, after, OnFailure::GoOn)
    }

    /// Whether a failure or a cancel skips some of its steps.
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
            if let Some(undo) = planned.step.info().undo {
                write!(f, "  [undo: {undo}]")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The steps from a configuration to a domain.
///
/// Checks that need no domain come first, concurrently. Disks are attached while the domain is
/// created and built; its nodes need both. The device model is started in parallel, as soon as the
/// domain and its emulated disks exist.
#[must_use]
pub fn plan_create(config: &VmConfig, start: Start) -> Plan {
    plan_new(config, start, Origin::Images)
}

/// The same from the file of a saved VM: its state is loaded in place of a build.
#[must_use]
pub fn plan_restore(config: &VmConfig, start: Start) -> Plan {
    plan_new(config, start, Origin::File)
}

/// The same with disks that are made from the snapshots of a checkpoint.
#[must_use]
pub fn plan_from_checkpoint(config: &VmConfig, start: Start) -> Plan {
    plan_new(config, start, Origin::Checkpoint)
}

/// A restore with the host: the file is removed before the VM runs, so that it is never restored again.
#[must_use]
pub fn plan_restore_with_host(config: &VmConfig) -> Plan {
    plan_new(config, Start::Running, Origin::HostSave)
}

/// Who connects a device on the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectedBy {
    /// We do. A bridge of Linux forgets its ports by itself.
    Us,
    /// We do, by more than a bridge, and undo it.
    Network,
    /// Its hotplug script.
    Script,
    /// The driver domain that has its backend, by itself.
    DriverDomain,
}

impl ConnectedBy {
    #[must_use]
    pub fn of(config: &VmConfig, device: DeviceRef) -> Self {
        let disk = || config.disks.iter().find(|it| it.vdev.number == device.devid);
        let vif = || config.vifs.iter().find(|it| it.devid == device.devid);
        match device.kind {
            DeviceKind::Vbd => disk().map_or(Self::Us, Self::of_disk),
            DeviceKind::Vif => vif().map_or(Self::Us, Self::of_vif),
            _ => Self::Us,
        }
    }

    #[must_use]
    pub fn of_disk(disk: &DiskConfig) -> Self {
        match (&disk.backend, &disk.script) {
            (Some(_), _) => Self::DriverDomain,
            (None, Some(_)) => Self::Script,
            (None, None) => Self::Us,
        }
    }

    #[must_use]
    pub fn of_vif(vif: &VifConfig) -> Self {
        match Network::of(vif) {
            _ if vif.backend.is_some() => Self::DriverDomain,
            Ok(Some(Network::Bridge(_))) if !vif.antispoof => Self::Us,
            Ok(Some(_)) => Self::Network,
            // What cannot be ours would be told by the script.
            Ok(None) | Err(_) => Self::Script,
        }
    }

    /// The step that connects a device once its backend has seen it, if it needs one.
    fn connect(self, device: DeviceRef) -> Option<DeviceStep> {
        match self {
            Self::Script => Some(DeviceStep::RunScript(device, Way::Connect)),
            Self::Network => Some(DeviceStep::JoinNetwork(device.devid, Way::Connect)),
            Self::Us if device.kind == DeviceKind::Vif => {
                Some(DeviceStep::JoinBridge(device.devid))
            }
            Self::Us | Self::DriverDomain => None,
        }
    }

    /// The step between a device's end and that of its nodes, if it needs one.
    fn disconnect(self, device: DeviceRef) -> Option<Step> {
        match self {
            Self::Script => Some(DeviceStep::RunScript(device, Way::Disconnect).into()),
            Self::Network => Some(DeviceStep::JoinNetwork(device.devid, Way::Disconnect).into()),
            Self::DriverDomain => Some(Wait::Gone(device).into()),
            Self::Us => None,
        }
    }
}

/// What a domain is made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Origin {
    Images,
    File,
    HostSave,
    Checkpoint,
}

impl Origin {
    /// Reads and checks it.
    fn check(self, config: &VmConfig) -> CreateStep {
        match self {
            Self::Images if boot_disk(config).is_some() => CreateStep::FindBootloader,
            Self::Images => CreateStep::LoadImages,
            Self::File | Self::HostSave | Self::Checkpoint => CreateStep::CheckFile,
        }
    }

    /// Fills the domain.
    fn fill(self) -> CreateStep {
        match self {
            Self::Images => CreateStep::Build,
            Self::File | Self::HostSave | Self::Checkpoint => CreateStep::LoadState,
        }
    }
}

fn plan_new(config: &VmConfig, start: Start, origin: Origin) -> Plan {
    let mut plan = Plan::default();
    let bootloader = (origin == Origin::Images).then(|| boot_disk(config)).flatten();
    let mut ready = add_checks(&mut plan, config, origin);
    ready.extend(find_backends(&mut plan, config, &[]));
    if !config.options.pci.is_empty() {
        // After the check whether the host can have any. At a reboot its last domain has them still.
        let first = ready[0];
        ready.push(plan.add(CreateStep::CheckPci, &[first]));
    }
    // The record names the VM before anything of it exists, so that a restarted daemon finds
    // incomplete VMs.
    let record = plan.add(CreateStep::Record, &ready);
    let made = match origin {
        Origin::Checkpoint => plan.add(CreateStep::MakeDisks, &[record]),
        Origin::Images | Origin::File | Origin::HostSave => record,
    };
    let mut disks = Vec::new();
    let domain = match bootloader {
        None => plan.add(CreateStep::CreateDomain, &[record]),
        Some(devid) => {
            // What the domain is made of is on one of its disks.
            disks = add_disks(&mut plan, config, DeviceStep::AttachDisk, made);
            let loaded = add_bootloader(&mut plan, devid, &disks, &[record]);
            plan.add(CreateStep::CreateDomain, &[loaded])
        }
    };
    let filled = plan.add(origin.fill(), &[domain]);
    let mut parts = vec![filled];
    let assigned = add_pci(&mut plan, config, filled);
    parts.extend(assigned);
    if bootloader.is_none() {
        disks = add_disks(&mut plan, config, DeviceStep::AttachDisk, made);
    }
    let mut early = EarlyDevices::new();
    if has_emulated_script(config) {
        let nodes = plan.add(CreateStep::WriteEarlyNodes, &[domain]);
        parts.push(nodes);
        early = add_emulated_scripts(&mut plan, config, nodes, &[], &mut disks);
    }
    parts.extend((origin == Origin::Checkpoint).then_some(made));
    parts.extend(disks.iter().map(|(_, step)| *step));
    let model = match origin {
        Origin::Images => add_model(&mut plan, config, assigned.unwrap_or(domain), &disks),
        // It goes on in the memory that was loaded, from a state that comes with it.
        Origin::File | Origin::HostSave | Origin::Checkpoint => {
            add_model(&mut plan, config, filled, &disks)
        }
    };
    let nodes = plan.add(CreateStep::WriteNodes(start), &parts);
    let mut after = vec![nodes];
    if origin == Origin::HostSave {
        after.push(plan.add(SaveStep::Remove, &[nodes]));
    }
    let model = model.or_else(|| add_server(&mut plan, config, nodes));
    add_finish(&mut plan, config, start, &after, model, &early);
    plan
}

/// Whether a device model needs a disk that a script connects.
fn has_emulated_script(config: &VmConfig) -> bool {
    config.emulated_disks().any(|(_, disk)| disk.has_own_script())
}

/// Has scripts connect the disks that a device model needs, once their nodes are written and all of this is done.
fn add_emulated_scripts(
    plan: &mut Plan,
    config: &VmConfig,
    nodes: usize,
    ready: &[usize],
    disks: &mut Vec<(u32, usize)>,
) -> EarlyDevices {
    let mut early = EarlyDevices::new();
    for (_, disk) in config.emulated_disks().filter(|(_, disk)| disk.has_own_script()) {
        let devid = disk.vdev.number;
        let device = DeviceRef { kind: DeviceKind::Vbd, devid };
        let seen = plan.add(Wait::Backend(device), &[nodes]);
        let after: Vec<usize> = std::iter::once(seen).chain(ready.iter().copied()).collect();
        let connected = plan.add(DeviceStep::RunScript(device, Way::Connect), &after);
        disks.push((devid, connected));
        early.insert(device, Early::Connected);
    }
    early
}

/// The disk whose bootloader finds what the VM boots.
fn boot_disk(config: &VmConfig) -> Option<u32> {
    config.options.bootloader.as_ref()?;
    Some(config.disks.first()?.vdev.number)
}

/// Runs the bootloader, when its disk is attached and this is done.
fn add_bootloader(
    plan: &mut Plan,
    devid: u32,
    attached: &[(u32, usize)],
    ready: &[usize],
) -> usize {
    let disk = attached.iter().filter(|(it, _)| *it == devid).map(|(_, step)| *step);
    let after: Vec<usize> = disk.chain(ready.iter().copied()).collect();
    plan.add(CreateStep::RunBootloader, &after)
}

/// Gives a domain the host's devices that it is to have, once it has its memory.
fn add_pci(plan: &mut Plan, config: &VmConfig, filled: usize) -> Option<usize> {
    let has_devices = !config.options.pci.is_empty();
    has_devices.then(|| plan.add(CreateStep::AssignPci, &[filled]))
}

/// Starts the device model of an HVM domain after the attaches of its emulated disks.
fn add_model(
    plan: &mut Plan,
    config: &VmConfig,
    domain: usize,
    disks: &[(u32, usize)],
) -> Option<usize> {
    config.hvm.as_ref()?;
    let emulated = emulated(config);
    let mut after = vec![domain];
    after.extend(disks.iter().filter(|(devid, _)| emulated.contains(devid)).map(|(_, step)| step));
    Some(plan.add(CreateStep::StartModel, &after))
}

/// Starts QEMU for a domain without emulated hardware. It opens what it needs of the host for the devices that it finds, and
/// then gives up its rights: their nodes come first.
fn add_server(plan: &mut Plan, config: &VmConfig, nodes: usize) -> Option<usize> {
    let has_server = config.hvm.is_none() && config.served.any();
    has_server.then(|| plan.add(CreateStep::StartModel, &[nodes]))
}

fn add_checks(plan: &mut Plan, config: &VmConfig, origin: Origin) -> Vec<usize> {
    let mut ready = vec![plan.add(origin.check(config), &[])];
    for vif in config.vifs.iter().filter(|vif| vif.backend.is_none()) {
        ready.push(plan.add(DeviceStep::CheckBridge(vif.devid), &[]));
    }
    for disk in config.disks.iter().filter(|disk| disk.has_own_script()) {
        ready.push(plan.add(DeviceStep::CheckDisk(disk.vdev.number), &[]));
    }
    ready
}

/// Finds the driver domains of its devices.
fn find_backends(plan: &mut Plan, config: &VmConfig, after: &[usize]) -> Vec<usize> {
    let devices = layout::devices(config).into_iter();
    let elsewhere = devices.filter(|it| layout::wanted_backend(config, *it).is_some());
    elsewhere.map(|device| plan.add(DeviceStep::FindBackend(device), after)).collect()
}

/// Attaches all disks concurrently; a read-only one waits for those that write the same volume,
/// because an attach for reading cannot be upgraded. Returns the step of each.
fn add_disks(
    plan: &mut Plan,
    config: &VmConfig,
    attach: fn(u32) -> DeviceStep,
    record: usize,
) -> Vec<(u32, usize)> {
    let mut attached = Vec::with_capacity(config.disks.len());
    let mut writers: Vec<(&str, usize)> = Vec::new();
    let of = |access| {
        config.disks.iter().filter(move |disk| disk.is_attached_first() && disk.access() == access)
    };
    for disk in of(Access::ReadWrite) {
        let index = plan.add(attach(disk.vdev.number), &[record]);
        writers.push((&disk.target, index));
        attached.push((disk.vdev.number, index));
    }
    writers.sort_unstable();
    for disk in of(Access::ReadOnly) {
        let first = writers.partition_point(|(target, _)| *target < disk.target.as_str());
        let same = writers[first..].iter().take_while(|(target, _)| *target == disk.target);
        let after: Vec<usize> = std::iter::once(record).chain(same.map(|(_, at)| *at)).collect();
        let number = disk.vdev.number;
        attached.push((number, plan.add(attach(number), &after)));
    }
    attached
}

/// The steps from a domain whose nodes are written to a running one. Each is idempotent. The device
/// model of an HVM domain has been started.
#[must_use]
pub fn plan_finish(config: &VmConfig, start: Start) -> Plan {
    let mut plan = Plan::default();
    add_finish(&mut plan, config, start, &[], None, &EarlyDevices::new());
    plan
}

/// `early` has the devices that are ready before.
fn add_finish(
    plan: &mut Plan,
    config: &VmConfig,
    start: Start,
    after: &[usize],
    model: Option<usize>,
    early: &EarlyDevices,
) {
    let mut done = vec![plan.add(CreateStep::Introduce, after)];
    let ready = config.has_model().then(|| plan.add(Wait::Model, model.as_slice()));
    done.extend(ready);
    if config.hvm.as_ref().is_some_and(|hvm| hvm.has_terminals()) {
        done.push(plan.add(CreateStep::NoteTerminals, &done));
    }
    if config.hvm.is_some() && !config.options.pci.is_empty() {
        done.push(plan.add(CreateStep::NotePciPlaces, &done));
    }
    for device in layout::devices(config) {
        let seen = match early.get(&device) {
            Some(Early::Connected) => continue,
            Some(Early::Seen(step)) => *step,
            None => plan.add(Wait::Backend(device), after),
        };
        done.push(seen);
        if let Some(connect) = ConnectedBy::of(config, device).connect(device) {
            let mut after = vec![seen];
            // An emulated card's interface exists when its device model is ready.
            after.extend(ready.filter(|_| is_emulated(config, device)));
            done.push(plan.add(connect, &after));
        }
    }
    if start == Start::Running {
        // Last: the guest's demands on dom0 would delay all later steps.
        plan.add(CreateStep::Unpause, &done);
    }
}

/// How far a device is before its VM's nodes are all there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Early {
    /// Its backend sees it, from this step on.
    Seen(usize),
    /// It is on its bridge, too, or its script has connected it.
    Connected,
}

type EarlyDevices = BTreeMap<DeviceRef, Early>;

/// Lets the backends of all vifs get ready. Returns what is needed to go on, and how far each is.
fn add_early_vifs(plan: &mut Plan, config: &VmConfig, nodes: usize) -> (Vec<usize>, EarlyDevices) {
    let mut ready = vec![nodes];
    let mut early = EarlyDevices::new();
    for device in layout::devices(config).into_iter().filter(|it| it.kind == DeviceKind::Vif) {
        let seen = plan.add(Wait::Backend(device), &[nodes]);
        // An emulated card joins with its device model's interface. What a script does may take packets from the guest while
        // it still runs elsewhere.
        let by = ConnectedBy::of(config, device);
        let is_ours = matches!(by, ConnectedBy::Us | ConnectedBy::Network);
        match by.connect(device).filter(|_| is_ours && !is_emulated(config, device)) {
            Some(connect) => {
                ready.push(plan.add(connect, &[seen]));
                early.insert(device, Early::Connected);
            }
            None => {
                ready.push(seen);
                early.insert(device, Early::Seen(seen));
            }
        }
    }
    (ready, early)
}

fn is_emulated(config: &VmConfig, vif: DeviceRef) -> bool {
    config.emulated_vifs().any(|(_, it)| it.devid == vif.devid)
}

/// What exists of a VM and must be taken down.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reached<'a> {
    pub recorded: bool,
    pub domain: bool,
    /// Nodes of the domain and its devices were, or may have been, written.
    pub nodes: bool,
    /// The record is complete, and destruction was requested: a daemon that finds the record during
    /// the teardown would take the paused domain for one that is to run.
    pub condemned: bool,
    /// It comes from another host, and has not run: that must learn that it never will.
    pub coming: bool,
    /// Disks were made for it, and it never ran.
    pub made: bool,
    /// `virtual-device`s of attached disks.
    pub disks: &'a [u32],
}

/// The teardown of everything that was reached.
#[must_use]
pub fn plan_teardown(config: &VmConfig, reached: Reached<'_>) -> Plan {
    let mut plan = Plan::default();
    let condemned: Vec<usize> =
        reached.condemned.then(|| plan.take_down(TeardownStep::Condemn, &[])).into_iter().collect();
    let condemned = match reached.coming {
        true => vec![plan.take_down(MoveStep::Fence, &condemned)],
        false => condemned,
    };
    let mut gone = take_down_domain(&mut plan, config, reached, &condemned);
    let after = gone.clone();
    gone.extend(reached.disks.iter().map(|devid| {
        let detached = DeviceStep::DetachDisk(*devid);
        plan.take_down(detached, &after)
    }));
    if reached.made {
        gone.push(plan.take_down(TeardownStep::DropDisks, &gone));
    }
    if reached.recorded {
        plan.take_down(TeardownStep::RemoveNodes, &gone);
    }
    plan
}

/// Up to the domain's destruction: its devices are closed concurrently.
fn take_down_domain(
    plan: &mut Plan,
    config: &VmConfig,
    reached: Reached<'_>,
    after: &[usize],
) -> Vec<usize> {
    if !reached.domain {
        return after.to_vec();
    }
    let pause = plan.take_down(TeardownStep::Pause, after);
    let mut closed = vec![pause];
    if config.has_model() {
        // It has disks open and memory of the domain mapped, and leaves nodes.
        closed.push(plan.take_down(TeardownStep::EndModel, &[pause]));
    }
    let model = closed.len();
    let devices = layout::devices(config);
    if reached.nodes && !devices.is_empty() {
        let close = plan.take_down(DeviceStep::CloseAll, &[pause]);
        closed.extend(devices.iter().map(|it| plan.take_down(Wait::Closed(*it), &[close])));
        for (index, device) in devices.iter().enumerate() {
            let Some(script) = ConnectedBy::of(config, *device).disconnect(*device) else {
                continue;
            };
            // As libxl has it, the device model has ended by then.
            let mut after = closed[..model].to_vec();
            after.push(closed[model + index]);
            let disconnected = plan.take_down(script, &after);
            closed.push(disconnected);
        }
    }
    let destroyed = plan.take_down(TeardownStep::DestroyDomain, &closed);
    if config.options.pci.is_empty() {
        return vec![destroyed];
    }
    // Xen has them in quarantine now.
    vec![plan.take_down(TeardownStep::ReturnPci, &[destroyed])]
}

/// From a stopped domain to the VM's next one, in one graph: the record and the attached disks are
/// kept, and the next one's requirements are checked while the old one is destroyed.
#[must_use]
pub fn plan_reboot(config: &VmConfig, start: Start, reached: Reached<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut ready = take_down_domain(&mut plan, config, reached, &[]);
    let is_wanted = |devid| config.disks.iter().any(|disk| disk.vdev.number == devid);
    for devid in reached.disks.iter().filter(|devid| !is_wanted(**devid)) {
        // It was removed from the record when the domain stopped.
        plan.take_down(DeviceStep::DetachDisk(*devid), &ready);
    }
    // The new domain has the old one's handle: before it is created the record must not be
    // complete.
    ready = vec![plan.take_down(TeardownStep::RemoveDomainNodes, &ready)];
    let removed = ready.clone();
    ready.extend(add_checks(&mut plan, config, Origin::Images));
    // They replace those of the old domain.
    ready.extend(find_backends(&mut plan, config, &removed));
    let attached = config.disks.iter().filter(|disk| disk.is_attached_first());
    let missing = attached.filter(|disk| !reached.disks.contains(&disk.vdev.number));
    let mut disks = Vec::new();
    for disk in missing {
        let number = disk.vdev.number;
        disks.push((number, plan.add(DeviceStep::AttachDisk(number), &[])));
    }
    if let Some(devid) = boot_disk(config) {
        // Once the old domain has let go of its disks: all that it wrote is there then.
        ready = vec![add_bootloader(&mut plan, devid, &disks, &ready)];
    }
    let domain = plan.add(CreateStep::CreateDomain, &ready);
    let built = plan.add(CreateStep::Build, &[domain]);
    let mut parts = vec![built];
    let assigned = add_pci(&mut plan, config, built);
    parts.extend(assigned);
    parts.extend(disks.iter().map(|(_, step)| *step));
    let mut early = EarlyDevices::new();
    if has_emulated_script(config) {
        let nodes = plan.add(CreateStep::WriteEarlyNodes, &[domain]);
        parts.push(nodes);
        early = add_emulated_scripts(&mut plan, config, nodes, &[], &mut disks);
    }
    let model = add_model(&mut plan, config, assigned.unwrap_or(domain), &disks);
    let nodes = plan.add(CreateStep::WriteNodes(start), &parts);
    let model = model.or_else(|| add_server(&mut plan, config, nodes));
    add_finish(&mut plan, config, start, &[nodes], model, &early);
    plan
}

/// Suspends a running guest.
#[must_use]
pub fn plan_suspend() -> Plan {
    let mut plan = Plan::default();
    plan.add(SuspendStep::Suspend, &[]);
    plan
}

/// Writes a guest's state to a file.
#[must_use]
pub fn plan_save() -> Plan {
    let mut plan = Plan::default();
    plan.add(SaveStep::Save, &[]);
    plan
}

/// Writes a domain's memory to a core file.
#[must_use]
pub fn plan_dump() -> Plan {
    let mut plan = Plan::default();
    plan.add(SaveStep::Dump, &[]);
    plan
}

/// Moves a running guest to another host, up to the point where that has it. Its disks are let go of before.
#[must_use]
pub fn plan_send(config: &VmConfig, disks: &[u32]) -> Plan {
    let mut plan = Plan::default();
    let sent = plan.add(MoveStep::Send, &[]);
    let mut ready = vec![sent];
    if closes_devices(config) {
        let close = plan.add(DeviceStep::CloseAll, &[sent]);
        let devices = layout::devices(config);
        ready = devices.iter().map(|it| plan.add(Wait::Closed(*it), &[close])).collect();
        add_disconnects(&mut plan, config, &devices, &mut ready);
        let closed = ready.clone();
        let emulated = emulated(config);
        // Its device model has them open until it ends: it flushed them when it stopped.
        let free = disks.iter().filter(|devid| !emulated.contains(devid));
        ready.extend(free.map(|devid| plan.add(DeviceStep::LetGo(*devid), &closed)));
    }
    plan.add(MoveStep::HandOver, &ready);
    plan
}

/// The disks that its device model opens.
fn emulated(config: &VmConfig) -> Vec<u32> {
    config.emulated_disks().map(|(_, disk)| disk.vdev.number).collect()
}

/// Runs the scripts of closed devices.
fn add_disconnects(
    plan: &mut Plan,
    config: &VmConfig,
    devices: &[DeviceRef],
    closed: &mut Vec<usize>,
) {
    let ends = closed.clone();
    for (device, end) in devices.iter().zip(ends) {
        let script = ConnectedBy::of(config, *device).disconnect(*device);
        closed.extend(script.map(|script| plan.add(script, &[end])));
    }
}

/// A guest without disks keeps its devices until the other host runs it, or goes on with them here. Where a script has
/// connected them, only one of the hosts may have them connected.
fn closes_devices(config: &VmConfig) -> bool {
    let has_script = |it: &DeviceRef| ConnectedBy::of(config, *it) == ConnectedBy::Script;
    config.disks.iter().any(|disk| !disk.is_empty())
        || layout::devices(config).iter().any(has_script)
}

/// Lets a guest run on whose move was broken off before it was suspended.
#[must_use]
pub fn plan_run_on() -> Plan {
    let mut plan = Plan::default();
    plan.take_down(MoveStep::GoOn(GoOn::WithDevices), &[]);
    plan
}

/// A suspended guest that was sent goes on here. Its disks are attached again, and it connects to new devices.
#[must_use]
pub fn plan_take_back(config: &VmConfig, attached: &[u32], how: GoOn) -> Plan {
    if !closes_devices(config) {
        return plan_run_on();
    }
    let mut plan = Plan::default();
    // Those that were not closed yet, too.
    let close = plan.add(DeviceStep::CloseAll, &[]);
    let devices = layout::devices(config);
    let mut ready: Vec<usize> =
        devices.iter().map(|device| plan.add(Wait::Closed(*device), &[close])).collect();
    add_disconnects(&mut plan, config, &devices, &mut ready);
    let closed = ready.clone();
    let emulated = emulated(config);
    let let_go =
        |disk: &&DiskConfig| disk.is_attached_first() && !emulated.contains(&disk.vdev.number);
    for disk in config.disks.iter().filter(let_go) {
        let devid = disk.vdev.number;
        // A killed daemon may have been detaching it.
        let detached = attached.contains(&devid);
        let detached = detached.then(|| plan.add(DeviceStep::DetachDisk(devid), &closed));
        let after: Vec<usize> = detached.into_iter().collect();
        ready.push(plan.add(DeviceStep::AttachDisk(devid), &after));
    }
    let written = plan.add(MoveStep::WriteDevices, &ready);
    let mut done = Vec::new();
    for device in devices {
        let seen = plan.add(Wait::Backend(device), &[written]);
        done.push(seen);
        if let Some(connect) = ConnectedBy::of(config, device).connect(device) {
            done.push(plan.add(connect, &[seen]));
        }
    }
    plan.add(MoveStep::GoOn(how), &done);
    plan
}

/// What comes with a VM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ComesWith {
    /// It was defined where it comes from, and is then here.
    Definition,
    Nothing,
}

/// From another host's offer to a running domain. Its disks are attached before the guest's memory comes, those that do
/// not allow it when the other host has let go of them.
#[must_use]
pub fn plan_receive(config: &VmConfig, start: Start, with: ComesWith) -> Plan {
    let mut plan = Plan::default();
    let mut ready = Vec::new();
    for vif in config.vifs.iter().filter(|vif| vif.backend.is_none()) {
        ready.push(plan.add(DeviceStep::CheckBridge(vif.devid), &[]));
    }
    for disk in config.disks.iter().filter(|disk| !disk.is_empty() && disk.backend.is_none()) {
        ready.push(plan.add(DeviceStep::CheckDisk(disk.vdev.number), &[]));
    }
    ready.extend(find_backends(&mut plan, config, &[]));
    let record = plan.add(CreateStep::Record, &ready);
    let domain = plan.add(CreateStep::CreateDomain, &[record]);
    let mut ready = vec![domain];
    let early = add_disks(&mut plan, config, DeviceStep::AttachEarly, record);
    ready.extend(early.iter().map(|(_, step)| *step));
    let filled = plan.add(MoveStep::Receive, &ready);
    // What a stopped guest need not wait for is done while its memory comes.
    let early_nodes = plan.add(CreateStep::WriteEarlyNodes, &[domain]);
    let (mut whole, mut early) = add_early_vifs(&mut plan, config, early_nodes);
    whole.push(filled);
    let ours = plan.add(MoveStep::AwaitGo, &whole);
    let mut parts = vec![plan.add(MoveStep::Note, &[ours])];
    let mut disks = add_disks(&mut plan, config, DeviceStep::AttachDisk, ours);
    parts.extend(disks.iter().map(|(_, step)| *step));
    early.extend(add_emulated_scripts(&mut plan, config, early_nodes, &[ours], &mut disks));
    let model = add_model(&mut plan, config, ours, &disks);
    let nodes = plan.add(CreateStep::WriteNodes(start), &parts);
    let model = model.or_else(|| add_server(&mut plan, config, nodes));
    add_finish(&mut plan, config, start, &[nodes], model, &early);
    let mut all: Vec<usize> = (nodes..plan.steps.len()).collect();
    if with == ComesWith::Definition {
        all = vec![plan.add(MoveStep::Define, &all)];
    }
    plan.add(MoveStep::Report, &all);
    plan
}

/// Finds out what came of a save whose daemon was killed.
#[must_use]
pub fn plan_settle() -> Plan {
    let mut plan = Plan::default();
    plan.take_down(SaveStep::Settle, &[]);
    plan
}
