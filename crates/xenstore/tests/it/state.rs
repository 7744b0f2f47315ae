//! State streams byte for byte: the layouts of Xen's daemons, and what is made of their streams.

use std::time::Duration;

use expect_test::expect;
use proptest::prelude::*;
use xen::{DomId, EvtchnPort};
use xenstore::server::{ConnId, Endpoint, Endpoints, Restore, RestoredPeer, Service};
use xenstore::state::{
    Connection, DomainQuota, Form, Frames, Global, GlobalQuota, Node, Peer, Permissions, Record,
    StateError, Target, Transaction, Watch, encode_preamble,
};
use xenstore::wire::{self, MessageType};
use xenstore::{Access, Permission, Quota};

use crate::world::{Machine, World};

fn hex(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| {
        let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String =
            bytes.iter().map(|b| if b.is_ascii_graphic() { *b as char } else { '.' }).collect();
        format!("{:24}{text}\n", pairs.join(" "))
    };
    bytes.chunks(8).map(line).collect()
}

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out);
    assert_eq!(out.len() % 8, 0);
    out
}

fn stream(form: Form, records: &[Record<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_preamble(&mut out, form);
    records.iter().for_each(|record| record.encode(&mut out));
    out
}

fn list(entries: &[(Access, u16, bool)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (access, domid, is_stale) in entries {
        Permissions::push(&mut list, Permission::new(*access, DomId(*domid)), *is_stale);
    }
    list
}

fn node<'a>(path: &'a str, value: &'a [u8], list: &'a [u8]) -> Record<'a> {
    Record::Node(Node {
        connection: 0,
        transaction: 0,
        access: 0,
        permissions: Permissions::new(list),
        path: path.as_bytes(),
        value,
    })
}

fn socket<'a>(id: u32, input: &'a [u8], output: &'a [u8], partial_bytes: u16) -> Record<'a> {
    let peer = Peer::Socket { descriptor: 9 };
    Record::Connection(Connection { id, peer, input, partial_bytes, output, unique_id: None })
}

fn ring(id: u32, domid: u16) -> Record<'static> {
    let peer = Peer::Ring { domid: DomId(domid), target: Target::None, port: 1000 };
    let (input, output) = (&[][..], &[][..]);
    let unique_id = Some(0x1122);
    Record::Connection(Connection { id, peer, input, partial_bytes: 0, output, unique_id })
}

