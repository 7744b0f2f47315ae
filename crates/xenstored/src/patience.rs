//! Whether to busy-poll for the next request before sleeping.
//!
//! Going to sleep and being woken costs more than most requests, above all where this host is itself
//! a guest, and the client pays for it once more. A client in the middle of many requests sends the
//! next one at once, so a short look saves both; anywhere else it would be wasted. So it is done only
//! after requests that came at once, and the more seldom the more often it was in vain. A host with
//! one CPU, where nobody can send while we look, ends with one look in some thousand waits.

use std::time::Duration;

/// Duration of a busy-poll: about the cost of sleeping and waking.
pub(crate) const LOOK: Duration = Duration::from_micros(50);

const SHORT_WAITS_MIN: u32 = 4;
const SHORT_WAITS_MAX: u32 = 8192;

/// History of the last waits.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Waits in a row that were shorter than a busy-poll.
    short_waits: u32,
    /// Number of them needed for the next busy-poll.
    needed: u32,
}

/// How a wait began.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Manner {
    Looked,
    Slept,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { short_waits: 0, needed: SHORT_WAITS_MIN }
    }

    /// How to wait now.
    pub(crate) fn manner(&self) -> Manner {
        if self.short_waits >= self.needed { Manner::Looked } else { Manner::Slept }
    }

    /// Records the duration of a wait.
    pub(crate) fn note(&mut self, manner: Manner, waited: Duration) {
        let is_short = waited < LOOK;
        self.short_waits = if is_short { self.short_waits.saturating_add(1) } else { 0 };
        match (manner, is_short) {
            (Manner::Looked, true) => self.needed = SHORT_WAITS_MIN,
            (Manner::Looked, false) => self.needed = (2 * self.needed).min(SHORT_WAITS_MAX),
            (Manner::Slept, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_micros(500);

    /// Looks among so many waits, each as long as `wait` says for its manner.
    fn looks(patience: &mut Patience, waits: u32, wait: impl Fn(Manner) -> Duration) -> u32 {
        let mut looks = 0;
        for _ in 0..waits {
            let manner = patience.manner();
            looks += u32::from(manner == Manner::Looked);
            patience.note(manner, wait(manner));
        }
        looks
    }

    #[test]
    fn a_client_that_goes_on_at_once_is_looked_out_for() {
        let mut patience = Patience::new();
        assert_eq!(looks(&mut patience, 1_000, |_| SHORT), 1_000 - SHORT_WAITS_MIN);
        assert_eq!(looks(&mut patience, 1_000, |_| LONG), 1);
        // And again, after what happens at the end of every burst.
        assert!(looks(&mut patience, 1_000, |_| SHORT) > 900);
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let one_cpu = |manner| if manner == Manner::Looked { LONG } else { SHORT };
        let mut patience = Patience::new();
        assert!(looks(&mut patience, 100_000, one_cpu) < 25);
    }
}
