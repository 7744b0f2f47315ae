//! Lists of all domains while others are created and destroyed.

use std::collections::BTreeSet;

use xen::{DomId, DomainInfo, Uuid, Xen};

use sim::Faults;
use sim::{Machine, MachineConfig, Release, Schedule, SimHypervisor, SimXen, UNREST_HANDLE};

/// Permanent domains: neighbours, single ones, and one above all changing ones.
const STABLE: [u16; 12] = [1, 2, 3, 20, 21, 37, 50, 64, 65, 66, 99, 150];
const STABLE_HANDLE: Uuid = Uuid([1; 16]);
/// Domids up to this one are created and destroyed.
const LAST: DomId = DomId(100);

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub lists: u64,
    /// Entries in all lists.
    pub entries: u64,
    /// Domains created or destroyed during a list.
    pub unrests: u64,
    /// Lists with as many entries as the previous one.
    pub same_sizes: u64,
}

/// Makes this many lists on a host of this release, with concurrent changes by the schedule.
///
/// # Errors
/// The fault of the first wrong list.
pub fn run(release: Release, schedule: Schedule, lists: u64, seed: u64) -> Result<Tally, String> {
    let config =
        MachineConfig { release, pages: 1 << 16, dom0_pages: 1 << 12, ..MachineConfig::default() };
    let machine = Machine::new(SimXen::new(config, Faults::default(), seed));
    let mut xen = Xen::probe(machine.hypervisor()).map_err(|error| error.to_string())?;
    let mut stable = BTreeSet::from([DomId::DOM0]);
    for domid in STABLE.map(DomId) {
        let taken = machine.get_mut().take_number(domid, STABLE_HANDLE);
        taken.map_err(|errno| format!("domain {domid}: {errno}"))?;
        stable.insert(domid);
    }
    machine.get_mut().begin_unrest(LAST, schedule, seed);
    let mut tally = Tally::default();
    let mut size = 0;
    for number in 0..lists {
        let listed = list(&mut xen, &stable).map_err(|why| {
            format!("{release:?}, {schedule:?}, seed {seed}, list {number}: {why}")
        })?;
        tally.lists += 1;
        tally.entries += listed.len() as u64;
        tally.same_sizes += u64::from(listed.len() == size);
        size = listed.len();
    }
    tally.unrests = machine.get().unrests();
    Ok(tally)
}

/// Makes and checks one list.
fn list(xen: &mut Xen<SimHypervisor>, stable: &BTreeSet<DomId>) -> Result<Vec<DomainInfo>, String> {
    let before = xen.counters().total();
    let listed = xen.domains().map_err(|errno| errno.to_string())?;
    let calls = xen.counters().total() - before;
    if calls != 1 {
        return Err(format!("{calls} hypercalls"));
    }
    if let Some(pair) = listed.windows(2).find(|pair| pair[0].domid >= pair[1].domid) {
        return Err(format!("domain {} before {}", pair[0].domid, pair[1].domid));
    }
    let seen: BTreeSet<DomId> = listed.iter().map(|info| info.domid).collect();
    if let Some(missing) = stable.difference(&seen).next() {
        return Err(format!("domain {missing} is there all the time and not listed"));
    }
    for info in &listed {
        let handle = match info.domid {
            DomId::DOM0 => Uuid::default(),
            domid if stable.contains(&domid) => STABLE_HANDLE,
            _ => UNREST_HANDLE,
        };
        if info.handle != handle {
            return Err(format!("domain {} has the handle of another", info.domid));
        }
    }
    Ok(listed)
}
