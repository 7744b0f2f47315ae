//! A ring page whose words another thread changes all the time.
//!
//! The daemon's part is what `xylem-xenstored` does with a ring, in short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use xen::DomId;
use xenstore::Quota;
use xenstore::ring::{ClientRing, RING_BYTES, RingError, RingPage, ServerRing};
use xenstore::server::{ConnId, Resumption, Server};

use crate::input::Input;
use crate::machine::{Machine, check, check_saved, kill_everybody, message, replay};

const GUEST: DomId = DomId(1);

/// The words of a page that two threads have.
#[derive(Clone)]
struct Page(Arc<[AtomicU32; 1024]>);

impl Page {
    fn new() -> Self {
        Self(Arc::new([const { AtomicU32::new(0) }; 1024]))
    }
}

impl RingPage for Page {
    fn load_u32(&self, offset: usize) -> u32 {
        self.0[offset / 4].load(Ordering::Acquire)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.0[offset / 4].store(value, Ordering::Release);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            *byte = self.0[at / 4].load(Ordering::Relaxed).to_ne_bytes()[at % 4];
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let mut word = self.0[at / 4].load(Ordering::Relaxed).to_ne_bytes();
            word[at % 4] = *byte;
            self.0[at / 4].store(u32::from_ne_bytes(word), Ordering::Relaxed);
        }
    }
}

struct Daemon {
    server: Server,
    machine: Machine,
    socket: ConnId,
    ring: ServerRing<Page>,
    is_broken: bool,
    journal: Vec<u8>,
}

/// The first words are for the thread that changes the page, the rest says what the daemon and an
/// honest guest do meanwhile.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flips: Vec<(usize, u32)> = (0..input.choice(16))
        .map(|_| {
            // Mostly the indexes, which stand behind each other.
            let place = usize::from(input.byte());
            let offset = if place < 192 { 2048 + 4 * (place % 8) } else { 4 * (place - 192) };
            (offset, input.word())
        })
        .collect();
    let page = Page::new();
    let mut daemon = Daemon::new(page.clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if !flips.is_empty() {
            let page = page.clone();
            let (stop, flips) = (&stop, &flips);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for (offset, value) in flips {
                        page.store_u32(*offset, *value);
                    }
                }
            });
        }
        let guest = ClientRing::new(page);
        for _ in 0..200 {
            if input.is_empty() {
                break;
            }
            daemon.step(&guest, &mut input);
        }
        stop.store(true, Ordering::Relaxed);
    });
    check_saved(&mut daemon.server);
    kill_everybody(&mut daemon.server);
}

impl Daemon {
    fn new(page: Page) -> Self {
        let mut server = Server::new(Quota::default());
        let mut machine = Machine::default();
        server.start_recording();
        let mut journal = Vec::new();
        let mut checkpoint = server.checkpoint();
        while checkpoint.write(&mut journal, 4096) == xenstore::server::Progress::More {}
        let socket = server.connect_socket();
        machine.domains.insert(GUEST, 1);
        let home = format!("/local/domain/{GUEST}");
        for (code, payload) in [
            (8, format!("{GUEST}\01\05\0")),
            (12, format!("{home}\0")),
            (14, format!("{home}\0n{GUEST}\0")),
        ] {
            let bytes = message(code, 0, payload.as_bytes());
            server.receive(&mut machine, socket, &bytes).expect("a valid message");
        }
        let ring = ServerRing::new(page);
        let mut daemon = Self { server, machine, socket, ring, is_broken: false, journal };
        daemon.commit();
        daemon
    }

    fn commit(&mut self) {
        self.journal.extend_from_slice(self.server.recorded());
        self.server.clear_recorded();
        for id in std::mem::take(&mut self.machine.to_reset) {
            self.ring.reset();
            self.server.note_indexes(id, self.ring.indexes());
            self.commit();
        }
    }

