//! Rate limit of polls of the domains, if Xen signals changes repeatedly.
//!
//! A poll costs O(domains), and Xen does not say which domain changed. So polls may take a small
//! share of the time, some of it in advance: a single change is polled at once, and when a thousand
//! domains die, many share a poll. Other toolstacks wait for a poll at each suspend of a domain, so the
//! share is not smaller than it has to be: with ten domains dozens of polls a second fit in.

use core::time::Duration;

/// Polls may take this fraction of the time.
const SHARE: u64 = 50;
/// Time that may be used in advance, in nanoseconds.
const CREDIT_MAX_NS: i64 = 4_000_000;

/// A poll is made at the latest after this time, however long polls take: a client that released a
/// dead domain waits for it.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Decides when to poll. Times have an arbitrary common epoch.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    is_wanted: bool,
    /// Remaining time for polls, in nanoseconds, as of `at`.
    credit_ns: i64,
    at: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { is_wanted: false, credit_ns: CREDIT_MAX_NS, at: Duration::ZERO }
    }
}

impl Pace {
    /// Some domain changed.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// When the next poll is due, if one is wanted.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let missing = u64::try_from(1 - self.credit_ns.min(1)).unwrap_or(0);
        let delay = Duration::from_nanos(missing.saturating_mul(SHARE)).min(DELAY_MAX);
        self.is_wanted.then(|| self.at + delay)
    }

    /// Whether a wanted poll is due.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Records a poll and its duration.
    pub fn polled(&mut self, now: Duration, took: Duration) {
        let earned = now.saturating_sub(self.at).as_nanos() / u128::from(SHARE);
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        let took = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX);
        let credit = self.credit_ns.saturating_add(earned).min(CREDIT_MAX_NS);
        *self = Self { is_wanted: false, credit_ns: credit.saturating_sub(took), at: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_single_change_is_polled_at_once() {
        let mut pace = Pace::default();
        assert_eq!(pace.due(), None);
        for second in 1..100 {
            let now = Duration::from_secs(10 * second);
            pace.want();
            assert!(pace.is_due(now));
            pace.polled(now, MS);
            assert!(!pace.is_due(now));
        }
    }

    #[test]
    fn a_storm_takes_a_small_share_of_the_time() {
        let mut pace = Pace::default();
        let (mut now, mut spent) = (Duration::ZERO, Duration::ZERO);
        // A change every millisecond for a minute, and a poll takes one.
        while now < Duration::from_secs(60) {
            now += MS;
            pace.want();
            if pace.is_due(now) {
                now += MS;
                spent += MS;
                pace.polled(now, MS);
            }
        }
        // Its share, and the time in advance.
        let share = Duration::from_mins(1) / u32::try_from(SHARE).unwrap();
        assert!(spent >= share && spent <= share + 6 * MS, "{spent:?}");
    }

    #[test]
    fn a_look_that_was_put_off_is_made_when_it_may() {
        let mut pace = Pace::default();
        pace.polled(MS, 100 * MS);
        pace.want();
        let due = pace.due().unwrap();
        assert_eq!(due, MS + DELAY_MAX);
        assert!(!pace.is_due(due - MS) && pace.is_due(due));
    }
}
