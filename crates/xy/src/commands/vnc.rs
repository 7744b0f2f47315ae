//! `vncviewer`: the VNC address of an HVM domain, and a viewer for it.
//!
//! The screen of another host comes by its `xylem-web`. A viewer here reaches it at a port of this machine, which is open for
//! one connection of the same user.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use api::Request;
use xenstore::client::{Batch, Nodes as _, Replies};

use super::{console, expect_reply, store};
use crate::options::Options;
use crate::remote::{Attached, Remote};
use crate::session::{Failure, Session};

/// How often it is looked whether a viewer that has not connected is still there.
const LOOK: Duration = Duration::from_millis(50);
/// Connections of this machine.
const CONNECTIONS: &str = "/proc/net/tcp";

pub(crate) fn vncviewer(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let targets = options.targets();
    if let Some(remote) = &session.remote {
        let far = Far::open(remote, &targets[0].0)?;
        let viewer = match options.has("print") {
            true => None,
            false => Some(far.viewer().map_err(|error| no_viewer(&error, &far.place))?),
        };
        if viewer.is_none() {
            session.print(&format!("{}\n", far.place));
            session.flush();
        }
        return far.show(viewer).map_err(Failure::failed);
    }
    let rows = expect_reply!(session.call(&Request::List { targets })?, Domains);
    let Some(row) = rows.first() else {
        return Err(Failure::failed("no such domain"));
    };
    let place = screen(row.domid)?.ok_or_else(|| Failure::failed(no_screen(row.domid)))?;
    if options.has("print") {
        session.print(&format!("{place}\n"));
        return Ok(());
    }
    // It replaces this process, as in xl.
    Err(no_viewer(&Command::new("vncviewer").arg(&place).exec(), &place))
}

fn no_viewer(error: &io::Error, place: &str) -> Failure {
    Failure::failed(format!("cannot start vncviewer: {error}; the screen is at {place}"))
}

fn no_screen(domid: u16) -> String {
    format!("domain {domid} has no screen; HVM domains have one unless their vnc = 0")
}

/// Starts a viewer for a new domain, which goes on by itself. The domain is there, so what fails here is only told. What shows
/// a screen of another host has to be waited for.
pub(crate) fn start_viewer(
    session: &Session,
    domid: u16,
    uuid: &str,
) -> Option<JoinHandle<Result<(), String>>> {
    let tell = |failure: &Failure| failure.messages().iter().for_each(|line| session.tell(line));
    if let Some(remote) = &session.remote {
        let far = Far::open(remote, uuid).inspect_err(tell).ok()?;
        let viewer = far.viewer().map_err(|error| no_viewer(&error, &far.place));
        let viewer = viewer.inspect_err(tell).ok()?;
        return Some(thread::spawn(move || far.show(Some(viewer))));
    }
    match screen(domid) {
        Ok(Some(place)) => {
            let viewer = Command::new("vncviewer").arg(&place).stdin(Stdio::null()).spawn();
            if let Err(error) = viewer {
                session.tell(&format!("cannot start vncviewer: {error}; the screen is at {place}"));
            }
        }
        Ok(None) => session.tell(&no_screen(domid)),
        Err(failure) => tell(&failure),
    }
    None
}

/// An open screen of another host, and where viewers here find it.
struct Far {
    attached: Attached,
    listener: TcpListener,
    place: String,
}

impl Far {
    fn open(remote: &Remote, target: &str) -> Result<Self, Failure> {
        let path = format!("/v1/vms/{}/screen", console::escaped(target));
        let attached = remote.attach(&path).map_err(Failure::failed)?;
        let listen = || {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            let place = format!("127.0.0.1::{}", listener.local_addr()?.port());
            listener.set_nonblocking(true)?;
            Ok((listener, place))
        };
        let (listener, place) = listen().map_err(|error: io::Error| {
            Failure::failed(format!("no port for a viewer: {error}"))
        })?;
        Ok(Self { attached, listener, place })
    }

    fn viewer(&self) -> io::Result<Child> {
        Command::new("vncviewer").arg(&self.place).stdin(Stdio::null()).spawn()
    }

