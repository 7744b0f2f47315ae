//! Defined VMs, and events.

use expect_test::expect;

use crate::commands::{check, render};
use crate::daemon::{Daemon, run_alone};

#[test]
fn a_definition_is_sent_as_its_file_says_with_its_place_in_the_start() {
    let daemon = Daemon::new(&[&[r#"{"ok":{"defined":{"uuid":"u"}}}"#]]);
    std::fs::write(daemon.directory().join("web.cfg"), "name = 'web'\n").unwrap();
    let cwd = std::fs::canonicalize(daemon.directory()).unwrap();
    let (said, requests) = daemon.run(&["define", "web.cfg", "memory=64", "--order=3"]);
    let expected = format!(
        r#"{{"version":1,"op":"define","file":"web.cfg","config_text":"name = 'web'\n","overrides":["memory=64"],"cwd":"{}","warnings":true,"autostart":3}}"#,
        cwd.display()
    );
    assert_eq!(requests, [expected]);
    expect![[r#"
        u
        = 0
    "#]]
    .assert_eq(&render(&said));
}

#[test]
fn vms_are_listed_with_what_they_are_and_whether_they_stay() {
    check(
        &["vm-list"],
        &[
            r#"{"ok":{"vms":[{"name":"db","uuid":"01234567-89ab-cdef-0123-456789abcdef","state":"down","domid":null,"defined":true,"autostart":0},{"name":"web","uuid":"11234567-89ab-cdef-0123-456789abcdef","state":"running","domid":7,"defined":false,"autostart":null}]}}"#,
        ],
        r#"{"version":1,"op":"vms"}"#,
        &expect![[r#"
            Name                             UUID                                    ID State     Defined Autostart
            db                               01234567-89ab-cdef-0123-456789abcdef     - down      yes     0
            web                              11234567-89ab-cdef-0123-456789abcdef     7 running   no      -
            = 0
        "#]],
    );
}

#[test]
fn a_start_of_all_tells_of_each_and_fails_if_one_did() {
    check(
        &["-v", "start", "--all"],
        &[
            r#"{"progress":{"vm":"a","done":1,"total":2,"step":"started"}}"#,
            r#"{"ok":{"started-all":{"started":1,"running":3,"failed":[{"vm":"b","why":"no kernel"}]}}}"#,
        ],
        r#"{"version":1,"op":"start-all"}"#,
        &expect![[r#"
            1 started, 3 running already, 1 failed
            ! a: 1/2 started
            ! xy: b: no kernel
            = 1
        "#]],
    );
    for arguments in [&["start"][..], &["start", "-a", "b"], &["wait", "b"], &["define"]] {
        assert_eq!(run_alone(arguments).status, Some(2), "{arguments:?}");
    }
}

#[test]
fn a_wait_names_vm_state_and_time() {
    check(
        &["wait", "--timeout=5", "web", "running"],
        &[r#"{"ok":"done"}"#],
        r#"{"version":1,"op":"wait-for","target":"web","state":"running","timeout_s":5}"#,
        &expect![[r#"
            = 0
        "#]],
    );
}

const CHANGE: &str = r#"{"ok":{"changes":{"revision":12,"too_old":false,"snapshot":null,"changes":[{"revision":12,"unix_ms":1763796851007,"vm":"web","uuid":"u","domid":3,"before":"running","after":"stopping","reason":"poweroff"}]}}}"#;
const NOTHING: &str =
    r#"{"ok":{"changes":{"revision":12,"too_old":false,"snapshot":null,"changes":[]}}}"#;

#[test]
fn what_there_is_of_devices_is_told_with_the_names_of_their_vms() {
    let page = r#"{"ok":{"objects":{"cursor":"7-9","is_last":true,"starts_again":true,"changes":[
        {"revision":5,"key":"u-1","class":"vm","object":{"uuid":"u-1","name":"web","state":"running"}},
        {"revision":7,"key":"u-1/vif/0","class":"device","object":{"vm":"u-1","kind":"vif","devid":0,"config":"bridge=br\u001b","network":"br","state":"attached"}}]}}}"#
        .replace("\n        ", "");
    let (said, asked) = Daemon::new(&[&[&page]]).run(&["events", "device"]);
    let said = render(&said);
    // When it was heard of is the moment of this test.
    let (time, rest) = said.split_once(' ').unwrap();
    assert!(time.len() == 13 && time.ends_with('Z'), "{time}");
    expect![[r#"
        device web/vif/0: is attached, network br, as bridge=br?
        ! go on from here with --since 7-9
        = 0
    "#]]
    .assert_eq(rest);
    let expected =
        r#"{"version":1,"op":"objects","cursor":null,"classes":["device","vm"],"wait":false}"#;
    assert_eq!(asked, [expected]);
    assert_eq!(run_alone(&["events", "--since", "7-9"]).status, Some(2));
}

#[test]
fn objects_are_read_to_the_end_with_the_names_of_vms() {
    let first = r#"{"ok":{"objects":{"cursor":"7-9","is_last":false,"starts_again":true,"changes":[
        {"revision":5,"key":"u-1","class":"vm","object":{"uuid":"u-1","name":"web","state":"running","domid":4,"defined":true,"config":{"kind":"pvh","memory_mib":128,"memory_max_mib":256,"vcpus":2,"vcpus_max":4},"operations":[12]}},
        {"revision":7,"key":"u-1/vbd/51728","class":"device","object":{"vm":"u-1","kind":"vbd","devid":51728,"name":"xvdb","config":"format=raw,vdev=xvdb,access=rw,target=/b\u001b","state":"attaching","operation":12}}]}}}"#
        .replace("\n        ", "");
    let last = r#"{"ok":{"objects":{"cursor":"9-9","is_last":true,"changes":[
        {"revision":8,"key":"12","class":"operation","object":{"id":12,"what":"attach","vm":"web","started_ns":1000000000,"ended_ns":null,"failure":null,"steps":5,"done":2,"uuid":"u-1","started_unix_ms":5,"waits_for":["attach vbd 51728 (xvdb)"]}},
        {"revision":8,"key":"11","class":"operation","object":{"id":11,"what":"undo","vm":"web","started_ns":1000000000,"ended_ns":1002000000,"failure":"no room","steps":5,"done":5,"uuid":"u-1","started_unix_ms":5}},
        {"revision":9,"key":"9","class":"domain","object":{"domid":9,"name":"theirs","uuid":"u-9"}},
        {"revision":9,"key":"u-2","class":"vm","object":null}]}}}"#
        .replace("\n        ", "");
    let (said, asked) = Daemon::new(&[&[&first], &[&last]]).run(&["objects", "--since", "3-3"]);
    expect![[r#"
        5 vm web: running, domain 4, pvh, 128 MiB, 2 vCPUs, operation 12
        7 device web/vbd/51728: xvdb attaching by operation 12, format=raw,vdev=xvdb,access=rw,target=/b?
        8 operation 12: attach web, 2 of 5 steps, attach vbd 51728 (xvdb)
        8 operation 11: undo web, 5 of 5 steps, failed: no room
        9 domain 9: theirs, not managed
        9 vm u-2: is gone
        ! go on from here with --since 9-9
        = 0
    "#]]
    .assert_eq(&render(&said));
    expect![[r#"
        {"version":1,"op":"objects","cursor":"3-3","classes":[],"wait":false}
        {"version":1,"op":"objects","cursor":"7-9","classes":[],"wait":false}"#]]
    .assert_eq(&asked.join("\n"));
}

#[test]
fn events_go_on_from_a_revision_until_nothing_more_is_known() {
    let (said, requests) = Daemon::new(&[&[CHANGE], &[NOTHING]]).run(&["events", "--since=11"]);
    assert_eq!(
        requests,
        [
            r#"{"version":1,"op":"events","since":11,"wait":false}"#,
            r#"{"version":1,"op":"events","since":12,"wait":false}"#,
        ]
    );
    expect![[r#"
        12 07:34:11.007Z web (domain 3) running -> stopping: poweroff
        = 0
    "#]]
    .assert_eq(&render(&said));
}

#[test]
fn a_reader_that_is_too_late_gets_the_states() {
    let states = r#"{"ok":{"changes":{"revision":9,"too_old":true,"snapshot":[{"name":"web","uuid":"u","domid":3,"state":"running","revision":8}],"changes":[]}}}"#;
    check(
        &["events", "--since=1"],
        &[states],
        r#"{"version":1,"op":"events","since":1,"wait":false}"#,
        &expect![[r#"
            8 web (domain 3) is running
            9 1 VMs
            ! older changes are no longer kept; these are the current states
            = 0
        "#]],
    );
}

#[test]
fn a_stream_waits_only_when_nothing_more_is_known() {
    let refusal = r#"{"error":"over"}"#;
    let scripts: [&[&str]; 3] = [&[CHANGE], &[NOTHING], &[refusal]];
    let (said, requests) = Daemon::new(&scripts).run(&["events", "--since=11", "-f", "--json"]);
    let waits: Vec<bool> = requests.iter().map(|it| it.contains(r#""wait":true"#)).collect();
    assert_eq!(waits, [false, false, true]);
    assert_eq!(said.stdout.lines().count(), 2, "{}", render(&said));
}
