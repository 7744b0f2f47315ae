//! Who is not listened to for a while, because of log-ins that failed.

use std::collections::BTreeMap;

/// Failures in a row that cost nothing: people mistype.
const FREE_FAILURES: u32 = 4;
/// Longest time that somebody is locked out, in seconds.
const LONGEST_S: u64 = 15 * 60;
/// Failures are forgotten after this time without another one.
const FORGOTTEN_AFTER_S: u64 = 60 * 60;
/// Names and addresses that are remembered; of more, the one whose last failure is longest ago is forgotten.
const REMEMBERED_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last_s: u64,
}

impl Failures {
    fn locked_until(self) -> u64 {
        match self.count.checked_sub(FREE_FAILURES + 1) {
            Some(more) => self.last_s + (2 << more.min(20)).min(LONGEST_S),
            None => self.last_s,
        }
    }
}

/// Failed log-ins by whoever is held to account for them: a name, or an address.
#[derive(Debug, Default)]
pub struct Lockout(BTreeMap<String, Failures>);

impl Lockout {
    /// For how many more seconds nothing that this one says is believed.
    #[must_use]
    pub fn remaining_s(&self, of: &str, now_s: u64) -> u64 {
        self.0.get(of).map_or(0, |it| it.locked_until().saturating_sub(now_s))
    }

    /// A log-in has failed. Each further one doubles the time that the next has to wait.
    pub fn failed(&mut self, of: &str, now_s: u64) {
        if let Some(known) = self.0.get_mut(of) {
            let is_old = known.last_s + FORGOTTEN_AFTER_S < now_s;
            known.count = if is_old { 1 } else { known.count.saturating_add(1) };
            known.last_s = now_s;
            return;
        }
        if self.0.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, it)| it.last_s)
        {
            let oldest = oldest.0.clone();
            self.0.remove(&oldest);
        }
        self.0.insert(of.to_owned(), Failures { count: 1, last_s: now_s });
    }

    /// A log-in has succeeded.
    pub fn succeeded(&mut self, of: &str) {
        self.0.remove(of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_after_the_fourth_doubles_the_wait() {
        let mut lockout = Lockout::default();
        let mut waits = Vec::new();
        let mut now = 1000;
        for _ in 0..18 {
            lockout.failed("ann", now);
            let wait = lockout.remaining_s("ann", now);
            waits.push(wait);
            now += wait;
            assert_eq!(lockout.remaining_s("ann", now), 0);
        }
        assert_eq!(waits[..8], [0, 0, 0, 0, 2, 4, 8, 16]);
        assert_eq!(waits[15..], [900; 3]);
        assert_eq!(lockout.remaining_s("bob", now), 0);
        lockout.failed("ann", now);
        lockout.succeeded("ann");
        assert_eq!(lockout.remaining_s("ann", now), 0);
    }

    #[test]
    fn failures_long_ago_are_forgotten() {
        let mut lockout = Lockout::default();
        (0..6).for_each(|_| lockout.failed("ann", 0));
        lockout.failed("ann", FORGOTTEN_AFTER_S + 1);
        assert_eq!(lockout.remaining_s("ann", FORGOTTEN_AFTER_S + 1), 0);
    }

    #[test]
    fn a_flood_of_names_takes_no_more_room_than_that() {
        let mut lockout = Lockout::default();
        for at in 0..REMEMBERED_MAX as u64 + 100 {
            lockout.failed(&format!("name-{at}"), at);
        }
        assert_eq!(lockout.0.len(), REMEMBERED_MAX);
        assert!(!lockout.0.contains_key("name-99") && lockout.0.contains_key("name-100"));
    }
}
