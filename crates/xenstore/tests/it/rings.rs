//! Guests that talk through ring pages, served as a daemon does it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use xen::DomId;
use xenstore::Quota;
use xenstore::client::ClientMachine;
use xenstore::ring::{ClientRing, FEATURE_RECONNECTION, RingError, RingPage, ServerRing};
use xenstore::server::ConnId;
use xenstore::wire::MessageType;

use crate::page::Page;
use crate::world::World;

/// A guest, its page, and the store's end of it.
struct Guest {
    id: ConnId,
    machine: ClientMachine,
    near: ClientRing<Page>,
    far: ServerRing<Page>,
}

impl Guest {
    fn new(world: &mut World, domid: u16) -> Self {
        world.add_guest(domid);
        let page = Page::new();
        // Indexes do not begin at zero.
        for offset in [2048, 2052, 2056, 2060] {
            page.store_u32(offset, 0xffff_ff00);
        }
        let id = world.machine.rings[&DomId(domid)];
        let (near, far) = (ClientRing::new(page.clone()), ServerRing::new(page));
        far.offer(world.server.ring_features(DomId(domid)));
        Self { id, machine: ClientMachine::new(), near, far }
    }

    /// The guest moves what it can.
    fn turn(&mut self) {
        let sent = self.near.put_requests(self.machine.outgoing()).unwrap();
        self.machine.sent(sent);
        let mut bytes = [0; 300];
        let taken = self.near.take_replies(&mut bytes).unwrap();
        self.machine.handle_bytes(&bytes[..taken]).unwrap();
    }

    /// The store moves what it can.
    fn serve(&mut self, world: &mut World) -> Result<(), RingError> {
        let World { server, machine, .. } = world;
        if self.far.wants_reconnect() {
            server.handle_reconnect(self.id);
            self.far.reset();
        }
        loop {
            let sent = self.far.put_replies(server.output(self.id))?;
            if sent == 0 {
                break;
            }
            server.consume(self.id, sent);
        }
        if !server.accepts_requests(self.id) {
            return Ok(());
        }
        let mut bytes = [0; 1024];
        let (held, end) = self.far.copy_requests(&mut bytes)?;
        let taken = server.receive_from_ring(machine, self.id, &bytes[..held]);
        let taken = taken.map_err(|_| RingError::PayloadTooLong)?;
        self.far.release_requests(end.wrapping_sub(u32::try_from(held - taken).unwrap()));
        Ok(())
    }

    fn settle(&mut self, world: &mut World) {
        for _ in 0..200 {
            self.turn();
            self.serve(world).unwrap();
        }
        assert_eq!(self.machine.in_flight(), 0, "requests without a reply");
    }
}

#[test]
fn a_guest_is_served_through_its_page() {
    let mut world = World::new(Quota::default());
    let mut guest = Guest::new(&mut world, 1);
    world.call("dom0", MessageType::Write, 0, "/local/domain/1/name|guest").unwrap();
    world.call("dom0", MessageType::SetPerms, 0, "/local/domain/1/name|n0|r1|").unwrap();
    assert_eq!(guest.near.features(), 15);
    guest.machine.request(MessageType::Read, 0, &[b"name\0"]).unwrap();
    guest.machine.request(MessageType::Watch, 0, &[b"name\0t\0"]).unwrap();
    guest.settle(&mut world);
    assert_eq!(guest.machine.poll_reply(), Some(Ok(b"guest".to_vec())));
    assert_eq!(guest.machine.poll_reply(), Some(Ok(b"OK\0".to_vec())));
    let event = guest.machine.poll_event().unwrap();
    assert_eq!((event.path.as_str(), event.token.as_str()), ("name", "t"));
}

#[test]
fn messages_larger_than_the_ring_pass_through_it() {
    let mut world = World::new(Quota { node_bytes: 0, ..Quota::default() });
    let mut guest = Guest::new(&mut world, 1);
    world.call("dom0", MessageType::Mkdir, 0, "/local/domain/1|").unwrap();
    world.call("dom0", MessageType::SetPerms, 0, "/local/domain/1|n1|").unwrap();
    let value: Vec<u8> = (0..4000u32).map(|i| b'a' + i.to_le_bytes()[0] % 26).collect();
    for _ in 0..30 {
        guest.machine.request(MessageType::Write, 0, &[b"x\0", &value]).unwrap();
        guest.machine.request(MessageType::Read, 0, &[b"x\0"]).unwrap();
    }
    for _ in 0..30 {
        guest.settle_some(&mut world);
    }
    assert_eq!(guest.machine.in_flight(), 0);
    for _ in 0..30 {
        assert_eq!(guest.machine.poll_reply(), Some(Ok(b"OK\0".to_vec())));
        assert_eq!(guest.machine.poll_reply(), Some(Ok(value.clone())));
    }
}

