//! Shutdown and reboot requests to guests: one, several or all.
//!
//! Targets are resolved once, when the request arrives. From then on each VM is identified by its
//! UUID and its domain by its [`DomainRef`]: a domain that reuses a domid meanwhile is never
//! affected.

use std::collections::BTreeMap;

use xen::{DomId, DomainKind, DomainRef, ShutdownReason, Uuid};

use super::operation::Outcome;
use super::requests::fail;
use super::{
    Action, ClientId, Instant, OperationId, Query, Reply, ReplyWhen, ShutdownRequest, Toolstack, Vm,
};
use crate::work::{Failure, Output, QueryWork};

/// The VMs of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Targets {
    /// All VMs of ours that have a domain.
    All,
    /// Names, domids or UUIDs.
    These(Vec<String>),
}

/// What to do for a guest without PV drivers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fallback {
    Refuse,
    /// Send the ACPI power or reset event.
    Acpi,
}

/// The request to a guest, and when the client is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) how: ShutdownRequest,
    pub(super) fallback: Fallback,
    pub(super) reply: ReplyWhen,
}

impl Asking {
    /// With no word to guests without PV drivers.
    pub(super) fn plainly(how: ShutdownRequest, reply: ReplyWhen) -> Self {
        Self { how, fallback: Fallback::Refuse, reply }
    }
}

/// A target of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meant {
    Domain(Uuid, DomainRef),
    /// It is being started.
    Start(Uuid, OperationId),
}

impl Meant {
    pub(super) fn uuid(self) -> Uuid {
        match self {
            Self::Domain(uuid, _) | Self::Start(uuid, _) => uuid,
        }
    }
}

/// Reports to a client that shuts several VMs down.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Told {
    /// The shutdown was requested.
    Asked { domid: DomId, how: ShutdownRequest },
    /// It has no PV drivers; an ACPI event was sent.
    SentAcpi { domid: DomId, how: ShutdownRequest },
    /// It is gone; the reason, if it stopped by itself.
    Gone { domid: DomId, reason: Option<ShutdownReason> },
    /// How many have stopped, and one that has not.
    Waiting { vm: String, done: usize, total: usize },
}

/// One of several VMs, as if it had its own client.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) client: ClientId,
    pub(super) name: String,
}

#[derive(Debug)]
struct Group {
    total: usize,
    left: usize,
    waits: bool,
    failures: Vec<String>,
}

/// The clients that wait for several VMs.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: BTreeMap<ClientId, Member>,
    groups: BTreeMap<ClientId, Group>,
    last: u64,
}

impl Groups {
    /// A client that waits for the end of so many VMs.
    pub(super) fn begin(&mut self, client: ClientId, total: usize, waits: bool) {
        let group = Group { total, left: total, waits, failures: Vec::new() };
        self.groups.insert(client, group);
    }

    /// A client id that stands for another. Callers count from zero and never reach it.
    pub(super) fn add_member(&mut self, member: Member) -> ClientId {
        self.last += 1;
        let id = ClientId(u64::MAX - self.last);
        self.members.insert(id, member);
        id
    }

    /// Translates an action for a member into one for the client.
    fn translate(&mut self, action: Action, out: &mut Vec<Action>) {
        let (Action::Reply { client: id, .. }
        | Action::Progress { client: id, .. }
        | Action::Told { client: id, .. }) = &action
        else {
            return out.push(action);
        };
        let Some(client) = self.members.get(id).map(|it| it.client) else {
            return out.push(action);
        };
        let id = *id;
        let group = self.groups.get_mut(&client).expect("a member has a group");
        match action {
            Action::Reply { reply, .. } => self.member_replied(id, reply, out),
            Action::Told { told, .. } => out.push(Action::Told { client, told }),
            // For several VMs, report their number instead of steps.
            Action::Progress { progress, .. } if group.total == 1 => {
                out.push(Action::Progress { client, progress });
            }
            _ => {}
        }
    }

