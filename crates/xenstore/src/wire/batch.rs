//! The batch message: a read set, or a guarded write set, in one request and one reply.
//!
//! It is an extension of Xylem's ([`MessageType::Batch`], far from the protocol's other types) and
//! offered to socket clients only; a ring, and every other store, answers `ENOSYS`. So a client
//! just tries, first with a message of at most 4096 bytes, because other stores close a connection
//! that announces more; an empty batch is a mere probe. There is no bit of `GET_FEATURE` for it:
//! toolstacks pass those bits on to guests.
//!
//! # Request
//!
//! All numbers are native endian, as in the header; nothing is padded.
//!
//! | offset | bytes | what |
//! |--|--|--|
//! | 0 | 4 | format: 1; another is refused with `EINVAL` |
//! | 4 | 4 | number of entries, at most [`ENTRIES_MAX`] |
//! | 8 | | the entries |
//!
//! | offset in an entry | bytes | what |
//! |--|--|--|
//! | 0 | 4 | what it is, see below |
//! | 4 | 4 | flags: 1 = its refusal is a result, and does not refuse the whole |
//! | 8 | 4 | length of its payload, at most 4096 |
//! | 12 | | its payload: that of the message of the same type |
//!
//! | entry | payload | refused with |
//! |--|--|--|
//! | 1 `DIRECTORY`, 2 `READ`, 3 `GET_PERMS`, 22 `DIRECTORY_PART` | as the messages | as the messages; a `DIRECTORY` may be longer than 4096 |
//! | 11 `WRITE`, 12 `MKDIR`, 13 `RM`, 14 `SET_PERMS` | as the messages | as the messages |
//! | 256 present | `path\|` | `ENOENT` |
//! | 257 absent | `path\|` | `EEXIST` |
//! | 258 value | `path\|value` | `ENOENT`, or `EAGAIN` if the value is another |
//! | 259 children | `path\|generation\|` as `DIRECTORY_PART` gave it | `ENOENT`, or `EAGAIN` if children came or went since |
//!
//! Entries are executed in order and see the changes of earlier ones. No other client is served
//! meanwhile, so everything is read from one state of the store. If an entry is refused, and its
//! flag does not say otherwise, none of the changes takes effect. The events of the changes are
//! queued before the reply.
//!
//! Inside a transaction (transaction id other than 0) the changes belong to it, and a refused batch
//! makes its commit fail with `ENOMEM`.
//!
//! # Reply
//!
//! | offset | bytes | what |
//! |--|--|--|
//! | 0 | 4 | 0: done; else the error, as its number in the protocol's list counted from 1 (`EINVAL` = 1) |
//! | 4 | 4 | which entry was refused, counted from 0; the number of entries if it was the commit |
//! | 8 | 4 | number of results; none if the batch was refused |
//! | 12 | | the results, in the order of the entries: error or 0 (4 bytes), length (4), payload as in the reply of the message |
//!
//! A reply has at most [`BATCH_PAYLOAD_BYTES_MAX`] bytes. A batch that only reads is answered as
//! far as that reaches: fewer results than entries mean that the client asks again for the rest
//! (inside a transaction if all must be of one state). One that changes something is refused with
//! `E2BIG` then. The `ERROR` reply means that the batch itself is invalid: `EINVAL`, or `E2BIG` for
//! too many entries.
//!
//! [`MessageType::Batch`]: super::MessageType::Batch

use alloc::vec::Vec;

use crate::Error;
use crate::wire::PAYLOAD_BYTES_MAX;

/// Largest payload of a batch and of its reply, in bytes. With its header such a message stays below
/// 64 KiB: the state stream of a live update counts an unfinished message with 16 bits.
pub const BATCH_PAYLOAD_BYTES_MAX: usize = 60 * 1024;

/// Most entries in one batch. Bounds how long others wait for it.
pub const ENTRIES_MAX: usize = 1024;

