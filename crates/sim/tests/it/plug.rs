//! Hotplug of devices.

use sim::{BackendKind, Daemon, HostConfig};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{ClientId, Device, PlanOf, Reply, Request, ShutdownRequest, xlcfg};

use crate::support::{Lab, linux, unikernel};

fn vbd(devid: u32) -> DeviceRef {
    DeviceRef { kind: DeviceKind::Vbd, devid }
}

fn plug(target: &str, spec: &str) -> Request {
    let device = xlcfg::parse_disk(spec).map(Device::Disk).unwrap();
    Request::Plug { target: target.to_owned(), device: Box::new(device) }
}

fn plug_vif(target: &str, devid: u32) -> Request {
    let device = xlcfg::parse_vif("bridge=xenbr0", devid).map(Device::Vif).unwrap();
    Request::Plug { target: target.to_owned(), device: Box::new(device) }
}

fn unplug(target: &str, device: DeviceRef, how: Unplug) -> Request {
    Request::Unplug { target: target.to_owned(), device, how }
}

/// A lab with disks `/more0.raw` and on.
fn lab(config: HostConfig, disks: usize) -> Lab {
    let lab = Lab::new(config);
    for number in 0..disks {
        lab.host.os().add_disk(&format!("/more{number}.raw"), 1 << 20);
    }
    lab
}

