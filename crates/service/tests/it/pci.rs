//! PCI devices of the host, given to pciback and taken from it.

use api::{Answer, Create, HostRequest, PciRequest, PciRow, Reply, Request, Target};
use sim::{HostConfig, MachineConfig};
use xen::{DomId, PciAddress};
use xenstore::client::Nodes as _;

use crate::door::Client;

const CARD: PciAddress = PciAddress(0x80);
const OTHER: PciAddress = PciAddress(0x81);
const NODES: &str = "/libxl/pci/0000-00-10-0";

/// A host with a card of two functions, of which a driver has the first.
fn host(has_iommu: bool) -> Client {
    let machine = MachineConfig { has_iommu, ..MachineConfig::default() };
    let client = Client::on(HostConfig { seed: 1, machine, ..HostConfig::default() });
    let os = client.host.os();
    os.add_pci_device(CARD, Some("e1000e"));
    os.add_pci_device(OTHER, None);
    client
}

fn with_pciback(has_iommu: bool) -> Client {
    let client = host(has_iommu);
    client.host.os().set_pci_driver("pciback", true);
    client
}

fn ask(client: &Client, request: PciRequest) -> Result<Reply, String> {
    client.ask(Request::Host(HostRequest::Pci(request)))
}

fn add(client: &Client, device: &str, name: Option<&str>) -> Result<Reply, String> {
    let (device, name) = (device.to_owned(), name.map(str::to_owned));
    ask(client, PciRequest::AssignableAdd { device, name })
}

fn remove(client: &Client, device: &str, rebind: bool) -> Result<Reply, String> {
    ask(client, PciRequest::AssignableRemove { device: device.to_owned(), rebind })
}

fn rows(reply: Result<Reply, String>) -> Vec<String> {
    let Ok(Reply::Pci(rows)) = reply else { panic!("{reply:?}") };
    let line = |PciRow { device, name, vdevfn }| format!("{device} {name:?} {vdevfn}");
    rows.into_iter().map(line).collect()
}

fn assignable(client: &Client) -> Vec<String> {
    rows(ask(client, PciRequest::Assignable))
}

fn warnings(client: &Client) -> Vec<String> {
    let line = |answer| match answer {
        Answer::Warning(line) => line,
        other => panic!("{other:?}"),
    };
    client.heard().into_iter().map(line).collect()
}

/// The driver of the card and the domain that Xen says has it.
fn state(client: &Client) -> (Option<String>, Option<DomId>) {
    let owner = client.host.machine().get().owner(CARD);
    (client.host.os().pci_driver(CARD), owner)
}

#[test]
fn a_device_goes_to_pciback_and_into_quarantine_and_back() {
    let client = with_pciback(true);
    assert_eq!(assignable(&client), [""; 0]);
    assert_eq!(add(&client, "00:10.0", Some("card")), Ok(Reply::Done));
    assert_eq!(state(&client), (Some("pciback".to_owned()), Some(DomId::IO)));
    assert_eq!(add(&client, "0000:00:10.1", None), Ok(Reply::Done));
    assert_eq!(
        warnings(&client),
        ["0000:00:10.1: had no driver: pci-assignable-remove will not give it to one"]
    );
    assert_eq!(assignable(&client), ["0000:00:10.0 Some(\"card\") 0", "0000:00:10.1 None 0"]);
    let mut store = client.host.connect_inside();
    let driver = store.read(&format!("{NODES}/driver_path")).unwrap();
    assert_eq!(driver, b"/sys/bus/pci/drivers/e1000e");

    assert_eq!(add(&client, "00:10.0", Some("nic")), Ok(Reply::Done));
    assert_eq!(warnings(&client), ["0000:00:10.0: is assignable already"]);
    assert_eq!(remove(&client, "nic", true), Ok(Reply::Done));
    assert_eq!(state(&client), (Some("e1000e".to_owned()), Some(DomId::DOM0)));
    assert!(store.read(&format!("{NODES}/driver_path")).is_err());
    assert!(store.read(&format!("{NODES}/name")).is_err());
    assert_eq!(remove(&client, "00:10.1", true), Ok(Reply::Done));
    assert_eq!(
        warnings(&client),
        ["0000:00:10.1: has no driver now: it is not known which it had"]
    );
    assert_eq!(assignable(&client), [""; 0]);
    let logged = client.logged().join("\n");
    assert!(logged.contains("this host: pci-assignable-add 0000:00:10.0 by"), "{logged}");
    assert!(logged.contains("this host: pci-assignable-remove \"nic\" by"), "{logged}");
}

