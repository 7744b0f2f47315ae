//! The host's PCI bus.
//!
//! Source: Linux `drivers/xen/xen-pciback/pci_stub.c`.

use std::collections::{BTreeMap, BTreeSet};

use storage::HostError;
use toolstack::pci::{PCIBACK, PciBus, PciRegion};
use xen::PciAddress;

use crate::os::SimOs;

/// What the kernel knows.
#[derive(Debug, Default)]
pub(crate) struct PciState {
    /// Devices, and the drivers that have them.
    devices: BTreeMap<PciAddress, Option<String>>,
    /// Drivers, and whether they take devices.
    drivers: BTreeMap<String, bool>,
    slots: BTreeSet<PciAddress>,
    permissive: BTreeSet<PciAddress>,
    /// Those that pciback has given to a guest.
    exported: BTreeSet<PciAddress>,
    /// How often each was reset.
    resets: BTreeMap<PciAddress, u64>,
}

/// The line of every device.
pub const INTERRUPT: u32 = 11;

/// Where a device has its ports and its memory.
#[must_use]
pub fn regions(device: PciAddress) -> [PciRegion; 2] {
    let number = u64::from(device.0 & 0xff);
    [
        PciRegion { first: 0xc000 + (number << 5), bytes: 0x20, is_ports: true },
        PciRegion { first: 0xf000_0000 + (number << 14), bytes: 0x3000, is_ports: false },
    ]
}

impl SimOs {
    /// Adds a device that a driver has.
    pub fn add_pci_device(&self, device: PciAddress, driver: Option<&str>) {
        let mut os = self.get_mut();
        os.pci.drivers.extend(driver.map(|driver| (driver.to_owned(), true)));
        os.pci.devices.insert(device, driver.map(str::to_owned));
        let machine = os.machine.clone();
        drop(os);
        machine.expect("a host that was booted").get_mut().add_device(device);
    }

    /// Loads a driver, or makes it refuse devices from now on.
    pub fn set_pci_driver(&self, driver: &str, takes: bool) {
        self.get_mut().pci.drivers.insert(driver.to_owned(), takes);
    }

    /// Tells pciback to take a device.
    pub fn set_pci_slot(&self, device: PciAddress) {
        self.get_mut().pci.slots.insert(device);
    }

    /// How often a device was reset.
    #[must_use]
    pub fn pci_resets(&self, device: PciAddress) -> u64 {
        self.get().pci.resets.get(&device).copied().unwrap_or_default()
    }

    /// Whether the guest that has a device may write all of its configuration.
    #[must_use]
    pub fn is_pci_permissive(&self, device: PciAddress) -> bool {
        self.get().pci.permissive.contains(&device)
    }

    /// The driver that has a device.
    #[must_use]
    pub fn pci_driver(&self, device: PciAddress) -> Option<String> {
        self.get().pci.devices.get(&device).cloned().flatten()
    }
}

impl SimOs {
    /// Gives a device to a guest. `false`: pciback does not have it, or it is another guest's.
    pub(crate) fn export_pci(&self, device: PciAddress) -> bool {
        let mut os = self.get_mut();
        let has = os.pci.devices.get(&device).is_some_and(|it| it.as_deref() == Some(PCIBACK));
        has && os.pci.exported.insert(device)
    }

    pub(crate) fn withdraw_pci(&self, device: PciAddress) {
        self.get_mut().pci.exported.remove(&device);
    }

    /// Whether pciback has given a device to a guest.
    #[must_use]
    pub fn is_pci_exported(&self, device: PciAddress) -> bool {
        self.get().pci.exported.contains(&device)
    }
}

impl PciBus for SimOs {
    fn driver(&mut self, device: PciAddress) -> Result<Option<String>, HostError> {
        self.get().pci.devices.get(&device).cloned().ok_or(HostError::Missing)
    }

    fn unbind(&mut self, device: PciAddress, driver: &str) -> Result<(), HostError> {
        self.act()?;
        let mut os = self.get_mut();
        let has = os.pci.devices.get_mut(&device).ok_or(HostError::Missing)?;
        if has.as_deref() != Some(driver) {
            return Err(HostError::Missing);
        }
        *has = None;
        Ok(())
    }

    fn bind(&mut self, device: PciAddress, driver: &str) -> Result<(), HostError> {
        self.act()?;
        let mut os = self.get_mut();
        let takes = *os.pci.drivers.get(driver).ok_or(HostError::Missing)?;
        let is_meant = driver != PCIBACK || os.pci.slots.contains(&device);
        let has = os.pci.devices.get_mut(&device).ok_or(HostError::Missing)?;
        match (takes && is_meant, &has) {
            (true, None) => *has = Some(driver.to_owned()),
            (true, Some(_)) => return Err(HostError::Busy),
            (false, _) => {
                return Err(HostError::Refused("No such device (os error 19)".to_owned()));
            }
        }
        Ok(())
    }

    fn of_pciback(&mut self) -> Result<Vec<PciAddress>, HostError> {
        let os = self.get();
        if !os.pci.drivers.contains_key(PCIBACK) {
            return Err(HostError::Missing);
        }
        let has = |(device, driver): (&PciAddress, &Option<String>)| {
            (driver.as_deref() == Some(PCIBACK)).then_some(*device)
        };
        // As a folder lists them.
        Ok(os.pci.devices.iter().rev().filter_map(has).collect())
    }

    fn functions(&mut self, device: PciAddress) -> Result<Vec<PciAddress>, HostError> {
        let of_slot = |it: &&PciAddress| it.0 >> 3 == device.0 >> 3;
        Ok(self.get().pci.devices.keys().filter(of_slot).copied().collect())
    }

    fn regions(&mut self, device: PciAddress) -> Result<Vec<PciRegion>, HostError> {
        self.get().pci.devices.get(&device).ok_or(HostError::Missing)?;
        Ok(regions(device).to_vec())
    }

    fn interrupt(&mut self, device: PciAddress) -> Result<Option<u32>, HostError> {
        self.get().pci.devices.get(&device).ok_or(HostError::Missing)?;
        Ok(Some(INTERRUPT))
    }

    fn reset(&mut self, device: PciAddress) -> Result<(), HostError> {
        self.act()?;
        let mut os = self.get_mut();
        os.pci.devices.get(&device).ok_or(HostError::Missing)?;
        *os.pci.resets.entry(device).or_default() += 1;
        Ok(())
    }

    fn set_permissive(&mut self, device: PciAddress) -> Result<(), HostError> {
        self.act()?;
        let mut os = self.get_mut();
        let driver = os.pci.devices.get(&device).ok_or(HostError::Missing)?;
        if driver.as_deref() != Some(PCIBACK) {
            return Err(HostError::Refused("No such device (os error 19)".to_owned()));
        }
        os.pci.permissive.insert(device);
        Ok(())
    }

    fn set_slot(&mut self, device: PciAddress, is_taken: bool) -> Result<(), HostError> {
        self.act()?;
        let mut os = self.get_mut();
        match is_taken {
            true => os.pci.slots.insert(device),
            false => os.pci.slots.remove(&device),
        };
        Ok(())
    }
}
