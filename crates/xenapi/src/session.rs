//! Sessions: who has logged in, and how long that holds.

use std::collections::BTreeMap;

use api::Role;
use xen::Uuid;

use crate::failure::Failure;
use crate::refs::{opaque, uuid_in};

/// More than these at a time are not given; the one that was idle longest ends instead.
const SESSIONS_MAX: usize = 500;

/// Of one user, so that nobody ends the sessions of others.
const SESSIONS_PER_USER_MAX: usize = 100;

/// A session that nobody used for so long has ended.
const IDLE_MAX_MS: u64 = 24 * 3600 * 1000;

/// A session. Its reference is a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Session {
    pub id: Uuid,
    /// The user.
    pub who: String,
    pub role: Role,
    /// What the client calls itself.
    pub originator: String,
    pub began_unix_ms: u64,
    pub last_active_unix_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions(BTreeMap<Uuid, Session>);

impl Sessions {
    pub(crate) fn begin(&mut self, session: Session) -> String {
        self.expire(session.began_unix_ms);
        let of_user = self.0.values().filter(|it| it.who == session.who);
        if of_user.clone().count() >= SESSIONS_PER_USER_MAX {
            let idlest = of_user.min_by_key(|it| it.last_active_unix_ms).map(|it| it.id);
            idlest.and_then(|id| self.0.remove(&id));
        } else if self.0.len() >= SESSIONS_MAX {
            let idlest = self.0.values().min_by_key(|it| it.last_active_unix_ms).map(|it| it.id);
            idlest.and_then(|id| self.0.remove(&id));
        }
        let reference = opaque(session.id);
        self.0.insert(session.id, session);
        reference
    }

    /// The session with this reference, which is in use again.
    pub(crate) fn used(&mut self, reference: &str, now_unix_ms: u64) -> Result<Session, Failure> {
        let session = uuid_in(reference).and_then(|id| self.0.get_mut(&id));
        let is_fresh =
            |it: &&mut Session| now_unix_ms.saturating_sub(it.last_active_unix_ms) < IDLE_MAX_MS;
        match session.filter(is_fresh) {
            Some(session) => {
                session.last_active_unix_ms = now_unix_ms;
                Ok(session.clone())
            }
            None => Err(Failure::no_session(reference)),
        }
    }

    pub(crate) fn is_there(&self, id: Uuid) -> bool {
        self.0.contains_key(&id)
    }

    pub(crate) fn end(&mut self, id: Uuid) {
        self.0.remove(&id);
    }

    fn expire(&mut self, now_unix_ms: u64) {
        self.0.retain(|_, it| now_unix_ms.saturating_sub(it.last_active_unix_ms) < IDLE_MAX_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64, who: &str) -> Session {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        Session {
            id: Uuid(id),
            who: who.to_owned(),
            role: Role::Viewer,
            originator: String::new(),
            began_unix_ms: number,
            last_active_unix_ms: number,
        }
    }

    #[test]
    fn a_user_ends_own_sessions_only() {
        let mut sessions = Sessions::default();
        let ann = sessions.begin(session(1, "ann"));
        (2..400).for_each(|number| {
            sessions.begin(session(number, "bob"));
        });
        assert_eq!(sessions.0.len(), 1 + SESSIONS_PER_USER_MAX);
        assert!(sessions.used(&ann, 500).is_ok());
        sessions.end(session(1, "ann").id);
        assert_eq!(sessions.used(&ann, 500), Err(Failure::no_session(&ann)));
    }

    #[test]
    fn a_session_that_is_not_used_ends() {
        let mut sessions = Sessions::default();
        let ann = sessions.begin(session(0, "ann"));
        assert!(sessions.used(&ann, IDLE_MAX_MS - 1).is_ok());
        assert!(sessions.used(&ann, 2 * IDLE_MAX_MS - 2).is_ok());
        assert!(sessions.used(&ann, 3 * IDLE_MAX_MS).is_err());
    }
}
