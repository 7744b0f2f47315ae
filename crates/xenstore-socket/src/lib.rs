//! A process's connection to the store: the daemon's unix socket, or the kernel's device.
//!
//! It moves bytes and reconnects; [`xenstore::client`] does everything else. The store is found as
//! in libxenstore (xen `tools/libs/store/xs.c`): `XENSTORED_PATH`, else the socket in
//! `XENSTORED_RUNDIR`, else the device, which leads to a store in another domain.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use xen::Errno;
use xenstore::client::{Client, Transport};
use xenstore::wire::{HEADER_BYTES, Header};

const RUNDIR: &str = "/run/xenstored";
const DEVICES: [&str; 2] = ["/dev/xen/xenbus", "/proc/xen/xenbus"];

/// Interval of attempts to reconnect to a store that is being restarted.
const ATTEMPT_EVERY: Duration = Duration::from_millis(20);

/// Default path of the store.
#[must_use]
pub fn default_path() -> PathBuf {
    if let Some(path) = std::env::var_os("XENSTORED_PATH") {
        return path.into();
    }
    let rundir = std::env::var_os("XENSTORED_RUNDIR").unwrap_or_else(|| RUNDIR.into());
    let socket = Path::new(&rundir).join("socket");
    let device = DEVICES.iter().map(Path::new).find(|device| device.exists());
    match device {
        Some(device) if !socket.exists() => device.into(),
        _ => socket,
    }
}

/// A blocking connection to the store.
#[derive(Debug)]
pub struct StoreSocket {
    path: PathBuf,
    stream: Stream,
    patience: Duration,
    answer_within: Option<Duration>,
    /// A request timed out: it fails before there is another connection.
    is_late: bool,
}

#[derive(Debug)]
enum Stream {
    Socket(UnixStream),
    /// Accepts one message per write.
    Device(File),
}

impl Stream {
    fn open(path: &Path, answer_within: Option<Duration>) -> io::Result<Self> {
        if path.metadata()?.file_type().is_socket() {
            let socket = UnixStream::connect(path)?;
            socket.set_read_timeout(answer_within)?;
            socket.set_write_timeout(answer_within)?;
            Ok(Self::Socket(socket))
        } else {
            File::options().read(true).write(true).open(path).map(Self::Device)
        }
    }
}

impl StoreSocket {
    /// Connects to the store at `path`. When the connection breaks it fails permanently.
    ///
    /// # Errors
    /// There is no such socket or device, or it is not served.
    pub fn connect(path: &Path) -> io::Result<Client<Self>> {
        Self::connect_patiently(path, Duration::ZERO)
    }

    /// Connects, and reconnects when the connection breaks, within `patience`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_patiently(path: &Path, patience: Duration) -> io::Result<Client<Self>> {
        Self::connect_within(path, patience, None)
    }

    /// As [`connect_patiently`](Self::connect_patiently). A request fails with `ETIMEDOUT` if no
    /// byte is sent or received for `answer_within`; the next one uses a new connection.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_within(
        path: &Path,
        patience: Duration,
        answer_within: Option<Duration>,
    ) -> io::Result<Client<Self>> {
        let stream = Stream::open(path, answer_within)?;
        let path = path.to_owned();
        Ok(Client::new(Self { path, stream, patience, answer_within, is_late: false }))
    }

    /// The errno of a failed send or receive.
    fn failed(&mut self, error: &io::Error) -> Errno {
        if self.answer_within.is_some() && error.kind() == io::ErrorKind::WouldBlock {
            self.is_late = true;
            return Errno::ETIMEDOUT;
        }
        errno(error)
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}

/// The messages of `bytes`, one by one.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = match Header::decode_with_batches(bytes) {
            Ok(Some(header)) => bytes.len().min(HEADER_BYTES + header.payload_bytes()),
            _ => bytes.len(),
        };
        let (message, rest) = bytes.split_at(length);
        bytes = rest;
        (!message.is_empty()).then_some(message)
    })
}

impl Transport for StoreSocket {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let sent = match &mut self.stream {
            Stream::Socket(socket) => socket.write_all(bytes),
            Stream::Device(device) => {
                messages(bytes).try_for_each(|message| device.write_all(message))
            }
        };
        sent.map_err(|error| self.failed(&error))
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        loop {
            let received = match &mut self.stream {
                Stream::Socket(socket) => socket.read(into),
                Stream::Device(device) => device.read(into),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(|error| self.failed(&error)),
            }
        }
    }

    fn reconnect(&mut self) -> Result<(), Errno> {
        if self.patience.is_zero() {
            return Err(Errno::EOPNOTSUPP);
        }
        if std::mem::take(&mut self.is_late) {
            return Err(Errno::ETIMEDOUT);
        }
        let deadline = Instant::now() + self.patience;
        loop {
            // Right after, there is no store, or only the exiting one.
            thread::sleep(ATTEMPT_EVERY);
            match Stream::open(&self.path, self.answer_within) {
                Ok(stream) => {
                    self.stream = stream;
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => return Err(errno(&error)),
                Err(_) => {}
            }
        }
    }
}

impl AsFd for StoreSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Socket(socket) => socket.as_fd(),
            Stream::Device(device) => device.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xenstore::client::Nodes as _;
    use xenstore::wire;

    #[test]
    fn a_store_that_stands_still_fails_each_request_in_time_and_is_asked_again() {
        let path = std::env::temp_dir().join(format!("xylem-still-{}", std::process::id()));
        let _old = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (second, within) = (Duration::from_secs(1), Duration::from_millis(100));
        let mut store = StoreSocket::connect_within(&path, second, Some(within)).unwrap();
        for _ in 0..2 {
            let began = Instant::now();
            let error = store.read("/a").unwrap_err().to_string();
            assert!(error.contains("timed out"), "{error}");
            assert!(began.elapsed() < second, "{:?}", began.elapsed());
        }
        // A thread continues to answer.
        let answering = thread::spawn(move || {
            // Abandoned connections come first.
            for stream in listener.incoming().take(4) {
                let mut stream = stream.unwrap();
                let mut header = [0; HEADER_BYTES];
                while stream.read_exact(&mut header).is_ok() {
                    let length = u32::from_ne_bytes(header[12..].try_into().unwrap());
                    let mut payload = vec![0; length as usize];
                    stream.read_exact(&mut payload).unwrap();
                    let mut answer = header;
                    answer[12..].copy_from_slice(&2_u32.to_ne_bytes());
                    if stream.write_all(&answer).and_then(|()| stream.write_all(b"ok")).is_err() {
                        break;
                    }
                }
            }
        });
        assert_eq!(store.read("/a").unwrap(), b"ok");
        drop(store);
        std::fs::remove_file(&path).unwrap();
        drop(answering);
    }

    #[test]
    fn a_device_gets_one_message_at_a_time() {
        let mut bytes = Vec::new();
        for (code, payload) in [(2, &b"/a\0"[..]), (6, b""), (11, b"/a\0value")] {
            wire::encode(&mut bytes, code, 1, 0, &[payload]);
        }
        let lengths: Vec<usize> = messages(&bytes).map(<[u8]>::len).collect();
        assert_eq!(lengths, [19, 16, 24]);
    }
}
