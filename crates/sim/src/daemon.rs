//! The toolstack daemon on the simulated host: the machine that owns the VMs, the performer of its
//! work and its watches. Like `xylemd`'s loop it makes no decisions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::ControlFlow;

use storage::Repositories;
use toolstack::device_model::Process;
use toolstack::perform::Performer;
use toolstack::work::{
    Cost, CreateWork, DeviceWork, Failure, Far, Flow, Output, Part, QueryWork, Work, WorkMonitor,
};
use toolstack::{
    Action, Asker, ClientId, Event, Instant, LogRecord, Progress, Reply, Request, Told, Toolstack,
    WorkId,
};
use xen::{DomId, ProbeError, Xen};
use xenstore::client::{Client, ClientError, Nodes as _, WatchEvent};

use crate::agenda::{Agenda, Time};
use crate::host::SimHost;
use crate::machine::SimHypervisor;
use crate::os::SimOs;
use crate::prng::Prng;
use crate::storage::HANG_SECONDS;
use crate::store::SocketTransport;

/// Token of the permanent watch. Tokens of all others are their paths.
const INTRODUCED: &str = "@introduced";

/// Number of log lines kept.
const LOGGED_MAX: usize = 64;

/// How long work waits for a worker, in nanoseconds.
const WORK_NS: u64 = 15_000;

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("{0}")]
    Probe(#[from] ProbeError),
    #[error("{0}")]
    Store(#[from] ClientError),
}

/// How long attaching a disk takes: derived from its path and the seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachTimes {
    pub seed: u64,
    pub usual_ns: u64,
    /// Usual times vary by this percentage to either side.
    pub spread: u64,
    /// Duration of the slowest, and their share per mille.
    pub tail_ns: u64,
    pub tail_per_mille: u64,
}

impl AttachTimes {
    /// This disk's time, in nanoseconds.
    #[must_use]
    pub fn of(&self, path: &str) -> u64 {
        // FNV-1a.
        let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ self.seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut prng = Prng::new(hash);
        if prng.below(1000) < self.tail_per_mille {
            return self.tail_ns;
        }
        let percent = 100 - self.spread + prng.below(2 * self.spread + 1);
        self.usual_ns / 100 * percent
    }
}

/// Work to be done, or done work whose time has not passed yet.
#[derive(Debug)]
enum Job {
    Begin(WorkId, Work),
    End(WorkId, Result<Output, Failure>, Cost),
}

/// Requests that come from outside at times of their own.
pub trait Post: fmt::Debug {
    /// When the next one comes.
    fn next_time(&self) -> Option<Time>;

    /// The next one that has come by now.
    fn take(&mut self, now: Time) -> Option<Letter>;

    /// The answer to one.
    fn answer(&mut self, letter: LetterId, reply: Reply);
}

/// A request from outside.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct LetterId(pub u64);

/// What comes from outside.
#[derive(Debug)]
pub enum Letter {
    Request(LetterId, Request),
}

/// One of many VMs was started, or was not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Started {
    pub vm: String,
    pub done: usize,
    pub total: usize,
    pub failure: Option<String>,
}

/// A running toolstack daemon.
#[derive(Debug)]
pub struct Daemon {
    host: SimHost,
    toolstack: Toolstack,
    /// Performers without work. There are more than one only while work waits.
    performers: Vec<SimPerformer>,
    watches: Client<SocketTransport>,
    works: Agenda<Job>,
    /// Device models whose exit is to be reported.
    followed: Vec<Process>,
    /// Work that was cancelled.
    cancelled: BTreeSet<WorkId>,
    replies: BTreeMap<ClientId, Reply>,
    /// Answered requests, in order.
    answered: VecDeque<ClientId>,
    next_client: u64,
    attach_times: Option<AttachTimes>,
    post: Option<Box<dyn Post>>,
    /// Requests from outside that are not answered.
    letters: BTreeMap<ClientId, LetterId>,
    /// What all work has cost so far.
    pub totals: Cost,
    /// How often each kind of work was begun.
    pub works_begun: BTreeMap<&'static str, u64>,
    /// Progress reports to clients, if recorded.
    pub told: Option<Vec<(ClientId, Progress)>>,
    /// Results for individual VMs of requests about several.
    pub told_of_each: Vec<(ClientId, Told)>,
    /// VMs that were started for requests about all, or were not.
    pub started: Vec<(ClientId, Started)>,
    /// The client that makes the requests.
    pub asker: Option<Asker>,
    /// The last lines of its log.
    pub logged: Vec<LogRecord>,
}

