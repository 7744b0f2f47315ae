//! A store that is killed at every moment against a twin that never is.
//!
//! Both run the same script of guests on ring pages and clients on sockets. One of them is now and then
//! thrown away, between any two things that others can see, and brought back from its records and the
//! pages. In the end every guest must have read the same.

use std::collections::BTreeMap;

use proptest::prelude::*;
use xen::{DomId, EvtchnPort, Gfn};
use xenstore::ring::{ClientRing, RING_BYTES, RingPage, ServerRing};
use xenstore::server::{ConnId, DomainState, Host, Progress, Replay, Resumption, Server};
use xenstore::wire::{self, HEADER_BYTES, Header, MessageType};
use xenstore::{Error, Quota};

use crate::page::Page;

const GUESTS: u16 = 3;
const SOCKETS: usize = 2;

/// A guest's side of its page.
struct Guest {
    page: Page,
    to_send: Vec<u8>,
    received: Vec<u8>,
    unique_id: u64,
    is_shutdown: bool,
}

impl Guest {
    fn new(unique_id: u64) -> Self {
        let page = Page::new();
        let guest =
            Self { page, to_send: Vec::new(), received: Vec::new(), unique_id, is_shutdown: false };
        guest.begin();
        guest
    }

    fn begin(&self) {
        // Indexes that wrap around soon.
        for offset in [2048, 2052, 2056, 2060] {
            self.page.store_u32(offset, 0xffff_ff00);
        }
    }

    fn turn(&mut self, bytes: usize) {
        let ring = ClientRing::new(self.page.clone());
        let sent = ring.put_requests(&self.to_send).expect("our own indexes");
        self.to_send.drain(..sent);
        let mut replies = vec![0; bytes];
        let taken = ring.take_replies(&mut replies).expect("our own indexes");
        self.received.extend_from_slice(&replies[..taken]);
    }
}

/// What is outside the daemon and stays when it is killed.
#[derive(Default)]
struct Outside {
    guests: BTreeMap<u16, Guest>,
    /// Rings that the daemon has mapped.
    connected: BTreeMap<DomId, ConnId>,
    to_reset: Vec<ConnId>,
}

impl Outside {
    fn listing(&self) -> Vec<DomainState> {
        let state = |(domid, guest): (&u16, &Guest)| DomainState {
            domid: DomId(*domid),
            shutdown: guest.is_shutdown,
            unique_id: Some(guest.unique_id),
            ..DomainState::default()
        };
        self.guests.iter().map(state).collect()
    }

    fn page(&self, id: ConnId) -> Option<Page> {
        let (domid, _) = self.connected.iter().find(|(_, connection)| **connection == id)?;
        self.guests.get(&domid.0).map(|guest| guest.page.clone())
    }
}

impl Outside {
    /// The guest of this ring starts from nothing: what was cut off before is no message.
    fn begin_anew(&mut self, id: ConnId) {
        let found = self.connected.iter().find(|(_, connection)| **connection == id);
        if let Some(guest) = found.and_then(|(domid, _)| self.guests.get_mut(&domid.0)) {
            guest.to_send.clear();
            guest.received.clear();
        }
    }
}

impl Host for Outside {
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        _gfn: Gfn,
        _port: EvtchnPort,
    ) -> Result<(), Error> {
        if !self.guests.contains_key(&domid.0) {
            return Err(Error::EINVAL);
        }
        self.connected.insert(domid, connection);
        // Whether it was served before or not: as after a soft reset.
        self.begin_anew(connection);
        self.guests.get_mut(&domid.0).expect("found above").begin();
        Ok(())
    }

    fn reset_ring(&mut self, domid: DomId, _port: EvtchnPort) -> Result<(), Error> {
        let id = *self.connected.get(&domid).ok_or(Error::ENOENT)?;
        self.to_reset.push(id);
        Ok(())
    }

    fn disconnect_ring(&mut self, domid: DomId) {
        self.connected.remove(&domid);
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        self.guests.contains_key(&domid.0)
    }

    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        self.guests.get(&domid.0).map(|guest| guest.unique_id)
    }

    fn log(&mut self, _line: &str) {}
}