#[test]
#[cfg(target_endian = "little")]
fn records_lie_as_xen_s_daemons_read_them() {
    let permissions = list(&[(Access::None, 0, false), (Access::Read, 3, true)]);
    let records = [
        Record::Global(Global { listener: 7, event_channels: -1 }),
        socket(1, b"in", b"output", 2),
        ring(2, 3),
        Record::Watch(Watch { connection: 2, path: b"device", token: b"tok", depth: None }),
        Record::Watch(Watch { connection: 2, path: b"/a", token: b"t", depth: Some(1) }),
        Record::Transaction(Transaction { connection: 2, transaction: 5 }),
        node("/a", b"value", &permissions),
        Record::GlobalQuota(GlobalQuota { of_domains: vec![("nodes", 10)], of_all: vec![] }),
        Record::Domain(DomainQuota { domid: DomId(3), features: 3, quota: vec![("nodes", 7)] }),
        Record::End,
    ];
    let bytes = stream(Form::Version2, &records);
    expect![[r#"
        78 65 6e 73 74 6f 72 65 xenstore
        00 00 00 02 00 00 00 00 ........
        01 00 00 00 08 00 00 00 ........
        07 00 00 00 ff ff ff ff ........
        02 00 00 00 20 00 00 00 ........
        01 00 00 00 01 00 00 00 ........
        09 00 00 00 00 00 00 00 ........
        02 00 02 00 06 00 00 00 ........
        69 6e 6f 75 74 70 75 74 inoutput
        02 00 00 00 20 00 00 00 ........
        02 00 00 00 00 00 01 00 ........
        03 00 f4 7f e8 03 00 00 ........
        00 00 00 00 00 00 00 00 ........
        22 11 00 00 00 00 00 00 ".......
        03 00 00 00 18 00 00 00 ........
        02 00 00 00 07 00 04 00 ........
        64 65 76 69 63 65 00 74 device.t
        6f 6b 00 00 00 00 00 00 ok......
        08 00 00 00 18 00 00 00 ........
        02 00 00 00 03 00 02 00 ........
        01 00 00 00 2f 61 00 74 ..../a.t
        00 00 00 00 00 00 00 00 ........
        04 00 00 00 08 00 00 00 ........
        02 00 00 00 05 00 00 00 ........
        05 00 00 00 20 00 00 00 ........
        00 00 00 00 00 00 00 00 ........
        03 00 05 00 00 00 02 00 ........
        6e 00 00 00 72 01 03 00 n...r...
        2f 61 00 76 61 6c 75 65 /a.value
        06 00 00 00 10 00 00 00 ........
        01 00 00 00 0a 00 00 00 ........
        6e 6f 64 65 73 00 00 00 nodes...
        07 00 00 00 18 00 00 00 ........
        03 00 01 00 03 00 00 00 ........
        07 00 00 00 6e 6f 64 65 ....node
        73 00 00 00 00 00 00 00 s.......
        00 00 00 00 00 00 00 00 ........
    "#]]
    .assert_eq(&hex(&bytes));

    let mut frames = Frames::new();
    frames.push(&bytes);
    for record in &records {
        let (kind, body) = frames.next_record().unwrap().unwrap();
        assert_eq!(Record::decode(kind, body).as_ref(), Ok(record));
    }
    assert_eq!(frames.next_record(), Ok(None));
}

#[test]
fn a_watch_in_the_form_of_xen_s_own_writer_is_read_to_its_true_end() {
    for (path, token) in [("/a", ""), ("/", "t"), ("/a/b", "12345"), ("dev", "12"), ("@x", "123")] {
        let mut out = Vec::new();
        encode_preamble(&mut out, Form::Version2);
        let strings = format!("{path}\0{token}\0");
        // The header counts depth and padding, which are not written.
        let announced = (12 + strings.len()).next_multiple_of(8);
        for word in [8, u32::try_from(announced).unwrap(), 4] {
            out.extend_from_slice(&word.to_ne_bytes());
        }
        for length in [path.len() + 1, token.len() + 1] {
            out.extend_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
        }
        out.extend_from_slice(strings.as_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(encoded(&Record::End));
        let mut frames = Frames::new();
        frames.push(&out);
        let (kind, body) = frames.next_record().unwrap().unwrap();
        let (path, token) = (path.as_bytes(), token.as_bytes());
        let watch = Record::Watch(Watch { connection: 4, path, token, depth: None });
        assert_eq!(Record::decode(kind, body), Ok(watch));
        let (kind, body) = frames.next_record().unwrap().unwrap();
        assert_eq!(Record::decode(kind, body), Ok(Record::End));
    }
}

#[test]
fn a_store_of_another_daemon_goes_on() {
    let dom0 = list(&[(Access::None, 0, false)]);
    let shared = list(&[
        (Access::None, 1, false),
        (Access::Read, 2, false),
        (Access::Write, 5, true),
        (Access::Read, 0x7ff5, false),
    ]);
    let mut request = Vec::new();
    wire::encode(&mut request, MessageType::Read.code(), 3, 0, &[b"/b/a\0"]);
    let (begun, rest) = request.split_at(18);
    let mut waiting = b"rest".to_vec();
    wire::encode(&mut waiting, MessageType::Control.code(), 8, 0, &[b"OK\0"]);
    let bytes = stream(
        Form::Version1,
        &[
            Record::Global(Global { listener: 7, event_channels: 8 }),
            socket(1, begun, &waiting, 4),
            ring(2, 1),
            Record::Watch(Watch { connection: 2, path: b"x", token: b"t", depth: None }),
            node("@releaseDomain", b"", &dom0),
            node("/", b"", &dom0),
            node("/z", b"", &dom0),
            node("/b", b"\0v", &shared),
            node("/b/a", b"value", &shared),
            Record::End,
        ],
    );
    let mut restore = Restore::new(Quota::default());
    bytes.chunks(5).for_each(|piece| restore.feed(piece).unwrap());
    let restored = restore.finish(Duration::ZERO).unwrap();
    assert_eq!((restored.listener, restored.event_channels), (Some(7), Some(8)));
    let ring =
        RestoredPeer::Ring { domid: DomId(1), port: EvtchnPort(1000), service: Service::Served };
    let peers: Vec<_> = restored.peers.iter().map(|(id, peer)| (id.number(), *peer)).collect();
    assert_eq!(peers, [(1, RestoredPeer::Socket { descriptor: 9 }), (2, ring)]);

    let mut world = World::new(Quota::default());
    world.peers.clear();
    world.server = restored.server;
    world.create_domain(1);
    let id = ConnId::of_number(1);
    world.server.receive(&mut world.machine, id, rest).unwrap();
    let output = world.server.output(id).to_vec();
    let mut expected = waiting;
    wire::encode(&mut expected, MessageType::Read.code(), 3, 0, &[b"value"]);
    assert_eq!(output, expected);
    world.server.consume(id, output.len());
    world.add_peer("dom0", id);
    world.add_peer("d1", ConnId::of_number(2));
    let mut call = |kind, payload| world.call("dom0", kind, 0, payload).unwrap();
    assert_eq!(call(MessageType::GetPerms, "/b|"), b"n1\0r2\0w5\0r32757\0");
    assert_eq!(call(MessageType::GetPerms, "@releaseDomain|"), b"n0\0");
    assert_eq!(call(MessageType::Directory, "/|"), b"z\0b\0");
    assert_eq!(call(MessageType::Write, "/local/domain/1/x/y|1"), b"OK\0");
    assert_eq!(world.take_events("d1"), Vec::<String>::new());
    let mut call = |kind, payload| world.call("dom0", kind, 0, payload).unwrap();
    assert_eq!(call(MessageType::SetPerms, "/local/domain/1/x/y|r0|"), b"OK\0");
    assert_eq!(world.take_events("d1"), ["x/y:t"]);
    world.assert_counts();
}

#[test]
fn what_another_daemon_is_given_is_what_it_knows() {
    let mut world = World::new(Quota::default());
    world.add_guest(1);
    for (kind, payload) in [
        (MessageType::Write, "/a/b|value"),
        (MessageType::SetPerms, "/a/b|n1|r2|"),
        (MessageType::Watch, "/a|deep|1|"),
    ] {
        world.call("dom0", kind, 0, payload).unwrap();
    }
    let ids = [world.peers["dom0"].id, world.peers["d1"].id];
    let connections = [
        (ids[0], Endpoint::Socket { descriptor: 12 }),
        (ids[1], Endpoint::Ring { port: EvtchnPort(44) }),
    ];
    let endpoints =
        Endpoints { listener: Some(4), event_channels: None, connections: connections.into() };
    let kinds = |form| {
        let mut bytes = Vec::new();
        world.server.save(form, &endpoints).fill_all(&mut bytes);
        let mut frames = Frames::new();
        frames.push(&bytes);
        let mut kinds = Vec::new();
        while let Some((kind, _)) = frames.next_record().unwrap() {
            kinds.push(kind);
        }
        (bytes[11], kinds)
    };
    let (version, first) = kinds(Form::Version1);
    assert_eq!((version, &first[..]), (1, &[1, 2, 2, 3, 5, 5, 5, 5, 5, 5, 5, 0][..]));
    let (version, second) = kinds(Form::Version2);
    assert_eq!((version, &second[..]), (2, &[1, 6, 2, 2, 7, 3, 5, 5, 5, 5, 5, 5, 5, 0][..]));
}

#[test]
fn a_stream_that_cannot_be_is_refused_with_its_place() {
    let dom0 = list(&[(Access::None, 0, false)]);
    let check = |records: &[Record<'_>]| {
        let mut restore = Restore::new(Quota::default());
        restore
            .feed(&stream(Form::Version1, records))
            .and_then(|()| restore.finish(Duration::ZERO).map(drop))
    };
    let twice = check(&[socket(1, b"", b"", 0), socket(1, b"", b"", 0)]).unwrap_err();
    assert_eq!(twice.what, "two connections have the number 1, or it is 0");
    assert_eq!(twice.offset, 16 + 32);
    let orphan = check(&[node("/a/b", b"", &dom0)]).unwrap_err();
    assert_eq!(orphan.what, "/a/b has no parent");
    let nobody = Watch { connection: 7, path: b"/", token: b"", depth: None };
    assert_eq!(check(&[Record::Watch(nobody)]).unwrap_err().what, "a watch of nobody");
    assert_eq!(check(&[]).unwrap_err().what, "it ends too early");
    let mut restore = Restore::new(Quota::default());
    let other = StateError { what: "it does not begin with 'xenstore'".into(), offset: 0 };
    assert_eq!(restore.feed(b"$xenstored-dump-format\n"), Err(other));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_upset_the_reader(records in prop::collection::vec(
        (prop_oneof![0u32..10, 0x5859_0000u32..0x5859_0009], prop::collection::vec(any::<u8>(), 0..60)),
        0..12,
    )) {
        let mut bytes = stream(Form::Own, &[]);
        for (kind, body) in records {
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_ne_bytes());
            bytes.extend_from_slice(&body);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let mut restore = Restore::new(Quota::default());
        if restore.feed(&bytes).is_ok() && let Ok(restored) = restore.finish(Duration::ZERO) {
            prop_assert_eq!(restored.server.check(), Ok(()));
            let mut server = restored.server;
            for (id, _) in restored.peers {
                let _broken = server.receive(&mut Machine::default(), id, &[]);
            }
        }
    }
}

#[test]
fn who_has_no_transaction_waits_with_the_next_one_while_they_are_held() {
    let mut world = World::new(Quota::default());
    let ids = ["busy", "idle"].map(|name| world.connect(name));
    world.add_guest_with_home(1);
    let (start, end) = (MessageType::TransactionStart, MessageType::TransactionEnd);
    let ok = Ok(b"OK\0".to_vec());
    assert_eq!(world.call("busy", start, 0, "|"), Ok(b"1\0".to_vec()));

    world.server.hold_transactions();
    // One that is open goes on, and its client may need another one to end it.
    assert_eq!(world.call("busy", start, 0, "|"), Ok(b"2\0".to_vec()));
    assert_eq!(world.call("busy", end, 2, "F|"), ok);
    let waiting = world.send("idle", start.code(), 0, b"\0");
    assert!(world.server.waits_with_transaction(ids[1]));
    assert_eq!(world.call("dom0", MessageType::Write, 0, "/a|"), ok);
    assert_eq!(world.server.open_transactions(), 1);
    assert_eq!(world.call("busy", end, 1, "T|"), ok);
    let again = world.send("busy", start.code(), 0, b"\0");
    // Who has asked for more already does not wait: requests stay in their order.
    let mut bytes = Vec::new();
    xenstore::wire::encode(&mut bytes, start.code(), 700, 0, &[b"\0"]);
    xenstore::wire::encode(&mut bytes, MessageType::GetDomainPath.code(), 701, 0, &[b"1\0"]);
    world.send_bytes("d1", &bytes);
    world.server.execute_waiting(&mut world.machine);
    assert_eq!(world.server.open_transactions(), 1);
    let request_ids = |world: &World, name: &str| {
        let ids = world.peers[name].messages.iter().map(|message| match message {
            crate::world::Message::Reply { request_id, .. } => *request_id,
            crate::world::Message::Event { .. } => 0,
        });
        ids.collect::<Vec<u32>>()
    };
    world.pump();
    assert_eq!(request_ids(&world, "d1"), [700, 701]);

    assert_eq!(world.server.input_bytes_max(), xenstore::wire::HEADER_BYTES + 1);
    assert_eq!(world.server.resume_transactions(), ids);
    for name in ["busy", "idle"] {
        world.send_bytes(name, &[]);
    }
    assert_eq!(request_ids(&world, "idle"), [waiting]);
    assert_eq!(request_ids(&world, "busy"), [again]);
    assert_eq!(world.server.open_transactions(), 3);
    world.assert_counts();
}

#[test]
fn whole_requests_of_a_guest_that_may_not_be_served_are_executed_before_it_is_handed_over() {
    let quota = Quota { outstanding: 2, ..Quota::default() };
    let mut world = World::new(quota);
    world.add_guest_with_home(1);
    let id = world.peers["d1"].id;
    world.deaf.insert(id);
    for value in 0..5 {
        world.send("d1", MessageType::Write.code(), 0, format!("data\0{value}").as_bytes());
    }
    let read =
        |world: &mut World| world.call("dom0", MessageType::Read, 0, "/local/domain/1/data|");
    assert_eq!(read(&mut world), Ok(b"1".to_vec()));
    assert!(world.server.input_bytes_max() > 0);
    world.server.execute_waiting(&mut world.machine);
    assert_eq!(read(&mut world), Ok(b"4".to_vec()));
    assert_eq!(world.server.input_bytes_max(), 0);
    // The limit is what it was.
    assert!(!world.server.accepts_requests(id));
}
