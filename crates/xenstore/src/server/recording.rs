//! The shell's interface for persistence: take the records, and report ring indexes.
//!
//! Requests are copied out of a ring first, executed, and their records kept together with
//! [`Server::note_taken`]; only when these are safe does the shell move the ring's index and send.
//! After a restart the ring page itself shows how much of the recorded output was put in already.

use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::{DomId, EvtchnPort, Gfn};

use crate::journal::{Record, encode_acl};
use crate::path::Path;
use crate::ring::{RING_BYTES, RingError, RingIndexes};
use crate::server::connection::Peer;
use crate::server::{ConnId, Server};
use crate::wire::{Header, MessageType};
use crate::{acl::Acl, watch::Watch};

/// A ring of a restored store that the shell must connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KnownRing {
    pub connection: ConnId,
    pub domid: DomId,
    /// As it was introduced. The control domain's ring is found otherwise.
    pub gfn: Gfn,
    pub port: EvtchnPort,
    /// It is no longer served, but its domain still exists.
    pub broken: bool,
}

/// How to resume a ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resumption {
    /// Requests were taken out up to this index, which the page may not say yet.
    From(u32),
    /// The ring is to be emptied first: [`ServerRing::reset`](crate::ring::ServerRing::reset), then
    /// [`Server::note_indexes`].
    Reset,
}

impl Server {
    /// Records every change from now on. The state before is in a [`checkpoint`](Self::checkpoint).
    pub fn start_recording(&mut self) {
        self.store.recorder.start();
    }

    /// Stops recording and drops pending records.
    pub fn stop_recording(&mut self) {
        self.store.recorder.stop();
    }

    /// Records since [`clear_recorded`](Self::clear_recorded). They must be safe before any effect
    /// since then becomes visible.
    #[must_use]
    pub fn recorded(&self) -> &[u8] {
        self.store.recorder.bytes()
    }

    pub fn clear_recorded(&mut self) {
        self.store.recorder.clear();
    }

