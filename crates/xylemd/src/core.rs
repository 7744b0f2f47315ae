//! The core: the machine behind a lock, and execution of its actions.
//!
//! A thread with an event (a client, a worker or the watches) takes the lock, lets the machine
//! decide and dispatches its actions, which is fast. One of the resulting works may stay with this
//! thread: a create goes from step to step on one thread, without context switches.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use local_door::{Answered, Waiting};
use service::{Ask, Gone, News};
use toolstack::around::{LOOKS_EVERY_NS, READINGS_EVERY_NS};
use toolstack::config::OnHostShutdown;
use toolstack::moves::TransferFile;
use toolstack::scheduler::Limits;
use toolstack::work::{Cost, Failure, Far, Flow, Part, WorkClass, WorkMonitor};
use toolstack::{
    Action, Begin, Census, ClientId, DefinitionFile, Event, Instant, Reply, Toolstack, WorkId,
};

use crate::channels::Channels;
use crate::definitions::Definitions;
use crate::models::Follow;
use crate::pool::{Job, LinuxPerformer, Pool, Taken};
use crate::stats::{Ending, Stats, Took};
use crate::watch::Orders;

/// Least time between two reports of the same work.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// Shorter times are the latency of a worker, not queueing.
const QUEUED_MIN: Duration = Duration::from_micros(50);

pub(crate) struct Core {
    begin: std::time::Instant,
    /// The same in milliseconds since 1970.
    begin_unix_ms: u64,
    state: Mutex<State>,
    /// Work in progress that is to end early. Entries are added and removed while `state` is locked.
    interrupted: Mutex<BTreeSet<WorkId>>,
    pool: Pool<LinuxPerformer>,
    orders: Orders,
    follow: Follow,
    channels: Channels,
    stats: Mutex<Stats>,
}

#[derive(Default)]
struct State {
    machine: Toolstack,
    clients: BTreeMap<ClientId, Waiting>,
    next_client: u64,
    totals: Cost,
    /// Empty between events; kept for its capacity.
    actions: Vec<Action>,
}

impl State {
    fn tell(&self, client: ClientId, news: News) {
        if let Some(waiting) = self.clients.get(&client) {
            waiting.tell(news);
        }
    }
}

impl Core {
    pub(crate) fn new(
        pool: Pool<LinuxPerformer>,
        (orders, follow, channels): (Orders, Follow, Channels),
        (definitions, transfers): (&Definitions, &Definitions),
        srs: Vec<String>,
    ) -> Result<Self> {
        let begin = std::time::Instant::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(unix.as_micros()).unwrap_or(u64::MAX);
        let mut machine = Toolstack::beginning(Begin {
            // There is less than one change per microsecond, so a later daemon does not reuse
            // revisions.
            revision: micros,
            definitions: definitions.load()?,
            boot: definitions.boot(),
            transfers: transfers.load()?.into_iter().filter_map(readable).collect(),
            srs,
        });
        machine.set_looks_every(LOOKS_EVERY_NS);
        machine.set_readings_every(READINGS_EVERY_NS);
        let state = Mutex::new(State { machine, ..State::default() });
        let begin_unix_ms = micros / 1000;
        let (interrupted, stats) = (Mutex::default(), Mutex::default());
        Ok(Self { begin, begin_unix_ms, state, interrupted, pool, orders, follow, channels, stats })
    }

    /// A machine time in milliseconds since 1970.
    pub(crate) fn unix_ms(&self, at: Instant) -> u64 {
        self.begin_unix_ms + at.0 / 1_000_000
    }

