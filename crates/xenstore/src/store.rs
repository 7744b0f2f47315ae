//! The committed tree with what is known about it per domain: what it owns, where lists name it.
//!
//! Every change of the tree goes through here, so the index is always that of a recount, and what a
//! dead domain leaves is found without a walk. Rights and quotas were checked before.
//!
//! The index holds edges only: nodes that are a domain's while their parent is not. What lies below an
//! edge follows from the tree, so a node within its owner's own subtree costs the index nothing.
//!
//! Removal takes a subtree out of the tree at once. What it held is uncounted and freed afterwards, a
//! few at a time ([`Store::clear_up`]): until then it counts.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::DomId;

use crate::acl::{Acl, Being, Life, Role, private_to_dom0};
use crate::journal::{Record, Recorder, encode_acl};
use crate::path::{OwnedPath, Path};
use crate::tree::{Laid, Node, Remains, Removed, Tree, for_each_bottom_up, held_bytes};

/// Pieces that a removal clears up itself. A node has one or two, so this is more than a guest may own
/// by default.
const CLEARED_AT_ONCE: usize = 3_000;

/// Pieces that the end of a domain or of a snapshot clears up itself: what a small one had. Nobody's
/// limits depend on the rest.
const CLEARED_AT_AN_END: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Store {
    tree: Tree,
    node_count: usize,
    /// By domain and life: while a store is loaded, nodes of two domains of one number may meet.
    domains: BTreeMap<Being, Mentions>,
    /// Subtrees that were removed and are still counted, and snapshots that nobody needs any more.
    remains: Remains,
    /// Dead domains whose rights still stand in lists, with where to look. They entitle nobody.
    fading: Vec<(Being, Vec<OwnedPath>)>,
    /// Nodes that were replaced or removed since the beginning.
    versions: u64,
    /// Where each change is noted, those of the server around the tree as well.
    pub(crate) recorder: Recorder,
}

/// Where a living guest occurs in permission lists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Mentions {
    owned_count: usize,
    /// What the owned nodes take.
    owned_bytes: usize,
    /// Nodes that it owns while it does not own their parent.
    owned_edges: BTreeSet<OwnedPath>,
    /// Nodes whose list names it while their parent's does not.
    named_edges: BTreeSet<OwnedPath>,
}

impl Mentions {
    fn edges(&mut self, role: Role) -> &mut BTreeSet<OwnedPath> {
        match role {
            Role::Owner => &mut self.owned_edges,
            Role::Named => &mut self.named_edges,
        }
    }

    fn is_empty(&self) -> bool {
        self.owned_count == 0 && self.owned_edges.is_empty() && self.named_edges.is_empty()
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::of_tree(Tree::new(private_to_dom0()))
    }

