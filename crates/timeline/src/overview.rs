//! Summary of many tracks for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{Nanoseconds, Span, Timeline};

/// Columns of the bar.
const BAR: u64 = 48;

/// From none to the maximum.
const SHADES: &[u8] = b" .:-=+*#%@";

/// A line for each kind of span: their number, the most that ran and the most that waited at the
/// same time, the median duration, and a bar that is darker where more of them ran.
#[must_use]
pub fn overview(timeline: &Timeline) -> String {
    let (first, last) = timeline.range();
    let kinds = timeline.kinds();
    let width = kinds.iter().map(|kind| kind.chars().count()).max().unwrap_or(0).clamp(5, 32);
    let mut out = format!("{} ({})\n", timeline.title, Nanoseconds(last - first));
    let _ = writeln!(
        out,
        "{:<width$} {:>6} {:>7} {:>7} {:>9}",
        "stage", "spans", "at once", "waiting", "median"
    );
    for kind in kinds {
        let spans: Vec<&Span> = timeline.spans.iter().filter(|span| span.kind == kind).collect();
        let work = spans.iter().map(|span| (span.start_ns, span.end_ns));
        let waits = spans.iter().map(|span| (span.ready_ns, span.start_ns));
        let _ = writeln!(
            out,
            "{kind:<width$} {:>6} {:>7} {:>7} {:>9} |{}|",
            spans.len(),
            most(work.clone()),
            most(waits),
            Nanoseconds(median(&spans)),
            bar(work, first, last),
        );
    }
    out
}

/// The most intervals that overlap at any time; empty ones do not count.
fn most(intervals: impl Iterator<Item = (u64, u64)>) -> usize {
    // At equal times, ends come first.
    let mut changes: BTreeMap<(u64, bool), usize> = BTreeMap::new();
    for (from, to) in intervals.filter(|(from, to)| from < to) {
        *changes.entry((from, true)).or_default() += 1;
        *changes.entry((to, false)).or_default() += 1;
    }
    let (mut now, mut most) = (0_usize, 0);
    for ((_, begins), count) in changes {
        now = if begins { now + count } else { now.saturating_sub(count) };
        most = most.max(now);
    }
    most
}

fn median(spans: &[&Span]) -> u64 {
    let mut times: Vec<u64> = spans.iter().map(|span| span.took_ns()).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// A column's shade is the sum of all intervals in it, relative to the largest column.
fn bar(intervals: impl Iterator<Item = (u64, u64)>, first: u64, last: u64) -> String {
    let edge = |column: u64| first + crate::scaled(column, BAR, last - first);
    let mut filled: Vec<u64> = (0..BAR).map(|_| 0).collect();
    for (from, to) in intervals {
        for (column, filled) in (0..).zip(&mut filled) {
            // Very short spans stay visible.
            let to = to.max(from + 1);
            *filled += to.min(edge(column + 1)).saturating_sub(from.max(edge(column)));
        }
    }
    let most = filled.iter().copied().max().unwrap_or(0).max(1);
    let shades = u64::try_from(SHADES.len() - 1).unwrap_or(1);
    let shade = |filled: u64| {
        // Rounded, since not all columns are equally wide.
        let level = crate::scaled(2 * shades * filled + most, 2 * most, 1);
        let level = level.max(u64::from(filled > 0));
        char::from(SHADES[usize::try_from(level).unwrap_or(0)])
    };
    filled.into_iter().map(shade).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::Outcome;

    fn span(track: usize, kind: &str, ready_ns: u64, start_ns: u64, end_ns: u64) -> Span {
        Span {
            track: format!("vm{track}"),
            name: kind.to_owned(),
            kind: kind.to_owned(),
            ready_ns,
            start_ns,
            end_ns,
            waited_for: None,
            outcome: Outcome::Ended,
        }
    }

    #[test]
    fn many_tracks_become_a_line_for_each_kind() {
        let ms = 1_000_000;
        let mut spans = Vec::new();
        for vm in 0..6 {
            spans.push(span(vm, "record", 0, 0, ms));
            let start = ms + ms * 2 * u64::try_from(vm / 2).unwrap_or(0);
            spans.push(span(vm, "attach disks", ms, start, start + 2 * ms));
        }
        spans.push(span(0, "start", 7 * ms, 7 * ms, 8 * ms));
        let timeline = Timeline { title: "6 VMs".to_owned(), spans };
        expect![[r#"
            6 VMs (8.0 ms)
            stage         spans at once waiting    median
            record            6       6       0    1.0 ms |@@@@@@                                          |
            attach disks      6       2       4    2.0 ms |      @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@      |
            start             1       1       0    1.0 ms |                                          @@@@@@|
        "#]]
        .assert_eq(&overview(&timeline));
    }

    #[test]
    fn an_empty_timeline_and_empty_spans_are_drawn() {
        assert!(overview(&Timeline::default()).contains("stage"));
        let timeline = Timeline { title: String::new(), spans: vec![span(0, "x", 5, 5, 5)] };
        assert_eq!(overview(&timeline).lines().count(), 3);
    }
}
