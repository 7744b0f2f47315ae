//! A transaction: a snapshot, what was seen of it, and what was changed.
//!
//! Reads see the snapshot and the transaction's own changes. The commit compares what was seen, facet
//! by facet, with the store as it is then, and carries the changes over; it either does everything or
//! nothing. Two transactions that create siblings do not conflict, one that looked for a node and did
//! not find it conflicts with the node's creation.

pub(crate) mod saved;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::Error;
use crate::access::judge;
use crate::acl::{Acl, Being, Right, Subject};
use crate::path::{OwnedPath, Path};
use crate::store::Store;
use crate::tree::{Descent, Node, SmallBytes, Tree, for_each_bottom_up};

/// A part of a node that a request can depend on, or change, without the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Facet {
    /// Whether the node is there.
    Existence = 1,
    Value = 2,
    Acl = 4,
    /// Names of its children.
    Children = 8,
}

/// Facets of a node, and rights on it that a request was not refused for lack of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Facets(u8);

impl Facets {
    const ALL: [Facet; 4] = [Facet::Existence, Facet::Value, Facet::Acl, Facet::Children];
    const RIGHTS: [(Right, u8); 3] = [(Right::Read, 16), (Right::Write, 32), (Right::Own, 64)];
    const KNOWN: u8 = 127;

    fn has(self, facet: Facet) -> bool {
        self.0 & facet as u8 != 0
    }

    fn add(&mut self, facet: Facet) {
        self.0 |= facet as u8;
    }

    fn add_right(&mut self, right: Right) {
        let bits = Self::RIGHTS.into_iter().filter(|(known, _)| *known == right);
        self.0 |= bits.fold(0, |all, (_, bit)| all | bit);
    }

    fn rights(self) -> impl Iterator<Item = Right> {
        let granted = move |(right, bit): (Right, u8)| (self.0 & bit != 0).then_some(right);
        Self::RIGHTS.into_iter().filter_map(granted)
    }
}

/// What the transaction did with one path.
#[derive(Clone, Debug, Default)]
struct Touch {
    /// Facets whose state in the snapshot an answer depended on.
    seen: Facets,
    /// Facets that were set; `Existence` stands for "make sure that it is there".
    set: Facets,
    /// The node of the snapshot was removed; a later creation is another node.
    removed: bool,
    /// When it was first changed; nodes are created and events are fired in this order.
    order: u32,
    /// A request named this path as the one it changes.
    fires: bool,
    /// The permission list before the first `SET_PERMS`: the one that a node created here began with.
    acl_before: Option<Arc<Acl>>,
    /// Length of the value that was written.
    value_bytes: usize,
    /// The value that was written, until somebody looks at it in the tree.
    delayed: Option<SmallBytes>,
}

impl Touch {
    /// Whether the transaction made or set the permission list.
    fn has_list(&self) -> bool {
        self.set.has(Facet::Existence) || self.set.has(Facet::Acl)
    }
}

/// What a commit or a request changed, for the watches.
#[derive(Clone, Debug)]
pub(crate) enum NodeChange {
    /// The node was created, written, or got another permission list, of which this was the old one.
    Changed { path: OwnedPath, acl_before: Option<Arc<Acl>> },
    /// The node went away with everything below it.
    Removed { path: OwnedPath, node: Arc<Node> },
}

#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    snapshot: Tree,
    /// The transaction's own tree, but for the values in [`Touch::delayed`]: one that only sets values
    /// needs no tree of its own.
    partial: Tree,
    /// Touches with a value that the tree does not have yet.
    delayed_count: usize,
    touched: BTreeMap<OwnedPath, Touch>,
    next_order: u32,
    /// Some path has `removed` set.
    removes: bool,
    /// Nodes that the caller owns, gained or lost so far. Only counted for guests.
    owned_delta: isize,
    /// A change failed half way by quota: nothing of this may be committed.
    failed: bool,
    /// What it saw is not known any more: the commit is a conflict.
    outdated: bool,
    /// What the paths and values of `touched` take.
    touched_bytes: usize,
    /// The store's [versions](Store::versions) at the start.
    began_at: u64,
    /// What the store had [copied](Tree::copied_bytes) at the start.
    copied_before: usize,
}

