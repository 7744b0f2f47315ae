//! Cases about access to physical devices.

use alloc::vec;
use alloc::vec::Vec;

use super::{Case, Checked, Doing, same, unused, with_domain};
use crate::{
    Allocation, Assignment, DomainKind, Errno, Hypervisor, MappingChange, MonitoringFact,
    PciAddress, Permission, PirqSource, ReservedMemory, Trigger, Xen,
};

pub(super) fn cases<H: Hypervisor>() -> Vec<Case<H>> {
    vec![
        ("I/O ports can be allowed up to the last one", ioports),
        ("I/O memory can be allowed, and then mapped into a translated domain", iomem),
        ("an interrupt that does not exist cannot be allowed", irqs),
        ("a PCI device cannot be assigned where there is no IOMMU, or no such device", assignment),
        ("a domain has one target at most, a translated one and not itself", target),
        ("interrupts that do not exist are not mapped", pirqs),
        ("a trigger needs an existing vCPU", triggers),
        ("a CPU that cannot share out its caches is said to be one", no_shares),
    ]
}

fn ioports<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        for permission in [Permission::Allow, Permission::Deny] {
            xen.ioport_permission(domid, 0x278, 3, permission).doing("ioport_permission")?;
        }
        let beyond = xen.ioport_permission(domid, 0xffff, 2, Permission::Allow);
        same("beyond the last", &beyond, &Err(Errno::EINVAL))?;
        let nobody = unused(xen)?;
        let answer = xen.ioport_permission(nobody, 0x278, 3, Permission::Allow);
        same("for nobody", &answer, &Err(Errno::ESRCH))
    })
}

fn iomem<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    /// A frame that is not RAM and that dom0 may access.
    const FRAME: u64 = 0xfd_0000;
    const GFN: u64 = 0xf_0000;
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        let add = MappingChange::Add;
        let early = xen.memory_mapping(domid, GFN, FRAME, 2, add);
        same("without the right", &early, &Err(Errno::EPERM))?;
        xen.iomem_permission(domid, FRAME, 2, Permission::Allow).doing("iomem_permission")?;
        xen.memory_mapping(domid, GFN, FRAME, 2, add).doing("memory_mapping")?;
        let remove = MappingChange::Remove;
        xen.memory_mapping(domid, GFN, FRAME, 2, remove).doing("memory_mapping")?;
        xen.iomem_permission(domid, FRAME, 2, Permission::Deny).doing("iomem_permission")?;
        let late = xen.memory_mapping(domid, GFN, FRAME, 2, add);
        same("after it was taken", &late, &Err(Errno::EPERM))?;
        let wraps = xen.iomem_permission(domid, u64::MAX - 1, 4, Permission::Allow);
        same("a range that wraps around", &wraps, &Err(Errno::EINVAL))
    })
}

fn irqs<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let none = xen.irq_permission(domid, 1 << 20, Permission::Allow);
        same("beyond the last", &none, &Err(Errno::EINVAL))?;
        if !xen.abi().has_gsi_permission() {
            let answer = xen.gsi_permission(domid, 5, Permission::Allow);
            same("by system interrupt", &answer, &Err(Errno::ENOSYS))?;
        }
        Ok(())
    })
}

fn assignment<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let nowhere = PciAddress(0xffff_fff8);
        for assignment in [Assignment::Assign(ReservedMemory::Refuse), Assignment::Deassign] {
            let refused = xen.assign_device(domid, nowhere, assignment).err();
            let expected = [Errno::ENOSYS, Errno::ENODEV, Errno::EINVAL, Errno::EOPNOTSUPP];
            let is_expected = refused.is_some_and(|errno| expected.contains(&errno));
            if !is_expected {
                return same("assigning", &refused, &Some(Errno::ENODEV));
            }
        }
        Ok(())
    })
}

fn target<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, stub| {
        same("itself", &xen.set_target(stub, stub), &Err(Errno::EINVAL))?;
        let nobody = unused(xen)?;
        same("nobody", &xen.set_target(stub, nobody), &Err(Errno::ESRCH))?;
        with_domain(xen, DomainKind::Pv, |xen, guest| {
            let answer = xen.set_target(stub, guest);
            same("a PV domain", &answer, &Err(Errno::EOPNOTSUPP))
        })?;
        with_domain(xen, DomainKind::Pvh, |xen, guest| {
            // The device model is removed with the case: a guest that still has one would stay a
            // zombie.
            with_domain(xen, DomainKind::Pv, |xen, model| {
                xen.set_target(model, guest).doing("set_target")?;
                same("a second time", &xen.set_target(model, guest), &Err(Errno::EINVAL))
            })
        })
    })
}

fn pirqs<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let source = PirqSource::Gsi { gsi: 1 << 20 };
        let mapped = xen.map_pirq(domid, source, None);
        same("mapping", &mapped.err(), &Some(Errno::EINVAL))?;
        same("unmapping", &xen.unmap_pirq(domid, 1 << 20), &Err(Errno::EINVAL))
    })
}

fn triggers<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.send_trigger(domid, 1, Trigger::Nmi).doing("sendtrigger")?;
        xen.send_trigger(domid, 0, Trigger::Power).doing("the power button")?;
        same("reset", &xen.send_trigger(domid, 0, Trigger::Reset), &Err(Errno::ENOSYS))?;
        same("vCPU beyond", &xen.send_trigger(domid, 2, Trigger::Nmi), &Err(Errno::ESRCH))?;
        let nobody = unused(xen)?;
        same("nobody", &xen.send_trigger(nobody, 0, Trigger::Nmi), &Err(Errno::ESRCH))
    })?;
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        same("PV power", &xen.send_trigger(domid, 0, Trigger::Power), &Err(Errno::EINVAL))
    })
}

/// The lab's CPU has none of this.
fn no_shares<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let none = Err(Errno::ENODEV);
    same("monitoring", &xen.monitoring(MonitoringFact::Enabled), &none)?;
    for what in [Allocation::L3Cache, Allocation::L2Cache, Allocation::Bandwidth] {
        let info = xen.allocation_info(what, 0).map(|_| 0_u64);
        same("what can be shared out", &info, &none)?;
    }
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        same("a slot", &xen.rmid(domid), &Err(Errno::ENODEV))?;
        same("monitor", &xen.set_monitored(domid, true), &Err(Errno::ENODEV))?;
        same("a share", &xen.allocation(domid, Allocation::L3Cache, 0), &none)?;
        same(
            "another",
            &xen.set_allocation(domid, Allocation::Bandwidth, 0, 10),
            &Err(Errno::ENODEV),
        )
    })
}
