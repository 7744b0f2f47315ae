//! What a list promises while others create and destroy in the middle of it.

use std::collections::BTreeSet;

use sim::{Faults, HostConfig, Machine, MachineConfig, Release, SimXen};
use toolstack::{Reply, Request};
use xen::{DomId, Uuid, Xen};

use crate::support::{Lab, unikernel};

const RELEASES: [Release; 3] = [Release::Xen4_17, Release::Xen4_20, Release::Xen4_22];

#[test]
fn a_list_is_sorted_without_duplicates_and_has_every_domain_that_stays() {
    for (seed, release) in RELEASES.into_iter().enumerate() {
        let config = MachineConfig {
            release,
            pages: 1 << 16,
            dom0_pages: 1 << 12,
            ..MachineConfig::default()
        };
        let machine = Machine::new(SimXen::new(config, Faults::default(), 42));
        let mut xen = Xen::probe(machine.hypervisor()).unwrap();
        let mut stable = BTreeSet::from([DomId::DOM0]);
        for number in [1, 2, 3, 40, 41, 77, 100, 150, 199, 200, 201, 300] {
            machine.get_mut().take_number(DomId(number), Uuid([1; 16])).unwrap();
            stable.insert(DomId(number));
        }
        machine.get_mut().begin_unrest(DomId(250), seed as u64);
        let mut sizes = BTreeSet::new();
        for _ in 0..400 {
            let before = xen.counters().total();
            let listed: Vec<DomId> = xen.domains().unwrap().iter().map(|info| info.domid).collect();
            assert_eq!(xen.counters().total() - before, 1);
            assert!(listed.is_sorted_by(|a, b| a < b), "{release:?}: {listed:?}");
            let missing: Vec<_> =
                stable.iter().filter(|domid| listed.binary_search(domid).is_err()).collect();
            assert!(missing.is_empty(), "{release:?}: {missing:?} in {listed:?}");
            sizes.insert(listed.len());
        }
        let unrests = machine.get().unrests();
        assert!(unrests > 400 && sizes.len() > 5, "{unrests} came and went, {sizes:?}");
    }
}

#[test]
fn lists_that_are_asked_for_together_are_one() {
    for release in RELEASES {
        let machine = MachineConfig { release, ..MachineConfig::default() };
        let mut lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
        for number in 0..3 {
            lab.create(&unikernel(&format!("vm{number}"), "pv", "normal")).unwrap();
        }
        lab.settle();
        lab.host.machine().get_mut().begin_unrest(DomId(60), 3);
        let lists = |lab: &Lab| {
            lab.daemon.totals.hypercalls.get("getdomaininfolist").copied().unwrap_or_default()
        };
        let before = lists(&lab);
        // The first list may have begun when the others are asked for: those wait for the next.
        let clients: Vec<_> = (0..20).map(|_| lab.daemon.request(Request::List).unwrap()).collect();
        let mut numbers = Vec::new();
        for client in clients {
            let Reply::Domains(listing) = lab.wait(client) else { panic!("no list") };
            let domids: Vec<DomId> = listing.rows.iter().map(|row| row.info.domid).collect();
            assert!(domids.is_sorted_by(|a, b| a < b), "{domids:?}");
            let ours = listing.rows.iter().filter(|row| row.config.is_some()).count();
            assert_eq!(ours, 3, "{release:?}");
            numbers.push(listing.number);
        }
        assert_eq!(lists(&lab) - before, 2, "twenty readers, two lists");
        assert!(numbers[1..].iter().all(|number| *number == numbers[0] + 1), "{numbers:?}");
    }
}
