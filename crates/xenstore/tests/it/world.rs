//! A store with a machine around it that does what a test says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::server::{ConnId, DomainState, Host, Server};
use xenstore::wire::{self, HEADER_BYTES, Header, MessageType};
use xenstore::{Error, Quota};

/// Domains as Xen would list them, and which rings the store has connected.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    pub(crate) states: BTreeMap<DomId, DomainState>,
    pub(crate) rings: BTreeMap<DomId, ConnId>,
    /// Dead domains whose page stays mapped.
    pub(crate) kept: BTreeSet<DomId>,
    pub(crate) resets: Vec<DomId>,
    pub(crate) lines: Vec<String>,
    pub(crate) traced: Vec<String>,
    pub(crate) trace_files: Vec<Option<String>>,
    pub(crate) reports: Vec<(Option<String>, String)>,
    /// Whoever asks for a live update waits.
    pub(crate) puts_updates_off: bool,
}

impl Host for Machine {
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        _gfn: Gfn,
        _port: EvtchnPort,
    ) -> Result<(), Error> {
        if !self.states.contains_key(&domid) {
            return Err(Error::EINVAL);
        }
        let known = self.rings.insert(domid, connection);
        assert_eq!(known, None, "the ring of domain {domid} is connected twice");
        Ok(())
    }

    fn reset_ring(&mut self, domid: DomId, _port: EvtchnPort) -> Result<(), Error> {
        assert!(self.rings.contains_key(&domid));
        self.resets.push(domid);
        Ok(())
    }

    fn disconnect_ring(&mut self, domid: DomId) {
        self.rings.remove(&domid).expect("only a connected ring is disconnected");
    }

    fn keep_ring(&mut self, domid: DomId) {
        self.disconnect_ring(domid);
        assert!(self.kept.insert(domid), "domain {domid} died twice");
    }

    fn drop_kept_ring(&mut self, domid: DomId) {
        assert!(self.kept.remove(&domid), "only a kept page is dropped");
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        self.states.get(&domid).is_some_and(|state| !state.dying)
    }

    fn domain(&mut self, domid: DomId) -> Option<DomainState> {
        self.states.get(&domid).copied()
    }

    fn log(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    fn trace(&mut self, line: std::fmt::Arguments<'_>) {
        self.traced.push(line.to_string());
    }

    fn open_trace(&mut self, file: Option<&str>) -> Result<(), Error> {
        self.trace_files.push(file.map(str::to_owned));
        Ok(())
    }

    fn write_report(&mut self, file: Option<&str>, text: &str) -> Result<(), Error> {
        self.reports.push((file.map(str::to_owned), text.to_owned()));
        Ok(())
    }

    fn live_update(&mut self, _: ConnId, _: &[&str]) -> Result<Option<String>, Error> {
        if self.puts_updates_off { Ok(None) } else { Err(Error::ENOSYS) }
    }
}

/// A message from the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    Reply { kind: u32, request_id: u32, transaction_id: u32, result: Result<Vec<u8>, Error> },
    Event { path: String, token: String },
}

/// One end of a connection, as its client sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: ConnId,
    /// Everything that came, in order.
    pub(crate) messages: VecDeque<Message>,
    pub(crate) is_closed: bool,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) machine: Machine,
    pub(crate) peers: BTreeMap<String, Peer>,
    /// Clients that do not read what is sent to them.
    pub(crate) deaf: BTreeSet<ConnId>,
    pub(crate) now: Duration,
    next_request: u32,
}

impl World {
    pub(crate) fn new(quota: Quota) -> Self {
        let mut world = Self {
            server: Server::new(quota),
            machine: Machine::default(),
            peers: BTreeMap::new(),
            deaf: BTreeSet::new(),
            now: Duration::ZERO,
            next_request: 0,
        };
        world.connect("dom0");
        world
    }

    /// A new socket client.
    pub(crate) fn connect(&mut self, name: &str) -> ConnId {
        let id = self.server.connect_socket();
        self.add_peer(name, id);
        id
    }

    pub(crate) fn add_peer(&mut self, name: &str, id: ConnId) {
        let peer = Peer { id, messages: VecDeque::new(), is_closed: false };
        self.peers.insert(name.to_owned(), peer);
    }

    /// Xen creates a domain, the toolstack introduces it, and `d<domid>` speaks for it.
    pub(crate) fn add_guest(&mut self, domid: u16) {
        self.create_domain(domid);
        let reply = self.call("dom0", MessageType::Introduce, 0, &format!("{domid}|5|7|"));
        assert_eq!(reply, Ok(b"OK\0".to_vec()));
        self.adopt_ring(domid);
    }

    /// A guest that owns its home, as a toolstack makes it.
    pub(crate) fn add_guest_with_home(&mut self, domid: u16) {
        self.add_guest(domid);
        let home = format!("/local/domain/{domid}");
        let ok = Ok(b"OK\0".to_vec());
        assert_eq!(self.call("dom0", MessageType::Mkdir, 0, &format!("{home}|")), ok);
        let list = format!("{home}|n{domid}|");
        assert_eq!(self.call("dom0", MessageType::SetPerms, 0, &list), ok);
    }

