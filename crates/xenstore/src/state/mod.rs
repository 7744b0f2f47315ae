//! The state of a running store as bytes, passed from one daemon to the next.
//!
//! ```text
//!   "xenstore"  u32 version  u32 flags      big endian; bit 0 of the flags: the rest is, too
//!   u32 type  u32 length  body  padding     a record, padded with zeros to 8 bytes
//!   ...
//!   u32 0     u32 0                         the end
//! ```
//!
//! `record.rs` has the records of Xen's own daemons, `own.rs` those that only ours writes: they carry
//! what the others do not keep (open transactions, the lives of domains, which events can still be
//! merged), and other readers pass them over. What is saved, and how it becomes a store again, is in
//! `server/save.rs` and `server/restore.rs`.
//! Source: xen `docs/designs/xenstore-migration.md`, `tools/xenstored/xenstore_state.h`.

mod own;
mod record;

use alloc::string::String;
use alloc::vec::Vec;

pub use own::{
    ChildList, Client, FullPermissions, Layer, Lives, LivesOf, NO_WATCH, Numbers, Place, Touch,
    TransactionState, TreeNode, TreeNodeContent,
};
pub use record::{
    Connection, DomainQuota, Global, GlobalQuota, Node, Peer, Permissions, Record, Target,
    Transaction, Watch,
};

const IDENT: &[u8; 8] = b"xenstore";
const PREAMBLE_BYTES: usize = 16;
const HEADER_BYTES: usize = 8;
const FLAG_BIG_ENDIAN: u32 = 1;

/// Longest body of a record. A connection's holds what its client has not read, without a limit for
/// those of the control domain; this bounds what a damaged stream makes us wait for.
const BODY_BYTES_MAX: usize = 1 << 30;

/// The reader of the stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    /// C xenstored up to 4.20: no quotas, no features.
    Version1,
    /// C xenstored from 4.21 on.
    Version2,
    /// This daemon: version 2 and our own records.
    Own,
}

impl Form {
    fn version(self) -> u32 {
        if self == Self::Version1 { 1 } else { 2 }
    }
}

/// Why a stream is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the saved state cannot be used: {what} (byte {offset})")]
pub struct StateError {
    pub what: String,
    /// Offset of the invalid record.
    pub offset: u64,
}

/// The fault of one record.
pub(crate) type Fault = String;

/// Appends the beginning of a stream.
pub fn encode_preamble(out: &mut Vec<u8>, form: Form) {
    out.extend_from_slice(IDENT);
    out.extend_from_slice(&form.version().to_be_bytes());
    let flags = if cfg!(target_endian = "big") { FLAG_BIG_ENDIAN } else { 0 };
    out.extend_from_slice(&flags.to_be_bytes());
}

/// Appends one record: `body` writes its fields.
pub(crate) fn encode_record(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    out.resize(out.len().next_multiple_of(8), 0);
    let length = u32::try_from(out.len() - start - HEADER_BYTES).expect("records are small");
    out[start + 4..start + HEADER_BYTES].copy_from_slice(&length.to_ne_bytes());
}

/// Cuts a stream into records, in whatever pieces it arrives.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were handed out.
    taken: usize,
    /// Where in the stream the buffer begins.
    offset: u64,
    has_begun: bool,
}

impl Frames {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.offset += self.taken as u64;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Where the next record begins.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.offset + self.taken as u64
    }

    /// The next record's type and body, or `None` until there are more bytes.
    ///
    /// # Errors
    /// If the stream is not one of this kind or of this machine.
    pub fn next_record(&mut self) -> Result<Option<(u32, &[u8])>, StateError> {
        if !self.has_begun {
            let Some(preamble) = self.buffer.get(..PREAMBLE_BYTES) else { return Ok(None) };
            check_preamble(preamble).map_err(|what| StateError { what: what.into(), offset: 0 })?;
            self.taken = PREAMBLE_BYTES;
            self.has_begun = true;
        }
        let rest = &self.buffer[self.taken..];
        let Some(header) = rest.get(..HEADER_BYTES) else { return Ok(None) };
        let word = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let kind = word(0);
        let length = usize::try_from(word(4)).unwrap_or(usize::MAX);
        if length > BODY_BYTES_MAX {
            let what = alloc::format!("a record of type {kind:#x} says that it has {length} bytes");
            return Err(StateError { what, offset: self.position() });
        }
        // Xen's writer counts the padding, its document does not: both end at the same place.
        let padded = length.next_multiple_of(8);
        if rest.len() < HEADER_BYTES + padded {
            return Ok(None);
        }
        let start = self.taken + HEADER_BYTES;
        let body = &self.buffer[start..start + length];
        let length = record::body_bytes(kind, body);
        self.taken = start + length.next_multiple_of(8);
        Ok(Some((kind, &body[..length])))
    }
}

fn check_preamble(preamble: &[u8]) -> Result<(), &'static str> {
    let (ident, rest) = preamble.split_at(IDENT.len());
    let (version, flags) = rest.split_at(4);
    if ident != IDENT {
        return Err("it does not begin with 'xenstore'");
    }
    if ![1u32, 2].map(u32::to_be_bytes).iter().any(|known| known == version) {
        return Err("its version is neither 1 nor 2");
    }
    let big = u32::from_be_bytes([flags[0], flags[1], flags[2], flags[3]]) & FLAG_BIG_ENDIAN != 0;
    if big != cfg!(target_endian = "big") {
        return Err("it was written on a machine of the other byte order");
    }
    Ok(())
}

/// Reads fields from a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        if count > self.0.len() {
            return Err("a record is shorter than what it says it holds".into());
        }
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.bytes(N)?;
        Ok(bytes.try_into().expect("as many as asked for"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Fault> {
        self.array().map(u8::from_ne_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Fault> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Fault> {
        self.array().map(i64::from_ne_bytes)
    }

    /// Bytes of which the last is the only NUL; without it.
    pub(crate) fn string(&mut self, bytes_with_nul: usize) -> Result<&'a [u8], Fault> {
        match self.bytes(bytes_with_nul)?.split_last() {
            Some((0, text)) if !text.contains(&0) => Ok(text),
            _ => Err("a string does not end where its record says".into()),
        }
    }

    /// Bytes up to the next NUL.
    pub(crate) fn string_to_nul(&mut self) -> Result<&'a [u8], Fault> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.ok_or("a string in a record has no end")?;
        self.string(end + 1)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

pub(crate) fn put_u16(out: &mut Vec<u8>, value: usize) {
    let value = u16::try_from(value).expect("lengths are bounded by the protocol");
    out.extend_from_slice(&value.to_ne_bytes());
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_ne_bytes());
}

pub(crate) fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.push(0);
}
