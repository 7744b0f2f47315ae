//! Requests with delayed answers: only their client waits.

use alloc::vec::Vec;

use crate::server::{ConnId, Host, Server};
use crate::wire::{self, HEADER_BYTES, Header, MessageType};

impl Server {
    /// Whether the client waits for an answer that [`answer_held`](Self::answer_held) gives.
    #[must_use]
    pub fn is_held(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.held.is_some())
    }

    /// Answers the request that the client waits for, if it does. Call [`receive`](Self::receive) with
    /// no bytes afterwards: it may have sent more.
    pub fn answer_held(&mut self, id: ConnId, text: &str) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(header) = connection.held.take() else { return };
        let payload = [text.as_bytes(), b"\0"].concat();
        connection.output.reply(|out| {
            wire::encode(out, header.code, header.request_id, header.transaction_id, &[&payload]);
        });
        self.ready.insert(id);
        self.record_reply(id, header, header.code, &payload);
    }

    /// From now on clients without an open transaction wait before beginning one, so that in the
    /// end none is open; everything else continues.
    pub fn hold_transactions(&mut self) {
        self.holds_transactions = true;
    }

    /// Allows transactions again. Returns the clients that waited: call [`receive`](Self::receive)
    /// with no bytes for each, then read their input.
    pub fn resume_transactions(&mut self) -> Vec<ConnId> {
        self.holds_transactions = false;
        let ids: Vec<ConnId> = self.connections.iter().map(|(id, _)| *id).collect();
        let mut waits = |id: &ConnId| {
            let connection = self.connections.get_mut(id);
            connection.is_some_and(|it| core::mem::take(&mut it.waits_with_transaction))
        };
        ids.into_iter().filter(|id| waits(id)).collect()
    }

    /// Whether the client waits to begin a transaction. Do not read from it meanwhile.
    #[must_use]
    pub fn waits_with_transaction(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.waits_with_transaction)
    }

    /// Executes every complete pending request except delayed transactions: C xenstored takes over
    /// complete requests, but the last of a client first.
    pub fn execute_waiting(&mut self, host: &mut dyn Host) {
        self.is_leaving = true;
        for id in self.connections.iter().map(|(id, _)| *id).collect::<Vec<_>>() {
            // Invalid data remains, for the next daemon.
            let _oversized = self.receive(host, id, &[]);
        }
        self.is_leaving = false;
    }

    /// Whether this request must wait. Not if the client has sent further requests already.
    pub(super) fn is_put_off(&mut self, id: ConnId, header: Header, rest: &[u8]) -> bool {
        if !self.holds_transactions || header.code != MessageType::TransactionStart.code() {
            return false;
        }
        if let Ok(Some(next)) = Header::decode_with_batches(rest)
            && rest.len() >= HEADER_BYTES + next.payload_bytes()
        {
            return false;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.waits_with_transaction = connection.transactions.is_empty();
        connection.waits_with_transaction
    }

    /// Maximum pending input of any client, in bytes.
    #[must_use]
    pub fn input_bytes_max(&self) -> usize {
        self.connections.iter().map(|(_, connection)| connection.input.len()).max().unwrap_or(0)
    }
}
