//! VMs that outlive their domains, how their states change, and policies.

use sim::Daemon;
use toolstack::plan::Start;
use toolstack::{Reply, Request, ShutdownRequest, StateChange, VmRow, VmState, xlcfg};
use xen::{ShutdownReason, Uuid};

use crate::faults::killed_at;
use crate::support::{Lab, linux, unikernel};

fn define_request(text: &str, autostart: Option<u32>) -> Request {
    let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap_or_else(|error| panic!("{error}")));
    let mut bytes = [0x77; 16];
    let name = config.name.as_bytes();
    bytes[..name.len()].copy_from_slice(name);
    Request::Define { config, fresh_uuid: Uuid(bytes), autostart }
}

fn define(lab: &mut Lab, text: &str, autostart: Option<u32>) {
    match lab.ask(define_request(text, autostart)) {
        Reply::Defined { .. } => {}
        other => panic!("{other:?}"),
    }
}

fn start(name: &str) -> Request {
    Request::Start { target: name.to_owned(), start: Start::Running }
}

fn vms(lab: &mut Lab) -> Vec<VmRow> {
    match lab.ask(Request::Vms) {
        Reply::Vms(rows) => rows,
        other => panic!("{other:?}"),
    }
}

fn state(lab: &mut Lab, name: &str) -> VmState {
    let row = vms(lab).into_iter().find(|row| row.name == name);
    row.map_or(VmState::Gone, |row| row.state)
}

/// All changes since the daemon began.
fn changes(lab: &mut Lab) -> Vec<StateChange> {
    let mut all = Vec::new();
    // The daemon's first revision is where a snapshot of it would have been.
    let Reply::Changes(now) = lab.ask(Request::Events { since: None, waits: false }) else {
        panic!("no events");
    };
    let mut since = now.revision;
    while since > 0 {
        let Reply::Changes(it) = lab.ask(Request::Events { since: Some(since - 1), waits: false })
        else {
            panic!("no events");
        };
        if it.too_old {
            break;
        }
        all.insert(0, it.changes[0].clone());
        since -= 1;
    }
    all
}

fn told(changes: &[StateChange], name: &str) -> Vec<String> {
    let of = changes.iter().filter(|change| change.name == name);
    of.map(|it| format!("{} -> {}: {}", it.before, it.after, it.reason)).collect()
}

#[test]
fn a_defined_vm_stays_when_its_domain_goes_and_its_changes_are_told() {
    let mut lab = Lab::seeded(21);
    define(&mut lab, &linux("one", "pv", "normal"), None);
    assert_eq!(state(&mut lab, "one"), VmState::Down);
    let refusal = lab.create(&unikernel("one", "pv", "normal")).unwrap_err();
    assert!(refusal.contains("`xy start one`"), "{refusal}");

    let waiter = Request::Wait { target: "one".to_owned(), state: VmState::Running };
    let waiter = lab.daemon.request(waiter).unwrap();
    assert!(matches!(lab.ask(start("one")), Reply::Created(_)));
    assert!(matches!(lab.wait(waiter), Reply::Ok));
    match lab.ask(start("one")) {
        Reply::Failed(message) => assert!(message.starts_with("one: running already"), "{message}"),
        other => panic!("{other:?}"),
    }
    lab.settle();
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Poweroff));
    lab.assert_nothing_left();
    let seen = changes(&mut lab);
    assert_eq!(
        told(&seen, "one"),
        [
            "gone -> down: defined",
            "down -> starting: ",
            "starting -> running: ",
            "running -> starting: reboot",
            "starting -> running: ",
            "running -> stopping: poweroff",
            "stopping -> down: ",
        ]
    );
    let revisions: Vec<u64> = seen.iter().map(|change| change.revision).collect();
    assert!(revisions.windows(2).all(|pair| pair[0] < pair[1]), "{revisions:?}");

    // Another daemon knows it, has later revisions, and knows no way from those of the first.
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(state(&mut lab, "one"), VmState::Down);
    let since = revisions.last().copied();
    match lab.ask(Request::Events { since, waits: true }) {
        Reply::Changes(it) => {
            assert!(it.too_old && it.revision > since.unwrap(), "{it:?}");
            assert_eq!(it.snapshot.unwrap().len(), 1);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(lab.ask(Request::Undefine { target: "one".to_owned() }), Reply::Ok));
    assert_eq!(vms(&mut lab), []);
}

