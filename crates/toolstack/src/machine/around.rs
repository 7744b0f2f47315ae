//! Networks and the host as objects of the live model, and who waits for a look before it is told.
//!
//! What changes on the host by itself is looked at every few seconds, and only while somebody follows these classes;
//! whoever begins to read them waits for a look if the last one is old. Which networks VMs are to be on is known without
//! that: it is counted when a device is marked, so that no look goes through all VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use live::Cursor;
use xen::Uuid;

use super::live::{Classes, ObjectClass, ObjectKey};
use super::vdis::concerns_vdis;
use super::{Action, ClientId, Instant, Purpose, Toolstack};
use crate::around::{Around, HostFacts, HostNetwork, NetworkKind, place_of};
use crate::layout::{DeviceKind, DeviceRef};
use crate::network::Network;
use crate::work::{Failure, Output, QueryWork};

/// Looks for one reader that waits and is told of nothing. It may have gone, which nobody says.
const LOOKS_MAX: u32 = 12;
/// How long readers that begin wait for a look: Open vSwitch may hang.
pub(super) const PATIENCE_NS: u64 = 2_000_000_000;
/// Readers that wait for a look; if another comes, the first is told what is known.
const EARLY_MAX: usize = 256;

/// A network, with what VMs have to do with it.
#[derive(Clone, Debug)]
pub struct NetworkObject {
    pub kind: NetworkKind,
    /// What the host has of it; `None` if it has none such.
    pub host: Option<HostNetwork>,
    /// Of VMs, whether these run or not.
    pub interfaces: usize,
}

/// What VMs want of a network.
#[derive(Debug)]
struct Wanted {
    kind: NetworkKind,
    interfaces: usize,
}

/// A reader that waits for a look, and what it has asked for.
#[derive(Debug)]
struct Early {
    client: ClientId,
    cursor: Option<Cursor>,
    classes: Classes,
}

/// What is known of the host, and when somebody looked.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// How often somebody looks while others follow; `None`: nobody does.
    every_ns: Option<u64>,
    pub(super) host: Option<HostFacts>,
    networks: BTreeMap<Arc<str>, HostNetwork>,
    wanted: BTreeMap<Arc<str>, Wanted>,
    /// The network of each interface of a VM.
    places: BTreeMap<(Uuid, DeviceRef), Arc<str>>,
    looked_at: Option<Instant>,
    is_looking: bool,
    early: Vec<Early>,
    /// When the first of these has waited long enough.
    early_until: Option<Instant>,
}

impl Surroundings {
    /// When what is known is too old to be told; `None` if nobody looks.
    fn old_at(&self) -> Option<Instant> {
        let every = self.every_ns?;
        Some(self.looked_at.map_or(Instant(0), |at| Instant(at.0 + every)))
    }

    pub(super) fn network(&self, name: &str) -> Option<NetworkObject> {
        let (host, wanted) = (self.networks.get(name), self.wanted.get(name));
        let kind = host.map(|it| it.kind).or_else(|| wanted.map(|it| it.kind))?;
        let interfaces = wanted.map_or(0, |it| it.interfaces);
        Some(NetworkObject { kind, host: host.cloned(), interfaces })
    }

    /// The network of a VM's interface.
    pub(super) fn place(&self, uuid: Uuid, device: DeviceRef) -> Option<&Arc<str>> {
        self.places.get(&(uuid, device))
    }

    /// An interface is to be on this network now, or is none any more. Returns the networks that have changed by that.
    fn move_interface(
        &mut self,
        of: (Uuid, DeviceRef),
        place: Option<(Arc<str>, NetworkKind)>,
    ) -> Vec<Arc<str>> {
        let before = self.places.get(&of);
        if before == place.as_ref().map(|(name, _)| name) {
            return Vec::new();
        }
        let before = self.places.remove(&of);
        if let Some(name) = &before
            && let Some(wanted) = self.wanted.get_mut(name)
        {
            wanted.interfaces -= 1;
            if wanted.interfaces == 0 {
                self.wanted.remove(name);
            }
        }
        let after = place.map(|(name, kind)| {
            if !self.networks.contains_key(&name) && !self.wanted.contains_key(&name) {
                // Whether the host has it is not known yet.
                self.looked_at = None;
            }
            let wanted = self.wanted.entry(Arc::clone(&name));
            wanted.or_insert(Wanted { kind, interfaces: 0 }).interfaces += 1;
            self.places.insert(of, Arc::clone(&name));
            name
        });
        before.into_iter().chain(after).collect()
    }
}

