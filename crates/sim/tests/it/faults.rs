//! Faults of lower layers must lead to a clear error and leave nothing behind.

use sim::{Calls, Daemon, VirqFate};
use toolstack::plan::Start;
use toolstack::{Reply, Request, ShutdownRequest};
use xen::Errno;

use crate::support::{Lab, linux, unikernel, with_faults};

#[test]
fn any_hypercall_of_a_create_may_fail_and_nothing_is_left() {
    for kind in ["pv", "pvh"] {
        let mut failed = 0;
        for k in 1.. {
            let mut lab = Lab::seeded(1);
            lab.host.machine().get_mut().faults_mut().fail(Calls::All, k, Errno::ENOMEM);
            let result = lab.create(&linux("one", kind, "normal"));
            if lab.host.machine().get().faults().pending() > 0 {
                assert!(result.is_ok(), "no fault struck, and yet: {result:?}");
                break;
            }
            match result {
                Ok(_) => drop(lab.destroy("one")),
                Err(message) => {
                    failed += 1;
                    assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
                }
            }
            lab.assert_nothing_left();
        }
        assert!(failed > 12, "only {failed} faults made a create fail");
    }
}

#[test]
fn a_virq_that_comes_late_delays_and_loses_nothing() {
    let mut lab = Lab::new(with_faults(|faults| faults.virq_fate = VirqFate::Late(5_000_000)));
    for name in ["a", "b", "c"] {
        lab.create(&unikernel(name, "pv", "powers-off")).unwrap();
    }
    lab.assert_nothing_left();
}

#[test]
fn a_lost_virq_is_made_up_for_by_the_next_one() {
    let mut lab = Lab::seeded(2);
    lab.host.machine().get_mut().faults_mut().virqs(&[VirqFate::Lost]);
    lab.create(&unikernel("a", "pv", "powers-off")).unwrap();
    lab.settle();
    assert_eq!(lab.host.snapshot().unwrap().domains.len(), 2, "nobody has noticed yet");
    lab.create(&unikernel("b", "pv", "normal")).unwrap();
    let gone = lab.ask(Lab::shutdown_request("b", ShutdownRequest::Poweroff));
    assert!(matches!(gone, Reply::Gone { .. }));
    lab.assert_nothing_left();
}

/// The daemon is killed at its `k`-th action since `request` and another takes its place. Says whether
/// there was such an action.
pub(crate) fn killed_at(lab: &mut Lab, k: u64, request: Request) -> bool {
    lab.host.machine().get_mut().faults_mut().kill_toolstack(k);
    let until = lab.until();
    let mut error = lab.daemon.request(request).err();
    while error.is_none() && !lab.host.machine().get().faults().is_toolstack_dead() {
        match lab.daemon.step(until) {
            Ok(true) => {}
            Ok(false) => break,
            Err(it) => error = Some(it),
        }
    }
    let killed = lab.host.machine().get().faults().is_toolstack_dead();
    assert!(killed || error.is_none(), "{error:?}");
    lab.host.machine().get_mut().faults_mut().revive_toolstack();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    killed
}

#[test]
fn a_daemon_killed_anywhere_in_a_create_leaves_a_whole_vm_or_nothing() {
    let (mut whole, mut nothing) = (0, 0);
    for k in 1.. {
        let mut lab = Lab::seeded(3);
        let request = lab.create_request(&linux("one", "pv", "normal"));
        let killed = killed_at(&mut lab, k, request);
        // Adopted whole or taken down whole.
        match lab.ask(Request::Resolve { target: "one".to_owned() }) {
            Reply::Resolved { domid, .. } => {
                whole += 1;
                assert!(lab.host.console(domid).contains("eth0: up"));
                lab.destroy("one");
            }
            _ => nothing += 1,
        }
        lab.assert_nothing_left();
        if !killed {
            break;
        }
    }
    assert!(whole > 1 && nothing > 15, "{whole} whole, {nothing} nothing");
}

#[test]
fn a_domain_that_somebody_paused_stays_so_when_the_daemon_restarts() {
    let mut lab = Lab::seeded(5);
    lab.create(&unikernel("ran", "pv", "normal")).unwrap();
    lab.settle();
    lab.ask(Request::Pause { target: "ran".to_owned() });
    let mut request = lab.create_request(&unikernel("never-ran", "pv", "normal"));
    if let Request::Create { start, .. } = &mut request {
        *start = Start::Paused;
    }
    lab.ask(request);
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    let Reply::Domains(listing) = lab.ask(Request::List) else { panic!("no list") };
    let rows = &listing.rows;
    let paused = rows.iter().filter(|row| row.config.is_some() && row.info.flags.paused()).count();
    assert_eq!(paused, 2, "{rows:?}");
}

#[test]
fn a_daemon_killed_anywhere_in_a_destroy_leaves_nothing_after_a_second_one() {
    for k in 1.. {
        let mut lab = Lab::seeded(4);
        lab.create(&linux("one", "pvh", "normal")).unwrap();
        lab.settle();
        let request = Request::Destroy { target: "one".to_owned() };
        let killed = killed_at(&mut lab, k, request);
        if let Reply::Resolved { .. } = lab.ask(Request::Resolve { target: "one".to_owned() }) {
            lab.destroy("one");
        }
        // Directories that the dead daemon emptied go with the next VM.
        lab.create(&linux("two", "pv", "normal")).unwrap();
        lab.destroy("two");
        lab.assert_nothing_left();
        if !killed {
            assert!(k > 10, "a destroy has only {k} actions");
            break;
        }
    }
}
