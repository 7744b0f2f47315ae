//! `console`: finds the console's pty and attaches to it.

use api::{Request, Target};

use super::expect_reply;
use crate::console;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn console(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if let Some(kind) = options.value("t").filter(|&kind| kind != "pv") {
        return Err(Failure::usage(format!(
            "console: type {kind:?} is not supported yet, only pv"
        )));
    }
    if let Some(number) = options.value("n").filter(|&number| number != "0") {
        return Err(Failure::usage(format!("console: there is no console {number:?}, only 0")));
    }
    let escape = match options.value("e") {
        None => console::ESCAPE_DEFAULT,
        Some(text) => console::escape_byte(text).ok_or_else(|| {
            Failure::usage(format!("console: {text:?} is not an escape character such as ^]"))
        })?,
    };
    let target = options.targets().remove(0);
    attach(session, &target, escape, |_| Ok(()))
}

/// Attaches to the console of `target`; `once_open` runs as soon as no output can be lost.
pub(super) fn attach(
    session: &mut Session,
    target: &Target,
    escape: u8,
    once_open: impl FnOnce(&mut Session) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let place = expect_reply!(session.call(&Request::Console { target: target.clone() })?, Console);
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
