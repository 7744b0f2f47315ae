//! Domains known to the store: introduced ones, and others named in permission lists.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use xen::{DomId, ShutdownReason, Uuid};

use crate::acl::{Being, Life};
use crate::quota::{Quota, Seen};
use crate::server::memory::MemoryNotice;
use crate::server::write_rate::Credit;
use crate::server::{ConnId, DomainNews, Host};

/// Features that the ring page of a domain can offer. Source: xen `docs/misc/xenstore-ring.txt`.
pub(super) const FEATURES: u32 = crate::ring::FEATURE_RECONNECTION
    | crate::ring::FEATURE_ERROR
    | crate::ring::FEATURE_WATCH_DEPTH
    | crate::ring::FEATURE_DOMID_ANY;

/// One domain in Xen's listing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DomainState {
    pub domid: DomId,
    /// It has shut down, for any reason, and still exists.
    pub shutdown: bool,
    /// Why it shut down, if known.
    pub reason: Option<ShutdownReason>,
    /// It is being torn down: for the store it is gone.
    pub dying: bool,
    /// Xen's unique id, if available (since 4.20).
    pub unique_id: Option<u64>,
    pub handle: Uuid,
}

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) life: Life,
    /// Xen's unique id, if available, since the domid may be reused.
    pub(super) unique_id: Option<u64>,
    /// Its ring, once it was introduced.
    pub(super) connection: Option<ConnId>,
    /// Its shutdown was reported; not again before `RESUME`.
    pub(super) shutdown: bool,
    /// It has all rights of this domain.
    pub(super) target: Option<Being>,
    pub(super) features: u32,
    pub(super) quota: Quota,
    /// Its maximum use of each limit.
    pub(super) seen: Seen,
    /// Its write credit; only while it is introduced.
    pub(super) credit: Credit,
    /// It was told to the operator that the guest was slowed down.
    pub(super) slowed: bool,
    pub(super) memory_notice: MemoryNotice,
}

impl Domain {
    pub(super) fn new(life: Life, quota: Quota) -> Self {
        Self {
            life,
            unique_id: None,
            connection: None,
            shutdown: false,
            target: None,
            features: FEATURES,
            quota,
            seen: Seen::default(),
            credit: Credit::default(),
            slowed: false,
            memory_notice: MemoryNotice::default(),
        }
    }
}

/// A domain's change since the last listing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Shutdown,
    Gone,
}

#[derive(Debug)]
pub(super) struct Domains {
    by_id: BTreeMap<DomId, Domain>,
    /// Domains that have the rights of another, by its domid.
    helpers: BTreeMap<DomId, BTreeSet<DomId>>,
    last_life: u64,
    /// Default quota of new domains.
    pub(super) quota: Quota,
}

impl Domains {
    pub(super) fn new(quota: Quota) -> Self {
        Self { by_id: BTreeMap::new(), helpers: BTreeMap::new(), last_life: 0, quota }
    }

    pub(super) fn introduce_control_domain(&mut self, connection: ConnId) {
        let domain = Domain { connection: Some(connection), ..Domain::new(Life(0), self.quota) };
        let known = self.by_id.insert(DomId::DOM0, domain);
        assert!(known.is_none(), "the control domain was introduced already");
    }

    pub(super) fn get(&self, domid: DomId) -> Option<&Domain> {
        self.by_id.get(&domid)
    }

    pub(super) fn get_mut(&mut self, domid: DomId) -> Option<&mut Domain> {
        self.by_id.get_mut(&domid)
    }