    pub(crate) fn adopt_ring(&mut self, domid: u16) {
        let id = self.machine.rings[&DomId(domid)];
        self.add_peer(&format!("d{domid}"), id);
    }

    pub(crate) fn create_domain(&mut self, domid: u16) {
        let state = DomainState { domid: DomId(domid), ..DomainState::default() };
        self.machine.states.insert(DomId(domid), state);
    }

    /// Time passes.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.server.advance(&mut self.machine, self.now);
        self.pump();
    }

    /// Xen says that something happened to domains.
    pub(crate) fn raise_exception(&mut self) {
        let listing: Vec<DomainState> = self.machine.states.values().copied().collect();
        self.server.handle_domain_states(&mut self.machine, &listing);
        self.pump();
    }

    pub(crate) fn destroy_domain(&mut self, domid: u16) {
        self.machine.states.remove(&DomId(domid));
        self.raise_exception();
    }

    /// Sends one request; `|` in the payload stands for a NUL.
    pub(crate) fn send(&mut self, peer: &str, kind: u32, transaction: u32, payload: &[u8]) -> u32 {
        self.next_request += 1;
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, kind, self.next_request, transaction, &[payload]);
        self.send_bytes(peer, &bytes);
        self.next_request
    }

    pub(crate) fn send_bytes(&mut self, peer: &str, bytes: &[u8]) {
        let id = self.peers[peer].id;
        if self.server.receive(&mut self.machine, id, bytes).is_err() {
            self.peers.get_mut(peer).expect("looked up above").is_closed = true;
        }
        self.pump();
    }

    /// Moves everything that waits to whom it is for.
    pub(crate) fn pump(&mut self) {
        while self.server.has_ready() {
            for id in self.server.take_ready() {
                if !self.deaf.contains(&id) {
                    self.read_all(id);
                    let received = self.server.receive(&mut self.machine, id, &[]);
                    assert_eq!(received, Ok(()));
                }
            }
        }
    }

    pub(crate) fn read_all(&mut self, id: ConnId) {
        let mut bytes = Vec::new();
        loop {
            let chunk = self.server.output(id);
            if chunk.is_empty() {
                break;
            }
            // An odd number, so that messages are cut anywhere.
            let length = chunk.len().min(4093);
            bytes.extend_from_slice(&chunk[..length]);
            self.server.consume(id, length);
        }
        let Some(peer) = self.peers.values_mut().find(|peer| peer.id == id) else { return };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let header =
                Header::decode_with_batches(rest).expect("a valid length").expect("a whole header");
            let (message, after) = rest[HEADER_BYTES..].split_at(header.payload_bytes());
            peer.messages.push_back(decode(header, message));
            rest = after;
        }
    }

    /// Sends a request and takes its reply out of what came; events stay where they are.
    pub(crate) fn call(
        &mut self,
        peer: &str,
        kind: MessageType,
        transaction: u32,
        payload: &str,
    ) -> Result<Vec<u8>, Error> {
        self.call_raw(peer, kind.code(), transaction, payload.replace('|', "\0").as_bytes())
    }

    pub(crate) fn call_raw(
        &mut self,
        peer: &str,
        kind: u32,
        transaction: u32,
        payload: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let id = self.send(peer, kind, transaction, payload);
        let messages = &mut self.peers.get_mut(peer).expect("sent to it").messages;
        let at = messages
            .iter()
            .position(|m| matches!(m, Message::Reply { request_id, .. } if *request_id == id))
            .unwrap_or_else(|| panic!("no reply to request {id} of type {kind}"));
        let Some(Message::Reply { kind: replied, transaction_id, result, .. }) =
            messages.remove(at)
        else {
            unreachable!("found as a reply");
        };
        assert_eq!(transaction_id, transaction);
        assert!(result.is_err() || replied == kind, "type {replied} answers {kind}");
        result
    }

    /// Takes the events that came for a client, each as `path:token`.
    pub(crate) fn take_events(&mut self, peer: &str) -> Vec<String> {
        let peer = self.peers.get_mut(peer).unwrap_or_else(|| panic!("nobody is named {peer}"));
        let take = |message| match message {
            Message::Event { path, token } => format!("{path}:{token}"),
            Message::Reply { .. } => panic!("a reply that nobody waited for: {message:?}"),
        };
        peer.messages.drain(..).map(take).collect()
    }

    /// Every counter equals a recount.
    pub(crate) fn assert_counts(&self) {
        assert_eq!(self.server.check(), Ok(()));
    }
}

fn decode(header: Header, payload: &[u8]) -> Message {
    if header.code == MessageType::WatchEvent.code() {
        assert_eq!((header.request_id, header.transaction_id), (0, 0));
        let strings: Vec<_> = wire::strings(payload).collect();
        let [path, token] = strings[..] else { panic!("{strings:?} is no event") };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        return Message::Event { path: text(path), token: text(token) };
    }
    let result = if header.code == MessageType::Error.code() {
        Err(Error::from_name(payload.strip_suffix(b"\0").expect("a NUL at the end")))
    } else {
        Ok(payload.to_vec())
    };
    Message::Reply {
        kind: header.code,
        request_id: header.request_id,
        transaction_id: header.transaction_id,
        result,
    }
}
