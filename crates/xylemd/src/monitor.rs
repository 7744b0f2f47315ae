//! Connections to the monitors of device models.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use storage::HostError;
use toolstack::channel::Received;
use toolstack::device_model::{Process, monitor_socket};
use toolstack::qmp::{ModelSocket, Passed, STATE_BYTES_MAX};
use xen::DomId;

use crate::host::refusal;
use crate::models;

/// How often it is tried to connect to one that has just been started.
const TRIES: Duration = Duration::from_millis(20);

/// A connection, and the file that the device model may write.
#[derive(Debug)]
struct Monitor {
    stream: UnixStream,
    written: Option<OwnedFd>,
}

/// Connects to a device model's monitor.
pub(crate) fn connect(
    domid: DomId,
    process: Process,
    timeout: Duration,
) -> Result<Box<dyn ModelSocket>, HostError> {
    let path = monitor_socket(domid);
    let deadline = Instant::now() + timeout;
    loop {
        let runs = models::runs(process).map_err(|error| refusal(&error))?;
        match UnixStream::connect(&path) {
            Ok(stream) => return Ok(Box::new(Monitor { stream, written: None })),
            Err(_) if !runs => return Err(HostError::Refused("has ended".to_owned())),
            Err(error) if Instant::now() >= deadline => {
                return Err(HostError::Refused(format!("{path}: {error}")));
            }
            Err(_) => std::thread::sleep(TRIES),
        }
    }
}

/// Removes the socket of one that has ended.
pub(crate) fn remove(domid: DomId) -> Result<(), HostError> {
    match fs::remove_file(monitor_socket(domid)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refusal(&error)),
        _ => Ok(()),
    }
}

fn told(error: &std::io::Error) -> HostError {
    HostError::Refused(error.to_string())
}

/// A file in memory.
fn memory_file() -> Result<OwnedFd, HostError> {
    let file = memfd_create("xylem-device-model", MemfdFlags::CLOEXEC);
    file.map_err(|errno| told(&errno.into()))
}

/// The same file, opened in another way: QEMU takes a file for writing only if it can do nothing else with it.
fn reopened(file: BorrowedFd<'_>, options: &OpenOptions) -> Result<File, HostError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    options.open(path).map_err(|error| told(&error))
}

impl ModelSocket for Monitor {
    fn send(&mut self, bytes: &[u8], passed: Passed<'_>, timeout_ns: u64) -> Result<(), HostError> {
        let timeout = Some(Duration::from_nanos(timeout_ns.max(1)));
        self.stream.set_write_timeout(timeout).map_err(|error| told(&error))?;
        let file = match passed {
            Passed::Nothing => {
                return self.stream.write_all(bytes).map_err(|error| told(&error));
            }
            Passed::ToWrite => {
                let file = memory_file()?;
                let for_writing = reopened(file.as_fd(), OpenOptions::new().write(true))?;
                self.written = Some(file);
                for_writing
            }
            Passed::ToRead(contents) => {
                let file = memory_file()?;
                let mut writing = reopened(file.as_fd(), OpenOptions::new().write(true))?;
                writing.write_all(contents).map_err(|error| told(&error))?;
                reopened(file.as_fd(), OpenOptions::new().read(true))?
            }
            Passed::Disk(path) => {
                File::open(path).map_err(|error| HostError::Refused(format!("{path}: {error}")))?
            }
        };
        let descriptors = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let slices = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.stream, &slices, &mut control, SendFlags::NOSIGNAL)
            .map_err(|errno| told(&errno.into()))?;
        self.stream.write_all(&bytes[sent..]).map_err(|error| told(&error))
    }

    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, HostError> {
        use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let timeout = Some(Duration::from_nanos(timeout_ns.max(1)));
        self.stream.set_read_timeout(timeout).map_err(|error| told(&error))?;
        match self.stream.read(into) {
            Ok(0) => Ok(Received::End),
            Ok(count) => Ok(Received::Bytes(count)),
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                Ok(Received::Nothing)
            }
            Err(error) => Err(told(&error)),
        }
    }

    fn written(&mut self) -> Result<Vec<u8>, HostError> {
        let Some(file) = self.written.take() else {
            return Err(HostError::Refused("it was given no file".to_owned()));
        };
        let reading = reopened(file.as_fd(), OpenOptions::new().read(true))?;
        let mut bytes = Vec::new();
        let most = STATE_BYTES_MAX as u64 + 1;
        reading.take(most).read_to_end(&mut bytes).map_err(|error| told(&error))?;
        match bytes.len() > STATE_BYTES_MAX {
            true => Err(HostError::Refused("its state is too large".to_owned())),
            false => Ok(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    /// The descriptor that comes with some bytes.
    fn taken(stream: &UnixStream) -> File {
        let mut bytes = [0; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
        recvmsg(stream, &mut slices, &mut control, RecvFlags::empty()).unwrap();
        let message = control.drain().next().unwrap();
        let RecvAncillaryMessage::ScmRights(mut files) = message else { panic!("no descriptor") };
        files.next().unwrap().into()
    }

    #[test]
    fn a_device_model_gets_files_to_write_and_to_read() {
        let path = std::env::temp_dir().join(format!("xylem-monitor-{}", std::process::id()));
        let _left_over = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let model = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut file = taken(&stream);
            assert!(file.read(&mut [0]).is_err(), "it is for writing only");
            file.write_all(b"state").unwrap();
            drop(file);
            (&stream).write_all(b"done").unwrap();
            let mut contents = Vec::new();
            taken(&stream).read_to_end(&mut contents).unwrap();
            contents
        });
        let stream = UnixStream::connect(&path).unwrap();
        let mut monitor = Monitor { stream, written: None };
        monitor.send(b"write", Passed::ToWrite, 1_000_000_000).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(monitor.receive(&mut bytes, 60_000_000_000).unwrap(), Received::Bytes(4));
        assert_eq!(monitor.written().unwrap(), b"state");
        assert!(monitor.written().is_err());
        monitor.send(b"read", Passed::ToRead(b"another"), 1_000_000_000).unwrap();
        assert_eq!(model.join().unwrap(), b"another");
        assert_eq!(monitor.receive(&mut bytes, 60_000_000_000).unwrap(), Received::End);
        fs::remove_file(path).unwrap();
    }
}