    fn of_tree(tree: Tree) -> Self {
        Self {
            tree,
            node_count: 1,
            domains: BTreeMap::new(),
            remains: Remains::default(),
            fading: Vec::new(),
            versions: 0,
            recorder: Recorder::default(),
        }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Nodes in the tree, the root included, and removed ones that were not cleared up.
    pub(crate) fn node_count(&self) -> usize {
        self.node_count
    }

    /// Nodes that were replaced or removed since the beginning: a snapshot keeps those alive that were
    /// since it was taken.
    pub(crate) fn versions(&self) -> u64 {
        self.versions
    }

    /// Nodes that the guest owns.
    pub(crate) fn owned_count(&self, domid: DomId) -> usize {
        self.lives(domid).map(|(_, mentions)| mentions.owned_count).sum()
    }

    /// Bytes that the nodes which the guest owns take.
    pub(crate) fn owned_bytes(&self, domid: DomId) -> usize {
        self.lives(domid).map(|(_, mentions)| mentions.owned_bytes).sum()
    }

    /// What is known of all domains that ever had the number. There are two of them at most while a
    /// store is loaded.
    fn lives(&self, domid: DomId) -> impl Iterator<Item = (&Being, &Mentions)> {
        let of_life = |life| Being { domid, life: Life(life) };
        self.domains.range(of_life(0)..=of_life(u64::MAX))
    }

    /// Nodes that, together with all below them, hold everything the guest owns; what lies below
    /// another comes after it.
    pub(crate) fn owned_tops(&self, domid: DomId) -> Vec<OwnedPath> {
        let mut tops = Vec::new();
        for (&owner, mentions) in self.lives(domid) {
            let edges = mentions.owned_edges.iter();
            // An edge may be one of a subtree that was removed and is not cleared up.
            let is_there = |path: &&OwnedPath| {
                let node = self.tree.get(path.as_path());
                node.is_some_and(|node| node.acl().mentions(Role::Owner, owner))
            };
            tops.extend(edges.filter(is_there).cloned());
        }
        tops
    }

    /// Lists of children get generations beyond this from now on.
    pub(crate) fn skip_generations(&mut self, generation: u64) {
        self.tree.skip_generations(generation);
    }

    /// Makes sure that the node exists.
    pub(crate) fn ensure(&mut self, path: Path<'_>, creator: Option<Being>) {
        self.recorder.record(&Record::Ensure { path, creator: creator.map(|being| being.domid) });
        let created = self.tree.ensure(path, creator);
        self.count_created(path, created);
    }

    pub(crate) fn write(&mut self, path: Path<'_>, creator: Option<Being>, value: &[u8]) {
        let domid = creator.map(|being| being.domid);
        self.versions += 1;
        self.recorder.record(&Record::Write { path, creator: domid, value });
        let written = self.tree.write(path, creator, value);
        if written.created > 0 {
            return self.count_created(path, written.created);
        }
        let owner = written.owner;
        if owner.permission.domid != DomId::DOM0
            && let Some(life) = owner.life
            && let Some(mentions) = self.mentions_of(Being { domid: owner.permission.domid, life })
        {
            mentions.owned_bytes = mentions.owned_bytes + value.len() - written.value_bytes_before;
        }
    }

    /// Replaces the permission list and returns the old one; `None` if there is no such node.
    pub(crate) fn set_acl(&mut self, path: Path<'_>, acl: &Arc<Acl>) -> Option<Arc<Acl>> {
        let old = self.tree.set_acl(path, Arc::clone(acl))?;
        self.versions += 1;
        if self.recorder.is_on() {
            self.recorder.record(&Record::SetAcl { path, acl: &encode_acl(acl) });
        }
        self.index_list(path, &old, acl);
        Some(old)
    }

    /// Takes the node with all below it out of the tree. Where somebody's limits may depend on it,
    /// [`clear_up_removed`](Self::clear_up_removed) comes next; before that nobody should hold the node
    /// any more.
    pub(crate) fn remove(&mut self, path: Path<'_>) -> Option<Arc<Node>> {
        let removed = self.tree.remove(path)?;
        self.recorder.record(&Record::Remove { path });
        let parent = path.parent()?;
        let parent_acl = self.tree.get(parent).map(|node| Arc::clone(node.acl()))?;
        self.remains.add(parent, &parent_acl, Arc::clone(&removed));
        Some(removed)
    }

    /// Uncounts what was just removed, as far as that is quickly done. Says how many pieces that were.
    pub(crate) fn clear_up_removed(&mut self) -> usize {
        self.clear_up(CLEARED_AT_ONCE)
    }

    /// Puts a node where it was when the tree was saved; says whether its parent was there.
    pub(crate) fn lay(&mut self, path: Path<'_>, laid: &Laid<'_>) -> bool {
        let before = self.tree.get(path).map(|node| (Arc::clone(node.acl()), node.value().len()));
        if !self.tree.lay(path, laid) {
            return false;
        }
        let Some((acl, value_bytes)) = before else {
            self.count_created(path, 1);
            return true;
        };
        if let Some((Role::Owner, owner)) = acl.guests().next()
            && let Some(mentions) = self.mentions_of(owner)
        {
            mentions.owned_bytes = mentions.owned_bytes + laid.value.len() - value_bytes;
        }
        self.index_list(path, &acl, &laid.acl);
        true
    }

    /// Takes a node out that was gone when the tree was saved; its parent stays as it is.
    pub(crate) fn cut(&mut self, path: Path<'_>) {
        let parent = path.parent().and_then(|parent| Some((parent, self.tree.get(parent)?)));
        let Some((parent, node)) = parent else { return };
        let acl = Arc::clone(node.acl());
        if let Some(removed) = self.tree.cut(path) {
            self.remains.add(parent, &acl, removed);
            self.clear_up(CLEARED_AT_ONCE);
        }
    }

    /// Goes on with the generations of the tree that was saved.
    pub(crate) fn continue_generations(&mut self, generation: u64) {
        self.tree.continue_generations(generation);
    }

    /// The root stays for ever: if it is the dead domain's, it falls to the control domain. Rights of the
    /// dead go with it, as the list is recorded, and the next reader of the records knows no life of theirs.
    pub(crate) fn disown_root(&mut self, domid: DomId, lives: impl Fn(Being) -> bool) {
        let acl = Arc::clone(self.tree.root().acl());
        if acl.guests().any(|(role, being)| role == Role::Owner && being.domid == domid) {
            let acl = acl.owned_by_dom0().of_the_living(lives);
            self.set_acl(Path::ROOT, &Arc::new(acl));
        }
    }

    /// Takes a dead domain's rights out of every list that names it. Its own nodes are gone by now.
    pub(crate) fn forget_domain(&mut self, domid: DomId) {
        let lives: Vec<Being> = self.lives(domid).map(|(being, _)| *being).collect();
        if lives.is_empty() {
            return;
        }
        self.recorder.record(&Record::ForgetDomain { domid });
        for being in lives {
            let Some(mentions) = self.domains.remove(&being) else { continue };
            if !mentions.named_edges.is_empty() {
                self.fading.push((being, mentions.named_edges.into_iter().collect()));
            }
        }
        self.clear_up(CLEARED_AT_AN_END);
    }

    /// Frees a snapshot, which may be the last to hold what was removed meanwhile.
    pub(crate) fn discard(&mut self, snapshot: Tree) {
        self.remains.add_snapshot(snapshot);
        self.clear_up(CLEARED_AT_AN_END);
    }

    /// Whether nothing waits to be cleared up.
    pub(crate) fn is_cleared_up(&self) -> bool {
        self.remains.is_empty() && self.fading.is_empty()
    }

    /// Uncounts and frees so many pieces of what was removed: nodes, and blocks of their children. Says how
    /// many there were.
    pub(crate) fn clear_up(&mut self, pieces: usize) -> usize {
        if self.is_cleared_up() {
            return 0;
        }
        // Moved out, as each node that is seen changes the index.
        let mut remains = core::mem::take(&mut self.remains);
        let mut cleared = 0;
        while cleared < pieces
            && (self.fade_one().is_some()
                || remains.step(|removed| self.uncount(removed)).is_some())
        {
            cleared += 1;
        }
        self.remains = remains;
        cleared
    }

    /// Takes a dead domain's rights out of one list, and has those below that follow it looked at.
    /// `None`: nothing is left.
    fn fade_one(&mut self) -> Option<()> {
        let (being, paths) = self.fading.last_mut()?;
        let being = *being;
        let Some(path) = paths.pop() else { return self.fading.pop().map(drop) };
        let path = path.as_path();
        let node = self.tree.get(path).filter(|node| node.acl().mentions(Role::Named, being));
        let Some(node) = node else { return Some(()) };
        let named = mentioned_below(node, Role::Named, being);
        paths.extend(named.map(|child| path.join_owned(child.name())));
        let old = Arc::clone(node.acl());
        let acl = Arc::new(old.without_being(being));
        self.tree.set_acl(path, Arc::clone(&acl));
        if let Some((Role::Owner, owner)) = acl.guests().next()
            && let Some(mentions) = self.mentions_of(owner)
        {
            let bytes = |acl: &Acl| held_bytes(path.as_str().len(), 0, acl);
            let (before, now) = (bytes(&old), bytes(&acl));
            mentions.owned_bytes = mentions.owned_bytes + now - before;
        }
        Some(())
    }

    fn uncount(&mut self, removed: Removed<'_>) {
        self.node_count -= 1;
        self.versions += 1;
        let acl = removed.node.acl();
        for (role, being) in acl.guests() {
            if role == Role::Owner
                && let Some(mentions) = self.mentions_of(being)
            {
                mentions.owned_count -= 1;
                mentions.owned_bytes -= removed.node.held_bytes(removed.path_bytes());
            }
            if !removed.parent_acl.mentions(role, being) {
                self.drop_edge(removed.path().as_path(), role, being);
            }
            self.drop_if_empty(being);
        }
    }

    /// Forgets an edge of a removed node, unless there is another node at its place by now.
    fn drop_edge(&mut self, path: Path<'_>, role: Role, being: Being) {
        if !self.is_edge(path, role, being)
            && let Some(mentions) = self.mentions_of(being)
        {
            mentions.edges(role).remove(path.as_str());
        }
    }

    fn is_edge(&self, path: Path<'_>, role: Role, being: Being) -> bool {
        let mentioned = |path: Path<'_>| {
            self.tree.get(path).is_some_and(|node| node.acl().mentions(role, being))
        };
        mentioned(path) && !path.parent().is_some_and(mentioned)
    }

