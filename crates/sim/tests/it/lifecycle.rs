//! VMs on the simulated host, through the product's own toolstack, builder and store.

use sim::{BackendKind, HostConfig, Release};
use toolstack::{Device, Reply, Request, ShutdownRequest, xlcfg};
use xen::ShutdownReason;

use crate::support::{Lab, linux, unikernel};

#[test]
fn a_guest_of_either_type_reaches_its_devices_on_every_release() {
    for release in Release::ALL {
        for kind in ["pv", "pvh"] {
            let mut lab = Lab::of_release(release);
            let domid = lab.create(&linux("one", kind, "normal")).unwrap();
            lab.settle();
            let console = lab.host.console(domid);
            for line in ["hello from init", "vbd 51712: connected", "eth0: up", "20000 bytes"] {
                assert!(console.contains(line), "{release:?} {kind}: {console}");
            }
            let link = format!("vif{domid}.0");
            assert!(lab.host.os().get().bridges()["xenbr0"].contains(&link));
            lab.destroy("one");
            lab.assert_nothing_left();
        }
    }
}

#[test]
fn a_waiting_client_gets_progress_of_every_step() {
    let mut lab = Lab::seeded(2);
    let create = lab.create_request(&linux("one", "pv", "normal"));
    let target = || "one".to_owned();
    let disk = Device::Disk(xlcfg::parse_disk("/more.raw,raw,xvdb,w").unwrap());
    lab.host.os().add_disk("/more.raw", 1 << 20);
    for request in [
        create,
        Request::Plug { target: target(), device: Box::new(disk) },
        Lab::shutdown_request("one", ShutdownRequest::Poweroff),
    ] {
        let what = format!("{request:?}");
        lab.daemon.told = Some(Vec::new());
        let client = lab.daemon.request(request).unwrap();
        lab.wait(client);
        let told = lab.daemon.told.take().unwrap();
        let total = told.len() - 1;
        assert!(total >= 3, "{what}: {told:?}");
        for (done, (to, progress)) in told.iter().enumerate() {
            assert_eq!((*to, progress.done, progress.total), (client, done, total), "{what}");
            assert_eq!(progress.ended.is_none(), done == 0, "{what}: {progress:?}");
            assert_eq!(progress.waits_for.is_empty(), done == total, "{what}: {progress:?}");
        }
    }
    lab.assert_nothing_left();
}

#[test]
fn a_guest_shuts_down_when_asked_and_nothing_is_left() {
    for text in [unikernel("one", "pvh", "normal"), linux("one", "pv", "normal")] {
        let mut lab = Lab::seeded(3);
        lab.create(&text).unwrap();
        match lab.ask(Lab::shutdown_request("one", ShutdownRequest::Poweroff)) {
            Reply::Gone { reason, .. } => assert_eq!(reason, Some(ShutdownReason::Poweroff)),
            other => panic!("{other:?}"),
        }
        lab.assert_nothing_left();
    }
}

