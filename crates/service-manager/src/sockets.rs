//! Sockets that the manager has opened for the daemon, so that clients wait while it is restarted.

use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use xen_linux::Inherited;

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// The listening socket of this name (`FileDescriptorName=`; a unit's own name unless it says otherwise). Call it before
/// anything else is opened: descriptors that nobody asked for are closed.
///
/// # Panics
/// If it is called a second time.
#[must_use]
pub fn listener(name: &str) -> Option<UnixListener> {
    let listener = UnixListener::from(inherited(name)?);
    // A socket of another family has no such address.
    (listener.local_addr().is_ok() && listener.set_nonblocking(false).is_ok()).then_some(listener)
}

/// The same of one that listens at a port: one of a unit, or one that an earlier process had the manager keep
/// ([`keep`](crate::keep)).
///
/// # Panics
/// If it, or [`listener`], is called a second time.
#[must_use]
pub fn tcp_listener(name: &str) -> Option<TcpListener> {
    let listener = TcpListener::from(inherited(name)?);
    (listener.local_addr().is_ok() && listener.set_nonblocking(false).is_ok()).then_some(listener)
}

fn inherited(name: &str) -> Option<OwnedFd> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let numbers = numbers(
        std::process::id(),
        &variable("LISTEN_PID"),
        &variable("LISTEN_FDS"),
        &variable("LISTEN_FDNAMES"),
    );
    let (number, _) = numbers.into_iter().find(|(_, of)| of == name)?;
    let descriptor = Inherited::take_all().ok()?.take(number)?;
    rustix::net::sockopt::socket_acceptconn(&descriptor).unwrap_or(false).then_some(descriptor)
}

/// Descriptors and their names, if they are meant for this process.
fn numbers(own: u32, pid: &str, count: &str, names: &str) -> Vec<(RawFd, String)> {
    /// More than any unit has.
    const MOST: RawFd = 64;
    if pid.parse() != Ok(own) {
        return Vec::new();
    }
    let count = count.parse::<RawFd>().unwrap_or_default().clamp(0, MOST);
    (FIRST..FIRST + count).zip(names.split(':').map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_taken_if_they_are_meant_for_this_process() {
        let both = vec![(3, "xylemd.socket".to_owned()), (4, "other".to_owned())];
        assert_eq!(numbers(7, "7", "2", "xylemd.socket:other"), both);
        assert_eq!(numbers(7, "7", "1", "xylemd.socket:other"), both[..1]);
        for (pid, count) in [("8", "2"), ("", "2"), ("7", ""), ("7", "-1"), ("7", "many")] {
            assert_eq!(numbers(7, pid, count, "xylemd.socket:other"), [], "{pid} {count}");
        }
    }
}
