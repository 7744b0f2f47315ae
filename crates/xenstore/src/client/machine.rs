//! Encodes requests, decodes replies and events. No I/O.
//!
//! Replies come in the order of the requests; otherwise the connection is given up.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
use crate::wire::changes::Push;
use crate::wire::{self, HEADER_BYTES, Header, MessageType, Oversized};

/// A watch event.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WatchEvent {
    /// What changed: absolute, or relative if the watch was registered with a relative path.
    pub path: String,
    /// The token that the watch was registered with.
    pub token: String,
}

/// The store violated the protocol; the connection is unusable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProtocolError {
    #[error("{0}")]
    Oversized(#[from] Oversized),
    #[error("a reply of type {code} to request {request_id} answers no request in flight")]
    Unexpected { code: u32, request_id: u32 },
    #[error("a watch event is not a path and a token")]
    BadEvent,
    #[error("the store lost count of the domains' changes: number {found} came after {last}")]
    LostCount { last: u64, found: u64 },
    #[error("the reply to {0:?} does not have the form of one")]
    BadReply(MessageType),
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    kind: MessageType,
    request_id: u32,
}

/// One connection to a store, as a state machine.
///
/// Put requests in with [`request`](Self::request), move [`outgoing`](Self::outgoing) to the store and
/// its bytes into [`handle_bytes`](Self::handle_bytes), then take replies and events out.
#[derive(Debug, Default)]
pub struct ClientMachine {
    last_request_id: u32,
    awaited: VecDeque<Awaited>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    replies: VecDeque<Result<Vec<u8>, Error>>,
    events: VecDeque<WatchEvent>,
    pushes: VecDeque<Push>,
}

impl ClientMachine {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues a request whose payload is the concatenation of `parts`.
    ///
    /// # Errors
    /// `E2BIG` if the payload does not fit into a message; nothing is queued then.
    pub fn request(
        &mut self,
        kind: MessageType,
        transaction_id: u32,
        parts: &[&[u8]],
    ) -> Result<(), Error> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > wire::payload_bytes_max(kind.code()) {
            return Err(Error::E2BIG);
        }
        self.last_request_id = self.last_request_id.wrapping_add(1);
        let request_id = self.last_request_id;
        wire::encode(&mut self.outgoing, kind.code(), request_id, transaction_id, parts);
        self.awaited.push_back(Awaited { kind, request_id });
        Ok(())
    }

    /// Bytes to be sent.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// Drops the first `bytes` of [`outgoing`](Self::outgoing), which were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.drain(..bytes);
    }

    /// Number of requests without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.awaited.len()
    }

    /// Handles bytes from the store and decodes every complete message in them.
    ///
    /// # Errors
    /// [`ProtocolError`]: close the connection.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.incoming.extend_from_slice(bytes);
        let mut at = 0;
        let result = loop {
            match self.handle_message(at) {
                Ok(0) => break Ok(()),
                Ok(length) => at += length,
                Err(error) => break Err(error),
            }
        };
        self.incoming.drain(..at);
        result
    }

    /// Handles the message at `at` and returns its length; 0 if it is not complete.
    fn handle_message(&mut self, at: usize) -> Result<usize, ProtocolError> {
        let bytes = &self.incoming[at..];
        let Some(header) = Header::decode_from_store(bytes)? else { return Ok(0) };
        let length = HEADER_BYTES + header.payload_bytes();
        let Some(payload) = bytes.get(HEADER_BYTES..length) else { return Ok(0) };
        if header.code == MessageType::WatchEvent.code() {
            self.events.push_back(decode_event(payload)?);
            return Ok(length);
        }
        let is_awaited = self.awaited.front().is_some_and(|it| it.request_id == header.request_id);
        if header.code == MessageType::DomainChanges.code() && header.request_id == 0 && !is_awaited
        {
            let bad = ProtocolError::BadReply(MessageType::DomainChanges);
            self.pushes.push_back(Push::decode(payload).ok_or(bad)?);
            return Ok(length);
        }
        let reply = if header.code == MessageType::Error.code() {
            Err(Error::from_name(payload.strip_suffix(b"\0").unwrap_or(payload)))
        } else {
            Ok(payload.to_vec())
        };
        let unexpected =
            ProtocolError::Unexpected { code: header.code, request_id: header.request_id };
        let awaited = self.awaited.pop_front().ok_or(unexpected.clone())?;
        let answers = reply.is_err() || header.code == awaited.kind.code();
        if !answers || header.request_id != awaited.request_id {
            return Err(unexpected);
        }
        self.replies.push_back(reply);
        Ok(length)
    }

    /// The next reply, in the order of the requests.
    pub fn poll_reply(&mut self) -> Option<Result<Vec<u8>, Error>> {
        self.replies.pop_front()
    }

    /// The next message to a follower of domains, in the order of arrival.
    pub fn poll_push(&mut self) -> Option<Push> {
        self.pushes.pop_front()
    }

    /// The next event, in the order of arrival.
    pub fn poll_event(&mut self) -> Option<WatchEvent> {
        self.events.pop_front()
    }
}

fn decode_event(payload: &[u8]) -> Result<WatchEvent, ProtocolError> {
    let mut strings = wire::strings(payload);
    let (Some(path), Some(token)) = (strings.next(), strings.next()) else {
        return Err(ProtocolError::BadEvent);
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(WatchEvent { path: text(path), token: text(token) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PAYLOAD_BYTES_MAX;
    use alloc::vec;

    fn message(code: u32, request_id: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        wire::encode(&mut out, code, request_id, 0, &[payload]);
        out
    }

    #[test]
    fn replies_and_events_may_arrive_in_any_pieces() {
        let mut stream = message(15, 0, b"/a\0token\0");
        stream.extend(message(2, 1, b"value"));
        stream.extend(message(16, 2, b"ENOENT\0"));
        for split in 0..=stream.len() {
            let mut machine = ClientMachine::new();
            machine.request(MessageType::Read, 0, &[b"/a\0"]).unwrap();
            machine.request(MessageType::Read, 0, &[b"/b\0"]).unwrap();
            machine.handle_bytes(&stream[..split]).unwrap();
            machine.handle_bytes(&stream[split..]).unwrap();
            let event = WatchEvent { path: "/a".into(), token: "token".into() };
            assert_eq!(machine.poll_event(), Some(event));
            assert_eq!(machine.poll_reply(), Some(Ok(b"value".to_vec())));
            assert_eq!(machine.poll_reply(), Some(Err(Error::ENOENT)));
            assert_eq!(machine.in_flight(), 0);
        }
    }

    #[test]
    fn a_reply_that_answers_nothing_ends_the_connection() {
        for (code, request_id) in [(2, 2), (11, 1), (2, 0)] {
            let mut machine = ClientMachine::new();
            machine.request(MessageType::Read, 0, &[b"/a\0"]).unwrap();
            let result = machine.handle_bytes(&message(code, request_id, b"x"));
            assert_eq!(result, Err(ProtocolError::Unexpected { code, request_id }));
        }
    }

    #[test]
    fn a_request_that_does_not_fit_is_refused_before_it_is_sent() {
        let mut machine = ClientMachine::new();
        let value = [b'x'; PAYLOAD_BYTES_MAX - 3];
        assert_eq!(machine.request(MessageType::Write, 0, &[b"/a\0", &value]), Ok(()));
        let length = machine.outgoing().len();
        assert_eq!(machine.request(MessageType::Write, 0, &[b"/ab\0", &value]), Err(Error::E2BIG));
        assert_eq!(machine.outgoing().len(), length);
    }
}