const FORMAT: u32 = 1;
const REQUEST_HEADER_BYTES: usize = 8;
const ENTRY_HEADER_BYTES: usize = 12;
const REPLY_HEADER_BYTES: usize = 12;
const RESULT_HEADER_BYTES: usize = 8;
const FLAG_OPTIONAL: u32 = 1;

macro_rules! entry_kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// Kind of an entry of a batch.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum EntryKind {
            $($(#[$doc])* $name = $code,)*
        }

        impl EntryKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            fn code(self) -> u32 {
                match self { $(Self::$name => $code,)* }
            }
        }
    };
}

entry_kinds! {
    Directory = 1;
    Read = 2;
    GetPerms = 3;
    Write = 11;
    Mkdir = 12;
    Rm = 13;
    SetPerms = 14;
    DirectoryPart = 22;
    /// The node exists.
    GuardPresent = 256;
    /// The node does not exist.
    GuardAbsent = 257;
    /// The node has this value.
    GuardValue = 258;
    /// The node's list of children has this generation.
    GuardChildren = 259;
}

impl EntryKind {
    /// Whether it can change the store.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Mkdir | Self::Rm | Self::SetPerms)
    }
}

/// Consequence of an entry's failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The whole batch fails: nothing takes effect.
    OfAll,
    /// Only this entry fails.
    OfItself,
}

/// A received entry; only its payload's length has been checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry<'a> {
    pub kind: EntryKind,
    pub refusal: Refusal,
    pub payload: &'a [u8],
}

/// There is no room for another entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

/// The payload of a batch under construction.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
    entries: u32,
}

impl Default for Request {
    fn default() -> Self {
        let mut bytes = Vec::new();
        put(&mut bytes, FORMAT);
        put(&mut bytes, 0);
        Self { bytes, entries: 0 }
    }
}

impl Request {
    /// Appends an entry.
    ///
    /// # Errors
    /// [`Full`]: it fits into another batch, unless its payload alone exceeds [`PAYLOAD_BYTES_MAX`].
    pub fn push(&mut self, kind: EntryKind, refusal: Refusal, payload: &[u8]) -> Result<(), Full> {
        let bytes = self.bytes.len() + ENTRY_HEADER_BYTES + payload.len();
        if payload.len() > PAYLOAD_BYTES_MAX
            || bytes > BATCH_PAYLOAD_BYTES_MAX
            || self.len() == ENTRIES_MAX
        {
            return Err(Full);
        }
        put(&mut self.bytes, kind.code());
        put(&mut self.bytes, if refusal == Refusal::OfItself { FLAG_OPTIONAL } else { 0 });
        put_length(&mut self.bytes, payload.len());
        self.bytes.extend_from_slice(payload);
        self.entries += 1;
        self.bytes[4..REQUEST_HEADER_BYTES].copy_from_slice(&self.entries.to_ne_bytes());
        Ok(())
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries as usize
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The message's payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes
    }
}

/// Decodes the payload of a batch.
///
/// # Errors
/// `EINVAL` if it is malformed; `E2BIG` if it has more than [`ENTRIES_MAX`] entries.
pub fn decode_request(payload: &[u8]) -> Result<Vec<Entry<'_>>, Error> {
    let mut rest = payload;
    if take(&mut rest).ok_or(Error::EINVAL)? != FORMAT {
        return Err(Error::EINVAL);
    }
    let count = take(&mut rest).ok_or(Error::EINVAL)? as usize;
    if count > ENTRIES_MAX {
        return Err(Error::E2BIG);
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(decode_entry(&mut rest).ok_or(Error::EINVAL)?);
    }
    if rest.is_empty() { Ok(entries) } else { Err(Error::EINVAL) }
}

