//! Domains that another toolstack made become ours, and nothing in them notices.

use sim::Daemon;
use storage::BlockHost as _;
use toolstack::config::VmConfig;
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{Reply, Request, ShutdownRequest, VmState, xlcfg};
use xen::DomId;
use xenstore::client::{Batch, Nodes as _};

use crate::support::{Lab, linux};

const BACKEND: &str = "/local/domain/0/backend";

/// A lab with a running guest as `xl create` leaves one: with a disk behind a loop device, a vif, and the nodes
/// that libxl and its scripts write.
fn lab_with_foreign(seed: u64, kind: &str) -> (Lab, DomId) {
    let mut lab = Lab::seeded(seed);
    let domid = lab.create(&linux("web", kind, "normal")).unwrap();
    lab.settle();
    let record = record(&lab);
    let mut store = lab.host.connect();
    let mut batch = Batch::new();
    batch.rm("/xylem");
    let vbd = format!("{BACKEND}/vbd/{domid}/51712");
    let vif = format!("{BACKEND}/vif/{domid}/0");
    for (path, value) in [
        (format!("{vbd}/script"), "/etc/xen/scripts/block"),
        (format!("{vbd}/node"), "/dev/loop0"),
        (format!("{vbd}/hotplug-status"), "connected"),
        (format!("{vif}/script"), "/etc/xen/scripts/vif-bridge"),
        (format!("{BACKEND}/console/{domid}/0/state"), "1"),
        (format!("/libxl/{domid}/device/console/0/backend"), "console"),
        (format!("/libxl/{domid}/dm-version"), "qemu_xen"),
    ] {
        batch.write(&path, value);
    }
    store.commit(&batch).unwrap();
    assert!(record.is_some(), "it was ours");
    lab.host.os().clone().tag_loop("/dev/loop0", "/disk.raw").unwrap();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    (lab, domid)
}

fn record(lab: &Lab) -> Option<String> {
    lab.host.connect().directory("/xylem/vm").ok()?.pop()
}

fn base(kind: &str) -> Box<VmConfig> {
    let text = format!(
        "name = 'a'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 4\nextra = 'sim.kind=linux'\n"
    );
    Box::new(xlcfg::parse(xlcfg::Source { file: "web.cfg", text: &text, overrides: &[] }).unwrap())
}

fn adopt(lab: &mut Lab, kind: &str) -> Reply {
    lab.ask(Request::Adopt { target: "web".to_owned(), base: Some(base(kind)) })
}

fn failed(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn state(lab: &mut Lab) -> Option<VmState> {
    let Reply::Vms(rows) = lab.ask(Request::Vms) else { panic!("no list of VMs") };
    rows.into_iter().find(|row| row.name == "web").map(|row| row.state)
}

/// The guest runs on and its devices are connected.
#[track_caller]
fn assert_undisturbed(lab: &Lab, domid: DomId) {
    let xen = lab.host.machine().get();
    assert!(xen.domain(domid).is_some_and(sim::Domain::is_running));
    drop(xen);
    for device in ["vbd/51712", "vif/0"] {
        let (kind, devid) = device.split_once('/').unwrap();
        let path = format!("{BACKEND}/{kind}/{domid}/{devid}/state");
        assert_eq!(lab.host.connect().read(&path).unwrap(), b"4", "{device}");
    }
}

#[test]
fn an_adopted_domain_is_a_vm_like_any_other() {
    for kind in ["pv", "pvh"] {
        let (mut lab, domid) = lab_with_foreign(1, kind);
        let target = || "web".to_owned();
        let refused = failed(lab.ask(Request::Destroy { target: target() }));
        assert!(refused.contains("not managed by Xylem"), "{refused}");
        let reply = adopt(&mut lab, kind);
        assert!(matches!(reply, Reply::Done { domid: it } if it == domid), "{reply:?}");
        lab.settle();
        assert_undisturbed(&lab, domid);
        assert_eq!(state(&mut lab), Some(VmState::Running));
        let again = failed(adopt(&mut lab, kind));
        assert!(again.contains("managed by Xylem already"), "{again}");
        let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: target() }) else {
            panic!("no devices");
        };
        assert_eq!(devices.len(), 2);
        // Another daemon finds it as ours, with its loop device.
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        assert_undisturbed(&lab, domid);
        assert_eq!(state(&mut lab), Some(VmState::Running));
        lab.ask(Lab::shutdown_request("web", ShutdownRequest::Reboot));
        lab.settle();
        let Reply::Resolved { domid: next, .. } = lab.ask(Request::Resolve { target: target() })
        else {
            panic!("it does not run again");
        };
        assert_ne!(next, domid);
        assert_undisturbed(&lab, next);
        let gone = lab.ask(Lab::shutdown_request("web", ShutdownRequest::Poweroff));
        assert!(matches!(gone, Reply::Gone { .. }), "{gone:?}");
        lab.assert_nothing_left();
    }
}

