//! The error names of the xenstore protocol.
//!
//! The list is closed: libxenstore maps unknown names to `EINVAL`. Source: xen
//! `xen/include/public/io/xs_wire.h`, `xsd_errors`.

use core::fmt;

macro_rules! errors {
    ($($name:ident $text:literal;)*) => {
        /// An error reply of the store.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Error {
            $(#[doc = $text] $name,)*
        }

        impl Error {
            /// The name in an `ERROR` reply.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Decodes a name; an unknown one counts as `EINVAL`, as in libxenstore.
            #[must_use]
            pub fn from_name(name: &[u8]) -> Self {
                match core::str::from_utf8(name) {
                    $(Ok(stringify!($name)) => Self::$name,)*
                    _ => Self::EINVAL,
                }
            }

            /// Its number in the protocol's list, counted from 1.
            #[must_use]
            pub fn code(self) -> u32 {
                self as u32 + 1
            }

            /// The error with this number; an unknown one counts as `EINVAL`.
            #[must_use]
            pub fn from_code(code: u32) -> Self {
                const ALL: &[Error] = &[$(Error::$name,)*];
                let index = code.checked_sub(1).and_then(|index| usize::try_from(index).ok());
                index.and_then(|index| ALL.get(index)).copied().unwrap_or(Self::EINVAL)
            }

            fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

errors! {
    EINVAL "invalid argument";
    EACCES "permission denied";
    EEXIST "exists already";
    EISDIR "is a directory";
    ENOENT "no such node";
    ENOMEM "the transaction failed earlier, or the store is out of memory";
    ENOSPC "quota exceeded";
    EIO "input/output error";
    ENOTEMPTY "not empty";
    ENOSYS "the store does not know this request";
    EROFS "read-only";
    EBUSY "busy";
    EAGAIN "the transaction conflicts with another change";
    EISCONN "connected already";
    E2BIG "too big for one message";
    EPERM "operation not permitted";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_back_to_its_error() {
        assert_eq!((Error::EINVAL.code(), Error::EPERM.code()), (1, 16));
        for code in 1..=16 {
            assert_eq!(Error::from_code(code).code(), code);
        }
        for code in [0, 17, u32::MAX] {
            assert_eq!(Error::from_code(code), Error::EINVAL);
        }
    }

    #[test]
    fn a_name_outside_the_protocol_counts_as_einval() {
        assert_eq!(Error::from_name(b"ENOENT"), Error::ENOENT);
        for noise in [&b"EQUOTA"[..], b"", b"enoent", b"ENOENT\0", b"\xff"] {
            assert_eq!(Error::from_name(noise), Error::EINVAL);
        }
    }
}
