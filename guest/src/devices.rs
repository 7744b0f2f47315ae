//! The devices this guest has: found in the store, walked through their states, taken down.
//!
//! ```text
//!  ours                          the backend's
//!  Waiting     1                 2  has read its keys
//!  Offered     3 (vbd) 4 (vif)   4  has mapped our ring
//!  Running     4                 4
//!  Leaving     6                 5: still maps our pages
//!  Closed      6                 6 or gone
//! ```

use guest_proto::device::{DeviceId, Kind, backend_domid};
use guest_proto::frame::Mac;
use guest_proto::options::Unplug;
use guest_proto::text::{Text, decimal_u32};
use guest_proto::xenbus::{State, names};

use crate::blkfront::BlkFront;
use crate::channel::{Context, Misbehaved};
use crate::console::say;
use crate::netfront::NetFront;
use crate::store::{Matters, Store, StoreError, TOKEN_DEVICE, TOKEN_DEVICES};
use crate::{clock, evtchn};

/// As many as one has room for: ports to wait for, pages of the pool, watch tokens.
pub const DEVICES_MAX: usize = if cfg!(feature = "wide") { 260 } else { 8 };
/// How long a shutdown waits for each backend to close its device.
const CLOSE_PATIENCE_NS: u64 = 5 * clock::SECOND_NS;

type BackendPath = Text<96>;

#[expect(clippy::large_enum_variant, reason = "there is no heap to box the larger one in")]
enum Front {
    Vbd(BlkFront),
    Vif(NetFront),
}

enum Phase {
    Waiting,
    Offered(Front),
    Running(Front),
    Leaving(Front),
    Closed,
}

struct Device {
    id: DeviceId,
    token: u32,
    backend: BackendPath,
    phase: Phase,
}

pub struct Devices {
    slots: [Option<Device>; DEVICES_MAX],
    /// Says once that there are more devices than room.
    overflow_told: bool,
}

impl Devices {
    pub fn new() -> Self {
        Self { slots: [const { None }; DEVICES_MAX], overflow_told: false }
    }

    /// Acts on everything that has happened since the last call.
    pub fn service(&mut self, context: &mut Context<'_>) {
        if self.must_look(context.store) {
            self.look(context);
        }
        let unplug = context.machine.options.unplug;
        for device in self.slots.iter_mut().flatten() {
            if context.store.take_fired(device.token) {
                device.follow_backend(context, unplug);
            }
            device.service(context);
        }
        // Pages may have come back after those had their turn that wait for one.
        for device in self.slots.iter_mut().flatten() {
            device.read_if_it_can(context);
        }
    }

    /// The ports of all front ends that may ring.
    pub fn ports(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().flatten().filter_map(Device::port)
    }

    /// Closes all devices, and waits until the backends have closed them too.
    pub fn close_all(&mut self, context: &mut Context<'_>) {
        for device in self.slots.iter().flatten().filter(|device| device.is_open()) {
            device.post_state(context.store, State::Closing);
        }
        let mut lent_before = 0;
        let mut patience_end_ns = 0;
        loop {
            let lent = self.slots.iter().flatten().filter(|device| device.is_lent()).count();
            if lent == 0 {
                break;
            }
            if lent != lent_before {
                lent_before = lent;
                patience_end_ns = clock::now_ns() + CLOSE_PATIENCE_NS;
            }
            if clock::now_ns() >= patience_end_ns {
                say!("a backend does not close its device: stopping anyway");
                break;
            }
            for device in self.slots.iter_mut().flatten() {
                if context.store.take_fired(device.token) {
                    device.follow_backend(context, Unplug::LetsGo);
                }
            }
            if context.store.is_idle() {
                evtchn::wait(&[context.store.port()], patience_end_ns);
            }
        }
    }

    /// Whether devices came or went. Most events tell of what this guest itself has written.
    fn must_look(&self, store: &mut Store) -> bool {
        let known_and_open = |id: &DeviceId| {
            self.slots
                .iter()
                .flatten()
                .any(|device| device.id == *id && !matches!(device.phase, Phase::Closed))
        };
        let new = store.take_touched().iter().flatten().any(|id| !known_and_open(id));
        store.take_fired(TOKEN_DEVICES) || new
    }