fn decode_entry<'a>(rest: &mut &'a [u8]) -> Option<Entry<'a>> {
    let kind = EntryKind::from_code(take(rest)?)?;
    let refusal = match take(rest)? {
        0 => Refusal::OfAll,
        FLAG_OPTIONAL => Refusal::OfItself,
        _ => return None,
    };
    let payload = take_bytes(rest)?;
    (payload.len() <= PAYLOAD_BYTES_MAX).then_some(Entry { kind, refusal, payload })
}

/// The payload of a reply under construction, appended to `out`.
#[derive(Debug)]
pub(crate) struct ReplyWriter {
    start: usize,
    results: u32,
}

impl ReplyWriter {
    pub(crate) fn new(out: &mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; REPLY_HEADER_BYTES]);
        Self { start, results: 0 }
    }

    /// Begins a result; what is appended from here to [`end_result`](Self::end_result) is its payload.
    pub(crate) fn begin_result(out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(&[0; RESULT_HEADER_BYTES]);
        out.len()
    }

    /// Ends the result whose payload began at `at`.
    ///
    /// # Errors
    /// `E2BIG` if the reply would be too long; the result is taken out again.
    pub(crate) fn end_result(
        &mut self,
        out: &mut Vec<u8>,
        at: usize,
        result: Result<(), Error>,
    ) -> Result<(), Error> {
        if result.is_err() {
            out.truncate(at);
        }
        if out.len() - self.start > BATCH_PAYLOAD_BYTES_MAX {
            out.truncate(at - RESULT_HEADER_BYTES);
            return Err(Error::E2BIG);
        }
        let length = out.len() - at;
        let mut header = Vec::with_capacity(RESULT_HEADER_BYTES);
        put(&mut header, result.err().map_or(0, Error::code));
        put_length(&mut header, length);
        out[at - RESULT_HEADER_BYTES..at].copy_from_slice(&header);
        self.results += 1;
        Ok(())
    }

    /// All entries that have results were executed.
    pub(crate) fn done(self, out: &mut [u8]) {
        out[self.start + 8..self.start + REPLY_HEADER_BYTES]
            .copy_from_slice(&self.results.to_ne_bytes());
    }

    /// The batch was refused: its results are dropped.
    pub(crate) fn refused(self, out: &mut Vec<u8>, entry: usize, error: Error) {
        out.truncate(self.start);
        put(out, error.code());
        put_length(out, entry);
        put(out, 0);
    }
}

/// The reply to a batch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply<'a> {
    /// Results of the first entries, in their order; of all, unless the reply would have been too long.
    Done(Vec<Result<&'a [u8], Error>>),
    /// Nothing took effect because of this entry; its number is that of the entries if the commit was
    /// refused.
    Refused { entry: usize, error: Error },
}

/// Decodes the payload of a reply; `None` if it is malformed.
#[must_use]
pub fn decode_reply(payload: &[u8]) -> Option<Reply<'_>> {
    let mut rest = payload;
    let error = take(&mut rest)?;
    let entry = take(&mut rest)? as usize;
    let count = take(&mut rest)? as usize;
    if error != 0 {
        return Some(Reply::Refused { entry, error: Error::from_code(error) });
    }
    if count > ENTRIES_MAX {
        return None;
    }
    let mut results = Vec::with_capacity(count);
    for _ in 0..count {
        let error = take(&mut rest)?;
        let payload = take_bytes(&mut rest)?;
        results.push(if error == 0 { Ok(payload) } else { Err(Error::from_code(error)) });
    }
    rest.is_empty().then_some(Reply::Done(results))
}

fn put(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_ne_bytes());
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    put(out, u32::try_from(length).expect("bounded by the payload's limit"));
}

fn take(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_ne_bytes(*number))
}

