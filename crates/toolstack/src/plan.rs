//! Plans: what has to be done, as a graph of steps, before anything is done.
//!
//! A plan leaves no choices to its execution. After a failure nothing is replayed: what was reached
//! is looked at ([`Reached`]) and a new plan takes it down.

use std::fmt;

use crate::config::VmConfig;
use crate::layout::{self, DeviceKind, DeviceRef};

/// One thing to do for a VM.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Step {
    /// Read and check kernel and ramdisk.
    LoadImages,
    /// Attach the disk with this index.
    AttachDisk(usize),
    /// See that the bridge of the vif with this index exists.
    CheckBridge(usize),
    /// Write our own record, which outlives the daemon.
    Record,
    CreateDomain,
    Build,
    /// Write the domain's and its devices' nodes and the end of our record, all as one: from here on a
    /// restarted daemon goes on with the rest.
    WriteNodes(Start),
    Introduce,
    /// Wait until the backend has seen its device.
    AwaitBackend(DeviceRef),
    /// Put the host's end of the vif with this index on its bridge.
    JoinBridge(usize),
    Unpause,
    Pause,
    /// Tell all backends that their devices go.
    CloseDevices,
    AwaitClosed(DeviceRef),
    DestroyDomain,
    DetachDisk(usize),
    /// Remove all nodes, our record last.
    RemoveNodes,
}

impl Step {
    /// What takes this step back, for those that leave something behind.
    #[must_use]
    pub fn undo(self) -> Option<Self> {
        match self {
            Self::AttachDisk(index) => Some(Self::DetachDisk(index)),
            Self::CreateDomain => Some(Self::DestroyDomain),
            Self::Record | Self::WriteNodes(_) => Some(Self::RemoveNodes),
            Self::AwaitBackend(device) => Some(Self::AwaitClosed(device)),
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
            Self::WriteNodes(_) => "write nodes",
            Self::Introduce => "introduce",
            Self::AwaitBackend(_) => "await backends",
            Self::JoinBridge(_) => "join bridges",
            Self::Unpause => "unpause",
            Self::Pause => "pause",
            Self::CloseDevices => "close devices",
            Self::AwaitClosed(_) => "await closed",
            Self::DestroyDomain => "destroy domain",
            Self::DetachDisk(_) => "detach disks",
            Self::RemoveNodes => "remove nodes",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttachDisk(index) => write!(f, "attach disk {index}"),
            Self::DetachDisk(index) => write!(f, "detach disk {index}"),
            Self::CheckBridge(index) => write!(f, "check the bridge of vif {index}"),
            Self::JoinBridge(index) => write!(f, "put vif {index} on its bridge"),
            Self::AwaitBackend(device) => write!(f, "await the backend of {device}"),
            Self::AwaitClosed(device) => write!(f, "await the end of {device}"),
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
}

/// Whether a failed step stops the plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnFailure {
    /// Nothing further begins.
    Stop,
    /// The rest goes on: half a teardown would leave more behind.
    GoOn,
}

/// A graph of steps.
///
/// Invariant: every edge points to an earlier step, so the graph has no cycle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    pub steps: Vec<PlannedStep>,
    pub on_failure: OnFailure,
}

impl Plan {
    fn new(on_failure: OnFailure) -> Self {
        Self { steps: Vec::new(), on_failure }
    }

    fn add(&mut self, step: Step, after: &[usize]) -> usize {
        let index = self.steps.len();
        assert!(after.iter().all(|&earlier| earlier < index), "an edge points forward");
        self.steps.push(PlannedStep { step, after: after.to_vec() });
        index
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
/// All that can be refused without a domain comes first and side by side, so that bad input costs
/// nothing and leaves nothing.
#[must_use]
pub fn plan_create(config: &VmConfig, start: Start) -> Plan {
    let mut plan = Plan::new(OnFailure::Stop);
    let mut ready = vec![plan.add(Step::LoadImages, &[])];
    for index in 0..config.vifs.len() {
        ready.push(plan.add(Step::CheckBridge(index), &[]));
    }
    // The record names the VM before anything of it exists, so that a restarted daemon finds what
    // an earlier one left half-made.
    let record = plan.add(Step::Record, &ready);
    let attached: Vec<usize> =
        (0..config.disks.len()).map(|i| plan.add(Step::AttachDisk(i), &[record])).collect();
    let mut before_domain = vec![record];
    before_domain.extend(&attached);
    let domain = plan.add(Step::CreateDomain, &before_domain);
    let build = plan.add(Step::Build, &[domain]);
    let nodes = plan.add(Step::WriteNodes(start), &[build]);
    add_finish(&mut plan, config, start, &[nodes]);
    plan
}

/// The steps from a domain whose nodes are written to one that is there for its user. Each can be taken
/// once more.
#[must_use]
pub fn plan_finish(config: &VmConfig, start: Start) -> Plan {
    let mut plan = Plan::new(OnFailure::Stop);
    add_finish(&mut plan, config, start, &[]);
    plan
}

fn add_finish(plan: &mut Plan, config: &VmConfig, start: Start, after: &[usize]) {
    let mut done = vec![plan.add(Step::Introduce, after)];
    for device in layout::devices(config) {
        let seen = plan.add(Step::AwaitBackend(device), after);
        done.push(seen);
        if device.kind == DeviceKind::Vif {
            let index = config.vifs.iter().position(|vif| vif.devid == device.devid);
            let index = index.expect("devices() lists the vifs of this configuration");
            done.push(plan.add(Step::JoinBridge(index), &[seen]));
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
    /// Indexes of attached disks.
    pub disks: &'a [usize],
}

/// The steps from whatever was reached back to nothing.
#[must_use]
pub fn plan_teardown(config: &VmConfig, reached: Reached<'_>) -> Plan {
    let mut plan = Plan::new(OnFailure::GoOn);
    let mut gone = Vec::new();
    if reached.domain {
        let pause = plan.add(Step::Pause, &[]);
        let mut closed = vec![pause];
        let devices = layout::devices(config);
        if reached.nodes && !devices.is_empty() {
            let close = plan.add(Step::CloseDevices, &[pause]);
            closed.extend(devices.iter().map(|d| plan.add(Step::AwaitClosed(*d), &[close])));
        }
        gone.push(plan.add(Step::DestroyDomain, &closed));
    }
    let after = gone.clone();
    gone.extend(reached.disks.iter().map(|i| plan.add(Step::DetachDisk(*i), &after)));
    if reached.recorded {
        plan.add(Step::RemoveNodes, &gone);
    }
    plan
}
