//! What the host and its VMs did, in bounded memory: for pages and clients that have no Prometheus beside them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use api::DomainRow;

use crate::devices::{Counted, DEVICES_MAX, Devices};
use crate::ring::{Archive, Ring};
use crate::sample::Sample;
use crate::text::{bytes, number};

/// A VM that is gone is remembered for so long.
const GONE_S: u64 = 86_400;
/// VMs with a history; of more, those that are gone for longest are forgotten, and further ones are not recorded.
const VMS_MAX: usize = 4096;
/// A rate over a longer time than this says nothing about now.
const RATE_NS_MAX: u64 = 60_000_000_000;
/// Series of a VM besides those of its devices.
pub const SERIES_MAX: usize = 2;

/// Whose history.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Of<'a> {
    Host,
    /// By its UUID.
    Vm(&'a str),
}

/// A value, and what it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: Cow<'static, str>,
    /// `None` where nothing is known.
    pub values: Vec<Option<f32>>,
}

/// Averages over steps, the earliest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The end of the first step.
    pub from_unix_s: u64,
    pub step_s: u64,
    pub series: Vec<Series>,
}

/// The host or a VM, with its values by name.
pub struct Entity<'a> {
    pub of: Of<'a>,
    rings: Vec<(Cow<'static, str>, &'a Ring)>,
}

impl Entity<'_> {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.rings.iter().map(|(name, _)| &**name)
    }

    pub(crate) fn at(&self, archive: Archive, slot: u64) -> impl Iterator<Item = Option<f32>> {
        self.rings.iter().map(move |(_, ring)| ring.at(archive, slot))
    }
}

#[derive(Debug)]
struct Vm {
    cpu: Ring,
    memory: Ring,
    devices: Devices,
    seen_s: u64,
}

/// What the next sample is compared with.
#[derive(Debug, Default)]
struct Before {
    at_ns: u64,
    /// CPU time by domid, with the UUID: domids are used again.
    cpu_ns: BTreeMap<u16, (String, u64)>,
    counted: Counted,
}

impl Before {
    /// Whether this domain was there. Domids are used again.
    fn has(&self, row: &DomainRow) -> bool {
        self.cpu_ns.get(&row.domid).is_some_and(|(uuid, _)| *uuid == row.uuid)
    }
}

#[derive(Debug)]
pub struct History {
    cpu: Ring,
    memory: Ring,
    memory_free: Ring,
    vms: BTreeMap<String, Vm>,
    before: Before,
    last_s: u64,
    /// CPUs of the host.
    cpus: u64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            cpu: Ring::new(),
            memory: Ring::new(),
            memory_free: Ring::new(),
            vms: BTreeMap::new(),
            before: Before::default(),
            last_s: 0,
            cpus: 0,
        }
    }
}

impl History {
    pub(crate) fn cpus(&self) -> u64 {
        self.cpus
    }

    #[must_use]
    pub fn vms(&self) -> usize {
        self.vms.len()
    }

