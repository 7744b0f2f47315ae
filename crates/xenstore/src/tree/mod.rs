//! The tree of nodes: immutable once somebody else holds it, changed in place otherwise.
//!
//! A clone of a [`Tree`] is a snapshot and costs one reference. Nothing here knows of quotas, rights or
//! watches. No function recurses on the depth of a path: guests choose it.

mod laying;
mod remains;
mod small_bytes;
mod sorted;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::acl::{Acl, Being, Entry};
use crate::path::Path;

pub(crate) use laying::{Laid, Walk, for_each_difference};
pub(crate) use remains::{Remains, Removed};
pub(crate) use small_bytes::SmallBytes;
use sorted::{Keyed, Sorted};

/// Generations of a transaction's own tree have this bit, so that they equal none of the store.
const PRIVATE_GENERATION: u64 = 1 << 63;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    name: SmallBytes,
    value: SmallBytes,
    acl: Arc<Acl>,
    /// `None` until the first child; may be empty afterwards.
    children: Option<Arc<Children>>,
    /// Place among the siblings in the order of creation.
    sequence: u32,
}

#[derive(Clone, Debug, Default)]
struct Children {
    nodes: Sorted<Arc<Node>>,
    /// Differs from that of every other list of children this tree ever had.
    generation: u64,
    /// Sum of the names with a NUL each: the payload of a `DIRECTORY` reply.
    name_bytes: usize,
    next_sequence: u32,
}

/// A node takes about this much beside its path, value and permissions: itself, its place among its
/// siblings, the list of its children, and its place in the index of its owner.
const NODE_BYTES: usize = 320;
/// A permission list, of which siblings may have one together, and each entry of it.
const LIST_BYTES: usize = 72;
const ENTRY_BYTES: usize = 24;
/// A guest that is named in a list may be indexed by the path.
const NAMED_BYTES: usize = 64;

/// A node that is copied because a snapshot holds it takes about this much, with the block of its
/// siblings that is copied with it.
const COPY_BYTES: usize = 512;

/// What a node takes in memory, about. Its owner is charged for it.
pub(crate) fn held_bytes(path_bytes: usize, value_bytes: usize, acl: &Acl) -> usize {
    let named = acl.entries().len() - 1;
    let list = LIST_BYTES + ENTRY_BYTES * acl.entries().len() + named * (NAMED_BYTES + path_bytes);
    NODE_BYTES + path_bytes + value_bytes + list
}

impl Keyed for Arc<Node> {
    fn key(&self) -> &[u8] {
        &self.name
    }

    fn compare(&self, key: &small_bytes::Key<'_>) -> core::cmp::Ordering {
        self.name.compare(key)
    }
}

impl Node {
    fn new(name: &[u8], acl: Arc<Acl>) -> Self {
        Self {
            name: SmallBytes::new(name),
            value: SmallBytes::default(),
            acl,
            children: None,
            sequence: 0,
        }
    }

    pub(crate) fn name(&self) -> &str {
        core::str::from_utf8(&self.name).expect("names are checked when a path is decoded")
    }

    pub(crate) fn value(&self) -> &[u8] {
        &self.value
    }

    pub(crate) fn acl(&self) -> &Arc<Acl> {
        &self.acl
    }

    /// What the node takes in memory, about, when it stands at a path of this length.
    pub(crate) fn held_bytes(&self, path_bytes: usize) -> usize {
        held_bytes(path_bytes, self.value.len(), &self.acl)
    }

    /// Bytes of the child names with a NUL each.
    pub(crate) fn name_bytes(&self) -> usize {
        self.children.as_ref().map_or(0, |children| children.name_bytes)
    }

    /// Names one list of children; another list never has the same number.
    pub(crate) fn generation(&self) -> u64 {
        self.children.as_ref().map_or(0, |children| children.generation)
    }