fn failed(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn done(reply: &Reply) {
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

/// The number of the disk in this place: xvda, xvdb and on.
fn number(disk: u32) -> u32 {
    if disk < 16 { 202 << 8 | disk << 4 } else { 1 << 28 | disk << 8 }
}

#[test]
fn a_disk_and_a_vif_can_be_plugged_and_unplugged_repeatedly() {
    for kind in ["pv", "pvh"] {
        let mut lab = lab(HostConfig::default(), 1);
        let domid = lab.create(&linux("one", kind, "normal")).unwrap();
        lab.settle();
        let running = lab.host.snapshot().unwrap();
        for round in 1..=3 {
            done(&lab.ask(plug("one", "/more0.raw,raw,xvdb,w")));
            done(&lab.ask(plug_vif("one", 1)));
            lab.settle();
            let console = lab.host.console(domid);
            assert_eq!(console.matches("vbd 51728: connected").count(), round, "{console}");
            assert_eq!(console.matches("eth1: up").count(), round, "{console}");
            assert!(lab.host.os().get().bridges()["xenbr0"].contains(&format!("vif{domid}.1")));
            done(&lab.ask(unplug("one", vbd(51728), Unplug::Clean)));
            let vif = DeviceRef { kind: DeviceKind::Vif, devid: 1 };
            done(&lab.ask(unplug("one", vif, Unplug::Clean)));
            lab.settle();
            let mut now = lab.host.snapshot().unwrap();
            // An empty node says that nothing is pending.
            now.nodes.retain(|path, _| !path.ends_with("/pending"));
            let left = now.differences(&running);
            assert!(left.is_empty(), "{}", left.join("\n"));
        }
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_plugged_device_survives_a_reboot_and_is_removed_with_the_vm() {
    let mut lab = lab(HostConfig::default(), 1);
    lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    done(&lab.ask(plug("one", "/more0.raw,raw,xvdb,w")));
    let loops = lab.host.os().get().loops().keys().copied().collect::<Vec<_>>();
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    let Reply::Resolved { domid, .. } = lab.ask(Request::Resolve { target: "one".to_owned() })
    else {
        panic!("the VM is gone");
    };
    assert!(lab.host.console(domid).contains("vbd 51728: connected"));
    let kept = lab.host.os().get().loops().keys().copied().collect::<Vec<_>>();
    assert_eq!(loops, kept, "a reboot keeps its disks attached");
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn the_maximum_number_of_disks_is_plugged_concurrently() {
    let mut lab = lab(HostConfig::default(), 256);
    lab.create(&unikernel("one", "pv", "never-connects")).unwrap();
    lab.settle();
    let names = |disk: u32| {
        let letter = |n: u32| char::from(b'a' + u8::try_from(n % 26).unwrap());
        if disk < 26 {
            format!("xvd{}", letter(disk))
        } else {
            format!("xvd{}{}", letter(disk / 26 - 1), letter(disk))
        }
    };
    let asked: Vec<ClientId> = (0..255)
        .map(|disk| {
            let spec = format!("/more{disk}.raw,raw,{},w", names(disk));
            lab.daemon.request(plug("one", &spec)).unwrap()
        })
        .collect();
    for client in asked {
        let reply = lab.wait(client);
        done(&reply);
    }
    let one_more = lab.ask(plug("one", "/more255.raw,raw,xvdiw,w"));
    assert!(failed(one_more).contains("at most 255"));
    let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: "one".to_owned() })
    else {
        panic!("no devices");
    };
    let last = devices.last().map(|reading| reading.device.devid);
    let mut ids: Vec<u32> = devices.iter().map(|reading| reading.device.devid).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(
        (devices.len(), ids.len(), ids.contains(&number(254))),
        (255, 255, true),
        "{last:?}"
    );
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_guest_that_never_closes_keeps_its_disk_until_forced() {
    for behaviour in ["holds-devices", "silent", "never-connects"] {
        let mut lab = Lab::seeded(2);
        lab.create(&linux("one", "pv", behaviour)).unwrap();
        lab.settle();
        let began = lab.host.now();
        let message = failed(lab.ask(unplug("one", vbd(51712), Unplug::Clean)));
        let took = lab.host.now().0 - began.0;
        assert!(message.contains("disk xvda") && message.contains("--force"), "{message}");
        // A device that is not connected yet is given some time for that first.
        let seconds = if behaviour == "holds-devices" { 29..32 } else { 39..42 };
        assert!(seconds.contains(&(took / 1_000_000_000)), "{behaviour}: {took} ns");
        // It is still the VM's, and a further attempt is possible.
        let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: "one".to_owned() })
        else {
            panic!("no devices");
        };
        assert!(devices.iter().any(|reading| reading.device == vbd(51712)));
        done(&lab.ask(unplug("one", vbd(51712), Unplug::Forced)));
        lab.settle();
        assert!(lab.host.os().get().loops().is_empty(), "{behaviour}");
        lab.destroy("one");
        lab.assert_nothing_left_but("/local/domain/0/error");
    }
}

/// Linux's blkfront, once it has closed, loses its xenbus thread when its backend is connected after all.
#[test]
fn a_guest_is_not_asked_to_close_a_device_while_it_connects() {
    for seed in 1..=20 {
        let mut lab = Lab::seeded(seed);
        lab.host.os().add_disk("/more0.raw", 1 << 20);
        lab.create(&linux("one", "pv", "normal")).unwrap();
        lab.settle();
        for (device, name) in [(51728, "xvdb"), (51744, "xvdc")] {
            done(&lab.ask(plug("one", &format!("/more0.raw,raw,{name},r"))));
            done(&lab.ask(unplug("one", vbd(device), Unplug::Clean)));
        }
        let trace = lab.host.trace();
        let late = trace.iter().find(|line| line.contains("was asked to close, and connects"));
        assert_eq!(late, None, "seed {seed}");
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_forced_detach_overtakes_one_that_waits_for_the_guest() {
    let mut lab = Lab::seeded(3);
    lab.create(&linux("one", "pv", "holds-devices")).unwrap();
    lab.settle();
    let waits = lab.daemon.request(unplug("one", vbd(51712), Unplug::Clean)).unwrap();
    let soon = sim::Time(lab.host.now().0 + 1_000_000_000);
    while lab.daemon.step(soon).unwrap() {}
    let Reply::Text(text) = lab.ask(Request::Explain { target: "one".to_owned() }) else {
        panic!("no text");
    };
    assert!(text.contains("lets go of vbd 51712: waits for "), "{text}");
    let began = lab.host.now();
    done(&lab.ask(unplug("one", vbd(51712), Unplug::Forced)));
    assert!(lab.host.now().0 - began.0 < 2_000_000_000);
    assert!(failed(lab.wait(waits)).contains("forced"));
    lab.destroy("one");
    lab.assert_nothing_left();
}

/// A second later the VM is destroyed, which does not wait for what was asked of it.
#[track_caller]
fn assert_destroyed_at_once(lab: &mut Lab, asked: ClientId) {
    let soon = sim::Time(lab.host.now().0 + 1_000_000_000);
    while lab.daemon.step(soon).unwrap() {}
    let began = lab.host.now();
    lab.destroy("one");
    assert!(lab.host.now().0 - began.0 < 3_000_000_000);
    assert!(failed(lab.wait(asked)).contains("went down"));
    lab.assert_nothing_left();
}

#[test]
fn a_destroy_does_not_wait_for_a_guest_that_was_asked_for_a_device() {
    let mut lab = Lab::seeded(4);
    lab.create(&linux("one", "pv", "holds-devices")).unwrap();
    lab.settle();
    let waits = lab.daemon.request(unplug("one", vbd(51712), Unplug::Clean)).unwrap();
    assert_destroyed_at_once(&mut lab, waits);
}

#[test]
fn a_destroy_does_not_wait_for_a_backend_that_has_not_seen_its_device() {
    let config = HostConfig { backends_absent: vec![BackendKind::Vbd], ..HostConfig::default() };
    let mut lab = lab(config, 1);
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.settle();
    let plugged = lab.daemon.request(plug("one", "/more0.raw,raw,xvdb,w")).unwrap();
    assert_destroyed_at_once(&mut lab, plugged);
}

#[test]
fn an_invalid_device_is_refused_by_name_and_leaves_nothing() {
    let config = HostConfig { backends_absent: vec![BackendKind::Vbd], ..HostConfig::default() };
    let mut lab = lab(config, 1);
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.settle();
    let before = lab.host.snapshot().unwrap();
    let message = failed(lab.ask(plug("one", "/more0.raw,raw,xvdb,w")));
    assert!(message.contains("disk xvdb") && message.contains("driver"), "{message}");
    let message = failed(lab.ask(plug("one", "/missing.raw,raw,xvdb,w")));
    assert!(message.contains("/missing.raw"), "{message}");
    assert!(failed(lab.ask(plug("two", "/more0.raw,raw,xvdb,w"))).contains("two"));
    let message = failed(lab.ask(unplug("one", vbd(51728), Unplug::Clean)));
    assert!(message.contains("has no disk xvdb"), "{message}");
    done(&lab.ask(plug_vif("one", 0)));
    assert!(failed(lab.ask(plug_vif("one", 0))).contains("already"));
    let vif = DeviceRef { kind: DeviceKind::Vif, devid: 0 };
    done(&lab.ask(unplug("one", vif, Unplug::Forced)));
    lab.settle();
    let mut now = lab.host.snapshot().unwrap();
    now.nodes.retain(|path, _| !path.ends_with("/pending"));
    let left = now.differences(&before);
    assert!(left.is_empty(), "{}", left.join("\n"));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn the_plan_of_a_possible_operation_is_shown() {
    let mut lab = Lab::seeded(5);
    lab.create(&linux("one", "pv", "normal")).unwrap();
    let what = [PlanOf::Reboot, PlanOf::Teardown, PlanOf::Unplug(vbd(51712), Unplug::Clean)];
    let ends = ["unpause", "remove nodes", "detach disk 51712"];
    for (what, end) in what.into_iter().zip(ends) {
        let Reply::Text(text) = lab.ask(Request::Plan { target: "one".to_owned(), what }) else {
            panic!("no text");
        };
        assert!(text.lines().last().is_some_and(|line| line.contains(end)), "{text}");
    }
}

#[test]
fn a_restarted_daemon_continues_a_detach() {
    let mut lab = Lab::seeded(6);
    lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    lab.daemon.request(unplug("one", vbd(51712), Unplug::Clean)).unwrap();
    // The store knows of it as soon as the guest can.
    while !lab
        .host
        .snapshot()
        .unwrap()
        .nodes
        .iter()
        .any(|(path, value)| path.ends_with("/pending") && value.starts_with(b"unplug vbd 51712"))
    {
        let until = lab.until();
        assert!(lab.daemon.step(until).unwrap());
    }
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert!(lab.host.os().get().loops().is_empty());
    let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: "one".to_owned() })
    else {
        panic!("no devices");
    };
    assert!(devices.iter().all(|reading| reading.device.kind == DeviceKind::Vif), "{devices:?}");
    lab.destroy("one");
    lab.assert_nothing_left();
}
