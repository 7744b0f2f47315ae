//! Latencies of requests by type, sampled: reading the clock costs a noticeable part of a request,
//! so only one in [`SAMPLED_EACH`] is measured.

use core::time::Duration;

use crate::server::Host;
use crate::wire::MessageType;

/// One request in this many is measured.
pub(super) const SAMPLED_EACH: u32 = 16;

/// Bounds of the buckets double from this one.
const FIRST_BOUND: Duration = Duration::from_nanos(250);
/// The last bound is 131 ms; longer times are in a further bucket.
const BOUNDS: usize = 20;

/// A histogram of durations.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Histogram {
    buckets: [u64; BOUNDS + 1],
    pub(super) sum: Duration,
}

impl Histogram {
    fn record(&mut self, duration: Duration) {
        let bucket = Self::bounds().position(|bound| duration <= bound).unwrap_or(BOUNDS);
        self.buckets[bucket] += 1;
        self.sum += duration;
    }

    fn bounds() -> impl Iterator<Item = Duration> {
        (0..BOUNDS).map(|doublings| FIRST_BOUND * (1 << doublings))
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Counts by upper bound.
    pub(super) fn up_to(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut count = 0;
        Self::bounds().zip(self.buckets).map(move |(bound, here)| {
            count += here;
            (bound, count)
        })
    }
}

/// Durations of a sample of all requests.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    by_code: [Histogram; MessageType::ALL.len()],
    /// Requests since the last one that was measured.
    skipped: u32,
}

impl Latencies {
    /// Begins a request: the start time, if it is measured.
    pub(super) fn begin(&mut self, host: &mut dyn Host) -> Option<Duration> {
        self.skipped += 1;
        if self.skipped < SAMPLED_EACH {
            return None;
        }
        self.skipped = 0;
        host.clock()
    }

    /// Ends a request.
    pub(super) fn end(&mut self, host: &mut dyn Host, kind: MessageType, begun: Duration) {
        let Some(now) = host.clock() else { return };
        let known = MessageType::ALL.iter().position(|known| *known == kind);
        if let Some(histogram) = known.and_then(|index| self.by_code.get_mut(index)) {
            histogram.record(now.saturating_sub(begun));
        }
    }

    /// Types with measured requests.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MessageType, &Histogram)> {
        let all = MessageType::ALL.iter().copied().zip(&self.by_code);
        all.filter(|(_, histogram)| histogram.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_duration_is_counted_by_every_bound_that_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        for nanos in [0, 250, 251, 500, 501, 1_000_000_000] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let counts: Vec<(u128, u64)> =
            histogram.up_to().map(|(bound, count)| (bound.as_nanos(), count)).collect();
        assert_eq!(counts[..4], [(250, 2), (500, 4), (1000, 5), (2000, 5)]);
        assert_eq!(counts[BOUNDS - 1], (250 << (BOUNDS - 1), 5));
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.sum, Duration::from_nanos(1_000_001_502));
    }
}
