//! What a list promises while others create and destroy in the middle of it.

use sim::{HostConfig, MachineConfig, Release, Schedule};
use toolstack::{Reply, Request};
use xen::DomId;

use crate::support::{Lab, unikernel};

const RELEASES: [Release; 3] = [Release::Xen4_17, Release::Xen4_20, Release::Xen4_22];

#[test]
fn concurrent_list_requests_share_one_list() {
    for release in RELEASES {
        let machine = MachineConfig { release, ..MachineConfig::default() };
        let mut lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
        for number in 0..3 {
            lab.create(&unikernel(&format!("vm{number}"), "pv", "normal")).unwrap();
        }
        lab.settle();
        lab.host.machine().get_mut().begin_unrest(DomId(60), Schedule::Scattered, 3);
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
