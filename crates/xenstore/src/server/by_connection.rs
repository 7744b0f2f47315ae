//! A table with one entry for each connection.
//!
//! Every request looks its client up several times. Connections are numbered consecutively, so a
//! number's low bits are its slot, or close to it, and a lookup compares one number.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::server::ConnId;

const SLOTS_MIN: usize = 16;

/// A map from connections to `T`.
///
/// Invariant: at most half of the slots are used, and there is no empty slot between an entry's
/// home slot and the entry.
#[derive(Clone, Debug)]
pub struct ByConnection<T> {
    slots: Vec<Option<(ConnId, Box<T>)>>,
    length: usize,
}

impl<T> Default for ByConnection<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ByConnection<T> {
    #[must_use]
    pub fn new() -> Self {
        Self { slots: empty(SLOTS_MIN), length: 0 }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[must_use]
    pub fn get(&self, id: &ConnId) -> Option<&T> {
        self.slots[self.find(*id)].as_ref().map(|(_, entry)| &**entry)
    }

    pub fn get_mut(&mut self, id: &ConnId) -> Option<&mut T> {
        let at = self.find(*id);
        self.slots[at].as_mut().map(|(_, entry)| &mut **entry)
    }

    #[must_use]
    pub fn contains_key(&self, id: &ConnId) -> bool {
        self.get(id).is_some()
    }

    /// Adds an entry and returns the previous one with its number.
    pub fn insert(&mut self, id: ConnId, entry: T) -> Option<T> {
        if 2 * (self.length + 1) > self.slots.len() {
            self.grow();
        }
        let at = self.find(id);
        let old = self.slots[at].replace((id, Box::new(entry)));
        self.length += usize::from(old.is_none());
        old.map(|(_, entry)| *entry)
    }

    pub fn remove(&mut self, id: &ConnId) -> Option<T> {
        let mut hole = self.find(*id);
        let (_, removed) = self.slots[hole].take()?;
        self.length -= 1;
        // Entries displaced by the removed one move up.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask();
            let Some((next, _)) = &self.slots[at] else { break };
            let distance = |from: usize| at.wrapping_sub(from) & self.mask();
            if distance(self.place(*next)) >= distance(hole) {
                self.slots.swap(hole, at);
                hole = at;
            }
        }
        Some(*removed)
    }

    /// The entries by ascending number.
    pub fn iter(&self) -> impl Iterator<Item = (&ConnId, &T)> {
        let mut entries: Vec<(&ConnId, &T)> =
            self.slots.iter().flatten().map(|(id, entry)| (id, &**entry)).collect();
        entries.sort_unstable_by_key(|(id, _)| **id);
        entries.into_iter()
    }

    /// The entries by ascending number.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, entry)| entry)
    }

    /// The entries by ascending number.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let mut entries: Vec<(ConnId, &mut T)> =
            self.slots.iter_mut().flatten().map(|(id, entry)| (*id, &mut **entry)).collect();
        entries.sort_unstable_by_key(|(id, _)| *id);
        entries.into_iter().map(|(_, entry)| entry)
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
    fn place(&self, id: ConnId) -> usize {
        id.number() as usize & self.mask()
    }

    /// The slot with this number, or the empty one where it would go.
    fn find(&self, id: ConnId) -> usize {
        let mut at = self.place(id);
        while self.slots[at].as_ref().is_some_and(|(other, _)| *other != id) {
            at = (at + 1) & self.mask();
        }
        at
    }

    fn grow(&mut self) {
        let larger = empty(2 * self.slots.len());
        let entries = core::mem::replace(&mut self.slots, larger);
        for (id, entry) in entries.into_iter().flatten() {
            let at = self.find(id);
            self.slots[at] = Some((id, entry));
        }
    }
}

impl<'a, T> IntoIterator for &'a ByConnection<T> {
    type Item = (&'a ConnId, &'a T);
    type IntoIter = alloc::vec::IntoIter<(&'a ConnId, &'a T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter().collect::<Vec<_>>().into_iter()
    }
}

fn empty<T>(slots: usize) -> Vec<Option<T>> {
    core::iter::repeat_with(|| None).take(slots).collect()
}

/// Connections to be handled, each once, by ascending number.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready {
    ids: Vec<ConnId>,
}

impl Ready {
    pub(super) fn insert(&mut self, id: ConnId) {
        // Usually it is again the client whose requests are being executed.
        match self.ids.last() {
            Some(last) if *last == id => {}
            Some(last) if *last > id => {
                if let Err(at) = self.ids.binary_search(&id) {
                    self.ids.insert(at, id);
                }
            }
            _ => self.ids.push(id),
        }
    }

    pub(super) fn remove(&mut self, id: &ConnId) {
        if let Ok(at) = self.ids.binary_search(id) {
            self.ids.remove(at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Moves everything into `ids`, replacing its contents.
    pub(super) fn take(&mut self, ids: &mut Vec<ConnId>) {
        ids.clear();
        core::mem::swap(&mut self.ids, ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn entries_are_found_whatever_came_and_went(
            steps in proptest::collection::vec((0u8..3, 0u64..80), 1..300)
        ) {
            let mut table = ByConnection::new();
            let mut model = BTreeMap::new();
            for (value, (step, number)) in steps.into_iter().enumerate() {
                // Numbers with equal low bits share a home slot.
                let id = ConnId::for_test(number % 20 + (number / 20) * 64);
                if step == 0 {
                    prop_assert_eq!(table.remove(&id), model.remove(&id));
                } else {
                    prop_assert_eq!(table.insert(id, value), model.insert(id, value));
                }
                prop_assert_eq!(table.len(), model.len());
                for number in 0..80 {
                    let id = ConnId::for_test(number % 20 + (number / 20) * 64);
                    prop_assert_eq!(table.get(&id), model.get(&id));
                }
            }
            prop_assert!(table.iter().eq(model.iter()));
        }

        #[test]
        fn each_is_ready_once(numbers in proptest::collection::vec(0u64..30, 0..60)) {
            let mut ready = Ready::default();
            let mut model = BTreeSet::new();
            for number in numbers {
                let id = ConnId::for_test(number / 2);
                if number % 7 == 0 {
                    ready.remove(&id);
                    model.remove(&id);
                } else {
                    ready.insert(id);
                    model.insert(id);
                }
            }
            let mut ids = Vec::new();
            ready.take(&mut ids);
            prop_assert!(ids.into_iter().eq(model));
            prop_assert!(ready.is_empty());
        }
    }
}
