//! What advisories about the other stores taught: one test for each, named after it.
//!
//! Source: the Xen security advisories at xenbits.xenproject.org/xsa, and the fixes in xen's
//! `tools/xenstored` and `tools/ocaml/xenstored`. Rights are in the scripts as well.

use std::time::Duration;

use xen::DomId;
use xenstore::wire::{self, MessageType as M, PAYLOAD_BYTES_MAX};
use xenstore::{Error, Quota};

use crate::world::{Message, World};

fn world() -> World {
    World::new(Quota::default())
}

fn ok() -> Result<Vec<u8>, Error> {
    Ok(b"OK\0".to_vec())
}

fn write(world: &mut World, who: &str, path: &str, value: &str) -> Result<Vec<u8>, Error> {
    world.call_raw(who, M::Write.code(), 0, format!("{path}\0{value}").as_bytes())
}

fn start(world: &mut World, who: &str) -> u32 {
    let reply = world.call(who, M::TransactionStart, 0, "|").expect("a transaction begins");
    let text = String::from_utf8(reply).expect("text");
    text.trim_end_matches('\0').parse().expect("a number")
}

fn listing(world: &mut World, path: &str) -> Vec<String> {
    let reply = world.call("dom0", M::Directory, 0, &format!("{path}|")).expect("a directory");
    wire::strings(&reply).map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// What `CONTROL quota DOMID` says that the domain uses of a limit.
fn in_use(world: &mut World, domid: u16, name: &str) -> usize {
    let report = world.call("dom0", M::Control, 0, &format!("quota|{domid}|")).expect("a report");
    let report = String::from_utf8(report).expect("text");
    let line = report.lines().find(|line| line.starts_with(name)).expect("the limit's line");
    let (_, values) = line.split_once(':').expect("a colon");
    values.split_whitespace().next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn xsa_72_a_listing_longer_than_a_message_is_refused_on_rings_and_sockets() {
    let mut world = World::new(Quota { nodes: 0, node_bytes: 0, ..Quota::default() });
    world.add_guest_with_home(1);
    for i in 0..600 {
        assert_eq!(write(&mut world, "d1", &format!("list/name-{i:04}"), ""), ok());
    }
    for who in ["dom0", "d1"] {
        let reply = world.call(who, M::Directory, 0, "/local/domain/1/list|");
        assert_eq!(reply, Err(Error::E2BIG), "{who}");
        let part = world.call(who, M::DirectoryPart, 0, "/local/domain/1/list|0|").unwrap();
        assert!((PAYLOAD_BYTES_MAX - 16..=PAYLOAD_BYTES_MAX).contains(&part.len()));
    }
    // The last listing that fits is told whole.
    assert_eq!(world.call("d1", M::Rm, 0, "list|"), ok());
    for i in 0..64 {
        assert_eq!(write(&mut world, "d1", &format!("list/{i:063}"), ""), ok());
    }
    let reply = world.call("d1", M::Directory, 0, "list|").unwrap();
    assert_eq!(reply.len(), PAYLOAD_BYTES_MAX);
    assert_eq!(write(&mut world, "d1", "list/x", ""), ok());
    assert_eq!(world.call("d1", M::Directory, 0, "list|"), Err(Error::E2BIG));
}

#[test]
fn xsa_115_a_guest_learns_of_no_name_that_it_may_not_read() {
    let mut world = world();
    world.add_guest_with_home(1);
    for path in ["/", "/hidden", "/hidden/deep", "@introduceDomain", "@releaseDomain/2"] {
        assert_eq!(world.call("d1", M::Watch, 0, &format!("{path}|t|")), ok());
    }
    world.take_events("d1");
    world.call("dom0", M::SetPerms, 0, "@releaseDomain|n0|").unwrap();
    for round in 0..2 {
        write(&mut world, "dom0", "/hidden/deep/name", &format!("{round}")).unwrap();
        world.call("dom0", M::SetPerms, 0, "/hidden/deep|n0|").unwrap();
        let id = start(&mut world, "dom0");
        world.call("dom0", M::Write, id, "/hidden/in-transaction|1").unwrap();
        world.call("dom0", M::TransactionEnd, id, "T|").unwrap();
        world.call("dom0", M::Rm, 0, "/hidden|").unwrap();
        world.add_guest(2);
        world.destroy_domain(2);
    }
    assert_eq!(world.take_events("d1"), [""; 0]);
}

#[test]
fn xsa_115_no_limit_keeps_a_guest_from_removing() {
    let quota = Quota { nodes: 3, memory_bytes: 2000, ..Quota::default() };
    let mut world = World::new(quota);
    world.add_guest_with_home(1);
    for i in 0..20 {
        let path = format!("/local/domain/1/n{i}");
        assert_eq!(write(&mut world, "dom0", &path, &"v".repeat(200)), ok());
    }
    assert!(in_use(&mut world, 1, "memory") > 2000);
    assert_eq!(write(&mut world, "d1", "more", ""), Err(Error::ENOMEM));
    for i in 0..20 {
        assert_eq!(world.call("d1", M::Rm, 0, &format!("n{i}|")), ok());
    }
    assert_eq!(listing(&mut world, "/local/domain/1"), [""; 0]);
    assert_eq!(write(&mut world, "d1", "more", ""), ok());
}

#[test]
fn xsa_115_a_watch_does_not_look_at_its_transaction() {
    let mut world = world();
    world.add_guest_with_home(1);
    for who in ["dom0", "d1"] {
        assert_eq!(world.call(who, M::Watch, 12345, "/local/domain/1|t|"), ok());
        assert_eq!(world.call(who, M::Unwatch, 54321, "/local/domain/1|t|"), ok());
        world.take_events(who);
    }
}

/// Attempts that the control domain needs to commit, while guests write what it reads whenever they
/// are served.
fn attempts_against(world: &mut World, guests: &[&str], writes_per_step: usize) -> u32 {
    let path = "/local/domain/1/x";
    let mut attempts = 0;
    loop {
        attempts += 1;
        let id = start(world, "dom0");
        let read = world.call("dom0", M::Read, id, &format!("{path}|")).expect("exists");
        for guest in guests {
            for i in 0..writes_per_step {
                let peer = world.peers[*guest].id;
                if world.server.accepts_requests(peer) {
                    let value = format!("{path}\0{attempts} {i} {}", read.len());
                    world.send(guest, M::Write.code(), 0, value.as_bytes());
                }
                world.peers.get_mut(*guest).expect("a guest").messages.clear();
            }
        }
        world.wait(Duration::from_micros(100));
        world.call("dom0", M::Write, id, "/done|1").expect("written");
        match world.call("dom0", M::TransactionEnd, id, "T|") {
            Ok(_) => return attempts,
            Err(error) => assert_eq!(error, Error::EAGAIN),
        }
    }
}

#[test]
fn xsa_206_a_guest_that_writes_without_pause_delays_a_commit_for_a_bounded_time() {
    for guests in [&["d1"][..], &["d1", "d2", "d3", "d4"]] {
        let mut world = world();
        for domid in 1..=4 {
            world.add_guest_with_home(domid);
        }
        world.call("dom0", M::SetPerms, 0, "/local/domain/1|n1|b2|b3|b4|").unwrap();
        write(&mut world, "dom0", "/local/domain/1/x", "").unwrap();
        // Each burst is ten writes, and the one that ends it.
        let first = attempts_against(&mut world, guests, 10);
        assert!(first <= 3, "{first} attempts against {}", guests.len());
        // From now on a guest gets a write once in a while, and a commit is faster than that.
        let mut total = 0;
        for _ in 0..100 {
            total += attempts_against(&mut world, guests, 10);
        }
        assert!(total <= 110, "{total} attempts for 100 commits against {}", guests.len());
        // However much was saved in an idle hour, it is used up by ten writes at a time.
        world.wait(Duration::from_secs(3600));
        let after_rest = attempts_against(&mut world, guests, 10);
        assert!(after_rest <= 110, "{after_rest} attempts against {}", guests.len());
        assert!(world.server.counters().writers_held_back > 0);
        world.assert_counts();
    }
}

#[test]
fn xsa_233_a_guest_and_its_stubdomain_die_together_in_either_order() {
    for [helper, target] in [[1, 2], [2, 1]] {
        let mut world = world();
        world.add_guest_with_home(1);
        world.add_guest_with_home(2);
        world.call("dom0", M::SetTarget, 0, &format!("{helper}|{target}|")).unwrap();
        write(&mut world, &format!("d{helper}"), &format!("/local/domain/{target}/x"), "").unwrap();
        world.call("dom0", M::Watch, 0, "@releaseDomain|t|1|").unwrap();
        world.take_events("dom0");
        world.machine.states.clear();
        world.raise_exception();
        assert_eq!(world.take_events("dom0"), ["@releaseDomain/1:t", "@releaseDomain/2:t"]);
        world.raise_exception();
        assert_eq!(world.take_events("dom0"), [""; 0]);
        assert!(world.machine.rings.is_empty());
        assert_eq!(listing(&mut world, "/local/domain"), [""; 0]);
        world.assert_counts();
    }
}

#[test]
fn xsa_272_what_is_counted_is_what_is_there() {
    // Random operations are in the model's tests; here each way to gain and lose a node, by itself.
    let mut world = world();
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    world.call("dom0", M::SetPerms, 0, "/local/domain/2|n2|b1|").unwrap();
    let nodes = |world: &mut World| {
        world.assert_counts();
        (in_use(world, 1, "nodes"), in_use(world, 2, "nodes"))
    };
    assert_eq!(nodes(&mut world), (1, 1));
    write(&mut world, "d1", "a/b/c", "").unwrap();
    assert_eq!(nodes(&mut world), (4, 1));
    write(&mut world, "d1", "/local/domain/2/by-one", "").unwrap();
    assert_eq!(nodes(&mut world), (5, 1));
    world.call("dom0", M::SetPerms, 0, "/local/domain/1/a|n2|").unwrap();
    assert_eq!(nodes(&mut world), (4, 2));
    write(&mut world, "dom0", "/local/domain/1/a/by-dom0", "").unwrap();
    assert_eq!(nodes(&mut world), (4, 3));
    let id = start(&mut world, "d1");
    world.call("d1", M::Write, id, "t/u|").unwrap();
    assert_eq!(nodes(&mut world), (4, 3), "nothing is counted before the commit");
    world.call("d1", M::TransactionEnd, id, "T|").unwrap();
    assert_eq!(nodes(&mut world), (6, 3));
    let id = start(&mut world, "d1");
    world.call("d1", M::Rm, id, "t|").unwrap();
    world.call("d1", M::TransactionEnd, id, "F|").unwrap();
    assert_eq!(nodes(&mut world), (6, 3));
    world.call("dom0", M::Rm, 0, "/local/domain/1/a|").unwrap();
    assert_eq!(nodes(&mut world), (4, 1));
    world.destroy_domain(1);
    world.assert_counts();
    assert_eq!(in_use(&mut world, 2, "nodes"), 1);
}

#[test]
fn xsa_322_a_domid_used_again_inherits_no_right_on_any_node() {
    let mut world = world();
    world.add_guest_with_home(1);
    write(&mut world, "dom0", "/shared", "secret").unwrap();
    world.call("dom0", M::SetPerms, 0, "/shared|n0|b1|").unwrap();
    world.call("dom0", M::SetPerms, 0, "@introduceDomain|n0|r1|").unwrap();
    assert_eq!(world.call("d1", M::Read, 0, "/shared|"), Ok(b"secret".to_vec()));
    assert!(world.call("d1", M::GetPerms, 0, "@introduceDomain|").is_ok());
    world.destroy_domain(1);
    world.add_guest(1);
    assert_eq!(world.call("d1", M::Read, 0, "/shared|"), Err(Error::EACCES));
    assert_eq!(write(&mut world, "d1", "/shared", ""), Err(Error::EACCES));
    assert_eq!(world.call("d1", M::GetPerms, 0, "@introduceDomain|"), Err(Error::EACCES));
    world.call("d1", M::Watch, 0, "@introduceDomain|t|").unwrap();
    world.take_events("d1");
    world.add_guest(2);
    assert_eq!(world.take_events("d1"), [""; 0]);
}

#[test]
fn xsa_323_a_paths_length_is_judged_in_one_spelling() {
    for limit in [100u32, 2048] {
        let mut world = World::new(Quota { path_bytes: limit, node_bytes: 0, ..Quota::default() });
        world.add_guest_with_home(1);
        let limit = limit as usize;
        for (bytes, fits) in [(limit - 1, true), (limit, true), (limit + 1, false)] {
            let name = "n".repeat(bytes);
            let expected = if fits { ok() } else { Err(Error::EINVAL) };
            for path in [name.clone(), format!("/local/domain/1/{name}")] {
                assert_eq!(write(&mut world, "d1", &path, ""), expected, "{bytes} of {limit}");
                let watched = world.call("d1", M::Watch, 0, &format!("{path}|{bytes}|"));
                assert_eq!(watched.is_err(), !fits || path.starts_with('/'), "one watch of both");
            }
            world.take_events("d1");
            // Elsewhere every byte counts.
            let elsewhere = format!("/{}|", "n".repeat(bytes - 1));
            let expected = if fits { Error::EACCES } else { Error::EINVAL };
            assert_eq!(world.call("d1", M::Read, 0, &elsewhere), Err(expected));
        }
        world.assert_counts();
    }
}

#[test]
fn xsa_324_a_huge_token_makes_no_message_too_long() {
    let mut world = world();
    world.add_guest_with_home(1);
    // The watch's own event fits exactly: four bytes of path, two NULs.
    let token = "t".repeat(PAYLOAD_BYTES_MAX - 6);
    assert_eq!(world.call("d1", M::Watch, 0, &format!("name|{}|", &token)), ok());
    assert_eq!(world.take_events("d1").len(), 1);
    assert_eq!(write(&mut world, "d1", "name", ""), ok());
    assert_eq!(world.take_events("d1").len(), 1);
    assert_eq!(write(&mut world, "d1", "name/x", ""), ok());
    assert_eq!(world.take_events("d1").len(), 0);
    assert_eq!(world.server.counters().events_dropped, 1);
    assert_eq!(world.call("d1", M::Read, 0, "name|"), Ok(Vec::new()), "served as before");
}

#[test]
fn xsa_325_a_client_that_broke_the_protocol_is_a_domain_until_it_dies() {
    let mut world = world();
    world.add_guest_with_home(1);
    world.call("dom0", M::Watch, 0, "@releaseDomain|t|").unwrap();
    world.take_events("dom0");
    let header: Vec<u8> = [2u32, 1, 0, 5000].iter().flat_map(|word| word.to_ne_bytes()).collect();
    world.send_bytes("d1", &header);
    assert!(world.peers["d1"].is_closed);
    assert_eq!(world.call("dom0", M::IsDomainIntroduced, 0, "1|"), Ok(b"T\0".to_vec()));
    // Not revived by another introduction, which says why.
    assert_eq!(world.call("dom0", M::Introduce, 0, "1|5|7|"), Err(Error::EIO));
    let line = world.machine.lines.last().expect("a line");
    assert!(line.contains("domain 1") && line.contains("payload longer"), "{line}");
    assert_eq!(world.machine.resets, []);
    let ring = world.machine.rings[&DomId(1)];
    assert!(!world.server.accepts_requests(ring));
    assert_eq!(listing(&mut world, "/local/domain"), ["1"]);
    assert_eq!(world.take_events("dom0"), [""; 0]);
    world.destroy_domain(1);
    assert_eq!(world.take_events("dom0"), ["@releaseDomain:t"]);
    assert_eq!(listing(&mut world, "/local/domain"), [""; 0]);
    world.assert_counts();
}

#[test]
fn xsa_326_everything_a_guest_can_fill_has_an_end_and_hinders_nobody() {
    let mut world = world();
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    let limit = Quota::default().memory_bytes as usize;
    let long = "p".repeat(2000);
    // Nodes, watches, transactions: each until it is refused.
    let mut refused = 0;
    for i in 0..2000 {
        refused += usize::from(write(&mut world, "d1", &format!("{i}"), &long).is_err());
    }
    for i in 0..200 {
        let watch = format!("/local/domain/1|{i}{long}|");
        refused += usize::from(world.call("d1", M::Watch, 0, &watch).is_err());
        world.take_events("d1");
    }
    for _ in 0..20 {
        let Ok(_) = world.call("d1", M::TransactionStart, 0, "|") else {
            refused += 1;
            continue;
        };
    }
    for id in 1..=10 {
        for i in 0..100 {
            let read = world.call("d1", M::Read, id, &format!("{i}{}|", &long[..1990]));
            refused += usize::from(read != Err(Error::ENOENT));
        }
    }
    assert!(refused > 1000, "{refused}");
    // A transaction that met the limit has one path more than it may.
    let limit = limit + 10 * (2048 + 256);
    assert!(in_use(&mut world, 1, "memory") <= limit);
    // Then replies and events, which it does not read.
    let guest = world.peers["d1"].id;
    world.deaf.insert(guest);
    let before = world.server.counters().requests_total();
    for _ in 0..1000 {
        world.send("d1", M::Read.code(), 0, b"1\0");
    }
    assert!(world.server.counters().requests_total() - before <= 20);
    for i in 0..3000 {
        assert_eq!(write(&mut world, "dom0", &format!("/local/domain/1/{}", i % 1500), "x"), ok());
    }
    // What it sent and is not taken any more would lie in its ring; here it is an input of 1 MB.
    let input = 1000 * (16 + 2);
    let most = limit + input + 8 * 1024 + 20 * (16 + 2048 + 96) + 1500 * 400;
    assert!(in_use(&mut world, 1, "memory") <= most, "{}", in_use(&mut world, 1, "memory"));
    // Another guest is served as if nothing were.
    assert_eq!(write(&mut world, "d2", "x", "1"), ok());
    assert_eq!(world.call("d2", M::Read, 0, "x|"), Ok(b"1".to_vec()));
    world.assert_counts();
    world.destroy_domain(1);
    world.assert_counts();
    assert_eq!(world.server.watch_count(), 0);
}

#[test]
fn xsa_326_a_transaction_that_failed_keeps_nothing_more() {
    let mut world = World::new(Quota { transaction_nodes: 10, ..Quota::default() });
    world.add_guest_with_home(1);
    let id = start(&mut world, "d1");
    let mut held = Vec::new();
    for i in 0..100 {
        let _seen = world.call("d1", M::Read, id, &format!("n{i:02}|"));
        let written = world.call("d1", M::Write, id, &format!("m{i:02}|v"));
        assert_eq!(written.is_ok(), i < 4, "{i}: {written:?}");
        held.push(in_use(&mut world, 1, "memory"));
    }
    held.dedup();
    assert!(held.len() <= 10, "{held:?}");
    assert_eq!(world.call("d1", M::TransactionEnd, id, "T|"), Err(Error::ENOMEM));
    assert_eq!(listing(&mut world, "/local/domain/1"), [""; 0]);
}

#[test]
fn xsa_326_a_guest_that_reads_nothing_costs_the_writer_nothing() {
    let mut world = world();
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    world.call("dom0", M::SetPerms, 0, "/local/domain/1|n1|b2|").unwrap();
    world.call("d1", M::Watch, 0, "/local/domain/1|t|").unwrap();
    world.deaf.insert(world.peers["d1"].id);
    // More than the requests that a guest may have outstanding, each with an event for the deaf one.
    for i in 0..200 {
        assert_eq!(write(&mut world, "d2", &format!("/local/domain/1/{i}"), ""), ok());
        assert_eq!(in_use(&mut world, 2, "outstanding"), 0);
    }
    assert!(in_use(&mut world, 1, "memory") > 200 * 16, "charged to whom they are for");
}

#[test]
fn xsa_330_watches_that_come_and_go_leave_nothing() {
    let mut world = world();
    world.add_guest_with_home(1);
    let before = in_use(&mut world, 1, "memory");
    for round in 0..1000 {
        world.call("d1", M::Watch, 0, &format!("a/b/{round}|t|")).unwrap();
        if round % 2 == 0 {
            world.call("d1", M::ResetWatches, 0, "|").unwrap();
        } else {
            world.call("d1", M::Unwatch, 0, &format!("a/b/{round}|t|")).unwrap();
        }
        world.take_events("d1");
    }
    assert_eq!(world.server.watch_count(), 0);
    assert_eq!(in_use(&mut world, 1, "memory"), before);
    assert_eq!(write(&mut world, "d1", "a/b/1", ""), ok());
    assert_eq!(world.take_events("d1"), [""; 0]);
    world.assert_counts();
}

#[test]
fn xsa_352_an_owner_cannot_give_a_node_away() {
    let mut world = world();
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    write(&mut world, "d1", "mine", "").unwrap();
    for list in ["n2|", "n0|", "n2|b1|"] {
        let reply = world.call("d1", M::SetPerms, 0, &format!("mine|{list}"));
        assert_eq!(reply, Err(Error::EPERM), "{list}");
    }
    let id = start(&mut world, "d1");
    assert_eq!(world.call("d1", M::SetPerms, id, "mine|n2|"), Err(Error::EPERM));
    world.call("d1", M::TransactionEnd, id, "T|").unwrap();
    assert_eq!((in_use(&mut world, 1, "nodes"), in_use(&mut world, 2, "nodes")), (2, 1));
    assert_eq!(world.call("dom0", M::SetPerms, 0, "/local/domain/1/mine|n2|"), ok());
    assert_eq!((in_use(&mut world, 1, "nodes"), in_use(&mut world, 2, "nodes")), (1, 2));
}

#[test]
fn xsa_353_the_root_is_guarded_as_any_node() {
    let mut world = world();
    world.add_guest_with_home(1);
    for (kind, payload) in [
        (M::Directory, "/|"),
        (M::DirectoryPart, "/|0|"),
        (M::Read, "/|"),
        (M::GetPerms, "/|"),
        (M::SetPerms, "/|n1|"),
        (M::Write, "/|x"),
        (M::Write, "/new|x"),
        (M::Mkdir, "/new|"),
        (M::Rm, "/|"),
        (M::Rm, "/tool|"),
    ] {
        assert_eq!(world.call("d1", kind, 0, payload), Err(Error::EACCES), "{kind:?} {payload}");
        let id = start(&mut world, "d1");
        assert_eq!(world.call("d1", kind, id, payload), Err(Error::EACCES), "{kind:?} inside");
        world.call("d1", M::TransactionEnd, id, "T|").unwrap();
    }
    assert_eq!(listing(&mut world, "/"), ["tool", "local"]);
    assert_eq!(world.call("dom0", M::Rm, 0, "/|"), Err(Error::EINVAL));
}

/// Creates `a/b/c/d` with some limit that may be too low; what is there afterwards is all or nothing.
fn create_under(quota: Quota, transaction: bool) -> Result<(), Error> {
    let mut world = World::new(quota);
    world.add_guest_with_home(1);
    if transaction {
        world.call("d1", M::TransactionStart, 0, "|")?;
    }
    let id = u32::from(transaction);
    let mut result = world.call("d1", M::Write, id, "a/b/c/d|value");
    if transaction {
        let committed = world.call("d1", M::TransactionEnd, id, "T|");
        assert_eq!(result.is_err(), committed == Err(Error::ENOMEM), "a failed change poisons");
        result = result.and(committed);
    }
    world.assert_counts();
    let names = listing(&mut world, "/local/domain/1");
    let value = world.call("dom0", M::Read, 0, "/local/domain/1/a/b/c/d|");
    if result.is_ok() {
        assert_eq!((names, value), (vec!["a".to_owned()], Ok(b"value".to_vec())));
        assert_eq!(in_use(&mut world, 1, "nodes"), 5);
    } else {
        assert_eq!((names, value), (Vec::new(), Err(Error::ENOENT)));
        assert_eq!(in_use(&mut world, 1, "nodes"), 1);
    }
    result.map(|_| ())
}

/// Every limit that can stop the creation of a path, from where it does to where it does not.
fn creations_that_fail_on_the_way(transaction: bool) {
    let mut results = Vec::new();
    for nodes in 1..=6 {
        results.push(create_under(Quota { nodes, ..Quota::default() }, transaction));
    }
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2, "{results:?}");
    results.clear();
    for node_bytes in 20..=40 {
        results.push(create_under(Quota { node_bytes, ..Quota::default() }, transaction));
    }
    assert!(results[0].is_err() && results[20].is_ok(), "{results:?}");
    results.clear();
    for memory_bytes in (0..=30).map(|i| 1 + i * 500) {
        results.push(create_under(Quota { memory_bytes, ..Quota::default() }, transaction));
    }
    assert!(results[0].is_err() && results[30].is_ok(), "{results:?}");
    assert!(results.is_sorted_by_key(Result::is_ok), "{results:?}");
}

#[test]
fn xsa_414_a_creation_that_fails_on_its_way_creates_nothing() {
    creations_that_fail_on_the_way(false);
}

#[test]
fn xsa_415_a_creation_that_fails_on_its_way_leaves_nothing_to_commit() {
    creations_that_fail_on_the_way(true);
    // Not even what went well before it.
    for transaction_nodes in 1..12 {
        let mut world = World::new(Quota { transaction_nodes, ..Quota::default() });
        world.add_guest_with_home(1);
        let id = start(&mut world, "d1");
        let steps = ["a|1", "b/c|2", "d/e/f|3", "g|4"];
        let went_well = steps.iter().all(|step| world.call("d1", M::Write, id, step).is_ok());
        let committed = world.call("d1", M::TransactionEnd, id, "T|");
        world.assert_counts();
        let names = listing(&mut world, "/local/domain/1");
        if went_well {
            assert_eq!((committed, names.len()), (ok(), 4));
        } else {
            assert_eq!((committed, names.len()), (Err(Error::ENOMEM), 0));
        }
    }
}

#[test]
fn xsa_416_nothing_of_a_request_outlives_its_answer() {
    let mut world = World::new(Quota { permissions: 0, outstanding: 0, ..Quota::default() });
    world.add_guest_with_home(1);
    let before = in_use(&mut world, 1, "memory");
    world.deaf.insert(world.peers["d1"].id);
    let list = "r2\0".repeat(1300);
    let payload = format!("/local/domain/1/missing\0n1\0{list}");
    for _ in 0..100 {
        world.send("d1", M::SetPerms.code(), 0, payload.as_bytes());
    }
    let reply = 16 + "ENOENT\0".len() + 96;
    assert!(in_use(&mut world, 1, "memory") - before <= 100 * reply);
    world.assert_counts();
}

#[test]
fn xsa_417_a_right_of_a_domain_that_is_not_there_is_none_when_it_comes() {
    let mut world = world();
    write(&mut world, "dom0", "/node", "secret").unwrap();
    world.call("dom0", M::SetPerms, 0, "/node|n0|b5|").unwrap();
    let id = start(&mut world, "dom0");
    world.call("dom0", M::Write, id, "/made|secret").unwrap();
    world.call("dom0", M::SetPerms, id, "/made|n0|b5|").unwrap();
    world.add_guest(5);
    world.call("dom0", M::TransactionEnd, id, "T|").unwrap();
    for path in ["/node", "/made"] {
        assert_eq!(world.call("d5", M::Read, 0, &format!("{path}|")), Err(Error::EACCES));
        assert_eq!(write(&mut world, "d5", path, ""), Err(Error::EACCES));
        // What is made below it later has the same list, and no more of a right.
        write(&mut world, "dom0", &format!("{path}/below"), "").unwrap();
        let below = world.call("d5", M::Read, 0, &format!("{path}/below|"));
        assert_eq!(below, Err(Error::EACCES));
    }
    assert_eq!(world.call("dom0", M::GetPerms, 0, "/node|"), Ok(b"n0\0b5\0".to_vec()));
}

#[test]
fn xsa_418_depth_needs_no_stack() {
    let test = || {
        let quota = Quota { nodes: 0, node_bytes: 0, ..Quota::default() };
        let mut world = World::new(quota);
        world.add_guest_with_home(1);
        // A guest may not go so deep, but its home can.
        let path = "/local/domain/1/".to_owned() + &"x/".repeat(1000) + "x";
        assert_eq!(write(&mut world, "dom0", &path, "bottom"), ok());
        world.call("dom0", M::Watch, 0, &format!("{path}|t|")).unwrap();
        world.take_events("dom0");
        let id = start(&mut world, "dom0");
        assert_eq!(world.call("dom0", M::Write, id, &format!("{path}|again")), ok());
        assert_eq!(world.call("dom0", M::TransactionEnd, id, "T|"), ok());
        let id = start(&mut world, "d1");
        assert_eq!(world.call("d1", M::Rm, id, "x|"), ok());
        assert_eq!(world.call("d1", M::TransactionEnd, id, "F|"), ok());
        assert_eq!(world.call("dom0", M::Control, 0, "check|"), ok());
        assert_eq!(world.call("d1", M::Rm, 0, "x|"), ok());
        assert_eq!(world.take_events("dom0").len(), 2);
        // Removed by a death, with a snapshot that keeps the old tree alive a while longer.
        assert_eq!(write(&mut world, "dom0", &path, "bottom"), ok());
        let id = start(&mut world, "dom0");
        world.destroy_domain(1);
        world.call("dom0", M::TransactionEnd, id, "F|").unwrap();
        world.assert_counts();
        while !world.server.is_cleared_up() {
            world.server.clear_up(1000);
        }
        assert_eq!(world.server.node_count(), 5);
    };
    let small = std::thread::Builder::new().stack_size(128 * 1024);
    small.spawn(test).unwrap().join().unwrap();
}

#[test]
fn xsa_419_nodes_outside_its_home_die_with_a_domain() {
    let mut world = world();
    world.add_guest_with_home(2);
    let mut counts = Vec::new();
    for _ in 0..20 {
        world.add_guest_with_home(1);
        // The other domain lets it write everywhere below its own home.
        let shared = world.call("d2", M::Mkdir, 0, "shared|");
        assert_eq!(shared, ok());
        assert_eq!(world.call("d2", M::SetPerms, 0, "shared|n2|b1|"), ok());
        for i in 0..50 {
            let path = format!("/local/domain/2/shared/{i}/deep");
            assert_eq!(write(&mut world, "d1", &path, "x"), ok());
        }
        world.destroy_domain(1);
        world.assert_counts();
        counts.push((world.server.node_count(), in_use(&mut world, 2, "memory")));
    }
    counts.dedup();
    assert_eq!(counts.len(), 1, "{counts:?}");
}

#[test]
fn xsa_420_a_length_without_sense_ends_its_connection_and_no_other() {
    let mut world = world();
    world.add_guest_with_home(1);
    for length in [4097u32, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
        let name = format!("s{length}");
        world.connect(&name);
        let header: Vec<u8> =
            [2, 1, 0, length].iter().flat_map(|word| word.to_ne_bytes()).collect();
        world.send_bytes(&name, &header);
        assert!(world.peers[&name].is_closed);
        // Whatever comes after it is not looked at.
        let requests = world.server.counters().requests_total();
        let mut good = Vec::new();
        wire::encode(&mut good, M::Read.code(), 1, 0, &[b"/\0"]);
        world.send_bytes(&name, &good);
        assert_eq!(world.server.counters().requests_total(), requests);
        assert_eq!(world.peers[&name].messages, []);
        assert_eq!(write(&mut world, "d1", "x", ""), ok());
    }
}

#[test]
fn xsa_421_what_a_transaction_creates_and_removes_leaves_no_trace() {
    let mut world = World::new(Quota { nodes: 10, ..Quota::default() });
    world.add_guest_with_home(1);
    let before = in_use(&mut world, 1, "memory");
    for round in 1..=30 {
        let id = start(&mut world, "d1");
        world.call("d1", M::Write, id, "a/b/c|1").unwrap();
        world.call("d1", M::Rm, id, "a/b|").unwrap();
        world.call("d1", M::Write, id, "a/b|2").unwrap();
        world.call("d1", M::Rm, id, "a|").unwrap();
        if round % 2 == 0 {
            // The same happens outside, and is not touched by it.
            write(&mut world, "dom0", "/local/domain/1/other", "").unwrap();
        }
        let reply = world.call("d1", M::TransactionEnd, id, "T|");
        assert!(matches!(reply, Ok(_) | Err(Error::EAGAIN)), "{reply:?}");
        world.assert_counts();
        world.call("dom0", M::Rm, 0, "/local/domain/1/other|").unwrap();
        assert_eq!(listing(&mut world, "/local/domain/1"), [""; 0]);
        assert_eq!(in_use(&mut world, 1, "nodes"), 1);
    }
    assert_eq!(in_use(&mut world, 1, "memory"), before);
}

#[test]
fn xsa_425_a_connection_released_by_its_neighbour_is_gone_with_all_it_sent() {
    let mut world = world();
    world.add_guest(1);
    world.add_guest(2);
    let ring = world.machine.rings[&DomId(1)];
    // Both have input: the neighbour's is executed first and releases this one.
    let mut request = Vec::new();
    wire::encode(&mut request, M::Read.code(), 1, 0, &[b"/\0"]);
    let received = world.server.receive(&mut world.machine, ring, &request[..10]);
    assert_eq!(received, Ok(()));
    world.call("dom0", M::Release, 0, "1|").unwrap();
    let received = world.server.receive(&mut world.machine, ring, &request[10..]);
    assert_eq!(received, Ok(()));
    assert_eq!(world.server.output(ring), b"");
    assert!(!world.server.accepts_requests(ring));
    world.server.consume(ring, 0);
    world.server.disconnect(ring);
    // Its successor is another connection.
    world.add_guest(1);
    assert_ne!(world.machine.rings[&DomId(1)], ring);
    assert_eq!(world.call("d2", M::GetDomainPath, 0, "1|"), Ok(b"/local/domain/1\0".to_vec()));
    world.assert_counts();
}

#[test]
fn xsa_440_two_transactions_that_remove_the_same_nodes_both_end_well() {
    let mut world = world();
    world.add_guest_with_home(1);
    for i in 0..50 {
        assert_eq!(write(&mut world, "d1", &format!("n{i}"), ""), ok());
    }
    let ids = [start(&mut world, "d1"), start(&mut world, "d1")];
    for id in ids {
        for i in 0..50 {
            assert_eq!(world.call("d1", M::Rm, id, &format!("n{i}|")), ok());
        }
    }
    assert_eq!(world.call("d1", M::TransactionEnd, ids[0], "T|"), ok());
    // Removing what is gone is no conflict: outside a transaction it is answered well, too.
    assert_eq!(world.call("d1", M::TransactionEnd, ids[1], "T|"), ok());
    assert_eq!(in_use(&mut world, 1, "nodes"), 1);
    world.assert_counts();
}

#[test]
fn xsa_481_paths_around_the_homes_are_answered_and_leave_nothing() {
    let mut world = world();
    world.add_guest_with_home(1);
    let nodes = world.server.node_count();
    let paths = [
        ("/local/domain/", Error::EINVAL),
        ("/local/domain//", Error::EINVAL),
        ("/local/domain/1/", Error::EINVAL),
        ("/local/domain//1", Error::EINVAL),
        ("/local/domain", Error::EACCES),
        ("/local/domain/x", Error::EACCES),
        ("/local/domain/99999999999999999999", Error::EACCES),
        ("/local/domain/-1/x", Error::EACCES),
        ("/local/domain/0", Error::EACCES),
        ("/local/", Error::EINVAL),
        ("/local", Error::EACCES),
    ];
    let kinds =
        [(M::Read, "|"), (M::Directory, "|"), (M::Write, "|v"), (M::Mkdir, "|"), (M::Rm, "|")];
    for (path, expected) in paths {
        for (kind, rest) in kinds {
            let reply = world.call("d1", kind, 0, &format!("{path}{rest}"));
            assert_eq!(reply, Err(expected), "{kind:?} {path}");
        }
        let watched = world.call("d1", M::Watch, 0, &format!("{path}|t|"));
        assert_eq!(watched.is_err(), expected == Error::EINVAL, "{path}");
    }
    world.take_events("d1");
    assert_eq!(world.server.node_count(), nodes);
    assert_eq!(world.server.connection_count(), 2);
    world.assert_counts();
}

#[test]
fn xsa_483_a_domid_used_again_has_its_whole_quota() {
    let mut world = World::new(Quota { nodes: 10, ..Quota::default() });
    for _ in 0..50 {
        world.add_guest_with_home(1);
        for i in 1..10 {
            assert_eq!(write(&mut world, "d1", &format!("n{i}"), ""), ok());
        }
        assert_eq!(write(&mut world, "d1", "n10", ""), Err(Error::ENOSPC));
        for i in 0..128 {
            assert_eq!(world.call("d1", M::Watch, 0, &format!("w|{i}|")), ok());
        }
        assert_eq!(world.call("d1", M::Watch, 0, "w|128|"), Err(Error::ENOSPC));
        world.take_events("d1");
        world.destroy_domain(1);
        world.assert_counts();
    }
}

#[test]
fn xsa_484_any_message_in_any_state_is_answered() {
    let payloads: &[&[u8]] = &[
        b"",
        b"\0",
        b"\0\0\0\0",
        b"/\0",
        b"/a\0b\0c\0d\0",
        b"1\x002\x003\0",
        b"T\0",
        b"@x\0y\0",
        b"@releaseDomain\0n0\0",
        b"/local/domain/\0",
        b"0\x000\0",
        b"\xff\xfe\0",
        b"check\0",
    ];
    let mut world = world();
    world.add_guest_with_home(1);
    for who in ["dom0", "d1"] {
        for kind in 0..30 {
            for payload in payloads {
                for transaction in [0, 77, u32::MAX] {
                    // An answer came, or this panics.
                    let _answer = world.call_raw(who, kind, transaction, payload);
                }
                let id = start(&mut world, who);
                let _answer = world.call_raw(who, kind, id, payload);
                assert_eq!(world.call(who, M::ResetWatches, 0, "|"), ok());
                world.peers.get_mut(who).unwrap().messages.clear();
                world.assert_counts();
            }
        }
    }
    // The one of the advisory: everything is dropped, and the next request is answered as ever.
    let id = start(&mut world, "d1");
    assert_eq!(world.call("d1", M::Write, id, "x|1"), ok());
    assert_eq!(world.call("d1", M::ResetWatches, id, "|"), ok());
    assert_eq!(world.call("d1", M::Read, id, "x|"), Err(Error::ENOENT));
    assert_eq!(world.call("d1", M::Read, 0, "x|"), Err(Error::ENOENT));
    assert_eq!(in_use(&mut world, 1, "transactions"), 0);
    world.assert_counts();
}

#[test]
fn a_guest_cannot_find_out_what_exists() {
    // Not an advisory: oxenstored tells ENOENT and EACCES apart everywhere.
    let mut world = world();
    world.add_guest(1);
    write(&mut world, "dom0", "/secret/node", "").unwrap();
    for (kind, rest) in [(M::Read, "|"), (M::Directory, "|"), (M::Rm, "|"), (M::Mkdir, "|")] {
        let [there, missing] = ["/secret/node", "/secret/none"]
            .map(|path| world.call("d1", kind, 0, &format!("{path}{rest}")));
        assert_eq!(there, missing, "{kind:?}");
    }
}

#[test]
fn events_of_a_death_reach_a_guest_that_is_dying_as_well_without_harm() {
    // Neighbours of XSA-233: both watch what the other owns.
    let mut world = world();
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    for (who, other) in [("d1", 2), ("d2", 1)] {
        let (me, home) = (3 - other, format!("/local/domain/{other}"));
        world.call("dom0", M::SetPerms, 0, &format!("{home}|n{other}|r{me}|")).unwrap();
        world.call(who, M::Watch, 0, &format!("{home}|t|")).unwrap();
    }
    world.machine.states.clear();
    world.raise_exception();
    assert!(world.machine.rings.is_empty());
    let names: Vec<_> = world.peers["d2"].messages.iter().collect();
    assert!(names.iter().all(|message| matches!(message, Message::Event { .. })));
    world.assert_counts();
}
