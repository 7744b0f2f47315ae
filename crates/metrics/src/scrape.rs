//! The text of a scrape.

use std::collections::BTreeMap;

use api::{Activity, DomainRow, Latency, Limits};

use crate::families as f;
use crate::sample::{Own, Sample};
use crate::text::{Family, Format, Labels, Text, bytes, count, number, seconds};

/// Domains that have metrics of their own.
pub(crate) const DOMAINS_MAX: usize = 4096;
/// Values of a label that the daemon chooses: kinds of work, hypercalls, counts.
const VALUES_MAX: usize = 512;

/// What was said last, and what the shell counts of itself. `age_s` is the age of the former.
#[must_use]
pub fn scrape(sample: &Sample, own: &Own, age_s: f64, format: Format) -> String {
    let mut text = Text::new(format);
    let daemon = sample.release.as_deref().unwrap_or_default();
    text.family(&f::BUILD).put(&Labels::of("version", own.release).and("daemon", daemon), 1.0);
    text.family(&f::UP).value(if sample.release.is_some() { 1.0 } else { 0.0 });
    text.family(&f::AGE).value(age_s);
    text.family(&f::UPTIME).value(number(sample.activity.seconds));
    if let Some(host) = sample.host {
        text.family(&f::HOST_CPUS).value(number(host.cpus));
        text.family(&f::HOST_MEMORY).value(number(host.memory_bytes));
        text.family(&f::HOST_FREE).value(number(host.memory_free_bytes));
    }
    by_name(&mut text, &f::VMS, &sample.states);
    domains(&mut text, sample);
    limits(&mut text, &sample.limits);
    activity(&mut text, &sample.activity);
    let cost = &sample.counters.cost;
    text.family(&f::STORE_MESSAGES).value(number(cost.store_messages));
    text.family(&f::STORE_ROUND_TRIPS).value(number(cost.store_round_trips));
    text.family(&f::STORE_TRANSACTIONS).value(number(cost.transactions));
    text.family(&f::STORE_CONFLICTS).value(number(cost.conflicts));
    by_name(&mut text, &f::COUNTS, &sample.counters.counts);
    web(&mut text, own);
    text.end()
}

fn by_name(text: &mut Text, family: &Family, values: &BTreeMap<String, u64>) {
    let mut samples = text.family(family);
    for (name, value) in values.iter().take(VALUES_MAX) {
        samples.put(&Labels::of(family.labels[0], name), number(*value));
    }
}

fn domains(text: &mut Text, sample: &Sample) {
    let shown = &sample.domains[..sample.domains.len().min(DOMAINS_MAX)];
    text.family(&f::LEFT_OUT).value(count(sample.domains.len() - shown.len()));
    let labelled: Vec<(Labels, &DomainRow)> = shown.iter().map(|it| (labels_of(it), it)).collect();
    let mut each = |family: &Family, value: &dyn Fn(&DomainRow) -> f64| {
        let mut samples = text.family(family);
        for (labels, row) in &labelled {
            samples.put(labels, value(row));
        }
    };
    each(&f::DOMAIN_CPU, &|it| seconds(it.cpu_time_ns));
    each(&f::DOMAIN_MEMORY, &|it| bytes(it.mem_kib));
    each(&f::DOMAIN_MEMORY_MAX, &|it| bytes(it.mem_max_kib));
    each(&f::DOMAIN_VCPUS, &|it| number(u64::from(it.vcpus_online)));
    let mut samples = text.family(&f::DOMAIN_STATE);
    for (labels, row) in &labelled {
        samples.put(&labels.and("state", state_of(row)), 1.0);
    }
    let in_progress = |row: &DomainRow| sample.operations.get(&row.uuid).copied();
    let mut samples = text.family(&f::DOMAIN_OPERATIONS);
    for (labels, row) in &labelled {
        samples.put(labels, number(in_progress(row).unwrap_or_default()));
    }
}

