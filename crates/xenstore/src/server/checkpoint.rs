//! The whole state as records, from a snapshot: written in pieces while the store continues.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::DomId;

use crate::acl::{Acl, Being, Life};
use crate::journal::{Record, encode_acl};
use crate::server::connection::{Connection, Peer};
use crate::server::domains::Domain;
use crate::server::replay::COUNT_MAX;
use crate::server::{ConnId, Server};
use crate::tree::Node;
use crate::watch::Watch;

/// Generations skipped at a restart. Fewer lists of children than this change between two
/// checkpoints, so a client that reads a listing in parts never mixes parts of two lists.
const GENERATION_STEP: u64 = 1 << 32;

/// Whether there is more to write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Progress {
    More,
    Done,
}

/// A snapshot of a store's state.
///
/// Everything but the tree is encoded at once; the tree is a snapshot and costs one reference.
#[derive(Debug)]
pub struct Checkpoint {
    head: Vec<u8>,
    walk: Walk,
    tail: Vec<u8>,
}

impl Checkpoint {
    /// Appends about `bytes` bytes to `out`.
    pub fn write(&mut self, out: &mut Vec<u8>, bytes: usize) -> Progress {
        let end = out.len() + bytes;
        out.append(&mut self.head);
        while out.len() < end {
            if self.walk.write_node(out) == Progress::Done {
                out.append(&mut self.tail);
                return Progress::Done;
            }
        }
        Progress::More
    }
}

impl Server {
    /// The current state; what was [recorded](Self::recorded) so far precedes it.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        let mut head = Vec::new();
        let generation = self.store.tree().generation().saturating_add(GENERATION_STEP);
        let generation = generation.min(COUNT_MAX);
        Record::Generation { generation }.encode(&mut head);
        Record::Quota { quota: self.domains.quota }.encode(&mut head);
        let (connection, life) = (self.last_connection, self.domains.last_life());
        Record::Numbers { connection, life }.encode(&mut head);
        for (domid, domain) in self.domains.iter() {
            domain_record(domid, domain).encode(&mut head);
        }
        let lives: BTreeMap<DomId, Life> =
            self.domains.iter().map(|(domid, domain)| (domid, domain.life)).collect();
        for (path, acl) in &self.special {
            let acl = encode_acl(&of_the_living(acl, &lives));
            Record::SpecialAcl { path: path.as_path(), acl: &acl }.encode(&mut head);
        }
        let mut tail = Vec::new();
        let mut watches = Vec::new();
        for (&id, connection) in &self.connections {
            encode_ring(id, connection, &mut head, &mut tail);
            if connection.is_ring() {
                watches.extend(connection.watches.ids());
            }
        }
        // Older watches are served first.
        watches.sort_unstable();
        for watch in watches.into_iter().filter_map(|id| self.watches.get(id)) {
            watch_record(watch).encode(&mut head);
        }
        let root = self.store.tree().root();
        let acl = encode_acl(&of_the_living(root.acl(), &lives));
        Record::SetAcl { path: crate::Path::ROOT, acl: &acl }.encode(&mut head);
        if !root.value().is_empty() {
            let (path, value) = (crate::Path::ROOT, root.value());
            Record::Write { path, creator: None, value }.encode(&mut head);
        }
        Checkpoint { head, walk: Walk::new(root, lives), tail }
    }
}

/// The list without rights of dead domains, whose lives cannot be encoded.
fn of_the_living(acl: &Arc<Acl>, lives: &BTreeMap<DomId, Life>) -> Arc<Acl> {
    let lives = |being: Being| lives.get(&being.domid) == Some(&being.life);
    if acl.guests().all(|(_, being)| lives(being)) {
        return Arc::clone(acl);
    }
    Arc::new(acl.of_the_living(lives))
}

fn encode_ring(id: ConnId, connection: &Connection, head: &mut Vec<u8>, tail: &mut Vec<u8>) {
    let Some(record) = ring_record(id, connection) else { return };
    record.encode(head);
    let number = id.number();
    if let Some(record) = indexes_record(id, connection) {
        record.encode(head);
    }
    if !connection.input.is_empty() {
        Record::Input { connection: number, bytes: &connection.input }.encode(head);
    }
    let (bytes, reply_ends) = connection.output.unsent();
    if !bytes.is_empty() {
        Record::Output { connection: number, bytes: &bytes, reply_ends }.encode(head);
    }
    for &transaction_id in connection.transactions.keys() {
        Record::OldTransaction { connection: number, transaction_id }.encode(tail);
    }
}

