//! Encoding of requests and answers, and their execution on Xen. Pure, and tested on the simulated
//! Xen.
//!
//! A message is a number repeated in its answer (8 bytes), a kind (4), a value (4), and further
//! data. The result of a poll is in shared memory, [`ENTRY_BYTES`] for each domain, so that any
//! number of domains is one message.

use std::time::Duration;

use xen::{DomId, Errno, Hypervisor, ShutdownReason, Uuid, Xen};
use xenstore::server::{self, DomainNews, DomainState, PollScope};

/// Size of a request, and of an answer without further data.
const HEADER_BYTES: usize = 16;

pub(super) const MESSAGE_BYTES_MAX: usize = 512;

/// domid (2 bytes), flags (1), shutdown reason (1), padding (4), unique id (8), handle (16).
pub(super) const ENTRY_BYTES: usize = 32;

const EXISTS: u8 = 1;
const SHUTDOWN: u8 = 2;
const DYING: u8 = 4;
const HAS_REASON: u8 = 8;
const HAS_UNIQUE_ID: u8 = 16;

/// All possible requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Question {
    Poll(PollScope),
    Domain(DomId),
}

impl Question {
    const LOOK: u32 = 1;
    const DOMAIN: u32 = 2;

    pub(super) fn encode(self, number: u64) -> [u8; HEADER_BYTES] {
        match self {
            Self::Poll(PollScope::Everything) => header(number, Self::LOOK, 0),
            Self::Poll(PollScope::Changes) => header(number, Self::LOOK, 1),
            Self::Domain(domid) => header(number, Self::DOMAIN, domid.0.into()),
        }
    }

    pub(super) fn decode(message: &[u8]) -> Option<(u64, Self)> {
        let (number, kind, value, []) = parts(message)? else { return None };
        let question = match (kind, value) {
            (Self::LOOK, 0) => Self::Poll(PollScope::Everything),
            (Self::LOOK, 1) => Self::Poll(PollScope::Changes),
            (Self::DOMAIN, domid) => Self::Domain(DomId(domid.try_into().ok()?)),
            _ => return None,
        };
        Some((number, question))
    }
}

/// Scope of a poll's entries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Scope {
    All,
    Changed,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    /// The broker is ready. Sent once, without a request.
    Ready,
    /// The broker failed to start, and exits.
    Failed(String),
    News {
        scope: Scope,
        count: usize,
        /// CPU time of the poll; zero where it is not measured.
        cpu: Duration,
    },
    Domain(Option<DomainState>),
    Refused(Errno),
}

impl Answer {
    /// Version of this protocol.
    const VERSION: u32 = 2;
    const READY: u32 = 1;
    const FAILED: u32 = 2;
    const ALL: u32 = 3;
    const CHANGED: u32 = 4;
    const DOMAIN: u32 = 5;
    const REFUSED: u32 = 6;

    pub(super) fn encode(&self, number: u64) -> Vec<u8> {
        let nanoseconds;
        let (kind, value, rest) = match self {
            Self::Ready => (Self::READY, Self::VERSION, &[][..]),
            Self::Failed(text) => {
                let bytes = text.as_bytes();
                let most = MESSAGE_BYTES_MAX - HEADER_BYTES;
                (Self::FAILED, 0, &bytes[..bytes.len().min(most)])
            }
            Self::News { scope, count, cpu } => {
                let kind = if *scope == Scope::All { Self::ALL } else { Self::CHANGED };
                nanoseconds = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX).to_le_bytes();
                (kind, u32::try_from(*count).unwrap_or(u32::MAX), &nanoseconds[..])
            }
            Self::Domain(None) => (Self::DOMAIN, 0, &[][..]),
            Self::Domain(Some(state)) => {
                (Self::DOMAIN, 1, &encode_entry(state.domid, Some(state))[..])
            }
            Self::Refused(errno) => (Self::REFUSED, errno.0.cast_unsigned(), &[][..]),
        };
        [&header(number, kind, value)[..], rest].concat()
    }

    pub(super) fn decode(message: &[u8]) -> Option<(u64, Self)> {
        let (number, kind, value, rest) = parts(message)?;
        let answer = match (kind, value, rest) {
            (Self::READY, Self::VERSION, []) => Self::Ready,
            (Self::FAILED, 0, text) => Self::Failed(String::from_utf8_lossy(text).into_owned()),
            (Self::ALL | Self::CHANGED, count, cpu) => {
                let scope = if kind == Self::ALL { Scope::All } else { Scope::Changed };
                let cpu = Duration::from_nanos(u64::from_le_bytes(cpu.try_into().ok()?));
                Self::News { scope, count: count.try_into().ok()?, cpu }
            }
            (Self::DOMAIN, 0, []) => Self::Domain(None),
            (Self::DOMAIN, 1, entry) => Self::Domain(Some(decode_entry(entry)?.1?)),
            (Self::REFUSED, errno, []) => Self::Refused(Errno(errno.cast_signed())),
            _ => return None,
        };
        Some((number, answer))
    }
}

