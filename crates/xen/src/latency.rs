//! Call latencies: a histogram with power-of-two buckets, which can be summed and has a fixed size.

/// Buckets: up to 1,024 ns, then doubling up to 17 s; the last takes everything longer.
const BUCKETS: usize = 26;
/// Base-2 logarithm of the first bucket's bound, in nanoseconds.
const FIRST_BITS: u32 = 10;

/// Latencies of one kind of call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Latencies {
    pub count: u64,
    pub total_ns: u64,
    pub longest_ns: u64,
    buckets: [u64; BUCKETS],
}

impl Latencies {
    pub fn record(&mut self, ns: u64) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
        let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
        let bucket = usize::try_from(bits.saturating_sub(FIRST_BITS)).unwrap_or(usize::MAX);
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        for (own, more) in self.buckets.iter_mut().zip(other.buckets) {
            *own += more;
        }
    }

    /// Bounds in nanoseconds, and the calls that took no longer than each. Calls above the last
    /// bound are in [`Latencies::count`] only.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut sum = 0;
        (FIRST_BITS..).zip(&self.buckets[..BUCKETS - 1]).map(move |(bits, count)| {
            sum += count;
            (1 << bits, sum)
        })
    }

    /// A quantile in nanoseconds, rounded up to its bucket's bound, or the longest time if that is
    /// less.
    #[must_use]
    pub fn quantile_ns(&self, per_mille: u64) -> u64 {
        let wanted = self.count.saturating_mul(per_mille).div_ceil(1000);
        let bound = self.up_to().find(|(_, count)| *count >= wanted).map(|(bound, _)| bound);
        bound.unwrap_or(self.longest_ns).min(self.longest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_rounded_up_to_less_than_twice_its_value() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_ns(500), 0);
        for us in 1..=1000 {
            latencies.record(us * 1000);
        }
        assert_eq!((latencies.count, latencies.longest_ns), (1000, 1_000_000));
        for (per_mille, exact) in [(1, 1000), (500, 500_000), (990, 990_000), (1000, 1_000_000)] {
            let told = latencies.quantile_ns(per_mille);
            assert!((exact..2 * exact).contains(&told), "{per_mille}: {told}");
        }
    }

    #[test]
    fn bounds_are_powers_of_two_and_longer_times_are_counted() {
        let mut latencies = Latencies::default();
        for ns in [0, 1, 1024, 1025, 1 << 34, (1 << 34) + 1, u64::MAX] {
            latencies.record(ns);
        }
        let bounds: alloc::vec::Vec<_> = latencies.up_to().collect();
        assert_eq!(bounds[0], (1024, 3));
        assert_eq!(bounds[1], (2048, 4));
        assert_eq!(bounds[24], (1 << 34, 5));
        assert_eq!((bounds.len(), latencies.count), (25, 7));
        assert_eq!(latencies.quantile_ns(1000), u64::MAX);
    }

    #[test]
    fn a_sum_equals_one_histogram_of_all_times() {
        let (mut one, mut two, mut both) = Default::default();
        for ns in [5, 70_000, 1 << 20] {
            Latencies::record(&mut one, ns);
            Latencies::record(&mut two, ns * 3);
            Latencies::record(&mut both, ns);
            Latencies::record(&mut both, ns * 3);
        }
        one.add(&two);
        assert_eq!(one, both);
    }
}
