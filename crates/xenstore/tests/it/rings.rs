//! Guests that talk through ring pages, served as a daemon does it.

use std::cell::RefCell;
use std::rc::Rc;

use xen::DomId;
use xenstore::Quota;
use xenstore::client::ClientMachine;
use xenstore::ring::{ClientRing, FEATURE_RECONNECTION, RingError, RingPage, ServerRing};
use xenstore::server::ConnId;
use xenstore::wire::MessageType;

use crate::world::World;

#[derive(Clone)]
struct Page(Rc<RefCell<Vec<u8>>>);

impl Page {
    fn new() -> Self {
        Self(Rc::new(RefCell::new(vec![0; 4096])))
    }
}

impl RingPage for Page {
    fn load_u32(&self, offset: usize) -> u32 {
        let page = self.0.borrow();
        u32::from_ne_bytes(page[offset..offset + 4].try_into().expect("four bytes"))
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.0.borrow_mut()[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

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
        let mut bytes = [0; 1024];
        let taken =
            if server.accepts_requests(self.id) { self.far.take_requests(&mut bytes)? } else { 0 };
        server.receive(machine, self.id, &bytes[..taken]).map_err(|_| RingError::PayloadTooLong)
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
