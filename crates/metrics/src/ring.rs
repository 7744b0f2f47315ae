//! Averages of one value over time, in archives of which each reaches further back than the one before and is coarser.

/// Averages over a step, of which the last few are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Archive {
    pub step_s: u64,
    pub rows: usize,
    /// Where its rows begin in those of all archives.
    begins: usize,
}

/// Ten minutes, two hours, a week and a year: those that XAPI keeps.
pub const ARCHIVES: [Archive; 4] = [
    Archive { step_s: 5, rows: 120, begins: 0 },
    Archive { step_s: 60, rows: 120, begins: 120 },
    Archive { step_s: 3600, rows: 168, begins: 240 },
    Archive { step_s: 86_400, rows: 366, begins: 408 },
];
const ROWS: usize = ARCHIVES[3].begins + ARCHIVES[3].rows;

/// A clock that was set back by more than this has begins anew; by less, what was kept is kept.
const SET_BACK_S: u64 = 60;

impl Archive {
    fn slot(self, unix_s: u64) -> u64 {
        unix_s / self.step_s
    }

    /// The first and the last slot that hold something at this time and do not begin before `from_s`.
    #[must_use]
    pub(crate) fn slots(self, from_s: u64, now_s: u64) -> core::ops::RangeInclusive<u64> {
        // The finest has what there is of the current slot; of the others it is an average of too little.
        let end = if self.begins == 0 { now_s } else { now_s.saturating_sub(self.step_s) };
        let last = self.slot(end);
        let reaches = (last + 1).saturating_sub(u64::try_from(self.rows).unwrap_or(u64::MAX));
        self.slot(from_s).max(reaches)..=last
    }

    /// When a slot has ended.
    pub(crate) fn end_of(self, slot: u64) -> u64 {
        slot.saturating_add(1).saturating_mul(self.step_s)
    }

    /// The finest archive that is no finer than this.
    #[must_use]
    pub fn no_finer(step_s: u64) -> Self {
        let found = ARCHIVES.into_iter().find(|it| it.step_s >= step_s);
        found.unwrap_or(ARCHIVES[ARCHIVES.len() - 1])
    }

    fn row(self, slot: u64) -> usize {
        let rows = u64::try_from(self.rows).unwrap_or(u64::MAX);
        self.begins + usize::try_from(slot % rows).unwrap_or_default()
    }
}

/// The slot that values fall into now, and their average so far.
#[derive(Clone, Copy, Debug, Default)]
struct Current {
    slot: u64,
    sum: f64,
    count: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// NaN where there is nothing.
    averages: Box<[f32]>,
    current: [Current; ARCHIVES.len()],
    last_s: u64,
}

impl Ring {
    pub(crate) fn new() -> Self {
        let averages = vec![f32::NAN; ROWS].into_boxed_slice();
        Self { averages, current: <[Current; ARCHIVES.len()]>::default(), last_s: 0 }
    }

    /// What one takes.
    pub(crate) const BYTES: usize = size_of::<Self>() + ROWS * size_of::<f32>();

    pub(crate) fn put(&mut self, unix_s: u64, value: f64) {
        if unix_s.saturating_add(SET_BACK_S) < self.last_s {
            *self = Self::new();
        }
        if unix_s < self.last_s || !value.is_finite() {
            return;
        }
        self.last_s = unix_s;
        for (archive, current) in ARCHIVES.into_iter().zip(&mut self.current) {
            let slot = archive.slot(unix_s);
            if slot > current.slot {
                // What was skipped has no value.
                let rows = u64::try_from(archive.rows).unwrap_or(u64::MAX);
                let reaches = (slot + 1).saturating_sub(rows);
                let first = if current.count == 0 { slot } else { reaches.max(current.slot + 1) };
                for skipped in first..=slot {
                    self.averages[archive.row(skipped)] = f32::NAN;
                }
                *current = Current { slot, ..Current::default() };
            }
            current.sum += value;
            current.count += 1;
            // A range that is wide enough for what is shown, in half the memory.
            #[allow(clippy::cast_possible_truncation)]
            let average = (current.sum / f64::from(current.count)) as f32;
            self.averages[archive.row(slot)] = average;
        }
    }

    #[cfg(test)]
    pub(crate) fn averages_bytes(&self) -> usize {
        size_of_val(&*self.averages)
    }

    /// The average of a slot, if there is one.
    pub(crate) fn at(&self, archive: Archive, slot: u64) -> Option<f32> {
        let current = ARCHIVES.iter().position(|it| *it == archive).map(|it| self.current[it])?;
        let rows = u64::try_from(archive.rows).unwrap_or(u64::MAX);
        let is_kept = slot <= current.slot && current.slot - slot < rows;
        let average = self.averages[archive.row(slot)];
        (is_kept && !average.is_nan()).then_some(average)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// As if all values were kept.
        #[test]
        fn each_slot_has_the_average_of_its_values(
            begins in 1_000_000_u64..2_000_000,
            steps in prop::collection::vec((prop_oneof![4 => 1_u64..20, 1 => 1_u64..200_000], 0_u32..1000), 1..100),
        ) {
            let (mut ring, mut now, mut all) = (Ring::new(), begins, Vec::new());
            for (step, value) in steps {
                now += step;
                ring.put(now, f64::from(value));
                all.push((now, f64::from(value)));
            }
            for archive in ARCHIVES {
                let mut slots: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
                for (at, value) in &all {
                    let slot = slots.entry(at / archive.step_s).or_default();
                    *slot = (slot.0 + value, slot.1 + 1.0);
                }
                let last = now / archive.step_s;
                for slot in last.saturating_sub(500)..=last + 2 {
                    let is_kept = slot <= last && last - slot < archive.rows as u64;
                    let expected = slots.get(&slot).filter(|_| is_kept).map(|(sum, n)| sum / n);
                    let found = ring.at(archive, slot).map(f64::from);
                    match (expected, found) {
                        (Some(expected), Some(found)) => prop_assert!((expected - found).abs() < 0.01),
                        (expected, found) => prop_assert_eq!(expected, found),
                    }
                }
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_begins_anew_and_one_that_trembles_does_not() {
        let mut ring = Ring::new();
        let finest = ARCHIVES[0];
        ring.put(1000, 1.0);
        ring.put(990, 5.0);
        assert_eq!((ring.at(finest, 200), ring.at(finest, 198)), (Some(1.0), None));
        ring.put(500, 7.0);
        assert_eq!((ring.at(finest, 200), ring.at(finest, 100)), (None, Some(7.0)));
    }

    #[test]
    fn archives_lie_one_after_the_other() {
        let mut begins = 0;
        for archive in ARCHIVES {
            assert_eq!(archive.begins, begins);
            begins += archive.rows;
        }
        assert_eq!(begins, ROWS);
        assert_eq!(Archive::no_finer(0).step_s, 5);
        assert_eq!(Archive::no_finer(6).step_s, 60);
        assert_eq!(Archive::no_finer(u64::MAX).step_s, 86_400);
    }
}
