//! A rival: another toolstack that destroys domains of ours and reuses their domids as soon as
//! possible, between any two actions of ours. Any change of its domains or their nodes was intended
//! for another domain.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use xen::{DomId, Uuid};
use xenstore::client::{Batch, Client, Nodes as _};

use sim::Prng;
use sim::SimHost;
use sim::SocketTransport;
use sim::{Dying, Machine};

/// Statistics of its actions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Deeds {
    /// Opportunities to act.
    pub gaps: u64,
    /// Domains of ours that it destroyed.
    pub kills: u64,
    /// Domids of ours that it reused.
    pub taken: u64,
    /// Domids of dead domains that it could not get.
    pub refused: u64,
}

struct Rival {
    host: SimHost,
    store: Client<SocketTransport>,
    prng: Prng,
    /// Domids that domains of ours have or had.
    numbers: BTreeSet<DomId>,
    /// Its own domains, with a count.
    own: BTreeMap<DomId, u64>,
    deeds: Deeds,
    wrongs: Vec<String>,
}

/// A handle of the rival.
#[derive(Clone)]
pub(crate) struct RivalHandle(Rc<RefCell<Rival>>);

/// Its handles, which no VM of ours has.
fn handle(count: u64) -> Uuid {
    let mut bytes = [0xee; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    Uuid(bytes)
}

/// Store nodes of its domains, besides [`link`]. They never change.
fn nodes(domid: DomId) -> [(String, &'static str); 4] {
    [
        (format!("/local/domain/{domid}/name"), "theirs"),
        (format!("/local/domain/{domid}/control/shutdown"), ""),
        (format!("/local/domain/0/backend/vbd/{domid}/51712/state"), "4"),
        (format!("/libxl/{domid}/type"), "pv"),
    ]
}

/// Directories with its domain's domid in their names.
fn directories(domid: DomId) -> [String; 4] {
    [
        format!("/local/domain/{domid}"),
        format!("/local/domain/0/backend/vbd/{domid}"),
        format!("/local/domain/0/backend/vif/{domid}"),
        format!("/libxl/{domid}"),
    ]
}

fn link(domid: DomId) -> String {
    format!("/local/domain/{domid}/vm")
}

impl RivalHandle {
    /// Begins to act in every gap.
    pub(crate) fn start(host: &SimHost, seed: u64) -> Self {
        let rival = Rival {
            host: host.clone(),
            store: host.connect_inside(),
            prng: Prng::new(seed ^ 0x4157),
            numbers: BTreeSet::new(),
            own: BTreeMap::new(),
            deeds: Deeds::default(),
            wrongs: Vec::new(),
        };
        let rival = Rc::new(RefCell::new(rival));
        let weak: Weak<RefCell<Rival>> = Rc::downgrade(&rival);
        host.machine().set_gap(Some(Box::new(move || {
            if let Some(rival) = weak.upgrade() {
                rival.borrow_mut().act();
            }
        })));
        Self(rival)
    }

    /// Acts without an action of ours.
    pub(crate) fn act(&self) {
        self.0.borrow_mut().act();
    }

    /// Checks all its domains and nodes. Every difference is an error.
    pub(crate) fn check(&self) -> Vec<String> {
        let rival = &mut *self.0.borrow_mut();
        for domid in rival.own.keys().copied().collect::<Vec<_>>() {
            rival.check(domid);
        }
        std::mem::take(&mut rival.wrongs)
    }

    pub(crate) fn deeds(&self) -> Deeds {
        self.0.borrow().deeds
    }

    /// Removes everything of its own and stops.
    pub(crate) fn retire(&self) {
        let rival = &mut *self.0.borrow_mut();
        rival.host.machine().set_gap(None);
        for domid in rival.own.keys().copied().collect::<Vec<_>>() {
            rival.give_up(domid);
        }
    }
}

impl Rival {
    fn act(&mut self) {
        self.deeds.gaps += 1;
        let machine = self.host.machine().clone();
        let theirs: Vec<DomId> = {
            let xen = machine.get();
            let alive = xen.domains().filter(|it| it.domid != DomId::DOM0);
            alive.map(|it| it.domid).filter(|domid| !self.own.contains_key(domid)).collect()
        };
        self.numbers.extend(&theirs);
        match self.prng.below(24) {
            0 => self.kill_one(&machine, &theirs),
            1 => {
                if let Some(domid) = self.own.keys().next().copied() {
                    self.check(domid);
                    self.give_up(domid);
                }
            }
            // Domids wrap around: ours reuse those of dead domains too.
            2 => {
                if let Some(domid) = self.numbers.iter().next() {
                    machine.get_mut().go_round_to(*domid);
                }
            }
            3..=8 => self.take_free(&machine),
            _ => {}
        }
    }

    /// Destroys a domain of ours, like `xl destroy` with the wrong domid.
    fn kill_one(&mut self, machine: &Machine, theirs: &[DomId]) {
        let is_victim = |domid: &DomId| {
            let xen = machine.get();
            let lives = xen.domain(*domid).is_some_and(|it| it.dying == Dying::Alive);
            // Domains that another toolstack is still creating are not destroyed.
            lives && self.host.serves(*domid)
        };
        let victims: Vec<DomId> = theirs.iter().copied().filter(is_victim).collect();
        if victims.is_empty() {
            return;
        }
        let at = self.prng.below(victims.len() as u64);
        machine.get_mut().destroy(victims[usize::try_from(at).expect("an index")]);
        self.deeds.kills += 1;
    }

    /// Reuses a domid of ours, if free.
    fn take_free(&mut self, machine: &Machine) {
        let wanted = self.numbers.iter().copied().find(|domid| {
            let xen = machine.get();
            xen.domain(*domid).is_none_or(|it| it.dying == Dying::Dead)
        });
        let Some(domid) = wanted else { return };
        let count = self.deeds.taken + 1;
        if machine.get_mut().take_number(domid, handle(count)).is_err() {
            self.deeds.refused += 1;
            return;
        }
        self.deeds.taken = count;
        self.own.insert(domid, count);
        self.clear_nodes(domid);
        let mut batch = Batch::new();
        batch.write(&link(domid), format!("/vm/{}", handle(count)));
        for (path, value) in nodes(domid) {
            batch.write(&path, value);
        }
        self.store.commit(&batch).expect("the store serves dom0");
    }

    fn clear_nodes(&mut self, domid: DomId) {
        for directory in directories(domid) {
            // It may not exist.
            let _missing = self.store.rm(&directory);
        }
    }

    fn check(&mut self, domid: DomId) {
        let count = self.own[&domid];
        {
            let xen = self.host.machine().get();
            let is_whole = xen.domain(domid).is_some_and(|it| {
                it.handle == handle(count) && it.dying == Dying::Alive && it.pause_count == 1
            });
            if !is_whole {
                self.wrongs.push(format!("domain {domid} of the rival was touched"));
            }
        }
        let mut wanted: Vec<(String, String)> =
            nodes(domid).into_iter().map(|(path, value)| (path, value.to_owned())).collect();
        wanted.push((link(domid), format!("/vm/{}", handle(count))));
        for (path, value) in wanted {
            match self.store.read_optional(&path) {
                Ok(Some(found)) if found == value.as_bytes() => {}
                found => self.wrongs.push(format!("{path} of the rival is {found:?}")),
            }
        }
    }

    fn give_up(&mut self, domid: DomId) {
        self.own.remove(&domid);
        self.host.machine().get_mut().destroy(domid);
        self.clear_nodes(domid);
    }
}
