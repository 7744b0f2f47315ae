//! Traces: waiting time and duration of each step, for current operations and the last ones that
//! have ended.

use std::collections::VecDeque;

use xen::Uuid;

use super::operation::{Operation, Outcome};
use super::{Action, ClientId, Instant, OperationId, Reply, StepTime, Toolstack};
use crate::work::Cost;

/// Finished operations that are kept.
const OPERATIONS_MAX: usize = 200;
/// Kept steps of all operations together: a VM with 255 disks has over a thousand, and each costs
/// about a hundred bytes.
const STEPS_MAX: usize = 40_000;

/// An operation and its steps so far.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    pub id: u64,
    /// `start`, `stop`, `reboot`, `attach`, `detach`, or `undo` of a failed one.
    pub what: &'static str,
    pub vm: String,
    pub uuid: Uuid,
    pub started: Instant,
    /// `None`: it is in progress.
    pub ended: Option<Instant>,
    /// Why it failed or was cancelled.
    pub failure: Option<String>,
    /// Steps of the plan; those that never began have no entry in `steps`.
    pub planned: usize,
    pub steps: Vec<StepTime>,
    pub cost: Cost,
}

/// Name of an operation with this outcome.
fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created { .. } => "start",
        Outcome::Gone | Outcome::Replaced { .. } | Outcome::Reverted { .. } => "stop",
        Outcome::Rebooted => "reboot",
        Outcome::Suspended { .. } => "suspend",
        Outcome::Saved { .. } => "save",
        Outcome::Dumped { .. } => "dump",
        Outcome::Sent { .. } => "migrate",
        Outcome::TakenBack { .. } | Outcome::NotReceived { .. } => "undo",
        Outcome::Received { .. } => "receive",
        Outcome::Moved { .. } => "stop",
        Outcome::Failed { .. } => "undo",
        Outcome::Plugged { .. } => "attach",
        Outcome::Unplugged { .. } => "detach",
        Outcome::PlugFailed { .. } => "undo",
    }
}

impl Trace {
    pub(super) fn of(id: OperationId, vm: &str, operation: &Operation) -> Self {
        let OperationId(id) = id;
        Self {
            id,
            what: word(&operation.outcome),
            vm: vm.to_owned(),
            uuid: operation.uuid,
            started: operation.started,
            ended: None,
            failure: operation.failure.clone(),
            planned: operation.plan.steps.len(),
            steps: operation.times.clone(),
            cost: operation.cost.clone(),
        }
    }

    /// Without its steps, for a list.
    pub(super) fn summary(&self) -> Summary {
        Summary {
            id: self.id,
            what: self.what,
            vm: self.vm.clone(),
            started: self.started,
            ended: self.ended,
            failure: self.failure.clone(),
            planned: self.planned,
            done: self.steps.iter().filter(|step| step.ended.is_some()).count(),
        }
    }

    fn is_of(&self, target: &str) -> bool {
        self.vm == target || target.parse().is_ok_and(|uuid: Uuid| uuid == self.uuid)
    }
}

/// One line of a list of operations.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Summary {
    pub id: u64,
    pub what: &'static str,
    pub vm: String,
    pub started: Instant,
    pub ended: Option<Instant>,
    pub failure: Option<String>,
    pub planned: usize,
    /// Steps that have ended, well or not.
    pub done: usize,
}

/// The last operations that have ended.
#[derive(Debug, Default)]
pub(super) struct Past {
    traces: VecDeque<Trace>,
    steps: usize,
}

impl Past {
    pub(super) fn get(&self, id: u64) -> Option<&Trace> {
        self.traces.iter().rev().find(|trace| trace.id == id)
    }

    /// Keeps one more; returns those that are kept no more.
    pub(super) fn keep(&mut self, trace: Trace) -> Vec<u64> {
        let mut forgotten = Vec::new();
        self.steps += trace.steps.len();
        self.traces.push_back(trace);
        while self.traces.len() > OPERATIONS_MAX
            || (self.steps > STEPS_MAX && self.traces.len() > 1)
        {
            let oldest = self.traces.pop_front().expect("there is more than one");
            self.steps -= oldest.steps.len();
            forgotten.push(oldest.id);
        }
        forgotten
    }
}

