//! Trees as they leave and enter a state stream: walks that can be interrupted, differences, and nodes
//! laid down as they were.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::acl::Acl;
use crate::path::Path;
use crate::state::ChildList;
use crate::tree::{Node, SmallBytes, Tree};

/// A node as it was; nothing about it is derived.
#[derive(Clone, Debug)]
pub(crate) struct Laid<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) acl: Arc<Acl>,
    /// Place among the siblings.
    pub(crate) sequence: u32,
    /// Its list of children; `None`: it never had any.
    pub(crate) children: Option<ChildList>,
}

impl Node {
    /// Place among the siblings in the order of creation.
    pub(crate) fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Its list of children without the children; `None` if it never had any.
    pub(crate) fn child_list(&self) -> Option<ChildList> {
        let children = self.children.as_ref()?;
        Some(ChildList { generation: children.generation, next_sequence: children.next_sequence })
    }

    /// Takes over what was saved of it; its children stay.
    fn set(&mut self, laid: &Laid<'_>) {
        self.value = SmallBytes::new(laid.value);
        self.acl = Arc::clone(&laid.acl);
        if let Some(list) = laid.children {
            self.set_child_list(list);
        }
    }

    fn set_child_list(&mut self, list: ChildList) {
        let children = Arc::make_mut(self.children.get_or_insert_with(Arc::default));
        children.generation = list.generation;
        children.next_sequence = list.next_sequence;
    }

    /// Whether the two differ in anything but their children.
    fn differs(&self, other: &Self) -> bool {
        self.value != other.value
            || self.acl != other.acl
            || self.sequence != other.sequence
            || self.child_list() != other.child_list()
    }
}

impl Tree {
    /// Later changes get generations behind this one.
    pub(crate) fn continue_generations(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Puts a node down as it was, and says whether its parent was there. The parent stays as it is
    /// but for this child.
    pub(crate) fn lay(&mut self, path: Path<'_>, laid: &Laid<'_>) -> bool {
        let Some(parent) = path.parent() else {
            Arc::make_mut(&mut self.root).set(laid);
            return path.is_root();
        };
        if !self.contains(parent) {
            return false;
        }
        let name = last_name(path).as_bytes();
        self.with_node(parent, None, |parent| {
            let children = Arc::make_mut(parent.children.get_or_insert_with(Arc::default));
            let after = laid.sequence.saturating_add(1);
            children.next_sequence = children.next_sequence.max(after);
            if let Some(node) = children.nodes.get_mut(name) {
                let node = Arc::make_mut(node);
                node.set(laid);
                node.sequence = laid.sequence;
                return;
            }
            let mut node = Node::new(name, Arc::clone(&laid.acl));
            node.set(laid);
            node.sequence = laid.sequence;
            children.name_bytes += name.len() + 1;
            children.nodes.insert(Arc::new(node));
        });
        true
    }

    /// As [`Self::lay`], for what [`for_each_difference`] visits.
    pub(crate) fn lay_difference(&mut self, path: Path<'_>, laid: &Laid<'_>) -> bool {
        if path.is_root() && laid.children.is_none() {
            // Any other node would have been cut first.
            Arc::make_mut(&mut self.root).children = None;
        }
        self.lay(path, laid)
    }

    /// Takes a node out; its parent stays as it is but for this child.
    pub(crate) fn cut(&mut self, path: Path<'_>) -> Option<Arc<Node>> {
        let parent = path.parent()?;
        let list = self.get(parent)?.child_list()?;
        let generation = self.generation;
        let removed = self.remove(path);
        self.generation = generation;
        self.with_node(parent, None, |node| node.set_child_list(list));
        removed
    }
}

fn last_name(path: Path<'_>) -> &str {
    path.as_str().rsplit('/').next().unwrap_or_default()
}

/// Visits the nodes of a tree, each before its children and those in the order of creation.
///
/// It holds the tree, and can stop between any two nodes.
#[derive(Debug)]
pub(crate) struct Walk {
    levels: Vec<Level>,
    path: String,
}

#[derive(Debug)]
struct Level {
    path_bytes: usize,
    children: alloc::vec::IntoIter<Arc<Node>>,
}

impl Walk {
    pub(crate) fn new(tree: &Tree) -> Self {
        let top = alloc::vec![Arc::clone(tree.root())];
        let levels = alloc::vec![Level { path_bytes: 0, children: top.into_iter() }];
        Self { levels, path: String::new() }
    }

