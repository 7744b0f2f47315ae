//! Removed nodes are freed between requests, so that freeing a large subtree does not delay anyone.

use alloc::boxed::Box;

use crate::server::Server;
use crate::transaction::Transaction;

/// Pieces freed with each piece of input, for shells that are never idle.
pub(super) const PIECES_WITH_INPUT: usize = 32;

impl Server {
    /// Whether there is nothing to [`clear_up`](Self::clear_up).
    #[must_use]
    pub fn is_cleared_up(&self) -> bool {
        self.store.is_cleared_up()
    }

    /// Frees this many pieces of removed data, a node or a block of nodes each, and updates the
    /// counts. Call it between requests until [done](Self::is_cleared_up).
    pub fn clear_up(&mut self, pieces: usize) {
        self.store.clear_up(pieces);
    }

    /// Drops transactions. Each may hold the last reference to a large subtree.
    pub(super) fn discard(&mut self, transactions: impl IntoIterator<Item = Box<Transaction>>) {
        for tree in transactions.into_iter().flat_map(|open| open.into_trees()) {
            self.store.discard(tree);
        }
    }
}
