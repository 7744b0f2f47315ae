//! The host's shutdown and its next boot: VMs are shut down or saved, and those that were saved are
//! restored.
//!
//! A file is restored once. It is removed after its VM's domain is complete and before that runs; one
//! that cannot be restored gets another name. So no old memory ever meets a disk that has been written
//! since.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use xen::{DomId, Uuid};

use super::checks::Existing;
use super::operation::Outcome;
use super::save::{fits, stays};
use super::shutdown::{Asking, Meant, Member};
use super::{
    Action, Boot, ClientId, Facts, Fallback, Instant, Purpose, Reply, ReplyWhen, ShutdownRequest,
    Toolstack, Vm,
};
use crate::config::{OnHostShutdown, VmConfig};
use crate::layout;
use crate::plan::{plan_restore_with_host, plan_save};
use crate::saved::{AfterSave, FileFormat, HOST_FOLDER, HostSave, Save, SaveTo, SavedFile};
use crate::work::{Failure, Images, Output, SaveWork};
use crate::xlcfg;

const ASKING: Asking =
    Asking { how: ShutdownRequest::Poweroff, fallback: Fallback::Acpi, reply: ReplyWhen::Gone };

/// A shutdown of the host, with those VMs whose turn has not come.
#[derive(Debug)]
pub(super) struct HostShutdown {
    client: ClientId,
    /// Each begins when all before it are down.
    layers: VecDeque<Vec<(ClientId, Uuid)>>,
}

/// A VM that is to be restored with its host, once its driver domains may run.
#[derive(Debug)]
pub(super) struct LateRestore {
    uuid: Uuid,
    path: String,
    file: SavedFile,
    config: VmConfig,
}

impl LateRestore {
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }
}

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
        let mut layers = VecDeque::new();
        for layer in self.layers(found.iter().map(|meant| meant.uuid()).collect()) {
            let of_layer = layer.into_iter().map(|uuid| {
                let name = self.vms[&uuid].config.name.clone();
                (self.groups.add_member(Member { client, name }), uuid)
            });
            layers.push_back(of_layer.collect());
        }
        self.groups.tell_waiting(client, out);
        self.host_shutdowns.push(HostShutdown { client, layers });
        self.go_on_with_host_shutdowns(now, out);
    }

    /// VMs in the order in which they go down: driver domains after those that they serve.
    fn layers(&self, mut left: Vec<Uuid>) -> Vec<Vec<Uuid>> {
        let mut layers = Vec::new();
        while !left.is_empty() {
            let used: BTreeSet<DomId> = left
                .iter()
                .flat_map(|uuid| self.vms[uuid].facts.backends.iter().map(|(_, backend)| backend))
                .collect();
            let serves = |uuid: &Uuid| {
                self.vms[uuid].facts.domid().is_some_and(|domid| used.contains(&domid))
            };
            let (later, now): (Vec<Uuid>, Vec<Uuid>) = left.iter().partition(|uuid| serves(uuid));
            // Those that serve each other go down together.
            let (layer, rest) = if now.is_empty() { (later, Vec::new()) } else { (now, later) };
            layers.push(layer);
            left = rest;
        }
        layers
    }

    /// Begins with the next VMs of each shutdown of the host in which all before them are down. Returns whether there were
    /// any.
    pub(super) fn go_on_with_host_shutdowns(
        &mut self,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> bool {
        let mut next = Vec::new();
        for HostShutdown { client, layers } in &mut self.host_shutdowns {
            let to_come: usize = layers.iter().map(Vec::len).sum();
            if self.groups.left(*client) == to_come {
                next.extend(layers.pop_front().into_iter().flatten());
            }
        }
        self.host_shutdowns.retain(|it| !it.layers.is_empty());
        let has_some = !next.is_empty();
        for (member, uuid) in next {
            match self.meant(uuid) {
                Some(Meant::Domain(..)) if self.is_saved_with_host(uuid) => {
                    self.save_with_host(now, member, uuid, out);
                }
                Some(meant) => self.ask_to_stop(now, member, meant, ASKING, out),
                // It went down meanwhile.
                None => out.push(Action::Reply { client: member, reply: Reply::Ok }),
            }
        }
        has_some
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
        let mut uuids = BTreeSet::new();
        for (uuid, path, file, config) in begin {
            let mut devices = layout::devices(&config).into_iter();
            if devices.any(|device| layout::wanted_backend(&config, device).is_some()) {
                self.late_restores.push(LateRestore { uuid, path, file, config });
            } else {
                uuids.insert(uuid);
                self.restore_with_host(now, uuid, path, file, config, out);
            }
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

    /// Restores those that have waited for the start of all others.
    pub(super) fn restore_late(
        &mut self,
        now: Instant,
        late: Vec<LateRestore>,
        out: &mut Vec<Action>,
    ) {
        for LateRestore { uuid, path, file, config } in late {
            self.restore_with_host(now, uuid, path, file, config, out);
        }
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
