//! Suspend and resume of a VM's guest.

use xen::Uuid;

use super::events::VmState;
use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Instant, Purpose, Query, Reply, Toolstack};
use crate::plan::plan_suspend;
use crate::work::SuspendWork;

impl Toolstack {
    /// Suspends a VM's guest; its domain is kept.
    pub(super) fn suspend(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, _, out| {
            match this.busy_with_operation(uuid) {
                Some(message) => fail(client, message, out),
                None => {
                    this.vms.get_mut(&uuid).expect("resolved").suspends_late = false;
                    let outcome = Outcome::Suspended { client: Some(client) };
                    this.begin(now, uuid, plan_suspend(), outcome, out);
                }
            }
        });
    }

    /// Resumes a suspended guest where it was.
    pub(super) fn resume(&mut self, client: ClientId, target: &str, out: &mut Vec<Action>) {
        self.with_domain(client, target, out, |this, uuid, domain, out| {
            if let Some(message) = this.busy_with_operation(uuid) {
                return fail(client, message, out);
            }
            let (domid, state) = (domain.domid, VmState::Running);
            let vm = this.vms.get_mut(&uuid).expect("resolved");
            let name = vm.config.name.clone();
            // Whoever lets it go on here has decided: no later daemon gives it up for its file.
            let forgets = std::mem::take(&mut vm.save_is_open).then_some(uuid);
            let query = Query::Becomes { domid, uuid, state };
            this.query(client, query, SuspendWork::Resume { domain, name, forgets }, out);
        });
    }

    /// Why no operation on the whole VM can begin.
    pub(super) fn busy_with_operation(&self, uuid: Uuid) -> Option<String> {
        if let Some(message) = self.doubt_about(uuid) {
            return Some(message);
        }
        let vm = &self.vms[&uuid];
        let (name, advice) = (&vm.config.name, "try again when that has ended");
        if vm.operation.is_some() || vm.after_plugs.is_some() {
            return Some(format!("{name}: an operation on it is under way; {advice}"));
        }
        if vm.is_tuned {
            return Some(format!("{name}: is being changed; {advice}"));
        }
        let (device, _) = vm.plugs.first_key_value()?;
        Some(format!("{name}: {} is being attached or detached; {advice}", device.spoken()))
    }

    /// A suspend has ended. After a failure the guest runs on.
    pub(super) fn suspend_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        client: Option<ClientId>,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let domid = vm.facts.domid().unwrap_or_default();
        let poll_again = std::mem::take(&mut vm.poll_again);
        let (reply, state) = match failure {
            None => (Reply::Done { domid }, VmState::Suspended),
            Some(message) => {
                vm.suspends_late = true;
                (Reply::Failed(message), VmState::Running)
            }
        };
        let is_condemned = vm.condemned;
        let lacks_model = vm.config.hvm.is_some() && vm.facts.incarnation.model.is_none();
        out.extend(client.map(|client| Action::Reply { client, reply }));
        if is_condemned {
            return self.take_over(now, uuid, Outcome::Gone, out);
        }
        self.changed(now, uuid, state, "asked for");
        if lacks_model {
            let why = "its device model ended while its guest was being suspended";
            return self.lost_model(now, uuid, why, out);
        }
        // The guest may have stopped meanwhile.
        if poll_again || state == VmState::Running {
            self.poll(domid, out);
        }
    }

    /// A guest was found suspended. It is kept for whoever suspended it; after a suspend of ours
    /// that failed or was cancelled nobody waits for it.
    pub(super) fn found_suspended(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) {
        let vm = self.vms.get_mut(&uuid).expect("a stopped VM is known");
        let late = std::mem::take(&mut vm.suspends_late);
        let Some(domain) = vm.facts.incarnation.domain.filter(|_| late) else {
            return self.changed(now, uuid, VmState::Suspended, "suspend");
        };
        let name = vm.config.name.clone();
        out.push(Action::Note {
            message: format!("{name}: suspended after the request was given up; it is resumed"),
        });
        self.give_out(Purpose::Aside, SuspendWork::Resume { domain, name, forgets: None }, out);
    }
}