/// Where a daemon dies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Death {
    /// After the work was done, before it was safe.
    BeforeCommit,
    AfterCommit,
    /// The requests' room was given back.
    AfterRelease,
    /// Some of the reply's bytes are in the ring, the guest was not told of them.
    HalfPut,
    /// The guest can see some of the reply.
    AfterPut,
}

/// The daemon is dead: nothing more of this step happens.
struct Dead;

/// A daemon with its outside.
struct Rig {
    server: Server,
    outside: Outside,
    sockets: Vec<ConnId>,
    /// What a killed daemon leaves behind.
    journal: Vec<u8>,
    dies: Option<Death>,
    /// It died with replies for the ring, before it looked at the ring's requests.
    died_early: bool,
    last_unique_id: u64,
}

impl Rig {
    fn new() -> Self {
        let quota = Quota { outstanding: 0, ..Quota::default() };
        let mut rig = Self {
            server: Server::new(quota),
            outside: Outside::default(),
            sockets: Vec::new(),
            journal: Vec::new(),
            dies: None,
            died_early: false,
            last_unique_id: 0,
        };
        rig.server.start_recording();
        rig.make_checkpoint();
        rig.connect_sockets();
        for domid in 1..=GUESTS {
            rig.create_domain(domid);
            let home = format!("/local/domain/{domid}");
            rig.must(MessageType::Introduce, &format!("{domid}|1|{domid}|"));
            rig.must(MessageType::Mkdir, &format!("{home}|"));
            rig.must(MessageType::SetPerms, &format!("{home}|n{domid}|r2|"));
        }
        rig.must(MessageType::Mkdir, "/s|");
        rig.must(MessageType::SetPerms, "/s|b0|");
        rig
    }

    fn connect_sockets(&mut self) {
        self.sockets = (0..SOCKETS).map(|_| self.server.connect_socket()).collect();
    }

    fn create_domain(&mut self, domid: u16) {
        self.last_unique_id += 1;
        self.outside.guests.insert(domid, Guest::new(self.last_unique_id));
    }

    fn must(&mut self, kind: MessageType, payload: &str) {
        let reply = self.call(kind, payload).expect("it lives");
        assert_eq!(reply.0.code, kind.code(), "{kind:?} {payload}: {reply:?}");
    }

    /// A request of the first socket and its reply, unless the daemon died.
    fn call(&mut self, kind: MessageType, payload: &str) -> Option<Message> {
        let came = messages(&self.ask(0, &message(kind, 0, payload))?);
        came.into_iter().find(|message| !message.is_event())
    }

    /// What a socket gets for its request; nothing if the daemon died.
    fn ask(&mut self, socket: usize, request: &[u8]) -> Option<Vec<u8>> {
        let id = self.sockets[socket];
        self.server.receive(&mut self.outside, id, request).expect("a valid message");
        self.commit_or_die().ok()?;
        let mut reply = Vec::new();
        loop {
            let bytes = self.server.output(id).to_vec();
            if bytes.is_empty() {
                return Some(reply);
            }
            self.server.consume(id, bytes.len());
            reply.extend(bytes);
        }
    }

    fn dies_at(&self, death: Death) -> Result<(), Dead> {
        if self.dies == Some(death) { Err(Dead) } else { Ok(()) }
    }

    fn append(&mut self) {
        self.journal.extend_from_slice(self.server.recorded());
        self.server.clear_recorded();
    }

    fn commit(&mut self) {
        self.append();
        self.reset_pages();
    }

    fn commit_or_die(&mut self) -> Result<(), Dead> {
        self.dies_at(Death::BeforeCommit)?;
        self.append();
        self.dies_at(Death::AfterCommit)?;
        self.reset_pages();
        Ok(())
    }

