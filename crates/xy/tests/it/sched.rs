//! Schedulers and shares of the CPUs, with xl's options and columns.

use expect_test::expect;

use crate::commands::check;
use crate::daemon::run_alone;

const DONE: &str = r#"{"ok":"done"}"#;

#[test]
fn pools_are_listed_in_the_columns_of_xl() {
    let answer = r#"{"ok":{"sched":[{"name":"Pool-0","timeslice_ms":30,"ratelimit_us":1000,"migration_delay_us":0,"rows":[{"name":"Domain-0","weight":256,"cap":0},{"name":"web","domid":3,"weight":512,"cap":50}]},{"name":"fast","rows":[]}]}}"#;
    check(
        &["sched-credit"],
        &[answer],
        r#"{"version":1,"op":"sched","do":"pools","scheduler":"credit","pool":null}"#,
        &expect![[r#"
            Cpupool Pool-0: tslice=30ms ratelimit=1000us migration-delay=0us
            Name                                ID Weight  Cap
            Domain-0                             0    256    0
            web                                  3    512   50
            Cpupool fast: [sched params unavailable]
            Name                                ID Weight  Cap
            = 0
        "#]],
    );
    let answer = r#"{"ok":{"sched":[{"name":"Pool-0","ratelimit_us":1000,"rows":[{"name":"web","domid":3,"weight":512,"cap":0}]}]}}"#;
    check(
        &["sched-credit2", "-d", "web"],
        &[answer],
        r#"{"version":1,"op":"sched","do":"domain","scheduler":"credit2","target":"web","vcpus":null}"#,
        &expect![[r#"
            Name                                ID Weight  Cap
            web                                  3    512    0
            = 0
        "#]],
    );
    check(
        &["sched-credit2", "-s", "-p", "Pool-0"],
        &[answer],
        r#"{"version":1,"op":"sched","do":"parameters","scheduler":"credit2","pool":"Pool-0"}"#,
        &expect![[r#"
            Cpupool Pool-0: ratelimit=1000us
            = 0
        "#]],
    );
}

#[test]
fn budgets_are_listed_by_domain_or_vcpu() {
    let answer = r#"{"ok":{"sched":[{"name":"Pool-0","rows":[{"name":"web","domid":3,"period_us":10000,"budget_us":4000,"extra":true}]}]}}"#;
    check(
        &["sched-rtds"],
        &[answer],
        r#"{"version":1,"op":"sched","do":"pools","scheduler":"rtds","pool":null}"#,
        &expect![[r#"
            Cpupool Pool-0: sched=RTDS
            Name                                ID    Period    Budget  Extratime
            web                                  3     10000      4000        yes
            = 0
        "#]],
    );
    let answer = r#"{"ok":{"sched":[{"name":"Pool-0","rows":[{"name":"web","domid":3,"vcpu":1,"period_us":10000,"budget_us":4000}]}]}}"#;
    check(
        &["sched-rtds", "-d", "web", "-v", "1"],
        &[answer],
        r#"{"version":1,"op":"sched","do":"domain","scheduler":"rtds","target":"web","vcpus":[1]}"#,
        &expect![[r#"
            Name                                ID VCPU    Period    Budget  Extratime
            web                                  3    1     10000      4000         no
            = 0
        "#]],
    );
}

#[test]
fn shares_and_parameters_are_set() {
    let quiet = expect!["= 0\n"];
    check(
        &["sched-credit", "-d", "web", "-w", "512", "-c", "50"],
        &[DONE],
        r#"{"version":1,"op":"tune","do":"share","target":"web","scheduler":"credit","weight":512,"cap":50}"#,
        &quiet,
    );
    check(
        &["sched-credit", "-s", "-t", "5", "-r", "0", "-m", "9"],
        &[DONE],
        r#"{"version":1,"op":"sched","do":"change","scheduler":"credit","pool":null,"timeslice_ms":5,"ratelimit_us":0,"migration_delay_us":9}"#,
        &quiet,
    );
    check(
        &[
            "sched-rtds",
            "-d",
            "web",
            "-v",
            "0",
            "-p",
            "100",
            "-b",
            "50",
            "-e",
            "1",
            "-v",
            "2",
            "-p",
            "200",
            "-b",
            "60",
            "-e",
            "0",
        ],
        &[DONE],
        r#"{"version":1,"op":"tune","do":"budgets","target":"web","budgets":[{"vcpu":0,"period_us":100,"budget_us":50,"extra":true},{"vcpu":2,"period_us":200,"budget_us":60,"extra":false}]}"#,
        &quiet,
    );
    check(
        &["sched-rtds", "-d", "web", "-v", "all", "-p", "100", "-b", "50", "-e", "1"],
        &[DONE],
        r#"{"version":1,"op":"tune","do":"budgets","target":"web","budgets":[{"vcpu":null,"period_us":100,"budget_us":50,"extra":true}]}"#,
        &quiet,
    );
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let wrong = |arguments: &[&str], why: &str| {
        let verb = arguments[0];
        let text = format!("xy: {verb}: {why}; see 'xy help {verb}'\n");
        run_alone(arguments).assert(2, "", &text);
    };
    let exclude = "a cpupool or schedparam and domain options exclude each other";
    wrong(&["sched-credit", "-p", "0", "-d", "web"], exclude);
    wrong(&["sched-credit2", "-s", "-w", "1"], exclude);
    wrong(&["sched-credit", "-w", "1"], "weight and cap are a domain's; give one with -d");
    wrong(&["sched-credit2", "-r", "1"], "parameters of the scheduler are set with -s");
    let exclude = "a cpupool and other options exclude each other";
    wrong(&["sched-rtds", "-c", "0", "-v", "all"], exclude);
    wrong(&["sched-rtds", "-p", "9"], "these are a domain's; give one with -d");
    let unsaid = "it is set for a VCPU, or for all; give one with -v";
    wrong(&["sched-rtds", "-d", "web", "-p", "9", "-b", "9", "-e", "0"], unsaid);
    let both = "a VCPU and all exclude each other";
    wrong(&["sched-rtds", "-d", "web", "-v", "1", "-v", "all"], both);
    let few = "each VCPU needs a period, a budget and an extratime";
    wrong(&["sched-rtds", "-d", "web", "-v", "1", "-p", "9"], few);
    wrong(&["sched-rtds", "-d", "web", "-v", "1", "-v", "2", "-p", "9", "-b", "9", "-e", "0"], few);
    wrong(&["sched-rtds", "-d", "web", "-v", "1", "-e", "2"], "extratime is 0 or 1");
    let refused = run_alone(&["sched-credit", "-d", "web", "-w", "0"]);
    refused.assert(2, "", "xy: sched-credit: --weight: \"0\" is out of range\n");
}
