//! Commands for SRs and VDIs.

use expect_test::{Expect, expect};

use crate::daemon::{Daemon, run_alone};

fn check(arguments: &[&str], answer: &str, request: &str, expected: &Expect) {
    let (said, requests) = Daemon::new(&[&[answer]]).run(arguments);
    assert_eq!(requests, [request]);
    expected.assert_eq(&format!("{}{}= {}\n", said.stdout, said.stderr, said.status.unwrap_or(-1)));
}

#[test]
fn what_changes_something_says_nothing() {
    for (arguments, request) in [
        (
            &["sr-create", "fast", "file", "path=/srv/a=b"][..],
            r#"{"do":"sr-create","name":"fast","kind":"file","config":{"path":"/srv/a=b"}}"#,
        ),
        (
            &["sr-introduce", "fast", "file", "path=/srv"],
            r#"{"do":"sr-introduce","name":"fast","kind":"file","config":{"path":"/srv"}}"#,
        ),
        (&["sr-forget", "fast"], r#"{"do":"sr-forget","name":"fast"}"#),
        (&["sr-destroy", "fast"], r#"{"do":"sr-destroy","name":"fast"}"#),
        (&["vdi-create", "fast:a", "1M"], r#"{"do":"vdi-create","vdi":"fast:a","bytes":1048576}"#),
        (&["vdi-resize", "fast:a", "512"], r#"{"do":"vdi-resize","vdi":"fast:a","bytes":512}"#),
        (&["vdi-destroy", "fast:a"], r#"{"do":"vdi-destroy","vdi":"fast:a"}"#),
        (&["vdi-snapshot", "fast:a", "b"], r#"{"do":"vdi-snapshot","vdi":"fast:a","to":"b"}"#),
        (&["vdi-clone", "fast:a", "fast:b"], r#"{"do":"vdi-clone","vdi":"fast:a","to":"b"}"#),
    ] {
        let request = request.replacen('{', r#"{"version":1,"op":"storage","#, 1);
        check(
            arguments,
            r#"{"ok":"done"}"#,
            &request,
            &expect![[r#"
            = 0
        "#]],
        );
    }
}

#[test]
fn repositories_are_listed() {
    check(
        &["sr-list"],
        r#"{"ok":{"srs":[{"name":"fast","kind":"file","config":{"path":"/srv"},"in_use":2},{"name":"n","kind":"nfs","config":{"server":"filer","serverpath":"/x"}}]}}"#,
        r#"{"version":1,"op":"storage","do":"sr-list"}"#,
        &expect![[r#"
            SR               Kind     In-use Config
            fast             file          2 path=/srv
            n                nfs           0 server=filer serverpath=/x
            = 0
        "#]],
    );
    check(
        &["sr-info", "fast"],
        r#"{"ok":{"srs":[{"name":"fast","kind":"file","config":{"path":"/srv"},"in_use":2,"vdis":3,"bytes":4096,"free_bytes":512}]}}"#,
        r#"{"version":1,"op":"storage","do":"sr-info","name":"fast"}"#,
        &expect![[r#"
            sr                     : fast
            kind                   : file
            config                 : path=/srv
            vdis                   : 3
            in_use                 : 2
            bytes                  : 4096
            free_bytes             : 512
            = 0
        "#]],
    );
}

#[test]
fn vdis_are_listed_with_their_users_and_srs_that_do_not_answer_are_told() {
    check(
        &["vdi-list"],
        r#"{"ok":{"vdis":{"vdis":[{"sr":"fast","name":"a","bytes":1073741824,"used_bytes":1,"users":[{"owner":"xylem/u/51712","access":"w","active":true}]},{"sr":"fast","name":"b","bytes":512,"snapshot_of":"a"}],"problems":["n: no answer within 30 s"]}}}"#,
        r#"{"version":1,"op":"storage","do":"vdi-list","srs":[]}"#,
        &expect![[r#"
            VDI                              Size(MiB) Used(MiB) Snapshot-of      Used-by
            fast:a                                1024         1 -                xylem/u/51712(w)
            fast:b                                   1         - a                -
            xy: n: no answer within 30 s
            = 1
        "#]],
    );
    check(
        &["sr-scan", "fast"],
        r#"{"ok":{"vdis":{}}}"#,
        r#"{"version":1,"op":"storage","do":"vdi-list","srs":["fast"]}"#,
        &expect![[r#"
            VDI                              Size(MiB) Used(MiB) Snapshot-of      Used-by
            = 0
        "#]],
    );
}

#[test]
fn what_makes_no_sense_is_not_asked() {
    for (arguments, message) in [
        (&["vdi-create", "fast:a", "big"][..], "\"big\" is not a size"),
        (&["sr-create", "fast", "file", "path"], "\"path\" is not KEY=VALUE"),
        (&["vdi-clone", "fast:a", "slow:b"], "slow:b is in another SR than fast:a"),
    ] {
        let said = run_alone(arguments);
        assert_eq!(said.status, Some(2), "{said:?}");
        assert!(said.stderr.contains(message), "{said:?}");
    }
}