    /// The generation, if the list of children is one of the store's own tree and had a child.
    pub(crate) fn shared_generation(&self) -> Option<u64> {
        Some(self.generation())
            .filter(|generation| *generation != 0 && generation & PRIVATE_GENERATION == 0)
    }

    pub(crate) fn child(&self, name: &str) -> Option<&Arc<Node>> {
        self.child_named(name.as_bytes())
    }

    pub(crate) fn child_named(&self, name: &[u8]) -> Option<&Arc<Node>> {
        self.children.as_ref()?.nodes.get(name)
    }

    /// Siblings with a smaller number were created earlier.
    pub(crate) fn age(&self) -> u32 {
        self.sequence
    }

    /// The children in the order of their names.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.children.iter().flat_map(|children| children.nodes.iter())
    }

    /// The children in the order of their creation, which is how they are listed.
    pub(crate) fn children_by_age(&self) -> Vec<&Arc<Node>> {
        let mut nodes: Vec<&Arc<Node>> = self.children().collect();
        nodes.sort_unstable_by_key(|node| node.sequence);
        nodes
    }

    /// The child of this name, and whether it had to be made. A list that gets a new child takes the
    /// next of the tree's `generations`.
    fn child_or_new(
        &mut self,
        name: &[u8],
        creator: Option<Being>,
        generations: &mut u64,
    ) -> (&mut Arc<Node>, bool) {
        let Self { acl, children, .. } = self;
        let children = children.get_or_insert_with(|| {
            Arc::new(Children {
                nodes: Sorted::default(),
                generation: 0,
                name_bytes: 0,
                next_sequence: 0,
            })
        });
        let children = Arc::make_mut(children);
        if children.next_sequence == u32::MAX {
            children.renumber();
        }
        let Children { nodes, generation, name_bytes, next_sequence } = children;
        nodes.get_or_insert_with(name, || {
            let mut child = Node::new(name, acl.inherited(creator));
            child.sequence = *next_sequence;
            *next_sequence += 1;
            *generations += 1;
            *generation = *generations;
            *name_bytes += name.len() + 1;
            Arc::new(child)
        })
    }

    fn remove(&mut self, name: &[u8], generation: u64) -> Option<Arc<Node>> {
        let children = Arc::make_mut(self.children.as_mut()?);
        let removed = children.nodes.remove(name)?;
        children.generation = generation;
        children.name_bytes -= name.len() + 1;
        Some(removed)
    }
}

impl Children {
    /// Packs the sequence numbers, once every four billion creations in one directory.
    fn renumber(&mut self) {
        let mut names: Vec<(u32, SmallBytes)> =
            self.nodes.iter().map(|node| (node.sequence, node.name.clone())).collect();
        names.sort_unstable_by_key(|(sequence, _)| *sequence);
        self.next_sequence = 0;
        for (_, name) in names {
            let node = self.nodes.get_mut(&name).expect("listed just now");
            Arc::make_mut(node).sequence = self.next_sequence;
            self.next_sequence += 1;
        }
    }
}

impl Drop for Node {
    /// Takes the subtree apart with a list instead of one stack frame for each level.
    fn drop(&mut self) {
        let Some(children) = self.children.take().and_then(Arc::into_inner) else { return };
        let mut nodes = Vec::new();
        children.nodes.drain_unshared(&mut nodes);
        while let Some(node) = nodes.pop() {
            let Some(mut node) = Arc::into_inner(node) else { continue };
            if let Some(children) = node.children.take().and_then(Arc::into_inner) {
                children.nodes.drain_unshared(&mut nodes);
            }
        }
    }
}

/// What setting a value did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Nodes that were created for it.
    pub(crate) created: usize,
    /// Who owns the node.
    pub(crate) owner: Entry,
    pub(crate) value_bytes_before: usize,
}

/// A tree of nodes. It always has a root.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Arc<Node>,
    generation: u64,
    /// Nodes that were copied, because somebody else held them, or created.
    copies: usize,
}

