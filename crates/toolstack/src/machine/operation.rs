//! Operations: the execution of a plan for one VM, and what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xen::Uuid;

use super::events::VmState;
use super::permits::ask_for;
use super::trace::Trace;
use super::{
    Action, ClientId, Created, Device, Instant, Item, OperationId, Purpose, Reply, Revert,
    StepTime, Toolstack, WorkId,
};
use crate::channel::ChannelId;
use crate::config::{ShutdownAction, VmConfig};
use crate::domains::DomainSet;
use crate::layout::{DeviceKind, DeviceRef};
use crate::moves::{Incoming, Leaving, MigrateRequest};
use crate::plan::{
    OnFailure, Plan, PlannedStep, Start, Unplug, plan_dump, plan_reboot, plan_teardown,
};
use crate::saved::{DumpTo, Save};
use crate::scheduler::{Priority, Ticket};
use crate::steps::{
    Completing, CreateStep, DeviceStep, IfCancelled, IfFailed, Preparation, Step, TeardownStep,
    Wait,
};
use crate::work::{Cost, Failure, Far, Output, Work};

/// What follows the end of an operation.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The VM runs; the requesting client, if any, is answered.
    Created { client: Option<ClientId> },
    /// The VM is removed and all waiting clients are answered.
    Gone,
    /// The VM runs in another domain.
    Rebooted,
    /// Nothing is left of it, and it is created from this.
    Replaced { config: Arc<VmConfig> },
    /// Its guest has suspended, or runs on.
    Suspended { client: Option<ClientId> },
    /// Its guest's state is in a file, or it runs on.
    Saved { client: Option<ClientId>, save: Save },
    /// Its memory is in a core file, or not. It is as before, or one that has stopped is dealt with like this.
    Dumped { client: Option<ClientId>, to: Box<DumpTo>, then: Option<ShutdownAction> },
    /// Nothing is left of it, and it goes back to a checkpoint.
    Reverted { client: ClientId, revert: Box<Revert> },
    /// Its guest is on another host, or is not; see [`super::moves`].
    Sent { client: Option<ClientId>, to: Box<MigrateRequest> },
    /// A guest that was sent goes on here; why.
    TakenBack { client: Option<ClientId>, why: Option<String> },
    /// Nothing is left of a VM that runs on another host.
    Moved { client: Option<ClientId>, leaving: Box<Leaving>, channel: Option<ChannelId> },
    /// A VM of another host runs here.
    Received { client: ClientId, incoming: Arc<Incoming> },
    /// Nothing is left of a VM that did not come.
    NotReceived { client: ClientId, incoming: Arc<Incoming>, message: String },
    /// The VM is removed; its create has failed.
    Failed { client: Option<ClientId>, message: String },
    /// The domain has one more device.
    Plugged { client: Option<ClientId>, device: Device },
    /// Nothing is left of a device that could not be plugged.
    PlugFailed { client: Option<ClientId>, device: DeviceRef, message: String },
    /// The domain has one device less.
    Unplugged { client: Option<ClientId>, device: DeviceRef, how: Unplug },
}

impl Outcome {
    /// The device of this operation, if the VM itself continues.
    pub(super) fn device(&self) -> Option<DeviceRef> {
        match self {
            Self::Plugged { device, .. } => Some(device.id()),
            Self::PlugFailed { device, .. } | Self::Unplugged { device, .. } => Some(*device),
            _ => None,
        }
    }

    /// The connection that its end closes.
    pub(super) fn channel(&self) -> Option<ChannelId> {
        match self {
            Self::Moved { channel, .. } => *channel,
            Self::NotReceived { incoming, .. } => Some(incoming.channel),
            _ => None,
        }
    }

