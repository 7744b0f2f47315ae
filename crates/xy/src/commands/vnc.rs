//! `vncviewer`: the VNC address of an HVM domain, and a viewer for it.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use api::Request;
use xenstore::client::{Batch, Nodes as _, Replies};

use super::{expect_reply, store};
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn vncviewer(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let targets = options.targets();
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
    let error = Command::new("vncviewer").arg(&place).exec();
    Err(Failure::failed(format!("cannot start vncviewer: {error}; the screen is at {place}")))
}

fn no_screen(domid: u16) -> String {
    format!("domain {domid} has no screen; HVM domains have one unless their vnc = 0")
}

/// Starts a viewer for a new domain, which goes on by itself. The domain is there, so what fails here is only told.
pub(crate) fn start_viewer(session: &Session, domid: u16) {
    match screen(domid) {
        Ok(Some(place)) => {
            let viewer = Command::new("vncviewer").arg(&place).stdin(Stdio::null()).spawn();
            if let Err(error) = viewer {
                session.tell(&format!("cannot start vncviewer: {error}; the screen is at {place}"));
            }
        }
        Ok(None) => session.tell(&no_screen(domid)),
        Err(failure) => failure.messages().iter().for_each(|line| session.tell(line)),
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
}
