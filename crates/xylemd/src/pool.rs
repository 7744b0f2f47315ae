//! The pool: performers, and threads for queued work.
//!
//! Performers (a connection each to Xen, the store and the host) are the scarce resource. A
//! hypercall can occupy one for long, and destroying a domain does. Because each class of work has
//! its own performers, a list never waits for those.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use storage_host::LinuxSystem;
use toolstack::WorkId;
use toolstack::perform::Performer;
use toolstack::scheduler::{MEMORY_COPIES, SCRIPTS};
use toolstack::work::{Work, WorkClass};
use xen::{Latencies, Xen};
use xen_linux::LinuxHypervisor;
use xenstore_socket::StoreSocket;

use crate::Options;
use crate::channels::Channels;
use crate::host::{Dom0, LinuxHost};
use crate::images::Images;
use crate::store;

/// Work, and when it was dispatched.
pub(crate) type Job = (WorkId, Work, Instant);
pub(crate) type LinuxPerformer = Performer<LinuxHypervisor, StoreSocket, LinuxHost>;

/// Performers that destroy domains. More would only contend for Xen's heap lock.
const DESTROYERS: usize = 2;
/// Performers that read and list.
const READERS: usize = 2;

/// Performers that read what SRs hold. Each SR that hangs keeps one.
const SCANNERS: usize = 8;

/// Queues of performers `P`.
pub(crate) struct Pool<P> {
    queries: Queue<P>,
    loads: Queue<P>,
    attaches: Queue<P>,
    changes: Queue<P>,
    suspends: Queue<P>,
    memories: Queue<P>,
    sends: Queue<P>,
    receives: Queue<P>,
    talks: Queue<P>,
    listens: Queue<P>,
    scripts: Queue<P>,
    scans: Queue<P>,
    destroys: Queue<P>,
    releases: Queue<P>,
}

/// Work and performers of one class.
struct Queue<P> {
    class: WorkClass,
    performers: usize,
    state: Mutex<Waiting<P>>,
    /// There is a job and a performer for it.
    matched: Condvar,
}

struct Waiting<P> {
    /// With the time since when it waits.
    jobs: VecDeque<(Job, Instant)>,
    /// The one that worked last is taken first, for warm caches.
    idle: Vec<P>,
    jobs_most: usize,
    waited: Latencies,
}

/// Statistics of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueState {
    pub(crate) name: &'static str,
    pub(crate) performers: usize,
    /// Busy performers.
    pub(crate) busy: usize,
    /// Jobs that wait for one.
    pub(crate) depth: usize,
    /// Maximum depth.
    pub(crate) depth_max: usize,
    /// Waiting times of jobs that had to wait.
    pub(crate) waited: Latencies,
}

/// A taken performer; it returns to its queue when dropped.
pub(crate) struct Taken<'a, P> {
    queue: &'a Queue<P>,
    /// Absent only while it is returned.
    performer: Option<P>,
}

impl Pool<LinuxPerformer> {
    pub(crate) fn open(
        options: &Options,
        images: &Images,
        system: &LinuxSystem,
        channels: &Channels,
        dom0: &Dom0,
    ) -> Result<Self> {
        let queue = |class, performers: usize, arena| -> Result<_> {
            let idle: Result<_> = (0..performers)
                .map(|_| performer(options, images, (system, channels, dom0), arena))
                .collect();
            Ok(Queue::new(class, idle?))
        };
        Ok(Self {
            queries: queue(WorkClass::Query, READERS, xen::ARENA_BYTES_FULL)?,
            // As many as the scheduler permits, so that hanging ones do not block others.
            loads: queue(WorkClass::Load, options.workers, xen::ARENA_BYTES_MIN)?,
            attaches: queue(WorkClass::Attach, options.workers, xen::ARENA_BYTES_MIN)?,
            changes: queue(WorkClass::Change, options.workers, xen::ARENA_BYTES_MIN)?,
            // Guests may never suspend.
            suspends: queue(WorkClass::Suspend, options.workers, xen::ARENA_BYTES_MIN)?,
            // Of memory, as many as the scheduler permits by default.
            memories: queue(WorkClass::Memory, MEMORY_COPIES, xen::ARENA_BYTES_FULL)?,
            sends: queue(WorkClass::Send, MEMORY_COPIES, xen::ARENA_BYTES_FULL)?,
            receives: queue(WorkClass::Receive, MEMORY_COPIES, xen::ARENA_BYTES_FULL)?,
            // A few for each move.
            talks: queue(WorkClass::Talk, 4 * MEMORY_COPIES, xen::ARENA_BYTES_MIN)?,
            listens: queue(WorkClass::Listen, 4 * MEMORY_COPIES, xen::ARENA_BYTES_MIN)?,
            // Those that connect devices, and those that disconnect them.
            scripts: queue(WorkClass::Script, 2 * SCRIPTS, xen::ARENA_BYTES_MIN)?,
            scans: queue(WorkClass::Scan, SCANNERS, xen::ARENA_BYTES_MIN)?,
            destroys: queue(WorkClass::Destroy, DESTROYERS, xen::ARENA_BYTES_MIN)?,
            // Likewise.
            releases: queue(WorkClass::Release, options.workers, xen::ARENA_BYTES_MIN)?,
        })
    }
}