impl Tree {
    pub(crate) fn new(root_acl: Arc<Acl>) -> Self {
        Self { root: Arc::new(Node::new(b"", root_acl)), generation: 0, copies: 0 }
    }

    /// A copy for a transaction to change.
    pub(crate) fn private_copy(&self) -> Self {
        let generation = self.generation | PRIVATE_GENERATION;
        Self { root: Arc::clone(&self.root), generation, copies: 0 }
    }

    /// What the nodes take, about, that were copied or created since the beginning.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.copies * COPY_BYTES
    }

    /// The generation that was given out last.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Gives out generations beyond this from now on.
    pub(crate) fn skip_generations(&mut self, generation: u64) {
        self.generation = self.generation.max(generation);
    }

    pub(crate) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// Whether nothing at all changed between the two.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }

    pub(crate) fn get(&self, path: Path<'_>) -> Option<&Arc<Node>> {
        path.names().try_fold(&self.root, |node, name| node.child_named(name))
    }

    pub(crate) fn contains(&self, path: Path<'_>) -> bool {
        self.get(path).is_some()
    }

    /// The lowest node on the way to `path` that exists, and how many names below it are missing.
    pub(crate) fn nearest(&self, path: Path<'_>) -> (&Arc<Node>, usize) {
        let mut node = &self.root;
        let mut names = path.names();
        while let Some(name) = names.next() {
            match node.child_named(name) {
                Some(child) => node = child,
                None => return (node, 1 + names.count()),
            }
        }
        (node, 0)
    }

    /// Creates whatever is missing on the way to `path`, and says how many nodes that were.
    pub(crate) fn ensure(&mut self, path: Path<'_>, creator: Option<Being>) -> usize {
        self.with_node(path, creator, |_| ()).1
    }

    /// Sets the value, creating what is missing.
    pub(crate) fn write(
        &mut self,
        path: Path<'_>,
        creator: Option<Being>,
        value: &[u8],
    ) -> Written {
        let set = |node: &mut Node| {
            let value_before = core::mem::replace(&mut node.value, SmallBytes::new(value));
            (node.acl.owner(), value_before.len())
        };
        let ((owner, value_bytes_before), created) = self.with_node(path, creator, set);
        Written { created, owner, value_bytes_before }
    }

    /// Replaces the permission list and returns the old one.
    pub(crate) fn set_acl(&mut self, path: Path<'_>, acl: Arc<Acl>) -> Option<Arc<Acl>> {
        if !self.contains(path) {
            return None;
        }
        Some(self.with_node(path, None, |node| core::mem::replace(&mut node.acl, acl)).0)
    }

    /// Takes the node with all below it out of the tree. The root stays.
    pub(crate) fn remove(&mut self, path: Path<'_>) -> Option<Arc<Node>> {
        let parent = path.parent()?;
        // Looked up first, so that a miss copies nothing.
        self.get(path)?;
        let name = &path.as_str()[path.as_str().rfind('/')? + 1..];
        self.generation += 1;
        let generation = self.generation;
        self.with_node(parent, None, |node| node.remove(name.as_bytes(), generation)).0
    }

    /// Walks to `path`, creating what is missing, and hands the node out to be changed.
    fn with_node<R>(
        &mut self,
        path: Path<'_>,
        creator: Option<Being>,
        change: impl FnOnce(&mut Node) -> R,
    ) -> (R, usize) {
        let mut created = 0;
        let mut slot = &mut self.root;
        for name in path.names() {
            self.copies += usize::from(Arc::strong_count(slot) > 1);
            let node = Arc::make_mut(slot);
            let (child, is_new) = node.child_or_new(name, creator, &mut self.generation);
            created += usize::from(is_new);
            slot = child;
        }
        self.copies += created + usize::from(Arc::strong_count(slot) > 1);
        (change(Arc::make_mut(slot)), created)
    }
}

