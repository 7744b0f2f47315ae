//! Objects in the order of their last change, for readers that follow them.
//!
//! Each change gives its object the next revision, and there is one order of revisions for all objects of a table. A
//! reader asks for what has changed since its last page and gets the latest state of each such object, once, however
//! often it has changed. So what a reader may have to be told is bounded by the number of objects, and a table keeps
//! nothing for any of its readers: a slow one costs nothing, and misses only states in between.
//!
//! A bounded number of removed objects is remembered. A reader that is further behind is told to start again, since it
//! may know objects that are there no more.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;

/// A point in the order of changes; larger is later.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Revision(pub u64);

/// How far a reader is.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cursor {
    /// It knows the latest state of everything that has not changed after this.
    pub at: Revision,
    /// It knows nothing that was removed before this: the table's revision when it began.
    pub began: Revision,
}

/// Objects by key.
#[derive(Clone, Debug)]
pub struct Table<K, V> {
    objects: BTreeMap<K, (Revision, V)>,
    /// The key of each object by its last change.
    changes: BTreeMap<Revision, K>,
    /// The removed objects that are remembered, by their removal.
    removals: BTreeMap<Revision, K>,
    /// The same by key.
    removed: BTreeMap<K, Revision>,
    removals_max: usize,
    /// Of the last change.
    revision: Revision,
    /// Removals up to here may be forgotten.
    forgotten: Revision,
}

/// One change, as a reader gets it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Item<'a, K, V> {
    pub revision: Revision,
    pub key: &'a K,
    /// The object as it is now; `None` if it was removed.
    pub value: Option<&'a V>,
}

/// Some changes, the earliest first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Page<'a, K, V> {
    pub items: Vec<Item<'a, K, V>>,
    /// Where the reader goes on.
    pub next: Cursor,
    /// Whoever has read up to here knows the table as it is now.
    pub is_last: bool,
    /// The reader forgets what it knows: these are the first of all objects.
    pub starts_again: bool,
}

impl<K: Clone + Ord, V> Table<K, V> {
    /// An empty table whose revisions are above `revision`, as those of a process have to be above its predecessor's.
    /// It remembers up to `removals_max` removed objects.
    #[must_use]
    pub fn after(revision: Revision, removals_max: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            changes: BTreeMap::new(),
            removals: BTreeMap::new(),
            removed: BTreeMap::new(),
            removals_max,
            revision,
            forgotten: revision,
        }
    }

    /// Of the last change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.objects.get(key).map(|(_, value)| value)
    }

    /// Of an object's last change.
    #[must_use]
    pub fn revision_of(&self, key: &K) -> Option<Revision> {
        self.objects.get(key).map(|(revision, _)| *revision)
    }

    /// All objects in the order of their keys, with the revision of their last change.
    pub fn iter(&self) -> impl Iterator<Item = (&K, Revision, &V)> {
        self.objects.iter().map(|(key, (revision, value))| (key, *revision, value))
    }

    /// The keys of objects from this one on, in their order.
    pub fn keys_from(&self, first: K) -> impl Iterator<Item = &K> {
        self.objects.range(first..).map(|(key, _)| key)
    }

    /// An object is there, and is like this.
    pub fn put(&mut self, key: K, value: V) -> Revision {
        let revision = self.next_revision();
        if let Some(removal) = self.removed.remove(&key) {
            self.removals.remove(&removal);
        }
        self.changes.insert(revision, key.clone());
        if let Some((before, _)) = self.objects.insert(key, (revision, value)) {
            self.changes.remove(&before);
        }
        revision
    }

    /// An object is there no more. To remove one that is not there changes nothing.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (key, (before, value)) = self.objects.remove_entry(key)?;
        let revision = self.next_revision();
        self.changes.remove(&before);
        self.removals.insert(revision, key.clone());
        self.removed.insert(key, revision);
        if self.removals.len() > self.removals_max
            && let Some((earliest, key)) = self.removals.pop_first()
        {
            self.removed.remove(&key);
            self.forgotten = earliest;
        }
        Some(value)
    }

    fn next_revision(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }

    /// Whether a reader that is here has to be told something.
    #[must_use]
    pub fn has_news(&self, cursor: Cursor) -> bool {
        cursor.at != self.revision
    }

    /// Up to `max` changes, and at least one if there is any, for a reader that is here. One that begins, and one whose
    /// cursor is too old or of another process, gets all objects from the first. Keys that are not `wanted` are passed
    /// over.
    #[must_use]
    pub fn read(
        &self,
        cursor: Option<Cursor>,
        max: usize,
        wanted: impl Fn(&K) -> bool,
    ) -> Page<'_, K, V> {
        let is_known = |cursor: &Cursor| {
            let knows_removals_to = cursor.at.max(cursor.began);
            (self.forgotten..=self.revision).contains(&knows_removals_to)
        };
        let known = cursor.filter(is_known);
        let Cursor { at, began } =
            known.unwrap_or(Cursor { at: Revision(0), began: self.revision });
        let changes = self.changes.range(later_than(at)).map(|(revision, key)| Item {
            revision: *revision,
            key,
            value: self.get(key),
        });
        let removals = self.removals.range(later_than(at.max(began)));
        let removals =
            removals.map(|(revision, key)| Item { revision: *revision, key, value: None });
        let merged = Merged { one: changes.peekable(), other: removals.peekable() };
        let mut all = merged.filter(|item| wanted(item.key));
        let items: Vec<_> = all.by_ref().take(max.max(1)).collect();
        let is_last = all.next().is_none();
        let at = match items.last() {
            Some(last) if !is_last => last.revision,
            _ => self.revision,
        };
        Page { items, next: Cursor { at, began }, is_last, starts_again: known.is_none() }
    }
}