#[test]
fn a_guest_that_asks_faster_than_it_is_served_finds_its_ring_full() {
    let mut world = World::new(Quota::default());
    let mut guest = Guest::new(&mut world, 1);
    let (mut asked, mut answered, mut full) = (0u32, 0u32, 0u32);
    let mut requests = Vec::new();
    let mut replies = Vec::new();
    // As fast as the ring has room, and read in pieces of any size.
    for turn in 0..20_000 {
        while requests.len() < 1024 {
            asked += 1;
            let read = MessageType::Read.code();
            xenstore::wire::encode(&mut requests, read, asked, 0, &[b"/local\0"]);
        }
        let sent = guest.near.put_requests(&requests).unwrap();
        full += u32::from(sent < requests.len());
        requests.drain(..sent);
        assert_eq!(guest.serve(&mut world), Ok(()), "in turn {turn}");
        let mut bytes = [0; 1024];
        let taken = guest.near.take_replies(&mut bytes[..100 + turn % 900]).unwrap();
        replies.extend_from_slice(&bytes[..taken]);
        while let Ok(Some(header)) = xenstore::wire::Header::decode(&replies)
            && replies.len() >= 16 + header.payload_bytes()
        {
            answered += 1;
            assert_eq!(header.request_id, answered);
            replies.drain(..16 + header.payload_bytes());
        }
    }
    assert!(full > 10_000 && answered > 100_000, "{full} times full, {answered} answers");
    world.assert_counts();
}

/// Linux writes a header and then its payload, and sends an event for either only if all that it wrote
/// before has been taken (`xb_write`).
#[test]
fn a_guest_that_sends_events_only_into_an_empty_ring_is_served() {
    let mut world = World::new(Quota { node_bytes: 0, ..Quota::default() });
    let mut guest = Guest::new(&mut world, 1);
    world.call("dom0", MessageType::Mkdir, 0, "/local/domain/1|").unwrap();
    world.call("dom0", MessageType::SetPerms, 0, "/local/domain/1|n1|").unwrap();
    for length in [1, 40, 1000, 1008, 1010, 4000] {
        let mut messages = Vec::new();
        let write = MessageType::Write.code();
        xenstore::wire::encode(&mut messages, write, 1, 0, &[b"x\0", &vec![b'v'; length]]);
        let first = messages.len();
        xenstore::wire::encode(&mut messages, write, 2, 0, &[b"y\0", b"w"]);
        let cuts = [1, 15, 16, 17, first - 1, first, first + 3, first + 16, messages.len() - 1];
        for cut in cuts {
            let mut replies = 0;
            for mut piece in [&messages[..cut], &messages[cut..]] {
                while !piece.is_empty() {
                    let sent = guest.near.put_requests(piece).unwrap();
                    assert!(sent > 0, "{length} bytes cut at {cut}: the ring stays full");
                    piece = &piece[sent..];
                    // The one event, and as many turns as the daemon gives a ring that it takes from.
                    for _ in 0..4 {
                        guest.serve(&mut world).unwrap();
                    }
                    let (held, _) = guest.far.copy_requests(&mut [0; 1024]).unwrap();
                    assert_eq!(
                        held, 0,
                        "{length} bytes cut at {cut}: they stay in the ring, unheard"
                    );
                    replies += guest.near.take_replies(&mut [0; 200]).unwrap();
                }
            }
            assert_eq!(replies, 2 * 19, "{length} bytes cut at {cut}");
        }
    }
}

#[test]
fn a_message_that_comes_byte_by_byte_is_recorded_once() {
    let mut world = World::new(Quota { node_bytes: 0, ..Quota::default() });
    let mut guest = Guest::new(&mut world, 1);
    world.call("dom0", MessageType::Mkdir, 0, "/local/domain/1|").unwrap();
    world.call("dom0", MessageType::SetPerms, 0, "/local/domain/1|n1|").unwrap();
    world.server.note_indexes(guest.id, guest.far.indexes());
    for length in [500, 4000] {
        let mut message = Vec::new();
        let value = vec![b'v'; length];
        let write = MessageType::Write.code();
        xenstore::wire::encode(&mut message, write, 1, 0, &[b"x\0", &value]);
        world.server.start_recording();
        for byte in &message {
            assert_eq!(guest.near.put_requests(&[*byte]), Ok(1));
            guest.serve(&mut world).unwrap();
        }
        let recorded = world.server.recorded().len();
        world.server.stop_recording();
        let mut reply = [0; 64];
        guest.serve(&mut world).unwrap();
        assert_eq!(guest.near.take_replies(&mut reply), Ok(19));
        // The value itself, and a few bytes around each that came alone.
        assert!(recorded <= 10 * message.len(), "{recorded} bytes for {}", message.len());
    }
}

