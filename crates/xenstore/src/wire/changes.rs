//! The stream of domain changes: a follower is notified of every domain that is created, stops,
//! dies or is gone, and releases dead ones.
//!
//! It is an extension of Xylem's ([`MessageType::DomainChanges`]) and, like a
//! [batch](super::batch), offered to socket clients only; a ring, and every other store, answers
//! `ENOSYS`.
//!
//! # Requests
//!
//! All numbers are native endian; there is no padding unless stated.
//!
//! | what | bytes |
//! |--|--|
//! | follow | format 1 (4), verb 1 (4), epoch (8), sequence number (8) |
//! | release | format 1 (4), verb 2 (4), then a domain (28) each |
//!
//! *Follow*: the client has seen the changes of that epoch up to that number, or none (epoch 0).
//! Later changes are sent from there if the store still has them, otherwise all domains: see the
//! manner in the reply, which is epoch (8), number of the last change (8), manner (4: 1 resumed, 2
//! everything). An epoch is a run of the store daemon. Messages may arrive before the reply.
//!
//! *Release*: the client no longer uses these domains. Once there has been a follower, the store
//! keeps the ring page of a dead domain mapped until then, and so its domid in use. The request may
//! precede the store's knowledge of the death. The reply is `OK|`.
//!
//! | offset in a domain | bytes | what |
//! |--|--|--|
//! | 0 | 4 | domid |
//! | 4 | 8 | Xen's unique id of the domain (4.21 and later); 0: not known |
//! | 12 | 16 | its handle |
//!
//! Two are the same domain if domid and unique id are equal, or the handle where a unique id is not
//! known.
//!
//! # Messages to followers
//!
//! Of the same type, with request id 0: epoch (8), number of the first change, or of the last one
//! before everything (8), kind (4), count (4), then as many entries: a domain (28), its previous
//! and its current state (1 each: 0 absent, 1 alive, 2 stopped, 3 dead), the shutdown reason (1),
//! padding (1).
//!
//! | kind | entries |
//! |--|--|
//! | 1 changes | in order, numbered without gaps |
//! | 2 part of everything | current domains; more follow |
//! | 3 end of everything | as before; all others are absent |
//!
//! [`MessageType::DomainChanges`]: super::MessageType::DomainChanges

use alloc::vec::Vec;

use xen::{DomId, DomainRef, Life, ShutdownReason, Uuid};

use crate::Error;
use crate::wire::PAYLOAD_BYTES_MAX;

const FORMAT: u32 = 1;
const FOLLOW: u32 = 1;
const LET_GO: u32 = 2;
const RESUMED: u32 = 1;
const EVERYTHING: u32 = 2;
const PUSH_HEADER_BYTES: usize = 24;
const DOMAIN_BYTES: usize = 28;
const ENTRY_BYTES: usize = 32;

/// Changes that fit into one message.
pub const ENTRIES_MAX: usize = (PAYLOAD_BYTES_MAX - PUSH_HEADER_BYTES) / ENTRY_BYTES;
/// Domains that fit into one release request.
pub const RELEASE_MAX: usize = (PAYLOAD_BYTES_MAX - 8) / DOMAIN_BYTES;

/// Identity of a domain, as far as it can be distinguished from others with its domid.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DomainIdentity {
    pub domid: DomId,
    /// Xen's unique id, if available.
    pub unique_id: Option<u64>,
    pub handle: Uuid,
}

impl DomainIdentity {
    /// Whether both are the same domain, as far as known.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.domid == other.domid
            && match (self.unique_id, other.unique_id) {
                (Some(one), Some(other)) => one == other,
                _ => self.handle == other.handle,
            }
    }
}

impl From<DomainRef> for DomainIdentity {
    fn from(domain: DomainRef) -> Self {
        let domid = domain.domid;
        match domain.life {
            Life::Unique(id) => Self { domid, unique_id: Some(id), handle: Uuid::default() },
            Life::Counted { handle, .. } => Self { domid, unique_id: None, handle },
        }
    }
}

/// A domain's state, for followers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Standing {
    #[default]
    Absent,
    Alive,
    /// It shut down and still exists.
    Stopped(ShutdownReason),
    /// It was torn down; only its domid is still in use.
    Dead,
}

/// A change of a domain.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DomainChange {
    pub who: DomainIdentity,
    pub before: Standing,
    pub after: Standing,
}

/// A follower's position. The default is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Position {
    pub epoch: u64,
    /// Number of the last seen change.
    pub seq: u64,
}

