//! The store daemon on the simulated host: the product's own server, with simulated rings and
//! sockets around it.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use xen::{DomId, Errno, EvtchnPort, Gfn, GrantRef, Xen};
use xenstore::client::{Client, Nodes as _, Transport};
use xenstore::ring::{self, RingError, RingPage, ServerRing};
use xenstore::server::{self, ConnId, DomainState, Host, Pace, PollScope, Server};
use xenstore::wire::MessageType;
use xenstore::{Error, Quota};

use crate::agenda::Time;
use crate::bytes::{put, put_u32, u32_at};
use crate::machine::{Dying, Machine, MappingId, SimHypervisor};
use crate::world::World;

/// The store's use of a port of dom0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StorePort {
    Ring(DomId),
    DomExc,
}

/// All features of the ring page.
const FEATURES: u32 = ring::FEATURE_RECONNECTION
    | ring::FEATURE_ERROR
    | ring::FEATURE_WATCH_DEPTH
    | ring::FEATURE_DOMID_ANY;

/// Stands for a channel that could not be bound again. Xen never allocates it.
const NO_PORT: EvtchnPort = EvtchnPort(0);

/// The store's end of a guest's ring.
#[derive(Clone, Copy, Debug)]
struct Ring {
    connection: ConnId,
    mapping: MappingId,
    port: EvtchnPort,
    broken: bool,
}

/// A guest's ring page, mapped into the store daemon.
struct MappedPage<'a> {
    machine: &'a Machine,
    mapping: MappingId,
}

impl RingPage for MappedPage<'_> {
    fn load_u32(&self, offset: usize) -> u32 {
        u32_at(self.machine.get_mut().mapped_page(self.mapping), offset)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        put_u32(self.machine.get_mut().mapped_page(self.mapping), offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        let mut xen = self.machine.get_mut();
        into.copy_from_slice(&xen.mapped_page(self.mapping)[offset..offset + into.len()]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        put(self.machine.get_mut().mapped_page(self.mapping), offset, bytes);
    }
}

/// Whether the store keeps the domids of dead domains in use until they are released.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pins {
    #[default]
    Kept,
    /// It unmaps a dead domain's page at once, as other stores do; tests show what then goes wrong.
    Dropped,
}

/// The server's host interface, on the simulated machine.
#[derive(Debug)]
struct StoreHost {
    machine: Machine,
    xen: Xen<SimHypervisor>,
    rings: BTreeMap<DomId, Ring>,
    ports: BTreeMap<EvtchnPort, StorePort>,
    domids: BTreeMap<ConnId, DomId>,
    /// Pages of dead domains, which keep their domids in use.
    kept: BTreeMap<DomId, MappingId>,
    pins: Pins,
}

impl StoreHost {
    fn bind(&mut self, domid: DomId, port: EvtchnPort) -> Result<EvtchnPort, Error> {
        let bound = self.machine.get_mut().evtchn_bind_interdomain(DomId::DOM0, domid, port);
        let bound = bound.map_err(|_| Error::EINVAL)?;
        self.ports.insert(bound, StorePort::Ring(domid));
        Ok(bound)
    }

    fn page(&self, mapping: MappingId) -> ServerRing<MappedPage<'_>> {
        ServerRing::new(MappedPage { machine: &self.machine, mapping })
    }

    fn close(&mut self, port: EvtchnPort) {
        if port == NO_PORT {
            return;
        }
        self.ports.remove(&port);
        self.machine
            .get_mut()
            .evtchn_close(DomId::DOM0, port)
            .expect("the store closes only ports of its own");
    }
}

