//! Access to physical devices: interrupts, I/O memory, I/O ports, PCI devices.
//!
//! Sources: `xen/include/public/domctl.h`, `physdev.h`.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::abi::{Layout, domctl, u32_at};
use crate::{DomId, Errno, Hypervisor, Op, Xen};

/// Whether access is allowed or revoked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Permission {
    Deny,
    Allow,
}

/// Whether a mapping is added or removed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum MappingChange {
    Remove = 0,
    Add = 1,
}

/// A PCI device: segment, bus, device and function, as `0xSSSSBBDF`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PciAddress(pub u32);

/// As in `/sys/bus/pci/devices`: `0000:00:1f.2`.
impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address) = *self;
        let (segment, bus) = (address >> 16, address >> 8 & 0xff);
        write!(f, "{segment:04x}:{bus:02x}:{:02x}.{:x}", address >> 3 & 0x1f, address & 7)
    }
}

/// What Xen does where a guest has memory that the device's firmware has reserved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReservedMemory {
    Refuse,
    Ignore,
}

/// An operation on a PCI device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Assignment {
    Assign(ReservedMemory),
    /// Only tests whether it could be assigned.
    Test,
    /// Back to dom0.
    Deassign,
}

/// How a physical interrupt appears in a guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GuestIrq {
    Pci { bus: u8, device: u8, intx: u8 },
    Isa { irq: u8 },
    Msi { vector: u8, flags: u32, table: u64 },
}

/// A physical interrupt to be mapped into a domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PirqSource {
    Gsi { gsi: u32 },
    Msi { device: PciAddress, entry: u16, table: u64 },
}

/// A trigger sent to a vCPU (`xl trigger`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Trigger {
    Nmi = 0,
    Reset = 1,
    Init = 2,
    Power = 3,
    Sleep = 4,
}

impl<H: Hypervisor> Xen<H> {
    /// Allows or revokes binding of one of the caller's physical interrupts.
    ///
    /// # Errors
    /// EINVAL for no such interrupt, EPERM if the caller itself may not use it.
    pub fn irq_permission(
        &mut self,
        domid: DomId,
        pirq: u32,
        permission: Permission,
    ) -> Result<(), Errno> {
        let payload = Layout::<8>::new().u32(0, pirq).bytes(4, &[permission as u8]).done();
        self.domctl("irq_permission", domctl::IRQ_PERMISSION, domid, &payload).map(drop)
    }

    /// As [`Xen::irq_permission`], by global system interrupt. Xen 4.20 and later.
    ///
    /// # Errors
    /// EINVAL for no such interrupt, ENOSYS on an older Xen.
    pub fn gsi_permission(
        &mut self,
        domid: DomId,
        gsi: u32,
        permission: Permission,
    ) -> Result<(), Errno> {
        let payload = Layout::<8>::new().u32(0, gsi).u32(4, permission as u32).done();
        self.domctl("gsi_permission", domctl::GSI_PERMISSION, domid, &payload).map(drop)
    }

    /// Allows or revokes mapping of a range of I/O memory, in machine frames.
    ///
    /// # Errors
    /// EPERM if the caller may not access it, EINVAL for a range that wraps around.
    pub fn iomem_permission(
        &mut self,
        domid: DomId,
        first: u64,
        frames: u64,
        permission: Permission,
    ) -> Result<(), Errno> {
        let payload =
            Layout::<24>::new().u64(0, first).u64(8, frames).bytes(16, &[permission as u8]).done();
        self.domctl("iomem_permission", domctl::IOMEM_PERMISSION, domid, &payload).map(drop)
    }

    /// Allows or revokes access to a range of I/O ports.
    ///
    /// # Errors
    /// EPERM if the caller may not access them, EINVAL beyond the last port.
    pub fn ioport_permission(
        &mut self,
        domid: DomId,
        first: u32,
        ports: u32,
        permission: Permission,
    ) -> Result<(), Errno> {
        let payload =
            Layout::<12>::new().u32(0, first).u32(4, ports).bytes(8, &[permission as u8]).done();
        self.domctl("ioport_permission", domctl::IOPORT_PERMISSION, domid, &payload).map(drop)
    }

