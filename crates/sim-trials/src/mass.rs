//! Many domains die at once: the total cost.

use std::collections::BTreeMap;

use toolstack::plan::Start;
use toolstack::{Reply, Request, xlcfg};
use xen::{DomId, Uuid};

use sim::Daemon;
use sim::kernel_image;
use sim::{HostConfig, SimHost};
use sim::{MachineConfig, Release};

/// Virtual time in which a host must come to rest, in nanoseconds.
const PATIENCE_NS: u64 = 600_000_000_000;

/// Cost of the death of all VMs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bill {
    pub vms: u64,
    /// Of the toolstack, by hypercalls that are no lists.
    pub hypercalls: u64,
    pub lists: u64,
    pub messages: u64,
    /// Of the store, and domains that its lists told of.
    pub store_hypercalls: u64,
    pub entries: u64,
}

fn settle(host: &SimHost, daemon: &mut Daemon) -> Result<(), String> {
    let until = host.now().after(PATIENCE_NS);
    match daemon.run_until_quiet(until) {
        Ok(true) => Ok(()),
        Ok(false) => Err("the host does not come to rest".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn create(number: u16) -> Request {
    let text = format!(
        "name = 'vm{number}'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n\
         extra = 'sim.behaviour=silent'\n"
    );
    let source = xlcfg::Source { file: "mass.cfg", text: &text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).expect("a configuration of our own"));
    let mut uuid = [1; 16];
    uuid[..2].copy_from_slice(&number.to_le_bytes());
    Request::Create { config, fresh_uuid: Uuid(uuid), start: Start::Running }
}

/// Creates this many VMs, destroys all their domains at once without the toolstack, and returns the
/// cost until nothing is left of them.
///
/// # Errors
/// A VM could not be created, or something was left.
pub fn run(release: Release, vms: u16) -> Result<Bill, String> {
    let machine = MachineConfig { release, ..MachineConfig::default() };
    let host = SimHost::boot(HostConfig { machine, ..HostConfig::default() });
    host.os().add_file("/kernel", kernel_image());
    let before = host.snapshot().map_err(|error| error.to_string())?;
    let mut daemon = Daemon::start(&host).map_err(|error| error.to_string())?;
    settle(&host, &mut daemon)?;
    for number in 0..vms {
        let client = daemon.request(create(number)).map_err(|error| error.to_string())?;
        let until = host.now().after(PATIENCE_NS);
        match daemon.wait(client, until).map_err(|error| error.to_string())? {
            Some(Reply::Created(_)) => {}
            other => return Err(format!("vm{number}: {other:?}")),
        }
    }
    settle(&host, &mut daemon)?;
    let totals = |daemon: &Daemon| {
        let calls: &BTreeMap<_, _> = &daemon.totals.hypercalls;
        let lists = calls.get("getdomaininfolist").copied().unwrap_or_default();
        (calls.values().sum::<u64>() - lists, lists, daemon.totals.store_messages)
    };
    let (calls, lists, messages) = totals(&daemon);
    let store_calls = host.store_hypercalls();
    let entries = host.machine().get().entries_listed();
    let domids: Vec<DomId> =
        host.machine().get().domains().map(|it| it.domid).filter(|it| it.0 > 0).collect();
    if domids.len() != usize::from(vms) {
        return Err(format!("{} domains of {vms} VMs", domids.len()));
    }
    for domid in domids {
        host.machine().get_mut().destroy(domid);
    }
    settle(&host, &mut daemon)?;
    let now = host.snapshot().map_err(|error| error.to_string())?;
    let left = now.differences(&before);
    if !left.is_empty() || host.domains_kept() > 0 {
        return Err(format!("left behind: {}", left.join("; ")));
    }
    let after = totals(&daemon);
    Ok(Bill {
        vms: vms.into(),
        hypercalls: after.0 - calls,
        lists: after.1 - lists,
        messages: after.2 - messages,
        store_hypercalls: host.store_hypercalls() - store_calls,
        entries: host.machine().get().entries_listed() - entries,
    })
}

/// Checks that the cost per death does not grow with their number.
///
/// # Errors
/// The cost that grew.
pub fn check(release: Release, few: &Bill, many: &Bill) -> Result<(), String> {
    let told = format!("{release:?}: {few:?}, {many:?}");
    let is_linear = |few_cost: u64, many_cost: u64| many_cost * few.vms <= few_cost * many.vms;
    let holds = [
        ("somebody lists all domains for an event", few.lists == 0 && many.lists == 0),
        ("hypercalls grow", is_linear(few.hypercalls, many.hypercalls)),
        ("messages grow", is_linear(few.messages, many.messages)),
        // If Xen reports changes: two polls per death, each with two calls. Otherwise a few polls,
        // each a list.
        (
            "the store's looks grow",
            if release >= Release::Xen4_21 {
                many.entries == 0 && many.store_hypercalls <= 6 * many.vms + 100
            } else {
                few.entries > 0 && many.entries <= 60 * many.vms
            },
        ),
    ];
    match holds.iter().find(|(_, holds)| !holds) {
        None => Ok(()),
        Some((what, _)) => Err(format!("{what}: {told}")),
    }
}
