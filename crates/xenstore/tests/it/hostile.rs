//! What hostile guests tried, and what was seen. Each row has a test.
//!
//! | tried | seen |
//! |---|---|
//! | paths with more names than any real client's | `EINVAL`; the control domain may |
//! | a commit of all that a transaction may touch, each as deep as it may be | charged by its size, and the turn is over |
//! | commits, listings, removals, events and resets, pipelined without a pause | no turn has more than its steps and one request |
//! | the same subtree removed and aborted in transaction after transaction | each node that is visited is charged |
//! | 128 watches on `/` from each of 200 guests | the writes of others cost what they cost before |
//! | the same on `@introduceDomain`, which guests may not read | an introduction costs the same |
//! | watches on thousands of names below a node of the control domain's | its removal costs the nodes that it had |
//! | a stubdomain that watches `/` for its target | is told, as its target is |
//! | headers without payloads, and types that there are not, as fast as the ring has room | each is answered |
//! | half a message, then a new start | nothing of it is left |
//! | a message that lies about its length in the middle of good ones | those before it are answered, then the ring is out of service |
//! | more transactions than it may have, again and again | `ENOSPC`, and nothing grows |

use xen::DomId;
use xenstore::ring::RING_BYTES;
use xenstore::server::ConnId;
use xenstore::wire::{self, HEADER_BYTES, Header, MessageType as M};
use xenstore::{Error, Quota};

use crate::world::World;

fn world() -> World {
    World::new(Quota::default())
}

fn ok() -> Result<Vec<u8>, Error> {
    Ok(b"OK\0".to_vec())
}

/// What a turn may take, and one more request that began in it.
const TURN: u64 = 2_000;
const LARGEST_REQUEST: u64 = 40_000;

fn message(kind: M, transaction: u32, payload: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let payload = payload.replace('|', "\0");
    wire::encode(&mut bytes, kind.code(), 1, transaction, &[payload.as_bytes()]);
    bytes
}

/// A ring's requests, which a test fills and the store takes from.
struct Ring {
    id: ConnId,
    requests: Vec<u8>,
    /// The most steps that one turn took.
    longest_turn: u64,
    replies: Vec<u8>,
}

impl Ring {
    fn of(world: &World, domid: u16) -> Self {
        let id = world.machine.rings[&DomId(domid)];
        Self { id, requests: Vec::new(), longest_turn: 0, replies: Vec::new() }
    }

    /// One turn of the daemon, in which the guest reads everything.
    fn turn(&mut self, world: &mut World) -> usize {
        let World { server, machine, .. } = world;
        let before = server.work();
        let held = self.requests.len().min(RING_BYTES);
        let bytes = &self.requests[..held];
        let taken = server.receive_from_ring(machine, self.id, bytes).expect("a good ring");
        self.longest_turn = self.longest_turn.max(server.work() - before);
        self.requests.drain(..taken);
        while !server.output(self.id).is_empty() {
            let output = server.output(self.id);
            let length = output.len();
            self.replies.extend_from_slice(output);
            server.consume(self.id, length);
        }
        taken
    }

    fn run(&mut self, world: &mut World, requests: &[Vec<u8>]) {
        self.requests.extend(requests.concat());
        while !self.requests.is_empty() {
            assert!(self.turn(world) > 0, "{} bytes stay in the ring", self.requests.len());
        }
    }

    /// Types of the replies so far.
    fn take_kinds(&mut self) -> Vec<u32> {
        let mut kinds = Vec::new();
        let mut rest = &self.replies[..];
        while let Ok(Some(header)) = Header::decode(rest) {
            kinds.push(header.code);
            rest = &rest[HEADER_BYTES + header.payload_bytes()..];
        }
        self.replies.clear();
        kinds
    }
}

/// A path as deep as a guest's may be: 32 names with those of its home.
fn deep(leaf: usize) -> String {
    format!("{}{leaf}", "d/".repeat(28))
}

