//! The store as a machine: bytes of its clients in, bytes for its clients out.
//!
//! ```text
//!   socket, ring ──bytes──> receive ──> execute ──> Store, Transaction
//!   output/consume <──replies, events── queues <── watches <──Change──┘
//! ```
//!
//! A shell moves bytes and calls [`Server::handle_domain_states`] when Xen says that a domain stopped
//! or died, and [`Server::advance`] when time passed. [`Server::take_ready`] names the connections that have something to send, or can take
//! requests again; nothing else wakes the shell. An event is queued before the reply to its cause, and
//! before any other request is executed.

mod batch;
mod by_connection;
mod changes;
mod checkpoint;
mod clearing;
mod connection;
mod control;
mod counters;
mod domain_requests;
mod domains;
mod events;
mod held;
mod latency;
mod listings;
mod memory;
mod node_requests;
mod pace;
mod receiving;
mod recording;
mod replay;
mod restore;
mod save;
mod snapshots;
mod status;
mod time;
mod trace;
mod work;
mod write_rate;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use xen::{DomId, EvtchnPort, Gfn};

use crate::Error;
use crate::acl::{Acl, Being, Life, Subject};
use crate::path::{CanonicalPath, GUEST_NAMES_MAX, OwnedPath};
use crate::quota::{Quota, Seen, admits};
use crate::ring::RingError;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::watch::{Watch, Watches};
use crate::wire::{self, Asker, Effect, Header, MessageType};

pub use by_connection::ByConnection;
pub use changes::{DomainNews, PollScope, poll_domain, poll_domains};
pub use checkpoint::{Checkpoint, Progress};
pub use connection::ConnId;
pub use counters::Counters;
pub use domains::DomainState;
pub use pace::Pace;
pub use recording::{KnownRing, Resumption};
pub use replay::{Corrupt, Replay};
pub use restore::{Restore, Restored, RestoredPeer, Service};
pub use save::{Endpoint, Endpoints, Save};
pub use trace::Topic;

use by_connection::Ready;
use changes::DomainTracker;
use connection::{Connection, Peer};
use control::Answer;
use domains::Domains;
use latency::Latencies;
use listings::Listings;
use time::{EVENT_TIMEOUT, Task};
use trace::Topics;
use work::Work;
use write_rate::WriteRate;

