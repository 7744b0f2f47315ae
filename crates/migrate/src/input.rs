//! Bytes of a stream that have come and were not parsed yet.

use crate::error::{Fault, StreamError};

/// Longest body of a record, as in Xen's reader. Source: `tools/libs/guest/xg_sr_stream_format.h`.
pub const RECORD_BYTES_MAX: usize = 128 << 20;

const RECORD_HEADER_BYTES: usize = 8;

/// The unparsed part of a stream. It is shared by the parsers of nested streams.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Of the first unparsed byte in `bytes`.
    start: usize,
    /// Of that byte in the stream.
    offset: u64,
    has_ended: bool,
}

/// A record that is complete.
#[derive(Debug)]
pub(crate) struct RawRecord {
    pub(crate) kind: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) offset: u64,
}

impl Input {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// More bytes have come.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// No more will come: what is incomplete now is an error.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Bytes that have not been parsed.
    #[must_use]
    pub fn unparsed(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// They themselves.
    #[must_use]
    pub fn unparsed_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Takes this many of them.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.bytes[self.start..self.start + count].to_vec();
        self.consume(count);
        taken
    }

    /// Takes all of them.
    #[must_use]
    pub fn take_unparsed(&mut self) -> Vec<u8> {
        self.take(self.unparsed())
    }

    /// Offset of the first of them in the stream.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next `length` bytes, once all of them have come.
    pub(crate) fn peek(&self, length: usize, what: &str) -> Result<Option<&[u8]>, StreamError> {
        match self.bytes[self.start..].get(..length) {
            Some(bytes) => Ok(Some(bytes)),
            None if self.has_ended => Err(self.error(what, Fault::Truncated)),
            None => Ok(None),
        }
    }

    /// As many bytes as this, which were peeked, are parsed.
    pub(crate) fn consume(&mut self, length: usize) {
        assert!(length <= self.unparsed(), "only what was peeked is parsed");
        self.start += length;
        self.offset += length as u64;
    }

    pub(crate) fn error(&self, what: &str, fault: Fault) -> StreamError {
        StreamError { place: format!("{what} at byte {}", self.offset), fault }
    }

    /// The next record. `name` tells what its type is called, `bytes_max` how long it may be; `number`
    /// is its position.
    pub(crate) fn record(
        &mut self,
        number: u64,
        name: fn(u32) -> &'static str,
        bytes_max: fn(u32) -> usize,
    ) -> Result<Option<RawRecord>, StreamError> {
        let what = format!("record {number}");
        let Some(header) = self.peek(RECORD_HEADER_BYTES, &what)? else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("inside"));
        let (kind, length) = (word(0), word(4));
        let what = format!("record {number} ({})", name(kind));
        let length = match usize::try_from(length) {
            Ok(length) if length <= bytes_max(kind).min(RECORD_BYTES_MAX) => length,
            _ => return Err(self.error(&what, Fault::TooLong(length.into()))),
        };
        let padded = length.next_multiple_of(8);
        let Some(bytes) = self.peek(RECORD_HEADER_BYTES + padded, &what)? else {
            return Ok(None);
        };
        let (body, padding) = bytes[RECORD_HEADER_BYTES..].split_at(length);
        if padding.iter().any(|byte| *byte != 0) {
            return Err(self.error(&what, Fault::Padding));
        }
        let record = RawRecord { kind, body: body.to_vec(), offset: self.offset };
        self.consume(RECORD_HEADER_BYTES + padded);
        Ok(Some(record))
    }
}
