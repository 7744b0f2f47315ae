//! A connection to another host, its key known.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustls::Connection;

use crate::socket::{self, DEAD_AFTER, wait_readable, wait_writable};

/// What one call of the kernel reads at most.
const READ_BYTES: usize = 256 << 10;
/// What is encrypted before it is written: large enough for few calls, small enough for the cache.
const WRITE_BYTES: usize = 256 << 10;

/// What came from the other end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Come {
    Bytes(usize),
    /// Nothing in time.
    Nothing,
    /// It has closed the connection, and said so: nothing was cut off.
    End,
}

/// A connection that is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Tls(rustls::Error),
    /// It would have said so if it had closed the connection.
    #[error("the connection was cut off")]
    CutOff,
    #[error("it has taken nothing for {0} s")]
    TakesNothing(u64),
    /// It did not finish the handshake in time.
    #[error("no handshake within {0:?}")]
    TooSlow(Duration),
    /// So many bytes and no end of the handshake.
    #[error("a handshake of more than {0} bytes")]
    TooLong(usize),
    #[error("it closed the connection in the handshake")]
    HungUp,
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// What has come and is not decrypted yet.
#[derive(Default)]
struct Raw {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Raw {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Reads once more from the socket, when nothing is left. At its end it reads 0.
    fn fill(&mut self, mut socket: &TcpStream, bytes_max: usize) -> io::Result<usize> {
        debug_assert!(self.start == self.end, "what has come is used first");
        (self.start, self.end) = (0, 0);
        if self.bytes.len() < bytes_max {
            self.bytes.resize(bytes_max, 0);
        }
        self.end = socket.read(&mut self.bytes[..bytes_max])?;
        Ok(self.end)
    }
}

/// A connection on which both ends have proved who they are.
///
/// It is used by one thread at a time; nothing on it blocks for longer than it is told.
pub struct Link {
    socket: Arc<TcpStream>,
    tls: Connection,
    /// Bytes that were encrypted and have not all left yet.
    under_way: usize,
    raw: Raw,
    /// What was given back.
    given_back: Vec<u8>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.address()).finish()
    }
}

/// Cuts a connection that others use.
#[derive(Clone, Debug)]
pub struct Scissors(Weak<TcpStream>);

impl Scissors {
    /// Both ends are told, and nothing passes any more.
    pub fn cut(&self) {
        if let Some(socket) = self.0.upgrade() {
            // It may be cut already.
            let _cut = socket.shutdown(Shutdown::Both);
        }
    }

    /// Whether there is still a connection.
    #[must_use]
    pub fn is_of_use(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Whether a call would have blocked.
fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Bounds of a handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) patience: Duration,
    pub(crate) deadline: Instant,
    /// Most bytes from a stranger.
    pub(crate) bytes_max: usize,
}

impl Link {
    /// On a connected socket. Nothing is sent yet.
    pub(crate) fn new(socket: TcpStream, mut tls: Connection) -> io::Result<Self> {
        socket::prepare(&socket)?;
        tls.set_buffer_limit(Some(WRITE_BYTES));
        let (socket, raw) = (Arc::new(socket), Raw::default());
        Ok(Self { socket, tls, under_way: 0, raw, given_back: Vec::new() })
    }

    /// Cuts the connection, as long as there is one, from any thread.
    #[must_use]
    pub fn scissors(&self) -> Scissors {
        Scissors(Arc::downgrade(&self.socket))
    }

