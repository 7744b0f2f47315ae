//! Sessions of browsers.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

/// A session ends after this time without a request, in seconds.
const IDLE_S: u64 = 2 * 60 * 60;
/// A session ends after this time, whatever it does.
const LONGEST_S: u64 = 12 * 60 * 60;
/// Of one client; a further one ends the one that was idle longest.
const OF_A_CLIENT_MAX: usize = 32;
/// Of all clients.
const ALL_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct Session {
    name: String,
    began_s: u64,
    last_s: u64,
}

/// Sessions by the hash of what the browser shows: whoever reads our memory has no key.
#[derive(Debug, Default)]
pub struct Sessions(BTreeMap<[u8; 32], Session>);

impl Sessions {
    /// A session of a client begins. Returns what the browser has to show.
    pub fn begin(&mut self, name: &str, random: &[u8; 32], now_s: u64) -> String {
        self.0.retain(|_, it| !has_ended(it, now_s));
        let of_client = self.0.values().filter(|it| it.name == name).count();
        if of_client >= OF_A_CLIENT_MAX {
            self.end_idlest(|it| it.name == name);
        } else if self.0.len() >= ALL_MAX {
            self.end_idlest(|_| true);
        }
        let key = base16ct::lower::encode_string(random);
        let session = Session { name: name.to_owned(), began_s: now_s, last_s: now_s };
        self.0.insert(hash(&key), session);
        key
    }

    fn end_idlest(&mut self, of: impl Fn(&Session) -> bool) {
        let idlest = self.0.iter().filter(|(_, it)| of(it)).min_by_key(|(_, it)| it.last_s);
        if let Some(key) = idlest.map(|(key, _)| *key) {
            self.0.remove(&key);
        }
    }

    /// Whose session this is. It goes on with this request.
    pub fn go_on(&mut self, key: &str, now_s: u64) -> Option<&str> {
        let session = self.0.get_mut(&hash(key)).filter(|it| !has_ended(it, now_s))?;
        session.last_s = now_s;
        Some(&session.name)
    }

    pub fn end(&mut self, key: &str) {
        self.0.remove(&hash(key));
    }
}

fn has_ended(session: &Session, now_s: u64) -> bool {
    now_s >= session.last_s + IDLE_S || now_s >= session.began_s + LONGEST_S
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_when_idle_or_old_or_told_to() {
        let mut sessions = Sessions::default();
        let key = sessions.begin("ann", &[1; 32], 0);
        assert_eq!(sessions.go_on("other", 0), None);
        let mut now = 0;
        while now + IDLE_S <= LONGEST_S {
            now += IDLE_S - 1;
            assert_eq!(sessions.go_on(&key, now).is_some(), now < LONGEST_S, "{now}");
        }
        assert_eq!(sessions.go_on(&key, LONGEST_S), None);
        let key = sessions.begin("ann", &[2; 32], 0);
        assert_eq!(sessions.go_on(&key, IDLE_S), None);
        let key = sessions.begin("ann", &[3; 32], 0);
        sessions.end(&key);
        assert_eq!(sessions.go_on(&key, 1), None);
    }

    #[test]
    fn a_client_has_so_many_sessions_and_takes_none_of_others() {
        let mut sessions = Sessions::default();
        let other = sessions.begin("bob", &[255; 32], 0);
        let keys: Vec<_> =
            (0..33u8).map(|n| sessions.begin("ann", &[n; 32], u64::from(n))).collect();
        assert_eq!(sessions.go_on(&keys[0], 40), None);
        assert_eq!(sessions.go_on(&keys[1], 40), Some("ann"));
        assert_eq!(sessions.go_on(&other, 40), Some("bob"));
    }
}
