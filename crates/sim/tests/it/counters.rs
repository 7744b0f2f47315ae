//! What an operation costs the store: a create commits at most twice, a look asks nothing.

use sim::{Daemon, HostConfig, MachineConfig};
use toolstack::work::Cost;
use toolstack::{Reply, Request, Wanted};

use crate::support::Lab;

/// A guest with that many disks, and vifs to make it up to 16 devices.
fn guest(name: &str, disks: usize, vifs: usize) -> String {
    let disk = |n: u8| format!("'/disks/{name}-{n}.raw,raw,xvd{},w'", char::from(b'a' + n));
    let disks: Vec<String> = (0..u8::try_from(disks).unwrap()).map(disk).collect();
    let vifs = vec!["'bridge=xenbr0'"; vifs];
    format!(
        "name = '{name}'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 16\nextra = 'sim.kind=linux'\n\
         disk = [{}]\nvif = [{}]\n",
        disks.join(", "),
        vifs.join(", ")
    )
}

fn lab() -> Lab {
    let lab = Lab::new(HostConfig { machine: MachineConfig::default(), ..HostConfig::default() });
    for (name, disk) in ["vm", "other"].iter().flat_map(|it| (0..16).map(move |n| (it, n))) {
        lab.host.os().add_disk(&format!("/disks/{name}-{disk}.raw"), 1 << 20);
    }
    lab
}

/// What a request costs the store, with all that follows from it.
fn cost(lab: &mut Lab, request: Request) -> (Reply, Cost) {
    lab.settle();
    lab.daemon.totals = Cost::default();
    let reply = lab.ask(request);
    lab.settle();
    (reply, lab.daemon.totals.clone())
}

/// On our store, and on one that knows no batches, where each commit is a transaction of its own.
fn on_both_stores(check: impl Fn(&mut Lab, &str)) {
    check(&mut lab(), "ours");
    let mut other = lab();
    other.daemon = Daemon::start_without_batches(&other.host).unwrap();
    check(&mut other, "another");
}

#[test]
fn a_create_with_up_to_16_devices_takes_at_most_two_transactions() {
    for (disks, vifs) in [(0, 0), (1, 1), (8, 1), (15, 1), (12, 4)] {
        on_both_stores(|lab, store| {
            let request = lab.create_request(&guest("vm", disks, vifs));
            let (reply, cost) = cost(lab, request);
            let Reply::Created(created) = reply else { panic!("{reply:?}") };
            let what = format!("{disks} disks, {vifs} vifs, {store}: {cost:?}");
            // On ours the commit is a batch, which is none.
            let least = u64::from(store != "ours");
            assert!((least..=2).contains(&created.cost.transactions), "{what}");
            assert!((least..=2).contains(&cost.transactions), "{what}");
            assert_eq!(cost.conflicts, 0, "{what}");
        });
    }
}

#[test]
fn a_look_at_vms_asks_nothing_of_the_store() {
    on_both_stores(|lab, store| {
        lab.create(&guest("vm", 2, 1)).unwrap();
        lab.create(&guest("other", 0, 1)).unwrap();
        let Reply::Resolved { domid, uuid, .. } =
            lab.ask(Request::Resolve { target: "vm".to_owned() })
        else {
            panic!("there is no vm")
        };
        for (what, request) in [
            ("list", Request::List),
            ("info", Request::HostInfo),
            ("dominfo by number", Request::Find { wanted: Wanted::Number(domid) }),
            ("dominfo by UUID", Request::Find { wanted: Wanted::Handle(uuid) }),
            ("vm-list", Request::Vms),
            ("vcpu-list", Request::Vcpus { of: vec![(domid, uuid)] }),
        ] {
            let (reply, cost) = cost(lab, request);
            assert!(!matches!(reply, Reply::Failed(_)), "{what}: {reply:?}");
            let store_cost = (cost.transactions, cost.store_messages, cost.store_round_trips);
            assert_eq!(store_cost, (0, 0, 0), "{what} on {store} store");
        }
    });
}
