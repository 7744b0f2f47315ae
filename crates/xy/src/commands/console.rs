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
    attach(session, &Wanted { target, kind, number }, escape, |_| Ok(()))
}

/// One of a domain's consoles.
pub(super) struct Wanted {
    target: Target,
    kind: Option<ConsoleKind>,
    number: u32,
}

impl Wanted {
    /// Where `xylem-web` has it.
    fn path(&self) -> String {
        let kind = match self.kind {
            None => "",
            Some(ConsoleKind::Pv) => "&kind=pv",
            Some(ConsoleKind::Serial) => "&kind=serial",
        };
        format!("/v1/vms/{}/console?number={}{kind}", escaped(&self.target.0), self.number)
    }
}

/// A name as a part of a URL.
pub(super) fn escaped(name: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(escape).collect()
}

/// The console that a domain has above all.
pub(super) fn primary(target: &Target) -> Wanted {
    Wanted { target: target.clone(), kind: None, number: 0 }
}

/// Attaches to a console; `once_open` runs as soon as no output can be lost.
pub(super) fn attach(
    session: &mut Session,
    wanted: &Wanted,
    escape: u8,
    once_open: impl FnOnce(&mut Session) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(remote) = &session.remote {
        let attached = remote.attach(&wanted.path()).map_err(Failure::failed)?;
        once_open(session)?;
        let copied = console::attach(&attached.console, escape).map_err(|it| it.to_string());
        let of = &wanted.target.0;
        return copied
            .and(attached.end())
            .map_err(|error| Failure::failed(format!("lost the console of {of}: {error}")));
    }
    let Wanted { target, kind, number } = wanted;
    let request = Request::Console { target: target.clone(), kind: *kind, number: *number };
    let place = expect_reply!(session.call(&request)?, Console);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_elsewhere_has_a_path_whatever_its_domain_is_called() {
        let target = Target("a b/../%".to_owned());
        let path = |kind, number| Wanted { target: target.clone(), kind, number }.path();
        assert_eq!(path(None, 0), "/v1/vms/a%20b%2F%2E%2E%2F%25/console?number=0");
        let serial = path(Some(ConsoleKind::Serial), 2);
        assert!(serial.ends_with("/console?number=2&kind=serial"), "{serial}");
    }
}