    /// Sets the limits of concurrent steps: as many as there are performers, of which no single
    /// storage gets all.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.lock().machine.set_limits(Limits::for_workers(workers));
    }

    pub(crate) fn set_on_host_shutdown(&self, action: OnHostShutdown) {
        self.lock().machine.set_on_host_shutdown(action);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A failed assertion in the machine must stop the daemon.
        self.state.lock().expect("no thread has failed while it held the machine")
    }

    /// Time since the daemon's start. Read under the lock, so that the machine's time is monotonic.
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Handles an event without a waiting client.
    pub(crate) fn happened(&self, event: Event) {
        self.handle(&mut self.lock(), event, |_| false);
    }

    /// Time until the machine's next wakeup.
    pub(crate) fn until_wakeup(&self) -> Option<Duration> {
        let state = self.lock();
        let due = state.machine.next_wakeup()?;
        Some(Duration::from_nanos(due.0.saturating_sub(self.now().0)))
    }

    /// Total cost of all work since the start.
    pub(crate) fn totals(&self) -> Cost {
        self.lock().totals.clone()
    }

    /// Activity so far, with timings.
    pub(crate) fn activity(&self) -> api::Activity {
        self.stats().activity(self.begin.elapsed().as_secs(), self.pool.states())
    }

    /// The same for Prometheus.
    pub(crate) fn metrics(&self) -> String {
        self.stats().metrics(self.pool.states())
    }

    /// For the service manager: what an operator sees of the daemon at a glance.
    pub(crate) fn status(&self) -> String {
        let Census { running, operations } = self.lock().machine.census();
        format!("STATUS={running} VMs have a domain, {operations} operations are under way\n")
    }

    /// Sends the watcher round.
    pub(crate) fn wake(&self) {
        self.orders.wake();
    }

    fn interrupted(&self) -> MutexGuard<'_, BTreeSet<WorkId>> {
        // Every change of it is a single call.
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MutexGuard<'_, Stats> {
        // Statistics remain useful after a panic.
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a request. The resulting work is done by other threads.
    pub(crate) fn begin(&self, ask: Ask) -> Receiver<Answered> {
        let (answers, answered) = mpsc::channel();
        self.put(ask, answers, |_| false);
        answered
    }

    /// Puts a request in and waits for the reply. What follows from it is done here, as far as a performer is
    /// idle. `hear` is told what comes before the reply, and may give up.
    pub(crate) fn ask(
        &self,
        ask: Ask,
        hear: &mut dyn FnMut(News) -> std::result::Result<(), Gone>,
    ) -> std::result::Result<Reply, Gone> {
        let (answers, answered) = mpsc::channel();
        let job = self.put(ask, answers, |_| true);
        let mut reply = None;
        if let Some(job) = job {
            match self.pool.take_idle(job.1.class()) {
                None => self.pool.submit(job),
                Some(mut taken) => self.carry(&mut taken, job, || {
                    for answer in answered.try_iter() {
                        match answer {
                            Answered::News(news) => {
                                // A disconnected client is noticed at the reply.
                                let _gone = hear(news);
                            }
                            Answered::Reply(last) => reply = Some(last),
                        }
                    }
                    // The client does not wait for work after its reply.
                    if reply.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }),
            }
        }
        reply.map_or_else(|| local_door::reply(&answered, hear), Ok)
    }

    /// Does work from the pool, forever.
    pub(crate) fn work(&self, class: WorkClass) {
        loop {
            let (mut taken, job) = self.pool.next(class);
            self.carry(&mut taken, job, || ControlFlow::Continue(()));
        }
    }

    /// Performs work and resulting work, while it is for the same performer and `between` allows.
    fn carry(
        &self,
        taken: &mut Taken<'_, LinuxPerformer>,
        job: Job,
        mut between: impl FnMut() -> ControlFlow<()>,
    ) {
        let mut next = Some(job);
        while let Some((work, what, given_out)) = next.take() {
            let (name, began, cpu) = (what.name(), self.now(), thread_cpu_ns());
            let queued = given_out.elapsed();
            let mut monitor = Monitor { core: self, work, told: given_out, between: &mut between };
            let (result, mut cost) = taken.performer().perform(what, &mut monitor);
            if queued > QUEUED_MIN {
                cost.queued_ns = u64::try_from(queued.as_nanos()).unwrap_or(u64::MAX);
            }
            let took = Took {
                ns: self.now().0.saturating_sub(began.0),
                cpu_ns: thread_cpu_ns().saturating_sub(cpu),
            };
            let ending = if result.is_ok() { Ending::Done } else { Ending::Failed };
            self.stats().record(name, took, ending, taken.performer().xen.counters());
            let mut state = self.lock();
            self.interrupted().remove(&work);
            state.totals.add(&cost);
            let event = Event::Worked { work, result, cost };
            next = self.handle(&mut state, event, |class| taken.carries(class));
            drop(state);
            if between().is_break() {
                next.take().into_iter().for_each(|job| self.pool.submit(job));
            }
        }
    }

    fn put(
        &self,
        Ask { asker, request, progress }: Ask,
        answers: Sender<Answered>,
        may_stay: impl Fn(WorkClass) -> bool,
    ) -> Option<Job> {
        let mut state = self.lock();
        let client = ClientId(state.next_client);
        state.next_client += 1;
        if let Some(asker) = asker {
            state.machine.introduce(client, asker);
        }
        state.clients.insert(client, Waiting { answers, progress });
        self.handle(&mut state, Event::Request { client, request }, may_stay)
    }

    /// Handles one event and dispatches all actions, except the first work that may stay with the
    /// caller.
    fn handle(
        &self,
        state: &mut State,
        event: Event,
        may_stay: impl Fn(WorkClass) -> bool,
    ) -> Option<Job> {
        let mut actions = std::mem::take(&mut state.actions);
        let due = state.machine.next_wakeup();
        state.machine.handle(self.now(), event, &mut actions);
        let due_now = state.machine.next_wakeup();
        if due_now.is_some_and(|at| due.is_none_or(|before| at < before)) {
            self.orders.wake();
        }
        let mut stays = None;
        let mut withdrawn = Vec::new();
        for action in actions.drain(..) {
            match action {
                Action::Work { id, work } if stays.is_none() && may_stay(work.class()) => {
                    stays = Some((id, work, std::time::Instant::now()));
                }
                Action::Work { id, work } => {
                    self.pool.submit((id, work, std::time::Instant::now()));
                }
                Action::Cancel { work } => {
                    if self.pool.withdraw(work) {
                        withdrawn.push(work);
                    } else {
                        self.interrupted().insert(work);
                    }
                }
                Action::Watch { path } => self.orders.watch(path),
                Action::Unwatch { path } => self.orders.unwatch(path),
                Action::Release { domains } => self.orders.release(domains),
                Action::Follow { process, log } => self.follow.follow(process, log),
                Action::CloseChannel { channel } => self.channels.close(channel),
                Action::Log(record) => crate::journal::write(&record),
                Action::Note { message } => crate::log(message),
                Action::Reply { client, reply } => {
                    if let Some(waiting) = state.clients.remove(&client) {
                        waiting.reply(reply);
                    }
                }
                Action::Started { client, vm, done, total, failure } => {
                    state.tell(client, News::Started { vm, done, total, failure });
                }
                Action::Told { client, told } => state.tell(client, News::Told(told)),
                Action::Progress { client, progress } => {
                    state.tell(client, News::Progress(progress));
                }
            }
        }
        state.actions = actions;
        for work in withdrawn {
            let result = Err(Failure("cancelled before it began".to_owned()));
            let event = Event::Worked { work, result, cost: Cost::default() };
            // No client waits for the result.
            self.handle(state, event, never);
        }
        stays
    }
}

