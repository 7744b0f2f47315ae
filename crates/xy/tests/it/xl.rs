//! `xy xl`, and a link named `xl`.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::commands::render;
use crate::daemon::{Daemon, Said, Scratch, run_alone};

const ROWS: &str = r#"{"ok":{"domains":[{"name":"web","domid":3,"uuid":"01234567-89ab-cdef-0123-456789abcdef"}]}}"#;

/// A link named xl, without a daemon.
fn link(arguments: &[&str]) -> Said {
    let scratch = Scratch::new();
    let xl = scratch.path.join("xl");
    symlink(env!("CARGO_BIN_EXE_xy"), &xl).unwrap();
    let mut command = Command::new(xl);
    command.args(arguments).env("XYLEMD_SOCKET", "/nonexistent/sock");
    Said::new(&command.output().unwrap())
}

#[test]
fn a_wrong_command_line_ends_as_with_xl() {
    for (words, status, message) in [
        (&["lists"][..], 1, "xl: command not implemented\n"),
        // A verb of xy alone.
        (&["clone", "a:b"], 1, "xl: command not implemented\n"),
        (&["dom"], 1, "xl: command not implemented\n"),
        (&["-x", "list"], 1, "xl: unknown global option\n"),
        (&["-N", "pause", "a"], 1, "xl: command does not implement -N (dryrun) option\n"),
        (
            &["usb-list", "one"],
            1,
            "xl: usb-list: Xylem has no PV USB; HVM domains have usbdevice=\n",
        ),
        (&["domid"], 2, "xl: domid: requires at least 1 argument; see 'xy help domid'\n"),
        // A value is not an option.
        (&["sysrq", "one", "hh"], 1, "xl: sysrq: invalid sysrq \"hh\": it is one letter\n"),
        (&["shutdown"], 1, "xl: You must specify -a or a domain id.\n"),
        (&["list", "-x"], 2, "xl: list: invalid option '-x'; see 'xy help list'\n"),
    ] {
        link(words).assert(status, "", message);
        let with_xl: Vec<&str> = ["xl"].iter().chain(words).copied().collect();
        run_alone(&with_xl).assert(status, "", message);
    }
}

#[test]
fn without_a_verb_xl_lists_its_own() {
    let said = link(&[]);
    assert_eq!((said.status, said.stderr.as_str()), (Some(1), ""));
    assert!(said.stdout.starts_with("Usage xl [-vfNtT] <subcommand> [args]\n"));
    assert_eq!(link(&["help"]).stdout, said.stdout);
    let said = link(&["help", "pause"]);
    said.assert(0, "Usage: xl [-vtT] pause <Domain ...>\n\nPause execution of a domain.\n\n", "");
    assert_eq!(link(&["pause", "--help"]), said);
}

#[test]
fn vm_list_is_that_of_xl() {
    let (said, requests) = Daemon::new(&[&[ROWS]]).run(&["xl", "-v", "vm-list"]);
    assert_eq!(requests, [r#"{"version":1,"op":"list","targets":[]}"#]);
    let name = format!("{:<30}", "web");
    said.assert(
        0,
        &format!(
            "UUID                                  ID    name\n\
             01234567-89ab-cdef-0123-456789abcdef  3    {name}\n"
        ),
        "",
    );
}

#[test]
fn what_the_daemon_refuses_is_told_in_the_name_of_xl() {
    let (said, _) =
        Daemon::new(&[&[r#"{"error":"there is no domain web"}"#]]).run(&["xl", "pause", "web"]);
    assert_eq!(render(&said), "! xl: there is no domain web\n= 1\n");
}

#[test]
fn what_is_a_table_otherwise_is_json_on_demand() {
    let check = |answer: &str, arguments: &[&str], expected: &str| {
        let (said, _) = Daemon::new(&[&[answer]]).run(arguments);
        assert_eq!((said.status, said.stderr.as_str()), (Some(0), ""));
        let words: String = said.stdout.split_whitespace().collect();
        assert!(words.contains(expected), "{words}");
    };
    check(ROWS, &["uptime", "--json"], r#"[{"name":"web","domid":3,"#);
    check(ROWS, &["claims", "--json"], r#""mem_kib":0"#);
    check(r#"{"ok":{"domname":"web"}}"#, &["domname", "--json", "3"], r#""web""#);
    let pools = r#"{"ok":{"sched":[{"name":"Pool-0","ratelimit_us":1000,"rows":[]}]}}"#;
    check(pools, &["sched-credit2", "--json"], r#"[{"name":"Pool-0","#);
}
