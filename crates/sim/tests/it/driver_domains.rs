//! Devices whose backends are in driver domains: they come, go and are found again, whatever the driver domain does.

use sim::{Daemon, HostConfig};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{Start, Unplug};
use toolstack::{Device, Reply, Request, ShutdownRequest, VmState, xlcfg};
use xen::{DomId, Uuid};
use xenstore::client::Nodes as _;

use crate::faults::killed_at;
use crate::support::{Lab, unikernel};

const VIF: DeviceRef = DeviceRef { kind: DeviceKind::Vif, devid: 0 };
const XVDA: DeviceRef = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };

/// A host with the driver domain `net`, and what there is before any other VM.
fn lab(serves: &str) -> (Lab, DomId) {
    let mut lab = Lab::new(HostConfig { seed: 1, ..HostConfig::default() });
    let net = start_driver_domain(&mut lab, serves);
    lab.before = lab.host.snapshot().unwrap();
    (lab, net)
}

fn start_driver_domain(lab: &mut Lab, serves: &str) -> DomId {
    let text = format!("{}driver_domain = 1\n", unikernel("net", "pv", "normal"));
    let text = text.replace("sim.behaviour=normal", &format!("sim.kind=linux sim.serves={serves}"));
    let net = lab.create(&text).unwrap();
    lab.settle();
    net
}

/// A guest with a disk and an interface of `net`.
fn vm(name: &str, kind: &str) -> String {
    format!(
        "name = '{name}'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 16\nextra = 'sim.kind=linux'\n\
         disk = ['/dev/vg/{name},raw,xvda,rw,backend=net']\nvif = ['bridge=inside,backend=net']\n"
    )
}

fn plug(devid: u32) -> Request {
    let device = xlcfg::parse_vif("backend=net", devid).map(Device::Vif).unwrap();
    Request::Plug { target: "one".to_owned(), device: Box::new(device) }
}

fn unplug(device: DeviceRef, how: Unplug) -> Request {
    Request::Unplug { target: "one".to_owned(), device, how }
}

#[track_caller]
fn done(lab: &mut Lab, request: Request) {
    let reply = lab.ask(request);
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    lab.settle();
}

fn read(lab: &Lab, path: &str) -> Option<String> {
    let value = lab.host.connect().read_optional(path).unwrap()?;
    Some(String::from_utf8_lossy(&value).into_owned())
}

/// What serves a device, and its state.
fn backend(lab: &Lab, domid: DomId, device: DeviceRef) -> Option<String> {
    let path = read(lab, &format!("{}/backend", device.frontend(domid)))?;
    let state = read(lab, &format!("{path}/state"))?;
    Some(format!("{path} {state}"))
}

fn newest(lab: &Lab) -> DomId {
    lab.host.machine().get().domains().map(|it| it.domid).max().unwrap()
}

/// Its devices are connected, in this driver domain.
#[track_caller]
fn assert_connected(lab: &Lab, domid: DomId, net: DomId) {
    let console = lab.host.console(domid);
    assert!(console.contains("eth0: up") && console.contains("vbd 51712: connected"), "{console}");
    assert_eq!(
        backend(lab, domid, VIF),
        Some(format!("/local/domain/{net}/backend/vif/{domid}/0 4"))
    );
    assert_eq!(
        backend(lab, domid, XVDA),
        Some(format!("/local/domain/{net}/backend/vbd/{domid}/51712 4"))
    );
}

#[test]
fn a_driver_domain_serves_a_disk_and_an_interface_over_reboots() {
    for kind in ["pv", "pvh"] {
        let (mut lab, net) = lab("well");
        let domid = lab.create(&vm("one", kind)).unwrap();
        lab.settle();
        assert_connected(&lab, domid, net);
        let path = format!("/local/domain/{net}/backend/vbd/{domid}/51712");
        assert_eq!(read(&lab, &format!("{path}/params")).as_deref(), Some("/dev/vg/one"));
        assert_eq!(
            read(&lab, &format!("{path}/script")).as_deref(),
            Some("/etc/xen/scripts/block")
        );
        match lab.ask(Request::Devices { target: "one".to_owned() }) {
            Reply::Devices { devices, .. } => {
                assert!(devices.iter().all(|it| it.backend_domid == net), "{devices:?}");
            }
            other => panic!("{other:?}"),
        }
        // A daemon that starts anew knows where they are.
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
        lab.settle();
        let domid = newest(&lab);
        assert_connected(&lab, domid, net);
        let console = lab.host.console(net);
        assert_eq!(console.matches(": removed").count(), 2, "{console}");
        lab.destroy("one");
        lab.assert_nothing_left();
        let console = lab.host.console(net);
        assert_eq!(console.matches(": removed").count(), 4, "{console}");
    }
}

