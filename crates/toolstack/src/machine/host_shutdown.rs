//! The host's shutdown and its next boot: VMs are shut down or saved, and those that were saved are
//! restored.
//!
//! A file is restored once. It is removed after its VM's domain is complete and before that runs; one
//! that cannot be restored gets another name. So no old memory ever meets a disk that has been written
//! since.

use std::collections::BTreeSet;
use std::sync::Arc;

use xen::Uuid;

use super::checks::Existing;
use super::operation::Outcome;
use super::save::{fits, stays};
use super::shutdown::{Asking, Meant, Member};
use super::{
    Action, Boot, ClientId, Facts, Fallback, Instant, Purpose, Reply, ReplyWhen, ShutdownRequest,
    Toolstack, Vm,
};
use crate::config::{OnHostShutdown, VmConfig};
use crate::plan::{plan_restore_with_host, plan_save};
use crate::saved::{AfterSave, FileFormat, HOST_FOLDER, HostSave, Save, SaveTo, SavedFile};
use crate::work::{Failure, Images, Output, SaveWork};
use crate::xlcfg;

const ASKING: Asking =
    Asking { how: ShutdownRequest::Poweroff, fallback: Fallback::Acpi, reply: ReplyWhen::Gone };

impl Toolstack {
    /// What becomes of this VM when the host is shut down.
    pub(super) fn with_host(&self, config: &VmConfig) -> OnHostShutdown {
        config.options.on_host_shutdown.unwrap_or(self.on_host_shutdown)
    }

    /// The host is about to be shut down.
    pub(super) fn shut_down_with_host(
        &mut self,
        now: Instant,
        client: ClientId,
        out: &mut Vec<Action>,
    ) {
        let mut found = self.resolve_all(&super::Targets::All).unwrap_or_default();
        found.retain(|meant| {
            self.with_host(&self.vms[&meant.uuid()].config) != OnHostShutdown::Ignore
        });
        if found.is_empty() {
            return out.push(Action::Reply { client, reply: Reply::Ok });
        }
        self.groups.begin(client, found.len(), true);
        let mut members = Vec::with_capacity(found.len());
        for meant in found {
            let name = self.vms[&meant.uuid()].config.name.clone();
            members.push((self.groups.add_member(Member { client, name }), meant));
        }
        self.groups.tell_waiting(client, out);
        for (member, meant) in members {
            let uuid = meant.uuid();
            match meant {
                Meant::Domain(..) if self.is_saved_with_host(uuid) => {
                    self.save_with_host(now, member, uuid, out);
                }
                meant => self.ask_to_stop(now, member, meant, ASKING, out),
            }
        }
    }

    fn is_saved_with_host(&self, uuid: Uuid) -> bool {
        self.with_host(&self.vms[&uuid].config) == OnHostShutdown::Save
    }

    fn save_with_host(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        out: &mut Vec<Action>,
    ) {
        let vm = &self.vms[&uuid];
        let refusal = stays(vm).or_else(|| self.busy_with_operation(uuid));
        if let Some(why) = refusal {
            let message = format!("not saved but shut down with the host: {why}");
            out.push(Action::Note { message });
            return self.shut_down_after_all(now, client, uuid, out);
        }
        let vm = self.vms.get_mut(&uuid).expect("resolved");
        vm.suspends_late = false;
        vm.facts.incarnation.save_end = None;
        let to = SaveTo {
            path: format!("{HOST_FOLDER}/{uuid}"),
            after: AfterSave::Destroyed,
            format: FileFormat::Xylem,
            config: None,
            // There is one such file of a VM, and it is removed before its VM runs again.
            id: uuid,
            checkpoint: None,
            disks: Vec::new(),
        };
        let outcome = Outcome::Saved { client: Some(client), save: Save::New(Box::new(to)) };
        self.begin(now, uuid, plan_save(), outcome, out);
    }

    /// A VM that was to be saved with its host is shut down.
    pub(super) fn shut_down_after_all(
        &mut self,
        now: Instant,
        client: ClientId,
        uuid: Uuid,
        out: &mut Vec<Action>,
    ) {
        let meant = self.vms[&uuid].facts.incarnation.domain;
        let meant = meant.map(|domain| Meant::Domain(uuid, domain));
        match meant {
            Some(meant) => self.ask_to_stop(now, client, meant, ASKING, out),
            None => out.push(Action::Reply { client, reply: Reply::Ok }),
        }
    }