#[test]
fn what_cannot_be_assigned_is_refused_and_keeps_its_driver() {
    let refused = |client: &Client, device: &str| add(client, device, None).unwrap_err();
    let none = with_pciback(false);
    assert_eq!(
        refused(&none, "00:10.0"),
        "0000:00:10.0: this host has no IOMMU, or Xen does not use it"
    );
    let unloaded = host(true);
    let not_loaded = "the driver xen-pciback is not loaded: `modprobe xen-pciback` loads it";
    assert_eq!(refused(&unloaded, "00:10.0"), not_loaded);
    assert_eq!(ask(&unloaded, PciRequest::Assignable).unwrap_err(), not_loaded);

    let client = with_pciback(true);
    assert_eq!(refused(&client, "00:11.0"), "0000:00:11.0: this host has no such PCI device");
    assert_eq!(refused(&client, "card"), "\"card\": expected [SEGMENT:]BUS:DEVICE.FUNCTION");
    assert_eq!(refused(&client, "00:10.*"), "00:10.*: is not one function of a device");
    assert!(
        add(&client, "00:10.0", Some("a card")).unwrap_err().contains("is no name of a device")
    );
    assert_eq!(
        remove(&client, "card", false).unwrap_err(),
        "\"card\": no device has this name; `xy pci-assignable-list -n` shows them all"
    );
    assert_eq!(
        remove(&client, "00:10.0", false).unwrap_err(),
        "0000:00:10.0: is not in quarantine; was it made assignable by pci-assignable-add?"
    );
    client.host.os().set_pci_driver("pciback", false);
    assert_eq!(
        refused(&client, "00:10.0"),
        "0000:00:10.0: pciback does not take it: No such device (os error 19); e1000e has it again"
    );
    for client in [none, unloaded, client] {
        assert_eq!(state(&client), (Some("e1000e".to_owned()), Some(DomId::DOM0)));
    }
}

/// As libxl leaves it in the store.
#[test]
fn a_device_of_a_domain_stays_there_and_is_listed() {
    let client = with_pciback(true);
    add(&client, "00:10.0", None).unwrap();
    let mut store = client.host.connect_inside();
    // It left no domain.
    store.write(&format!("{NODES}/domid"), b"7").unwrap();
    assert_eq!(assignable(&client), ["0000:00:10.0 None 0"]);
    store.write(&format!("{NODES}/domid"), b"0").unwrap();
    assert_eq!(assignable(&client), [""; 0]);
    let busy = "0000:00:10.0: domain 0 has it; shut it down first";
    assert_eq!(add(&client, "00:10.0", None).unwrap_err(), busy);
    assert_eq!(remove(&client, "00:10.0", true).unwrap_err(), busy);
    assert_eq!(state(&client), (Some("pciback".to_owned()), Some(DomId::IO)));

    let list = |target: &str| ask(&client, PciRequest::List { target: Target(target.to_owned()) });
    assert_eq!(rows(list("0")), [""; 0]);
    let backend = "/local/domain/0/backend/pci/0/0";
    for (node, value) in [
        ("num_devs", "3"),
        ("dev-0", "0000:00:10.0"),
        ("vdevfn-0", "20"),
        ("name-0", "card"),
        ("dev-1", "0000:00:10.1"),
        ("dev-2", "what"),
    ] {
        store.write(&format!("{backend}/{node}"), value.as_bytes()).unwrap();
    }
    assert_eq!(rows(list("0")), ["0000:00:10.0 Some(\"card\") 32", "0000:00:10.1 None 0"]);
    assert!(list("nobody").is_err());
}

