//! Messages between a daemon and its successor, on a pair of sockets.
//!
//! ```text
//!   old                                  new
//!    │ State* (nodes, while it serves)     │
//!    ├───────────────────────────────────> │
//!    │ NodesEnd                            │
//!    ├───────────────────────────────────> │
//!    │                              Loaded │
//!    │ <───────────────────────────────────┤
//!    │ Descriptors* Devices Journal? Status State*   nobody is served from here
//!    ├───────────────────────────────────> │
//!    │                               Ready │   rings are mapped, all is understood
//!    │ <───────────────────────────────────┤
//!    │ Go                                  │
//!    ├───────────────────────────────────> │
//!    │                            Answered │   to here: served again, by the new one
//!    │ <───────────────────────────────────┤
//!    ┴ ends
//! ```
//!
//! Until `Answered` the old one continues if the new one exits or times out.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Descriptors in one message; the kernel takes 253.
pub(crate) const DESCRIPTORS_MAX: usize = 250;

/// Bytes in one message: below what a socket buffers by default.
pub(crate) const BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    State = b'S' as isize,
    NodesEnd = b'E' as isize,
    Loaded = b'L' as isize,
    Descriptors = b'D' as isize,
    /// What [`Platform::lend`](crate::platform::Platform::lend) gave.
    Devices = b'X' as isize,
    Journal = b'J' as isize,
    Status = b'C' as isize,
    Ready = b'R' as isize,
    Go = b'G' as isize,
    Answered = b'A' as isize,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            b'S' => Self::State,
            b'E' => Self::NodesEnd,
            b'L' => Self::Loaded,
            b'D' => Self::Descriptors,
            b'X' => Self::Devices,
            b'J' => Self::Journal,
            b'C' => Self::Status,
            b'R' => Self::Ready,
            b'G' => Self::Go,
            b'A' => Self::Answered,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// Whether a message went out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    Yes,
    /// The peer must read first.
    NoRoom,
}

impl Channel {
    /// Both ends.
    pub(crate) fn pair() -> anyhow::Result<(Self, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .context("cannot make a pair of sockets")?;
        Ok((Self(own), other))
    }

    /// The end inherited by this process.
    pub(crate) fn inherited() -> anyhow::Result<Self> {
        let own = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
            .context("cannot talk to the daemon before this one")?;
        Ok(Self(own))
    }

    pub(crate) fn try_send(&self, kind: Kind, bytes: &[u8]) -> anyhow::Result<Sent> {
        self.send_with(kind, bytes, &[], SendFlags::DONTWAIT)
    }

    /// Waits for room, with a timeout.
    pub(crate) fn send(
        &self,
        kind: Kind,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> anyhow::Result<()> {
        while self.send_with(kind, bytes, descriptors, SendFlags::DONTWAIT)? == Sent::NoRoom {
            self.wait(PollFlags::OUT, timeout)?;
        }
        Ok(())
    }

    fn send_with(
        &self,
        kind: Kind,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> anyhow::Result<Sent> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(pushed, "descriptors are sent in groups that fit");
        }
        let kind = [kind as u8];
        let parts = [IoSlice::new(&kind), IoSlice::new(bytes)];
        loop {
            match sendmsg(&self.0, &parts, &mut control, flags | SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(Sent::Yes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(Sent::NoRoom),
                Err(errno) => return Err(errno).context("the other daemon has gone"),
            }
        }
    }

    /// A message that has arrived already.
    pub(crate) fn try_receive(&self) -> anyhow::Result<Option<Message>> {
        let mut buffer = vec![0; BYTES_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            match recvmsg(&self.0, &mut parts, &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                received => break received.context("the other daemon has gone")?,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        buffer.truncate(received.bytes);
        let Some((kind, bytes)) = buffer.split_first() else {
            bail!("the other daemon has ended");
        };
        let kind = Kind::from_byte(*kind).context("the other daemon speaks another language")?;
        Ok(Some(Message { kind, bytes: bytes.to_vec(), descriptors }))
    }

    /// Waits for a message, with a timeout.
    pub(crate) fn receive(&self, timeout: Duration) -> anyhow::Result<Message> {
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            self.wait(PollFlags::IN, timeout)?;
        }
    }

    /// Waits for this message; any other is an error.
    pub(crate) fn expect(&self, kind: Kind, timeout: Duration) -> anyhow::Result<()> {
        let found = self.receive(timeout)?.kind;
        if found == kind { Ok(()) } else { bail!("{found:?} came in place of {kind:?}") }
    }

    fn wait(&self, flags: PollFlags, timeout: Duration) -> anyhow::Result<()> {
        let mut files = [PollFd::new(&self.0, flags)];
        let wait = Timespec::try_from(timeout).context("too long a timeout")?;
        match poll(&mut files, Some(&wait)) {
            Ok(0) => bail!("the other daemon does not answer"),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("cannot wait for the other daemon"),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
