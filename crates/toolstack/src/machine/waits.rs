//! Waits: steps that end when a node has some value, or at their deadline.

use super::operation::{Operation, State};
use super::{Action, Instant, OperationId, Toolstack};
use crate::device_model;
use crate::steps::Step;
use crate::steps::wait::{Late, RACED_CLOSE_SECONDS, Verdict, Wait};

impl Operation {
    /// Its time limit.
    fn wait_seconds(&self, wait: Wait) -> u64 {
        match wait {
            Wait::Closed(device) if self.unseen.contains(&device) => RACED_CLOSE_SECONDS,
            wait => wait.seconds(),
        }
    }

    /// What a waiting step waits for.
    fn wait_of(&self, index: usize) -> Wait {
        match self.plan.steps[index].step {
            Step::Await(wait) => wait,
            step => unreachable!("{step} is no wait"),
        }
    }
}

impl Toolstack {
    pub(super) fn begin_wait(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        wait: Wait,
        out: &mut Vec<Action>,
    ) {
        let operation = self.operations.get_mut(&id).expect("a step of a known operation");
        let facts = &self.vms[&operation.uuid].facts;
        let domid = facts.domid().expect("planned after the domain was created");
        let deadline = now.plus_seconds(operation.wait_seconds(wait));
        let paths = wait.nodes(domid, &facts.backends);
        for path in &paths {
            self.waits.insert(path.clone(), (id, index));
            out.push(Action::Watch { path: path.clone() });
        }
        self.deadlines.insert((deadline, id, index));
        operation.states[index] = State::Watching { started: now, deadline, paths };
    }

    /// Handles the new value of a watched node.
    pub(super) fn handle_node(
        &mut self,
        now: Instant,
        path: &str,
        value: Option<&[u8]>,
        out: &mut Vec<Action>,
    ) {
        // A late event after the end of the wait.
        let Some((id, index)) = self.waits.get(path).copied() else { return };
        match self.operations[&id].wait_of(index).judge(path, value) {
            Verdict::Pending => {}
            Verdict::Shorten => self.shorten(id, index, now.plus_seconds(RACED_CLOSE_SECONDS)),
            Verdict::Ended => self.end_wait(now, id, index, Ok(()), out),
            Verdict::Refused(why) => self.end_wait(now, id, index, Err(why), out),
        }
    }

    /// Moves a wait's deadline forward.
    fn shorten(&mut self, id: OperationId, index: usize, to: Instant) {
        let operation = self.operations.get_mut(&id).expect("a wait's operation is known");
        if let State::Watching { deadline, .. } = &mut operation.states[index]
            && to < *deadline
        {
            self.deadlines.remove(&(*deadline, id, index));
            self.deadlines.insert((to, id, index));
            *deadline = to;
        }
    }

    /// Ends the waits that have timed out.
    pub(super) fn end_late_waits(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some((deadline, id, index)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            let operation = &self.operations[&id];
            let wait = operation.wait_of(index);
            let vm = &self.vms[&operation.uuid];
            let config = &vm.config;
            let verdict = match wait.late(&device_model::log_file(config), &vm.facts.backends) {
                Late::Fail(message) => Err(message),
                Late::GoOn => Ok(()),
                Late::GoOnWithNote => {
                    let (name, step) = (&config.name, Step::Await(wait));
                    let message = format!("{name}: went on without waiting longer to {step}");
                    out.push(Action::Note { message });
                    Ok(())
                }
            };
            self.end_wait(now, id, index, verdict, out);
        }
    }

    pub(super) fn end_waits(&mut self, now: Instant, id: OperationId, out: &mut Vec<Action>) {
        let watching = |state: &State| matches!(state, State::Watching { .. });
        let steps = 0..self.operations[&id].states.len();
        for index in steps {
            // The last step's end ends the operation.
            if self.operations.get(&id).is_some_and(|it| watching(&it.states[index])) {
                self.end_wait(now, id, index, Ok(()), out);
            }
        }
    }

    fn end_wait(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        verdict: Result<(), String>,
        out: &mut Vec<Action>,
    ) {
        let state = match verdict {
            Ok(()) => State::Ended,
            Err(message) => {
                let operation = self.operations.get_mut(&id).expect("known");
                operation.failure.get_or_insert(message);
                State::Failed
            }
        };
        self.end_step(now, id, index, state, 0, out);
        self.advance(now, id, out);
    }
}