fn in_use(world: &mut World, domid: u16, name: &str) -> usize {
    let report = world.call("dom0", M::Control, 0, &format!("quota|{domid}|")).expect("a report");
    let report = String::from_utf8(report).expect("text");
    let line = report.lines().find(|line| line.starts_with(name)).expect("the limit's line");
    let (_, values) = line.split_once(':').expect("a colon");
    values.split_whitespace().next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn a_path_with_too_many_names_is_refused() {
    let mut world = world();
    world.add_guest_with_home(1);
    let just = format!("/local/domain/1/{}", "d/".repeat(28) + "x");
    let more = format!("/local/domain/1/{}", "d/".repeat(29) + "x");
    for (kind, rest) in
        [(M::Write, "|v"), (M::Read, "|"), (M::Mkdir, "|"), (M::Watch, "|t|"), (M::Rm, "|")]
    {
        assert!(world.call("d1", kind, 0, &format!("{just}{rest}")).is_ok(), "{kind:?}");
        let refused = world.call("d1", kind, 0, &format!("{more}{rest}"));
        assert_eq!(refused, Err(Error::EINVAL), "{kind:?}");
    }
    assert_eq!(world.call("dom0", M::Write, 0, &format!("{more}|v")), ok());
}

/// Requests of a transaction that touches as much as it may.
fn largest_transaction(number: u32) -> Vec<Vec<u8>> {
    let mut requests = vec![message(M::TransactionStart, 0, "|")];
    requests.extend((0..990).map(|i| message(M::Read, number, &format!("{}|", deep(i)))));
    requests.push(message(M::Write, number, "x|1"));
    requests
}

#[test]
fn a_commit_is_charged_by_its_size_and_ends_the_turn() {
    let mut world = world();
    world.add_guest_with_home(1);
    let mut ring = Ring::of(&world, 1);
    ring.run(&mut world, &largest_transaction(1));
    assert!(ring.longest_turn <= TURN + 100, "{}", ring.longest_turn);
    let before = world.server.work();
    ring.requests = message(M::TransactionEnd, 1, "T|");
    ring.requests.extend(message(M::Read, 0, "x|"));
    assert_eq!(ring.turn(&mut world), HEADER_BYTES + 2, "the next request waits in the ring");
    let work = world.server.work() - before;
    assert!((30_000..=LARGEST_REQUEST).contains(&work), "{work}");
}

#[test]
fn no_turn_takes_more_than_its_steps_and_one_request() {
    let mut world = World::new(Quota { transactions: 0, ..Quota::default() });
    world.add_guest_with_home(1);
    let mut ring = Ring::of(&world, 1);
    let fill: Vec<Vec<u8>> = (0..600).map(|i| message(M::Write, 0, &format!("t/{i}|v"))).collect();
    ring.run(&mut world, &fill);
    let watches: Vec<Vec<u8>> =
        (0..100).map(|i| message(M::Watch, 0, &format!("t|{i}|"))).collect();
    ring.run(&mut world, &watches);
    let mut number = 0;
    for kind in 0..6 {
        let storm: Vec<Vec<u8>> = (0..300)
            .flat_map(|i| match kind {
                0 => vec![message(M::DirectoryPart, 0, "t|0|")],
                1 => vec![message(M::Write, 0, &format!("t/{i}|w"))],
                2 => {
                    number += 1;
                    vec![
                        message(M::TransactionStart, 0, "|"),
                        message(M::Rm, number, "t|"),
                        message(M::TransactionEnd, number, "F|"),
                    ]
                }
                3 => vec![message(M::SetPerms, 0, &format!("t|n1|r{}|", i % 7))],
                4 => vec![message(M::Rm, 0, "t|"), message(M::Write, 0, "t/a/b/c|v")],
                _ => vec![message(M::Watch, 0, "t|again|"), message(M::ResetWatches, 0, "|")],
            })
            .collect();
        ring.longest_turn = 0;
        ring.run(&mut world, &storm);
        assert!(ring.longest_turn <= TURN + 3_500, "storm {kind}: {}", ring.longest_turn);
    }
    world.assert_counts();
}

#[test]
fn a_removal_in_a_transaction_is_charged_by_what_it_visits() {
    let mut world = world();
    world.add_guest_with_home(1);
    for i in 0..500 {
        assert_eq!(world.call("d1", M::Write, 0, &format!("t/{i}|v")), ok());
    }
    for round in 1..=5 {
        world.call("d1", M::TransactionStart, 0, "|").unwrap();
        let before = world.server.work();
        assert_eq!(world.call("d1", M::Rm, round, "t|"), ok());
        assert!(world.server.work() - before >= 500);
        world.call("d1", M::TransactionEnd, round, "F|").unwrap();
    }
}

/// What a request of the control domain costs.
fn cost(world: &mut World, kind: M, payload: &str) -> u64 {
    let before = world.server.work();
    assert_eq!(world.call("dom0", kind, 0, payload), ok());
    world.server.work() - before
}

#[test]
fn watches_cost_only_where_their_owner_could_read() {
    let mut costs = Vec::new();
    for watched in [false, true] {
        let mut world = world();
        for domid in 1..=200 {
            world.add_guest_with_home(domid);
            for i in 0..if watched { 64 } else { 0 } {
                let who = format!("d{domid}");
                for path in ["/", "@introduceDomain"] {
                    assert_eq!(world.call(&who, M::Watch, 0, &format!("{path}|{i}|")), ok());
                }
                world.take_events(&who);
            }
        }
        world.create_domain(300);
        costs.push([
            cost(&mut world, M::Write, "/a/b|v"),
            cost(&mut world, M::SetPerms, "/a/b|n0|"),
            cost(&mut world, M::Rm, "/a|"),
            cost(&mut world, M::Introduce, "300|5|7|"),
        ]);
        // Who may read is told, as many times as it asked to be.
        assert_eq!(world.call("d7", M::Write, 0, "x|v"), ok());
        assert_eq!(world.take_events("d7").len(), if watched { 64 } else { 0 });
        assert_eq!(world.take_events("d8"), [""; 0]);
    }
    assert_eq!(costs[0], costs[1]);
}

#[test]
fn watches_on_names_that_are_not_there_cost_a_removal_nothing() {
    let mut world = world();
    for domid in 1..=50 {
        world.add_guest(domid);
        for i in 0..100 {
            let watch = format!("/backend/{domid}-{i}|t|");
            assert_eq!(world.call(&format!("d{domid}"), M::Watch, 0, &watch), ok());
        }
    }
    world.call("dom0", M::Write, 0, "/backend/1-7|v").unwrap();
    let cost = cost(&mut world, M::Rm, "/backend|");
    assert!(cost < 50, "{cost}");
}

#[test]
fn a_stubdomain_is_told_what_its_target_is_told() {
    let mut world = world();
    world.add_guest_with_home(1);
    world.add_guest(2);
    world.call("dom0", M::SetTarget, 0, "2|1|").unwrap();
    assert_eq!(world.call("d2", M::Watch, 0, "/|t|"), ok());
    world.take_events("d2");
    assert_eq!(world.call("d1", M::Write, 0, "x|v"), ok());
    assert_eq!(world.take_events("d2"), ["/local/domain/1/x:t"]);
    // Another target, and the old one's nodes are its no more.
    world.add_guest_with_home(3);
    world.call("dom0", M::SetTarget, 0, "2|3|").unwrap();
    assert_eq!(world.call("d1", M::Write, 0, "x|w"), ok());
    assert_eq!(world.call("d3", M::Write, 0, "y|v"), ok());
    assert_eq!(world.take_events("d2"), ["/local/domain/3/y:t"]);
    world.destroy_domain(3);
    world.assert_counts();
}

#[test]
fn requests_of_nothing_are_each_answered() {
    let mut world = world();
    world.add_guest_with_home(1);
    let mut ring = Ring::of(&world, 1);
    let header = |code: u32| [code, 1, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let storm: Vec<Vec<u8>> = (0..10_000u32).map(|i| header(i % 64)).collect();
    ring.run(&mut world, &storm);
    assert_eq!(ring.take_kinds().len(), storm.len());
    assert!(ring.longest_turn <= TURN + 100, "{}", ring.longest_turn);
}

#[test]
fn half_a_message_is_forgotten_by_a_new_start() {
    let mut world = world();
    world.add_guest_with_home(1);
    let mut ring = Ring::of(&world, 1);
    let long = message(M::Write, 0, &format!("x|{}", "v".repeat(1500)));
    ring.requests = long[..1024].to_vec();
    assert_eq!(ring.turn(&mut world), 1024, "a message longer than the ring leaves it in parts");
    world.server.handle_reconnect(ring.id);
    ring.run(&mut world, &[message(M::Read, 0, "x|")]);
    assert_eq!(ring.take_kinds(), [M::Error.code()]);
    assert_eq!(in_use(&mut world, 1, "nodes"), 1);
}

#[test]
fn a_false_length_ends_the_ring_after_what_was_good() {
    let mut world = world();
    world.add_guest_with_home(1);
    let ring = Ring::of(&world, 1);
    let mut bytes = message(M::Write, 0, "x|good");
    bytes.extend([2u32, 1, 0, 5000].iter().flat_map(|word| word.to_ne_bytes()));
    let World { server, machine, .. } = &mut world;
    assert!(server.receive_from_ring(machine, ring.id, &bytes).is_err());
    assert_eq!(world.call("dom0", M::Read, 0, "/local/domain/1/x|"), Ok(b"good".to_vec()));
    assert_eq!(world.call("dom0", M::Introduce, 0, "1|5|7|"), Err(Error::EIO));
}

#[test]
fn transactions_beyond_the_limit_leave_nothing() {
    let mut world = world();
    world.add_guest_with_home(1);
    let before = in_use(&mut world, 1, "memory");
    let mut ring = Ring::of(&world, 1);
    let storm: Vec<Vec<u8>> = (0..5_000).map(|_| message(M::TransactionStart, 0, "|")).collect();
    ring.run(&mut world, &storm);
    assert_eq!(in_use(&mut world, 1, "transactions"), 10);
    assert!(in_use(&mut world, 1, "memory") - before < 40_000);
    ring.run(&mut world, &[message(M::ResetWatches, 0, "|")]);
    assert_eq!(in_use(&mut world, 1, "memory"), before);
}