/// A file of a move. One that cannot be read was not written by us.
fn readable(file: DefinitionFile) -> Option<TransferFile> {
    match file.text {
        Ok(text) => Some(TransferFile { name: file.name, text }),
        Err(why) => {
            crate::log(format_args!("the file {} of a move is ignored: {why}", file.name));
            None
        }
    }
}

/// Watches work in progress for the machine, and lets the thread's own client hear of it.
struct Monitor<'a> {
    core: &'a Core,
    work: WorkId,
    told: std::time::Instant,
    between: &'a mut dyn FnMut() -> ControlFlow<()>,
}

impl WorkMonitor for Monitor<'_> {
    fn reached(&mut self, part: Part) -> ControlFlow<()> {
        self.far(part.into())
    }

    fn flows(&mut self, part: Part, flow: Flow) -> ControlFlow<()> {
        self.far(Far { part, flow: Some(flow) })
    }
}

impl Monitor<'_> {
    fn far(&mut self, far: Far) -> ControlFlow<()> {
        if self.core.interrupted().contains(&self.work) {
            return ControlFlow::Break(());
        }
        if self.told.elapsed() >= REPORT_EVERY {
            self.told = std::time::Instant::now();
            self.core.happened(Event::Reached { work: self.work, far });
            // The work goes on, even if its client has had its reply.
            let _end = (self.between)();
        }
        ControlFlow::Continue(())
    }
}

/// For callers that do no work themselves.
fn never(_: WorkClass) -> bool {
    false
}

/// CPU time of this thread.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let number = |part: i64| u64::try_from(part).unwrap_or_default();
    number(time.tv_sec).saturating_mul(1_000_000_000).saturating_add(number(time.tv_nsec))
}
