//! Order, limits and hostile clients: what rows of a script cannot say.

use xen::DomId;
use xenstore::ring::FEATURE_DOMID_ANY;
use xenstore::wire::{self, MessageType as M, PAYLOAD_BYTES_MAX};
use xenstore::{Error, Quota};

use crate::world::{Message, World};

fn world() -> World {
    World::new(Quota::default())
}

fn write(world: &mut World, who: &str, path: &str, value: &str) -> Result<Vec<u8>, Error> {
    world.call_raw(who, M::Write.code(), 0, format!("{path}\0{value}").as_bytes())
}

fn ok() -> Result<Vec<u8>, Error> {
    Ok(b"OK\0".to_vec())
}

// Order

#[test]
fn an_event_comes_before_the_reply_to_its_cause() {
    let mut world = world();
    world.call("dom0", M::Watch, 0, "/a|t|").unwrap();
    world.take_events("dom0");
    world.send("dom0", M::Write.code(), 0, b"/a\0x");
    let messages = &world.peers["dom0"].messages;
    assert!(matches!(messages[0], Message::Event { .. }), "{messages:?}");
    assert!(matches!(messages[1], Message::Reply { kind: 11, .. }), "{messages:?}");
    assert_eq!(messages.len(), 2);
}

#[test]
fn the_first_event_of_a_watch_comes_after_its_reply() {
    let mut world = world();
    world.send("dom0", M::Watch.code(), 0, b"/a\0t\0");
    let messages = &world.peers["dom0"].messages;
    assert!(matches!(messages[0], Message::Reply { kind: 4, .. }), "{messages:?}");
    assert!(matches!(messages[1], Message::Event { .. }), "{messages:?}");
}

#[test]
fn events_of_a_commit_are_queued_before_anybody_elses_next_request() {
    let mut world = world();
    world.connect("watcher");
    world.call("watcher", M::Watch, 0, "/a|t|").unwrap();
    world.take_events("watcher");
    world.call("dom0", M::TransactionStart, 0, "|").unwrap();
    world.call("dom0", M::Write, 1, "/a/1|").unwrap();
    world.call("dom0", M::Write, 1, "/a/2|").unwrap();
    // The commit, and a read by the watcher, before anything is sent to it.
    let watcher = world.peers["watcher"].id;
    world.deaf.insert(watcher);
    world.call("dom0", M::TransactionEnd, 1, "T|").unwrap();
    world.send("watcher", M::Read.code(), 0, b"/a/1\0");
    world.deaf.clear();
    world.read_all(watcher);
    let messages = &world.peers["watcher"].messages;
    let kinds: Vec<bool> = messages.iter().map(|m| matches!(m, Message::Event { .. })).collect();
    assert_eq!(kinds, [true, true, false]);
}

