//! Who has the PCI devices of the machine.
//!
//! Source: `xen/drivers/passthrough/pci.c`.

use std::collections::BTreeMap;

use toolstack::pci::PciRegion;
use xen::{DomId, Errno, PciAddress};

use super::SimXen;
use super::domctl::HEADER;
use crate::bytes::u32_at;

/// By device; those of a domain that is gone are in quarantine.
pub(super) type Devices = BTreeMap<PciAddress, DomId>;

impl SimXen {
    pub(crate) fn add_device(&mut self, device: PciAddress) {
        self.devices.insert(device, DomId::DOM0);
    }

    /// Who has a device.
    #[must_use]
    pub fn owner(&self, device: PciAddress) -> Option<DomId> {
        let owner = *self.devices.get(&device)?;
        let is_there = !owner.is_ordinary() || self.domains.contains_key(&owner);
        Some(if is_there { owner } else { DomId::IO })
    }

    /// Whether a domain may use a device's ports, memory and interrupt.
    #[must_use]
    pub fn may_use(&self, domid: DomId, regions: &[PciRegion], pirq: u32) -> bool {
        let Some(domain) = self.domains.get(&domid) else { return false };
        let settings = &domain.settings;
        settings.has_pirq(pirq) && regions.iter().all(|region| settings.is_allowed(*region))
    }

    /// `assign_device`, `test_assign_device` and `deassign_device`.
    pub(super) fn assignment(&mut self, domid: DomId, cmd: u32, call: &[u8]) -> Result<u64, Errno> {
        const ASSIGN: u32 = 37;
        const DEASSIGN: u32 = 47;
        if domid != DomId::IO {
            self.live(domid)?;
        }
        if !self.config.has_iommu {
            return Err(Errno::EOPNOTSUPP);
        }
        let (kind, device) = (u32_at(call, HEADER), PciAddress(u32_at(call, HEADER + 8)));
        if kind != 0 || domid == DomId::DOM0 {
            return Err(Errno::EINVAL);
        }
        let owner = self.owner(device).ok_or(Errno::ENODEV)?;
        if cmd == DEASSIGN {
            if owner != domid {
                return Err(Errno::ENODEV);
            }
            let next = if domid == DomId::IO { DomId::DOM0 } else { DomId::IO };
            self.devices.insert(device, next);
            return Ok(0);
        }
        if ![DomId::DOM0, DomId::IO].contains(&owner) {
            return Err(Errno::EBUSY);
        }
        if cmd == ASSIGN {
            self.devices.insert(device, domid);
        }
        Ok(0)
    }
}