impl Guest {
    fn settle_some(&mut self, world: &mut World) {
        for _ in 0..100 {
            self.turn();
            self.serve(world).unwrap();
        }
    }
}

#[test]
fn a_reconnection_drops_everything_that_was_under_way() {
    let mut world = World::new(Quota::default());
    let mut guest = Guest::new(&mut world, 1);
    guest.machine.request(MessageType::Watch, 0, &[b"w\0t\0"]).unwrap();
    guest.machine.request(MessageType::TransactionStart, 0, &[b"\0"]).unwrap();
    guest.settle(&mut world);
    assert_eq!(world.server.watch_count(), 1);
    // Half a message, then the guest begins anew (its kernel was replaced).
    guest.near.put_requests(&[2, 0, 0, 0, 9]).unwrap();
    guest.serve(&mut world).unwrap();
    assert_ne!(guest.near.features() & FEATURE_RECONNECTION, 0);
    guest.near.ask_reconnect();
    assert!(!guest.near.is_connected());
    guest.serve(&mut world).unwrap();
    assert!(guest.near.is_connected());
    assert_eq!(world.server.watch_count(), 0);
    guest.machine = ClientMachine::new();
    guest.machine.request(MessageType::GetDomainPath, 0, &[b"1\0"]).unwrap();
    guest.settle(&mut world);
    assert_eq!(guest.machine.poll_reply(), Some(Ok(b"/local/domain/1\0".to_vec())));
}

#[test]
fn a_guest_that_breaks_its_ring_harms_nobody_else() {
    let mut world = World::new(Quota::default());
    let mut bad = Guest::new(&mut world, 1);
    let mut good = Guest::new(&mut world, 2);
    let page = bad.far.page().clone();
    for (producer, consumer) in [(5000u32, 0u32), (0, 1), (u32::MAX, 7)] {
        page.store_u32(2052, producer);
        page.store_u32(2048, consumer);
        assert_eq!(bad.serve(&mut world), Err(RingError::BadIndex));
    }
    world.server.stop_serving(bad.id);
    bad.far.set_error(RingError::BadIndex);
    assert_eq!(bad.near.error(), 2);
    good.machine.request(MessageType::GetDomainPath, 0, &[b"2\0"]).unwrap();
    good.settle(&mut world);
    assert_eq!(good.machine.poll_reply(), Some(Ok(b"/local/domain/2\0".to_vec())));
    // Its death is still told (XSA-325).
    world.call("dom0", MessageType::Watch, 0, "@releaseDomain|t|").unwrap();
    world.take_events("dom0");
    world.destroy_domain(1);
    assert_eq!(world.take_events("dom0"), ["@releaseDomain:t"]);
}

/// A page whose every access is one word or one byte, and which a hostile guest changes meanwhile.
struct SharedPage(Vec<AtomicU8>);

impl SharedPage {
    fn new() -> Self {
        Self((0..4096).map(|_| AtomicU8::new(0)).collect())
    }
}

impl RingPage for SharedPage {
    fn load_u32(&self, offset: usize) -> u32 {
        let byte = |i: usize| self.0[offset + i].load(Ordering::Relaxed);
        u32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)])
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_ne_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        for (i, byte) in into.iter_mut().enumerate() {
            *byte = self.0[offset + i].load(Ordering::Relaxed);
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            self.0[offset + i].store(*byte, Ordering::Relaxed);
        }
    }
}

/// A page that counts how often each word is loaded.
struct CountingPage {
    page: SharedPage,
    loads: RefCell<BTreeMap<usize, usize>>,
}

impl RingPage for CountingPage {
    fn load_u32(&self, offset: usize) -> u32 {
        *self.loads.borrow_mut().entry(offset).or_default() += 1;
        self.page.load_u32(offset)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.page.store_u32(offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= 2048, "only the rings are copied");
        self.page.read(offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= 2048, "only the rings are copied");
        self.page.write(offset, bytes);
    }
}

#[test]
fn xsa_38_each_index_is_read_once() {
    let page = CountingPage { page: SharedPage::new(), loads: RefCell::default() };
    page.page.store_u32(2052, 500);
    page.page.store_u32(2056, 100);
    page.page.store_u32(2060, 300);
    let ring = ServerRing::new(&page);
    assert_eq!(ring.take_requests(&mut [0; 1024]), Ok(500));
    assert_eq!(*page.loads.borrow(), BTreeMap::from([(2048, 1), (2052, 1)]));
    page.loads.borrow_mut().clear();
    assert_eq!(ring.put_replies(&[0; 1024]), Ok(1024 - 200));
    assert_eq!(*page.loads.borrow(), BTreeMap::from([(2056, 1), (2060, 1)]));
}