    fn mentions_of(&mut self, being: Being) -> Option<&mut Mentions> {
        self.domains.get_mut(&being)
    }

    /// The entry of a guest in the index; `None` for one that is dead.
    fn mentions_or_new(&mut self, being: Being) -> Option<&mut Mentions> {
        if self.fading.iter().any(|(dead, _)| *dead == being) {
            return None;
        }
        Some(self.domains.entry(being).or_default())
    }

    fn drop_if_empty(&mut self, being: Being) {
        if self.mentions_of(being).is_some_and(|mentions| mentions.is_empty()) {
            self.domains.remove(&being);
        }
    }

    fn count_created(&mut self, path: Path<'_>, created: usize) {
        if created == 0 {
            return;
        }
        self.node_count += created;
        self.versions += 1;
        let node = self.tree.get(path).expect("created just now");
        if node.acl().guests().next().is_none() {
            return;
        }
        let (acl, mut value_bytes) = (Arc::clone(node.acl()), node.value().len());
        let mut upwards = core::iter::successors(Some(path), |path| path.parent());
        let mut top = path;
        let mut bytes = 0;
        for path in upwards.by_ref().take(created) {
            bytes += held_bytes(path.as_str().len(), value_bytes, &acl);
            // Those above it were created empty.
            value_bytes = 0;
            top = path;
        }
        let above = upwards.next().and_then(|parent| self.tree.get(parent));
        let above = Arc::clone(above.expect("the root is never created").acl());
        for (role, being) in acl.guests() {
            let Some(mentions) = self.mentions_or_new(being) else { continue };
            if role == Role::Owner {
                mentions.owned_count += created;
                mentions.owned_bytes += bytes;
            }
            if !above.mentions(role, being) {
                mentions.edges(role).insert(top.to_owned_path());
            }
        }
    }