#[test]
fn devices_of_an_adopted_domain_can_be_taken_away() {
    let (mut lab, domid) = lab_with_foreign(2, "pv");
    adopt(&mut lab, "pv");
    let device = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
    for how in [Unplug::Clean, Unplug::Forced] {
        let reply = lab.ask(Request::Unplug { target: "web".to_owned(), device, how });
        assert!(matches!(reply, Reply::Done { .. }) == (how == Unplug::Clean), "{reply:?}");
    }
    assert!(lab.host.os().get().loops().is_empty());
    lab.destroy(&domid.to_string());
    lab.assert_nothing_left();
}

#[test]
fn what_cannot_be_adopted_stays_as_it_is() {
    let (mut lab, domid) = lab_with_foreign(3, "pv");
    let before = lab.host.snapshot().unwrap();
    let adopt = |lab: &mut Lab, target: &str, base| {
        failed(lab.ask(Request::Adopt { target: target.to_owned(), base }))
    };
    let unknown = adopt(&mut lab, "web", None);
    assert!(unknown.contains("`xy adopt --config FILE web`"), "{unknown}");
    assert!(adopt(&mut lab, "nobody", Some(base("pv"))).contains("no such domain"));
    assert!(adopt(&mut lab, "0", Some(base("pv"))).contains("domain 0 cannot be managed"));
    assert!(adopt(&mut lab, "web", Some(base("pvh"))).contains("web is a pv guest"));
    // Storage that refuses in the middle of it.
    lab.host.os().set_failing("/dev/loop0", Some(storage::HostError::Refused("no".to_owned())));
    let refused = adopt(&mut lab, "web", Some(base("pv")));
    assert!(refused.contains("/dev/loop0: no"), "{refused}");
    lab.host.os().set_failing("/dev/loop0", None);
    lab.settle();
    let left = lab.host.snapshot().unwrap().differences(&before);
    assert!(left.is_empty(), "{left:?}");
    assert_undisturbed(&lab, domid);
}

/// Where a daemon is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    /// At its action of this number: a hypercall or a message to the store.
    Action(u64),
    /// Before or after its change of this number of a file or loop device.
    Change(u64),
}

/// Lets the daemon be killed while it adopts. Says whether it came so far.
fn is_killed(lab: &mut Lab, at: At) -> bool {
    match at {
        At::Action(k) => lab.host.machine().get_mut().faults_mut().kill_toolstack(k),
        At::Change(k) => lab.host.os().kill_daemon_after(k),
    }
    let request = Request::Adopt { target: "web".to_owned(), base: Some(base("pv")) };
    let until = lab.until();
    let is_dead = |lab: &Lab| {
        lab.host.machine().get().faults().is_toolstack_dead() || !lab.host.os().daemon_lives()
    };
    let mut goes_on = lab.daemon.request(request).is_ok();
    while goes_on && !is_dead(lab) {
        goes_on = matches!(lab.daemon.step(until), Ok(true));
    }
    let was_killed = is_dead(lab);
    lab.host.machine().get_mut().faults_mut().revive_toolstack();
    lab.host.os().restart_daemon();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    was_killed
}

/// Kills at all places of one kind. How often the domain was ours afterwards, and how often theirs.
fn kill_everywhere(place: impl Fn(u64) -> At) -> (u32, u32) {
    let (mut ours, mut theirs) = (0, 0);
    for k in 1.. {
        let (mut lab, domid) = lab_with_foreign(4, "pv");
        if !is_killed(&mut lab, place(k)) {
            break;
        }
        lab.settle();
        assert_undisturbed(&lab, domid);
        match state(&mut lab) {
            Some(state) => {
                assert_eq!(state, VmState::Running);
                ours += 1;
            }
            None => {
                theirs += 1;
                let reply = adopt(&mut lab, "pv");
                assert!(matches!(reply, Reply::Done { .. }), "{:?}: {reply:?}", place(k));
            }
        }
        lab.destroy("web");
        lab.assert_nothing_left();
    }
    (ours, theirs)
}

#[test]
fn a_daemon_that_is_killed_leaves_a_domain_that_is_ours_or_theirs() {
    let (ours, theirs) = kill_everywhere(At::Action);
    assert!(ours >= 1 && theirs >= 5, "{ours} ours, {theirs} theirs");
    let (ours, theirs) = kill_everywhere(At::Change);
    assert!(ours == 0 && theirs >= 2, "{ours} ours, {theirs} theirs");
}
