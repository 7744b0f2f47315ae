//! Suspend and resume of guests, by both triggers.

use sim::{Daemon, Time};
use toolstack::{Reply, Request, VmState};
use xen::{DomId, ShutdownReason};
use xenstore::client::Nodes as _;

use crate::support::{Lab, linux, unikernel};

const SECOND_NS: u64 = 1_000_000_000;

fn suspend(target: &str) -> Request {
    Request::Suspend { target: target.to_owned() }
}

fn resume(target: &str) -> Request {
    Request::Resume { target: target.to_owned() }
}

/// One that is asked in this way.
fn asked_by(kind: &str, way: &str) -> String {
    unikernel("one", kind, &format!("normal sim.suspend={way}"))
}

#[track_caller]
fn done(lab: &mut Lab, request: Request) {
    let reply = lab.ask(request);
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

#[track_caller]
fn refused(lab: &mut Lab, request: Request) -> String {
    match lab.ask(request) {
        Reply::Failed(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn is_suspended(lab: &Lab, domid: DomId) -> bool {
    let reason = lab.host.machine().get().domain(domid).and_then(|domain| domain.shutdown);
    reason.map(xen::ShutdownReason::from_code) == Some(ShutdownReason::Suspend)
}

/// Lets this much time pass.
fn pass(lab: &mut Lab, seconds: u64) {
    let until = Time(lab.host.now().0 + seconds * SECOND_NS);
    while lab.daemon.step(until).unwrap() {}
    lab.host.sleep_until(until);
}

#[test]
fn a_guest_is_suspended_and_resumed_where_it_was() {
    for kind in ["pv", "pvh"] {
        for way in ["store", "event-channel", "lies"] {
            let mut lab = Lab::seeded(3);
            let domid = lab.create(&asked_by(kind, way)).unwrap();
            lab.settle();
            let mut ports = Vec::new();
            for round in 1..=20 {
                done(&mut lab, suspend("one"));
                assert!(is_suspended(&lab, domid), "{kind} {way}");
                assert_eq!(lab.state("one"), VmState::Suspended);
                // Once more changes nothing.
                done(&mut lab, suspend("one"));
                done(&mut lab, resume("one"));
                lab.settle();
                assert_eq!(lab.state("one"), VmState::Running);
                let told = lab.host.console(domid);
                let returned = told.matches("returned 1, the suspend was cancelled").count();
                assert_eq!(returned, round, "{kind} {way}: {told}");
                let machine = lab.host.machine().get();
                ports.push([domid, DomId::DOM0].map(|domid| machine.channels(domid).len()));
            }
            // No suspend leaves a port behind.
            assert!(ports.iter().all(|it| *it == ports[0]), "{ports:?}");
            assert_eq!(refused(&mut lab, resume("one")), "one: is not suspended");
            let off = Lab::shutdown_request("one", toolstack::ShutdownRequest::Poweroff);
            assert!(matches!(lab.ask(off), Reply::Gone { .. }));
            lab.assert_nothing_left();
        }
    }
}

#[test]
fn a_suspend_costs_no_more_when_others_exist() {
    let mut costs = Vec::new();
    for others in [0, 40] {
        let mut lab = Lab::seeded(4);
        for other in 0..others {
            lab.create(&unikernel(&format!("other{other}"), "pvh", "normal")).unwrap();
        }
        lab.create(&asked_by("pvh", "event-channel")).unwrap();
        for _ in 0..2 {
            lab.settle();
            lab.daemon.totals = toolstack::work::Cost::default();
            done(&mut lab, suspend("one"));
            let cost = std::mem::take(&mut lab.daemon.totals);
            done(&mut lab, resume("one"));
            costs.push((cost.hypercalls, cost.store_round_trips, cost.transactions));
        }
    }
    // The first one of a domain makes the port and keeps it in the record.
    assert_eq!((costs[0].1, costs[0].2), (2, 0));
    assert_eq!((costs[1].1, costs[1].2), (1, 0), "{costs:?}");
    assert_eq!(costs[..2], costs[2..]);
}

#[test]
fn a_guest_without_pv_drivers_is_stopped_by_xen() {
    let mut lab = Lab::seeded(5);
    let text = unikernel("one", "pvh", "silent");
    let domid = lab.create(&text).unwrap();
    lab.settle();
    done(&mut lab, suspend("one"));
    assert!(is_suspended(&lab, domid));
    done(&mut lab, resume("one"));
    assert!(!is_suspended(&lab, domid));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn what_a_guest_does_not_do_is_told_apart_and_it_runs_on() {
    for (behaviour, expected) in [
        ("deaf", "one: its guest did not acknowledge the suspend within 60 s"),
        (
            "cannot-freeze",
            "one: its guest acknowledged the suspend and did not suspend within 30 s",
        ),
        (
            "suspends-late",
            "one: its guest acknowledged the suspend and did not suspend within 30 s",
        ),
    ] {
        let mut lab = Lab::seeded(6);
        let domid = lab.create(&linux("one", "pvh", behaviour)).unwrap();
        pass(&mut lab, 5);
        let message = refused(&mut lab, suspend("one"));
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(lab.state("one"), VmState::Running);
        let request = lab.host.connect().read(&format!("/local/domain/{domid}/control/shutdown"));
        assert_eq!(request.unwrap(), b"", "nothing is asked any more");
        // One that suspends after all is resumed: nobody waits for it.
        pass(&mut lab, 300);
        assert!(!is_suspended(&lab, domid), "{behaviour}");
        let returned = lab.host.console(domid).matches("returned 1").count();
        assert_eq!(returned, usize::from(behaviour == "suspends-late"));
        assert_eq!(lab.state("one"), VmState::Running);
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn what_cannot_be_suspended_is_refused() {
    let mut lab = Lab::seeded(7);
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.ask(Request::Pause { target: "one".to_owned() });
    let message = refused(&mut lab, suspend("one"));
    assert!(message.starts_with("one: is paused, so its guest cannot suspend"), "{message}");
    assert!(refused(&mut lab, suspend("two")).starts_with("two: no such domain"));
    assert!(refused(&mut lab, resume("two")).starts_with("two: no such domain"));
    // One that stops instead follows its policy.
    lab.create(&unikernel("three", "pv", "normal")).unwrap();
    lab.create(&unikernel("four", "pv", "deaf")).unwrap();
    lab.settle();
    let first = lab.daemon.request(suspend("three")).unwrap();
    let second = lab.daemon.request(suspend("three")).unwrap();
    let message = match lab.wait(second) {
        Reply::Failed(message) => message,
        other => panic!("{other:?}"),
    };
    assert!(message.starts_with("three: an operation on it is under way"), "{message}");
    assert!(matches!(lab.wait(first), Reply::Done { .. }));
    for name in ["one", "three", "four"] {
        lab.destroy(name);
    }
    lab.assert_nothing_left();
}

#[test]
fn a_destroy_does_not_wait_for_a_guest_that_never_suspends() {
    let mut lab = Lab::seeded(8);
    lab.create(&unikernel("one", "pvh", "deaf")).unwrap();
    lab.settle();
    let suspending = lab.daemon.request(suspend("one")).unwrap();
    let before = lab.host.now();
    let reply = lab.destroy("one");
    assert!(matches!(reply, Reply::Gone { .. }), "{reply:?}");
    assert!(lab.host.now().0 - before.0 < SECOND_NS, "it waited for the guest");
    let Reply::Failed(message) = lab.wait(suspending) else { panic!("it was not suspended") };
    assert_eq!(message, "destroyed while it was being suspended");
    lab.assert_nothing_left();
}

#[test]
fn whoever_suspends_itself_stays_so_and_can_be_resumed() {
    let mut lab = Lab::seeded(9);
    let domid = lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.settle();
    for _ in 0..3 {
        lab.host.machine().get_mut().guest_shutdown(domid, ShutdownReason::Suspend);
        lab.settle();
        assert_eq!(lab.state("one"), VmState::Suspended);
        done(&mut lab, resume("one"));
        lab.settle();
        assert_eq!(lab.state("one"), VmState::Running);
    }
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_of_a_suspend_leaves_a_vm_that_can_go_on() {
    for (kind, way) in [("pv", "store"), ("pvh", "event-channel")] {
        let mut kills = 0;
        for action in 1.. {
            let mut lab = Lab::seeded(action);
            let domid = lab.create(&asked_by(kind, way)).unwrap();
            lab.settle();
            lab.host.machine().get_mut().faults_mut().kill_toolstack(action);
            let whole = lab.daemon.request(suspend("one")).is_ok_and(|client| {
                let until = lab.until();
                matches!(lab.daemon.wait(client, until), Ok(Some(Reply::Done { .. })))
            });
            let is_dead = lab.host.machine().get().faults().is_toolstack_dead();
            lab.host.machine().get_mut().faults_mut().revive_toolstack();
            if !is_dead {
                assert!(whole, "{kind} {way} {action}");
                break;
            }
            kills += 1;
            lab.daemon = Daemon::start(&lab.host).unwrap();
            lab.settle();
            // It runs, or is suspended and known to be, and nobody waits for an event of it.
            let known = lab.state("one");
            let expected =
                if is_suspended(&lab, domid) { VmState::Suspended } else { VmState::Running };
            assert_eq!(known, expected, "{kind} {way} {action}");
            if known == VmState::Suspended {
                done(&mut lab, resume("one"));
            }
            lab.settle();
            for _ in 0..2 {
                done(&mut lab, suspend("one"));
                done(&mut lab, resume("one"));
                lab.settle();
            }
            let off = Lab::shutdown_request("one", toolstack::ShutdownRequest::Poweroff);
            assert!(matches!(lab.ask(off), Reply::Gone { .. }), "{kind} {way} {action}");
            lab.assert_nothing_left();
        }
        assert!(kills > 10, "{kind} {way}: only {kills} actions");
    }
}
