//! Following the changes of domains: [`crate::wire::changes`] has the messages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::client::{Client, ClientError, ProtocolError, Transport};
use crate::wire::MessageType;
use crate::wire::changes::{
    DomainChange, DomainIdentity, Position, Push, PushKind, RELEASE_MAX, Request, decode_followed,
};

/// What a follower hears.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DomainUpdate {
    /// These changed, in this order.
    Changes(Vec<DomainChange>),
    /// Domains as they are. Whatever is not among them is gone, or so new that the store has not seen it.
    /// Comes first, and again whenever changes may have been missed.
    Everything(Vec<DomainChange>),
}

/// Where a follower is in the stream.
#[derive(Debug, Default)]
pub(super) struct Following {
    is_on: bool,
    position: Position,
    /// Parts of everything, until its end comes.
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
    /// Asks to be told of every domain that comes, stops, dies or goes. A new connection goes on where the
    /// one before broke.
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

    /// Says that nothing more is done with these domains: their numbers may be given out again.
    ///
    /// # Errors
    /// `ENOSYS` from a store that is not Xylem's, which keeps no numbers.
    pub fn release_domains(&mut self, domains: &[DomainIdentity]) -> Result<(), ClientError> {
        for domains in domains.chunks(RELEASE_MAX) {
            let payload = Request::Release(domains.to_vec()).encode();
            self.request(MessageType::DomainChanges, 0, "", &[&payload])?;
        }
        Ok(())
    }

    /// What has been heard already; never waits.
    pub fn poll_domain_update(&mut self) -> Option<DomainUpdate> {
        self.following.updates.pop_front()
    }

    /// Goes on on a new connection.
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