/// Whether somebody who follows these classes wants to hear of the host.
pub(super) fn concerns_host(classes: &Classes) -> bool {
    let of_host = [ObjectClass::Host, ObjectClass::Network];
    classes.is_empty() || of_host.iter().any(|class| classes.contains(class))
}

impl Toolstack {
    /// Sets how often the host is looked at while somebody follows what is told of it. Nobody looks before.
    pub fn set_looks_every(&mut self, ns: u64) {
        self.surroundings.every_ns = Some(ns);
    }

    /// Notes where an interface of a VM is to be.
    pub(super) fn note_place(&mut self, uuid: Uuid, device: DeviceRef, is_there: bool) {
        if device.kind != DeviceKind::Vif {
            return;
        }
        let config = self.config_with(uuid, device).filter(|_| is_there);
        let vif = config.and_then(|it| it.vifs.iter().find(|vif| vif.devid == device.devid));
        let network = vif.and_then(|vif| Network::of(vif).ok().flatten());
        let place = network.as_ref().map(place_of);
        for name in self.surroundings.move_interface((uuid, device), place) {
            self.touch_network(name);
        }
    }

    fn touch_network(&mut self, name: Arc<str>) {
        let is_there = self.surroundings.network(&name).is_some();
        self.live.set(ObjectKey::Network(name), is_there);
    }

    /// When somebody is to look, for those who follow.
    pub(super) fn look_due(&self) -> Option<Instant> {
        let surroundings = &self.surroundings;
        let old_at = surroundings.old_at().filter(|_| !surroundings.is_looking);
        old_at.filter(|_| self.live.has_reader(concerns_host))
    }

    /// Looks around, if it is time.
    pub(super) fn look_in_time(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.early_until().is_some_and(|until| until <= now) {
            self.answer_early(out);
        }
        if self.look_due().is_some_and(|due| due <= now) {
            self.look_around(out);
        }
    }

    /// When those who wait for a look have waited long enough.
    pub(super) fn early_until(&self) -> Option<Instant> {
        self.surroundings.early_until
    }

    /// Whether somebody waits for a look at such.
    pub(super) fn has_early(&self, concerns: impl Fn(&Classes) -> bool) -> bool {
        self.surroundings.early.iter().any(|it| concerns(&it.classes))
    }

    /// Answers those for whom nobody looks any more.
    pub(super) fn answer_settled(&mut self, now: Instant, out: &mut Vec<Action>) {
        let is_looking = self.surroundings.is_looking;
        let is_reading = self.contents.is_awaited(now);
        let early = std::mem::take(&mut self.surroundings.early);
        let still = |it: &Early| {
            (is_looking && concerns_host(&it.classes)) || (is_reading && concerns_vdis(&it.classes))
        };
        let (early, settled) = early.into_iter().partition(still);
        self.surroundings.early = early;
        if self.surroundings.early.is_empty() {
            self.surroundings.early_until = None;
        }
        self.tell_early(settled, out);
    }

    fn answer_early(&mut self, out: &mut Vec<Action>) {
        self.surroundings.early_until = None;
        let early = std::mem::take(&mut self.surroundings.early);
        self.tell_early(early, out);
    }

    fn tell_early(&mut self, early: Vec<Early>, out: &mut Vec<Action>) {
        for Early { client, cursor, classes } in early {
            self.tell_objects(client, cursor, &classes, out);
        }
    }

    /// Has a reader wait for a look, if what it would be told is old. Returns what it asked for if it need not.
    pub(super) fn look_first(
        &mut self,
        now: Instant,
        client: ClientId,
        (cursor, classes): (Option<Cursor>, Classes),
        out: &mut Vec<Action>,
    ) -> Option<(Option<Cursor>, Classes)> {
        let is_old = self.surroundings.old_at().is_some_and(|at| at <= now);
        let is_old = is_old && concerns_host(&classes);
        let is_unread = concerns_vdis(&classes) && self.read_srs(now, true, out);
        if !is_old && !is_unread {
            return Some((cursor, classes));
        }
        if self.surroundings.early.len() == EARLY_MAX {
            let first = self.surroundings.early.remove(0);
            self.tell_objects(first.client, first.cursor, &first.classes, out);
        }
        self.surroundings.early_until.get_or_insert(Instant(now.0 + PATIENCE_NS));
        self.surroundings.early.push(Early { client, cursor, classes });
        if is_old && !self.surroundings.is_looking {
            self.look_around(out);
        }
        None
    }