impl<P> Pool<P> {
    fn named(&self) -> [(&'static str, &Queue<P>); 14] {
        [
            ("query", &self.queries),
            ("load", &self.loads),
            ("attach", &self.attaches),
            ("change", &self.changes),
            ("suspend", &self.suspends),
            ("memory", &self.memories),
            ("send", &self.sends),
            ("receive", &self.receives),
            ("talk", &self.talks),
            ("listen", &self.listens),
            ("script", &self.scripts),
            ("scan", &self.scans),
            ("destroy", &self.destroys),
            ("release", &self.releases),
        ]
    }

    /// Number of threads for each class, with a name.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (WorkClass, String)> + '_ {
        self.named().into_iter().flat_map(|(name, queue)| {
            (0..queue.performers).map(move |index| (queue.class, format!("{name}-{index}")))
        })
    }

    /// Statistics of the queues.
    pub(crate) fn states(&self) -> impl Iterator<Item = QueueState> + '_ {
        self.named().into_iter().map(|(name, queue)| {
            let waiting = queue.lock();
            QueueState {
                name,
                performers: queue.performers,
                busy: queue.performers - waiting.idle.len(),
                depth: waiting.jobs.len(),
                depth_max: waiting.jobs_most,
                waited: waiting.waited,
            }
        })
    }

    fn queue(&self, class: WorkClass) -> &Queue<P> {
        match class {
            WorkClass::Query => &self.queries,
            WorkClass::Load => &self.loads,
            WorkClass::Attach => &self.attaches,
            WorkClass::Change => &self.changes,
            WorkClass::Suspend => &self.suspends,
            WorkClass::Memory => &self.memories,
            WorkClass::Send => &self.sends,
            WorkClass::Receive => &self.receives,
            WorkClass::Talk => &self.talks,
            WorkClass::Listen => &self.listens,
            WorkClass::Script => &self.scripts,
            WorkClass::Scan => &self.scans,
            WorkClass::Destroy => &self.destroys,
            WorkClass::Release => &self.releases,
        }
    }

    /// Queues work for the threads.
    pub(crate) fn submit(&self, job: Job) {
        let queue = self.queue(job.1.class());
        let mut waiting = queue.lock();
        waiting.jobs.push_back((job, Instant::now()));
        waiting.jobs_most = waiting.jobs_most.max(waiting.jobs.len());
        if !waiting.idle.is_empty() {
            queue.matched.notify_one();
        }
    }

    /// Withdraws work that has not begun. Returns whether there was any.
    pub(crate) fn withdraw(&self, work: WorkId) -> bool {
        self.named().into_iter().any(|(_, queue)| {
            let jobs = &mut queue.lock().jobs;
            let at = jobs.iter().position(|((id, ..), _)| *id == work);
            at.and_then(|at| jobs.remove(at)).is_some()
        })
    }

    /// An idle performer, if there is one.
    pub(crate) fn take_idle(&self, class: WorkClass) -> Option<Taken<'_, P>> {
        let queue = self.queue(class);
        let mut waiting = queue.lock();
        // First come, first served.
        let performer = if waiting.jobs.is_empty() { waiting.idle.pop() } else { None };
        Some(Taken { queue, performer: Some(performer?) })
    }

    /// Waits for a job and a performer for it.
    pub(crate) fn next(&self, class: WorkClass) -> (Taken<'_, P>, Job) {
        let queue = self.queue(class);
        let mut waiting = queue.lock();
        loop {
            if !waiting.jobs.is_empty() && !waiting.idle.is_empty() {
                let (job, since) = waiting.jobs.pop_front().expect("just looked");
                let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                waiting.waited.record(waited);
                return (Taken { queue, performer: waiting.idle.pop() }, job);
            }
            waiting = queue.matched.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<P> Queue<P> {
    fn new(class: WorkClass, idle: Vec<P>) -> Self {
        let performers = idle.len();
        let waiting =
            Waiting { jobs: VecDeque::new(), idle, jobs_most: 0, waited: Latencies::default() };
        Self { class, performers, state: Mutex::new(waiting), matched: Condvar::new() }
    }

    /// A poisoned queue is consistent: the lock is held only to put and take.
    fn lock(&self) -> MutexGuard<'_, Waiting<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Taken<'_, P> {
    pub(crate) fn performer(&mut self) -> &mut P {
        self.performer.as_mut().expect("taken until it is dropped")
    }

    /// Whether this performer may continue with work of `class`: the same class; a query, which is
    /// short; or the rest of a start after a load or an attach. Not the other way round: slow work
    /// stays in its own class.
    pub(crate) fn carries(&self, class: WorkClass) -> bool {
        match class {
            WorkClass::Query => true,
            WorkClass::Change => {
                matches!(
                    self.queue.class,
                    WorkClass::Change | WorkClass::Load | WorkClass::Attach | WorkClass::Memory
                )
            }
            WorkClass::Load
            | WorkClass::Attach
            | WorkClass::Suspend
            | WorkClass::Memory
            | WorkClass::Send
            | WorkClass::Receive
            | WorkClass::Talk
            | WorkClass::Listen
            | WorkClass::Script
            | WorkClass::Scan
            | WorkClass::Destroy
            | WorkClass::Release => class == self.queue.class,
        }
    }
}

impl<P> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.idle.extend(self.performer.take());
        if !waiting.jobs.is_empty() {
            self.queue.matched.notify_one();
        }
    }
}

fn performer(
    options: &Options,
    images: &Images,
    (system, channels, dom0): (&LinuxSystem, &Channels, &Dom0),
    arena: usize,
) -> Result<LinuxPerformer> {
    let hypervisor = LinuxHypervisor::open(arena).context("cannot control Xen")?;
    let xen = Xen::probe(hypervisor).context("cannot control Xen")?;
    let store = store::connect(&options.store_socket)?;
    let files = [options.definitions(), options.transfers()];
    let host =
        LinuxHost::open(images.clone(), system.clone(), files, channels.clone(), dom0.clone())?;
    Ok(Performer { xen, store, host })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use toolstack::work::{AdoptionWork, CreateWork, QueryWork, TeardownWork};

    fn pool() -> Pool<&'static str> {
        Pool {
            queries: Queue::new(WorkClass::Query, vec!["reader"]),
            loads: Queue::new(WorkClass::Load, vec!["loader"]),
            attaches: Queue::new(WorkClass::Attach, vec!["attacher"]),
            changes: Queue::new(WorkClass::Change, vec!["maker"]),
            suspends: Queue::new(WorkClass::Suspend, vec!["suspender"]),
            memories: Queue::new(WorkClass::Memory, vec!["copier"]),
            sends: Queue::new(WorkClass::Send, vec!["sender"]),
            receives: Queue::new(WorkClass::Receive, vec!["receiver"]),
            talks: Queue::new(WorkClass::Talk, vec!["talker"]),
            listens: Queue::new(WorkClass::Listen, vec!["listener"]),
            scripts: Queue::new(WorkClass::Script, vec!["connector"]),
            scans: Queue::new(WorkClass::Scan, vec!["scanner"]),
            destroys: Queue::new(WorkClass::Destroy, vec!["one", "two"]),
            releases: Queue::new(WorkClass::Release, vec!["three"]),
        }
    }

    fn list(id: u64) -> Job {
        (WorkId(id), Work::Query(QueryWork::HostInfo), Instant::now())
    }

    fn destroy(id: u64) -> Job {
        let domid = xen::DomId(7);
        let life = xen::Life::Unique(1);
        let domain = xen::DomainRef { domid, life };
        (WorkId(id), Work::Teardown(TeardownWork::DestroyDomain { domain }), Instant::now())
    }

    fn detach(id: u64) -> Job {
        (
            WorkId(id),
            Work::Adoption(AdoptionWork::DetachOrphans { orphans: Vec::new() }),
            Instant::now(),
        )
    }

    #[test]
    fn storage_that_hangs_delays_no_destroy() {
        let pool = pool();
        (0..3).for_each(|id| pool.submit(detach(id)));
        let stuck = pool.next(WorkClass::Release);
        assert!(pool.take_idle(WorkClass::Release).is_none());
        pool.submit(destroy(10));
        assert_eq!(pool.next(WorkClass::Destroy).1.0, WorkId(10));
        drop(stuck);
        assert_eq!(pool.next(WorkClass::Release).1.0, WorkId(1));
    }

    #[test]
    fn a_kernel_that_is_slow_to_load_delays_nothing_but_loads_and_a_start_stays_with_its_loader() {
        let pool = pool();
        let mut loader = pool.take_idle(WorkClass::Load).unwrap();
        assert_eq!(*loader.performer(), "loader");
        assert!(pool.take_idle(WorkClass::Load).is_none());
        let carried = |taken: &Taken<'_, _>| {
            [WorkClass::Load, WorkClass::Attach, WorkClass::Change].map(|it| taken.carries(it))
        };
        assert_eq!(carried(&loader), [true, false, true]);
        let maker = pool.take_idle(WorkClass::Change).unwrap();
        assert_eq!(carried(&maker), [false, false, true]);
        assert_eq!(carried(&pool.take_idle(WorkClass::Attach).unwrap()), [false, true, true]);
    }

    #[test]
    fn work_is_withdrawn_as_long_as_nobody_has_begun_it() {
        let pool = pool();
        (0..3).for_each(|id| pool.submit(detach(id)));
        let _begun = pool.next(WorkClass::Release);
        assert_eq!([0, 1, 1, 7].map(|id| pool.withdraw(WorkId(id))), [false, true, false, false]);
        let depth = pool.states().find(|it| it.name == "release").unwrap().depth;
        assert_eq!(depth, 1);
    }

    #[test]
    fn a_destroy_that_never_ends_delays_no_list() {
        let pool = pool();
        (0..100).for_each(|id| pool.submit(destroy(id)));
        // Both destroyers are busy forever.
        let stuck = [pool.next(WorkClass::Destroy), pool.next(WorkClass::Destroy)];
        let told: Vec<_> = pool.states().map(|it| (it.name, it.busy, it.depth)).collect();
        let others_idle = [
            ("query", 0, 0),
            ("load", 0, 0),
            ("attach", 0, 0),
            ("change", 0, 0),
            ("suspend", 0, 0),
            ("memory", 0, 0),
            ("send", 0, 0),
            ("receive", 0, 0),
            ("talk", 0, 0),
            ("listen", 0, 0),
            ("script", 0, 0),
            ("scan", 0, 0),
            ("destroy", 2, 98),
            ("release", 0, 0),
        ];
        assert_eq!(told, others_idle);
        assert!(pool.take_idle(WorkClass::Destroy).is_none());
        // A client performs its list itself, and so does a thread of the pool.
        assert_eq!(*pool.take_idle(WorkClass::Query).unwrap().performer(), "reader");
        pool.submit(list(1000));
        assert_eq!(pool.next(WorkClass::Query).1.0, WorkId(1000));
        drop(stuck);
        assert_eq!(pool.next(WorkClass::Destroy).1.0, WorkId(2));
    }

    #[test]
    fn jobs_are_served_in_order_of_arrival() {
        let pool = pool();
        let taken = pool.take_idle(WorkClass::Query).unwrap();
        assert!(pool.take_idle(WorkClass::Query).is_none());
        pool.submit(list(1));
        pool.submit(list(2));
        drop(taken);
        // The performer is idle, and others wait for it.
        assert!(pool.take_idle(WorkClass::Query).is_none());
        assert_eq!(pool.next(WorkClass::Query).1.0, WorkId(1));
        assert_eq!(pool.next(WorkClass::Query).1.0, WorkId(2));
        let state = pool.states().next().unwrap();
        assert_eq!((state.depth, state.depth_max, state.waited.count), (0, 2, 2));
    }

    #[test]
    fn a_thread_without_work_is_woken_by_it() {
        let pool = pool();
        let (told, hears) = mpsc::channel();
        std::thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || told.send(pool.next(WorkClass::Change).1.0).unwrap());
            let work =
                Work::Create(CreateWork::Record { nodes: toolstack::layout::Nodes::default() });
            pool.submit((WorkId(7), work, Instant::now()));
            assert_eq!(hears.recv(), Ok(WorkId(7)));
        });
    }
}