fn labels_of(row: &DomainRow) -> Labels {
    let name = row.name.as_deref().unwrap_or_default();
    Labels::of("vm", name).and("uuid", &row.uuid).and("domid", &row.domid.to_string())
}

/// The state that says most.
fn state_of(row: &DomainRow) -> &'static str {
    match row {
        row if row.dying => "dying",
        row if row.shutdown_reason == Some(3) => "crashed",
        row if row.shutdown_reason.is_some() => "shutdown",
        row if row.paused => "paused",
        row if row.running => "running",
        row if row.blocked => "blocked",
        _ => "runnable",
    }
}

fn limits(text: &mut Text, limits: &Limits) {
    text.family(&f::STEPS_WAITING).value(count(limits.waiting));
    text.family(&f::STEPS_UNDER_WAY).value(count(limits.under_way));
    let mut samples = text.family(&f::STEPS_LIMIT);
    for (of, limit) in [
        ("host", Some(limits.host)),
        ("vm", Some(limits.vm)),
        ("sr", Some(limits.sr)),
        ("backend", Some(limits.backend)),
        ("storage", limits.storage),
        ("domain", limits.domain),
        ("scan", limits.scan),
        ("change", limits.change),
        ("memory", limits.memory),
        ("send", limits.send),
        ("receive", limits.receive),
    ] {
        if let Some(limit) = limit {
            samples.put(&Labels::of("of", of), count(limit));
        }
    }
}

fn activity(text: &mut Text, activity: &Activity) {
    let Activity { hypercalls, operations, queues, .. } = activity;
    let of = |it: &api::OperationRow| it.operation.clone();
    summaries(text, &f::OPERATION, operations, |it| (of(it), &it.latency));
    values(text, &f::OPERATION_FAILED, operations, |it| (of(it), number(it.failed)));
    values(text, &f::OPERATION_CPU, operations, |it| (of(it), seconds(it.cpu_ns)));
    let of = |it: &api::HypercallRow| it.hypercall.clone();
    values(text, &f::HYPERCALLS, hypercalls, |it| (of(it), number(it.count)));
    summaries(text, &f::HYPERCALL, hypercalls, |it| (of(it), &it.latency));
    let of = |it: &api::QueueRow| it.queue.clone();
    values(text, &f::QUEUE_DEPTH, queues, |it| (of(it), number(it.depth)));
    values(text, &f::QUEUE_PERFORMERS, queues, |it| (of(it), number(it.performers)));
    values(text, &f::QUEUE_BUSY, queues, |it| (of(it), number(it.busy)));
    summaries(text, &f::QUEUE_WAIT, queues, |it| (of(it), &it.waited));
}

fn values<T>(text: &mut Text, family: &Family, rows: &[T], of: impl Fn(&T) -> (String, f64)) {
    let mut samples = text.family(family);
    for (name, value) in rows.iter().take(VALUES_MAX).map(of) {
        samples.put(&Labels::of(family.labels[0], &name), value);
    }
}

fn summaries<T>(
    text: &mut Text,
    family: &Family,
    rows: &[T],
    of: impl Fn(&T) -> (String, &Latency),
) {
    let mut samples = text.family(family);
    for row in rows.iter().take(VALUES_MAX) {
        let (name, latency) = of(row);
        samples.summary(&Labels::of(family.labels[0], &name), latency);
    }
}

fn web(text: &mut Text, own: &Own) {
    text.family(&f::WEB_CONNECTIONS).value(count(own.connections));
    text.family(&f::WEB_READERS).value(count(own.readers));
    let mut samples = text.family(&f::WEB_REQUESTS);
    for ((route, status), times) in own.requests.iter().take(VALUES_MAX) {
        let labels = Labels::of("route", route).and("status", &status.to_string());
        samples.put(&labels, number(*times));
    }
    text.family(&f::WEB_PACED).value(number(own.paced));
    text.family(&f::HISTORY_VMS).value(count(own.history_vms));
    text.family(&f::HISTORY_BYTES).value(count(own.history_bytes));
}

#[cfg(test)]
#[path = "scrape_tests.rs"]
mod tests;
