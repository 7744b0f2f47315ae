//! What fuzzers found: streams that no daemon writes, and clients that do not wait.

use std::time::Duration;

use xen::DomId;
use xenstore::server::{DomainState, Progress, Replay, Restore, Restored, Server};
use xenstore::state::{
    Connection, Form, FullPermissions, Layer, Lives, LivesOf, Node, Peer, Permissions, Place,
    Record, StateError, Target, TreeNode, TreeNodeContent, encode_preamble,
};
use xenstore::wire::{self, MessageType};
use xenstore::{Access, Permission, Quota};

use crate::world::{Machine, World};

fn restore(records: &[Record<'_>]) -> Result<Restored, StateError> {
    let mut bytes = Vec::new();
    encode_preamble(&mut bytes, Form::Own);
    records.iter().chain([&Record::End]).for_each(|record| record.encode(&mut bytes));
    let mut restore = Restore::new(Quota::default());
    restore.feed(&bytes)?;
    restore.finish(Duration::ZERO)
}

fn lives() -> Record<'static> {
    Record::Lives(Lives { last_life: 20, generation: 1, last_connection: 1, reserve: 0 })
}

fn lives_of(domid: u16, life: u64) -> Record<'static> {
    let (unique_id, target) = (None, None);
    Record::LivesOf(LivesOf {
        domid: DomId(domid),
        life,
        unique_id,
        shutdown: false,
        target,
        credit: 0,
    })
}

fn owned_by(domid: u16) -> Vec<u8> {
    let mut list = Vec::new();
    Permissions::push(&mut list, Permission::new(Access::None, DomId(domid)), false);
    list
}

fn node<'a>(path: &'a str, list: &'a [u8]) -> Record<'a> {
    Record::Node(Node {
        connection: 0,
        transaction: 0,
        access: 0,
        permissions: Permissions::new(list),
        path: path.as_bytes(),
        value: b"",
    })
}

fn owned_by_life(domid: u16, life: u64) -> Vec<u8> {
    let mut list = Vec::new();
    FullPermissions::push(&mut list, Permission::new(Access::None, DomId(domid)), Some(life));
    list
}

fn changed<'a>(path: &'a str, list: &'a [u8]) -> Record<'a> {
    let content = TreeNodeContent {
        place: Place { children: None, sequence: 0 },
        permissions: FullPermissions::new(list),
        value: b"",
    };
    Record::TreeNode(TreeNode {
        connection: 0,
        transaction: 0,
        layer: Layer::Store,
        path: path.as_bytes(),
        content: Some(content),
    })
}

fn ask(server: &mut Server, kind: MessageType, payload: &[u8]) -> Vec<u8> {
    let id = server.connect_socket();
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, kind.code(), 1, 0, &[payload]);
    server.receive(&mut Machine::default(), id, &bytes).unwrap();
    let reply = server.output(id)[16..].to_vec();
    server.disconnect(id);
    reply
}

#[test]
fn a_domain_that_was_born_again_during_an_update_owns_what_it_owns() {
    // The successor has read the nodes of domain 1; then it dies, and another one gets its number
    // and its home before the rest is handed over.
    let (dom0, old, new) = (owned_by(0), owned_by(1), owned_by_life(1, 9));
    let mut server = restore(&[
        lives(),
        lives_of(1, 5),
        node("/", &dom0),
        node("/home", &old),
        node("/home/a", &old),
        lives(),
        lives_of(1, 9),
        changed("/home", &new),
        changed("/home/a", &new),
    ])
    .unwrap()
    .server;
    assert_eq!(server.check(), Ok(()));
    assert_eq!(ask(&mut server, MessageType::Read, b"/home/a\0"), b"");
    server.handle_domain_states(&mut Machine::default(), &[]);
    assert_eq!(server.check(), Ok(()));
    assert_eq!(ask(&mut server, MessageType::Read, b"/home/a\0"), b"ENOENT\0");
    assert_eq!(ask(&mut server, MessageType::Directory, b"/\0"), b"");
}

#[test]
fn a_life_that_nobody_lives_gives_no_right_after_a_restart() {
    let (dom0, nobodys) = (owned_by(0), owned_by_life(7, 3));
    let server = restore(&[lives(), node("/", &dom0), changed("/a", &nobodys)]).unwrap().server;
    let mut records = Vec::new();
    let mut checkpoint = server.checkpoint();
    while checkpoint.write(&mut records, 4096) == Progress::More {}
    let mut replay = Replay::new();
    assert_eq!(replay.apply(&records), Ok(()));
    assert_eq!(replay.finish().check(), Ok(()));
}

