//! Last known states of domains, their changes, and followers.
//!
//! A poll of all domains costs O(domains); it is made here once for all, and followers get the
//! changes. Dead domains that have not been released keep their ring page mapped, and so their
//! domids in use: see [`crate::wire::changes`].

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use xen::{DomId, Errno, Hypervisor, ShutdownReason, Xen};

use crate::Error;
use crate::server::domains::DomainState;
use crate::server::{ConnId, Host, Server};
use crate::wire::changes::{
    DomainChange, DomainIdentity, ENTRIES_MAX, Manner, Position, Push, PushKind, Request, Standing,
    encode_followed,
};
use crate::wire::{self, MessageType};

/// Changes kept for a follower that reconnects: a few for each domain of a busy host.
const LOG_MAX: usize = 8192;

/// Result of a poll of the domains.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DomainNews {
    /// All domains.
    All(Vec<DomainState>),
    /// Those that changed since the last poll; `None` is gone.
    Changed(Vec<(DomId, Option<DomainState>)>),
}

/// Scope of a poll of the domains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PollScope {
    Everything,
    /// Changes since the previous poll, if Xen keeps them; otherwise everything.
    Changes,
}

/// Polls the domains: one hypercall for all, or, where Xen keeps changes, a few for each changed
/// domain. Only for the owner of VIRQ_DOM_EXC.
///
/// # Errors
/// The hypercall's errno.
pub fn poll_domains<H: Hypervisor>(xen: &mut Xen<H>, what: PollScope) -> Result<DomainNews, Errno> {
    if !xen.abi().tells_unique_ids() {
        let listing = xen.domains()?;
        return Ok(DomainNews::All(listing.iter().map(|info| state_of(info, None)).collect()));
    }
    let mut changed = Vec::new();
    while let Some(state) = xen.next_changed()? {
        changed.push(state);
    }
    match what {
        PollScope::Everything => {
            // The changes were read first, so the list is at least as new.
            let known: BTreeMap<DomId, u64> =
                changed.iter().map(|state| (state.domid, state.unique_id)).collect();
            let listing = xen.domains()?;
            let mut states = Vec::with_capacity(listing.len());
            for info in &listing {
                let unique_id = match known.get(&info.domid) {
                    Some(&id) if id != 0 => Some(id),
                    _ => xen.life_state(info.domid)?.map(|state| state.unique_id),
                };
                states.push(state_of(info, unique_id));
            }
            Ok(DomainNews::All(states))
        }
        PollScope::Changes => {
            let mut news = Vec::with_capacity(changed.len());
            for state in changed {
                // It contains neither handle nor reason.
                let info = if state.exists { xen.domain(state.domid)? } else { None };
                let now = info.map(|info| state_of(&info, Some(state.unique_id)));
                news.push((state.domid, now));
            }
            Ok(DomainNews::Changed(news))
        }
    }
}

/// Polls one domain.
///
/// # Errors
/// Any errno of the hypercall but ESRCH.
pub fn poll_domain<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
) -> Result<Option<DomainState>, Errno> {
    // Some of these numbers have special meanings in Xen.
    if domid.0 >= DomId::FIRST_RESERVED {
        return Ok(None);
    }
    let mut unique_id = None;
    if xen.abi().tells_unique_ids() {
        let Some(state) = xen.life_state(domid)? else { return Ok(None) };
        unique_id = Some(state.unique_id);
    }
    Ok(xen.domain(domid)?.map(|info| state_of(&info, unique_id)))
}

fn state_of(info: &xen::DomainInfo, unique_id: Option<u64>) -> DomainState {
    DomainState {
        domid: info.domid,
        shutdown: info.flags.shutdown().is_some(),
        reason: info.flags.shutdown(),
        dying: info.flags.dying(),
        unique_id,
        handle: info.handle,
    }
}

impl DomainState {
    fn identity(&self) -> DomainIdentity {
        DomainIdentity { domid: self.domid, unique_id: self.unique_id, handle: self.handle }
    }

