//! Statistics by kind of work and by hypercall.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::{Activity, HypercallRow, Latency, OperationRow, QueueRow};
use xen::{Counters, Latencies};

use crate::pool::QueueState;

/// Counts since the daemon's start, bounded by the number of kinds.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    operations: BTreeMap<&'static str, Operation>,
}

#[derive(Debug, Default)]
struct Operation {
    took: Latencies,
    cpu_ns: u64,
    failed: u64,
    hypercalls: BTreeMap<&'static str, Calls>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    count: u64,
    took: Latencies,
}

impl Calls {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.took.add(&other.took);
    }
}

/// Duration of a work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Took {
    pub(crate) ns: u64,
    /// CPU time of its thread.
    pub(crate) cpu_ns: u64,
}

/// Result of a work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    Done,
    Failed,
}

impl Stats {
    /// Records a work and its hypercalls.
    pub(crate) fn record(
        &mut self,
        operation: &'static str,
        took: Took,
        ending: Ending,
        hypercalls: &Counters,
    ) {
        let operation = self.operations.entry(operation).or_default();
        operation.took.record(took.ns);
        operation.cpu_ns = operation.cpu_ns.saturating_add(took.cpu_ns);
        operation.failed += u64::from(ending == Ending::Failed);
        for (name, count) in hypercalls.iter() {
            operation.hypercalls.entry(name).or_default().count += count;
        }
        for (name, took) in hypercalls.latencies() {
            operation.hypercalls.entry(name).or_default().took.add(took);
        }
    }

    fn hypercalls(&self) -> BTreeMap<&'static str, Calls> {
        let mut all: BTreeMap<&'static str, Calls> = BTreeMap::new();
        for (name, calls) in self.operations.values().flat_map(|it| &it.hypercalls) {
            all.entry(name).or_default().add(calls);
        }
        all
    }

    /// All statistics for a client.
    pub(crate) fn activity(
        &self,
        seconds: u64,
        queues: impl Iterator<Item = QueueState>,
    ) -> Activity {
        let operation = |(name, operation): (&&str, &Operation)| OperationRow {
            operation: (*name).to_owned(),
            failed: operation.failed,
            cpu_ns: operation.cpu_ns,
            latency: Latency {
                up_to: operation.took.up_to().collect(),
                ..latency(&operation.took)
            },
            hypercalls: hypercall_rows(&operation.hypercalls),
        };
        let size = |n: usize| n as u64;
        let queue = |state: QueueState| QueueRow {
            queue: state.name.to_owned(),
            performers: size(state.performers),
            busy: size(state.busy),
            depth: size(state.depth),
            depth_max: size(state.depth_max),
            waited: latency(&state.waited),
        };
        Activity {
            seconds,
            hypercalls: hypercall_rows(&self.hypercalls()),
            operations: self.operations.iter().map(operation).collect(),
            queues: queues.map(queue).collect(),
        }
    }

    /// All statistics in Prometheus' text format.
    pub(crate) fn metrics(&self, queues: impl Iterator<Item = QueueState>) -> String {
        let mut out = Text(String::new());
        let queues: Vec<QueueState> = queues.collect();
        for (name, kind, help, value) in QUEUE_METRICS {
            out.head(name, kind, help);
            for state in &queues {
                out.sample(name, &[("queue", state.name)], value(state));
            }
        }
        let name = "xylemd_queue_wait_seconds";
        out.head(name, "histogram", "How long work waited, of that which had to.");
        for state in &queues {
            out.histogram(name, ("queue", state.name), &state.waited);
        }
        let name = "xylemd_operation_seconds";
        out.head(name, "histogram", "How long work of each kind took.");
        for (operation, it) in &self.operations {
            out.histogram(name, ("operation", operation), &it.took);
        }
        let name = "xylemd_operation_cpu_seconds_total";
        out.head(name, "counter", "CPU time of the threads that did the work.");
        for (operation, it) in &self.operations {
            out.sample(name, &[("operation", operation)], seconds(it.cpu_ns));
        }
        let name = "xylemd_operations_failed_total";
        out.head(name, "counter", "Work that failed.");
        for (operation, it) in &self.operations {
            out.sample(name, &[("operation", operation)], it.failed);
        }
        let name = "xylemd_hypercalls_total";
        out.head(name, "counter", "Hypercalls, by the kind of work that made them.");
        for (operation, it) in &self.operations {
            for (hypercall, calls) in &it.hypercalls {
                let labels = [("operation", *operation), ("hypercall", *hypercall)];
                out.sample(name, &labels, calls.count);
            }
        }
        let name = "xylemd_hypercall_seconds";
        out.head(name, "histogram", "How long hypercalls took, of those that are timed.");
        for (hypercall, calls) in self.hypercalls() {
            out.histogram(name, ("hypercall", hypercall), &calls.took);
        }
        out.0
    }
}

