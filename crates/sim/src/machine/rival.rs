//! Another toolstack on the same host, which acts without hypercalls of ours: it kills domains and takes
//! their numbers. And the judge, who knows which domain ours means.

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, DomainRef, Errno, Life, Uuid};

use super::SimXen;
use super::domain::Creation;
use crate::prng::Prng;

/// Compares the domain that is meant with the one that is met.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The number and the true life of the domain that the present work is about.
    meant: Option<(DomId, u64)>,
    /// The true life behind each name, from the time when it was first used.
    lives: BTreeMap<DomainRef, u64>,
    wrongs: Vec<String>,
}

/// Where in a list that is being walked others create and destroy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Schedule {
    /// Anywhere.
    Scattered,
    /// Right where the walk is: what it has just told of goes, what it would tell of next comes or goes.
    AtTheCursor,
    /// Among those that it has passed: what comes there is missed, what goes there was told of.
    Behind,
    /// Among those that it has yet to tell of.
    Ahead,
    /// One goes and another takes its number at once.
    Reuse,
    /// All at once, now and then.
    Floods,
}

impl Schedule {
    pub const ALL: [Self; 6] =
        [Self::Scattered, Self::AtTheCursor, Self::Behind, Self::Ahead, Self::Reuse, Self::Floods];
}

/// Domains that come and go while a list is walked.
#[derive(Debug)]
pub(super) struct Unrest {
    prng: Prng,
    schedule: Schedule,
    /// Numbers from 1 up to this one come and go, unless somebody else has them.
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

    /// Who comes or goes while the walk is about to look for `cursor` and those above.
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

/// The handle of domains that come and go.
pub const UNREST_HANDLE: Uuid = Uuid([0xdd; 16]);

/// The life of nobody.
const NOBODY: u64 = 0;

impl SimXen {
    /// Somebody else makes a domain of exactly this number, as `domid=` in a configuration file asks for.
    ///
    /// # Errors
    /// EEXIST if the number is taken, ENOMEM.
    pub fn take_number(&mut self, domid: DomId, handle: Uuid) -> Result<(), Errno> {
        let domid = self.choose_domid(domid)?;
        let creation = Creation {
            handle,
            flags: 0,
            emulation: 0,
            vcpus_max: 1,
            evtchn_port_max: 1023,
            grant_frames_max: 64,
        };
        self.insert_domain(domid, &creation)
    }

    /// Somebody else destroys a domain. Nothing happens if there is none of this number.
    pub fn destroy(&mut self, domid: DomId) {
        if domid != DomId::DOM0 {
            self.kill_domain(domid);
        }
    }

    /// So many domains were made and destroyed that this number is given out next, if it is free.
    pub fn go_round_to(&mut self, domid: DomId) {
        self.domid_rover = domid.0.saturating_sub(1);
    }

    /// From now on others create and destroy domains up to this number in the middle of every list.
    pub fn begin_unrest(&mut self, last: DomId, schedule: Schedule, seed: u64) {
        let (prng, own) = (Prng::new(seed), BTreeSet::new());
        self.unrest = Some(Unrest { prng, schedule, last: last.0, own, events: 0 });
    }

    /// What came or went in the middle of lists.
    #[must_use]
    pub fn unrests(&self) -> u64 {
        self.unrest.as_ref().map_or(0, |unrest| unrest.events)
    }

    /// One step of a walk through all domains, which is about to look for `cursor` and those above.
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
            // The walk is slow: the last readers of those that went leave, and their numbers are free.
            self.pass_time();
        }
        self.unrest = Some(unrest);
    }

    /// From now on every action of the toolstack is judged by whether it meets the domain that is meant.
    pub fn begin_judging(&mut self) {
        self.judge = Some(Judge::default());
    }

    /// What met another domain than was meant.
    #[must_use]
    pub fn wrongs(&self) -> &[String] {
        self.judge.as_ref().map_or(&[], |judge| &judge.wrongs)
    }

    /// The toolstack begins work about this domain, or about none that exists.
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

    /// What follows is about the domain that was just made.
    pub(super) fn mean_new(&mut self, domid: DomId) {
        let life = self.domains.get(&domid).map_or(NOBODY, |it| it.unique_id);
        if let Some(judge) = &mut self.judge {
            judge.meant = Some((domid, life));
        }
    }

    /// The toolstack acts on whoever bears this number.
    pub(super) fn judge(&mut self, call: &str, domid: DomId) {
        let Some(judge) = &mut self.judge else { return };
        // Where nobody is, nothing is met.
        let Some(domain) = self.domains.get(&domid) else { return };
        if judge.meant != Some((domid, domain.unique_id)) {
            judge.wrongs.push(format!(
                "{call} met domain {domid} of life {:x} and meant {:x?}",
                domain.unique_id, judge.meant
            ));
        }
    }
}
