//! Completion: what `xy complete` prints, and what bash makes of it.

use std::path::Path;
use std::process::Command;

use expect_test::expect;

use crate::commands::{check, render};
use crate::daemon::{Daemon, run_alone};

const DOMAINS: &str =
    r#"{"ok":{"domains":[{"name":"web1","domid":3},{"name":"web2","domid":4},{"domid":5}]}}"#;

#[test]
fn names_come_from_the_daemon() {
    check(
        &["complete", "--", "shutdown", "-w", "we"],
        &[DOMAINS],
        r#"{"version":1,"op":"list","targets":[]}"#,
        &expect![[r#"
            web1	domain 3
            web2	domain 4
            = 0
        "#]],
    );
    check(
        &["complete", "--", "block-detach", "web1", ""],
        &[r#"{"ok":{"blocks":[{"vdev":51712},{"vdev":51728}]}}"#],
        r#"{"version":1,"op":"block-list","targets":["web1"]}"#,
        &expect![[r#"
            51712	disk
            51728	disk
            = 0
        "#]],
    );
}

#[test]
fn without_a_daemon_there_is_nothing_and_no_message() {
    assert_eq!(render(&run_alone(&["complete", "--", "shutdown", ""])), "= 0\n");
    assert_eq!(render(&run_alone(&["complete", "--", "create", ""])), ":files= 0\n");
}

#[test]
fn a_script_is_for_a_shell_that_is_known() {
    let said = run_alone(&["completion", "tcsh"]);
    let words = "! xy: completion: tcsh: there is a script for bash, zsh and fish\n= 2\n";
    assert_eq!(render(&said), words);
}

/// What bash would offer for a line, with the cursor at its end.
fn offered_by_bash(line: &str, answers: &[&[&str]]) -> Vec<String> {
    let daemon = Daemon::new(answers);
    let script = daemon.directory().join("xy.bash");
    std::fs::write(&script, run_alone(&["completion", "bash"]).stdout).unwrap();
    let program =
        "source \"$0\"; COMP_LINE=$1 COMP_POINT=${#1}; _xy; printf '%s\\n' \"${COMPREPLY[@]}\"";
    // The script finds `xy` as a shell does.
    let folder = Path::new(env!("CARGO_BIN_EXE_xy")).parent().unwrap();
    let output = Command::new("bash")
        .args(["-c", program])
        .arg(&script)
        .arg(line)
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .env("XYLEMD_SOCKET", daemon.directory().join("sock"))
        .output()
        .unwrap();
    drop(daemon.requests());
    let mut words: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    words.retain(|word| !word.is_empty());
    words.sort();
    words
}

#[test]
fn bash_offers_commands_names_and_options() {
    assert_eq!(offered_by_bash("xy vdi-c", &[]), ["vdi-clone", "vdi-create"]);
    assert_eq!(offered_by_bash("xy shutdown --", &[]), ["--all", "--wait"]);
    assert_eq!(offered_by_bash("xy shutdown w", &[&[DOMAINS]]), ["web1", "web2"]);
    assert_eq!(offered_by_bash("xy shutdown ", &[&[DOMAINS]]), ["web1", "web2"]);
    let vdis = r#"{"ok":{"vdis":{"vdis":[{"sr":"fast","name":"a"},{"sr":"fast","name":"b"}]}}}"#;
    // What is before a colon is a word of its own for bash.
    assert_eq!(offered_by_bash("xy vdi-destroy fast:", &[&[vdis]]), ["a", "b"]);
    assert_eq!(offered_by_bash("xy vdi-destroy fa", &[&[vdis]]), ["fast:a", "fast:b"]);
}
