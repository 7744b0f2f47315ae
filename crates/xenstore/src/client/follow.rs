//! Following changes of domains; see [`crate::wire::changes`] for the messages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::client::{Client, ClientError, ProtocolError, Transport};
use crate::wire::MessageType;
use crate::wire::changes::{
    DomainChange, DomainIdentity, Position, Push, PushKind, RELEASE_MAX, Request, decode_followed,
};

/// An update for a follower.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DomainUpdate {
    /// Changes, in order.
    Changes(Vec<DomainChange>),
    /// All domains. Others do not exist, or are too new to be known to the store. Sent first, and
    /// again whenever changes may have been missed.
    Everything(Vec<DomainChange>),
}

/// A follower's position in the stream.
#[derive(Debug, Default)]
pub(super) struct Following {
    is_on: bool,
    position: Position,
    /// Parts of a full list, until its end.
    parts: Vec<DomainChange>,
    updates: VecDeque<DomainUpdate>,
}

impl Following {
    pub(super) fn take_in(&mut self, push: Push) -> Result<(), ProtocolError> {
        let Push { epoch, seq, kind, entries } = push;
        match kind {
            PushKind::Changes => {
                let last = self.position.seq;
                if epoch != self.position.epoch || seq != last + 1 {
                    return Err(ProtocolError::LostCount { last, found: seq });
                }
                self.position.seq += entries.len() as u64;
                self.updates.push_back(DomainUpdate::Changes(entries));
            }
            PushKind::Part => self.parts.extend(entries),
            PushKind::End => {
                self.parts.extend(entries);
                self.position = Position { epoch, seq };
                self.updates.push_back(DomainUpdate::Everything(core::mem::take(&mut self.parts)));
            }
        }
        Ok(())
    }
}

impl<T: Transport> Client<T> {
    /// Subscribes to changes of domains: created, stopped, dead, gone. A new connection continues
    /// at the old position.
    ///
    /// # Errors
    /// `ENOSYS` from a store that is not Xylem's.
    pub fn follow_domains(&mut self) -> Result<(), ClientError> {
        let payload = Request::Follow(self.following.position).encode();
        let reply = self.request(MessageType::DomainChanges, 0, "", &[&payload])?;
        let bad = ProtocolError::BadReply(MessageType::DomainChanges);
        decode_followed(&reply).ok_or(bad)?;
        self.following.is_on = true;
        Ok(())
    }

    /// Releases these dead domains: their domids may be reused.
    ///
    /// # Errors
    /// `ENOSYS` from a store that is not Xylem's, which does not keep domids.
    pub fn release_domains(&mut self, domains: &[DomainIdentity]) -> Result<(), ClientError> {
        for domains in domains.chunks(RELEASE_MAX) {
            let payload = Request::Release(domains.to_vec()).encode();
            self.request(MessageType::DomainChanges, 0, "", &[&payload])?;
        }
        Ok(())
    }

    /// An update that has arrived already; never blocks.
    pub fn poll_domain_update(&mut self) -> Option<DomainUpdate> {
        self.following.updates.pop_front()
    }

    /// Continues on a new connection.
    pub(super) fn follow_anew(&mut self) -> Result<(), ClientError> {
        if !self.following.is_on {
            return Ok(());
        }
        self.following.parts.clear();
        let payload = Request::Follow(self.following.position).encode();
        let reply = self.exchange(MessageType::DomainChanges, 0, &[&payload])?;
        let request = MessageType::DomainChanges.label().into();
        reply.map(drop).map_err(|error| ClientError::Refused { request, error })
    }
}