#[test]
fn a_reboot_is_a_new_domain_of_the_same_vm() {
    let mut lab = Lab::seeded(4);
    let first = lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    let client = lab.daemon.request(Lab::shutdown_request("one", ShutdownRequest::Reboot)).unwrap();
    let Reply::Gone { reason: Some(ShutdownReason::Reboot), .. } = lab.wait(client) else {
        panic!("not rebooted");
    };
    lab.settle();
    let Reply::Resolved { domid: second, .. } =
        lab.ask(Request::Resolve { target: "one".to_owned() })
    else {
        panic!("the VM is gone");
    };
    assert_ne!(first, second);
    assert!(lab.host.console(second).contains("eth0: up"));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_guest_that_stops_by_itself_is_cleaned_up() {
    for behaviour in ["crashes", "powers-off"] {
        let mut lab = Lab::seeded(5);
        lab.create(&linux("one", "pvh", behaviour)).unwrap();
        lab.assert_nothing_left();
    }
}

#[test]
fn a_paused_guest_waits_and_continues() {
    let mut lab = Lab::seeded(6);
    let domid = lab.create(&unikernel("one", "pv", "normal")).unwrap();
    let target = || "one".to_owned();
    lab.ask(Request::Pause { target: target() });
    lab.settle();
    assert_eq!(lab.host.console(domid), "");
    lab.ask(Request::Unpause { target: target() });
    lab.settle();
    assert!(lab.host.console(domid).contains("hello"));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn misbehaving_guests_harm_no_others_and_can_be_destroyed() {
    for behaviour in
        ["deaf", "silent", "never-connects", "holds-devices", "breaks-ring", "floods", "toggles"]
    {
        for kind in ["pv", "pvh"] {
            let mut lab = Lab::seeded(7);
            let bad = lab.create(&linux("bad", kind, behaviour)).unwrap();
            lab.settle();
            let good = lab.create(&linux("good", kind, "normal").replace("/disk", "/disk2"));
            assert!(good.is_err(), "there is no second disk");
            let good = lab.create(&unikernel("good", kind, "normal")).unwrap();
            lab.settle();
            assert!(lab.host.console(bad).contains("hello"), "{behaviour}");
            assert!(lab.host.console(good).contains("hello"), "{behaviour}");
            let done = lab.ask(Lab::shutdown_request("good", ShutdownRequest::Poweroff));
            assert!(matches!(done, Reply::Gone { .. }), "{behaviour}: {done:?}");
            lab.destroy("bad");
            // The kernel's notes about devices that failed are its log, and stay.
            lab.assert_nothing_left_but("/local/domain/0/error");
        }
    }
}

#[test]
fn a_backend_without_a_driver_fails_the_create_and_leaves_nothing() {
    for (kind, device) in [(BackendKind::Vbd, "disk xvda"), (BackendKind::Vif, "vif 0")] {
        let config = HostConfig { backends_absent: vec![kind], ..HostConfig::default() };
        let mut lab = Lab::new(config);
        let message = lab.create(&linux("one", "pv", "normal")).unwrap_err();
        assert!(message.contains(device) && message.contains("driver"), "{message}");
        lab.assert_nothing_left();
    }
}

#[test]
fn bad_input_is_refused_by_name_and_leaves_nothing() {
    let good = linux("one", "pv", "normal");
    for (from, to, named) in [
        ("kernel = '/kernel'", "kernel = '/missing'", "/missing"),
        ("kernel = '/kernel'", "kernel = '/no-kernel'", "/no-kernel"),
        ("ramdisk = '/initrd'", "ramdisk = '/missing'", "/missing"),
        ("memory = 16", "memory = 1", "memory"),
        ("memory = 16", "memory = 900000", "memory"),
        ("/disk.raw", "/missing.raw", "/missing.raw"),
        ("/disk.raw", "/directory", "/directory"),
        ("xenbr0", "nobridge", "nobridge"),
    ] {
        let mut lab = Lab::seeded(8);
        let message = lab.create(&good.replace(from, to)).unwrap_err();
        assert!(message.contains(named), "{message}");
        assert!(!message.contains('\n') && message.contains("vm.cfg"), "{message}");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_name_in_use_is_refused_and_the_first_vm_stays() {
    let mut lab = Lab::seeded(9);
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    let message = lab.create(&unikernel("one", "pvh", "normal")).unwrap_err();
    assert!(message.contains("one"), "{message}");
    lab.settle();
    let Reply::Domains(listing) = lab.ask(Request::List) else { panic!("no list") };
    let rows = &listing.rows;
    let names: Vec<_> = rows.iter().map(|row| row.name.as_deref().unwrap_or("?")).collect();
    assert_eq!(names, ["Domain-0", "one"]);
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn the_cost_of_a_create_does_not_grow_with_the_number_of_domains() {
    let mut lab = Lab::seeded(10);
    let mut costs = Vec::new();
    for number in 0..60 {
        let before = lab.daemon.totals.clone();
        lab.create(&unikernel(&format!("vm{number}"), "pv", "normal")).unwrap();
        lab.settle();
        let hypercalls: u64 = lab.daemon.totals.hypercalls.values().sum::<u64>()
            - before.hypercalls.values().sum::<u64>();
        costs.push((hypercalls, lab.daemon.totals.store_messages - before.store_messages));
    }
    assert_eq!(costs[1], costs[59]);
}
