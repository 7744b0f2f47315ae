//! Checkpoints of VMs, returns to them, and copies of saved VMs.
//!
//! A checkpoint is a save after which the guest goes on, with snapshots of its disks. A revert takes
//! the VM down and creates it again from the checkpoint; whatever happens in between, it can be asked
//! for again. A copy is a create from the file, under its own identity.

use std::collections::BTreeSet;
use std::sync::Arc;

use xen::Uuid;

use super::checks::Existing;
use super::operation::{Operation, Outcome};
use super::requests::fail;
use super::save::{fits, fits_a_copy, stays};
use super::{Action, ClientId, Facts, Instant, Purpose, Query, Reply, Toolstack, Vm};
use crate::checkpoint::{self, DiskFrom, disks_again, disks_of};
use crate::config::{Start, VmConfig};
use crate::plan::{Plan, plan_from_checkpoint, plan_restore, plan_save};
use crate::saved::{AfterSave, FileFormat, Save, SaveTo, SavedFile};
use crate::work::{Failure, Images, Output, SaveWork};

/// A VM that goes back to a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Revert {
    file: Arc<SavedFile>,
    config: Arc<VmConfig>,
    start: Start,
}

impl Revert {
    /// The checkpoint's name, for people.
    pub(super) fn name(&self) -> &str {
        self.file.path.rsplit('/').next().unwrap_or_default()
    }
}

/// One copy of a saved VM.
#[derive(Clone, Debug)]
pub struct Copy {
    /// With a name and UUID of its own.
    pub config: Box<VmConfig>,
    pub disks: Vec<DiskFrom>,
}

fn plan_again(config: &VmConfig, start: Start, disks: &[DiskFrom]) -> Plan {
    if disks.is_empty() { plan_restore(config, start) } else { plan_from_checkpoint(config, start) }
}

