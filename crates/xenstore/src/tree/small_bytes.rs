//! Byte strings that are mostly short: names and values of nodes.
//!
//! Up to 22 bytes lie in the node itself; longer ones are shared, so that copying a node never copies
//! them.

use alloc::sync::Arc;
use core::cmp::Ordering;
use core::fmt;
use core::ops::Deref;

const INLINE_BYTES_MAX: usize = 22;

#[derive(Clone)]
pub(crate) struct SmallBytes(Repr);

#[derive(Clone)]
enum Repr {
    Inline { length: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Shared(Arc<[u8]>),
}

impl SmallBytes {
    pub(crate) fn new(content: &[u8]) -> Self {
        match u8::try_from(content.len()) {
            Ok(length) if content.len() <= INLINE_BYTES_MAX => {
                let mut bytes = [0; INLINE_BYTES_MAX];
                bytes[..content.len()].copy_from_slice(content);
                Self(Repr::Inline { length, bytes })
            }
            _ => Self(Repr::Shared(content.into())),
        }
    }
}

impl Default for SmallBytes {
    fn default() -> Self {
        Self::new(b"")
    }
}

impl Deref for SmallBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Repr::Shared(bytes) => bytes,
        }
    }
}

impl core::borrow::Borrow<[u8]> for SmallBytes {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for SmallBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SmallBytes {}

impl PartialOrd for SmallBytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SmallBytes {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl fmt::Debug for SmallBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", alloc::string::String::from_utf8_lossy(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn content_survives_on_both_sides_of_the_inline_limit() {
        for length in [0, 1, 21, 22, 23, 4096] {
            let content = vec![b'x'; length];
            assert_eq!(&*SmallBytes::new(&content), &content[..]);
        }
    }

    #[test]
    fn a_node_stays_small() {
        assert_eq!(size_of::<SmallBytes>(), 24);
    }
}
