//! Current and possible operations, as text.

use std::fmt::Write as _;

use xen::Uuid;

use super::operation::{Operation, Outcome, State};
use super::{Instant, Toolstack};
use crate::layout::DeviceRef;
use crate::plan::{
    ConnectedBy, Start, Unplug, plan_create, plan_plug, plan_reboot, plan_teardown, plan_unplug,
};

/// A possible operation on a VM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlanOf {
    Reboot,
    /// The teardown after the guest has stopped, as for a destroy.
    Teardown,
    Plug(DeviceRef),
    Unplug(DeviceRef, Unplug),
}

impl Toolstack {
    /// The plan of a possible operation on a VM.
    pub(super) fn plan_of(&self, uuid: Uuid, what: PlanOf) -> String {
        let vm = &self.vms[&uuid];
        let disks = vm.facts.disk_ids();
        let reached = vm.facts.reached(&disks, true);
        let plan = match what {
            PlanOf::Reboot if vm.next.is_some() => {
                let config = vm.next.as_ref().expect("just looked at");
                let teardown = plan_teardown(&vm.config, reached);
                return format!("{teardown}\n{}", plan_create(config, Start::Running));
            }
            PlanOf::Reboot => plan_reboot(&vm.config, Start::Running, reached),
            PlanOf::Teardown => plan_teardown(&vm.config, reached),
            PlanOf::Plug(device) => plan_plug(device, ConnectedBy::of(&vm.config, device)),
            PlanOf::Unplug(device, how) => {
                let by = ConnectedBy::of(&vm.config, device);
                plan_unplug(device, how, disks.contains(&device.devid), by)
            }
        };
        plan.to_string()
    }

    /// All operations on a VM, step by step, with what each waits for.
    pub(super) fn explain(&self, now: Instant, uuid: Uuid) -> String {
        let vm = &self.vms[&uuid];
        let operations: Vec<&Operation> = vm
            .operation
            .iter()
            .chain(vm.plugs.values())
            .filter_map(|id| self.operations.get(id))
            .collect();
        let mut text = String::new();
        if operations.is_empty() {
            let _ = writeln!(text, "{}: nothing is under way", vm.config.name);
        }
        for operation in operations {
            let _ = writeln!(
                text,
                "{}: {}, for {}; {} of {} steps have ended",
                vm.config.name,
                goal(&operation.outcome),
                seconds(operation.started, now),
                operation.ended(),
                operation.states.len(),
            );
            for (index, planned) in operation.plan.steps.iter().enumerate() {
                let state = self.explain_step(now, operation, index);
                let _ = writeln!(text, "{index:<3} {}: {state}", planned.step);
            }
        }
        text
    }

    fn explain_step(&self, now: Instant, operation: &Operation, index: usize) -> String {
        match &operation.states[index] {
            State::Ended => "ended".to_owned(),
            State::Failed => "failed".to_owned(),
            State::Underway { started, far, .. } => {
                let far = far.map_or(String::new(), |far| format!(", {far}"));
                format!("under way for {}{far}", seconds(*started, now))
            }
            State::Watching { started, deadline, .. } => format!(
                "waits for {}, at most {} more",
                seconds(*started, now),
                seconds(now, *deadline)
            ),
            State::Queued { since, ticket, .. } => {
                let why = self.scheduler.why(*ticket).unwrap_or_default();
                format!("waits for {why}, for {}", seconds(*since, now))
            }
            State::Waiting => {
                let is_open = |earlier: &&usize| {
                    !matches!(operation.states[**earlier], State::Ended | State::Failed)
                };
                let after = &operation.plan.steps[index].after;
                let open: Vec<String> =
                    after.iter().filter(is_open).map(ToString::to_string).collect();
                if open.is_empty() {
                    "will not begin".to_owned()
                } else {
                    format!("after {}", open.join(", "))
                }
            }
        }
    }
}

fn goal(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Created { .. } => "start".to_owned(),
        Outcome::Gone => "teardown".to_owned(),
        Outcome::Rebooted => "reboot".to_owned(),
        Outcome::Replaced { .. } => "teardown before a start with another configuration".to_owned(),
        Outcome::Suspended { .. } => "suspend".to_owned(),
        Outcome::Saved { .. } => "save".to_owned(),
        Outcome::Dumped { .. } => "dump".to_owned(),
        Outcome::Reverted { revert, .. } => {
            format!("teardown before a revert to {}", revert.name())
        }
        Outcome::Sent { to, .. } => format!("migration to {}", to.to),
        Outcome::TakenBack { .. } => "return after a failed migration".to_owned(),
        Outcome::Received { incoming, .. } => format!("migration from {}", incoming.from),
        Outcome::NotReceived { .. } => "teardown after a failed migration".to_owned(),
        Outcome::Moved { .. } => "teardown after a migration".to_owned(),
        Outcome::Failed { .. } => "teardown after a failed start".to_owned(),
        Outcome::Plugged { device, .. } => format!("attach of {}", device.id()),
        Outcome::PlugFailed { device, .. } => format!("detach of {device} after a failed attach"),
        Outcome::Unplugged { device, .. } => format!("detach of {device}"),
    }
}

fn seconds(from: Instant, to: Instant) -> String {
    let tenths = to.0.saturating_sub(from.0) / 100_000_000;
    format!("{}.{} s", tenths / 10, tenths % 10)
}