    /// Maps I/O memory into a translated domain, or unmaps it. Xen may do this in parts: repeats
    /// the call until complete.
    ///
    /// # Errors
    /// EPERM if the domain or the caller may not access it, EINVAL for a range out of bounds.
    pub fn memory_mapping(
        &mut self,
        domid: DomId,
        gfn: u64,
        mfn: u64,
        frames: u64,
        change: MappingChange,
    ) -> Result<(), Errno> {
        let mut done = 0;
        loop {
            let payload = Layout::<32>::new()
                .u64(0, gfn + done)
                .u64(8, mfn + done)
                .u64(16, frames - done)
                .u32(24, change as u32)
                .done();
            match self.domctl("memory_mapping", domctl::MEMORY_MAPPING, domid, &payload)? {
                0 => return Ok(()),
                part if done + part >= frames => return Ok(()),
                part => done += part,
            }
        }
    }

    /// Maps I/O ports into an HVM domain, or unmaps them. Call [`Xen::ioport_permission`] first:
    /// newer hypervisors do not imply it.
    ///
    /// # Errors
    /// EPERM without permission, EINVAL for ports out of bounds, EOPNOTSUPP without device
    /// emulation.
    pub fn ioport_mapping(
        &mut self,
        domid: DomId,
        guest: u32,
        machine: u32,
        ports: u32,
        change: MappingChange,
    ) -> Result<(), Errno> {
        let payload = Layout::<16>::new()
            .u32(0, guest)
            .u32(4, machine)
            .u32(8, ports)
            .u32(12, change as u32)
            .done();
        self.domctl("ioport_mapping", domctl::IOPORT_MAPPING, domid, &payload).map(drop)
    }

    /// Assigns a PCI device to a domain, deassigns it, or tests whether it could be assigned. That of [`DomId::IO`] is in
    /// quarantine.
    ///
    /// # Errors
    /// EOPNOTSUPP or ENOSYS without an IOMMU, ENODEV for no such device, or not the domain's, EBUSY if it belongs to another.
    pub fn assign_device(
        &mut self,
        domid: DomId,
        device: PciAddress,
        assignment: Assignment,
    ) -> Result<(), Errno> {
        let (name, cmd) = match assignment {
            Assignment::Assign(_) => ("assign_device", domctl::ASSIGN_DEVICE),
            Assignment::Test => ("test_assign_device", domctl::TEST_ASSIGN_DEVICE),
            Assignment::Deassign => ("deassign_device", domctl::DEASSIGN_DEVICE),
        };
        // XEN_DOMCTL_DEV_RDM_RELAXED
        let flags = u32::from(assignment == Assignment::Assign(ReservedMemory::Ignore));
        let payload = Layout::<24>::new().u32(4, flags).u32(8, device.0).done();
        self.domctl(name, cmd, domid, &payload).map(drop)
    }

    /// Devices that can only be assigned together with this one.
    ///
    /// # Errors
    /// ENOSYS without an IOMMU, EINVAL for a device that is not the domain's.
    pub fn device_group(
        &mut self,
        domid: DomId,
        device: PciAddress,
    ) -> Result<Vec<PciAddress>, Errno> {
        const DEVICES_MAX: u32 = 1024;
        let address = self.put_data(&vec![0; 4 * DEVICES_MAX as usize])?;
        let payload =
            Layout::<24>::new().u32(0, device.0).u32(4, DEVICES_MAX).u64(16, address).done();
        self.domctl("get_device_group", domctl::GET_DEVICE_GROUP, domid, &payload)?;
        let found = u32_at(self.domctl_payload(), 8).min(DEVICES_MAX) as usize;
        let (_, area) = self.data();
        Ok(area[..4 * found].chunks_exact(4).map(|word| PciAddress(u32_at(word, 0))).collect())
    }