/// A request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Request {
    Follow(Position),
    Release(Vec<DomainIdentity>),
}

/// What is sent to a follower from its position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Manner {
    Resumed,
    Everything,
}

/// A message to a follower.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Push {
    pub epoch: u64,
    /// Of the first entry if these are changes; else of the last change before.
    pub seq: u64,
    pub kind: PushKind,
    pub entries: Vec<DomainChange>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PushKind {
    Changes = 1,
    Part = 2,
    End = 3,
}

impl Request {
    /// The message's payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FORMAT.to_ne_bytes().to_vec();
        match self {
            Self::Follow(position) => {
                out.extend_from_slice(&FOLLOW.to_ne_bytes());
                out.extend_from_slice(&position.epoch.to_ne_bytes());
                out.extend_from_slice(&position.seq.to_ne_bytes());
            }
            Self::Release(domains) => {
                out.extend_from_slice(&LET_GO.to_ne_bytes());
                domains.iter().for_each(|who| put_identity(&mut out, who));
            }
        }
        out
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// `EINVAL` if it is malformed.
    pub fn decode(payload: &[u8]) -> Result<Self, Error> {
        Self::try_decode(payload).ok_or(Error::EINVAL)
    }

    fn try_decode(payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        if take_u32(&mut rest)? != FORMAT {
            return None;
        }
        match take_u32(&mut rest)? {
            FOLLOW => {
                let (epoch, seq) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
                rest.is_empty().then_some(Self::Follow(Position { epoch, seq }))
            }
            LET_GO => {
                let mut domains = Vec::new();
                while !rest.is_empty() {
                    domains.push(take_identity(&mut rest)?);
                }
                Some(Self::Release(domains))
            }
            _ => None,
        }
    }
}

/// The payload of the reply to [`Request::Follow`].
pub(crate) fn encode_followed(out: &mut Vec<u8>, position: Position, manner: Manner) {
    out.extend_from_slice(&position.epoch.to_ne_bytes());
    out.extend_from_slice(&position.seq.to_ne_bytes());
    let manner = if manner == Manner::Resumed { RESUMED } else { EVERYTHING };
    out.extend_from_slice(&manner.to_ne_bytes());
}

/// Decodes the reply to [`Request::Follow`].
#[must_use]
pub fn decode_followed(payload: &[u8]) -> Option<(Position, Manner)> {
    let mut rest = payload;
    let position = Position { epoch: take_u64(&mut rest)?, seq: take_u64(&mut rest)? };
    let manner = match take_u32(&mut rest)? {
        RESUMED => Manner::Resumed,
        EVERYTHING => Manner::Everything,
        _ => return None,
    };
    rest.is_empty().then_some((position, manner))
}

impl Push {
    /// The message's payload.
    ///
    /// # Panics
    /// If there are more than [`ENTRIES_MAX`] entries.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.entries.len() <= ENTRIES_MAX, "more changes than fit into a message");
        let mut out = Vec::with_capacity(PUSH_HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&self.epoch.to_ne_bytes());
        out.extend_from_slice(&self.seq.to_ne_bytes());
        out.extend_from_slice(&(self.kind as u32).to_ne_bytes());
        let count = u32::try_from(self.entries.len()).expect("asserted above");
        out.extend_from_slice(&count.to_ne_bytes());
        for change in &self.entries {
            put_identity(&mut out, &change.who);
            let reason = [change.after, change.before].into_iter().find_map(|standing| {
                if let Standing::Stopped(reason) = standing { Some(reason.code()) } else { None }
            });
            let (before, after) = (code(change.before), code(change.after));
            out.extend_from_slice(&[before, after, reason.unwrap_or(0), 0]);
        }
        out
    }

    /// Decodes a payload; `None` if it is malformed.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        let (epoch, seq) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
        let kind = match take_u32(&mut rest)? {
            1 => PushKind::Changes,
            2 => PushKind::Part,
            3 => PushKind::End,
            _ => return None,
        };
        let count = usize::try_from(take_u32(&mut rest)?).ok()?;
        if count > ENTRIES_MAX {
            return None;
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let who = take_identity(&mut rest)?;
            let (&[before, after, reason, 0], tail) = rest.split_first_chunk::<4>()? else {
                return None;
            };
            rest = tail;
            let standing = |code| standing(code, ShutdownReason::from_code(reason));
            entries.push(DomainChange { who, before: standing(before)?, after: standing(after)? });
        }
        rest.is_empty().then_some(Self { epoch, seq, kind, entries })
    }
}

