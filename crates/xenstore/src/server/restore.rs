//! Restores a running store from a state stream: ours, or that of another daemon.
//!
//! For any bytes, the result is a store with correct counters, or a [`StateError`].

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use xen::{DomId, EvtchnPort, Gfn};

use crate::acl::{Acl, Being, Entry, Life};
use crate::path::{CanonicalPath, OwnedPath, Path};
use crate::quota::Quota;
use crate::ring::RingIndexes;
use crate::server::connection::saved::{SavedOutput, SavedPiece};
use crate::server::connection::{Connection, Output, Peer};
use crate::server::domain_requests::home;
use crate::server::domains::{Domain, Domains, FEATURES};
use crate::server::time::Task;
use crate::server::write_rate::WriteRate;
use crate::server::{ConnId, Server, events};
use crate::state::{
    self, Fault, Frames, FullPermissions, Layer, Numbers, Permissions, Place, Record,
};
use crate::state::{StateError, TransactionState, TreeNodeContent};
use crate::store::Store;
use crate::transaction::Transaction;
use crate::tree::Laid;
use crate::watch::{Watch, WatchRequest, Watches};
use crate::wire::Header;

/// A store being restored from a stream.
///
/// [`feed`](Self::feed) it in any pieces, then [`finish`](Self::finish).
#[derive(Debug)]
pub struct Restore {
    frames: Frames,
    ended: bool,
    descriptors: (Option<i32>, Option<i32>),
    store: Store,
    domains: Domains,
    /// What domains may still write, and what they saved together.
    credits: BTreeMap<DomId, i64>,
    reserve: Option<i64>,
    last_connection: u32,
    connections: BTreeMap<u32, Arriving>,
    watches: Watches,
    /// In the order of their records; `None` for one that was left out.
    numbered_watches: Vec<Option<Arc<Watch>>>,
    transactions: BTreeMap<(u32, u32), (TransactionState, Transaction, Layer)>,
    special: BTreeMap<OwnedPath, Arc<Acl>>,
    /// Lists that are equal are shared, as they were.
    acls: BTreeMap<Vec<u8>, Arc<Acl>>,
    full_acls: BTreeMap<Vec<Entry>, Arc<Acl>>,
    place: Option<Place>,
    /// The sequence of the next node in each directory on the way to the last one.
    expected: Vec<u32>,
    notes: Vec<String>,
}

/// A connection whose last record may not have come yet.
#[derive(Debug)]
struct Arriving {
    connection: Connection,
    peer: RestoredPeer,
    output: Vec<u8>,
    partial_bytes: usize,
    /// What our own kind tells about the output.
    pieces: Option<Pieces>,
}

/// How the output of a connection was put together.
#[derive(Debug)]
struct Pieces {
    encoded_bytes: usize,
    reply_ends: Vec<usize>,
    /// Lengths, and numbers of watches.
    queue: Vec<(usize, u32)>,
}

/// A restored store, and the endpoints that its shell must connect.
#[derive(Debug)]
pub struct Restored {
    pub server: Server,
    /// The descriptor that clients connect to.
    pub listener: Option<i32>,
    /// The descriptor of the event channel device.
    pub event_channels: Option<i32>,
    pub peers: Vec<(ConnId, RestoredPeer)>,
    /// What could not be restored, for the log.
    pub notes: Vec<String>,
}

/// The other end of a restored connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestoredPeer {
    Socket { descriptor: i32 },
    Ring { domid: DomId, port: EvtchnPort, service: Service },
}

/// Whether a ring may be served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    Served,
    /// Its guest violated the protocol: it is not served until it dies.
    Stopped,
}

