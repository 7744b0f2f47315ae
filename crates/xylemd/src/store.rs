//! The store's unix socket as a transport.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use xen::Errno;
use xenstore::client::{Client, Transport};

/// A connection to the store daemon. Both calls block.
#[derive(Debug)]
pub(crate) struct StoreSocket(UnixStream);

impl StoreSocket {
    pub(crate) fn connect(path: &Path) -> Result<Client<Self>> {
        let stream = UnixStream::connect(path).with_context(|| {
            format!("no store at {}: is xylem-xenstored running?", path.display())
        })?;
        Ok(Client::new(Self(stream)))
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}

impl Transport for StoreSocket {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.0.write_all(bytes).map_err(|error| errno(&error))
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => return other.map_err(|error| errno(&error)),
            }
        }
    }
}

impl AsFd for StoreSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