#[test]
fn xsa_38_a_full_ring_is_valid_and_one_byte_more_is_not() {
    let mut world = World::new(Quota { outstanding: 0, ..Quota::default() });
    let mut guest = Guest::new(&mut world, 1);
    world.call("dom0", MessageType::Mkdir, 0, "/local/domain/1|").unwrap();
    world.call("dom0", MessageType::SetPerms, 0, "/local/domain/1|n1|").unwrap();
    // 32 requests of 32 bytes are all that fits, wherever the indexes stand.
    for _ in 0..10 {
        for _ in 0..32 {
            guest.machine.request(MessageType::Read, 0, &[b"/local/domain/1\0"]).unwrap();
        }
        let sent = guest.near.put_requests(guest.machine.outgoing()).unwrap();
        assert_eq!(sent, 1024);
        guest.machine.sent(sent);
        guest.settle(&mut world);
        for _ in 0..32 {
            assert_eq!(guest.machine.poll_reply(), Some(Ok(Vec::new())));
        }
    }
    let page = guest.far.page().clone();
    let consumer = page.load_u32(2048);
    page.store_u32(2052, consumer.wrapping_add(1025));
    assert_eq!(guest.serve(&mut world), Err(RingError::BadIndex));
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A longer run by hand: `RING_ROUNDS=1000000`.
#[expect(clippy::disallowed_methods, reason = "not the store's setting but the test's")]
fn rounds() -> u32 {
    std::env::var("RING_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000)
}

#[test]
fn xsa_38_a_page_that_changes_while_it_is_served_harms_nobody_else() {
    let page = SharedPage::new();
    let (is_over, flips) = (AtomicBool::new(false), AtomicU32::new(0));
    let flip = || {
        // A small generator of its own: what matters is that nobody waits for it.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        while !is_over.load(Ordering::Relaxed) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            flips.fetch_add(1, Ordering::Relaxed);
            let [kind, value, a, b, ..] = state.to_le_bytes();
            let at = usize::from(u16::from_le_bytes([a, b]));
            match kind % 8 {
                // Indexes: sensible ones, so that bytes flow, and others.
                0 => page.store_u32(2052, page.load_u32(2048).wrapping_add(u32::from(value))),
                1 => page.store_u32(2056, page.load_u32(2060)),
                2 => page.store_u32(2048 + 4 * (at % 8), u32::from(value)),
                3 => page.0[2048 + at % 48].store(value, Ordering::Relaxed),
                // A header that may make sense: a type, and a short payload.
                4 => page.store_u32(at % 1000, u32::from(value % 30)),
                _ => page.0[at % 1024].store(value, Ordering::Relaxed),
            }
        }
    };
    std::thread::scope(|scope| {
        let flipper = std::thread::Builder::new().spawn_scoped(scope, flip).unwrap();
        let mut world = World::new(Quota::default());
        world.connect("other");
        let ring = ServerRing::new(&page);
        let mut stopped = 0;
        let _ends_also_by_panic = SetWhenDropped(&is_over);
        for round in 0..rounds() {
            // Not at every round: where threads share a processor, each wait is a turn of the scheduler.
            let before = flips.load(Ordering::Relaxed);
            while round % 32 == 0 && flips.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            if !world.machine.rings.contains_key(&DomId(1)) {
                world.create_domain(1);
                world.call("other", MessageType::Introduce, 0, "1|5|7|").unwrap();
                ring.reset();
            }
            let id = world.machine.rings[&DomId(1)];
            let mut bytes = [0; 1024];
            let server = &mut world.server;
            let served = ring.put_replies(server.output(id)).and_then(|sent| {
                server.consume(id, sent);
                let taken = ring.take_requests(&mut bytes)?;
                let received = server.receive(&mut world.machine, id, &bytes[..taken]);
                received.map_err(|_| RingError::PayloadTooLong)
            });
            if let Err(error) = served {
                ring.set_error(error);
                server.stop_serving(id);
                stopped += 1;
                world.call("other", MessageType::Release, 0, "1|").unwrap();
            }
            if round % 64 == 0 {
                let path = world.call("other", MessageType::GetDomainPath, 0, "1|");
                assert_eq!(path, Ok(b"/local/domain/1\0".to_vec()));
                world.assert_counts();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        flipper.join().unwrap();
        assert!(stopped > 0, "some pages made no sense");
    });
}