type SimPerformer = Performer<SimHypervisor, SocketTransport, SimOs>;

/// Work that has lasted so long waits for something: the machine goes on meanwhile.
const WAITS_NS: u64 = 10_000_000;

/// Records how far work came; ends cancelled work at its first report. At each report of work that
/// waits, the daemon does what has become due, as its other threads would.
struct Monitor<'a> {
    daemon: &'a mut Daemon,
    id: WorkId,
    began: Time,
    reached: Vec<Far>,
    /// Why the daemon cannot go on.
    failed: Option<ClientError>,
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
        // As the real daemon, which tells of nothing at once.
        if far.part.done > 0 {
            self.reached.push(far);
        }
        if self.failed.is_none() && self.daemon.host.now() > self.began.after(WAITS_NS) {
            self.failed = self.daemon.catch_up().err();
        }
        match self.failed.is_some() || self.daemon.cancelled.contains(&self.id) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl Daemon {
    /// Starts the daemon, which adopts what exists.
    ///
    /// # Errors
    /// [`DaemonError`] if Xen or the store cannot be reached.
    pub fn start(host: &SimHost) -> Result<Self, DaemonError> {
        Self::start_with(host, host.connect())
    }

    /// As [`Daemon::start`], with a store without batches.
    ///
    /// # Errors
    /// [`DaemonError`] if Xen or the store cannot be reached.
    pub fn start_without_batches(host: &SimHost) -> Result<Self, DaemonError> {
        Self::start_with(host, host.connect_without_batches())
    }

    fn start_with(host: &SimHost, store: Client<SocketTransport>) -> Result<Self, DaemonError> {
        // A daemon that is killed here is restarted.
        let _dies = Repositories::new(&mut host.os().clone()).clear();
        let performer =
            Performer { xen: Xen::probe(host.hypervisor())?, store, host: host.os().clone() };
        let mut watches = host.connect();
        watches.watch_depth("@introduceDomain", INTRODUCED, 1)?;
        watches.follow_domains()?;
        let mut daemon = Self {
            host: host.clone(),
            // A daemon's revisions continue after those of its predecessor.
            toolstack: Toolstack::beginning(host.os().begin(host.now().0)),
            performers: vec![performer],
            watches,
            works: Agenda::new(),
            followed: Vec::new(),
            cancelled: BTreeSet::new(),
            replies: BTreeMap::new(),
            answered: VecDeque::new(),
            next_client: 0,
            attach_times: None,
            post: None,
            letters: BTreeMap::new(),
            totals: Cost::default(),
            works_begun: BTreeMap::new(),
            told: None,
            told_of_each: Vec::new(),
            started: Vec::new(),
            asker: None,
            logged: Vec::new(),
        };
        daemon.handle(Event::Started)?;
        Ok(daemon)
    }

    /// Starts the daemon as its supervisor does: again if it failed from a planned fault.
    pub fn restart(host: &SimHost) -> Result<Self, DaemonError> {
        loop {
            let planned = host.machine().get().faults().pending();
            match Self::start(host) {
                Err(_) if host.machine().get().faults().pending() < planned => {}
                outcome => return outcome,
            }
        }
    }

    /// From now on attaches take time.
    pub fn set_attach_times(&mut self, times: AttachTimes) {
        self.attach_times = Some(times);
    }

    /// From now on the host is looked at for those who follow what is told of it.
    pub fn set_looks_every(&mut self, ns: u64) {
        self.toolstack.set_looks_every(ns);
    }

    /// From now on SRs are read for those who follow VDIs.
    pub fn set_readings_every(&mut self, ns: u64) {
        self.toolstack.set_readings_every(ns);
    }

    /// From now on requests come from outside as well.
    pub fn set_post(&mut self, post: Box<dyn Post>) {
        self.post = Some(post);
    }

    /// Submits a request; the answer comes under the returned id.
    ///
    /// # Errors
    /// An error that ends the store's connection.
    pub fn request(&mut self, request: Request) -> Result<ClientId, ClientError> {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        if let Some(asker) = self.asker {
            self.toolstack.introduce(client, asker);
        }
        self.handle(Event::Request { client, request })?;
        Ok(client)
    }

    /// Takes the answer to a request, if available.
    pub fn take_reply(&mut self, client: ClientId) -> Option<Reply> {
        self.replies.remove(&client)
    }

    /// The next answered request, in order.
    pub fn poll_answered(&mut self) -> Option<ClientId> {
        self.answered.pop_front()
    }

    /// Runs host and daemon until the request is answered; `None` after `until`.
    ///
    /// # Errors
    /// An error that ends the store's connection.
    pub fn wait(&mut self, client: ClientId, until: Time) -> Result<Option<Reply>, ClientError> {
        loop {
            if let Some(reply) = self.take_reply(client) {
                return Ok(Some(reply));
            }
            if !self.step(until)? {
                return Ok(None);
            }
        }
    }

    /// Runs host and daemon until idle, or `until`. Returns whether all is idle.
    ///
    /// # Errors
    /// An error that ends the store's connection.
    pub fn run_until_quiet(&mut self, until: Time) -> Result<bool, ClientError> {
        while self.step(until)? {}
        Ok(self.next_time().is_none() && self.toolstack.is_quiet())
    }

    /// Time of the next event of the daemon or the host.
    pub fn next_time(&self) -> Option<Time> {
        let wakeup = self.toolstack.next_wakeup().map(|instant| Time(instant.0));
        let post = self.post.as_ref().and_then(|post| post.next_time());
        [self.works.next_time(), wakeup, self.host.next_time(), post].into_iter().flatten().min()
    }

    /// Does what is due by now.
    ///
    /// # Errors
    /// An error that ends the store's connection.
    pub fn catch_up(&mut self) -> Result<(), ClientError> {
        let now = self.host.now();
        while self.step(now)? {}
        Ok(())
    }

    /// Runs the next event of the host or the daemon, if there is one by `until`.
    ///
    /// # Errors
    /// An error that ends the store's connection.
    pub fn step(&mut self, until: Time) -> Result<bool, ClientError> {
        // Events may have arrived with the reply to an earlier request: take them first.
        if let Some(update) = self.watches.poll_domain_update() {
            self.handle(Event::Domains(update))?;
            return Ok(true);
        }
        if let Some(event) = self.watches.poll_event() {
            let event = self.translate(&event)?;
            self.handle(event)?;
            return Ok(true);
        }
        if self.watches.transport().has_input() {
            self.watches.receive()?;
            return Ok(true);
        }
        if let Some((process, how)) = self.take_ended_model() {
            self.handle(Event::ModelEnded { process, how: how.to_owned() })?;
            return Ok(true);
        }
        if self.take_letter()? {
            return Ok(true);
        }
        let own = self.works.next_time();
        let post = self.post.as_ref().and_then(|post| post.next_time());
        let wakeup = self.toolstack.next_wakeup().map(|instant| Time(instant.0));
        let world = self.host.next_time();
        let Some(next) = [own, wakeup, world, post].into_iter().flatten().min() else {
            return Ok(false);
        };
        if next > until {
            return Ok(false);
        }
        if world == Some(next) {
            self.host.step(until);
            return Ok(true);
        }
        self.host.sleep_until(next);
        if own == Some(next) {
            match self.works.pop(next) {
                Some((_, Job::Begin(id, work))) => self.work(id, work)?,
                Some((_, Job::End(work, result, cost))) => {
                    self.handle(Event::Worked { work, result, cost })?;
                }
                None => {}
            }
            return Ok(true);
        }
        if wakeup == Some(next) {
            self.handle(Event::Tick)?;
        }
        Ok(true)
    }

    /// Takes a request from outside, if one has come.
    fn take_letter(&mut self) -> Result<bool, ClientError> {
        let now = self.host.now();
        let Some(Letter::Request(letter, request)) =
            self.post.as_mut().and_then(|post| post.take(now))
        else {
            return Ok(false);
        };
        // The answer may come at once.
        self.letters.insert(ClientId(self.next_client), letter);
        self.request(request)?;
        Ok(true)
    }

    fn take_ended_model(&mut self) -> Option<(Process, &'static str)> {
        let ending = |process: &Process| self.host.os().model_ending(*process);
        let at = self.followed.iter().position(|it| ending(it).is_some())?;
        let process = self.followed.remove(at);
        Some((process, self.host.os().model_ending(process)?))
    }

    fn work(&mut self, id: WorkId, work: Work) -> Result<(), ClientError> {
        self.host.detail(format_args!("toolstack: {}", work.name()));
        self.host.machine().get_mut().mean(work.info().domain);
        let mut performer = match self.performers.pop() {
            Some(performer) => performer,
            None => self.another_performer()?,
        };
        let began = self.host.now();
        let mut monitor = Monitor { daemon: self, id, began, reached: Vec::new(), failed: None };
        let (result, cost) = performer.perform(work, &mut monitor);
        let Monitor { reached, failed, .. } = monitor;
        self.performers.push(performer);
        self.cancelled.remove(&id);
        if let Some(error) = failed {
            return Err(error);
        }
        self.host.machine().get_mut().mean(None);
        self.totals.add(&cost);
        if let Err(failure) = &result {
            self.host.note(format_args!("toolstack: {failure}"));
        }
        for far in reached {
            self.handle(Event::Reached { work: id, far })?;
        }
        let slept = self.host.os().take_slept();
        if slept > 0 {
            self.works.put(self.host.now().after(slept), Job::End(id, result, cost));
            return Ok(());
        }
        self.handle(Event::Worked { work: id, result, cost })
    }

    fn another_performer(&self) -> Result<SimPerformer, ClientError> {
        let xen = Xen::probe(self.host.hypervisor())
            .map_err(|_| ClientError::Transport(xen::Errno::EIO))?;
        Ok(Performer { xen, store: self.host.connect(), host: self.host.os().clone() })
    }

    /// Nanoseconds that storage takes for this work.
    fn storage_time(&self, work: &Work) -> u64 {
        let hangs = |path: &str| self.host.os().hangs(path);
        match work {
            Work::Create(CreateWork::LoadImages { config })
                if config.kernel.as_deref().is_some_and(hangs) =>
            {
                HANG_SECONDS * 1_000_000_000
            }
            Work::Device(DeviceWork::AttachDisk { config, index, .. }) => {
                let path = &config.disks[*index].target;
                match self.attach_times {
                    _ if hangs(path) => HANG_SECONDS * 1_000_000_000,
                    Some(times) => times.of(path),
                    None => 0,
                }
            }
            Work::Query(QueryWork::ReadSr { sr }) => {
                let mut os = self.host.os().clone();
                let path = Repositories::new(&mut os).get(sr).ok();
                let path = path.and_then(|it| it.config.get("path").cloned());
                if path.is_some_and(|it| hangs(&it)) { HANG_SECONDS * 1_000_000_000 } else { 0 }
            }
            _ => 0,
        }
    }

    fn translate(&mut self, event: &WatchEvent) -> Result<Event, ClientError> {
        Ok(match event.token.as_str() {
            INTRODUCED => {
                let domid = event.path.strip_prefix("@introduceDomain/");
                Event::Introduced { domid: domid.and_then(|text| text.parse().ok()).map(DomId) }
            }
            path => {
                let value = self.watches.read_optional(path)?;
                Event::Node { path: path.to_owned(), value }
            }
        })
    }

    fn handle(&mut self, event: Event) -> Result<(), ClientError> {
        let now = self.host.now();
        let mut actions = Vec::new();
        self.toolstack.handle(Instant(now.0), event, &mut actions);
        for action in actions {
            match action {
                Action::Work { id, work } => {
                    *self.works_begun.entry(work.name()).or_default() += 1;
                    let jitter = self.host.machine().get_mut().chance(WORK_NS);
                    let storage = self.storage_time(&work);
                    self.works.put(now.after(WORK_NS + jitter + storage), Job::Begin(id, work));
                }
                Action::Watch { path } => self.watches.watch(&path, &path)?,
                Action::Unwatch { path } => match self.watches.unwatch(&path, &path) {
                    Ok(()) | Err(ClientError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                },
                // Work that has begun has ended already.
                Action::Cancel { work } => {
                    self.cancelled.insert(work);
                }
                Action::Release { domains } => self.watches.release_domains(&domains)?,
                Action::CloseChannel { channel } => self.host.os().close_channel(channel),
                Action::Follow { process, .. } => self.followed.push(process),
                Action::Reply { client, reply } if self.letters.contains_key(&client) => {
                    if let (Some(letter), Some(post)) =
                        (self.letters.remove(&client), &mut self.post)
                    {
                        post.answer(letter, reply);
                    }
                }
                Action::Reply { client, reply } => {
                    self.answered.push_back(client);
                    self.replies.insert(client, reply);
                }
                Action::Progress { client, progress } => {
                    if let Some(told) = &mut self.told {
                        told.push((client, *progress));
                    }
                }
                Action::Told { client, told } => self.told_of_each.push((client, told)),
                Action::Started { client, vm, done, total, failure } => {
                    self.started.push((client, Started { vm, done, total, failure }));
                }
                Action::Log(record) => {
                    self.host.note(format_args!("toolstack: {}", record.message));
                    if self.logged.len() == LOGGED_MAX {
                        self.logged.remove(0);
                    }
                    self.logged.push(*record);
                }
                Action::Note { message } => self.host.note(format_args!("toolstack: {message}")),
            }
        }
        Ok(())
    }
}
