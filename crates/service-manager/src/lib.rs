//! What a daemon says to the service manager that runs it, and gets from it: its state, sockets, the journal.
//!
//! All of it is systemd's. Without it nothing is said and nothing is there, which is no error. The crates that exist for this
//! (`sd-notify`, `systemd-journal-logger`) would each do a part of these few lines, hand out raw descriptors and expect a
//! logging framework.
//!
//! Source: `sd_notify(3)`, `sd_watchdog_enabled(3)`, `sd_listen_fds(3)`, systemd's "Native Journal Protocol", and
//! `JOURNAL_STREAM` in `systemd.exec(5)`.

mod journal;
mod sockets;

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub use journal::{Journal, Priority};
pub use sockets::{listener, tcp_listener};

/// Tells the manager how the daemon is: assignments as `READY=1`, one a line.
///
/// # Errors
/// There is a manager, and it cannot be told.
pub fn tell(state: &str) -> io::Result<()> {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    send(&socket, state.as_bytes())
}

/// Has the manager keep a descriptor (`FileDescriptorStoreMax=`), which the next process inherits by this name. Clients of a
/// listening socket wait meanwhile, and are not refused.
///
/// # Errors
/// There is a manager, and it cannot be told.
pub fn keep(name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    send_with(&socket, format!("FDSTORE=1\nFDNAME={name}").as_bytes(), descriptor)
}

/// Has it keep that no longer.
///
/// # Errors
/// There is a manager, and it cannot be told.
pub fn forget(name: &str) -> io::Result<()> {
    tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"))
}

fn send_with(socket: &OsStr, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let datagram = connected(socket)?;
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&datagram, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Whether a manager listens.
#[must_use]
pub fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// How long the manager waits for a sign of life before it ends and restarts the daemon. `WATCHDOG_PID` is not looked at:
/// after a live update another process is the daemon, as the manager was told.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    if !is_there() {
        return None;
    }
    patience(std::env::var("WATCHDOG_USEC").ok()?.as_str())
}

fn patience(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|usec| *usec > 0).map(Duration::from_micros)
}

fn send(socket: &OsStr, bytes: &[u8]) -> io::Result<()> {
    connected(socket)?.send(bytes).map(drop)
}

/// A socket that sends to this one. A name that begins with `@` is one of the abstract namespace.
fn connected(socket: &OsStr) -> io::Result<UnixDatagram> {
    let datagram = UnixDatagram::unbound()?;
    // A manager that hangs does not stop the daemon.
    datagram.set_nonblocking(true)?;
    if let Some(name) = socket.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt as _;
        datagram.connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)?;
    } else {
        datagram.connect(socket)?;
    }
    Ok(datagram)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;

    use super::*;

    #[test]
    fn a_manager_listens_at_a_path_or_an_abstract_name() {
        let name = format!("service-manager-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let at_path = UnixDatagram::bind(&path).unwrap();
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        send(path.as_os_str(), b"READY=1\n").unwrap();
        send(OsStr::new(&format!("@{name}")), b"STOPPING=1\n").unwrap();
        let mut said = [0; 32];
        for (socket, expected) in [(at_path, &b"READY=1\n"[..]), (at_name, b"STOPPING=1\n")] {
            let length = socket.recv(&mut said).unwrap();
            assert_eq!(&said[..length], expected);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), b"READY=1").is_err(), "nobody is there any more");
    }

    #[test]
    fn a_descriptor_is_kept_by_the_manager() {
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::AsFd as _;

        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

        let path = std::env::temp_dir().join(format!("service-manager-fd-{}", std::process::id()));
        let manager = UnixDatagram::bind(&path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let text = b"FDSTORE=1\nFDNAME=listen";
        send_with(path.as_os_str(), text, listener.as_fd()).unwrap();
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut said = [0; 64];
        let mut slices = [io::IoSliceMut::new(&mut said)];
        let got = recvmsg(&manager, &mut slices, &mut control, RecvFlags::empty()).unwrap();
        let kept = control.drain().find_map(|it| match it {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        let kept = TcpListener::from(kept.unwrap());
        assert_eq!((&said[..got.bytes], kept.local_addr().unwrap()), (&text[..], address));
        // Clients wait, and are served by whoever has it then.
        drop(TcpStream::connect(address).unwrap());
        kept.accept().unwrap();
    }

    #[test]
    fn a_watchdog_without_a_time_is_none() {
        assert_eq!(patience("30000000"), Some(Duration::from_secs(30)));
        for text in ["0", "", "-1", "soon"] {
            assert_eq!(patience(text), None, "{text}");
        }
    }
}