    fn reset_pages(&mut self) {
        for id in std::mem::take(&mut self.outside.to_reset) {
            if let Some(page) = self.outside.page(id) {
                let ring = ServerRing::new(page);
                ring.reset();
                self.server.note_indexes(id, ring.indexes());
                self.append();
                self.outside.begin_anew(id);
            }
        }
    }

    /// What the daemon does when a guest's event channel fires.
    fn serve(&mut self, domid: u16) -> Result<(), Dead> {
        self.commit();
        let Some(&id) = self.outside.connected.get(&DomId(domid)) else { return Ok(()) };
        let Some(page) = self.outside.page(id) else { return Ok(()) };
        let ring = ServerRing::new(page);
        if self.server.needs_indexes(id) {
            self.server.note_indexes(id, ring.indexes());
        }
        if ring.wants_reconnect() {
            self.server.handle_reconnect(id);
            self.outside.to_reset.push(id);
            self.commit_or_die()?;
        }
        self.commit();
        self.died_early = self.put(id, &ring).is_err();
        if self.died_early {
            return Err(Dead);
        }
        let mut bytes = [0; RING_BYTES];
        let (taken, index) = ring.copy_requests(&mut bytes).expect("valid indexes");
        self.server.receive(&mut self.outside, id, &bytes[..taken]).expect("valid messages");
        if taken > 0 {
            self.server.note_taken(id, index);
        }
        self.commit_or_die()?;
        ring.release_requests(index);
        self.dies_at(Death::AfterRelease)?;
        self.put(id, &ring)?;
        self.dies_at(Death::AfterPut)
    }

    fn put(&mut self, id: ConnId, ring: &ServerRing<Page>) -> Result<(), Dead> {
        loop {
            let bytes = self.server.output(id).to_vec();
            if self.dies == Some(Death::HalfPut) && !bytes.is_empty() {
                let before = ring.indexes().replies_put;
                ring.put_replies(&bytes[..bytes.len() / 2]).expect("valid indexes");
                ring.page().store_u32(2060, before);
                return Err(Dead);
            }
            let sent = ring.put_replies(&bytes).expect("valid indexes");
            if sent == 0 {
                return Ok(());
            }
            self.dies_at(Death::AfterPut)?;
            self.server.consume(id, sent);
        }
    }

    fn handle_domains(&mut self) -> Result<(), Dead> {
        let listing = self.outside.listing();
        self.server.handle_domain_states(&mut self.outside, &listing);
        self.commit_or_die()
    }

    fn make_checkpoint(&mut self) {
        self.commit();
        let mut checkpoint = self.server.checkpoint();
        self.journal.clear();
        while checkpoint.write(&mut self.journal, 100) == Progress::More {}
    }

    /// A daemon that starts again: nothing of the old one is used but its journal.
    fn restart(&mut self) {
        self.dies = None;
        self.died_early = false;
        self.outside.connected.clear();
        self.outside.to_reset.clear();
        let mut replay = Replay::new();
        replay.apply(&self.journal).expect("our own records");
        self.server = replay.finish();
        assert_eq!(self.server.check(), Ok(()));
        self.server.start_recording();
        let listing = self.outside.listing();
        self.server.handle_domain_states(&mut self.outside, &listing);
        for known in self.server.known_rings() {
            self.outside.connected.insert(known.domid, known.connection);
            let page = self.outside.page(known.connection).expect("its domain lives");
            let ring = ServerRing::new(page);
            if known.broken || ring.wants_reconnect() {
                continue;
            }
            match self.server.resume_ring(known.connection, ring.indexes()) {
                Ok(Resumption::From(taken)) => ring.release_requests(taken),
                Ok(Resumption::Reset) => self.outside.to_reset.push(known.connection),
                Err(error) => panic!("domain {} made no mistake: {error}", known.domid),
            }
        }
        self.commit();
        self.connect_sockets();
        self.serve_all();
    }

