//! Operations: a plan being carried out for one VM, and what follows when it has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use xen::{Uuid, XenbusState};

use super::{
    Action, ClientId, Created, Instant, OperationId, Purpose, Reply, StepTime, Toolstack, Wait,
    WorkId,
};
use crate::layout::{self, BuiltDomain, DeviceRef};
use crate::plan::{OnFailure, Plan, PlannedStep, Start, Step, plan_create, plan_teardown};
use crate::work::{Cost, Failure, Look, Output, Work, loop_tag};

/// How long a backend may take to see its device. xen-blkback and xen-netback take milliseconds;
/// the rest is for a loaded dom0.
const BACKEND_SECONDS: u64 = 30;
/// How long a backend may take to let go. After that the domain is destroyed all the same.
const CLOSE_SECONDS: u64 = 30;
/// How long to wait for a backend that was connecting while it was told to close: it wrote another
/// state over our Closing, lets go all the same, and may never say so.
const RACED_CLOSE_SECONDS: u64 = 1;

/// What follows when an operation has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Then {
    /// The VM runs; the client that asked for it, if any, is told.
    Created { client: Option<ClientId> },
    /// The VM is forgotten and everybody who waits is told.
    Gone,
    /// The VM starts again.
    Restart,
    /// The VM is forgotten; its create has failed.
    Failed { client: Option<ClientId>, message: String },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Waiting,
    Underway { started: Instant },
    Ended,
    Failed,
}

/// A plan under way.
#[derive(Debug)]
pub(super) struct Operation {
    uuid: Uuid,
    plan: Plan,
    states: Vec<State>,
    then: Then,
    started: Instant,
    times: Vec<StepTime>,
    cost: Cost,
    /// The first failure, or why the operation was cancelled.
    failure: Option<String>,
}

impl Operation {
    fn may_begin(&self, index: usize) -> bool {
        let stopped = self.failure.is_some() && self.plan.on_failure == OnFailure::Stop;
        !stopped
            && self.states[index] == State::Waiting
            && self.plan.steps[index].after.iter().all(|&earlier| match self.states[earlier] {
                State::Ended => true,
                State::Failed => !self.plan.steps[earlier].step.is_essential(),
                State::Waiting | State::Underway { .. } => false,
            })
    }

    /// Whether a step failed without which a teardown is none.
    fn is_incomplete(&self) -> bool {
        let failed = |(state, planned): (&State, &PlannedStep)| {
            *state == State::Failed && planned.step.is_essential()
        };
        self.states.iter().zip(&self.plan.steps).any(failed)
    }

    fn is_over(&self) -> bool {
        let underway = self.states.iter().any(|s| matches!(s, State::Underway { .. }));
        let startable = (0..self.states.len()).any(|index| self.may_begin(index));
        !underway && !startable
    }

    fn ended(&self) -> usize {
        self.states.iter().filter(|s| matches!(s, State::Ended | State::Failed)).count()
    }
}

/// How a step is carried out.
enum Carried {
    Work(Work),
    Wait { path: String, seconds: u64 },
}

