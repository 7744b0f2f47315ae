//! VMs whose disks are VDIs of storage repositories.

use std::collections::BTreeMap;

use storage::{Kind, Repositories, VdiName};
use toolstack::scheduler::{Limits, SrRequest};
use toolstack::{PermitRequest, Reply, Request, ShutdownRequest};

use crate::faults::killed_at;
use crate::support::Lab;

/// A host with the SR `s` and its VDI `s:one`; before and after are told apart from here on.
pub(crate) fn lab(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    let mut os = lab.host.os().clone();
    let mut srs = Repositories::new(&mut os);
    let config = BTreeMap::from([("path".to_owned(), "/srv/vdis".to_owned())]);
    srs.create("s", Kind::File, config).unwrap();
    srs.create_vdi(&VdiName::new("s", "one").unwrap(), 1 << 20).unwrap();
    lab.before = lab.host.snapshot().unwrap();
    lab
}

pub(crate) fn guest(name: &str, disk: &str) -> String {
    format!(
        "name = '{name}'\ntype = 'pv'\nkernel = '/kernel'\nramdisk = '/initrd'\nmemory = 16\n\
         extra = 'sim.kind=linux'\ndisk = ['{disk}']\n"
    )
}

#[test]
fn a_vm_has_its_vdi_exclusively_while_it_runs() {
    let mut lab = lab(1);
    let domid = lab.create(&guest("a", "s:one,,xvda,w")).unwrap();
    lab.settle();
    assert!(lab.host.console(domid).contains("vbd 51712: connected"));
    let refused = lab.create(&guest("b", "s:one,,xvda,r")).unwrap_err();
    assert!(refused.contains("disk[0]: s:one: is in use by xylem/01010101"), "{refused}");
    assert_eq!(lab.host.snapshot().unwrap().attached, ["/run/xylem/sr/s/one.json"]);
    lab.ask(Lab::shutdown_request("a", ShutdownRequest::Poweroff));
    lab.assert_nothing_left();
    for name in ["b", "c"] {
        lab.create(&guest(name, "s:one,,xvda,r")).unwrap();
    }
    lab.destroy("b");
    assert_eq!(lab.host.os().get().loops().len(), 1, "readers share the device");
    lab.destroy("c");
    lab.assert_nothing_left();
}

#[test]
fn a_vdi_that_is_missing_is_named_where_it_was_asked_for() {
    let mut lab = lab(2);
    for (disk, message) in [
        ("s:two,,xvda,w", "vm.cfg:7: disk[0]: s:two: no such file or directory"),
        ("t:one,,xvda,w", "vm.cfg:7: disk[0]: t: no such SR; `xy sr-list` shows them all"),
    ] {
        assert_eq!(lab.create(&guest("a", disk)).unwrap_err(), message);
        lab.assert_nothing_left();
    }
}

#[test]
fn a_daemon_killed_anywhere_leaves_no_vdi_attached_without_its_vm() {
    let (mut whole, mut nothing) = (0, 0);
    for k in 1.. {
        let mut lab = lab(3);
        let request = lab.create_request(&guest("a", "s:one,,xvda,w"));
        let killed = killed_at(&mut lab, k, request);
        match lab.ask(Request::Resolve { target: "a".to_owned() }) {
            Reply::Resolved { domid, .. } => {
                whole += 1;
                assert!(lab.host.console(domid).contains("vbd 51712: connected"));
                let attached = lab.host.snapshot().unwrap().attached;
                assert_eq!(attached, ["/run/xylem/sr/s/one.json"]);
                lab.destroy("a");
            }
            _ => nothing += 1,
        }
        lab.assert_nothing_left();
        if !killed {
            break;
        }
    }
    assert!(whole > 1 && nothing > 10, "{whole} whole, {nothing} nothing");
}

/// As above, but killed between any two calls to the operating system of the attach and detach themselves.
#[test]
fn a_daemon_killed_within_an_attach_or_detach_leaves_nothing_either() {
    for moments in 1.. {
        let mut lab = lab(4);
        let os = lab.host.os().clone();
        os.kill_daemon_after(moments);
        let struck = lab.create(&guest("a", "s:one,,xvda,w")).is_err();
        os.restart_daemon();
        lab.daemon = sim::Daemon::start(&lab.host).unwrap();
        lab.settle();
        if let Reply::Resolved { .. } = lab.ask(Request::Resolve { target: "a".to_owned() }) {
            os.kill_daemon_after(moments);
            lab.destroy("a");
            os.restart_daemon();
            lab.daemon = sim::Daemon::start(&lab.host).unwrap();
        }
        lab.assert_nothing_left();
        if !struck {
            assert!(moments > 5, "an attach has only {moments} moments");
            break;
        }
    }
}

