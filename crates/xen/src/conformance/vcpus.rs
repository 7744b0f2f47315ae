//! Cases about vCPUs: where they run, what they hold, how they are scheduled.

use alloc::vec;
use alloc::vec::Vec;

use super::{Case, Checked, Doing, same, unused, with_domain};
use crate::{
    AffinityChange, BitSet, DomainKind, Errno, ExtVcpuContext, Hypervisor, SchedParams, Scheduler,
    Xen,
};

pub(super) fn cases<H: Hypervisor>() -> Vec<Case<H>> {
    vec![
        ("a vCPU's affinity is kept, and an empty one is refused", affinity),
        ("a domain's NUMA nodes can be set, but not to none", node_affinity),
        ("a vCPU without register state has none to read", no_context),
        ("a PV vCPU's entry points are kept", ext_context),
        ("a PV vCPU's extended state has the reported size", ext_state),
        ("a PV vCPU's registers for migration can be read and loaded", msrs),
        ("a domain's share of the CPUs is kept, under its own scheduler only", shares),
    ]
}

fn cpus(numbers: &[u32]) -> BitSet {
    numbers.iter().copied().collect()
}

fn hard(numbers: &[u32]) -> AffinityChange {
    AffinityChange { hard: Some(cpus(numbers)), soft: None, is_forced: false }
}

fn affinity<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let before = xen.vcpu_affinity(domid, 0).doing("getvcpuaffinity")?;
        same("the first CPU is in it", &before.hard.contains(0), &true)?;
        let effective = xen.set_vcpu_affinity(domid, 0, &hard(&[0])).doing("setvcpuaffinity")?;
        same("effective", &(effective.hard, effective.soft), &(cpus(&[0]), cpus(&[])))?;
        let soft = AffinityChange { hard: None, soft: Some(cpus(&[0])), is_forced: false };
        xen.set_vcpu_affinity(domid, 0, &soft).doing("setvcpuaffinity")?;
        let seen = xen.vcpu_affinity(domid, 0).doing("getvcpuaffinity")?;
        same("as it was set", &(seen.hard, seen.soft), &(cpus(&[0]), cpus(&[0])))?;
        let other = xen.vcpu_affinity(domid, 1).doing("getvcpuaffinity")?;
        same("the other vCPU's", &other, &before)?;
        let nowhere = xen.set_vcpu_affinity(domid, 0, &hard(&[]));
        same("nowhere", &nowhere.err(), &Some(Errno::EINVAL))?;
        let absent = xen.set_vcpu_affinity(domid, 0, &hard(&[4000]));
        same("on a CPU that is not there", &absent.err(), &Some(Errno::EINVAL))?;
        let seen = xen.vcpu_affinity(domid, 0).doing("getvcpuaffinity")?;
        same("after a refusal", &seen.hard, &cpus(&[0]))?;
        same("vCPU beyond the last", &xen.vcpu_affinity(domid, 2).err(), &Some(Errno::EINVAL))?;
        let nobody = unused(xen)?;
        same("of nobody", &xen.vcpu_affinity(nobody, 0).err(), &Some(Errno::ESRCH))
    })
}

fn node_affinity<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_node_affinity(domid, &cpus(&[0])).doing("setnodeaffinity")?;
        let seen = xen.node_affinity(domid).doing("getnodeaffinity")?;
        same("nodes", &seen, &cpus(&[0]))?;
        let none = xen.set_node_affinity(domid, &cpus(&[]));
        same("no node", &none, &Err(Errno::EINVAL))
    })
}

fn no_context<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        same("registers", &xen.vcpu_context(domid, 1).err(), &Some(Errno::ENODATA))?;
        xen.reset_vcpu(domid, 1).doing("setvcpucontext")?;
        same("of a vCPU beyond", &xen.vcpu_context(domid, 2).err(), &Some(Errno::EINVAL))?;
        same("reset of a vCPU beyond", &xen.reset_vcpu(domid, 2), &Err(Errno::EINVAL))
    })
}

fn ext_context<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let before = xen.ext_vcpu_context(domid, 0).doing("get_ext_vcpucontext")?;
        same("entry points", &(before.syscall32_eip, before.sysenter_eip), &(0, 0))?;
        let changed = ExtVcpuContext {
            syscall32_eip: 0xffff_ff80_0000_1000,
            syscall32_cs: 0xe033,
            syscall32_disables_events: 1,
            ..before
        };
        xen.set_ext_vcpu_context(domid, 0, &changed).doing("set_ext_vcpucontext")?;
        let seen = xen.ext_vcpu_context(domid, 0).doing("get_ext_vcpucontext")?;
        same("entry point", &seen.syscall32_eip, &changed.syscall32_eip)?;
        same("code segment", &seen.syscall32_cs, &changed.syscall32_cs)?;
        same("machine check banks", &seen.mci_ctl2, &before.mci_ctl2)?;
        same("of a vCPU beyond", &xen.ext_vcpu_context(domid, 2).err(), &Some(Errno::ESRCH))
    })
}

fn ext_state<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let state = xen.ext_state(domid, 0).doing("getvcpuextstate")?;
        same("features of nothing", &(state.features != 0 && state.bytes.is_empty()), &false)?;
        if state.features != 0 {
            xen.set_ext_state(domid, 0, &state).doing("setvcpuextstate")?;
        }
        let short = crate::ExtState { features: state.features, bytes: vec![0; 4] };
        same("four bytes", &xen.set_ext_state(domid, 0, &short), &Err(Errno::EINVAL))?;
        same("of a vCPU beyond", &xen.ext_state(domid, 2).err(), &Some(Errno::ESRCH))
    })
}

fn msrs<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let msrs = xen.vcpu_msrs(domid, 0).doing("get_vcpu_msrs")?;
        xen.set_vcpu_msrs(domid, 0, &msrs).doing("set_vcpu_msrs")?;
        let unknown = [crate::Msr { index: 0x4242_4242, value: 1 }];
        match xen.set_vcpu_msrs(domid, 0, &unknown) {
            // Newer releases return the second.
            Err(Errno::EINVAL | Errno::ENXIO) => {}
            other => same("unknown", &other, &Err(Errno::EINVAL))?,
        }
        same("of a vCPU beyond", &xen.vcpu_msrs(domid, 2).err(), &Some(Errno::ESRCH))
    })
}

fn shares<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let version = xen.version_info().doing("xen_version")?;
    let scheduler = Scheduler::from_id(version.scheduler_id);
    let (ours, other) = match scheduler {
        Some(Scheduler::Credit) => {
            (SchedParams::Credit { weight: 512, cap: 0 }, Scheduler::Credit2)
        }
        Some(Scheduler::Credit2) => {
            (SchedParams::Credit2 { weight: 512, cap: 0 }, Scheduler::Credit)
        }
        // Other schedulers have no weights.
        _ => return Ok(()),
    };
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let before = xen.sched_params(domid, ours.scheduler()).doing("scheduler_op")?;
        match before {
            SchedParams::Credit { weight, cap } | SchedParams::Credit2 { weight, cap } => {
                same("at first", &(weight, cap), &(256, 0))?;
            }
            SchedParams::Rtds { .. } => same("at first", &before, &ours)?,
        }
        xen.set_sched_params(domid, ours).doing("scheduler_op")?;
        same("then", &xen.sched_params(domid, ours.scheduler()), &Ok(ours))?;
        let answer = xen.sched_params(domid, other).err();
        same("under another scheduler", &answer, &Some(Errno::EINVAL))?;
        let single = xen.rtds_vcpus(domid, &[0]).err();
        same("of single vCPUs", &single, &Some(Errno::EINVAL))
    })
}
