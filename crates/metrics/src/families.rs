//! All metrics.

use std::fmt::Write as _;

use crate::text::{Family, Kind};

const DOMAIN: &[&str] = &["vm", "uuid", "domid"];
const DEVICE: &[&str] = &["vm", "uuid", "domid", "device"];

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, unit: None, labels, help }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { kind: Kind::Counter, ..gauge(name, labels, help) }
}

const fn summary(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { kind: Kind::Summary, ..gauge(name, labels, help) }.of("seconds")
}

impl Family {
    const fn of(mut self, unit: &'static str) -> Self {
        self.unit = Some(unit);
        self
    }
}

macro_rules! families {
    ($($id:ident = $family:expr;)*) => {
        $(pub(crate) const $id: Family = $family;)*
        /// In the order of the text.
        pub const FAMILIES: &[Family] = &[$($id),*];
    };
}

families! {
    BUILD = Family { kind: Kind::Info, ..gauge("xylem_build", &["version", "daemon"], "Releases of xylem-web and of xylemd.") };
    UP = gauge("xylem_up", &[], "Whether xylemd has answered when last asked; if not, the rest is as it was before.");
    AGE = gauge("xylem_sample_age_seconds", &[], "Time since xylemd has last answered.").of("seconds");
    UPTIME = gauge("xylem_daemon_uptime_seconds", &[], "Time since xylemd has been started.").of("seconds");
    HOST_CPUS = gauge("xylem_host_cpus", &[], "CPUs of the host that are online.");
    HOST_MEMORY = gauge("xylem_host_memory_bytes", &[], "Memory of the host.").of("bytes");
    HOST_FREE = gauge("xylem_host_memory_free_bytes", &[], "Memory that no domain has or claims.").of("bytes");
    VMS = gauge("xylem_vms", &["state"], "VMs, defined or running, by state.");
    LEFT_OUT = gauge("xylem_domains_left_out", &[], "Domains beyond the limit, which have no metrics of their own.");
    DOMAIN_CPU = counter("xylem_domain_cpu_seconds", DOMAIN, "CPU time of the domain.").of("seconds");
    DOMAIN_MEMORY = gauge("xylem_domain_memory_bytes", DOMAIN, "Memory that the domain has or claims.").of("bytes");
    DOMAIN_MEMORY_MAX = gauge("xylem_domain_memory_max_bytes", DOMAIN, "Memory that the domain may have at most.").of("bytes");
    DOMAIN_VCPUS = gauge("xylem_domain_vcpus", DOMAIN, "Virtual CPUs that are online.");
    DOMAIN_STATE = gauge("xylem_domain_state", &["vm", "uuid", "domid", "state"], "1 for the state that the domain is in.");
    DOMAIN_OPERATIONS = gauge("xylem_domain_operations", DOMAIN, "Operations in progress on the VM and its devices.");
    DISK_READ_BYTES = counter("xylem_domain_disk_read_bytes", DEVICE, "What the domain has read from the disk.").of("bytes");
    DISK_WRITTEN_BYTES = counter("xylem_domain_disk_written_bytes", DEVICE, "What it has written to the disk.").of("bytes");
    DISK_READS = counter("xylem_domain_disk_reads", DEVICE, "Requests to read from the disk.");
    DISK_WRITES = counter("xylem_domain_disk_writes", DEVICE, "Requests to write to the disk.");
    DISK_WAITS = counter("xylem_domain_disk_out_of_requests", DEVICE, "Requests that had to wait because too many were in progress.");
    NET_RECEIVED_BYTES = counter("xylem_domain_network_receive_bytes", DEVICE, "What the domain has received on the interface.").of("bytes");
    NET_SENT_BYTES = counter("xylem_domain_network_transmit_bytes", DEVICE, "What it has sent on the interface.").of("bytes");
    NET_RECEIVED = counter("xylem_domain_network_receive_packets", DEVICE, "Packets that the domain has received.");
    NET_SENT = counter("xylem_domain_network_transmit_packets", DEVICE, "Packets that it has sent.");
    NET_RECEIVED_DROPPED = counter("xylem_domain_network_receive_drop", DEVICE, "Packets for the domain that it did not take in time.");
    NET_SENT_DROPPED = counter("xylem_domain_network_transmit_drop", DEVICE, "Packets of the domain that the host has dropped.");
    DEVICES_LEFT_OUT = gauge("xylem_domain_devices_left_out", &[], "Disks and interfaces beyond the limit, which have no metrics of their own.");
    STEPS_WAITING = gauge("xylem_steps_waiting", &[], "Steps that wait for a permit.");
    STEPS_UNDER_WAY = gauge("xylem_steps_under_way", &[], "Steps that hold a permit.");
    STEPS_LIMIT = gauge("xylem_steps_limit", &["of"], "Steps that may hold a permit at a time; none if there is no limit.");
    OPERATION = summary("xylem_operation_duration_seconds", &["operation"], "Time of work of this kind; quantiles since xylemd has been started, up to twice too large.");
    STEP = Family { kind: Kind::Histogram, ..gauge("xylem_step_duration_seconds", &["step"], "The same by bounds, to look at any span of time: of steps and all other work.") }.of("seconds");
    OPERATION_FAILED = counter("xylem_operation_failures", &["operation"], "Work of this kind that has failed.");
    OPERATION_CPU = counter("xylem_operation_cpu_seconds", &["operation"], "CPU time of xylemd in work of this kind.").of("seconds");
    HYPERCALLS = counter("xylem_hypercalls", &["hypercall"], "Hypercalls of xylemd.");
    HYPERCALL = summary("xylem_hypercall_duration_seconds", &["hypercall"], "Time of those that are timed; quantiles as above.");
    QUEUE_DEPTH = gauge("xylem_queue_depth", &["queue"], "Work that waits for a performer.");
    QUEUE_PERFORMERS = gauge("xylem_queue_performers", &["queue"], "Performers of this class of work.");
    QUEUE_BUSY = gauge("xylem_queue_busy", &["queue"], "Performers that are at work.");
    QUEUE_WAIT = summary("xylem_queue_wait_seconds", &["queue"], "Time of work that had to wait for a performer; quantiles as above.");
    STORE_MESSAGES = counter("xylem_store_messages", &[], "Messages of xylemd to the store.");
    STORE_ROUND_TRIPS = counter("xylem_store_round_trips", &[], "Times that xylemd had to wait for the store.");
    STORE_TRANSACTIONS = counter("xylem_store_transactions", &[], "Transactions of xylemd.");
    STORE_CONFLICTS = counter("xylem_store_conflicts", &[], "Transactions of xylemd that had to be repeated.");
    COUNTS = counter("xylem_counts", &["what"], "Everything else that xylemd counts: ignored errors, events, retries.");
    WEB_CONNECTIONS = gauge("xylem_web_connections", &[], "Connections of clients to xylem-web.");
    WEB_READERS = gauge("xylem_web_event_readers", &[], "Clients that read events.");
    WEB_REQUESTS = counter("xylem_web_requests", &["route", "status"], "Requests of clients to xylem-web.");
    WEB_PACED = counter("xylem_web_paced", &[], "Requests refused because their client asks too often.");
    TRACES = counter("xylem_traces", &["outcome"], "Operations that have ended, as traces: sent, refused by the collector, overflowed, or missed.");
    TRACES_WAITING = gauge("xylem_traces_waiting", &[], "Traces that wait to be sent.");
    HISTORY_VMS = gauge("xylem_history_vms", &[], "VMs of which there is a history.");
    HISTORY_BYTES = gauge("xylem_history_bytes", &[], "Memory of the history.").of("bytes");
}

/// All of them, as a table in Markdown.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("| metric | kind | labels | what |\n|---|---|---|---|\n");
    for family in FAMILIES {
        let labels: Vec<_> = family.labels.iter().map(|it| format!("`{it}`")).collect();
        let (name, kind, labels) = (family.queried(), family.kind.as_str(), labels.join(", "));
        let _infallible = writeln!(text, "| `{name}` | {kind} | {labels} | {} |", family.help);
    }
    text
}
