//! Requests of clients, and answers to read-only ones.

use xen::{DomId, DomainKind, DomainRef, Uuid};

use super::checks::WantedVm;
use super::events::VmState;
use super::operation::Outcome;
use super::shutdown::Asking;
use super::{
    Action, ClientId, ConsoleKind, Device, Facts, Foreign, Instant, MediumChange, PlanOf, Purpose,
    Query, Reply, Request, Toolstack, Vm,
};
use crate::config::VmConfig;
use crate::layout::{self, DeviceRef};
use crate::plan::{Start, Unplug, plan_create};
use crate::scheduler::Limits;
use crate::work::{CreateWork, Failure, IdentityCheck, Output, QueryWork, TeardownWork, Work};

pub(super) fn fail(client: ClientId, message: String, out: &mut Vec<Action>) {
    out.push(Action::Reply { client, reply: Reply::Failed(message) });
}

impl Toolstack {
    /// Requests about what has happened, and of those who wait for what will.
    fn handle_followers(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::Events { since, waits } => self.read_events(client, since, waits, out),
            Request::Objects { cursor, classes, waits } => {
                self.read_objects((now, client), (cursor, classes), waits, out);
            }
            Request::Wait { target, state } => self.wait_for_state(client, target, state, out),
            Request::Operations => self.list_operations(now, client, out),
            Request::Trace { target } => self.trace(now, client, &target, out),
            other => unreachable!("{other:?} is about no change"),
        }
    }

    /// Requests about defined VMs.
    fn handle_defined(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::Define { config, fresh_uuid, autostart } => {
                self.define(now, client, *config, fresh_uuid, autostart, out);
            }
            Request::Redefine { config, before } => {
                self.redefine(now, client, *config, &before, out);
            }
            Request::Undefine { target } => self.undefine(client, &target, out),
            Request::Start { target, start } => self.start_vm(now, client, &target, start, out),
            Request::StartAll => self.start_all(now, client, out),
            other => unreachable!("{other:?} is about no defined VM"),
        }
    }

    /// Of files that hold a VM.
    fn handle_files(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::Save { target, to } => self.save(now, client, &target, to, out),
            Request::Dump { target, to } => self.dump(now, client, &target, to, out),
            Request::CancelSave { target, id } => self.cancel_save(now, client, &target, id, out),
            Request::ReadSaved { path } => self.read_saved(client, path, out),
            Request::Restore { file, config, start } => {
                self.restore(now, client, *file, *config, start, out);
            }
            other => unreachable!("{other:?} is about no file"),
        }
    }

    pub(super) fn handle_request(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::Create { config, fresh_uuid, start } => {
                self.create(now, client, *config, fresh_uuid, start, out);
            }
            Request::Check { config, fresh_uuid, is_whole } => {
                self.check(client, *config, fresh_uuid, is_whole, out);
            }
            request @ (Request::List
            | Request::Find { .. }
            | Request::Vms
            | Request::HostInfo
            | Request::Console { .. }
            | Request::Screen { .. }
            | Request::SpeakToModel { .. }
            | Request::Devices { .. }
            | Request::Vcpus { .. }
            | Request::StartTimes { .. }
            | Request::Sched(_)
            | Request::Resolve { .. }) => self.handle_questions(client, request, out),
            request @ (Request::Events { .. }
            | Request::Objects { .. }
            | Request::Wait { .. }
            | Request::Operations
            | Request::Trace { .. }) => self.handle_followers(now, client, request, out),
            request @ (Request::Define { .. }
            | Request::Redefine { .. }
            | Request::Undefine { .. }
            | Request::Start { .. }
            | Request::StartAll) => self.handle_defined(now, client, request, out),
            Request::Adopt { target, base } => self.adopt_foreign(client, &target, base, out),
            Request::Disown { target } => self.disown(client, &target, out),
            Request::Host(ask) => self.query(client, Query::Host, QueryWork::Host(ask), out),
            Request::Destroy { target } => self.destroy_target(now, client, &target, out),
            Request::Shutdown { target, how, reply } => {
                self.shut_down(now, client, &target, Asking::plainly(how, reply), out);
            }
            Request::ShutdownEach { targets, how, fallback, reply } => {
                self.shut_down_each(now, client, &targets, Asking { how, fallback, reply }, out);
            }
            Request::Pause { target } => self.pause(client, &target, out),
            Request::Unpause { target } => self.unpause(client, &target, out),
            Request::Tune { target, tuning } => self.tune(now, client, &target, tuning, out),
            Request::Suspend { target } => self.suspend(now, client, &target, out),
            request @ (Request::Save { .. }
            | Request::Dump { .. }
            | Request::CancelSave { .. }
            | Request::ReadSaved { .. }
            | Request::Restore { .. }) => self.handle_files(now, client, request, out),
            request @ (Request::HostShutdown
            | Request::Checkpoint { .. }
            | Request::Checkpoints
            | Request::DestroyCheckpoint { .. }
            | Request::Revert { .. }
            | Request::Clone { .. }) => self.handle_checkpoints(now, client, request, out),
            request @ (Request::Migrate(_)
            | Request::Receive(_)
            | Request::CancelMove { .. }
            | Request::Settle { .. }) => self.handle_moves(now, client, request, out),
            Request::Resume { target } => self.resume(client, &target, out),
            request @ (Request::Plug { .. }
            | Request::ChangeMedium { .. }
            | Request::Unplug { .. }
            | Request::UnplugPci { .. }) => self.handle_devices(now, client, request, out),
            Request::ConfigText { target } => self.reply_config(client, &target, out),
            Request::Explain { target } => self.reply_explained(now, client, &target, out),
            Request::Plan { target, what } => self.reply_plan(client, &target, what, out),
            Request::Permit(request) => self.permit(now, client, request, out),
            Request::Limits { wanted } => self.limits(now, client, wanted, out),
        }
    }

    /// Requests that change the devices of a running domain.
    fn handle_devices(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::Plug { target, device } => {
                self.plug_target(now, client, &target, *device, out);
            }
            Request::ChangeMedium { target, change } => {
                self.change_medium_of(now, client, &target, *change, out);
            }
            Request::Unplug { target, device, how } => {
                self.unplug_target(now, client, &target, (device, how), out);
            }
            Request::UnplugPci { target, entry, how } => {
                self.with_domain(client, &target, out, |this, uuid, _, out| {
                    this.unplug_pci(now, client, uuid, (&entry, how), out);
                });
            }
            other => unreachable!("{other:?} is handled elsewhere"),
        }
    }

    /// Requests about what there is.
    fn handle_questions(&mut self, client: ClientId, request: Request, out: &mut Vec<Action>) {
        match request {
            Request::List => self.list(client, out),
            Request::Find { wanted } => self.find(client, wanted, out),
            Request::Vms => self.list_vms(client, out),
            Request::HostInfo => self.query(client, Query::HostInfo, QueryWork::HostInfo, out),
            Request::Console { target, kind, number } => {
                self.read_console(client, &target, kind, number, out);
            }
            Request::Screen { target } => self.read_screen(client, &target, out),
            Request::SpeakToModel { target, command } => {
                self.speak_to_model(client, &target, command, out);
            }
            Request::Devices { target } => self.read_devices(client, &target, out),
            Request::Vcpus { of } => self.read_vcpus(client, of, out),
            Request::StartTimes { of } => self.read_start_times(client, of, out),
            Request::Sched(asked) => {
                self.query(client, Query::Sched, QueryWork::Sched(asked), out);
            }
            Request::Resolve { target } => self.reply_resolved(client, &target, out),
            other => unreachable!("{other:?} is handled elsewhere"),
        }
    }

    /// Requests about moves to and from other hosts.
    fn handle_moves(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::Migrate(to) => self.migrate(now, client, *to, out),
            Request::Receive(receive) => self.receive(client, receive, out),
            Request::CancelMove { transfer } => self.cancel_move(now, client, transfer, out),
            Request::Settle { target, verdict } => {
                self.settle_by_hand(now, client, &target, verdict, out);
            }
            other => unreachable!("{other:?} is handled elsewhere"),
        }
    }

    /// Requests about what VMs were at some moment.
    fn handle_checkpoints(
        &mut self,
        now: Instant,
        client: ClientId,
        request: Request,
        out: &mut Vec<Action>,
    ) {
        match request {
            Request::HostShutdown => self.shut_down_with_host(now, client, out),
            Request::Checkpoint { target, name, id } => {
                self.checkpoint(now, client, &target, name, id, out);
            }
            Request::Checkpoints => self.list_checkpoints(client, out),
            Request::DestroyCheckpoint { uuid, name } => {
                self.destroy_checkpoint(client, uuid, name, out);
            }
            Request::Revert { file, config, start } => {
                self.revert(client, *file, *config, start, out);
            }
            Request::Clone { file, copies } => self.clone_saved(now, client, *file, copies, out),
            other => unreachable!("{other:?} is handled elsewhere"),
        }
    }

    fn destroy_target(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        out: &mut Vec<Action>,
    ) {
        match (self.resolve(target), self.unread(target)) {
            (Ok(uuid), _) => self.destroy(now, client, uuid, out),
            (Err(_), Some(uuid)) => self.destroy_unread(now, client, uuid, out),
            (Err(message), None) => fail(client, message, out),
        }
    }

    fn plug_target(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        device: Device,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, _, out| {
            this.plug(now, client, uuid, device, out);
        });
    }

    fn change_medium_of(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        change: MediumChange,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, _, out| {
            this.change_medium(now, client, uuid, change, out);
        });
    }

    fn unplug_target(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        (device, how): (DeviceRef, Unplug),
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, _, out| {
            this.unplug(now, client, uuid, device, how, out);
        });
    }

    fn reply_explained(&self, now: Instant, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.reply_text(client, target, out, |this, uuid| this.explain(now, uuid));
    }

    fn reply_plan(&self, client: ClientId, target: &str, what: PlanOf, out: &mut Vec<Action>) {
        self.reply_text(client, target, out, |this, uuid| this.plan_of(uuid, what));
    }

    fn reply_config(&self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        let defined = self.defined(target).and_then(|uuid| self.definitions.get(&uuid));
        match defined {
            Some(definition) => {
                let reply = Reply::Text(definition.config.to_cfg_text());
                out.push(Action::Reply { client, reply });
            }
            None => self
                .reply_text(client, target, out, |this, uuid| this.vms[&uuid].config.to_cfg_text()),
        }
    }

    /// Answers with a text about a VM of ours.
    fn reply_text(
        &self,
        client: ClientId,
        target: &str,
        out: &mut Vec<Action>,
        text: impl FnOnce(&Self, Uuid) -> String,
    ) {
        let reply = self.resolve(target).map(|uuid| text(self, uuid));
        let reply = reply.map_or_else(Reply::Failed, Reply::Text);
        out.push(Action::Reply { client, reply });
    }

    fn pause(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            let state = VmState::Paused;
            let query = Query::Becomes { domid: domain.domid, uuid, state };
            this.query(client, query, TeardownWork::Pause { domain }, out);
        });
    }

    fn unpause(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            if let Some(message) = this.is_not_complete(uuid) {
                return fail(client, message, out);
            }
            let state = VmState::Running;
            let query = Query::Becomes { domid: domain.domid, uuid, state };
            let work = CreateWork::Unpause { domain, check: IdentityCheck::Needed };
            this.query(client, query, work, out);
        });
    }

    fn read_console(
        &mut self,
        client: ClientId,
        target: &str,
        kind: Option<ConsoleKind>,
        number: u32,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            let kind = kind.unwrap_or(match this.vms[&uuid].config.kind {
                DomainKind::Pv | DomainKind::Pvh => ConsoleKind::Pv,
                DomainKind::Hvm => ConsoleKind::Serial,
            });
            let query = Query::Console { domid: domain.domid };
            let work = QueryWork::ReadConsole { domain, uuid, kind, number };
            this.query(client, query, work, out);
        });
    }

    fn read_screen(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            this.query(client, Query::Text, QueryWork::ReadScreen { domain, uuid }, out);
        });
    }

    fn speak_to_model(
        &mut self,
        client: ClientId,
        target: &str,
        command: String,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            let vm = &this.vms[&uuid];
            match vm.facts.incarnation.model {
                Some(model) => {
                    let work = QueryWork::SpeakToModel { domain, model, command };
                    this.query(client, Query::Text, work, out);
                }
                None => fail(client, format!("{}: has no device model", vm.config.name), out),
            }
        });
    }

    fn read_vcpus(&mut self, client: ClientId, domains: Vec<(DomId, Uuid)>, out: &mut Vec<Action>) {
        self.query(client, Query::Vcpus, QueryWork::ReadVcpus { domains }, out);
    }

    fn read_start_times(
        &mut self,
        client: ClientId,
        domains: Vec<(DomId, Uuid)>,
        out: &mut Vec<Action>,
    ) {
        self.query(client, Query::StartTimes, QueryWork::ReadStartTimes { domains }, out);
    }

    fn read_devices(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            let vm = &this.vms[&uuid];
            let devices = layout::all_devices(&vm.config);
            let devices = vm.facts.backends.all_ends(devices, domain.domid);
            let work = QueryWork::ReadDevices { domain, uuid, devices };
            this.query(client, Query::Devices { domid: domain.domid }, work, out);
        });
    }

    /// Answers with the limits, after applying the given changes.
    fn limits(
        &mut self,
        now: Instant,
        client: ClientId,
        wanted: Option<Limits>,
        out: &mut Vec<Action>,
    ) {
        if let Some(wanted) = wanted {
            self.scheduler.set_limits(wanted);
            self.dispatch(now, out);
        }
        let (waiting, held) = self.scheduler.counts();
        let limits = self.scheduler.limits().clone();
        let reply = Reply::Limits { limits, waiting, held };
        out.push(Action::Reply { client, reply });
    }

    pub(super) fn query(
        &mut self,
        client: ClientId,
        query: Query,
        work: impl Into<Work>,
        out: &mut Vec<Action>,
    ) {
        self.give_out(Purpose::Query { client, query }, work, out);
    }

    /// Runs `then` for a VM of ours that has a domain; otherwise answers with the reason.
    pub(super) fn with_domain(
        &mut self,
        client: ClientId,
        target: &str,
        out: &mut Vec<Action>,
        then: impl FnOnce(&mut Self, Uuid, DomainRef, &mut Vec<Action>),
    ) {
        match self.resolve_domain(target) {
            Ok((uuid, domain)) => then(self, uuid, domain, out),
            Err(message) => fail(client, message, out),
        }
    }

    /// Why only its operation may let a VM's domain run: it is being made, or another host's until that says so.
    fn is_not_complete(&self, uuid: Uuid) -> Option<String> {
        if let Some(message) = self.doubt_about(uuid) {
            return Some(message);
        }
        let vm = &self.vms[&uuid];
        let during = match self.operations[&vm.operation?].outcome {
            Outcome::Suspended { .. }
            | Outcome::Saved { .. }
            | Outcome::Plugged { .. }
            | Outcome::PlugFailed { .. }
            | Outcome::Unplugged { .. } => return None,
            Outcome::Created { .. } | Outcome::Rebooted => "started",
            Outcome::Dumped { .. } => "dumped",
            Outcome::Sent { .. } | Outcome::TakenBack { .. } => "migrated",
            Outcome::Reverted { .. } => "reverted",
            Outcome::Received { .. } => "received",
            Outcome::Gone
            | Outcome::Replaced { .. }
            | Outcome::Moved { .. }
            | Outcome::NotReceived { .. }
            | Outcome::Failed { .. } => "taken down",
        };
        Some(format!("{}: is being {during}; try again when that has ended", vm.config.name))
    }

    /// A VM of ours and the domain that it has now.
    pub(super) fn resolve_domain(&self, target: &str) -> Result<(Uuid, DomainRef), String> {
        let uuid = self.resolve(target)?;
        let facts = &self.vms[&uuid].facts;
        if facts.incarnation.is_released {
            return Err(format!("{target}: is being taken down"));
        }
        let domain = facts.incarnation.domain.map(|domain| (uuid, domain));
        domain.ok_or_else(|| format!("{target}: has no domain yet; try again when it has started"))
    }

    /// Our VM with this name, domid or UUID.
    pub(super) fn resolve(&self, target: &str) -> Result<Uuid, String> {
        if let Some(vm) = self.vms.meant(target) {
            return Ok(vm.uuid);
        }
        if let Some(unread) = self.unread(target) {
            return Err(self.unread[&unread].refusal());
        }
        let is_dom0 = target.parse() == Ok(DomId::DOM0.0);
        if is_dom0 || self.foreign.meant(target).is_some() {
            Err(format!("{target}: not managed by Xylem; use the toolstack that made this domain"))
        } else if self.defined(target).is_some() {
            Err(format!("{target}: is down; `xy start {target}` starts it"))
        } else {
            Err(format!("{target}: no such domain; `xy list` shows them all"))
        }
    }

    /// As [`Toolstack::resolve`], with the domains of other toolstacks.
    pub(super) fn resolve_any(&self, target: &str) -> Result<(DomId, String, Uuid), String> {
        if let Ok(uuid) = self.resolve(target) {
            let vm = &self.vms[&uuid];
            let name = vm.config.name.clone();
            return match vm.facts.domid() {
                Some(domid) => Ok((domid, name, uuid)),
                None => Err(format!("{name}: has no domain yet; try again when it has started")),
            };
        }
        match self.foreign.meant(target) {
            Some((domid, Foreign { name: Some(name), handle })) => {
                Ok((domid, name.clone(), *handle))
            }
            _ => Err(format!("{target}: no such domain; `xy list` shows them all")),
        }
    }

    /// Answers what a name, domain number or UUID means.
    fn reply_resolved(&self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        let ours = self.resolve(target).ok().map(|uuid| &self.vms[&uuid]);
        let reply = match ours.filter(|vm| vm.facts.incarnation.domain.is_none()) {
            Some(vm) => Reply::Starting { name: vm.config.name.clone(), uuid: vm.uuid },
            None => match self.resolve_any(target) {
                Ok((domid, name, uuid)) => Reply::Resolved { domid, name, uuid },
                Err(message) => Reply::Failed(message),
            },
        };
        out.push(Action::Reply { client, reply });
    }

    pub(super) fn create(
        &mut self,
        now: Instant,
        client: ClientId,
        config: VmConfig,
        fresh_uuid: Uuid,
        start: Start,
        out: &mut Vec<Action>,
    ) {
        let uuid = config.uuid.unwrap_or(fresh_uuid);
        if let Some(domid) = self.namesake(&config, uuid) {
            let wanted = Box::new(WantedVm::New { config: Box::new(config), fresh_uuid, start });
            let purpose = Purpose::Namesake { client, domid, wanted };
            self.give_out(purpose, QueryWork::Find { domid, known: None }, out);
            return;
        }
        if let Some(message) = self.refusals(&config, uuid).into_iter().next() {
            return fail(client, message, out);
        }
        if let Some(message) = self.abandoned_start(uuid, &config.name) {
            return fail(client, message, out);
        }
        let plan = plan_create(&config, start);
        self.vms.insert(uuid, Vm::new(config, uuid, Facts::default()));
        self.begin(now, uuid, plan, Outcome::Created { client: Some(client) }, out);
    }

    /// Why a VM that is not running cannot be started: work of a cancelled start has not ended.
    pub(super) fn abandoned_start(&self, uuid: Uuid, name: &str) -> Option<String> {
        let device = self.abandoned_device(uuid)?.spoken();
        Some(format!(
            "{name}: {device} is still being attached for a start that was cancelled; \
             try again when that has ended"
        ))
    }

    /// A destroy overtakes: a create in progress begins no further step and is taken down.
    pub(super) fn destroy(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        out: &mut Vec<Action>,
    ) {
        if let Some(message) = self.doubt_about(uuid) {
            return fail(client, message, out);
        }
        let vm = self.vms.get_mut(&uuid).expect("resolved");
        vm.waiters.push(client);
        vm.condemned = true;
        match vm.operation {
            None => self.take_over(now, uuid, Outcome::Gone, out),
            Some(operation) => {
                let during = match self.operations[&operation].outcome {
                    Outcome::Suspended { .. } => "suspended",
                    Outcome::Saved { .. } => "saved",
                    Outcome::Dumped { .. } => "dumped",
                    Outcome::Sent { .. } | Outcome::TakenBack { .. } => "migrated",
                    Outcome::Reverted { .. } => "reverted",
                    Outcome::Received { .. } => "received",
                    _ => "created",
                };
                self.cancel(now, operation, &format!("destroyed while it was being {during}"), out);
            }
        }
    }

    /// Answers a client with the result of its read.
    pub(super) fn answer(
        &mut self,
        client: ClientId,
        query: Query,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        if matches!(query, Query::Checkpoints) && !matches!(result, Ok(Output::Checkpoints(_))) {
            // One was destroyed, with its snapshots.
            self.all_srs_may_differ();
        }
        let reply = match (query, result) {
            (Query::Check { mut faults }, result) => {
                match result {
                    Ok(Output::Checked(more)) => faults.extend(more.into_iter().map(|it| it.0)),
                    Ok(output) => unreachable!("a check answered with {output:?}"),
                    Err(Failure(message)) => faults.push(message),
                }
                Reply::Checked { faults }
            }
            (Query::Shutdown { uuid, domid, asking }, result) => {
                return self.shutdown_requested(client, uuid, domid, asking, result, out);
            }
            (_, Err(Failure(message))) => Reply::Failed(message),
            (Query::Find { wanted, places }, Ok(Output::Looked { info, name })) => {
                return self.found(client, wanted, places, info.map(|info| *info), name, out);
            }
            (Query::Becomes { domid, .. } | Query::Tuned { domid }, Ok(_)) => Reply::Done { domid },
            (Query::Console { domid }, Ok(Output::Console(tty))) => Reply::Console { domid, tty },
            (Query::Devices { domid }, Ok(Output::Devices(devices))) => {
                Reply::Devices { domid, devices }
            }
            (Query::SavedFile, Ok(Output::SavedFile(file))) => Reply::SavedFile(file),
            (Query::Checkpoints, Ok(output)) => Self::checkpoints_answer(output),
            (Query::HostInfo, Ok(Output::HostInfo(info))) => Reply::HostInfo(info),
            (Query::Host, Ok(Output::Host(told))) => Reply::Host(told),
            (Query::Text, Ok(Output::Text(text))) => Reply::Text(text),
            (Query::Vcpus, Ok(Output::Vcpus(readings))) => Reply::Vcpus(readings),
            (Query::Sched, Ok(Output::Sched(pools))) => Reply::Sched(pools),
            (Query::StartTimes, Ok(Output::StartTimes(times))) => Reply::StartTimes(times),
            (query, Ok(output)) => unreachable!("{query:?} answered with {output:?}"),
        };
        out.push(Action::Reply { client, reply });
    }
}
