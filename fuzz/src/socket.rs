//! Bytes of clients: two on sockets, two guests, in any order, with everything that may happen between.
//!
//! Now and then the store is replaced by the one that its journal, or its stream for a successor,
//! describes.

use std::time::Duration;

use xen::DomId;
use xenstore::Quota;
use xenstore::server::{ConnId, Endpoints, Progress, Restore, Server};
use xenstore::state::Form;
use xenstore::wire::PAYLOAD_BYTES_MAX;

use crate::input::Input;
use crate::machine::{Machine, check, check_saved, kill_everybody, message, replay};

const GUESTS: [DomId; 2] = [DomId(1), DomId(2)];
const SOCKETS: usize = 2;

/// Steps of one input.
const STEPS_MAX: usize = 400;

/// Beyond its limit a guest may hold one message that is read, one reply, and the events that it is
/// granted always.
const OVERHEAD_BYTES: u64 = 2 * PAYLOAD_BYTES_MAX as u64 + 16 * 1024;

/// Words of which payloads consist; what else there is, the fuzzer finds out.
pub const WORDS: [&[u8]; 32] = [
    b"/\0",
    b"/a\0",
    b"/a/b\0",
    b"/a/b/c\0",
    b"a\0",
    b"a/b\0",
    b"/local/domain/1\0",
    b"/local/domain/1/a\0",
    b"/local/domain/2\0",
    b"/local/domain\0",
    b"@releaseDomain\0",
    b"@introduceDomain\0",
    b"@releaseDomain/1\0",
    b"token\0",
    b"other\0",
    b"T\0",
    b"F\0",
    b"n0\0",
    b"n1\0",
    b"r2\0",
    b"b1\0",
    b"w32757\0",
    b"0\0",
    b"1\0",
    b"2\0",
    b"3\0",
    b"value",
    b"\0",
    b"nodes\0",
    b"check\0",
    b"quota\0",
    b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

struct World {
    server: Server,
    machine: Machine,
    sockets: Vec<ConnId>,
    journal: Vec<u8>,
    unique_id: u64,
    now: Duration,
    deaf: [bool; SOCKETS + GUESTS.len()],
}

/// Does what the input says.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    check(&world.server);
    check_saved(&mut world.server);
    kill_everybody(&mut world.server);
}

impl World {
    fn new() -> Self {
        let quota = Quota {
            nodes: 20,
            watches: 5,
            transaction_nodes: 30,
            memory_bytes: 20_000,
            memory_bytes_soft: 9000,
            ..Quota::default()
        };
        let mut world = Self {
            server: Server::new(quota),
            machine: Machine::default(),
            sockets: Vec::new(),
            journal: Vec::new(),
            unique_id: 0,
            now: Duration::ZERO,
            deaf: [false; SOCKETS + GUESTS.len()],
        };
        world.server.start_recording();
        world.make_checkpoint();
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.sockets = (0..SOCKETS).map(|_| self.server.connect_socket()).collect();
        self.bring_back_guests();
    }

    /// Introduces domains that do not exist yet; each owns its home.
    fn bring_back_guests(&mut self) {
        for domid in GUESTS {
            if self.machine.rings.contains_key(&domid) {
                continue;
            }
            self.unique_id += 1;
            self.machine.domains.insert(domid, self.unique_id);
            let id = self.sockets[0];
            let home = format!("/local/domain/{domid}");
            for (code, payload) in [
                (8, format!("{domid}\01\0{}\0", domid.0 + 4)),
                (12, format!("{home}\0")),
                (14, format!("{home}\0n{domid}\0")),
            ] {
                let bytes = message(code, 0, payload.as_bytes());
                if self.server.receive(&mut self.machine, id, &bytes).is_err() {
                    self.renew_socket(0);
                    return;
                }
            }
            self.commit();
        }
    }

