//! Numbers for Prometheus, and their history.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::Role;
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::served::{Folder, PASSWORD, Web, said, shared_host, token};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn text(response: Response<Body>) -> String {
    response.into_body().read_to_string().unwrap()
}

fn scraped(web: &Web) -> String {
    text(web.send("GET", "/metrics", Some(Role::Viewer), &[], ""))
}

/// A scrape that has this line.
fn scrape_with(web: &Web, line: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = scraped(web);
        if text.lines().any(|it| it == line) {
            return text;
        }
        assert!(Instant::now() < deadline, "no {line}:\n{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|it| it.split(['{', ' ']).next() == Some(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn a_viewer_scrapes_what_the_host_does() {
    let web = Web::new();
    assert_eq!(web.get("/metrics", None).0, 401);
    let text = scrape_with(&web, "xylem_up 1");
    let of_vms = text.lines().filter(|it| it.starts_with("xylem_domain_vcpus{vm=\"web-"));
    assert!(of_vms.count() > 1, "{text}");
    for device in [
        "xylem_domain_disk_written_bytes_total{vm=\"web-0\",",
        "xylem_domain_network_receive_bytes_total{vm=\"web-0\",",
    ] {
        assert!(text.lines().any(|it| it.starts_with(device)), "{device}\n{text}");
    }
    assert_eq!(value(&text, "xylem_host_cpus"), Some(4.0));
    let (total, free) =
        (value(&text, "xylem_host_memory_bytes"), value(&text, "xylem_host_memory_free_bytes"));
    assert!(free > Some(0.0) && free < total, "{free:?} of {total:?}");
    assert!(
        text.contains("\nxylem_web_requests_total{route=\"/v1/vms\",status=\"200\"} "),
        "{text}"
    );
    assert!(text.contains("\nxylem_web_requests_total{route=\"/metrics\",status=\"401\"} 1\n"));
    assert!(value(&text, "xylem_web_connections") >= Some(1.0));
    assert!(text.ends_with("# EOF\n"));
    // Labels name VMs and kinds of work, and never a client or what it has shown.
    for secret in [&*token(Role::Viewer), "viewer", "ann", "127.0.0.1"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let answer = web.send("GET", "/metrics", Some(Role::Viewer), &[], "");
    assert_eq!(answer.headers()["content-type"], OPENMETRICS);
    let accept = [("accept", "text/plain")];
    let older = web.send("GET", "/metrics", Some(Role::Viewer), &accept, "");
    assert_eq!(older.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(!self::text(older).contains("# EOF"));
}

/// Stands between `xylem-web` and the daemon, and counts listings.
struct Between {
    listings: Arc<AtomicU32>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
}

impl Between {
    fn at(socket: &Path, daemon: &'static Path) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let between = Self { listings: Arc::default(), connections: Arc::default() };
        let (listings, connections) =
            (Arc::clone(&between.listings), Arc::clone(&between.connections));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), UnixStream::connect(daemon).unwrap());
                let (mut to_client, mut to_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                connections.lock().unwrap().push(client.try_clone().unwrap());
                let mut answers = server;
                std::thread::spawn(move || std::io::copy(&mut answers, &mut to_client));
                let listings = Arc::clone(&listings);
                std::thread::spawn(move || {
                    for line in BufReader::new(client).lines().map_while(Result::ok) {
                        if line.contains(r#""op":"list""#) {
                            listings.fetch_add(1, Ordering::Relaxed);
                        }
                        if writeln!(to_server, "{line}").is_err() {
                            break;
                        }
                    }
                });
            }
        });
        between
    }
}

#[test]
fn scrapes_ask_the_daemon_for_nothing_and_tell_when_it_is_gone() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    let between = Between::at(&socket, shared_host());
    let web = Web::before(&socket, &[]);
    scrape_with(&web, "xylem_up 1");
    let began = Instant::now();
    for _ in 0..30 {
        scraped(&web);
    }
    let listings = u64::from(between.listings.load(Ordering::Relaxed));
    let due = 1 + began.elapsed().as_secs().div_ceil(5);
    assert!((1..=due).contains(&listings), "{listings} listings for 30 scrapes");
    // The next sample finds nobody: the last one is told on.
    std::fs::remove_file(&socket).unwrap();
    for connection in between.connections.lock().unwrap().iter() {
        connection.shutdown(Shutdown::Both).unwrap();
    }
    let text = scrape_with(&web, "xylem_up 0");
    assert_eq!(value(&text, "xylem_host_cpus"), Some(4.0));
    assert!(value(&text, "xylem_sample_age_seconds") > Some(1.0));
}

