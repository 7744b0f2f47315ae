//! Batches: what they answer, when they change nothing, and that nobody else has them.

use proptest::prelude::*;
use xenstore::wire::batch::{
    BATCH_PAYLOAD_BYTES_MAX, ENTRIES_MAX, EntryKind as E, Refusal, Reply, Request, decode_reply,
};
use xenstore::wire::{self, MessageType as M, PAYLOAD_BYTES_MAX};
use xenstore::{Error, Quota};

use crate::world::{Message, World};

/// Results in order, or the entry that was refused.
type Outcome = Result<Vec<Result<String, Error>>, (usize, Error)>;

/// Entries as kind and payload, `|` for NUL. A `?` before the payload: its refusal is its own.
fn request(entries: &[(E, &str)]) -> Request {
    let mut request = Request::default();
    for (kind, payload) in entries {
        let (refusal, payload) = match payload.strip_prefix('?') {
            Some(rest) => (Refusal::OfItself, rest),
            None => (Refusal::OfAll, *payload),
        };
        request.push(*kind, refusal, payload.replace('|', "\0").as_bytes()).unwrap();
    }
    request
}

fn run_request(world: &mut World, transaction: u32, request: &Request) -> Outcome {
    let payload =
        world.call_raw("dom0", M::Batch.code(), transaction, request.payload()).expect("no ERROR");
    world.assert_counts();
    match decode_reply(&payload).expect("a reply") {
        Reply::Refused { entry, error } => Err((entry, error)),
        Reply::Done(results) => Ok(results
            .into_iter()
            .map(|result| {
                result.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap().replace('\0', "|"))
            })
            .collect()),
    }
}

fn run_in(world: &mut World, transaction: u32, entries: &[(E, &str)]) -> Outcome {
    run_request(world, transaction, &request(entries))
}

fn run(world: &mut World, entries: &[(E, &str)]) -> Outcome {
    run_in(world, 0, entries)
}

fn world() -> World {
    World::new(Quota::default())
}

fn read(world: &mut World, path: &str) -> Result<String, Error> {
    let value = world.call("dom0", M::Read, 0, &format!("{path}|"))?;
    Ok(String::from_utf8(value).unwrap())
}

#[test]
fn sockets_have_batches_and_rings_do_not_know_them() {
    let mut world = world();
    world.add_guest(1);
    assert_eq!(run(&mut world, &[]), Ok(vec![]));
    let control_domain = world.server.connect_control_domain();
    world.add_peer("kernel", control_domain);
    for peer in ["d1", "kernel"] {
        for transaction in [0, 7] {
            let reply = world.call_raw(peer, M::Batch.code(), transaction, request(&[]).payload());
            assert_eq!(reply, Err(Error::ENOSYS));
        }
    }
    // And no longer messages either.
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, M::Batch.code(), 1, 0, &[&[0; PAYLOAD_BYTES_MAX + 1]]);
    world.send_bytes("d1", &bytes);
    assert!(world.peers["d1"].is_closed);
}

#[test]
fn a_read_set_is_answered_entry_by_entry() {
    let mut world = world();
    world.call("dom0", M::Write, 0, "/a/b|value").unwrap();
    world.call("dom0", M::SetPerms, 0, "/a|n0|r32757|").unwrap();
    let reply = run(
        &mut world,
        &[
            (E::Read, "?/a/b|"),
            (E::Read, "?/nowhere|"),
            (E::Directory, "?/a|"),
            (E::GetPerms, "?/a|"),
            (E::GetPerms, "?@releaseDomain|"),
            (E::Read, "?//|"),
            (E::Read, "?no NUL"),
        ],
    );
    let expected = vec![
        Ok("value".to_owned()),
        Err(Error::ENOENT),
        Ok("b|".to_owned()),
        Ok("n0|r32757|".to_owned()),
        Ok("n0|r32757|".to_owned()),
        Err(Error::EINVAL),
        Err(Error::EINVAL),
    ];
    assert_eq!(reply, Ok(expected));
    assert_eq!(run(&mut world, &[(E::Read, "/a|"), (E::Read, "/no|")]), Err((1, Error::ENOENT)));
}

