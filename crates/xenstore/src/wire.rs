//! The messages of the xenstore protocol as bytes: header, types, payload limit.
//!
//! Encoding and decoding only; buffering and semantics are elsewhere. Source: xen
//! `xen/include/public/io/xs_wire.h`, `struct xsd_sockmsg`; `docs/misc/xenstore.txt`.

use alloc::vec::Vec;

use crate::Error;

pub mod batch;
pub mod changes;

use batch::BATCH_PAYLOAD_BYTES_MAX;

/// Largest payload of a message in either direction, in bytes (`XENSTORE_PAYLOAD_MAX`).
pub const PAYLOAD_BYTES_MAX: usize = 4096;

/// Size of the header in front of each message, in bytes.
pub const HEADER_BYTES: usize = 16;

/// Who may send a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Asker {
    ControlDomain,
    /// A guest about itself, which is without a payload; the control domain about anybody.
    Oneself,
    Anybody,
}

/// Effect of a request on nodes or transactions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Neither, so that a transaction does not have to know of it.
    Elsewhere,
    ReadsNodes,
    /// A guest pays for it if it may spoil somebody's transaction.
    ChangesNodes,
    OfTransaction,
}

/// Traits of a request type, for the store, its journal and its clients.
///
/// By default a type is for the control domain only, is not repeated when its reply was lost, and
/// is answered with `OK`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Traits {
    pub(crate) asker: Asker,
    /// Idempotent, so a client may repeat it if the reply was lost.
    pub(crate) is_repeatable: bool,
    pub(crate) effect: Effect,
    /// The reply is data, which may be empty.
    pub(crate) replies_data: bool,
    /// The transaction in the header is ignored.
    pub(crate) ignores_transaction: bool,
    /// Only supported by this store, and not offered to guests.
    pub(crate) is_xylems_own: bool,
    /// Not a request.
    pub(crate) is_from_store: bool,
}

impl Traits {
    const NONE: Self = Self {
        asker: Asker::ControlDomain,
        is_repeatable: false,
        effect: Effect::Elsewhere,
        replies_data: false,
        ignores_transaction: false,
        is_xylems_own: false,
        is_from_store: false,
    };

    // The words of the table.

    const fn anybody(self) -> Self {
        Self { asker: Asker::Anybody, ..self }
    }

    const fn oneself(self) -> Self {
        Self { asker: Asker::Oneself, ..self }
    }

    const fn repeatable(self) -> Self {
        Self { is_repeatable: true, ..self }
    }

    const fn reads_nodes(self) -> Self {
        Self { effect: Effect::ReadsNodes, ..self }
    }

    const fn changes_nodes(self) -> Self {
        Self { effect: Effect::ChangesNodes, ..self }
    }

    const fn of_transaction(self) -> Self {
        Self { effect: Effect::OfTransaction, ..self }
    }

    const fn replies_data(self) -> Self {
        Self { replies_data: true, ..self }
    }

    const fn ignores_transaction(self) -> Self {
        Self { ignores_transaction: true, ..self }
    }

    const fn xylems_own(self) -> Self {
        Self { is_xylems_own: true, ..self }
    }

    const fn sent_by_store(self) -> Self {
        Self { is_from_store: true, ..self }
    }
}

macro_rules! message_types {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal $(, $word:ident)*;)*) => {
        /// Type of a message.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum MessageType {
            $($(#[$doc])* $name = $code,)*
        }

        impl MessageType {
            /// Every type, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The type with this code, if the protocol has one.
            #[must_use]
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// The number in the header.
            #[must_use]
            pub fn code(self) -> u32 {
                match self { $(Self::$name => $code,)* }
            }

            /// A name for people and counters.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            pub(crate) fn traits(self) -> Traits {
                match self { $(Self::$name => const { Traits::NONE$(.$word())* },)* }
            }
        }
    };
}

// Who may ask, what it does, and what its reply is: see `Traits`.
message_types! {
    Control = 0, "control";
    Directory = 1, "directory", anybody, reads_nodes, repeatable, replies_data;
    Read = 2, "read", anybody, reads_nodes, repeatable, replies_data;
    GetPerms = 3, "get_perms", anybody, reads_nodes, repeatable, replies_data;
    Watch = 4, "watch", anybody, repeatable, ignores_transaction;
    Unwatch = 5, "unwatch", anybody, repeatable, ignores_transaction;
    TransactionStart = 6, "transaction_start", anybody, of_transaction, repeatable;
    TransactionEnd = 7, "transaction_end", anybody, of_transaction;
    Introduce = 8, "introduce";
    Release = 9, "release";
    GetDomainPath = 10, "get_domain_path", anybody, repeatable;
    /// Writing or removing a node twice has the same result.
    Write = 11, "write", anybody, changes_nodes, repeatable;
    Mkdir = 12, "mkdir", anybody, changes_nodes, repeatable;
    Rm = 13, "rm", anybody, changes_nodes, repeatable;
    SetPerms = 14, "set_perms", anybody, changes_nodes, repeatable;
    /// Sent by the server only.
    WatchEvent = 15, "watch_event", anybody, sent_by_store;
    /// Sent by the server only.
    Error = 16, "error", anybody, sent_by_store;
    IsDomainIntroduced = 17, "is_domain_introduced", repeatable;
    Resume = 18, "resume";
    SetTarget = 19, "set_target";
    ResetWatches = 21, "reset_watches", anybody, repeatable;
    DirectoryPart = 22, "directory_part", anybody, reads_nodes, repeatable, replies_data;
    GetFeature = 23, "get_feature", oneself, repeatable, replies_data;
    SetFeature = 24, "set_feature";
    GetQuota = 25, "get_quota", repeatable, replies_data;
    SetQuota = 26, "set_quota";
    /// Xylem's own, for socket clients: see [`batch`].
    Batch = 0x584c_0001, "batch", xylems_own, replies_data;
    /// Xylem's own, for socket clients: see [`changes`]. Sent by the server as well.
    DomainChanges = 0x584c_0002, "domain_changes", xylems_own, repeatable, replies_data;
}