/// What an open transaction takes, and each path in it beside its own length.
const TRANSACTION_BYTES: usize = 1200;
const TOUCH_BYTES: usize = 160;

impl Transaction {
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            snapshot: store.tree().clone(),
            partial: store.tree().private_copy(),
            delayed_count: 0,
            touched: BTreeMap::new(),
            next_order: 0,
            removes: false,
            owned_delta: 0,
            failed: false,
            outdated: false,
            touched_bytes: 0,
            began_at: store.versions(),
            copied_before: store.tree().copied_bytes(),
        }
    }

    /// How many nodes of the store had been replaced when it began.
    pub(crate) fn began_at(&self) -> u64 {
        self.began_at
    }

    /// What the store had copied when it began.
    pub(crate) fn copied_before(&self) -> usize {
        self.copied_before
    }

    /// Bytes that are held for it, with the nodes that it copied to change them. Nodes of the snapshot that
    /// only it still refers to do not count: they are bounded for all guests together, see
    /// `server/snapshots.rs`.
    pub(crate) fn held_bytes(&self) -> usize {
        TRANSACTION_BYTES + self.touched_bytes + self.partial.copied_bytes()
    }

    /// What one more path with a value would take.
    pub(crate) fn held_bytes_of(path: Path<'_>, value_bytes: usize) -> usize {
        TOUCH_BYTES + path.as_str().len() + value_bytes
    }

    /// Compares the size that is kept with a recount.
    pub(crate) fn check(&self) -> Result<(), String> {
        let bytes = |(path, touch): (&OwnedPath, &Touch)| {
            Self::held_bytes_of(path.as_path(), touch.value_bytes)
        };
        let recount: usize = self.touched.iter().map(bytes).sum();
        if recount == self.touched_bytes {
            return Ok(());
        }
        let kept = self.touched_bytes;
        Err(alloc::format!("a transaction takes {recount} bytes, not {kept}"))
    }

    /// What it holds of trees that others may have forgotten by now.
    pub(crate) fn into_trees(self) -> [Tree; 2] {
        [self.snapshot, self.partial]
    }

    /// The tree as the transaction sees it. A value in it may be an old one, unless it was
    /// [settled](Self::settle_value).
    pub(crate) fn tree(&self) -> &Tree {
        &self.partial
    }

    /// Makes sure that the tree has the value that was written last.
    pub(crate) fn settle_value(&mut self, path: Path<'_>) {
        let touch = self.touched.get(path.as_str());
        if self.delayed_count > 0 && touch.is_some_and(|touch| touch.delayed.is_some()) {
            self.settle();
        }
    }

    /// The tree with every value that was written.
    fn settled_tree(&self) -> Tree {
        let mut tree = self.partial.clone();
        for (path, touch) in &self.touched {
            if let Some(value) = &touch.delayed {
                tree.write(path.as_path(), None, value);
            }
        }
        tree
    }

    fn settle(&mut self) {
        if self.delayed_count == 0 {
            return;
        }
        self.delayed_count = 0;
        for (path, touch) in &mut self.touched {
            if let Some(value) = touch.delayed.take() {
                self.partial.write(path.as_path(), None, &value);
            }
        }
    }

    /// Paths whose state is kept for this transaction.
    pub(crate) fn touched_count(&self) -> usize {
        self.touched.len()
    }

    /// Nodes that a commit visits: each that was touched, from the root.
    pub(crate) fn visits(&self) -> usize {
        self.touched.keys().map(|path| path.as_path().depth() + 4).sum()
    }

    pub(crate) fn owned_delta(&self) -> isize {
        self.owned_delta
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Lets the commit fail.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Lets the commit be a conflict.
    pub(crate) fn outdate(&mut self) {
        self.outdated = true;
    }

    /// Notes that an answer depends on a facet of a node, or on its absence.
    pub(crate) fn see(&mut self, path: Path<'_>, facet: Facet) {
        let own = self.touched.get(path.as_str()).is_some_and(|touch| touch.set.has(facet));
        if own || self.replaces(path) {
            return;
        }
        self.touch(path).seen.add(facet);
    }

    /// Notes that a guest had a right on a path: on the node, or on the nearest one above it.
    pub(crate) fn see_right(&mut self, path: Path<'_>, right: Right) {
        let (_, missing) = self.partial.nearest(path);
        let mut upwards = core::iter::successors(Some(path), |path| path.parent());
        let first_missing = if missing > 0 { upwards.nth(missing - 1) } else { None };
        let Some(nearest) = upwards.next() else { return };
        let touch = |path: Path<'_>| self.touched.get(path.as_str());
        let has_own_list = touch(nearest).is_some_and(Touch::has_list);
        if has_own_list || self.replaces(nearest) {
            // What gave it the right to make this list was noted then.
            return;
        }
        let is_removed =
            first_missing.is_some_and(|path| touch(path).is_some_and(|touch| touch.removed));
        let noted = if is_removed { nearest } else { path };
        self.touch(noted).seen.add_right(right);
    }

    /// Whether the snapshot's node at this path was removed, so that only own changes are visible.
    fn replaces(&self, path: Path<'_>) -> bool {
        self.removes
            && core::iter::successors(Some(path), |path| path.parent())
                .any(|path| self.touched.get(path.as_str()).is_some_and(|touch| touch.removed))
    }

    fn touch(&mut self, path: Path<'_>) -> &mut Touch {
        // Looked up first: most requests of a transaction touch a path again, and this allocates.
        if !self.touched.contains_key(path.as_str()) {
            self.touched.insert(path.to_owned_path(), Touch::default());
            self.touched_bytes += Self::held_bytes_of(path, 0);
        }
        self.touched.get_mut(path.as_str()).expect("inserted above")
    }

    fn mark_set(&mut self, path: Path<'_>, facet: Facet, created: Created) {
        let order = self.next_order;
        self.next_order += 1;
        let touch = self.touch(path);
        if touch.set == Facets::default() || created == Created::Now {
            touch.order = order;
        }
        touch.set.add(facet);
    }

    /// Creates the node unless it is there.
    pub(crate) fn ensure(&mut self, path: Path<'_>, creator: Option<Being>) {
        self.settle();
        let created = self.partial.ensure(path, creator);
        self.mark_created(path, created, creator);
        if created > 0 {
            self.touch(path).fires = true;
        }
    }

    pub(crate) fn write(&mut self, path: Path<'_>, creator: Option<Being>, value: &[u8]) {
        // A guest's limits count the values that it wrote before.
        let delays = creator.is_none() && self.partial.contains(path);
        if !delays {
            self.settle();
            let created = self.partial.write(path, creator, value).created;
            self.mark_created(path, created, creator);
        }
        self.mark_set(path, Facet::Value, Created::Before);
        let touch = self.touch(path);
        if delays {
            let before = touch.delayed.replace(SmallBytes::new(value));
            self.delayed_count += usize::from(before.is_none());
        }
        let touch = self.touch(path);
        touch.fires = true;
        let value_before = core::mem::replace(&mut touch.value_bytes, value.len());
        self.touched_bytes = self.touched_bytes + value.len() - value_before;
    }

    fn mark_created(&mut self, path: Path<'_>, created: usize, creator: Option<Being>) {
        if created == 0 {
            return;
        }
        let chain: Vec<Path<'_>> =
            core::iter::successors(Some(path), |path| path.parent()).take(created + 1).collect();
        // What is created has its parent's permission list.
        if let Some(parent) = chain.get(created) {
            self.see(*parent, Facet::Acl);
        }
        for path in chain[..created].iter().rev() {
            self.mark_set(*path, Facet::Existence, Created::Now);
        }
        if creator.is_some() {
            self.owned_delta += isize::try_from(created).unwrap_or(isize::MAX);
        }
    }

    /// Replaces the permission list of a node that exists.
    pub(crate) fn set_acl(&mut self, path: Path<'_>, acl: Arc<Acl>) {
        self.settle();
        self.see(path, Facet::Existence);
        let Some(old) = self.partial.set_acl(path, acl) else { return };
        self.mark_set(path, Facet::Acl, Created::Before);
        let touch = self.touch(path);
        touch.fires = true;
        touch.acl_before.get_or_insert(old);
    }

    /// Removes the node with all below it, if it is there. Says how many nodes were visited.
    pub(crate) fn remove(&mut self, path: Path<'_>, caller: Option<Being>) -> usize {
        self.settle();
        let Some(removed) = self.partial.remove(path) else { return 0 };
        let mut visited = 0;
        if let Some(caller) = caller {
            for_each_bottom_up(&removed, path, |_, node| {
                visited += 1;
                let owner = node.acl().owner();
                if owner.permission.domid == caller.domid && owner.life == Some(caller.life) {
                    self.owned_delta -= 1;
                }
            });
        }
        let first_below = path.join("");
        let below = self
            .touched
            .range_mut::<str, _>((Bound::Included(first_below.as_str()), Bound::Unbounded))
            .take_while(|(other, _)| other.as_path().as_str().starts_with(&first_below));
        for (path, touch) in below {
            visited += 1;
            // What was named by a request before is still reported by its own name.
            let removed = touch.removed || (touch.fires && self.snapshot.contains(path.as_path()));
            self.touched_bytes -= touch.value_bytes;
            *touch = Touch { seen: touch.seen, order: touch.order, removed, ..Touch::default() };
        }
        self.removes = true;
        let order = self.next_order;
        self.next_order += 1;
        let touch = self.touch(path);
        let value_bytes = touch.value_bytes;
        *touch = Touch {
            seen: touch.seen,
            removed: true,
            order: if touch.set == Facets::default() { order } else { touch.order },
            ..Touch::default()
        };
        self.touched_bytes -= value_bytes;
        visited
    }

    /// Checks everything that was seen against the store and, if nothing differs, carries the changes
    /// over. Returns them for the watches.
    ///
    /// # Errors
    /// `EAGAIN` if something that was seen has changed; `ENOMEM` if the transaction failed earlier;
    /// `ENOSPC` if the caller would own more than `owned_max` nodes. Nothing is changed then.
    pub(crate) fn commit(
        &self,
        store: &mut Store,
        caller: Subject,
        owned_max: usize,
        lives: &dyn Fn(Being) -> bool,
    ) -> Result<Vec<NodeChange>, Error> {
        if self.failed {
            return Err(Error::ENOMEM);
        }
        if self.outdated {
            return Err(Error::EAGAIN);
        }
        let mut writes: Vec<(&OwnedPath, &Touch)> = self
            .touched
            .iter()
            .filter(|(_, touch)| touch.removed || touch.set != Facets::default())
            .collect();
        if writes.is_empty() {
            // Everything it read was true at the moment of its start.
            return Ok(Vec::new());
        }
        if !self.snapshot.is_same(store.tree()) {
            self.check_seen(store.tree(), caller)?;
        }
        // A domain that died meanwhile must not come back by a list that was made before.
        let names_dead = |(path, touch): &(&OwnedPath, &Touch)| {
            let node = self.partial.get(path.as_path()).filter(|_| touch.has_list());
            node.is_some_and(|node| node.acl().guests().any(|(_, being)| !lives(being)))
        };
        if writes.iter().any(names_dead) {
            return Err(Error::EAGAIN);
        }
        writes.sort_unstable_by_key(|(_, touch)| touch.order);
        let caller = caller.guest();
        if let Some(caller) = caller
            && self.check_owned(store, &writes, caller, owned_max).is_err()
        {
            // What the caller removed before may still be counted.
            store.clear_up_removed();
            self.check_owned(store, &writes, caller, owned_max)?;
        }
        Ok(self.apply(store, &writes, caller))
    }

    fn check_seen(&self, current: &Tree, caller: Subject) -> Result<(), Error> {
        let (mut before, mut current) = (Descent::new(&self.snapshot), Descent::new(current));
        for (path, touch) in &self.touched {
            let path = path.as_path();
            let nearest = current.nearest(path);
            let now = (nearest.1 == 0).then_some(nearest.0);
            if touch.set.has(Facet::Existence) && !self.is_created_alike(path, touch, now) {
                return Err(Error::EAGAIN);
            }
            if touch.seen == Facets::default() {
                continue;
            }
            let is_refused = |right| judge(nearest, caller, right).err() == Some(Error::EACCES);
            if touch.seen.rights().any(is_refused) {
                return Err(Error::EAGAIN);
            }
            let then = before.get(path);
            let mut seen = Facets::ALL.into_iter().filter(|facet| touch.seen.has(*facet));
            if !seen.all(|facet| is_unchanged(facet, then, now)) {
                return Err(Error::EAGAIN);
            }
        }
        Ok(())
    }

    /// Whether a node that was created here, and by somebody else meanwhile, began with the same
    /// permission list: what was created below it has the list from there.
    fn is_created_alike(&self, path: Path<'_>, touch: &Touch, now: Option<&Arc<Node>>) -> bool {
        let (Some(ours), Some(theirs)) = (self.partial.get(path), now) else { return true };
        let ours = touch.acl_before.as_ref().unwrap_or(ours.acl());
        ours == theirs.acl() || self.replaces(path)
    }

    /// Counts what the caller would own afterwards.
    fn check_owned(
        &self,
        store: &Store,
        writes: &[(&OwnedPath, &Touch)],
        caller: Being,
        owned_max: usize,
    ) -> Result<(), Error> {
        let mut lost = 0;
        let mut gained = 0;
        for (path, touch) in writes {
            let path = path.as_path();
            let now = store.tree().get(path);
            let is_topmost = !path.parent().is_some_and(|parent| self.replaces(parent));
            if touch.removed
                && is_topmost
                && let Some(node) = now
            {
                for_each_bottom_up(node, path, |_, node| {
                    lost += usize::from(node.acl().owner().permission.domid == caller.domid);
                });
            }
            if self.partial.contains(path) && (now.is_none() || self.replaces(path)) {
                gained += 1;
            }
        }
        let owned = store.owned_count(caller.domid);
        if gained > 0 && (owned + gained).saturating_sub(lost) > owned_max {
            return Err(Error::ENOSPC);
        }
        Ok(())
    }

    /// Carries the changes over. Cannot fail.
    fn apply(
        &self,
        store: &mut Store,
        writes: &[(&OwnedPath, &Touch)],
        caller: Option<Being>,
    ) -> Vec<NodeChange> {
        let mut changes: Vec<(u32, NodeChange)> = Vec::new();
        // From below: what was removed by its own name is reported by it, also if the transaction began
        // with something above that it removed later. A path sorts before those below it.
        for (path, touch) in self.touched.iter().rev().filter(|(_, touch)| touch.removed) {
            if let Some(node) = store.remove(path.as_path()) {
                changes.push((touch.order, NodeChange::Removed { path: path.clone(), node }));
            }
        }
        for (path, touch) in writes {
            let Some(node) = self.partial.get(path.as_path()) else { continue };
            if touch.set == Facets::default() {
                continue;
            }
            let is_new = !store.tree().contains(path.as_path());
            if touch.set.has(Facet::Value) {
                let delayed = touch.delayed.as_deref();
                store.write(path.as_path(), caller, delayed.unwrap_or(node.value()));
            } else {
                store.ensure(path.as_path(), caller);
            }
            // The list that is replaced now, which may be younger than the one of the snapshot: by it
            // it is decided who loses access and is told so.
            let mut acl_before = None;
            if touch.set.has(Facet::Acl) || (is_new && touch.set.has(Facet::Existence)) {
                acl_before = store.set_acl(path.as_path(), node.acl()).filter(|_| !is_new);
            }
            if touch.fires {
                changes
                    .push((touch.order, NodeChange::Changed { path: (*path).clone(), acl_before }));
            }
        }
        changes.sort_by_key(|(order, _)| *order);
        changes.into_iter().map(|(_, change)| change).collect()
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Created {
    Now,
    Before,
}

fn is_unchanged(facet: Facet, then: Option<&Arc<Node>>, now: Option<&Arc<Node>>) -> bool {
    match (then, now) {
        (None, None) => true,
        (Some(then), Some(now)) => {
            Arc::ptr_eq(then, now)
                || match facet {
                    Facet::Existence => true,
                    Facet::Value => then.value() == now.value(),
                    Facet::Acl => then.acl() == now.acl(),
                    Facet::Children => then.generation() == now.generation(),
                }
        }
        _ => false,
    }
}
