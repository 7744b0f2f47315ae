//! Cases about the machine as a whole.

use alloc::vec;
use alloc::vec::Vec;

use super::{Case, Checked, Doing, same, unused, with_domain};
use crate::{
    CpuPolicyKind, DomId, DomainKind, Errno, Hypervisor, PciAddress, SchedTuning, Scheduler, Xen,
};

pub(super) fn cases<H: Hypervisor>() -> Vec<Case<H>> {
    vec![
        ("the console can be followed without being cleared", console),
        ("each CPU idles, and has its place", cpus),
        ("the NUMA nodes' memory is the machine's", nodes),
        ("free memory can be read by address width and node", heap),
        ("all CPUs and dom0 are in some pool; pools come and go", pools),
        ("a pool's scheduler can be tuned within limits", tuning),
        ("no domain's features go beyond the machine's", features),
        ("the machine's CPU policies name their leaves in order", policies),
        ("the hypervisor's counters can be read if they are built in", counters),
        ("an empty list of debug keys is accepted", keys),
        ("a PCI device that does not exist has no node", pci),
    ]
}

fn console<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let first = xen.console(0).doing("readconsole")?;
    same("something was printed at boot", &first.bytes.is_empty(), &false)?;
    let again = xen.console(0).doing("readconsole")?;
    // More may have been printed: compare only as far as both reach.
    let both = first.bytes.len().min(again.bytes.len()).min(64);
    same("not cleared", &(again.bytes[..both] == first.bytes[..both]), &true)?;
    let mut next = first.next;
    for _ in 0..100 {
        let more = xen.console(next).doing("readconsole")?;
        if more.bytes.is_empty() {
            return same("the end's position", &more.next, &next);
        }
        next = more.next;
    }
    Err("the console does not end".into())
}

fn cpus<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let info = xen.phys_info().doing("physinfo")?;
    let idle = xen.cpu_idle_ns().doing("getcpuinfo")?;
    same("idle times", &(idle.len() as u64), &(u64::from(info.cpu_id_max) + 1))?;
    let places = xen.cpu_places().doing("cputopoinfo")?;
    same("places", &places.len(), &idle.len())?;
    same("CPUs that are there", &(places.iter().flatten().count() as u64), &info.cpus.into())
}

fn nodes<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let info = xen.phys_info().doing("physinfo")?;
    let nodes = xen.numa_nodes().doing("numainfo")?;
    same("nodes", &(nodes.len() as u64), &info.nodes.into())?;
    let bytes: u64 = nodes.iter().map(|node| node.bytes).sum();
    same("memory is not less", &(bytes >> 12 >= info.pages), &true)?;
    let rows = nodes.iter().all(|node| node.distances.len() == nodes.len());
    same("a distance to each", &rows, &true)?;
    let near = nodes.iter().enumerate().all(|(i, node)| node.distances[i] == 10);
    same("a node is near to itself", &(near || nodes.len() == 1), &true)
}

fn heap<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let info = xen.phys_info().doing("physinfo")?;
    let all = xen.free_heap(0, 0, None).doing("availheap")?;
    same("not more than there is", &(all >> 12 <= info.pages), &true)?;
    let low = xen.free_heap(0, 32, None).doing("availheap")?;
    same("below 4 GiB is not more", &(low <= all), &true)?;
    let node = xen.free_heap(0, 0, Some(0)).doing("availheap")?;
    same("of a node is not more", &(node <= all), &true)
}

