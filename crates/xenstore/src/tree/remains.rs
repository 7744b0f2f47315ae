//! Trees that were taken away, and are taken apart a few nodes at a time: nobody waits for a large one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::acl::Acl;
use crate::path::{OwnedPath, Path};
use crate::tree::sorted::{Part, Sorted};
use crate::tree::{Children, Node, Tree};

/// Nodes that nobody reaches from the tree any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remains {
    pieces: Vec<Piece>,
    // Kept from step to step.
    parts: Vec<Part<Arc<Node>>>,
    nodes: Vec<Arc<Node>>,
}

#[derive(Clone, Debug)]
struct Piece {
    /// Where it was. `None`: nobody has to know, it is only to be freed.
    above: Option<Arc<Above>>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Node(Arc<Node>),
    Nodes(Part<Arc<Node>>),
}

/// The node above some that were removed.
#[derive(Debug)]
struct Above {
    path: OwnedPath,
    acl: Arc<Acl>,
}

/// A node that was removed, as it was in its tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removed<'a> {
    pub(crate) parent_path: Path<'a>,
    pub(crate) parent_acl: &'a Acl,
    pub(crate) node: &'a Node,
}

impl Removed<'_> {
    pub(crate) fn path(&self) -> OwnedPath {
        self.parent_path.join_owned(self.node.name())
    }

    pub(crate) fn path_bytes(&self) -> usize {
        let above = if self.parent_path.is_root() { 0 } else { self.parent_path.as_str().len() };
        above + 1 + self.node.name().len()
    }
}

impl Remains {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a node with all below it, which was below this parent.
    pub(crate) fn add(&mut self, parent_path: Path<'_>, parent_acl: &Arc<Acl>, node: Arc<Node>) {
        let above = Above { path: parent_path.to_owned_path(), acl: Arc::clone(parent_acl) };
        self.pieces.push(Piece { above: Some(Arc::new(above)), content: Content::Node(node) });
    }

    /// Adds what is to be freed where nobody else holds it.
    pub(crate) fn add_snapshot(&mut self, tree: Tree) {
        self.pieces.push(Piece { above: None, content: Content::Node(tree.root) });
    }

    /// Takes one piece apart and shows its node, if it is one that was removed. `None`: nothing is left.
    pub(crate) fn step(&mut self, mut see: impl FnMut(Removed<'_>)) -> Option<()> {
        let Piece { above, content } = self.pieces.pop()?;
        match (content, above) {
            (Content::Node(node), Some(above)) => {
                let removed = Removed {
                    parent_path: above.path.as_path(),
                    parent_acl: &above.acl,
                    node: &node,
                };
                see(removed);
                if node.children.is_none() {
                    return Some(());
                }
                let above = Above { path: removed.path(), acl: Arc::clone(&node.acl) };
                let children = match Arc::try_unwrap(node) {
                    Ok(mut node) => node.children.take(),
                    Err(shared) => shared.children.clone(),
                };
                if let Some(children) = children {
                    let Children { nodes, .. } = Arc::unwrap_or_clone(children);
                    self.push_nodes(Some(Arc::new(above)), nodes);
                }
            }
            (Content::Node(node), None) => {
                let children = Arc::into_inner(node).and_then(|mut node| node.children.take());
                if let Some(Children { nodes, .. }) = children.and_then(Arc::into_inner) {
                    self.push_nodes(None, nodes);
                }
            }
            (Content::Nodes(part), above) => {
                if above.is_some() {
                    part.take_apart(&mut self.parts, &mut self.nodes);
                } else {
                    part.take_apart_unshared(&mut self.parts, &mut self.nodes);
                }
                // Most of a snapshot is somebody else's as well, and costs no step.
                let counts = |node: &Arc<Node>| above.is_some() || Arc::strong_count(node) == 1;
                let nodes = self.nodes.drain(..).filter(counts).map(Content::Node);
                let contents = self.parts.drain(..).map(Content::Nodes).chain(nodes);
                let piece = |content| Piece { above: above.clone(), content };
                self.pieces.extend(contents.map(piece));
            }
        }
        Some(())
    }

    fn push_nodes(&mut self, above: Option<Arc<Above>>, nodes: Sorted<Arc<Node>>) {
        self.pieces.push(Piece { above, content: Content::Nodes(nodes.into_part()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::private_to_dom0;
    use alloc::collections::BTreeSet;
    use alloc::format;

    fn filled() -> (Tree, BTreeSet<alloc::string::String>) {
        let mut tree = Tree::new(private_to_dom0());
        let mut paths = BTreeSet::from(["/top".into()]);
        for i in 0..50 {
            paths.insert(format!("/top/{i}"));
            for j in 0..70 {
                let path = format!("/top/{i}/{j}");
                tree.write(Path::from_canonical(&path), None, b"value");
                paths.insert(path);
            }
        }
        (tree, paths)
    }

    #[test]
    fn each_node_is_seen_once_whether_a_snapshot_holds_it_or_not() {
        for holds in [false, true] {
            let (mut tree, mut paths) = filled();
            let snapshot = holds.then(|| tree.clone());
            let top = tree.remove(Path::from_canonical("/top")).expect("it is there");
            let mut remains = Remains::default();
            remains.add(Path::ROOT, tree.root().acl(), top);
            while remains
                .step(|removed| {
                    assert_eq!(removed.path().as_path().as_str().len(), removed.path_bytes());
                    assert!(paths.remove(removed.path().as_path().as_str()));
                })
                .is_some()
            {}
            assert_eq!(paths, BTreeSet::new());
            if let Some(snapshot) = snapshot {
                assert!(snapshot.contains(Path::from_canonical("/top/49/69")));
            }
        }
    }

    #[test]
    fn a_snapshot_frees_what_it_alone_holds_and_no_step_is_long() {
        let (mut tree, _) = filled();
        let snapshot = tree.clone();
        let node = Arc::downgrade(snapshot.get(Path::from_canonical("/top/3/7")).expect("a node"));
        tree.write(Path::from_canonical("/kept"), None, b"");
        tree.remove(Path::from_canonical("/top"));
        let mut remains = Remains::default();
        remains.add_snapshot(snapshot);
        let mut steps = 0;
        while remains.step(|_| panic!("nothing was removed")).is_some() {
            steps += 1;
        }
        assert!(steps > 3_500, "{steps}");
        assert!(node.upgrade().is_none());
        assert!(tree.contains(Path::from_canonical("/kept")));
    }
}
