//! Consoles of a host elsewhere, by WebSocket.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::http::Uri;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Bytes, Error, HandshakeError, Message, WebSocket};

use super::{CONNECT_TIME, Remote};
use crate::session::one_line;

/// For the host to open a console, which a new domain has only after some seconds.
const OPEN_TIME: Duration = Duration::from_secs(60);
/// For the host to answer our farewell.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// For what was typed at last to be sent.
const END_TIME: Duration = Duration::from_secs(5);
/// Longest message of the host.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A connection to the host.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A console that is open there.
pub(crate) struct Attached {
    /// As a pty here would be.
    pub(crate) console: OwnedFd,
    copying: JoinHandle<Result<(), String>>,
}

impl Attached {
    /// Closes it. Why it was lost before, if it was.
    pub(crate) fn end(self) -> Result<(), String> {
        drop(self.console);
        let until = Instant::now() + END_TIME;
        while !self.copying.is_finished() {
            if Instant::now() >= until {
                // The host takes nothing. It ends with this process.
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.copying.join().unwrap_or_else(|_| Err("it was not copied to its end".to_owned()))
    }
}

impl Remote {
    /// Opens what is at this path.
    pub(crate) fn attach(&self, path: &str) -> Result<Attached, String> {
        let cannot = |error: &dyn std::fmt::Display| format!("cannot reach {}: {error}", self.url);
        let url = format!("{}{path}", self.url.replacen("http", "ws", 1));
        let mut request = url.into_client_request().map_err(|error| cannot(&error))?;
        let bearer = format!("Bearer {}", self.token).parse();
        let bearer = bearer.map_err(|_| "the token has characters that no token has".to_owned())?;
        request.headers_mut().insert("authorization", bearer);
        let stream = self.connect(request.uri()).map_err(|error| cannot(&error))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let socket = match tungstenite::client::client_with_config(request, stream, Some(config)) {
            Ok((socket, _)) => socket,
            Err(HandshakeError::Failure(Error::Http(response))) => {
                let body = response.body().as_deref().unwrap_or_default();
                return Err(self.problem(response.status(), body));
            }
            Err(HandshakeError::Failure(error)) => return Err(cannot(&error)),
            Err(HandshakeError::Interrupted(_)) => return Err(cannot(&"it does not answer")),
        };
        let open = || {
            socket.get_ref().tcp().set_read_timeout(None)?;
            socket.get_ref().tcp().set_nonblocking(true)?;
            let (ours, theirs) = UnixStream::pair()?;
            theirs.set_nonblocking(true)?;
            ours.set_nonblocking(true)?;
            Ok((ours, theirs))
        };
        let (ours, theirs) = open().map_err(|error: io::Error| cannot(&error))?;
        let copying = thread::spawn(move || Copying::new(socket, theirs).run());
        Ok(Attached { console: ours.into(), copying })
    }

    fn connect(&self, uri: &Uri) -> io::Result<Stream> {
        let is_tls = uri.scheme_str() == Some("wss");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let mut last = io::Error::other("it has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(tcp) => {
                    tcp.set_nodelay(true)?;
                    tcp.set_read_timeout(Some(OPEN_TIME))?;
                    return if is_tls { self.tls(host, tcp) } else { Ok(Stream::Plain(tcp)) };
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tls(&self, host: &str, tcp: TcpStream) -> io::Result<Stream> {
        let roots = roots(self.ca.as_deref())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, tcp))))
    }
}

