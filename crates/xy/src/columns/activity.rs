//! Counts and times as tables. xl has no such command.

use std::fmt::Write as _;

use api::{Activity, HypercallRow, Latency};

/// The times of one row. Quantiles are power-of-two bounds.
fn times(out: &mut String, latency: &Latency) {
    let mean = latency.total_ns.checked_div(latency.count).unwrap_or_default();
    for ns in [mean, latency.p50_ns, latency.p99_ns, latency.longest_ns] {
        let _ = write!(out, " {:>10}", micros(ns));
    }
    let _ = writeln!(out, " {:>10}", millis(latency.total_ns));
}

fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns / 100 % 10)
}

fn millis(ns: u64) -> String {
    format!("{}.{}", ns / 1_000_000, ns / 100_000 % 10)
}

fn head(what: &str, counts: &str) -> String {
    format!(
        "{what:<28} {counts} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
        "mean us", "p50 us", "p99 us", "max us", "total ms"
    )
}

/// Sorted by total time, longest first.
fn by_total(rows: &[HypercallRow]) -> Vec<&HypercallRow> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.latency.total_ns, row.count)));
    rows
}

/// A line for each hypercall.
pub(crate) fn hypercalls(activity: &Activity) -> String {
    let mut out = head("Hypercall", &format!("{:>10}", "calls"));
    for row in by_total(&activity.hypercalls) {
        let _ = write!(out, "{:<28} {:>10}", row.hypercall, row.count);
        times(&mut out, &row.latency);
    }
    let calls: u64 = activity.hypercalls.iter().map(|row| row.count).sum();
    let _ = writeln!(out, "{:<28} {calls:>10}   in {} s", "all", activity.seconds);
    out
}

/// A line for each kind of work, and below it one for each of its hypercalls.
pub(crate) fn operations(activity: &Activity) -> String {
    let mut out = head("Operation", &format!("{:>10} {:>7}", "times", "failed"));
    let mut rows: Vec<_> = activity.operations.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.latency.total_ns, row.latency.count)));
    for row in rows {
        let _ = write!(out, "{:<28} {:>10} {:>7}", row.operation, row.latency.count, row.failed);
        times(&mut out, &row.latency);
        for call in by_total(&row.hypercalls) {
            let _ = write!(out, "  {:<26} {:>10} {:>7}", call.hypercall, call.count, "");
            times(&mut out, &call.latency);
        }
    }
    out
}

/// A line for each queue; times are waiting times.
pub(crate) fn queues(activity: &Activity) -> String {
    let counts = format!("{:>6} {:>6} {:>6} {:>6} {:>8}", "busy", "of", "depth", "most", "waited");
    let mut out = head("Queue", &counts);
    for row in &activity.queues {
        let _ = write!(
            out,
            "{:<28} {:>6} {:>6} {:>6} {:>6} {:>8}",
            row.queue, row.busy, row.performers, row.depth, row.depth_max, row.waited.count
        );
        times(&mut out, &row.waited);
    }
    out
}

#[cfg(test)]
mod tests {
    use api::{OperationRow, QueueRow};
    use expect_test::expect;

    use super::*;

    fn latency(count: u64, ns: u64) -> Latency {
        let (total_ns, p99_ns, longest_ns) = (count * ns, 2 * ns, 3 * ns);
        Latency { count, total_ns, p50_ns: ns, p99_ns, longest_ns, ..Latency::default() }
    }

    fn activity() -> Activity {
        let call = |name: &str, count, ns| HypercallRow {
            hypercall: name.to_owned(),
            count,
            latency: latency(count, ns),
        };
        let calls = vec![call("getdomaininfolist", 7, 12_345), call("createdomain", 2, 1_234_567)];
        let operation = OperationRow {
            operation: "create-domain".to_owned(),
            failed: 1,
            cpu_ns: 3_000_000,
            latency: latency(2, 5_000_000),
            hypercalls: calls[1..].to_vec(),
        };
        let queue = QueueRow {
            queue: "query".to_owned(),
            performers: 2,
            busy: 1,
            depth: 3,
            depth_max: 4,
            waited: latency(5, 1000),
        };
        Activity {
            seconds: 60,
            hypercalls: calls,
            operations: vec![operation],
            queues: vec![queue],
        }
    }

    #[test]
    fn tables_have_a_line_for_each() {
        expect![[r#"
            Hypercall                         calls    mean us     p50 us     p99 us     max us   total ms
            createdomain                          2     1234.5     1234.5     2469.1     3703.7        2.4
            getdomaininfolist                     7       12.3       12.3       24.6       37.0        0.0
            all                                   9   in 60 s
        "#]].assert_eq(&hypercalls(&activity()));
        expect![[r#"
            Operation                         times  failed    mean us     p50 us     p99 us     max us   total ms
            create-domain                         2       1     5000.0     5000.0    10000.0    15000.0       10.0
              createdomain                        2             1234.5     1234.5     2469.1     3703.7        2.4
        "#]].assert_eq(&operations(&activity()));
        expect![[r#"
            Queue                          busy     of  depth   most   waited    mean us     p50 us     p99 us     max us   total ms
            query                             1      2      3      4        5        1.0        1.0        2.0        3.0        0.0
        "#]].assert_eq(&queues(&activity()));
    }
}
