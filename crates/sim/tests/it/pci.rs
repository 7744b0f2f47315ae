//! PV guests with devices of the host.

use sim::{HostConfig, MachineConfig, PCI_INTERRUPT, pci_regions};
use toolstack::pci::{PciAsk, Wanted};
use toolstack::tuning::Tuning;
use toolstack::xen_host::HostAsk;
use toolstack::{Reply, Request, ShutdownRequest, xlcfg};
use xen::{DomId, PciAddress};
use xenstore::client::Nodes as _;

use crate::faults::killed_at;
use crate::support::{Lab, linux, unikernel};

pub(crate) const CARD: PciAddress = PciAddress(0x80);
pub(crate) const SECOND: PciAddress = PciAddress(0x81);
pub(crate) const OTHER: PciAddress = PciAddress(0x88);

/// A host with a card of two functions that can be assigned, and a device that its driver has.
pub(crate) fn lab() -> Lab {
    let machine = MachineConfig { has_iommu: true, ..MachineConfig::default() };
    let mut lab = Lab::new(HostConfig { seed: 1, machine, ..HostConfig::default() });
    let os = lab.host.os();
    os.set_pci_driver("pciback", true);
    os.add_pci_device(CARD, Some("e1000e"));
    os.add_pci_device(SECOND, Some("e1000e"));
    os.add_pci_device(OTHER, Some("nvme"));
    for (device, name) in [(CARD, Some("card")), (SECOND, None)] {
        let name = name.map(str::to_owned);
        let ask = PciAsk::MakeAssignable { device, name };
        let reply = lab.ask(Request::Host(Box::new(HostAsk::Pci(ask))));
        assert!(matches!(reply, Reply::Host(_)), "{reply:?}");
    }
    lab.settle();
    lab.before = lab.host.snapshot().unwrap();
    lab
}

pub(crate) fn vm(pci: &str) -> String {
    format!("{}pci = [{pci}]\n", linux("one", "pv", "normal"))
}

pub(crate) fn owner(lab: &Lab, device: PciAddress) -> DomId {
    lab.host.machine().get().owner(device).unwrap()
}

pub(crate) fn read(lab: &Lab, path: &str) -> Option<String> {
    let value = lab.host.connect_inside().read(path).ok()?;
    Some(String::from_utf8(value).unwrap())
}

#[test]
fn a_guest_has_its_devices_until_it_ends() {
    let mut lab = lab();
    let domid = lab.create(&vm("'name=card,permissive=1', '00:10.1@5,msitranslate=1'")).unwrap();
    lab.settle();
    let backend = format!("/local/domain/0/backend/pci/{domid}/0");
    for (node, value) in [
        ("num_devs", "2"),
        ("dev-0", "0000:00:10.0"),
        ("key-0", "0000:00:10.0"),
        ("name-0", "card"),
        ("opts-0", "msitranslate=0,power_mgmt=0,permissive=1,rdm_policy=strict"),
        ("dev-1", "0000:00:10.1"),
        ("vdevfn-1", "28"),
        ("opts-1", "msitranslate=1,power_mgmt=0,permissive=0,rdm_policy=strict"),
        ("frontend", &format!("/local/domain/{domid}/device/pci/0")),
        ("frontend-id", &domid.to_string()),
    ] {
        assert_eq!(read(&lab, &format!("{backend}/{node}")).as_deref(), Some(value), "{node}");
    }
    let xen = lab.host.machine();
    for device in [CARD, SECOND] {
        assert_eq!(owner(&lab, device), domid);
        assert!(xen.get().may_use(domid, &pci_regions(device), PCI_INTERRUPT));
        assert_eq!(lab.host.os().pci_resets(device), 1);
    }
    assert_eq!([CARD, SECOND].map(|device| lab.host.os().is_pci_permissive(device)), [true, false]);
    assert_eq!(read(&lab, "/libxl/pci/0000-00-10-0/domid"), Some(domid.to_string()));

    let refused = lab.ask(Request::Host(Box::new(HostAsk::Pci(PciAsk::Return {
        device: Wanted { text: "card".to_owned(), address: None },
        rebind: true,
    }))));
    let busy = format!("0000:00:10.0: domain {domid} has it; shut it down first");
    assert!(matches!(&refused, Reply::Failed(why) if *why == busy), "{refused:?}");

    lab.destroy("one");
    lab.assert_nothing_left();
    for device in [CARD, SECOND] {
        assert_eq!(owner(&lab, device), DomId::IO);
        assert_eq!(lab.host.os().pci_resets(device), 2);
    }
}

