//! `migrate` and `migrate-receive`: connections to other hosts, which are handed to the daemon.
//!
//! To a host that is known as a peer the daemon connects itself. Otherwise the connection is a program's, usually ssh's,
//! with its keys, questions and messages. The daemon has the other ends of its pipes, so nothing that is sent passes
//! through this process.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use api::client::CallError;
use api::{Arrival, Migrate, Pace, Reach, Request, Runs, Speaks, Target};

use super::{create, expect_done, peer};
use crate::options::Options;
use crate::session::{Failure, ProgressDisplay, Session, one_line};

/// What serves us at the other end: Xylem if it is there, otherwise xl.
const RECEIVER: &str = "xy migrate-receive --own";

/// Most connections of one move: more would not make it faster.
const CONNECTIONS_MAX: u8 = 8;

/// How the other host is reached.
#[derive(Debug, Eq, PartialEq)]
struct Connection {
    /// A command of the shell, now and with a terminal.
    now: String,
    /// Later, by the daemon.
    later: String,
}

impl Connection {
    /// `ssh` is the option's value, if it was given.
    fn to(host: &str, ssh: Option<&str>, paused: &str) -> Result<Self, Failure> {
        if host.is_empty() || host.starts_with('-') {
            return Err(Failure::usage(format!("migrate: {host:?} is not a host")));
        }
        let either =
            format!("command -v xy >/dev/null && exec {RECEIVER}; exec xl migrate-receive{paused}");
        let (either, own) = (quoted(&either), quoted(&format!("exec {RECEIVER}")));
        // A broken link is noticed in 15 s.
        let alive = "-o ServerAliveInterval=5 -o ServerAliveCountMax=3";
        let quoted_host = quoted(host);
        Ok(match ssh {
            None => Self {
                now: format!("exec ssh {alive} {quoted_host} {either}"),
                later: format!(
                    "exec ssh -o BatchMode=yes -o ConnectTimeout=10 {alive} {quoted_host} {own}"
                ),
            },
            Some("") => Self { now: host.to_owned(), later: host.to_owned() },
            Some(command) => Self {
                now: format!("exec {command} {quoted_host} {either}"),
                later: format!("exec {command} {quoted_host} {own}"),
            },
        })
    }
}

