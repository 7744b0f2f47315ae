//! Which watches a change concerns.
//!
//! A trie over the names of paths: the cost is the depth of the change and the watches it meets,
//! however many others there are. Who may learn of a change is decided by the caller.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::path::{OwnedPath, Path};
use crate::server::ConnId;
use crate::tree::{Node, SmallBytes};

/// A watch, never given out twice; later watches have greater ones.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct WatchId(u64);

/// What a client asked to be told about.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) id: WatchId,
    pub(crate) connection: ConnId,
    pub(crate) path: OwnedPath,
    pub(crate) token: alloc::boxed::Box<[u8]>,
    /// Changes further below are not reported. For a special path: report which domain it was.
    pub(crate) depth: Option<u32>,
    /// Leading bytes that are left out of reported paths, as the watch was given without them.
    home_bytes: usize,
}

impl Watch {
    pub(crate) fn home_bytes(&self) -> usize {
        self.home_bytes
    }

    /// How the client spells a path at or below the watched one.
    pub(crate) fn spell<'a>(&self, path: Path<'a>) -> &'a str {
        &path.as_str()[self.home_bytes..]
    }

    /// What is left out of reported paths.
    pub(crate) fn home(&self) -> &str {
        &self.path.as_path().as_str()[..self.home_bytes]
    }
}

/// A watch as a client asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchRequest<'a> {
    pub(crate) path: Path<'a>,
    pub(crate) token: &'a [u8],
    pub(crate) depth: Option<u32>,
    pub(crate) home_bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    next_id: u64,
    by_id: BTreeMap<WatchId, Arc<Watch>>,
    nodes: Vec<TrieNode>,
    free: Vec<usize>,
    special: BTreeMap<OwnedPath, BTreeSet<WatchId>>,
}

#[derive(Debug, Default)]
struct TrieNode {
    /// Of the root: itself.
    parent: usize,
    name: SmallBytes,
    children: BTreeMap<SmallBytes, usize>,
    watches: BTreeSet<WatchId>,
}

const ROOT: usize = 0;

