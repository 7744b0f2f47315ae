//! A client of the store: input bytes and output messages.

pub(super) mod saved;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use xen::{DomId, EvtchnPort, Gfn};

use crate::acl::Being;
use crate::path::{OwnedPath, Path};
use crate::ring::{RingError, RingIndexes};
use crate::transaction::Transaction;
use crate::watch::{Watch, WatchId};
use crate::wire::{self, HEADER_BYTES, Header, MessageType, PAYLOAD_BYTES_MAX};

/// A connection id, reused only after four billion others.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ConnId(pub(super) u64);

impl ConnId {
    /// The number, for tables of the shell.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The connection with this [`number`](Self::number).
    #[must_use]
    pub fn of_number(number: u64) -> Self {
        Self(number)
    }

    #[cfg(test)]
    pub(crate) fn for_test(id: u64) -> Self {
        Self(id)
    }
}

/// Messages are collected into chunks of about this size.
const CHUNK_BYTES: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Peer {
    /// A process of the control domain.
    Socket,
    /// A domain. The control domain's kernel is one.
    Ring(Being),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Peer,
    /// Prefix of relative paths.
    pub(super) home: String,
    /// Bytes of an incomplete message, or of one that waits until replies were read.
    pub(super) input: Vec<u8>,
    pub(super) output: Output,
    pub(super) watches: OwnWatches,
    pub(super) transactions: BTreeMap<u32, Box<Transaction>>,
    pub(super) last_transaction: u32,
    /// Requests since the connection, or since the takeover by this daemon.
    pub(super) requests: u64,
    /// A request to be answered later. No other is executed before.
    pub(super) held: Option<Header>,
    /// The next request begins a transaction, which must wait.
    pub(super) waits_with_transaction: bool,
    /// The peer violated the protocol: it is no longer served.
    pub(super) broken: bool,
    /// The fault, if known.
    pub(super) fault: Option<RingError>,
    /// There is a deadline for its events.
    pub(super) events_have_deadline: bool,
    pub(super) seat: RingSeat,
}

/// A ring's location and positions. Unused for sockets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingSeat {
    pub(super) gfn: Gfn,
    pub(super) port: EvtchnPort,
    /// Indexes of the ring: taken out of the requests, and put into the replies before the first
    /// byte of the output was. `None` until the ring was read.
    pub(super) indexes: Option<RingIndexes>,
    /// The ring must be reset before it is served.
    pub(super) must_reset: bool,
}

impl Connection {
    pub(super) fn new(peer: Peer, home: String) -> Self {
        Self {
            peer,
            home,
            input: Vec::new(),
            output: Output::default(),
            watches: OwnWatches::default(),
            transactions: BTreeMap::new(),
            last_transaction: 0,
            requests: 0,
            held: None,
            waits_with_transaction: false,
            broken: false,
            fault: None,
            events_have_deadline: false,
            seat: RingSeat::default(),
        }
    }

    /// Drops output that is in the ring already, by the replies' index. `None`: the index does not
    /// match.
    pub(super) fn consume_to(&mut self, replies_put: u32) -> Option<()> {
        let consumed = self.output.consumed().to_le_bytes();
        let consumed = u32::from_le_bytes([consumed[0], consumed[1], consumed[2], consumed[3]]);
        let begin = self.seat.indexes?.replies_put.wrapping_add(consumed);
        let mut rest = usize::try_from(replies_put.wrapping_sub(begin)).ok()?;
        if rest > self.output.bytes() {
            return None;
        }
        while rest > 0 {
            let piece = self.output.bytes_to_send().len().min(rest);
            self.output.consume(piece);
            rest -= piece;
        }
        Some(())
    }

    /// Whether it is the control domain's: a socket or its own ring.
    pub(super) fn is_privileged(&self) -> bool {
        match self.peer {
            Peer::Socket => true,
            Peer::Ring(being) => being.domid == DomId::DOM0,
        }
    }

    pub(super) fn is_ring(&self) -> bool {
        matches!(self.peer, Peer::Ring(_))
    }

    /// Memory held for this client: unfinished input, unread output, watches and transactions.
    pub(super) fn held_bytes(&self) -> usize {
        let transactions = self.transactions.values().map(|open| open.held_bytes()).sum::<usize>();
        self.input.len() + self.output.held_bytes() + self.watches.bytes() + transactions
    }

    /// Compares the maintained sizes with a recount.
    pub(super) fn check(&self) -> Result<(), String> {
        self.output.check()?;
        self.watches.check()?;
        self.transactions.values().try_for_each(|open| open.check())
    }
}

/// Size of a watch besides two copies of its path and token, and its path's names in the index.
const WATCH_BYTES: usize = 640;
const WATCHED_NAME_BYTES: usize = 512;

