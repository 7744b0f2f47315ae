//! Store messages as a guest sends and receives them, and the states of a device.
//!
//! Source: xen `io/xs_wire.h`, `io/xenbus.h`.

use crate::text::decimal_u32;

pub const HEADER_BYTES: usize = 16;
/// Largest payload either way.
pub const PAYLOAD_BYTES_MAX: usize = 4096;

/// The messages this guest uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Kind {
    Directory = 1,
    Read = 2,
    Watch = 4,
    Unwatch = 5,
    TransactionStart = 6,
    TransactionEnd = 7,
    Write = 11,
    Rm = 13,
    WatchEvent = 15,
    Error = 16,
}

/// The header in front of each message, both ways.
///
/// Invariant: `payload_bytes <= PAYLOAD_BYTES_MAX`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    pub kind: u32,
    pub request: u32,
    pub transaction: u32,
    payload_bytes: usize,
}

/// The announced payload is too long; the stream cannot be followed further.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Oversized(pub u32);

impl Header {
    /// A header for a payload; `None` if the payload is too long to send.
    #[must_use]
    pub fn new(kind: Kind, request: u32, transaction: u32, payload_bytes: usize) -> Option<Self> {
        (payload_bytes <= PAYLOAD_BYTES_MAX).then_some(Self {
            kind: kind as u32,
            request,
            transaction,
            payload_bytes,
        })
    }

    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        // The invariant keeps the length far below 2^32.
        let payload_bytes = u32::try_from(self.payload_bytes).unwrap_or(u32::MAX);
        let words = [self.kind, self.request, self.transaction, payload_bytes];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    /// [`Oversized`] if the payload exceeds [`PAYLOAD_BYTES_MAX`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Oversized> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let payload_bytes = word(12) as usize;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(Oversized(word(12)));
        }
        Ok(Self { kind: word(0), request: word(4), transaction: word(8), payload_bytes })
    }
}

/// Why the store did not do what was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// `ENOENT`
    Missing,
    /// `EACCES`
    Denied,
    /// `EAGAIN`: the transaction met another one and must be run again.
    Again,
    /// Any other answer.
    Other,
}

impl Refusal {
    #[must_use]
    pub fn decode(payload: &[u8]) -> Self {
        match payload {
            b"ENOENT\0" => Self::Missing,
            b"EACCES\0" => Self::Denied,
            b"EAGAIN\0" => Self::Again,
            _ => Self::Other,
        }
    }
}

/// Path and token of a watch event; `None` if it is not two strings, each ended by a NUL.
#[must_use]
pub fn decode_event(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let payload = payload.strip_suffix(b"\0")?;
    let end = payload.iter().position(|byte| *byte == 0)?;
    let (path, token) = (&payload[..end], &payload[end + 1..]);
    (!token.contains(&0)).then_some((path, token))
}

/// The names in the answer to `Kind::Directory`.
pub fn names(payload: &[u8]) -> impl Iterator<Item = &str> {
    payload
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .filter_map(|name| core::str::from_utf8(name).ok())
}

/// Where one end of a device stands. A missing or senseless node is `Unknown`, which counts as
/// closed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum State {
    Unknown = 0,
    Initialising = 1,
    InitWait = 2,
    Initialised = 3,
    Connected = 4,
    Closing = 5,
    Closed = 6,
    Reconfiguring = 7,
    Reconfigured = 8,
}

impl State {
    #[must_use]
    pub fn decode(value: &[u8]) -> Self {
        match decimal_u32(value) {
            Some(1) => Self::Initialising,
            Some(2) => Self::InitWait,
            Some(3) => Self::Initialised,
            Some(4) => Self::Connected,
            Some(5) => Self::Closing,
            Some(6) => Self::Closed,
            Some(7) => Self::Reconfiguring,
            Some(8) => Self::Reconfigured,
            _ => Self::Unknown,
        }
    }
}

/// What `control/shutdown` asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shutdown {
    Poweroff,
    Reboot,
    Suspend,
    Crash,
}

impl Shutdown {
    /// `None` for an empty value (our own acknowledgement) and for words not known here.
    #[must_use]
    pub fn decode(value: &[u8]) -> Option<Self> {
        match value {
            b"poweroff" | b"halt" => Some(Self::Poweroff),
            b"reboot" => Some(Self::Reboot),
            b"suspend" => Some(Self::Suspend),
            b"crash" => Some(Self::Crash),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire_up_to_the_longest_payload() {
        let header = Header::new(Kind::Write, 7, 9, PAYLOAD_BYTES_MAX).unwrap();
        assert_eq!(header.encode()[..8], [11, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        assert_eq!(Header::new(Kind::Write, 7, 9, PAYLOAD_BYTES_MAX + 1), None);
    }

    #[test]
    fn an_oversized_announcement_ends_the_stream() {
        let mut bytes = Header::new(Kind::Read, 0, 0, 0).unwrap().encode();
        bytes[12..16].copy_from_slice(&4097u32.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(Oversized(4097)));
    }

    #[test]
    fn an_event_is_exactly_two_strings() {
        assert_eq!(decode_event(b"a/b\x001\0"), Some((&b"a/b"[..], &b"1"[..])));
        assert_eq!(decode_event(b"\0\0"), Some((&b""[..], &b""[..])));
        for bad in [&b""[..], b"\0", b"a", b"a\0", b"a\0b", b"a\0b\0c\0"] {
            assert_eq!(decode_event(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_directory_answer_is_names_and_nothing_else() {
        assert_eq!(names(b"vbd\0vif\0").collect::<Vec<_>>(), ["vbd", "vif"]);
        assert_eq!(names(b"").count(), 0);
        assert_eq!(names(b"\xff\0ok\0").collect::<Vec<_>>(), ["ok"]);
    }

    #[test]
    fn a_state_out_of_range_counts_as_gone() {
        assert_eq!(State::decode(b"4"), State::Connected);
        for bad in [&b""[..], b"9", b"-1", b"4294967297", b"x"] {
            assert_eq!(State::decode(bad), State::Unknown, "{bad:?}");
        }
    }

    #[test]
    fn an_empty_request_is_no_shutdown() {
        assert_eq!(Shutdown::decode(b"halt"), Some(Shutdown::Poweroff));
        assert_eq!(Shutdown::decode(b""), None);
        assert_eq!(Shutdown::decode(b"poweroff\0"), None);
    }

    #[test]
    fn refusals_are_told_apart_by_name() {
        assert_eq!(Refusal::decode(b"ENOENT\0"), Refusal::Missing);
        assert_eq!(Refusal::decode(b"EAGAIN\0"), Refusal::Again);
        assert_eq!(Refusal::decode(b"ENOENT"), Refusal::Other);
    }
}
