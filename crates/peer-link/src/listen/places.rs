//! How many connections there are, and how many lines about them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Limits;

/// Connections at the moment.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Handshakes, by address.
    handshakes: BTreeMap<IpAddr, Handshakes>,
    /// Connections of peers, by name.
    peers: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Handshakes {
    is_expected: bool,
    count: usize,
}

impl Places {
    /// Whether there is room for another handshake. Places of addresses where a peer is are not taken by others.
    pub(super) fn enter(&mut self, from: IpAddr, is_expected: bool, limits: &Limits) -> bool {
        let strangers = self.handshakes.values().filter(|it| !it.is_expected);
        let strangers: usize = strangers.map(|it| it.count).sum();
        let known = self.handshakes.get(&from);
        // It stays what it was while it has connections, so that the sums are right.
        let is_expected = known.map_or(is_expected, |it| it.is_expected);
        let count = known.map_or(0, |it| it.count);
        let has_room = if is_expected {
            count < limits.expected_max
        } else {
            count < limits.stranger_max && strangers < limits.strangers_max
        };
        if has_room {
            self.handshakes.insert(from, Handshakes { is_expected, count: count + 1 });
        }
        has_room
    }

    pub(super) fn leave(&mut self, from: IpAddr) {
        let Some(handshakes) = self.handshakes.get_mut(&from) else { return };
        handshakes.count -= 1;
        if handshakes.count == 0 {
            self.handshakes.remove(&from);
        }
    }

    /// Whether there is room for another connection of a peer.
    pub(super) fn let_in(&mut self, peer: &str, peer_max: usize) -> bool {
        let count = self.peers.entry(peer.to_owned()).or_default();
        let has_room = *count < peer_max;
        if has_room {
            *count += 1;
        }
        has_room
    }

    pub(super) fn let_out(&mut self, peer: &str) {
        let Some(count) = self.peers.get_mut(peer) else { return };
        *count -= 1;
        if *count == 0 {
            self.peers.remove(peer);
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Keeps strangers from filling the log.
#[derive(Debug, Default)]
pub(super) struct Lines {
    since: Option<Instant>,
    written: usize,
    left_out: usize,
}

impl Lines {
    /// The lines to be written instead of this one.
    pub(super) fn allow(&mut self, line: String, now: Instant, lines_max: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= MINUTE) {
            if self.left_out > 0 {
                lines
                    .push(format!("peers: {} more were refused and are not listed", self.left_out));
            }
            *self = Self { since: Some(now), written: 0, left_out: 0 };
        }
        if self.written < lines_max {
            self.written += 1;
            lines.push(line);
        } else {
            self.left_out += 1;
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { strangers_max: 3, stranger_max: 2, expected_max: 2, ..Limits::default() }
    }

    #[test]
    fn strangers_do_not_take_the_places_of_peers() {
        let mut places = Places::default();
        let limits = limits();
        let [one, two, peer] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let entered: Vec<_> = [one, one, one, two, two, peer, peer, peer]
            .map(|from| places.enter(from, from == peer, &limits))
            .into();
        assert_eq!(entered, [true, true, false, true, false, true, true, false]);
        places.leave(one);
        // It was a stranger when its connections began.
        assert!(places.enter(one, true, &limits));
        assert!(!places.enter(two, false, &limits));
        for from in [one, one, two, peer, peer] {
            places.leave(from);
        }
        assert!(places.handshakes.is_empty());
    }

    #[test]
    fn a_peer_has_a_number_of_connections() {
        let mut places = Places::default();
        assert_eq!(
            ["a", "a", "a", "b"].map(|peer| places.let_in(peer, 2)),
            [true, true, false, true]
        );
        places.let_out("a");
        assert!(places.let_in("a", 2));
    }

    #[test]
    fn refusals_do_not_fill_the_log() {
        let mut lines = Lines::default();
        let start = Instant::now();
        let count = |lines: &mut Lines, at| {
            (0..5).map(|_| lines.allow("refused".to_owned(), at, 2).len()).sum::<usize>()
        };
        assert_eq!(count(&mut lines, start), 2);
        assert_eq!(count(&mut lines, start + Duration::from_secs(59)), 0);
        let later = lines.allow("refused".to_owned(), start + MINUTE, 2);
        assert_eq!(later, ["peers: 8 more were refused and are not listed", "refused"]);
    }
}