    /// Whether the ring's indexes are not known yet.
    #[must_use]
    pub fn needs_indexes(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.seat.indexes.is_none())
    }

    /// Sets a ring's indexes when it is first served, or after a reset.
    pub fn note_indexes(&mut self, id: ConnId, indexes: RingIndexes) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.seat.indexes = Some(indexes);
        connection.seat.must_reset = false;
        let RingIndexes { requests_taken, replies_put } = indexes;
        let connection = id.number();
        self.store.recorder.record(&Record::RingIndexes {
            connection,
            requests_taken,
            replies_put,
        });
    }

    /// Requests were copied out of the ring up to this index, and [received](Self::receive).
    pub fn note_taken(&mut self, id: ConnId, requests_taken: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(indexes) = &mut connection.seat.indexes else { return };
        indexes.requests_taken = requests_taken;
        if let Some(record) = super::checkpoint::taken_record(id, connection) {
            self.store.recorder.record(&record);
        }
    }

    /// The rings of the domains that are introduced.
    #[must_use]
    pub fn known_rings(&self) -> Vec<KnownRing> {
        let known = |(id, connection): (&ConnId, &super::Connection)| match connection.peer {
            Peer::Ring(being) => Some(KnownRing {
                connection: *id,
                domid: being.domid,
                gfn: connection.seat.gfn,
                port: connection.seat.port,
                broken: connection.broken,
            }),
            Peer::Socket => None,
        };
        self.connections.iter().filter_map(known).collect()
    }

    /// Resumes a ring whose page has these indexes, after a restart.
    ///
    /// # Errors
    /// [`RingError::BadIndex`] if they match no recorded state.
    pub fn resume_ring(&mut self, id: ConnId, page: RingIndexes) -> Result<Resumption, RingError> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(Resumption::From(page.requests_taken));
        };
        if connection.seat.must_reset {
            return Ok(Resumption::Reset);
        }
        let Some(ours) = connection.seat.indexes else {
            // Introduced and never served.
            self.note_indexes(id, page);
            return Ok(Resumption::From(page.requests_taken));
        };
        let ahead = ours.requests_taken.wrapping_sub(page.requests_taken);
        let is_ahead = usize::try_from(ahead).is_ok_and(|ahead| ahead <= RING_BYTES);
        if !is_ahead || connection.consume_to(page.replies_put).is_none() {
            return Err(RingError::BadIndex);
        }
        self.ready.insert(id);
        Ok(Resumption::From(ours.requests_taken))
    }

    // What the rest of the server records

    /// Whether this connection outlives the process, so that what concerns it is recorded.
    pub(super) fn records(&self, id: ConnId) -> bool {
        self.store.recorder.is_on()
            && self.connections.get(&id).is_some_and(super::Connection::is_ring)
    }

    /// The state of a domain after any change of it.
    pub(super) fn record_domain(&mut self, domid: DomId) {
        if !self.store.recorder.is_on() {
            return;
        }
        let Some(domain) = self.domains.get(domid) else { return };
        self.store.recorder.record(&super::checkpoint::domain_record(domid, domain));
    }

    pub(super) fn record_special(&mut self, path: Path<'_>, acl: &Acl) {
        if self.store.recorder.is_on() {
            self.store.recorder.record(&Record::SpecialAcl { path, acl: &encode_acl(acl) });
        }
    }

    /// A ring was connected.
    pub(super) fn record_ring(&mut self, id: ConnId) {
        if !self.store.recorder.is_on() {
            return;
        }
        if let Some(connection) = self.connections.get(&id)
            && let Some(record) = super::checkpoint::ring_record(id, connection)
        {
            self.store.recorder.record(&record);
        }
    }

    /// The ring lost everything and begins anew.
    pub(super) fn record_reset(&mut self, id: ConnId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !connection.is_ring() {
            return;
        }
        connection.seat.indexes = None;
        connection.seat.must_reset = true;
        let port = connection.seat.port.0;
        self.store.recorder.record(&Record::RingReset { connection: id.number(), port });
    }

    pub(super) fn record_broken(&mut self, id: ConnId) {
        if self.records(id) {
            self.store.recorder.record(&Record::RingBroken { connection: id.number() });
        }
    }

    /// Pending input, if it has changed.
    pub(super) fn record_input(&mut self, id: ConnId, had_input: bool) {
        if !self.store.recorder.is_on() {
            return;
        }
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.is_ring() && (had_input || !connection.input.is_empty()) {
            let bytes = &connection.input;
            self.store.recorder.record(&Record::Input { connection: id.number(), bytes });
        }
    }

    /// Part of a long message was added to the pending input.
    pub(super) fn record_more_input(&mut self, id: ConnId, bytes: &[u8]) {
        if !bytes.is_empty() && self.records(id) {
            self.store.recorder.record(&Record::MoreInput { connection: id.number(), bytes });
        }
    }

    /// A request about a transaction, before it is executed: its effects inside the transaction are
    /// brought back by executing it again on the same tree.
    pub(super) fn record_request(&mut self, id: ConnId, header: Header, payload: &[u8]) {
        let kind = MessageType::from_code(header.code);
        let starts = kind == Some(MessageType::TransactionStart);
        if !(starts || header.transaction_id != 0) || !self.records(id) {
            return;
        }
        if kind.is_some_and(super::replay::is_replayed) {
            self.store.recorder.record(&Record::Request {
                connection: id.number(),
                code: header.code,
                transaction_id: header.transaction_id,
                payload,
            });
        }
    }

    pub(super) fn record_reply(&mut self, id: ConnId, header: Header, code: u32, payload: &[u8]) {
        if self.records(id) {
            self.store.recorder.record(&Record::Reply {
                connection: id.number(),
                code,
                request_id: header.request_id,
                transaction_id: header.transaction_id,
                payload,
            });
        }
    }

    pub(super) fn record_event(&mut self, watch: &Arc<Watch>, path: Path<'_>) {
        if self.records(watch.connection) {
            self.store.recorder.record(&Record::Event {
                connection: watch.connection.number(),
                path: watch.spell(path),
                token: &watch.token,
            });
        }
    }

    /// Something was taken out of what waits for the ring.
    pub(super) fn record_output(&mut self, id: ConnId) {
        if !self.records(id) {
            return;
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let recorder = &mut self.store.recorder;
        if let Some(record) = super::checkpoint::indexes_record(id, connection) {
            recorder.record(&record);
        }
        let (bytes, reply_ends) = connection.output.unsent();
        let connection = id.number();
        recorder.record(&Record::Output { connection, bytes: &bytes, reply_ends });
    }

    pub(super) fn record_watch(&mut self, watch: &Arc<Watch>) {
        if self.records(watch.connection) {
            self.store.recorder.record(&super::checkpoint::watch_record(watch));
        }
    }

    pub(super) fn record_unwatch(&mut self, id: ConnId, path: Path<'_>, token: &[u8]) {
        if self.records(id) {
            let connection = id.number();
            self.store.recorder.record(&Record::Unwatch { connection, path, token });
        }
    }

    pub(super) fn record_reset_watches(&mut self, id: ConnId) {
        if self.records(id) {
            self.store.recorder.record(&Record::ResetWatches { connection: id.number() });
        }
    }

    pub(super) fn record_quota(&mut self) {
        let quota = self.domains.quota;
        self.store.recorder.record(&Record::Quota { quota });
    }

    pub(super) fn record_numbers(&mut self) {
        let (connection, life) = (self.last_connection, self.domains.last_life());
        self.store.recorder.record(&Record::Numbers { connection, life });
    }
}