/// What the store needs of the machine it runs on.
pub trait Host {
    /// Maps the domain's ring page and binds its event channel; the ring's bytes belong to
    /// `connection` from now on.
    ///
    /// # Errors
    /// What the client that introduced the domain is told; `EINVAL` if the page cannot be mapped.
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        gfn: Gfn,
        port: EvtchnPort,
    ) -> Result<(), Error>;

    /// The domain was introduced again: binds the event channel anew, empties the ring and sets its
    /// indexes to zero.
    ///
    /// # Errors
    /// As for [`connect_ring`](Self::connect_ring).
    fn reset_ring(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Error>;

    /// Unmaps the ring page and unbinds the event channel.
    fn disconnect_ring(&mut self, domid: DomId);

    /// The domain is dead: unbinds its event channel, and keeps its ring page mapped until
    /// [`drop_kept_ring`](Self::drop_kept_ring), because Xen gives nobody the number of a domain that has
    /// a page mapped.
    fn keep_ring(&mut self, domid: DomId) {
        self.disconnect_ring(domid);
    }

    /// Unmaps the ring page of a dead domain.
    fn drop_kept_ring(&mut self, domid: DomId) {
        let _unused = domid;
    }

    /// Whether there is such a domain, introduced or not.
    fn domain_exists(&mut self, domid: DomId) -> bool;

    /// What tells this domain from every other one that has or had its domid, if Xen knows.
    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        let _unused = domid;
        None
    }

    /// How a domain is now, if there is one and it costs little to look at it alone.
    fn domain(&mut self, domid: DomId) -> Option<DomainState> {
        let _unused = domid;
        None
    }

    /// A request is about to be executed, by a client on a socket or at this ring.
    ///
    /// # Errors
    /// What the client is told instead: the request is known to end the store.
    fn begin_request(
        &mut self,
        ring: Option<ConnId>,
        code: u32,
        payload: &[u8],
    ) -> Result<(), Error> {
        let _unused = (ring, code, payload);
        Ok(())
    }

    /// It was executed, and everything that follows from it is queued.
    fn end_request(&mut self) {}

    /// The time, counted from any moment, if somebody wants to know how long requests take.
    fn clock(&mut self) -> Option<Duration> {
        None
    }

    /// A line for the operator.
    fn log(&mut self, line: &str);

    /// A line for the operator that this guest may cause as often as it likes.
    fn log_about(&mut self, domid: DomId, line: &str) {
        let _the_same_here = domid;
        self.log(line);
    }

    /// A line about one request or reply, or another [`Topic`], if [tracing](Server::set_tracing) is on.
    fn trace(&mut self, line: fmt::Arguments<'_>) {
        let _unused = line;
    }

    /// Lines of [`trace`](Self::trace) go to this file from now on; without a name to the one before,
    /// opened again.
    ///
    /// # Errors
    /// What the client that asked for it is told.
    fn open_trace(&mut self, file: Option<&str>) -> Result<(), Error> {
        let _unused = file;
        Err(Error::ENOSYS)
    }

    /// Appends a report to this file, or without a name to that of [`trace`](Self::trace).
    ///
    /// # Errors
    /// What the client that asked for it is told.
    fn write_report(&mut self, file: Option<&str>, text: &str) -> Result<(), Error> {
        let _unused = (file, text);
        Err(Error::ENOSYS)
    }

    /// A step of handing the store over to another program, by the words after `live-update` as
    /// `xenstore-control` sends them. Returns the answer; `OK` lets the client go on. `None`: it is
    /// given later, by [`Server::answer_held`], and the client waits.
    ///
    /// # Errors
    /// What the client is told if its words make no sense.
    fn live_update(&mut self, client: ConnId, words: &[&str]) -> Result<Option<String>, Error> {
        let _unused = (client, words);
        Err(Error::ENOSYS)
    }
}

/// The store, its clients and its domains.
#[derive(Debug)]
pub struct Server {
    store: Store,
    watches: Watches,
    connections: ByConnection<Connection>,
    last_connection: u64,
    domains: Domains,
    changes: DomainTracker,
    /// Permission lists of `@introduceDomain`, `@releaseDomain` and `@releaseDomain/N`.
    special: BTreeMap<OwnedPath, Arc<Acl>>,
    /// Connections that the shell has to look at.
    ready: Ready,
    counters: Counters,
    listings: Listings,
    latencies: Latencies,
    /// A reply's payload while it is put together.
    scratch: Vec<u8>,
    tracing: bool,
    topics: Topics,
    /// As the shell said last.
    now: Duration,
    deadlines: BTreeSet<(Duration, ConnId, Task)>,
    event_timeout: Option<Duration>,
    /// Of all connections.
    transactions_open: usize,
    /// How many nodes had been replaced, and bytes copied, at the last search for old snapshots.
    snapshots_looked_at: (u64, usize),
    /// None may begin.
    holds_transactions: bool,
    /// Guests are served whatever their limits say.
    is_leaving: bool,
    write_rate: WriteRate,
    /// The most that any guest ever used of each limit.
    most_seen: Seen,
    /// Guests for which so much is held that the operator may have to be told.
    crowded: BTreeSet<ConnId>,
    /// Requests of before are executed again, whose answers are known.
    is_replaying: bool,
    work: Work,
}

/// What follows the reply to a request.
enum AfterReply {
    Nothing,
    /// The first event of a new watch.
    Announce(Arc<Watch>),
    /// The tree was changed, which may have spoilt somebody's transaction.
    Changed,
    /// The reply comes later.
    Hold,
}

