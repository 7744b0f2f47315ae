//! A set of domains that is copied at the same cost however many it holds.

use std::fmt;
use std::sync::Arc;

use xen::DomId;

/// Domain numbers of guests lie below this (`DOMID_FIRST_RESERVED`, 0x7ff0, rounded up).
const NUMBERS: usize = 0x8000;
const BITS: usize = u64::BITS as usize;

/// A set of guests' domain numbers: a bit each, 4 KiB in all. A copy shares them until one of the two changes.
#[derive(Clone, Eq, PartialEq)]
pub struct DomainSet(Arc<[u64; NUMBERS / BITS]>);

impl Default for DomainSet {
    fn default() -> Self {
        Self(Arc::new([0; NUMBERS / BITS]))
    }
}

impl fmt::Debug for DomainSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Where a domain's bit is. Reserved numbers have none: they are no guest's.
fn place(domid: DomId) -> Option<(usize, u64)> {
    let number = usize::from(domid.0);
    (number < NUMBERS).then(|| (number / BITS, 1 << (number % BITS)))
}

impl DomainSet {
    pub fn insert(&mut self, domid: DomId) {
        if let Some((word, bit)) = place(domid) {
            Arc::make_mut(&mut self.0)[word] |= bit;
        }
    }

    pub fn remove(&mut self, domid: DomId) {
        if let Some((word, bit)) = place(domid) {
            Arc::make_mut(&mut self.0)[word] &= !bit;
        }
    }

    #[must_use]
    pub fn contains(&self, domid: DomId) -> bool {
        place(domid).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = DomId> + '_ {
        (0..=u16::MAX).map(DomId).filter(|domid| self.contains(*domid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_it_had() {
        let mut all = DomainSet::default();
        for number in [0, 63, 64, 0x7fef] {
            all.insert(DomId(number));
        }
        let copy = all.clone();
        all.remove(DomId(64));
        all.remove(DomId(65));
        // A reserved number, which no guest has.
        all.insert(DomId(0x8000));
        assert_eq!(all.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 63, 0x7fef]);
        assert_eq!(copy.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 63, 64, 0x7fef]);
    }
}
