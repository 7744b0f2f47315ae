//! Clients that mean harm.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use api::Role;

use crate::served::{Web, token};

/// What it answers to these bytes; empty if it hangs up.
fn answer(web: &Web, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(web.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may hang up before all is sent.
    let _sent = stream.write_all(bytes);
    let mut said = Vec::new();
    let _cut = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

fn status(said: &str) -> &str {
    said.split(' ').nth(1).unwrap_or_default()
}

/// What an address is answered that is none of the API's.
const VIEW: &str = "404";

fn still_works(web: &Web) {
    assert_eq!(web.get("/v1/vms/web-0", Some(Role::Operator)).0, 200);
}

#[test]
fn nonsense_is_refused_and_hurts_nobody_else() {
    let web = Web::new();
    let bearer = format!("Authorization: Bearer {}\r\n", token(Role::Viewer));
    let post = |path: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\n{bearer}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    let deep = format!("{{\"targets\":{}", "[".repeat(100_000));
    let long = "x".repeat(200_000);
    for (bytes, expected) in [
        ("\0\x01\x02\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), "400"),
        (format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n"), "431"),
        (post("/v1/requests/list", &deep), "400"),
        (post("/v1/requests/list", "{\"targets\":3}"), "400"),
        (post("/v1/requests/list", "[]"), "400"),
        (post("/v1/requests/list", "{\"version\":9,\"op\":\"destroy\",\"as_role\":\"admin\"}"), "200"),
        (post("/v1/requests/../../etc/passwd", "{}"), "404"),
        (post("/v1/requests/frob", "{}"), "404"),
        (post("/v1/vms/..%2f..%2fx/start", "{}"), "404"),
        (post("/v1/requests/list", &"x".repeat(2 << 20)), "413"),
        ("POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n".to_owned(), "400"),
        (
            "POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
            "400",
        ),
        ("GET /%00../../etc/shadow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(), VIEW),
        ("GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(), VIEW),
    ] {
        let said = answer(&web, bytes.as_bytes());
        // The page, if it was built, has views at addresses of its own.
        let is_page = expected == VIEW && status(&said) == "200" && said.contains("<title>");
        let start: String = bytes.chars().take(60).collect();
        assert!(
            is_page
                || status(&said) == expected || (said.is_empty() && expected.starts_with('4')),
            "{start:?} expects {expected}: {}",
            said.chars().take(300).collect::<String>()
        );
        assert!(!said.contains("root:"), "{said}");
    }
    still_works(&web);
}

#[test]
fn a_client_that_sends_its_request_slowly_is_hung_up_on() {
    let web = Web::new();
    let mut stream = TcpStream::connect(web.address()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let start = Instant::now();
    let mut said = Vec::new();
    let _cut = stream.read_to_end(&mut said);
    assert!(start.elapsed() < Duration::from_secs(55), "it is still listened to");
    still_works(&web);
}

#[test]
fn many_connections_that_say_nothing_leave_room_for_others() {
    let web = Web::new();
    let silent: Vec<_> = (0..600).filter_map(|_| TcpStream::connect(web.address()).ok()).collect();
    assert_eq!(silent.len(), 600);
    still_works(&web);
}

#[test]
fn one_client_cannot_take_all_turns_with_the_daemon() {
    let web = Web::new();
    let bearer = format!("Authorization: Bearer {}\r\n", token(Role::Viewer));
    let body = r#"{"target":"web-0","state":"paused","timeout_s":30}"#;
    let length = body.len();
    let request = format!(
        "POST /v1/requests/wait-for HTTP/1.1\r\nHost: x\r\n{bearer}Content-Length: {length}\r\n\r\n{body}"
    );
    let waiting: Vec<_> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(web.address()).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    // Those who ask too much are told so at once; the others wait.
    let refused = || {
        let told = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            let mut start = [0; 12];
            stream.read(&mut start).is_ok_and(|count| start[..count].ends_with(b" 429"))
        };
        waiting.iter().filter(|it| told(it)).count()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut count = 0;
    while count < 50 {
        count += refused();
        assert!(Instant::now() < deadline, "only {count} were refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(web.post("/v1/requests/list", Role::Operator, "").0, 200);
}
