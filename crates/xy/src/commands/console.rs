//! `console`: finds the console's pty and attaches to it.

use api::{ConsoleKind, Request, Target};

use super::expect_reply;
use crate::console;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn console(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let kind = match options.value("t") {
        None => None,
        Some("pv") => Some(ConsoleKind::Pv),
        Some("serial") => Some(ConsoleKind::Serial),
        Some("vuart") => {
            return Err(Failure::failed(
                "console: only domains on ARM have a console of type vuart",
            ));
        }
        Some(kind) => {
            return Err(Failure::usage(format!(
                "console: type {kind:?} is none of pv, serial and vuart"
            )));
        }
    };
    let number = match options.value("n") {
        None => 0,
        Some(text) => text.parse().map_err(|_| {
            Failure::usage(format!("console: {text:?} is not a console's number, such as 0"))
        })?,
    };
    let escape = match options.value("e") {
        None => console::ESCAPE_DEFAULT,
        Some(text) => console::escape_byte(text).ok_or_else(|| {
            Failure::usage(format!("console: {text:?} is not an escape character such as ^]"))
        })?,
    };
    let target = options.targets().remove(0);
    attach(session, &Request::Console { target, kind, number }, escape, |_| Ok(()))
}

/// Asks for the console that a domain has above all.
pub(super) fn primary(target: &Target) -> Request {
    Request::Console { target: target.clone(), kind: None, number: 0 }
}

/// Attaches to the console that is asked for; `once_open` runs as soon as no output can be lost.
pub(super) fn attach(
    session: &mut Session,
    request: &Request,
    escape: u8,
    once_open: impl FnOnce(&mut Session) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let place = expect_reply!(session.call(request)?, Console);
    let tty = console::open(&place.tty).map_err(|error| {
        Failure::failed(format!(
            "cannot open the console of domain {}, {}: {error}",
            place.domid, place.tty
        ))
    })?;
    once_open(session)?;
    console::attach(&tty, escape).map_err(|error| {
        Failure::failed(format!("lost the console of domain {}: {error}", place.domid))
    })
}
