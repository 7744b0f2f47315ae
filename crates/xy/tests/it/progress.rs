//! Progress output on a terminal.

use std::io::Read as _;
use std::process::Stdio;

use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::console::Pty;
use crate::daemon::Daemon;

/// Runs `xy` with a terminal of so many columns as its standard error, and returns what is written there.
fn seen(script: &[&str], arguments: &[&str], columns: u16) -> (String, Vec<String>) {
    let daemon = Daemon::new(&[script]);
    std::fs::write(daemon.directory().join("web.cfg"), "name = 'web'\n").unwrap();
    let mut pty = Pty::new();
    let slave = pty.slave();
    let mut modes = tcgetattr(&slave).unwrap();
    modes.make_raw();
    tcsetattr(&slave, OptionalActions::Now, &modes).unwrap();
    let size = Winsize { ws_row: 25, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&slave, size).unwrap();
    let status = daemon
        .command(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::from(slave))
        .status()
        .unwrap();
    assert!(status.success());
    let mut bytes = Vec::new();
    // After the last close of the slave, the master reads to the end, or fails.
    let _end = pty.master.read_to_end(&mut bytes);
    (String::from_utf8(bytes).unwrap(), daemon.requests())
}

const DONE: &str = r#"{"ok":"done"}"#;
const BEGUN: &str = r#"{"progress":{"vm":"web","done":0,"total":4,"step":"","waits_for":"pause"}}"#;
const FURTHER: &str = r#"{"progress":{"vm":"web","done":3,"total":4,"step":"destroy domain","waits_for":"detach disk 51712"}}"#;

#[test]
fn a_line_says_how_far_it_is_and_what_it_waits_for_and_is_gone_in_the_end() {
    let arguments = ["block-attach", "web", "/a.raw,raw,xvdb,w"];
    let (text, requests) = seen(&[BEGUN, FURTHER, DONE], &arguments, 80);
    assert_eq!(
        text,
        "\rweb [--------------------] 0/4 waits for pause\x1b[K\
         \rweb [###############-----] 3/4 waits for detach disk 51712\x1b[K\
         \r\x1b[K"
    );
    assert!(requests[0].contains(r#""progress":true"#), "{requests:?}");
}

#[test]
fn a_narrow_terminal_gets_a_line_that_fits() {
    let (text, _) = seen(&[FURTHER, DONE], &["block-detach", "web", "xvdb"], 36);
    assert_eq!(text, "\rweb [###############-----] 3/4 wait\x1b[K\r\x1b[K");
}

#[test]
fn messages_take_the_place_of_the_line() {
    let asked = r#"{"event":{"domid":7,"what":"shutdown-requested"}}"#;
    let gone = r#"{"event":{"domid":7,"what":"destroyed"}}"#;
    let arguments = ["shutdown", "-w", "web"];
    let (text, requests) = seen(&[asked, FURTHER, gone, DONE], &arguments, 80);
    assert_eq!(
        text,
        "Shutting down domain 7\nWaiting for 1 domains\n\
         \rweb [###############-----] 3/4 waits for detach disk 51712\x1b[K\
         \r\x1b[KDomain 7 has been destroyed\n"
    );
    assert!(requests[0].contains(r#""progress":true"#), "{requests:?}");
}
