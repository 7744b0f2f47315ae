//! PCI devices of the host that guests may be given.
//!
//! A device is *assignable* while the driver pciback has it and Xen has it in quarantine. What is to be remembered of it is in the
//! store below `/libxl/pci`, where libxl has it: the driver that had it before, a name, the domain that has it now.
//!
//! Sources: xen `tools/libs/light/libxl_pci.c`, `tools/xl/xl_pci.c`; Linux `drivers/xen/xen-pciback/pci_stub.c`.

use storage::HostError;
use xen::{DomId, PciAddress};

use crate::config::{PciDevice, PciName, RdmPolicy};

/// The driver of assignable devices.
pub const PCIBACK: &str = "pciback";

/// Where drivers are, as libxl remembers them.
pub(crate) const DRIVERS: &str = "/sys/bus/pci/drivers/";

/// The PCI bus of the host, as its kernel has it.
pub trait PciBus {
    /// The driver that has a device, if one has.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such device; otherwise an errno of the kernel.
    fn driver(&mut self, device: PciAddress) -> Result<Option<String>, HostError>;

    /// Takes a device from the driver that has it.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn unbind(&mut self, device: PciAddress, driver: &str) -> Result<(), HostError>;

    /// Gives a device that no driver has to this one.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such driver; otherwise an errno of the kernel, ENODEV if the driver does not
    /// take it.
    fn bind(&mut self, device: PciAddress, driver: &str) -> Result<(), HostError>;

    /// The devices that pciback has.
    ///
    /// # Errors
    /// [`HostError::Missing`] if it is not loaded; otherwise an errno of the kernel.
    fn of_pciback(&mut self) -> Result<Vec<PciAddress>, HostError>;

    /// Tells pciback whether it is to take a device. Idempotent.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn set_slot(&mut self, device: PciAddress, is_taken: bool) -> Result<(), HostError>;

    /// The functions that are in the slot of this one.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn functions(&mut self, device: PciAddress) -> Result<Vec<PciAddress>, HostError>;

    /// Where its ports and its memory are.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such device; otherwise an errno of the kernel.
    fn regions(&mut self, device: PciAddress) -> Result<Vec<PciRegion>, HostError>;

    /// Its interrupt line, if it has one.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is no such device; otherwise an errno of the kernel.
    fn interrupt(&mut self, device: PciAddress) -> Result<Option<u32>, HostError>;

    /// Resets it, so that what one domain did to it is not there for the next one.
    ///
    /// # Errors
    /// [`HostError::Missing`] if the kernel has no way to do that; otherwise an errno of the kernel.
    fn reset(&mut self, device: PciAddress) -> Result<(), HostError>;

    /// Lets the guest that has it write all of its configuration.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn set_permissive(&mut self, device: PciAddress) -> Result<(), HostError>;
}

/// I/O ports or memory of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PciRegion {
    pub first: u64,
    /// At least one.
    pub bytes: u64,
    pub is_ports: bool,
}

/// A device that a domain has, as it is told its backend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Assigned {
    pub address: PciAddress,
    pub name: Option<String>,
    /// Its slot and function on the guest's bus; 0: wherever there is room.
    pub guest_slot: u8,
    /// Whether the guest may write all of its configuration.
    pub is_permissive: bool,
    pub rdm_policy: RdmPolicy,
    pub options: String,
}

impl Assigned {
    /// One of the functions that a configuration names, of all or of one.
    pub(crate) fn of(device: &PciDevice, address: PciAddress, all: bool) -> Self {
        // A function that is alone must be the first, or its guest does not look for it.
        let function = if all { (address.0 & 7) as u8 } else { 0 };
        let PciDevice { msitranslate, power_mgmt, permissive, rdm_policy, .. } = device;
        let is_permissive = *permissive;
        let [translate, power, permissive] =
            [msitranslate, power_mgmt, permissive].map(|it| u8::from(*it));
        Self {
            address,
            name: match &device.name {
                PciName::Named(name) => Some(name.clone()),
                PciName::Address(_) => None,
            },
            guest_slot: device.slot.map_or(0, |slot| slot << 3 | function),
            is_permissive,
            rdm_policy: *rdm_policy,
            options: format!(
                "msitranslate={translate},power_mgmt={power},permissive={permissive},rdm_policy={}",
                rdm_policy.as_str()
            ),
        }
    }
}

