//! Another toolstack on the same host, acting outside our hypercalls: it destroys domains and
//! reuses their domids. And the judge, which knows the domain that ours intends to act on.

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, DomainRef, Errno, Life, Uuid};

use super::SimXen;
use super::domain::Creation;
use crate::prng::Prng;

/// Compares the intended domain with the one that a call reaches.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Domid and true life of the domain that the current work is for.
    meant: Option<(DomId, u64)>,
    /// The true life of each identity, from its first use.
    lives: BTreeMap<DomainRef, u64>,
    wrongs: Vec<String>,
}

/// Where in a walked list others create and destroy domains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Schedule {
    /// Anywhere.
    Scattered,
    /// At the walk's cursor: the domain just reported is destroyed, the next is created or
    /// destroyed.
    AtTheCursor,
    /// Behind the cursor: a new domain is missed, a destroyed one was reported.
    Behind,
    /// Ahead of the cursor.
    Ahead,
    /// One is destroyed and another takes its domid at once.
    Reuse,
    /// All at once, now and then.
    Floods,
}

impl Schedule {
    pub const ALL: [Self; 6] =
        [Self::Scattered, Self::AtTheCursor, Self::Behind, Self::Ahead, Self::Reuse, Self::Floods];
}

/// Creation and destruction of domains during a walk.
#[derive(Debug)]
pub(super) struct Unrest {
    prng: Prng,
    schedule: Schedule,
    /// Domids from 1 up to this one are created and destroyed, unless in use by others.
    last: u16,
    own: BTreeSet<DomId>,
    events: u64,
}

impl Unrest {
    fn number(&mut self, first: u16, last: u16) -> DomId {
        let (first, last) = (first.max(1), last.min(self.last));
        let among = u64::from(last.saturating_sub(first)) + 1;
        DomId(first + u16::try_from(self.prng.below(among)).expect("a number of a domain"))
    }

    /// Chooses the domains to create or destroy before the walk reads `cursor` and above.
    fn choose(&mut self, cursor: DomId) -> Vec<DomId> {
        let number = match self.schedule {
            Schedule::Scattered => self.number(1, self.last),
            Schedule::AtTheCursor => {
                self.number(cursor.0.saturating_sub(1), cursor.0.saturating_add(1))
            }
            Schedule::Behind => self.number(1, cursor.0),
            Schedule::Ahead => self.number(cursor.0.min(self.last), self.last),
            Schedule::Reuse => {
                let next = self.own.range(cursor..).next().or_else(|| self.own.first());
                match next.copied() {
                    Some(it) if self.prng.below(4) > 0 => return vec![it, it],
                    _ => self.number(1, self.last),
                }
            }
            Schedule::Floods if self.prng.below(64) == 0 => {
                return (1..=self.last).map(DomId).collect();
            }
            Schedule::Floods => return Vec::new(),
        };
        vec![number]
    }
}

/// The handle of these domains.
pub const UNREST_HANDLE: Uuid = Uuid([0xdd; 16]);

/// The life of no domain.
const NOBODY: u64 = 0;

impl SimXen {
    /// Another toolstack creates a domain with exactly this domid, as with `domid=` in a
    /// configuration file.
    ///
    /// # Errors
    /// EEXIST if the domid is in use, ENOMEM.
    pub fn take_number(&mut self, domid: DomId, handle: Uuid) -> Result<(), Errno> {
        let domid = self.choose_domid(domid)?;
        let creation = Creation {
            handle,
            flags: 0,
            emulation: 0,
            vcpus_max: 1,
            evtchn_port_max: 1023,
            grant_frames_max: 64,
            altp2m: 0,
        };
        self.insert_domain(domid, &creation)
    }

    /// Another toolstack destroys a domain, if there is one with this domid.
    pub fn destroy(&mut self, domid: DomId) {
        if domid != DomId::DOM0 {
            self.kill_domain(domid);
        }
    }

    /// Makes this domid the next to be allocated, if it is free.
    pub fn go_round_to(&mut self, domid: DomId) {
        self.domid_rover = domid.0.saturating_sub(1);
    }

    /// From now on others create and destroy domains up to this domid during every listing.
    pub fn begin_unrest(&mut self, last: DomId, schedule: Schedule, seed: u64) {
        let (prng, own) = (Prng::new(seed), BTreeSet::new());
        self.unrest = Some(Unrest { prng, schedule, last: last.0, own, events: 0 });
    }

    /// Number of changes during listings.
    #[must_use]
    pub fn unrests(&self) -> u64 {
        self.unrest.as_ref().map_or(0, |unrest| unrest.events)
    }

    /// One step of a walk over all domains, before it reads `cursor` and above.
    pub(super) fn unrest(&mut self, cursor: DomId) {
        let Some(mut unrest) = self.unrest.take() else { return };
        for _ in 0..unrest.prng.below(3) {
            for domid in unrest.choose(cursor) {
                if unrest.own.remove(&domid) {
                    self.kill_domain(domid);
                    unrest.events += 1;
                } else if self.take_number(domid, UNREST_HANDLE).is_ok() {
                    unrest.own.insert(domid);
                    unrest.events += 1;
                }
            }
        }
        if unrest.prng.below(16) == 0 {
            // The walk is slow: the RCU readers of destroyed domains end, and their domids are
            // free.
            self.pass_time();
        }
        self.unrest = Some(unrest);
    }

    /// From now on checks that every action of the toolstack reaches the intended domain.
    pub fn begin_judging(&mut self) {
        self.judge = Some(Judge::default());
    }

    /// Actions that reached another domain than intended.
    #[must_use]
    pub fn wrongs(&self) -> &[String] {
        self.judge.as_ref().map_or(&[], |judge| &judge.wrongs)
    }

    /// The toolstack begins work for this domain, or for none.
    pub(crate) fn mean(&mut self, domain: Option<DomainRef>) {
        let Some(judge) = &mut self.judge else { return };
        judge.meant = domain.map(|name| {
            let is_it = |it: &&super::Domain| match name.life {
                Life::Unique(id) => it.unique_id == id,
                Life::Counted { handle, .. } => it.handle == handle,
            };
            let there = self.domains.get(&name.domid).filter(is_it);
            let life = there.map_or(NOBODY, |it| it.unique_id);
            (name.domid, *judge.lives.entry(name).or_insert(life))
        });
    }

    /// The following work is for the domain just created.
    pub(super) fn mean_new(&mut self, domid: DomId) {
        let life = self.domains.get(&domid).map_or(NOBODY, |it| it.unique_id);
        if let Some(judge) = &mut self.judge {
            judge.meant = Some((domid, life));
        }
    }

    /// The toolstack acts on the domain with this domid.
    pub(super) fn judge(&mut self, call: &str, domid: DomId) {
        let Some(judge) = &mut self.judge else { return };
        // Without a domain there is nothing to check.
        let Some(domain) = self.domains.get(&domid) else { return };
        if judge.meant != Some((domid, domain.unique_id)) {
            judge.wrongs.push(format!(
                "{call} met domain {domid} of life {:x} and meant {:x?}",
                domain.unique_id, judge.meant
            ));
        }
    }
}
