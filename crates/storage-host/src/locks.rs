//! Locks by name, for the threads of one daemon.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Locks(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    held: Mutex<BTreeSet<String>>,
    released: Condvar,
}

/// A held lock.
#[derive(Debug)]
pub(crate) struct Held {
    table: Arc<Table>,
    name: String,
}

impl Table {
    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // The set is always consistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    /// Waits for the lock `name`; `None` after a timeout of `time`.
    pub(crate) fn lock(&self, name: &str, time: Duration) -> Option<Held> {
        let held = self.0.held();
        let waited = self.0.released.wait_timeout_while(held, time, |held| held.contains(name));
        let (mut held, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        held.insert(name.to_owned());
        Some(Held { table: Arc::clone(&self.0), name: name.to_owned() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.table.held().remove(&self.name);
        self.table.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_waited_for_by_others() {
        let locks = Locks::default();
        let first = locks.lock("a", Duration::ZERO).unwrap();
        assert!(locks.lock("a", Duration::from_millis(1)).is_none());
        let _other = locks.lock("b", Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| locks.lock("a", Duration::from_secs(600)).is_some());
            drop(first);
            assert!(waiting.join().unwrap());
        });
        assert!(locks.lock("a", Duration::ZERO).is_some());
    }
}
