//! Messages as this side of a connection sees them: requests to bytes, bytes to replies and events.
//!
//! Works on bytes alone; sockets and rings bring them.

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use xenstore::wire::{self, HEADER_BYTES, Header, MessageType};

/// A reply's payload, or the name of an error.
pub type Answer = Result<Vec<u8>, String>;

/// A watch event.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Event {
    pub path: String,
    pub token: String,
}

/// One message from the server.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub code: u32,
    pub request_id: u32,
    pub payload: &'a [u8],
}

/// Appends a request.
pub fn request(
    out: &mut Vec<u8>,
    kind: MessageType,
    request_id: u32,
    transaction: u32,
    parts: &[&[u8]],
) {
    wire::encode(out, kind.code(), request_id, transaction, parts);
}

impl Message<'_> {
    /// The payload, or the error's name.
    pub fn answer(&self) -> Answer {
        if self.code == MessageType::Error.code() {
            let name = self.payload.strip_suffix(b"\0").unwrap_or(self.payload);
            Err(String::from_utf8_lossy(name).into_owned())
        } else {
            Ok(self.payload.to_vec())
        }
    }

    pub fn is_event(&self) -> bool {
        self.code == MessageType::WatchEvent.code()
    }
}

/// Bytes that came, cut into messages.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Longer than what came, so that no read begins with clearing its space.
    buffer: Vec<u8>,
    /// Where the first message that was not taken begins, and where what came ends.
    start: usize,
    end: usize,
    events: VecDeque<Event>,
}

impl Inbox {
    /// Takes bytes as `read` leaves them: it is handed free space and says how much it filled.
    pub(super) fn fill(
        &mut self,
        room: usize,
        read: impl FnOnce(&mut [u8]) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 64 * 1024 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() < self.end + room {
            self.buffer.resize(self.end + room, 0);
        }
        let filled = read(&mut self.buffer[self.end..self.end + room]);
        self.end += *filled.as_ref().unwrap_or(&0);
        filled
    }

    /// The next message, event or reply, if it is complete.
    pub(super) fn next_message(&mut self) -> Result<Option<Message<'_>>> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(header) =
            Header::decode_with_batches(bytes).context("the server sends nonsense")?
        else {
            return Ok(None);
        };
        let length = HEADER_BYTES + header.payload_bytes();
        if bytes.len() < length {
            return Ok(None);
        }
        let start = self.start + HEADER_BYTES;
        self.start += length;
        let payload = &self.buffer[start..self.start];
        Ok(Some(Message { code: header.code, request_id: header.request_id, payload }))
    }

    /// The next reply; events before it are kept for [`take_events`](Self::take_events).
    pub(super) fn next_reply(&mut self, request_id: u32) -> Result<Option<Answer>> {
        loop {
            let Some(message) = self.next_message()? else { return Ok(None) };
            if message.is_event() {
                let event = decode_event(message.payload)?;
                self.events.push_back(event);
                continue;
            }
            let found = message.request_id;
            ensure!(found == request_id, "request {request_id} was answered as {found}");
            return Ok(Some(message.answer()));
        }
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }
}

fn decode_event(payload: &[u8]) -> Result<Event> {
    let mut strings = wire::strings(payload);
    let mut next = || -> Result<String> {
        let text = strings.next().context("an event of fewer than two strings")?;
        Ok(String::from_utf8_lossy(text).into_owned())
    };
    Ok(Event { path: next()?, token: next()? })
}
