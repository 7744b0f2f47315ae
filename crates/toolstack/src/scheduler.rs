//! The scheduler: a sliding window under nested limits.
//!
//! An item waits until each limit above it has room: the host's, its VM's, its storage
//! repository's, its backend's and its class's. As soon as a permit is returned the next item is
//! granted one, so nothing waits for the slowest of a group. VMs take turns; requests of clients go
//! before bulk work, which still gets every eighth permit. Steps that only wait for a guest or a
//! backend hold no permit.
//!
//! Teardowns, short writes and calls, attaches, reads of kernels and requests on SRs have the same
//! limits but separate counts: a destroy never waits for a start, and has precedence; a start waits
//! neither for a copy nor for another VM's slow storage or kernel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use xen::Uuid;

/// The set of counts that an item belongs to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Track {
    /// Short writes to the store and short hypercalls of any operation.
    Short,
    Teardown,
    Build,
    /// Attaches of disks, whose storage may be slow. No build waits for them.
    Attach,
    /// Reading and parsing of kernels, which may be slow and are untrusted. Nothing else waits for
    /// them.
    Load,
    /// Suspends, for which guests may take as long as they like.
    Suspend,
    /// Copies of domains' memory to and from files. No build waits for them.
    Memory,
    /// Domains that are sent to other hosts.
    Send,
    /// Domains that come from other hosts. None of them waits for one that is sent there.
    Receive,
    /// Words with other hosts, while a guest is suspended. They wait for nothing else.
    Talk,
    /// Waiting for another host's word, before a VM is ours.
    Listen,
    /// Hotplug scripts that connect devices, which may take as long as they are let.
    Connect,
    /// Those that disconnect them.
    Disconnect,
    /// Scans of SRs. They do not wait for changes.
    Scan,
    /// Changes of SRs and VDIs, which may take hours.
    Change,
}

impl Track {
    const ALL: [Self; 15] = [
        Self::Short,
        Self::Teardown,
        Self::Build,
        Self::Attach,
        Self::Load,
        Self::Suspend,
        Self::Memory,
        Self::Send,
        Self::Receive,
        Self::Talk,
        Self::Listen,
        Self::Connect,
        Self::Disconnect,
        Self::Scan,
        Self::Change,
    ];
}

/// Classes of operations, each with a limit.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Class {
    /// Attach and detach of disks.
    Storage,
    /// Creating, building and destroying domains.
    Domain,
    /// Short writes to the store and short hypercalls.
    Short,
    /// Changes of a VM's record: one at a time for each VM, because each writes all of it.
    Record,
    /// Reading and parsing of kernels.
    Image,
    /// Suspends.
    Suspend,
    /// Saves and restores, which copy all of a domain's memory.
    Memory,
    /// Domains that are sent to other hosts: they share this one's links.
    Send,
    /// Domains that come from them.
    Receive,
    /// Hotplug scripts.
    Script,
    /// Scans of SRs.
    Scan,
    /// Changes of an SR and its VDIs: one at a time for each SR.
    Change,
}

impl Class {
    pub const ALL: [Self; 12] = [
        Self::Storage,
        Self::Domain,
        Self::Short,
        Self::Record,
        Self::Image,
        Self::Suspend,
        Self::Memory,
        Self::Send,
        Self::Receive,
        Self::Script,
        Self::Scan,
        Self::Change,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Domain => "domain",
            Self::Short => "short",
            Self::Record => "record",
            Self::Image => "image",
            Self::Suspend => "suspend",
            Self::Memory => "memory",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Script => "script",
            Self::Scan => "scan",
            Self::Change => "change",
        }
    }
}

/// Whether a client waits.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Priority {
    Interactive,
    Bulk,
}

/// Domains whose memory may be copied to or from files at a time. A copy uses one CPU and the disk as
/// far as they go, so more would only take time from each other and from everything else.
pub const MEMORY_COPIES: usize = 4;

/// Hotplug scripts that may run at a time, to connect devices and to disconnect them.
pub const SCRIPTS: usize = 8;
/// Those of one VM, so that no VM whose scripts hang keeps others from theirs.
const SCRIPTS_OF_VM: usize = 2;

/// Limits of permits; each holds for each [`Track`] separately.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// For the whole host: `worker-pool-size`.
    pub host: usize,
    /// For one VM.
    pub vm: usize,
    /// For one storage repository.
    pub sr: usize,
    /// For one backend.
    pub backend: usize,
    /// For one class; others have only the host's limit.
    pub classes: BTreeMap<Class, usize>,
}

impl Default for Limits {
    fn default() -> Self {
        let classes = [Class::Memory, Class::Send, Class::Receive];
        let mut classes: BTreeMap<_, _> = classes.map(|class| (class, MEMORY_COPIES)).into();
        classes.insert(Class::Script, SCRIPTS);
        Self { host: 16, vm: 10, sr: 12, backend: 16, classes }
    }
}