    fn member_replied(&mut self, id: ClientId, reply: Reply, out: &mut Vec<Action>) {
        let Member { client, .. } = self.members.remove(&id).expect("a member replies once");
        let group = self.groups.get_mut(&client).expect("a member has a group");
        group.left -= 1;
        match reply {
            Reply::Gone { domid, reason } => {
                let told = Told::Gone { domid, reason };
                out.push(Action::Told { client, told });
            }
            Reply::Failed(message) => group.failures.push(message),
            _ => {}
        }
        if group.left > 0 {
            return self.tell_waiting(client, out);
        }
        let group = self.groups.remove(&client).expect("it was there");
        let reply = match group.failures.is_empty() {
            true => Reply::Ok,
            false => Reply::Failed(group.failures.join("; ")),
        };
        out.push(Action::Reply { client, reply });
    }

    /// How many of a client's VMs are still to end.
    pub(super) fn left(&self, client: ClientId) -> usize {
        self.groups.get(&client).map_or(0, |group| group.left)
    }

    pub(super) fn tell_waiting(&self, client: ClientId, out: &mut Vec<Action>) {
        let group = &self.groups[&client];
        let next = self.members.values().rev().find(|member| member.client == client);
        if let (true, Some(Member { name, .. })) = (group.waits, next) {
            let (done, total) = (group.total - group.left, group.total);
            let told = Told::Waiting { vm: name.clone(), done, total };
            out.push(Action::Told { client, told });
        }
    }
}

impl Toolstack {
    /// The target VM, and its current domain or operation.
    fn resolve_meant(&self, target: &str) -> Result<Meant, String> {
        let uuid = self.resolve(target)?;
        match self.start_of(uuid) {
            Some(operation) => Ok(Meant::Start(uuid, operation)),
            None => self.resolve_domain(target).map(|(uuid, domain)| Meant::Domain(uuid, domain)),
        }
    }

    /// A VM with its domain or its start; `None` if it has neither, or not for long.
    pub(super) fn meant(&self, uuid: Uuid) -> Option<Meant> {
        let vm = self.vms.get(&uuid)?;
        match self.start_of(uuid) {
            Some(operation) => Some(Meant::Start(uuid, operation)),
            None if vm.facts.incarnation.is_released => None,
            None => Some(Meant::Domain(uuid, vm.facts.incarnation.domain?)),
        }
    }

    pub(super) fn resolve_all(&self, targets: &Targets) -> Result<Vec<Meant>, String> {
        let Targets::These(targets) = targets else {
            let meant = |vm: &Vm| self.meant(vm.uuid);
            let mut found: Vec<Meant> = self.vms.values().filter_map(meant).collect();
            found.sort_by_key(|it| self.vms[&it.uuid()].facts.domid());
            return Ok(found);
        };
        targets.iter().map(|target| self.resolve_meant(target)).collect()
    }

    /// The operation that starts a VM, if any.
    fn start_of(&self, uuid: Uuid) -> Option<OperationId> {
        let id = self.vms[&uuid].operation?;
        matches!(self.operations[&id].outcome, Outcome::Created { .. } | Outcome::Rebooted)
            .then_some(id)
    }

    /// Shuts one guest down.
    pub(super) fn shut_down(
        &mut self,
        now: Instant,
        client: ClientId,
        target: &str,
        asking: Asking,
        out: &mut Vec<Action>,
    ) {
        match self.resolve_meant(target) {
            Ok(meant) => self.ask_to_stop(now, client, meant, asking, out),
            Err(message) => fail(client, message, out),
        }
    }