impl Server {
    /// A store with the nodes that every store has, and without clients.
    ///
    /// `quota` are the limits that guests begin with.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let mut server = Self::without_nodes(quota);
        let control = CanonicalPath::new(b"/tool/xenstored", "").expect("a path");
        server.store.ensure(control.as_path(), None);
        server
    }

    fn without_nodes(quota: Quota) -> Self {
        Self {
            store: Store::new(),
            watches: Watches::new(),
            connections: ByConnection::new(),
            last_connection: 0,
            domains: Domains::new(quota),
            changes: DomainTracker::default(),
            special: events::special_nodes(),
            ready: Ready::default(),
            counters: Counters::default(),
            listings: Listings::default(),
            latencies: Latencies::default(),
            scratch: Vec::new(),
            tracing: false,
            topics: Topics::default(),
            now: Duration::ZERO,
            deadlines: BTreeSet::new(),
            event_timeout: Some(EVENT_TIMEOUT),
            transactions_open: 0,
            snapshots_looked_at: (0, 0),
            holds_transactions: false,
            is_leaving: false,
            write_rate: WriteRate::default(),
            most_seen: Seen::default(),
            crowded: BTreeSet::new(),
            is_replaying: false,
            work: Work::default(),
        }
    }

    // Connections

    /// A process of the control domain connected to the socket.
    pub fn connect_socket(&mut self) -> ConnId {
        self.add_connection(Peer::Socket, "/local/domain/0".to_owned())
    }

    /// The control domain's own ring is served: it is introduced without a request.
    ///
    /// # Panics
    /// If it was introduced before.
    pub fn connect_control_domain(&mut self) -> ConnId {
        let being = Being { domid: DomId::DOM0, life: Life(0) };
        let id = self.add_connection(Peer::Ring(being), "/local/domain/0".to_owned());
        self.domains.introduce_control_domain(id);
        self.record_domain(DomId::DOM0);
        self.record_ring(id);
        id
    }

    fn add_connection(&mut self, peer: Peer, home: String) -> ConnId {
        let id = self.next_connection();
        self.connections.insert(id, Connection::new(peer, home));
        self.record_numbers();
        id
    }

    /// A number for a new connection. The state stream has 32 bits for it, and 0 for nobody.
    fn next_connection(&mut self) -> ConnId {
        loop {
            self.last_connection =
                if self.last_connection < u32::MAX.into() { self.last_connection + 1 } else { 1 };
            let id = ConnId(self.last_connection);
            if !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    /// The socket was closed. What the client had is dropped; a second call does nothing.
    pub fn disconnect(&mut self, id: ConnId) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        for watch in connection.watches.take() {
            self.watches.remove(watch);
        }
        self.transactions_open -= connection.transactions.len();
        self.discard(connection.transactions.into_values());
        self.ready.remove(&id);
        self.crowded.remove(&id);
        self.changes.forget_follower(id);
    }

    /// Drops the watches, transactions and unsent messages of a connection that begins anew.
    fn reset(&mut self, id: ConnId) {
        self.reset_watches(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input.clear();
            connection.waits_with_transaction = false;
            connection.output.clear();
        }
        self.record_reset(id);
    }

    fn reset_watches(&mut self, id: ConnId) {
        self.record_reset_watches(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.work.add(work::steps(10 * connection.watches.len()));
        let transactions = core::mem::take(&mut connection.transactions);
        self.transactions_open -= transactions.len();
        for watch in connection.watches.take() {
            self.watches.remove(watch);
        }
        let touched: usize = transactions.values().map(|open| open.touched_count()).sum();
        self.work.add(work::steps(touched));
        self.discard(transactions.into_values());
    }

    /// The peer broke the rules of the ring: nothing more is taken from it or sent to it.
    pub fn break_ring(&mut self, id: ConnId, error: RingError) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.fault = Some(error);
        }
        self.stop_serving(id);
    }

    /// The ring cannot be served: nothing more is taken from it or sent to it.
    pub fn stop_serving(&mut self, id: ConnId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.broken = true;
            connection.output.clear();
        }
        self.record_broken(id);
    }

    /// A guest asked for a new start of its ring by the ring page itself: drops everything it had.
    pub fn handle_reconnect(&mut self, id: ConnId) {
        self.reset(id);
    }

    /// Connections with bytes to send, or that take requests again after they had too many unread
    /// replies: send from [`output`](Self::output), then read input and [`receive`](Self::receive).
    pub fn take_ready(&mut self) -> Vec<ConnId> {
        let mut ids = Vec::new();
        self.ready.take(&mut ids);
        ids
    }

    /// As [`take_ready`](Self::take_ready), into a list that can be used again and again.
    pub fn take_ready_into(&mut self, ids: &mut Vec<ConnId>) {
        self.ready.take(ids);
    }

    /// Whether somebody waits in [`take_ready`](Self::take_ready).
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Bytes to send to this client; empty if there are none.
    pub fn output(&mut self, id: ConnId) -> &[u8] {
        self.connections.get_mut(&id).map_or(&[], |connection| connection.output.bytes_to_send())
    }

    /// The first `bytes` of [`output`](Self::output) were sent.
    ///
    /// # Panics
    /// If there were not as many.
    pub fn consume(&mut self, id: ConnId, bytes: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.peer == Peer::Socket {
            // Sockets are never held back.
            return connection.output.consume(bytes);
        }
        let held_back = !self.accepts_requests(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.output.consume(bytes);
        if held_back && self.accepts_requests(id) {
            self.ready.insert(id);
        }
        if self.was_told_of(id) {
            self.crowded.insert(id);
        }
    }

    /// Whether the client may be read from: a guest is not served as long as it does not read its
    /// replies, or after it wrote too fast.
    #[must_use]
    pub fn accepts_requests(&self, id: ConnId) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let waits = connection.held.is_some() || connection.waits_with_transaction;
        if connection.broken || waits {
            return false;
        }
        match connection.peer {
            Peer::Ring(being) if being.domid != DomId::DOM0 && !self.is_leaving => {
                let quota = self.domains.quota(being.domid);
                let output = &connection.output;
                let is_out_of_credit =
                    self.domains.get(being.domid).is_some_and(|d| d.credit.is_used_up());
                !is_out_of_credit
                    && (quota.outstanding == 0
                        || !admits_all(quota.outstanding, output.unread_replies()))
                    // Who has read everything is served: it may want to remove something.
                    && (output.bytes() == 0 || self.has_room(id, 0))
            }
            _ => true,
        }
    }

    // Requests

    fn handle_request(&mut self, host: &mut dyn Host, id: ConnId, header: Header, payload: &[u8]) {
        let is_ring = self.connections.get(&id).is_some_and(Connection::is_ring);
        let admitted = host.begin_request(is_ring.then_some(id), header.code, payload);
        self.answer(host, id, header, payload, admitted);
        self.give_up_old_snapshots();
        host.end_request();
    }

    fn answer(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        header: Header,
        payload: &[u8],
        admitted: Result<(), Error>,
    ) {
        let kind = MessageType::from_code(header.code);
        let kind = kind.filter(|kind| !kind.traits().is_xylems_own || self.offers_batches(id));
        self.counters.count_request(kind);
        self.work.add(work::of_request(payload.len()));
        let begun = self.latencies.begin(host);
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.clear();
        if self.traces(Topic::Io) {
            trace::request(host, id, header, kind, payload);
        }
        if admitted.is_ok() {
            self.record_request(id, header, payload);
        }
        let result = match kind {
            _ if admitted.is_err() => admitted.map(|()| AfterReply::Nothing),
            Some(kind) => {
                let request = Request { id, kind, transaction: header.transaction_id };
                self.execute(host, request, payload, &mut scratch)
            }
            None => Err(Error::ENOSYS),
        };
        if matches!(result, Err(Error::ENOSPC | Error::ENOMEM))
            && kind.is_some_and(replay::is_replayed)
            && let Some(connection) = self.connections.get_mut(&id)
            && let Some(transaction) = connection.transactions.get_mut(&header.transaction_id)
        {
            transaction.fail();
        }
        if let Ok(AfterReply::Hold) = result
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.requests += 1;
            connection.held = Some(header);
            self.scratch = scratch;
            return;
        }
        self.queue_reply(id, header, result.as_ref().map(|_| &scratch[..]).map_err(|error| *error));
        if self.traces(Topic::Io) {
            let outcome = result.as_ref().map_or_else(|error| error.name(), |_| "OK");
            host.trace(format_args!("out {} {outcome}", id.number()));
        }
        self.scratch = scratch;
        match result {
            Ok(AfterReply::Announce(watch)) => self.announce(&watch),
            Ok(AfterReply::Changed) => self.spend_write(host, id),
            Ok(AfterReply::Nothing | AfterReply::Hold) => {}
            Err(_) => self.counters.requests_refused += 1,
        }
        self.note_use(host, id);
        if let (Some(begun), Some(kind)) = (begun, kind) {
            self.latencies.end(host, kind, begun);
        }
    }

    /// Queues the reply to a request, and notes it for a restart.
    fn queue_reply(&mut self, id: ConnId, header: Header, result: Result<&[u8], Error>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.requests += 1;
        let (request_id, transaction_id) = (header.request_id, header.transaction_id);
        connection.output.reply(|out| match result {
            Ok(payload) => wire::encode(out, header.code, request_id, transaction_id, &[payload]),
            Err(error) => wire::encode_error(out, request_id, transaction_id, error),
        });
        self.ready.insert(id);
        match result {
            Ok(payload) => self.record_reply(id, header, header.code, payload),
            Err(error) => {
                let mut name = Vec::from(error.name());
                name.push(0);
                self.record_reply(id, header, MessageType::Error.code(), &name);
            }
        }
    }

    /// Whether this client may ask this at all, and in this transaction.
    fn admit(&mut self, request: Request, payload: &[u8]) -> Result<(), Error> {
        let traits = request.kind.traits();
        let is_privileged = self.subject(request.id) == Subject::Privileged;
        let may_ask = match traits.asker {
            Asker::Anybody => true,
            Asker::Oneself => payload.is_empty() || is_privileged,
            Asker::ControlDomain => is_privileged,
        };
        if !may_ask {
            return Err(Error::EACCES);
        }
        if traits.is_from_store {
            return Err(Error::ENOSYS);
        }
        if !traits.ignores_transaction && request.transaction != 0 {
            let transaction = self.transaction_mut(request).ok_or(Error::ENOENT)?;
            // It will never be committed: nothing more is kept for it.
            if transaction.has_failed() && traits.effect == Effect::ChangesNodes {
                return Err(Error::ENOMEM);
            }
        }
        Ok(())
    }

    fn execute(
        &mut self,
        host: &mut dyn Host,
        request: Request,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<AfterReply, Error> {
        use MessageType as M;
        self.admit(request, payload)?;
        let traits = request.kind.traits();
        match request.kind {
            M::Read => self.read(request, payload, reply)?,
            M::Directory => self.directory(request, payload, reply)?,
            M::DirectoryPart => self.directory_part(request, payload, reply)?,
            M::GetPerms => self.get_perms(request, payload, reply)?,
            M::Write => self.write(request, payload)?,
            M::Mkdir => self.mkdir(request, payload)?,
            M::Rm => self.rm(request, payload)?,
            M::SetPerms => self.set_perms(host, request, payload)?,
            M::TransactionStart => self.transaction_start(request, reply)?,
            M::TransactionEnd => {
                let then = self.transaction_end(request, payload)?;
                reply.extend_from_slice(b"OK\0");
                return Ok(then);
            }
            M::Watch => {
                let watch = self.watch(request.id, payload)?;
                reply.extend_from_slice(b"OK\0");
                return Ok(AfterReply::Announce(watch));
            }
            M::Unwatch => self.unwatch(request.id, payload)?,
            M::ResetWatches => self.reset_watches(request.id),
            M::Introduce => self.introduce(host, payload)?,
            M::Release => self.release(host, payload)?,
            M::Resume => self.resume(payload)?,
            M::SetTarget => self.set_target(payload)?,
            M::IsDomainIntroduced => self.is_domain_introduced(payload, reply)?,
            M::GetDomainPath => domain_requests::get_domain_path(payload, reply)?,
            M::GetFeature => self.get_feature(host, request.id, payload, reply)?,
            M::SetFeature => self.set_feature(host, payload)?,
            M::GetQuota => self.get_quota(host, payload, reply)?,
            M::SetQuota => self.set_quota(host, payload)?,
            M::Control => {
                if self.control(host, request.id, payload, reply)? == Answer::Later {
                    return Ok(AfterReply::Hold);
                }
            }
            M::Batch => self.batch(host, request, payload, reply)?,
            M::DomainChanges => self.domain_changes(host, request.id, payload, reply)?,
            M::WatchEvent | M::Error => return Err(Error::ENOSYS),
        }
        if reply.is_empty() && !traits.replies_data {
            reply.extend_from_slice(b"OK\0");
        }
        let is_change = traits.effect == Effect::ChangesNodes;
        Ok(if is_change && request.transaction == 0 {
            AfterReply::Changed
        } else {
            AfterReply::Nothing
        })
    }

    fn transaction_start(&mut self, request: Request, reply: &mut Vec<u8>) -> Result<(), Error> {
        if request.transaction != 0 {
            return Err(Error::EBUSY);
        }
        let number = self.open_transaction(request.id)?;
        reply.extend_from_slice(alloc::format!("{number}\0").as_bytes());
        Ok(())
    }

    fn open_transaction(&mut self, id: ConnId) -> Result<u32, Error> {
        let limit = self.guest_quota(id).map_or(0, |quota| quota.transactions);
        let transaction = Transaction::new(&self.store);
        let connection = self.connections.get_mut(&id).ok_or(Error::EINVAL)?;
        if !admits(limit, connection.transactions.len() + 1) {
            return Err(Error::ENOSPC);
        }
        let number = loop {
            connection.last_transaction = connection.last_transaction.wrapping_add(1);
            let number = connection.last_transaction;
            if number != 0 && !connection.transactions.contains_key(&number) {
                break number;
            }
        };
        connection.transactions.insert(number, Box::new(transaction));
        self.transactions_open += 1;
        self.counters.transactions_started += 1;
        Ok(number)
    }

    fn transaction_end(&mut self, request: Request, payload: &[u8]) -> Result<AfterReply, Error> {
        let commits = match payload {
            b"T\0" => true,
            b"F\0" => false,
            _ => return Err(Error::EINVAL),
        };
        let connection = self.connections.get_mut(&request.id).ok_or(Error::EINVAL)?;
        let transaction =
            connection.transactions.remove(&request.transaction).ok_or(Error::ENOENT)?;
        self.transactions_open -= 1;
        if !commits {
            self.counters.transactions_aborted += 1;
            self.work.add(work::steps(transaction.touched_count()));
            self.discard([transaction]);
            return Ok(AfterReply::Nothing);
        }
        let caller = self.subject(request.id);
        let owned_max = caller.guest().map_or(usize::MAX, |being| {
            crate::quota::maximum(self.domains.quota(being.domid).nodes)
        });
        self.work.add(work::steps(transaction.visits()));
        let domains = &self.domains;
        let lives = |being| domains.lives(being);
        let result = transaction.commit(&mut self.store, caller, owned_max, &lives);
        self.discard([transaction]);
        match result {
            Ok(changes) => {
                self.counters.transactions_committed += 1;
                for change in &changes {
                    self.fire(change);
                }
                let then =
                    if changes.is_empty() { AfterReply::Nothing } else { AfterReply::Changed };
                drop(changes);
                self.store.clear_up_removed();
                Ok(then)
            }
            Err(error) => {
                if error == Error::EAGAIN {
                    self.counters.transactions_conflicted += 1;
                }
                Err(error)
            }
        }
    }

    // Who asks

    fn subject(&self, id: ConnId) -> Subject {
        match self.connections.get(&id).map(|connection| connection.peer) {
            Some(Peer::Ring(being)) if being.domid != DomId::DOM0 => {
                Subject::Guest { being, target: self.domains.target(being.domid) }
            }
            _ => Subject::Privileged,
        }
    }

    /// Whether this client is the control domain: a socket, or its own ring.
    #[must_use]
    pub fn is_privileged(&self, id: ConnId) -> bool {
        self.subject(id) == Subject::Privileged
    }

    /// The limits of the guest at this connection; the control domain has none.
    fn guest_quota(&self, id: ConnId) -> Option<Quota> {
        let guest = self.subject(id).guest()?;
        Some(self.domains.quota(guest.domid))
    }

    fn transaction_mut(&mut self, request: Request) -> Option<&mut Transaction> {
        if request.transaction == 0 {
            return None;
        }
        let transactions = &mut self.connections.get_mut(&request.id)?.transactions;
        transactions.get_mut(&request.transaction).map(|open| &mut **open)
    }

    fn path<'a>(&self, id: ConnId, text: &'a [u8]) -> Result<CanonicalPath<'a>, Error> {
        let home = self.connections.get(&id).map_or("", |connection| &connection.home);
        let path = CanonicalPath::new(text, home)?;
        match self.guest_quota(id) {
            Some(quota)
                if !admits(quota.path_bytes, path.as_path().relative_bytes())
                    || path.as_path().depth() > GUEST_NAMES_MAX =>
            {
                Err(Error::EINVAL)
            }
            _ => Ok(path),
        }
    }

    // What others may know

    /// Whether anything is told to [`Host::trace`].
    pub fn set_tracing(&mut self, on: bool) {
        self.tracing = on;
    }

    fn traces(&self, topic: Topic) -> bool {
        self.tracing && self.topics.has(topic)
    }

    /// A look at all domains, or at all that changed, was made and took so much CPU time.
    pub fn count_look(&mut self, cpu: Duration) {
        self.counters.count_look(cpu);
    }

    /// Counts of everything that happened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Nodes in the tree, the root included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.store.node_count()
    }

    /// Clients, rings included.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    #[must_use]
    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    /// Compares every counter and index with what it stands for.
    ///
    /// # Errors
    /// A sentence about the first difference.
    pub fn check(&self) -> Result<(), String> {
        self.store.check()?;
        self.connections.values().try_for_each(Connection::check)?;
        let open: usize = self.connections.values().map(|c| c.transactions.len()).sum();
        if open != self.transactions_open {
            let known = self.transactions_open;
            return Err(alloc::format!("{open} transactions are open, the counter says {known}"));
        }
        let owned: usize = self.connections.values().map(|c| c.watches.len()).sum();
        if owned != self.watches.len() {
            let known = self.watches.len();
            return Err(alloc::format!("clients have {owned} watches, the index has {known}"));
        }
        Ok(())
    }
}

/// A request with who makes it and where.
#[derive(Clone, Copy, Debug)]
struct Request {
    id: ConnId,
    kind: MessageType,
    /// 0: outside a transaction.
    transaction: u32,
}

/// Whether `count` has reached the limit.
fn admits_all(limit: u32, count: usize) -> bool {
    usize::try_from(limit).is_ok_and(|limit| count >= limit)
}
