//! The simulated host's store, for clients' threads.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use service::StoreLink;
use sim::{SimHost, SocketTransport};
use xen::Errno;
use xenstore::client::{Client, Transport};

use crate::world::Deed;

/// How often it is looked whether something has come.
const LOOK: Duration = Duration::from_millis(5);
/// For an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is received at once.
const BYTES_MAX: usize = 64 << 10;

/// Something to be done with a connection.
pub(crate) enum StoreDeed {
    /// Sends these bytes, and receives what there is; an error is the end. A number that is new is a new connection.
    Exchange(u64, Vec<u8>, Sender<Result<Vec<u8>, Errno>>),
    Close(u64),
}

/// All connections.
#[derive(Default)]
pub(crate) struct StoreLinks(BTreeMap<u64, Client<SocketTransport>>);

impl StoreLinks {
    pub(crate) fn take(&mut self, host: &SimHost, deed: StoreDeed) {
        match deed {
            StoreDeed::Close(number) => drop(self.0.remove(&number)),
            StoreDeed::Exchange(number, bytes, answer) => {
                let client = self.0.entry(number).or_insert_with(|| host.connect());
                let transport = client.transport_mut();
                let mut received = vec![0; BYTES_MAX];
                let sent = if bytes.is_empty() { Ok(()) } else { transport.send(&bytes) };
                let exchanged = sent.and_then(|()| match transport.recv(&mut received) {
                    Ok(0) => Err(Errno::EIO),
                    Ok(count) => Ok(count),
                    Err(Errno::EAGAIN) => Ok(0),
                    Err(error) => Err(error),
                });
                received.truncate(exchanged.unwrap_or_default());
                let _gone = answer.send(exchanged.map(|_| received));
            }
        }
    }
}

/// A connection.
pub(crate) struct StoreDoor {
    deeds: Sender<Deed>,
    number: u64,
    received: Vec<u8>,
}

impl StoreDoor {
    pub(crate) fn new(deeds: Sender<Deed>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self { deeds, number, received: Vec::new() }
    }

    fn exchange(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let (answer, answered) = mpsc::channel();
        let deed = StoreDeed::Exchange(self.number, bytes.to_vec(), answer);
        self.deeds.send(Deed::Store(deed)).map_err(|_| Errno::EIO)?;
        self.received.extend(answered.recv().map_err(|_| Errno::EIO)??);
        Ok(())
    }

    fn has_come(&mut self, time: Duration) -> Result<bool, Errno> {
        let until = Instant::now() + time;
        while self.received.is_empty() {
            self.exchange(&[])?;
            if self.received.is_empty() {
                if Instant::now() >= until {
                    return Ok(false);
                }
                thread::sleep(LOOK);
            }
        }
        Ok(true)
    }
}

impl Transport for StoreDoor {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.exchange(bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        if !self.has_come(PATIENCE)? {
            return Err(Errno::ETIMEDOUT);
        }
        let count = self.received.len().min(into.len());
        into[..count].copy_from_slice(&self.received[..count]);
        self.received.drain(..count);
        Ok(count)
    }
}

impl StoreLink for StoreDoor {
    fn wait(&mut self, time: Duration) -> Result<bool, String> {
        self.has_come(time).map_err(|error| error.to_string())
    }
}

impl Drop for StoreDoor {
    fn drop(&mut self) {
        let _ended = self.deeds.send(Deed::Store(StoreDeed::Close(self.number)));
    }
}

/// Serves the store's own protocol.
pub(crate) fn serve(listener: UnixListener, deeds: Sender<Deed>) -> io::Result<()> {
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let door = StoreDoor::new(deeds.clone());
            // Without a thread this client is hung up on.
            let name = thread::Builder::new().name("store".to_owned());
            let _refused = name.spawn(move || drop(pass_on(stream, door)));
        }
    };
    thread::Builder::new().name("store".to_owned()).spawn(accept).map(drop)
}

/// Until the client or the simulated host is gone.
fn pass_on(mut client: UnixStream, mut door: StoreDoor) -> io::Result<()> {
    client.set_read_timeout(Some(LOOK))?;
    let mut bytes = vec![0; BYTES_MAX];
    loop {
        let sent = match client.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        door.exchange(&bytes[..sent]).map_err(io::Error::other)?;
        client.write_all(&std::mem::take(&mut door.received))?;
    }
}