/// A length and as many bytes.
fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take(rest)?).ok()?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn what_was_encoded_decodes_to_the_same() {
        let mut request = Request::default();
        for (i, &kind) in EntryKind::ALL.iter().enumerate() {
            let refusal = if i % 2 == 0 { Refusal::OfAll } else { Refusal::OfItself };
            request.push(kind, refusal, &vec![b'x'; i]).unwrap();
        }
        let entries = decode_request(request.payload()).unwrap();
        assert_eq!(entries.len(), request.len());
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!(entry.kind, EntryKind::ALL[i]);
            assert_eq!(entry.refusal == Refusal::OfItself, i % 2 == 1);
            assert_eq!(entry.payload, vec![b'x'; i]);
        }
    }

    #[test]
    fn a_request_is_whole_or_refused() {
        let mut request = Request::default();
        request.push(EntryKind::Read, Refusal::OfAll, b"/a\0").unwrap();
        request.push(EntryKind::Write, Refusal::OfItself, b"/b\0value").unwrap();
        let payload = request.payload();
        for end in 0..payload.len() {
            assert_eq!(decode_request(&payload[..end]), Err(Error::EINVAL), "{end}");
        }
        assert_eq!(decode_request(&[payload, b"x"].concat()), Err(Error::EINVAL));
        // Another format, an unknown kind, an unknown flag.
        for at in [0, 8, 12] {
            let mut payload = payload.to_vec();
            payload[at] ^= 0x40;
            assert_eq!(decode_request(&payload), Err(Error::EINVAL), "{at}");
        }
        let mut many = payload.to_vec();
        many[4..8].copy_from_slice(&1025u32.to_ne_bytes());
        assert_eq!(decode_request(&many), Err(Error::E2BIG));
    }

    #[test]
    fn a_request_takes_what_fits() {
        let mut request = Request::default();
        let push = |request: &mut Request, bytes: usize| {
            request.push(EntryKind::Write, Refusal::OfAll, &vec![0; bytes])
        };
        assert_eq!(push(&mut request, PAYLOAD_BYTES_MAX + 1), Err(Full));
        while push(&mut request, PAYLOAD_BYTES_MAX).is_ok() {}
        let room = BATCH_PAYLOAD_BYTES_MAX - request.payload().len() - ENTRY_HEADER_BYTES;
        assert_eq!(push(&mut request, room + 1), Err(Full));
        assert_eq!(push(&mut request, room), Ok(()));
        assert_eq!(request.payload().len(), BATCH_PAYLOAD_BYTES_MAX);
        let mut request = Request::default();
        for _ in 0..ENTRIES_MAX {
            push(&mut request, 0).unwrap();
        }
        assert_eq!(push(&mut request, 0), Err(Full));
        assert_eq!(decode_request(request.payload()).map(|entries| entries.len()), Ok(1024));
    }

    #[test]
    fn a_reply_carries_results_or_the_entry_that_was_refused() {
        let mut out = b"before".to_vec();
        let mut writer = ReplyWriter::new(&mut out);
        let at = ReplyWriter::begin_result(&mut out);
        out.extend_from_slice(b"value");
        writer.end_result(&mut out, at, Ok(())).unwrap();
        let at = ReplyWriter::begin_result(&mut out);
        out.extend_from_slice(b"half an answer");
        writer.end_result(&mut out, at, Err(Error::ENOENT)).unwrap();
        let at = ReplyWriter::begin_result(&mut out);
        out.extend_from_slice(&[0; BATCH_PAYLOAD_BYTES_MAX]);
        assert_eq!(writer.end_result(&mut out, at, Ok(())), Err(Error::E2BIG));
        writer.done(&mut out);
        let reply = out.strip_prefix(b"before").unwrap();
        let expected = Reply::Done(vec![Ok(&b"value"[..]), Err(Error::ENOENT)]);
        assert_eq!(decode_reply(reply), Some(expected));
        for end in 0..reply.len() {
            assert_eq!(decode_reply(&reply[..end]), None);
        }
        let mut out = Vec::new();
        let writer = ReplyWriter::new(&mut out);
        writer.refused(&mut out, 7, Error::EAGAIN);
        let refused = Reply::Refused { entry: 7, error: Error::EAGAIN };
        assert_eq!(decode_reply(&out), Some(refused));
    }
}