impl Host for StoreHost {
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        gfn: Gfn,
        port: EvtchnPort,
    ) -> Result<(), Error> {
        let granted = self.machine.get_mut().map_grant(DomId::DOM0, domid, GrantRef::XENSTORE);
        let mapping = match granted {
            Ok(mapping) => mapping,
            // Without a seeded grant the frame number is used.
            Err(_) => self
                .machine
                .get_mut()
                .map_foreign(DomId::DOM0, domid, gfn.0)
                .map_err(|_| Error::EINVAL)?,
        };
        let port = self.bind(domid, port).inspect_err(|_| self.machine.get_mut().unmap(mapping))?;
        self.rings.insert(domid, Ring { connection, mapping, port, broken: false });
        self.domids.insert(connection, domid);
        self.page(mapping).offer(FEATURES);
        Ok(())
    }

    fn reset_ring(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Error> {
        let ring = *self.rings.get(&domid).ok_or(Error::EINVAL)?;
        self.close(ring.port);
        // The domain may be dead; then the channel is gone.
        let bound = self.bind(domid, port);
        let port = bound.unwrap_or(NO_PORT);
        self.rings.insert(domid, Ring { port, ..ring });
        bound?;
        self.page(ring.mapping).reset();
        Ok(())
    }

    fn disconnect_ring(&mut self, domid: DomId) {
        self.keep_ring(domid);
        self.drop_kept_ring(domid);
    }

    fn keep_ring(&mut self, domid: DomId) {
        let Some(ring) = self.rings.remove(&domid) else { return };
        self.domids.remove(&ring.connection);
        self.close(ring.port);
        match self.pins {
            Pins::Kept => drop(self.kept.insert(domid, ring.mapping)),
            Pins::Dropped => self.machine.get_mut().unmap(ring.mapping),
        }
    }

    fn drop_kept_ring(&mut self, domid: DomId) {
        if let Some(mapping) = self.kept.remove(&domid) {
            self.machine.get_mut().unmap(mapping);
        }
    }

    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        let xen = self.machine.get();
        let tells = xen.release() >= crate::machine::Release::Xen4_21;
        xen.domain(domid).filter(|_| tells).map(|domain| domain.unique_id)
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        let xen = self.machine.get();
        xen.domain(domid).is_some_and(|domain| domain.dying != Dying::Dead)
    }

    fn domain(&mut self, domid: DomId) -> Option<DomainState> {
        server::poll_domain(&mut self.xen, domid).expect("dom0 may look at a domain")
    }

    fn log(&mut self, line: &str) {
        let xen = &mut *self.machine.get_mut();
        xen.trace.note(xen.now, format_args!("xenstored: {line}"));
    }
}

#[derive(Debug)]
struct Shell {
    server: Server,
    host: StoreHost,
    dom_exc: EvtchnPort,
    pace: Pace,
    /// Sockets with new input.
    ready: BTreeSet<ConnId>,
    /// Number of the toolstack's transactions still to conflict.
    conflicts: u64,
}

/// A message's type, request id, transaction id and length, four bytes each.
const HEADER_BYTES: usize = 16;

const EPIPE: Errno = Errno(32);

/// Cost of a request, in nanoseconds.
const REQUEST_NS: u64 = 2_500;

#[expect(clippy::cast_possible_truncation, reason = "no more than a ring has")]
fn length_as_index(length: usize) -> u32 {
    length as u32
}

impl Shell {
    fn receive(&mut self, connection: ConnId, bytes: &[u8]) -> bool {
        self.host.machine.get_mut().spend(REQUEST_NS + bytes.len() as u64);
        self.server.receive(&mut self.host, connection, bytes).is_ok()
    }

    fn receive_from_ring(&mut self, connection: ConnId, bytes: &[u8]) -> Result<usize, RingError> {
        self.host.machine.get_mut().spend(REQUEST_NS + bytes.len() as u64);
        let taken = self.server.receive_from_ring(&mut self.host, connection, bytes);
        taken.map_err(|_| RingError::PayloadTooLong)
    }

    /// Updates the server's clock.
    fn tell_time(&mut self) {
        let now = self.host.machine.get().now();
        self.server.advance(&mut self.host, Duration::from_nanos(now.0));
    }

    /// Whether the guest may be served now, with respect to its rate limit.
    fn serves(&mut self, connection: ConnId) -> bool {
        while let Some(until) = self.server.resumes_at(connection) {
            let now = Duration::from_nanos(self.host.machine.get().now().0);
            let wait = until.saturating_sub(now).as_nanos().max(1);
            self.host.machine.get_mut().spend(u64::try_from(wait).unwrap_or(u64::MAX));
            self.tell_time();
        }
        self.server.accepts_requests(connection)
    }

    /// Moves bytes until there are none to move.
    fn flush(&mut self) {
        while self.server.has_ready() {
            for connection in self.server.take_ready() {
                match self.host.domids.get(&connection) {
                    Some(&domid) => self.flush_ring(domid),
                    None => drop(self.ready.insert(connection)),
                }
            }
        }
    }

