//! What happens because time passes: fast writers wait, events that nobody reads are given up.

use std::time::Duration;

use xenstore::Quota;
use xenstore::wire::MessageType as M;

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// A world with a guest that has a home, and a transaction of somebody else's that it may spoil.
fn world_with_open_transaction() -> World {
    let mut world = World::new(Quota::default());
    world.add_guest_with_home(1);
    world.call("dom0", M::TransactionStart, 0, "|").unwrap();
    world
}

/// How many of so many writes that a guest sends at once are executed.
fn writes_executed(world: &mut World, who: &str, count: usize) -> u64 {
    let before = world.server.counters().requests(M::Write);
    for _ in 0..count {
        world.send(who, M::Write.code(), 0, b"x\0v");
    }
    world.peers.get_mut(who).unwrap().messages.clear();
    world.server.counters().requests(M::Write) - before
}

#[test]
fn a_guest_that_writes_fast_is_held_back_and_served_again() {
    let mut world = world_with_open_transaction();
    let guest = world.peers["d1"].id;
    // Ten that it saved, and the one that makes it wait.
    assert_eq!(writes_executed(&mut world, "d1", 50), 11);
    assert!(!world.server.accepts_requests(guest));
    assert_eq!(world.server.resumes_at(guest), Some(Duration::from_millis(5)));
    assert_eq!(world.server.next_deadline(), Some(Duration::from_millis(5)));
    world.wait(Duration::from_millis(4));
    assert!(!world.server.accepts_requests(guest));
    world.wait(Duration::from_millis(1));
    let counters = world.server.counters();
    assert_eq!(counters.requests(M::Write), 12, "one more, and it waits again");
    assert_eq!(counters.writers_held_back, 2);
    assert_eq!(world.machine.lines, ["domain 1 writes so fast that it is slowed down"]);
    // What it asks is delayed as well, and nothing is lost.
    world.send("d1", M::Read.code(), 0, b"x\0");
    while let Some(deadline) = world.server.next_deadline() {
        let now = world.now;
        world.wait(deadline - now);
    }
    assert_eq!(world.server.counters().requests(M::Write), 50);
    assert_eq!(world.server.counters().requests(M::Read), 1);
    assert_eq!(world.peers["d1"].messages.len(), 40, "a reply to each request");
}

#[test]
fn nobody_is_held_back_without_a_transaction_of_somebody_else() {
    let mut world = World::new(Quota::default());
    world.add_guest_with_home(1);
    assert_eq!(writes_executed(&mut world, "d1", 500), 500);
    // Its own transaction is its own affair.
    world.call("d1", M::TransactionStart, 0, "|").unwrap();
    assert_eq!(writes_executed(&mut world, "d1", 500), 500);
    // The control domain and sockets never wait.
    world.call("dom0", M::TransactionStart, 0, "|").unwrap();
    world.connect("s");
    assert_eq!(writes_executed(&mut world, "s", 500), 500);
    assert_eq!(writes_executed(&mut world, "dom0", 500), 500);
    assert_eq!(world.server.counters().writers_held_back, 0);
}

#[test]
fn a_commit_costs_a_guest_one_write_and_reading_nothing() {
    let mut world = world_with_open_transaction();
    let guest = world.peers["d1"].id;
    for round in 1..=11 {
        assert!(world.server.accepts_requests(guest), "before commit {round}");
        world.call("d1", M::TransactionStart, 0, "|").unwrap();
        for i in 0..20 {
            world.call("d1", M::Write, round, &format!("x{i}|v")).unwrap();
        }
        world.call("d1", M::TransactionEnd, round, "T|").unwrap();
    }
    assert!(!world.server.accepts_requests(guest));
    world.wait(SECOND);
    for _ in 0..100 {
        world.call("d1", M::Read, 0, "x1|").unwrap();
    }
    assert!(world.server.accepts_requests(guest));
}

#[test]
fn many_guests_share_what_one_may_write() {
    let mut world = world_with_open_transaction();
    for domid in 2..=10 {
        world.add_guest_with_home(domid);
    }
    let mut total = 0;
    for domid in 1..=10 {
        total += writes_executed(&mut world, &format!("d{domid}"), 1000);
    }
    let burst = total;
    for _ in 0..100 {
        world.wait(Duration::from_millis(10));
    }
    let total = world.server.counters().requests(M::Write);
    assert!((190..=215).contains(&(total - burst)), "{} in one second", total - burst);
}