    /// The twin of a daemon that starts again: only the sockets notice.
    fn lose_sockets(&mut self) {
        for id in std::mem::take(&mut self.sockets) {
            self.server.disconnect(id);
        }
        let listing = self.outside.listing();
        self.server.handle_domain_states(&mut self.outside, &listing);
        self.commit();
        self.connect_sockets();
        self.serve_all();
    }

    fn serve_all(&mut self) {
        let domids: Vec<u16> = self.outside.guests.keys().copied().collect();
        for domid in domids {
            assert!(self.serve(domid).is_ok());
        }
    }

    fn drain(&mut self) {
        loop {
            let lengths = |outside: &Outside| -> Vec<(usize, usize)> {
                let guests = outside.guests.values();
                guests.map(|guest| (guest.received.len(), guest.to_send.len())).collect()
            };
            let before = lengths(&self.outside);
            for _ in 0..2 {
                self.outside.guests.values_mut().for_each(|guest| guest.turn(1024));
                self.serve_all();
            }
            if lengths(&self.outside) == before {
                return;
            }
        }
    }

    /// Every node with its value, permissions and children, as dom0 sees them.
    fn dump(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut paths = vec!["/".to_owned()];
        while let Some(path) = paths.pop() {
            let mut get = |kind| self.call(kind, &format!("{path}|")).expect("it lives").1;
            let (value, acl) = (get(MessageType::Read), get(MessageType::GetPerms));
            let names = get(MessageType::Directory);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', "|");
            lines.push(format!("{path}={} {} {}", text(&value), text(&acl), text(&names)));
            let parent = if path == "/" { "" } else { &path };
            let names = wire::strings(&names).map(|name| format!("{parent}/{}", text(name)));
            paths.extend(names);
        }
        lines
    }
}

fn message(kind: MessageType, transaction: u32, payload: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let payload = payload.replace('|', "\0");
    wire::encode(&mut out, kind.code(), 9, transaction, &[payload.as_bytes()]);
    out
}

#[derive(Clone, Debug)]
enum Step {
    /// A guest wants to send this.
    Request(u16, Vec<u8>),
    /// A guest moves bytes, reading so many at most.
    Turn(u16, usize),
    Serve(u16),
    Ask(usize, Vec<u8>),
    Reconnect(u16),
    Shutdown(u16),
    /// The domain dies and another one gets its domid at once.
    Reborn(u16),
    Domains,
    Checkpoint,
}

/// What both do. `Err` if the daemon died in it.
fn run(rig: &mut Rig, step: &Step) -> Result<(), Dead> {
    match step {
        Step::Request(domid, bytes) => {
            rig.outside.guests.get_mut(domid).expect("always there").to_send.extend(bytes);
        }
        Step::Turn(domid, bytes) => {
            rig.outside.guests.get_mut(domid).expect("always there").turn(*bytes);
        }
        Step::Serve(domid) => return rig.serve(*domid),
        Step::Ask(socket, request) => return rig.ask(*socket, request).map(|_| ()).ok_or(Dead),
        Step::Reconnect(domid) => {
            ClientRing::new(rig.outside.guests[domid].page.clone()).ask_reconnect();
            return rig.serve(*domid);
        }
        Step::Shutdown(domid) => {
            rig.outside.guests.get_mut(domid).expect("always there").is_shutdown = true;
        }
        Step::Reborn(domid) => {
            rig.create_domain(*domid);
            rig.handle_domains()?;
            rig.call(MessageType::Introduce, &format!("{domid}|1|{domid}|"));
        }
        Step::Domains => return rig.handle_domains(),
        Step::Checkpoint => {}
    }
    Ok(())
}