    pub(super) fn client(&self) -> Option<ClientId> {
        match self {
            Self::Created { client }
            | Self::Suspended { client }
            | Self::Saved { client, .. }
            | Self::Dumped { client, .. }
            | Self::Failed { client, .. }
            | Self::Plugged { client, .. }
            | Self::PlugFailed { client, .. }
            | Self::Unplugged { client, .. } => *client,
            Self::Sent { client, .. }
            | Self::TakenBack { client, .. }
            | Self::Moved { client, .. } => *client,
            Self::Received { client, .. }
            | Self::NotReceived { client, .. }
            | Self::Reverted { client, .. } => Some(*client),
            Self::Gone | Self::Rebooted | Self::Replaced { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum State {
    Waiting,
    /// Its dependencies have ended; it is queued in the scheduler.
    Queued {
        since: Instant,
        ticket: Ticket,
        /// The limit that it waited for when it was queued.
        why: Option<String>,
    },
    Underway {
        ready: Instant,
        started: Instant,
        work: WorkId,
        ticket: Ticket,
        why: Option<String>,
        /// As last reported.
        far: Option<Far>,
    },
    /// It watches nodes and holds no permit.
    Watching {
        started: Instant,
        deadline: Instant,
        paths: Vec<String>,
    },
    Ended,
    Failed,
}

/// A plan in execution.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) uuid: Uuid,
    /// Including a device that is being plugged and is not yet part of the VM.
    config: Arc<VmConfig>,
    pub(super) plan: Plan,
    pub(super) states: Vec<State>,
    pub(super) outcome: Outcome,
    pub(super) started: Instant,
    /// Steps that have ended.
    pub(super) times: Vec<StepTime>,
    pub(super) cost: Cost,
    /// Devices that were closed before their backend had probed them.
    pub(super) unseen: BTreeSet<DeviceRef>,
    /// The first failure, or why the operation was cancelled.
    pub(super) failure: Option<String>,
}

impl Operation {
    pub(super) fn may_begin(&self, index: usize) -> bool {
        let planned = &self.plan.steps[index];
        let stopped = self.failure.is_some() && planned.on_failure == OnFailure::Stop;
        !stopped
            && self.states[index] == State::Waiting
            && planned.after.iter().all(|&earlier| match self.states[earlier] {
                State::Ended => true,
                State::Failed => !self.plan.steps[earlier].step.is_essential(),
                _ => false,
            })
    }

    /// What it works with.
    pub(super) fn config(&self) -> &Arc<VmConfig> {
        &self.config
    }

    /// Whether an essential step of a teardown failed.
    fn is_incomplete(&self) -> bool {
        let failed = |(state, planned): (&State, &PlannedStep)| {
            *state == State::Failed && planned.step.is_essential()
        };
        self.states.iter().zip(&self.plan.steps).any(failed)
    }

    /// Whether it depends on the device model that it has started or found.
    pub(super) fn needs_model(&self) -> bool {
        let state_of = |wanted| {
            let at = self.plan.steps.iter().position(|planned| planned.step == wanted)?;
            Some(&self.states[at])
        };
        match state_of(CreateStep::StartModel.into()) {
            Some(state) => *state != State::Waiting,
            None => state_of(Wait::Model.into()).is_some(),
        }
    }

    fn is_over(&self) -> bool {
        let busy = |state: &State| {
            matches!(state, State::Queued { .. } | State::Underway { .. } | State::Watching { .. })
        };
        let startable = (0..self.states.len()).any(|index| self.may_begin(index));
        !self.states.iter().any(busy) && !startable
    }

    /// The steps in progress.
    pub(super) fn underway(&self) -> impl Iterator<Item = StepTime> + '_ {
        self.states.iter().zip(&self.plan.steps).filter_map(|(state, planned)| {
            let (ready, started, why) = match state {
                State::Underway { ready, started, why, .. } => (*ready, *started, why.clone()),
                State::Watching { started, .. } => (*started, *started, None),
                _ => return None,
            };
            let step = planned.step;
            Some(StepTime { step, ready, started, ended: None, waited_for: why, failed: false })
        })
    }

    pub(super) fn ended(&self) -> usize {
        self.states.iter().filter(|s| matches!(s, State::Ended | State::Failed)).count()
    }

    fn priority(&self) -> Priority {
        match self.outcome {
            Outcome::Created { client: None } | Outcome::Rebooted => Priority::Bulk,
            _ => Priority::Interactive,
        }
    }
}

impl Toolstack {
    /// Begins the execution of a plan for a VM.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        uuid: Uuid,
        plan: Plan,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        let id = OperationId(self.next_operation);
        self.next_operation += 1;
        let vm = self.vms.get_mut(&uuid).expect("an operation is for a known VM");
        let mut config = Arc::clone(&vm.config);
        match outcome.device() {
            None => {
                let is_alone = vm.operation.is_none() && vm.plugs.is_empty() && !vm.is_tuned;
                assert!(is_alone, "one operation at a time");
                vm.operation = Some(id);
            }
            Some(device) => {
                let earlier = vm.plugs.insert(device, id);
                self.live.devices.mark((uuid, device));
                assert!(earlier.is_none(), "one operation at a time works on a device");
            }
        }
        if let Outcome::Plugged { device, .. } = &outcome {
            device.add_to(Arc::make_mut(&mut config));
        }
        let states = vec![State::Waiting; plan.steps.len()];
        let operation = Operation {
            uuid,
            config,
            plan,
            states,
            outcome,
            started: now,
            times: Vec::new(),
            cost: Cost::default(),
            unseen: BTreeSet::new(),
            failure: None,
        };
        let outcome = operation.outcome.clone();
        self.operations.insert(id, operation);
        self.note_begin(now, uuid, &outcome);
        self.tell_progress(id, None, out);
        self.advance(now, id, out);
    }

    /// Takes a VM down, or restarts it, after the operations on its devices have ended.
    pub(super) fn take_over(
        &mut self,
        now: Instant,
        uuid: Uuid,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("a VM with a domain is known");
        vm.restart_at = None;
        if vm.plugs.is_empty() && !vm.is_tuned {
            return match outcome {
                Outcome::Rebooted => self.reboot(now, uuid, out),
                Outcome::Dumped { .. } => self.begin(now, uuid, plan_dump(), outcome, out),
                outcome => self.tear_down(now, uuid, outcome, out),
            };
        }
        let plugs: Vec<OperationId> = vm.plugs.values().copied().collect();
        match &vm.after_plugs {
            // A requested destruction takes precedence.
            Some(Outcome::Gone) => {}
            _ => vm.after_plugs = Some(outcome),
        }
        for plug in plugs {
            self.cancel(now, plug, "its VM went down", out);
        }
    }

    /// Replaces a stopped domain by the VM's next one.
    fn reboot(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) {
        let vm = self.vms.get_mut(&uuid).expect("a reboot is for a known VM");
        vm.poll_again = false;
        vm.suspends_late = false;
        if let Some(config) = vm.next.take() {
            return self.replace(now, uuid, config, out);
        }
        let disks = vm.facts.disk_ids();
        let plan = plan_reboot(&vm.config, Start::Running, vm.facts.reached(&disks, false));
        self.begin(now, uuid, plan, Outcome::Rebooted, out);
    }

    /// Begins the teardown of everything that exists of a VM.
    pub(super) fn tear_down(
        &mut self,
        now: Instant,
        uuid: Uuid,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("a teardown is for a known VM");
        let disks = vm.facts.disk_ids();
        let plan = plan_teardown(&vm.config, vm.facts.reached(&disks, vm.condemned));
        self.begin(now, uuid, plan, outcome, out);
    }

    /// Cancels an operation: no further step begins except those of a teardown, and waits end at
    /// once.
    pub(super) fn cancel(
        &mut self,
        now: Instant,
        id: OperationId,
        reason: &str,
        out: &mut Vec<Action>,
    ) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if !operation.plan.can_stop() {
            // A teardown continues; an unplug of a single device no longer waits.
            if operation.outcome.device().is_some() {
                self.end_waits(now, id, out);
            }
            return;
        }
        operation.failure.get_or_insert_with(|| reason.to_owned());
        for index in 0..operation.states.len() {
            let operation = self.operations.get_mut(&id).expect("it has not been advanced yet");
            if operation.plan.steps[index].on_failure == OnFailure::GoOn {
                continue;
            }
            let step = operation.plan.steps[index].step;
            match &operation.states[index] {
                State::Queued { ticket, .. } => {
                    self.scheduler.take_back(*ticket);
                    operation.states[index] = State::Waiting;
                }
                State::Watching { .. } => self.end_step(now, id, index, State::Failed, 0, out),
                State::Underway { work, ticket, .. } => {
                    let (work, ticket) = (*work, *ticket);
                    match step.info().if_cancelled {
                        IfCancelled::Finish => {}
                        IfCancelled::Interrupt => out.push(Action::Cancel { work }),
                        IfCancelled::Abandon => {
                            let uuid = operation.uuid;
                            self.abandon(uuid, step, work, ticket, out);
                            self.end_step(now, id, index, State::Failed, 0, out);
                        }
                    }
                }
                State::Waiting | State::Ended | State::Failed => {}
            }
        }
        self.advance(now, id, out);
    }