/// A guest that watches its home and reads nothing, with events for it.
fn deaf_guest_with_events(world: &mut World, count: usize) {
    world.add_guest_with_home(1);
    world.call("d1", M::Watch, 0, "/local/domain/1|t|").unwrap();
    world.take_events("d1");
    world.deaf.insert(world.peers["d1"].id);
    for i in 0..count {
        world.call("dom0", M::Write, 0, &format!("/local/domain/1/n{i}|")).unwrap();
    }
}

#[test]
fn events_are_given_up_after_twenty_seconds_and_not_before() {
    let mut world = World::new(Quota::default());
    deaf_guest_with_events(&mut world, 10);
    world.wait(10 * SECOND);
    world.call("dom0", M::Write, 0, "/local/domain/1/late|").unwrap();
    world.wait(10 * SECOND - Duration::from_millis(1));
    assert_eq!(world.server.counters().events_expired, 0);
    world.wait(Duration::from_millis(1));
    assert_eq!(world.server.counters().events_expired, 10);
    assert_eq!(world.machine.lines, ["domain 1 does not read; 10 events are dropped"]);
    world.assert_counts();
    world.deaf.clear();
    let guest = world.peers["d1"].id;
    world.read_all(guest);
    assert_eq!(world.take_events("d1"), ["/local/domain/1/late:t"]);
    // It is told of what comes now, of the same nodes as well.
    world.call("dom0", M::Write, 0, "/local/domain/1/n0|").unwrap();
    assert_eq!(world.take_events("d1"), ["/local/domain/1/n0:t"]);
    world.wait(100 * SECOND);
    assert_eq!(world.server.next_deadline(), None);
}

#[test]
fn events_of_a_guest_that_reads_and_of_a_socket_have_no_deadline() {
    let mut world = World::new(Quota::default());
    deaf_guest_with_events(&mut world, 10);
    let socket = world.connect("s");
    world.call("s", M::Watch, 0, "/|t|").unwrap();
    world.take_events("s");
    world.deaf.insert(socket);
    world.call("dom0", M::Write, 0, "/x|").unwrap();
    world.wait(19 * SECOND);
    world.deaf.remove(&world.peers["d1"].id);
    world.read_all(world.peers["d1"].id);
    world.wait(1000 * SECOND);
    world.deaf.clear();
    world.read_all(socket);
    assert_eq!(world.take_events("d1").len(), 10);
    assert_eq!(world.take_events("s"), ["/x:t"]);
    assert_eq!(world.server.counters().events_expired, 0);
}

#[test]
fn without_a_timeout_events_wait_for_ever() {
    let mut world = World::new(Quota::default());
    world.server.set_event_timeout(None);
    deaf_guest_with_events(&mut world, 10);
    world.wait(1_000_000 * SECOND);
    assert_eq!(world.server.counters().events_expired, 0);
    assert_eq!(world.server.next_deadline(), None);
}

#[test]
fn the_operator_is_told_when_a_guest_holds_much_and_when_it_does_not_any_more() {
    let quota = Quota { memory_bytes: 60_000, memory_bytes_soft: 20_000, ..Quota::default() };
    let mut world = World::new(quota);
    world.add_guest_with_home(1);
    let mut i = 0;
    while world.machine.lines.is_empty() {
        i += 1;
        world.call("d1", M::Write, 0, &format!("n{i}|{}", "v".repeat(1000))).unwrap();
    }
    assert!(world.machine.lines[0].contains("above its soft limit of 20000"));
    world.wait(10 * SECOND);
    let refused = loop {
        i += 1;
        let reply = world.call("d1", M::Write, 0, &format!("n{i}|{}", "v".repeat(1000)));
        if let Err(error) = reply {
            break error;
        }
    };
    assert_eq!(refused, xenstore::Error::ENOMEM);
    assert_eq!(world.machine.lines.len(), 2);
    assert!(world.machine.lines[1].contains("nearly all of its 60000"), "{:?}", world.machine);
    // Told once, however often it happens.
    for _ in 0..5 {
        let _refused = world.call("d1", M::Write, 0, &format!("more|{}", "v".repeat(1500)));
    }
    assert_eq!(world.machine.lines.len(), 2);
    // Removal is never refused; the operator is told, but not at once.
    for i in 1..=i {
        world.call("d1", M::Rm, 0, &format!("n{i}|")).unwrap();
    }
    assert_eq!(world.machine.lines.len(), 2);
    world.wait(10 * SECOND);
    world.call("d1", M::Read, 0, "/local/domain/1|").unwrap();
    let last = &world.machine.lines[2..];
    assert!(last[0].contains("below its limit again"), "{last:?}");
    assert!(last[1].contains("below its soft limit again"), "{last:?}");
    world.assert_counts();
}
