//! Commands about Xen and the machine as a whole.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use expect_test::{Expect, expect};

use crate::commands::{check, render};
use crate::daemon::{Daemon, Said, Scratch, run_alone, xy};

const DONE: &str = r#"{"ok":"done"}"#;
const POOLS: &str = r#"{"ok":{"pools":[{"id":0,"name":"Pool-0","scheduler":"credit2","cpus":[0,1],"domains":2},{"id":1,"name":"lab","scheduler":"credit","cpus":[3],"domains":0}]}}"#;
const ASK_POOLS: &str = r#"{"version":1,"op":"host","do":"pools"}"#;

#[test]
fn pools_are_listed_as_by_xl() {
    let list = |arguments: &[&str], expected: &Expect| {
        check(arguments, &[POOLS], ASK_POOLS, expected);
    };
    list(
        &["cpupool-list"],
        &expect![[r#"
            Name               CPUs   Sched     Active   Domain count
            Pool-0               2   credit2       y          2
            lab                  1    credit       y          0
            = 0
        "#]],
    );
    list(
        &["cpupool-list", "-c", "Pool-0"],
        &expect![[r#"
            Name               CPU list
            Pool-0             0,1
            = 0
        "#]],
    );
    list(
        &["cpupool-list", "1"],
        &expect![[r#"
            ! xy: 1: there is no CPU pool of this name
            = 1
        "#]],
    );
}

#[test]
fn a_pool_is_made_from_a_file_and_settings() {
    let made = r#"{"ok":{"pools":[{"id":1,"name":"lab","scheduler":"credit2","cpus":[2,3]}]}}"#;
    let daemon = Daemon::new(&[&[made]]);
    std::fs::write(daemon.directory().join("lab.cfg"), "name='lab'\n").unwrap();
    let (said, requests) = daemon.run(&["-N", "cpupool-create", "lab.cfg", "cpus=2-3"]);
    assert_eq!(
        requests,
        [
            r#"{"version":1,"op":"host","do":"pool-create","file":"lab.cfg","text":"name='lab'\n","overrides":["cpus=2-3"],"dry_run":true}"#
        ]
    );
    expect![[r#"
        Using config file "lab.cfg"
        cpupool name:   lab
        scheduler:      credit2
        number of cpus: 2
        = 0
    "#]]
    .assert_eq(&render(&said));
}

#[test]
fn changes_of_pools_are_one_request_each() {
    for (arguments, request) in [
        (&["cpupool-destroy", "lab"][..], r#""do":"pool-destroy","pool":"lab""#),
        (&["cpupool-rename", "1", "b"], r#""do":"pool-rename","pool":"1","name":"b""#),
        (&["cpupool-cpu-add", "lab", "node:1"], r#""do":"pool-add","pool":"lab","cpus":"node:1""#),
        (&["cpupool-cpu-remove", "lab", "3"], r#""do":"pool-remove","pool":"lab","cpus":"3""#),
        (&["cpupool-migrate", "web", "lab"], r#""do":"pool-migrate","target":"web","pool":"lab""#),
        (&["cpupool-numa-split"], r#""do":"pool-split""#),
        (&["debug-keys", "qr"], r#""do":"debug-keys","keys":"qr""#),
    ] {
        let request = format!(r#"{{"version":1,"op":"host",{request}}}"#);
        check(arguments, &[DONE], &request, &expect!["= 0\n"]);
    }
    // As in xl, a CPU that stays where it is does not change the exit status.
    check(
        &["cpupool-cpu-add", "lab", "7"],
        &[r#"{"warning":"CPU 7 is not added to lab: the machine has no such CPU"}"#, DONE],
        r#"{"version":1,"op":"host","do":"pool-add","pool":"lab","cpus":"7"}"#,
        &expect![[r#"
            ! CPU 7 is not added to lab: the machine has no such CPU
            = 0
        "#]],
    );
}

#[test]
fn messages_of_xen_are_printed_as_they_are() {
    let text = r#"{"ok":{"text":"(XEN) one\n(XEN) two\n"}}"#;
    check(
        &["dmesg"],
        &[text],
        r#"{"version":1,"op":"host","do":"console"}"#,
        &expect![[r#"
            (XEN) one
            (XEN) two
            = 0
        "#]],
    );
    check(
        &["dmesg", "-c"],
        &[r#"{"ok":{"text":""}}"#],
        r#"{"version":1,"op":"host","do":"console","clear":true}"#,
        &expect!["= 0\n"],
    );
}

#[test]
fn claims_pools_and_nodes_are_columns_of_the_list() {
    let rows = r#"{"ok":{"domains":[{"name":"web","domid":3,"mem_kib":524288,"claimed_kib":262144,"vcpus_online":1,"blocked":true,"cpupool":1}]}}"#;
    let list = r#"{"version":1,"op":"list","targets":[]}"#;
    check(
        &["claims"],
        &[rows],
        list,
        &expect![[r#"
            Name                                        ID   Mem VCPUs	State	Time(s)  Claimed
            web                                          3   512     1     -b----       0.0   256
            = 0
        "#]],
    );
    let nodes = r#"{"ok":{"node-affinity":{"3":"0-1"}}}"#;
    let (said, requests) = Daemon::new(&[&[rows], &[POOLS], &[nodes]]).run(&["list", "-c", "-n"]);
    let ask_nodes = r#"{"version":1,"op":"host","do":"node-affinity","domids":[3]}"#;
    assert_eq!(requests, [list, ASK_POOLS, ask_nodes]);
    expect![[r#"
        Name                                        ID   Mem VCPUs	State	Time(s)         Cpupool NODE Affinity
        web                                          3   512     1     -b----       0.0             lab 0-1
        = 0
    "#]]
    .assert_eq(&render(&said));
}

#[test]
fn info_n_has_the_topology_before_what_is_known_of_xen() {
    let info = r#"{"ok":{"info":[["host","a"],["free_cpus","0"],["xen_major","4"]]}}"#;
    let topology = r#"{"ok":{"topology":{"cpus":[{"cpu":0},{"cpu":1,"core":1}],"nodes":[{"bytes":8589934592,"bytes_free":1048576,"distances":[10]}]}}}"#;
    let (said, requests) = Daemon::new(&[&[info], &[topology]]).run(&["info", "-n"]);
    assert!(requests[1].starts_with(r#"{"version":1,"op":"host","do":"topology","pci":["#));
    expect![[r#"
        host                   : a
        free_cpus              : 0
        cpu_topology           :
        cpu:    core    socket     node
          0:       0        0        0
          1:       1        0        0
        device topology        :
        device           node
        No device topology data available
        numa_info              :
        node:    memsize    memfree    distances
           0:      8192          1      10
        xen_major              : 4
        = 0
    "#]]
    .assert_eq(&render(&said));
}

#[test]
fn a_doctor_says_on_any_machine_what_is_wrong() {
    // Without Xen that is all; with it, there is no daemon.
    let said = run_alone(&["doctor"]);
    assert_eq!((said.status, said.stderr.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.stdout.lines().any(|line| line.starts_with("problem  ")), "{said:?}");
    let said = run_alone(&["doctor", "--json"]);
    assert_eq!((said.status, said.stderr.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.stdout.contains(r#""level": "problem""#), "{said:?}");
}

#[test]
fn a_bug_report_is_a_tar_file_that_only_its_owner_reads() {
    let scratch = Scratch::new();
    let write =
        || xy(&scratch.path, "/nonexistent/sock", &["bugreport", "r.tar"]).output().unwrap();
    let said = Said::new(&write());
    assert_eq!((said.status, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.stdout.starts_with("r.tar: "), "{said:?}");
    let path = scratch.path.join("r.tar");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar").args(arguments).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let names = tar(&["-tf"]);
    let list = names.lines().find(|name| name.ends_with("/xy-list-v.txt"));
    assert!(list.is_some(), "{names}");
    // That a daemon does not answer is told, too.
    let text = tar(&["--wildcards", "-xO", "*/xy-list-v.txt", "-f"]);
    assert!(text.contains("xy: ") && text.ends_with("[exit status: 1]\n"), "{text}");
    // What is there is never overwritten.
    let said = Said::new(&write());
    assert_eq!(said.status, Some(1));
    assert!(said.stderr.starts_with("xy: cannot write r.tar: "), "{said:?}");
}

#[test]
fn parameters_of_xen_are_one_operand() {
    check(
        &["set-parameters", "a=1 nob"],
        &[DONE],
        r#"{"version":1,"op":"host","do":"set-parameters","text":"a=1 nob"}"#,
        &expect!["= 0\n"],
    );
}

#[test]
fn the_mode_of_the_security_module_is_printed_as_by_xl() {
    let request = r#"{"version":1,"op":"host","do":"enforcing"}"#;
    let enforcing = r#"{"ok":{"enforcing":true}}"#;
    check(
        &["getenforce"],
        &[enforcing],
        request,
        &expect![[r#"
            Enforcing
            = 0
        "#]],
    );
    check(
        &["xl", "getenforce"],
        &[enforcing],
        request,
        &expect![[r#"
            Enforcing
            = 1
        "#]],
    );
    check(
        &["getenforce"],
        &[r#"{"ok":{"enforcing":false}}"#],
        request,
        &expect![[r#"
            Permissive
            = 0
        "#]],
    );
    let none = r#"{"ok":{"enforcing":null}}"#;
    check(
        &["getenforce"],
        &[none],
        request,
        &expect![[r#"
            Flask XSM Disabled
            ! xy: Xen runs without the security module Flask
            = 1
        "#]],
    );
    check(
        &["xl", "getenforce"],
        &[none],
        request,
        &expect![[r#"
            Flask XSM Disabled
            ! xl: Xen runs without the security module Flask
            = 255
        "#]],
    );
    check(
        &["setenforce", "PERMISSIVE"],
        &[DONE],
        r#"{"version":1,"op":"host","do":"set-enforcing","enforcing":false}"#,
        &expect!["= 0\n"],
    );
}

#[test]
fn a_wrong_mode_or_policy_has_the_status_of_xl() {
    let (said, _) = Daemon::new(&[]).run(&["xl", "setenforce", "maybe"]);
    let problem = "setenforce: \"maybe\" is none of 1, 0, Enforcing and Permissive";
    said.assert(2, "", &format!("xl: {problem}\n"));
    let (said, _) = Daemon::new(&[]).run(&["setenforce", "maybe"]);
    said.assert(2, "", &format!("xy: {problem}\n"));
    let problem = "/nonexistent: cannot be read: No such file or directory (os error 2)\n";
    let (said, _) = Daemon::new(&[]).run(&["xl", "loadpolicy", "/nonexistent"]);
    said.assert(255, "", &format!("xl: {problem}"));
    let (said, _) = Daemon::new(&[]).run(&["loadpolicy", "/nonexistent"]);
    said.assert(1, "", &format!("xy: {problem}"));
}

#[test]
fn shared_memory_is_listed_as_by_xl() {
    check(
        &["sharing", "web"],
        &[r#"{"ok":{"domains":[{"name":"web","domid":3,"mem_kib":65536,"shared_kib":4096}]}}"#],
        r#"{"version":1,"op":"list","targets":["web"]}"#,
        &expect![[r#"
            Name                                        ID   Mem Shared
            web                                          3    64      4
            = 0
        "#]],
    );
}

#[test]
fn devices_are_listed_as_by_xl() {
    let rows = r#"{"ok":{"pci":[{"device":"0000:00:10.0","name":"card","vdevfn":0},{"device":"0000:01:00.1","name":null,"vdevfn":33}]}}"#;
    check(
        &["pci-assignable-list"],
        &[rows],
        r#"{"version":1,"op":"host","do":"pci","what":"assignable"}"#,
        &expect![["
            0000:00:10.0\u{20}
            0000:01:00.1\u{20}
            = 0
        "]],
    );
    check(
        &["pci-assignable-list", "-n"],
        &[rows],
        r#"{"version":1,"op":"host","do":"pci","what":"assignable"}"#,
        &expect![["
            0000:00:10.0 card
            0000:01:00.1\u{20}
            = 0
        "]],
    );
    check(
        &["pci-list", "web"],
        &[rows],
        r#"{"version":1,"op":"host","do":"pci","what":"list","target":"web"}"#,
        &expect![[r#"
            Vdev Device
            00.0 0000:00:10.0
            04.1 0000:01:00.1
            = 0
        "#]],
    );
    check(
        &["pci-list", "web"],
        &[r#"{"ok":{"pci":[]}}"#],
        r#"{"version":1,"op":"host","do":"pci","what":"list","target":"web"}"#,
        &expect![[r#"
            = 0
        "#]],
    );
}

#[test]
fn a_device_is_made_assignable_and_given_back() {
    let add = r#"{"version":1,"op":"host","do":"pci","what":"assignable-add","device":"00:10.0","name":"card"}"#;
    let done = expect![[r#"
        = 0
    "#]];
    check(&["pci-assignable-add", "-n", "card", "00:10.0"], &[DONE], add, &done);
    let warned = [r#"{"warning":"0000:00:10.0: is assignable already"}"#, DONE];
    check(
        &["pci-assignable-add", "00:10.0"],
        &warned,
        r#"{"version":1,"op":"host","do":"pci","what":"assignable-add","device":"00:10.0"}"#,
        &expect![[r#"
            ! 0000:00:10.0: is assignable already
            = 0
        "#]],
    );
    let remove = r#"{"version":1,"op":"host","do":"pci","what":"assignable-remove","device":"card","rebind":true}"#;
    check(&["pci-assignable-remove", "-r", "card"], &[DONE], remove, &done);
}