    fn standing(&self) -> Standing {
        if self.dying {
            Standing::Dead
        } else if self.shutdown {
            Standing::Stopped(self.reason.unwrap_or(ShutdownReason::Crash))
        } else {
            Standing::Alive
        }
    }
}

#[derive(Debug)]
pub(super) struct DomainTracker {
    /// Identifies this run of the daemon.
    epoch: u64,
    /// Number of the last change.
    seq: u64,
    log: VecDeque<DomainChange>,
    known: BTreeMap<DomId, (DomainIdentity, Standing)>,
    followers: BTreeSet<ConnId>,
    was_followed: bool,
    /// Dead, with their ring page mapped.
    kept: BTreeMap<DomId, DomainIdentity>,
    /// Served domains that were released before their death was noticed.
    released_early: BTreeMap<DomId, DomainIdentity>,
}

impl Default for DomainTracker {
    fn default() -> Self {
        Self {
            epoch: 1,
            seq: 0,
            log: VecDeque::new(),
            known: BTreeMap::new(),
            followers: BTreeSet::new(),
            was_followed: false,
            kept: BTreeMap::new(),
            released_early: BTreeMap::new(),
        }
    }
}

impl DomainTracker {
    /// Records a domain's state and the resulting changes.
    fn note(&mut self, domid: DomId, now: Option<&DomainState>, out: &mut Vec<DomainChange>) {
        let was = self.known.get(&domid).copied();
        let is = now.map(|state| (state.identity(), state.standing()));
        match (was, is) {
            (Some((who, before)), Some((now, after))) if who.is(&now) => {
                if before != after {
                    out.push(DomainChange { who: now, before, after });
                }
            }
            _ => {
                // Another domain may have its domid by now.
                if let Some((who, before)) = was {
                    out.push(DomainChange { who, before, after: Standing::Absent });
                }
                if let Some((who, after)) = is {
                    out.push(DomainChange { who, before: Standing::Absent, after });
                }
            }
        }
        match is {
            Some(is) => drop(self.known.insert(domid, is)),
            None => drop(self.known.remove(&domid)),
        }
    }

    fn compare(&mut self, news: &DomainNews) -> Vec<DomainChange> {
        let mut changes = Vec::new();
        match news {
            DomainNews::All(listing) => {
                let listed: BTreeSet<DomId> = listing.iter().map(|state| state.domid).collect();
                let gone: Vec<DomId> =
                    self.known.keys().copied().filter(|domid| !listed.contains(domid)).collect();
                for domid in gone {
                    self.note(domid, None, &mut changes);
                }
                for state in listing.iter().filter(|state| state.domid != DomId::DOM0) {
                    self.note(state.domid, Some(state), &mut changes);
                }
            }
            DomainNews::Changed(news) => {
                for (domid, state) in news.iter().filter(|(domid, _)| *domid != DomId::DOM0) {
                    self.note(*domid, state.as_ref(), &mut changes);
                }
            }
        }
        changes
    }

    fn resumed(&mut self, domid: DomId) -> Option<DomainChange> {
        let (who, standing) = self.known.get_mut(&domid)?;
        let before = *standing;
        if !matches!(before, Standing::Stopped(_)) {
            return None;
        }
        *standing = Standing::Alive;
        Some(DomainChange { who: *who, before, after: Standing::Alive })
    }

    /// At the end of a domain's record: whether its page stays mapped until the domain is released.
    /// Only for dead domains.
    pub(super) fn keeps(&mut self, domid: DomId, dead: Option<DomainIdentity>) -> bool {
        let early = self.released_early.remove(&domid);
        let Some(who) = dead else { return false };
        let was_released = early.is_some_and(|it| it.is(&who));
        let keeps = self.was_followed && !was_released;
        if keeps {
            self.kept.insert(who.domid, who);
        }
        keeps
    }

    /// The connection was closed.
    pub(super) fn forget_follower(&mut self, id: ConnId) {
        self.followers.remove(&id);
    }

