//! Addresses and networks.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

/// An address, or those of a network.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Prefix {
    pub address: IpAddr,
    /// At most 32, or 128 for IPv6.
    pub bits: u8,
}

impl Prefix {
    /// This one only.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self { address, bits: whole(address) }
    }

    /// Without the bits of a host in it.
    #[must_use]
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Self { address, bits: self.bits }
    }
}

fn whole(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Prefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected an IP address, or a network as in 192.0.2.0/24";
        let (address, bits) = match text.split_once('/') {
            None => (text, None),
            Some((address, bits)) => (address, Some(bits)),
        };
        let address: IpAddr = address.parse().map_err(|_| EXPECTED)?;
        let bits = match bits {
            None => whole(address),
            Some(bits) => bits.parse().ok().filter(|it| *it <= whole(address)).ok_or(EXPECTED)?,
        };
        Ok(Self { address, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_no_bits_of_a_host() {
        for (text, network) in [
            ("10.1.2.3", "10.1.2.3/32"),
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("2001:db8::7/64", "2001:db8::/64"),
            ("::1/0", "::/0"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.network().to_string(), network);
        }
        for wrong in ["", "10.0.0", "10.0.0.1/33", "::1/129", "10.0.0.1/", "a/8"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