/// The watches of one client by path and token, and their size.
#[derive(Debug, Default)]
pub(super) struct OwnWatches {
    by_name: BTreeMap<(OwnedPath, Box<[u8]>), WatchId>,
    bytes: usize,
}

impl OwnWatches {
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = WatchId> {
        self.by_name.values().copied()
    }

    /// Size of another watch.
    pub(super) fn bytes_of(path: Path<'_>, token: &[u8]) -> usize {
        let names = path.depth() * WATCHED_NAME_BYTES + path.as_str().len();
        WATCH_BYTES + names + 2 * (path.as_str().len() + token.len())
    }

    pub(super) fn contains(&self, path: Path<'_>, token: &[u8]) -> bool {
        self.by_name.contains_key(&(path.to_owned_path(), token.into()))
    }

    pub(super) fn insert(&mut self, path: Path<'_>, token: &[u8], watch: WatchId) {
        let known = self.by_name.insert((path.to_owned_path(), token.into()), watch);
        assert!(known.is_none(), "a watch is added once");
        self.bytes += Self::bytes_of(path, token);
    }

    pub(super) fn remove(&mut self, path: Path<'_>, token: &[u8]) -> Option<WatchId> {
        let watch = self.by_name.remove(&(path.to_owned_path(), token.into()))?;
        self.bytes -= Self::bytes_of(path, token);
        Some(watch)
    }

    /// Removes all of them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = WatchId> + use<> {
        core::mem::take(self).by_name.into_values()
    }

    fn check(&self) -> Result<(), String> {
        let recount: usize =
            self.by_name.keys().map(|(path, token)| Self::bytes_of(path.as_path(), token)).sum();
        if recount == self.bytes {
            return Ok(());
        }
        Err(alloc::format!("watches of a client take {recount} bytes, not {}", self.bytes))
    }
}

/// Result of queueing an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EventFate {
    Queued,
    /// The same event is queued already.
    Coalesced,
    /// It fits into no message.
    Oversized,
}

/// Messages to one client, in order. Events are queued unencoded, so that equal ones are merged.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Encoded messages; those before `chunk_start` were sent.
    chunk: Vec<u8>,
    chunk_start: usize,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    waiting: BTreeSet<(WatchId, OwnedPath)>,
    /// Total bytes appended and consumed, to know which replies were read.
    appended: u64,
    consumed: u64,
    /// Where in the stream each unread reply ends.
    reply_ends: VecDeque<u64>,
    /// The first bytes may belong to a message that was partly sent before.
    begins_within: bool,
}

#[derive(Debug)]
enum Queued {
    Message(Vec<u8>),
    Event { watch: Arc<Watch>, path: OwnedPath, queued_at: Duration },
}

impl Queued {
    /// Bytes of the message.
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.len(),
            Self::Event { watch, path, .. } => HEADER_BYTES + event_bytes(watch, path.as_path()),
        }
    }
}

/// Overhead of a queued message.
const QUEUED_BYTES: usize = 96;

impl Output {
    /// Pending bytes, encoded or not.
    pub(super) fn bytes(&self) -> usize {
        self.chunk.len() - self.chunk_start + self.queued_bytes
    }