    fn messages(epoch: u64, seq: u64, changes: &[DomainChange]) -> Vec<Vec<u8>> {
        let mut seq = seq;
        let mut messages = Vec::new();
        for entries in changes.chunks(ENTRIES_MAX) {
            let kind = PushKind::Changes;
            messages.push(message(&Push { epoch, seq, kind, entries: entries.to_vec() }));
            seq += entries.len() as u64;
        }
        messages
    }

    /// The messages for a follower from `position`, and their manner.
    fn messages_from(&self, position: Position) -> (Vec<Vec<u8>>, Manner) {
        let missed = self.seq.checked_sub(position.seq).and_then(|n| usize::try_from(n).ok());
        match missed {
            Some(missed) if position.epoch == self.epoch && missed <= self.log.len() => {
                let changes: Vec<_> = self.log.range(self.log.len() - missed..).copied().collect();
                (Self::messages(self.epoch, position.seq + 1, &changes), Manner::Resumed)
            }
            _ => {
                let all: Vec<DomainChange> = self
                    .known
                    .values()
                    .map(|&(who, after)| DomainChange { who, before: Standing::Absent, after })
                    .collect();
                let (epoch, seq) = (self.epoch, self.seq);
                let mut parts: Vec<_> = all.chunks(ENTRIES_MAX).map(<[_]>::to_vec).collect();
                let end = parts.pop().unwrap_or_default();
                let part = |entries| message(&Push { epoch, seq, kind: PushKind::Part, entries });
                let mut messages: Vec<_> = parts.into_iter().map(part).collect();
                messages.push(message(&Push { epoch, seq, kind: PushKind::End, entries: end }));
                (messages, Manner::Everything)
            }
        }
    }
}

fn message(push: &Push) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, MessageType::DomainChanges.code(), 0, 0, &[&push.encode()]);
    bytes
}

impl Server {
    /// Sets the epoch, which distinguishes this run of the daemon from others.
    pub fn begin_epoch(&mut self, epoch: u64) {
        // 0 means no epoch.
        self.changes.epoch = epoch.max(1);
    }

    /// Clients that follow changes of domains. Their positions are not passed on to a new process;
    /// they reconnect and continue at their position.
    #[must_use]
    pub fn followers(&self) -> Vec<ConnId> {
        self.changes.followers.iter().copied().collect()
    }

    /// Dead domains whose domids are kept in use.
    #[must_use]
    pub fn domains_kept(&self) -> usize {
        self.changes.kept.len()
    }

    /// Handles the result of a poll: sends all changes to followers.
    pub(super) fn tell_changes(&mut self, host: &mut dyn Host, news: &DomainNews) {
        let changes = self.changes.compare(news);
        for change in &changes {
            let domid = change.who.domid;
            // The domain no longer exists in Xen, whatever is mapped here.
            if change.after == Standing::Absent
                && self.changes.kept.get(&domid).is_some_and(|kept| kept.is(&change.who))
            {
                self.changes.kept.remove(&domid);
                host.drop_kept_ring(domid);
            }
        }
        self.tell_followers(&changes);
    }

    /// A domain that had stopped was resumed. No poll would show it if the domain stops again soon.
    pub(super) fn tell_resumed(&mut self, domid: DomId) {
        let change = self.changes.resumed(domid);
        self.tell_followers(change.as_slice());
    }

    fn tell_followers(&mut self, changes: &[DomainChange]) {
        if changes.is_empty() {
            return;
        }
        let (epoch, first) = (self.changes.epoch, self.changes.seq + 1);
        self.changes.seq += changes.len() as u64;
        self.changes.log.extend(changes);
        let excess = self.changes.log.len().saturating_sub(LOG_MAX);
        self.changes.log.drain(..excess);
        let messages = DomainTracker::messages(epoch, first, changes);
        for id in self.followers() {
            self.push(id, &messages);
        }
    }

