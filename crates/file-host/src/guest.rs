//! [`Guest`]: a fake guest, which uses its ring page as a Linux guest does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use xen::{DomId, Errno};
use xenstore::client::Transport;
use xenstore::ring::{ClientRing, RING_BYTES, RingPage, field};

use crate::{DomainFile, HostFolder, Page, State};

/// Timeout of a daemon without response.
const PATIENCE: Duration = Duration::from_secs(60);

/// A domain on a [`HostFolder`] with its end of the ring. The daemon serves it after an `INTRODUCE`
/// with any frame number and any port.
///
/// As a [`Transport`] it blocks; [`try_send`](Self::try_send) and [`try_recv`](Self::try_recv) do
/// not.
#[derive(Debug)]
pub struct Guest {
    host: HostFolder,
    domid: DomId,
    unique_id: u64,
    ring: ClientRing<Page>,
    /// Our event socket.
    events: UnixDatagram,
    /// Blocks while the daemon's queue is full, so that no event is lost.
    kicks: UnixDatagram,
    /// Replies that arrived while a request waited for room.
    received: Vec<u8>,
}

impl Guest {
    /// Creates a running domain with an empty ring.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn create(host: &HostFolder, domid: DomId, unique_id: u64) -> io::Result<Self> {
        // The page of an earlier domain with this domid may still be mapped by the daemon: use a
        // new file.
        match std::fs::remove_file(host.ring(domid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        host.make_ring(domid)?;
        let events = host.bind_guest_events(domid)?;
        events.set_nonblocking(true)?;
        let kicks = UnixDatagram::unbound()?;
        kicks.set_write_timeout(Some(PATIENCE))?;
        let ring = ClientRing::new(host.map_ring(domid)?);
        let host = host.clone();
        let guest = Self { host, domid, unique_id, ring, events, kicks, received: Vec::new() };
        guest.set_state(State::Running)?;
        Ok(guest)
    }

    #[must_use]
    pub fn domid(&self) -> DomId {
        self.domid
    }

    #[must_use]
    pub fn ring(&self) -> &ClientRing<Page> {
        &self.ring
    }

    /// The page itself, for a guest that violates the protocol.
    #[must_use]
    pub fn page(&self) -> &Page {
        self.ring.page()
    }

    /// Changes the domain's state. Call [`HostFolder::raise_exception`] afterwards.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_state(&self, state: State) -> io::Result<()> {
        self.host.set_domain(self.domid, DomainFile { state, unique_id: self.unique_id })
    }

    /// Destroys the domain. Call [`HostFolder::raise_exception`] afterwards.
    ///
    /// # Errors
    /// It was destroyed before.
    pub fn destroy(&self) -> io::Result<()> {
        self.host.remove_domain(self.domid)?;
        std::fs::remove_file(self.host.guest_events(self.domid))
    }

    /// Sends the daemon an event. Without a daemon it is lost, as on an event channel whose other
    /// end is closed; the next daemon reads every ring when it starts.
    ///
    /// # Errors
    /// The daemon did not receive it in time.
    pub fn kick(&self) -> io::Result<()> {
        use io::ErrorKind as K;
        let datagram = HostFolder::datagram_of_domain(self.domid);
        match self.kicks.send_to(&datagram, self.host.daemon_events()) {
            Err(error) if matches!(error.kind(), K::NotFound | K::ConnectionRefused) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Waits for an event from the daemon, and consumes all pending ones. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// Any error of the socket; none is expected.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut readable = [rustix::event::PollFd::new(&self.events, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec::try_from(timeout)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        rustix::event::poll(&mut readable, Some(&timeout))?;
        let mut any = false;
        loop {
            match self.events.recv(&mut [0; 8]) {
                Ok(_) => any = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts bytes of requests into the ring, notifies the daemon, and returns how many fitted.
    ///
    /// # Errors
    /// The page has invalid indexes, or there is no daemon.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.ring.put_requests(bytes).map_err(io::Error::other)?;
        if sent > 0 {
            self.kick()?;
        }
        Ok(sent)
    }

    /// Takes bytes of replies from the ring, notifies a daemon that waits for room, and returns
    /// their number.
    ///
    /// # Errors
    /// The page has invalid indexes, or there is no daemon.
    pub fn try_recv(&self, into: &mut [u8]) -> io::Result<usize> {
        let consumer = self.page().load_u32(field::REPLY_CONSUMER);
        let taken = self.ring.take_replies(into).map_err(io::Error::other)?;
        // Only a daemon that found the ring full waits, and it may have done so while we read.
        let filled = self.page().load_u32(field::REPLY_PRODUCER).wrapping_sub(consumer);
        if taken > 0 && filled as usize >= RING_BYTES {
            self.kick()?;
        }
        Ok(taken)
    }

    /// Waits for progress of the daemon, unless it no longer serves us.
    fn wait_for_progress(&self, since: Instant) -> Result<(), Errno> {
        if self.ring.error() != 0 {
            return Err(Errno::EIO);
        }
        let left = PATIENCE.checked_sub(since.elapsed()).ok_or(Errno::EAGAIN)?;
        self.wait(left).map(drop).map_err(|error| errno(&error))
    }
}

impl Transport for Guest {
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        let started = Instant::now();
        while !bytes.is_empty() {
            let sent = self.try_send(bytes).map_err(|error| errno(&error))?;
            bytes = &bytes[sent..];
            if bytes.is_empty() {
                break;
            }
            // The daemon may be waiting for us to read.
            let mut replies = [0; RING_BYTES];
            let taken = self.try_recv(&mut replies).map_err(|error| errno(&error))?;
            self.received.extend_from_slice(&replies[..taken]);
            if sent == 0 && taken == 0 {
                self.wait_for_progress(started)?;
            }
        }
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        if !self.received.is_empty() {
            let length = into.len().min(self.received.len());
            into[..length].copy_from_slice(&self.received[..length]);
            self.received.drain(..length);
            return Ok(length);
        }
        let started = Instant::now();
        loop {
            let taken = self.try_recv(into).map_err(|error| errno(&error))?;
            if taken > 0 {
                return Ok(taken);
            }
            self.wait_for_progress(started)?;
        }
    }
}

impl AsFd for Guest {
    /// Readable when the daemon sent an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}
