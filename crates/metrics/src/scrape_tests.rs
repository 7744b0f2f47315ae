//! Of texts.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    Activity, Counters, DiskTraffic, DomainRow, HypercallRow, Info, Latency, OperationRow,
    QueueRow, Traffic, VifTraffic,
};

use crate::FAMILIES;
use crate::sample::{Host, Own, Sample};
use crate::scrape::{DEVICES_MAX, DOMAINS_MAX, scrape};
use crate::text::Format;

fn map(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

pub(crate) fn row(domid: u16) -> DomainRow {
    DomainRow {
        name: Some(format!("vm-{domid}")),
        domid,
        uuid: format!("00000000-0000-4000-8000-{domid:012x}"),
        mem_kib: 4096,
        mem_max_kib: 8192,
        vcpus_online: 2,
        blocked: true,
        cpu_time_ns: 1_500_000_000,
        ..DomainRow::default()
    }
}

/// A disk and an interface of each of the first domains.
fn traffic(domains: u16) -> Traffic {
    let disk = |domid| DiskTraffic {
        domid,
        device: "xvda".to_owned(),
        read_bytes: 4096,
        written_bytes: 512,
        reads: 2,
        writes: 1,
        out_of_requests: 5,
    };
    let vif = |domid| VifTraffic {
        domid,
        devid: 0,
        received_bytes: 1500,
        received_packets: 1,
        received_dropped: 7,
        sent_bytes: 60,
        sent_packets: 1,
        sent_dropped: 0,
    };
    let (disks, vifs) = ((1..=domains).map(disk).collect(), (1..=domains).map(vif).collect());
    Traffic { disks, vifs, ..Traffic::default() }
}

/// With something of each family.
fn sample() -> Sample {
    let latency = Latency {
        count: 4,
        total_ns: 2_000_000,
        p50_ns: 262_144,
        p99_ns: 1_048_576,
        ..Latency::default()
    };
    let hypercall =
        HypercallRow { hypercall: "domctl/getinfo".to_owned(), count: 5, latency: latency.clone() };
    let never = OperationRow { operation: "never".to_owned(), ..OperationRow::default() };
    let up_to = vec![(1024, 1), (1_048_576, 3)];
    let list = OperationRow {
        operation: "list".to_owned(),
        failed: 1,
        cpu_ns: 500_000_000,
        latency: Latency { up_to, ..latency.clone() },
        ..OperationRow::default()
    };
    let queue = QueueRow { queue: "query".to_owned(), waited: latency, ..QueueRow::default() };
    let line = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let info =
        [line("nr_cpus", "4"), line("total_memory", "16"), line("free_memory", "8")].to_vec();
    Sample {
        release: Some("1.2.3".to_owned()),
        host: Host::of(&Info(info)),
        domains: vec![row(1), DomainRow { paused: true, ..row(2) }],
        states: map(&[("running", 2)]),
        operations: map(&[(&row(2).uuid, 3)]),
        counters: Counters { counts: map(&[("retries", 7)]), ..Counters::default() },
        activity: Activity {
            seconds: 60,
            hypercalls: vec![hypercall],
            operations: vec![list, never],
            queues: vec![queue],
        },
        traffic: traffic(2),
        ..Sample::default()
    }
}

fn own() -> Own {
    let requests = [(("/metrics".to_owned(), 200), 9)].into();
    let traces = [("sent", 4), ("refused", 1), ("overflowed", 0), ("missed", 0)];
    Own { release: "1.2.3", requests, traces, ..Own::default() }
}

#[test]
fn the_text_is_that_of_the_format() {
    let text = scrape(&sample(), &own(), 2.5, Format::OpenMetrics);
    for line in [
        "# TYPE xylem_build info",
        "xylem_build_info{version=\"1.2.3\",daemon=\"1.2.3\"} 1",
        "xylem_up 1",
        "xylem_sample_age_seconds 2.5",
        "xylem_host_memory_free_bytes 8388608",
        "# TYPE xylem_domain_cpu_seconds counter",
        "# UNIT xylem_domain_cpu_seconds seconds",
        "xylem_domain_cpu_seconds_total{vm=\"vm-1\",uuid=\"00000000-0000-4000-8000-000000000001\",domid=\"1\"} 1.5",
        "xylem_domain_memory_max_bytes{vm=\"vm-2\",uuid=\"00000000-0000-4000-8000-000000000002\",domid=\"2\"} 8388608",
        "xylem_domain_state{vm=\"vm-2\",uuid=\"00000000-0000-4000-8000-000000000002\",domid=\"2\",state=\"paused\"} 1",
        "xylem_domain_operations{vm=\"vm-2\",uuid=\"00000000-0000-4000-8000-000000000002\",domid=\"2\"} 3",
        "xylem_domain_disk_written_bytes_total{vm=\"vm-2\",uuid=\"00000000-0000-4000-8000-000000000002\",domid=\"2\",device=\"xvda\"} 512",
        "# UNIT xylem_domain_network_receive_bytes bytes",
        "xylem_domain_network_receive_bytes_total{vm=\"vm-1\",uuid=\"00000000-0000-4000-8000-000000000001\",domid=\"1\",device=\"0\"} 1500",
        "xylem_domain_network_receive_drop_total{vm=\"vm-1\",uuid=\"00000000-0000-4000-8000-000000000001\",domid=\"1\",device=\"0\"} 7",
        "xylem_operation_duration_seconds{operation=\"list\",quantile=\"0.99\"} 0.001048576",
        "xylem_operation_duration_seconds_sum{operation=\"list\"} 0.002",
        "xylem_operation_duration_seconds_count{operation=\"never\"} 0",
        "# TYPE xylem_step_duration_seconds histogram",
        "xylem_step_duration_seconds_bucket{step=\"list\",le=\"0.000001024\"} 1",
        "xylem_step_duration_seconds_bucket{step=\"list\",le=\"+Inf\"} 4",
        "xylem_step_duration_seconds_sum{step=\"list\"} 0.002",
        "xylem_counts_total{what=\"retries\"} 7",
        "xylem_web_requests_total{route=\"/metrics\",status=\"200\"} 9",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(!text.contains("operation=\"never\",quantile"), "there is no quantile of nothing");
    assert!(text.ends_with("\n# EOF\n"));
    let older = scrape(&sample(), &own(), 2.5, Format::Prometheus);
    assert!(older.contains("\n# TYPE xylem_domain_cpu_seconds_total counter\n"), "{older}");
    assert!(older.contains("# TYPE xylem_build_info gauge\n"));
    assert!(!older.contains("# UNIT") && !older.contains("# EOF"));
}

#[test]
fn the_newer_format_is_sent_unless_only_the_older_is_asked_for() {
    for (accept, format) in [
        ("", Format::OpenMetrics),
        ("*/*", Format::OpenMetrics),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1", Format::OpenMetrics),
        ("text/plain;version=0.0.4", Format::Prometheus),
    ] {
        assert_eq!(Format::accepted(accept), format, "{accept}");
    }
}

/// The family's name in a sample, its labels, and its value.
fn parsed(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (head, value) = line.rsplit_once(' ').unwrap();
    let (name, mut rest) = head.split_once('{').unwrap_or((head, ""));
    let mut labels = Vec::new();
    while let Some((key, tail)) = rest.split_once("=\"") {
        let (mut text, mut end) = (String::new(), None);
        let mut chars = tail.char_indices();
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' => text.push(chars.next().unwrap().1),
                '"' => {
                    end = Some(at);
                    break;
                }
                _ => text.push(char),
            }
        }
        labels.push((key.to_owned(), text));
        rest = tail[end.unwrap() + 1..].trim_start_matches([',', '}']);
    }
    (name.to_owned(), labels, value.parse().unwrap())
}

