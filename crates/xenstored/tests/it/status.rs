//! What the daemon tells about itself at its status socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use xenstore::client::Nodes;

use crate::process::Daemon;

fn connect(daemon: &Daemon) -> UnixStream {
    UnixStream::connect(daemon.folder.path().join("status")).unwrap()
}

/// The answer; nothing if too many asked at once.
fn ask(daemon: &Daemon, question: &str) -> String {
    let mut stream = connect(daemon);
    let mut answer = String::new();
    // Whoever is let go without an answer may be so before the question is sent.
    let asked =
        stream.write_all(question.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    match asked {
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            String::new()
        }
        asked => asked.map(|_| answer).unwrap(),
    }
}

/// The value of a metric, by its name with its labels.
fn metric(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}

#[test]
fn everything_that_happens_is_counted() {
    let daemon = Daemon::start_confined("counted", &[]);
    let mut dom0 = daemon.client();
    let mut guest = daemon.guest(7);
    dom0.watch("/a", "token").unwrap();
    dom0.next_event().unwrap();
    for i in 0..100 {
        dom0.write("/a", format!("{i}").as_bytes()).unwrap();
        dom0.read("/a").unwrap();
    }
    guest.get_domain_path(xen::DomId(7)).unwrap();
    let metrics = ask(&daemon, "metrics\n");
    let value = |name: &str| metric(&metrics, name);
    assert_eq!(value("xenstore_requests_total{type=\"write\"}"), Some(100.0));
    assert_eq!(value("xenstore_requests_total{type=\"read\"}"), Some(100.0));
    assert_eq!(value("xenstore_watches"), Some(1.0));
    assert_eq!(value("xenstore_domains"), Some(2.0));
    assert_eq!(value("xenstore_domain_requests_total{domid=\"7\"}"), Some(1.0));
    assert_eq!(value("xenstore_domain_nodes{domid=\"7\"}"), Some(0.0));
    let events = ["queued", "coalesced"]
        .map(|fate| value(&format!("xenstore_events_total{{fate=\"{fate}\"}}")).unwrap());
    assert!((events[0] + events[1] - 101.0).abs() < 0.1, "{events:?}");
    // Every sixteenth of the 200 requests, and more.
    let sampled: f64 = ["read", "write"]
        .iter()
        .filter_map(|kind| value(&format!("xenstore_request_seconds_count{{type=\"{kind}\"}}")))
        .sum();
    assert!((12.0..=13.0).contains(&sampled), "{sampled}");
    let infinite = "xenstore_request_seconds_bucket{type=\"write\",le=\"+Inf\"}";
    let count = "xenstore_request_seconds_count{type=\"write\"}";
    assert_eq!(value(infinite), value(count));
}

#[test]
fn each_line_of_the_metrics_is_as_prometheus_reads_it() {
    let daemon = Daemon::start_confined("metrics", &[]);
    let mut dom0 = daemon.client();
    for _ in 0..50 {
        dom0.read("/").unwrap();
    }
    let metrics = ask(&daemon, "metrics\n");
    let mut family = "";
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
        } else if !line.starts_with("# HELP ") {
            assert!(line.starts_with(family), "{line} is not of {family}");
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    let http = ask(&daemon, "GET /metrics HTTP/1.1\r\nHost: store\r\n\r\n");
    let (_, body) = http.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.lines().count(), metrics.lines().count());
}

#[test]
fn the_object_has_each_domain_and_each_client() {
    let daemon = Daemon::start_confined("object", &[]);
    let mut dom0 = daemon.client();
    let _guest = daemon.guest(7);
    dom0.read("/").unwrap();
    let json: serde_json::Value = serde_json::from_str(&ask(&daemon, "json\n")).unwrap();
    assert_eq!(json["nodes"], 3);
    let domids: Vec<&serde_json::Value> =
        json["by_domain"].as_array().unwrap().iter().map(|domain| &domain["domid"]).collect();
    assert_eq!(domids, [0, 7]);
    let sockets = json["by_socket"].as_array().unwrap();
    assert_eq!(sockets[0]["requests"], 1);
    assert_eq!(json["request_nanoseconds"]["sampled_each"], 16);
}

#[test]
fn whoever_asks_badly_or_not_at_all_holds_nobody_up() {
    let daemon = Daemon::start_confined("badly", &[]);
    let mut dom0 = daemon.client();
    // More than are heard at once: the first are disconnected without an answer.
    let silent: Vec<UnixStream> = (0..40).map(|_| connect(&daemon)).collect();
    dom0.write("/a", b"").unwrap();
    assert!(ask(&daemon, "json\n").starts_with('{'));
    drop(silent);
    let mut endless = connect(&daemon);
    // More than the kernel holds for a daemon that has not come to it yet.
    let refused = (0..4096).any(|_| endless.write_all(&[b'x'; 1024]).is_err());
    assert!(refused, "a question without an end was heard to the end");
    let mut answer = String::new();
    while answer.is_empty() {
        answer = ask(&daemon, "what?\n");
    }
    assert!(answer.starts_with("say"), "{answer}");
}
