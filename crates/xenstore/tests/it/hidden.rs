//! A node that a guest may not read is to the guest as one that is not there: the same answers, limits,
//! work, memory, events and commits, whatever is done to it meanwhile (XSA-115).

use xenstore::Quota;
use xenstore::wire::MessageType as M;

use crate::world::World;

/// What there is where the guest may not look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Hidden,
    Absent,
}

/// What the control domain does there while the guest has a transaction open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Meanwhile {
    Nothing,
    Changes,
}

const PATHS: &[&str] = &["/secret", "/secret/node", "/secret/node/x", "/secret/node/x/y/z"];

/// Every request that names a node, with what stands behind the path.
const REQUESTS: &[(M, &str)] = &[
    (M::Read, "|"),
    (M::Directory, "|"),
    (M::DirectoryPart, "|0|"),
    (M::GetPerms, "|"),
    (M::Write, "|value"),
    (M::Mkdir, "|"),
    (M::Rm, "|"),
    (M::SetPerms, "|n1|"),
    (M::SetPerms, "|n1|r2|"),
    (M::SetPerms, "|n0|r1|"),
    (M::Watch, "|token|"),
    (M::Unwatch, "|token|"),
];

/// And those that name a domain, or one of the special nodes of a domain.
const OF_DOMAINS: &[(M, &str)] = &[
    (M::GetPerms, "@releaseDomain/7|"),
    (M::SetPerms, "@releaseDomain/7|n1|"),
    (M::SetPerms, "/local/domain/1/own|n7|"),
    (M::SetPerms, "/secret/node|n7|"),
    (M::GetDomainPath, "7|"),
    (M::IsDomainIntroduced, "7|"),
    (M::Introduce, "7|5|7|"),
    (M::Release, "7|"),
    (M::Resume, "7|"),
    (M::SetTarget, "1|7|"),
    (M::SetFeature, "7|0|"),
    (M::GetFeature, "7|"),
    (M::GetQuota, "7|nodes|"),
    (M::SetQuota, "7|nodes|1|"),
    (M::Read, "/local/domain/7/name|"),
    (M::Watch, "/local/domain/7|token|"),
];

fn fill(world: &mut World) {
    for request in ["/secret/node/x/y|1", "/secret/node/x/y/z|1"] {
        world.call("dom0", M::Write, 0, request).expect("written");
    }
    world.call("dom0", M::SetPerms, 0, "/secret/node/x|n0|b2|").expect("set");
}

fn world(place: Place, quota: Quota) -> World {
    let mut world = World::new(quota);
    // Each world has as many nodes and clients as the other.
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    world.call("dom0", M::Write, 0, "/local/domain/1/own|").expect("written");
    world.call("dom0", M::SetPerms, 0, "@releaseDomain|n0|").expect("set");
    if place == Place::Hidden {
        fill(&mut world);
        world.add_guest_with_home(7);
        world.call("dom0", M::SetPerms, 0, "@releaseDomain/7|n0|").expect("set");
        world.call("dom0", M::Write, 0, "/local/domain/7/name|x").expect("written");
    }
    world
}

fn change(world: &mut World, place: Place) {
    if place == Place::Absent {
        fill(world);
        world.add_guest_with_home(7);
        return;
    }
    for request in ["/secret/node|2", "/secret/node/x|2", "/secret/new|2"] {
        world.call("dom0", M::Write, 0, request).expect("written");
    }
    world.call("dom0", M::SetPerms, 0, "/secret/node|n0|r2|").expect("set");
    world.call("dom0", M::Rm, 0, "/secret/node/x/y|").expect("removed");
    world.call("dom0", M::Rm, 0, "/secret|").expect("removed");
    world.destroy_domain(7);
}

/// All that the guest, or somebody who watches the clock or its limits, can see of one request.
fn seen(world: &mut World, transaction: u32, (kind, payload): (M, &str)) -> String {
    let before = world.server.work();
    let answer = world.call("d1", kind, transaction, payload);
    let work = world.server.work() - before;
    let events = world.take_events("d1");
    let report = world.call("dom0", M::Control, 0, "quota|1|").expect("a report");
    let report = String::from_utf8(report).expect("text");
    let held = report.lines().filter(|line| !line.contains("max")).collect::<Vec<_>>().join(", ");
    format!("{kind:?} {payload} in {transaction}: {answer:?}, work {work}, {events:?}, {held}")
}