    fn renew_socket(&mut self, at: usize) {
        self.server.disconnect(self.sockets[at]);
        self.sockets[at] = self.server.connect_socket();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.choice(16) {
            0..=5 => self.send_message(input),
            6 => {
                let who = input.choice(SOCKETS + GUESTS.len());
                let bytes = input.string().to_vec();
                self.send(who, &bytes);
            }
            7 => {
                let who = input.choice(self.deaf.len());
                self.deaf[who] = !self.deaf[who];
            }
            8 => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 100);
                self.server.advance(&mut self.machine, self.now);
            }
            9 => {
                let listing = self.machine.listing(input.choice(2) == 1);
                self.server.handle_domain_states(&mut self.machine, &listing);
            }
            10 => {
                let domid = GUESTS[input.choice(GUESTS.len())];
                self.machine.domains.remove(&domid);
                let listing = self.machine.listing(false);
                self.server.handle_domain_states(&mut self.machine, &listing);
                self.commit();
                self.bring_back_guests();
            }
            11 => self.restart(),
            12 => self.hand_over(),
            13 => self.make_checkpoint(),
            14 => {
                let domid = GUESTS[input.choice(GUESTS.len())];
                if let Some(id) = self.machine.rings.get(&domid) {
                    self.server.handle_reconnect(*id);
                    self.machine.to_reset.push(*id);
                }
            }
            _ => self.renew_socket(input.choice(SOCKETS)),
        }
        self.commit();
        self.deliver();
        check(&self.server);
    }

    fn send_message(&mut self, input: &mut Input<'_>) {
        let who = input.choice(SOCKETS + GUESTS.len());
        let code = match input.byte() {
            // The batch message.
            255 => 0x584c_0001,
            other => u32::from(other % 26),
        };
        let transaction = u32::from(input.byte() % 4);
        let mut payload = Vec::new();
        for _ in 0..input.choice(6) {
            match input.byte() {
                word @ 0..=200 => payload.extend_from_slice(WORDS[usize::from(word) % WORDS.len()]),
                _ => payload.extend_from_slice(input.string()),
            }
        }
        payload.truncate(PAYLOAD_BYTES_MAX);
        self.send(who, &message(code, transaction, &payload));
    }

    fn send(&mut self, who: usize, bytes: &[u8]) {
        if let Some(at) = who.checked_sub(SOCKETS) {
            return self.send_from_guest(GUESTS[at], bytes);
        }
        if self.server.receive(&mut self.machine, self.sockets[who], bytes).is_err() {
            self.renew_socket(who);
        }
    }

    /// Nothing is taken out of the ring of a guest that may not ask.
    fn send_from_guest(&mut self, domid: DomId, bytes: &[u8]) {
        let Some(&id) = self.machine.rings.get(&domid) else { return };
        let held_before = self.held(domid);
        for piece in bytes.chunks(1024) {
            if !self.server.accepts_requests(id) {
                break;
            }
            if self.server.receive(&mut self.machine, id, piece).is_err() {
                break;
            }
        }
        let limit = held_before.max(20_000) + OVERHEAD_BYTES;
        let held = self.held(domid);
        assert!(held <= limit, "domain {domid} holds {held} bytes, {held_before} before");
    }

    /// Bytes that are held for the guest, as the status tells.
    fn held(&self, domid: DomId) -> u64 {
        let status = self.server.status_json();
        let (_, domain) =
            status.split_once(&format!("{{\"domid\":{domid},")).unwrap_or(("", "\"bytes\":0,"));
        let (_, bytes) = domain.split_once("\"bytes\":").expect("a domain has bytes");
        let digits: String = bytes.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    fn deliver(&mut self) {
        for _ in 0..64 {
            if !self.server.has_ready() {
                break;
            }
            for id in self.server.take_ready() {
                self.read(id);
                if self.server.accepts_requests(id) {
                    let _broken = self.server.receive(&mut self.machine, id, &[]);
                }
            }
        }
    }

    fn read(&mut self, id: ConnId) {
        let sockets = self.sockets.iter().copied();
        let guests = GUESTS.iter().map(|domid| self.machine.rings.get(domid).copied());
        let who = sockets.map(Some).chain(guests).position(|client| client == Some(id));
        if who.is_some_and(|who| self.deaf[who]) {
            return;
        }
        loop {
            let length = self.server.output(id).len();
            if length == 0 {
                break;
            }
            self.server.consume(id, length.min(509));
        }
    }

    fn commit(&mut self) {
        self.journal.extend_from_slice(self.server.recorded());
        self.server.clear_recorded();
        self.machine.to_reset.clear();
    }

    fn make_checkpoint(&mut self) {
        self.commit();
        self.journal.clear();
        let mut checkpoint = self.server.checkpoint();
        while checkpoint.write(&mut self.journal, 200) == Progress::More {}
    }

    /// The daemon is killed, and the next one reads the journal.
    fn restart(&mut self) {
        self.commit();
        self.server = replay(&self.journal);
        self.server.advance(&mut self.machine, self.now);
        self.server.start_recording();
        self.machine.rings.clear();
        let listing = self.machine.listing(false);
        self.server.handle_domain_states(&mut self.machine, &listing);
        for known in self.server.known_rings() {
            self.machine.rings.insert(known.domid, known.connection);
        }
        self.commit();
        self.connect();
    }

    /// Another process continues.
    fn hand_over(&mut self) {
        let mut stream = Vec::new();
        self.server.save(Form::Own, &Endpoints::default()).fill_all(&mut stream);
        let mut restore = Restore::new(Quota::default());
        restore.feed(&stream).expect("our own stream");
        self.server = restore.finish(self.now).expect("our own stream").server;
        self.server.start_recording();
        self.make_checkpoint();
    }
}