    fn flush_ring(&mut self, domid: DomId) {
        let Some(ring) = self.host.rings.get(&domid).copied() else { return };
        if ring.broken {
            return;
        }
        let mut rung = false;
        loop {
            let output = self.server.output(ring.connection);
            match self.host.page(ring.mapping).put_replies(output) {
                Ok(0) => break,
                Ok(sent) => {
                    self.server.consume(ring.connection, sent);
                    rung = true;
                }
                Err(error) => return self.break_ring(domid, error),
            }
        }
        if rung {
            self.ring(domid, ring.port);
        }
        // Requests that waited until replies were read.
        if self.server.receive(&mut self.host, ring.connection, &[]).is_err() {
            self.break_ring(domid, RingError::PayloadTooLong);
        }
    }

    fn ring(&self, domid: DomId, port: EvtchnPort) {
        if port == NO_PORT {
            return;
        }
        let sent = self.host.machine.get_mut().evtchn_send(DomId::DOM0, port);
        assert!(sent.is_ok(), "the store's port for domain {domid} is bound");
    }

    /// A guest violated the protocol: it is no longer served, but its death will be noticed.
    fn break_ring(&mut self, domid: DomId, error: RingError) {
        let Some(ring) = self.host.rings.get_mut(&domid) else { return };
        if std::mem::replace(&mut ring.broken, true) {
            return;
        }
        let ring = *ring;
        self.host.page(ring.mapping).set_error(error);
        self.host.log(&format!("domain {domid} is not served any more: {error}"));
        self.ring(domid, ring.port);
    }

    /// Serves a guest's ring until it is empty.
    fn serve_ring(&mut self, domid: DomId) {
        let Some(ring) = self.host.rings.get(&domid).copied() else { return };
        self.host.machine.get_mut().evtchn_take(DomId::DOM0, ring.port);
        if ring.broken {
            return;
        }
        if self.host.page(ring.mapping).wants_reconnect() {
            self.server.handle_reconnect(ring.connection);
            self.host.page(ring.mapping).reset();
            self.ring(domid, ring.port);
        }
        let mut bytes = [0; ring::RING_BYTES];
        self.tell_time();
        while self.serves(ring.connection) {
            match self.host.page(ring.mapping).copy_requests(&mut bytes) {
                Ok((held, end)) => match self.receive_from_ring(ring.connection, &bytes[..held]) {
                    Ok(0) => break,
                    Ok(taken) => {
                        let begin = end.wrapping_sub(length_as_index(held));
                        let page = self.host.page(ring.mapping);
                        page.release_requests(begin.wrapping_add(length_as_index(taken)));
                        self.ring(domid, ring.port);
                        self.flush();
                    }
                    Err(error) => {
                        self.break_ring(domid, error);
                        break;
                    }
                },
                Err(error) => {
                    self.break_ring(domid, error);
                    break;
                }
            }
        }
        self.flush_ring(domid);
        self.flush();
    }
}

/// The running store.
#[derive(Clone, Debug)]
pub(crate) struct Store(Rc<RefCell<Shell>>);

impl Store {
    pub(crate) fn start(machine: Machine, pins: Pins) -> Self {
        let dom_exc = machine
            .get_mut()
            .evtchn_bind_dom_exc(DomId::DOM0)
            .expect("the store is the first to bind the VIRQ");
        let xen = Xen::probe(machine.hypervisor_of_store()).expect("the store runs in dom0");
        let host = StoreHost {
            machine,
            xen,
            rings: BTreeMap::new(),
            ports: BTreeMap::from([(dom_exc, StorePort::DomExc)]),
            domids: BTreeMap::new(),
            kept: BTreeMap::new(),
            pins,
        };
        let server = Server::new(Quota::default());
        let (pace, ready) = (Pace::default(), BTreeSet::new());
        let conflicts = 0;
        let shell = Shell { server, host, dom_exc, pace, ready, conflicts };
        let store = Self(Rc::new(RefCell::new(shell)));
        store.poll_domains(PollScope::Everything);
        store
    }

    /// The store's use of a port of dom0.
    pub(crate) fn port(&self, port: EvtchnPort) -> Option<StorePort> {
        self.0.borrow().host.ports.get(&port).copied()
    }