#[test]
fn a_reboot_gives_the_next_domain_the_same_devices() {
    let mut lab = lab();
    let first = lab.create(&vm("'00:10.*@6'")).unwrap();
    lab.settle();
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    let Reply::Resolved { domid, .. } = lab.ask(Request::Resolve { target: "one".to_owned() })
    else {
        panic!("it is gone")
    };
    assert_ne!(domid, first);
    assert_eq!([CARD, SECOND].map(|device| owner(&lab, device)), [domid; 2]);
    let slot = |index| read(&lab, &format!("/local/domain/0/backend/pci/{domid}/0/vdevfn-{index}"));
    assert_eq!([slot(0), slot(1)], [Some("30".to_owned()), Some("31".to_owned())]);
    assert_eq!(read(&lab, "/libxl/pci/0000-00-10-1/domid"), Some(domid.to_string()));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_device_is_seized_from_its_driver_if_the_file_says_so() {
    let mut lab = lab();
    let domid = lab.create(&vm("'00:11.0,seize=1'")).unwrap();
    assert_eq!(owner(&lab, OTHER), domid);
    lab.destroy("one");
    // It stays assignable, with its driver on record.
    assert_eq!(lab.host.os().pci_driver(OTHER).as_deref(), Some("pciback"));
    lab.assert_nothing_left_but("/libxl/pci/0000-00-11-0");
}

#[test]
fn what_a_guest_cannot_have_is_named_and_nothing_is_made() {
    let mut lab = lab();
    let neighbour = format!("{}pci = ['00:10.0']\n", unikernel("neighbour", "pv", "normal"));
    let domid = lab.create(&neighbour).unwrap();
    lab.settle();
    for (pci, why) in [
        (
            "'00:12.0'",
            "vm.cfg:10: pci[0]: 0000:00:12.0: this host has no such PCI device".to_owned(),
        ),
        (
            "'00:11.0'",
            "vm.cfg:10: pci[0]: 0000:00:11.0: is not assignable, it has the driver nvme; \
             `xy pci-assignable-add 0000:00:11.0` makes it so"
                .to_owned(),
        ),
        (
            "'00:10.1', '00:10.0'",
            format!("vm.cfg:10: pci[1]: 0000:00:10.0: domain {domid} has it; shut it down first"),
        ),
        ("'00:10.1', '00:10.1'", "vm.cfg:10: pci[1]: 0000:00:10.1: is named twice".to_owned()),
        (
            "'name=nic'",
            "vm.cfg:10: pci[0]: \"nic\": no device has this name; \
             `xy pci-assignable-list -n` shows them all"
                .to_owned(),
        ),
        (
            "'00:10.*'",
            "vm.cfg:10: pci[0]: 0000:00:10.*: all functions of a device need a slot on the guest's \
             bus: @SLOT or vslot"
                .to_owned(),
        ),
    ] {
        assert_eq!(lab.create(&vm(pci)).unwrap_err(), why);
    }
    assert_eq!(owner(&lab, SECOND), DomId::IO);
    lab.destroy("neighbour");
    lab.assert_nothing_left();
}

#[test]
fn a_guest_with_devices_stays_on_its_host() {
    let mut lab = lab();
    lab.create(&vm("'00:10.0'")).unwrap();
    lab.settle();
    let Reply::Failed(why) = lab.ask(Request::Checkpoint {
        target: "one".to_owned(),
        name: "now".to_owned(),
        id: xen::Uuid([7; 16]),
    }) else {
        panic!("it was saved")
    };
    assert_eq!(why, "one: has PCI devices of this host, which can be neither saved nor moved");
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn whenever_the_daemon_is_killed_a_device_is_the_guests_or_in_quarantine() {
    let (mut whole, mut nothing) = (0, 0);
    for k in 1.. {
        let mut lab = lab();
        let request = lab.create_request(&vm("'00:10.0'"));
        let is_killed = killed_at(&mut lab, k, request);
        let reply = lab.ask(Request::Resolve { target: "one".to_owned() });
        if let Reply::Resolved { domid, .. } = reply {
            whole += 1;
            assert_eq!(owner(&lab, CARD), domid);
            lab.destroy("one");
        } else {
            nothing += 1;
        }
        assert_eq!(owner(&lab, CARD), DomId::IO);
        lab.assert_nothing_left();
        // It can be had again.
        lab.create(&vm("'00:10.0'")).unwrap();
        if !is_killed {
            break;
        }
    }
    assert!(whole > 1 && nothing > 15, "{whole} whole, {nothing} nothing");
}

#[test]
fn whenever_the_daemon_is_killed_in_a_destroy_a_second_one_returns_the_device() {
    for k in 1.. {
        let mut lab = lab();
        lab.create(&vm("'00:10.0'")).unwrap();
        lab.settle();
        let is_killed = killed_at(&mut lab, k, Request::Destroy { target: "one".to_owned() });
        lab.destroy("one");
        assert_eq!(owner(&lab, CARD), DomId::IO);
        // Directories that the dead daemon emptied go with the next VM.
        lab.create(&vm("'00:10.0'")).unwrap();
        lab.destroy("one");
        lab.assert_nothing_left();
        if !is_killed {
            break;
        }
    }
}

#[test]
fn a_next_configuration_without_devices_gives_them_back_at_the_reboot() {
    let mut lab = lab();
    lab.create(&vm("'00:10.0'")).unwrap();
    lab.settle();
    let text = linux("one", "pv", "normal");
    let source = xlcfg::Source { file: "next.cfg", text: &text, overrides: &[] };
    let tuning = Tuning::NextConfig(Box::new(xlcfg::parse(source).unwrap()));
    let reply = lab.ask(Request::Tune { target: "one".to_owned(), tuning });
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    assert_eq!(owner(&lab, CARD), DomId::IO);
    assert_eq!(read(&lab, "/local/domain/0/backend/pci"), None);
    assert_eq!(read(&lab, "/libxl/pci/0000-00-10-0/domid"), None);
    assert!(!lab.host.os().is_pci_exported(CARD));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn an_hvm_guest_has_devices_by_its_device_model() {
    let mut lab = lab();
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    let text = "name = 'one'\ntype = 'hvm'\nmemory = 64\ndisk = ['/disk.raw,raw,hda,w']\n\
                pci = ['name=card,permissive=1', '00:10.1@9']\n";
    let domid = lab.create(text).unwrap();
    lab.settle();
    assert_eq!([CARD, SECOND].map(|device| owner(&lab, device)), [domid; 2]);
    let place =
        |index| read(&lab, &format!("/local/domain/0/backend/pci/{domid}/0/vdevfn-{index}"));
    assert_eq!([place(0), place(1)], [Some("20".to_owned()), Some("48".to_owned())]);
    lab.destroy("one");
    assert_eq!([CARD, SECOND].map(|device| owner(&lab, device)), [DomId::IO; 2]);
    lab.assert_nothing_left();
}