    /// Until the viewer or the screen ends.
    fn show(self, mut viewer: Option<Child>) -> Result<(), String> {
        let Self { attached, listener, .. } = self;
        let connection = match accept(&listener, viewer.as_mut()) {
            Ok(Some(connection)) => connection,
            // The viewer has said why.
            Ok(None) => return attached.end(),
            Err(error) => return Err(format!("no viewer has come: {error}")),
        };
        drop(listener);
        let passed = pass(&attached, &connection).map_err(|error| error.to_string());
        let ended = attached.end();
        let _closed = connection.shutdown(Shutdown::Both);
        let _ended = viewer.map(|mut viewer| viewer.wait());
        passed.and(ended).map_err(|error| format!("lost the screen: {error}"))
    }
}

/// The first connection of this user; none if the viewer has ended before.
fn accept(listener: &TcpListener, mut viewer: Option<&mut Child>) -> io::Result<Option<TcpStream>> {
    let own = listener.local_addr()?;
    loop {
        match listener.accept() {
            Ok((connection, from)) => {
                let table = std::fs::read_to_string(CONNECTIONS)?;
                if owner(&table, from, own) == Some(rustix::process::geteuid().as_raw()) {
                    connection.set_nonblocking(false)?;
                    connection.set_nodelay(true)?;
                    return Ok(Some(connection));
                }
                // Somebody else.
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(viewer) = &mut viewer
                    && viewer.try_wait()?.is_some()
                {
                    return Ok(None);
                }
                thread::sleep(LOOK);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whose end of a connection this is, by the kernel's table of IPv4.
fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let hex = |address: SocketAddr| match address {
        SocketAddr::V4(it) => {
            Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(it.ip().octets()), it.port()))
        }
        SocketAddr::V6(_) => None,
    };
    let (from, to) = (hex(from)?, hex(to)?);
    let line = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found =
        line.filter(|it| it.get(1) == Some(&from.as_str()) && it.get(2) == Some(&to.as_str()));
    found.next()?.get(7)?.parse().ok()
}

/// Copies both ways until either side ends.
fn pass(attached: &Attached, viewer: &TcpStream) -> io::Result<()> {
    let screen = UnixStream::from(attached.console.try_clone()?);
    screen.set_nonblocking(false)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            copy(viewer, &screen);
            // The other direction ends, too.
            let _closed = screen.shutdown(Shutdown::Both);
        });
        copy(&screen, viewer);
        let _closed = viewer.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn copy(mut from: impl Read, mut to: impl Write) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut bytes) {
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Address and display in viewers' syntax; `None` if the domain has no VNC server.
fn screen(domid: u16) -> Result<Option<String>, Failure> {
    let mut nodes = store::connect()?;
    let console = format!("/local/domain/{domid}/console");
    let mut look = Batch::new();
    let places = ["vnc-listen", "vnc-port"].map(|name| look.read(&format!("{console}/{name}")));
    let replies = nodes.run(&look).map_err(|error| store::failed(&error))?;
    let text = |replies: &Replies, at| -> Result<Option<String>, Failure> {
        let value = replies.get_optional(at).map_err(|error| store::failed(&error))?;
        Ok(value.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    let (listen, port) = (text(&replies, places[0])?, text(&replies, places[1])?);
    Ok(listen.zip(port).and_then(|(listen, port)| place(&listen, port.parse().ok()?)))
}

/// Viewers count displays from port 5900.
fn place(listen: &str, port: u32) -> Option<String> {
    let display = port.checked_sub(5900)?;
    // IPv6 addresses contain colons.
    Some(if listen.contains(':') {
        format!("[{listen}]:{display}")
    } else {
        format!("{listen}:{display}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_named_as_viewers_want_it() {
        assert_eq!(place("127.0.0.1", 5901).as_deref(), Some("127.0.0.1:1"));
        assert_eq!(place("::1", 5900).as_deref(), Some("[::1]:0"));
        assert_eq!(place("127.0.0.1", 80), None);
    }

    #[test]
    fn a_connection_has_an_owner() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_there, from) = listener.accept().unwrap();
        let table = std::fs::read_to_string(CONNECTIONS).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(owner(&table, from, here.peer_addr().unwrap()), Some(uid));
        assert_eq!(owner(&table, from, "127.0.0.2:1".parse().unwrap()), None);
    }
}
