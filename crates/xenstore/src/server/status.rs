//! Status of the store: everything as JSON, and as Prometheus' text.
//!
//! The text follows "Exposition formats" of Prometheus, version 0.0.4. Neither contains names or
//! values of nodes. `CONTROL stats` has the short form, which fits into a message.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use xen::DomId;

use crate::server::connection::Peer;
use crate::server::latency::SAMPLED_EACH;
use crate::server::{ConnId, Server};
use crate::wire::MessageType;

/// Why the result of writing to a string is ignored.
const NEVER_FAILS: &str = "a string takes everything";

/// A domain's use of the store.
struct DomainStatus {
    domid: DomId,
    requests: u64,
    nodes: usize,
    bytes: usize,
    watches: usize,
    transactions: usize,
    unread_bytes: usize,
}

impl Server {
    /// Counters and sizes of everything, by domain and by client, as one JSON object.
    #[must_use]
    pub fn status_json(&self) -> String {
        let mut text = self.stats();
        // Its members first, and its brace last.
        text.pop();
        let latencies = self.latencies.iter().map(|(kind, histogram)| {
            let bounds: Vec<String> = histogram
                .up_to()
                .map(|(bound, count)| format!("[{},{count}]", bound.as_nanos()))
                .collect();
            format!(
                "\"{}\":{{\"count\":{},\"sum\":{},\"up_to\":[{}]}}",
                kind.label(),
                histogram.count(),
                histogram.sum.as_nanos(),
                bounds.join(",")
            )
        });
        let latencies: Vec<String> = latencies.collect();
        let domains = self.domain_statuses().into_iter().map(|domain| {
            format!(
                "{{\"domid\":{},\"requests\":{},\"nodes\":{},\"bytes\":{},\"watches\":{},\
                 \"transactions\":{},\"unread_bytes\":{}}}",
                domain.domid,
                domain.requests,
                domain.nodes,
                domain.bytes,
                domain.watches,
                domain.transactions,
                domain.unread_bytes,
            )
        });
        let domains: Vec<String> = domains.collect();
        let sockets = self.connections.iter().filter(|(_, c)| c.peer == Peer::Socket);
        let sockets = sockets.map(|(id, connection)| {
            format!(
                "{{\"connection\":{},\"requests\":{},\"bytes\":{},\"watches\":{},\
                 \"transactions\":{},\"unread_bytes\":{}}}",
                ConnId::number(*id),
                connection.requests,
                connection.held_bytes(),
                connection.watches.len(),
                connection.transactions.len(),
                connection.output.bytes(),
            )
        });
        let sockets: Vec<String> = sockets.collect();
        write!(
            text,
            ",\"request_nanoseconds\":{{\"sampled_each\":{SAMPLED_EACH},{}}},\"by_domain\":[{}],\
             \"by_socket\":[{}]}}",
            if latencies.is_empty() {
                "\"types\":{}".into()
            } else {
                format!("\"types\":{{{}}}", latencies.join(","))
            },
            domains.join(","),
            sockets.join(",")
        )
        .expect(NEVER_FAILS);
        text
    }

