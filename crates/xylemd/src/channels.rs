//! Connections to other hosts that clients have handed over.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use local_door::ChannelEnds;
use peer_link::{Come, Fingerprint, Service};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use storage::HostError;
use toolstack::channel::{Broken, Channel, ChannelId, Received};
use toolstack::lanes::{LANES_MAX, LaneCall, LaneIn, LaneOut};
use toolstack::moves::Reach;
use xen::Uuid;

use crate::host::refusal;
use crate::lanes;
use crate::peers::Directory;

/// All connections, shared by doors and performers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    table: Arc<Mutex<Table>>,
    directory: Directory,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    open: BTreeMap<ChannelId, Arc<Mutex<Connection>>>,
}

#[derive(Debug)]
enum Connection {
    Descriptors(Descriptors),
    /// To a peer.
    Link(Box<Link>),
}

/// A program's, or a client's.
#[derive(Debug)]
struct Descriptors {
    from: OwnedFd,
    to: OwnedFd,
    /// What was given back.
    unread: Vec<u8>,
}

impl Connection {
    fn of([from, to]: ChannelEnds) -> io::Result<Self> {
        for end in [&from, &to] {
            fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
        }
        Ok(Self::Descriptors(Descriptors { from, to, unread: Vec::new() }))
    }
}

impl Channels {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { table: Arc::default(), directory }
    }

    /// Hosts that can be called.
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a connection.
    ///
    /// # Errors
    /// The kernel's: the descriptors are of no use.
    pub(crate) fn put(&self, ends: ChannelEnds) -> io::Result<ChannelId> {
        Ok(self.keep(Connection::of(ends)?))
    }

    /// Keeps a connection to a peer.
    pub(crate) fn put_link(&self, link: peer_link::Link, key: Fingerprint) -> ChannelId {
        self.keep(Connection::Link(Box::new(Link { link, key })))
    }

    /// Connects to a peer, to move a VM there, and keeps the connection.
    pub(crate) fn call(&self, peer: &str) -> Result<ChannelId, String> {
        let (link, key) = self.directory.dial(peer, &Service::Receive)?;
        Ok(self.put_link(link, key))
    }

    /// Connects to a host that a VM went to.
    pub(crate) fn connect(&self, to: &Reach) -> Result<Box<dyn Channel>, HostError> {
        match to {
            Reach::Command(command) => connect(command).map_err(|error| refusal(&error)),
            Reach::Peer(name) => {
                let dialled = self.directory.dial(name, &Service::Question);
                let (link, key) = dialled.map_err(HostError::Refused)?;
                Ok(Box::new(Link { link, key }))
            }
        }
    }

    fn keep(&self, connection: Connection) -> ChannelId {
        let mut table = self.table();
        table.last += 1;
        let id = ChannelId(table.last);
        table.open.insert(id, Arc::new(Mutex::new(connection)));
        id
    }

    /// The connection, for one work.
    pub(crate) fn get(&self, id: ChannelId) -> Option<Box<dyn Channel>> {
        let connection = Arc::clone(self.table().open.get(&id)?);
        Some(Box::new(Open(connection)))
    }

    /// Opens a further connection of a move to a peer.
    pub(crate) fn open_lane(
        &self,
        to: &Reach,
        call: &LaneCall,
    ) -> Result<Box<dyn LaneOut>, HostError> {
        let Reach::Peer(name) = to else { return Err(HostError::Missing) };
        let LaneCall { transfer, lane, token } = *call;
        let lane = peer_link::Lane { transfer: transfer.0, number: lane.number, token };
        let dialled = self.directory.dial(name, &Service::Lane(lane));
        let (link, key) = dialled.map_err(HostError::Refused)?;
        lanes::send(Link { link, key }, call).map_err(|Broken(why)| HostError::Refused(why))
    }

    /// Takes further connections from the peer at the other end of one. Returns how many.
    pub(crate) fn expect_lanes(&self, id: ChannelId, transfer: Uuid, token: [u8; 16]) -> u8 {
        let Some(connection) = self.table().open.get(&id).cloned() else { return 0 };
        let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        match &*connection {
            Connection::Descriptors(_) => 0,
            Connection::Link(link) => {
                self.directory.expect_lanes(link.key, transfer, token);
                LANES_MAX - 1
            }
        }
    }

    /// One that has come.
    pub(crate) fn take_lane(
        &self,
        transfer: Uuid,
        number: u8,
    ) -> Result<Box<dyn LaneIn>, HostError> {
        let (link, key) = self.directory.take_lane(transfer, number).ok_or(HostError::Missing)?;
        let lane = lanes::receive(Link { link, key }, transfer, number);
        lane.map_err(|Broken(why)| HostError::Refused(why))
    }

    /// Takes a client's connection away, as it was handed over; `None` if it is gone, in use, or to a peer.
    pub(crate) fn take(&self, id: ChannelId) -> Option<ChannelEnds> {
        let connection = Arc::into_inner(self.table().open.remove(&id)?)?;
        match connection.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Connection::Descriptors(Descriptors { from, to, .. }) => Some([from, to]),
            Connection::Link(_) => None,
        }
    }

    /// Closes it, as soon as no work uses it any more.
    pub(crate) fn close(&self, id: ChannelId) {
        self.table().open.remove(&id);
    }
}

