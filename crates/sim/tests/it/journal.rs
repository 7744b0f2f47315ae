//! The daemon's log: state changes, requests, clients and results.

use toolstack::{Asker, Reply, Request, ShutdownRequest};

use crate::support::{Lab, linux, unikernel};

/// The lines of the log so far, with each duration as `T`.
fn logged(lab: &mut Lab) -> Vec<String> {
    let records = std::mem::take(&mut lab.daemon.logged);
    let is_time = |word: &str| word.trim_end_matches([',', ':']).parse::<f64>().is_ok();
    records
        .into_iter()
        .map(|it| {
            let words = it
                .message
                .split(' ')
                .map(|word| if word.contains('.') && is_time(word) { "T" } else { word });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn the_log_has_state_changes_and_requests_with_their_clients() {
    let mut lab = Lab::seeded(61);
    lab.daemon.asker = Some(Asker { uid: 1000, pid: 77 });
    lab.create(&linux("one", "pv", "normal")).unwrap();
    assert_eq!(
        logged(&mut lab),
        [
            "one: gone -> starting",
            "one (domain 1): starting -> running after T s",
            "one: create by uid 1000 (pid 77), T s: done",
        ]
    );
    lab.settle();
    match lab.ask(Request::Undefine { target: "one".to_owned() }) {
        Reply::Failed(_) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(
        logged(&mut lab),
        ["one: undefine by uid 1000 (pid 77), T s: failed: one: no VM of that name is defined; \
             see `xy vm-list`"]
    );
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Poweroff));
    assert_eq!(
        logged(&mut lab),
        [
            "one (domain 1): running -> stopping after T s: poweroff",
            "one: stopping -> gone after T s",
            "one: poweroff by uid 1000 (pid 77), T s: done",
        ]
    );
    // What only reads leaves no line.
    lab.ask(Request::Vms);
    lab.ask(Request::List);
    assert!(logged(&mut lab).is_empty());
    lab.assert_nothing_left();
}

#[test]
fn a_crash_and_a_start_that_fails_are_in_the_log_once() {
    let mut lab = Lab::seeded(62);
    lab.create(&unikernel("one", "pv", "crashes")).unwrap();
    lab.settle();
    let lines = logged(&mut lab);
    assert_eq!(lines.iter().filter(|line| line.contains("crash")).count(), 1, "{lines:?}");
    let text = unikernel("two", "pv", "normal").replace("/kernel", "/missing");
    lab.create(&text).unwrap_err();
    let lines = logged(&mut lab);
    let failed = lines.iter().filter(|line| line.contains("two: create, T s: failed: ")).count();
    assert_eq!(failed, 1, "{lines:?}");
    lab.assert_nothing_left();
}