/// Looks paths up that come in their order: each begins where it leaves the one before.
pub(crate) struct Descent<'t> {
    /// The nodes on the way to the last path that exist, the root first.
    nodes: Vec<&'t Arc<Node>>,
    /// Where the name of each of these ends in the last path; that of the root is empty.
    ends: Vec<usize>,
    last: String,
}

impl<'t> Descent<'t> {
    pub(crate) fn new(tree: &'t Tree) -> Self {
        let (nodes, ends) = (alloc::vec![&tree.root], alloc::vec![0]);
        Self { nodes, ends, last: String::new() }
    }

    /// As [`Tree::nearest`].
    pub(crate) fn nearest(&mut self, path: Path<'_>) -> (&'t Arc<Node>, usize) {
        let text = if path.is_root() { "" } else { path.as_str() };
        let common = self.last.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        // A name belongs to both only if it ends in both where they are still alike.
        let ends_here = |end: usize| matches!(text.as_bytes().get(end), None | Some(b'/'));
        let is_common = |&end: &usize| end <= common && end <= text.len() && ends_here(end);
        let known = self.ends.iter().take_while(|end| is_common(end)).count();
        self.ends.truncate(known);
        self.nodes.truncate(known);
        let mut end = self.ends[known - 1];
        while end < text.len() {
            let from = end + 1;
            let to = text[from..].find('/').map_or(text.len(), |at| from + at);
            let Some(child) = self.nodes[self.nodes.len() - 1].child(&text[from..to]) else {
                break;
            };
            self.nodes.push(child);
            self.ends.push(to);
            end = to;
        }
        let missing = text[end..].bytes().filter(|&byte| byte == b'/').count();
        self.last.clear();
        self.last.push_str(&text[..end]);
        (self.nodes[self.nodes.len() - 1], missing)
    }