/// Name, kind, help and value.
type QueueMetric = (&'static str, &'static str, &'static str, fn(&QueueState) -> u64);

const QUEUE_METRICS: [QueueMetric; 4] = [
    ("xylemd_queue_depth", "gauge", "Work that waits for a performer.", |it| it.depth as u64),
    ("xylemd_queue_depth_max", "gauge", "The most that ever waited.", |it| it.depth_max as u64),
    ("xylemd_performers", "gauge", "Performers of each queue.", |it| it.performers as u64),
    ("xylemd_performers_busy", "gauge", "Performers at work.", |it| it.busy as u64),
];

fn latency(latencies: &Latencies) -> Latency {
    Latency {
        count: latencies.count,
        total_ns: latencies.total_ns,
        p50_ns: latencies.quantile_ns(500),
        p99_ns: latencies.quantile_ns(990),
        longest_ns: latencies.longest_ns,
        up_to: Vec::new(),
    }
}

fn hypercall_rows(hypercalls: &BTreeMap<&'static str, Calls>) -> Vec<HypercallRow> {
    let row = |(name, calls): (&&str, &Calls)| HypercallRow {
        hypercall: (*name).to_owned(),
        count: calls.count,
        latency: latency(&calls.took),
    };
    hypercalls.iter().map(row).collect()
}

/// Prometheus' text format. Names and labels are ours, so they need no escaping.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn histogram(&mut self, name: &str, label: (&str, &str), latencies: &Latencies) {
        for (bound_ns, count) in latencies.up_to() {
            let bound = seconds(bound_ns);
            self.sample(&format!("{name}_bucket"), &[label, ("le", &bound)], count);
        }
        self.sample(&format!("{name}_bucket"), &[label, ("le", "+Inf")], latencies.count);
        self.sample(&format!("{name}_sum"), &[label], seconds(latencies.total_ns));
        self.sample(&format!("{name}_count"), &[label], latencies.count);
    }
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: u64) -> String {
    const NS_PER_SECOND: u64 = 1_000_000_000;
    format!("{}.{:09}", ns / NS_PER_SECOND, ns % NS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Stats {
        let mut stats = Stats::default();
        // Only a hypervisor fills counters; these are empty.
        stats.record("list", Took { ns: 1500, cpu_ns: 700 }, Ending::Done, &Counters::default());
        stats.record("list", Took { ns: 900, cpu_ns: 300 }, Ending::Failed, &Counters::default());
        let calls = Calls { count: 3, took: Latencies::default() };
        for operation in ["list", "build"] {
            stats.operations.entry(operation).or_default().hypercalls.insert("domctl", calls);
        }
        stats
    }

    fn queue() -> QueueState {
        let waited = Latencies::default();
        QueueState { name: "query", performers: 2, busy: 1, depth: 3, depth_max: 4, waited }
    }

    #[test]
    fn an_activity_has_sums_and_parts() {
        let activity = some().activity(5, [queue()].into_iter());
        assert_eq!(activity.hypercalls[0].count, 6);
        let list = &activity.operations[1];
        assert_eq!((list.operation.as_str(), list.failed, list.latency.count), ("list", 1, 2));
        assert!(list.latency.up_to.contains(&(1024, 1)), "{list:?}");
        assert!(list.hypercalls[0].latency.up_to.is_empty());
        assert_eq!(list.hypercalls[0].count, 3);
        assert_eq!(activity.queues[0].depth_max, 4);
    }

    #[test]
    fn metrics_are_lines_that_prometheus_reads() {
        let text = some().metrics([queue()].into_iter());
        for line in [
            "# TYPE xylemd_queue_depth gauge",
            "xylemd_queue_depth{queue=\"query\"} 3",
            "xylemd_operation_seconds_bucket{operation=\"list\",le=\"0.000001024\"} 1",
            "xylemd_operation_seconds_bucket{operation=\"list\",le=\"+Inf\"} 2",
            "xylemd_operation_seconds_sum{operation=\"list\"} 0.000002400",
            "xylemd_operation_cpu_seconds_total{operation=\"list\"} 0.000001000",
            "xylemd_operations_failed_total{operation=\"list\"} 1",
            "xylemd_hypercalls_total{operation=\"build\",hypercall=\"domctl\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is missing in\n{text}");
        }
        let mut names = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                assert!(names.insert(name.to_owned()), "{name} twice");
                continue;
            }
            let value = line.rsplit(' ').next().unwrap();
            assert!(line.starts_with("# HELP ") || value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
