//! Core files of domains: on request, and when a guest has crashed.

use xen::Uuid;

use super::operation::Outcome;
use super::requests::fail;
use super::{Action, ClientId, Instant, Reply, Toolstack};
use crate::config::ShutdownAction;
use crate::plan::plan_dump;
use crate::saved::{DUMP_FOLDER, DumpTo, Guest};

impl Toolstack {
    /// Writes a domain's memory to a core file.
    pub(super) fn dump(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        to: Box<DumpTo>,
        out: &mut Vec<Action>,
    ) {
        self.with_domain(client, target, out, |this, uuid, _, out| {
            if let Some(message) = this.busy_with_operation(uuid) {
                return fail(client, message, out);
            }
            let outcome = Outcome::Dumped { client: Some(client), to, then: None };
            this.begin(now, uuid, plan_dump(), outcome, out);
        });
    }

    /// Writes the core file of a guest that has stopped by itself, and goes on with this action afterwards.
    pub(super) fn dump_stopped(
        &mut self,
        now: Instant,
        uuid: Uuid,
        then: ShutdownAction,
        out: &mut Vec<Action>,
    ) {
        let name = &self.vms[&uuid].config.name;
        let path = format!("{DUMP_FOLDER}/{name}");
        let to = Box::new(DumpTo { path, guest: Guest::Pauses, id: uuid });
        let outcome = Outcome::Dumped { client: None, to, then: Some(then) };
        self.take_over(now, uuid, outcome, out);
    }

    /// A dump has ended. The guest is as before.
    pub(super) fn dump_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        (client, to): (Option<ClientId>, &DumpTo),
        then: Option<ShutdownAction>,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("VMs outlive their operations");
        let domid = vm.facts.domid().unwrap_or_default();
        let name = &vm.config.name;
        let poll_again = std::mem::take(&mut vm.poll_again);
        let is_condemned = vm.condemned;
        let lacks_model = vm.config.hvm.is_some() && vm.facts.incarnation.model.is_none();
        match (client, failure) {
            (Some(client), None) => {
                out.push(Action::Reply { client, reply: Reply::Done { domid } });
            }
            (Some(client), Some(message)) => fail(client, message, out),
            (None, None) => {
                out.push(Action::Note { message: format!("{name}: its core is in {}", to.path) });
            }
            // As with xl, the VM is not left where it is for that.
            (None, Some(message)) => out.push(Action::Note { message }),
        }
        if is_condemned {
            return self.take_over(now, uuid, Outcome::Gone, out);
        }
        if let Some(action) = then {
            return self.follow(now, uuid, action, out);
        }
        if lacks_model {
            let why = "its device model ended while its domain was being dumped";
            return self.lost_model(now, uuid, why, out);
        }
        if poll_again {
            self.poll(domid, out);
        }
    }
}
