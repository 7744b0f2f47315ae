//! A running store as a state stream.
//!
//! A save is a snapshot of the store: the tree by a persistent snapshot, which is free and written
//! in slices while the store continues; everything else, which is small, at once.
//!
//! ```text
//!   save                      all of it: head, nodes, tail
//!   save_nodes                the nodes of now, for a reader that begins early
//!   save_rest(since)          head, what became of the nodes since, tail
//! ```
//!
//! The reader is [`Restore`](super::Restore).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::{DomId, EvtchnPort};

use crate::acl::{Acl, Being, Life};
use crate::quota::Quota;
use crate::server::connection::{Connection, Peer};
use crate::server::{ConnId, Progress, Server};
use crate::state::{self, Client, Form, Layer, Lives, LivesOf, NO_WATCH, Numbers, Permissions};
use crate::state::{Place, Record};
use crate::transaction::saved::{Owner, save_differences};
use crate::tree::{Node, Tree, Walk};
use crate::watch::WatchId;

/// The shell's descriptors for the store, as found by the next daemon.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// The descriptor that clients connect to, if there is one.
    pub listener: Option<i32>,
    /// The descriptor of the event channel device.
    pub event_channels: Option<i32>,
    pub connections: BTreeMap<ConnId, Endpoint>,
}

/// Where a connection's bytes go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Endpoint {
    Socket {
        descriptor: i32,
    },
    /// The local port of the ring's event channel.
    Ring {
        port: EvtchnPort,
    },
}

/// A store being written; a snapshot that does not change while its server continues.
#[derive(Debug)]
pub struct Save {
    form: Form,
    /// What is written before the nodes, until it is.
    head: Vec<u8>,
    tree: Tree,
    /// Dead domains may stand in lists for a while.
    lives: BTreeMap<DomId, Life>,
    walk: Walk,
    /// The sequence that the next node of each directory on the way has if it follows the last.
    expected: Vec<u32>,
    /// What is written after the nodes, until it is.
    tail: Option<Vec<u8>>,
}

impl Save {
    /// Appends about as many bytes as `bytes_max`, at least one record.
    pub fn fill(&mut self, out: &mut Vec<u8>, bytes_max: usize) -> Progress {
        let end = out.len() + bytes_max;
        out.append(&mut self.head);
        let mut list = Vec::new();
        while out.len() < end {
            let (form, lives, expected) = (self.form, &self.lives, &mut self.expected);
            let visited = self.walk.next(|path, node| {
                if form == Form::Own {
                    save_place(out, expected, path.components().count(), node);
                }
                let alive = |being: Being| lives.get(&being.domid) == Some(&being.life);
                save_node(out, &mut list, path.as_str(), node.acl(), node.value(), alive);
            });
            if visited.is_none() {
                let Some(tail) = self.tail.take() else { return Progress::Done };
                out.extend_from_slice(&tail);
                return Progress::Done;
            }
        }
        Progress::More
    }

    /// Appends all that is left.
    pub fn fill_all(&mut self, out: &mut Vec<u8>) {
        while self.fill(out, usize::MAX / 2) == Progress::More {}
    }
}

impl Server {
    /// Begins to write everything, for a reader of this form. Other forms than our own have no place
    /// for open transactions: see [`open_transactions`](Self::open_transactions).
    #[must_use]
    pub fn save(&self, form: Form, endpoints: &Endpoints) -> Save {
        let mut head = Vec::new();
        state::encode_preamble(&mut head, form);
        self.save_head(&mut head, form, endpoints);
        self.begin_save(form, head, self.tail(form))
    }

    /// Begins to write the nodes alone, in our own form. [`save_rest`](Self::save_rest) goes on.
    #[must_use]
    pub fn save_nodes(&self) -> Save {
        let mut head = Vec::new();
        state::encode_preamble(&mut head, Form::Own);
        self.save_lives(&mut head);
        self.begin_save(Form::Own, head, Vec::new())
    }

    /// Everything but what the nodes that were written by `since` tell, in one piece.
    #[must_use]
    pub fn save_rest(&self, since: &Save, endpoints: &Endpoints) -> Vec<u8> {
        let mut out = Vec::new();
        self.save_head(&mut out, Form::Own, endpoints);
        let owner = Owner { connection: 0, transaction: 0, layer: Layer::Store };
        let living = |acl: &Arc<Acl>| Arc::new(acl.of_the_living(|b| self.domains.lives(b)));
        save_differences(&mut out, owner, &since.tree, self.store.tree(), living);
        out.extend_from_slice(&self.tail(Form::Own));
        out
    }

