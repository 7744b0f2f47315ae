//! Which watches a change concerns.
//!
//! A trie over the names of paths, whose nodes have the watches of each client apart: the cost is the depth
//! of the change and the watches of those who may learn of it, however many others there are. Who that is
//! is decided by the caller.

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
    /// Its client is the control domain, to whom nothing is hidden.
    pub(crate) is_privileged: bool,
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
    pub(crate) is_privileged: bool,
}

/// Who may learn of a change, beside the control domain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Audience {
    Everybody,
    /// Nobody but these.
    Only(BTreeSet<ConnId>),
}

/// Watches on one path.
#[derive(Debug, Default)]
struct Watchers {
    privileged: BTreeSet<WatchId>,
    guests: BTreeMap<ConnId, BTreeSet<WatchId>>,
}

impl Watchers {
    fn insert(&mut self, watch: &Watch) {
        let ids = if watch.is_privileged {
            &mut self.privileged
        } else {
            self.guests.entry(watch.connection).or_default()
        };
        ids.insert(watch.id);
    }

    fn remove(&mut self, watch: &Watch) {
        if watch.is_privileged {
            self.privileged.remove(&watch.id);
        } else if let Some(ids) = self.guests.get_mut(&watch.connection) {
            ids.remove(&watch.id);
            if ids.is_empty() {
                self.guests.remove(&watch.connection);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.privileged.is_empty() && self.guests.is_empty()
    }

    /// The watches of those who may learn of a change.
    fn of<'a>(&'a self, audience: &'a Audience) -> impl Iterator<Item = WatchId> + 'a {
        let (all, only) = match audience {
            Audience::Everybody => (Some(self.guests.values()), None),
            Audience::Only(clients) => {
                let clients = clients.iter().filter(|_| !self.guests.is_empty());
                (None, Some(clients.filter_map(|client| self.guests.get(client))))
            }
        };
        let guests = all.into_iter().flatten().chain(only.into_iter().flatten());
        self.privileged.iter().chain(guests.flatten()).copied()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    next_id: u64,
    by_id: BTreeMap<WatchId, Arc<Watch>>,
    nodes: Vec<TrieNode>,
    free: Vec<usize>,
    special: BTreeMap<OwnedPath, Watchers>,
}

#[derive(Debug, Default)]
struct TrieNode {
    /// Of the root: itself.
    parent: usize,
    name: SmallBytes,
    children: BTreeMap<SmallBytes, usize>,
    watches: Watchers,
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
            is_privileged: request.is_privileged,
            home_bytes: request.home_bytes,
        });
        self.by_id.insert(id, Arc::clone(&watch));
        if request.path.is_special() {
            self.special.entry(watch.path.clone()).or_default().insert(&watch);
        } else {
            let mut at = ROOT;
            for name in request.path.components() {
                at = self.child_or_new(at, name);
            }
            self.nodes[at].watches.insert(&watch);
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
            if let Some(watchers) = self.special.get_mut(&watch.path) {
                watchers.remove(&watch);
                if watchers.is_empty() {
                    self.special.remove(&watch.path);
                }
            }
            return;
        }
        let Some(mut at) = self.find(watch.path.as_path()) else { return };
        self.nodes[at].watches.remove(&watch);
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

    /// Whether there is no watch at the path or above it.
    pub(crate) fn is_unwatched(&self, path: Path<'_>) -> bool {
        let mut at = ROOT;
        let mut components = path.components();
        loop {
            if !self.nodes[at].watches.is_empty() {
                return false;
            }
            let child =
                components.next().and_then(|name| self.nodes[at].children.get(name.as_bytes()));
            let Some(&child) = child else { return true };
            at = child;
        }
    }

    /// Watches at the path or above it that reach down to it, of those who may learn of it, oldest first.
    pub(crate) fn reaching(&self, path: Path<'_>, audience: &Audience) -> Vec<Arc<Watch>> {
        let mut found = Vec::new();
        let mut below = path.components().count();
        let mut at = ROOT;
        let mut components = path.components();
        loop {
            let reaches = |watch: &&Arc<Watch>| {
                watch.depth.is_none_or(|depth| usize::try_from(depth).is_ok_and(|d| below <= d))
            };
            let watches = self.nodes[at].watches.of(audience);
            let watches = watches.filter_map(|id| self.by_id.get(&id));
            found.extend(watches.filter(reaches).cloned());
            let Some(name) = components.next() else { break };
            let Some(&child) = self.nodes[at].children.get(name.as_bytes()) else { break };
            at = child;
            below -= 1;
        }
        found.sort_unstable_by_key(|watch: &Arc<Watch>| watch.id);
        found
    }

    /// Nodes below one that was removed which somebody watches: children before their parents, and each
    /// with the node and its parent as they were. Their watches are [here](Self::at).
    pub(crate) fn below<'a>(
        &self,
        top: &'a Arc<Node>,
        path: Path<'_>,
    ) -> Vec<(Place, &'a Arc<Node>, &'a Arc<Node>)> {
        struct Level<'a> {
            trie: usize,
            node: &'a Arc<Node>,
            children: alloc::vec::IntoIter<&'a Arc<Node>>,
        }
        let level = |trie: usize, node: &'a Arc<Node>| {
            let watched = &self.nodes[trie].children;
            // Whichever there are fewer of: guests choose one, and the control domain the other.
            let mut children: Vec<&Arc<Node>> = if 2 * watched.len() <= node.name_bytes() {
                watched.keys().filter_map(|name| node.child_named(name)).collect()
            } else {
                let is_watched = |child: &&Arc<Node>| watched.contains_key(child.name().as_bytes());
                node.children().filter(is_watched).collect()
            };
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
            if !self.nodes[trie].watches.is_empty() {
                found.push((Place(trie), node, parent.node));
            }
        }
        found
    }

    /// The watches exactly on a node, of those who may learn of it, oldest first.
    pub(crate) fn at(&self, place: Place, audience: &Audience) -> Vec<Arc<Watch>> {
        self.sorted(self.nodes[place.0].watches.of(audience))
    }

    fn sorted(&self, ids: impl Iterator<Item = WatchId>) -> Vec<Arc<Watch>> {
        let mut ids: Vec<WatchId> = ids.collect();
        ids.sort_unstable();
        ids.iter().filter_map(|id| self.by_id.get(id)).cloned().collect()
    }

    /// Watches on exactly this special path, of those who may learn of it, oldest first.
    pub(crate) fn on_special(&self, path: Path<'_>, audience: &Audience) -> Vec<Arc<Watch>> {
        let watchers = self.special.get(path.as_str());
        self.sorted(watchers.into_iter().flat_map(|watchers| watchers.of(audience)))
    }
}

