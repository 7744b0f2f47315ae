//! An open transaction in a state stream, so that what it saw still conflicts afterwards.
//!
//! Its two trees are written as differences: the snapshot from the store, its own from the snapshot.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::acl::{Acl, Life};
use crate::path::Path;
use crate::state::{
    Fault, FullPermissions, Layer, Place, Record, Touch, TransactionState, TreeNode,
    TreeNodeContent,
};
use crate::store::Store;
use crate::transaction::{Facets, Transaction};
use crate::tree::{Node, Tree, for_each_difference};

/// Whose nodes they are, as the records name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) connection: u32,
    pub(crate) transaction: u32,
    pub(crate) layer: Layer,
}

/// Appends what leads from one tree to another; `acl_of` says what is written for a list.
pub(crate) fn save_differences(
    out: &mut Vec<u8>,
    owner: Owner,
    base: &Tree,
    other: &Tree,
    acl_of: impl Fn(&Arc<Acl>) -> Arc<Acl>,
) {
    let mut list = Vec::new();
    for_each_difference(base, other, |path, node| {
        list.clear();
        let content = node.map(|node| {
            push_acl(&mut list, &acl_of(node.acl()));
            content(node, &list)
        });
        let Owner { connection, transaction, layer } = owner;
        let path = path.as_str().as_bytes();
        Record::TreeNode(TreeNode { connection, transaction, layer, path, content }).encode(out);
    });
}

fn content<'a>(node: &'a Node, list: &'a [u8]) -> TreeNodeContent<'a> {
    TreeNodeContent {
        place: Place { children: node.child_list(), sequence: node.sequence() },
        permissions: FullPermissions::new(list),
        value: node.value(),
    }
}

fn push_acl(list: &mut Vec<u8>, acl: &Acl) {
    for entry in acl.entries() {
        FullPermissions::push(list, entry.permission, entry.life.map(|Life(life)| life));
    }
}

impl Transaction {
    /// Appends everything about this transaction.
    pub(crate) fn save(&self, out: &mut Vec<u8>, connection: u32, number: u32, store: &Store) {
        let own = self.settled_tree();
        let state = TransactionState {
            connection,
            transaction: number,
            next_order: self.next_order,
            failed: self.failed,
            outdated: self.outdated,
            owned_delta: self.owned_delta as i64,
            snapshot_generation: self.snapshot.generation(),
            own_generation: own.generation(),
        };
        Record::TransactionState(state).encode(out);
        let owner = |layer| Owner { connection, transaction: number, layer };
        save_differences(out, owner(Layer::Snapshot), store.tree(), &self.snapshot, Arc::clone);
        save_differences(out, owner(Layer::Own), &self.snapshot, &own, Arc::clone);
        let mut list = Vec::new();
        for (path, touch) in &self.touched {
            list.clear();
            if let Some(acl) = &touch.acl_before {
                push_acl(&mut list, acl);
            }
            Record::Touch(Touch {
                connection,
                transaction: number,
                order: touch.order,
                seen: touch.seen.0,
                set: touch.set.0,
                removed: touch.removed,
                fires: touch.fires,
                value_bytes: u16::try_from(touch.value_bytes).expect("less than a message"),
                acl_before: touch.acl_before.as_ref().map(|_| FullPermissions::new(&list)),
                path: path.as_path().as_str().as_bytes(),
            })
            .encode(out);
        }
    }

    /// Begins to restore a transaction on the restored store.
    pub(crate) fn restore(state: &TransactionState, store: &Store) -> Self {
        let mut transaction = Self::new(store);
        transaction.next_order = state.next_order;
        transaction.failed = state.failed;
        transaction.outdated = state.outdated;
        transaction.owned_delta = isize::try_from(state.owned_delta).unwrap_or(0);
        transaction.snapshot.continue_generations(state.snapshot_generation);
        transaction
    }

    /// The snapshot, while its differences come in.
    pub(crate) fn snapshot_mut(&mut self) -> &mut Tree {
        &mut self.snapshot
    }

    /// The snapshot is complete: what comes now are the transaction's own changes.
    pub(crate) fn begin_own_tree(&mut self, state: &TransactionState) {
        self.partial = self.snapshot.private_copy();
        self.partial.continue_generations(state.own_generation);
    }

    /// The transaction's own tree, while its differences come in.
    pub(crate) fn own_mut(&mut self) -> &mut Tree {
        &mut self.partial
    }

    /// Notes what was seen and done with one path.
    pub(crate) fn restore_touch(
        &mut self,
        path: Path<'_>,
        touch: &Touch<'_>,
        acl_before: Option<Arc<Acl>>,
    ) -> Result<(), Fault> {
        let facets = |bits: u8| {
            let is_known = bits & !Facets::KNOWN == 0;
            if is_known { Ok(Facets(bits)) } else { Err("a facet that no node has") }
        };
        let restored = super::Touch {
            seen: facets(touch.seen)?,
            set: facets(touch.set)?,
            removed: touch.removed,
            order: touch.order,
            fires: touch.fires,
            acl_before,
            value_bytes: usize::from(touch.value_bytes),
            delayed: None,
        };
        self.removes |= touch.removed;
        self.touched_bytes += Self::held_bytes_of(path, restored.value_bytes);
        let known = self.touched.insert(path.to_owned_path(), restored);
        if known.is_some() { Err("a transaction touched a path twice".into()) } else { Ok(()) }
    }
}