/// Those of the file, or those that this machine trusts.
fn roots(ca: Option<&Path>) -> io::Result<RootCertStore> {
    let pem = match ca {
        Some(path) => std::fs::read(path)?,
        None => crate::commands::image::fetch::host_certificates_pem().map_err(io::Error::other)?,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    Ok(roots)
}

/// Copies bytes between the host and a console here.
struct Copying {
    host: WebSocket<Stream>,
    here: UnixStream,
    /// From the host, not yet written here.
    pending: Bytes,
    is_flushed: bool,
    /// When we stop waiting for the host's farewell: nobody is here any more.
    leaves: Option<Instant>,
    has_ended: bool,
}

/// Whether something was done.
type Went = Result<bool, String>;

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Copying {
    fn new(host: WebSocket<Stream>, here: UnixStream) -> Self {
        let pending = Bytes::new();
        Self { host, here, pending, is_flushed: true, leaves: None, has_ended: false }
    }

    fn run(mut self) -> Result<(), String> {
        while !self.has_ended {
            let went = self.read_host()? | self.write_here()? | self.read_here()? | self.flush()?;
            let left = self.leaves.map(|it| it.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(());
            }
            if !went && !self.has_ended {
                self.wait(left).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn read_host(&mut self) -> Went {
        if !self.pending.is_empty() {
            return Ok(false);
        }
        match self.host.read() {
            Ok(Message::Binary(bytes)) => self.pending = bytes,
            Ok(Message::Text(text)) => self.pending = text.into(),
            // An answer to it is to be sent.
            Ok(_) => self.is_flushed = false,
            Err(Error::Io(error)) if is_later(&error) => return Ok(false),
            Err(Error::ConnectionClosed | Error::AlreadyClosed) => self.has_ended = true,
            // Whoever has left does not care.
            Err(_) if self.leaves.is_some() => self.has_ended = true,
            Err(error) => return Err(one_line(&error.to_string())),
        }
        if self.leaves.is_some() {
            self.pending.clear();
        }
        Ok(true)
    }

    fn write_here(&mut self) -> Went {
        if self.pending.is_empty() {
            return Ok(false);
        }
        match self.here.write(&self.pending) {
            Ok(count) => drop(self.pending.split_to(count)),
            Err(error) if is_later(&error) => return Ok(false),
            Err(_) => self.leave()?,
        }
        Ok(true)
    }

    fn read_here(&mut self) -> Went {
        if !self.is_flushed || self.leaves.is_some() {
            return Ok(false);
        }
        let mut typed = [0; 4096];
        match self.here.read(&mut typed) {
            Ok(count) if count > 0 => {
                self.is_flushed = false;
                let message = Message::Binary(Bytes::copy_from_slice(&typed[..count]));
                self.sent(|host| host.write(message))?;
            }
            Err(error) if is_later(&error) => return Ok(false),
            Ok(_) | Err(_) => self.leave()?,
        }
        Ok(true)
    }

    fn leave(&mut self) -> Result<(), String> {
        if self.leaves.is_none() {
            self.leaves = Some(Instant::now() + LEAVE_TIME);
            self.pending.clear();
            self.is_flushed = false;
            self.sent(|host| host.close(None))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Went {
        if self.is_flushed {
            return Ok(false);
        }
        self.is_flushed = self.sent(WebSocket::flush)?;
        Ok(self.is_flushed)
    }

    /// Whether all is on its way.
    fn sent(
        &mut self,
        send: impl FnOnce(&mut WebSocket<Stream>) -> Result<(), Error>,
    ) -> Result<bool, String> {
        match send(&mut self.host) {
            Ok(()) => Ok(true),
            Err(Error::Io(error)) if is_later(&error) => Ok(false),
            Err(Error::ConnectionClosed | Error::AlreadyClosed) => {
                self.has_ended = true;
                Ok(true)
            }
            Err(_) if self.leaves.is_some() => {
                self.has_ended = true;
                Ok(true)
            }
            Err(error) => Err(one_line(&error.to_string())),
        }
    }

    fn wait(&self, left: Option<Duration>) -> io::Result<()> {
        let when = |is: bool, what: PollFlags| if is { what } else { PollFlags::empty() };
        let host =
            when(self.pending.is_empty(), PollFlags::IN) | when(!self.is_flushed, PollFlags::OUT);
        let here = when(self.is_flushed && self.leaves.is_none(), PollFlags::IN)
            | when(!self.pending.is_empty(), PollFlags::OUT);
        // An end is told each time: whoever is asked about nothing is left out, or this would spin.
        let all = [(self.host.get_ref().tcp().as_fd(), host), (self.here.as_fd(), here)];
        let asked = all.into_iter().filter(|(_, events)| !events.is_empty());
        let mut fds: Vec<_> =
            asked.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)).collect();
        let left = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
