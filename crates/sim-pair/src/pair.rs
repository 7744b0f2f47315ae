//! The test's view of the two hosts.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use sim::{DiskUse, HostConfig, LetterId, NEVER, Network, NetworkConfig, SimHost, Span, Time};
use toolstack::channel::ChannelId;
use toolstack::{Reply, Request};
use xen::Uuid;

use crate::baton::{Baton, Mail, Side, TEST};
use crate::lab::{Lab, Visit};

/// The hosts to simulate.
#[derive(Clone, Debug)]
pub struct PairConfig {
    pub seed: u64,
    pub network: NetworkConfig,
    pub hosts: [HostConfig; 2],
    /// Puts files and bridges onto each host.
    pub prepare: fn(&SimHost),
    /// How a daemon is told of a connection that the other one makes.
    pub visit: Option<Visit>,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            network: NetworkConfig::default(),
            hosts: [HostConfig::default(), HostConfig::default()],
            prepare: |_| {},
            visit: None,
        }
    }
}

/// Something that a host does.
#[derive(Debug)]
pub struct Task<R>(Arc<Mutex<Option<R>>>);

/// Virtual time that something may take at most, in nanoseconds.
const PATIENCE_NS: u64 = 1_200_000_000_000;

/// Two hosts with a network between them.
#[derive(Debug)]
pub struct Pair {
    baton: Arc<Baton>,
    threads: Vec<JoinHandle<()>>,
    now: Time,
}

impl std::fmt::Debug for Baton {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Baton")
    }
}

impl Pair {
    /// Boots both hosts and their daemons.
    #[must_use]
    pub fn boot(config: &PairConfig) -> Self {
        let network = Network::new(config.network.clone(), config.seed ^ 0x6e65_7477);
        let baton = Arc::new(Baton::new(network));
        let threads = Side::BOTH.map(|side| {
            let (baton, config) = (Arc::clone(&baton), config.clone());
            thread::spawn(move || live(&baton, side, &config))
        });
        let mut pair = Self { baton, threads: threads.into(), now: Time(0) };
        pair.settle();
        pair
    }

    /// The time of the test: neither host will do anything before it.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Lets the hosts live up to this time, or until the test is woken.
    fn live_until(&mut self, until: Time) {
        self.baton.pass(TEST, until, &mut |_| {});
        self.now = self.now.max(self.baton.state().next[TEST]);
    }

    /// Lets so much time pass.
    pub fn pass(&mut self, nanoseconds: u64) {
        let until = self.now.after(nanoseconds);
        while self.now < until {
            self.live_until(until);
        }
    }

    /// Lets everything happen that is under way. Returns whether all is at rest then.
    pub fn run_until_quiet(&mut self, nanoseconds: u64) -> bool {
        let began = self.now;
        let until = self.now.after(nanoseconds);
        let mut now = began;
        while now < until {
            self.baton.pass(TEST, until, &mut |_| {});
            let state = self.baton.state();
            now = state.next[TEST];
            if state.next[..TEST].iter().all(|next| *next == NEVER) {
                drop(state);
                // The hosts' clocks have stopped with their last events.
                let clocks = Side::BOTH.map(|side| self.on(side, |lab| lab.host.now()));
                self.now = clocks.into_iter().max().unwrap_or(began);
                return true;
            }
        }
        self.now = now;
        false
    }

