//! Events: changes of VMs' states, each with a revision from which a reader can continue.
//!
//! The last changes are kept, with no state per reader. A reader requests the changes after a
//! revision and is answered at once, or with the next change; one that is too late gets the current
//! states instead. So a slow reader costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use xen::{DomId, Uuid};

use super::operation::Outcome;
use super::{Action, ClientId, Instant, Reply, Toolstack, policy};
use crate::plan::Start;
use crate::work::Survey;

/// Changes that are kept.
const EVENTS_MAX: usize = 4096;
/// Changes in one answer.
const EVENTS_PER_ANSWER: usize = 512;
/// Clients that may wait for changes or states at a time; if another comes, the one that has waited
/// longest is answered early.
const READERS_MAX: usize = 256;

/// State of a VM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VmState {
    Starting,
    Running,
    Paused,
    /// Its guest has suspended; its domain is kept.
    Suspended,
    Stopping,
    /// Its domain has stopped and is kept for inspection.
    Preserved,
    /// Its domain could not be taken down, and a further destroy tries again; or its record or its definition
    /// cannot be read.
    Stuck,
    /// It is defined and has no domain.
    Down,
    /// It does not exist, or no longer.
    Gone,
}

impl VmState {
    pub const ALL: [Self; 9] = [
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Suspended,
        Self::Stopping,
        Self::Preserved,
        Self::Stuck,
        Self::Down,
        Self::Gone,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Suspended => "suspended",
            Self::Stopping => "stopping",
            Self::Preserved => "preserved",
            Self::Stuck => "stuck",
            Self::Down => "down",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for VmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A VM's state between operations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rest {
    Running,
    Paused,
    Suspended,
    Preserved,
    Stuck,
}

impl Rest {
    fn of(state: VmState) -> Option<Self> {
        match state {
            VmState::Running => Some(Self::Running),
            VmState::Paused => Some(Self::Paused),
            VmState::Suspended => Some(Self::Suspended),
            VmState::Preserved => Some(Self::Preserved),
            VmState::Stuck => Some(Self::Stuck),
            VmState::Starting | VmState::Stopping | VmState::Down | VmState::Gone => None,
        }
    }

    pub(super) fn state(self) -> VmState {
        match self {
            Self::Running => VmState::Running,
            Self::Paused => VmState::Paused,
            Self::Suspended => VmState::Suspended,
            Self::Preserved => VmState::Preserved,
            Self::Stuck => VmState::Stuck,
        }
    }

    /// Whether its domain runs no more.
    pub(super) fn is_down(self) -> bool {
        match self {
            Self::Running | Self::Paused => false,
            Self::Suspended | Self::Preserved | Self::Stuck => true,
        }
    }
}

/// A VM's current state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VmStatus {
    pub uuid: Uuid,
    pub name: String,
    pub domid: Option<DomId>,
    pub state: VmState,
    /// Of its last change.
    pub revision: u64,
}

/// A change of a VM's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StateChange {
    pub revision: u64,
    pub at: Instant,
    pub uuid: Uuid,
    pub name: String,
    pub domid: Option<DomId>,
    pub before: VmState,
    pub after: VmState,
    /// The reason as text; empty if the states are enough.
    pub reason: String,
}

/// Answer to a reader.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StateChanges {
    /// The revision to continue from.
    pub revision: u64,
    /// Present if no revision was given, or if it is too old.
    pub snapshot: Option<Vec<VmStatus>>,
    /// The given revision is older than the kept ones, or another daemon's.
    pub too_old: bool,
    pub changes: Vec<StateChange>,
}

#[derive(Debug)]
struct Reader {
    client: ClientId,
    since: u64,
}

/// A client that waits for a VM's state.
#[derive(Debug)]
struct Waiter {
    client: ClientId,
    target: String,
    /// The VM that is meant. `None` until there is one; whoever has its name or domid later is not meant.
    vm: Option<Uuid>,
    state: VmState,
}

/// The last changes, and the states as reported to readers. Not used for decisions: see
/// [`Toolstack::state_of`].
#[derive(Debug, Default)]
pub(super) struct Log {
    changes: VecDeque<StateChange>,
    /// Of the last change.
    revision: u64,
    /// Revision before the first kept change.
    oldest: u64,
    /// VMs that exist, with the state last reported.
    told: BTreeMap<Uuid, VmStatus>,
    readers: VecDeque<Reader>,
    waiters: VecDeque<Waiter>,
    /// Revision up to which waiters were notified.
    waiters_revision: u64,
}