impl Limits {
    /// Limits for a host with this many workers: no single storage gets all of them.
    #[must_use]
    pub fn for_workers(workers: usize) -> Self {
        let sr = (workers * 3 / 4).max(1);
        Self { host: workers, backend: workers, sr, ..Self::default() }
    }

    /// The same limits, at least 1 each: with 0 nothing would ever be granted.
    #[must_use]
    fn at_least_one(mut self) -> Self {
        let limits = [&mut self.host, &mut self.vm, &mut self.sr, &mut self.backend];
        limits.into_iter().chain(self.classes.values_mut()).for_each(|it| *it = (*it).max(1));
        self
    }

    fn class(&self, class: Class) -> usize {
        self.classes.get(&class).copied().unwrap_or(usize::MAX)
    }

    fn vm_class(&self, class: Class) -> usize {
        match class {
            Class::Record | Class::Change => 1,
            Class::Script => self.vm.min(SCRIPTS_OF_VM),
            _ => self.vm,
        }
    }
}

/// A request for a permit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ask {
    /// The unit of fairness: a VM, or an SR for its own requests.
    pub vm: Uuid,
    pub track: Track,
    pub priority: Priority,
    pub class: Class,
    pub sr: Option<Arc<str>>,
    pub backend: Option<Arc<str>>,
}

impl Ask {
    /// For a request on an SR itself, without a VM. Its name, of up to 16 bytes, takes the place of
    /// a VM's UUID.
    #[must_use]
    pub fn for_sr(sr: &str, class: SrRequest) -> Self {
        let mut name = [0; 16];
        name.iter_mut().zip(sr.bytes()).for_each(|(to, from)| *to = from);
        let (track, class) = match class {
            SrRequest::Scan => (Track::Scan, Class::Scan),
            SrRequest::Change => (Track::Change, Class::Change),
        };
        let (vm, priority) = (Uuid(name), Priority::Interactive);
        Self { vm, track, priority, class, sr: Some(Arc::from(sr)), backend: None }
    }

    fn lane(&self) -> Lane {
        Lane {
            track: self.track,
            class: self.class,
            sr: self.sr.clone(),
            backend: self.backend.clone(),
        }
    }
}

/// A request on an SR.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SrRequest {
    /// Reads its contents.
    Scan,
    /// Changes it or its VDIs.
    Change,
}

/// An item that waits or holds a permit.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ticket(u64);

/// Items with the same limits except the VM's.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Lane {
    track: Track,
    class: Class,
    sr: Option<Arc<str>>,
    backend: Option<Arc<str>>,
}

/// The VMs of a lane that are below their own limits, by the time of their last grant.
#[derive(Debug, Default)]
struct Ready {
    interactive: BTreeSet<(u64, Uuid)>,
    bulk: BTreeSet<(u64, Uuid)>,
}

impl Ready {
    fn of(&mut self, priority: Priority) -> &mut BTreeSet<(u64, Uuid)> {
        match priority {
            Priority::Interactive => &mut self.interactive,
            Priority::Bulk => &mut self.bulk,
        }
    }

    fn first(&self, priority: Priority) -> Option<(u64, Uuid)> {
        let set = match priority {
            Priority::Interactive => &self.interactive,
            Priority::Bulk => &self.bulk,
        };
        set.first().copied()
    }
}

type Queues<T> = BTreeMap<(Lane, Priority), VecDeque<(Ticket, T)>>;

#[derive(Debug)]
struct Vm<T> {
    /// Time of its last grant, or its arrival.
    stamp: u64,
    running: BTreeMap<Track, usize>,
    running_of: BTreeMap<(Track, Class), usize>,
    queues: Queues<T>,
}

/// Permits in use below one limit.
type Counts<K> = BTreeMap<K, usize>;

