//! [`SimHost`]: a whole simulated host, and its interfaces for a toolstack.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use xen::DomId;
use xenstore::client::{Client, ClientError, Nodes as _};
use xenstore::{Access, Permission};

use crate::agenda::Time;
use crate::backend::{BackendKind, Counts, Kernel};
use crate::channel::Exchange;
use crate::check::Snapshot;
use crate::consoled::Consoled;
use crate::faults::Faults;
use crate::machine::{Living, Machine, MachineConfig, SimHypervisor, SimXen};
use crate::models::Models;
use crate::os::{Giving, SimOs};
use crate::store::{Pins, SocketTransport, Store};

use crate::world::World;

/// The host to simulate.
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    pub machine: MachineConfig,
    pub seed: u64,
    pub faults: Faults,
    /// Backends whose driver is not loaded in dom0.
    pub backends_absent: Vec<BackendKind>,
    pub pins: Pins,
    pub dom0: Option<Giving>,
}

/// What a device of dom0's backends has been used for.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCounts {
    pub kind: BackendKind,
    pub domid: DomId,
    pub devid: u32,
    pub counts: Counts,
}

/// When a host is up, and how long it may take to come to rest, in nanoseconds.
const BOOT_NS: u64 = 1_000_000_000;

/// The nodes that `xen-init-dom0` creates at boot.
fn init_dom0(store: &mut Client<SocketTransport>) -> Result<(), ClientError> {
    store.write("/local/domain/0/domid", b"0")?;
    store.write("/local/domain/0/name", b"Domain-0")?;
    store.set_perms("/local/domain/0/name", &[Permission::new(Access::None, DomId::DOM0)])
}

/// A running host with its store, backends, console daemon and guests.
#[derive(Clone, Debug)]
pub struct SimHost {
    machine: Machine,
    store: Store,
    os: SimOs,
    world: Rc<RefCell<World>>,
}

/// Everything on the host but the toolstack.
struct Rest(Weak<RefCell<World>>);

impl Living for Rest {
    fn next_time(&mut self) -> Option<Time> {
        self.0.upgrade()?.borrow_mut().next_time()
    }

    fn step(&mut self, until: Time) -> bool {
        self.0.upgrade().is_some_and(|world| world.borrow_mut().step(until))
    }
}

impl SimHost {
    /// Boots a host: dom0, its store, its drivers.
    ///
    /// # Panics
    /// If the store refuses dom0's own parts.
    #[must_use]
    pub fn boot(config: HostConfig) -> Self {
        Self::boot_on(config, SimOs::default(), Time(BOOT_NS))
    }

    /// The host loses power and boots again after a while, with the files of its disks.
    #[must_use]
    pub fn boot_again(&self, config: HostConfig, after_ns: u64) -> Self {
        if let Some(exchange) = &mut self.os.get_mut().exchange {
            exchange.vanish();
        }
        self.os.get_mut().lose_power(self.now());
        Self::boot_on(config, self.os.clone(), self.now().after(after_ns))
    }

    fn boot_on(config: HostConfig, os: SimOs, when: Time) -> Self {
        let machine = Machine::new(SimXen::new(config.machine, Faults::default(), config.seed));
        machine.get_mut().now = when;
        let store = Store::start(machine.clone(), config.pins);
        os.get_mut().machine = Some(machine.clone());
        os.get_mut().dom0 = config.dom0;
        let inner = |store: &Store| Client::new(SocketTransport::open(store));
        let kernel =
            Kernel::start(inner(&store), machine.clone(), os.clone(), &config.backends_absent)
                .expect("the store serves dom0");
        let consoled =
            Consoled::start(inner(&store), machine.clone()).expect("the store serves dom0");
        init_dom0(&mut inner(&store)).expect("the store serves dom0");
        // Faults begin when the host is up.
        machine.get_mut().set_faults(config.faults);
        os.get_mut().scripts.start(inner(&store));
        let models = Models::new(inner(&store), machine.clone(), os.clone());
        let world = World::new(machine.clone(), store.clone(), kernel, consoled, models);
        let host = Self { machine, store, os, world: Rc::new(RefCell::new(world)) };
        let world = Rc::downgrade(&host.world);
        host.machine.set_meanwhile(Some(Box::new(move || {
            if let Some(world) = world.upgrade() {
                world.borrow_mut().catch_up();
            }
        })));
        host.machine.set_passing(Box::new(Rest(Rc::downgrade(&host.world))));
        host.os.get_mut().exchange = Some(Exchange::new(host.machine.clone()));
        host.run_until_quiet(when.after(BOOT_NS));
        host
    }

    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Files, loop devices and bridges of dom0.
    #[must_use]
    pub fn os(&self) -> &SimOs {
        &self.os
    }

    /// A hypercall interface for dom0.
    #[must_use]
    pub fn hypervisor(&self) -> SimHypervisor {
        self.machine.hypervisor()
    }

