//! A persistent sorted set: what a node's children are kept in.
//!
//! A B-tree of shared blocks. A clone is O(1); a change copies only blocks that a clone still holds,
//! so without clones it changes in place. Removal leaves small blocks as they are and drops empty
//! ones: the height stays logarithmic in the largest size the set ever had.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::mem;

use crate::tree::small_bytes::Key;

/// Items in a block, at most.
const BLOCK_LENGTH_MAX: usize = 32;

/// Most directories have no more children than this.
const FEW: usize = 4;

/// Blocks on the way to an item, at most: each but the root was half full when it was made.
const HEIGHT_MAX: usize = 16;

/// Where an item is: which way to go in each block.
#[derive(Clone, Copy)]
struct Place([u8; HEIGHT_MAX]);

#[expect(clippy::cast_possible_truncation, reason = "a block has at most 32 items")]
fn narrow(at: usize) -> u8 {
    at as u8
}

/// What the items are sorted by.
pub(crate) trait Keyed {
    fn key(&self) -> &[u8];

    fn compare(&self, key: &Key<'_>) -> Ordering {
        self.key().cmp(key.bytes())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Sorted<T> {
    root: Block<T>,
}

#[derive(Clone, Debug)]
enum Block<T> {
    Leaf(Vec<T>),
    /// Invariant: no child is empty, except while `remove` runs.
    Inner(Vec<Arc<Block<T>>>),
}

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self { root: Block::Leaf(Vec::new()) }
    }
}

impl<T: Keyed + Clone> Sorted<T> {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&T> {
        if let Some(few) = self.few() {
            return few.iter().find(|item| item.key() == key);
        }
        let key = Key::new(key);
        let mut block = &self.root;
        loop {
            match block {
                Block::Leaf(items) => return items.get(position(items, &key).ok()?),
                Block::Inner(children) => block = &children[child_for(children, &key)],
            }
        }
    }

