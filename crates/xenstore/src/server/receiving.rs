//! Input of clients: bytes become requests, in order.

use crate::ring::RingError;
use crate::server::connection::Peer;
use crate::server::{ConnId, Host, Server, clearing, work};
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
                self.break_ring(id, RingError::PayloadTooLong);
            } else {
                connection.input = if had_input && executed == 0 { input } else { rest.to_vec() };
                self.record_input(id, had_input);
            }
        }
        self.note_crowded(host);
        result.map(|()| left)
    }

    /// As [`receive`](Self::receive), from what a ring holds: executes whole requests until the client's
    /// turn is over or it may make no more, and says how many bytes were taken. The others stay in the
    /// ring, so a client that asks faster than it is served finds the ring full. The beginning of a message
    /// that is not complete yet is always taken.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn receive_from_ring(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        bytes: &[u8],
    ) -> Result<usize, Oversized> {
        self.store.clear_up(clearing::PIECES_WITH_INPUT);
        let end_of_turn = self.work() + work::STEPS_OF_TURN;
        let taken = self
            .finish_input(host, id, bytes, end_of_turn)
            .and_then(|taken| self.execute_from_ring(host, id, bytes, taken, end_of_turn));
        if taken.is_err() {
            self.break_ring(id, RingError::PayloadTooLong);
        }
        self.note_crowded(host);
        taken
    }

    fn may_go_on(&self, id: ConnId, end_of_turn: u64) -> bool {
        self.work() < end_of_turn && self.accepts_requests(id)
    }

    /// Completes and executes what was taken out of the ring before.
    fn finish_input(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        bytes: &[u8],
        end_of_turn: u64,
    ) -> Result<usize, Oversized> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(0) };
        if connection.input.is_empty() || connection.broken {
            return Ok(0);
        }
        let mut input = core::mem::take(&mut connection.input);
        let (mut taken, mut executed) = (0, 0);
        while executed < input.len() && self.may_go_on(id, end_of_turn) {
            let header = Header::decode(&input[executed..])?;
            let length =
                header.map_or(HEADER_BYTES, |header| HEADER_BYTES + header.payload_bytes());
            let missing = length.saturating_sub(input.len() - executed);
            if missing > 0 {
                let more = missing.min(bytes.len() - taken);
                if more == 0 {
                    break;
                }
                input.extend_from_slice(&bytes[taken..taken + more]);
                taken += more;
                continue;
            }
            let Some(header) = header else { break };
            let message = &input[executed..executed + length];
            if self.is_put_off(id, header, &[&input[executed + length..], &bytes[taken..]].concat())
            {
                break;
            }
            self.handle_request(host, id, header, &message[HEADER_BYTES..]);
            executed += length;
        }
        input.drain(..executed);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input = input;
            if executed > 0 {
                self.record_input(id, true);
            } else {
                self.record_more_input(id, &bytes[..taken]);
            }
        }
        Ok(taken)
    }

    /// Executes what comes next in the ring; `taken` bytes of it are gone.
    fn execute_from_ring(
        &mut self,
        host: &mut dyn Host,
        id: ConnId,
        bytes: &[u8],
        mut taken: usize,
        end_of_turn: u64,
    ) -> Result<usize, Oversized> {
        let has_input = |server: &Self| {
            server.connections.get(&id).is_none_or(|connection| !connection.input.is_empty())
        };
        if has_input(self) {
            return Ok(taken);
        }
        while self.may_go_on(id, end_of_turn) {
            let rest = &bytes[taken..];
            let header = Header::decode(rest)?;
            let length =
                header.map_or(HEADER_BYTES, |header| HEADER_BYTES + header.payload_bytes());
            let (Some(header), Some(message)) = (header, rest.get(..length)) else {
                // Linux sends a header and its payload one after the other, and an event only if the ring
                // was empty: what stayed in the ring now would never be heard of again.
                self.take_beginning(id, rest, length);
                taken = bytes.len();
                break;
            };
            if self.is_put_off(id, header, &rest[length..]) {
                break;
            }
            self.handle_request(host, id, header, &message[HEADER_BYTES..]);
            taken += length;
        }
        Ok(taken)
    }

    /// Keeps the beginning of a message of this length until the rest of it arrives.
    fn take_beginning(&mut self, id: ConnId, bytes: &[u8], length: usize) {
        if !bytes.is_empty()
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.input.reserve_exact(length);
            connection.input.extend_from_slice(bytes);
            self.record_input(id, false);
        }
    }

    fn note_crowded(&mut self, host: &mut dyn Host) {
        if !self.crowded.is_empty() {
            for id in core::mem::take(&mut self.crowded) {
                self.note_use(host, id);
            }
        }
    }
}