    /// The other end's address.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.socket.peer_addr().ok().map(|it| it.ip().to_canonical())
    }

    /// Until both ends are known to each other. An end that refuses the other says nothing: the connection just closes.
    pub(crate) fn shake_hands(&mut self, bounds: Bounds) -> Result<(), LinkError> {
        let Bounds { patience, deadline, bytes_max } = bounds;
        let too_slow = || LinkError::TooSlow(patience);
        let mut left = bytes_max;
        while self.tls.is_handshaking() || self.tls.wants_write() {
            if self.tls.wants_write() {
                if !self.write_some(deadline)? {
                    return Err(too_slow());
                }
                continue;
            }
            if left == 0 {
                return Err(LinkError::TooLong(bytes_max));
            }
            if !wait_readable(&self.socket, deadline)? {
                return Err(too_slow());
            }
            match self.raw.fill(&self.socket, left) {
                Ok(0) => return Err(LinkError::HungUp),
                Ok(count) => left -= count,
                Err(error) if is_later(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(LinkError::HungUp);
                }
                Err(error) => return Err(error.into()),
            }
            while !self.raw.unread().is_empty() && self.tls.is_handshaking() {
                self.decrypt_some()?;
            }
        }
        // Memory for large reads is for those who got here.
        Ok(())
    }

    /// Gives TLS some of what has come. Returns the plain text that can be read now, in bytes.
    fn decrypt_some(&mut self) -> Result<usize, LinkError> {
        let mut unread = self.raw.unread();
        let taken = self.tls.read_tls(&mut unread)?;
        self.raw.start += taken;
        if taken == 0 {
            // After the other end has closed it, more came.
            self.raw.start = self.raw.end;
        }
        Ok(self.tls.process_new_packets()?.plaintext_bytes_to_read())
    }

    /// Writes what is encrypted, as far as the kernel takes it; waits until the deadline for it to take some.
    fn write_some(&mut self, deadline: Instant) -> Result<bool, LinkError> {
        loop {
            match self.tls.write_tls(&mut &*self.socket) {
                Ok(_) => return Ok(true),
                Err(error) if is_later(&error) => {
                    if !wait_writable(&self.socket, deadline)? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// The other end is gone, or takes nothing for long.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.send_with(DEAD_AFTER, bytes)
    }

    /// Sends some of it, waiting for at most this long; 0 if it does not leave in time. Then some of it may have left:
    /// the next call goes on with the same bytes, or the connection is of no use any more.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn send_some(&mut self, bytes: &[u8], patience: Duration) -> Result<usize, LinkError> {
        let deadline = Instant::now() + patience;
        if self.under_way == 0 {
            self.under_way = self.tls.writer().write(bytes)?;
        }
        while self.tls.wants_write() {
            if !self.write_some(deadline)? {
                return Ok(0);
            }
        }
        Ok(std::mem::take(&mut self.under_way))
    }

    pub(crate) fn send_with(
        &mut self,
        patience: Duration,
        mut bytes: &[u8],
    ) -> Result<(), LinkError> {
        loop {
            let encrypted = self.tls.writer().write(bytes)?;
            bytes = &bytes[encrypted..];
            while self.tls.wants_write() {
                if !self.write_some(Instant::now() + patience)? {
                    return Err(LinkError::TakesNothing(patience.as_secs()));
                }
            }
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Receives some bytes, waiting for at most this long.
    ///
    /// # Errors
    /// The connection has broken, or someone has changed what went over it.
    pub fn receive(&mut self, into: &mut [u8], patience: Duration) -> Result<Come, LinkError> {
        if !self.given_back.is_empty() {
            let count = self.given_back.len().min(into.len());
            into[..count].copy_from_slice(&self.given_back[..count]);
            self.given_back.drain(..count);
            return Ok(Come::Bytes(count));
        }
        let deadline = Instant::now() + patience;
        loop {
            match self.tls.reader().read(into) {
                Ok(0) if !into.is_empty() => return Ok(Come::End),
                Ok(count) => return Ok(Come::Bytes(count)),
                Err(error) if is_later(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(LinkError::CutOff);
                }
                Err(error) => return Err(error.into()),
            }
            if !self.raw.unread().is_empty() {
                self.decrypt_some()?;
                continue;
            }
            if !wait_readable(&self.socket, deadline)? {
                return Ok(Come::Nothing);
            }
            match self.raw.fill(&self.socket, READ_BYTES) {
                Ok(0) => {
                    self.tls.read_tls(&mut io::empty())?;
                }
                Ok(_) => {}
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives bytes back that were received and not used: they are received next.
    pub fn unread(&mut self, bytes: &[u8]) {
        self.given_back.splice(..0, bytes.iter().copied());
    }

    /// The next line of at most `bytes_max`, without its end. `None`: it did not come in time.
    pub(crate) fn receive_line(
        &mut self,
        bytes_max: usize,
        deadline: Instant,
    ) -> Result<Option<String>, LinkError> {
        let mut line = Vec::new();
        let mut bytes = vec![0; bytes_max];
        while line.len() < bytes_max {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receive(&mut bytes[..bytes_max - line.len()], left)? {
                Come::Bytes(count) => line.extend_from_slice(&bytes[..count]),
                Come::Nothing => return Ok(None),
                Come::End => return Err(LinkError::HungUp),
            }
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                self.unread(&line[end + 1..]);
                line.truncate(end);
                break;
            }
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }
}

impl Drop for Link {
    /// Says that nothing was cut off. The kernel sends what it has taken, also after the end of this process.
    fn drop(&mut self) {
        if self.tls.is_handshaking() && matches!(self.tls, Connection::Server(_)) {
            // A stranger is not told what was wrong.
            return;
        }
        self.tls.send_close_notify();
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut &*self.socket).is_err() {
                break;
            }
        }
        let _gone = self.socket.shutdown(Shutdown::Write);
    }
}