impl Watches {
    pub(crate) fn new() -> Self {
        Self { nodes: alloc::vec![TrieNode::default()], ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn get(&self, id: WatchId) -> Option<&Watch> {
        self.by_id.get(&id).map(|watch| &**watch)
    }

    /// Every watch, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.by_id.values()
    }

    pub(crate) fn add(&mut self, connection: ConnId, request: WatchRequest<'_>) -> Arc<Watch> {
        let id = WatchId(self.next_id);
        self.next_id += 1;
        let watch = Arc::new(Watch {
            id,
            connection,
            path: request.path.to_owned_path(),
            token: request.token.into(),
            depth: request.depth,
            home_bytes: request.home_bytes,
        });
        self.by_id.insert(id, Arc::clone(&watch));
        if request.path.is_special() {
            self.special.entry(watch.path.clone()).or_default().insert(id);
        } else {
            let mut at = ROOT;
            for name in request.path.components() {
                at = self.child_or_new(at, name);
            }
            self.nodes[at].watches.insert(id);
        }
        watch
    }

    fn child_or_new(&mut self, parent: usize, name: &str) -> usize {
        if let Some(&child) = self.nodes[parent].children.get(name.as_bytes()) {
            return child;
        }
        let name = SmallBytes::new(name.as_bytes());
        let node = TrieNode { parent, name: name.clone(), ..TrieNode::default() };
        let child = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.insert(name, child);
        child
    }

    pub(crate) fn remove(&mut self, id: WatchId) {
        let Some(watch) = self.by_id.remove(&id) else { return };
        if watch.path.as_path().is_special() {
            if let Some(ids) = self.special.get_mut(&watch.path) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.special.remove(&watch.path);
                }
            }
            return;
        }
        let Some(mut at) = self.find(watch.path.as_path()) else { return };
        self.nodes[at].watches.remove(&id);
        while at != ROOT && self.nodes[at].watches.is_empty() && self.nodes[at].children.is_empty()
        {
            let node = core::mem::take(&mut self.nodes[at]);
            self.nodes[node.parent].children.remove(&node.name);
            self.free.push(at);
            at = node.parent;
        }
    }

    fn find(&self, path: Path<'_>) -> Option<usize> {
        let child = |at: usize, name: &str| self.nodes[at].children.get(name.as_bytes()).copied();
        path.components().try_fold(ROOT, child)
    }

    /// Watches at the path or above it that reach down to it, oldest first.
    pub(crate) fn reaching(&self, path: Path<'_>) -> Vec<Arc<Watch>> {
        let mut found = Vec::new();
        let mut below = path.components().count();
        let mut at = ROOT;
        let mut components = path.components();
        loop {
            let reaches = |watch: &&Arc<Watch>| {
                watch.depth.is_none_or(|depth| usize::try_from(depth).is_ok_and(|d| below <= d))
            };
            let watches = self.nodes[at].watches.iter().filter_map(|id| self.by_id.get(id));
            found.extend(watches.filter(reaches).cloned());
            let Some(name) = components.next() else { break };
            let Some(&child) = self.nodes[at].children.get(name.as_bytes()) else { break };
            at = child;
            below -= 1;
        }
        found.sort_unstable_by_key(|watch: &Arc<Watch>| watch.id);
        found
    }

    /// Watches exactly on nodes below one that was removed: children before their parents, and each
    /// with the node and its parent as they were.
    pub(crate) fn below<'a>(
        &self,
        top: &'a Arc<Node>,
        path: Path<'_>,
    ) -> Vec<(Arc<Watch>, &'a Arc<Node>, &'a Arc<Node>)> {
        struct Level<'a> {
            trie: usize,
            node: &'a Arc<Node>,
            children: alloc::vec::IntoIter<&'a Arc<Node>>,
        }
        let level = |trie: usize, node: &'a Arc<Node>| {
            let watched = self.nodes[trie].children.keys();
            let mut children: Vec<&Arc<Node>> =
                watched.filter_map(|name| node.child_named(name)).collect();
            children.sort_unstable_by_key(|child| child.age());
            Level { trie, node, children: children.into_iter() }
        };
        let mut found = Vec::new();
        let Some(trie) = self.find(path) else { return found };
        let mut levels = alloc::vec![level(trie, top)];
        while let Some(lowest) = levels.last_mut() {
            if let Some(child) = lowest.children.next() {
                let trie = self.nodes[lowest.trie].children[child.name().as_bytes()];
                levels.push(level(trie, child));
                continue;
            }
            let (trie, node) = (lowest.trie, lowest.node);
            levels.pop();
            let Some(parent) = levels.last() else { break };
            let watches = self.nodes[trie].watches.iter().filter_map(|id| self.by_id.get(id));
            found.extend(watches.map(|watch| (Arc::clone(watch), node, parent.node)));
        }
        found
    }

    /// Watches on exactly this special path, oldest first.
    pub(crate) fn on_special(&self, path: Path<'_>) -> Vec<Arc<Watch>> {
        let ids = self.special.get(path.as_str());
        ids.into_iter().flatten().filter_map(|id| self.by_id.get(id)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::private_to_dom0;
    use crate::tree::Tree;
    use alloc::string::{String, ToString};

    fn path(text: &str) -> Path<'_> {
        Path::from_canonical(text)
    }

    fn watch(watches: &mut Watches, text: &str, depth: Option<u32>) -> WatchId {
        let request = WatchRequest { path: path(text), token: b"", depth, home_bytes: 0 };
        watches.add(ConnId::for_test(1), request).id
    }

    fn reached(watches: &Watches, text: &str) -> Vec<String> {
        let found = watches.reaching(path(text));
        found.iter().map(|watch| watch.path.as_path().to_string()).collect()
    }

    #[test]
    fn a_change_reaches_watches_at_and_above_it() {
        let mut watches = Watches::new();
        for text in ["/a/b", "/", "/a/b/c", "/a", "/x", "/a/bc"] {
            watch(&mut watches, text, None);
        }
        assert_eq!(reached(&watches, "/a/b"), ["/a/b", "/", "/a"]);
        assert_eq!(reached(&watches, "/a/b/c/d"), ["/a/b", "/", "/a/b/c", "/a"]);
        assert_eq!(reached(&watches, "/y"), ["/"]);
    }

    #[test]
    fn a_depth_bounds_what_is_reported() {
        let mut watches = Watches::new();
        watch(&mut watches, "/a", Some(0));
        watch(&mut watches, "/a", Some(1));
        for (text, count) in [("/a", 2), ("/a/b", 1), ("/a/b/c", 0), ("/", 0)] {
            assert_eq!(reached(&watches, text).len(), count, "{text}");
        }
    }

    #[test]
    fn removed_watches_leave_no_trie_behind() {
        let mut watches = Watches::new();
        for _ in 0..3 {
            let ids = ["/a/b/c", "/a/b", "/a/d", "@releaseDomain"]
                .map(|text| watch(&mut watches, text, None));
            for id in ids {
                watches.remove(id);
                watches.remove(id);
            }
            assert_eq!(watches.nodes.len() - watches.free.len(), 1);
            assert!(watches.special.is_empty());
            assert_eq!(watches.len(), 0);
        }
        assert_eq!(watches.nodes.len(), 5);
    }

    #[test]
    fn a_removal_meets_watches_on_existing_nodes_below_children_first() {
        let mut tree = Tree::new(private_to_dom0());
        for text in ["/d/z", "/d/a/b"] {
            tree.ensure(path(text), None);
        }
        let mut watches = Watches::new();
        for text in ["/d", "/d/a", "/d/a/b", "/d/a/nowhere", "/d/z", "/e"] {
            watch(&mut watches, text, None);
        }
        let removed = tree.remove(path("/d")).unwrap();
        let found: Vec<_> = watches
            .below(&removed, path("/d"))
            .into_iter()
            .map(|(watch, node, parent)| {
                (watch.path.as_path().to_string(), node.name(), parent.name())
            })
            .collect();
        let expected = [("/d/z", "z", "d"), ("/d/a/b", "b", "a"), ("/d/a", "a", "d")];
        assert_eq!(found, expected.map(|(path, node, parent)| (path.to_string(), node, parent)));
    }
}
