//! Numbers that must not be mixed up: domains, frames, ports, grants, UUIDs and state codes.
//!
//! Sources: `xen/include/public/xen.h`, `io/xenbus.h`, `sched.h`, `grant_table.h`.

use core::fmt;
use core::str::FromStr;

/// Base-2 logarithm of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Size of a page on x86, in bytes.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// A domain identifier. Ordinary domains are below [`DomId::FIRST_RESERVED`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DomId(pub u16);

impl DomId {
    pub const DOM0: Self = Self(0);
    /// First identifier that Xen never gives to a domain.
    pub const FIRST_RESERVED: u16 = 0x7FF0;
    /// The caller itself.
    pub const SELF: Self = Self(0x7FF0);
    /// Owns no memory; devices in quarantine are its own.
    pub const IO: Self = Self(0x7FF1);
    /// Lets Xen choose in createdomain, on every version.
    pub const ANY: Self = Self(0x7FF5);

    /// Whether a domain can have this identifier.
    #[must_use]
    pub fn is_ordinary(self) -> bool {
        self.0 < Self::FIRST_RESERVED
    }
}

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! frame {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub u64);

        impl $name {
            /// Address of the frame's first byte.
            #[must_use]
            pub fn address(self) -> u64 {
                self.0 << PAGE_SHIFT
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

frame!(
    /// Guest frame number: what a domain's foreign mappings and hypercalls take.
    Gfn
);
frame!(
    /// Machine frame number.
    Mfn
);
frame!(
    /// Guest-pseudo-physical frame number: a domain's own contiguous numbering.
    Pfn
);

/// An event channel port, local to the domain that holds it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EvtchnPort(pub u32);

impl fmt::Display for EvtchnPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A grant reference: an index into the granting domain's table.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GrantRef(pub u32);

impl GrantRef {
    /// Reserved for the console ring; filled in by the toolstack.
    pub const CONSOLE: Self = Self(0);
    /// Reserved for the xenstore ring; filled in by the toolstack.
    pub const XENSTORE: Self = Self(1);
}

/// A domain's handle: the VM's UUID, in the byte order of its text form.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// One of version 4, of these random bytes.
    #[must_use]
    pub fn of_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Not a UUID: expected 32 hexadecimal digits, with or without the four dashes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a UUID: expected 32 hexadecimal digits as in 01234567-89ab-cdef-0123-456789abcdef")]
pub struct ParseUuidError;

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 16];
        let mut digits = 0;
        for (i, c) in text.chars().enumerate() {
            if c == '-' {
                if matches!(i, 8 | 13 | 18 | 23) {
                    continue;
                }
                return Err(ParseUuidError);
            }
            let value = c.to_digit(16).and_then(|v| u8::try_from(v).ok()).ok_or(ParseUuidError)?;
            let byte: &mut u8 = bytes.get_mut(digits / 2).ok_or(ParseUuidError)?;
            *byte = *byte << 4 | value;
            digits += 1;
        }
        if digits == 32 { Ok(Self(bytes)) } else { Err(ParseUuidError) }
    }
}

/// State of one end of a split device.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum XenbusState {
    Unknown = 0,
    Initialising = 1,
    InitWait = 2,
    Initialised = 3,
    Connected = 4,
    Closing = 5,
    Closed = 6,
    Reconfiguring = 7,
    Reconfigured = 8,
}

impl XenbusState {
    /// Decodes the decimal text of a `state` node; anything else is [`XenbusState::Unknown`].
    #[must_use]
    pub fn decode(text: &[u8]) -> Self {
        match text {
            b"1" => Self::Initialising,
            b"2" => Self::InitWait,
            b"3" => Self::Initialised,
            b"4" => Self::Connected,
            b"5" => Self::Closing,
            b"6" => Self::Closed,
            b"7" => Self::Reconfiguring,
            b"8" => Self::Reconfigured,
            _ => Self::Unknown,
        }
    }

    /// The number as written to a `state` node.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "0",
            Self::Initialising => "1",
            Self::InitWait => "2",
            Self::Initialised => "3",
            Self::Connected => "4",
            Self::Closing => "5",
            Self::Closed => "6",
            Self::Reconfiguring => "7",
            Self::Reconfigured => "8",
        }
    }
}

/// Why a domain shut down (`SHUTDOWN_*`).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ShutdownReason {
    Poweroff,
    Reboot,
    Suspend,
    Crash,
    Watchdog,
    SoftReset,
    /// A code unknown to this version of Xylem.
    Other(u8),
}

impl ShutdownReason {
    /// From the code in a domain's flags or of `SCHEDOP_shutdown`.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Poweroff,
            1 => Self::Reboot,
            2 => Self::Suspend,
            3 => Self::Crash,
            4 => Self::Watchdog,
            5 => Self::SoftReset,
            other => Self::Other(other),
        }
    }

    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Poweroff => 0,
            Self::Reboot => 1,
            Self::Suspend => 2,
            Self::Crash => 3,
            Self::Watchdog => 4,
            Self::SoftReset => 5,
            Self::Other(code) => code,
        }
    }
}

impl fmt::Display for ShutdownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poweroff => f.write_str("poweroff"),
            Self::Reboot => f.write_str("reboot"),
            Self::Suspend => f.write_str("suspend"),
            Self::Crash => f.write_str("crash"),
            Self::Watchdog => f.write_str("watchdog"),
            Self::SoftReset => f.write_str("soft_reset"),
            Self::Other(code) => write!(f, "reason {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_uuid_reads_back_as_written() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!("0123456789ABCDEF0123456789abcdef".parse(), Ok(uuid));
    }

    #[test]
    fn text_that_is_not_a_uuid_is_refused() {
        for text in [
            "",
            "0123",
            "0123456-789ab-cdef-0123-456789abcdef",
            "zz234567-89ab-cdef-0123-456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdef0",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(ParseUuidError), "{text}");
        }
    }

    #[test]
    fn state_nodes_read_back_and_garbage_is_unknown() {
        for code in 0..=8 {
            let text = code.to_string();
            assert_eq!(XenbusState::decode(text.as_bytes()).as_str(), text);
        }
        assert_eq!(XenbusState::decode(b"04"), XenbusState::Unknown);
    }
}