    /// Lets everything happen that is under way.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn settle(&mut self) {
        assert!(self.run_until_quiet(PATIENCE_NS), "the hosts do not come to rest");
    }

    /// Does something on a host, as soon as it is not in the middle of something.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn on<R: Send + 'static>(
        &mut self,
        side: Side,
        errand: impl FnOnce(&mut Lab) -> R + Send + 'static,
    ) -> R {
        let task = self.begin(side, errand);
        self.finish(&task)
    }

    /// Lets a host do something from now on.
    pub fn begin<R: Send + 'static>(
        &mut self,
        side: Side,
        errand: impl FnOnce(&mut Lab) -> R + Send + 'static,
    ) -> Task<R> {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let errand = move |lab: &mut Lab| {
            let result = errand(lab);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        };
        let mut state = self.baton.state();
        state.errands[side.index()].push_back((self.now, Box::new(errand)));
        state.call(side, self.now);
        Task(result)
    }

    /// Lets the hosts live until it is done.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn finish<R>(&mut self, task: &Task<R>) -> R {
        let until = self.now.after(PATIENCE_NS);
        loop {
            if let Some(result) = task.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return result;
            }
            assert!(self.now < until, "a host has no time for the test");
            self.live_until(until);
        }
    }

    /// Sends a request to a daemon.
    pub fn ask(&mut self, side: Side, request: Request) -> LetterId {
        self.ask_after(side, 0, request)
    }

    /// Sends a request to a daemon which comes later.
    pub fn ask_after(&mut self, side: Side, nanoseconds: u64, request: Request) -> LetterId {
        let when = self.now.after(nanoseconds);
        let mut state = self.baton.state();
        state.letter_last += 1;
        let letter = LetterId(state.letter_last);
        let mail = &mut state.mail[side.index()];
        let at = mail.partition_point(|(other, _)| *other <= when);
        mail.insert(at, (when, Mail::Request(letter, Box::new(request))));
        state.call(side, when);
        letter
    }

    /// The answer, if there is one.
    pub fn take_reply(&mut self, letter: LetterId) -> Option<Reply> {
        self.baton.state().replies.remove(&letter)
    }

    /// Lets the hosts live until there is an answer, at most so long.
    pub fn wait(&mut self, letter: LetterId, nanoseconds: u64) -> Option<Reply> {
        let until = self.now.after(nanoseconds);
        self.baton.state().awaited.push(letter);
        let reply = loop {
            if let Some(reply) = self.take_reply(letter) {
                break Some(reply);
            }
            if self.now >= until {
                break None;
            }
            self.live_until(until);
        };
        self.baton.state().awaited.retain(|it| *it != letter);
        reply
    }

    /// Asks and waits for the answer.
    ///
    /// # Panics
    /// If there is none.
    pub fn say(&mut self, side: Side, request: Request) -> Reply {
        let letter = self.ask(side, request);
        self.wait(letter, PATIENCE_NS).expect("an answer in time")
    }

    /// Connects the hosts, as a client of the left one would, and hands both ends over.
    pub fn connect(&mut self) -> [ChannelId; 2] {
        let now = self.now;
        let cable = self.network(|network| network.connect(now));
        let near = self.on(Side::Left, move |lab| lab.add_channel(cable, sim::End::Near));
        let far = self.on(Side::Right, move |lab| lab.add_channel(cable, sim::End::Far));
        [near, far]
    }

    /// Changes the network.
    pub fn network<R>(&mut self, change: impl FnOnce(&mut Network) -> R) -> R {
        self.baton.state().change(change)
    }

    /// Nothing passes any more, from now on.
    pub fn cut(&mut self) {
        let now = self.now;
        self.network(|network| network.cut(now, None));
    }

    /// Everything passes again.
    pub fn mend(&mut self) {
        let now = self.now;
        self.network(|network| network.mend(now));
    }

    /// The traces of both hosts.
    pub fn traces(&mut self) -> [Vec<String>; 2] {
        Side::BOTH.map(|side| self.on(side, |lab| lab.trace()))
    }

    /// A number that differs if two runs differ in anything.
    pub fn digest(&mut self) -> [u64; 2] {
        Side::BOTH.map(|side| self.on(side, |lab| lab.host.digest()))
    }

    /// When the domains of each host ran.
    pub fn runs(&mut self) -> [Vec<Span<Uuid>>; 2] {
        Side::BOTH.map(|side| self.on(side, |lab| lab.runs()))
    }

    /// When backends of each host had disks connected.
    pub fn disk_uses(&mut self) -> [Vec<Span<DiskUse>>; 2] {
        Side::BOTH.map(|side| self.on(side, |lab| lab.host.os().get().disk_uses().to_vec()))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.baton.end();
        for thread in self.threads.drain(..) {
            // Its panic was told already.
            let _ended = thread.join();
        }
    }
}

/// The thread of a host.
fn live(baton: &Arc<Baton>, side: Side, config: &PairConfig) {
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        baton.begin(side);
        let mut host = config.hosts[side.index()].clone();
        // No two machines are alike.
        host.seed ^= config.seed << 1 | side.index() as u64;
        Lab::boot(baton, side, host, config.visit, config.prepare).live()
    }));
    let Err(payload) = result;
    baton.fail(side, &*payload);
}