    fn push(&mut self, id: ConnId, messages: &[Vec<u8>]) {
        if let Some(connection) = self.connections.get_mut(&id) {
            for message in messages {
                connection.output.message(message.clone());
            }
            self.ready.insert(id);
        }
    }

    pub(super) fn domain_changes(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match Request::decode(payload)? {
            Request::Follow(position) => {
                let (messages, manner) = self.changes.messages_from(position);
                self.changes.followers.insert(id);
                self.changes.was_followed = true;
                self.push(id, &messages);
                let position = Position { epoch: self.changes.epoch, seq: self.changes.seq };
                encode_followed(reply, position, manner);
            }
            Request::Release(domains) => {
                for who in domains {
                    self.release_kept(host, who);
                }
                reply.extend_from_slice(b"OK\0");
            }
        }
        Ok(())
    }

    fn release_kept(&mut self, host: &mut dyn Host, who: DomainIdentity) {
        let domid = who.domid;
        let is_served =
            |server: &Self| server.domains.introduced(domid).is_some() && domid != DomId::DOM0;
        // A client that releases a domain knows that it is dead, maybe before our poll, and waits
        // for its domid.
        if is_served(self) && !self.changes.kept.contains_key(&domid) {
            let dead = host.domain(domid).filter(|state| state.dying && state.identity().is(&who));
            if dead.is_some() {
                self.handle_domain_news(host, &DomainNews::Changed(Vec::from([(domid, dead)])));
            }
        }
        if self.changes.kept.get(&domid).is_some_and(|kept| kept.is(&who)) {
            self.changes.kept.remove(&domid);
            host.drop_kept_ring(domid);
        } else if is_served(self) {
            self.changes.released_early.insert(domid, who);
        }
    }

    /// The identity of a dead domain, from its last listing.
    pub(super) fn identity_of_dead(news: &DomainNews, domid: DomId) -> Option<DomainIdentity> {
        let dead = |state: &&DomainState| state.domid == domid && state.dying;
        match news {
            DomainNews::All(listing) => {
                let at = listing.binary_search_by_key(&domid, |state| state.domid).ok()?;
                Some(&listing[at]).filter(dead).map(DomainState::identity)
            }
            DomainNews::Changed(news) => news
                .iter()
                .filter_map(|(_, state)| state.as_ref())
                .find(dead)
                .map(DomainState::identity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xen::Uuid;

    fn state(domid: u16, byte: u8) -> DomainState {
        DomainState { domid: DomId(domid), handle: Uuid([byte; 16]), ..DomainState::default() }
    }

    #[test]
    fn a_number_that_went_to_another_domain_is_an_end_and_a_beginning() {
        let mut changes = DomainTracker::default();
        changes.compare(&DomainNews::All([state(0, 0), state(1, 1)].into()));
        let seen = changes.compare(&DomainNews::All([state(0, 0), state(1, 2)].into()));
        let told: Vec<_> = seen.iter().map(|c| (c.who.handle.0[0], c.before, c.after)).collect();
        let (absent, alive) = (Standing::Absent, Standing::Alive);
        assert_eq!(told, [(1, alive, absent), (2, absent, alive)]);
        let none = changes.compare(&DomainNews::All([state(0, 0), state(1, 2)].into()));
        assert_eq!(none, []);
    }

    #[test]
    fn what_is_not_named_among_changes_stays_as_it_was() {
        let mut changes = DomainTracker::default();
        changes.compare(&DomainNews::All([state(0, 0), state(1, 1), state(2, 2)].into()));
        let dead = DomainState { dying: true, ..state(1, 1) };
        let seen = changes.compare(&DomainNews::Changed([(DomId(1), Some(dead))].into()));
        assert_eq!((seen.len(), seen[0].after), (1, Standing::Dead));
        let seen = changes.compare(&DomainNews::Changed([(DomId(1), None)].into()));
        assert_eq!((seen.len(), seen[0].before), (1, Standing::Dead));
        assert_eq!(changes.known.len(), 1);
    }
}
