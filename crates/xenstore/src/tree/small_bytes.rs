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

/// A name to look for. Most comparisons of names end in its first words, without a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    words: [u64; 3],
    bytes: &'a [u8],
}

impl<'a> Key<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { words: leading_words(bytes), bytes }
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The first 22 bytes, filled up with zeros, as numbers that compare as they do.
fn leading_words(bytes: &[u8]) -> [u64; 3] {
    match bytes.first_chunk::<INLINE_BYTES_MAX>() {
        Some(leading) => words(leading),
        None => {
            let mut leading = [0; INLINE_BYTES_MAX];
            leading[..bytes.len()].copy_from_slice(bytes);
            words(&leading)
        }
    }
}

fn words(bytes: &[u8; INLINE_BYTES_MAX]) -> [u64; 3] {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_be_bytes(word)
    };
    // The last two overlap, which does not change how they compare.
    [word(0), word(8), word(INLINE_BYTES_MAX - 8)]
}

impl SmallBytes {
    /// How this compares to the key, byte by byte.
    pub(crate) fn compare(&self, key: &Key<'_>) -> Ordering {
        let own = match &self.0 {
            Repr::Inline { bytes, .. } => words(bytes),
            Repr::Shared(bytes) => leading_words(bytes),
        };
        // Equal in front: a zero at the end and none at all differ, and so do long ones further on.
        own.cmp(&key.words).then_with(|| match &self.0 {
            Repr::Inline { length, .. } => usize::from(*length).cmp(&key.bytes.len()),
            Repr::Shared(bytes) => (**bytes).cmp(key.bytes),
        })
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
    fn a_key_compares_as_its_bytes_do() {
        let alphabet: [&[u8]; 4] = [b"", b"\0", b"a", b"b"];
        let mut texts = vec![];
        for length in [0, 1, 7, 8, 14, 16, 21, 22, 23, 30] {
            for (front, end) in alphabet.iter().flat_map(|a| alphabet.iter().map(move |b| (a, b))) {
                texts.push([*front, &vec![b'x'; length], *end].concat());
            }
        }
        for one in &texts {
            for other in &texts {
                let compared = SmallBytes::new(one).compare(&Key::new(other));
                assert_eq!(compared, one.cmp(other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_node_stays_small() {
        assert_eq!(size_of::<SmallBytes>(), 24);
    }
}
