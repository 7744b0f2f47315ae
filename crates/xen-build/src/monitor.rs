//! [`Monitor`]: how far a build is, and whether it goes on.

use core::ops::ControlFlow;

/// Watches a build. Memory is what takes time: a domain of 100 GiB needs some ten seconds of it.
pub trait Monitor {
    /// The domain has `pages` of its `total`; more follow if this returns `Continue`.
    fn allocated(&mut self, pages: u64, total: u64) -> ControlFlow<()>;
}

/// Nobody watches.
impl Monitor for () {
    fn allocated(&mut self, _pages: u64, _total: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