    fn look(&mut self, context: &mut Context<'_>) {
        let mut found = Found::new();
        found.list(context.store);
        if found.more && !self.overflow_told {
            say!("more than {DEVICES_MAX} devices: the others are left alone");
            self.overflow_told = true;
        }

        for slot in &mut self.slots {
            let Some(device) = slot else { continue };
            let gone = !found.ids.contains(&Some(device.id));
            if gone {
                device.finish(context);
            }
            // A device that was unplugged and plugged again meanwhile starts from the beginning.
            let anew = matches!(device.phase, Phase::Closed)
                && own_state(context.store, device.id) == State::Initialising;
            if gone || anew {
                *slot = None;
            }
        }
        for id in found.ids.into_iter().flatten() {
            if self.slots.iter().flatten().any(|device| device.id == id) {
                continue;
            }
            let Some(index) = self.slots.iter().position(Option::is_none) else { break };
            let token = TOKEN_DEVICE + u32::try_from(index).unwrap_or(0);
            self.slots[index] = Device::open(context.store, id, token);
        }
    }
}

/// The devices in the store, as many as one has room for.
struct Found {
    ids: [Option<DeviceId>; DEVICES_MAX],
    more: bool,
}

impl Found {
    fn new() -> Self {
        Self { ids: [None; DEVICES_MAX], more: false }
    }

    fn list(&mut self, store: &mut Store) {
        let mut present = [false; 2];
        if let Ok(kinds) = store.directory(format_args!("device")) {
            for name in names(kinds) {
                present[0] |= name == "vbd";
                present[1] |= name == "vif";
            }
        }
        for (kind, present) in [Kind::Vbd, Kind::Vif].into_iter().zip(present) {
            if !present {
                continue;
            }
            let Ok(numbers) = store.directory(format_args!("device/{}", kind.as_str())) else {
                continue;
            };
            for number in names(numbers).filter_map(|name| decimal_u32(name.as_bytes())) {
                match self.ids.iter_mut().find(|place| place.is_none()) {
                    Some(place) => *place = Some(DeviceId { kind, number }),
                    None => self.more = true,
                }
            }
        }
    }
}

impl Device {
    fn open(store: &mut Store, id: DeviceId, token: u32) -> Option<Self> {
        // A device whose node has no backend is being made or unmade: its next event counts.
        let backend = store.read(format_args!("device/{id}/backend")).ok()?;
        let backend = BackendPath::from_bytes(backend)?;
        if let Err(error) = store.watch(format_args!("{backend}/state"), token) {
            say!("{id} the store refuses a watch on {backend}/state: {error:?}");
            return None;
        }
        Some(Self { id, token, backend, phase: Phase::Waiting })
    }

    /// The port to listen to, while there is something to hear. A disk is silent once it has been read:
    /// Xen lets a guest wait for 128 ports.
    fn port(&self) -> Option<u32> {
        match &self.phase {
            Phase::Running(Front::Vbd(front)) => front.listens().then_some(front.port),
            Phase::Offered(Front::Vif(front)) | Phase::Running(Front::Vif(front)) => {
                Some(front.port)
            }
            // What the store tells comes next.
            Phase::Offered(Front::Vbd(_)) | Phase::Waiting | Phase::Leaving(_) | Phase::Closed => {
                None
            }
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Offered(_) | Phase::Running(_))
    }

    fn read_if_it_can(&mut self, context: &mut Context<'_>) {
        if let Phase::Running(Front::Vbd(front)) = &mut self.phase {
            if front.wants_page() {
                front.start_read(context);
            }
        }
    }

    /// Whether the backend may still map pages of ours.
    fn is_lent(&self) -> bool {
        matches!(self.phase, Phase::Offered(_) | Phase::Running(_) | Phase::Leaving(_))
    }

    fn follow_backend(&mut self, context: &mut Context<'_>, unplug: Unplug) {
        let state = self.backend_state(context.store);
        match (&self.phase, state) {
            (Phase::Waiting, State::InitWait | State::Initialised | State::Connected) => {
                self.offer(context);
            }
            (Phase::Offered(_), State::Connected) => self.run(context),
            (Phase::Waiting, State::Unknown) => {}
            (Phase::Running(_), State::Closing) if unplug == Unplug::Refuses => {
                let path = format_args!("error/device/{}/error", self.id);
                context.store.post_write(path, "16 in use, kept", Matters::No);
            }
            (Phase::Running(_), State::Closing) if unplug != Unplug::LetsGo => {}
            (_, State::Closing) => self.leave(context),
            (_, State::Closed | State::Unknown) => {
                self.leave(context);
                self.finish(context);
            }
            _ => {}
        }
    }

    /// Makes ring and port and tells the backend.
    fn offer(&mut self, context: &mut Context<'_>) {
        let Some(front) = self.make_front(context) else {
            say!(
                "{} cannot be driven: no pages, grants or ports left, or senseless nodes",
                self.id
            );
            self.leave(context);
            return;
        };
        let id = self.id;
        let published = match &front {
            Front::Vbd(front) => publish(context.store, id, &front.keys(), State::Initialised),
            Front::Vif(front) => publish(context.store, id, &front.keys(), State::Connected),
        };
        self.phase = Phase::Offered(front);
        if let Err(error) = published {
            say!("{id} the store refuses what the backend must know: {error:?}");
            self.leave(context);
        }
    }