/// A connection that this daemon has made itself: a program's input and output. The program ends with it.
struct Made {
    connection: Open,
    child: Child,
}

/// Runs a command of the shell that connects to another host.
///
/// # Errors
/// The kernel's.
fn connect(command: &str) -> io::Result<Box<dyn Channel>> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // So that all of it can be ended.
        .process_group(0)
        .spawn()?;
    let from: OwnedFd = child.stdout.take().expect("it was asked for").into();
    let to: OwnedFd = child.stdin.take().expect("it was asked for").into();
    let connection = Open(Arc::new(Mutex::new(Connection::of([from, to])?)));
    Ok(Box::new(Made { connection, child }))
}

impl Channel for Made {
    fn send(&mut self, bytes: &[u8], timeout_ns: u64) -> Result<usize, Broken> {
        self.connection.send(bytes, timeout_ns)
    }

    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, Broken> {
        self.connection.receive(into, timeout_ns)
    }

    fn unread(&mut self, bytes: &[u8]) {
        self.connection.unread(bytes);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Ok(id) = i32::try_from(self.child.id())
            && let Some(group) = rustix::process::Pid::from_raw(id)
        {
            // It may have ended by itself. It is not asked: a program that did not obey would be waited for.
            let _ended = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _status = self.child.wait();
    }
}

/// A connection in use.
struct Open(Arc<Mutex<Connection>>);

/// Waits until the descriptor is ready; false after `timeout`.
fn wait(end: &OwnedFd, for_what: PollFlags, timeout: Duration) -> Result<bool, Broken> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|error| Broken(error.to_string()))?;
        match poll(&mut [PollFd::new(end, for_what)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Broken(errno.to_string())),
        }
    }
}

impl Open {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel for Open {
    fn send(&mut self, bytes: &[u8], timeout_ns: u64) -> Result<usize, Broken> {
        match &mut *self.connection() {
            Connection::Descriptors(it) => it.send(bytes, Duration::from_nanos(timeout_ns)),
            Connection::Link(link) => link.send(bytes, timeout_ns),
        }
    }

    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, Broken> {
        match &mut *self.connection() {
            Connection::Descriptors(it) => it.receive(into, Duration::from_nanos(timeout_ns)),
            Connection::Link(link) => link.receive(into, timeout_ns),
        }
    }

    fn unread(&mut self, bytes: &[u8]) {
        match &mut *self.connection() {
            Connection::Descriptors(it) => drop(it.unread.splice(..0, bytes.iter().copied())),
            Connection::Link(link) => link.unread(bytes),
        }
    }
}

impl Descriptors {
    fn send(&mut self, bytes: &[u8], timeout: Duration) -> Result<usize, Broken> {
        let deadline = Instant::now() + timeout;
        loop {
            match rustix::io::write(&self.to, bytes) {
                Ok(sent) => return Ok(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !wait(&self.to, PollFlags::OUT, left)? {
                        return Ok(0);
                    }
                }
                Err(errno) => return Err(Broken(errno.to_string())),
            }
        }
    }

