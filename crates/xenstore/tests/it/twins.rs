//! A store that was saved and restored answers as its twin that was not.
//!
//! Random scripts of sockets and guests, with messages that arrive in pieces and replies that are read
//! in pieces, are run on two stores. At one point of the script one of them becomes a state stream and
//! a store again; from then on every byte to every client must still be the same, and so must what a
//! last save says.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use xen::{DomId, EvtchnPort};
use xenstore::Quota;
use xenstore::server::{
    ConnId, DomainState, Endpoint, Endpoints, Progress, Restore, Restored, RestoredPeer, Server,
};
use xenstore::state::{Form, Frames, Record};
use xenstore::wire::{self, MessageType as M};

use crate::world::Machine;

const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/d",
    "/local/domain/1",
    "/local/domain/1/x",
    "/local/domain/2/x/y",
    "/local/domain/2/x",
    "rel",
    "rel/ative",
    "@introduceDomain",
    "@releaseDomain",
    "@releaseDomain/1",
];

#[derive(Clone, Debug)]
enum Step {
    /// A request is written; `percent` of what is on its way arrives.
    Request {
        who: usize,
        kind: u32,
        transaction: u32,
        payload: Vec<u8>,
        percent: usize,
    },
    Read {
        who: usize,
        bytes: usize,
    },
    Begin {
        domid: u16,
    },
    Shutdown {
        domid: u16,
    },
    Destroy {
        domid: u16,
    },
}

fn quota() -> Quota {
    Quota {
        nodes: 12,
        watches: 4,
        transactions: 2,
        outstanding: 4,
        transaction_nodes: 9,
        memory_bytes: 4000,
        ..Quota::default()
    }
}

