//! A blocking client over the daemon's unix socket.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::{
    Answer, DomainEvent, LINE_BYTES_MAX, Progress, Reply, Request, Role, SOCKET_PATH,
    SOCKET_VARIABLE, WireError, decode_answer, encode_asked, encode_request,
};

/// Messages before the final answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum News {
    Progress(Progress),
    Event(DomainEvent),
    Warning(String),
    /// Paths of the store.
    Changed(Vec<String>),
}

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{path} is for root and the members of the group xylem", path = path.display())]
    NotPermitted { path: PathBuf },
    #[error("cannot reach xylemd at {path}: {reason}; is it running?", path = path.display())]
    Unreachable { path: PathBuf, reason: io::Error },
    #[error("the connection to xylemd broke: {0}")]
    Broken(io::Error),
    #[error("xylemd closed the connection without an answer")]
    Closed,
    #[error("bad answer from xylemd: {0}")]
    Wire(WireError),
    /// The daemon's error message.
    #[error("{0}")]
    Refused(String),
}

/// The socket named by the environment, or the default one.
#[must_use]
pub fn socket_path() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => SOCKET_PATH.into(),
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the daemon at `path`.
    ///
    /// # Errors
    /// [`CallError::Unreachable`], [`CallError::NotPermitted`].
    pub fn connect(path: &Path) -> Result<Self, CallError> {
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream) }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(CallError::NotPermitted { path: path.to_owned() })
            }
            Err(reason) => Err(CallError::Unreachable { path: path.to_owned(), reason }),
        }
    }

    /// Sends `request` and waits for its final answer; `on_news` receives earlier messages.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the daemon's message if the request failed; after any other
    /// error the connection is unusable.
    pub fn call(
        &mut self,
        request: &Request,
        on_news: impl FnMut(News),
    ) -> Result<Reply, CallError> {
        let line = encode_request(request);
        self.stream.get_mut().write_all(line.as_bytes()).map_err(CallError::Broken)?;
        self.hear(on_news)
    }

    /// As [`Client::call`], and hands over a connection to another host: what comes from there, and what goes there.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn call_with_channel(
        &mut self,
        request: &Request,
        ends: [OwnedFd; 2],
        on_news: impl FnMut(News),
    ) -> Result<Reply, CallError> {
        self.send_line_with(&encode_request(request), ends)?;
        self.hear(on_news)
    }

    /// As [`Client::call_with_channel`], in the name of somebody with this role.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn call_with_channel_as(
        &mut self,
        role: Role,
        request: &Request,
        ends: [OwnedFd; 2],
        on_news: impl FnMut(News),
    ) -> Result<Reply, CallError> {
        self.send_line_with(&encode_asked(request, role), ends)?;
        self.hear(on_news)
    }

    fn send_line_with(&mut self, line: &str, ends: [OwnedFd; 2]) -> Result<(), CallError> {
        let channel = ends.each_ref().map(AsFd::as_fd);
        let sent = self.send_with(channel, line.as_bytes()).map_err(CallError::Broken)?;
        // The daemon has its own: the connection ends when those are closed.
        drop(ends);
        let rest = &line.as_bytes()[sent..];
        self.stream.get_mut().write_all(rest).map_err(CallError::Broken)
    }

    /// Sends the descriptors with the first bytes.
    fn send_with(&self, channel: [BorrowedFd<'_>; 2], bytes: &[u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&channel)), "there is room for two");
        loop {
            let stream = self.stream.get_ref();
            let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
            match sent {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    /// Waits for the final answer.
    fn hear(&mut self, mut on_news: impl FnMut(News)) -> Result<Reply, CallError> {
        loop {
            match self.read_answer()? {
                Answer::Progress(progress) => on_news(News::Progress(progress)),
                Answer::Event(event) => on_news(News::Event(event)),
                Answer::Warning(line) => on_news(News::Warning(line)),
                Answer::Changed(paths) => on_news(News::Changed(paths)),
                Answer::Ok(reply) => return Ok(reply),
                Answer::Error(message) => return Err(CallError::Refused(message)),
            }
        }
    }

    fn read_answer(&mut self) -> Result<Answer, CallError> {
        let mut line = Vec::new();
        let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
        self.stream.by_ref().take(limit).read_until(b'\n', &mut line).map_err(CallError::Broken)?;
        match line.pop() {
            Some(b'\n') => decode_answer(&line).map_err(CallError::Wire),
            Some(_) if line.len() >= LINE_BYTES_MAX => Err(CallError::Wire(WireError::TooLong)),
            _ => Err(CallError::Closed),
        }
    }
}