    /// The items, if there are so few that it is faster to look at each.
    fn few(&self) -> Option<&[T]> {
        match &self.root {
            Block::Leaf(items) if items.len() <= FEW => Some(items),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut T> {
        let place = self.find(&Key::new(key))?;
        Some(self.at_mut(place))
    }

    /// The item with this key, and whether it had to be made.
    pub(crate) fn get_or_insert_with(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> T,
    ) -> (&mut T, bool) {
        if let Some(at) = self.few().and_then(|few| few.iter().position(|item| item.key() == key)) {
            let mut steps = [0; HEIGHT_MAX];
            steps[0] = narrow(at);
            return (self.at_mut(Place(steps)), false);
        }
        let key = Key::new(key);
        match self.find(&key) {
            Some(place) => (self.at_mut(place), false),
            None => {
                self.insert(make());
                let place = self.find(&key).expect("inserted just now");
                (self.at_mut(place), true)
            }
        }
    }

    fn find(&self, key: &Key<'_>) -> Option<Place> {
        let mut steps = [0; HEIGHT_MAX];
        let mut block = &self.root;
        for step in &mut steps {
            match block {
                Block::Leaf(items) => {
                    *step = narrow(position(items, key).ok()?);
                    return Some(Place(steps));
                }
                Block::Inner(children) => {
                    let at = child_for(children, key);
                    *step = narrow(at);
                    block = &children[at];
                }
            }
        }
        unreachable!("a set this high has more items than memory")
    }

    fn at_mut(&mut self, place: Place) -> &mut T {
        let mut steps = place.0.into_iter().map(usize::from);
        let mut block = &mut self.root;
        loop {
            let at = steps.next().expect("as many steps as blocks on the way");
            match block {
                Block::Leaf(items) => return &mut items[at],
                Block::Inner(children) => block = Arc::make_mut(&mut children[at]),
            }
        }
    }

    /// Adds an item.
    ///
    /// # Panics
    /// If one with its key is there already.
    pub(crate) fn insert(&mut self, item: T) {
        if let Some(right) = self.root.insert(item) {
            let left = mem::replace(&mut self.root, Block::Leaf(Vec::new()));
            self.root = Block::Inner(alloc::vec![Arc::new(left), Arc::new(right)]);
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<T> {
        // Looked up first, so that a miss copies nothing.
        self.get(key)?;
        let removed = self.root.remove(&Key::new(key))?;
        while let Block::Inner(children) = &mut self.root {
            match children.len() {
                0 => self.root = Block::Leaf(Vec::new()),
                1 => self.root = Arc::unwrap_or_clone(children.swap_remove(0)),
                _ => break,
            }
        }
        Some(removed)
    }

    /// The items in the order of their keys.
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        let mut iter = Iter { inner: Vec::new(), leaf: [].iter() };
        iter.descend(&self.root);
        iter
    }

    /// Moves out every item that no clone of this set holds, and forgets the others.
    pub(crate) fn drain_unshared(self, into: &mut Vec<T>) {
        let mut parts = alloc::vec![self.into_part()];
        while let Some(part) = parts.pop() {
            part.take_apart_unshared(&mut parts, into);
        }
    }

    /// The set as something to take apart.
    pub(crate) fn into_part(self) -> Part<T> {
        Part(Held::Alone(self.root))
    }
}

/// A piece of a set, to be taken apart: each step gives at most as many items as a block has.
#[derive(Clone, Debug)]
pub(crate) struct Part<T>(Held<T>);

#[derive(Clone, Debug)]
enum Held<T> {
    Alone(Block<T>),
    PerhapsShared(Arc<Block<T>>),
}

impl<T: Clone> Part<T> {
    /// Gives out the items, copies of those that a clone of the set holds as well.
    pub(crate) fn take_apart(self, parts: &mut Vec<Self>, items: &mut Vec<T>) {
        let block = match self.0 {
            Held::Alone(block) => block,
            Held::PerhapsShared(block) => Arc::unwrap_or_clone(block),
        };
        block.give(parts, items);
    }

    /// Gives out the items that no clone of the set holds, and forgets the others.
    pub(crate) fn take_apart_unshared(self, parts: &mut Vec<Self>, items: &mut Vec<T>) {
        let block = match self.0 {
            Held::Alone(block) => Some(block),
            Held::PerhapsShared(block) => Arc::into_inner(block),
        };
        if let Some(block) = block {
            block.give(parts, items);
        }
    }
}

impl<T> Block<T> {
    fn give(self, parts: &mut Vec<Part<T>>, items: &mut Vec<T>) {
        match self {
            Self::Leaf(own) => items.extend(own),
            Self::Inner(children) => {
                parts.extend(children.into_iter().map(|child| Part(Held::PerhapsShared(child))));
            }
        }
    }
}

impl<T: Keyed + Clone> Block<T> {
    /// The smallest item below this block.
    fn first(&self) -> &T {
        let mut block = self;
        loop {
            match block {
                Self::Leaf(items) => return &items[0],
                Self::Inner(children) => block = &children[0],
            }
        }
    }

    /// Adds an item; a block that was full gives its upper half away.
    fn insert(&mut self, item: T) -> Option<Self> {
        match self {
            Self::Leaf(items) => {
                let key = Key::new(item.key());
                let at = position(items, &key).expect_err("an item with this key is there");
                let upper = split_full(items, at);
                match upper {
                    None => {
                        items.insert(at, item);
                        None
                    }
                    Some(mut upper) if at > items.len() => {
                        upper.insert(at - items.len(), item);
                        Some(Self::Leaf(upper))
                    }
                    Some(upper) => {
                        items.insert(at, item);
                        Some(Self::Leaf(upper))
                    }
                }
            }
            Self::Inner(children) => {
                let at = child_for(children, &Key::new(item.key()));
                let right = Arc::new(Arc::make_mut(&mut children[at]).insert(item)?);
                let at = at + 1;
                match split_full(children, at) {
                    None => {
                        children.insert(at, right);
                        None
                    }
                    Some(mut upper) if at > children.len() => {
                        upper.insert(at - children.len(), right);
                        Some(Self::Inner(upper))
                    }
                    Some(upper) => {
                        children.insert(at, right);
                        Some(Self::Inner(upper))
                    }
                }
            }
        }
    }

    fn remove(&mut self, key: &Key<'_>) -> Option<T> {
        match self {
            Self::Leaf(items) => {
                let at = position(items, key).ok()?;
                Some(items.remove(at))
            }
            Self::Inner(children) => {
                let at = child_for(children, key);
                let child = Arc::make_mut(&mut children[at]);
                let removed = child.remove(key)?;
                if child.is_empty() {
                    children.remove(at);
                }
                Some(removed)
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Leaf(items) => items.is_empty(),
            Self::Inner(children) => children.is_empty(),
        }
    }
}

fn position<T: Keyed>(items: &[T], key: &Key<'_>) -> Result<usize, usize> {
    items.binary_search_by(|item| item.compare(key))
}

/// The child whose range holds `key`: the last that begins at or before it, else the first.
fn child_for<T: Keyed + Clone>(children: &[Arc<Block<T>>], key: &Key<'_>) -> usize {
    let begins_before = |child: &Arc<Block<T>>| child.first().compare(key) != Ordering::Greater;
    children.partition_point(begins_before).saturating_sub(1)
}

/// Splits a full block; one that grows at its end keeps its items, as names often come in order.
fn split_full<T>(items: &mut Vec<T>, at: usize) -> Option<Vec<T>> {
    if items.len() < BLOCK_LENGTH_MAX {
        return None;
    }
    let middle = if at == items.len() { BLOCK_LENGTH_MAX - 1 } else { BLOCK_LENGTH_MAX / 2 };
    Some(items.split_off(middle))
}

pub(crate) struct Iter<'a, T> {
    inner: Vec<core::slice::Iter<'a, Arc<Block<T>>>>,
    leaf: core::slice::Iter<'a, T>,
}

impl<'a, T> Iter<'a, T> {
    fn descend(&mut self, mut block: &'a Block<T>) {
        loop {
            match block {
                Block::Leaf(items) => {
                    self.leaf = items.iter();
                    return;
                }
                Block::Inner(children) => {
                    let mut children = children.iter();
                    let Some(first) = children.next() else { return };
                    self.inner.push(children);
                    block = first;
                }
            }
        }
    }
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(item) = self.leaf.next() {
                return Some(item);
            }
            match self.inner.last_mut()?.next() {
                Some(block) => self.descend(block),
                None => drop(self.inner.pop()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    #[derive(Clone, Debug, Eq, PartialEq)]
    struct Item(String, u32);

    impl Keyed for Item {
        fn key(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }

    fn assert_same(set: &Sorted<Item>, model: &BTreeMap<String, u32>) {
        let items: Vec<_> = set.iter().map(|item| (item.0.clone(), item.1)).collect();
        assert_eq!(items, model.clone().into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn five_thousand_items_come_and_go_in_any_order() {
        let key = |i: u32| format!("{:05}", i.wrapping_mul(7919) % 5_003);
        let mut set = Sorted::default();
        let mut model = BTreeMap::new();
        for i in 0..5_000 {
            set.insert(Item(key(i), i));
            model.insert(key(i), i);
        }
        assert_same(&set, &model);
        for i in 0..5_000 {
            assert_eq!(set.remove(key(i).as_bytes()), Some(Item(key(i), i)));
            assert_eq!(set.get(key(i).as_bytes()), None);
        }
        assert_same(&set, &BTreeMap::new());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_clone_stays_as_it_was_while_the_other_changes(
            steps in proptest::collection::vec((0u8..4, 0u32..120), 1..400)
        ) {
            let mut set: Sorted<Item> = Sorted::default();
            let mut model = BTreeMap::new();
            let mut snapshots = Vec::new();
            for (step, number) in steps {
                let key = format!("{number}");
                match step {
                    0 => snapshots.push((set.clone(), model.clone())),
                    1 => {
                        let removed = set.remove(key.as_bytes()).map(|item| item.1);
                        prop_assert_eq!(removed, model.remove(&key));
                    }
                    _ => match set.get_mut(key.as_bytes()) {
                        Some(item) => { item.1 += 1; *model.get_mut(&key).unwrap() += 1; }
                        None => { set.insert(Item(key.clone(), 0)); model.insert(key, 0); }
                    },
                }
                assert_same(&set, &model);
            }
            for (set, model) in snapshots {
                assert_same(&set, &model);
            }
        }
    }
}
