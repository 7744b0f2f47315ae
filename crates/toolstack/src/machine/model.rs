//! Device models: adoption from an earlier daemon, and unexpected exits.
//!
//! A guest without its emulated hardware hangs at the next access. So the exit of a device model
//! counts as a crash of its domain, unless it only serves devices that the guest can do without.

use xen::{ShutdownReason, Uuid};

use super::adoption::Adopted;
use super::changes::DomainEnd;
use super::{Action, Instant, Purpose, Toolstack};
use crate::device_model::{self, OwnModel, Process};
use crate::work::{AdoptionWork, Survey};

impl Toolstack {
    /// Returns device models to their VMs; those of domains that no longer exist are killed. An
    /// unfinished VM without one counts as half made. Returns the other VMs that have none.
    pub(super) fn adopt_models(
        &mut self,
        models: Vec<OwnModel>,
        survey: &Survey,
        adopted: &mut Adopted,
        out: &mut Vec<Action>,
    ) -> Vec<Uuid> {
        let mut orphans = Vec::new();
        for model in models {
            let OwnModel { process, uuid, domid } = model;
            let unread = self.unread.get_mut(&uuid).filter(|it| it.domid() == Some(domid));
            if let Some(unread) = unread {
                unread.model = Some(process);
                continue;
            }
            let vm = self.vms.get(&uuid).filter(|vm| vm.facts.domid() == Some(domid));
            match vm {
                Some(vm) if vm.facts.incarnation.model.is_none() => {
                    let log = device_model::log_file(&vm.config);
                    out.push(Action::Follow { process, log });
                    self.vms.change(uuid, |vm| vm.facts.incarnation.model = Some(process));
                }
                // It was given to xl with its domain.
                None if survey.has(domid, uuid) => {}
                _ => orphans.push(model),
            }
        }
        if !orphans.is_empty() {
            self.give_out(Purpose::Aside, AdoptionWork::EndOrphans { models: orphans }, out);
        }
        let lacks = |uuid: &Uuid| {
            let vm = &self.vms[uuid];
            vm.config.has_model() && vm.facts.incarnation.model.is_none()
        };
        let (without, unfinished) = adopted.unfinished.drain(..).partition(|(uuid, _)| lacks(uuid));
        adopted.unfinished = unfinished;
        let without: Vec<_> = without;
        adopted.half_made.extend(without.into_iter().map(|(uuid, _)| uuid));
        self.vms.keys().filter(|it| lacks(it) && !adopted.half_made.contains(it)).copied().collect()
    }

    /// Handles the exit of a device model. One that we killed is no longer known.
    pub(super) fn model_ended(
        &mut self,
        now: Instant,
        process: Process,
        how: &str,
        out: &mut Vec<Action>,
    ) {
        let Some(uuid) = self.vms.of_model(process) else { return };
        self.vms.change(uuid, |vm| vm.facts.incarnation.model = None);
        let why = format!("its device model (pid {}) {how}", process.pid);
        self.lost_model(now, uuid, &why, out);
    }

    /// Ends the current operation; a running domain counts as crashed.
    pub(super) fn lost_model(
        &mut self,
        now: Instant,
        uuid: Uuid,
        why: &str,
        out: &mut Vec<Action>,
    ) {
        let Some(vm) = self.vms.get_mut(&uuid) else { return };
        if let Some(operation) = vm.operation {
            if self.operations[&operation].needs_model() {
                let message = format!("{}: {why}", vm.config.name);
                self.cancel(now, operation, &message, out);
            }
            return;
        }
        // It is already down, or going down.
        if vm.rest.is_down() || vm.after_plugs.is_some() {
            return;
        }
        let name = vm.config.name.clone();
        if vm.config.hvm.is_none() {
            let message = format!("{name}: {why}; what it served is gone until a reboot");
            return out.push(Action::Note { message });
        }
        vm.why = Some(why.to_owned());
        out.push(Action::Note {
            message: format!("{name}: {why}; taken as a crash of its domain"),
        });
        self.domain_stopped(now, uuid, DomainEnd::Stopped(ShutdownReason::Crash), out);
    }
}