    fn look_around(&mut self, out: &mut Vec<Action>) {
        self.surroundings.is_looking = true;
        let known = self.surroundings.host.as_ref().map(|it| Arc::clone(&it.version));
        let wanted = self.surroundings.wanted.iter();
        let used: BTreeSet<Arc<str>> = wanted
            .filter(|(_, it)| matches!(it.kind, NetworkKind::Routed | NetworkKind::Nat))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        self.give_out(Purpose::Around, QueryWork::LookAround { known, used }, out);
    }

    pub(super) fn looked_around(
        &mut self,
        now: Instant,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        self.surroundings.is_looking = false;
        self.surroundings.looked_at = Some(now);
        let Around { host, networks } = match result {
            Ok(Output::Around(around)) => *around,
            // What was known stays, until the next look.
            _ => Around::default(),
        };
        if host.is_some() && host != self.surroundings.host {
            self.surroundings.host = host;
            self.live.set(ObjectKey::Host, true);
        }
        if let Some(now_there) = networks {
            let before = std::mem::replace(&mut self.surroundings.networks, now_there);
            let after = &self.surroundings.networks;
            let names: BTreeSet<Arc<str>> = before.keys().chain(after.keys()).cloned().collect();
            let is_other = |name: &Arc<str>| before.get(name) != after.get(name);
            let changed: Vec<Arc<str>> = names.into_iter().filter(is_other).collect();
            for name in changed {
                self.touch_network(name);
            }
        }
        self.count_look(LOOKS_MAX, concerns_host, out);
        self.answer_settled(now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Reply, Request};

    const SECOND: u64 = 1_000_000_000;

    fn ask(machine: &mut Toolstack, at: u64, client: u64) -> Vec<Action> {
        let mut out = Vec::new();
        let request = Request::Objects { cursor: None, classes: Classes::new(), waits: false };
        let event = Event::Request { client: ClientId(client), request };
        machine.handle(Instant(at), event, &mut out);
        out
    }

    fn answered(out: &[Action]) -> Vec<u64> {
        let client = |it: &Action| match it {
            Action::Reply { client, reply: Reply::Objects(_) } => Some(client.0),
            _ => None,
        };
        out.iter().filter_map(client).collect()
    }

    #[test]
    fn a_look_that_hangs_holds_up_nobody_for_long_and_is_the_only_one() {
        let mut machine = Toolstack::new();
        machine.backlog = None;
        machine.set_looks_every(5 * SECOND);
        let out = ask(&mut machine, 10 * SECOND, 1);
        let [Action::Work { id, .. }] = out.as_slice() else { panic!("{out:?}") };
        assert!(ask(&mut machine, 11 * SECOND, 2).is_empty(), "somebody looks already");
        assert_eq!(machine.next_wakeup(), Some(Instant(12 * SECOND)));
        let mut out = Vec::new();
        machine.handle(Instant(12 * SECOND), Event::Tick, &mut out);
        assert_eq!(answered(&out), [1, 2]);
        assert_eq!(machine.next_wakeup(), None);
        assert!(ask(&mut machine, 30 * SECOND, 3).is_empty());
        let mut out = Vec::new();
        let result = Err(Failure("the switch is gone".to_owned()));
        let ended = Event::Worked { work: *id, result, cost: crate::work::Cost::default() };
        machine.handle(Instant(31 * SECOND), ended, &mut out);
        assert_eq!(answered(&out), [3]);
        // What failed is not tried again at once.
        assert_eq!(answered(&ask(&mut machine, 32 * SECOND, 4)), [4]);
    }

    #[test]
    fn a_crowd_that_begins_is_bounded() {
        let mut machine = Toolstack::new();
        machine.backlog = None;
        machine.set_looks_every(SECOND);
        let all = (0..300).flat_map(|client| answered(&ask(&mut machine, 2 * SECOND, client)));
        let early: Vec<u64> = all.collect();
        assert_eq!(early, (0..44).collect::<Vec<_>>());
    }
}