impl Restore {
    /// `quota` are the limits of guests if not in the stream.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self {
            frames: Frames::new(),
            ended: false,
            descriptors: (None, None),
            store: Store::new(),
            domains: Domains::new(quota),
            credits: BTreeMap::new(),
            reserve: None,
            last_connection: 0,
            connections: BTreeMap::new(),
            watches: Watches::new(),
            numbered_watches: Vec::new(),
            transactions: BTreeMap::new(),
            special: events::special_nodes(),
            acls: BTreeMap::new(),
            full_acls: BTreeMap::new(),
            place: None,
            expected: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Handles the next bytes of the stream. Bytes after the end are ignored.
    ///
    /// # Errors
    /// If they are not a valid state stream.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut frames = core::mem::take(&mut self.frames);
        frames.push(bytes);
        while !self.ended {
            let offset = frames.position();
            let Some((kind, body)) = frames.next_record()? else { break };
            let taken = Record::decode(kind, body).and_then(|record| self.take(record));
            taken.map_err(|what| StateError { what, offset })?;
        }
        self.frames = frames;
        Ok(())
    }

    /// Whether the end of the stream came.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn take(&mut self, record: Record<'_>) -> Result<(), Fault> {
        match record {
            Record::End => self.ended = true,
            Record::Global(global) => {
                let descriptor = |number: i32| Some(number).filter(|number| *number >= 0);
                self.descriptors = (descriptor(global.listener), descriptor(global.event_channels));
            }
            Record::GlobalQuota(quota) => {
                for (name, value) in quota.of_domains.iter().chain(&quota.of_all) {
                    set_limit(&mut self.domains.quota, name, *value);
                }
            }
            Record::Lives(_) if !self.connections.is_empty() => {
                return Err("the lives of domains come after their connections".into());
            }
            Record::Lives(lives) => {
                check_count(lives.last_life)?;
                check_count(lives.generation)?;
                self.domains = Domains::new(self.domains.quota);
                self.domains.set_last_life(lives.last_life);
                self.store.continue_generations(lives.generation);
                self.last_connection = lives.last_connection;
                self.reserve = Some(lives.reserve);
                self.credits.clear();
                self.special = events::special_nodes();
                self.acls.clear();
            }
            Record::LivesOf(lives) => self.take_lives_of(&lives)?,
            Record::Domain(record) => {
                let Some(domain) = self.domains.get_mut(record.domid) else { return Ok(()) };
                domain.features = record.features & FEATURES;
                for (name, value) in record.quota {
                    set_limit(&mut domain.quota, name, value);
                }
            }
            Record::Connection(connection) => self.take_connection(&connection)?,
            Record::Client(client) => self.take_client(&client)?,
            Record::Watch(watch) => self.take_watch(watch)?,
            Record::Place(place) => self.place = Some(place),
            Record::Node(node) if node.connection == 0 => self.take_node(node)?,
            // A transaction that another daemon carries tells less than a commit has to know.
            Record::Node(_) | Record::Transaction(_) | Record::Unknown(_) => {}
            Record::TransactionState(state) => self.take_transaction(state)?,
            Record::TreeNode(node) => self.take_tree_node(&node)?,
            Record::Touch(touch) => self.take_touch(&touch)?,
        }
        Ok(())
    }

    fn take_lives_of(&mut self, lives: &state::LivesOf) -> Result<(), Fault> {
        check_count(lives.life)?;
        if !lives.domid.is_ordinary() || !self.connections.is_empty() {
            return Err(format!("the life of domain {} has no place here", lives.domid));
        }
        let target = lives.target.map(|(domid, life)| Being { domid, life: Life(life) });
        let domain = Domain {
            unique_id: lives.unique_id,
            shutdown: lives.shutdown,
            target,
            ..Domain::new(Life(lives.life), self.domains.quota)
        };
        self.credits.insert(lives.domid, lives.credit);
        self.domains.restore(lives.domid, domain);
        Ok(())
    }

    fn take_transaction(&mut self, state: TransactionState) -> Result<(), Fault> {
        let key = (state.connection, state.transaction);
        check_count(state.next_order.into())?;
        check_count(state.owned_delta.unsigned_abs())?;
        // Those of a transaction's own tree are marked by their highest bit.
        check_count(state.snapshot_generation)?;
        check_count(state.own_generation & !(1 << 63))?;
        let transaction = Transaction::restore(&state, &self.store);
        if !self.connections.contains_key(&key.0) || key.1 == 0 {
            return Err(format!("transaction {} belongs to nobody", key.1));
        }
        self.transactions.insert(key, (state, transaction, Layer::Snapshot));
        Ok(())
    }

    fn take_touch(&mut self, touch: &state::Touch<'_>) -> Result<(), Fault> {
        let path = node_path(touch.path)?.ok_or("a transaction touched an unusable path")?;
        let acl = touch.acl_before.map(|list| self.full_acl(list)).transpose()?;
        let key = (touch.connection, touch.transaction);
        let known = self.transactions.get_mut(&key);
        let (state, transaction, layer) = known.ok_or("nobody's transaction")?;
        enter_own_tree(state, transaction, layer);
        transaction.restore_touch(path.as_path(), touch, acl)?;
        Ok(())
    }

    fn take_connection(&mut self, record: &state::Connection<'_>) -> Result<(), Fault> {
        let id = record.id;
        if id == 0 || self.connections.contains_key(&id) {
            return Err(format!("two connections have the number {id}, or it is 0"));
        }
        self.last_connection = self.last_connection.max(id);
        let (peer, home, restored) = match record.peer {
            state::Peer::Socket { descriptor } => {
                let restored = RestoredPeer::Socket { descriptor };
                (Peer::Socket, "/local/domain/0".to_owned(), restored)
            }
            state::Peer::Ring { domid, target, port } => {
                let being = self.introduce(domid, id, record.unique_id)?;
                if let state::Target::Domain(target) = target
                    && self.domains.target(domid).is_none()
                {
                    let being = self.begin(target)?;
                    self.domains.set_target(domid, being);
                }
                let port = EvtchnPort(port);
                let restored = RestoredPeer::Ring { domid, port, service: Service::Served };
                (Peer::Ring(being), home(domid), restored)
            }
        };
        let mut connection = Connection::new(peer, home);
        connection.input = record.input.to_vec();
        let arriving = Arriving {
            connection,
            peer: restored,
            output: record.output.to_vec(),
            partial_bytes: usize::from(record.partial_bytes),
            pieces: None,
        };
        self.connections.insert(id, arriving);
        Ok(())
    }

    /// The domain has a ring. Its life may be known from a record before.
    fn introduce(
        &mut self,
        domid: DomId,
        connection: u32,
        unique_id: Option<u64>,
    ) -> Result<Being, Fault> {
        let being = self.begin(domid)?;
        let domain = self.domains.get_mut(domid).expect("begun just now");
        if domain.connection.is_some() {
            return Err(format!("domain {domid} has two connections"));
        }
        domain.connection = Some(ConnId(connection.into()));
        domain.unique_id = domain.unique_id.or(unique_id);
        Ok(being)
    }

    /// The present life of a domain that the stream mentions.
    fn begin(&mut self, domid: DomId) -> Result<Being, Fault> {
        if domid == DomId::DOM0 {
            if self.domains.get(domid).is_none() {
                self.domains.restore(domid, Domain::new(Life(0), self.domains.quota));
            }
            return Ok(Being { domid, life: Life(0) });
        }
        if !domid.is_ordinary() {
            return Err(format!("{domid} is not the number of a domain"));
        }
        Ok(Being { domid, life: self.domains.get_or_begin_with(domid, || None).life })
    }

    fn take_client(&mut self, client: &state::Client<'_>) -> Result<(), Fault> {
        let arriving = self.connections.get_mut(&client.connection);
        let arriving = arriving.ok_or("a client without a connection")?;
        let connection = &mut arriving.connection;
        connection.last_transaction = client.last_transaction;
        connection.broken = client.broken;
        connection.seat.must_reset = client.must_reset;
        connection.seat.gfn = Gfn(client.gfn);
        connection.seat.port = EvtchnPort(client.port);
        let indexes = |(requests_taken, replies_put)| RingIndexes { requests_taken, replies_put };
        connection.seat.indexes = client.indexes.map(indexes);
        connection.held = client.held.map(|(code, request_id, transaction_id)| {
            Header::of_empty(code, request_id, transaction_id)
        });
        let numbers = |list: Numbers<'_>| list.iter().map(to_usize).collect::<Vec<usize>>();
        let mut queue = Vec::new();
        let mut pairs = client.queue.iter();
        while let (Some(bytes), Some(watch)) = (pairs.next(), pairs.next()) {
            queue.push((to_usize(bytes), watch));
        }
        arriving.pieces = Some(Pieces {
            encoded_bytes: to_usize(client.encoded_bytes),
            reply_ends: numbers(client.reply_ends),
            queue,
        });
        if client.broken
            && let RestoredPeer::Ring { service, .. } = &mut arriving.peer
        {
            *service = Service::Stopped;
        }
        Ok(())
    }

    fn take_watch(&mut self, watch: state::Watch<'_>) -> Result<(), Fault> {
        let arriving = self.connections.get_mut(&watch.connection);
        let arriving = arriving.ok_or("a watch of nobody")?;
        let connection = &mut arriving.connection;
        let Ok(path) = CanonicalPath::new(watch.path, &connection.home) else {
            let text = String::from_utf8_lossy(watch.path);
            self.notes.push(format!("a watch is not taken over: '{text}' is no path here"));
            self.numbered_watches.push(None);
            return Ok(());
        };
        let path = path.as_path();
        if connection.watches.contains(path, watch.token) {
            self.numbered_watches.push(None);
            return Ok(());
        }
        let request = WatchRequest {
            path,
            token: watch.token,
            depth: watch.depth.map(u32::from),
            home_bytes: path.as_str().len() - watch.path.len(),
            is_privileged: connection.is_privileged(),
        };
        let token = watch.token;
        let watch = self.watches.add(ConnId(watch.connection.into()), request);
        connection.watches.insert(path, token, watch.id);
        self.numbered_watches.push(Some(watch));
        Ok(())
    }

    fn take_node(&mut self, node: state::Node<'_>) -> Result<(), Fault> {
        let place = self.place.take();
        let Some(path) = node_path(node.path)? else {
            let text = String::from_utf8_lossy(node.path);
            self.notes.push(format!("a node is not taken over: its path is too long: {text}"));
            return Ok(());
        };
        let path = path.as_path();
        let acl = self.acl(node.permissions)?;
        if path.is_special() {
            self.special.insert(path.to_owned_path(), acl);
            return Ok(());
        }
        let laid = Laid {
            value: node.value,
            acl,
            sequence: self.sequence(path, place),
            children: place.and_then(|place| place.children),
        };
        self.lay(path, &laid)
    }

    /// Where a node comes among its siblings: behind the last, if its place is not told.
    fn sequence(&mut self, path: Path<'_>, place: Option<Place>) -> u32 {
        let depth = path.components().count();
        self.expected.truncate(depth + 1);
        self.expected.resize(depth + 1, 0);
        let sequence = place.map_or(self.expected[depth], |place| place.sequence);
        self.expected[depth] = sequence.saturating_add(1);
        sequence
    }

    fn lay(&mut self, path: Path<'_>, laid: &Laid<'_>) -> Result<(), Fault> {
        if self.store.lay(path, laid) { Ok(()) } else { Err(format!("{path} has no parent")) }
    }

    fn take_tree_node(&mut self, node: &state::TreeNode<'_>) -> Result<(), Fault> {
        let path = node_path(node.path)?.ok_or("a tree has an unusable path")?;
        let path = path.as_path();
        if path.is_special() || (path.is_root() && node.content.is_none()) {
            return Err(format!("{path} is no node that can be changed so"));
        }
        let laid = match node.content {
            Some(TreeNodeContent { place, permissions, value }) => Some(Laid {
                value,
                acl: self.full_acl(permissions)?,
                sequence: place.sequence,
                children: place.children,
            }),
            None => None,
        };
        if node.layer == Layer::Store {
            return match laid {
                Some(laid) => self.lay(path, &laid),
                None => {
                    self.store.cut(path);
                    Ok(())
                }
            };
        }
        let known = self.transactions.get_mut(&(node.connection, node.transaction));
        let (state, transaction, layer) = known.ok_or("nobody's transaction")?;
        if node.layer == Layer::Own {
            enter_own_tree(state, transaction, layer);
        }
        let tree = match *layer {
            Layer::Own => transaction.own_mut(),
            _ => transaction.snapshot_mut(),
        };
        let Some(laid) = laid else {
            tree.cut(path);
            return Ok(());
        };
        if tree.lay_difference(path, &laid) {
            Ok(())
        } else {
            Err(format!("{path} has no parent in a transaction"))
        }
    }

    /// A list whose domains are those that live now.
    fn acl(&mut self, permissions: Permissions<'_>) -> Result<Arc<Acl>, Fault> {
        if let Some(acl) = self.acls.get(permissions.as_bytes()) {
            return Ok(Arc::clone(acl));
        }
        let mut entries = Vec::with_capacity(permissions.len());
        for (permission, is_stale) in permissions.iter() {
            let domid = permission.domid;
            let life = if is_stale {
                None
            } else if domid == DomId::DOM0 || domid == DomId::ANY {
                Some(Life(0))
            } else if !domid.is_ordinary() {
                None
            } else {
                Some(self.begin(domid)?.life)
            };
            entries.push(Entry { permission, life });
        }
        if entries.is_empty() {
            return Err("a node has no owner".into());
        }
        let acl = Arc::new(Acl::new(entries));
        self.acls.insert(permissions.as_bytes().to_vec(), Arc::clone(&acl));
        Ok(acl)
    }

    fn full_acl(&mut self, permissions: FullPermissions<'_>) -> Result<Arc<Acl>, Fault> {
        let entry =
            |(permission, life): (_, Option<u64>)| Entry { permission, life: life.map(Life) };
        let entries: Vec<Entry> = permissions.iter().map(entry).collect();
        if entries.is_empty() {
            return Err("a node has no owner".into());
        }
        let acl = self
            .full_acls
            .entry(entries)
            .or_insert_with_key(|entries| Arc::new(Acl::new(entries.clone())));
        Ok(Arc::clone(acl))
    }

    /// What waits for a client, with its watches in place of their numbers.
    fn output(
        &self,
        id: ConnId,
        bytes: Vec<u8>,
        partial_bytes: usize,
        pieces: Pieces,
    ) -> SavedOutput<'_> {
        let watch = |number: u32| {
            let watch = self.numbered_watches.get(to_usize(number))?.as_ref();
            watch.filter(|watch| watch.connection == id)
        };
        let piece = |(bytes, number)| SavedPiece { bytes, watch: watch(number) };
        SavedOutput {
            bytes,
            partial_bytes,
            encoded_bytes: pieces.encoded_bytes,
            reply_ends: pieces.reply_ends,
            queue: pieces.queue.into_iter().map(piece).collect(),
        }
    }

    /// Makes the store of what came; `now` is the time of [`Server::advance`].
    ///
    /// # Errors
    /// If the stream has not ended, or what it says does not fit together.
    pub fn finish(mut self, now: Duration) -> Result<Restored, StateError> {
        let offset = self.frames.position();
        if !self.ended {
            return Err(StateError { what: "it ends too early".into(), offset });
        }
        let fault = |what| StateError { what, offset };
        for (key, (state, mut transaction, mut layer)) in core::mem::take(&mut self.transactions) {
            enter_own_tree(&state, &mut transaction, &mut layer);
            let arriving = self.connections.get_mut(&key.0).expect("looked up when it came");
            arriving.connection.transactions.insert(key.1, Box::new(transaction));
        }
        let mut server = Server::without_nodes(self.domains.quota);
        server.now = now;
        let mut peers = Vec::new();
        for (number, arriving) in core::mem::take(&mut self.connections) {
            let id = ConnId(number.into());
            let Arriving { mut connection, peer, output, partial_bytes, pieces } = arriving;
            let restored = match pieces {
                Some(pieces) => {
                    Output::restore(self.output(id, output, partial_bytes, pieces), now)
                }
                None => Output::restore_foreign(output, partial_bytes),
            };
            connection.output = restored.map_err(fault)?;
            server.transactions_open += connection.transactions.len();
            server.connections.insert(id, connection);
            server.ready.insert(id);
            peers.push((id, peer));
        }
        server.store = self.store;
        server.watches = self.watches;
        server.last_connection = self.last_connection.into();
        server.domains = self.domains;
        server.special = self.special;
        server.restore_deadlines(self.reserve, &self.credits);
        server.find_seats();
        let (listener, event_channels) = self.descriptors;
        Ok(Restored { server, listener, event_channels, peers, notes: self.notes })
    }
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Counters continue from here; one about to overflow is invalid.
fn check_count(count: u64) -> Result<(), Fault> {
    if count < 1 << 62 { Ok(()) } else { Err("a counter is out of range".into()) }
}