fn request(paths: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    use MessageType as M;
    let path = prop::sample::select(paths);
    let transaction = prop_oneof![3 => Just(0), 2 => 1..3_u32];
    let long = prop::collection::vec(prop::char::range('a', 'z'), 0..900);
    let value = prop_oneof![9 => "[a-z]{0,3}", 1 => long.prop_map(|c| c.into_iter().collect())];
    let acl = prop::sample::select(&["n1|", "b2|r1|", "r3|b2|", "n0|w1|", "b1|r2|b3|"][..]);
    let kind = prop_oneof![
        6 => Just(M::Write),
        2 => Just(M::Read),
        1 => Just(M::Directory),
        1 => Just(M::Mkdir),
        2 => Just(M::Rm),
        1 => Just(M::SetPerms),
        1 => Just(M::GetPerms),
        3 => Just(M::Watch),
        1 => Just(M::Unwatch),
        2 => Just(M::TransactionStart),
        2 => Just(M::TransactionEnd),
        1 => Just(M::GetDomainPath),
    ];
    (kind, path, value, acl, transaction, 0..2_u32).prop_map(
        |(kind, path, value, acl, transaction, depth)| {
            let payload = match kind {
                M::Write => format!("{path}|{value}"),
                M::SetPerms => format!("{path}|{acl}"),
                M::Watch if depth == 0 => format!("{path}|{path}|{depth}|"),
                M::Watch | M::Unwatch => format!("{path}|{path}|"),
                M::TransactionStart => "|".to_owned(),
                M::TransactionEnd => "T|".to_owned(),
                M::GetDomainPath => "2|".to_owned(),
                _ => format!("{path}|"),
            };
            message(kind, transaction, &payload)
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    const PATHS: &[&str] = &["a", "a/b", "c", "/s", "/s/x", "/s/y/z", "/local/domain/1/a"];
    const ABSOLUTE: &[&str] =
        &["/s", "/s/x", "/s/y", "/local/domain/1/a", "/local/domain/2", "@releaseDomain"];
    let of_dom0 = prop::sample::select(
        &[
            (MessageType::Introduce, "1|1|9|"),
            (MessageType::Release, "2|"),
            (MessageType::Introduce, "2|1|2|"),
            (MessageType::SetTarget, "3|1|"),
            (MessageType::Resume, "3|"),
            (MessageType::SetQuota, "1|nodes|7|"),
            (MessageType::SetQuota, "watches|3|"),
            (MessageType::SetPerms, "@introduceDomain|n0|r2|"),
            (MessageType::SetPerms, "@releaseDomain/3|n0|r1|"),
        ][..],
    );
    let of_dom0 = of_dom0.prop_map(|(kind, payload)| message(kind, 0, payload));
    let guest = 1..=GUESTS;
    prop_oneof![
        20 => (guest.clone(), request(PATHS)).prop_map(|(id, bytes)| Step::Request(id, bytes)),
        20 => (guest.clone(), 1..1024_usize).prop_map(|(id, bytes)| Step::Turn(id, bytes)),
        20 => guest.clone().prop_map(Step::Serve),
        8 => (0..SOCKETS, request(ABSOLUTE)).prop_map(|(id, bytes)| Step::Ask(id, bytes)),
        2 => (0..SOCKETS, of_dom0).prop_map(|(id, bytes)| Step::Ask(id, bytes)),
        1 => guest.clone().prop_map(Step::Reconnect),
        1 => guest.clone().prop_map(Step::Shutdown),
        1 => guest.prop_map(Step::Reborn),
        2 => Just(Step::Domains),
        2 => Just(Step::Checkpoint),
    ]
}

fn death() -> impl Strategy<Value = Death> {
    prop_oneof![
        Just(Death::BeforeCommit),
        Just(Death::AfterCommit),
        Just(Death::AfterRelease),
        Just(Death::HalfPut),
        Just(Death::AfterPut),
    ]
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Message(Header, Vec<u8>);

impl Message {
    fn is_event(&self) -> bool {
        self.0.code == MessageType::WatchEvent.code()
    }
}

fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let mut all = Vec::new();
    while let Some(header) = Header::decode(bytes).expect("a valid length") {
        let (payload, rest) = bytes[HEADER_BYTES..].split_at(header.payload_bytes());
        all.push(Message(header, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "cut in a message: {bytes:?}");
    all
}

/// All that the twin's guest read, in this order. Of equal events that waited together the twin sent
/// one; the other may send them all.
fn assert_same_messages(domid: u16, ours: &[Message], twins: &[Message]) {
    let mut expected = twins.iter().peekable();
    for (i, message) in ours.iter().enumerate() {
        if expected.peek() == Some(&message) {
            expected.next();
        } else {
            let repeats = message.is_event() && ours[..i].contains(message);
            assert!(repeats, "domain {domid}: {message:?} instead of {:?}", expected.peek());
        }
    }
    assert_eq!(expected.next(), None, "domain {domid} misses a message");
}

fn check(script: &[(Step, Option<Death>)]) {
    let (mut rig, mut twin) = (Rig::new(), Rig::new());
    for (step, dies) in script {
        rig.dies = *dies;
        let died = run(&mut rig, step).is_err();
        let was_lost = died && (*dies == Some(Death::BeforeCommit) || rig.died_early);
        if died {
            // What was not safe did not happen. Where it had no other effect the twin has none.
            if was_lost {
                match step {
                    Step::Reborn(domid) => twin.create_domain(*domid),
                    Step::Reconnect(domid) => {
                        ClientRing::new(twin.outside.guests[domid].page.clone()).ask_reconnect();
                    }
                    _ => {}
                }
            } else {
                let _whole = run(&mut twin, step);
            }
            rig.restart();
            twin.lose_sockets();
            if let Step::Reborn(domid) = step {
                let payload = format!("{domid}|1|{domid}|");
                for rig in [&mut rig, &mut twin] {
                    rig.call(MessageType::Introduce, &payload);
                }
            }
        } else {
            rig.dies = None;
            assert!(run(&mut twin, step).is_ok());
        }
        // An open transaction does not survive a checkpoint whole.
        let is_open = !rig.server.stats().contains("\"transactions_open\":0");
        if matches!(step, Step::Checkpoint) && !is_open {
            rig.make_checkpoint();
        }
    }
    for rig in [&mut rig, &mut twin] {
        rig.drain();
        // Watches tell of themselves.
        for path in ["/s/x", "/s/y", "/local/domain/1/a", "/local/domain/2/c", "/new"] {
            rig.must(MessageType::Write, &format!("{path}|last"));
        }
        rig.drain();
        assert_eq!(rig.server.check(), Ok(()));
    }
    assert_eq!(rig.dump(), twin.dump());
    assert_eq!(rig.server.watch_count(), twin.server.watch_count());
    assert!(rig.outside.connected.keys().eq(twin.outside.connected.keys()));
    for DomId(domid) in rig.outside.connected.keys() {
        let guest = &rig.outside.guests[domid];
        let ours = messages(&guest.received);
        let twins = messages(&twin.outside.guests[domid].received);
        assert_same_messages(*domid, &ours, &twins);
    }
}

/// A quarter of the usual number: each case is long.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases / 4, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_store_that_is_killed_at_any_moment_is_the_one_that_never_was(
        script in prop::collection::vec((step(), prop::option::weighted(0.1, death())), 1..150)
    ) {
        check(&script);
    }
}

#[test]
fn rights_of_the_dead_are_in_no_checkpoint_even_while_they_still_stand_in_lists() {
    let mut rig = Rig::new();
    rig.must(MessageType::SetPerms, "/s|n0|r1|");
    for i in 0..4000 {
        rig.must(MessageType::Write, &format!("/s/{i}|"));
    }
    rig.outside.guests.remove(&1);
    assert!(rig.handle_domains().is_ok());
    assert!(!rig.server.is_cleared_up(), "a checkpoint of this moment is what is asked for");
    rig.make_checkpoint();
    rig.create_domain(1);
    rig.restart();
    rig.must(MessageType::Introduce, "1|1|1|");
    for path in ["/s", "/s/3999"] {
        let list = rig.call(MessageType::GetPerms, &format!("{path}|")).expect("it lives");
        assert_eq!(list.1, b"n0\0", "{path}");
    }
}
