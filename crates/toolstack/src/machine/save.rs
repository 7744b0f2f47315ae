//! Saves and restores of VMs.
//!
//! A save is one step. Its record says what it is about until the VM is as it is to be, so that after
//! a kill the next daemon settles it: a VM whose file is whole is dealt with as asked, any other goes
//! on. See `perform/save.rs`.

use std::sync::Arc;

use xen::{DomainKind, Uuid};

use super::checks::{Existing, WantedVm};
use super::events::VmState;
use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Facts, Instant, OperationId, Purpose, Query, Reply, Toolstack, Vm};
use crate::config::{Start, VmConfig};
use crate::plan::{plan_restore, plan_save, plan_settle};
use crate::saved::{AfterSave, HOST_FOLDER, Save, SaveEnd, SaveTo, SavedFile, Saving};
use crate::work::{Images, QueryWork, SaveWork};

impl Toolstack {
    /// Writes a guest's state to a file.
    pub(super) fn save(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        to: Box<SaveTo>,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, _, out| {
            if let Some(message) = this.busy_with_operation(uuid) {
                return fail(client, message, out);
            }
            let vm = this.vms.get_mut(&uuid).expect("resolved");
            if let Some(message) = stays(vm) {
                return fail(client, message, out);
            }
            if let Some(Err(message)) = to.config.as_ref().map(|it| suits(vm, it)) {
                return fail(client, message, out);
            }
            vm.suspends_late = false;
            vm.facts.incarnation.save_end = None;
            let outcome = Outcome::Saved { client: Some(client), save: Save::New(to) };
            this.begin(now, uuid, plan_save(), outcome, out);
        });
    }

    /// The guest of a save runs on.
    pub(super) fn cancel_save(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        save: Uuid,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            let name = &this.vms[&uuid].config.name;
            let what = |id: OperationId| match &this.operations[&id].outcome {
                Outcome::Saved { save: Save::New(to), .. } if to.id == save => Some((id, "save")),
                Outcome::Dumped { to, .. } if to.id == save => Some((id, "dump")),
                _ => None,
            };
            let Some((id, what)) = this.vms[&uuid].operation.and_then(what) else {
                return fail(client, format!("{name}: is not being saved"), out);
            };
            let reason = format!("{name}: the {what} was cancelled");
            this.cancel(now, id, &reason, out);
            out.push(Action::Reply { client, reply: Reply::Done { domid: domain.domid } });
        });
    }

    /// A killed daemon was saving this VM.
    pub(super) fn settle_save(
        &mut self,
        now: Instant,
        uuid: Uuid,
        saving: Saving,
        out: &mut Vec<Action>,
    ) {
        // A record that is not ours alone may say anything.
        if self.vms[&uuid].operation.is_some() {
            return;
        }
        let outcome = Outcome::Saved { client: None, save: Save::Left(saving) };
        self.begin(now, uuid, plan_settle(), outcome, out);
    }

    /// A save has ended: the VM is dealt with as it was asked for, or runs on.
    pub(super) fn save_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        save: &Save,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let domid = vm.facts.domid().unwrap_or_default();
        let poll_again = std::mem::take(&mut vm.poll_again);
        let end = vm.facts.incarnation.save_end.take();
        let path = match save {
            Save::New(to) => &to.path,
            Save::Left(saving) => &saving.path,
        };
        let state = match end {
            Some(SaveEnd::Saved(AfterSave::Destroyed)) => {
                vm.condemned = true;
                if path.starts_with(HOST_FOLDER) {
                    self.saved_with_host.insert(uuid, path.clone());
                }
                vm.why = Some(format!("saved to {path}"));
                vm.waiters.extend(client);
                return self.take_over(now, uuid, Outcome::Gone, out);
            }
            Some(SaveEnd::Saved(AfterSave::Paused)) => VmState::Paused,
            Some(SaveEnd::Saved(AfterSave::Running)) => VmState::Running,
            Some(SaveEnd::RunsOn) => {
                // The daemon before may have asked its guest.
                vm.suspends_late = !save.is_dump();
                VmState::Running
            }
            Some(SaveEnd::IsAsBefore) => vm.rest.state(),
            None => {
                // What cannot be settled is left as it is.
                vm.suspends_late = matches!(save, Save::New(_));
                vm.save_is_open = matches!(save, Save::Left(_));
                VmState::Running
            }
        };
        let is_condemned = vm.condemned;
        let name = vm.config.name.clone();
        let lacks_model = vm.config.hvm.is_some() && vm.facts.incarnation.model.is_none();
        let mut ask_instead = None;
        match (client, end, failure) {
            (Some(client), Some(_), _) => {
                out.push(Action::Reply { client, reply: Reply::Done { domid } });
            }
            (Some(client), None, why) if path.starts_with(HOST_FOLDER) && !is_condemned => {
                // What cannot be saved is shut down, as by xendomains.
                let why = why.unwrap_or_default();
                let message = format!("{name}: is not saved but shut down with the host: {why}");
                out.push(Action::Note { message });
                ask_instead = Some(client);
            }
            (Some(client), None, why) => fail(client, why.unwrap_or_default(), out),
            (None, Some(_), _) => {}
            (None, None, why) => {
                let message =
                    format!("{name}: cannot settle its save: {}", why.unwrap_or_default());
                out.push(Action::Note { message });
            }
        }
        if is_condemned {
            return self.take_over(now, uuid, Outcome::Gone, out);
        }
        self.changed(now, uuid, state, "saved");
        if lacks_model {
            let why = "its device model ended while its guest was being saved";
            return self.lost_model(now, uuid, why, out);
        }
        if let Some(client) = ask_instead {
            self.shut_down_after_all(now, client, uuid, out);
        }
        // The guest may have stopped meanwhile.
        if poll_again || end.is_none() {
            self.poll(domid, out);
        }
    }

    /// Answers with what a file says of itself.
    pub(super) fn read_saved(&mut self, client: ClientId, path: String, out: &mut Vec<Action>) {
        self.query(client, Query::SavedFile, SaveWork::Read { path }, out);
    }

    /// Creates the VM of a file.
    pub(super) fn restore(
        &mut self,
        now: Instant,
        client: ClientId,
        file: SavedFile,
        config: VmConfig,
        start: Start,
        out: &mut Vec<Action>,
    ) {
        let uuid = file.uuid;
        if let Err(message) = fits(&file, &config) {
            return fail(client, message, out);
        }
        if let Some(message) = self.doubt_about(uuid) {
            return fail(client, message, out);
        }
        if !file.disks.is_empty() {
            let message = format!(
                "{}: is a checkpoint of the VM and its disks; `xy revert {} {}` goes back to it",
                file.path,
                file.name,
                file.path.rsplit('/').next().unwrap_or_default()
            );
            return fail(client, message, out);
        }
        if let Some(domid) = self.namesake_of(&config, uuid, Existing::Definition) {
            let wanted = WantedVm::Saved { file: Box::new(file), config: Box::new(config), start };
            let purpose = Purpose::Namesake { client, domid, wanted: Box::new(wanted) };
            self.give_out(purpose, QueryWork::Find { domid, known: None }, out);
            return;
        }
        let refusals = self.refusals_of(&config, uuid, Existing::Definition);
        if let Some(message) = refusals.into_iter().next() {
            return fail(client, message, out);
        }
        if let Some(message) = self.abandoned_start(uuid, &config.name) {
            return fail(client, message, out);
        }
        let plan = plan_restore(&config, start);
        let images = Some(Images::Saved(Arc::new(file)));
        self.vms.insert(uuid, Vm::new(config, uuid, Facts { images, ..Facts::default() }));
        self.begin(now, uuid, plan, Outcome::Created { client: Some(client) }, out);
    }
}

