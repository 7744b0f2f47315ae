//! PCI devices that come to running guests and go from them.

use sim::{PCI_INTERRUPT, pci_regions};
use toolstack::plan::Unplug;
use toolstack::{Device, Reply, Request, ShutdownRequest, xlcfg};
use xen::{DomId, PciAddress};

use crate::faults::killed_at;
use crate::pci::{CARD, OTHER, SECOND, lab, owner, read, vm};
use crate::support::{A_WHILE, Lab, linux};

fn attach(spec: &str) -> Request {
    let device = Device::Pci(0, xlcfg::parse_pci(spec).unwrap());
    Request::Plug { target: "one".to_owned(), device: Box::new(device) }
}

fn detach(spec: &str, how: Unplug) -> Request {
    let entry = xlcfg::parse_pci(spec).unwrap().name;
    Request::UnplugPci { target: "one".to_owned(), entry, how }
}

#[track_caller]
fn done(lab: &mut Lab, request: Request) {
    let reply = lab.ask(request);
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    lab.settle();
}

#[track_caller]
fn refused(lab: &mut Lab, request: Request, why: &str) {
    let reply = lab.ask(request);
    assert!(matches!(&reply, Reply::Failed(message) if message == why), "{reply:?}");
    lab.settle();
}

/// A node of the backend.
fn node(lab: &Lab, domid: DomId, node: &str) -> Option<String> {
    read(lab, &format!("/local/domain/0/backend/pci/{domid}/0/{node}"))
}

fn may_use(lab: &Lab, domid: DomId, device: PciAddress) -> bool {
    lab.host.machine().get().may_use(domid, &pci_regions(device), PCI_INTERRUPT)
}