/// A received header: only its payload's length has been checked.
///
/// Invariant: `payload_bytes` is at most [`PAYLOAD_BYTES_MAX`], or [`BATCH_PAYLOAD_BYTES_MAX`]
/// where that was asked for; so a reader may allocate that much.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// A [`MessageType`] code, or a number the protocol does not have.
    pub code: u32,
    pub request_id: u32,
    pub transaction_id: u32,
    payload_bytes: usize,
}

/// The announced payload is longer than the protocol allows; the stream cannot be resynchronised.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("message announces a payload of {0} bytes, more than the protocol allows")]
pub struct Oversized(pub u32);

impl Header {
    /// The header of a message without a payload.
    pub(crate) fn of_empty(code: u32, request_id: u32, transaction_id: u32) -> Self {
        Self { code, request_id, transaction_id, payload_bytes: 0 }
    }

    /// Decodes the first [`HEADER_BYTES`] of `bytes`, or `None` if there are fewer.
    ///
    /// # Errors
    /// [`Oversized`] if the payload would exceed [`PAYLOAD_BYTES_MAX`].
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Oversized> {
        Self::decode_within(bytes, |_| PAYLOAD_BYTES_MAX)
    }

    /// As [`decode`](Self::decode), on a connection where a [batch](MessageType::Batch) and its reply
    /// may be longer than other messages: a socket.
    ///
    /// # Errors
    /// [`Oversized`] if the payload would exceed the limit of its type.
    pub fn decode_with_batches(bytes: &[u8]) -> Result<Option<Self>, Oversized> {
        Self::decode_within(bytes, payload_bytes_max)
    }

    /// As [`decode`](Self::decode), for a client: oxenstored lists children on a socket beyond the
    /// protocol's limit, so any type may be as long as a batch.
    ///
    /// # Errors
    /// [`Oversized`] if the payload would exceed [`BATCH_PAYLOAD_BYTES_MAX`].
    pub fn decode_from_store(bytes: &[u8]) -> Result<Option<Self>, Oversized> {
        Self::decode_within(bytes, |_| BATCH_PAYLOAD_BYTES_MAX)
    }

    fn decode_within(
        bytes: &[u8],
        payload_bytes_max: impl FnOnce(u32) -> usize,
    ) -> Result<Option<Self>, Oversized> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let word = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let length = word(12);
        match usize::try_from(length) {
            Ok(payload_bytes) if payload_bytes <= payload_bytes_max(word(0)) => Ok(Some(Self {
                code: word(0),
                request_id: word(4),
                transaction_id: word(8),
                payload_bytes,
            })),
            _ => Err(Oversized(length)),
        }
    }

    /// Bytes that follow this header.
    #[must_use]
    pub fn payload_bytes(self) -> usize {
        self.payload_bytes
    }
}

/// The longest payload that a message of this type may have, in either direction.
#[must_use]
pub fn payload_bytes_max(code: u32) -> usize {
    if code == MessageType::Batch.code() { BATCH_PAYLOAD_BYTES_MAX } else { PAYLOAD_BYTES_MAX }
}

/// Appends a message whose payload is the concatenation of `parts`.
///
/// # Panics
/// If the payload exceeds [`payload_bytes_max`], which the caller must check first.
pub fn encode(out: &mut Vec<u8>, code: u32, request_id: u32, transaction_id: u32, parts: &[&[u8]]) {
    let payload_bytes: usize = parts.iter().map(|part| part.len()).sum();
    assert!(payload_bytes <= payload_bytes_max(code), "payload of {payload_bytes} bytes");
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most some ten thousand, asserted above"
    )]
    let length = payload_bytes as u32;
    out.reserve(HEADER_BYTES + payload_bytes);
    for word in [code, request_id, transaction_id, length] {
        out.extend_from_slice(&word.to_ne_bytes());
    }
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends an `ERROR` reply.
pub fn encode_error(out: &mut Vec<u8>, request_id: u32, transaction_id: u32, error: Error) {
    let parts = [error.name().as_bytes(), b"\0"];
    encode(out, MessageType::Error.code(), request_id, transaction_id, &parts);
}

