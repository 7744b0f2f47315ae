//! The text of a scrape.

use std::collections::BTreeMap;

use api::{Activity, DiskTraffic, DomainRow, Latency, Limits, VifTraffic};

use crate::families as f;
use crate::sample::{Own, Sample};
use crate::text::{Family, Format, Labels, Text, bytes, count, number, seconds};

/// Domains that have metrics of their own.
pub(crate) const DOMAINS_MAX: usize = 4096;
/// Disks that have metrics of their own, and interfaces.
pub(crate) const DEVICES_MAX: usize = 8192;
/// Values of a label that the daemon chooses: kinds of work, hypercalls, counts.
const VALUES_MAX: usize = 512;

/// What was said last, and what the shell counts of itself. `age_s` is the age of the former.
#[must_use]
pub fn scrape(sample: &Sample, own: &Own, age_s: f64, format: Format) -> String {
    let mut text = Text::new(format);
    head(&mut text, sample, own.release, age_s);
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

/// The text of a sample of some VMs, without the host's numbers.
#[must_use]
pub fn scrape_vms(sample: &Sample, release: &str, age_s: f64, format: Format) -> String {
    let mut text = Text::new(format);
    head(&mut text, sample, release, age_s);
    by_name(&mut text, &f::VMS, &sample.states);
    domains(&mut text, sample);
    text.end()
}

fn head(text: &mut Text, sample: &Sample, release: &str, age_s: f64) {
    let daemon = sample.release.as_deref().unwrap_or_default();
    text.family(&f::BUILD).put(&Labels::of("version", release).and("daemon", daemon), 1.0);
    text.family(&f::UP).value(if sample.release.is_some() { 1.0 } else { 0.0 });
    text.family(&f::AGE).value(age_s);
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
    let by_domid: BTreeMap<u16, &Labels> =
        labelled.iter().map(|(labels, row)| (row.domid, labels)).collect();
    devices(text, sample, &by_domid);
}

/// Those of the domains that are shown; of one that has gone meanwhile there is no name.
fn devices(text: &mut Text, sample: &Sample, domains: &BTreeMap<u16, &Labels>) {
    let traffic = &sample.traffic;
    let labels_of =
        |domid: u16, device: &str| domains.get(&domid).map(|it| it.and("device", device));
    let disks = traffic.disks.iter().take(DEVICES_MAX);
    let disks: Vec<(Labels, &DiskTraffic)> =
        disks.filter_map(|it| Some((labels_of(it.domid, &it.device)?, it))).collect();
    let mut each = |family: &Family, value: &dyn Fn(&DiskTraffic) -> u64| {
        let mut samples = text.family(family);
        for (labels, disk) in &disks {
            samples.put(labels, number(value(disk)));
        }
    };
    each(&f::DISK_READ_BYTES, &|it| it.read_bytes);
    each(&f::DISK_WRITTEN_BYTES, &|it| it.written_bytes);
    each(&f::DISK_READS, &|it| it.reads);
    each(&f::DISK_WRITES, &|it| it.writes);
    each(&f::DISK_WAITS, &|it| it.out_of_requests);
    let vifs = traffic.vifs.iter().take(DEVICES_MAX);
    let vifs: Vec<(Labels, &VifTraffic)> =
        vifs.filter_map(|it| Some((labels_of(it.domid, &it.devid.to_string())?, it))).collect();
    let mut each = |family: &Family, value: &dyn Fn(&VifTraffic) -> u64| {
        let mut samples = text.family(family);
        for (labels, vif) in &vifs {
            samples.put(labels, number(value(vif)));
        }
    };
    each(&f::NET_RECEIVED_BYTES, &|it| it.received_bytes);
    each(&f::NET_SENT_BYTES, &|it| it.sent_bytes);
    each(&f::NET_RECEIVED, &|it| it.received_packets);
    each(&f::NET_SENT, &|it| it.sent_packets);
    each(&f::NET_RECEIVED_DROPPED, &|it| it.received_dropped);
    each(&f::NET_SENT_DROPPED, &|it| it.sent_dropped);
    let beyond = |all: usize| all.saturating_sub(DEVICES_MAX);
    let left_out = beyond(traffic.disks.len()) + beyond(traffic.vifs.len());
    text.family(&f::DEVICES_LEFT_OUT).value(count(left_out));
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
    let mut samples = text.family(&f::STEP);
    // An earlier release says no bounds.
    for row in operations.iter().take(VALUES_MAX).filter(|it| !it.latency.up_to.is_empty()) {
        samples.histogram(&Labels::of("step", &row.operation), &row.latency);
    }
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
    let mut samples = text.family(&f::TRACES);
    for (outcome, times) in own.traces {
        samples.put(&Labels::of("outcome", outcome), number(times));
    }
    text.family(&f::TRACES_WAITING).value(count(own.traces_waiting));
    text.family(&f::HISTORY_VMS).value(count(own.history_vms));
    text.family(&f::HISTORY_BYTES).value(count(own.history_bytes));
}

#[cfg(test)]
#[path = "scrape_tests.rs"]
mod tests;
