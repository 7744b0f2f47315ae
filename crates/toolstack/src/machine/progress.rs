//! Progress of operations, for waiting clients.

use super::operation::{Operation, Outcome, State};
use super::{Action, ClientId, OperationId, Toolstack};
use crate::plan::Step;

/// Steps in one report.
const STEPS_MAX: usize = 3;

/// Progress of an operation: finished and planned steps.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
    /// The step that just ended; none at the beginning.
    pub ended: Option<Step>,
    /// The first few steps in progress or about to begin, in the plan's order.
    pub waits_for: Vec<Step>,
}

impl Operation {
    /// The steps that are in progress, wait for a permit, or are about to begin.
    fn open_steps(&self) -> impl Iterator<Item = Step> + '_ {
        let is_open = |index: &usize| match self.states[*index] {
            State::Queued { .. } | State::Underway { .. } | State::Watching { .. } => true,
            State::Waiting => self.may_begin(*index),
            State::Ended | State::Failed => false,
        };
        (0..self.states.len()).filter(is_open).map(|index| self.plan.steps[index].step)
    }
}

impl Toolstack {
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