/// The strings of a payload: each ends with a NUL; bytes after the last NUL are left out.
pub fn strings(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = payload.iter().rposition(|&byte| byte == 0).unwrap_or(0);
    let body = if payload.contains(&0) { Some(&payload[..end]) } else { None };
    body.into_iter().flat_map(|body| body.split(|&byte| byte == 0))
}

/// The payload as exactly one string whose only NUL is its last byte.
///
/// # Errors
/// `EINVAL` if there is no NUL, or one before the end.
pub fn one_string(payload: &[u8]) -> Result<&[u8], Error> {
    match payload.split_last() {
        Some((0, text)) if !text.contains(&0) => Ok(text),
        _ => Err(Error::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn announcing(length: u32) -> Vec<u8> {
        [2, 7, 9, length].iter().flat_map(|word: &u32| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_payload_is_bounded() {
        for length in [0, 4096] {
            let header = Header::decode(&announcing(length)).unwrap().unwrap();
            assert_eq!(header.payload_bytes(), length as usize);
        }
        for length in [4097, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            assert_eq!(Header::decode(&announcing(length)), Err(Oversized(length)));
        }
    }

    #[test]
    fn a_batch_may_be_longer_where_batches_are_known() {
        let batch = MessageType::Batch.code();
        let announcing = |code: u32, length: u32| -> Vec<u8> {
            [code, 7, 9, length].iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let max = u32::try_from(BATCH_PAYLOAD_BYTES_MAX).unwrap();
        assert_eq!(Header::decode(&announcing(batch, 4097)), Err(Oversized(4097)));
        for (code, length, fits) in
            [(batch, max, true), (batch, max + 1, false), (2, 4096, true), (2, 4097, false)]
        {
            let header = Header::decode_with_batches(&announcing(code, length));
            assert_eq!(header.is_ok(), fits, "{code} {length}");
        }
    }

    #[test]
    fn a_header_waits_for_its_last_byte() {
        let bytes = announcing(5);
        for end in 0..HEADER_BYTES {
            assert_eq!(Header::decode(&bytes[..end]), Ok(None));
        }
    }

    #[test]
    fn what_was_encoded_decodes_to_the_same() {
        let mut out = vec![];
        encode(&mut out, 11, 3, 4, &[b"/a", b"\0", b"value"]);
        let header = Header::decode(&out).unwrap().unwrap();
        assert_eq!((header.code, header.request_id, header.transaction_id), (11, 3, 4));
        assert_eq!(&out[HEADER_BYTES..], b"/a\0value");
        assert_eq!(header.payload_bytes(), 8);
    }

    #[test]
    fn type_codes_read_back_and_the_removed_one_stays_unknown() {
        for &kind in MessageType::ALL {
            assert_eq!(MessageType::from_code(kind.code()), Some(kind));
        }
        assert_eq!(MessageType::from_code(20), None);
        assert_eq!(MessageType::from_code(27), None);
    }

    #[test]
    fn guests_may_ask_what_they_always_might_and_a_new_request_is_privileged() {
        use MessageType as M;
        let of = |asker| {
            let kinds = M::ALL.iter().copied();
            kinds.filter(|kind| kind.traits().asker == asker).collect::<Vec<_>>()
        };
        let privileged = [
            M::Control,
            M::Introduce,
            M::Release,
            M::IsDomainIntroduced,
            M::Resume,
            M::SetTarget,
            M::SetFeature,
            M::GetQuota,
            M::SetQuota,
            M::Batch,
            M::DomainChanges,
        ];
        assert_eq!(of(Asker::ControlDomain), privileged);
        assert_eq!(of(Asker::Oneself), [M::GetFeature]);
        let new = Traits::NONE;
        assert_eq!((new.asker, new.is_repeatable), (Asker::ControlDomain, false));
    }

    #[test]
    fn strings_end_with_a_nul_each() {
        let split = |payload: &'static [u8]| strings(payload).collect::<Vec<_>>();
        assert_eq!(split(b""), Vec::<&[u8]>::new());
        assert_eq!(split(b"tail"), Vec::<&[u8]>::new());
        assert_eq!(split(b"\0"), [b""]);
        assert_eq!(split(b"a\0bc\0tail"), [&b"a"[..], b"bc"]);
    }

    #[test]
    fn one_string_has_one_nul_at_its_end() {
        assert_eq!(one_string(b"/a\0"), Ok(&b"/a"[..]));
        assert_eq!(one_string(b"\0"), Ok(&b""[..]));
        for payload in [&b""[..], b"/a", b"/a\0\0", b"/\0a\0", b"/a\0b"] {
            assert_eq!(one_string(payload), Err(Error::EINVAL));
        }
    }
}