    /// Follows the change of a list: counts, and edges at this node and below it.
    fn index_list(&mut self, path: Path<'_>, old: &Acl, new: &Acl) {
        let Some(node) = self.tree.get(path) else { return };
        let node = Arc::clone(node);
        let above = path.parent().and_then(|parent| self.tree.get(parent));
        let above = above.map(|node| Arc::clone(node.acl()));
        let bytes = |acl: &Acl| held_bytes(path.as_str().len(), node.value().len(), acl);
        let is_above = |role, being| above.as_ref().is_some_and(|acl| acl.mentions(role, being));
        for (role, being) in old.guests() {
            let Some(mentions) = self.mentions_of(being) else { continue };
            if role == Role::Owner {
                mentions.owned_count -= 1;
                mentions.owned_bytes -= bytes(old);
            }
            if !new.mentions(role, being) {
                mentions.edges(role).remove(path.as_str());
                for child in mentioned_below(&node, role, being) {
                    mentions.edges(role).insert(path.join_owned(child.name()));
                }
            }
        }
        for (role, being) in new.guests() {
            let Some(mentions) = self.mentions_or_new(being) else { continue };
            if role == Role::Owner {
                mentions.owned_count += 1;
                mentions.owned_bytes += bytes(new);
            }
            if !old.mentions(role, being) {
                if !is_above(role, being) {
                    mentions.edges(role).insert(path.to_owned_path());
                }
                for child in mentioned_below(&node, role, being) {
                    mentions.edges(role).remove(path.join(child.name()).as_str());
                }
            }
        }
        for (_, being) in old.guests() {
            self.drop_if_empty(being);
        }
    }