    /// Binds a physical interrupt to an HVM guest's, or unbinds it.
    ///
    /// # Errors
    /// EPERM without permission, EINVAL for no such interrupt, EOPNOTSUPP without the emulation.
    pub fn bind_pt_irq(
        &mut self,
        domid: DomId,
        machine_irq: u32,
        guest: GuestIrq,
        change: MappingChange,
    ) -> Result<(), Errno> {
        let payload = Layout::<24>::new().u32(0, machine_irq);
        let payload = match guest {
            GuestIrq::Pci { bus, device, intx } => payload.bytes(8, &[bus, device, intx]),
            GuestIrq::Isa { irq } => payload.u32(4, 1).bytes(8, &[irq]),
            GuestIrq::Msi { vector, flags, table } => {
                payload.u32(4, 2).bytes(8, &[vector]).u32(12, flags).u64(16, table)
            }
        };
        let (name, cmd) = match change {
            MappingChange::Add => ("bind_pt_irq", domctl::BIND_PT_IRQ),
            MappingChange::Remove => ("unbind_pt_irq", domctl::UNBIND_PT_IRQ),
        };
        self.domctl(name, cmd, domid, &payload.done()).map(drop)
    }

    /// Makes a domain the device model of another (its target).
    ///
    /// # Errors
    /// EINVAL for itself or if it has one already, ESRCH without the target, EOPNOTSUPP for a PV one.
    pub fn set_target(&mut self, domid: DomId, target: DomId) -> Result<(), Errno> {
        self.domctl("set_target", domctl::SET_TARGET, domid, &target.0.to_ne_bytes()).map(drop)
    }

    /// Maps a physical interrupt into a domain and returns its pirq there. `None` lets Xen choose.
    ///
    /// # Errors
    /// EINVAL for no such interrupt, EPERM without permission.
    pub fn map_pirq(
        &mut self,
        domid: DomId,
        source: PirqSource,
        pirq: Option<u32>,
    ) -> Result<u32, Errno> {
        const PHYSDEVOP_MAP_PIRQ: u64 = 13;
        const TYPE_MSI: u32 = 0;
        const TYPE_GSI: u32 = 1;
        /// Xen chooses.
        const ANY: u32 = u32::MAX;
        let argument = Layout::<40>::new().u16(0, domid.0).u32(12, pirq.unwrap_or(ANY));
        let argument = match source {
            PirqSource::Gsi { gsi } => argument.u32(4, TYPE_GSI).u32(8, gsi),
            PirqSource::Msi { device, entry, table } => argument
                .u32(4, TYPE_MSI)
                .u32(8, ANY)
                .u32(16, device.0 >> 8)
                .u32(20, device.0 & 0xff)
                .u32(24, entry.into())
                .u64(32, table),
        };
        self.call_with("map_pirq", Op::Physdev, PHYSDEVOP_MAP_PIRQ, &argument.done())?;
        Ok(u32_at(self.argument(40), 12))
    }

    /// Unmaps a pirq from a domain.
    ///
    /// # Errors
    /// EINVAL if it is not mapped.
    pub fn unmap_pirq(&mut self, domid: DomId, pirq: u32) -> Result<(), Errno> {
        const PHYSDEVOP_UNMAP_PIRQ: u64 = 14;
        let argument = Layout::<8>::new().u16(0, domid.0).u32(4, pirq).done();
        self.call_with("unmap_pirq", Op::Physdev, PHYSDEVOP_UNMAP_PIRQ, &argument).map(drop)
    }

    /// Sends a trigger to a vCPU.
    ///
    /// # Errors
    /// ENOSYS for a trigger that the kind of domain does not have, EINVAL or ESRCH for no such vCPU.
    pub fn send_trigger(&mut self, domid: DomId, vcpu: u32, trigger: Trigger) -> Result<(), Errno> {
        let payload = Layout::<8>::new().u32(0, trigger as u32).u32(4, vcpu).done();
        self.domctl("sendtrigger", domctl::SENDTRIGGER, domid, &payload).map(drop)
    }
}
