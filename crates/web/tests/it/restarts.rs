//! `xylem-web` is restarted, and clients go on.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use api::Role;
use serde_json::{Value, json};

use crate::served::{Web, said, shared_host, token};
use crate::xenapi::call;

#[test]
fn who_waits_for_events_is_told_that_the_session_is_over() {
    let web = Web::before(shared_host(), &["--xenapi"]);
    let params = [json!("viewer"), json!(token(Role::Viewer))];
    let session = call(&web, "session.login_with_password", &params).unwrap();
    let from = |token: Value, timeout: f64| {
        let params = [session.clone(), json!(["SR"]), token, json!(timeout)];
        json!({ "jsonrpc": "2.0", "method": "event.from", "params": params, "id": 1 }).to_string()
    };
    let first = web.send("POST", "/jsonrpc", None, &[], &from(json!(""), 0.1));
    let token = said(first).1["result"]["token"].take();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| web.send("POST", "/jsonrpc", None, &[], &from(token, 50.0)));
        thread::sleep(Duration::from_millis(500));
        web.stop();
        let response = waiting.join().unwrap();
        // Its next call comes to the next process.
        assert_eq!(response.headers()["connection"], "close");
        assert_eq!(said(response).1["error"]["message"], "SESSION_INVALID");
    });
}

#[test]
fn clients_wait_at_the_socket_that_the_manager_keeps() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    // While nobody serves.
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let names = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=listen";
    let script = format!("exec 3<&{}; {names}; exec \"$@\"", listener.as_raw_fd());
    let mut program = Command::new("bash");
    program.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_xylem-web")]);
    let _web = Web::started(program, &address.to_string(), shared_host(), &[]);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}