    /// Goes to the next node and hands it to `visit` with its path.
    pub(crate) fn next<R>(&mut self, visit: impl FnOnce(Path<'_>, &Node) -> R) -> Option<R> {
        loop {
            let level = self.levels.last_mut()?;
            let Some(node) = level.children.next() else {
                self.levels.pop();
                continue;
            };
            self.path.truncate(level.path_bytes);
            if !self.path.ends_with('/') {
                self.path.push('/');
            }
            self.path.push_str(node.name());
            let result = visit(Path::from_canonical(&self.path), &node);
            let children: Vec<Arc<Node>> = node.children_by_age().into_iter().cloned().collect();
            let path_bytes = self.path.len();
            self.levels.push(Level { path_bytes, children: children.into_iter() });
            return Some(result);
        }
    }
}

/// Visits what `other` has unlike `base`: nodes that are new or changed, each before its children, and
/// paths that it does not have (`None`). Costs what differs, not what there is.
pub(crate) fn for_each_difference(
    base: &Tree,
    other: &Tree,
    mut visit: impl FnMut(Path<'_>, Option<&Node>),
) {
    struct Step<'a> {
        path: String,
        base: Option<&'a Arc<Node>>,
        other: Option<&'a Arc<Node>>,
    }
    let root = Step { path: "/".into(), base: Some(base.root()), other: Some(other.root()) };
    let mut steps = alloc::vec![root];
    while let Some(Step { path, base, other }) = steps.pop() {
        let path = Path::from_canonical(&path);
        let Some(other) = other else {
            visit(path, None);
            continue;
        };
        if base.is_some_and(|base| Arc::ptr_eq(base, other)) {
            continue;
        }
        // A node that never had children takes the place of one that had: it is a new one. The root, in whose
        // place nothing comes, is told as it is.
        let is_new = |base: &&Arc<Node>| {
            !path.is_root() && base.children.is_some() && other.children.is_none()
        };
        if base.as_ref().is_some_and(is_new) {
            visit(path, None);
        }
        let base = base.filter(|base| !is_new(base));
        if base.is_none_or(|base| base.differs(other)) {
            visit(path, Some(other));
        }
        let gone = base.into_iter().flat_map(|base| base.children());
        let gone = gone.filter(|child| other.child(child.name()).is_none());
        steps.extend(gone.map(|child| Step {
            path: path.join(child.name()),
            base: Some(child),
            other: None,
        }));
        for child in other.children() {
            let before = base.and_then(|base| base.child(child.name()));
            if !before.is_some_and(|before| Arc::ptr_eq(before, child)) {
                let path = path.join(child.name());
                steps.push(Step { path, base: before, other: Some(child) });
            }
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

    fn laid(node: &Node) -> Laid<'_> {
        Laid {
            value: node.value(),
            acl: Arc::clone(node.acl()),
            sequence: node.sequence(),
            children: node.child_list(),
        }
    }

    fn listing(tree: &Tree) -> Vec<String> {
        let mut walk = Walk::new(tree);
        let line = |path: Path<'_>, node: &Node| {
            format!("{path}={:?} {:?} {}", node.value(), node.child_list(), node.sequence())
        };
        core::iter::from_fn(|| walk.next(line)).collect()
    }

    fn sample() -> Tree {
        let mut tree = Tree::new(private_to_dom0());
        for text in ["/z/1", "/a/b/c", "/m", "/z/0"] {
            tree.write(path(text), None, text.as_bytes());
        }
        tree.remove(path("/m"));
        tree
    }

    #[test]
    fn a_walk_laid_down_again_gives_the_same_tree() {
        let tree = sample();
        let mut copy = Tree::new(private_to_dom0());
        let mut walk = Walk::new(&tree);
        while walk.next(|path, node| assert!(copy.lay(path, &laid(node)))).is_some() {}
        assert_eq!(listing(&copy), listing(&tree));
        assert_eq!(copy.root().name_bytes(), tree.root().name_bytes());
        assert!(!copy.lay(path("/no/parent"), &laid(tree.root())));
    }

    /// What leads from `base` to `other` does so.
    fn check_differences(base: &Tree, other: &Tree) {
        let mut copy = base.clone();
        for_each_difference(base, other, |path, node| match node {
            Some(node) => assert!(copy.lay_difference(path, &laid(node))),
            None => assert!(!path.is_root() && (copy.cut(path).is_some() || !copy.contains(path))),
        });
        assert_eq!(listing(&copy), listing(other));
    }

    #[test]
    fn the_differences_lead_from_one_tree_to_the_other() {
        let base = sample();
        let mut other = base.clone();
        other.remove(path("/z/1"));
        other.remove(path("/a"));
        other.write(path("/a"), None, b"again");
        other.write(path("/n/deep/er"), None, b"");
        other.write(path("/z"), None, b"value");
        check_differences(&base, &other);
        let mut count = 0;
        for_each_difference(&other, &other.clone(), |_, _| count += 1);
        assert_eq!(count, 0);
    }

    #[test]
    fn a_tree_that_never_had_a_node_is_told_as_well() {
        let empty = Tree::new(private_to_dom0());
        check_differences(&sample(), &empty);
        check_differences(&empty, &sample());
    }
}
