//! What checkers of several hosts look at: when domains ran, and when backends wrote to disks.

use std::collections::BTreeMap;

use storage::Access;
use xen::{DomId, Uuid};

use crate::agenda::Time;

/// A time in which something was so; without an end, it still is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Span<T> {
    pub what: T,
    pub domid: DomId,
    pub began: Time,
    pub ended: Option<Time>,
}

impl<T> Span<T> {
    /// Whether both are so at some moment.
    #[must_use]
    pub fn overlaps<U>(&self, other: &Span<U>) -> bool {
        self.ended.is_none_or(|ended| other.began < ended)
            && other.ended.is_none_or(|ended| self.began < ended)
    }
}

/// When domains ran: unpaused, not shut down, alive. By the domain's UUID.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    spans: Vec<Span<Uuid>>,
    /// Running domains by their unique number, with their spans.
    running: BTreeMap<u64, usize>,
}

impl Runs {
    /// Compares with the domains that run now.
    pub(crate) fn look(&mut self, now: Time, running: &[(u64, DomId, Uuid)]) {
        let spans = &mut self.spans;
        self.running.retain(|unique_id, at| {
            let runs = running.iter().any(|it| it.0 == *unique_id);
            if !runs {
                spans[*at].ended = Some(now);
            }
            runs
        });
        for &(unique_id, domid, what) in running {
            self.running.entry(unique_id).or_insert_with(|| {
                spans.push(Span { what, domid, began: now, ended: None });
                spans.len() - 1
            });
        }
    }

    pub(crate) fn spans(&self) -> &[Span<Uuid>] {
        &self.spans
    }
}

/// A backend's connection to a disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskUse {
    /// The file, export or device behind it.
    pub disk: String,
    pub access: Access,
}

/// When backends had disks connected.
#[derive(Debug, Default)]
pub(crate) struct DiskUses(Vec<Span<DiskUse>>);

impl DiskUses {
    pub(crate) fn begin(&mut self, now: Time, domid: DomId, what: DiskUse) {
        self.0.push(Span { what, domid, began: now, ended: None });
    }

    pub(crate) fn end(&mut self, now: Time, domid: DomId, disk: &str) {
        let is_open = |it: &&mut Span<DiskUse>| {
            it.ended.is_none() && it.domid == domid && it.what.disk == disk
        };
        if let Some(span) = self.0.iter_mut().rev().find(is_open) {
            span.ended = Some(now);
        }
    }

    pub(crate) fn end_all(&mut self, now: Time) {
        for span in &mut self.0 {
            span.ended.get_or_insert(now);
        }
    }

    pub(crate) fn spans(&self) -> &[Span<DiskUse>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_overlap_if_both_are_at_some_moment() {
        let span = |began, ended: Option<u64>| Span {
            what: (),
            domid: DomId(1),
            began: Time(began),
            ended: ended.map(Time),
        };
        assert!(span(1, Some(5)).overlaps(&span(4, None)));
        assert!(span(4, None).overlaps(&span(1, Some(5))));
        assert!(!span(1, Some(5)).overlaps(&span(5, None)));
        assert!(span(1, None).overlaps(&span(7, None)));
    }

    #[test]
    fn a_domain_that_stops_and_goes_on_has_run_twice() {
        let mut runs = Runs::default();
        let one = (7, DomId(1), Uuid([1; 16]));
        runs.look(Time(1), &[one]);
        runs.look(Time(2), &[one]);
        runs.look(Time(3), &[]);
        runs.look(Time(4), &[one]);
        let times: Vec<_> = runs.spans().iter().map(|it| (it.began, it.ended)).collect();
        assert_eq!(times, [(Time(1), Some(Time(3))), (Time(4), None)]);
    }
}