impl Toolstack {
    /// The current operation with this number and its steps so far.
    fn underway(&self, id: OperationId) -> Trace {
        let operation = &self.operations[&id];
        let mut trace = Trace::of(id, &self.vms[&operation.uuid].config.name, operation);
        trace.steps.extend(operation.underway());
        trace
    }

    /// The same without its steps.
    pub(super) fn summary(&self, id: OperationId) -> Summary {
        let operation = &self.operations[&id];
        Summary {
            id: id.0,
            what: word(&operation.outcome),
            vm: self.vms[&operation.uuid].config.name.clone(),
            started: operation.started,
            ended: None,
            failure: operation.failure.clone(),
            planned: operation.plan.steps.len(),
            done: operation.times.len(),
        }
    }

    /// Answers with all known operations, the oldest first.
    pub(super) fn list_operations(&self, now: Instant, client: ClientId, out: &mut Vec<Action>) {
        let past = self.past.traces.iter().map(Trace::summary);
        let underway = self.operations.keys().map(|id| self.summary(*id));
        let mut operations: Vec<Summary> = past.chain(underway).collect();
        operations.sort_by_key(|operation| operation.id);
        out.push(Action::Reply { client, reply: Reply::Operations { now, operations } });
    }

    /// Answers with an operation: by number, or the last one of a VM.
    pub(super) fn trace(
        &self,
        now: Instant,
        client: ClientId,
        target: &str,
        out: &mut Vec<Action>,
    ) {
        let number: Option<u64> = target.parse().ok();
        let underway = self.operations.iter().rev().find(|(id, operation)| match number {
            Some(number) => id.0 == number,
            None => {
                let vm = &self.vms[&operation.uuid];
                vm.config.name == target || target.parse() == Ok(vm.uuid)
            }
        });
        let found = match underway {
            Some((id, _)) => Some(self.underway(*id)),
            None => {
                let wanted = |trace: &&Trace| match number {
                    Some(number) => trace.id == number,
                    None => trace.is_of(target),
                };
                self.past.traces.iter().rev().find(wanted).cloned()
            }
        };
        let reply = match found {
            Some(trace) => Reply::Trace { now, trace: Box::new(trace) },
            None => Reply::Failed(format!(
                "{target}: no operation of that number or VM is remembered; \
                 `xy trace` lists the last {OPERATIONS_MAX}"
            )),
        };
        out.push(Action::Reply { client, reply });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CreateStep;

    fn trace(id: u64, steps: usize) -> Trace {
        let step = StepTime {
            step: CreateStep::Record.into(),
            ready: Instant(0),
            started: Instant(0),
            ended: Some(Instant(1)),
            waited_for: None,
            failed: false,
        };
        Trace {
            id,
            what: "start",
            vm: format!("vm{id}"),
            uuid: Uuid::default(),
            started: Instant(0),
            ended: Some(Instant(1)),
            failure: None,
            planned: steps,
            steps: vec![step; steps],
            cost: Cost::default(),
        }
    }

    #[test]
    fn the_past_is_bounded_by_operations_and_by_steps() {
        let mut past = Past::default();
        (0..200).for_each(|id| assert!(past.keep(trace(id, 10)).is_empty()));
        (200..300).for_each(|id| assert_eq!(past.keep(trace(id, 10)), vec![id - 200]));
        assert_eq!((past.traces.len(), past.traces[0].id), (OPERATIONS_MAX, 100));
        past.keep(trace(300, STEPS_MAX + 1));
        assert_eq!((past.traces.len(), past.traces[0].id), (1, 300), "the last one always stays");
        past.keep(trace(301, 1));
        assert_eq!((past.traces.len(), past.steps), (1, 1));
    }
}
