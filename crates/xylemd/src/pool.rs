//! The pool: those who can carry work out, and threads for work that waits for one.
//!
//! A performer, a connection each to Xen, the store and the host, is what is scarce: whoever has one may
//! work. A hypercall can keep it for long, and destroying a domain does. Because each class of work
//! has performers of its own, a list never waits for either.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use toolstack::WorkId;
use toolstack::perform::Performer;
use toolstack::work::{Work, WorkClass};
use xen::Xen;
use xen_linux::LinuxHypervisor;
use xenstore_socket::StoreSocket;

use crate::Options;
use crate::host::LinuxHost;
use crate::images::Images;
use crate::store;

pub(crate) type Job = (WorkId, Work);
type LinuxPerformer = Performer<LinuxHypervisor, StoreSocket, LinuxHost>;

/// Performers that tear down. More only contend for the hypervisor's heap lock.
const DESTROYERS: usize = 2;
/// Performers that read and list.
const READERS: usize = 2;

pub(crate) struct Pool {
    queries: Queue,
    changes: Queue,
    destroys: Queue,
}

/// Work and performers of one class.
struct Queue {
    class: WorkClass,
    performers: usize,
    state: Mutex<Waiting>,
    /// There is a job and a performer for it.
    matched: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The one that worked last is taken first: what it touches is still at hand.
    idle: Vec<LinuxPerformer>,
}

/// A performer that somebody has taken; it goes back to its queue by itself.
pub(crate) struct Taken<'a> {
    queue: &'a Queue,
    /// Absent only while it goes back.
    performer: Option<LinuxPerformer>,
}

impl Pool {
    pub(crate) fn open(options: &Options, images: &Images) -> Result<Self> {
        let queue = |class, performers: usize, arena| -> Result<Queue> {
            let idle: Result<_> =
                (0..performers).map(|_| performer(options, images, arena)).collect();
            let state = Mutex::new(Waiting { jobs: VecDeque::new(), idle: idle? });
            Ok(Queue { class, performers, state, matched: Condvar::new() })
        };
        Ok(Self {
            queries: queue(WorkClass::Query, READERS, xen::ARENA_BYTES_FULL)?,
            changes: queue(WorkClass::Change, options.workers, xen::ARENA_BYTES_MIN)?,
            destroys: queue(WorkClass::Destroy, DESTROYERS, xen::ARENA_BYTES_MIN)?,
        })
    }

    /// How many threads each class has use for, with a name for them.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (WorkClass, String)> + '_ {
        let named =
            [("query", &self.queries), ("change", &self.changes), ("destroy", &self.destroys)];
        named.into_iter().flat_map(|(name, queue)| {
            (0..queue.performers).map(move |index| (queue.class, format!("{name}-{index}")))
        })
    }

    fn queue(&self, class: WorkClass) -> &Queue {
        match class {
            WorkClass::Query => &self.queries,
            WorkClass::Change => &self.changes,
            WorkClass::Destroy => &self.destroys,
        }
    }

    /// Leaves work to the threads.
    pub(crate) fn submit(&self, job: Job) {
        let queue = self.queue(job.1.class());
        let mut waiting = queue.lock();
        waiting.jobs.push_back(job);
        if !waiting.idle.is_empty() {
            queue.matched.notify_one();
        }
    }

    /// A performer that has nothing else to do, if there is one.
    pub(crate) fn take_idle(&self, class: WorkClass) -> Option<Taken<'_>> {
        let queue = self.queue(class);
        let mut waiting = queue.lock();
        // Those who came first go first.
        let performer = if waiting.jobs.is_empty() { waiting.idle.pop() } else { None };
        Some(Taken { queue, performer: Some(performer?) })
    }

    /// Waits for a job and a performer for it.
    pub(crate) fn next(&self, class: WorkClass) -> (Taken<'_>, Job) {
        let queue = self.queue(class);
        let mut waiting = queue.lock();
        loop {
            if !waiting.jobs.is_empty() && !waiting.idle.is_empty() {
                let job = waiting.jobs.pop_front().expect("just looked");
                return (Taken { queue, performer: waiting.idle.pop() }, job);
            }
            waiting = queue.matched.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    /// A poisoned queue is whole: the lock is held only to put into it and take from it.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken<'_> {
    pub(crate) fn performer(&mut self) -> &mut LinuxPerformer {
        self.performer.as_mut().expect("taken until it is dropped")
    }

    /// Whether this performer may go on with work of `class` after its own: the same, or a query, which
    /// is short.
    pub(crate) fn carries(&self, class: WorkClass) -> bool {
        class == self.queue.class || class == WorkClass::Query
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.idle.extend(self.performer.take());
        if !waiting.jobs.is_empty() {
            self.queue.matched.notify_one();
        }
    }
}

fn performer(options: &Options, images: &Images, arena: usize) -> Result<LinuxPerformer> {
    let hypervisor = LinuxHypervisor::open(arena).context("cannot control Xen")?;
    let xen = Xen::probe(hypervisor).context("cannot control Xen")?;
    let store = store::connect(&options.store_socket)?;
    Ok(Performer { xen, store, host: LinuxHost::open(images.clone())? })
}