#[test]
fn a_reader_that_waits_is_answered_by_the_next_change() {
    let mut lab = Lab::seeded(22);
    let Reply::Changes(now) = lab.ask(Request::Events { since: None, waits: true }) else {
        panic!("no events");
    };
    let since = Some(now.revision);
    let reader = lab.daemon.request(Request::Events { since, waits: true }).unwrap();
    lab.settle();
    assert!(lab.daemon.take_reply(reader).is_none(), "nothing has happened");
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    let Reply::Changes(changes) = lab.wait(reader) else { panic!("no events") };
    assert_eq!(told(&changes.changes, "one"), ["gone -> starting: "]);
    lab.ask(Request::Pause { target: "one".to_owned() });
    assert_eq!(state(&mut lab, "one"), VmState::Paused);
    lab.ask(Request::Unpause { target: "one".to_owned() });
    assert_eq!(state(&mut lab, "one"), VmState::Running);
    lab.destroy("one");
    let gone = Request::Wait { target: "one".to_owned(), state: VmState::Gone };
    assert!(matches!(lab.ask(gone), Reply::Ok));
    lab.assert_nothing_left();
}

#[test]
fn a_bulk_start_runs_in_waves_and_a_failure_delays_no_others() {
    let mut lab = Lab::seeded(23);
    for (name, order) in [("c", 2), ("a", 1), ("b", 1), ("bad", 1)] {
        let text = unikernel(name, "pvh", "normal");
        let text = if name == "bad" { text.replace("/kernel", "/missing") } else { text };
        define(&mut lab, &text, Some(order));
    }
    define(&mut lab, &unikernel("d", "pv", "normal"), None);
    lab.ask(start("b"));
    match lab.ask(Request::StartAll) {
        Reply::StartedAll(all) => {
            assert_eq!((all.started, all.running, all.failed.len()), (3, 1, 1), "{all:?}");
            assert!(all.failed[0].0 == "bad" && all.failed[0].1.contains("/missing"), "{all:?}");
        }
        other => panic!("{other:?}"),
    }
    let seen = changes(&mut lab);
    let at = |name: &str, after: VmState| {
        let found = seen.iter().find(|it| it.name == name && it.after == after);
        found.unwrap_or_else(|| panic!("{name} never was {after}")).revision
    };
    assert!(at("a", VmState::Running) < at("c", VmState::Starting));
    assert!(at("bad", VmState::Stopping) < at("c", VmState::Starting));
    assert!(at("c", VmState::Running) < at("d", VmState::Starting));
    for name in ["a", "b", "c", "d"] {
        lab.destroy(name);
    }
    lab.assert_nothing_left();
}

#[test]
fn vms_start_with_the_host_once_and_not_with_each_daemon() {
    let mut lab = Lab::seeded(24);
    define(&mut lab, &unikernel("with", "pv", "normal"), Some(0));
    define(&mut lab, &unikernel("without", "pv", "normal"), None);
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(state(&mut lab, "with"), VmState::Down, "the host came up before");
    lab.host.os().forget_boot();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(state(&mut lab, "with"), VmState::Running);
    assert_eq!(state(&mut lab, "without"), VmState::Down);
    lab.destroy("with");
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(state(&mut lab, "with"), VmState::Down);
    lab.assert_nothing_left();
}

#[test]
fn a_daemon_killed_anywhere_in_a_start_leaves_the_vm_as_described_or_down() {
    let (mut whole, mut down) = (0, 0);
    for k in 1.. {
        let mut lab = Lab::seeded(25);
        define(&mut lab, &linux("one", "pvh", "normal"), None);
        let killed = killed_at(&mut lab, k, start("one"));
        match state(&mut lab, "one") {
            VmState::Running => {
                whole += 1;
                lab.destroy("one");
            }
            VmState::Down => down += 1,
            other => panic!("after {k} actions: {other}"),
        }
        lab.assert_nothing_left();
        assert_eq!(state(&mut lab, "one"), VmState::Down);
        if !killed {
            break;
        }
    }
    assert!(whole > 1 && down > 15, "{whole} whole, {down} down");
}

#[test]
fn a_vm_that_crashes_again_and_again_is_left_down() {
    let mut lab = Lab::seeded(26);
    let text = unikernel("one", "pv", "crashes") + "on_crash = 'restart'\n";
    define(&mut lab, &text, None);
    lab.ask(start("one"));
    lab.assert_nothing_left();
    assert_eq!(state(&mut lab, "one"), VmState::Down);
    let seen = told(&changes(&mut lab), "one");
    let starts = seen.iter().filter(|it| it.contains("-> starting")).count();
    assert_eq!(starts, 5, "{seen:?}");
    let end = &seen[seen.len() - 2];
    assert!(end.ends_with("crashed 5 times within 300 s, is left down"), "{seen:?}");
}