fn pools<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const NUMBER: u32 = 77;
    let info = xen.phys_info().doing("physinfo")?;
    let first = xen.cpupool_from(0).doing("cpupool_op")?.ok_or("there is no pool")?;
    same("the first pool", &first.id, &0)?;
    same("has CPUs", &(first.cpus.len() as u64), &info.cpus.into())?;
    same("and domains", &(first.domains >= 1), &true)?;
    let scheduler = Scheduler::from_id(first.scheduler_id).ok_or("an unknown scheduler")?;
    let made = xen.create_cpupool(Some(NUMBER), scheduler).doing("cpupool_op")?;
    same("number", &made, &NUMBER)?;
    let check = |xen: &mut Xen<H>| -> Checked {
        let twice = xen.create_cpupool(Some(NUMBER), scheduler);
        same("created twice", &twice, &Err(Errno::EEXIST))?;
        let seen = xen.cpupool_from(1).doing("cpupool_op")?.ok_or("the pool is missing")?;
        same("new pool", &(seen.id, seen.domains, seen.cpus.len()), &(NUMBER, 0, 0))?;
        same("behind it", &xen.cpupool_from(NUMBER + 1), &Ok(None))?;
        let taken = xen.add_cpu_to_pool(NUMBER, 0);
        same("a CPU that is not free", &taken, &Err(Errno::ENODEV))?;
        let foreign = xen.remove_cpu_from_pool(NUMBER, 0);
        same("a CPU of another pool", &foreign, &Err(Errno::EADDRNOTAVAIL))?;
        let dom0 = xen.move_domain_to_pool(NUMBER, DomId::DOM0);
        same("dom0 stays", &dom0, &Err(Errno::EPERM))?;
        let nobody = unused(xen)?;
        same("nobody moves", &xen.move_domain_to_pool(NUMBER, nobody), &Err(Errno::ESRCH))?;
        with_domain(xen, DomainKind::Pv, |xen, domid| {
            let empty = xen.move_domain_to_pool(NUMBER, domid);
            same("to a pool without CPUs", &empty, &Err(Errno::ENOENT))
        })
    };
    let checked = check(xen);
    xen.destroy_cpupool(NUMBER).doing("cpupool_op")?;
    checked?;
    same("destroyed twice", &xen.destroy_cpupool(NUMBER), &Err(Errno::ENOENT))
}

fn tuning<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let version = xen.version_info().doing("xen_version")?;
    let Some(scheduler @ (Scheduler::Credit | Scheduler::Credit2)) =
        Scheduler::from_id(version.scheduler_id)
    else {
        // Other schedulers have no parameters.
        return Ok(());
    };
    let before = xen.sched_tuning(0, scheduler).doing("scheduler_op")?;
    xen.set_sched_tuning(0, before).doing("scheduler_op")?;
    let wild = match before {
        SchedTuning::Credit { timeslice_ms, migration_delay_us, .. } => {
            SchedTuning::Credit { timeslice_ms, ratelimit_us: 1 << 30, migration_delay_us }
        }
        SchedTuning::Credit2 { .. } => SchedTuning::Credit2 { ratelimit_us: 1 << 30 },
    };
    same("beyond the limits", &xen.set_sched_tuning(0, wild), &Err(Errno::EINVAL))?;
    same("after a refusal", &xen.sched_tuning(0, scheduler), &Ok(before))
}

fn features<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let host = xen.cpu_features(CpuPolicyKind::Host).doing("get_cpu_featureset")?;
    let raw = xen.cpu_features(CpuPolicyKind::Raw).doing("get_cpu_featureset")?;
    same("words", &raw.len(), &host.len())?;
    same("some", &host.iter().any(|word| *word != 0), &true)?;
    let max = xen.cpu_features(CpuPolicyKind::PvDefault);
    match max {
        Ok(words) => same("the most for PV", &words.len(), &host.len())?,
        // Early 4.17 releases do not report it; later ones of the same interface version do.
        Err(errno) => same("the most for PV", &errno, &Errno::EINVAL)?,
    }
    xen.features(0).doing("xen_version")?;
    same("a word beyond", &xen.features(99), &Err(Errno::EINVAL))
}

fn policies<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    for kind in [CpuPolicyKind::Raw, CpuPolicyKind::Host, CpuPolicyKind::PvMax] {
        let policy = xen.host_cpu_policy(kind).doing("get_cpu_policy")?;
        let leaves: Vec<(u32, u32)> = policy.leaves.iter().map(|leaf| (leaf[0], leaf[1])).collect();
        same("the first leaf", &leaves.first().map(|leaf| leaf.0), &Some(0))?;
        same("ascending", &leaves.is_sorted_by(|a, b| a < b), &true)?;
    }
    Ok(())
}

fn counters<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    match xen.perf_counters() {
        Ok(counters) => {
            same("each has a name", &counters.iter().any(|c| c.name.is_empty()), &false)
        }
        Err(errno) => same("without them", &errno, &Errno::ENOSYS),
    }
}

fn keys<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    same("no key", &xen.debug_keys(b""), &Ok(()))
}

fn pci<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let nowhere = PciAddress(0xffff_fff8);
    match xen.pci_nodes(&[nowhere]) {
        Ok(nodes) => same("node", &nodes, &vec![None]),
        Err(errno) => same("error", &errno, &Errno::ENODEV),
    }
}