impl Toolstack {
    /// Keeps a guest's memory and disks as they are at one moment.
    pub(super) fn checkpoint(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        name: String,
        id: Uuid,
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
            let disks = checkpoint::check_name(&name).and_then(|()| disks_of(&vm.config, id));
            let disks = match disks {
                Ok(disks) => disks,
                Err(message) => return fail(client, message, out),
            };
            vm.suspends_late = false;
            vm.facts.incarnation.save_end = None;
            let to = SaveTo {
                path: checkpoint::path(uuid, &name),
                after: AfterSave::Running,
                format: FileFormat::Xylem,
                config: None,
                id,
                checkpoint: Some(name),
                disks,
            };
            let outcome = Outcome::Saved { client: Some(client), save: Save::New(Box::new(to)) };
            this.begin(now, uuid, plan_save(), outcome, out);
        });
    }

    pub(super) fn list_checkpoints(&mut self, client: ClientId, out: &mut Vec<Action>) {
        self.query(client, Query::Checkpoints, SaveWork::Checkpoints, out);
    }

    pub(super) fn destroy_checkpoint(
        &mut self,
        client: ClientId,
        uuid: Uuid,
        name: String,
        out: &mut Vec<Action>,
    ) {
        let work = SaveWork::DestroyCheckpoint { uuid, name };
        self.query(client, Query::Checkpoints, work, out);
    }

    /// Takes a VM back to a checkpoint: first it is checked that this can be done.
    pub(super) fn revert(
        &mut self,
        client: ClientId,
        file: SavedFile,
        config: VmConfig,
        start: Start,
        out: &mut Vec<Action>,
    ) {
        let revert = Revert { file: Arc::new(file), config: Arc::new(config), start };
        if let Err(message) = self.may_revert(&revert) {
            return fail(client, message, out);
        }
        let (config, file) = (Arc::clone(&revert.config), Arc::clone(&revert.file));
        let purpose = Purpose::CheckRevert { client, revert: Box::new(revert) };
        self.give_out(purpose, SaveWork::CheckRevert { config, file }, out);
    }

    /// Whether nothing stands in the way of a revert but what of the VM there is now.
    fn may_revert(&self, revert: &Revert) -> Result<(), String> {
        let (uuid, config) = (revert.file.uuid, &revert.config);
        fits(&revert.file, config)?;
        if !self.vms.contains_key(&uuid) {
            let refusals = self.refusals_of(config, uuid, Existing::Definition);
            return refusals.into_iter().next().map_or(Ok(()), Err);
        }
        if let Some(message) = self.busy_with_operation(uuid) {
            return Err(message);
        }
        match self.vms.named(&config.name).filter(|vm| vm.uuid != uuid) {
            Some(_) => Err(format!("{}: a domain of that name exists already", config.name)),
            None => Ok(()),
        }
    }

    pub(super) fn revert_checked(
        &mut self,
        now: Instant,
        client: ClientId,
        revert: Revert,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        // It may have become busy meanwhile.
        let checked = result.map_err(|Failure(why)| why).and_then(|_| self.may_revert(&revert));
        if let Err(message) = checked {
            return fail(client, message, out);
        }
        let uuid = revert.file.uuid;
        let Some(vm) = self.vms.get_mut(&uuid) else {
            return self.create_reverted(now, client, &revert, out);
        };
        vm.condemned = true;
        self.take_over(now, uuid, Outcome::Reverted { client, revert: Box::new(revert) }, out);
    }

    /// Nothing is left of a VM that goes back to a checkpoint, or it could not be taken down.
    pub(super) fn taken_down_to_revert(
        &mut self,
        now: Instant,
        client: ClientId,
        revert: &Revert,
        operation: Operation,
        out: &mut Vec<Action>,
    ) {
        let uuid = operation.uuid;
        let name = revert.config.name.clone();
        let is_unwanted = !self.vms[&uuid].waiters.is_empty();
        let trouble = operation.failure.clone();
        self.forget(now, uuid, None, operation.failure, out);
        if let Some(trouble) = trouble {
            let again = "it is not reverted yet; `xy revert` goes on";
            return fail(client, format!("{name} was taken down, but: {trouble}; {again}"), out);
        }
        if is_unwanted {
            return fail(client, format!("{name}: was destroyed while it was being reverted"), out);
        }
        self.create_reverted(now, client, revert, out);
    }

    fn create_reverted(
        &mut self,
        now: Instant,
        client: ClientId,
        revert: &Revert,
        out: &mut Vec<Action>,
    ) {
        let disks = disks_again(&revert.file);
        let uuid = revert.file.uuid;
        let refusals = self.refusals_of(&revert.config, uuid, Existing::Definition);
        let abandoned = || self.abandoned_start(uuid, &revert.config.name);
        if let Some(message) = refusals.into_iter().next().or_else(abandoned) {
            return fail(client, message, out);
        }
        self.create_from(
            now,
            uuid,
            &revert.file,
            &revert.config,
            revert.start,
            disks,
            Some(client),
            out,
        );
    }

    #[expect(clippy::too_many_arguments, reason = "what a VM is made of")]
    fn create_from(
        &mut self,
        now: Instant,
        uuid: Uuid,
        file: &Arc<SavedFile>,
        config: &Arc<VmConfig>,
        start: Start,
        disks_from: Vec<DiskFrom>,
        client: Option<ClientId>,
        out: &mut Vec<Action>,
    ) {
        let plan = plan_again(config, start, &disks_from);
        let images = Some(Images::Saved(Arc::clone(file)));
        let facts = Facts { images, disks_from, ..Facts::default() };
        self.vms.insert(uuid, Vm::new(Arc::clone(config), uuid, facts));
        self.begin(now, uuid, plan, Outcome::Created { client }, out);
    }

    /// Creates copies of a saved VM, as many at a time as the limits allow. Answered as a start of
    /// several VMs.
    pub(super) fn clone_saved(
        &mut self,
        now: Instant,
        client: ClientId,
        file: SavedFile,
        copies: Vec<Copy>,
        out: &mut Vec<Action>,
    ) {
        let file = Arc::new(file);
        let mut failed = Vec::new();
        let mut begin = Vec::new();
        let mut names = BTreeSet::new();
        for Copy { config, disks } in copies {
            let uuid = config.uuid.expect("a copy has a UUID of its own");
            let name = config.name.clone();
            let refusal = match fits_a_copy(&file, &config) {
                Err(message) => Some(message),
                Ok(()) if !names.insert(name.clone()) => {
                    Some(format!("{name}: two copies cannot have the same name"))
                }
                Ok(()) => self.refusals(&config, uuid).into_iter().next(),
            };
            match refusal {
                Some(message) => failed.push((name, message)),
                None => begin.push((uuid, Arc::from(config), disks)),
            }
        }
        self.follow_starts(client, begin.iter().map(|(uuid, _, _)| *uuid).collect(), failed);
        for (uuid, config, disks) in begin {
            self.create_from(now, uuid, &file, &config, Start::Running, disks, None, out);
        }
        self.drive_storms(now, out);
    }

    pub(super) fn checkpoints_answer(output: Output) -> Reply {
        match output {
            Output::Checkpoints(all) => Reply::Checkpoints(all),
            _ => Reply::Ok,
        }
    }
}
