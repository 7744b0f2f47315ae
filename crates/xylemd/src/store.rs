//! Connections to the store daemon that survive its restarts.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use service::StoreLink;
use xen::Errno;
use xenstore::client::{Client, Transport};
use xenstore_socket::StoreSocket;

/// Timeout for a store that is being restarted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Timeout for a store that hangs during a request. It usually answers in milliseconds; after this
/// the performer is needed elsewhere, and the request fails.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The same for the status socket, which answers at once, and the longest answer.
const STATUS_WITHIN: Duration = Duration::from_secs(5);
const STATUS_BYTES_MAX: u64 = 4 << 20;

pub(crate) fn connect(path: &Path) -> Result<Client<StoreSocket>> {
    StoreSocket::connect_within(path, PATIENCE, Some(ANSWER_WITHIN))
        .with_context(|| format!("no store at {}: is xylem-xenstored running?", path.display()))
}

/// Connections at a time for clients' requests about the store.
const LINKS_MAX: usize = 16;

/// Where clients' requests about the store go.
#[derive(Clone, Debug)]
pub(crate) struct StoreLinks {
    path: PathBuf,
    /// Each connection has one, too.
    count: Arc<()>,
}

impl StoreLinks {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, count: Arc::default() }
    }

    pub(crate) fn connect(&self) -> Result<Box<dyn StoreLink>, String> {
        let count = Arc::clone(&self.count);
        // This one, and the one that is kept here.
        if Arc::strong_count(&count) > LINKS_MAX + 1 {
            return Err(format!("{LINKS_MAX} clients use the store already; try again"));
        }
        let client = StoreSocket::connect_within(&self.path, Duration::ZERO, Some(ANSWER_WITHIN));
        let client =
            client.map_err(|error| format!("no store at {}: {error}", self.path.display()))?;
        Ok(Box::new(Link { client, _count: count }))
    }

    /// The answer of the status socket beside the store's, if there is one.
    pub(crate) fn status(&self, word: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.path.with_file_name("status")).ok()?;
        stream.set_read_timeout(Some(STATUS_WITHIN)).ok()?;
        stream.write_all(format!("{word}\n").as_bytes()).ok()?;
        let mut text = String::new();
        stream.take(STATUS_BYTES_MAX).read_to_string(&mut text).ok()?;
        (!text.is_empty()).then_some(text)
    }
}

struct Link {
    client: Client<StoreSocket>,
    _count: Arc<()>,
}

impl Transport for Link {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.client.transport_mut().send(bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        self.client.transport_mut().recv(into)
    }
}

impl StoreLink for Link {
    fn wait(&mut self, time: Duration) -> Result<bool, String> {
        let mut fds = [PollFd::new(self.client.transport(), PollFlags::IN)];
        let time = Timespec::try_from(time).map_err(|error| error.to_string())?;
        match poll(&mut fds, Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}
