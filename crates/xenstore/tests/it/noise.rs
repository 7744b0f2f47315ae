//! Whatever bytes a client sends, the store answers or closes, and every counter stays right.

use std::time::Duration;

use proptest::prelude::*;
use xenstore::Quota;
use xenstore::server::ConnId;
use xenstore::wire::{self, MessageType};

use crate::model::config;
use crate::world::World;

/// Pieces of which payloads are made: what requests consist of, and what they should not.
const PIECES: &[&[u8]] = &[
    b"\0",
    b"\0\0",
    b"/",
    b"//",
    b"/a",
    b"/a/b",
    b"a",
    b"@introduceDomain",
    b"@releaseDomain/1",
    b"/local/domain/",
    b"/local/domain/1",
    b"/local/domain/1/x",
    b"0",
    b"1",
    b"2",
    b"-1",
    b"65536",
    b"4294967296",
    b"T",
    b"F",
    b"n0",
    b"r1",
    b"b32757",
    b"w0x1",
    b"nodes",
    b"quota",
    b"set",
    b"check",
    b"stats",
    b"quota-soft",
    b"max",
    b"-r",
    b"log",
    b"+wrl",
    b"-io",
    b"on",
    b"memreport",
    b"live-update",
    b"-s",
    b"soft-memory",
    b"@releaseDomain",
    b"@introduceDomain/2",
    b"\xff",
    b"\x80\x01",
    b" ",
    b"12345678901234567890",
];

#[derive(Clone, Debug)]
enum Noise {
    Message {
        who: usize,
        kind: u32,
        transaction: u32,
        pieces: Vec<usize>,
        cut: usize,
    },
    Bytes {
        who: usize,
        bytes: Vec<u8>,
    },
    /// A guest reads nothing until it hears again.
    Deafen(usize),
    Hear(usize),
    Reconnect(usize),
    /// Milliseconds.
    Wait(u64),
    Shutdown,
    Death,
}

fn noise() -> impl Strategy<Value = Noise> {
    let pieces = prop::collection::vec(0..PIECES.len(), 0..7);
    let kind = prop_oneof![20 => 0u32..28, 1 => any::<u32>()];
    prop_oneof![
        40 => (0usize..3, kind, 0u32..4, pieces, 1usize..60).prop_map(
            |(who, kind, transaction, pieces, cut)| {
                Noise::Message { who, kind, transaction, pieces, cut }
            }
        ),
        2 => (1usize..3).prop_map(Noise::Deafen),
        2 => (1usize..3).prop_map(Noise::Hear),
        1 => (1usize..3).prop_map(Noise::Reconnect),
        3 => (0u64..30_000).prop_map(Noise::Wait),
        1 => (0usize..3, prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(who, bytes)| Noise::Bytes { who, bytes }),
        1 => Just(Noise::Shutdown),
        1 => Just(Noise::Death),
    ]
}

/// What a client that was deaf sent meanwhile is executed now, and may end its connection.
fn hear_more(world: &mut World, id: ConnId) {
    if world.server.receive(&mut world.machine, id, &[]).is_err()
        && let Some(peer) = world.peers.values_mut().find(|peer| peer.id == id)
    {
        peer.is_closed = true;
    }
    world.pump();
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn run(steps: &[Noise]) {
    let mut world = World::new(Quota {
        nodes: 20,
        watches: 5,
        transaction_nodes: 30,
        memory_bytes: 20_000,
        memory_bytes_soft: 9000,
        ..Quota::default()
    });
    world.connect("sink");
    let mut generation = 0;
    for step in steps {
        // Clients that were closed, released or killed come back under their name.
        for domid in [1u16, 2] {
            let introduced =
                world.call("sink", MessageType::IsDomainIntroduced, 0, &format!("{domid}|"));
            if introduced == Ok(b"F\0".to_vec()) {
                world.machine.states.remove(&xen::DomId(domid));
                world.create_domain(domid);
                let introduce = format!("{domid}|5|7|");
                let reply = world.call("sink", MessageType::Introduce, 0, &introduce);
                assert_eq!(reply, Ok(b"OK\0".to_vec()));
                world.adopt_ring(domid);
            } else if !world.peers.contains_key(&format!("d{domid}")) {
                world.adopt_ring(domid);
            }
        }
        if !world.peers.contains_key("dom0") || world.peers["dom0"].is_closed {
            generation += 1;
            if let Some(peer) = world.peers.remove("dom0") {
                world.server.disconnect(peer.id);
            }
            world.connect("dom0");
        }
        let name = |who: usize| ["dom0", "d1", "d2"][who];
        match step {
            Noise::Message { who, kind, transaction, pieces, cut } => {
                let payload: Vec<u8> =
                    pieces.iter().flat_map(|piece| PIECES[*piece]).copied().collect();
                let mut bytes = Vec::new();
                wire::encode(&mut bytes, *kind, 0, *transaction, &[&payload]);
                for piece in bytes.chunks(*cut) {
                    world.send_bytes(name(*who), piece);
                }
            }
            Noise::Bytes { who, bytes } => world.send_bytes(name(*who), bytes),
            Noise::Deafen(who) => {
                let id = world.peers[name(*who)].id;
                world.deaf.insert(id);
            }
            Noise::Hear(who) => {
                let id = world.peers[name(*who)].id;
                world.deaf.remove(&id);
                world.read_all(id);
                hear_more(&mut world, id);
            }
            Noise::Reconnect(who) => {
                let peer = world.peers.get_mut(name(*who)).expect("a guest");
                peer.messages.clear();
                world.server.handle_reconnect(peer.id);
            }
            Noise::Wait(milliseconds) => world.wait(Duration::from_millis(*milliseconds)),
            Noise::Shutdown => {
                for state in world.machine.states.values_mut() {
                    state.shutdown = true;
                }
                world.raise_exception();
            }
            Noise::Death => world.destroy_domain(1 + generation % 2),
        }
        world.assert_counts();
        for peer in world.peers.values_mut() {
            peer.messages.clear();
        }
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn no_bytes_upset_the_store(steps in prop::collection::vec(noise(), 1..120)) {
        run(&steps);
    }
}