fn payload() -> impl Strategy<Value = (M, Vec<u8>)> {
    let path = || prop::sample::select(PATHS).prop_map(str::to_owned);
    let guest = || 1u16..4;
    let text = |text: String| text.replace('|', "\0").into_bytes();
    let permission = (prop::sample::select(&["n", "r", "w", "b"][..]), 0u16..5)
        .prop_map(|(letter, domid)| format!("{letter}{domid}|"));
    let permissions = prop::collection::vec(permission, 1..4).prop_map(|list| list.concat());
    let token = prop::sample::select(&["t", "u", ""][..]);
    let depth = prop::sample::select(&["", "", "0|", "1|"][..]);
    prop_oneof![
        8 => path().prop_map(move |p| (M::Read, text(format!("{p}|")))),
        4 => path().prop_map(move |p| (M::Directory, text(format!("{p}|")))),
        2 => path().prop_map(move |p| (M::DirectoryPart, text(format!("{p}|0|")))),
        4 => path().prop_map(move |p| (M::GetPerms, text(format!("{p}|")))),
        16 => (path(), "[a-z]{0,40}").prop_map(move |(p, v)| (M::Write, text(format!("{p}|{v}")))),
        4 => path().prop_map(move |p| (M::Mkdir, text(format!("{p}|")))),
        6 => path().prop_map(move |p| (M::Rm, text(format!("{p}|")))),
        6 => (path(), permissions).prop_map(move |(p, l)| (M::SetPerms, text(format!("{p}|{l}")))),
        8 => Just((M::TransactionStart, b"\0".to_vec())),
        6 => Just((M::TransactionEnd, b"T\0".to_vec())),
        1 => Just((M::TransactionEnd, b"F\0".to_vec())),
        8 => (path(), token.clone(), depth)
            .prop_map(move |(p, t, d)| (M::Watch, text(format!("{p}|{t}|{d}")))),
        2 => (path(), token).prop_map(move |(p, t)| (M::Unwatch, text(format!("{p}|{t}|")))),
        1 => Just((M::ResetWatches, b"\0".to_vec())),
        1 => (guest(), guest()).prop_map(move |(a, b)| (M::SetTarget, text(format!("{a}|{b}|")))),
        1 => guest().prop_map(move |d| (M::Resume, text(format!("{d}|")))),
        1 => guest().prop_map(move |d| (M::Release, text(format!("{d}|")))),
        1 => (guest(), 0u32..16).prop_map(move |(d, f)| (M::SetFeature, text(format!("{d}|{f}|")))),
        1 => guest().prop_map(move |d| (M::GetFeature, text(format!("{d}|")))),
        1 => (guest(), 1u32..30)
            .prop_map(move |(d, n)| (M::SetQuota, text(format!("{d}|nodes|{n}|")))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let transaction = prop_oneof![3 => Just(0u32), 2 => 1u32..4];
    let percent = prop_oneof![6 => Just(100usize), 1 => 0usize..100];
    let request = (0usize..5, transaction, payload(), percent).prop_map(
        |(who, transaction, (kind, payload), percent)| Step::Request {
            who,
            kind: kind.code(),
            transaction,
            payload,
            percent,
        },
    );
    prop_oneof![
        60 => request,
        10 => (0usize..5, prop_oneof![1usize..60, Just(100_000usize)])
            .prop_map(|(who, bytes)| Step::Read { who, bytes }),
        5 => (1u16..4).prop_map(|domid| Step::Begin { domid }),
        2 => (1u16..4).prop_map(|domid| Step::Shutdown { domid }),
        2 => (1u16..4).prop_map(|domid| Step::Destroy { domid }),
    ]
}

struct Twin {
    server: Server,
    machine: Machine,
    sockets: [ConnId; 2],
    /// Written by a client, not yet arrived.
    on_the_way: BTreeMap<ConnId, Vec<u8>>,
    /// Everything that each client read.
    read: BTreeMap<ConnId, Vec<u8>>,
}

impl Twin {
    fn new() -> Self {
        let mut server = Server::new(quota());
        let sockets = [server.connect_socket(), server.connect_socket()];
        let machine = Machine::default();
        Self { server, machine, sockets, on_the_way: BTreeMap::new(), read: BTreeMap::new() }
    }

    fn id(&self, who: usize) -> Option<ConnId> {
        match who {
            0 | 1 => Some(self.sockets[who]),
            _ => self.machine.rings.get(&DomId(u16::try_from(who - 1).unwrap())).copied(),
        }
    }

    fn send(&mut self, id: ConnId, kind: u32, transaction: u32, payload: &[u8], percent: usize) {
        let waiting = self.on_the_way.entry(id).or_default();
        wire::encode(waiting, kind, 7, transaction, &[payload]);
        let arrives: Vec<u8> = waiting.drain(..waiting.len() * percent / 100).collect();
        // A domain that is introduced again in the middle of a message loses its beginning.
        let _broken = self.server.receive(&mut self.machine, id, &arrives);
    }

    fn read(&mut self, id: ConnId, bytes: usize) {
        let output = self.server.output(id);
        let length = output.len().min(bytes);
        self.read.entry(id).or_default().extend_from_slice(&output[..length]);
        self.server.consume(id, length);
    }

    fn listing(&mut self) {
        let listing: Vec<DomainState> = self.machine.states.values().copied().collect();
        self.server.handle_domain_states(&mut self.machine, &listing);
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Request { who, kind, transaction, payload, percent } => {
                if let Some(id) = self.id(*who) {
                    self.send(id, *kind, *transaction, payload, *percent);
                }
            }
            Step::Read { who, bytes } => {
                if let Some(id) = self.id(*who) {
                    self.read(id, *bytes);
                }
            }
            Step::Begin { domid } => {
                let state = DomainState { domid: DomId(*domid), ..DomainState::default() };
                self.machine.states.entry(DomId(*domid)).or_insert(state);
                let payload = format!("{domid}\09\07\0");
                self.send(self.sockets[0], M::Introduce.code(), 0, payload.as_bytes(), 100);
            }
            Step::Shutdown { domid } => {
                if let Some(state) = self.machine.states.get_mut(&DomId(*domid)) {
                    state.shutdown = true;
                }
                self.listing();
            }
            Step::Destroy { domid } => {
                self.machine.states.remove(&DomId(*domid));
                self.listing();
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        while self.server.has_ready() {
            for id in self.server.take_ready() {
                let _broken = self.server.receive(&mut self.machine, id, &[]);
            }
        }
    }

    fn endpoints(&self) -> Endpoints {
        let socket = |(id, descriptor)| (id, Endpoint::Socket { descriptor });
        let ring = |(domid, id): (&DomId, &ConnId)| {
            (*id, Endpoint::Ring { port: EvtchnPort(u32::from(domid.0) + 1000) })
        };
        let sockets = self.sockets.into_iter().zip(10..).map(socket);
        let connections = sockets.chain(self.machine.rings.iter().map(ring)).collect();
        Endpoints { listener: Some(4), event_channels: Some(5), connections }
    }

    fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.server.save(Form::Own, &self.endpoints()).fill_all(&mut bytes);
        bytes
    }

    /// What a save says, one record a line.
    fn records(&self) -> Vec<String> {
        let mut frames = Frames::new();
        frames.push(&self.save());
        let mut records = Vec::new();
        while let Some((kind, body)) = frames.next_record().unwrap() {
            let mut record = Record::decode(kind, body).unwrap();
            if let Record::Connection(connection) = &mut record {
                // Where messages of an output begin that was restored is known to those who need it.
                connection.partial_bytes = 0;
            }
            records.push(format!("{record:?}"));
        }
        records
    }

    /// Everything that waits is read, and what waited for that is done.
    fn drain(&mut self) {
        let mut ids: Vec<ConnId> = self.sockets.to_vec();
        ids.extend(self.machine.rings.values());
        for _ in 0..200 {
            for id in &ids {
                self.read(*id, usize::MAX);
            }
            self.settle();
        }
    }
}

fn restore(bytes: &[u8], piece: usize) -> Restored {
    let mut restore = Restore::new(Quota::default());
    for piece in bytes.chunks(piece) {
        restore.feed(piece).unwrap();
    }
    restore.finish(Duration::ZERO).unwrap()
}

fn assert_same(kept: &mut Twin, moved: &mut Twin) {
    assert_eq!(kept.server.check(), Ok(()));
    assert_eq!(moved.server.check(), Ok(()));
    assert_eq!(kept.records(), moved.records());
    kept.drain();
    moved.drain();
    assert_eq!(kept.read, moved.read);
    assert_eq!(kept.records(), moved.records());
}

fn run(steps: &[Step], at: usize, early: Option<usize>) {
    let (mut kept, mut moved) = (Twin::new(), Twin::new());
    let mut begun = None;
    for (i, step) in steps.iter().enumerate() {
        if early.is_some_and(|early| i == early.min(at)) {
            begun = Some((moved.server.save_nodes(), Restore::new(Quota::default())));
        }
        if let Some((save, restore)) = &mut begun {
            let mut slice = Vec::new();
            save.fill(&mut slice, 100);
            restore.feed(&slice).unwrap();
        }
        if i == at {
            let endpoints = moved.endpoints();
            let restored = match begun.take() {
                Some((mut save, mut restore)) => {
                    let mut slice = Vec::new();
                    while save.fill(&mut slice, 300) == Progress::More {}
                    restore.feed(&slice).unwrap();
                    restore.feed(&moved.server.save_rest(&save, &endpoints)).unwrap();
                    restore.finish(Duration::ZERO).unwrap()
                }
                None => restore(&moved.save(), 1 + at % 700),
            };
            assert_eq!(restored.notes, Vec::<String>::new());
            assert_eq!((restored.listener, restored.event_channels), (Some(4), Some(5)));
            for (id, peer) in restored.peers {
                let endpoint = match peer {
                    RestoredPeer::Socket { descriptor } => Endpoint::Socket { descriptor },
                    RestoredPeer::Ring { port, .. } => Endpoint::Ring { port },
                };
                assert_eq!(endpoints.connections.get(&id), Some(&endpoint));
            }
            moved.server = restored.server;
            moved.settle();
        }
        kept.run(step);
        moved.run(step);
    }
    assert_same(&mut kept, &mut moved);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_store_goes_on_as_if_nothing_had_happened(
        steps in prop::collection::vec(step(), 20..150),
        at in 0usize..150,
        early in prop::option::of(0usize..150),
    ) {
        let at = at.min(steps.len() - 1);
        run(&steps, at, early);
    }

    #[test]
    fn damaged_streams_are_refused_or_give_a_sound_store(
        steps in prop::collection::vec(step(), 0..60),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut twin = Twin::new();
        for step in &steps {
            twin.run(step);
        }
        let mut bytes = twin.save();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut restore = Restore::new(Quota::default());
        if restore.feed(&bytes).is_ok() && let Ok(restored) = restore.finish(Duration::ZERO) {
            let mut server = restored.server;
            let mut machine = Machine::default();
            prop_assert_eq!(server.check(), Ok(()));
            // Every client says something, and every domain dies.
            for (id, _) in restored.peers {
                let mut bytes = Vec::new();
                wire::encode(&mut bytes, M::Write.code(), 1, 0, &[b"/a/b/c\0value"]);
                wire::encode(&mut bytes, M::TransactionEnd.code(), 1, 1, &[b"T\0"]);
                let _closed = server.receive(&mut machine, id, &bytes);
                let length = server.output(id).len();
                server.consume(id, length);
            }
            machine.rings = (0..=u16::MAX).map(|domid| (DomId(domid), twin.sockets[0])).collect();
            server.handle_domain_states(&mut machine, &[]);
            prop_assert_eq!(server.check(), Ok(()));
        }
    }
}