    /// Compares counters and index with a walk over the tree and what was removed from it.
    ///
    /// # Errors
    /// A sentence about the first difference.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut recount = Self::of_tree(self.tree.clone());
        recount.fading.clone_from(&self.fading);
        let mut nodes = Vec::new();
        for_each_bottom_up(self.tree.root(), Path::ROOT, |path, node| {
            nodes.push((path.to_owned_path(), node));
        });
        recount.node_count = nodes.len();
        for (path, node) in nodes {
            let path = path.as_path();
            let bytes = node.held_bytes(path.as_str().len());
            for (role, being) in node.acl().guests() {
                let is_edge = recount.is_edge(path, role, being);
                recount.recount_mention(role, being, bytes, is_edge.then(|| path.to_owned_path()));
            }
        }
        let mut remains = self.remains.clone();
        while remains.step(|removed| recount.recount_removed(removed, self)).is_some() {}
        if recount.node_count != self.node_count {
            let (counted, kept) = (recount.node_count, self.node_count);
            return Err(alloc::format!("the tree has {counted} nodes, the counter says {kept}"));
        }
        if recount.domains == self.domains {
            Ok(())
        } else {
            Err("the index of permission lists differs from a recount".into())
        }
    }

    fn recount_mention(&mut self, role: Role, being: Being, bytes: usize, edge: Option<OwnedPath>) {
        let Some(mentions) = self.mentions_or_new(being) else { return };
        if role == Role::Owner {
            mentions.owned_count += 1;
            mentions.owned_bytes += bytes;
        }
        mentions.edges(role).extend(edge);
    }

    /// Counts a removed node as long as its domain lives; its edge may be gone already.
    fn recount_removed(&mut self, removed: Removed<'_>, kept: &Self) {
        self.node_count += 1;
        for (role, being) in removed.node.acl().guests() {
            let Some(mentions) = kept.domains.get(&being) else { continue };
            let path = Some(removed.path())
                .filter(|path| mentions.clone().edges(role).contains(path.as_path().as_str()));
            let bytes = removed.node.held_bytes(removed.path_bytes());
            self.recount_mention(role, being, bytes, path);
        }
    }
}