    /// The memory of all this, nearly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // A UUID as text, as a key and in what is compared with, and the nodes of the maps.
        const NAMES: usize = 256;
        let of_vms = self.vms.len() * (SERIES_MAX * Ring::BYTES + NAMES);
        3 * Ring::BYTES + of_vms + self.devices() * Devices::BYTES_EACH
    }

    /// Disks and interfaces with a history.
    fn devices(&self) -> usize {
        self.vms.values().map(|it| it.devices.count()).sum()
    }

    /// Takes a sample in. One of a time when the daemon did not answer is to be left out.
    pub fn take(&mut self, sample: &Sample) {
        let now_s = sample.unix_s;
        let busy = self.busy(sample);
        let elapsed_ns = sample.at_ns.saturating_sub(self.before.at_ns);
        let share = |busy_ns: u64, cpus: u64| {
            let whole = number(elapsed_ns) * number(cpus);
            (whole > 0.0).then(|| (number(busy_ns) / whole).clamp(0.0, 1.0))
        };
        if let Some(host) = sample.host {
            self.cpus = host.cpus;
            let total_ns = busy.values().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
            if let Some(cpu) = (!busy.is_empty()).then(|| share(total_ns, host.cpus)).flatten() {
                self.cpu.put(now_s, cpu);
            }
            self.memory.put(now_s, number(host.memory_bytes));
            self.memory_free.put(now_s, number(host.memory_free_bytes));
        }
        let counted = Counted::new(&sample.traffic, sample.traffic_at_ns);
        let mut rates = counted.rates(&self.before.counted, RATE_NS_MAX);
        let mut room = self.room_for_devices(now_s);
        let mut taken = BTreeSet::new();
        // A VM that reboots has two domains for a moment; domain 0 is part of the host.
        for row in sample.domains.iter().rev().filter(|it| it.domid != 0 && !it.dying) {
            if !taken.insert(&*row.uuid) || !self.has_room(&row.uuid, now_s) {
                continue;
            }
            let new = || Vm {
                cpu: Ring::new(),
                memory: Ring::new(),
                devices: Devices::default(),
                seen_s: now_s,
            };
            let vm = self.vms.entry(row.uuid.clone()).or_insert_with(new);
            vm.seen_s = now_s;
            vm.memory.put(now_s, bytes(row.mem_kib));
            let busy_ns = busy.get(&row.domid);
            if let Some(cpu) = busy_ns.and_then(|ns| share(*ns, u64::from(row.vcpus_online))) {
                vm.cpu.put(now_s, cpu);
            }
            let mut rates = rates.remove(&row.domid).unwrap_or_default();
            if !self.before.has(row) {
                // The counters before were another domain's.
                rates.iter_mut().for_each(|(_, rate)| *rate = None);
            }
            vm.devices.put(now_s, rates, &mut room);
        }
        self.forget(now_s);
        let of = |it: &DomainRow| (it.domid, (it.uuid.clone(), it.cpu_time_ns));
        let cpu_ns = sample.domains.iter().map(of).collect();
        self.before = Before { at_ns: sample.at_ns, cpu_ns, counted };
        self.last_s = now_s;
    }

    /// For how many more there is room. Those that are gone make some.
    fn room_for_devices(&mut self, now_s: u64) -> usize {
        if self.devices() >= DEVICES_MAX {
            let since_last = now_s.abs_diff(self.last_s);
            self.vms.values_mut().for_each(|vm| vm.devices.forget(now_s, since_last));
        }
        DEVICES_MAX.saturating_sub(self.devices())
    }

    /// CPU time of domains since the sample before, as far as that can be said.
    fn busy(&self, sample: &Sample) -> BTreeMap<u16, u64> {
        let elapsed_ns = sample.at_ns.saturating_sub(self.before.at_ns);
        if elapsed_ns == 0 || elapsed_ns > RATE_NS_MAX {
            return BTreeMap::new();
        }
        let since = |row: &DomainRow| {
            let (_, ns) = self.before.cpu_ns.get(&row.domid).filter(|_| self.before.has(row))?;
            Some((row.domid, row.cpu_time_ns.checked_sub(*ns)?))
        };
        sample.domains.iter().filter_map(since).collect()
    }

    /// Whether this VM can be recorded. The one that is gone for longest makes room.
    fn has_room(&mut self, uuid: &str, now_s: u64) -> bool {
        if self.vms.len() < VMS_MAX || self.vms.contains_key(uuid) {
            return true;
        }
        let gone = self.vms.iter().filter(|(_, vm)| vm.seen_s < self.last_s.min(now_s));
        let longest = gone.min_by_key(|(_, vm)| vm.seen_s).map(|(uuid, _)| uuid.clone());
        longest.is_some_and(|uuid| self.vms.remove(&uuid).is_some())
    }

    fn forget(&mut self, now_s: u64) {
        // What was seen in the future was seen before a clock was set back.
        self.vms.retain(|_, vm| now_s.abs_diff(vm.seen_s) <= GONE_S);
        self.vms.values_mut().for_each(|vm| vm.devices.forget(now_s, GONE_S));
    }

    /// The newest time of which something is known.
    #[must_use]
    pub fn last_s(&self) -> u64 {
        self.last_s
    }

    #[must_use]
    pub fn entity<'a>(&'a self, of: Of<'a>) -> Option<Entity<'a>> {
        let rings = match of {
            Of::Host => vec![
                ("cpu".into(), &self.cpu),
                ("memory".into(), &self.memory),
                ("memory_free".into(), &self.memory_free),
            ],
            Of::Vm(uuid) => {
                let vm = self.vms.get(uuid)?;
                let of_devices = vm.devices.rings().map(|(name, ring)| (name.into(), ring));
                let own = [("cpu".into(), &vm.cpu), ("memory".into(), &vm.memory)];
                own.into_iter().chain(of_devices).collect()
            }
        };
        Some(Entity { of, rings })
    }

    pub(crate) fn all_vms(&self) -> impl Iterator<Item = Entity<'_>> {
        self.vms.keys().filter_map(|uuid| self.entity(Of::Vm(uuid)))
    }

    /// What is known since `from_s`, in steps of an archive; `None` of a VM of which nothing is.
    #[must_use]
    pub fn read(&self, of: Of<'_>, from_s: u64, archive: Archive) -> Option<Span> {
        let entity = self.entity(of)?;
        let slots = archive.slots(from_s, self.last_s);
        let series = entity.rings.iter().map(|(name, ring)| {
            let values = slots.clone().map(|slot| ring.at(archive, slot)).collect();
            Series { name: name.clone(), values }
        });
        let series = series.collect();
        Some(Span { from_unix_s: archive.end_of(*slots.start()), step_s: archive.step_s, series })
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