    /// Drops a save. It may hold the last reference to removed nodes.
    pub fn end_save(&mut self, save: Save) {
        self.store.discard(save.tree);
    }

    /// Number of open transactions.
    #[must_use]
    pub fn open_transactions(&self) -> usize {
        self.transactions_open
    }

    fn begin_save(&self, form: Form, head: Vec<u8>, tail: Vec<u8>) -> Save {
        let tree = self.store.tree().clone();
        let walk = Walk::new(&tree);
        let lives = self.domains.iter().map(|(domid, domain)| (domid, domain.life)).collect();
        Save { form, head, tree, lives, walk, expected: Vec::new(), tail: Some(tail) }
    }

    fn save_head(&self, out: &mut Vec<u8>, form: Form, endpoints: &Endpoints) {
        let global = state::Global {
            listener: endpoints.listener.unwrap_or(-1),
            event_channels: endpoints.event_channels.unwrap_or(-1),
        };
        Record::Global(global).encode(out);
        if form != Form::Version1 {
            save_quota(out, &self.domains.quota);
        }
        if form == Form::Own {
            self.save_lives(out);
        }
        for (id, connection) in &self.connections {
            self.save_connection(out, form, *id, connection, endpoints.connections.get(id));
        }
        if form != Form::Version1 {
            for (domid, domain) in self.domains.iter() {
                let quota = quota_list(&domain.quota);
                let features = domain.features;
                Record::Domain(state::DomainQuota { domid, features, quota }).encode(out);
            }
        }
        let numbers = self.save_watches(out, form);
        if form == Form::Own {
            for (id, connection) in &self.connections {
                save_client(out, *id, connection, &numbers);
            }
        }
        let mut list = Vec::new();
        for (path, acl) in &self.special {
            let lives = |being| self.domains.lives(being);
            save_node(out, &mut list, path.as_path().as_str(), acl, b"", lives);
        }
    }

    fn save_lives(&self, out: &mut Vec<u8>) {
        let last_life = self.domains.last_life();
        let generation = self.store.tree().generation();
        let last_connection = u32::try_from(self.last_connection).unwrap_or(0);
        let reserve = self.write_rate.reserve();
        Record::Lives(Lives { last_life, generation, last_connection, reserve }).encode(out);
        for (domid, domain) in self.domains.iter() {
            let target = domain.target.map(|being| (being.domid, being.life.0));
            let (Life(life), unique_id) = (domain.life, domain.unique_id);
            let (shutdown, credit) = (domain.shutdown, domain.credit.amount());
            let lives = LivesOf { domid, life, unique_id, shutdown, target, credit };
            Record::LivesOf(lives).encode(out);
        }
    }

    fn save_connection(
        &self,
        out: &mut Vec<u8>,
        form: Form,
        id: ConnId,
        connection: &Connection,
        endpoint: Option<&Endpoint>,
    ) {
        let mut unique_id = None;
        let peer = match connection.peer {
            Peer::Socket => {
                let descriptor = match endpoint {
                    Some(Endpoint::Socket { descriptor }) => *descriptor,
                    _ => -1,
                };
                state::Peer::Socket { descriptor }
            }
            Peer::Ring(being) => {
                let port = match endpoint {
                    Some(Endpoint::Ring { port }) => port.0,
                    _ => 0,
                };
                let target = self.domains.target(being.domid);
                let target =
                    target.map_or(state::Target::None, |being| state::Target::Domain(being.domid));
                unique_id = self.domains.get(being.domid).and_then(|domain| domain.unique_id);
                state::Peer::Ring { domid: being.domid, target, port }
            }
        };
        let mut output = connection.output.save();
        if let Some(header) = connection.held.filter(|_| form != Form::Own) {
            // Whoever waits for the answer waits for the update, of which the stream is the success.
            let bytes = &mut output.bytes;
            let (request, transaction) = (header.request_id, header.transaction_id);
            crate::wire::encode(bytes, header.code, request, transaction, &[b"OK\0"]);
        }
        Record::Connection(state::Connection {
            id: number(id),
            peer,
            input: &connection.input,
            partial_bytes: u16::try_from(output.partial_bytes).unwrap_or(u16::MAX),
            output: &output.bytes,
            unique_id: unique_id.filter(|_| form != Form::Version1),
        })
        .encode(out);
    }

