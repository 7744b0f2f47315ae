//! A set of small numbers, as `struct xenctl_bitmap` carries CPUs and NUMA nodes.

use alloc::vec::Vec;
use core::fmt;

/// Numbers from 0; the lowest bit of the first byte is 0. Trailing zero bytes do not matter.
#[derive(Clone, Default)]
pub struct BitSet(Vec<u8>);

impl BitSet {
    /// Room for more CPUs than any Xen supports.
    pub(crate) const BYTES: usize = 1024;
    /// The same in bits, for a structure's `nr_bits`.
    pub(crate) const BITS: u32 = 8 * 1024;

    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Adds a number.
    ///
    /// # Panics
    /// If it is larger than any that Xen supports (8191).
    pub fn insert(&mut self, number: u32) {
        assert!(number < Self::BITS, "CPU {number} is beyond what any Xen supports");
        let (byte, bit) = (number as usize / 8, number % 8);
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        self.0[byte] |= 1 << bit;
    }

    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize / 8).is_some_and(|byte| byte & 1 << (number % 8) != 0)
    }

    /// Its numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0_u32..).zip(&self.0).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| at * 8 + bit)
        })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// As the bytes of a bitmap of [`BitSet::BITS`] bits.
    pub(crate) fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let used = self.0.len().min(Self::BYTES);
        bytes[..used].copy_from_slice(&self.0[..used]);
        bytes
    }
}

impl FromIterator<u32> for BitSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

impl PartialEq for BitSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for BitSet {}

impl fmt::Debug for BitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_reads_back_what_was_put_in_whatever_zeroes_follow() {
        let set: BitSet = [9, 0, 31, 9].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 9, 31]);
        assert_eq!(set, BitSet::from_bytes(&[1, 2, 0, 0x80, 0, 0]));
        assert!(set.contains(31) && !set.contains(32) && !set.contains(8000));
        assert_eq!((set.len(), BitSet::default().is_empty()), (3, true));
    }
}
