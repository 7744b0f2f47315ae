//! Virtual time and the event queue.
//!
//! Events with equal times happen in insertion order, so a run is a function of its seed alone.

use core::fmt;
use std::collections::BTreeMap;

/// A point in virtual time, in nanoseconds since the host's boot.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Time(pub u64);

impl Time {
    /// The time `nanoseconds` later.
    #[must_use]
    pub fn after(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl fmt::Display for Time {
    /// Seconds with microseconds, as in kernel logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1000;
        write!(f, "{:5}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

/// Events in the order in which they will happen.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    queue: BTreeMap<(Time, u64), E>,
    sequence: u64,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { queue: BTreeMap::new(), sequence: 0 }
    }

    pub(crate) fn put(&mut self, when: Time, event: E) {
        self.queue.insert((when, self.sequence), event);
        self.sequence += 1;
    }

    /// When the next event happens.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.queue.keys().next().map(|(when, _)| *when)
    }

    /// Takes the next event if it happens at `until` or before.
    pub(crate) fn pop(&mut self, until: Time) -> Option<(Time, E)> {
        if self.next_time()? > until {
            return None;
        }
        self.queue.pop_first().map(|((when, _), event)| (when, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_insertion_order() {
        let mut agenda = Agenda::new();
        for (when, name) in [(5, "c"), (1, "a"), (5, "d"), (1, "b"), (9, "e")] {
            agenda.put(Time(when), name);
        }
        let mut seen = vec![];
        while let Some((_, name)) = agenda.pop(Time(5)) {
            seen.push(name);
        }
        assert_eq!(seen, ["a", "b", "c", "d"]);
        assert_eq!(agenda.next_time(), Some(Time(9)));
    }

    #[test]
    fn a_time_prints_as_seconds() {
        assert_eq!(Time(1_234_567_899).to_string(), "    1.234567");
    }
}
