//! TCP connections to servers, with a deadline for the whole handshake.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_keepalive;
use storage::{Connection, HostError};

/// Timeout of a connection attempt, for each address.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Timeout of the whole exchange.
const TALK_TIME: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Dialled {
    stream: TcpStream,
    deadline: Instant,
}

fn refused(error: impl std::fmt::Display) -> HostError {
    HostError::Refused(error.to_string())
}

/// Name resolution may take longest here.
pub(crate) fn dial(server: &str) -> Result<Dialled, HostError> {
    let mut last = refused("has no address");
    for address in server.to_socket_addrs().map_err(refused)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(refused)?;
                set_socket_keepalive(&stream, true).map_err(refused)?;
                return Ok(Dialled { stream, deadline: Instant::now() + TALK_TIME });
            }
            Err(error) => last = refused(error),
        }
    }
    Err(last)
}

impl Dialled {
    /// The connection for the kernel, which has its own timeouts.
    pub(crate) fn socket(&self) -> Result<BorrowedFd<'_>, HostError> {
        self.stream.set_read_timeout(None).map_err(refused)?;
        self.stream.set_write_timeout(None).map_err(refused)?;
        Ok(self.stream.as_fd())
    }

    fn left(&self) -> Result<Duration, HostError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        if left.is_zero() { Err(too_late()) } else { Ok(left) }
    }
}

fn too_late() -> HostError {
    refused(format!("no answer within {} s", TALK_TIME.as_secs()))
}

fn told(error: &std::io::Error) -> HostError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => too_late(),
        ErrorKind::UnexpectedEof => refused("closed the connection"),
        _ => refused(error),
    }
}

impl Connection for Dialled {
    fn send(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.stream.set_write_timeout(Some(self.left()?)).map_err(refused)?;
        // Our requests are short: they fit into the socket's buffer, unless the peer has stopped
        // reading.
        self.stream.write_all(bytes).map_err(|error| told(&error))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), HostError> {
        let mut filled = 0;
        while filled < bytes.len() {
            // Updated for each read: a slow trickle of bytes must time out too.
            self.stream.set_read_timeout(Some(self.left()?)).map_err(refused)?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(told(&ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(told(&error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_is_heard_until_it_closes_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let mut client = dial(&server).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        client.send(b"hello").unwrap();
        let mut heard = [0; 5];
        other.read_exact(&mut heard).unwrap();
        other.write_all(b"abc").unwrap();
        drop(other);
        let mut answer = [0; 3];
        client.receive(&mut answer).unwrap();
        assert_eq!((heard, answer), (*b"hello", *b"abc"));
        assert_eq!(client.receive(&mut answer), Err(refused("closed the connection")));
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = dial(&listener.local_addr().unwrap().to_string()).unwrap();
        client.deadline = Instant::now() + Duration::from_millis(20);
        assert_eq!(client.receive(&mut [0; 1]), Err(too_late()));
        assert_eq!(client.send(b"x"), Err(too_late()));
        // The kernel gets a socket without these timeouts.
        let _socket = client.socket().unwrap();
        assert_eq!(client.stream.read_timeout().unwrap(), None);
    }

    #[test]
    fn where_nobody_listens_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = dial(&server).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