    fn make_front(&self, context: &mut Context<'_>) -> Option<Front> {
        let domid = backend_domid(self.backend.as_str())?;
        let number = self.id.number;
        match self.id.kind {
            Kind::Vbd => BlkFront::new(context, number, domid).map(Front::Vbd),
            Kind::Vif => {
                let store = &mut *context.store;
                let mac =
                    store.read(format_args!("device/{}/mac", self.id)).ok().and_then(Mac::parse)?;
                let ip = match context.machine.options.ip {
                    Some(ip) if number == 0 => Some(ip),
                    _ => store
                        .read(format_args!("{}/ip", self.backend))
                        .ok()
                        .and_then(guest_proto::frame::Ipv4::parse),
                };
                NetFront::new(context, number, domid, mac, ip).map(Front::Vif)
            }
        }
    }

    fn run(&mut self, context: &mut Context<'_>) {
        let Phase::Offered(mut front) = core::mem::replace(&mut self.phase, Phase::Closed) else {
            return;
        };
        match &mut front {
            Front::Vbd(front) => {
                front.connected(context, self.backend.as_str());
                self.post_state(context.store, State::Connected);
                front.start_read(context);
            }
            Front::Vif(front) => front.connected(),
        }
        self.phase = Phase::Running(front);
    }

    fn service(&mut self, context: &mut Context<'_>) {
        let serviced = match &mut self.phase {
            Phase::Running(Front::Vbd(front)) => front.service(context),
            Phase::Running(Front::Vif(front)) => front.service(),
            Phase::Offered(Front::Vif(front)) => {
                evtchn::take(front.port);
                Ok(())
            }
            Phase::Offered(Front::Vbd(_)) | Phase::Waiting | Phase::Leaving(_) | Phase::Closed => {
                Ok(())
            }
        };
        if let Err(Misbehaved) = serviced {
            say!("{} the backend writes what no backend would: closed", self.id);
            self.leave(context);
        }
    }

    /// Stops using the device and tells the backend, which then unmaps our pages.
    fn leave(&mut self, context: &mut Context<'_>) {
        let (phase, said) = match core::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Offered(front) | Phase::Running(front) => (Phase::Leaving(front), false),
            // No backend has seen a page: nothing to wait for.
            Phase::Waiting => (Phase::Closed, false),
            phase @ (Phase::Leaving(_) | Phase::Closed) => (phase, true),
        };
        self.phase = phase;
        if !said {
            self.post_state(context.store, State::Closed);
        }
    }

    /// Takes back what was lent: the backend is closed or gone.
    fn finish(&mut self, context: &mut Context<'_>) {
        match core::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Waiting | Phase::Closed => {}
            Phase::Offered(front) | Phase::Running(front) | Phase::Leaving(front) => match front {
                Front::Vbd(front) => front.close(context),
                Front::Vif(front) => front.close(context),
            },
        }
        let _ = context.store.unwatch(format_args!("{}/state", self.backend), self.token);
    }

    fn backend_state(&self, store: &mut Store) -> State {
        state_at(store, format_args!("{}/state", self.backend))
    }

    fn post_state(&self, store: &mut Store, state: State) {
        let value = Text::<4>::of(format_args!("{}", state as u32));
        // Refused if the device's nodes have just been removed: then it does not matter.
        store.post_write(format_args!("device/{}/state", self.id), value.as_str(), Matters::No);
    }
}

fn own_state(store: &mut Store, id: DeviceId) -> State {
    state_at(store, format_args!("device/{id}/state"))
}

fn state_at(store: &mut Store, path: core::fmt::Arguments<'_>) -> State {
    store.read(path).map_or(State::Unknown, State::decode)
}

/// Writes a front end's keys and its new state, all or nothing.
fn publish(
    store: &mut Store,
    id: DeviceId,
    keys: &[(&str, Text<16>)],
    state: State,
) -> Result<(), StoreError> {
    store.transaction(|store, transaction| {
        for (key, value) in keys {
            let path = format_args!("device/{id}/{key}");
            store.post_write_in(transaction, path, value.as_str(), Matters::Yes);
        }
        let value = Text::<4>::of(format_args!("{}", state as u32));
        let path = format_args!("device/{id}/state");
        store.post_write_in(transaction, path, value.as_str(), Matters::Yes);
    })
}