/// Why a VM cannot be saved or moved: its device model ended, it has devices of the host, or it is to stay.
pub(super) fn stays(vm: &Vm) -> Option<String> {
    let lacks_model = vm.config.hvm.is_some() && vm.facts.incarnation.model.is_none();
    let name = &vm.config.name;
    if vm.config.options.never_moves {
        return Some(format!("{name}: is never saved or moved, by nomigrate in its configuration"));
    }
    if !vm.config.options.pci.is_empty() {
        return Some(format!(
            "{name}: has PCI devices of this host, which can be neither saved nor moved"
        ));
    }
    lacks_model.then(|| format!("{name}: has no device model that could be asked for its state"))
}

/// Whether a file with this configuration could be restored: what [`fits`] asks of one when it is too late.
fn suits(vm: &Vm, config: &VmConfig) -> Result<(), String> {
    let (name, own) = (&vm.config.name, &vm.config);
    let differs = |key: &str, own: &dyn std::fmt::Display, given: &dyn std::fmt::Display| {
        let place = config.origin.at(key);
        Err(format!("{place}: {name} has {key} = {own}, not {given}; it could not be restored so"))
    };
    if let Some(given) = config.uuid.filter(|given| *given != vm.uuid) {
        return differs("uuid", &vm.uuid, &given);
    }
    if config.kind != own.kind {
        let [own, given] = [own.kind, config.kind].map(crate::layout::kind_name);
        return differs("type", &own, &given);
    }
    if config.vcpus_max != own.vcpus_max {
        return differs("maxvcpus", &own.vcpus_max, &config.vcpus_max);
    }
    if config.memory_mib < own.memory_mib {
        return differs("memory", &own.memory_mib, &config.memory_mib);
    }
    Ok(())
}

/// Whether a saved guest can go on with this configuration.
pub(super) fn fits(file: &SavedFile, config: &VmConfig) -> Result<(), String> {
    if let Some(given) = config.uuid.filter(|given| *given != file.uuid) {
        let (path, place) = (&file.path, config.origin.at("uuid"));
        return Err(format!(
            "{place}: the guest in {path} was saved with uuid = {}, not {given}",
            file.uuid
        ));
    }
    fits_a_copy(file, config)
}

/// Likewise, under another identity.
pub(super) fn fits_a_copy(file: &SavedFile, config: &VmConfig) -> Result<(), String> {
    let path = &file.path;
    if file.uuid == Uuid::default() {
        return Err(format!("{path}: has no UUID of its VM"));
    }
    let differs = |key: &str, saved: &dyn std::fmt::Display, given: &dyn std::fmt::Display| {
        let place = config.origin.at(key);
        format!("{place}: the guest in {path} was saved with {key} = {saved}, not {given}")
    };
    let is_pv = file.headers.domain == migrate::libxc::DomainType::Pv;
    if is_pv != (config.kind == DomainKind::Pv) {
        let saved = if is_pv { "pv" } else { "pvh or hvm" };
        return Err(differs("type", &saved, &crate::layout::kind_name(config.kind)));
    }
    if file.vcpus != config.vcpus_max {
        return Err(differs("maxvcpus", &file.vcpus, &config.vcpus_max));
    }
    Ok(())
}