impl Log {
    /// A log whose revisions are above `revision`. Revisions of a daemon must be above those of its
    /// predecessor.
    pub(super) fn after(revision: u64) -> Self {
        Self { revision, oldest: revision, ..Self::default() }
    }

    /// Of the last change.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The kept changes after a revision.
    pub(super) fn after_revision(&self, revision: u64) -> impl Iterator<Item = &StateChange> {
        let first = self.changes.partition_point(|change| change.revision <= revision);
        self.changes.iter().skip(first)
    }

    /// A VM has another name. Its state is the same, so nobody is woken.
    pub(super) fn rename(&mut self, uuid: Uuid, name: &str) {
        if let Some(status) = self.told.get_mut(&uuid) {
            name.clone_into(&mut status.name);
        }
    }

    fn put(&mut self, change: StateChange) {
        self.revision = change.revision;
        if change.after == VmState::Gone {
            self.told.remove(&change.uuid);
        } else {
            let status = VmStatus {
                uuid: change.uuid,
                name: change.name.clone(),
                domid: change.domid,
                state: change.after,
                revision: change.revision,
            };
            self.told.insert(change.uuid, status);
        }
        self.changes.push_back(change);
        if self.changes.len() > EVENTS_MAX {
            let first = self.changes.pop_front().expect("there are many");
            self.oldest = first.revision;
        }
    }

    fn read(&self, since: Option<u64>) -> StateChanges {
        let known = since.filter(|since| (self.oldest..=self.revision).contains(since));
        let Some(since) = known else {
            return StateChanges {
                revision: self.revision,
                snapshot: Some(self.told.values().cloned().collect()),
                too_old: since.is_some(),
                changes: Vec::new(),
            };
        };
        let first = self.changes.partition_point(|change| change.revision <= since);
        let changes: Vec<StateChange> =
            self.changes.iter().skip(first).take(EVENTS_PER_ANSWER).cloned().collect();
        let revision = changes.last().map_or(since, |last| last.revision);
        StateChanges { revision, snapshot: None, too_old: false, changes }
    }
}

impl Toolstack {
    /// The state of a VM, derived from its resting state and its operation.
    pub(super) fn state_of(&self, uuid: Uuid) -> VmState {
        match self.vms.get(&uuid) {
            Some(vm) => match vm.operation.map(|id| &self.operations[&id].outcome) {
                Some(Outcome::Created { .. } | Outcome::Rebooted | Outcome::Received { .. }) => {
                    VmState::Starting
                }
                Some(
                    Outcome::Gone
                    | Outcome::Replaced { .. }
                    | Outcome::Reverted { .. }
                    | Outcome::Failed { .. }
                    | Outcome::Moved { .. }
                    | Outcome::NotReceived { .. },
                ) => VmState::Stopping,
                // Its restart is delayed.
                None if vm.restart_at.is_some() => VmState::Starting,
                Some(
                    Outcome::Suspended { .. }
                    | Outcome::Saved { .. }
                    | Outcome::Dumped { .. }
                    | Outcome::Sent { .. }
                    | Outcome::TakenBack { .. }
                    | Outcome::Plugged { .. }
                    | Outcome::PlugFailed { .. }
                    | Outcome::Unplugged { .. },
                )
                | None => vm.rest.state(),
            },
            None if self.unread.contains_key(&uuid) => VmState::Stuck,
            None if self.definitions.contains_key(&uuid) => VmState::Down,
            None => VmState::Gone,
        }
    }

    /// The answer to somebody who waits, if it is due. A VM that is not known is gone; for those who wait for its end
    /// it is down as well.
    fn awaited(&self, waiter: &mut Waiter) -> Option<Reply> {
        let Waiter { target, vm, state, .. } = waiter;
        if vm.is_none() {
            let ours = self.vms.meant(target).map(|vm| vm.uuid);
            *vm = ours.or_else(|| self.unread(target)).or_else(|| self.defined(target));
        }
        let ended = matches!(state, VmState::Gone | VmState::Down);
        match vm.map(|uuid| self.state_of(uuid)) {
            None | Some(VmState::Gone) if ended => Some(Reply::Ok),
            None => None,
            Some(VmState::Gone) => {
                Some(Reply::Failed(format!("{target}: was destroyed before it was {state}")))
            }
            Some(now) => (now == *state).then_some(Reply::Ok),
        }
    }