/// The children whose list mentions the guest as well.
fn mentioned_below(node: &Node, role: Role, being: Being) -> impl Iterator<Item = &Arc<Node>> {
    node.children().filter(move |child| child.acl().mentions(role, being))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Entry, Life};
    use crate::permission::{Access, Permission};

    fn path(text: &str) -> Path<'_> {
        Path::from_canonical(text)
    }

    fn acl(owner: u16, reader: u16) -> Arc<Acl> {
        let entry = |access, domid: u16| Entry {
            permission: Permission::new(access, DomId(domid)),
            life: Some(Life(domid.into())),
        };
        Arc::new(Acl::new(alloc::vec![entry(Access::None, owner), entry(Access::Read, reader)]))
    }

    #[test]
    fn the_index_follows_every_change() {
        let mut store = Store::new();
        store.write(path("/home/1"), None, b"");
        store.set_acl(path("/home/1"), &acl(1, 2));
        store.write(path("/home/1/a/b"), None, b"value");
        assert_eq!(store.owned_count(DomId(1)), 3);
        assert_eq!(store.owned_tops(DomId(1)), [path("/home/1").to_owned_path()]);
        assert_eq!(store.check(), Ok(()));
        store.remove(path("/home/1/a"));
        assert_eq!(store.owned_count(DomId(1)), 3);
        assert_eq!(store.check(), Ok(()));
        store.clear_up_removed();
        assert_eq!(store.owned_count(DomId(1)), 1);
        assert_eq!(store.check(), Ok(()));
        store.forget_domain(DomId(2));
        assert_eq!(store.tree().get(path("/home/1")).unwrap().acl().entries().len(), 1);
        assert_eq!(store.check(), Ok(()));
        store.remove(path("/home/1"));
        store.forget_domain(DomId(1));
        assert_eq!(store.check(), Ok(()));
        assert_eq!(store.node_count(), 2);
    }

    #[test]
    fn edges_follow_lists_that_change_above_and_below() {
        let mut store = Store::new();
        for name in ["/home/a/x", "/home/a/y", "/home/b"] {
            store.write(path(name), None, b"");
        }
        let names = ["/home/a", "/home", "/home/a/x", "/home/a", "/home", "/home/b"];
        for (i, name) in names.into_iter().enumerate() {
            for (owner, reader) in [(1, 2), (2, 1), (1, 3)] {
                store.set_acl(path(name), &acl(owner, reader));
                assert_eq!(store.check(), Ok(()), "{i}, {name}, {owner}");
            }
        }
        assert_eq!(store.owned_tops(DomId(1)), [path("/home").to_owned_path()]);
        store.set_acl(path("/home"), &private_to_dom0());
        let tops = ["/home/a", "/home/b"].map(|name| path(name).to_owned_path());
        assert_eq!(store.owned_tops(DomId(1)), tops);
        assert_eq!(store.check(), Ok(()));
    }

    #[test]
    fn a_large_subtree_is_uncounted_in_pieces_while_others_take_its_place() {
        let mut store = Store::new();
        store.write(path("/home/1"), None, b"");
        store.set_acl(path("/home/1"), &acl(1, 2));
        for i in 0..5_000 {
            store.write(path(&alloc::format!("/home/1/{}/{i}", i / 100)), None, b"value");
        }
        // An edge within, of another guest.
        store.set_acl(path("/home/1/7/700"), &acl(3, 2));
        store.remove(path("/home/1"));
        assert!(!store.is_cleared_up());
        assert_eq!(store.check(), Ok(()));
        store.write(path("/home/1/7/700"), None, b"");
        store.set_acl(path("/home/1/7/700"), &acl(3, 2));
        assert_eq!(store.check(), Ok(()));
        while !store.is_cleared_up() {
            store.clear_up(100);
            assert_eq!(store.check(), Ok(()));
        }
        assert_eq!(store.owned_count(DomId(1)), 0);
        assert_eq!(store.owned_tops(DomId(3)), [path("/home/1/7/700").to_owned_path()]);
        assert_eq!(store.node_count(), 5);
    }

    #[test]
    fn a_dead_domains_rights_fade_from_lists_in_pieces() {
        let mut store = Store::new();
        store.write(path("/shared"), None, b"");
        store.set_acl(path("/shared"), &acl(1, 2));
        for i in 0..5_000 {
            store.write(path(&alloc::format!("/shared/{}/{i}", i / 100)), None, b"");
        }
        store.forget_domain(DomId(2));
        assert!(!store.is_cleared_up());
        store.write(path("/shared/0/late"), None, b"");
        while !store.is_cleared_up() {
            store.clear_up(100);
            assert_eq!(store.check(), Ok(()));
        }
        for_each_bottom_up(store.tree().root(), Path::ROOT, |path, node| {
            assert_eq!(node.acl().entries().len(), 1, "{path}");
        });
    }
}
