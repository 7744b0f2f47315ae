//! Devices of the host that a guest is to have for itself.

use std::fmt;

use xen::PciAddress;

/// Which device it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PciName {
    Address(PciPlace),
    /// As it was named when it was made assignable.
    Named(String),
}

/// Where it is on the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PciPlace {
    pub segment: u16,
    pub bus: u8,
    pub device: u8,
    /// `None`: all of them.
    pub function: Option<u8>,
}

impl PciPlace {
    /// Of this one function.
    #[must_use]
    pub fn of(PciAddress(number): PciAddress) -> Self {
        let [low, bus, segment @ ..] = number.to_le_bytes();
        let (device, function) = (low >> 3, Some(low & 7));
        Self { segment: u16::from_le_bytes(segment), bus, device, function }
    }

    /// The function that it is, or the first of all.
    #[must_use]
    pub fn first_function(self) -> PciAddress {
        let Self { segment, bus, device, function } = self;
        let [bus, device, function] = [bus, device, function.unwrap_or(0)].map(u32::from);
        PciAddress(u32::from(segment) << 16 | bus << 8 | device << 3 | function)
    }
}

impl fmt::Display for PciPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, bus, device, function } = self;
        write!(f, "{segment:04x}:{bus:02x}:{device:02x}.")?;
        match function {
            Some(function) => write!(f, "{function:x}"),
            None => f.write_str("*"),
        }
    }
}

impl PciName {
    /// Whether it is all functions of a device, and the other one of them.
    pub(crate) fn is_around(&self, other: &Self) -> bool {
        let (Self::Address(all), Self::Address(one)) = (self, other) else { return false };
        all.function.is_none() && *all == PciPlace { function: None, ..*one }
    }

    /// Whether these words mean a device that a domain was given at this address, under this name.
    pub(crate) fn means(&self, address: PciAddress, name: Option<&str>) -> bool {
        match (self, name) {
            (Self::Named(wanted), Some(name)) => wanted == name,
            (Self::Named(_), None) | (Self::Address(_), Some(_)) => false,
            (Self::Address(place), None) => match place.function {
                Some(_) => place.first_function() == address,
                None => place.first_function().0 >> 3 == address.0 >> 3,
            },
        }
    }
}

impl fmt::Display for PciName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(place) => place.fmt(f),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// What becomes of a VM whose memory would be where a device's firmware has reserved some.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum RdmPolicy {
    /// It is not made.
    Strict,
    #[default]
    Relaxed,
}

impl RdmPolicy {
    pub const ALL: [Self; 2] = [Self::Strict, Self::Relaxed];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Relaxed => "relaxed",
        }
    }
}

/// A device, and how the guest has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PciDevice {
    pub name: PciName,
    /// Its number on the guest's bus.
    pub slot: Option<u8>,
    /// Whether the guest may write all of its configuration.
    pub permissive: bool,
    pub msitranslate: bool,
    /// Whether it is taken from domain 0's driver.
    pub seize: bool,
    pub power_mgmt: bool,
    pub rdm_policy: RdmPolicy,
}

/// Memory that the host's devices have reserved, and an HVM guest is to leave alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rdm {
    /// Whether that is all of it, and not only what its own devices have.
    pub of_host: bool,
    pub policy: RdmPolicy,
}