    /// Records a VM's new state. The same state is not an event.
    pub(super) fn changed(
        &mut self,
        now: Instant,
        uuid: Uuid,
        after: VmState,
        reason: impl Into<String>,
    ) {
        if let (Some(vm), Some(rest)) = (self.vms.get_mut(&uuid), Rest::of(after)) {
            vm.rest = rest;
        }
        debug_assert_eq!(self.state_of(uuid), after, "{uuid} is not what is told of it");
        let known = self.log.told.get(&uuid);
        let before = known.map_or(VmState::Gone, |status| status.state);
        let vm = self.vms.get(&uuid);
        let unread = self.unread.get(&uuid);
        let domid = vm.and_then(|vm| vm.facts.domid()).or_else(|| unread?.domid());
        let name = vm
            .map(|vm| vm.config.name.clone())
            .or_else(|| unread.map(|it| it.name.clone()))
            .or_else(|| self.definitions.get(&uuid).map(|it| it.config.name.clone()))
            .or_else(|| known.map(|status| status.name.clone()));
        let (Some(name), true) = (name, before != after) else { return };
        self.vms.marks.mark(uuid);
        self.live.all_devices.mark(uuid);
        let revision = self.log.revision + 1;
        let reason = reason.into();
        self.log.put(StateChange { revision, at: now, uuid, name, domid, before, after, reason });
    }

    /// Records a requested state of a running VM, unless an operation is in progress.
    pub(super) fn came_to(&mut self, now: Instant, uuid: Uuid, state: VmState) {
        if self.vms.get(&uuid).is_some_and(|vm| vm.operation.is_none()) {
            self.changed(now, uuid, state, "asked for");
        }
    }

    /// Records complete VMs of an earlier daemon.
    pub(super) fn found_whole(&mut self, now: Instant, survey: &Survey, half_made: &[Uuid]) {
        for info in survey.domains.iter().filter(|info| !info.flags.dying()) {
            if self.vms.contains_key(&info.handle) && !half_made.contains(&info.handle) {
                let state = if info.flags.paused() { VmState::Paused } else { VmState::Running };
                self.changed(now, info.handle, state, "found when the daemon began");
            }
        }
    }

    /// Records VMs of an earlier daemon that this one cannot read.
    pub(super) fn found_unread(&mut self, now: Instant, out: &mut Vec<Action>) {
        let found = self.unread.iter().map(|(uuid, it)| (*uuid, it.why.clone(), it.refusal()));
        for (uuid, why, message) in found.collect::<Vec<_>>() {
            self.changed(now, uuid, VmState::Stuck, why);
            out.push(Action::Note { message });
        }
    }

    /// An operation on a VM begins.
    pub(super) fn note_begin(&mut self, now: Instant, uuid: Uuid, outcome: &Outcome) {
        let vm = &self.vms[&uuid];
        let stopped = vm.stopped.map_or("its domain was incomplete", policy::word).to_owned();
        let (state, reason) = match outcome {
            Outcome::Created { .. } => (VmState::Starting, String::new()),
            Outcome::Received { incoming, .. } => {
                (VmState::Starting, format!("migrated from {}", incoming.from))
            }
            Outcome::Moved { leaving, .. } => {
                (VmState::Stopping, format!("migrated to {}", leaving.to))
            }
            Outcome::Reverted { revert, .. } => {
                (VmState::Stopping, format!("reverted to {}", revert.name()))
            }
            Outcome::NotReceived { message, .. } => (VmState::Stopping, message.clone()),
            Outcome::Rebooted => (VmState::Starting, stopped),
            Outcome::Replaced { .. } => {
                (VmState::Stopping, format!("{stopped}; starts again with another configuration"))
            }
            Outcome::Gone if vm.condemned => {
                (VmState::Stopping, vm.why.clone().unwrap_or_else(|| "destroyed".to_owned()))
            }
            Outcome::Gone => (VmState::Stopping, vm.why.clone().unwrap_or(stopped)),
            Outcome::Failed { message, .. } => (VmState::Stopping, message.clone()),
            Outcome::Suspended { .. }
            | Outcome::Saved { .. }
            | Outcome::Dumped { .. }
            | Outcome::Sent { .. }
            | Outcome::TakenBack { .. }
            | Outcome::Plugged { .. }
            | Outcome::PlugFailed { .. }
            | Outcome::Unplugged { .. } => return,
        };
        self.changed(now, uuid, state, reason);
    }

