//! Operations as traces, with a collector that takes them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::client::Client;
use api::{Request, Role, Target};
use serde_json::Value;

use crate::served::{Folder, Web, host_at};

const PATIENCE: Duration = Duration::from_secs(30);

/// Takes requests at an address, but for the first, which is to come again.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (taken, requests) = channel();
    std::thread::spawn(move || {
        let mut is_ready = false;
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            loop {
                let (mut line, mut length) = (String::new(), 0);
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    break;
                }
                assert!(line.starts_with("POST /v1/traces "), "{line}");
                while !line.trim().is_empty() {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let answer = if is_ready { "200 OK" } else { "503 Soon\r\nretry-after: 0" };
                let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 2\r\n\r\n{{}}");
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
                if is_ready && taken.send(serde_json::from_slice(&body).unwrap()).is_err() {
                    return;
                }
                is_ready = true;
            }
        }
    });
    (url, requests)
}

/// The attributes of a resource or a span.
fn attributes(of: &Value) -> BTreeMap<&str, &str> {
    let all = of["attributes"].as_array().unwrap().iter();
    all.map(|it| {
        let value = &it["value"];
        let text = value.get("stringValue").or_else(|| value.get("intValue"));
        (it["key"].as_str().unwrap(), text.and_then(Value::as_str).unwrap())
    })
    .collect()
}

fn unix_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

fn time(span: &Value, key: &str) -> u128 {
    span[key].as_str().unwrap().parse().unwrap()
}

#[test]
fn each_operation_that_ends_is_a_trace_with_its_steps() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 3);
    std::thread::sleep(Duration::from_millis(50));
    let (url, requests) = collector();
    let web = Web::before(&socket, &["--otlp", &url]);
    let began = unix_ns();
    let mut client = Client::connect(&socket).unwrap();
    let target = Target("web-0".to_owned());
    let vif = "bridge=xenbr0".to_owned();
    client.call(&Request::NetworkAttach { target, vif }, |_| ()).unwrap();
    let request = requests.recv_timeout(PATIENCE).unwrap();
    let ended = unix_ns();
    let of = &request["resourceSpans"][0];
    let resource = attributes(&of["resource"]);
    assert_eq!(resource["service.name"], "xylem");
    let host = rustix::system::uname();
    assert_eq!(resource["host.name"], host.nodename().to_str().unwrap());
    let spans = of["scopeSpans"][0]["spans"].as_array().unwrap();
    // What has ended before is nobody's concern.
    let roots: Vec<_> = spans.iter().filter(|it| it.get("parentSpanId").is_none()).collect();
    let [root] = roots[..] else { panic!("{request:#}") };
    assert_eq!(root["name"], "attach");
    let said = attributes(root);
    assert_eq!((said["xylem.vm.name"], said["xylem.operation.outcome"]), ("web-0", "done"));
    let vm = web.get("/v1/vms/web-0", Some(Role::Viewer)).1;
    assert_eq!(said["xylem.vm.uuid"], vm["uuid"].as_str().unwrap());
    let (start, end) = (time(root, "startTimeUnixNano"), time(root, "endTimeUnixNano"));
    // Both clocks are of this machine, and the host's is simulated in whole ticks.
    let slack = Duration::from_secs(1).as_nanos();
    assert!(began < start + slack && start <= end && end < ended + slack, "{began} {root}");
    assert!(spans.len() > 2, "{request:#}");
    for step in spans.iter().filter(|it| it.get("parentSpanId").is_some()) {
        assert_eq!(step["traceId"], root["traceId"]);
        assert_eq!(step["parentSpanId"], root["spanId"]);
        let (from, to) = (time(step, "startTimeUnixNano"), time(step, "endTimeUnixNano"));
        assert!(start <= from && from <= to && to <= end, "{root} {step}");
        let waited: u128 = attributes(step)["xylem.step.waited_ns"].parse().unwrap();
        assert!(waited <= to - from, "{step}");
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = web.send("GET", "/metrics", Some(Role::Viewer), &[], "");
        let text = answer.into_body().read_to_string().unwrap();
        if text.contains("\nxylem_traces_total{outcome=\"sent\"} 1\n") {
            assert!(text.contains("\nxylem_traces_total{outcome=\"refused\"} 0\n"), "{text}");
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