#[test]
fn a_root_that_falls_to_dom0_is_recorded_without_rights_of_the_dead() {
    let mut world = World::new(Quota::default());
    world.add_guest_with_home(1);
    world.add_guest_with_home(2);
    let mut records = Vec::new();
    world.server.start_recording();
    let mut checkpoint = world.server.checkpoint();
    while checkpoint.write(&mut records, 4096) == Progress::More {}
    world.call("dom0", MessageType::SetPerms, 0, "/|b1|b1|b2|").unwrap();
    world.destroy_domain(1);
    assert_eq!(world.call("dom0", MessageType::GetPerms, 0, "/|").unwrap(), b"b0\0b2\0");
    records.extend(world.server.recorded());
    let mut replay = Replay::new();
    assert_eq!(replay.apply(&records), Ok(()));
    let mut server = replay.finish();
    assert_eq!(server.check(), Ok(()));
    assert_eq!(ask(&mut server, MessageType::GetPerms, b"/\0"), b"b0\0b2\0");
}

#[test]
fn every_store_has_the_special_nodes_whatever_a_stream_tells() {
    let mut server = restore(&[lives(), node("/", &owned_by(0))]).unwrap().server;
    for path in [&b"@introduceDomain\0"[..], b"@releaseDomain\0"] {
        assert!(ask(&mut server, MessageType::GetPerms, path).starts_with(b"n0\0"));
    }
}

#[test]
fn a_store_that_can_be_taken_over_can_also_be_checkpointed() {
    let generation = (1 << 62) - 1;
    let lives = Lives { last_life: 20, generation, last_connection: 1, reserve: 0 };
    let mut server = restore(&[Record::Lives(lives)]).unwrap().server;
    // Each checkpoint skips generations, but not beyond what a replay takes.
    for _ in 0..3 {
        let mut records = Vec::new();
        let mut checkpoint = server.checkpoint();
        while checkpoint.write(&mut records, 4096) == Progress::More {}
        let mut replay = Replay::new();
        assert_eq!(replay.apply(&records), Ok(()));
        server = replay.finish();
    }
}

#[test]
fn lives_are_told_before_connections_and_only_of_domains() {
    let peer = Peer::Ring { domid: DomId(1), target: Target::None, port: 1 };
    let (input, output) = (&[][..], &[][..]);
    let ring = Connection { id: 1, peer, input, partial_bytes: 0, output, unique_id: None };
    let ring = Record::Connection(ring);
    assert!(restore(&[lives(), lives_of(1, 5), ring.clone()]).is_ok());
    assert!(restore(&[lives(), ring.clone(), lives()]).is_err());
    assert!(restore(&[lives(), ring, lives_of(1, 5)]).is_err());
    assert!(restore(&[lives(), lives_of(0x7ff5, 5)]).is_err());
}

#[test]
fn a_client_that_waits_and_sends_on_cannot_fill_the_memory() {
    let mut machine = Machine { puts_updates_off: true, ..Machine::default() };
    let mut server = Server::new(Quota::default());
    let id = server.connect_socket();
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, MessageType::Control.code(), 1, 0, &[b"live-update\0-s\0"]);
    server.receive(&mut machine, id, &bytes).unwrap();
    bytes.clear();
    wire::encode(&mut bytes, MessageType::Write.code(), 2, 0, &[b"/a\0", &[b'v'; 4000]]);
    let refused_at = (1..100).find(|_| server.receive(&mut machine, id, &bytes).is_err());
    // What fits into the record of a state stream is kept.
    assert_eq!(refused_at, Some(16));
    server.save(Form::Own, &xenstore::server::Endpoints::default()).fill_all(&mut Vec::new());
}

#[test]
fn whoever_waits_is_heard_again_after_the_answer() {
    let mut world = World::new(Quota::default());
    world.machine.puts_updates_off = true;
    let id = world.connect("operator");
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, MessageType::Control.code(), 1, 0, &[b"live-update\0-s\0"]);
    wire::encode(&mut bytes, MessageType::Write.code(), 2, 0, &[b"/a\0value"]);
    world.server.receive(&mut world.machine, id, &bytes).unwrap();
    assert!(world.server.output(id).is_empty());
    world.server.answer_held(id, "OK");
    world.server.receive(&mut world.machine, id, &[]).unwrap();
    assert_eq!(world.call("dom0", MessageType::Read, 0, "/a|"), Ok(b"value".to_vec()));
    world.server.handle_domain_states(&mut Machine::default(), &[] as &[DomainState]);
}