/// Executes a request on Xen. The result of a poll goes to `entries`.
pub(super) fn answer<H: Hypervisor>(
    xen: &mut Xen<H>,
    question: Question,
    entries: &mut Vec<u8>,
) -> Answer {
    entries.clear();
    let asked = match question {
        Question::Poll(what) => server::poll_domains(xen, what).map(|news| {
            let (scope, count) = match &news {
                DomainNews::All(states) => {
                    entries.extend(states.iter().flat_map(|it| encode_entry(it.domid, Some(it))));
                    (Scope::All, states.len())
                }
                DomainNews::Changed(changed) => {
                    let encoded =
                        |it: &(DomId, Option<DomainState>)| encode_entry(it.0, it.1.as_ref());
                    entries.extend(changed.iter().flat_map(encoded));
                    (Scope::Changed, changed.len())
                }
            };
            Answer::News { scope, count, cpu: Duration::ZERO }
        }),
        Question::Domain(domid) => server::poll_domain(xen, domid).map(Answer::Domain),
    };
    asked.unwrap_or_else(Answer::Refused)
}

/// Decodes the result of a poll.
pub(super) fn news(scope: Scope, entries: &[u8]) -> Option<DomainNews> {
    let mut entries = entries.chunks_exact(ENTRY_BYTES).map(decode_entry);
    match scope {
        Scope::All => entries.map(|entry| entry?.1).collect::<Option<_>>().map(DomainNews::All),
        Scope::Changed => entries.by_ref().collect::<Option<_>>().map(DomainNews::Changed),
    }
}

fn encode_entry(domid: DomId, state: Option<&DomainState>) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..2].copy_from_slice(&domid.0.to_le_bytes());
    let Some(state) = state else { return entry };
    let flags = [
        (EXISTS, true),
        (SHUTDOWN, state.shutdown),
        (DYING, state.dying),
        (HAS_REASON, state.reason.is_some()),
        (HAS_UNIQUE_ID, state.unique_id.is_some()),
    ];
    entry[2] = flags.iter().map(|(bit, is_set)| bit * u8::from(*is_set)).sum();
    entry[3] = state.reason.map_or(0, ShutdownReason::code);
    entry[8..16].copy_from_slice(&state.unique_id.unwrap_or_default().to_le_bytes());
    entry[16..].copy_from_slice(&state.handle.0);
    entry
}

fn decode_entry(entry: &[u8]) -> Option<(DomId, Option<DomainState>)> {
    let entry: &[u8; ENTRY_BYTES] = entry.try_into().ok()?;
    let domid = DomId(u16::from_le_bytes([entry[0], entry[1]]));
    let has = |bit: u8| entry[2] & bit != 0;
    if !has(EXISTS) {
        return Some((domid, None));
    }
    let state = DomainState {
        domid,
        shutdown: has(SHUTDOWN),
        reason: has(HAS_REASON).then(|| ShutdownReason::from_code(entry[3])),
        dying: has(DYING),
        unique_id: has(HAS_UNIQUE_ID).then(|| number_at(entry, 8)),
        handle: Uuid(*entry[16..].first_chunk()?),
    };
    Some((domid, Some(state)))
}

fn header(number: u64, kind: u32, value: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..12].copy_from_slice(&kind.to_le_bytes());
    header[12..].copy_from_slice(&value.to_le_bytes());
    header
}

/// Number, kind, value and further data.
fn parts(message: &[u8]) -> Option<(u64, u32, u32, &[u8])> {
    let (header, rest) = message.split_first_chunk::<HEADER_BYTES>()?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    Some((number_at(header, 0), word(8), word(12), rest))
}

fn number_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let number = bytes[at..].first_chunk().expect("whoever asks knows what is there");
    u64::from_le_bytes(*number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_they_were() {
        for question in [
            Question::Poll(PollScope::Everything),
            Question::Poll(PollScope::Changes),
            Question::Domain(DomId(32_751)),
        ] {
            assert_eq!(Question::decode(&question.encode(1 << 40)), Some((1 << 40, question)));
        }
        let state = DomainState {
            domid: DomId(5),
            shutdown: true,
            reason: Some(ShutdownReason::Other(77)),
            dying: true,
            unique_id: Some(u64::MAX - 1),
            handle: Uuid([9; 16]),
        };
        for answer in [
            Answer::Ready,
            Answer::Failed("cannot open".to_owned()),
            Answer::News { scope: Scope::All, count: 32_752, cpu: Duration::from_nanos(7 << 32) },
            Answer::News { scope: Scope::Changed, count: 0, cpu: Duration::ZERO },
            Answer::Domain(None),
            Answer::Domain(Some(state)),
            Answer::Domain(Some(DomainState { unique_id: None, reason: None, ..state })),
            Answer::Refused(Errno::EINVAL),
        ] {
            assert_eq!(Answer::decode(&answer.encode(3)), Some((3, answer)));
        }
        let long = Answer::Failed("x".repeat(10_000)).encode(0);
        assert_eq!(long.len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn whatever_is_no_message_is_none() {
        let good = Question::Domain(DomId(1)).encode(1);
        assert_eq!(Question::decode(&good[..15]), None);
        assert_eq!(Question::decode(&[&good[..], b"x"].concat()), None);
        for (kind, value) in [(0, 0), (1, 2), (2, 0x1_0000), (3, 0)] {
            assert_eq!(Question::decode(&header(1, kind, value)), None, "{kind} {value}");
        }
        for (kind, value) in [(0, 0), (1, 1), (3, 1), (4, 0), (5, 1), (5, 2), (7, 0)] {
            assert_eq!(Answer::decode(&header(1, kind, value)), None, "{kind} {value}");
        }
        // An entry of a full list must exist.
        assert_eq!(news(Scope::All, &[0; ENTRY_BYTES]), None);
        let gone = DomainNews::Changed(vec![(DomId(0), None)]);
        assert_eq!(news(Scope::Changed, &[0; ENTRY_BYTES]), Some(gone));
    }
}
