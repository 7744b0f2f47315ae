//! `xy peer`: other hosts that this one knows by their keys.

use std::fmt::Write as _;

use api::{PeerCheck, PeerRequest, PeerRow, Request};

use super::{expect_done, expect_reply};
use crate::columns::shown;
use crate::command::{Command, DryRun, JSON};
use crate::options::{Flag, Options};
use crate::session::{Failure, Session};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "peer key",
        usage: "[options]",
        about: "Print this host's key, which is made at first",
        flags: &[JSON],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: key,
    },
    Command {
        name: "peer add",
        usage: "<Name> <Address[:Port]> <Key>",
        about: "Make a host known by its key",
        flags: &[],
        operands: (3, 3),
        dry_run: DryRun::Impossible,
        run: add,
    },
    Command {
        name: "peer list",
        usage: "[options]",
        about: "Print the hosts that are known",
        flags: &[Flag::new('j', "json", "Print JSON.")],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: list,
    },
    Command {
        name: "peer remove",
        usage: "<Name>",
        about: "Forget a host, and close its connections",
        flags: &[],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: remove,
    },
    Command {
        name: "peer check",
        usage: "[options] <Name>",
        about: "Connect to a host, and print how far away it is",
        flags: &[JSON],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: check,
    },
];

fn ask(session: &mut Session, request: PeerRequest) -> Result<api::Reply, Failure> {
    session.call(&Request::Peer(request))
}

fn key(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let own = expect_reply!(ask(session, PeerRequest::Key)?, PeerKey);
    if options.has("json") {
        session.print_json(&own);
        return Ok(());
    }
    session.print(&format!("{}\n", own.key));
    if own.listens.is_none() {
        session.tell("no port is open for peers: 'xylemd --peer-listen ADDRESS' opens one");
    }
    Ok(())
}

fn add(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let [name, address, key] = options.operands.as_slice() else {
        return Err(Failure::usage("peer add: name, address and key are needed"));
    };
    let (name, address, key) = (name.clone(), address.clone(), key.clone());
    expect_done(&ask(session, PeerRequest::Add { name, address, key })?)
}

fn remove(session: &mut Session, options: &Options) -> Result<(), Failure> {
    expect_done(&ask(session, PeerRequest::Remove { name: options.operands[0].clone() })?)
}

/// All that are known.
pub(super) fn known(session: &mut Session) -> Result<Vec<PeerRow>, Failure> {
    Ok(expect_reply!(ask(session, PeerRequest::List)?, Peers))
}

fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let rows = known(session)?;
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&table(&rows));
    }
    Ok(())
}

fn table(rows: &[PeerRow]) -> String {
    let mut out = format!("{:<16} {:<28} Key\n", "Name", "Address");
    for PeerRow { name, address, key } in rows {
        let _ = writeln!(out, "{:<16} {:<28} {}", shown(name), shown(address), shown(key));
    }
    out
}

fn check(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = PeerRequest::Check { name: options.operands[0].clone() };
    let found = expect_reply!(ask(session, request)?, PeerCheck);
    if options.has("json") {
        session.print_json(&found);
    } else {
        session.print(&told(&found));
    }
    Ok(())
}

fn told(found: &PeerCheck) -> String {
    let ms = |us: u64| format!("{}.{} ms", us / 1000, us % 1000 / 100);
    let lines = [
        ("name", shown(&found.name)),
        ("address", shown(&found.address)),
        ("key", shown(&found.key)),
        ("release", shown(&found.release)),
        ("knows this host as", shown(&found.known_as)),
        ("connecting", ms(found.handshake_us)),
        ("round trip", ms(found.round_trip_us)),
    ];
    let mut out = String::new();
    for (what, value) in lines {
        let _ = writeln!(out, "{what:<22} : {value}");
    }
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_check_says_whom_it_has_found_and_how_far_away() {
        let found = PeerCheck {
            name: "b".to_owned(),
            address: "192.0.2.2:8003".to_owned(),
            key: "bbbb-bbbb".to_owned(),
            release: "0.1.0".to_owned(),
            known_as: "a".to_owned(),
            handshake_us: 1234,
            round_trip_us: 187,
        };
        expect![[r"
            name                   : b
            address                : 192.0.2.2:8003
            key                    : bbbb-bbbb
            release                : 0.1.0
            knows this host as     : a
            connecting             : 1.2 ms
            round trip             : 0.1 ms
        "]]
        .assert_eq(&told(&found));
    }
}
