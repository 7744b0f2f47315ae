//! Progress of operations, for waiting clients.

use std::fmt;

use super::operation::{Operation, Outcome, State};
use super::{Action, ClientId, OperationId, Purpose, Toolstack, WorkId};
use crate::plan::Step;
use crate::work::Far;

/// Steps in one report.
pub(super) const STEPS_MAX: usize = 3;

/// Progress of an operation: finished and planned steps.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
    /// The step that just ended; none at the beginning.
    pub ended: Option<Step>,
    /// The first few steps in progress or about to begin, in the plan's order.
    pub waits_for: Vec<OpenStep>,
}

/// A step in progress or about to begin, and how far its work is, if that says so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpenStep {
    pub step: Step,
    pub far: Option<Far>,
}

impl fmt::Display for OpenStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.far {
            None => self.step.fmt(f),
            Some(far) => write!(f, "{} ({far})", self.step),
        }
    }
}

impl Operation {
    /// The steps that are in progress, wait for a permit, or are about to begin.
    pub(super) fn open_steps(&self) -> impl Iterator<Item = OpenStep> + '_ {
        let is_open = |index: &usize| match self.states[*index] {
            State::Queued { .. } | State::Underway { .. } | State::Watching { .. } => true,
            State::Waiting => self.may_begin(*index),
            State::Ended | State::Failed => false,
        };
        let open = |index: usize| OpenStep {
            step: self.plan.steps[index].step,
            far: match self.states[index] {
                State::Underway { far, .. } => far,
                _ => None,
            },
        };
        (0..self.states.len()).filter(is_open).map(open)
    }
}

impl Toolstack {
    /// Work in progress has come this far. Work that nobody waits for is not reported.
    pub(super) fn work_reached(&mut self, work: WorkId, far: Far, out: &mut Vec<Action>) {
        let Some((Purpose::Step { operation: id, index }, _)) = self.works.get(&work) else {
            return;
        };
        let (id, index) = (*id, *index);
        let operation = self.operations.get_mut(&id).expect("operations outlive their work");
        if let State::Underway { far: known, .. } = &mut operation.states[index] {
            *known = Some(far);
        }
        self.tell_progress(id, None, out);
    }

    /// Reports progress to waiting clients.
    pub(super) fn tell_progress(
        &self,
        id: OperationId,
        ended: Option<Step>,
        out: &mut Vec<Action>,
    ) {
        let Some(operation) = self.operations.get(&id) else { return };
        let waiters = match operation.outcome {
            Outcome::Gone => self.vms[&operation.uuid].waiters.as_slice(),
            // Clients wait only for the first part of a reboot.
            _ => &[],
        };
        let clients: Vec<ClientId> =
            operation.outcome.client().into_iter().chain(waiters.iter().copied()).collect();
        if clients.is_empty() {
            return;
        }
        let open = operation.open_steps().take(STEPS_MAX).collect();
        let (done, total) = (operation.ended(), operation.states.len());
        let progress = Progress { done, total, ended, waits_for: open };
        for client in clients {
            out.push(Action::Progress { client, progress: Box::new(progress.clone()) });
        }
    }
}