#[test]
fn every_family_is_written_with_the_labels_and_the_unit_that_it_says() {
    let text = scrape(&sample(), &own(), 0.0, Format::OpenMetrics);
    for family in FAMILIES {
        assert!(family.name.starts_with("xylem_"), "{}", family.name);
        if let Some(unit) = family.unit {
            assert!(family.name.ends_with(unit), "{}", family.name);
        }
        let ours: Vec<_> = text.lines().filter(|it| !it.starts_with('#')).map(parsed).collect();
        let names = ["", "_sum", "_count", "_bucket"].map(|it| format!("{}{it}", family.queried()));
        let labels: Vec<_> =
            ours.iter().filter(|it| names.contains(&it.0)).map(|it| &it.1).collect();
        assert!(!labels.is_empty(), "{} has no sample", family.name);
        for keys in labels {
            let keys: Vec<_> = keys
                .iter()
                .map(|it| &*it.0)
                .filter(|it| !["quantile", "le"].contains(it))
                .collect();
            assert_eq!(keys, family.labels, "{}", family.name);
        }
    }
    let declared = text.lines().filter(|it| it.starts_with("# TYPE")).count();
    assert_eq!(declared, FAMILIES.len());
    let samples: Vec<_> = text.lines().filter(|it| !it.starts_with('#')).collect();
    let distinct: BTreeSet<_> = samples.iter().map(|it| it.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(distinct.len(), samples.len(), "no sample is there twice");
}

#[test]
fn names_of_vms_are_bounded_and_harmless() {
    let hostile = format!("a\"}} 1\nxylem_up 7\\{}", "x".repeat(5000));
    let mut sample = sample();
    sample.domains[0].name = Some(hostile);
    let text = scrape(&sample, &own(), 0.0, Format::OpenMetrics);
    assert_eq!(text.lines().filter(|it| it.starts_with("xylem_up ")).count(), 1);
    let line = text.lines().find(|it| it.starts_with("xylem_domain_vcpus{vm=\"a")).unwrap();
    assert_eq!(parsed(line).1[0].1.chars().count(), 128);
    assert!(parsed(line).1[0].1.starts_with("a\"} 1xylem_up 7\\x"));
}

#[test]
fn a_host_with_too_many_domains_says_so() {
    let mut sample = sample();
    sample.domains = (1..=5000).map(row).collect();
    let text = scrape(&sample, &own(), 0.0, Format::OpenMetrics);
    let left_out = 5000 - DOMAINS_MAX;
    assert!(text.contains(&format!("\nxylem_domains_left_out {left_out}\n")));
    let of_domains = text.lines().filter(|it| it.starts_with("xylem_domain_vcpus{")).count();
    assert_eq!(of_domains, DOMAINS_MAX);
}

#[test]
fn devices_have_metrics_as_far_as_their_domains_have_and_so_many_only() {
    let mut sample = sample();
    sample.traffic = traffic(9000);
    let lines = |text: &str, name: &str| text.lines().filter(|it| it.starts_with(name)).count();
    let text = scrape(&sample, &own(), 0.0, Format::OpenMetrics);
    assert_eq!(lines(&text, "xylem_domain_disk_reads_total{"), 2, "of nobody there is no name");
    let left_out = 2 * (9000 - DEVICES_MAX);
    assert!(text.contains(&format!("\nxylem_domain_devices_left_out {left_out}\n")));
    sample.domains = (1..=5000).map(row).collect();
    let text = scrape(&sample, &own(), 0.0, Format::OpenMetrics);
    assert_eq!(lines(&text, "xylem_domain_network_receive_bytes_total{"), DOMAINS_MAX);
}