/// As one word of the shell.
fn quoted(text: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric() || "@%+=:,./-_".contains(it);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

pub(crate) fn migrate(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let target = Target(options.operands[0].clone());
    let here = options.has("here");
    let host = match (here || options.has("there"), options.operands.get(1)) {
        (false, Some(host)) => host,
        (true, None) => {
            let runs = if here { Runs::Here } else { Runs::There };
            let settled = session.call(&Request::MigrateSettle { target, runs })?;
            return expect_done(&settled);
        }
        (true, Some(_)) => {
            return Err(Failure::usage("migrate: --here and --there take no host"));
        }
        (false, None) => {
            return Err(Failure::usage(
                "migrate: requires at least 2 arguments; see 'xy help migrate'",
            ));
        }
    };
    let (file, (config_text, cwd)) = match options.value("C") {
        None => (String::new(), (None, String::new())),
        Some(file) => {
            let (text, cwd) = create::read(file)?;
            (file.to_owned(), (Some(text), cwd))
        }
    };
    let downtime_ms = options.value("downtime").map(str::parse).transpose();
    let downtime_ms = downtime_ms
        .map_err(|_| Failure::usage("migrate: --downtime takes a number of milliseconds"))?;
    let paused = options.has("p");
    let connection = match is_peer(session, options, host)? {
        true => None,
        // Keys, questions and messages of ssh are those of whoever has started it.
        false if session.remote.is_some() => {
            return Err(Failure::failed(format!(
                "migrate: {host} is no peer of the host, which other hosts are reached by from afar: 'xy peer add' makes one; \
                 by ssh, log in on the host itself"
            )));
        }
        false => Some(Connection::to(host, options.value("s"), if paused { " -p" } else { "" })?),
    };
    let by = match &connection {
        None => Reach::Peer(host.clone()),
        Some(connection) => Reach::Command(connection.later.clone()),
    };
    let progress = session.draws_progress();
    let request = Request::Migrate(Box::new(Migrate {
        target,
        to: host.split_whitespace().next().unwrap_or_default().to_owned(),
        by,
        pace: if options.has("non-live") { Pace::Stopped } else { Pace::Live },
        downtime_ms,
        arrival: if paused { Arrival::StaysPaused } else { Arrival::Runs },
        file,
        cwd,
        config_text,
        same_domid: options.has("D"),
        connections: connections(options)?,
        progress,
    }));
    let Some(Connection { now, .. }) = connection else {
        return expect_done(&session.call(&request)?);
    };
    let told = |error: std::io::Error| Failure::failed(format!("migrate: {error}"));
    let (ends, mut child) = connect(&now).map_err(told)?;
    let answer = session.call_with_channel(&request, ends).map_err(|error| failed(&error));
    let answer = answer.and_then(|reply| expect_done(&reply));
    if answer.is_err() {
        // It may still be asking for a password.
        let _ended = child.kill();
    }
    // The daemon has closed its ends.
    let _status = child.wait();
    answer
}

/// How many connections a peer gets.
fn connections(options: &Options) -> Result<Option<u8>, Failure> {
    let Some(text) = options.value("connections") else { return Ok(None) };
    match text.parse() {
        Ok(number @ 1..=CONNECTIONS_MAX) => Ok(Some(number)),
        _ => Err(Failure::usage(format!(
            "migrate: --connections {text}: expected a number from 1 to {CONNECTIONS_MAX}"
        ))),
    }
}

/// Whether the daemon connects to the host itself.
fn is_peer(session: &mut Session, options: &Options, host: &str) -> Result<bool, Failure> {
    let is_ssh = options.has("ssh") || options.value("s").is_some();
    match (options.has("tls"), is_ssh) {
        (true, true) => Err(Failure::usage("migrate: either --tls or ssh")),
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        (false, false) => Ok(peer::known(session)?.iter().any(|it| it.name == host)),
    }
}

/// Starts the program; the ends are the daemon's.
fn connect(command: &str) -> std::io::Result<([OwnedFd; 2], Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let input = OwnedFd::from(theirs);
    let output = input.try_clone()?;
    let child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output))
        .spawn()?;
    let from = OwnedFd::from(ours);
    let to = from.try_clone()?;
    Ok(([from, to], child))
}

pub(crate) fn receive(session: &mut Session, options: &Options) -> Result<(), Failure> {
    session.progress = ProgressDisplay::Hidden;
    let told = |error: std::io::Error| Failure::failed(format!("migrate-receive: {error}"));
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(told)?;
    let output = std::io::stdout().as_fd().try_clone_to_owned().map_err(told)?;
    let speaks = if options.has("own") { Speaks::Own } else { Speaks::Xl };
    let request = Request::MigrateReceive {
        speaks,
        arrival: if options.has("p") { Arrival::StaysPaused } else { Arrival::Runs },
    };
    match session.call_with_channel(&request, [input, output]) {
        Ok(reply) => expect_done(&reply),
        // The sender was told, and tells it once.
        Err(CallError::Refused(_)) if speaks == Speaks::Own => Err(Failure::Failed(Vec::new())),
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &CallError) -> Failure {
    Failure::failed(one_line(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn commands_reach_the_other_host_as_xls_would() {
        let show = |host, ssh| {
            let Connection { now, later } = Connection::to(host, ssh, "").unwrap();
            format!("{now}\n{later}\n")
        };
        let shown =
            [show("b", None), show("root@b; x", Some("ssh -p 2")), show("nc b 1", Some(""))];
        expect![[r#"
            exec ssh -o ServerAliveInterval=5 -o ServerAliveCountMax=3 b 'command -v xy >/dev/null && exec xy migrate-receive --own; exec xl migrate-receive'
            exec ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 b 'exec xy migrate-receive --own'
            exec ssh -p 2 'root@b; x' 'command -v xy >/dev/null && exec xy migrate-receive --own; exec xl migrate-receive'
            exec ssh -p 2 'root@b; x' 'exec xy migrate-receive --own'
            nc b 1
            nc b 1
        "#]]
        .assert_eq(&shown.concat());
        assert!(Connection::to("-oProxyCommand=x", None, "").is_err());
    }

    #[test]
    fn a_quote_stays_inside_its_word() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("a.b-c"), "a.b-c");
        assert_eq!(quoted(""), "''");
    }
}
