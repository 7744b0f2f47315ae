//! Domain 0 owns all memory and gives it to VMs, within its limits.

use sim::{Giving, HostConfig, MachineConfig};
use toolstack::balloon::{Autoballoon, Dom0Policy};
use toolstack::{ClientId, Reply, Request};
use xen::DomId;
use xenstore::client::Nodes as _;

use crate::support::{Lab, unikernel};

const MIB: u64 = 1 << 8;
const DOM0_MIB: u64 = 1024;

/// A host whose dom0 has all memory but a few MiB.
fn lab(seed: u64, least_mib: u64, has_driver: bool) -> Lab {
    let pages = (DOM0_MIB + 8) * MIB;
    let machine = MachineConfig { pages, dom0_pages: DOM0_MIB * MIB, ..MachineConfig::default() };
    let policy = Dom0Policy {
        autoballoon: Autoballoon::On,
        least_kib: least_mib << 10,
        available_kib: None,
    };
    let dom0 = Some(Giving { policy, has_driver });
    Lab::new(HostConfig { machine, seed, dom0, ..HostConfig::default() })
}

fn of_mib(name: &str, kind: &str, mib: u64) -> String {
    unikernel(name, kind, "normal").replace("memory = 8", &format!("memory = {mib}"))
}

fn dom0_mib(lab: &Lab) -> u64 {
    lab.host.machine().get().domain(DomId::DOM0).unwrap().pages / MIB
}

fn target_kib(lab: &Lab) -> Option<u64> {
    let value = lab.host.connect().read_optional("/local/domain/0/memory/target").unwrap()?;
    String::from_utf8(value).unwrap().parse().ok()
}

#[test]
fn dom0_gives_what_is_missing_and_no_more() {
    for kind in ["pv", "pvh"] {
        let mut lab = lab(1, 512, true);
        lab.create(&of_mib("one", kind, 200)).unwrap();
        let after_one = dom0_mib(&lab);
        assert!((DOM0_MIB - 215..=DOM0_MIB - 190).contains(&after_one), "{after_one}");
        assert_eq!(
            target_kib(&lab),
            Some(lab.host.machine().get().domain(DomId::DOM0).unwrap().pages * 4)
        );
        // What a VM gives back is used first.
        lab.destroy("one");
        lab.create(&of_mib("two", kind, 150)).unwrap();
        assert_eq!(dom0_mib(&lab), after_one);
    }
}

#[test]
fn dom0_keeps_its_least_and_what_is_missing_is_said_at_once() {
    let mut lab = lab(2, 900, true);
    let error = lab.create(&of_mib("large", "pv", 300)).unwrap_err();
    assert!(error.contains("and domain 0 can give 124 MiB: 1"), "{error}");
    assert!(error.contains(" MiB are missing; stop another VM or reduce memory"), "{error}");
    assert_eq!((dom0_mib(&lab), target_kib(&lab)), (DOM0_MIB, None));
    lab.create(&of_mib("small", "pv", 100)).unwrap();
}

#[test]
fn of_creates_side_by_side_none_counts_the_memory_of_another() {
    for seed in 0..6 {
        let mut lab = lab(seed, 400, true);
        let asked: Vec<ClientId> = (0..5)
            .map(|number| {
                let kind = if number % 2 == 0 { "pv" } else { "pvh" };
                let request = lab.create_request(&of_mib(&format!("vm{number}"), kind, 110));
                lab.daemon.request(request).unwrap()
            })
            .collect();
        for client in asked {
            let reply = lab.wait(client);
            assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
        }
        assert!(dom0_mib(&lab) >= 400, "{}", dom0_mib(&lab));
    }
}

#[test]
fn a_dom0_that_does_not_obey_fails_the_create_and_keeps_its_target() {
    let mut lab = lab(3, 512, false);
    let error = lab.create(&of_mib("one", "pv", 200)).unwrap_err();
    assert!(error.contains("domain 0 does not give more: it has 1024 MiB"), "{error}");
    assert_eq!(target_kib(&lab), Some(DOM0_MIB << 10));
    assert_eq!(dom0_mib(&lab), DOM0_MIB);
    assert_eq!(lab.host.machine().get().pages_claimed(), 0);
    let Reply::Domains(listing) = lab.ask(Request::List) else { panic!("no list") };
    assert_eq!(listing.rows.len(), 1);
}
