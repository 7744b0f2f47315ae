//! Changes of domains: the store reports which changed, and only those are polled.

use xen::{DomId, DomainInfo, ShutdownReason, Uuid};
use xenstore::client::DomainUpdate;
use xenstore::wire::changes::{DomainChange, DomainIdentity, Standing};

use super::{Action, Foreign, Instant, Purpose, Toolstack};
use crate::work::QueryWork;

/// How a VM's domain has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DomainEnd {
    /// The guest stopped, by itself or on request.
    Stopped(ShutdownReason),
    /// It was destroyed.
    Destroyed,
}

impl DomainEnd {
    /// Why the guest stopped.
    pub(super) fn reason(self) -> Option<ShutdownReason> {
        match self {
            Self::Stopped(reason) => Some(reason),
            Self::Destroyed => None,
        }
    }
}

/// How this VM's domain has ended, if it has.
pub(super) fn end_of(info: Option<&DomainInfo>, uuid: Uuid) -> Option<DomainEnd> {
    match info.filter(|info| info.handle == uuid) {
        None => Some(DomainEnd::Destroyed),
        Some(info) if info.flags.dying() => Some(DomainEnd::Destroyed),
        Some(info) => info.flags.shutdown().map(DomainEnd::Stopped),
    }
}

impl Toolstack {
    /// Handles an update from the store.
    pub(super) fn handle_domain_update(
        &mut self,
        now: Instant,
        update: DomainUpdate,
        out: &mut Vec<Action>,
    ) {
        if self.backlog.is_some() {
            // It is not known yet which of them are ours.
            return self.early_updates.push(update);
        }
        match update {
            DomainUpdate::Changes(changes) => self.handle_changes(now, &changes, out),
            DomainUpdate::Everything(all) => {
                let is_left = |it: &&DomainChange| {
                    it.after == Standing::Dead && self.holder(&it.who).is_none()
                };
                let left: Vec<DomainIdentity> =
                    all.iter().filter(is_left).map(|it| it.who).collect();
                release(left, out);
                // Domains not among them may be gone or new: make one list for all that was missed.
                self.poll_all(out);
            }
        }
    }

    fn handle_changes(&mut self, now: Instant, changes: &[DomainChange], out: &mut Vec<Action>) {
        let mut stopped = Vec::new();
        let mut left = Vec::new();
        for change in changes {
            let domid = change.who.domid;
            let end = match change.after {
                Standing::Absent | Standing::Dead => Some(DomainEnd::Destroyed),
                Standing::Stopped(reason) => Some(DomainEnd::Stopped(reason)),
                Standing::Alive => None,
            };
            match (self.holder(&change.who), end) {
                // It may run again by now.
                (Some(_), Some(DomainEnd::Stopped(ShutdownReason::Suspend))) => {
                    self.poll(domid, out);
                }
                (Some(uuid), Some(end)) => stopped.push((uuid, end)),
                (Some(_), None) => {}
                (None, _) if change.after == Standing::Dead => left.push(change.who),
                (None, _) => {}
            }
            if matches!(change.after, Standing::Absent | Standing::Dead)
                && self.foreign.get(&domid).is_some_and(|it| it.handle == change.who.handle)
            {
                self.foreign_gone(domid, out);
            }
        }
        release(left, out);
        for (uuid, end) in stopped {
            self.domain_ended(now, uuid, end, out);
        }
    }

    /// The VM of this very domain.
    fn holder(&self, who: &DomainIdentity) -> Option<Uuid> {
        let vm = self.vms.at(who.domid)?;
        DomainIdentity::from(vm.facts.incarnation.domain?).is(who).then_some(vm.uuid)
    }

    /// Handles the end of a VM's domain; during an operation, the domain is polled again after it.
    pub(super) fn domain_ended(
        &mut self,
        now: Instant,
        uuid: Uuid,
        end: DomainEnd,
        out: &mut Vec<Action>,
    ) {
        // An earlier change in the same update may have removed it.
        let Some(vm) = self.vms.get_mut(&uuid) else { return };
        if vm.operation.is_some() || vm.after_plugs.is_some() {
            vm.poll_again = true;
        } else {
            self.domain_stopped(now, uuid, end, out);
        }
    }

    /// Polls one domain, at a cost independent of the number of domains.
    pub(super) fn poll(&mut self, domid: DomId, out: &mut Vec<Action>) {
        if self.backlog.is_none() {
            self.give_out(Purpose::Poll { domid }, QueryWork::Find { domid, known: None }, out);
        }
    }

    /// Handles the poll of a single domain.
    pub(super) fn handle_polled(
        &mut self,
        now: Instant,
        domid: DomId,
        info: Option<&DomainInfo>,
        name: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let ours = self.vms.at(domid);
        match (ours, info) {
            (Some(vm), info) => {
                let uuid = vm.uuid;
                if let Some(end) = end_of(info, uuid) {
                    self.domain_ended(now, uuid, end, out);
                }
            }
            // A dying domain has no name any more, and no more changes.
            (None, Some(info)) if !info.flags.dying() && !self.vms.contains_key(&info.handle) => {
                // A domain without a name yet is read again.
                if name.is_some() {
                    self.foreign.insert(domid, Foreign { handle: info.handle, name });
                }
            }
            (None, _) => self.foreign_gone(domid, out),
        }
    }
}

fn release(domains: Vec<DomainIdentity>, out: &mut Vec<Action>) {
    if !domains.is_empty() {
        out.push(Action::Release { domains });
    }
}