fn later_than(revision: Revision) -> (Bound<Revision>, Bound<Revision>) {
    (Bound::Excluded(revision), Bound::Unbounded)
}

/// The items of both, the earlier first.
struct Merged<A: Iterator, B: Iterator> {
    one: Peekable<A>,
    other: Peekable<B>,
}

impl<'a, K, V, A, B> Iterator for Merged<A, B>
where
    K: 'a,
    V: 'a,
    A: Iterator<Item = Item<'a, K, V>>,
    B: Iterator<Item = Item<'a, K, V>>,
{
    type Item = Item<'a, K, V>;

    fn next(&mut self) -> Option<Self::Item> {
        let other = self.other.peek().map(|item| item.revision);
        let is_first = |one: &Item<'a, K, V>| other.is_none_or(|other| one.revision < other);
        self.one.next_if(is_first).or_else(|| self.other.next())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REMOVALS_MAX: usize = 4;
    const BASE: Revision = Revision(1000);

    #[derive(Default)]
    struct Reader {
        cursor: Option<Cursor>,
        known: BTreeMap<u8, u32>,
        /// Removals that it has not been told of, at most.
        removals: usize,
        is_in_the_middle: bool,
    }

    impl Reader {
        fn read(&mut self, table: &Table<u8, u32>, max: usize) {
            let page = table.read(self.cursor, max, |_| true);
            let is_new = self.cursor.is_none();
            if self.removals <= REMOVALS_MAX && !is_new {
                assert!(!page.starts_again, "it is told to start again without need");
            }
            assert!(page.starts_again || !is_new);
            assert!(page.items.len() <= max);
            assert!(page.items.is_sorted_by(|one, next| one.revision < next.revision));
            if page.starts_again {
                self.known.clear();
            }
            for item in &page.items {
                match item.value {
                    Some(value) => self.known.insert(*item.key, *value),
                    None => self.known.remove(item.key),
                };
            }
            self.is_in_the_middle = !page.is_last;
            if page.is_last {
                let all = table.iter().map(|(key, _, value)| (*key, *value)).collect();
                assert_eq!(self.known, all, "it knows something else than what is there");
                assert!(!table.has_news(page.next));
            }
            self.cursor = Some(page.next);
            if page.is_last || page.starts_again {
                self.removals = 0;
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Put(u8, u32),
        Remove(u8),
        Read(usize, usize),
    }

    fn deed() -> impl Strategy<Value = Deed> {
        prop_oneof![
            (0..12u8, any::<u32>()).prop_map(|(key, value)| Deed::Put(key, value)),
            (0..12u8).prop_map(Deed::Remove),
            (0..3usize, 1..6usize).prop_map(|(reader, max)| Deed::Read(reader, max)),
        ]
    }

    proptest! {
        #[test]
        fn whoever_has_read_to_the_end_knows_what_is_there(
            deeds in prop::collection::vec(deed(), 1..200),
        ) {
            let mut table = Table::after(BASE, REMOVALS_MAX);
            let mut readers: [Reader; 3] = Default::default();
            for deed in deeds {
                match deed {
                    Deed::Put(key, value) => {
                        let before = table.revision();
                        assert!(table.put(key, value) > before);
                        assert_eq!(table.get(&key), Some(&value));
                    }
                    Deed::Remove(key) => {
                        if table.remove(&key).is_some() {
                            readers.iter_mut().for_each(|reader| reader.removals += 1);
                        }
                    }
                    Deed::Read(reader, max) => readers[reader].read(&table, max),
                }
                assert_eq!(table.changes.len(), table.len());
                assert_eq!(table.removals.len(), table.removed.len());
                assert!(table.removals.len() <= REMOVALS_MAX);
            }
            for reader in &mut readers {
                // Without further changes everybody comes to the end.
                for _ in 0..20 {
                    reader.read(&table, 3);
                }
                assert!(!reader.is_in_the_middle);
            }
        }
    }

    #[test]
    fn an_object_that_has_changed_often_is_told_once() {
        let mut table = Table::after(BASE, REMOVALS_MAX);
        table.put("a", 0);
        table.put("b", 0);
        let first = table.read(None, 10, |_| true).next;
        (1..=1000).for_each(|value| {
            table.put("a", value);
        });
        let page = table.read(Some(first), 10, |_| true);
        assert_eq!(page.items.len(), 1);
        assert_eq!((page.items[0].key, page.items[0].value), (&"a", Some(&1000)));
        assert!(page.is_last && !page.starts_again);
    }

    #[test]
    fn a_reader_of_some_keys_goes_on_past_the_others() {
        let mut table = Table::after(BASE, REMOVALS_MAX);
        (0..100u8).for_each(|key| {
            table.put(key, ());
        });
        let page = table.read(None, 10, |key| *key >= 95);
        assert_eq!((page.items.len(), page.is_last), (5, true));
        let next = page.next;
        assert_eq!(next.at, table.revision());
        table.put(1, ());
        let page = table.read(Some(next), 10, |key| *key >= 95);
        assert_eq!((page.items.len(), page.is_last), (0, true));
        assert!(!table.has_news(page.next));
    }

    #[test]
    fn a_cursor_of_another_process_starts_again() {
        let mut before = Table::after(BASE, REMOVALS_MAX);
        let mut after = Table::after(Revision(5000), REMOVALS_MAX);
        before.put("a", 1);
        after.put("b", 2);
        for stranger in [before.read(None, 10, |_| true).next, Cursor::default()] {
            let page = after.read(Some(stranger), 10, |_| true);
            assert!(page.starts_again);
            assert_eq!(page.items.len(), 1);
        }
        let later = Cursor { at: Revision(9999), began: Revision(0) };
        assert!(after.read(Some(later), 10, |_| true).starts_again);
    }
}