fn code(standing: Standing) -> u8 {
    match standing {
        Standing::Absent => 0,
        Standing::Alive => 1,
        Standing::Stopped(_) => 2,
        Standing::Dead => 3,
    }
}

fn standing(code: u8, reason: ShutdownReason) -> Option<Standing> {
    Some(match code {
        0 => Standing::Absent,
        1 => Standing::Alive,
        2 => Standing::Stopped(reason),
        3 => Standing::Dead,
        _ => return None,
    })
}

fn put_identity(out: &mut Vec<u8>, who: &DomainIdentity) {
    out.extend_from_slice(&u32::from(who.domid.0).to_ne_bytes());
    out.extend_from_slice(&who.unique_id.unwrap_or(0).to_ne_bytes());
    out.extend_from_slice(&who.handle.0);
}

fn take_identity(rest: &mut &[u8]) -> Option<DomainIdentity> {
    let domid = DomId(u16::try_from(take_u32(rest)?).ok()?);
    let unique_id = Some(take_u64(rest)?).filter(|id| *id != 0);
    let (handle, tail) = rest.split_first_chunk::<16>()?;
    *rest = tail;
    Some(DomainIdentity { domid, unique_id, handle: Uuid(*handle) })
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (number, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(u32::from_ne_bytes(*number))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (number, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_ne_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn who(domid: u16, unique_id: Option<u64>, byte: u8) -> DomainIdentity {
        DomainIdentity { domid: DomId(domid), unique_id, handle: Uuid([byte; 16]) }
    }

    #[test]
    fn what_was_encoded_decodes_to_the_same() {
        for request in [
            Request::Follow(Position { epoch: 1 << 40, seq: 7 }),
            Request::Release(vec![]),
            Request::Release(vec![who(3, None, 1), who(0x7fef, Some(9), 2)]),
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let change = |before, after| DomainChange { who: who(5, Some(8), 3), before, after };
        let reboot = Standing::Stopped(ShutdownReason::Reboot);
        let entries = vec![
            change(Standing::Absent, Standing::Alive),
            change(Standing::Alive, reboot),
            change(reboot, Standing::Dead),
        ];
        for kind in [PushKind::Changes, PushKind::Part, PushKind::End] {
            let push = Push { epoch: 2, seq: 3, kind, entries: entries.clone() };
            let bytes = push.encode();
            assert_eq!(Push::decode(&bytes), Some(push));
            for end in 0..bytes.len() {
                assert_eq!(Push::decode(&bytes[..end]), None);
            }
        }
        let mut out = vec![];
        encode_followed(&mut out, Position { epoch: 4, seq: 5 }, Manner::Everything);
        let position = Position { epoch: 4, seq: 5 };
        assert_eq!(decode_followed(&out), Some((position, Manner::Everything)));
    }

    #[test]
    fn a_request_is_whole_or_refused() {
        let payload = Request::Release(vec![who(3, None, 1)]).encode();
        for end in (0..payload.len()).filter(|end| *end != 8) {
            assert_eq!(Request::decode(&payload[..end]), Err(Error::EINVAL), "{end}");
        }
        for at in [0, 4] {
            let mut payload = payload.clone();
            payload[at] ^= 0x40;
            assert_eq!(Request::decode(&payload), Err(Error::EINVAL), "{at}");
        }
    }

    #[test]
    fn a_number_of_xens_counts_before_the_handle() {
        assert!(who(1, Some(5), 1).is(&who(1, Some(5), 2)));
        assert!(!who(1, Some(5), 1).is(&who(1, Some(6), 1)));
        assert!(who(1, None, 1).is(&who(1, Some(6), 1)));
        assert!(!who(1, None, 1).is(&who(1, Some(6), 2)));
        assert!(!who(1, None, 1).is(&who(2, None, 1)));
    }

    #[test]
    fn the_longest_messages_fit() {
        let entries = vec![DomainChange::default(); ENTRIES_MAX];
        let push = Push { epoch: 1, seq: 1, kind: PushKind::Part, entries };
        assert!(push.encode().len() <= PAYLOAD_BYTES_MAX);
        let request = Request::Release(vec![DomainIdentity::default(); RELEASE_MAX]);
        assert!(request.encode().len() <= PAYLOAD_BYTES_MAX);
    }
}