fn begin(world: &mut World) -> u32 {
    let reply = world.call("d1", M::TransactionStart, 0, "|").expect("a transaction begins");
    String::from_utf8(reply).expect("text").trim_end_matches('\0').parse().expect("a number")
}

/// One request in a transaction that has noted `noted` nodes, and its commit.
fn in_transaction(
    world: &mut World,
    place: Place,
    meanwhile: Meanwhile,
    noted: usize,
    request: (M, &str),
) -> Vec<String> {
    let id = begin(world);
    for i in 0..noted {
        let _missing = world.call("d1", M::Read, id, &format!("n{i}|"));
    }
    let mut lines = vec![seen(world, id, request), seen(world, id, (M::Read, "own|"))];
    if meanwhile == Meanwhile::Changes {
        change(world, place);
    }
    lines.push(seen(world, id, (M::Write, "own|value")));
    lines.push(seen(world, id, (M::TransactionEnd, "T|")));
    lines
}

/// Everything seen in a new world each for every request, in and outside a transaction.
fn transcript(place: Place, meanwhile: Meanwhile, quota: Quota, noted: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let nodes = PATHS
        .iter()
        .flat_map(|path| REQUESTS.iter().map(move |(kind, rest)| (*kind, format!("{path}{rest}"))));
    let domains = OF_DOMAINS.iter().map(|(kind, payload)| (*kind, (*payload).to_owned()));
    for (kind, payload) in nodes.chain(domains) {
        let mut world = world(place, quota);
        lines.push(seen(&mut world, 0, (kind, &payload)));
        if meanwhile == Meanwhile::Changes {
            change(&mut world, place);
            lines.push(format!("events: {:?}", world.take_events("d1")));
            world = self::world(place, quota);
            lines.push(seen(&mut world, 0, (kind, &payload)));
        } else {
            lines.push("events: []".to_owned());
            world = self::world(place, quota);
            lines.push(seen(&mut world, 0, (kind, &payload)));
        }
        let more = in_transaction(&mut world, place, meanwhile, noted, (kind, &payload));
        lines.extend(more);
        world.assert_counts();
    }
    lines
}

fn assert_all_alike(quota: Quota, noted: usize) {
    let expected = transcript(Place::Absent, Meanwhile::Nothing, quota, noted);
    let mut differences = Vec::new();
    for (place, meanwhile) in [
        (Place::Hidden, Meanwhile::Nothing),
        (Place::Hidden, Meanwhile::Changes),
        (Place::Absent, Meanwhile::Changes),
    ] {
        let lines = transcript(place, meanwhile, quota, noted);
        assert_eq!(lines.len(), expected.len());
        let unlike = lines.iter().zip(&expected).filter(|(one, other)| one != other);
        differences.extend(unlike.map(|(one, other)| {
            format!("{place:?}, {meanwhile:?}: {one}\n  absent and nothing happens: {other}")
        }));
    }
    let count = differences.len();
    differences.truncate(5);
    assert!(count == 0, "{count} differences, the first ones:\n{}", differences.join("\n"));
}

#[test]
fn a_hidden_node_and_none_answer_alike() {
    assert_all_alike(Quota::default(), 0);
}

#[test]
fn a_hidden_node_and_none_meet_the_limit_of_touched_nodes_alike() {
    for noted in 0..=4 {
        assert_all_alike(Quota { transaction_nodes: 3, ..Quota::default() }, noted);
    }
}

#[test]
fn a_hidden_node_and_none_meet_the_limit_of_memory_alike() {
    for memory_bytes in (1000..3000).step_by(250) {
        assert_all_alike(Quota { memory_bytes, ..Quota::default() }, 2);
    }
}

#[test]
fn a_hidden_node_and_none_meet_the_limits_of_nodes_and_sizes_alike() {
    for nodes in 1..=3 {
        assert_all_alike(Quota { nodes, ..Quota::default() }, 0);
    }
    assert_all_alike(Quota { node_bytes: 20, ..Quota::default() }, 0);
    assert_all_alike(Quota { permissions: 1, ..Quota::default() }, 0);
}
