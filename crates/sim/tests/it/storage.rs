//! VMs whose disks are VDIs of storage repositories.

use std::collections::BTreeMap;

use storage::{Kind, Repositories, VdiName};
use toolstack::{Reply, Request, ShutdownRequest};

use crate::faults::killed_at;
use crate::support::Lab;

/// A host with the SR `s` and its VDI `s:one`; before and after are told apart from here on.
fn lab(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    let mut os = lab.host.os().clone();
    let mut srs = Repositories::new(&mut os);
    let config = BTreeMap::from([("path".to_owned(), "/srv/vdis".to_owned())]);
    srs.create("s", Kind::File, config).unwrap();
    srs.create_vdi(&VdiName::new("s", "one").unwrap(), 1 << 20).unwrap();
    lab.before = lab.host.snapshot().unwrap();
    lab
}

fn guest(name: &str, disk: &str) -> String {
    format!(
        "name = '{name}'\ntype = 'pv'\nkernel = '/kernel'\nramdisk = '/initrd'\nmemory = 16\n\
         extra = 'sim.kind=linux'\ndisk = ['{disk}']\n"
    )
}

#[test]
fn a_vm_has_its_vdi_for_as_long_as_it_runs_and_nobody_else_has() {
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