    fn receive(&mut self, into: &mut [u8], timeout: Duration) -> Result<Received, Broken> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(into.len());
            into[..count].copy_from_slice(&self.unread[..count]);
            self.unread.drain(..count);
            return Ok(Received::Bytes(count));
        }
        if !wait(&self.from, PollFlags::IN, timeout)? {
            return Ok(Received::Nothing);
        }
        match rustix::io::read(&self.from, into) {
            Ok(0) => Ok(Received::End),
            Ok(count) => Ok(Received::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(errno) => Err(Broken(errno.to_string())),
        }
    }
}

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    link: peer_link::Link,
    /// The other end's.
    key: Fingerprint,
}

fn broken(error: &peer_link::LinkError) -> Broken {
    Broken(error.to_string())
}

impl Channel for Link {
    fn send(&mut self, bytes: &[u8], timeout_ns: u64) -> Result<usize, Broken> {
        self.link.send_some(bytes, Duration::from_nanos(timeout_ns)).map_err(|error| broken(&error))
    }

    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, Broken> {
        match self.link.receive(into, Duration::from_nanos(timeout_ns)) {
            Ok(Come::Bytes(count)) => Ok(Received::Bytes(count)),
            Ok(Come::Nothing) => Ok(Received::Nothing),
            Ok(Come::End) => Ok(Received::End),
            Err(error) => Err(broken(&error)),
        }
    }

    fn unread(&mut self, bytes: &[u8]) {
        self.link.unread(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Channels, ChannelId, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        let ends = [here.try_clone().unwrap().into(), here.into()];
        let channels = Channels::default();
        let id = channels.put(ends).unwrap();
        (channels, id, there)
    }

    #[test]
    fn what_is_given_back_is_received_first_also_by_the_next_work() {
        let (channels, id, mut there) = pair();
        there.write_all(b"abcdef").unwrap();
        let mut bytes = [0; 16];
        let mut first = channels.get(id).unwrap();
        assert_eq!(first.receive(&mut bytes, 1_000_000_000), Ok(Received::Bytes(6)));
        first.unread(b"def");
        let mut second = channels.get(id).unwrap();
        assert_eq!(second.receive(&mut bytes[..2], 0), Ok(Received::Bytes(2)));
        assert_eq!(second.receive(&mut bytes[2..], 0), Ok(Received::Bytes(1)));
        assert_eq!(&bytes[..3], b"def");
        assert_eq!(second.receive(&mut bytes, 0), Ok(Received::Nothing));
    }

    #[test]
    fn the_end_and_a_closed_connection_are_noticed() {
        let (channels, id, mut there) = pair();
        let mut channel = channels.get(id).unwrap();
        assert_eq!(channel.send(b"bye", 0), Ok(3));
        channels.close(id);
        assert!(channels.get(id).is_none());
        let mut come = [0; 3];
        there.read_exact(&mut come).unwrap();
        drop(there);
        assert_eq!(channel.receive(&mut [0; 4], 0), Ok(Received::End));
        assert!(channel.send(b"x", 0).is_err());
    }

    #[test]
    fn more_than_the_kernel_buffers_is_sent_as_it_is_taken() {
        let (channels, id, mut there) = pair();
        let taker = std::thread::spawn(move || {
            let mut come = Vec::new();
            there.read_to_end(&mut come).unwrap();
            come.len()
        });
        let mut channel = channels.get(id).unwrap();
        let (bytes, mut sent) = (vec![7; 4 << 20], 0);
        while sent < bytes.len() {
            sent += channel.send(&bytes[sent..], 1_000_000_000).unwrap();
        }
        channels.close(id);
        drop(channel);
        assert_eq!(taker.join().unwrap(), 4 << 20);
    }
}