    /// Shuts several guests down; none if one of the named VMs does not exist.
    pub(super) fn shut_down_each(
        &mut self,
        now: Instant,
        client: ClientId,
        targets: &Targets,
        asking: Asking,
        out: &mut Vec<Action>,
    ) {
        let found = match self.resolve_all(targets) {
            Ok(found) if found.is_empty() => {
                return out.push(Action::Reply { client, reply: Reply::Ok });
            }
            Ok(found) => found,
            Err(message) => return fail(client, message, out),
        };
        let total = found.len();
        let waits = asking.reply == ReplyWhen::Gone;
        self.groups.begin(client, total, waits);
        let mut members = Vec::with_capacity(total);
        for meant in found {
            let name = self.vms[&meant.uuid()].config.name.clone();
            members.push((self.groups.add_member(Member { client, name }), meant));
            if let Meant::Domain(_, domain) = meant {
                let told = Told::Asked { domid: domain.domid, how: asking.how };
                out.push(Action::Told { client, told });
            }
        }
        self.groups.tell_waiting(client, out);
        for (member, meant) in members {
            self.ask_to_stop(now, member, meant, asking, out);
        }
    }

    /// Requests a shutdown. If the VM is still starting, its start is cancelled instead.
    pub(super) fn ask_to_stop(
        &mut self,
        now: Instant,
        client: ClientId,
        meant: Meant,
        asking: Asking,
        out: &mut Vec<Action>,
    ) {
        let (uuid, operation) = match meant {
            Meant::Domain(uuid, domain) => {
                return self.request_shutdown(client, uuid, domain, asking, out);
            }
            Meant::Start(uuid, operation) => (uuid, operation),
        };
        let vm = self.vms.get_mut(&uuid).expect("resolved");
        if asking.how == ShutdownRequest::Reboot {
            let name = &vm.config.name;
            let message = format!("{name}: is starting, there is no guest to reboot yet");
            return fail(client, message, out);
        }
        vm.condemned = true;
        match asking.reply {
            ReplyWhen::Asked => out.push(Action::Reply { client, reply: Reply::Ok }),
            ReplyWhen::Gone => vm.waiters.push(client),
        }
        self.cancel(now, operation, "shut down while it was being created", out);
    }

    fn request_shutdown(
        &mut self,
        client: ClientId,
        uuid: Uuid,
        domain: DomainRef,
        asking: Asking,
        out: &mut Vec<Action>,
    ) {
        let Asking { how, fallback, reply } = asking;
        let vm = self.vms.get_mut(&uuid).expect("resolved");
        if reply == ReplyWhen::Gone {
            vm.waiters.push(client);
        }
        let query = Query::Shutdown { uuid, domid: domain.domid, asking };
        let name = vm.config.name.clone();
        let is_hvm = vm.config.kind == DomainKind::Hvm;
        let work = QueryWork::RequestShutdown { domain, uuid, name, how, is_hvm, fallback };
        self.query(client, query, work, out);
    }

    /// Handles the result of the request to the guest.
    pub(super) fn shutdown_requested(
        &mut self,
        client: ClientId,
        uuid: Uuid,
        domid: DomId,
        asking: Asking,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid);
        match result {
            Err(Failure(message)) => {
                if let Some(vm) = vm {
                    vm.waiters.retain(|waiter| *waiter != client);
                }
                return fail(client, message, out);
            }
            Ok(output) => {
                if let Some(vm) = vm.filter(|vm| vm.facts.domid() == Some(domid)) {
                    vm.is_asked = true;
                }
                if matches!(output, Output::SentAcpi) {
                    let told = Told::SentAcpi { domid, how: asking.how };
                    out.push(Action::Told { client, told });
                }
            }
        }
        if asking.reply == ReplyWhen::Asked {
            out.push(Action::Reply { client, reply: Reply::Done { domid } });
        }
    }

    /// Translates replies for single VMs into reports to their client.
    pub(super) fn translate_for_groups(&mut self, out: &mut Vec<Action>) {
        if self.groups.members.is_empty() {
            return;
        }
        for action in std::mem::take(out) {
            self.groups.translate(action, out);
        }
    }
}
