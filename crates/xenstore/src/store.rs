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
use crate::tree::{Node, Tree, for_each_bottom_up, held_bytes};

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
    /// What the owned nodes take.
    owned_bytes: usize,
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

    /// Bytes that the nodes which the guest owns take.
    pub(crate) fn owned_bytes(&self, domid: DomId) -> usize {
        self.domains.get(&domid).map_or(0, |mentions| mentions.owned_bytes)
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
        let written = self.tree.write(path, creator, value);
        if written.created > 0 {
            return self.index_created(path, written.created);
        }
        if let Some(mentions) = self.domains.get_mut(&written.owner.permission.domid)
            && written.owner.life.is_some()
        {
            mentions.owned_bytes = mentions.owned_bytes + value.len() - written.value_bytes_before;
        }
    }

    /// Replaces the permission list and returns the old one; `None` if there is no such node.
    pub(crate) fn set_acl(&mut self, path: Path<'_>, acl: &Arc<Acl>) -> Option<Arc<Acl>> {
        let old = self.tree.set_acl(path, Arc::clone(acl))?;
        if self.recorder.is_on() {
            self.recorder.record(&Record::SetAcl { path, acl: &encode_acl(acl) });
        }
        self.index_replaced(path, &old, acl);
        Some(old)
    }

    /// Takes the node with all below it out of the tree.
    pub(crate) fn remove(&mut self, path: Path<'_>) -> Option<Arc<Node>> {
        let removed = self.tree.remove(path)?;
        self.recorder.record(&Record::Remove { path });
        let mut count = 0;
        for_each_bottom_up(&removed, path, |path, node| {
            count += 1;
            self.forget(path, node.acl(), node.held_bytes(path.as_str().len()));
        });
        self.node_count -= count;
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
            if let Some(old) = self.tree.set_acl(path, Arc::clone(&acl)) {
                self.index_replaced(path, &old, &acl);
            }
        }
    }

    fn index_replaced(&mut self, path: Path<'_>, old: &Acl, new: &Acl) {
        let value_bytes = self.tree.get(path).map_or(0, |node| node.value().len());
        let path_bytes = path.as_str().len();
        self.forget(path, old, held_bytes(path_bytes, value_bytes, old));
        self.mention(path, new, held_bytes(path_bytes, value_bytes, new));
    }

    fn index_created(&mut self, path: Path<'_>, created: usize) {
        if created == 0 {
            return;
        }
        self.node_count += created;
        let node = self.tree.get(path).expect("created just now");
        let (acl, mut value_bytes) = (Arc::clone(node.acl()), node.value().len());
        if acl.guests().next().is_none() {
            return;
        }
        let created = core::iter::successors(Some(path), |path| path.parent()).take(created);
        for path in created {
            self.mention(path, &acl, held_bytes(path.as_str().len(), value_bytes, &acl));
            // Those above it were created empty.
            value_bytes = 0;
        }
    }

    /// Notes who owns the node or is named for it, and what its owner is charged.
    fn mention(&mut self, path: Path<'_>, acl: &Acl, bytes: usize) {
        for (role, being) in acl.guests() {
            let mentions = self.domains.entry(being.domid).or_default();
            match role {
                Role::Owner => {
                    mentions.owned_bytes += bytes;
                    mentions.owned.insert(path.to_owned_path())
                }
                Role::Named => mentions.named.insert(path.to_owned_path()),
            };
        }
    }

    fn forget(&mut self, path: Path<'_>, acl: &Acl, bytes: usize) {
        for (role, being) in acl.guests() {
            let Some(mentions) = self.domains.get_mut(&being.domid) else { continue };
            match role {
                Role::Owner => {
                    mentions.owned_bytes -= bytes;
                    mentions.owned.remove(path.as_str())
                }
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
            nodes.push((path.to_owned_path(), node));
        });
        recount.node_count = nodes.len();
        for (path, node) in nodes {
            let path = path.as_path();
            recount.mention(path, node.acl(), node.held_bytes(path.as_str().len()));
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