    /// Abandons work: nothing waits for it, and its result is released when it ends.
    fn abandon(
        &mut self,
        uuid: Uuid,
        step: Step,
        work: WorkId,
        ticket: Ticket,
        out: &mut Vec<Action>,
    ) {
        let info = step.info();
        // What a start of the same VM would mistake for its own.
        let leaves = info.device.filter(|_| info.undo.is_some()).map(|device| (uuid, device));
        self.abandoned.extend(leaves);
        let (purpose, _) = self.works.get_mut(&work).expect("it is under way");
        *purpose = Purpose::Abandoned { ticket, leaves };
        out.push(Action::Cancel { work });
    }

    /// Handles the end of abandoned work.
    pub(super) fn abandoned_ended(
        &mut self,
        now: Instant,
        ticket: Ticket,
        leaves: Option<(Uuid, DeviceRef)>,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        self.scheduler.done(ticket);
        match result.ok().and_then(Output::discard) {
            Some(work) => {
                self.give_out(Purpose::Discard { leaves }, work, out);
            }
            None => self.forget_abandoned(leaves),
        }
        self.dispatch(now, out);
    }

    /// Nothing is left of abandoned work.
    pub(super) fn forget_abandoned(&mut self, leaves: Option<(Uuid, DeviceRef)>) {
        if let Some(leaves) = leaves {
            self.abandoned.remove(&leaves);
        }
    }