    fn step(&mut self, guest: &ClientRing<Page>, input: &mut Input<'_>) {
        match input.choice(8) {
            0..=2 => self.serve(),
            3 => {
                let (code, transaction) =
                    (u32::from(input.byte() % 26), u32::from(input.byte() % 3));
                let bytes = message(code, transaction, input.string());
                let _full_or_broken = guest.put_requests(&bytes);
            }
            4 => {
                let _full_or_broken = guest.put_requests(input.string());
            }
            5 => {
                let _broken = guest.take_replies(&mut [0; RING_BYTES]);
            }
            6 => {
                // Something changes, of which the guest may be told.
                let bytes = message(11, 0, b"/local/domain/1/a\0value");
                let (server, machine) = (&mut self.server, &mut self.machine);
                server.receive(machine, self.socket, &bytes).expect("a valid message");
                let length = server.output(self.socket).len();
                server.consume(self.socket, length);
            }
            _ => match input.choice(3) {
                0 => guest.ask_reconnect(),
                1 => self.restart(),
                _ => {
                    let bytes = message(8, 0, b"1\x001\x006\0");
                    let (server, machine) = (&mut self.server, &mut self.machine);
                    server.receive(machine, self.socket, &bytes).expect("a valid message");
                    let length = server.output(self.socket).len();
                    server.consume(self.socket, length);
                }
            },
        }
        self.commit();
        check(&self.server);
    }

    fn serve(&mut self) {
        let Some(&id) = self.machine.rings.get(&GUEST) else { return };
        if self.is_broken {
            return;
        }
        if let Err(error) = self.try_serve(id) {
            self.break_off(id, error);
        }
    }

    fn break_off(&mut self, id: ConnId, error: RingError) {
        self.server.stop_serving(id);
        self.commit();
        self.is_broken = true;
        self.ring.set_error(error);
    }

    fn try_serve(&mut self, id: ConnId) -> Result<(), RingError> {
        self.ring.offer(self.server.ring_features(GUEST));
        if self.server.needs_indexes(id) {
            self.server.note_indexes(id, self.ring.indexes());
        }
        if self.ring.wants_reconnect() {
            self.server.handle_reconnect(id);
            self.machine.to_reset.push(id);
            self.commit();
        }
        self.put(id)?;
        let mut bytes = [0; RING_BYTES];
        let mut held = (0, 0);
        if self.server.accepts_requests(id) {
            held = self.ring.copy_requests(&mut bytes)?;
        }
        let (held, end) = held;
        let received = self.server.receive_from_ring(&mut self.machine, id, &bytes[..held]);
        let taken = received.map_err(|_| RingError::PayloadTooLong)?;
        let index = end.wrapping_sub(u32::try_from(held - taken).unwrap_or(0));
        if taken > 0 {
            self.server.note_taken(id, index);
        }
        self.commit();
        if taken > 0 {
            self.ring.release_requests(index);
        }
        self.put(id)
    }

    fn put(&mut self, id: ConnId) -> Result<(), RingError> {
        loop {
            let sent = self.ring.put_replies(self.server.output(id))?;
            if sent == 0 {
                return Ok(());
            }
            self.server.consume(id, sent);
        }
    }

    /// The daemon is killed, and the next one continues with the page as it finds it.
    fn restart(&mut self) {
        self.commit();
        self.server = replay(&self.journal);
        self.server.start_recording();
        self.machine.rings.clear();
        let listing = self.machine.listing(false);
        self.server.handle_domain_states(&mut self.machine, &listing);
        for known in self.server.known_rings() {
            let id = known.connection;
            self.machine.rings.insert(known.domid, id);
            self.is_broken = known.broken;
            if known.broken || self.ring.wants_reconnect() {
                continue;
            }
            match self.server.resume_ring(id, self.ring.indexes()) {
                Ok(Resumption::From(taken)) => self.ring.release_requests(taken),
                Ok(Resumption::Reset) => self.machine.to_reset.push(id),
                Err(error) => self.break_off(id, error),
            }
        }
        self.socket = self.server.connect_socket();
        self.commit();
    }
}