    /// The same as metrics for Prometheus, without the single sockets.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut metrics = Metrics(String::new());
        let counters = &self.counters;
        metrics.family("requests_total", "counter", "Requests by type.");
        for &kind in MessageType::ALL {
            metrics.value("requests_total", &label("type", kind.label()), counters.requests(kind));
        }
        metrics.value("requests_total", &label("type", "unknown"), counters.requests_unknown);
        let single = [
            (
                "requests_refused_total",
                "Requests answered with an error.",
                counters.requests_refused,
            ),
            ("transactions_started_total", "Transactions.", counters.transactions_started),
            (
                "writers_held_back_total",
                "Times that a guest wrote too fast and had to wait.",
                counters.writers_held_back,
            ),
            (
                "snapshots_given_up_total",
                "Transactions of guests that were open for too long.",
                counters.snapshots_given_up,
            ),
            ("looks_total", "Looks at all domains, or at all that changed.", counters.looks),
            ("looks_cpu_microseconds_total", "CPU time of that.", counters.looks_cpu_us),
        ];
        for (name, help, value) in single {
            metrics.family(name, "counter", help);
            metrics.value(name, "", value);
        }
        metrics.family("transactions_ended_total", "counter", "Ends of transactions.");
        for (how, value) in [
            ("committed", counters.transactions_committed),
            ("conflicted", counters.transactions_conflicted),
            ("aborted", counters.transactions_aborted),
        ] {
            metrics.value("transactions_ended_total", &label("how", how), value);
        }
        metrics.family("events_total", "counter", "Watch events by what became of them.");
        for (fate, value) in [
            ("queued", counters.events_queued),
            ("coalesced", counters.events_coalesced),
            ("dropped", counters.events_dropped),
            ("expired", counters.events_expired),
        ] {
            metrics.value("events_total", &label("fate", fate), value);
        }
        let introduced = self.domains.iter().filter(|(_, d)| d.connection.is_some()).count();
        for (name, help, value) in [
            ("connections", "Clients, rings included.", self.connections.len()),
            ("domains", "Domains whose ring is served.", introduced),
            ("nodes", "Nodes in the tree.", self.store.node_count()),
            ("watches", "Watches of all clients.", self.watches.len()),
            ("transactions_open", "Open transactions of all clients.", self.transactions_open),
        ] {
            metrics.family(name, "gauge", help);
            metrics.value(name, "", value as u64);
        }
        self.domain_metrics(&mut metrics);
        self.latency_metrics(&mut metrics);
        metrics.0
    }

    fn domain_metrics(&self, metrics: &mut Metrics) {
        type Figure = fn(&DomainStatus) -> u64;
        let families: [(&str, &str, &str, Figure); 6] = [
            ("domain_requests_total", "counter", "Requests of a domain.", |d| d.requests),
            ("domain_nodes", "gauge", "Nodes that a domain owns.", |d| d.nodes as u64),
            ("domain_bytes", "gauge", "Memory held for a domain.", |d| d.bytes as u64),
            ("domain_watches", "gauge", "Watches of a domain.", |d| d.watches as u64),
            ("domain_transactions", "gauge", "Open transactions.", |d| d.transactions as u64),
            ("domain_unread_bytes", "gauge", "What a domain has not read.", |d| {
                d.unread_bytes as u64
            }),
        ];
        let domains = self.domain_statuses();
        for (name, kind, help, figure) in families {
            metrics.family(name, kind, help);
            for domain in &domains {
                metrics.value(name, &label("domid", &format!("{}", domain.domid)), figure(domain));
            }
        }
    }

    fn latency_metrics(&self, metrics: &mut Metrics) {
        let help = format!("Time to execute a request; one of {SAMPLED_EACH} is measured.");
        metrics.family("request_seconds", "histogram", &help);
        for (kind, histogram) in self.latencies.iter() {
            let kind = kind.label();
            for (bound, count) in histogram.up_to() {
                let labels = format!("{{type=\"{kind}\",le=\"{}\"}}", bound.as_secs_f64());
                metrics.value("request_seconds_bucket", &labels, count);
            }
            let count = histogram.count();
            let labels = format!("{{type=\"{kind}\",le=\"+Inf\"}}");
            metrics.value("request_seconds_bucket", &labels, count);
            let labels = label("type", kind);
            metrics.value("request_seconds_sum", &labels, histogram.sum.as_secs_f64());
            metrics.value("request_seconds_count", &labels, count);
        }
    }

    fn domain_statuses(&self) -> Vec<DomainStatus> {
        let status = |(domid, domain): (DomId, &super::domains::Domain)| {
            let in_use = self.in_use(domid);
            let connection = domain.connection.and_then(|id| self.connections.get(&id));
            DomainStatus {
                domid,
                requests: connection.map_or(0, |connection| connection.requests),
                nodes: in_use.nodes,
                bytes: in_use.memory_bytes,
                watches: in_use.watches,
                transactions: in_use.transactions,
                unread_bytes: connection.map_or(0, |connection| connection.output.bytes()),
            }
        };
        self.domains.iter().map(status).collect()
    }
}

/// Lines of metrics, whose names all begin with `xenstore_`.
struct Metrics(String);

impl Metrics {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        write!(self.0, "# HELP xenstore_{name} {help}\n# TYPE xenstore_{name} {kind}\n")
            .expect(NEVER_FAILS);
    }

    fn value(&mut self, name: &str, labels: &str, value: impl core::fmt::Display) {
        writeln!(self.0, "xenstore_{name}{labels} {value}").expect(NEVER_FAILS);
    }
}

fn label(name: &str, value: &str) -> String {
    format!("{{{name}=\"{value}\"}}")
}