/// As `lab`, with the SR `slow` of kind `sim` and its VDI `slow:one`.
fn slow_lab(seed: u64, settings: &[(&str, &str)]) -> Lab {
    let mut lab = lab(seed);
    let mut os = lab.host.os().clone();
    let mut srs = Repositories::new(&mut os);
    let all = [&[("path", "/srv/slow")], settings].concat();
    let config = all.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    srs.create("slow", Kind::Sim, config).unwrap();
    srs.create_vdi(&VdiName::new("slow", "one").unwrap(), 1 << 20).unwrap();
    lab.host.os().take_slept();
    lab.before = lab.host.snapshot().unwrap();
    lab
}

#[test]
fn simulated_delays_use_virtual_time_and_do_not_delay_other_vms() {
    let mut lab = slow_lab(5, &[("attach", "5s"), ("activate", "2s"), ("detach", "1s")]);
    let begin = lab.host.now();
    let slow = lab.create_request(&guest("slow", "slow:one,,xvda,w"));
    let slow = lab.daemon.request(slow).unwrap();
    lab.create(&guest("quick", "s:one,,xvda,w")).unwrap();
    assert!(lab.host.now().0 - begin.0 < 1_000_000_000, "the other VM did not wait");
    let reply = lab.daemon.wait(slow, begin.after(60_000_000_000)).unwrap();
    assert!(matches!(reply, Some(Reply::Created(_))), "{reply:?}");
    let took = lab.host.now().0 - begin.0;
    assert!((7_000_000_000..8_000_000_000).contains(&took), "{took}");
    lab.destroy("slow");
    lab.destroy("quick");
    lab.assert_nothing_left();
}

#[test]
fn a_start_on_failing_or_hanging_storage_is_undone() {
    for (settings, words, seconds) in [
        ([("attach", "1s"), ("fail", "attach:100%")], "attach was made to fail", 1),
        ([("attach", "1s"), ("hang", "activate:100%")], "no answer within 30 s", 31),
    ] {
        let mut lab = slow_lab(6, &settings);
        let begin = lab.host.now();
        let error = lab.create(&guest("a", "slow:one,,xvda,w")).unwrap_err();
        assert!(error.contains("slow:one: ") && error.contains(words), "{error}");
        assert_eq!((lab.host.now().0 - begin.0) / 1_000_000_000, seconds, "{error}");
        lab.assert_nothing_left();
    }
}

/// Requests about SRs are their clients' own work: what they need of the machine is a permit.
#[test]
fn requests_on_an_sr_are_serialised_and_do_not_delay_its_vms() {
    let mut lab = lab(7);
    let begin = lab.host.now();
    let permit = |what| Request::Permit(PermitRequest::Sr { sr: "s".to_owned(), what, deed: None });
    let give_back =
        |permit| Request::Permit(PermitRequest::GiveBack { permit, outcome: Ok(()), change: None });
    let clients: Vec<_> =
        (0..100).map(|_| lab.daemon.request(permit(SrRequest::Change)).unwrap()).collect();
    let held = |lab: &mut Lab, client| match lab.daemon.take_reply(client) {
        Some(Reply::Permit(ticket)) => Some(ticket),
        None => None,
        other => panic!("{other:?}"),
    };
    let mut ticket = held(&mut lab, clients[0]).expect("the first goes at once");
    for next in &clients[1..] {
        assert!(held(&mut lab, *next).is_none(), "one at a time");
        lab.ask(give_back(ticket));
        ticket = held(&mut lab, *next).expect("then the next");
        if *next == clients[50] {
            // While one is held, and 49 wait: looks and VMs on the same SR go.
            let look = lab.daemon.request(permit(SrRequest::Scan)).unwrap();
            let look = held(&mut lab, look).expect("a look waits for no change");
            lab.create(&guest("a", "s:one,,xvda,w")).unwrap();
            lab.destroy("a");
            lab.ask(give_back(look));
        }
    }
    lab.ask(give_back(ticket));
    match lab.ask(Request::Limits { wanted: None }) {
        Reply::Limits { waiting: 0, held: 0, .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(lab.host.now().0 - begin.0 < 30_000_000_000);
    lab.assert_nothing_left();
}

/// With one permit for the backend all goes, one step after the other.
#[test]
fn the_limit_of_the_backend_is_one() {
    let mut lab = lab(8);
    let limits = Limits { backend: 1, ..Limits::default() };
    lab.ask(Request::Limits { wanted: Some(limits) });
    let clients: Vec<_> = ["a", "b", "c"]
        .map(|name| {
            let request = lab.create_request(&guest(name, "s:one,,xvda,r"));
            lab.daemon.request(request).unwrap()
        })
        .into();
    let until = lab.host.now().after(60_000_000_000);
    let mut waited = 0;
    for client in clients {
        let reply = lab.daemon.wait(client, until).unwrap();
        let Some(Reply::Created(created)) = reply else { panic!("{reply:?}") };
        let why = created.steps.iter().filter_map(|step| step.waited_for.as_deref());
        waited += why.filter(|it| it.contains("the backend domain 0")).count();
    }
    assert!(waited > 0, "they came at the same time");
    for name in ["a", "b", "c"] {
        lab.destroy(name);
    }
    lab.assert_nothing_left();
}
