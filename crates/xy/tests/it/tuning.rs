//! Commands that change a running domain.

use expect_test::expect;

use crate::commands::check;
use crate::daemon::run_alone;

const DONE: &str = r#"{"ok":"done"}"#;
const QUIET: &str = "= 0\n";

/// The command sends this, and prints nothing when it is done.
#[track_caller]
fn asks(arguments: &[&str], request: &str) {
    let request = format!(r#"{{"version":1,"op":"tune",{request}}}"#);
    let (said, requests) = crate::daemon::Daemon::new(&[&[DONE]]).run(arguments);
    assert_eq!(requests, [request]);
    assert_eq!(crate::commands::render(&said), QUIET);
}

#[test]
fn amounts_of_memory_are_sent_in_kib() {
    asks(&["mem-set", "web", "512"], r#""do":"mem-set","target":"web","kib":524288"#);
    asks(&["mem-max", "0", "2g"], r#""do":"mem-max","target":"0","kib":2097152"#);
    run_alone(&["mem-set", "web", "half"]).assert(
        2,
        "",
        "xy: mem-set: invalid memory size: \"half\"; it is a number of MiB, or of the unit that \
         follows it: b, k, m, g or t\n",
    );
    run_alone(&["mem-max", "web"]).assert(
        2,
        "",
        "xy: mem-max: requires at least 2 arguments; see 'xy help mem-max'\n",
    );
}

#[test]
fn what_the_daemon_refuses_is_told() {
    let answer = r#"{"error":"web: 600 MiB is above its maximum of 512 MiB"}"#;
    check(
        &["mem-set", "web", "600"],
        &[answer],
        r#"{"version":1,"op":"tune","do":"mem-set","target":"web","kib":614400}"#,
        &expect![[r#"
            ! xy: web: 600 MiB is above its maximum of 512 MiB
            = 1
        "#]],
    );
}
