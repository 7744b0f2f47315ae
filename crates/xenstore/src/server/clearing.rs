//! What was removed is freed between requests, so that nobody waits for the end of a large subtree.

use alloc::boxed::Box;

use crate::server::Server;
use crate::transaction::Transaction;

/// Pieces that are cleared up with each piece of input, for shells that never find the time.
pub(super) const PIECES_WITH_INPUT: usize = 32;

impl Server {
    /// Whether nothing of what was removed waits for [`clear_up`](Self::clear_up).
    #[must_use]
    pub fn is_cleared_up(&self) -> bool {
        self.store.is_cleared_up()
    }

    /// Frees so many pieces of what was removed, a node or a block of nodes each, and takes them out of
    /// the counts. Call it between requests, as long as there is something [left](Self::is_cleared_up).
    pub fn clear_up(&mut self, pieces: usize) {
        self.store.clear_up(pieces);
    }

    /// Drops transactions. Each may be the last to know a large subtree.
    pub(super) fn discard(&mut self, transactions: impl IntoIterator<Item = Box<Transaction>>) {
        for tree in transactions.into_iter().flat_map(|open| open.into_trees()) {
            self.store.discard(tree);
        }
    }
}
