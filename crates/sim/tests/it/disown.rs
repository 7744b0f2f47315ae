//! VMs that are given to xl while they run: nothing in them notices, their disks stay theirs until they end, and they come
//! back as what they were.

use sim::Daemon;
use storage::BlockHost as _;
use toolstack::config::VmConfig;
use toolstack::{Reply, Request, ShutdownRequest, VmState, xlcfg};
use xen::{DomId, Xen};
use xenstore::client::Nodes as _;

use crate::support::{Lab, linux};

fn lab_with_vm(seed: u64) -> (Lab, DomId) {
    let mut lab = Lab::seeded(seed);
    let domid = lab.create(&linux("web", "pv", "normal")).unwrap();
    lab.settle();
    (lab, domid)
}

fn disown(lab: &mut Lab) -> Reply {
    lab.ask(Request::Disown { target: "web".to_owned() })
}

fn adopt(lab: &mut Lab) -> Reply {
    let text =
        "name = 'a'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 4\nextra = 'sim.kind=linux'\n";
    let source = xlcfg::Source { file: "web.cfg", text, overrides: &[] };
    let base: VmConfig = xlcfg::parse(source).unwrap();
    lab.ask(Request::Adopt { target: "web".to_owned(), base: Some(Box::new(base)) })
}

fn failed(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

/// Another VM with the same disk.
fn thief(lab: &mut Lab) -> Result<DomId, String> {
    lab.create(&linux("thief", "pv", "normal"))
}

/// The guest runs on, its devices are connected, and libxl has what it needs.
#[track_caller]
fn assert_undisturbed(lab: &Lab, domid: DomId) {
    assert!(lab.host.machine().get().domain(domid).is_some_and(sim::Domain::is_running));
    for device in ["vbd/51712", "vif/0"] {
        let (kind, devid) = device.split_once('/').unwrap();
        let path = format!("/local/domain/0/backend/{kind}/{domid}/{devid}/state");
        assert_eq!(lab.host.connect().read(&path).unwrap(), b"4", "{device}");
    }
    let userdata = lab.host.os().libxl_json();
    assert_eq!(userdata.keys().map(|(domid, _)| *domid).collect::<Vec<_>>(), [domid]);
}

/// As xl ends one of its own: its scripts let go of the loop device, and its files and nodes go with it.
fn xl_destroys(lab: &mut Lab, domid: DomId) {
    let mut store = lab.host.connect();
    for device in ["vbd/51712", "vif/0"] {
        let (kind, devid) = device.split_once('/').unwrap();
        let backend = format!("/local/domain/0/backend/{kind}/{domid}/{devid}");
        store.write(&format!("{backend}/online"), b"0").unwrap();
        store.write(&format!("{backend}/state"), b"5").unwrap();
        store.rm(&format!("/local/domain/{domid}/device/{kind}/{devid}")).unwrap();
    }
    lab.settle();
    lab.host.os().clone().detach_loop("/dev/loop0").unwrap();
    let uuid = lab.host.os().libxl_json().into_keys().next().unwrap().1;
    toolstack::host::Host::remove_userdata(&mut lab.host.os().clone(), domid, uuid).unwrap();
    Xen::probe(lab.host.hypervisor()).unwrap().destroy_domain(domid).unwrap();
    for path in [
        format!("/local/domain/{domid}"),
        format!("/libxl/{domid}"),
        format!("/vm/{uuid}"),
        "/local/domain/0/backend".to_owned(),
        "/libxl".to_owned(),
        "/vm".to_owned(),
    ] {
        let _there = store.rm(&path);
    }
    lab.settle();
}

#[test]
fn a_vm_given_to_xl_runs_on_and_its_disk_is_its_own_until_it_ends() {
    for restarts in [false, true] {
        let (mut lab, domid) = lab_with_vm(1);
        let reply = disown(&mut lab);
        assert!(matches!(reply, Reply::Done { domid: it } if it == domid), "{reply:?}");
        lab.settle();
        assert_undisturbed(&lab, domid);
        assert_eq!(lab.state("web"), VmState::Gone);
        assert!(lab.host.connect().directory("/xylem/vm").is_err());
        let script = format!("/local/domain/0/backend/vbd/{domid}/51712/script");
        assert_eq!(lab.host.connect().read(&script).unwrap(), b"/etc/xen/scripts/block");
        assert_eq!(lab.host.os().get().loops()[&0].tag, "/disk.raw");
        assert!(failed(lab.destroy("web")).contains("not managed by Xylem"));
        assert!(failed(disown(&mut lab)).contains("not managed by Xylem"));
        if restarts {
            lab.daemon = Daemon::start(&lab.host).unwrap();
            lab.settle();
            assert_undisturbed(&lab, domid);
        }
        assert!(thief(&mut lab).unwrap_err().contains("/disk.raw"));
        xl_destroys(&mut lab, domid);
        lab.settle();
        thief(&mut lab).unwrap();
        lab.destroy("thief");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_vm_given_to_xl_comes_back() {
    let (mut lab, domid) = lab_with_vm(2);
    for _ in 0..2 {
        assert!(matches!(disown(&mut lab), Reply::Done { .. }));
        lab.settle();
        let reply = adopt(&mut lab);
        assert!(matches!(reply, Reply::Done { domid: it } if it == domid), "{reply:?}");
        lab.settle();
        assert_undisturbed(&lab, domid);
        assert_eq!(lab.state("web"), VmState::Running);
    }
    lab.destroy("web");
    lab.assert_nothing_left();
}

#[test]
fn a_defined_vm_stays_defined_and_does_not_run_twice() {
    let mut lab = Lab::seeded(3);
    let Request::Create { config, fresh_uuid, .. } =
        lab.create_request(&linux("web", "pv", "normal"))
    else {
        panic!("a create is one");
    };
    lab.ask(Request::Define { config, fresh_uuid, autostart: None });
    let start = |lab: &mut Lab| {
        lab.ask(Request::Start { target: "web".to_owned(), start: toolstack::plan::Start::Running })
    };
    assert!(matches!(start(&mut lab), Reply::Created(_)));
    assert!(matches!(disown(&mut lab), Reply::Done { .. }));
    lab.settle();
    assert_eq!(lab.state("web"), VmState::Down);
    let refused = failed(start(&mut lab));
    assert!(refused.contains("web"), "{refused}");
    let reply = adopt(&mut lab);
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    assert_eq!(lab.state("web"), VmState::Running);
    lab.destroy("web");
    lab.settle();
    assert_eq!(lab.state("web"), VmState::Down);
    lab.assert_nothing_left();
}

#[test]
fn what_is_under_way_comes_first() {
    let (mut lab, domid) = lab_with_vm(4);
    lab.daemon.request(Request::Suspend { target: "web".to_owned() }).unwrap();
    assert!(failed(disown(&mut lab)).contains("under way"));
    lab.settle();
    assert!(failed(disown(&mut lab)).contains("is suspended"));
    lab.ask(Request::Resume { target: "web".to_owned() });
    lab.settle();
    // Asked at once, one of both is first, and neither is lost.
    lab.daemon.request(Request::Disown { target: "web".to_owned() }).unwrap();
    lab.destroy("web");
    lab.settle();
    if lab.host.machine().get().domain(domid).is_some() {
        assert!(matches!(adopt(&mut lab), Reply::Done { .. }));
        lab.destroy("web");
    }
    lab.assert_nothing_left();
}

#[test]
fn a_daemon_that_is_killed_leaves_a_vm_that_is_ours_or_theirs() {
    let (mut ours, mut theirs) = (0, 0);
    for k in 1.. {
        let (mut lab, domid) = lab_with_vm(5);
        lab.host.machine().get_mut().faults_mut().kill_toolstack(k);
        let is_dead = |lab: &Lab| lab.host.machine().get().faults().is_toolstack_dead();
        let until = lab.until();
        let mut goes_on = lab.daemon.request(Request::Disown { target: "web".to_owned() }).is_ok();
        while goes_on && !is_dead(&lab) {
            goes_on = matches!(lab.daemon.step(until), Ok(true));
        }
        let was_killed = is_dead(&lab);
        lab.host.machine().get_mut().faults_mut().revive_toolstack();
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        assert_undisturbed(&lab, domid);
        assert!(thief(&mut lab).is_err());
        match lab.state("web") {
            VmState::Running => ours += 1,
            VmState::Gone => {
                theirs += 1;
                let reply = adopt(&mut lab);
                assert!(matches!(reply, Reply::Done { .. }), "{k}: {reply:?}");
            }
            other => panic!("{k}: {other:?}"),
        }
        lab.destroy("web");
        lab.assert_nothing_left();
        if !was_killed {
            break;
        }
    }
    assert!(ours >= 3 && theirs >= 1, "{ours} ours, {theirs} theirs");
}

#[test]
fn a_vdi_goes_as_a_device_and_comes_back_as_a_vdi() {
    for restarts in [false, true] {
        let mut lab = crate::storage::lab(6);
        let text = |name: &str| linux(name, "pv", "normal").replace("/disk.raw,raw", "s:one,");
        let domid = lab.create(&text("web")).unwrap();
        lab.settle();
        assert!(matches!(disown(&mut lab), Reply::Done { .. }));
        lab.settle();
        assert_undisturbed(&lab, domid);
        let params = format!("/local/domain/0/backend/vbd/{domid}/51712/params");
        assert_eq!(lab.host.connect().read(&params).unwrap(), b"/dev/loop0");
        assert!(lab.create(&text("thief")).unwrap_err().contains("s:one"));
        if restarts {
            lab.daemon = Daemon::start(&lab.host).unwrap();
            lab.settle();
        }
        let reply = adopt(&mut lab);
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
        // Its next domain has it by its name.
        lab.ask(Lab::shutdown_request("web", ShutdownRequest::Reboot));
        lab.settle();
        let attached = lab.host.snapshot().unwrap().attached;
        assert_eq!(attached, ["/run/xylem/sr/s/one.json"]);
        lab.destroy("web");
        lab.assert_nothing_left();
    }
}
