//! Bytes of a client become requests, in its order.

use crate::server::clearing;
use crate::server::connection::Peer;
use crate::server::{ConnId, Host, Server};
use crate::wire::{self, HEADER_BYTES, Header, Oversized};

/// Bytes that wait to be executed for one client: the longest message, but for its last byte. More is
/// sent only by one that does not wait for the answer that it is refused until later.
pub(super) const INPUT_BYTES_MAX: usize = HEADER_BYTES + wire::batch::BATCH_PAYLOAD_BYTES_MAX;

impl Server {
    /// Takes bytes from a client and executes every complete request that it may make now.
    ///
    /// Call it with no bytes when [`take_ready`](Self::take_ready) names the connection.
    ///
    /// # Errors
    /// [`Oversized`]: the peer broke the protocol, or sends and sends while its request waits for an
    /// answer. A socket is to be disconnected; a ring gets error 3
    /// and stays as it is until its domain dies.
    pub fn receive(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        bytes: &[u8],
    ) -> Result<(), Oversized> {
        self.receive_some(host, id, bytes, usize::MAX).map(drop)
    }

    /// As [`receive`](Self::receive), but so many requests at most, if nothing was left of the bytes before:
    /// the first replies can go out meanwhile. Says how many of the last bytes are to be given again, before
    /// any others.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn receive_some(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        bytes: &[u8],
        requests: usize,
    ) -> Result<usize, Oversized> {
        self.store.clear_up(clearing::PIECES_WITH_INPUT);
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(0) };
        if connection.broken {
            return Ok(0);
        }
        let batches = connection.peer == Peer::Socket;
        let mut input = core::mem::take(&mut connection.input);
        let had_input = !input.is_empty();
        let mut rest = if input.is_empty() {
            bytes
        } else {
            input.extend_from_slice(bytes);
            &input
        };
        let (mut executed, mut left) = (0, 0);
        let decode = if batches { Header::decode_with_batches } else { Header::decode };
        let result = loop {
            if !self.accepts_requests(id) {
                break Ok(());
            }
            match decode(rest) {
                Ok(Some(header)) => {
                    let length = HEADER_BYTES + header.payload_bytes();
                    let Some(payload) = rest.get(HEADER_BYTES..length) else { break Ok(()) };
                    if self.is_put_off(id, header, &rest[length..]) {
                        break Ok(());
                    }
                    self.handle_request(host, id, header, payload);
                    rest = &rest[length..];
                    executed += 1;
                    if executed == requests && !had_input {
                        left = rest.len();
                        rest = &[];
                    }
                }
                Ok(None) => break Ok(()),
                Err(oversized) => break Err(oversized),
            }
        };
        let result = if rest.len() <= INPUT_BYTES_MAX {
            result
        } else {
            Err(Oversized(u32::try_from(rest.len()).unwrap_or(u32::MAX)))
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            if result.is_err() {
                self.stop_serving(id);
            } else {
                connection.input = rest.to_vec();
                self.record_input(id, had_input);
            }
        }
        if !self.crowded.is_empty() {
            for id in core::mem::take(&mut self.crowded) {
                self.note_use(host, id);
            }
        }
        result.map(|()| left)
    }
}