/// What is asked about devices.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PciAsk {
    /// Those that can be assigned, without those that are. Answered by [`HostTold::Pci`](crate::xen_host::HostTold::Pci).
    Assignable,
    MakeAssignable {
        device: PciAddress,
        name: Option<String>,
    },
    /// A device of the host's own again.
    Return {
        device: Wanted,
        /// Also to the driver that had it before.
        rebind: bool,
    },
    /// Which device has this name. Answered by [`HostTold::Pci`](crate::xen_host::HostTold::Pci).
    Named {
        name: String,
    },
    /// Those of a domain, of whichever toolstack. Answered by [`HostTold::Pci`](crate::xen_host::HostTold::Pci).
    OfDomain {
        domid: DomId,
    },
}

impl PciAsk {
    /// What it does to this host; `None` if it only reads.
    pub(crate) fn deed(&self) -> Option<String> {
        match self {
            Self::MakeAssignable { device, .. } => Some(format!("pci-assignable-add {device}")),
            Self::Return { device, .. } => Some(format!("pci-assignable-remove {:?}", device.text)),
            Self::Assignable | Self::Named { .. } | Self::OfDomain { .. } => None,
        }
    }
}

/// A device by its name or, if none has this name, by its address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wanted {
    pub text: String,
    /// `None` if it can only be a name.
    pub address: Option<PciAddress>,
}

/// A device as it is listed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PciRow {
    pub address: PciAddress,
    pub name: Option<String>,
    /// Its slot and function on the guest's bus, as far as they are known.
    pub guest_slot: u8,
}

/// Checks a name for a device, as libxl does.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    const BYTES_MAX: usize = 64;
    if name.is_empty() || name.len() > BYTES_MAX || !name.bytes().all(|it| it.is_ascii_graphic()) {
        return Err(format!(
            "{name:?} is no name of a device: it needs 1 to {BYTES_MAX} printable characters without blanks"
        ));
    }
    Ok(())
}

/// Where the store has what is remembered of a device.
pub(crate) fn path(device: PciAddress) -> String {
    format!("{PATH}/{}", device.to_string().replace([':', '.'], "-"))
}

/// Whose children are devices.
pub(crate) const PATH: &str = "/libxl/pci";

/// The device whose node this is.
pub(crate) fn of_node(name: &str) -> Option<PciAddress> {
    let parts: Vec<&str> = name.split('-').collect();
    let [segment, bus, device, function] = parts.as_slice() else { return None };
    parse(segment, bus, device, function)
}

/// A device by its name in sysfs.
#[must_use]
pub fn parse_address(name: &str) -> Option<PciAddress> {
    let (segment, rest) = name.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    parse(segment, bus, device, function)
}

fn parse(segment: &str, bus: &str, device: &str, function: &str) -> Option<PciAddress> {
    let number = |text: &str, digits: usize, most: u32| {
        let is_whole = text.len() == digits && text.bytes().all(|it| it.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|number| is_whole && *number <= most)
    };
    let segment = number(segment, 4, 0xffff)?;
    let bus = number(bus, 2, 0xff)?;
    let device = number(device, 2, 0x1f)?;
    let function = number(function, 1, 7)?;
    Some(PciAddress(segment << 16 | bus << 8 | device << 3 | function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_in_sys_and_in_the_store() {
        for (name, address) in [
            ("0000:00:1f.2", Some(0xfa)),
            ("0001:a0:00.7", Some(0x1_a007)),
            ("00:1f.2", None),
            ("0000:00:20.0", None),
            ("0000:00:1f.8", None),
            ("0000:00:1f", None),
            ("0000:+0:1f.2", None),
            ("", None),
        ] {
            let found = parse_address(name);
            assert_eq!(found, address.map(PciAddress), "{name}");
            if let Some(found) = found {
                assert_eq!(found.to_string(), name);
                assert_eq!(of_node(path(found).strip_prefix("/libxl/pci/").unwrap()), Some(found));
            }
        }
    }

    #[test]
    fn a_name_is_short_and_can_be_seen() {
        for (name, is_one) in
            [("card", true), ("", false), ("a b", false), ("\u{e9}", false), ("a\n", false)]
        {
            assert_eq!(check_name(name).is_ok(), is_one, "{name:?}");
        }
        assert!(check_name(&"x".repeat(64)).is_ok() && check_name(&"x".repeat(65)).is_err());
    }
}
