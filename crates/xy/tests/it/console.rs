//! Attaching to a console, a pty whose master the test holds.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::daemon::{Daemon, Said};

/// A pty: its master, as held by xenconsoled or a terminal program, and the slave's path.
pub(crate) struct Pty {
    pub(crate) master: File,
    path: String,
}

impl Pty {
    pub(crate) fn new() -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        Self { master: File::from(master), path }
    }

    pub(crate) fn slave(&self) -> OwnedFd {
        rustix::fs::open(
            &*self.path,
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap()
    }

    /// In raw mode, as set by xenconsoled.
    fn raw(self) -> Self {
        let slave = self.slave();
        let mut modes = tcgetattr(&slave).unwrap();
        modes.make_raw();
        tcsetattr(&slave, OptionalActions::Now, &modes).unwrap();
        self
    }

    fn expect(&mut self, text: &str) {
        let mut bytes = Vec::new();
        while bytes.len() < text.len() {
            let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&limit));
            assert_eq!(ready, Ok(1), "only {bytes:?} came of {text:?}");
            let mut byte = [0];
            self.master.read_exact(&mut byte).unwrap();
            bytes.extend(byte);
        }
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }
}

fn console_answer(console: &Pty) -> String {
    format!(r#"{{"ok":{{"console":{{"domid":3,"tty":"{}"}}}}}}"#, console.path)
}

fn read_until(output: &mut impl Read, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        text.push(char::from(byte[0]));
    }
    text
}

fn finish(child: Child) -> Said {
    Said::new(&child.wait_with_output().unwrap())
}

#[test]
fn bytes_go_both_ways_through_pipes_until_the_escape() {
    let mut console = Pty::new().raw();
    // Keeps the console open after xy exits, as the domain does.
    let _domain = console.slave();
    let daemon = Daemon::new(&[&[&console_answer(&console)]]);
    let mut child = daemon
        .command(&["console", "web"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    console.master.write_all(b"login: ").unwrap();
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), ": "), "login: ");
    child.stdin.as_mut().unwrap().write_all(b"root\n\x1dmore").unwrap();
    console.expect("root\n");
    finish(child).assert(0, "", "");
    assert_eq!(daemon.requests(), [r#"{"version":1,"op":"console","target":"web"}"#]);
}

#[test]
fn a_console_goes_on_after_its_input_has_ended_until_the_domain_is_gone() {
    let mut console = Pty::new().raw();
    let daemon = Daemon::new(&[&[&console_answer(&console)]]);
    let mut child = daemon
        .command(&["console", "web"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    console.master.write_all(b"first.").unwrap();
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "."), "first.");
    console.master.write_all(b"second.").unwrap();
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "."), "second.");
    drop(console);
    finish(child).assert(0, "", "");
}

#[test]
fn a_terminal_is_raw_while_attached_and_as_before_afterwards() {
    let mut console = Pty::new().raw();
    let _domain = console.slave();
    let mut terminal = Pty::new();
    let terminal_slave = terminal.slave();
    let is_raw = || {
        let modes = tcgetattr(&terminal_slave).unwrap();
        !modes.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    };
    let daemon = Daemon::new(&[&[&console_answer(&console)]]);
    assert!(!is_raw());
    let child = daemon
        .command(&["console", "-e", "^a", "web"])
        .stdin(Stdio::from(terminal.slave()))
        .stdout(Stdio::from(terminal.slave()))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    console.master.write_all(b"$ ").unwrap();
    terminal.expect("$ ");
    assert!(is_raw());
    // Control-C and control-] now go to the guest.
    terminal.master.write_all(b"ls\r\x03\x1d").unwrap();
    console.expect("ls\r\x03\x1d");
    terminal.master.write_all(b"\x01").unwrap();
    finish(child).assert(0, "", "");
    assert!(!is_raw());
}

#[test]
fn create_with_a_console_starts_the_domain_once_it_is_open() {
    let mut console = Pty::new().raw();
    let created = r#"{"ok":{"created":{"name":"web","domid":3,"uuid":"u","stages":[],"cost":{}}}}"#;
    let daemon = Daemon::new(&[&[created], &[&console_answer(&console)], &[r#"{"ok":"done"}"#]]);
    std::fs::write(daemon.directory().join("web.cfg"), "").unwrap();
    let mut child = daemon
        .command(&["create", "-qc", "web.cfg"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    console.master.write_all(b"Linux.").unwrap();
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "."), "Linux.");
    drop(console);
    finish(child).assert(0, "", "");
    let requests = daemon.requests();
    assert!(requests[0].contains(r#""paused":true"#), "{}", requests[0]);
    assert_eq!(
        requests[1..],
        [
            r#"{"version":1,"op":"console","target":"u"}"#,
            r#"{"version":1,"op":"unpause","target":"u"}"#,
        ]
    );
}

#[test]
fn a_terminal_that_cannot_be_opened_is_named() {
    let answer = r#"{"ok":{"console":{"domid":3,"tty":"/nonexistent/pts"}}}"#;
    let (said, _) = Daemon::new(&[&[answer]]).run(&["console", "web"]);
    said.assert(
        1,
        "",
        "xy: cannot open the console of domain 3, /nonexistent/pts: No such file or directory (os error 2)\n",
    );
}

#[test]
fn a_console_is_named_by_its_type_and_number() {
    let asked = |words: &[&str]| {
        let answer = r#"{"error":"x"}"#;
        let (_, requests) = Daemon::new(&[&[answer]]).run(words);
        requests
    };
    assert_eq!(
        asked(&["console", "-t", "serial", "u"]),
        [r#"{"version":1,"op":"console","target":"u","kind":"serial"}"#]
    );
    assert_eq!(
        asked(&["console", "-t", "pv", "-n", "2", "u"]),
        [r#"{"version":1,"op":"console","target":"u","kind":"pv","number":2}"#]
    );
    let (said, requests) = Daemon::new(&[]).run(&["console", "-t", "vuart", "u"]);
    said.assert(1, "", "xy: console: only domains on ARM have a console of type vuart\n");
    assert!(requests.is_empty(), "{requests:?}");
}
