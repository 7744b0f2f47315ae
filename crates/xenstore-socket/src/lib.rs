//! A process's connection to the store: the daemon's unix socket, or the kernel's device.
//!
//! It moves bytes and connects again; [`xenstore::client`] does everything else. Where the store is
//! found is as in libxenstore (xen `tools/libs/store/xs.c`): `XENSTORED_PATH`, else the socket in
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

/// Between two attempts to connect to a store that is being restarted.
const ATTEMPT_EVERY: Duration = Duration::from_millis(20);

/// Where this process finds the store.
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

/// A connection to the store. Sending and receiving wait.
#[derive(Debug)]
pub struct StoreSocket {
    path: PathBuf,
    stream: Stream,
    patience: Duration,
}

#[derive(Debug)]
enum Stream {
    Socket(UnixStream),
    /// Takes one message with each write.
    Device(File),
}

impl Stream {
    fn open(path: &Path) -> io::Result<Self> {
        if path.metadata()?.file_type().is_socket() {
            UnixStream::connect(path).map(Self::Socket)
        } else {
            File::options().read(true).write(true).open(path).map(Self::Device)
        }
    }
}

impl StoreSocket {
    /// Connects to the store at `path`. When the connection breaks it fails for good.
    ///
    /// # Errors
    /// There is no such socket or device, or nobody serves it.
    pub fn connect(path: &Path) -> io::Result<Client<Self>> {
        Self::connect_patiently(path, Duration::ZERO)
    }

    /// Connects, and when the connection breaks waits for the store to come back, for so long.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_patiently(path: &Path, patience: Duration) -> io::Result<Client<Self>> {
        let stream = Stream::open(path)?;
        Ok(Client::new(Self { path: path.to_owned(), stream, patience }))
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
        sent.map_err(|error| errno(&error))
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        loop {
            let received = match &mut self.stream {
                Stream::Socket(socket) => socket.read(into),
                Stream::Device(device) => device.read(into),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(|error| errno(&error)),
            }
        }
    }

    fn reconnect(&mut self) -> Result<(), Errno> {
        if self.patience.is_zero() {
            return Err(Errno::EOPNOTSUPP);
        }
        let deadline = Instant::now() + self.patience;
        loop {
            // At once there is nobody, or the one that is just ending.
            thread::sleep(ATTEMPT_EVERY);
            match Stream::open(&self.path) {
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
    use xenstore::wire;

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