/// A ring's indexes, so that its output begins with what was not put in yet.
pub(super) fn indexes_record(id: ConnId, connection: &Connection) -> Option<Record<'static>> {
    let indexes = connection.seat.indexes?;
    let consumed = connection.output.consumed();
    #[expect(clippy::cast_possible_truncation, reason = "indexes of a ring wrap around")]
    let replies_put = indexes.replies_put.wrapping_add(consumed as u32);
    let requests_taken = indexes.requests_taken;
    Some(Record::RingIndexes { connection: id.number(), requests_taken, replies_put })
}

/// The same after requests were taken out.
pub(super) fn taken_record(id: ConnId, connection: &Connection) -> Option<Record<'static>> {
    match indexes_record(id, connection)? {
        Record::RingIndexes { connection, requests_taken, replies_put } => {
            Some(Record::Taken { connection, requests_taken, replies_put })
        }
        _ => None,
    }
}

pub(super) fn domain_record(domid: DomId, domain: &Domain) -> Record<'static> {
    Record::Domain {
        domid,
        life: domain.life.0,
        unique_id: domain.unique_id,
        connection: domain.connection.map_or(0, ConnId::number),
        shutdown: domain.shutdown,
        target: domain.target.map(|target| target.domid),
        target_life: domain.target.map_or(0, |target| target.life.0),
        features: domain.features,
        quota: domain.quota,
    }
}

/// `None` for a socket.
pub(super) fn ring_record(id: ConnId, connection: &Connection) -> Option<Record<'static>> {
    let Peer::Ring(being) = connection.peer else { return None };
    Some(Record::Ring {
        connection: id.number(),
        domid: being.domid,
        gfn: connection.seat.gfn.0,
        port: connection.seat.port.0,
        broken: connection.broken,
        must_reset: connection.seat.must_reset,
        last_transaction: connection.last_transaction,
    })
}

pub(super) fn watch_record(watch: &Watch) -> Record<'_> {
    Record::Watch {
        connection: watch.connection.number(),
        path: watch.path.as_path(),
        token: &watch.token,
        depth: watch.depth,
        home_bytes: watch.home_bytes() as u64,
    }
}

/// Nodes of a snapshot, parents first and siblings in the order of their creation.
#[derive(Debug)]
struct Walk {
    levels: Vec<Level>,
    /// Levels to go up from the last written node.
    up: u64,
    /// Live domains; lists may still contain others for a while.
    lives: BTreeMap<DomId, Life>,
}

#[derive(Debug)]
struct Level {
    acl: Arc<Acl>,
    children: alloc::vec::IntoIter<Arc<Node>>,
}

impl Level {
    fn new(node: &Arc<Node>, acl: Arc<Acl>) -> Self {
        let children: Vec<Arc<Node>> = node.children_by_age().into_iter().cloned().collect();
        Self { acl, children: children.into_iter() }
    }
}

impl Walk {
    fn new(root: &Arc<Node>, lives: BTreeMap<DomId, Life>) -> Self {
        let level = Level::new(root, of_the_living(root.acl(), &lives));
        Self { levels: alloc::vec![level], up: 0, lives }
    }

    fn write_node(&mut self, out: &mut Vec<u8>) -> Progress {
        while let Some(level) = self.levels.last_mut() {
            if let Some(node) = level.children.next() {
                let list = of_the_living(node.acl(), &self.lives);
                let inherits = Arc::ptr_eq(&list, &level.acl) || list == level.acl;
                let acl = if inherits { Vec::new() } else { encode_acl(&list) };
                let (up, name, value) = (self.up, node.name(), node.value());
                Record::Node { up, name, acl: &acl, value }.encode(out);
                self.up = 0;
                self.levels.push(Level::new(&node, list));
                return Progress::More;
            }
            self.levels.pop();
            self.up += 1;
        }
        Progress::Done
    }
}
