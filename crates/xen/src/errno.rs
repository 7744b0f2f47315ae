//! Error numbers as Xen returns them. Source: `xen/include/public/errno.h` (Linux numbering on x86).

use core::fmt;

/// A positive error number of Xen or the kernel.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub struct Errno(pub i32);

macro_rules! errno {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(pub const $name: Self = Self($number);)*

            /// The symbolic name, if it is in this table.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some(stringify!($name)),)* _ => None }
            }

            fn text(self) -> Option<&'static str> {
                match self.0 { $($number => Some($text),)* _ => None }
            }
        }
    };
}

errno! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such entry";
    ESRCH = 3, "no such domain";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied, or wrong interface version";
    EFAULT = 14, "bad address";
    EBUSY = 16, "busy";
    EEXIST = 17, "exists already";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    ENOTTY = 25, "not supported by the device";
    ENOSPC = 28, "no space left";
    ERANGE = 34, "out of range";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "not empty";
    ENODATA = 61, "no data";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    EADDRNOTAVAIL = 99, "address not available";
    ENOBUFS = 105, "no room for the answer";
    ETIMEDOUT = 110, "timed out";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.text()) {
            (Some(name), Some(text)) => write!(f, "{name}: {text}"),
            _ => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl core::error::Error for Errno {}
