//! TCP sockets whose other end may vanish.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

/// A host that is silent for so long is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(4);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;
/// Bytes, or such a question, unanswered for so long end the connection. So does a host that takes nothing for so long,
/// though it answers.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Without delays, without blocking, and with an end if the other host is gone.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    set_socket_keepalive(socket, true)?;
    set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    set_tcp_user_timeout(socket, u32::try_from(DEAD_AFTER.as_millis()).expect("some seconds"))?;
    Ok(())
}

/// Waits until there is something to read; false after the deadline.
pub(crate) fn wait_readable(socket: &TcpStream, deadline: Instant) -> io::Result<bool> {
    Ok(!wait(socket, PollFlags::IN, deadline)?.is_empty())
}

/// Waits until the kernel takes bytes; false after the deadline.
///
/// # Errors
/// The other end has closed the connection and takes no more: where its window was shut, the kernel would notice only
/// after [`DEAD_AFTER`].
pub(crate) fn wait_writable(socket: &TcpStream, deadline: Instant) -> io::Result<bool> {
    let ready = wait(socket, PollFlags::OUT | PollFlags::RDHUP, deadline)?;
    if ready == PollFlags::RDHUP {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    Ok(!ready.is_empty())
}

/// Nothing after the deadline.
fn wait(socket: &TcpStream, what: PollFlags, deadline: Instant) -> io::Result<PollFlags> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut asked = [PollFd::new(socket, what)];
        match poll(&mut asked, Some(&left)) {
            Ok(_) => return Ok(asked[0].revents()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::sockopt::{
        socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_nodelay, tcp_user_timeout,
    };

    use super::*;

    #[test]
    fn a_dead_host_is_noticed_within_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        prepare(&socket).unwrap();
        assert!(socket_keepalive(&socket).unwrap() && tcp_nodelay(&socket).unwrap());
        let silence = tcp_keepidle(&socket).unwrap()
            + tcp_keepintvl(&socket).unwrap() * tcp_keepcnt(&socket).unwrap();
        assert!(silence <= Duration::from_secs(20), "{silence:?}");
        assert_eq!(tcp_user_timeout(&socket).unwrap(), 20_000);
    }
}