/// A daemon that is killed leaves what the same request completes.
#[test]
fn what_a_killed_daemon_leaves_is_completed() {
    for actions in 1..=3 {
        let client = with_pciback(true);
        let os = client.host.os();
        // As after so many steps.
        let mut store = client.host.connect_inside();
        let path = format!("{NODES}/driver_path");
        store.write(&path, b"/sys/bus/pci/drivers/e1000e").unwrap();
        if actions > 1 {
            os.add_pci_device(CARD, None);
        }
        if actions > 2 {
            os.set_pci_slot(CARD);
        }
        assert_eq!(add(&client, "00:10.0", None), Ok(Reply::Done));
        assert_eq!(warnings(&client), [""; 0]);
        assert_eq!(remove(&client, "00:10.0", true), Ok(Reply::Done));
        assert_eq!(state(&client), (Some("e1000e".to_owned()), Some(DomId::DOM0)));
    }
}

#[test]
fn a_running_vm_gets_devices_by_name_and_address_and_loses_them_by_either() {
    let client = with_pciback(true);
    add(&client, "00:10.0", Some("card")).unwrap();
    add(&client, "00:10.1", None).unwrap();
    let config_text = "name = 'one'\nkernel = 'kernel'\nramdisk = 'initrd'\nmemory = 16\ntype = 'pv'\n\
                       cmdline = 'sim=normal'\npci = ['00:10.1']\n";
    let create = Create {
        file: "one.cfg".to_owned(),
        config_text: config_text.to_owned(),
        cwd: "/vm".to_owned(),
        ..Create::default()
    };
    client.ask(Request::Create(create)).unwrap();
    client.settle();
    let one = || Target("one".to_owned());
    let attach = |device: &str| {
        ask(&client, PciRequest::Attach { target: one(), device: device.to_owned() })
    };
    let detach = |device: &str, force| {
        ask(&client, PciRequest::Detach { target: one(), device: device.to_owned(), force })
    };
    let list = || rows(ask(&client, PciRequest::List { target: one() }));
    assert_eq!(attach("name=card,vslot=7"), Ok(Reply::Done));
    assert_eq!(list(), ["0000:00:10.1 None 0", "0000:00:10.0 Some(\"card\") 56"]);
    assert_eq!(detach("00:10.0", false), Ok(Reply::Done));
    assert_eq!(attach("00:10.0"), Ok(Reply::Done));
    assert_eq!(detach("name=card", false), Ok(Reply::Done));
    assert_eq!(
        detach("name=card", false).unwrap_err(),
        "one: has no PCI device 0000:00:10.0; `xy pci-list one` shows them"
    );
    assert_eq!(
        detach("name=nic", false).unwrap_err(),
        "\"nic\": no device has this name; `xy pci-assignable-list -n` shows them all"
    );
    assert_eq!(attach("00:10.0"), Ok(Reply::Done));
    assert_eq!(detach("0000:00:10.0", true), Ok(Reply::Done));
    assert_eq!(list(), ["0000:00:10.1 None 0"]);
    for (result, why) in [
        (attach("00:10"), "pci: \"00:10\": expected KEY=VALUE"),
        (detach("00:1f.9", false), "pci: \"00:1f.9\": expected KEY=VALUE"),
        (attach("00:10.0,slot=5"), "pci: \"slot\": expected bdf, name"),
    ] {
        let message = result.unwrap_err();
        assert!(message.starts_with(why), "{message}");
    }
    let nobody =
        PciRequest::Attach { target: Target("two".to_owned()), device: "00:10.0".to_owned() };
    assert!(ask(&client, nobody).unwrap_err().starts_with("two: "));
}