    /// As [`Tree::get`].
    pub(crate) fn get(&mut self, path: Path<'_>) -> Option<&'t Arc<Node>> {
        let (nearest, missing) = self.nearest(path);
        (missing == 0).then_some(nearest)
    }
}

/// Visits a node and all below it, children before their parent and in the order of creation.
pub(crate) fn for_each_bottom_up<'a>(
    top: &'a Arc<Node>,
    path: Path<'_>,
    mut visit: impl FnMut(Path<'_>, &'a Arc<Node>),
) {
    struct Level<'a> {
        node: &'a Arc<Node>,
        path_bytes: usize,
        children: alloc::vec::IntoIter<&'a Arc<Node>>,
    }
    let level = |node: &'a Arc<Node>, path_bytes| Level {
        node,
        path_bytes,
        children: node.children_by_age().into_iter(),
    };
    let mut text = String::from(path.as_str());
    let mut levels = alloc::vec![level(top, text.len())];
    while let Some(lowest) = levels.last_mut() {
        if let Some(child) = lowest.children.next() {
            text.truncate(lowest.path_bytes);
            if !text.ends_with('/') {
                text.push('/');
            }
            text.push_str(child.name());
            levels.push(level(child, text.len()));
        } else {
            text.truncate(lowest.path_bytes);
            visit(Path::from_canonical(&text), lowest.node);
            levels.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::private_to_dom0;
    use alloc::format;

    fn path(text: &str) -> Path<'_> {
        Path::from_canonical(text)
    }

    #[test]
    fn a_descent_finds_what_a_lookup_from_the_root_finds() {
        let mut tree = Tree::new(private_to_dom0());
        for text in ["/a/b/c", "/a/bb", "/ab/c", "/a/b/d/e", "/b"] {
            tree.ensure(path(text), None);
        }
        let mut paths = alloc::vec![String::from("/")];
        for one in ["a", "ab", "b", "x"] {
            for two in ["", "/b", "/bb", "/c", "/x", "/b/c", "/b/d/e", "/b/d/x/y", "/b/cc"] {
                paths.push(format!("/{one}{two}"));
            }
        }
        // In order, against it, and to and fro.
        let orders = [1, paths.len() - 1, 7, 11];
        for step in orders {
            paths.sort();
            let mut descent = Descent::new(&tree);
            for i in 0..paths.len() {
                let path = path(&paths[i * step % paths.len()]);
                let (found, missing) = descent.nearest(path);
                let (expected, names) = tree.nearest(path);
                assert!(Arc::ptr_eq(found, expected) && missing == names, "{path}");
            }
        }
    }

    fn listing(tree: &Tree) -> Vec<String> {
        let mut lines = Vec::new();
        for_each_bottom_up(tree.root(), Path::ROOT, |path, node| {
            lines.push(format!("{path}={}", String::from_utf8_lossy(node.value())));
        });
        lines
    }

    #[test]
    fn a_snapshot_keeps_what_it_saw() {
        let mut tree = Tree::new(private_to_dom0());
        assert_eq!(tree.write(path("/a/b"), None, b"1").created, 2);
        let snapshot = tree.clone();
        assert!(tree.is_same(&snapshot));
        assert_eq!(tree.write(path("/a/b"), None, b"2").created, 0);
        assert_eq!(tree.write(path("/a/c"), None, b"3").created, 1);
        assert!(tree.remove(path("/a/b")).is_some());
        assert_eq!(listing(&snapshot), ["/a/b=1", "/a=", "/="]);
        assert_eq!(listing(&tree), ["/a/c=3", "/a=", "/="]);
    }

    #[test]
    fn children_are_listed_in_the_order_of_creation() {
        let mut tree = Tree::new(private_to_dom0());
        for name in ["/z", "/a", "/m"] {
            tree.ensure(path(name), None);
        }
        tree.remove(path("/z"));
        tree.ensure(path("/z"), None);
        let names: Vec<_> = tree.root().children_by_age().iter().map(|n| n.name()).collect();
        assert_eq!(names, ["a", "m", "z"]);
        assert_eq!(tree.root().name_bytes(), 6);
    }

    #[test]
    fn a_list_of_children_never_gets_an_old_generation() {
        let mut tree = Tree::new(private_to_dom0());
        let mut seen = alloc::collections::BTreeSet::new();
        for _ in 0..3 {
            tree.ensure(path("/a"), None);
            assert!(seen.insert(tree.root().generation()));
            let generation = tree.root().generation();
            tree.write(path("/a"), None, b"value");
            tree.ensure(path("/a"), None);
            assert_eq!(tree.root().generation(), generation);
            tree.remove(path("/a"));
            assert!(seen.insert(tree.root().generation()));
        }
    }

    #[test]
    fn the_root_cannot_be_removed_and_a_miss_removes_nothing() {
        let mut tree = Tree::new(private_to_dom0());
        tree.ensure(path("/a"), None);
        for missing in ["/", "/b", "/a/b", "/b/c"] {
            assert!(tree.remove(path(missing)).is_none());
        }
        assert_eq!(listing(&tree), ["/a=", "/="]);
    }

    #[test]
    fn depth_needs_no_stack() {
        let deep = "/x".repeat(100_000);
        let walk = std::thread::Builder::new().stack_size(64 * 1024).spawn(move || {
            let mut tree = Tree::new(private_to_dom0());
            tree.ensure(path(&deep), None);
            let snapshot = tree.clone();
            tree.write(path(&deep), None, b"value");
            drop(snapshot);
            let mut count = 0;
            for_each_bottom_up(tree.root(), Path::ROOT, |_, _| count += 1);
            assert_eq!(count, 100_001);
        });
        walk.unwrap().join().unwrap();
    }

    #[test]
    fn a_node_takes_few_bytes() {
        // The store's memory goal is 150 bytes a node, values and blocks of children included.
        assert!(size_of::<Node>() <= 72, "{}", size_of::<Node>());
    }
}