#[test]
fn a_write_set_takes_effect_as_one_with_its_events_before_the_reply() {
    let mut world = world();
    world.call("dom0", M::Write, 0, "/a/old|1").unwrap();
    world.call("dom0", M::Watch, 0, "/a|token|").unwrap();
    world.take_events("dom0");
    let batch = request(&[
        (E::Write, "/a/b|1"),
        (E::Mkdir, "/a/c|"),
        (E::SetPerms, "/a/c|n0|r32757|"),
        (E::Read, "/a/b|"),
        (E::Rm, "/a/old|"),
        (E::Read, "?/a/old|"),
        (E::Write, "/a/b|2"),
    ]);
    world.send("dom0", M::Batch.code(), 0, batch.payload());
    let messages: Vec<Message> = world.peers.get_mut("dom0").unwrap().messages.drain(..).collect();
    let Some((Message::Reply { result: Ok(payload), .. }, events)) = messages.split_last() else {
        panic!("the reply comes last: {messages:?}");
    };
    let paths: Vec<&str> = events
        .iter()
        .map(|event| match event {
            Message::Event { path, .. } => path.as_str(),
            Message::Reply { .. } => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(paths, ["/a/b", "/a/c", "/a/old"]);
    let ok = Ok(&b"OK\0"[..]);
    let expected = vec![ok, ok, ok, Ok(&b"1"[..]), ok, Err(Error::ENOENT), ok];
    assert_eq!(decode_reply(payload), Some(Reply::Done(expected)));
    assert_eq!(read(&mut world, "/a/b"), Ok("2".to_owned()));
    let perms = world.call("dom0", M::GetPerms, 0, "/a/c|");
    assert_eq!(perms, Ok(b"n0\0r32757\0".to_vec()));
}

#[test]
fn a_refused_entry_undoes_all_and_is_named() {
    let mut world = world();
    world.call("dom0", M::Write, 0, "/a|before").unwrap();
    world.call("dom0", M::Watch, 0, "/|token|").unwrap();
    world.take_events("dom0");
    let too_long = format!("/a|{}", "x".repeat(PAYLOAD_BYTES_MAX - 3));
    for (entry, error) in [
        ((E::SetPerms, "/nowhere|n0|"), Error::ENOENT),
        ((E::SetPerms, "/b|n9|"), Error::ENOENT),
        ((E::Rm, "/no/where|"), Error::ENOENT),
        ((E::Rm, "/|"), Error::EINVAL),
        ((E::Write, "@releaseDomain|"), Error::EINVAL),
        ((E::GuardPresent, "/nowhere|"), Error::ENOENT),
        ((E::GuardPresent, "/b|rest"), Error::EINVAL),
        ((E::GuardAbsent, "/b|"), Error::EEXIST),
        ((E::GuardAbsent, "//|"), Error::EINVAL),
        ((E::GuardValue, "/b|another"), Error::EAGAIN),
        ((E::GuardValue, "/nowhere|1"), Error::ENOENT),
        ((E::GuardChildren, "/b|999|"), Error::EAGAIN),
        ((E::GuardChildren, "/b|"), Error::EAGAIN),
        ((E::Directory, "/b|rest"), Error::EINVAL),
        ((E::Read, "/nowhere|"), Error::ENOENT),
    ] {
        let entries = [(E::Write, "/a|after"), (E::Write, "/b|1"), entry, (E::Write, "/c|1")];
        assert_eq!(run(&mut world, &entries), Err((2, error)), "{entry:?}");
        assert_eq!(read(&mut world, "/a"), Ok("before".to_owned()));
        assert_eq!(world.call("dom0", M::Directory, 0, "/|"), Ok(b"tool\0a\0".to_vec()));
        assert_eq!(world.take_events("dom0"), Vec::<String>::new());
    }
    let longest = too_long.replace('|', "\0");
    let mut batch = Request::default();
    batch.push(E::Write, Refusal::OfAll, longest.as_bytes()).unwrap();
    assert_eq!(run_request(&mut world, 0, &batch), Ok(vec![Ok("OK|".to_owned())]));
}

#[test]
fn guards_that_hold_let_the_rest_happen() {
    let mut world = world();
    world.call("dom0", M::Write, 0, "/d/n|1").unwrap();
    let part = world.call("dom0", M::DirectoryPart, 0, "/d|0|").unwrap();
    let part = String::from_utf8(part).unwrap();
    let generation = part.split('\0').next().unwrap();
    let entries = [
        (E::GuardPresent, "/d"),
        (E::GuardAbsent, "/e"),
        (E::GuardValue, "/d/n|1"),
        (E::GuardChildren, &format!("/d|{generation}")),
        (E::Write, "/d/m|2"),
    ];
    let entries = entries.map(|(kind, payload)| match kind {
        E::GuardValue | E::Write => (kind, payload.to_owned()),
        _ => (kind, format!("{payload}|")),
    });
    let entries: Vec<(E, &str)> = entries.iter().map(|(kind, text)| (*kind, &text[..])).collect();
    assert_eq!(run(&mut world, &entries), Ok(vec![Ok("OK|".to_owned()); 5]));
    // The write brought a child.
    assert_eq!(run(&mut world, &entries), Err((3, Error::EAGAIN)));
}

#[test]
fn a_batch_inside_a_transaction_belongs_to_it() {
    let mut world = world();
    let start = |world: &mut World| -> u32 {
        let id = world.call("dom0", M::TransactionStart, 0, "|").unwrap();
        String::from_utf8(id).unwrap().trim_end_matches('\0').parse().unwrap()
    };
    let end = |world: &mut World, id| world.call("dom0", M::TransactionEnd, id, "T|");
    let id = start(&mut world);
    let written = run_in(&mut world, id, &[(E::Write, "/a|1"), (E::Read, "/a|")]);
    assert_eq!(written, Ok(vec![Ok("OK|".to_owned()), Ok("1".to_owned())]));
    assert_eq!(read(&mut world, "/a"), Err(Error::ENOENT));
    assert_eq!(end(&mut world, id), Ok(b"OK\0".to_vec()));
    assert_eq!(read(&mut world, "/a"), Ok("1".to_owned()));
    // What a batch read is part of what the commit checks.
    let id = start(&mut world);
    run_in(&mut world, id, &[(E::Read, "?/b|"), (E::Write, "/c|1")]).unwrap();
    world.call("dom0", M::Write, 0, "/b|1").unwrap();
    assert_eq!(end(&mut world, id), Err(Error::EAGAIN));
    // A refused batch is a failed request.
    let id = start(&mut world);
    let refused = run_in(&mut world, id, &[(E::Write, "/c|1"), (E::GuardAbsent, "/a|")]);
    assert_eq!(refused, Err((1, Error::EEXIST)));
    assert_eq!(end(&mut world, id), Err(Error::ENOMEM));
    assert_eq!(read(&mut world, "/c"), Err(Error::ENOENT));
    let payload = request(&[]);
    let unknown = world.call_raw("dom0", M::Batch.code(), 99, payload.payload());
    assert_eq!(unknown, Err(Error::ENOENT));
}

#[test]
fn a_reply_is_cut_between_entries_or_refused() {
    let mut world = world();
    let value = "v".repeat(PAYLOAD_BYTES_MAX - 3);
    world.call("dom0", M::Write, 0, &format!("/a|{value}")).unwrap();
    let reads = vec![(E::Read, "/a|"); 40];
    let results = run(&mut world, &reads).unwrap();
    let fit = (BATCH_PAYLOAD_BYTES_MAX - 12) / (8 + value.len());
    assert_eq!(results, vec![Ok(value); fit]);
    let mut changes = vec![(E::Write, "/b|1")];
    changes.extend(reads);
    let (entry, error) = run(&mut world, &changes).unwrap_err();
    assert_eq!((entry, error), (fit + 1, Error::E2BIG));
    assert_eq!(read(&mut world, "/b"), Err(Error::ENOENT));
}

#[test]
fn a_listing_in_a_batch_may_be_longer_than_a_message() {
    let mut world = world();
    for i in 0..1000 {
        world.call("dom0", M::Mkdir, 0, &format!("/d/long-name-{i:05}|")).unwrap();
    }
    let results = run(&mut world, &[(E::Directory, "/d|")]).unwrap();
    assert_eq!(results[0].as_ref().map(|text| text.len()), Ok(16 * 1000));
    for i in 1000..3845 {
        world.call("dom0", M::Mkdir, 0, &format!("/d/long-name-{i:05}|")).unwrap();
    }
    assert_eq!(run(&mut world, &[(E::Directory, "?/d|")]), Ok(vec![Err(Error::E2BIG)]));
}

#[test]
fn what_is_no_batch_is_refused_with_an_error() {
    let mut world = world();
    let good = request(&[(E::Read, "/|")]);
    let cut = &good.payload()[..good.payload().len() - 1];
    for payload in [&b""[..], b"\0", cut] {
        assert_eq!(world.call_raw("dom0", M::Batch.code(), 0, payload), Err(Error::EINVAL));
    }
    let mut many = good.payload().to_vec();
    let count = u32::try_from(ENTRIES_MAX + 1).unwrap();
    many[4..8].copy_from_slice(&count.to_ne_bytes());
    assert_eq!(world.call_raw("dom0", M::Batch.code(), 0, &many), Err(Error::E2BIG));
}

const PATHS: &[&str] = &["/a", "/a/b", "/a/b/c", "/d", "/d/e", "/", "/bad//", "/tool"];

fn entry() -> impl Strategy<Value = (E, String)> {
    let kind = prop::sample::select(E::ALL);
    (kind, prop::sample::select(PATHS), any::<bool>(), 0u8..3).prop_map(
        |(kind, path, optional, number)| {
            let rest = match kind {
                E::Write | E::GuardValue => format!("{number}"),
                E::SetPerms => format!("n{number}|"),
                E::DirectoryPart => "0|".to_owned(),
                E::GuardChildren => format!("{number}|"),
                _ => String::new(),
            };
            (kind, format!("{}{path}|{rest}", if optional { "?" } else { "" }))
        },
    )
}

/// The entries one by one in a transaction, and judged as a batch judges them.
fn run_singly(world: &mut World, entries: &[(E, String)]) -> Outcome {
    let id = world.call("dom0", M::TransactionStart, 0, "|").unwrap();
    let id: u32 = String::from_utf8(id).unwrap().trim_end_matches('\0').parse().unwrap();
    let mut results = Vec::new();
    let mut refused = None;
    for (index, (kind, payload)) in entries.iter().enumerate() {
        let text = payload.trim_start_matches('?');
        let path = format!("{}|", text.split('|').next().unwrap());
        let mut call = |kind, payload: &str| world.call("dom0", kind, id, payload);
        let same = |outcome: bool| if outcome { Ok(b"OK\0".to_vec()) } else { Err(Error::EAGAIN) };
        let result = match kind {
            E::Directory => call(M::Directory, text),
            E::Read => call(M::Read, text),
            E::GetPerms => call(M::GetPerms, text),
            E::Write => call(M::Write, text),
            E::Mkdir => call(M::Mkdir, text),
            E::Rm => call(M::Rm, text),
            E::SetPerms => call(M::SetPerms, text),
            E::DirectoryPart => call(M::DirectoryPart, text),
            E::GuardPresent => call(M::Read, text).map(|_| b"OK\0".to_vec()),
            E::GuardAbsent => match call(M::Read, text) {
                Ok(_) => Err(Error::EEXIST),
                Err(Error::ENOENT) => Ok(b"OK\0".to_vec()),
                Err(error) => Err(error),
            },
            E::GuardValue => call(M::Read, &path)
                .and_then(|value| same(value == text.split('|').nth(1).unwrap().as_bytes())),
            E::GuardChildren => call(M::DirectoryPart, &format!("{path}0|")).and_then(|part| {
                same(part.split(|b| *b == 0).next() == text.split('|').nth(1).map(str::as_bytes))
            }),
        };
        match result {
            Ok(bytes) => results.push(Ok(String::from_utf8(bytes).unwrap().replace('\0', "|"))),
            Err(error) if payload.starts_with('?') => results.push(Err(error)),
            Err(error) => {
                refused = Some((index, error));
                break;
            }
        }
    }
    let verdict = if refused.is_some() { "F|" } else { "T|" };
    world.call("dom0", M::TransactionEnd, id, verdict).unwrap();
    refused.map_or(Ok(results), Err)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_is_a_transaction_of_the_same_requests(
        batches in prop::collection::vec(prop::collection::vec(entry(), 0..8), 1..12)
    ) {
        let mut worlds = [world(), world()];
        for world in &mut worlds {
            world.connect("other");
            world.create_domain(1);
            world.call("other", M::Watch, 0, "/|token|").unwrap();
        }
        let [batched, single] = &mut worlds;
        for batch in &batches {
            let entries: Vec<(E, &str)> = batch.iter().map(|(kind, text)| (*kind, &text[..])).collect();
            prop_assert_eq!(run(batched, &entries), run_singly(single, batch));
            prop_assert_eq!(batched.take_events("other"), single.take_events("other"));
        }
    }

    #[test]
    fn no_bytes_of_a_batch_upset_the_store(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..20),
        flips in prop::collection::vec((0usize..200, any::<u8>()), 0..6),
    ) {
        let mut world = world();
        for payload in &payloads {
            let _refused = world.call_raw("dom0", M::Batch.code(), 0, payload);
            let mut batch = Request::default();
            batch.push(E::Write, Refusal::OfItself, payload).unwrap();
            batch.push(E::Rm, Refusal::OfAll, b"/a\0").unwrap();
            batch.push(E::DirectoryPart, Refusal::OfItself, payload).unwrap();
            let mut bytes = batch.payload().to_vec();
            for (at, value) in &flips {
                let at = at % bytes.len();
                bytes[at] ^= value;
            }
            if let Ok(reply) = world.call_raw("dom0", M::Batch.code(), 0, &bytes) {
                prop_assert!(decode_reply(&reply).is_some());
            }
            let _whatever = decode_reply(payload);
            world.assert_counts();
        }
    }
}