    /// A VM has started.
    pub(super) fn note_started(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) {
        let vm = self.vms.get_mut(&uuid).expect("a VM that has started is known");
        vm.began = Some(now);
        vm.is_asked = false;
        let name = vm.config.name.clone();
        let state = match vm.facts.incarnation.completion.map(|it| it.start) {
            Some(Start::Paused) => VmState::Paused,
            _ => VmState::Running,
        };
        self.changed(now, uuid, state, "");
        self.runs_without_its_save(uuid, out);
        self.start_ended(now, uuid, &name, None, out);
    }

    /// A VM has been taken down and is forgotten, but for its definition.
    pub(super) fn note_down(&mut self, now: Instant, uuid: Uuid, reason: &str) {
        let is_defined = self.definitions.contains_key(&uuid);
        let state = if is_defined { VmState::Down } else { VmState::Gone };
        self.changed(now, uuid, state, reason);
    }

    /// Answers with the changes after a revision. If there are none and the client waits, the
    /// answer comes with the next.
    pub(super) fn read_events(
        &mut self,
        client: ClientId,
        since: Option<u64>,
        waits: bool,
        out: &mut Vec<Action>,
    ) {
        let changes = self.log.read(since);
        if let (Some(since), true, true) =
            (since, waits, changes.snapshot.is_none() && changes.changes.is_empty())
        {
            if self.log.readers.len() == READERS_MAX {
                let longest = self.log.readers.pop_front().expect("there are many");
                self.answer_reader(&longest, out);
            }
            self.log.readers.push_back(Reader { client, since });
            return;
        }
        out.push(Action::Reply { client, reply: Reply::Changes(Box::new(changes)) });
    }

    fn answer_reader(&self, reader: &Reader, out: &mut Vec<Action>) {
        let reply = Reply::Changes(Box::new(self.log.read(Some(reader.since))));
        out.push(Action::Reply { client: reader.client, reply });
    }

    /// Answers once the VM is in that state.
    pub(super) fn wait_for_state(
        &mut self,
        client: ClientId,
        target: String,
        state: VmState,
        out: &mut Vec<Action>,
    ) {
        let mut waiter = Waiter { client, target, vm: None, state };
        if let Some(reply) = self.awaited(&mut waiter) {
            out.push(Action::Reply { client, reply });
            return;
        }
        if self.log.waiters.len() == READERS_MAX {
            let longest = self.log.waiters.pop_front().expect("there are many");
            let message = format!("more than {READERS_MAX} clients wait; this one waited longest");
            out.push(Action::Reply { client: longest.client, reply: Reply::Failed(message) });
        }
        self.log.waiters.push_back(waiter);
    }

    /// Notifies waiting clients of changes.
    pub(super) fn tell_of_changes(&mut self, out: &mut Vec<Action>) {
        let revision = self.log.revision;
        if self.log.readers.front().is_some_and(|reader| reader.since != revision) {
            for reader in std::mem::take(&mut self.log.readers) {
                self.answer_reader(&reader, out);
            }
        }
        if std::mem::replace(&mut self.log.waiters_revision, revision) == revision {
            return;
        }
        for mut waiter in std::mem::take(&mut self.log.waiters) {
            match self.awaited(&mut waiter) {
                Some(reply) => out.push(Action::Reply { client: waiter.client, reply }),
                None => self.log.waiters.push_back(waiter),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64, after: VmState) -> StateChange {
        StateChange {
            revision,
            at: Instant(revision),
            uuid: Uuid([1; 16]),
            name: "a".to_owned(),
            domid: None,
            before: VmState::Gone,
            after,
            reason: String::new(),
        }
    }

    #[test]
    fn a_reader_goes_on_from_any_revision_that_is_kept() {
        let mut log = Log::after(100);
        let total = EVENTS_MAX as u64 + 10;
        for revision in 101..=100 + total {
            log.put(change(revision, VmState::Running));
        }
        let newest = 100 + total;
        assert_eq!(log.read(Some(newest)).changes, []);
        let last = log.read(Some(newest - 2));
        assert_eq!((last.changes.len(), last.revision, last.too_old), (2, newest, false));
        let oldest = log.read(Some(110));
        assert_eq!((oldest.changes.len(), oldest.too_old), (EVENTS_PER_ANSWER, false));
        assert_eq!(oldest.revision, 110 + EVENTS_PER_ANSWER as u64);
        for stranger in [0, 100, 109, newest + 1] {
            let answer = log.read(Some(stranger));
            let states = answer.snapshot.map(|states| states.len());
            assert_eq!((answer.too_old, states, answer.revision), (true, Some(1), newest));
        }
        let first = log.read(None);
        assert_eq!((first.too_old, first.snapshot.map(|it| it.len())), (false, Some(1)));
    }
}