#[test]
fn a_domain_is_preserved_if_its_policy_says_so() {
    let mut lab = Lab::seeded(27);
    let text = unikernel("one", "pv", "crashes") + "on_crash = 'preserve'\n";
    let domid = lab.create(&text).unwrap();
    lab.settle();
    assert_eq!(state(&mut lab, "one"), VmState::Preserved);
    assert!(lab.host.snapshot().unwrap().domains.contains(&domid));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn an_unsupported_policy_is_refused_by_name() {
    let mut lab = Lab::seeded(28);
    for (policy, expected) in [
        ("on_crash = 'rename-restart'", "on_crash: rename-restart is not supported"),
        ("on_reboot = 'rename-restart'", "on_reboot: rename-restart is not supported"),
    ] {
        let text = format!("{}{policy}\n", unikernel("one", "pv", "normal"));
        let message = lab.create(&text).unwrap_err();
        assert!(message.contains(expected), "{message}");
        match lab.ask(define_request(&text, None)) {
            Reply::Failed(message) => assert!(message.contains(expected), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    lab.assert_nothing_left();
}

#[test]
fn a_vm_that_reboots_at_once_is_restarted_with_increasing_delays() {
    let mut lab = Lab::seeded(29);
    define(&mut lab, &unikernel("one", "pv", "reboots"), None);
    lab.ask(start("one"));
    let until = sim::Time(lab.host.now().0 + 20_000_000_000);
    lab.daemon.run_until_quiet(until).unwrap();
    let seen = changes(&mut lab);
    let domains = seen.iter().filter(|it| it.after == VmState::Running).count();
    assert!((5..=7).contains(&domains), "{domains} domains in 20 s");
    let told = told(&seen, "one");
    let expected = "running -> starting: stopped (reboot) within 10 s for the 3rd time in a row, \
                    starts again in 2 s";
    assert!(told.iter().any(|it| it == expected), "{told:?}");
    // A wait for the next start keeps nobody from ending it.
    lab.destroy("one");
    lab.assert_nothing_left();
    assert_eq!(state(&mut lab, "one"), VmState::Down);
}

#[test]
fn a_requested_reboot_is_never_delayed() {
    let mut lab = Lab::seeded(30);
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.settle();
    for _ in 0..5 {
        let before = lab.host.now().0;
        lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
        let running = Request::Wait { target: "one".to_owned(), state: VmState::Running };
        assert!(matches!(lab.ask(running), Reply::Ok));
        let took = lab.host.now().0 - before;
        assert!(took < 500_000_000, "{took} ns");
        lab.settle();
    }
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_guest_that_suspends_itself_is_suspended_until_it_is_destroyed() {
    let mut lab = Lab::seeded(1);
    let domid = lab.create(&unikernel("one", "pv", "normal")).unwrap();
    let suspended = Request::Wait { target: "one".to_owned(), state: VmState::Suspended };
    let waiter = lab.daemon.request(suspended).unwrap();
    lab.host.machine().get_mut().guest_shutdown(domid, ShutdownReason::Suspend);
    lab.settle();
    assert_eq!(state(&mut lab, "one"), VmState::Suspended);
    assert!(matches!(lab.daemon.take_reply(waiter), Some(Reply::Ok)));
    // The next daemon sees the same.
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(state(&mut lab, "one"), VmState::Suspended);
    lab.destroy("one");
    assert_eq!(state(&mut lab, "one"), VmState::Gone);
    lab.assert_nothing_left();
}

#[test]
fn whoever_waits_for_a_vm_means_the_one_that_had_the_name_then() {
    let mut lab = Lab::seeded(31);
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    let wait = |state| Request::Wait { target: "one".to_owned(), state };
    let paused = lab.daemon.request(wait(VmState::Paused)).unwrap();
    let gone = lab.daemon.request(wait(VmState::Gone)).unwrap();
    lab.destroy("one");
    // Another VM gets the name and is paused.
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.ask(Request::Pause { target: "one".to_owned() });
    lab.settle();
    assert!(matches!(lab.daemon.take_reply(gone), Some(Reply::Ok)));
    match lab.daemon.take_reply(paused) {
        Some(Reply::Failed(message)) => {
            assert_eq!(message, "one: was destroyed before it was paused");
        }
        other => panic!("{other:?}"),
    }
    // A VM that does not exist yet is the first to have the name.
    let wait = Request::Wait { target: "two".to_owned(), state: VmState::Running };
    let running = lab.daemon.request(wait).unwrap();
    lab.create(&unikernel("two", "pv", "normal")).unwrap();
    assert!(matches!(lab.wait(running), Reply::Ok));
    lab.destroy("one");
    lab.destroy("two");
    lab.assert_nothing_left();
}