    /// Sockets with new input since the last call.
    pub(crate) fn take_ready(&self) -> Vec<ConnId> {
        let shell = &mut *self.0.borrow_mut();
        let ready = std::mem::take(&mut shell.ready);
        ready.into_iter().filter(|id| !shell.server.output(*id).is_empty()).collect()
    }

    /// As [`serve_ring`](Self::serve_ring), if the guest has sent an event.
    pub(crate) fn serve_notified_ring(&self, domid: DomId) {
        let mut shell = self.0.borrow_mut();
        let port = shell.host.rings.get(&domid).map(|ring| ring.port);
        let is_notified =
            port.is_some_and(|port| shell.host.machine.get_mut().evtchn_take(DomId::DOM0, port));
        if is_notified {
            shell.serve_ring(domid);
        }
    }

    pub(crate) fn serve_ring(&self, domid: DomId) {
        self.0.borrow_mut().serve_ring(domid);
    }

    /// Handles VIRQ_DOM_EXC: returns when to check the domains, unless a check is pending.
    pub(crate) fn handle_dom_exc(&self) -> Option<Time> {
        let shell = &mut *self.0.borrow_mut();
        shell.host.machine.get_mut().evtchn_take(DomId::DOM0, shell.dom_exc);
        let is_first = shell.pace.due().is_none();
        shell.pace.want();
        let due = shell.pace.due().filter(|_| is_first)?;
        Some(Time(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Checks the changed domains.
    pub(crate) fn poll_changed_domains(&self) {
        let now = |store: &Self| Duration::from_nanos(store.0.borrow().host.machine.get().now().0);
        let begun = now(self);
        self.poll_domains(PollScope::Changes);
        let ended = now(self);
        self.0.borrow_mut().pace.polled(ended, ended.saturating_sub(begun));
    }

    fn poll_domains(&self, what: PollScope) {
        let shell = &mut *self.0.borrow_mut();
        let news =
            server::poll_domains(&mut shell.host.xen, what).expect("the store owns the VIRQ");
        shell.server.handle_domain_news(&mut shell.host, &news);
        shell.flush();
    }

    /// Hypercalls of the store's checks of domains.
    pub(crate) fn hypercalls(&self) -> u64 {
        self.0.borrow().host.xen.counters().total()
    }

    /// Whether it serves a domain's ring.
    pub(crate) fn serves(&self, domid: DomId) -> bool {
        self.0.borrow().host.rings.contains_key(&domid)
    }

    /// Dead domains whose domids it keeps in use.
    pub(crate) fn domains_kept(&self) -> usize {
        self.0.borrow().server.domains_kept()
    }

    /// Compares the server's counters with a recount.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.0.borrow().server.check()
    }

    /// Makes this many of the toolstack's next reading transactions conflict.
    pub(crate) fn make_conflicts(&self, conflicts: u64) {
        self.0.borrow_mut().conflicts = conflicts;
    }

    pub(crate) fn nodes(&self) -> usize {
        self.0.borrow().server.node_count()
    }
}

/// Next part of a transaction.
enum Part {
    Read(String),
    End,
}

/// The last read of a transaction in these messages, or its end if present.
fn next_part(mut messages: &[u8]) -> Option<Part> {
    let mut found = None;
    while messages.len() >= HEADER_BYTES {
        let (kind, transaction) = (u32_at(messages, 0), u32_at(messages, 8));
        let end = HEADER_BYTES + usize::try_from(u32_at(messages, 12)).ok()?;
        let Some(payload) = messages.get(HEADER_BYTES..end) else { break };
        messages = &messages[end..];
        if transaction == 0 {
            continue;
        }
        if kind == MessageType::Read as u32 {
            let path = payload.split(|byte| *byte == 0).next().unwrap_or_default();
            found = Some(Part::Read(String::from_utf8_lossy(path).into_owned()));
        } else if kind == MessageType::TransactionEnd as u32 && payload.starts_with(b"T") {
            return Some(Part::End);
        }
    }
    found
}

/// A client's socket to the store.
#[derive(Debug)]
pub struct SocketTransport {
    store: Store,
    connection: ConnId,
    /// Sent, but not yet received by the store.
    sent: Vec<u8>,
    /// The last path read in a transaction, while conflicts are requested.
    read_last: Option<String>,
    /// Set for clients outside the host's own parts: while they wait, events run.
    world: Weak<RefCell<World>>,
}

impl SocketTransport {
    pub(crate) fn open(store: &Store) -> Self {
        let connection = store.0.borrow_mut().server.connect_socket();
        let (sent, read_last, world) = (Vec::new(), None, Weak::new());
        Self { store: store.clone(), connection, sent, read_last, world }
    }

    pub(crate) fn within(mut self, world: &Rc<RefCell<World>>) -> Self {
        self.world = Rc::downgrade(world);
        self
    }

    pub(crate) fn connection(&self) -> ConnId {
        self.connection
    }

    /// Whether there is something to read.
    #[must_use]
    pub fn has_input(&self) -> bool {
        !self.store.0.borrow_mut().server.output(self.connection).is_empty()
    }

    /// Whether the client is a process outside the simulated host's own parts.
    fn is_outside(&self) -> bool {
        self.world.strong_count() > 0
    }

    fn is_dead(&self) -> bool {
        self.store.0.borrow().host.machine.get().faults.is_toolstack_dead()
    }

    /// Another client changes what a transaction has read, just before it ends. Returns the change.
    fn interfere(&mut self) -> Option<(String, Vec<u8>)> {
        if !self.is_outside() || self.store.0.borrow().conflicts == 0 {
            return None;
        }
        match next_part(&self.sent)? {
            Part::Read(path) => {
                self.read_last = Some(path);
                None
            }
            Part::End => {
                let path = self.read_last.take()?;
                let mut somebody = Client::new(Self::open(&self.store));
                let value = somebody.read(&path).ok()?;
                somebody.write(&path, b"somebody was here").ok()?;
                self.store.0.borrow_mut().conflicts -= 1;
                Some((path, value))
            }
        }
    }

    /// Delivers sent bytes to the store. False if it closed the connection.
    fn deliver(&mut self) -> bool {
        let changed = self.interfere();
        let follows = self.deliver_plainly();
        if let Some((path, value)) = changed {
            let back = Client::new(Self::open(&self.store)).write(&path, &value);
            back.expect("it was there a moment ago");
        }
        follows
    }

    fn deliver_plainly(&mut self) -> bool {
        if self.sent.is_empty() {
            return true;
        }
        let sent = std::mem::take(&mut self.sent);
        let shell = &mut *self.store.0.borrow_mut();
        shell.tell_time();
        let follows = shell.receive(self.connection, &sent);
        if !follows {
            shell.server.disconnect(self.connection);
        }
        shell.flush();
        follows
    }

    fn take(&self, into: &mut [u8]) -> usize {
        let shell = &mut *self.store.0.borrow_mut();
        let output = shell.server.output(self.connection);
        let bytes = output.len().min(into.len());
        into[..bytes].copy_from_slice(&output[..bytes]);
        shell.server.consume(self.connection, bytes);
        bytes
    }
}

impl Transport for SocketTransport {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if self.is_outside() && !bytes.is_empty() {
            let machine = self.store.0.borrow().host.machine.clone();
            machine.gap();
            let was_dead = self.is_dead();
            if !self.store.0.borrow().host.machine.get_mut().faults.count_action() {
                if !was_dead {
                    self.sent.extend_from_slice(&bytes[..bytes.len() / 2]);
                    self.deliver();
                }
                return Err(EPIPE);
            }
        }
        self.sent.extend_from_slice(bytes);
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        if let Some(world) = self.world.upgrade() {
            // Events that are due happen before the store handles this request.
            let mut world = world.borrow_mut();
            let now = world.machine.get().now();
            while world.step(now) {}
        }
        if self.is_outside() && self.is_dead() {
            return Err(EPIPE);
        }
        if self.is_outside() {
            let machine = self.store.0.borrow().host.machine.clone();
            machine.gap();
        }
        if !self.deliver() {
            return Ok(0);
        }
        match self.take(into) {
            0 => Err(Errno::EAGAIN),
            bytes => Ok(bytes),
        }
    }
}

impl Drop for SocketTransport {
    fn drop(&mut self) {
        self.store.0.borrow_mut().server.disconnect(self.connection);
    }
}