/// A watched node, until watches come or go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

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
        let (token, home_bytes, is_privileged) = (&b""[..], 0, false);
        let request = WatchRequest { path: path(text), token, depth, home_bytes, is_privileged };
        watches.add(ConnId::for_test(1), request).id
    }

    fn reached(watches: &Watches, text: &str) -> Vec<String> {
        let found = watches.reaching(path(text), &Audience::Everybody);
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
    fn only_watches_of_the_audience_are_met() {
        let mut watches = Watches::new();
        for client in 0..4 {
            for text in ["/", "/a", "@releaseDomain"] {
                let (token, depth, home_bytes) = (&b""[..], None, 0);
                let is_privileged = client == 0;
                let path = path(text);
                let request = WatchRequest { path, token, depth, home_bytes, is_privileged };
                watches.add(ConnId::for_test(client), request);
            }
        }
        let audience = Audience::Only(BTreeSet::from([2, 7].map(ConnId::for_test)));
        let met = |found: Vec<Arc<Watch>>| -> Vec<u64> {
            found.iter().map(|watch| watch.connection.number()).collect()
        };
        assert_eq!(met(watches.reaching(path("/a/b"), &audience)), [0, 0, 2, 2]);
        assert_eq!(met(watches.on_special(path("@releaseDomain"), &audience)), [0, 2]);
        assert_eq!(met(watches.reaching(path("/b"), &Audience::Everybody)), [0, 1, 2, 3]);
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
            .map(|(place, node, parent)| {
                let watches = watches.at(place, &Audience::Everybody);
                (watches[0].path.as_path().to_string(), node.name(), parent.name())
            })
            .collect();
        let expected = [("/d/z", "z", "d"), ("/d/a/b", "b", "a"), ("/d/a", "a", "d")];
        assert_eq!(found, expected.map(|(path, node, parent)| (path.to_string(), node, parent)));
    }
}
