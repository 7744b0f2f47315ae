//! Permissions on the wire: a letter and a domid.
//!
//! Their meaning is implemented in `acl.rs`. Source: xen `docs/misc/xenstore.txt`, `SET_PERMS`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use xen::DomId;

use crate::{Error, wire};

/// What a permission entry grants.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Access {
    None,
    Read,
    Write,
    ReadWrite,
}

impl Access {
    /// The letter of the protocol.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::None => 'n',
            Self::Read => 'r',
            Self::Write => 'w',
            Self::ReadWrite => 'b',
        }
    }

    pub(crate) fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'n' => Some(Self::None),
            b'r' => Some(Self::Read),
            b'w' => Some(Self::Write),
            b'b' => Some(Self::ReadWrite),
            _ => None,
        }
    }

    /// Whether reading is granted.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether writing is granted.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// One entry of a node's permission list.
///
/// The first entry names the owner, and its access is the default for all domains not listed after
/// it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Permission {
    pub access: Access,
    pub domid: DomId,
}

impl Permission {
    #[must_use]
    pub const fn new(access: Access, domid: DomId) -> Self {
        Self { access, domid }
    }

    /// Decodes one entry, such as `r3`; the number may also be octal or hexadecimal, as in C.
    ///
    /// # Errors
    /// `EINVAL` if the letter or the number is invalid.
    pub fn decode(text: &[u8]) -> Result<Self, Error> {
        let (&letter, number) = text.split_first().ok_or(Error::EINVAL)?;
        let access = Access::from_letter(letter).ok_or(Error::EINVAL)?;
        let (digits, radix) = match number {
            [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
            [b'0', digits @ ..] if !digits.is_empty() => (digits, 8),
            digits => (digits, 10),
        };
        let digits = core::str::from_utf8(digits).map_err(|_| Error::EINVAL)?;
        if digits.starts_with('+') {
            return Err(Error::EINVAL);
        }
        let domid = u16::from_str_radix(digits, radix).map_err(|_| Error::EINVAL)?;
        Ok(Self { access, domid: DomId(domid) })
    }

    /// Decodes the list in the payload of a `GET_PERMS` reply.
    ///
    /// # Errors
    /// `EINVAL` if an entry is invalid.
    pub fn decode_list(payload: &[u8]) -> Result<Vec<Self>, Error> {
        wire::strings(payload).map(Self::decode).collect()
    }

    /// The list as in the payloads of `SET_PERMS` (after the path) and of `GET_PERMS`' reply.
    #[must_use]
    pub fn encode_list(list: &[Self]) -> String {
        list.iter().map(|permission| format!("{permission}\0")).collect()
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.access.letter(), self.domid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_letter_and_a_number() {
        for (text, access, domid) in [
            ("n0", Access::None, 0),
            ("r3", Access::Read, 3),
            ("w65535", Access::Write, 65535),
            ("b0x10", Access::ReadWrite, 16),
            ("b010", Access::ReadWrite, 8),
        ] {
            let permission = Permission::new(access, DomId(domid));
            assert_eq!(Permission::decode(text.as_bytes()), Ok(permission), "{text}");
        }
        for text in ["", "r", "x1", "R1", "r-1", "r+1", "r65536", "r1 ", "r0x", "r08", "1r"] {
            assert_eq!(Permission::decode(text.as_bytes()), Err(Error::EINVAL), "{text}");
        }
    }

    #[test]
    fn a_list_reads_back_as_written() {
        let list =
            [Permission::new(Access::None, DomId(0)), Permission::new(Access::ReadWrite, DomId(7))];
        let text = Permission::encode_list(&list);
        assert_eq!(text, "n0\0b7\0");
        assert_eq!(Permission::decode_list(text.as_bytes()), Ok(list.to_vec()));
    }
}