#[test]
fn a_daemon_that_never_answered_has_no_numbers() {
    let folder = Folder::new();
    let web = Web::before(&folder.path("sock"), &[]);
    let text = scraped(&web);
    assert_eq!(value(&text, "xylem_up"), Some(0.0), "{text}");
    assert_eq!(value(&text, "xylem_host_cpus"), None);
    let (status, said) = web.get("/v1/history?of=host", Some(Role::Viewer));
    let cpu = said["series"]["cpu"].as_array().unwrap();
    assert!(status == 200 && cpu.iter().all(Value::is_null), "{said}");
}

#[test]
fn the_history_of_a_vm_is_told_by_its_name() {
    let web = Web::new();
    scrape_with(&web, "xylem_up 1");
    let ask = |path: &str| web.get(path, Some(Role::Viewer));
    let (status, said) = ask("/v1/history?of=web-0&step=5");
    assert_eq!((status, &said["step"]), (200, &Value::from(5)), "{said}");
    let memory = said["series"]["memory"].as_array().unwrap();
    let last = memory.last().and_then(Value::as_f64);
    assert!(last > Some(1_000_000.0), "{said}");
    assert_eq!(memory.len(), said["series"]["cpu"].as_array().unwrap().len());
    for device in ["vbd_xvda_read", "vbd_xvda_write", "vif_0_rx", "vif_0_tx"] {
        assert!(said["series"][device].is_array(), "{device} {said}");
    }
    assert_eq!(ask("/v1/history?of=nobody").0, 404);
    assert_eq!(ask("/v1/history?from=now").0, 400);
    assert_eq!(ask("/v1/history?of=host&step=60").1["step"], 60);
    assert_eq!(web.get("/v1/history", None).0, 401);
}

fn get(web: &Web, path: &str, headers: &[(&str, String)]) -> (u16, Value) {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    said(web.send("GET", path, None, &headers, ""))
}

#[test]
fn clients_of_xapi_read_the_history_with_their_session_or_a_password() {
    let web = Web::before(shared_host(), &["--xenapi"]);
    scrape_with(&web, "xylem_up 1");
    let path = "/rrd_updates?json=true&start=-60&interval=5&cf=AVERAGE&host=true";
    assert_eq!(get(&web, path, &[]).0, 401);
    let bearer = format!("Bearer {}", token(Role::Viewer));
    let (status, said) = get(&web, path, &[("authorization", bearer)]);
    assert_eq!((status, &said["meta"]["step"]), (200, &Value::from(5)), "{said}");
    let legend = said["meta"]["legend"].as_array().unwrap();
    assert_eq!(Value::from(legend.len()), said["meta"]["columns"]);
    let is = |end: &str| legend.iter().any(|it| it.as_str().unwrap().ends_with(end));
    assert!(is(":cpu_usage") && is(":memory") && is(":memory_free_kib"), "{legend:?}");
    assert!(is(":vbd_xvda_write") && is(":vif_0_tx"), "{legend:?}");
    assert!(said["data"][0]["values"][0].is_string());
    let log_in = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"session.login_with_password","params":["ann","{PASSWORD}"]}}"#
    );
    let agent: &Agent = &web.agent;
    let session = agent.post(format!("{}/jsonrpc", web.url)).send(log_in).unwrap();
    let session = crate::served::said(session).1["result"].as_str().unwrap().to_owned();
    let (status, said) = get(&web, &format!("{path}&session_id={session}"), &[]);
    assert_eq!((status, said["meta"]["columns"].is_u64()), (200, true), "{said}");
    assert_eq!(get(&web, &format!("{path}&session_id=OpaqueRef:none"), &[]).0, 401);
    // ann:correct horse battery, and ann:wrong.
    let basic = |coded: &str| [("authorization", format!("Basic {coded}"))];
    let (status, said) = get(&web, "/rrd_updates", &basic("YW5uOmNvcnJlY3QgaG9yc2UgYmF0dGVyeQ=="));
    assert_eq!(status, 200);
    assert!(said.as_str().unwrap().contains("<xport>"), "{said}");
    assert_eq!(get(&web, path, &basic("YW5uOndyb25n")).0, 401);
}