fn count<K: Ord>(counts: &Counts<K>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn raise<K: Ord>(counts: &mut Counts<K>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn lower<K: Ord>(counts: &mut Counts<K>, key: &K) {
    let left = counts.get_mut(key).expect("lowered as often as raised");
    *left -= 1;
    if *left == 0 {
        counts.remove(key);
    }
}

/// Every eighth permit goes to bulk work first, if there is any.
const BULK_SHARE: u64 = 8;

/// The scheduler; see the module documentation.
#[derive(Debug)]
pub struct Scheduler<T> {
    limits: Limits,
    vms: BTreeMap<Uuid, Vm<T>>,
    lanes: BTreeMap<Lane, Ready>,
    waiting: BTreeMap<Ticket, Ask>,
    held: BTreeMap<Ticket, Ask>,
    hosts: Counts<Track>,
    classes: Counts<(Track, Class)>,
    srs: Counts<(Track, Arc<str>)>,
    backends: Counts<(Track, Arc<str>)>,
    /// Stamps and tickets.
    next: u64,
    granted: u64,
}

impl<T> Default for Scheduler<T> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<T> Scheduler<T> {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: limits.at_least_one(),
            vms: BTreeMap::new(),
            lanes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            held: BTreeMap::new(),
            hosts: Counts::new(),
            classes: Counts::new(),
            srs: Counts::new(),
            backends: Counts::new(),
            next: 0,
            granted: 0,
        }
    }

    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Sets limits for future grants; permits already granted are kept.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits.at_least_one();
        let vms: Vec<Uuid> = self.vms.keys().copied().collect();
        for vm in vms {
            self.leave_lanes(vm);
            self.enter_lanes(vm);
        }
    }

    /// Number of waiting items and of granted permits.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.held.len())
    }

    /// Queues an item.
    pub fn put(&mut self, ask: Ask, item: T) -> Ticket {
        let ticket = Ticket(self.stamp());
        let (vm, key) = (ask.vm, (ask.lane(), ask.priority));
        self.leave_lanes(vm);
        let entry = self.vms.entry(vm).or_insert_with(|| Vm {
            stamp: ticket.0,
            running: BTreeMap::new(),
            running_of: BTreeMap::new(),
            queues: BTreeMap::new(),
        });
        entry.queues.entry(key).or_default().push_back((ticket, item));
        self.waiting.insert(ticket, ask);
        self.enter_lanes(vm);
        ticket
    }

    /// Withdraws an item that has not been granted a permit.
    pub fn take_back(&mut self, ticket: Ticket) -> Option<T> {
        let ask = self.waiting.remove(&ticket)?;
        self.leave_lanes(ask.vm);
        let vm = self.vms.get_mut(&ask.vm).expect("a VM with an item is known");
        let key = (ask.lane(), ask.priority);
        let queue = vm.queues.get_mut(&key).expect("a waiting item is in its queue");
        let at = queue.iter().position(|(it, _)| *it == ticket).expect("likewise");
        let (_, item) = queue.remove(at).expect("just found");
        if queue.is_empty() {
            vm.queues.remove(&key);
        }
        self.enter_lanes(ask.vm);
        self.forget_if_idle(ask.vm);
        Some(item)
    }

    /// Grants a permit to the next item within all limits, if there is one. It is held until
    /// [`Self::done`].
    pub fn grant(&mut self) -> Option<(Ticket, T)> {
        let (lane, priority, vm) = self.choose()?;
        self.leave_lanes(vm);
        let stamp = self.stamp();
        let entry = self.vms.get_mut(&vm).expect("a VM in a lane is known");
        let key = (lane, priority);
        let queue = entry.queues.get_mut(&key).expect("a VM in a lane has items there");
        let (ticket, item) = queue.pop_front().expect("an empty queue is removed");
        if queue.is_empty() {
            entry.queues.remove(&key);
        }
        entry.stamp = stamp;
        let ask = self.waiting.remove(&ticket).expect("a queued item waits");
        raise(&mut entry.running, ask.track);
        raise(&mut entry.running_of, (ask.track, ask.class));
        raise(&mut self.hosts, ask.track);
        raise(&mut self.classes, (ask.track, ask.class));
        if let Some(sr) = &ask.sr {
            raise(&mut self.srs, (ask.track, Arc::clone(sr)));
        }
        if let Some(backend) = &ask.backend {
            raise(&mut self.backends, (ask.track, Arc::clone(backend)));
        }
        self.held.insert(ticket, ask);
        self.granted += 1;
        self.enter_lanes(vm);
        Some((ticket, item))
    }

    /// Returns a permit.
    ///
    /// # Panics
    /// If it is not held.
    pub fn done(&mut self, ticket: Ticket) {
        let ask = self.held.remove(&ticket).expect("a permit comes back once");
        self.leave_lanes(ask.vm);
        let vm = self.vms.get_mut(&ask.vm).expect("a VM with a permit is known");
        lower(&mut vm.running, &ask.track);
        lower(&mut vm.running_of, &(ask.track, ask.class));
        lower(&mut self.hosts, &ask.track);
        lower(&mut self.classes, &(ask.track, ask.class));
        if let Some(sr) = ask.sr {
            lower(&mut self.srs, &(ask.track, sr));
        }
        if let Some(backend) = ask.backend {
            lower(&mut self.backends, &(ask.track, backend));
        }
        self.enter_lanes(ask.vm);
        self.forget_if_idle(ask.vm);
    }

    /// The limit that an item waits for; `None` if it does not wait.
    #[must_use]
    pub fn why(&self, ticket: Ticket) -> Option<String> {
        let ask = self.waiting.get(&ticket)?;
        let vm = &self.vms[&ask.vm];
        let limits = &self.limits;
        let sr = ask.sr.as_ref().map(|sr| (sr, count(&self.srs, &(ask.track, Arc::clone(sr)))));
        let backend = ask.backend.as_ref();
        let backend = backend.map(|it| (it, count(&self.backends, &(ask.track, Arc::clone(it)))));
        let of_class = count(&self.classes, &(ask.track, ask.class));
        Some(if count(&vm.running_of, &(ask.track, ask.class)) >= limits.vm_class(ask.class) {
            match ask.class {
                Class::Record => "an earlier change of the VM's record".to_owned(),
                Class::Change => "an earlier change of the SR".to_owned(),
                _ => format!("the limit of {} for one VM", limits.vm),
            }
        } else if count(&vm.running, &ask.track) >= limits.vm {
            format!("the limit of {} for one VM", limits.vm)
        } else if let Some((sr, _)) = sr.filter(|(_, used)| *used >= limits.sr) {
            format!("the limit of {} for the storage {sr}", limits.sr)
        } else if let Some((backend, _)) = backend.filter(|(_, used)| *used >= limits.backend) {
            format!("the limit of {} for the backend {backend}", limits.backend)
        } else if of_class >= limits.class(ask.class) {
            format!("the limit of {} for {}", limits.class(ask.class), ask.class.as_str())
        } else if count(&self.hosts, &ask.track) >= limits.host {
            format!("the limit of {} for the host", limits.host)
        } else {
            "its turn".to_owned()
        })
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether the limits above a lane have room.
    fn has_room(&self, lane: &Lane) -> bool {
        let track = lane.track;
        let under = |counts: &Counts<(Track, Arc<str>)>, key: &Option<Arc<str>>, limit| {
            key.as_ref().is_none_or(|key| count(counts, &(track, Arc::clone(key))) < limit)
        };
        count(&self.classes, &(track, lane.class)) < self.limits.class(lane.class)
            && under(&self.srs, &lane.sr, self.limits.sr)
            && under(&self.backends, &lane.backend, self.limits.backend)
    }

    fn choose(&self) -> Option<(Lane, Priority, Uuid)> {
        let order = if (self.granted + 1).is_multiple_of(BULK_SHARE) {
            [Priority::Bulk, Priority::Interactive]
        } else {
            [Priority::Interactive, Priority::Bulk]
        };
        let tracks = Track::ALL.into_iter();
        let with_room = tracks.filter(|track| count(&self.hosts, track) < self.limits.host);
        for track in with_room {
            for priority in order {
                let lanes = self.lanes.iter().filter(|(lane, _)| lane.track == track);
                let first = lanes
                    .filter_map(|(lane, ready)| Some((ready.first(priority)?, lane)))
                    .filter(|(_, lane)| self.has_room(lane))
                    .min();
                if let Some(((_, vm), lane)) = first {
                    return Some((lane.clone(), priority, vm));
                }
            }
        }
        None
    }

    /// Takes a VM out of all lanes before it changes.
    fn leave_lanes(&mut self, uuid: Uuid) {
        let Some(vm) = self.vms.get(&uuid) else { return };
        for (lane, priority) in vm.queues.keys() {
            if let Some(ready) = self.lanes.get_mut(lane) {
                ready.of(*priority).remove(&(vm.stamp, uuid));
                if ready.interactive.is_empty() && ready.bulk.is_empty() {
                    self.lanes.remove(lane);
                }
            }
        }
    }

    /// Puts a VM into the lanes that its own limits allow.
    fn enter_lanes(&mut self, uuid: Uuid) {
        let Some(vm) = self.vms.get(&uuid) else { return };
        for (lane, priority) in vm.queues.keys() {
            let of_class = count(&vm.running_of, &(lane.track, lane.class));
            let free = count(&vm.running, &lane.track) < self.limits.vm
                && of_class < self.limits.vm_class(lane.class);
            if free {
                let ready = self.lanes.entry(lane.clone()).or_default();
                ready.of(*priority).insert((vm.stamp, uuid));
            }
        }
    }

    fn forget_if_idle(&mut self, uuid: Uuid) {
        let idle = |vm: &Vm<T>| vm.queues.is_empty() && vm.running.is_empty();
        if self.vms.get(&uuid).is_some_and(idle) {
            self.vms.remove(&uuid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_single_storage_gets_all_workers() {
        for (workers, sr) in [(16, 12), (4, 3), (2, 1), (1, 1)] {
            let limits = Limits::for_workers(workers);
            assert_eq!((limits.host, limits.backend, limits.sr), (workers, workers, sr));
        }
    }
}