    /// The watches, oldest first; says which number each has in that order.
    fn save_watches(&self, out: &mut Vec<u8>, form: Form) -> BTreeMap<WatchId, u32> {
        let mut numbers = BTreeMap::new();
        for (watch, number) in self.watches.iter().zip(0..) {
            numbers.insert(watch.id, number);
            let depth = watch.depth.map(|depth| u16::try_from(depth).unwrap_or(u16::MAX));
            Record::Watch(state::Watch {
                connection: self::number(watch.connection),
                path: watch.spell(watch.path.as_path()).as_bytes(),
                token: &watch.token,
                // No daemon of Xen reads the record that has a depth as it is documented: there the
                // watch becomes one without, which may fire too often.
                depth: depth.filter(|_| form == Form::Own),
            })
            .encode(out);
        }
        numbers
    }

    fn tail(&self, form: Form) -> Vec<u8> {
        let mut out = Vec::new();
        if form == Form::Own {
            for (id, connection) in &self.connections {
                for (transaction, open) in &connection.transactions {
                    let (connection, transaction) = (number(*id), *transaction);
                    let record = state::Transaction { connection, transaction };
                    Record::Transaction(record).encode(&mut out);
                    open.save(&mut out, connection, transaction, &self.store);
                }
            }
        }
        Record::End.encode(&mut out);
        out
    }
}

/// A connection's number as the stream has it.
fn number(id: ConnId) -> u32 {
    u32::try_from(id.number()).expect("connections are numbered with 32 bits")
}

fn save_client(
    out: &mut Vec<u8>,
    id: ConnId,
    connection: &Connection,
    numbers: &BTreeMap<WatchId, u32>,
) {
    let output = connection.output.save();
    let (mut reply_ends, mut queue) = (Vec::new(), Vec::new());
    for end in output.reply_ends {
        Numbers::push(&mut reply_ends, end);
    }
    for piece in output.queue {
        Numbers::push(&mut queue, piece.bytes);
        let number = piece.watch.and_then(|watch| numbers.get(&watch.id).copied());
        queue.extend_from_slice(&number.unwrap_or(NO_WATCH).to_ne_bytes());
    }
    let indexes = connection.seat.indexes.map(|indexes| {
        // The restored output begins with what was not consumed.
        #[expect(clippy::cast_possible_truncation, reason = "indexes of a ring wrap around")]
        let consumed = connection.output.consumed() as u32;
        (indexes.requests_taken, indexes.replies_put.wrapping_add(consumed))
    });
    let held = connection.held;
    Record::Client(Client {
        connection: number(id),
        last_transaction: connection.last_transaction,
        broken: connection.broken,
        must_reset: connection.seat.must_reset,
        gfn: connection.seat.gfn.0,
        port: connection.seat.port.0,
        indexes,
        held: held.map(|header| (header.code, header.request_id, header.transaction_id)),
        encoded_bytes: u32::try_from(output.encoded_bytes).unwrap_or(u32::MAX),
        reply_ends: Numbers::new(&reply_ends),
        queue: Numbers::new(&queue),
    })
    .encode(out);
}

/// Says where a node belongs, if a reader would not guess it.
fn save_place(out: &mut Vec<u8>, expected: &mut Vec<u32>, depth: usize, node: &Node) {
    let sequence = node.sequence();
    expected.truncate(depth + 1);
    expected.resize(depth + 1, 0);
    let is_expected = expected[depth] == sequence;
    expected[depth] = sequence.saturating_add(1);
    let children = node.child_list();
    if children.is_some() || !is_expected {
        Record::Place(Place { children, sequence }).encode(out);
    }
}

/// A node of the store, or a special one.
fn save_node(
    out: &mut Vec<u8>,
    list: &mut Vec<u8>,
    path: &str,
    acl: &Acl,
    value: &[u8],
    lives: impl Fn(Being) -> bool,
) {
    list.clear();
    for (i, entry) in acl.entries().iter().enumerate() {
        let domid = entry.permission.domid;
        let is_guest = domid != DomId::DOM0 && domid != DomId::ANY;
        let is_dead = is_guest && entry.life.is_some_and(|life| !lives(Being { domid, life }));
        if is_dead && i > 0 {
            // Its rights are about to be taken out.
            continue;
        }
        Permissions::push(list, entry.permission, is_dead || entry.life.is_none());
    }
    Record::Node(state::Node {
        connection: 0,
        transaction: 0,
        access: 0,
        permissions: Permissions::new(list),
        path: path.as_bytes(),
        value,
    })
    .encode(out);
}

fn save_quota(out: &mut Vec<u8>, quota: &Quota) {
    let quota = state::GlobalQuota { of_domains: quota_list(quota), of_all: Vec::new() };
    Record::GlobalQuota(quota).encode(out);
}

fn quota_list(quota: &Quota) -> Vec<(&'static str, u32)> {
    Quota::NAMES.iter().filter_map(|name| Some((*name, quota.get(name)?))).collect()
}