    /// A connection to the store's socket. While its owner waits for a reply, everything that is due
    /// meanwhile happens.
    #[must_use]
    pub fn connect(&self) -> Client<SocketTransport> {
        Client::new(SocketTransport::open(&self.store).within(&self.world))
    }

    /// As [`SimHost::connect`], with a store without batches.
    #[must_use]
    pub fn connect_without_batches(&self) -> Client<SocketTransport> {
        Client::without_batches(SocketTransport::open(&self.store).within(&self.world))
    }

    #[must_use]
    pub fn now(&self) -> Time {
        self.machine.get().now()
    }

    /// Advances time to `until` without running events.
    pub fn sleep_until(&self, until: Time) {
        let mut xen = self.machine.get_mut();
        xen.now = xen.now.max(until);
    }

    /// Time of the next event.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.world.borrow_mut().next_time()
    }

    /// Runs the next event, if there is one by `until`.
    pub fn step(&self, until: Time) -> bool {
        self.world.borrow_mut().step(until)
    }

    /// Runs all events up to `until`, and advances time to it.
    pub fn run_until(&self, until: Time) {
        while self.step(until) {}
        self.sleep_until(until);
    }

    /// Runs events until there are none, or `until`. Returns whether there are none.
    pub fn run_until_quiet(&self, until: Time) -> bool {
        while self.step(until) {}
        self.next_time().is_none()
    }

    /// A domain's console output.
    #[must_use]
    pub fn console(&self, domid: DomId) -> String {
        self.world.borrow().consoled.log(domid).to_owned()
    }

    /// What a domain that is there has printed.
    #[must_use]
    pub fn printed(&self, domid: DomId) -> Option<String> {
        let world = self.world.borrow();
        world.consoled.serves(domid).then(|| world.consoled.log(domid).to_owned())
    }

    /// What disks and interfaces have been used for since they were plugged.
    #[must_use]
    pub fn device_counts(&self) -> Vec<DeviceCounts> {
        let counts = self.world.borrow_mut().kernel.counts();
        let row = |(id, counts): (crate::backend::BackendId, Counts)| DeviceCounts {
            kind: id.kind,
            domid: id.domid,
            devid: id.devid,
            counts,
        };
        counts.into_iter().map(row).collect()
    }

    /// Guests that have booted and still exist.
    #[must_use]
    pub fn guests(&self) -> usize {
        self.world.borrow().guests()
    }

    /// A snapshot of everything that could be leaked.
    ///
    /// # Errors
    /// The store's error.
    pub fn snapshot(&self) -> Result<Snapshot, ClientError> {
        let world = self.world.borrow();
        let (devices, consoles) = (world.kernel.devices(), world.consoled.consoles());
        drop(world);
        Snapshot::take(&self.machine, &self.os, &mut self.connect(), devices, consoles)
    }

    /// Compares the store's counters and indexes with a recount.
    ///
    /// # Errors
    /// A description of the first difference.
    pub fn check_store(&self) -> Result<(), String> {
        self.store.check()
    }

    /// Whether the store serves a domain's ring.
    #[must_use]
    pub fn serves(&self, domid: DomId) -> bool {
        self.store.serves(domid)
    }

    /// A connection of dom0's own parts: no events run while they wait.
    pub fn connect_inside(&self) -> Client<SocketTransport> {
        Client::new(SocketTransport::open(&self.store))
    }

    /// Hypercalls of the store daemon so far.
    #[must_use]
    pub fn store_hypercalls(&self) -> u64 {
        self.store.hypercalls()
    }

    /// Dead domains whose domids the store keeps in use.
    #[must_use]
    pub fn domains_kept(&self) -> usize {
        self.store.domains_kept()
    }

    /// Makes this many of the toolstack's next reading transactions conflict.
    pub fn make_conflicts(&self, conflicts: u64) {
        self.store.make_conflicts(conflicts);
    }

    /// Nodes in the store.
    #[must_use]
    pub fn store_nodes(&self) -> usize {
        self.store.nodes()
    }

    /// The trace so far, one line each.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.machine.get().trace().lines().to_vec()
    }

    /// A digest that differs if two runs differ in anything.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.machine.get().trace().digest()
    }

    /// Keeps small events in the trace as well, from now on.
    pub fn keep_details(&self) {
        self.machine.get_mut().trace.keep_details();
    }

    /// Keeps only about the last `lines` of the trace, for long runs.
    pub fn keep_last(&self, lines: usize) {
        self.machine.get_mut().trace.keep_last(lines);
    }

    pub(crate) fn detail(&self, what: fmt::Arguments<'_>) {
        let xen = &mut *self.machine.get_mut();
        xen.trace.detail(xen.now, what);
    }

    /// Adds a line to the trace.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let xen = &mut *self.machine.get_mut();
        xen.trace.note(xen.now, what);
    }
}
