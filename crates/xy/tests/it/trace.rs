//! `trace`: lists and timelines of operations.

use expect_test::expect;

use crate::commands::{check, render};
use crate::daemon::{Daemon, run_alone};

const TRACE: &str = r#"{"ok":{"trace":{"now_ns":90000000,"uuid":"u","operation":{"id":7,"what":"start","vm":"web","started_ns":10000000,"ended_ns":null,"failure":null,"steps":5,"done":2},"steps":[{"name":"load images","stage":"load images","ready_ns":10000000,"started_ns":30000000,"ended_ns":40000000,"waited_for":"a worker","failed":false},{"name":"attach disk 0","stage":"attach disks","ready_ns":40000000,"started_ns":40000000,"ended_ns":null,"waited_for":null,"failed":false}],"cost":{"store_messages":3}}}}"#;

#[test]
fn operations_are_listed_the_oldest_first() {
    check(
        &["trace"],
        &[
            r#"{"ok":{"operations":{"now_ns":5000000000,"rows":[{"id":1,"what":"start","vm":"web","started_ns":1000000000,"ended_ns":1012000000,"failure":null,"steps":14,"done":14},{"id":2,"what":"stop","vm":"db\u001b","started_ns":4000000000,"ended_ns":null,"failure":"no room","steps":6,"done":2}]}}}"#,
        ],
        r#"{"version":1,"op":"operations"}"#,
        &expect![[r#"
                ID WHAT     VM                                    BEGAN       TOOK     STEPS  STATE
                 1 start    web                                 -4.00 s    12.0 ms     14/14  done
                 2 stop     db?                                 -1.00 s     1.00 s       2/6  failing: no room
            = 0
        "#]],
    );
}

#[test]
fn an_operation_is_drawn_for_a_terminal() {
    check(
        &["trace", "web"],
        &[TRACE],
        r#"{"version":1,"op":"trace","target":"web"}"#,
        &expect![[r#"
            operation 7: start web (80.0 ms)
            step                 at    waited      took
            load images        0 us   20.0 ms   10.0 ms |............######                              | a worker
            attach disk 0   30.0 ms      0 us   50.0 ms |                  >>>>>>>>>>>>>>>>>>>>>>>>>>>>>>|
            2 of 5 steps, under way
            0 hypercalls, 3 store messages in 0 round trips, 0 transactions
            = 0
        "#]],
    );
}

#[test]
fn an_operation_is_exported_for_other_programs() {
    for (option, first, contains) in [
        ("--svg", "<svg ", "attach disk 0"),
        ("--chrome", "{", "\"traceEvents\""),
        ("--json", "{", "\"waited_for\": \"a worker\""),
    ] {
        let (said, _) = Daemon::new(&[&[TRACE]]).run(&["trace", "7", option]);
        let text = render(&said);
        assert!(text.starts_with(first) && text.contains(contains), "{option}: {text}");
    }
    let said = run_alone(&["trace", "--svg"]);
    assert_eq!(said.status, Some(2), "{}", render(&said));
}
