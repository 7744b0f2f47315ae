//! How far operations have come, for the clients that wait for their end.

use super::operation::{Operation, Outcome, State};
use super::{Action, ClientId, OperationId, Toolstack};
use crate::plan::Step;

/// Steps that are told of at a time.
const STEPS_MAX: usize = 3;

/// How far an operation has come: what has ended of all that is planned.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
    /// What has just ended; none at the beginning.
    pub ended: Option<Step>,
    /// What is under way or about to begin: the first few in the plan's order.
    pub waits_for: Vec<Step>,
}

impl Operation {
    /// The steps that are under way, wait for a permit, or are about to begin.
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
    /// Tells those who wait for an operation.
    pub(super) fn tell_progress(
        &self,
        id: OperationId,
        ended: Option<Step>,
        out: &mut Vec<Action>,
    ) {
        let Some(operation) = self.operations.get(&id) else { return };
        let waiters = match operation.outcome {
            Outcome::Gone => self.vms[&operation.uuid].waiters.as_slice(),
            // Of a reboot only the first part is waited for.
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
