//! When the domains are looked at, if Xen says again and again that some changed.
//!
//! A look costs as much as there are domains, and Xen does not say which domain it means. So looks may take
//! a small share of the time, and some of it in advance: who is alone is seen to at once, and when a
//! thousand die, many share a look.

use core::time::Duration;

/// A look may take this fraction of the time.
const SHARE: u64 = 2000;
/// What may be used in advance, in nanoseconds.
const CREDIT_MAX_NS: i64 = 4_000_000;

/// However long looks take, one is made after this time: whoever let a dead domain go waits for it, and with him
/// the domain's number.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Says when to look. Times count from any moment, the same for all of them.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    is_wanted: bool,
    /// What looks may still take, in nanoseconds, as of `at`.
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

    /// When the next look is due, if one is wanted.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let missing = u64::try_from(1 - self.credit_ns.min(1)).unwrap_or(0);
        let delay = Duration::from_nanos(missing.saturating_mul(SHARE)).min(DELAY_MAX);
        self.is_wanted.then(|| self.at + delay)
    }

    /// Whether the look that is wanted may be made now.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// A look was made, and took so long.
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
        // Something changes every millisecond for a minute, and a look takes one.
        while now < Duration::from_secs(60) {
            now += MS;
            pace.want();
            if pace.is_due(now) {
                now += MS;
                spent += MS;
                pace.polled(now, MS);
            }
        }
        // Its share, or one in each second, and what there was in advance.
        let most = 60 * MS + 6 * MS;
        assert!(spent >= 30 * MS && spent <= most, "{spent:?}");
    }

    #[test]
    fn a_look_that_was_put_off_is_made_when_it_may() {
        let mut pace = Pace::default();
        pace.polled(MS, 10 * MS);
        pace.want();
        let due = pace.due().unwrap();
        assert_eq!(due, MS + DELAY_MAX);
        assert!(!pace.is_due(due - MS) && pace.is_due(due));
    }
}
