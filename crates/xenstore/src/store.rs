//! The committed tree with what is known about it per domain: nodes it owns, nodes that name it.
//!
//! Every change of the tree goes through here, so the index is always that of a recount, and what a
//! dead domain leaves is found without a walk. Rights and quotas were checked before.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::DomId;

use crate::acl::{Acl, Being, Role, private_to_dom0};
use crate::journal::{Record, Recorder, encode_acl};
use crate::path::{OwnedPath, Path};
use crate::tree::{Node, Tree, for_each_bottom_up};

#[derive(Clone, Debug)]
pub(crate) struct Store {
    tree: Tree,
    node_count: usize,
    domains: BTreeMap<DomId, Mentions>,
    /// Where each change is noted, those of the server around the tree as well.
    pub(crate) recorder: Recorder,
}

/// Where a living guest occurs in permission lists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Mentions {
    owned: BTreeSet<OwnedPath>,
    named: BTreeSet<OwnedPath>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            tree: Tree::new(private_to_dom0()),
            node_count: 1,
            domains: BTreeMap::new(),
            recorder: Recorder::default(),
        }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Nodes in the tree, the root included.
    pub(crate) fn node_count(&self) -> usize {
        self.node_count
    }

    /// Nodes that the guest owns.
    pub(crate) fn owned_count(&self, domid: DomId) -> usize {
        self.domains.get(&domid).map_or(0, |mentions| mentions.owned.len())
    }

    /// Topmost nodes of what the guest owns.
    pub(crate) fn owned_tops(&self, domid: DomId) -> Vec<OwnedPath> {
        let Some(mentions) = self.domains.get(&domid) else { return Vec::new() };
        let below_another = |path: Path<'_>| {
            core::iter::successors(path.parent(), |parent| parent.parent())
                .any(|parent| mentions.owned.contains(parent.as_str()))
        };
        mentions.owned.iter().filter(|path| !below_another(path.as_path())).cloned().collect()
    }

    /// Lists of children get generations beyond this from now on.
    pub(crate) fn skip_generations(&mut self, generation: u64) {
        self.tree.skip_generations(generation);
    }

    /// Makes sure that the node exists.
    pub(crate) fn ensure(&mut self, path: Path<'_>, creator: Option<Being>) {
        self.recorder.record(&Record::Ensure { path, creator: creator.map(|being| being.domid) });
        let created = self.tree.ensure(path, creator);
        self.index_created(path, created);
    }

    pub(crate) fn write(&mut self, path: Path<'_>, creator: Option<Being>, value: &[u8]) {
        let domid = creator.map(|being| being.domid);
        self.recorder.record(&Record::Write { path, creator: domid, value });
        let created = self.tree.write(path, creator, value);
        self.index_created(path, created);
    }

    /// Replaces the permission list and returns the old one; `None` if there is no such node.
    pub(crate) fn set_acl(&mut self, path: Path<'_>, acl: &Arc<Acl>) -> Option<Arc<Acl>> {
        let old = self.tree.set_acl(path, Arc::clone(acl))?;
        if self.recorder.is_on() {
            self.recorder.record(&Record::SetAcl { path, acl: &encode_acl(acl) });
        }
        self.forget(path, &old);
        self.mention(path, acl);
        Some(old)
    }

    /// Takes the node with all below it out of the tree.
    pub(crate) fn remove(&mut self, path: Path<'_>) -> Option<Arc<Node>> {
        let removed = self.tree.remove(path)?;
        self.recorder.record(&Record::Remove { path });
        let mut count = 0;
        let mut mentions: Vec<(OwnedPath, Arc<Acl>)> = Vec::new();
        for_each_bottom_up(&removed, path, |path, node| {
            count += 1;
            if node.acl().guests().next().is_some() {
                mentions.push((path.to_owned_path(), Arc::clone(node.acl())));
            }
        });
        self.node_count -= count;
        for (path, acl) in mentions {
            self.forget(path.as_path(), &acl);
        }
        Some(removed)
    }

    /// Takes a dead domain's rights out of every list that names it. Its own nodes are gone by now.
    pub(crate) fn forget_domain(&mut self, domid: DomId) {
        let Some(mentions) = self.domains.remove(&domid) else { return };
        self.recorder.record(&Record::ForgetDomain { domid });
        assert!(mentions.owned.is_empty(), "domain {domid} still owns nodes");
        for path in mentions.named {
            let path = path.as_path();
            let node = self.tree.get(path).expect("the index names nodes that exist");
            let acl = Arc::new(node.acl().without(domid));
            self.tree.set_acl(path, acl);
        }
    }

    fn index_created(&mut self, path: Path<'_>, created: usize) {
        if created == 0 {
            return;
        }
        self.node_count += created;
        let acl = Arc::clone(self.tree.get(path).expect("created just now").acl());
        if acl.guests().next().is_none() {
            return;
        }
        let created = core::iter::successors(Some(path), |path| path.parent()).take(created);
        for path in created {
            self.mention(path, &acl);
        }
    }

    fn mention(&mut self, path: Path<'_>, acl: &Acl) {
        for (role, being) in acl.guests() {
            let mentions = self.domains.entry(being.domid).or_default();
            match role {
                Role::Owner => mentions.owned.insert(path.to_owned_path()),
                Role::Named => mentions.named.insert(path.to_owned_path()),
            };
        }
    }

    fn forget(&mut self, path: Path<'_>, acl: &Acl) {
        for (role, being) in acl.guests() {
            let Some(mentions) = self.domains.get_mut(&being.domid) else { continue };
            match role {
                Role::Owner => mentions.owned.remove(path.as_str()),
                Role::Named => mentions.named.remove(path.as_str()),
            };
            if mentions.owned.is_empty() && mentions.named.is_empty() {
                self.domains.remove(&being.domid);
            }
        }
    }

    /// Compares counters and index with a walk over the tree.
    ///
    /// # Errors
    /// A sentence about the first difference.
    pub(crate) fn check(&self) -> Result<(), alloc::string::String> {
        let mut recount = Self { tree: self.tree.clone(), node_count: 0, ..Self::new() };
        let mut nodes = Vec::new();
        for_each_bottom_up(self.tree.root(), Path::ROOT, |path, node| {
            nodes.push((path.to_owned_path(), Arc::clone(node.acl())));
        });
        recount.node_count = nodes.len();
        for (path, acl) in nodes {
            recount.mention(path.as_path(), &acl);
        }
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
}