    /// A device of this VM that abandoned work still uses.
    pub(super) fn abandoned_device(&self, uuid: Uuid) -> Option<DeviceRef> {
        let of = |kind, devid| (uuid, DeviceRef { kind, devid });
        let range = of(DeviceKind::Vbd, 0)..=of(DeviceKind::NinePfs, u32::MAX);
        self.abandoned.range(range).next().map(|(_, device)| *device)
    }

    /// Begins every step that is ready; ends the operation when none is left.
    pub(super) fn advance(&mut self, now: Instant, id: OperationId, out: &mut Vec<Action>) {
        let Some(operation) = self.operations.get(&id) else { return };
        let startable: Vec<usize> =
            (0..operation.states.len()).filter(|&index| operation.may_begin(index)).collect();
        for index in &startable {
            self.begin_step(now, id, *index, out);
        }
        self.dispatch(now, out);
        self.note_why(id, &startable);
        if self.operations.get(&id).is_some_and(Operation::is_over) {
            self.finish(now, id, out);
        }
    }

    /// Records which limit delays the steps that could not begin at once.
    fn note_why(&mut self, id: OperationId, startable: &[usize]) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        for index in startable {
            if let State::Queued { ticket, why, .. } = &mut operation.states[*index] {
                *why = self.scheduler.why(*ticket);
            }
        }
    }

    /// A wait begins at once, work when the scheduler grants a permit.
    fn begin_step(&mut self, now: Instant, id: OperationId, index: usize, out: &mut Vec<Action>) {
        let operation = self.operations.get_mut(&id).expect("a step of a known operation");
        let step = operation.plan.steps[index].step;
        let permit = match step {
            Step::Await(wait) => return self.begin_wait(now, id, index, wait, out),
            step => step.info().permit.expect("work needs a permit"),
        };
        let ask = ask_for(operation.uuid, &operation.config, permit, operation.priority());
        let ticket = self.scheduler.put(ask, Item::Step(id, index));
        operation.states[index] = State::Queued { since: now, ticket, why: None };
    }

    /// Dispatches all work that is granted a permit.
    pub(super) fn dispatch(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some((ticket, item)) = self.scheduler.grant() {
            let (id, index) = match item {
                Item::Step(id, index) => (id, index),
                Item::Own(client) => {
                    out.push(Action::Reply { client, reply: Reply::Permit(ticket) });
                    continue;
                }
                Item::Read(sr) => {
                    self.begin_reading(sr, ticket, out);
                    continue;
                }
                Item::Tune(client) => {
                    self.begin_tune(client, ticket, out);
                    continue;
                }
            };
            let operation = self.operations.get_mut(&id).expect("its steps are queued");
            let State::Queued { since, why, .. } = &mut operation.states[index] else {
                unreachable!("the scheduler lets go of what is queued");
            };
            let (ready, why) = (*since, why.take());
            let work = self.prepare(id, index);
            let work = self.give_out(Purpose::Step { operation: id, index }, work, out);
            let operation = self.operations.get_mut(&id).expect("as before");
            operation.states[index] =
                State::Underway { ready, started: now, work, ticket, why, far: None };
        }
    }

    /// Prepares the work of a step from the VM's facts.
    fn prepare(&mut self, id: OperationId, index: usize) -> Work {
        let generation = self.next_generation();
        let operation = &self.operations[&id];
        let step = operation.plan.steps[index].step;
        let own = match step {
            Step::Device(
                DeviceStep::AttachDisk(_) | DeviceStep::AttachEarly(_) | DeviceStep::CheckDisk(_),
            ) => self.vms.domains().clone(),
            _ => DomainSet::default(),
        };
        let named = match step {
            Step::Device(DeviceStep::FindBackend(device)) => {
                self.driver_domain(&operation.config, device)
            }
            _ => None,
        };
        let plugged = match &operation.outcome {
            Outcome::Plugged { device, .. } => Some(device),
            Outcome::Created { .. }
            | Outcome::Gone
            | Outcome::Rebooted
            | Outcome::Replaced { .. }
            | Outcome::Suspended { .. }
            | Outcome::Saved { .. }
            | Outcome::Dumped { .. }
            | Outcome::Reverted { .. }
            | Outcome::Sent { .. }
            | Outcome::TakenBack { .. }
            | Outcome::Moved { .. }
            | Outcome::Received { .. }
            | Outcome::NotReceived { .. }
            | Outcome::Failed { .. }
            | Outcome::PlugFailed { .. }
            | Outcome::Unplugged { .. } => None,
        };
        let save = match &operation.outcome {
            Outcome::Saved { save, .. } => Some(save),
            _ => None,
        };
        let dump = match &operation.outcome {
            Outcome::Dumped { to, .. } => Some(&**to),
            _ => None,
        };
        let moving = match &operation.outcome {
            Outcome::Sent { to, .. } => Some(&**to),
            _ => None,
        };
        let defined = self.definitions.get(&operation.uuid).map(|it| it.autostart);
        let config = Arc::clone(&operation.config);
        let users = &mut self.users;
        self.vms.change(operation.uuid, |vm| {
            step.prepare(Preparation {
                vm,
                config,
                plugged,
                save,
                dump,
                moving,
                defined,
                own,
                named,
                generation,
                users,
            })
        })
    }

    /// Completes a step with the result of its work.
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
        let State::Underway { ticket, .. } = operation.states[index] else {
            unreachable!("only work under way is reported");
        };
        self.scheduler.done(ticket);
        let is_reboot = matches!(operation.outcome, Outcome::Rebooted);
        let goes_on = match step.info().if_failed {
            IfFailed::Halt | IfFailed::Fail => false,
            IfFailed::FailUnlessReboot => is_reboot,
            IfFailed::FailUnlessItGoesOn => {
                let is_move =
                    matches!(operation.outcome, Outcome::Sent { .. } | Outcome::TakenBack { .. });
                is_reboot || is_move
            }
        };
        let state = match result {
            Ok(output) => {
                let unseen = &mut operation.unseen;
                self.vms.change(operation.uuid, |vm| {
                    step.complete(output, Completing { vm, unseen, out });
                });
                State::Ended
            }
            Err(Failure(message)) if goes_on => {
                out.push(Action::Note { message });
                State::Failed
            }
            Err(Failure(message)) => {
                operation.failure.get_or_insert(message);
                State::Failed
            }
        };
        let (uuid, config) = (operation.uuid, Arc::clone(&operation.config));
        self.note_storage(step, &config);
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let is_destroyed = step == TeardownStep::DestroyDomain.into() && state == State::Ended;
        if is_destroyed && is_reboot && !vm.condemned {
            let (reason, domid) = (vm.stopped, vm.facts.domid().unwrap_or_default());
            for client in vm.waiters.drain(..) {
                out.push(Action::Reply { client, reply: Reply::Gone { domid, reason } });
            }
        }
        self.end_step(now, id, index, state, cost.queued_ns, out);
        self.advance(now, id, out);
        self.dispatch(now, out);
    }

    /// Ends a step. `queued_ns` of its time were spent in the worker queue.
    pub(super) fn end_step(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        state: State,
        queued_ns: u64,
        out: &mut Vec<Action>,
    ) {
        let operation = self.operations.get_mut(&id).expect("a step of a known operation");
        let failed = state == State::Failed;
        let before = std::mem::replace(&mut operation.states[index], state);
        let (ready, started, waited_for) = match before {
            State::Underway { ready, started, why, .. } if queued_ns > 0 => {
                let began = Instant(started.0.saturating_add(queued_ns).min(now.0));
                (ready, began, Some(why.map_or("a worker".to_owned(), |why| why + ", a worker")))
            }
            State::Underway { ready, started, why, .. } => (ready, started, why),
            State::Watching { started, deadline, paths } => {
                self.deadlines.remove(&(deadline, id, index));
                for path in paths {
                    self.waits.remove(&path);
                    out.push(Action::Unwatch { path });
                }
                (started, started, None)
            }
            other => unreachable!("only a step under way can end, not one that is {other:?}"),
        };
        let step = operation.plan.steps[index].step;
        let ended = Some(now);
        operation.times.push(StepTime { step, ready, started, ended, waited_for, failed });
        self.tell_progress(id, Some(step), out);
    }

    /// Handles the end of an operation.
    fn finish(&mut self, now: Instant, id: OperationId, out: &mut Vec<Action>) {
        let operation = self.operations.remove(&id).expect("finished once");
        let uuid = operation.uuid;
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        if let Some(transfer) = vm.facts.came.take() {
            self.moves.came(transfer, uuid);
            self.define_come(now, transfer, out);
        }
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let mut trace = Trace::of(id, &vm.config.name, &operation);
        trace.ended = Some(now);
        self.live.forgotten.extend(self.past.keep(trace));
        if let Some(device) = operation.outcome.device() {
            vm.plugs.remove(&device);
            self.live.devices.mark((uuid, device));
            return self.plug_ended(now, uuid, operation.outcome, operation.failure, out);
        }
        vm.operation = None;
        if operation.is_incomplete() {
            let message = operation.failure.unwrap_or_default();
            return self.keep(now, uuid, &operation.outcome, &message, out);
        }
        match operation.outcome {
            Outcome::Created { client } => match operation.failure {
                Some(message) => {
                    self.tear_down(now, uuid, Outcome::Failed { client, message }, out);
                }
                None => self.created(now, client, operation, out),
            },
            Outcome::Gone => self.forget(now, uuid, None, operation.failure, out),
            Outcome::Suspended { client } => {
                self.suspend_ended(now, uuid, client, operation.failure, out);
            }
            Outcome::Saved { client, save } => {
                self.save_ended(now, uuid, client, &save, operation.failure, out);
            }
            Outcome::Dumped { client, to, then } => {
                self.dump_ended(now, uuid, (client, &to), then, operation.failure, out);
            }
            outcome @ (Outcome::Sent { .. }
            | Outcome::TakenBack { .. }
            | Outcome::Moved { .. }
            | Outcome::Received { .. }
            | Outcome::NotReceived { .. }) => {
                self.move_ended(now, uuid, outcome, operation.failure, out);
            }
            Outcome::Reverted { .. } | Outcome::Replaced { .. } => {
                self.taken_down_to_go_on(now, operation, out);
            }
            Outcome::Failed { client, message } => {
                self.forget(now, uuid, Some((client, message)), operation.failure, out);
            }
            Outcome::Rebooted => match operation.failure {
                Some(_) if vm.condemned => self.tear_down(now, uuid, Outcome::Gone, out),
                Some(message) => {
                    let message = format!("{}: could not start again: {message}", vm.config.name);
                    out.push(Action::Note { message: message.clone() });
                    self.tear_down(now, uuid, Outcome::Failed { client: None, message }, out);
                }
                None => {
                    if std::mem::take(&mut vm.poll_again) {
                        self.poll_all(out);
                    }
                    self.note_started(now, uuid, out);
                }
            },
            Outcome::Plugged { .. } | Outcome::PlugFailed { .. } | Outcome::Unplugged { .. } => {
                unreachable!("the end of a plug is told elsewhere")
            }
        }
    }

    /// Nothing is left of a VM that is made anew now.
    fn taken_down_to_go_on(&mut self, now: Instant, operation: Operation, out: &mut Vec<Action>) {
        match operation.outcome.clone() {
            Outcome::Reverted { client, revert } => {
                self.taken_down_to_revert(now, client, &revert, operation, out);
            }
            Outcome::Replaced { config } => {
                self.taken_down_to_replace(now, config, operation, out);
            }
            other => unreachable!("{other:?} is its end"),
        }
    }

    /// A VM runs.
    fn created(
        &mut self,
        now: Instant,
        client: Option<ClientId>,
        operation: Operation,
        out: &mut Vec<Action>,
    ) {
        let uuid = operation.uuid;
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");

        vm.facts.made_disks.clear();
        let poll_again = std::mem::take(&mut vm.poll_again);
        // One that came and stays paused, after a restart of the daemon.
        if let Some(transfer) = vm.facts.transfer.take() {
            self.moves.came(transfer, uuid);
            self.define_come(now, transfer, out);
        }
        let vm = &self.vms[&uuid];
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
            let reply = Reply::Created(Box::new(created));
            out.push(Action::Reply { client, reply });
        }
        if poll_again && let Some(domid) = vm.facts.domid() {
            self.poll(domid, out);
        }
        self.note_started(now, uuid, out);
    }

    /// Keeps a VM that could not be taken down, so that a further destroy tries again.
    fn keep(
        &mut self,
        now: Instant,
        uuid: Uuid,
        outcome: &Outcome,
        message: &str,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("kept because it is known");
        let told = format!("{}: {message}; `xy destroy` tries again", vm.config.name);
        let mut clients = std::mem::take(&mut vm.waiters);
        match outcome {
            // It has moved, whatever is left of it here.
            Outcome::Moved { client, leaving, .. } => {
                self.moves.is_left(uuid, leaving);
                out.extend(client.map(|client| Action::Reply { client, reply: Reply::Ok }));
                out.push(Action::Note { message: told.clone() });
            }
            outcome => clients.extend(outcome.client()),
        }
        // Nothing is said on it: what is kept is no answer yet.
        out.extend(outcome.channel().map(|channel| Action::CloseChannel { channel }));
        for client in clients {
            out.push(Action::Reply { client, reply: Reply::Failed(told.clone()) });
        }
        let name = vm.config.name.clone();
        self.changed(now, uuid, VmState::Stuck, message);
        self.start_ended(now, uuid, &name, Some(message), out);
    }

    /// Removes a VM that has been taken down and answers all waiting clients.
    pub(super) fn forget(
        &mut self,
        now: Instant,
        uuid: Uuid,
        failed: Option<(Option<ClientId>, String)>,
        trouble: Option<String>,
        out: &mut Vec<Action>,
    ) {
        self.taken_down(uuid, out);
        let vm = self.vms.remove(&uuid).expect("forgotten once");
        let domid = vm.facts.domid().unwrap_or_default();
        let why = failed.as_ref().map(|(_, message)| message.clone());
        if let (Some(trouble), true, None) = (&trouble, vm.waiters.is_empty(), &failed) {
            let message = format!("{} was taken down, but: {trouble}", vm.config.name);
            out.push(Action::Note { message });
        }
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
        self.note_down(now, uuid, why.as_deref().unwrap_or_default());
        self.start_ended(now, uuid, &vm.config.name, why.as_deref(), out);
    }
}
