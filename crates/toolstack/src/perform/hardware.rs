//! The host's own hardware for a guest, and settings of a new domain that few have.

use xen::{DomId, DomainKind, Errno, Hypervisor, MappingChange, Permission, PirqSource};
use xenstore::client::Transport;

use super::Performer;
use crate::config::{HardwareAccess, IoMemory, IoPorts, VmConfig};
use crate::host::Host;
use crate::work::Failure;

/// Why Xen refuses most of the time.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM => "; domain 0 itself may not use it",
        _ => "",
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Allows a new domain what its configuration names.
    pub(super) fn give_hardware(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        let Some(hardware) = config.options.hardware.as_deref() else { return Ok(()) };
        let HardwareAccess { ports, interrupts, memory } = hardware;
        let failed = |key: &str, index: usize, what: String, errno: Errno| {
            let place = config.origin.at(&format!("{key}[{index}]"));
            Failure(format!("{place}: {what}: Xen returned {errno}{}", hint(errno)))
        };
        for (index, IoPorts { first, last }) in ports.iter().copied().enumerate() {
            let allowed =
                self.xen.ioport_permission(domid, first, last - first + 1, Permission::Allow);
            let what = || format!("ports {first:x}-{last:x}");
            allowed.map_err(|errno| failed("ioports", index, what(), errno))?;
        }
        for (index, irq) in interrupts.iter().copied().enumerate() {
            let allowed = self.allow_interrupt(domid, irq);
            allowed.map_err(|errno| failed("irqs", index, format!("interrupt {irq}"), errno))?;
        }
        for (index, IoMemory { first, frames, .. }) in memory.iter().copied().enumerate() {
            let allowed = self.xen.iomem_permission(domid, first, frames, Permission::Allow);
            let what = || format!("frames {first:x}-{:x}", first + frames - 1);
            allowed.map_err(|errno| failed("iomem", index, what(), errno))?;
        }
        Ok(())
    }

    /// Under its own number.
    pub(super) fn allow_interrupt(&mut self, domid: DomId, gsi: u32) -> Result<(), Errno> {
        let pirq = self.xen.map_pirq(domid, PirqSource::Gsi { gsi }, Some(gsi))?;
        self.xen.irq_permission(domid, pirq, Permission::Allow)
    }

    /// It may have been denied before.
    pub(super) fn deny_interrupt(&mut self, domid: DomId, gsi: u32) -> Result<(), Errno> {
        match self.xen.unmap_pirq(domid, gsi) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => return Err(errno),
        }
        self.xen.irq_permission(domid, gsi, Permission::Deny)
    }

    /// Shows a translated guest the memory of devices that it was allowed; others map it themselves.
    pub(crate) fn map_hardware(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        let hardware = config.options.hardware.as_deref().filter(|_| config.kind != DomainKind::Pv);
        let Some(hardware) = hardware else { return Ok(()) };
        for (index, IoMemory { first, frames, gfn }) in hardware.memory.iter().copied().enumerate()
        {
            let gfn = gfn.unwrap_or(first);
            let mapped = self.xen.memory_mapping(domid, gfn, first, frames, MappingChange::Add);
            mapped.map_err(|errno| {
                let place = config.origin.at(&format!("iomem[{index}]"));
                Failure(format!("{place}: cannot be mapped at frame {gfn:x}: Xen returned {errno}"))
            })?;
        }
        Ok(())
    }
}