impl Toolstack {
    /// Begins to carry out a plan for a VM.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        uuid: Uuid,
        plan: Plan,
        then: Then,
        out: &mut Vec<Action>,
    ) {
        let id = OperationId(self.next_operation);
        self.next_operation += 1;
        let vm = self.vms.get_mut(&uuid).expect("an operation is for a known VM");
        assert!(vm.operation.is_none(), "one operation at a time works on a VM");
        vm.operation = Some(id);
        let states = vec![State::Waiting; plan.steps.len()];
        let operation = Operation {
            uuid,
            plan,
            states,
            then,
            started: now,
            times: Vec::new(),
            cost: Cost::default(),
            failure: None,
        };
        self.operations.insert(id, operation);
        self.advance(now, id, out);
    }

    /// Begins to take down whatever exists of a VM.
    pub(super) fn tear_down(
        &mut self,
        now: Instant,
        uuid: Uuid,
        then: Then,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("a teardown is for a known VM");
        let disks = vm.facts.disk_indexes();
        let plan = plan_teardown(&vm.config, vm.facts.reached(&disks));
        self.begin(now, uuid, plan, then, out);
    }

    /// Stops a create: no further step begins, waits end at once. A teardown goes on.
    pub(super) fn cancel(&mut self, now: Instant, id: OperationId, out: &mut Vec<Action>) {
        let operation = self.operations.get_mut(&id).expect("an operation of a VM is known");
        if operation.plan.on_failure == OnFailure::GoOn {
            return;
        }
        operation.failure.get_or_insert_with(|| "destroyed while it was being created".to_owned());
        let paths: Vec<String> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.operation == id)
            .map(|(path, _)| path.clone())
            .collect();
        for path in paths {
            let wait = self.waits.remove(&path).expect("just found");
            out.push(Action::Unwatch { path });
            self.end_step(now, wait.operation, wait.index, State::Failed, out);
        }
        self.advance(now, id, out);
    }

    /// Begins every step that may begin; ends the operation when none is left.
    fn advance(&mut self, now: Instant, id: OperationId, out: &mut Vec<Action>) {
        let Some(operation) = self.operations.get(&id) else { return };
        let startable: Vec<usize> =
            (0..operation.states.len()).filter(|&index| operation.may_begin(index)).collect();
        for index in startable {
            self.begin_step(now, id, index, out);
        }
        if self.operations.get(&id).is_some_and(Operation::is_over) {
            self.finish(now, id, out);
        }
    }

    fn begin_step(&mut self, now: Instant, id: OperationId, index: usize, out: &mut Vec<Action>) {
        let operation = self.operations.get_mut(&id).expect("a step of a known operation");
        operation.states[index] = State::Underway { started: now };
        let (uuid, step) = (operation.uuid, operation.plan.steps[index].step);
        match self.carried(uuid, step) {
            Carried::Work(work) => {
                let _: WorkId = self.give_out(Purpose::Step { operation: id, index }, work, out);
            }
            Carried::Wait { path, seconds } => {
                let deadline = now.plus_seconds(seconds);
                self.waits.insert(path.clone(), Wait { operation: id, index, deadline });
                out.push(Action::Watch { path });
            }
        }
    }

    /// A step with everything it needs filled in from what is known of the VM.
    fn carried(&mut self, uuid: Uuid, step: Step) -> Carried {
        let generation = self.next_generation();
        let vm = self.vms.get_mut(&uuid).expect("a step of a known VM");
        let config = Arc::clone(&vm.config);
        let facts = &mut vm.facts;
        let domain = facts.domain;
        let domain = || domain.expect("planned after the domain was created");
        let domid = || domain().domid;
        let look = if facts.new.is_some() { Look::Needless } else { Look::First };
        let backend_state = |device: DeviceRef| format!("{}/state", device.backend(domid()));
        let work = match step {
            Step::LoadImages => Work::LoadImages { config },
            Step::CheckBridge(index) => Work::CheckBridge { config, index },
            Step::Record => {
                // From here on something may be left behind, even if the write is never confirmed.
                facts.recorded = true;
                Work::Record { nodes: layout::record_nodes(uuid, &config.to_cfg_text()) }
            }
            Step::AttachDisk(index) => {
                let tag = loop_tag(uuid, config.disks[index].vdev.number);
                Work::AttachDisk { config, index, tag }
            }
            Step::CreateDomain => {
                let images = facts.images.clone().expect("planned after the images");
                Work::CreateDomain { config, uuid, images, generation }
            }
            Step::Build => {
                // The builder is the images' last user.
                let images = facts.images.take().expect("planned after the images");
                let domain = facts.new.expect("planned after the domain");
                Work::Build { config, images, domain }
            }
            Step::WriteNodes(start) => {
                let domain = facts.new.expect("planned after the domain");
                let built = facts.built.expect("planned after the build");
                let built = BuiltDomain {
                    domid: domain.domain.domid,
                    store_port: domain.store_port,
                    store_gfn: built.store_frame,
                    console_port: domain.console_port,
                    console_gfn: built.console_frame,
                };
                let disks: Vec<_> = facts.disks.values().cloned().collect();
                facts.nodes = true;
                facts.completion = Some(built.completion(start));
                let nodes = layout::domain_nodes(&config, uuid, &built, &disks, start);
                Work::WriteNodes { nodes }
            }
            Step::Introduce => {
                let completion = facts.completion.expect("planned after the nodes");
                let (store_port, store_gfn) = (completion.store_port, completion.store_gfn);
                Work::Introduce { domain: domain(), look, store_port, store_gfn }
            }
            Step::AwaitBackend(device) => {
                return Carried::Wait { path: backend_state(device), seconds: BACKEND_SECONDS };
            }
            Step::AwaitClosed(device) => {
                return Carried::Wait { path: backend_state(device), seconds: CLOSE_SECONDS };
            }
            Step::JoinBridge(index) => {
                let vif = &config.vifs[index];
                let device = DeviceRef { kind: layout::DeviceKind::Vif, devid: vif.devid };
                Work::JoinBridge {
                    bridge: vif.bridge.clone(),
                    link: layout::vif_link(domid(), vif),
                    mtu: vif.mtu,
                    backend: device.backend(domid()),
                }
            }
            Step::Unpause => Work::Unpause { domain: domain(), look },
            Step::Pause => Work::Pause { domain: domain() },
            Step::CloseDevices => {
                Work::CloseDevices { domain: domain(), uuid, devices: layout::devices(&config) }
            }
            Step::DestroyDomain => Work::DestroyDomain { domain: domain() },
            Step::DetachDisk(index) => Work::DetachDisk { attachment: facts.disks[&index].clone() },
            Step::RemoveNodes => {
                let removals = layout::removed_paths(&config, uuid, facts.domid());
                Work::RemoveNodes { domain: facts.domain, uuid, removals }
            }
        };
        Carried::Work(work)
    }

    /// Takes in what a step's work brought back.
    pub(super) fn step_worked(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        result: Result<Output, Failure>,
        cost: &Cost,
        out: &mut Vec<Action>,
    ) {
        let operation = self.operations.get_mut(&id).expect("operations outlive their work");
        operation.cost.add(cost);
        let step = operation.plan.steps[index].step;
        let vm = self.vms.get_mut(&operation.uuid).expect("VMs outlive their operations");
        let state = match result {
            Ok(output) => {
                match output {
                    Output::Images(images) => vm.facts.images = Some(images),
                    Output::Domain(domain) => {
                        vm.facts.domain = Some(domain.domain);
                        vm.facts.new = Some(domain);
                    }
                    Output::Built(built) => vm.facts.built = Some(built),
                    Output::Attached(attachment) => {
                        if let Step::AttachDisk(disk) = step {
                            vm.facts.disks.insert(disk, attachment);
                        }
                    }
                    _ => {}
                }
                State::Ended
            }
            Err(Failure(message)) => {
                operation.failure.get_or_insert(message);
                State::Failed
            }
        };
        self.end_step(now, id, index, state, out);
        self.advance(now, id, out);
    }

    fn end_step(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        state: State,
        out: &mut Vec<Action>,
    ) {
        let operation = self.operations.get_mut(&id).expect("a step of a known operation");
        let State::Underway { started } = operation.states[index] else {
            unreachable!("only a step under way can end");
        };
        operation.states[index] = state;
        let step = operation.plan.steps[index].step;
        operation.times.push(StepTime { step, started, ended: now });
        if let Then::Created { client: Some(client) } = operation.then {
            let (done, total) = (operation.ended(), operation.states.len());
            out.push(Action::Progress { client, done, total, step });
        }
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
        let Some(wait) = self.waits.get(path).copied() else { return };
        let operation = &self.operations[&wait.operation];
        let step = operation.plan.steps[wait.index].step;
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
            _ => match state {
                XenbusState::Unknown | XenbusState::Closed => Some(Ok(())),
                XenbusState::Closing => None,
                _ => {
                    let raced = now.plus_seconds(RACED_CLOSE_SECONDS);
                    let wait = self.waits.get_mut(path).expect("looked up above");
                    wait.deadline = wait.deadline.min(raced);
                    None
                }
            },
        };
        if let Some(verdict) = verdict {
            self.end_wait(now, path, verdict, out);
        }
    }

    /// Ends the waits whose time is over.
    pub(super) fn handle_tick(&mut self, now: Instant, out: &mut Vec<Action>) {
        let late: Vec<String> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.deadline <= now)
            .map(|(path, _)| path.clone())
            .collect();
        for path in late {
            let Some(wait) = self.waits.get(&path) else { continue };
            let operation = &self.operations[&wait.operation];
            let verdict = match operation.plan.steps[wait.index].step {
                Step::AwaitBackend(device) => Err(format!(
                    "the backend of {device} did not answer within {BACKEND_SECONDS} s; \
                     is its driver loaded in dom0?"
                )),
                // The domain is destroyed next, and with its nodes the backend loses its device.
                step => {
                    let name = &self.vms[&operation.uuid].config.name;
                    let message = format!("{name}: went on without waiting longer to {step}");
                    out.push(Action::Note { message });
                    Ok(())
                }
            };
            self.end_wait(now, &path, verdict, out);
        }
    }

    fn end_wait(
        &mut self,
        now: Instant,
        path: &str,
        verdict: Result<(), String>,
        out: &mut Vec<Action>,
    ) {
        let wait = self.waits.remove(path).expect("a wait that ends is known");
        out.push(Action::Unwatch { path: path.to_owned() });
        let state = match verdict {
            Ok(()) => State::Ended,
            Err(message) => {
                let operation = self.operations.get_mut(&wait.operation).expect("known");
                operation.failure.get_or_insert(message);
                State::Failed
            }
        };
        self.end_step(now, wait.operation, wait.index, state, out);
        self.advance(now, wait.operation, out);
    }

    /// Draws the conclusions of an operation that is over.
    fn finish(&mut self, now: Instant, id: OperationId, out: &mut Vec<Action>) {
        let operation = self.operations.remove(&id).expect("finished once");
        let uuid = operation.uuid;
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        vm.operation = None;
        if operation.is_incomplete() {
            let message = operation.failure.unwrap_or_default();
            return self.keep(uuid, &operation.then, &message, out);
        }
        match operation.then {
            Then::Created { client } => match operation.failure {
                Some(message) => self.tear_down(now, uuid, Then::Failed { client, message }, out),
                None => {
                    let look_again = std::mem::take(&mut vm.look_again);
                    if let Some(client) = client {
                        let created = Created {
                            name: vm.config.name.clone(),
                            uuid,
                            domid: vm.facts.domid().expect("a created VM has a domain"),
                            started: operation.started,
                            ended: now,
                            steps: operation.times,
                            cost: operation.cost,
                        };
                        out.push(Action::Reply {
                            client,
                            reply: Reply::Created(Box::new(created)),
                        });
                    }
                    if look_again {
                        self.look(out);
                    }
                }
            },
            Then::Gone => self.forget(uuid, None, operation.failure, out),
            Then::Failed { client, message } => {
                self.forget(uuid, Some((client, message)), operation.failure, out);
            }
            Then::Restart if vm.condemned => self.forget(uuid, None, operation.failure, out),
            Then::Restart => {
                let reason = vm.stopped;
                let domid = vm.facts.domid().unwrap_or_default();
                for client in vm.waiters.drain(..) {
                    out.push(Action::Reply { client, reply: Reply::Gone { domid, reason } });
                }
                vm.facts = super::Facts::default();
                vm.look_again = false;
                let plan = plan_create(&vm.config, Start::Running);
                self.begin(now, uuid, plan, Then::Created { client: None }, out);
            }
        }
    }

    /// Keeps a VM that could not be taken down, so that a further destroy tries again.
    fn keep(&mut self, uuid: Uuid, then: &Then, message: &str, out: &mut Vec<Action>) {
        let vm = self.vms.get_mut(&uuid).expect("kept because it is known");
        let told = format!("{}: {message}; `xy destroy` tries again", vm.config.name);
        let mut clients = std::mem::take(&mut vm.waiters);
        if let Then::Failed { client, .. } = then {
            clients.extend(*client);
        }
        for client in clients {
            out.push(Action::Reply { client, reply: Reply::Failed(told.clone()) });
        }
    }

    /// Forgets a VM that has been taken down and tells everybody who waits for that.
    fn forget(
        &mut self,
        uuid: Uuid,
        failed: Option<(Option<ClientId>, String)>,
        trouble: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.remove(&uuid).expect("forgotten once");
        let domid = vm.facts.domid().unwrap_or_default();
        let mut replies: BTreeMap<ClientId, Reply> = BTreeMap::new();
        for client in vm.waiters {
            let reply = match &trouble {
                None => Reply::Gone { domid, reason: vm.stopped },
                Some(trouble) => {
                    Reply::Failed(format!("{} was taken down, but: {trouble}", vm.config.name))
                }
            };
            replies.insert(client, reply);
        }
        if let Some((Some(client), message)) = failed {
            let message = match trouble {
                None => message,
                Some(trouble) => format!("{message}; and then: {trouble}"),
            };
            replies.insert(client, Reply::Failed(message));
        }
        out.extend(replies.into_iter().map(|(client, reply)| Action::Reply { client, reply }));
    }
}