    /// Looks at what was saved with the host, once nothing is left in between.
    pub(super) fn read_host_saves(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some((unsettled, left)) = &self.host_saves_wait else { return };
        let is_busy = |uuid: &Uuid| self.vms.get(uuid).is_some_and(|vm| vm.operation.is_some());
        if unsettled.iter().any(is_busy) {
            return;
        }
        let are_there = left.host_saves;
        self.host_saves_wait = None;
        let boot = std::mem::take(&mut self.boot);
        if are_there {
            self.give_out(Purpose::HostSaves(boot), SaveWork::ReadHostSaves, out);
        } else {
            self.host_saves_read(now, boot, Ok(Output::HostSaves(Vec::new())), out);
        }
    }

    /// What was saved when the host was shut down is restored by the first daemon after its boot.
    pub(super) fn host_saves_read(
        &mut self,
        now: Instant,
        boot: Boot,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let saves = match result {
            Ok(Output::HostSaves(saves)) => saves,
            Ok(output) => output.misplaced(),
            Err(Failure(message)) => {
                out.push(Action::Note { message });
                Vec::new()
            }
        };
        let (mut begin, mut saved) = (Vec::new(), BTreeSet::new());
        for HostSave { uuid, path, file } in saves {
            if let Some(vm) = self.vms.get(&uuid) {
                // Its daemon was killed after it was restored. What cannot be taken down keeps its file.
                if vm.facts.incarnation.completion.is_some() && !vm.condemned {
                    self.give_out(Purpose::Aside, SaveWork::Remove { path }, out);
                }
                continue;
            }
            if boot == Boot::Again {
                self.saved_with_host.insert(uuid, path);
                continue;
            }
            saved.insert(uuid);
            match file.and_then(|file| self.may_restore_with_host(*file)) {
                Ok((file, config)) => begin.push((uuid, path, file, config)),
                Err(why) => self.set_aside(path, &why, out),
            }
        }
        if boot == Boot::Again {
            return;
        }
        let uuids: BTreeSet<Uuid> = begin.iter().map(|(uuid, ..)| *uuid).collect();
        for (uuid, path, file, config) in begin {
            self.restore_with_host(now, uuid, path, file, config, out);
        }
        let open = uuids.into_iter().filter(|uuid| self.vms.contains_key(uuid)).collect();
        self.start_with_the_host(now, open, &saved, out);
    }

    fn may_restore_with_host(&self, file: SavedFile) -> Result<(SavedFile, VmConfig), String> {
        let source = xlcfg::Source { file: &file.path, text: &file.config_text, overrides: &[] };
        let config = xlcfg::parse(source).map_err(|error| error.to_string())?;
        fits(&file, &config)?;
        let refusals = self.refusals_of(&config, file.uuid, Existing::Definition);
        refusals.into_iter().next().map_or(Ok((file, config)), Err)
    }

    fn restore_with_host(
        &mut self,
        now: Instant,
        uuid: Uuid,
        path: String,
        file: SavedFile,
        config: VmConfig,
        out: &mut Vec<Action>,
    ) {
        let plan = plan_restore_with_host(&config);
        self.host_saves.insert(uuid, path.clone());
        let images = Some(Images::Saved(Arc::new(file)));
        let facts = Facts { images, saved_at: Some(path), ..Facts::default() };
        self.vms.insert(uuid, Vm::new(config, uuid, facts));
        self.begin(now, uuid, plan, Outcome::Created { client: None }, out);
    }

    /// The restore of a VM with its host has ended, if this was one.
    pub(super) fn restored_with_host(
        &mut self,
        uuid: Uuid,
        failure: Option<&str>,
        out: &mut Vec<Action>,
    ) {
        if let (Some(path), Some(why)) = (self.host_saves.remove(&uuid), failure) {
            self.set_aside(path, why, out);
        }
    }

    /// A VM was started from its disk though its memory was saved with the host: that fits no more.
    pub(super) fn runs_without_its_save(&mut self, uuid: Uuid, out: &mut Vec<Action>) {
        if let Some(path) = self.saved_with_host.remove(&uuid) {
            self.set_aside(path, "it was started otherwise", out);
        }
    }

    fn set_aside(&mut self, path: String, why: &str, out: &mut Vec<Action>) {
        let message = format!(
            "a VM that was saved with its host is not restored: {why}; `xy restore` can do so from \
             {path}{}",
            crate::saved::SET_ASIDE
        );
        out.push(Action::Note { message });
        self.give_out(Purpose::Aside, SaveWork::SetAside { path }, out);
    }
}
