//! The status socket: one request per connection, answered with the daemon's statistics.
//!
//! ```text
//!   json\n                      -> one JSON object and a line's end
//!   metrics\n                   -> Prometheus' text
//!   GET /metrics HTTP/1.1 ...   -> the same as an answer of HTTP
//! ```
//! Like the store's, it is read-only and contains no VM names. One client is served at a time, with
//! a timeout.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::core::Core;

/// Longest request, including HTTP headers.
const QUESTION_BYTES_MAX: usize = 8 * 1024;
/// Timeout of a silent client.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves the socket on its own thread.
pub(crate) fn serve(listener: UnixListener, core: &Arc<Core>) -> io::Result<()> {
    let core = Arc::clone(core);
    let serve = move || {
        for stream in listener.incoming() {
            match stream {
                // The client may disconnect.
                Ok(stream) => drop(answer(stream, &core)),
                // Out of descriptors: wait for a client to disconnect.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    thread::Builder::new().name("status".to_owned()).spawn(serve).map(drop)
}

fn answer(mut stream: UnixStream, core: &Core) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut question = Vec::new();
    let mut bytes = [0; 1024];
    while question.len() < QUESTION_BYTES_MAX {
        let read = stream.read(&mut bytes)?;
        question.extend_from_slice(&bytes[..read]);
        if let Some(asked) = asked(&question) {
            return stream.write_all(asked.answer(core).as_bytes());
        }
        if read == 0 {
            break;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    Json,
    Metrics,
    MetricsByHttp,
    Unknown,
    UnknownByHttp,
}

/// The kind of a request; `None` if it is incomplete.
fn asked(question: &[u8]) -> Option<Asked> {
    let end = question.iter().position(|&byte| byte == b'\n')?;
    let line = String::from_utf8_lossy(&question[..end]);
    let mut words = line.split_whitespace();
    Some(match words.next().unwrap_or_default() {
        "json" => Asked::Json,
        "metrics" => Asked::Metrics,
        // HTTP: read up to the empty line, so that the client is not interrupted.
        "GET" if !(question.ends_with(b"\r\n\r\n") || question.ends_with(b"\n\n")) => return None,
        "GET" if words.next() == Some("/metrics") => Asked::MetricsByHttp,
        "GET" => Asked::UnknownByHttp,
        _ => Asked::Unknown,
    })
}

impl Asked {
    fn answer(self, core: &Core) -> String {
        match self {
            Self::Json => {
                let reply = api::Reply::Activity(core.activity());
                api::encode_answer(&api::Answer::Ok(reply))
            }
            Self::Metrics => core.metrics(),
            Self::MetricsByHttp => http("200 OK", "text/plain; version=0.0.4", &core.metrics()),
            Self::Unknown => "say 'json' or 'metrics'\n".to_owned(),
            Self::UnknownByHttp => http("404 Not Found", "text/plain", "there is /metrics\n"),
        }
    }
}

fn http(status: &str, kind: &str, text: &str) -> String {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_line_or_an_http_request() {
        for (question, expected) in [
            ("", None),
            ("json", None),
            ("json\n", Some(Asked::Json)),
            ("metrics\r\n", Some(Asked::Metrics)),
            ("\n", Some(Asked::Unknown)),
            ("GET /metrics HTTP/1.1\r\n", None),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(Asked::MetricsByHttp)),
            ("GET /other HTTP/1.0\n\n", Some(Asked::UnknownByHttp)),
        ] {
            assert_eq!(asked(question.as_bytes()), expected, "{question:?}");
        }
        assert!(
            http("200 OK", "text/plain", "abc")
                .ends_with("Content-Length: 3\r\nConnection: close\r\n\r\nabc")
        );
    }
}