fn config(lab: &mut Lab) -> String {
    match lab.ask(Request::ConfigText { target: "one".to_owned() }) {
        Reply::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

/// A guest that can get devices, and has none.
fn bare() -> String {
    format!("{}passthrough = \"enabled\"\n", linux("one", "pv", "normal"))
}

#[test]
fn a_running_guest_gets_devices_and_gives_them_back() {
    let mut lab = lab();
    let domid = lab.create(&bare()).unwrap();
    lab.settle();
    done(&mut lab, attach("name=card"));
    assert_eq!(owner(&lab, CARD), domid);
    assert_eq!(
        ["num_devs", "dev-0", "name-0", "state"].map(|it| node(&lab, domid, it)),
        [
            Some("1".to_owned()),
            Some("0000:00:10.0".to_owned()),
            Some("card".to_owned()),
            Some("4".to_owned()),
        ]
    );
    done(&mut lab, attach("00:10.1@5,permissive=1"));
    assert!(may_use(&lab, domid, SECOND));
    assert!(lab.host.os().is_pci_exported(SECOND) && lab.host.os().is_pci_permissive(SECOND));
    assert_eq!(
        ["num_devs", "dev-1", "vdevfn-1", "state"].map(|it| node(&lab, domid, it)),
        [
            Some("2".to_owned()),
            Some("0000:00:10.1".to_owned()),
            Some("28".to_owned()),
            Some("4".to_owned()),
        ]
    );
    assert!(config(&mut lab).contains("name=card"), "{}", config(&mut lab));

    done(&mut lab, detach("name=card", Unplug::Clean));
    assert_eq!([CARD, SECOND].map(|it| owner(&lab, it)), [DomId::IO, domid]);
    assert!(!lab.host.os().is_pci_exported(CARD));
    assert!(!may_use(&lab, domid, CARD));
    assert!(may_use(&lab, domid, SECOND), "its interrupt is the same");
    let left = ["num_devs", "dev-0", "vdevfn-0", "name-0", "dev-1", "vdevfn-1", "opts-1"];
    assert_eq!(
        left.map(|it| node(&lab, domid, it)),
        [
            Some("1".to_owned()),
            Some("0000:00:10.1".to_owned()),
            Some("28".to_owned()),
            None,
            None,
            None,
            None,
        ]
    );
    assert_eq!(read(&lab, "/libxl/pci/0000-00-10-0/domid"), None);

    done(&mut lab, detach("00:10.1", Unplug::Clean));
    assert_eq!(owner(&lab, SECOND), DomId::IO);
    assert!(!may_use(&lab, domid, SECOND));
    assert_eq!(read(&lab, "/local/domain/0/backend/pci"), None);
    assert_eq!(read(&lab, &format!("/local/domain/{domid}/device/pci")), None);
    // Its domain can have others.
    done(&mut lab, attach("00:10.*@6"));
    assert_eq!([CARD, SECOND].map(|it| owner(&lab, it)), [domid; 2]);
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    assert_ne!(owner(&lab, CARD), domid, "its next domain has it");
    assert_eq!(owner(&lab, CARD), owner(&lab, SECOND));
    lab.destroy("one");
    assert_eq!([CARD, SECOND].map(|it| owner(&lab, it)), [DomId::IO; 2]);
    lab.assert_nothing_left();
}

#[test]
fn what_a_running_guest_cannot_have_is_named_and_it_keeps_what_it_has() {
    let mut lab = lab();
    let domid = lab.create(&vm("'00:10.0'")).unwrap();
    lab.settle();
    for (request, why) in [
        (
            attach("00:10.0"),
            format!("one: 0000:00:10.0: domain {domid} has it; shut it down first"),
        ),
        (attach("00:12.0"), "one: 0000:00:12.0: this host has no such PCI device".to_owned()),
        (
            attach("00:11.0"),
            "one: 0000:00:11.0: is not assignable, it has the driver nvme; \
             `xy pci-assignable-add 0000:00:11.0` makes it so"
                .to_owned(),
        ),
        (
            detach("00:10.1", Unplug::Clean),
            "one: has no PCI device 0000:00:10.1; `xy pci-list one` shows them".to_owned(),
        ),
    ] {
        refused(&mut lab, request, &why);
    }
    done(&mut lab, detach("00:10.0", Unplug::Clean));
    done(&mut lab, attach("00:10.*@6"));
    refused(
        &mut lab,
        detach("00:10.1", Unplug::Clean),
        "one: has 0000:00:10.1 as a part of 0000:00:10.*, which is detached as a whole",
    );
    done(&mut lab, attach("00:11.0,seize=1"));
    assert_eq!(owner(&lab, OTHER), domid);
    lab.destroy("one");
    lab.create(&linux("one", "pv", "normal")).unwrap();
    refused(
        &mut lab,
        attach("00:10.0"),
        "one: was started without passthrough; set passthrough = \"enabled\" and start it anew",
    );
    lab.destroy("one");
    lab.create(&linux("one", "pvh", "normal")).unwrap();
    refused(
        &mut lab,
        attach("00:10.0"),
        "one: PVH domains get no devices of the host: Xen gives them none yet",
    );
    lab.destroy("one");
    lab.assert_nothing_left_but("/libxl/pci/0000-00-11-0");
}

#[test]
fn a_guest_that_lets_go_of_nothing_is_told_and_loses_it_by_force() {
    let mut lab = lab();
    let text = format!("{}pci = ['00:10.0']\n", linux("one", "pv", "holds-devices"));
    let domid = lab.create(&text).unwrap();
    lab.settle();
    refused(
        &mut lab,
        attach("00:10.1"),
        "the guest did not connect its PCI devices within 10 s; does its kernel have xen-pcifront?",
    );
    lab.pass(60 * A_WHILE);
    assert_eq!([CARD, SECOND].map(|it| owner(&lab, it)), [domid, DomId::IO]);
    assert_eq!(node(&lab, domid, "num_devs").as_deref(), Some("1"));
    assert!(!config(&mut lab).contains("00:10.1"));
    done(&mut lab, detach("00:10.0", Unplug::Forced));
    assert_eq!(owner(&lab, CARD), DomId::IO);
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn whenever_the_daemon_is_killed_in_an_attach_the_device_is_the_guests_or_in_quarantine() {
    let (mut whole, mut nothing) = (0, 0);
    for k in 1.. {
        let mut lab = lab();
        let domid = lab.create(&vm("'00:10.0'")).unwrap();
        lab.settle();
        let is_killed = killed_at(&mut lab, k, attach("00:10.1"));
        lab.settle();
        let has_it = config(&mut lab).contains("00:10.1");
        let expected = if has_it { domid } else { DomId::IO };
        assert_eq!(owner(&lab, SECOND), expected, "killed at {k}");
        assert_eq!(lab.host.os().is_pci_exported(SECOND), has_it, "killed at {k}");
        match has_it {
            true => whole += 1,
            false => nothing += 1,
        }
        if has_it {
            done(&mut lab, detach("00:10.1", Unplug::Clean));
        }
        done(&mut lab, attach("00:10.1"));
        lab.destroy("one");
        assert_eq!([CARD, SECOND].map(|it| owner(&lab, it)), [DomId::IO; 2]);
        lab.assert_nothing_left();
        if !is_killed {
            break;
        }
    }
    assert!(whole > 5 && nothing > 1, "{whole} whole, {nothing} nothing");
}

#[test]
fn whenever_the_daemon_is_killed_in_a_detach_a_second_one_completes_it() {
    for (how, first) in [(Unplug::Clean, true), (Unplug::Forced, false)] {
        for k in 1.. {
            let mut lab = lab();
            let domid = lab.create(&vm("'00:10.0', '00:10.1@5'")).unwrap();
            lab.settle();
            let (gone, kept) = if first { (CARD, SECOND) } else { (SECOND, CARD) };
            let spec = if first { "00:10.0" } else { "00:10.1" };
            let is_killed = killed_at(&mut lab, k, detach(spec, how));
            lab.settle();
            if config(&mut lab).contains(spec) {
                done(&mut lab, detach(spec, how));
            }
            assert_eq!([gone, kept].map(|it| owner(&lab, it)), [DomId::IO, domid], "killed at {k}");
            assert_eq!(node(&lab, domid, "num_devs").as_deref(), Some("1"), "killed at {k}");
            assert!(!lab.host.os().is_pci_exported(gone), "killed at {k}");
            assert_eq!(read(&lab, &format!("/local/domain/0/backend/pci/{domid}/0/dev-1")), None);
            lab.destroy("one");
            lab.assert_nothing_left();
            if !is_killed {
                break;
            }
        }
    }
}
