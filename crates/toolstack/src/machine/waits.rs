//! Waits: steps that end when a node says so, or when their time is over.

use xen::{DomId, XenbusState};

use super::operation::{Operation, State};
use super::{Action, Instant, OperationId, Toolstack};
use crate::device_model;
use crate::layout::DeviceRef;
use crate::plan::Step;

/// How long to wait for a backend that may never say that it has let go: one that was connecting while it
/// was told to close, wrote another state over our Closing and lets go all the same; and one that had not
/// looked at its device yet, and now has no reason to.
const RACED_CLOSE_SECONDS: u64 = 1;

impl Operation {
    /// How long a step waits at most, if it is a wait.
    pub(super) fn waits_seconds(&self, step: Step) -> Option<u64> {
        match step {
            Step::AwaitClosed(device) if self.unseen.contains(&device) => Some(RACED_CLOSE_SECONDS),
            _ => step.waits_seconds(),
        }
    }
}

impl Toolstack {
    pub(super) fn begin_wait(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        seconds: u64,
        out: &mut Vec<Action>,
    ) {
        let operation = self.operations.get_mut(&id).expect("a step of a known operation");
        let domid = self.vms[&operation.uuid].facts.domid();
        let domid = domid.expect("planned after the domain was created");
        let deadline = now.plus_seconds(seconds);
        let paths = watched(operation.plan.steps[index].step, domid);
        for path in &paths {
            self.waits.insert(path.clone(), (id, index));
            out.push(Action::Watch { path: path.clone() });
        }
        self.deadlines.insert((deadline, id, index));
        operation.states[index] = State::Watching { started: now, deadline, paths };
    }

    /// A watched node has this value now.
    pub(super) fn handle_node(
        &mut self,
        now: Instant,
        path: &str,
        value: Option<&[u8]>,
        out: &mut Vec<Action>,
    ) {
        // An event that was on its way when the wait ended.
        let Some((id, index)) = self.waits.get(path).copied() else { return };
        let operation = self.operations.get_mut(&id).expect("a wait's operation is known");
        let step = operation.plan.steps[index].step;
        if step == Step::AwaitModel {
            if value == Some(b"running") {
                self.end_wait(now, id, index, Ok(()), out);
            }
            return;
        }
        if !path.ends_with("/state") {
            // Somebody's own words about a device.
            if let Some(words) = value.filter(|words| !words.is_empty()) {
                let words = String::from_utf8_lossy(words);
                let verdict = Err(match step {
                    Step::AwaitBackend(device) => {
                        format!("the backend of {device} refused it: {words}")
                    }
                    _ => format!("the guest refused to {step}: {words}; --force takes it away"),
                });
                self.end_wait(now, id, index, verdict, out);
            }
            return;
        }
        let state = value.map_or(XenbusState::Unknown, XenbusState::decode);
        let verdict = match step {
            Step::AwaitBackend(device) => match state {
                XenbusState::Unknown | XenbusState::Initialising => None,
                XenbusState::Closing | XenbusState::Closed => Some(Err(format!(
                    "the backend of {device} refused it: its state went to {}",
                    state.as_str()
                ))),
                _ => Some(Ok(())),
            },
            Step::AwaitConnected(_) => match state {
                XenbusState::Initialising | XenbusState::InitWait | XenbusState::Initialised => {
                    None
                }
                _ => Some(Ok(())),
            },
            _ => match state {
                XenbusState::Unknown | XenbusState::Closed => Some(Ok(())),
                XenbusState::Closing => None,
                _ if matches!(step, Step::AwaitConsent(_)) => None,
                _ => {
                    self.shorten(id, index, now.plus_seconds(RACED_CLOSE_SECONDS));
                    None
                }
            },
        };
        if let Some(verdict) = verdict {
            self.end_wait(now, id, index, verdict, out);
        }
    }

    /// Moves a wait's deadline to an earlier moment.
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

    /// Ends the waits whose time is over.
    pub(super) fn end_late_waits(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some((deadline, id, index)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            let operation = &self.operations[&id];
            let step = operation.plan.steps[index].step;
            let seconds = step.waits_seconds().unwrap_or_default();
            let verdict = match step {
                Step::AwaitBackend(device) => Err(format!(
                    "the backend of {device} did not answer within {seconds} s; \
                     is its driver loaded in dom0?"
                )),
                Step::AwaitModel => Err(format!(
                    "the device model was not ready within {seconds} s; {} may say why",
                    device_model::log_file(&self.vms[&operation.uuid].config)
                )),
                Step::AwaitConsent(device) => Err(format!(
                    "the guest did not let go of {device} within {seconds} s; is it in use? \
                     --force takes it away"
                )),
                // There may be no driver for it; then there is nobody to be surprised either.
                Step::AwaitConnected(_) => Ok(()),
                // The domain is destroyed next, and with its nodes the backend loses its device.
                step => {
                    let name = &self.vms[&operation.uuid].config.name;
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

/// The nodes that tell when a wait is over: a backend's state, and what is said about the device.
fn watched(step: Step, domid: DomId) -> Vec<String> {
    let state = |device: DeviceRef| format!("{}/state", device.backend(domid));
    match step {
        Step::AwaitBackend(device) => vec![state(device), device.backend_error(domid)],
        Step::AwaitConsent(device) => vec![state(device), device.frontend_error(domid)],
        Step::AwaitClosed(device) | Step::AwaitConnected(device) => vec![state(device)],
        Step::AwaitModel => vec![device_model::state_node(domid)],
        other => unreachable!("{other} waits for nothing"),
    }
}
