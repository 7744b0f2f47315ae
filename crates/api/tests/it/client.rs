//! The client with a scripted peer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use api::client::{CallError, Client, News};
use api::{Progress, Reply, Request};

/// A peer that answers one request with `bytes` and closes; it returns the request line.
struct Peer {
    path: PathBuf,
    thread: JoinHandle<String>,
}

impl Peer {
    fn new(name: &str, bytes: &'static [u8]) -> Self {
        let path = std::env::temp_dir().join(format!("api-{name}-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(bytes).unwrap();
            line
        });
        Self { path, thread }
    }

    fn request(self) -> String {
        std::fs::remove_file(&self.path).unwrap();
        self.thread.join().unwrap()
    }
}

#[test]
fn a_call_hears_progress_and_then_the_reply() {
    let peer = Peer::new(
        "progress",
        b"{\"progress\":{\"vm\":\"g\",\"done\":1,\"total\":2,\"step\":\"s\"}}\n{\"ok\":\"done\"}\n",
    );
    let mut news = Vec::new();
    let reply = Client::connect(&peer.path).unwrap().call(&Request::Info, |n| news.push(n));
    assert_eq!(reply.unwrap(), Reply::Done);
    let progress =
        Progress { vm: "g".into(), done: 1, total: 2, step: "s".into(), waits_for: String::new() };
    assert_eq!(news, [News::Progress(progress)]);
    assert_eq!(peer.request(), "{\"version\":1,\"op\":\"info\"}\n");
}

#[test]
fn a_refusal_is_told_in_the_daemons_words() {
    let peer = Peer::new("refusal", b"{\"error\":\"domain g: no such domain\"}\n");
    let error = Client::connect(&peer.path).unwrap().call(&Request::Info, |_| ()).unwrap_err();
    assert!(matches!(&error, CallError::Refused(message) if message == "domain g: no such domain"));
    peer.request();
}

#[test]
fn an_answer_cut_short_is_no_answer() {
    let peer = Peer::new("cut", b"{\"ok\":\"do");
    let error = Client::connect(&peer.path).unwrap().call(&Request::Info, |_| ()).unwrap_err();
    assert!(matches!(error, CallError::Closed), "{error}");
    peer.request();
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let error = Client::connect("/nonexistent/xylemd.sock".as_ref()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot reach xylemd at /nonexistent/xylemd.sock: No such file or directory (os error 2); is it running?"
    );
}