    pub(super) fn introduced(&self, domid: DomId) -> Option<ConnId> {
        self.by_id.get(&domid)?.connection
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DomId, &Domain)> {
        self.by_id.iter().map(|(domid, domain)| (*domid, domain))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (DomId, &mut Domain)> {
        self.by_id.iter_mut().map(|(domid, domain)| (*domid, domain))
    }

    /// The record of an existing domain; a new one begins a life.
    pub(super) fn get_or_begin(&mut self, host: &mut dyn Host, domid: DomId) -> &mut Domain {
        self.get_or_begin_with(domid, || host.unique_id(domid))
    }

    /// As [`get_or_begin`](Self::get_or_begin); `unique_id` is asked if it is a new one.
    pub(super) fn get_or_begin_with(
        &mut self,
        domid: DomId,
        unique_id: impl FnOnce() -> Option<u64>,
    ) -> &mut Domain {
        self.by_id.entry(domid).or_insert_with(|| {
            self.last_life += 1;
            let unique_id = unique_id();
            Domain { unique_id, ..Domain::new(Life(self.last_life), self.quota) }
        })
    }

    /// The last assigned life.
    pub(super) fn last_life(&self) -> u64 {
        self.last_life
    }

    pub(super) fn set_last_life(&mut self, life: u64) {
        self.last_life = life;
    }

    /// Restores a domain after a restart.
    pub(super) fn restore(&mut self, domid: DomId, domain: Domain) {
        self.last_life = self.last_life.max(domain.life.0);
        let target = domain.target;
        self.forget_target(domid);
        self.by_id.insert(domid, domain);
        if let Some(target) = target {
            self.set_target(domid, target);
        }
    }

    /// Gives a domain all rights of another.
    pub(super) fn set_target(&mut self, helper: DomId, target: Being) {
        self.forget_target(helper);
        if let Some(domain) = self.by_id.get_mut(&helper) {
            domain.target = Some(target);
            self.helpers.entry(target.domid).or_default().insert(helper);
        }
    }

    fn forget_target(&mut self, helper: DomId) {
        let target = self.by_id.get_mut(&helper).and_then(|domain| domain.target.take());
        let Some(target) = target else { return };
        if let Some(helpers) = self.helpers.get_mut(&target.domid) {
            helpers.remove(&helper);
            if helpers.is_empty() {
                self.helpers.remove(&target.domid);
            }
        }
    }

    /// The rings of the domain and of those with its rights.
    pub(super) fn rings_with_rights_of(&self, domid: DomId) -> impl Iterator<Item = ConnId> {
        let helpers = self.helpers.get(&domid).into_iter().flatten().copied();
        core::iter::once(domid).chain(helpers).filter_map(|domid| self.introduced(domid))
    }

    /// Ends a domain's life.
    pub(super) fn end(&mut self, domid: DomId) -> Option<Domain> {
        self.forget_target(domid);
        self.by_id.remove(&domid)
    }

    pub(super) fn lives(&self, being: Being) -> bool {
        self.by_id.get(&being.domid).is_some_and(|domain| domain.life == being.life)
    }

    pub(super) fn target(&self, domid: DomId) -> Option<Being> {
        self.by_id.get(&domid)?.target
    }

    pub(super) fn quota(&self, domid: DomId) -> Quota {
        self.by_id.get(&domid).map_or(self.quota, |domain| domain.quota)
    }

    /// Compares with the result of a poll and records changes.
    pub(super) fn compare(&mut self, news: &DomainNews) -> Vec<(DomId, Fate)> {
        let mut fates = Vec::new();
        match news {
            DomainNews::All(listing) => {
                let listed: BTreeMap<DomId, &DomainState> =
                    listing.iter().map(|state| (state.domid, state)).collect();
                for (&domid, domain) in &mut self.by_id {
                    let fate = fate(domid, domain, listed.get(&domid).copied());
                    fates.extend(fate.map(|fate| (domid, fate)));
                }
            }
            DomainNews::Changed(changed) => {
                for (domid, state) in changed {
                    let Some(domain) = self.by_id.get_mut(domid) else { continue };
                    let fate = fate(*domid, domain, state.as_ref());
                    fates.extend(fate.map(|fate| (*domid, fate)));
                }
            }
        }
        fates
    }
}

/// A domain's change to this state, recorded.
fn fate(domid: DomId, domain: &mut Domain, state: Option<&DomainState>) -> Option<Fate> {
    if domid == DomId::DOM0 {
        return None;
    }
    match state {
        Some(state) if !state.dying && !differ(state.unique_id, domain.unique_id) => {
            let is_new = state.shutdown && !domain.shutdown;
            domain.shutdown |= state.shutdown;
            is_new.then_some(Fate::Shutdown)
        }
        _ => Some(Fate::Gone),
    }
}

/// Whether both are known and not the same.
fn differ(one: Option<u64>, other: Option<u64>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}
