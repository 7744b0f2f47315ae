//! Commands about caches and memory bandwidth that CPUs share.

use expect_test::expect;

use crate::commands::check;
use crate::daemon::run_alone;

const DONE: &str = r#"{"ok":"done"}"#;

#[test]
fn what_the_machine_can_share_out_is_listed_as_by_xl() {
    let hardware = r#"{"ok":{"psr-hardware":{"cmt":null,"sockets":[{"socket":0,"l3_cache_kib":null,"l3_cat":null,"l2_cat":null,"mba":{"limit":90,"cos_max":7,"linear":true}}]}}}"#;
    let ask = r#"{"version":1,"op":"host","do":"psr","what":"hardware"}"#;
    check(
        &["psr-hwinfo"],
        &[hardware],
        ask,
        &expect![[r#"
        Cache Monitoring Technology (CMT):
        Enabled         : 0
        Memory Bandwidth Allocation (MBA):
        Socket ID               : 0
        Linear Mode             : Enabled
        Maximum COS             : 7
        Maximum Throttling Value: 90
        Default Throttling Value: 0
        = 0
    "#]],
    );
    check(
        &["psr-hwinfo", "-b"],
        &[hardware],
        ask,
        &expect![[r#"
        Memory Bandwidth Allocation (MBA):
        Socket ID               : 0
        Linear Mode             : Enabled
        Maximum COS             : 7
        Maximum Throttling Value: 90
        Default Throttling Value: 0
        = 0
    "#]],
    );
    check(
        &["psr-hwinfo", "--cat"],
        &[hardware],
        ask,
        &expect![[r#"
        ! xy: this host's CPUs cannot do that, or Xen does not use it: its command line has psr=
        = 1
    "#]],
    );
}

#[test]
fn shares_are_shown_and_set() {
    let shares = r#"{"ok":{"psr-shares":[{"socket":0,"l3_cache_kib":20480,"limit":11,"cos_max":15,"cdp":false,"linear":false,"domains":[{"domid":0,"name":"Domain-0","shares":[2047]}]}]}}"#;
    check(
        &["psr-cat-show", "0"],
        &[shares],
        r#"{"version":1,"op":"host","do":"psr","what":"cat-show","level":3,"targets":["0"]}"#,
        &expect![[r#"
            Socket ID       : 0
            L3 Cache        : 20480KB
            Default CBM     : 0x7ff
               ID                     NAME             CBM
                0                 Domain-0           0x7ff
            = 0
        "#]],
    );
    check(
        &["psr-cat-set", "-s", "0,2-3", "-d", "web", "0xf"],
        &[DONE],
        r#"{"version":1,"op":"host","do":"psr","what":"cat-set","target":"web","level":3,"part":"data","sockets":[0,2,3],"cbm":15}"#,
        &expect![[r#"
            = 0
        "#]],
    );
    check(
        &["psr-mba-set", "web", "10"],
        &[DONE],
        r#"{"version":1,"op":"host","do":"psr","what":"mba-set","target":"web","thrtl":10}"#,
        &expect![[r#"
            = 0
        "#]],
    );
    check(
        &["psr-cmt-attach", "web"],
        &[DONE],
        r#"{"version":1,"op":"host","do":"psr","what":"cmt-attach","target":"web"}"#,
        &expect![[r#"
            = 0
        "#]],
    );
}

#[test]
fn a_wrong_word_is_named() {
    for (words, why) in [
        (&["psr-cmt-show", "cache"][..], "cache: no such monitor type"),
        (&["psr-cat-set", "-c", "-d", "web", "1"], "-c and -d exclude each other"),
        (&["psr-cat-set", "-l", "x", "web", "1"], "x: no level of a cache"),
        (&["psr-cat-set", "-s", "a", "web", "1"], "a: expected numbers of sockets"),
        (&["psr-mba-set", "web", "ten"], "ten: no number"),
    ] {
        let said = run_alone(words);
        assert!(said.status != Some(0) && said.stderr.contains(why), "{said:?}");
    }
}