#[test]
fn a_driver_domain_that_is_not_there_is_said_before_anything_is_made() {
    let (mut lab, net) = lab("well");
    for backend in ["sys-net", "77"] {
        let text = vm("one", "pv").replace("rw,backend=net", &format!("rw,backend={backend}"));
        assert_eq!(
            lab.create(&text).unwrap_err(),
            format!(
                "vm.cfg:6: disk[0]: backend={backend}: there is no such domain; start the driver domain first"
            )
        );
    }
    // By its number as well.
    let text = vm("one", "pv").replace("backend=net", &format!("backend={net}"));
    let domid = lab.create(&text).unwrap();
    lab.settle();
    assert_connected(&lab, domid, net);
    let own = xlcfg::parse_vif("backend=one", 1).map(Device::Vif).unwrap();
    let own = Request::Plug { target: "one".to_owned(), device: Box::new(own) };
    match lab.ask(own) {
        Reply::Failed(message) => {
            assert_eq!(message, "one: vif 1: backend=one: a VM cannot serve its own devices");
        }
        other => panic!("{other:?}"),
    }
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_disk_of_a_driver_domain_that_another_vm_writes_is_refused() {
    let (mut lab, _) = lab("well");
    let domid = lab.create(&vm("one", "pv")).unwrap();
    lab.settle();
    let two = vm("two", "pv").replace("/dev/vg/two", "/dev/vg/one");
    assert_eq!(
        lab.create(&two).unwrap_err(),
        format!(
            "vm.cfg:6: disk[0]: backend=net: /dev/vg/one is in use by domain {domid} (vbd xvda); detach it there, \
             or share it with access w! on both"
        )
    );
    // Another target, or the same in domain 0, is another disk.
    lab.create(&vm("two", "pv")).unwrap();
    lab.destroy("one");
    lab.destroy("two");
    lab.assert_nothing_left();
}

#[test]
fn interfaces_of_a_driver_domain_come_to_a_running_guest_and_go() {
    let (mut lab, net) = lab("well");
    let domid = lab.create(&vm("one", "pvh")).unwrap();
    lab.settle();
    for how in [Unplug::Clean, Unplug::Forced] {
        done(&mut lab, plug(1));
        let vif = DeviceRef { devid: 1, ..VIF };
        assert_eq!(
            backend(&lab, domid, vif),
            Some(format!("/local/domain/{net}/backend/vif/{domid}/1 4"))
        );
        done(&mut lab, unplug(vif, how));
        assert_eq!(backend(&lab, domid, vif), None);
        assert_eq!(read(&lab, &format!("/local/domain/{net}/backend/vif/{domid}/1")), None);
    }
    done(&mut lab, unplug(XVDA, Unplug::Clean));
    assert!(backend(&lab, domid, XVDA).is_none() && backend(&lab, domid, VIF).is_some());
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn whenever_the_daemon_is_killed_an_interface_is_there_or_not() {
    for (request, at_first) in [
        (plug as fn(u32) -> Request, false),
        (|devid| unplug(DeviceRef { devid, ..VIF }, Unplug::Clean), true),
    ] {
        let mut seen = [0, 0];
        for k in 1.. {
            let (mut lab, net) = lab("well");
            let domid = lab.create(&vm("one", "pv")).unwrap();
            lab.settle();
            if at_first {
                done(&mut lab, plug(1));
            }
            let is_killed = killed_at(&mut lab, k, request(1));
            lab.settle();
            let vif = DeviceRef { devid: 1, ..VIF };
            let is_there = match lab.ask(Request::ConfigText { target: "one".to_owned() }) {
                Reply::Text(text) => text.contains("devid=1"),
                other => panic!("{other:?}"),
            };
            let path = format!("/local/domain/{net}/backend/vif/{domid}/1");
            let expected = is_there.then(|| format!("{path} 4"));
            assert_eq!(backend(&lab, domid, vif), expected, "killed at {k}");
            assert_eq!(read(&lab, &path).is_some(), is_there, "killed at {k}");
            seen[usize::from(is_there)] += 1;
            if is_there {
                done(&mut lab, unplug(vif, Unplug::Clean));
            }
            done(&mut lab, plug(1));
            lab.destroy("one");
            lab.assert_nothing_left();
            if !is_killed {
                break;
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

#[test]
fn whenever_the_daemon_is_killed_in_a_create_nothing_stays_in_the_driver_domain() {
    let mut made = 0;
    for k in 1.. {
        let (mut lab, net) = lab("well");
        let create = lab.create_request(&vm("one", "pv"));
        let is_killed = killed_at(&mut lab, k, create);
        lab.settle();
        if lab.state("one") == VmState::Running {
            made += 1;
            assert_connected(&lab, newest(&lab), net);
            lab.destroy("one");
        }
        lab.assert_nothing_left();
        if !is_killed {
            break;
        }
    }
    assert!(made > 2, "{made}");
}

#[test]
fn a_guest_outlives_its_driver_domain_and_finds_the_next_one_at_its_reboot() {
    let (mut lab, net) = lab("well");
    let domid = lab.create(&vm("one", "pv")).unwrap();
    lab.settle();
    assert_connected(&lab, domid, net);
    lab.destroy("net");
    lab.settle();
    assert_eq!(lab.state("one"), VmState::Running);
    // Its devices are gone; they can be detached, and come back from the next one.
    let next = start_driver_domain(&mut lab, "well");
    done(&mut lab, unplug(VIF, Unplug::Forced));
    done(&mut lab, plug(0));
    assert_eq!(
        backend(&lab, domid, VIF),
        Some(format!("/local/domain/{next}/backend/vif/{domid}/0 4"))
    );
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    assert_connected(&lab, newest(&lab), next);
    lab.destroy("net");
    lab.settle();
    lab.destroy("one");
    lab.settle();
    // Nothing of either, not even directories with their numbers.
    let left = lab.host.snapshot().unwrap();
    for domid in [net, next, domid] {
        let folder = format!("/local/domain/{domid}");
        assert!(!left.nodes.contains_key(&folder), "{folder}");
    }
}

#[test]
fn a_driver_domain_without_backends_fails_a_start_and_nothing_is_left() {
    let (mut lab, net) = lab("nothing");
    let message = lab.create(&vm("one", "pv")).unwrap_err();
    let why = format!("did not answer within 30 s; is its driver loaded in domain {net}?");
    assert!(message.ends_with(&why), "{message}");
    lab.assert_nothing_left();
}

#[test]
fn whatever_a_driver_domain_does_its_guests_can_be_taken_down() {
    for serves in ["without-scripts", "toggles", "holds"] {
        let (mut lab, _) = lab(serves);
        match lab.create(&vm("one", "pv")) {
            Ok(_) => {}
            // A backend that calls itself closed is believed.
            Err(message) => {
                assert_eq!(serves, "toggles", "{message}");
                assert!(!message.contains(char::is_control), "{message}");
            }
        }
        lab.settle();
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

/// A defined VM that starts with the host, or is restored with it.
fn define(lab: &mut Lab, text: &str, order: u32) {
    let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    let name = config.name.clone();
    let fresh_uuid = Uuid([name.as_bytes()[0]; 16]);
    let reply = lab.ask(Request::Define { config, fresh_uuid, autostart: Some(order) });
    assert!(matches!(reply, Reply::Defined { .. }), "{reply:?}");
    let reply = lab.ask(Request::Start { target: name, start: Start::Running });
    assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
    lab.settle();
}

#[test]
fn with_its_host_a_driver_domain_goes_down_last_and_comes_back_first() {
    let mut lab = Lab::seeded(1);
    let net = format!("{}driver_domain = 1\n", unikernel("net", "pv", "normal"))
        .replace("sim.behaviour=normal", "sim.kind=linux sim.serves=well");
    define(&mut lab, &net, 1);
    let net = newest(&lab);
    define(&mut lab, &format!("{}on_host_shutdown = 'save'\n", vm("saved", "pvh")), 0);
    define(&mut lab, &vm("one", "pv"), 2);
    let reply = lab.ask(Request::HostShutdown);
    assert!(matches!(reply, Reply::Ok), "{reply:?}");
    // It has seen all of its devices go.
    let console = lab.host.console(net);
    assert_eq!(console.matches(": removed").count(), 4, "{console}");
    assert!(console.trim_end().ends_with("going down: poweroff"), "{console}");

    lab.host = lab.host.boot_again(HostConfig::default(), 1_000_000_000);
    lab.host.os().forget_boot();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    let domid =
        |lab: &mut Lab, name: &str| match lab.ask(Request::Resolve { target: name.to_owned() }) {
            Reply::Resolved { domid, .. } => domid,
            other => panic!("{name}: {other:?}"),
        };
    let net = domid(&mut lab, "net");
    let one = domid(&mut lab, "one");
    assert_connected(&lab, one, net);
    let saved = domid(&mut lab, "saved");
    let console = lab.host.console(saved);
    assert!(console.contains("suspend: returned 0, in a new domain"), "{console}");
    assert_eq!(
        backend(&lab, saved, VIF),
        Some(format!("/local/domain/{net}/backend/vif/{saved}/0 4"))
    );
}
