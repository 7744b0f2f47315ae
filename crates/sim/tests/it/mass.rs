//! Many domains die at once: what that costs everybody together.

use sim::{HostConfig, MachineConfig, Release};
use xen::DomId;

use crate::support::{Lab, unikernel};

/// What the death of all VMs cost.
#[derive(Debug)]
struct Bill {
    vms: u64,
    /// Of the toolstack, by hypercalls that are no lists.
    hypercalls: u64,
    lists: u64,
    messages: u64,
    /// Of the store, and domains that its lists told of.
    store_hypercalls: u64,
    entries: u64,
}

fn kill_all(release: Release, vms: u16) -> Bill {
    let machine = MachineConfig { release, ..MachineConfig::default() };
    let mut lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
    for number in 0..vms {
        lab.create(&unikernel(&format!("vm{number}"), "pv", "silent")).unwrap();
    }
    lab.settle();
    let totals = |lab: &Lab| {
        let calls = &lab.daemon.totals.hypercalls;
        let lists = calls.get("getdomaininfolist").copied().unwrap_or_default();
        (calls.values().sum::<u64>() - lists, lists, lab.daemon.totals.store_messages)
    };
    let (calls, lists, messages) = totals(&lab);
    let store_calls = lab.host.store_hypercalls();
    let entries = lab.host.machine().get().entries_listed();
    let domids: Vec<DomId> =
        lab.host.machine().get().domains().map(|it| it.domid).filter(|it| it.0 > 0).collect();
    assert_eq!(domids.len(), usize::from(vms));
    for domid in domids {
        lab.host.machine().get_mut().destroy(domid);
    }
    lab.assert_nothing_left();
    assert_eq!(lab.host.domains_kept(), 0);
    let after = totals(&lab);
    Bill {
        vms: vms.into(),
        hypercalls: after.0 - calls,
        lists: after.1 - lists,
        messages: after.2 - messages,
        store_hypercalls: lab.host.store_hypercalls() - store_calls,
        entries: lab.host.machine().get().entries_listed() - entries,
    }
}

#[test]
fn the_death_of_many_costs_as_much_as_that_many_deaths() {
    for release in [Release::Xen4_17, Release::Xen4_22] {
        let (few, many) = (kill_all(release, 10), kill_all(release, 100));
        assert_eq!((few.lists, many.lists), (0, 0), "nobody lists all domains for an event");
        assert_eq!(few.hypercalls / few.vms, many.hypercalls / many.vms, "{few:?} {many:?}");
        assert!(many.messages * few.vms <= few.messages * many.vms, "{few:?} {many:?}");
        if release >= Release::Xen4_21 {
            // What changed, and what it is: twice for each that died and went.
            assert_eq!(many.entries, 0);
            assert!(many.store_hypercalls <= 6 * many.vms + 100, "{many:?}");
        } else {
            // A few looks, each a list.
            assert!(many.entries <= 60 * many.vms, "{many:?}");
            assert!(few.entries > 0);
        }
    }
}
