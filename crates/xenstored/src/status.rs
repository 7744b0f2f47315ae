//! The status socket: one request per connection, answered with the store's status.
//!
//! ```text
//!   json\n                      -> one JSON object and a line's end
//!   metrics\n                   -> Prometheus' text
//!   GET /metrics HTTP/1.1 ...   -> the same as an answer of HTTP; GET /status.json is the object
//! ```
//! It is read-only, and contains no names or values of nodes. Prometheus reaches it through any
//! proxy that connects to unix sockets. Few clients are served at once, the oldest makes room for
//! the newest, and they never block the store.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SendFlags, SocketFlags};
use xenstore::server::Server;

/// Tokens of this module in the epoll of the daemon have this bit; the socket itself has no other.
pub(crate) const TOKENS: u64 = 1 << 63;

/// Most concurrent clients.
const CLIENTS_MAX: usize = 16;
/// Longest request, including HTTP headers.
const QUESTION_BYTES_MAX: usize = 8 * 1024;

pub(crate) struct StatusSocket {
    listener: OwnedFd,
    clients: BTreeMap<u64, Client>,
    last_token: u64,
}

struct Client {
    fd: OwnedFd,
    question: Vec<u8>,
    /// Empty until the request is complete.
    answer: Vec<u8>,
    sent: usize,
}

/// Next action for a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Next {
    Wait,
    Close,
}

impl StatusSocket {
    pub(crate) fn new(listener: OwnedFd) -> Self {
        Self { listener, clients: BTreeMap::new(), last_token: TOKENS }
    }

    pub(crate) fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// Handles an event of the file with this token, which includes [`TOKENS`].
    pub(crate) fn handle(&mut self, epoll: &OwnedFd, server: &Server, token: u64) {
        if token == TOKENS {
            return self.accept(epoll);
        }
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.serve(server) == Next::Close {
            // Closing it removes it from the epoll as well.
            self.clients.remove(&token);
        }
    }

    fn accept(&mut self, epoll: &OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Errors are not reported: the client sees the end of the connection.
        while let Ok(fd) = net::accept_with(&self.listener, flags) {
            if self.clients.len() >= CLIENTS_MAX {
                // Who is answered at all is so at once: the oldest says nothing or does not read.
                self.clients.pop_first();
            }
            self.last_token += 1;
            let token = self.last_token;
            let events = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            if epoll::add(epoll, &fd, epoll::EventData::new_u64(token), events).is_ok() {
                let (question, answer) = (Vec::new(), Vec::new());
                self.clients.insert(token, Client { fd, question, answer, sent: 0 });
            }
        }
    }
}

impl Client {
    fn serve(&mut self, server: &Server) -> Next {
        if self.answer.is_empty() {
            match self.hear(server) {
                Ok(answer) => self.answer = answer,
                Err(next) => return next,
            }
        }
        while let Some(rest @ [_, ..]) = self.answer.get(self.sent..) {
            match net::send(&self.fd, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Next::Wait,
                Err(_) => return Next::Close,
            }
        }
        Next::Close
    }

    /// The answer, once the request is complete.
    fn hear(&mut self, server: &Server) -> Result<Vec<u8>, Next> {
        let mut bytes = [0; 1024];
        while self.question.len() < QUESTION_BYTES_MAX {
            match net::recv(&self.fd, &mut bytes[..], net::RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(Next::Close),
                Ok((length, _)) => self.question.extend_from_slice(&bytes[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Next::Wait),
                Err(_) => return Err(Next::Close),
            }
            if let Some(answer) = answer(&self.question, server) {
                return Ok(answer);
            }
        }
        Err(Next::Close)
    }
}

/// The answer to a request; `None` if it is incomplete.
fn answer(question: &[u8], server: &Server) -> Option<Vec<u8>> {
    let end = question.iter().position(|&byte| byte == b'\n')?;
    let line = String::from_utf8_lossy(&question[..end]);
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    if first != "GET" {
        let text = match first {
            "json" => server.status_json() + "\n",
            "metrics" => server.metrics(),
            _ => "say 'json' or 'metrics'\n".to_owned(),
        };
        return Some(text.into_bytes());
    }
    // HTTP: read up to the empty line, so that the client is not interrupted.
    let is_complete = question.ends_with(b"\r\n\r\n") || question.ends_with(b"\n\n");
    if !is_complete {
        return None;
    }
    let (status, kind, text) = match words.next().unwrap_or_default() {
        "/metrics" => ("200 OK", "text/plain; version=0.0.4", server.metrics()),
        "/status.json" => ("200 OK", "application/json", server.status_json() + "\n"),
        _ => ("404 Not Found", "text/plain", "there are /metrics and /status.json\n".to_owned()),
    };
    let length = text.len();
    Some(
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{text}"
        )
        .into_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use xenstore::Quota;

    use super::*;

    #[test]
    fn a_question_is_a_line_or_an_http_request() {
        let server = Server::new(Quota::default());
        let asked = |question: &str| {
            answer(question.as_bytes(), &server).map(|bytes| String::from_utf8(bytes).unwrap())
        };
        for incomplete in ["", "json", "GET /metrics HTTP/1.1\r\n", "GET / HTTP/1.0\r\nHost: x\r\n"]
        {
            assert_eq!(asked(incomplete), None, "{incomplete}");
        }
        assert!(asked("json\n").unwrap().starts_with("{\"requests_total\":0,"));
        assert!(asked("metrics\r\n").unwrap().contains("\nxenstore_nodes 3\n"));
        assert!(asked("\n").unwrap().starts_with("say"));
        let answer = asked("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(asked("GET /other HTTP/1.0\n\n").unwrap().starts_with("HTTP/1.1 404"));
    }
}