impl Server {
    /// Where a ring is, if the stream does not tell: the toolstack wrote it down for the guest.
    fn find_seats(&mut self) {
        for (domid, domain) in self.domains.iter() {
            let connection = domain.connection.and_then(|id| self.connections.get_mut(&id));
            let Some(connection) = connection else { continue };
            let number = |name: &str| -> Option<u64> {
                let path = format!("{}/store/{name}", home(domid));
                let node = self.store.tree().get(Path::from_canonical(&path))?;
                core::str::from_utf8(node.value()).ok()?.parse().ok()
            };
            let seat = &mut connection.seat;
            if seat.port.0 == 0 && domid != DomId::DOM0 {
                let port = number("port").and_then(|port| u32::try_from(port).ok());
                seat.port = EvtchnPort(port.unwrap_or(0));
                seat.gfn = Gfn(number("ring-ref").unwrap_or(0));
            }
        }
    }

    /// Guests may write as much as before, and are waited for.
    fn restore_deadlines(&mut self, reserve: Option<i64>, credits: &BTreeMap<DomId, i64>) {
        if let Some(reserve) = reserve {
            self.write_rate = WriteRate::with_reserve(reserve);
        }
        let mut late = Vec::new();
        for (domid, domain) in self.domains.iter_mut() {
            let Some(connection) = domain.connection.filter(|_| domid != DomId::DOM0) else {
                continue;
            };
            domain.credit = match credits.get(&domid) {
                Some(credit) => self.write_rate.rejoin(*credit, self.now),
                None => self.write_rate.join(self.now),
            };
            late.push((connection, domain.credit));
        }
        for (connection, credit) in late {
            if let Some(until) = self.write_rate.next_payment(credit) {
                self.deadlines.insert((until, connection, Task::Serve));
            }
            let output = self.connections.get(&connection).map(|connection| &connection.output);
            if output.is_some_and(|output| output.oldest_event().is_some()) {
                self.expect_to_be_read(connection);
            }
        }
    }
}

/// What comes for the transaction's own tree: its snapshot is complete.
fn enter_own_tree(state: &TransactionState, transaction: &mut Transaction, layer: &mut Layer) {
    if *layer == Layer::Snapshot {
        transaction.begin_own_tree(state);
        *layer = Layer::Own;
    }
}

/// An absolute or special path; `None` if it is too long for us, but a path.
fn node_path(text: &[u8]) -> Result<Option<CanonicalPath<'_>>, Fault> {
    if !text.starts_with(b"/") && !text.starts_with(b"@") {
        return Err("a node's path is not absolute".into());
    }
    match CanonicalPath::new(text, "") {
        Ok(path) => Ok(Some(path)),
        Err(_) if text.len() > 2048 => Ok(None),
        Err(_) => Err(format!("'{}' is no path", String::from_utf8_lossy(text))),
    }
}

/// Unknown limits are ignored.
fn set_limit(quota: &mut Quota, name: &str, value: u32) {
    if let Some(limit) = quota.get_mut(name) {
        *limit = value;
    }
}
