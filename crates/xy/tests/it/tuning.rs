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

#[test]
fn vcpus_are_set_and_pinned_as_in_xl() {
    asks(&["vcpu-set", "web", "3"], r#""do":"vcpu-set","target":"web","vcpus":3"#);
    asks(
        &["vcpu-set", "-i", "web", "9"],
        r#""do":"vcpu-set","target":"web","vcpus":9,"ignore_host":true"#,
    );
    asks(
        &["vcpu-pin", "0", "all", "0-3,^1"],
        r#""do":"vcpu-pin","target":"0","vcpu":null,"hard":"0-3,^1","soft":null"#,
    );
    asks(
        &["vcpu-pin", "-f", "web", "2", "-", "nodes:1"],
        r#""do":"vcpu-pin","target":"web","vcpu":2,"hard":null,"soft":"nodes:1","force":true"#,
    );
    let see = "; see 'xy help vcpu-pin'\n";
    let wrong = |arguments: &[&str], why: &str| {
        run_alone(arguments).assert(2, "", &format!("xy: vcpu-pin: {why}{see}"));
    };
    wrong(&["vcpu-pin", "-f", "web", "all", "1"], "--force takes one VCPU, not all");
    wrong(&["vcpu-pin", "web", "one", "1"], "\"one\" is not a VCPU, and not all");
    wrong(&["vcpu-pin", "web", "1", "-", "-"], "neither a hard nor a soft affinity is given");
    run_alone(&["vcpu-set", "web", "-1"]).assert(
        2,
        "",
        "xy: vcpu-set: invalid option '-1'; see 'xy help vcpu-set'\n",
    );
}

#[test]
fn keys_triggers_and_names_are_sent() {
    asks(&["sysrq", "web", "s"], r#""do":"sysrq","target":"web","key":"s""#);
    run_alone(&["sysrq", "web", "sub"]).assert(
        2,
        "",
        "xy: sysrq: invalid sysrq \"sub\": it is one letter\n",
    );
    asks(
        &["trigger", "web", "nmi", "2"],
        r#""do":"trigger","target":"web","trigger":"nmi","vcpu":2"#,
    );
    asks(
        &["trigger", "web", "s3resume"],
        r#""do":"trigger","target":"web","trigger":"s3resume","vcpu":0"#,
    );
    run_alone(&["trigger", "web", "smi"]).assert(2, "", "xy: trigger: invalid trigger \"smi\"\n");
    asks(&["rename", "web", "www"], r#""do":"rename","target":"web","name":"www""#);
    let power =
        r#"{"version":1,"op":"tune","do":"trigger","target":"web","trigger":"power","vcpu":0}"#;
    check(
        &["button-press", "web", "power"],
        &[DONE],
        power,
        &expect![[r#"
            ! xy: WARNING: "button-press" is deprecated. Please use "trigger"
            = 0
        "#]],
    );
    check(
        &["trigger", "web", "power", "first"],
        &[DONE],
        power,
        &expect![[r#"
            ! xy: trigger: invalid vcpuid, using default vcpuid=0.
            = 0
        "#]],
    );
}
