//! All objects that clients can see, in the order of their last change.
//!
//! What is put here again as it was is no change: so records may be derived as often as one likes, and clients hear only
//! of those that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use live::{Cursor, Page, Revision, Table};
use xen::Uuid;

use crate::model::Class;
use crate::value::{Record, Value};

/// An object's name within the façade.
pub(crate) type Key = (Class, Uuid);

/// Removed objects that are remembered for readers of events.
const REMOVALS_MAX: usize = 8192;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// When it came.
    pub created: Revision,
    pub record: Arc<Record>,
}

/// Records that are derived together, from the same facts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Group {
    /// The VM with its devices.
    Vm(Uuid),
    Host,
    Storage,
    Networks,
    Tasks,
}

#[derive(Debug)]
pub(crate) struct Objects {
    table: Table<Key, Entry>,
    groups: BTreeMap<Group, BTreeSet<Key>>,
    counts: BTreeMap<Class, u32>,
}

/// Records by their keys.
pub(crate) type Records = BTreeMap<Key, Record>;

impl Objects {
    /// Revisions are above that one.
    pub(crate) fn after(revision: Revision) -> Self {
        Self {
            table: Table::after(revision, REMOVALS_MAX),
            groups: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.table.revision()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Arc<Record>> {
        self.table.get(&key).map(|entry| &entry.record)
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.table.get(&key).is_some()
    }

    pub(crate) fn field(&self, key: Key, name: &str) -> Option<&Value> {
        self.get(key)?.get(name)
    }

    /// Those of a class, in the order of their UUIDs.
    pub(crate) fn of(&self, class: Class) -> impl Iterator<Item = (Uuid, &Arc<Record>)> {
        let first = (class, Uuid([0; 16]));
        self.table
            .keys_from(first)
            .take_while(move |(it, _)| *it == class)
            .filter_map(|key| Some((key.1, self.get(*key)?)))
    }

    pub(crate) fn count(&self, class: Class) -> u32 {
        self.counts.get(&class).copied().unwrap_or_default()
    }

    /// An object is there, and is like this.
    pub(crate) fn put(&mut self, key: Key, record: Record) {
        let created = match self.table.get(&key) {
            Some(entry) if *entry.record == record => return,
            Some(entry) => entry.created,
            None => {
                *self.counts.entry(key.0).or_default() += 1;
                Revision(self.table.revision().0 + 1)
            }
        };
        self.table.put(key, Entry { created, record: Arc::new(record) });
    }

    pub(crate) fn remove(&mut self, key: Key) {
        if self.table.remove(&key).is_some() {
            *self.counts.entry(key.0).or_default() -= 1;
        }
    }

    /// Tells of an object although it has not changed. The revision before that is returned.
    pub(crate) fn touch(&mut self, key: Key) -> Option<Revision> {
        let entry = self.table.get(&key)?.clone();
        let before = self.table.revision();
        self.table.put(key, entry);
        Some(before)
    }

    /// These are all records of the group; others that it had are there no more, and are returned.
    pub(crate) fn put_group(&mut self, group: Group, records: Records) -> Vec<Key> {
        let before = self.groups.remove(&group).unwrap_or_default();
        let now: BTreeSet<Key> = records.keys().copied().collect();
        let gone: Vec<Key> = before.difference(&now).copied().collect();
        gone.iter().for_each(|key| self.remove(*key));
        for (key, record) in records {
            self.put(key, record);
        }
        if !now.is_empty() {
            self.groups.insert(group, now);
        }
        gone
    }

    /// What has changed for a reader.
    pub(crate) fn read(
        &self,
        cursor: Option<Cursor>,
        wanted: impl Fn(&Key) -> bool,
    ) -> Page<'_, Key, Entry> {
        self.table.read(cursor, usize::MAX, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_it_was_is_no_change() {
        let mut objects = Objects::after(Revision(100));
        let (one, two) = ((Class::Vm, Uuid([1; 16])), (Class::Vbd, Uuid([2; 16])));
        let group = Group::Vm(Uuid([1; 16]));
        let records = || {
            let keys: [Key; 2] = [one, two];
            keys.into_iter().map(|key| (key, key.0.blank())).collect::<Records>()
        };
        objects.put_group(group, records());
        let revision = objects.revision();
        assert_eq!(revision, Revision(102));
        objects.put_group(group, records());
        assert_eq!(objects.revision(), revision);
        let mut fewer = records();
        fewer.remove(&two);
        objects.put_group(group, fewer);
        assert!(objects.has(one) && !objects.has(two));
        assert_eq!((objects.count(Class::Vm), objects.count(Class::Vbd)), (1, 0));
        assert_eq!(objects.touch(one), Some(Revision(103)));
        assert_eq!(objects.revision(), Revision(104));
        objects.put_group(group, Records::new());
        assert_eq!(objects.of(Class::Vm).count(), 0);
    }
}
