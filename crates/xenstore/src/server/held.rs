//! Requests that are answered later than they are made: the client waits, and everybody else goes on.

use crate::server::{ConnId, Server};
use crate::wire;

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
}