    /// Memory held by them.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes() + QUEUED_BYTES * self.queue.len()
    }

    /// Size of another event.
    pub(super) fn held_bytes_of(watch: &Watch, path: Path<'_>) -> usize {
        QUEUED_BYTES + HEADER_BYTES + event_bytes(watch, path)
    }

    /// Queueing time of the oldest event that is not encoded yet.
    pub(super) fn oldest_event(&self) -> Option<Duration> {
        self.queue.iter().find_map(|queued| match queued {
            Queued::Event { queued_at, .. } => Some(*queued_at),
            Queued::Message(_) => None,
        })
    }

    /// Drops unencoded events queued at `time` or before; returns how many.
    pub(super) fn drop_events_until(&mut self, time: Duration) -> usize {
        let mut reply_ends = core::mem::take(&mut self.reply_ends).into_iter().peekable();
        // The end of each message in the old and the new stream.
        let mut end_before = self.consumed + (self.chunk.len() - self.chunk_start) as u64;
        let mut end = end_before;
        let mut keep_ends = |end_before: u64, end: u64| {
            while let Some(reply_end) = reply_ends.next_if(|reply_end| *reply_end <= end_before) {
                self.reply_ends.push_back(reply_end - (end_before - end));
            }
        };
        keep_ends(end_before, end);
        let before = self.queue.len();
        self.queue.retain(|queued| {
            let length = queued.bytes();
            end_before += length as u64;
            match queued {
                Queued::Event { watch, path, queued_at } if *queued_at <= time => {
                    self.queued_bytes -= length;
                    self.waiting.remove(&(watch.id, path.clone()));
                    false
                }
                _ => {
                    end += length as u64;
                    keep_ends(end_before, end);
                    true
                }
            }
        });
        self.appended = end;
        before - self.queue.len()
    }

    /// Compares the maintained sizes with a recount.
    fn check(&self) -> Result<(), String> {
        let recount: usize = self.queue.iter().map(Queued::bytes).sum();
        if recount != self.queued_bytes {
            let kept = self.queued_bytes;
            return Err(alloc::format!("{recount} bytes are queued for a client, not {kept}"));
        }
        if self.appended - self.consumed == self.bytes() as u64 {
            Ok(())
        } else {
            Err("the output of a client has lost bytes".into())
        }
    }

    /// Number of replies that the client has not read completely.
    pub(super) fn unread_replies(&self) -> usize {
        self.reply_ends.len()
    }

    /// Appends a reply: `compose` appends one message to the buffer.
    pub(super) fn reply(&mut self, compose: impl FnOnce(&mut Vec<u8>)) {
        let length;
        if self.queue.is_empty() && self.chunk.len() < CHUNK_BYTES {
            let start = self.chunk.len();
            compose(&mut self.chunk);
            length = self.chunk.len() - start;
        } else {
            let mut message = Vec::new();
            compose(&mut message);
            length = message.len();
            self.queued_bytes += length;
            self.queue.push_back(Queued::Message(message));
        }
        self.appended += length as u64;
        self.reply_ends.push_back(self.appended);
    }

    /// Appends an event. Events of special paths are never merged: each is for one domain.
    pub(super) fn event(&mut self, watch: &Arc<Watch>, path: Path<'_>, now: Duration) -> EventFate {
        let payload_bytes = event_bytes(watch, path);
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return EventFate::Oversized;
        }
        let path = path.to_owned_path();
        if !path.as_path().is_special() && !self.waiting.insert((watch.id, path.clone())) {
            return EventFate::Coalesced;
        }
        self.queued_bytes += HEADER_BYTES + payload_bytes;
        self.appended += (HEADER_BYTES + payload_bytes) as u64;
        self.queue.push_back(Queued::Event { watch: Arc::clone(watch), path, queued_at: now });
        EventFate::Queued
    }

    /// Appends a message that does not count as a reply.
    pub(super) fn message(&mut self, bytes: Vec<u8>) {
        self.queued_bytes += bytes.len();
        self.appended += bytes.len() as u64;
        self.queue.push_back(Queued::Message(bytes));
    }

    /// Total bytes consumed.
    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// All pending output, encoded, and the ends of replies in it.
    pub(super) fn unsent(&self) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = self.chunk[self.chunk_start..].to_vec();
        for queued in &self.queue {
            match queued {
                Queued::Message(message) => bytes.extend_from_slice(message),
                Queued::Event { watch, path, .. } => {
                    encode_event(&mut bytes, watch, path.as_path());
                }
            }
        }
        (bytes, self.reply_ends.iter().map(|end| end - self.consumed).collect())
    }

    /// The inverse of [`unsent`](Self::unsent).
    pub(super) fn of_unsent(bytes: &[u8], reply_ends: Vec<u64>) -> Self {
        let begins_within = true;
        let mut output = Self { reply_ends: reply_ends.into(), begins_within, ..Self::default() };
        output.message(bytes.to_vec());
        output
    }

    /// The next bytes to send; empty if there are none.
    pub(super) fn bytes_to_send(&mut self) -> &[u8] {
        if self.chunk_start == self.chunk.len() {
            self.chunk.clear();
            self.chunk_start = 0;
            self.begins_within &= self.consumed == 0;
            // Free the memory of an unusually long chunk.
            self.chunk.shrink_to(2 * CHUNK_BYTES);
        }
        while self.chunk.len() < CHUNK_BYTES
            && let Some(queued) = self.queue.pop_front()
        {
            let start = self.chunk.len();
            match queued {
                Queued::Message(message) => self.chunk.extend_from_slice(&message),
                Queued::Event { watch, path, .. } => {
                    encode_event(&mut self.chunk, &watch, path.as_path());
                    self.waiting.remove(&(watch.id, path));
                }
            }
            self.queued_bytes -= self.chunk.len() - start;
        }
        &self.chunk[self.chunk_start..]
    }

    /// Drops the first `bytes` of what [`bytes_to_send`](Self::bytes_to_send) gave.
    pub(super) fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.chunk.len() - self.chunk_start, "more consumed than there was");
        self.chunk_start += bytes;
        self.consumed += bytes as u64;
        while self.reply_ends.front().is_some_and(|end| *end <= self.consumed) {
            self.reply_ends.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn event_bytes(watch: &Watch, path: Path<'_>) -> usize {
    watch.spell(path).len() + 1 + watch.token.len() + 1
}

fn encode_event(out: &mut Vec<u8>, watch: &Watch, path: Path<'_>) {
    let parts = [watch.spell(path).as_bytes(), b"\0", &watch.token, b"\0"];
    wire::encode(out, MessageType::WatchEvent.code(), 0, 0, &parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{WatchRequest, Watches};

    const NOW: Duration = Duration::from_secs(100);

    fn path(text: &str) -> Path<'_> {
        Path::from_canonical(text)
    }

    fn watch(watches: &mut Watches, token: &[u8]) -> Arc<Watch> {
        let (depth, home_bytes, is_privileged) = (None, 0, false);
        let path = path("/a");
        let request = WatchRequest { path, token, depth, home_bytes, is_privileged };
        watches.add(ConnId(1), request)
    }

    fn drain(output: &mut Output) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let piece = output.bytes_to_send().iter().copied().take(7).collect::<Vec<_>>();
            if piece.is_empty() {
                return all;
            }
            output.consume(piece.len());
            all.extend(piece);
        }
    }

    #[test]
    fn equal_events_become_one_until_they_are_on_their_way() {
        let mut watches = Watches::new();
        let (one, two) = (watch(&mut watches, b"1"), watch(&mut watches, b"2"));
        let mut output = Output::default();
        assert_eq!(output.event(&one, path("/a/b"), NOW), EventFate::Queued);
        assert_eq!(output.event(&one, path("/a/b"), NOW), EventFate::Coalesced);
        assert_eq!(output.event(&two, path("/a/b"), NOW), EventFate::Queued);
        assert_eq!(output.event(&one, path("/a"), NOW), EventFate::Queued);
        assert!(!output.bytes_to_send().is_empty());
        assert_eq!(output.event(&one, path("/a/b"), NOW), EventFate::Queued);
        for _ in 0..2 {
            let special = path("@releaseDomain");
            assert_eq!(output.event(&one, special, NOW), EventFate::Queued);
        }
    }

    #[test]
    fn an_event_that_fits_into_no_message_is_left_out() {
        let mut watches = Watches::new();
        let watch = watch(&mut watches, &[b't'; 4090]);
        let mut output = Output::default();
        assert_eq!(output.event(&watch, path("/abc"), NOW), EventFate::Queued);
        assert_eq!(output.event(&watch, path("/abcd"), NOW), EventFate::Oversized);
    }

    #[test]
    fn bytes_and_unread_replies_count_down_to_nothing() {
        let mut watches = Watches::new();
        let watch = watch(&mut watches, b"token");
        let mut output = Output::default();
        for _ in 0..3 {
            output.reply(|out| wire::encode(out, 2, 1, 0, &[b"value"]));
            output.event(&watch, path("/a"), NOW);
        }
        assert_eq!(output.unread_replies(), 3);
        let bytes = output.bytes();
        output.bytes_to_send();
        output.consume(HEADER_BYTES + 4);
        assert_eq!(output.unread_replies(), 3);
        output.consume(1);
        assert_eq!(output.unread_replies(), 2);
        assert_eq!(HEADER_BYTES + 5 + drain(&mut output).len(), bytes);
        assert_eq!((output.unread_replies(), output.bytes()), (0, 0));
        assert!(output.waiting.is_empty());
    }
    #[test]
    fn old_events_are_dropped_from_between_replies() {
        let mut watches = Watches::new();
        let watch = watch(&mut watches, b"token");
        let mut output = Output::default();
        let reply = |output: &mut Output| output.reply(|out| wire::encode(out, 2, 1, 0, &[b"v"]));
        reply(&mut output);
        output.bytes_to_send();
        for (i, name) in ["/a/0", "/a/1", "/a/2"].into_iter().enumerate() {
            let at = Duration::from_secs(i as u64);
            output.event(&watch, path(name), at);
            reply(&mut output);
        }
        assert_eq!(output.oldest_event(), Some(Duration::ZERO));
        assert_eq!(output.drop_events_until(Duration::from_secs(1)), 2);
        assert_eq!(output.check(), Ok(()));
        assert_eq!(output.oldest_event(), Some(Duration::from_secs(2)));
        assert_eq!(output.unread_replies(), 4);
        // A dropped event can be queued again.
        assert_eq!(output.event(&watch, path("/a/0"), NOW), EventFate::Queued);
        assert_eq!(drain(&mut output).len() as u64, output.appended);
        assert_eq!((output.unread_replies(), output.held_bytes()), (0, 0));
        assert_eq!(output.check(), Ok(()));
    }
}