#[test]
fn requests_are_executed_some_at_a_time_and_what_is_left_is_given_again() {
    let mut world = world();
    let id = world.peers["dom0"].id;
    let mut bytes = Vec::new();
    for i in 0..20u32 {
        let path = format!("/n{i}\0");
        wire::encode(&mut bytes, M::Mkdir.code(), i, 0, &[path.as_bytes()]);
    }
    wire::encode(&mut bytes, M::Read.code(), 20, 0, &[b"/n19\0"]);
    let mut rest = &bytes[..bytes.len() - 3];
    let mut answered = Vec::new();
    while !rest.is_empty() {
        let left = world.server.receive_some(&mut world.machine, id, rest, 8).unwrap();
        rest = &rest[rest.len() - left..];
        world.read_all(id);
        answered.push(world.peers["dom0"].messages.len());
    }
    // The beginning of the last one is kept.
    assert_eq!(answered, [8, 16, 20]);
    // Not cut: it is put together with what was kept.
    let end = &bytes[bytes.len() - 3..];
    assert_eq!(world.server.receive_some(&mut world.machine, id, end, 1), Ok(0));
    world.read_all(id);
    let ids: Vec<u32> = world.peers["dom0"]
        .messages
        .iter()
        .map(|message| match message {
            Message::Reply { request_id, result: Ok(_), .. } => *request_id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, (0..=20).collect::<Vec<u32>>());
}

#[test]
fn replies_come_in_the_order_of_the_requests_however_they_are_cut() {
    for piece in [1, 7, 16, 17, 100, 10_000] {
        let mut world = world();
        let mut bytes = Vec::new();
        for i in 0..20u32 {
            let path = format!("/n{i}\0");
            wire::encode(&mut bytes, M::Write.code(), 2 * i, 0, &[path.as_bytes(), b"v"]);
            wire::encode(&mut bytes, M::Read.code(), 2 * i + 1, 0, &[path.as_bytes()]);
        }
        for piece in bytes.chunks(piece) {
            world.send_bytes("dom0", piece);
        }
        let ids: Vec<u32> = world.peers["dom0"]
            .messages
            .iter()
            .map(|message| match message {
                Message::Reply { request_id, result, .. } => {
                    assert!(result.is_ok());
                    *request_id
                }
                Message::Event { .. } => panic!("{message:?}"),
            })
            .collect();
        assert_eq!(ids, (0..40).collect::<Vec<_>>());
    }
}

#[test]
fn an_empty_payload_is_answered_at_once() {
    let mut world = world();
    assert_eq!(world.call("dom0", M::GetFeature, 0, ""), Ok(b"15\0".to_vec()));
    assert_eq!(world.call("dom0", M::TransactionStart, 0, ""), Ok(b"1\0".to_vec()));
    assert_eq!(world.call("dom0", M::Read, 0, ""), Err(Error::EINVAL));
}

// Listings

#[test]
fn a_listing_that_fits_into_no_message_is_refused_and_comes_in_parts() {
    let mut world = world();
    let names: Vec<String> = (0..2000).map(|i| format!("child-{i:05}")).collect();
    for name in &names {
        assert_eq!(write(&mut world, "dom0", &format!("/d/{name}"), ""), ok());
    }
    assert_eq!(world.call("dom0", M::Directory, 0, "/d|"), Err(Error::E2BIG));
    let mut listing = Vec::new();
    let mut generations = Vec::new();
    loop {
        let part =
            world.call("dom0", M::DirectoryPart, 0, &format!("/d|{}|", listing.len())).unwrap();
        assert!(part.len() <= PAYLOAD_BYTES_MAX);
        let end = part.iter().position(|&byte| byte == 0).unwrap();
        generations.push(part[..end].to_vec());
        listing.extend_from_slice(&part[end + 1..]);
        if listing.ends_with(b"\0\0") {
            break;
        }
        assert!(part.len() > PAYLOAD_BYTES_MAX - 20, "a part holds what fits");
    }
    listing.pop();
    let listed: Vec<&[u8]> = wire::strings(&listing).collect();
    assert_eq!(listed, names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>());
    generations.dedup();
    assert_eq!(generations.len(), 1);
    assert_eq!(write(&mut world, "dom0", "/d/one-more", ""), ok());
    let part = world.call("dom0", M::DirectoryPart, 0, "/d|0|").unwrap();
    assert!(!part.starts_with(&generations[0]), "another list, the same generation");
}

#[test]
fn a_value_of_the_largest_message_reads_back() {
    let mut world = world();
    let value = "v".repeat(PAYLOAD_BYTES_MAX - 3);
    assert_eq!(write(&mut world, "dom0", "/a", &value), ok());
    assert_eq!(world.call("dom0", M::Read, 0, "/a|"), Ok(value.into_bytes()));
}

// Limits

#[test]
fn a_guest_owns_exactly_as_many_nodes_as_it_may() {
    let mut world = World::new(Quota { nodes: 10, ..Quota::default() });
    // A domain number that is used again begins with all of it (XSA-483).
    for _ in 0..3 {
        world.add_guest_with_home(1);
        for i in 1..10 {
            assert_eq!(write(&mut world, "d1", &format!("n{i}"), ""), ok());
        }
        assert_eq!(write(&mut world, "d1", "n10", ""), Err(Error::ENOSPC));
        assert_eq!(write(&mut world, "d1", "n9", "changed"), ok());
        assert_eq!(write(&mut world, "dom0", "/local/domain/1/n10", ""), ok());
        // Over the limit by the control domain's doing, and removal is possible still (XSA-115).
        assert_eq!(world.call("d1", M::Rm, 0, "n1|"), ok());
        assert_eq!(write(&mut world, "d1", "again", ""), Err(Error::ENOSPC));
        assert_eq!(world.call("d1", M::Rm, 0, "n2|"), ok());
        assert_eq!(write(&mut world, "d1", "again", ""), ok());
        world.assert_counts();
        world.destroy_domain(1);
        world.assert_counts();
    }
}

#[test]
fn a_creation_that_does_not_fit_creates_nothing_of_its_path() {
    let mut world = World::new(Quota { nodes: 5, ..Quota::default() });
    world.add_guest_with_home(1);
    assert_eq!(write(&mut world, "d1", "a/b/c/d/e", ""), Err(Error::ENOSPC));
    assert_eq!(world.call("d1", M::Directory, 0, "/local/domain/1|"), Ok(Vec::new()));
    assert_eq!(write(&mut world, "d1", "a/b/c/d", ""), ok());
    world.assert_counts();
}

#[test]
fn a_limit_hit_inside_a_transaction_fails_its_commit() {
    let mut world = World::new(Quota { nodes: 3, ..Quota::default() });
    world.add_guest_with_home(1);
    world.call("d1", M::TransactionStart, 0, "|").unwrap();
    assert_eq!(world.call("d1", M::Write, 1, "a/b|"), ok());
    assert_eq!(world.call("d1", M::Write, 1, "c|"), Err(Error::ENOSPC));
    assert_eq!(world.call("d1", M::TransactionEnd, 1, "T|"), Err(Error::ENOMEM));
    assert_eq!(world.call("d1", M::Directory, 0, "/local/domain/1|"), Ok(Vec::new()));
    world.assert_counts();
}

#[test]
fn two_transactions_cannot_pass_a_limit_together() {
    let mut world = World::new(Quota { nodes: 3, ..Quota::default() });
    world.add_guest_with_home(1);
    for id in [1, 2] {
        world.call("d1", M::TransactionStart, 0, "|").unwrap();
        assert_eq!(world.call("d1", M::Write, id, &format!("n{id}/x|")), ok());
    }
    assert_eq!(world.call("d1", M::TransactionEnd, 1, "T|"), ok());
    assert_eq!(world.call("d1", M::TransactionEnd, 2, "T|"), Err(Error::ENOSPC));
    world.assert_counts();
}

#[test]
fn room_made_inside_a_transaction_can_be_used_inside_it() {
    let mut world = World::new(Quota { nodes: 3, ..Quota::default() });
    world.add_guest_with_home(1);
    assert_eq!(write(&mut world, "d1", "a/b", ""), ok());
    world.call("d1", M::TransactionStart, 0, "|").unwrap();
    assert_eq!(world.call("d1", M::Rm, 1, "a|"), ok());
    assert_eq!(world.call("d1", M::Write, 1, "c/d|"), ok());
    assert_eq!(world.call("d1", M::TransactionEnd, 1, "T|"), ok());
    world.assert_counts();
}

#[test]
fn nodes_removed_step_by_step_make_room_once() {
    let mut world = World::new(Quota { nodes: 4, ..Quota::default() });
    world.add_guest_with_home(1);
    assert_eq!(write(&mut world, "d1", "a/b/c", ""), ok());
    for _ in 0..2 {
        world.call("d1", M::TransactionStart, 0, "|").unwrap();
    }
    for path in ["a/b/c", "a/b", "a"] {
        assert_eq!(world.call("d1", M::Rm, 1, &format!("{path}|")), ok());
    }
    assert_eq!(world.call("d1", M::Write, 1, "x/y/z|"), ok());
    assert_eq!(world.call("d1", M::Write, 2, "a/b/c|"), ok());
    assert_eq!(world.call("d1", M::Write, 1, "x/1|"), Err(Error::ENOSPC));
    assert_eq!(world.call("d1", M::TransactionEnd, 1, "T|"), Err(Error::ENOMEM));
    assert_eq!(world.call("d1", M::TransactionEnd, 2, "T|"), ok());
    world.assert_counts();
}

#[test]
fn watches_transactions_and_permissions_end_at_their_limits() {
    let quota = Quota { watches: 3, transactions: 2, permissions: 2, ..Quota::default() };
    let mut world = World::new(quota);
    world.add_guest_with_home(1);
    for i in 0..3 {
        assert_eq!(world.call("d1", M::Watch, 0, &format!("w|{i}|")), ok());
    }
    assert_eq!(world.call("d1", M::Watch, 0, "w|3|"), Err(Error::ENOSPC));
    assert_eq!(world.call("d1", M::Unwatch, 0, "w|0|"), ok());
    assert_eq!(world.call("d1", M::Watch, 0, "w|3|"), ok());
    world.take_events("d1");
    for id in ["1\0", "2\0"] {
        assert_eq!(world.call("d1", M::TransactionStart, 0, "|"), Ok(id.into()));
    }
    assert_eq!(world.call("d1", M::TransactionStart, 0, "|"), Err(Error::ENOSPC));
    assert_eq!(world.call("d1", M::TransactionEnd, 1, "F|"), ok());
    assert_eq!(world.call("d1", M::TransactionStart, 0, "|"), Ok(b"3\0".to_vec()));
    assert_eq!(world.call("d1", M::SetPerms, 0, "/local/domain/1|n1|r2|"), ok());
    let three = world.call("d1", M::SetPerms, 0, "/local/domain/1|n1|r2|r3|");
    assert_eq!(three, Err(Error::ENOSPC));
    // A socket has no limits.
    for i in 0..10 {
        assert_eq!(world.call("dom0", M::Watch, 0, &format!("/w|{i}|")), ok());
    }
    world.take_events("dom0");
}

#[test]
fn a_transaction_touches_exactly_as_many_nodes_as_it_may() {
    let mut world = World::new(Quota { transaction_nodes: 5, ..Quota::default() });
    world.add_guest_with_home(1);
    world.call("d1", M::TransactionStart, 0, "|").unwrap();
    // What is refused is not counted.
    assert_eq!(world.call("d1", M::Read, 1, "/|"), Err(Error::EACCES));
    for i in 0..5 {
        assert_eq!(world.call("d1", M::Read, 1, &format!("n{i}|")), Err(Error::ENOENT));
    }
    assert_eq!(world.call("d1", M::Read, 1, "n5|"), Err(Error::ENOSPC));
    assert_eq!(world.call("d1", M::Read, 1, "/|"), Err(Error::EACCES));
    assert_eq!(world.call("d1", M::TransactionEnd, 1, "T|"), Err(Error::ENOMEM));
}

#[test]
fn a_node_of_a_guest_is_as_big_as_it_may_be() {
    let mut world = world();
    world.add_guest_with_home(1);
    // 16 for the node, 8 for its one permission.
    let fits = "v".repeat(2048 - 24);
    assert_eq!(write(&mut world, "d1", "n", &fits), ok());
    assert_eq!(write(&mut world, "d1", "n", &format!("{fits}v")), Err(Error::ENOSPC));
    // One permission more, and the value is too long.
    assert_eq!(world.call("d1", M::SetPerms, 0, "/local/domain/1/n|n1|r2|"), Err(Error::ENOSPC));
    // Names of children count for their parent.
    let name = "c".repeat(1000);
    assert_eq!(write(&mut world, "d1", &format!("p/{name}1"), ""), ok());
    assert_eq!(write(&mut world, "d1", &format!("p/{name}2"), ""), ok());
    assert_eq!(write(&mut world, "d1", &format!("p/{}", "c".repeat(19)), ""), ok());
    assert_eq!(write(&mut world, "d1", "p/c", ""), Err(Error::ENOSPC));
}

// Hostile clients

#[test]
fn a_guest_that_reads_nothing_is_not_served_and_holds_nobody_up() {
    let mut world = world();
    world.add_guest_with_home(1);
    let guest = world.peers["d1"].id;
    world.deaf.insert(guest);
    let before = world.server.counters().requests_total();
    for _ in 0..100 {
        world.send("d1", M::Read.code(), 0, b"/local/domain/1\0");
    }
    assert_eq!(world.server.counters().requests_total() - before, 20);
    assert!(!world.server.accepts_requests(guest));
    assert_eq!(write(&mut world, "dom0", "/a", "others are served"), ok());
    // What waits is answered when the guest reads, without a further request.
    world.deaf.clear();
    world.read_all(guest);
    world.pump();
    assert_eq!(world.peers["d1"].messages.len(), 100);
    assert!(world.server.accepts_requests(guest));
}

#[test]
fn events_for_a_guest_that_reads_nothing_end_at_its_memory() {
    let mut world = World::new(Quota { memory_bytes: 10_000, ..Quota::default() });
    world.add_guest_with_home(1);
    world.call("d1", M::Watch, 0, "/local/domain/1|t|").unwrap();
    world.take_events("d1");
    let guest = world.peers["d1"].id;
    world.deaf.insert(guest);
    for i in 0..1000 {
        assert_eq!(write(&mut world, "dom0", &format!("/local/domain/1/n{i}"), ""), ok());
    }
    let counters = *world.server.counters();
    assert!(counters.events_dropped > 700, "{counters:?}");
    world.deaf.clear();
    world.read_all(guest);
    world.pump();
    let events = world.take_events("d1");
    assert_eq!(events.len() as u64 + counters.events_dropped, 1000);
    assert_eq!(write(&mut world, "dom0", "/local/domain/1/more", ""), ok());
    assert_eq!(world.take_events("d1").len(), 1);
}

#[test]
fn every_event_for_a_socket_that_reads_late_is_there_when_it_reads() {
    let mut world = world();
    let watcher = world.connect("watcher");
    for i in 0..4000 {
        world.call("watcher", M::Watch, 0, &format!("/a|{i}|")).unwrap();
    }
    world.take_events("watcher");
    world.deaf.insert(watcher);
    for _ in 0..3 {
        assert_eq!(write(&mut world, "dom0", "/a", ""), ok());
    }
    world.deaf.clear();
    world.read_all(watcher);
    let events = world.take_events("watcher");
    let expected: Vec<String> = (0..4000).map(|i| format!("/a:{i}")).collect();
    assert_eq!(events, expected, "each once, as equal ones were still waiting");
    assert_eq!(world.server.counters().events_coalesced, 8000);
}

// What others may know

#[test]
fn counters_and_statistics_say_what_happened() {
    let mut world = world();
    world.call("dom0", M::TransactionStart, 0, "|").unwrap();
    world.call("dom0", M::Write, 1, "/a|").unwrap();
    world.call("dom0", M::TransactionEnd, 1, "T|").unwrap();
    let _missing = world.call("dom0", M::Read, 0, "/b|");
    let _unknown = world.call_raw("dom0", 99, 0, b"");
    let counters = world.server.counters();
    assert_eq!(counters.requests(M::Write), 1);
    assert_eq!((counters.requests_total(), counters.requests_unknown), (5, 1));
    assert_eq!(counters.requests_refused, 2);
    let stats = world.call("dom0", M::Control, 0, "stats|").unwrap();
    let stats = String::from_utf8(stats).unwrap();
    expect_test::expect![[r#"{"requests_total":6,"requests":{"control":1,"read":1,"transaction_start":1,"transaction_end":1,"write":1},"requests_unknown":1,"requests_refused":2,"transactions_started":1,"transactions_committed":1,"transactions_conflicted":0,"transactions_aborted":0,"events_queued":0,"events_coalesced":0,"events_dropped":0,"events_expired":0,"writers_held_back":0,"snapshots_given_up":0,"looks":0,"looks_cpu_us":0,"connections":1,"domains":0,"domains_kept":0,"nodes":4,"watches":0,"transactions_open":0,"output_bytes":0}"#]]
    .assert_eq(stats.trim_end_matches('\0'));
}

#[test]
fn the_operator_is_told_what_a_client_prints() {
    let mut world = world();
    world.call("dom0", M::Control, 0, "print|hello there|").unwrap();
    assert_eq!(world.machine.lines, ["hello there"]);
}

#[test]
fn a_ring_offers_every_feature_unless_it_was_masked() {
    let mut world = world();
    world.create_domain(1);
    assert_eq!(world.server.ring_features(DomId(1)), 15);
    world.call("dom0", M::SetFeature, 0, "1|7|").unwrap();
    assert_eq!(world.server.ring_features(DomId(1)), 15 & !FEATURE_DOMID_ANY);
}
