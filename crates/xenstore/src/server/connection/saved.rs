//! Pending output of a client, in a state stream.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::path::CanonicalPath;
use crate::server::connection::{Output, Queued, encode_event, event_bytes};
use crate::state::Fault;
use crate::watch::Watch;
use crate::wire::{self, HEADER_BYTES, Header, MessageType};

/// The messages to one client as bytes, with further data.
#[derive(Debug)]
pub(in crate::server) struct SavedOutput<'a> {
    pub(in crate::server) bytes: Vec<u8>,
    /// The first bytes are the rest of a partly sent message.
    pub(in crate::server) partial_bytes: usize,
    /// Leading bytes that are encoded already.
    pub(in crate::server) encoded_bytes: usize,
    /// The ends of replies.
    pub(in crate::server) reply_ends: Vec<usize>,
    /// The queue after the encoded bytes.
    pub(in crate::server) queue: Vec<SavedPiece<&'a Arc<Watch>>>,
}

/// A piece of queued output.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct SavedPiece<W> {
    pub(in crate::server) bytes: usize,
    /// The watch, if it is an event that can be merged.
    pub(in crate::server) watch: Option<W>,
}

impl Output {
    pub(in crate::server) fn save(&self) -> SavedOutput<'_> {
        let mut bytes = self.chunk[self.chunk_start..].to_vec();
        let encoded_bytes = bytes.len();
        let mut queue = Vec::with_capacity(self.queue.len());
        for queued in &self.queue {
            let start = bytes.len();
            let watch = match queued {
                Queued::Message(message) => {
                    bytes.extend_from_slice(message);
                    None
                }
                Queued::Event { watch, path, .. } => {
                    encode_event(&mut bytes, watch, path.as_path());
                    Some(watch)
                }
            };
            queue.push(SavedPiece { bytes: bytes.len() - start, watch });
        }
        let partial_bytes = self.partial_bytes().unwrap_or(bytes.len());
        let end = |end: &u64| usize::try_from(end - self.consumed).expect("within the output");
        let reply_ends = self.reply_ends.iter().map(end).collect();
        SavedOutput { bytes, partial_bytes, encoded_bytes, reply_ends, queue }
    }

    /// The rest of a partly sent message, if message boundaries are known.
    fn partial_bytes(&self) -> Option<usize> {
        if self.begins_within {
            return None;
        }
        let mut start = 0;
        while start < self.chunk_start {
            let header = Header::decode(&self.chunk[start..]).ok().flatten()?;
            start += HEADER_BYTES + header.payload_bytes();
        }
        Some(start - self.chunk_start)
    }

    /// Restores output saved by our own daemon. Events count as queued `now`.
    pub(in crate::server) fn restore(saved: SavedOutput<'_>, now: Duration) -> Result<Self, Fault> {
        let SavedOutput { mut bytes, partial_bytes, encoded_bytes, reply_ends, queue } = saved;
        let fault = "what waits for a client is cut at a place that is not there";
        if encoded_bytes > bytes.len() || reply_ends.iter().any(|end| *end > bytes.len()) {
            return Err(fault.into());
        }
        let queued = bytes.split_off(encoded_bytes);
        let mut output = Self {
            appended: (bytes.len() + queued.len()) as u64,
            queued_bytes: queued.len(),
            chunk: bytes,
            reply_ends: reply_ends.into_iter().map(|end| end as u64).collect(),
            begins_within: partial_bytes > 0,
            ..Self::default()
        };
        if !output.reply_ends.make_contiguous().is_sorted() {
            return Err(fault.into());
        }
        let mut rest = &queued[..];
        for piece in queue {
            if piece.bytes > rest.len() {
                return Err(fault.into());
            }
            let (bytes, after) = rest.split_at(piece.bytes);
            rest = after;
            let queued = match piece.watch {
                Some(watch) => output.restore_event(watch, bytes, now)?,
                None => Queued::Message(bytes.to_vec()),
            };
            output.queue.push_back(queued);
        }
        if rest.is_empty() { Ok(output) } else { Err(fault.into()) }
    }

    /// Restores output saved by another daemon: the rest of a message, then messages.
    pub(in crate::server) fn restore_foreign(
        bytes: Vec<u8>,
        partial_bytes: usize,
    ) -> Result<Self, Fault> {
        let mut reply_ends = Vec::new();
        if partial_bytes > 0 {
            reply_ends.push(partial_bytes);
        }
        let mut end = partial_bytes;
        while end < bytes.len() {
            let header = Header::decode(&bytes[end..]).ok().flatten();
            let header = header.ok_or("what waits for a client is no message")?;
            end += HEADER_BYTES + header.payload_bytes();
            if header.code != MessageType::WatchEvent.code() {
                reply_ends.push(end);
            }
        }
        // Their events are sent as they are.
        let encoded_bytes = bytes.len();
        let queue = Vec::new();
        let saved = SavedOutput { bytes, partial_bytes, encoded_bytes, reply_ends, queue };
        Self::restore(saved, Duration::ZERO)
    }

    fn restore_event(
        &mut self,
        watch: &Arc<Watch>,
        message: &[u8],
        now: Duration,
    ) -> Result<Queued, Fault> {
        let fault = "an event for a client does not match its watch";
        let payload = message.get(HEADER_BYTES..).ok_or(fault)?;
        let spelled = wire::strings(payload).next().ok_or(fault)?;
        let text: Vec<u8> = watch.home().as_bytes().iter().chain(spelled).copied().collect();
        let path = CanonicalPath::new(&text, "").map_err(|_| fault)?;
        let path = path.as_path();
        let reports = path.as_str().len() >= watch.home_bytes();
        if !reports || event_bytes(watch, path) != payload.len() {
            return Err(fault.into());
        }
        let path = path.to_owned_path();
        if !path.as_path().is_special() {
            self.waiting.insert((watch.id, path.clone()));
        }
        Ok(Queued::Event { watch: Arc::clone(watch), path, queued_at: now })
    }
}
