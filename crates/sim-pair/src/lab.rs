//! One of the hosts, with its daemon.

use std::sync::Arc;

use sim::{
    Daemon, End, HostConfig, Letter, LetterId, NEVER, Post, SimHost, SimOs, Snapshot, Span, Time,
};
use toolstack::channel::ChannelId;
use toolstack::{Reply, Request};
use xen::Uuid;
use xenstore::client::ClientError;

use crate::baton::{Baton, Errand, Mail, Side};
use crate::line::{PairLine, Stand};

/// The request by which a daemon is told of a connection from the other host.
pub type Visit = fn(ChannelId) -> Request;

/// What follows when a daemon is killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AfterDeath {
    /// Another starts after so many nanoseconds.
    Restart(u64),
    /// None starts until the test starts it.
    Nothing,
    /// The host has lost power at that moment, and boots again after so many nanoseconds.
    Reboot(u64),
}

/// A host and its daemon.
#[derive(Debug)]
pub struct Lab {
    pub side: Side,
    pub host: SimHost,
    /// The daemon, while it lives.
    pub daemon: Option<Daemon>,
    /// The host before the first VM.
    pub before: Snapshot,
    /// What follows when the daemon is killed.
    pub after_death: AfterDeath,
    starts: Option<Time>,
    config: HostConfig,
    /// When domains ran before the last crash of the host.
    earlier_runs: Vec<Span<Uuid>>,
    earlier_trace: Vec<String>,
    /// Deaths of the daemon so far.
    pub deaths: u64,
    visit: Option<Visit>,
    stand: Stand,
}

impl Lab {
    pub(crate) fn boot(
        baton: &Arc<Baton>,
        side: Side,
        config: HostConfig,
        visit: Option<Visit>,
        prepare: fn(&SimHost),
    ) -> Self {
        let host = SimHost::boot(config.clone());
        prepare(&host);
        let stand = Stand { baton: Arc::clone(baton), side, os: host.os().clone() };
        join(&host, &stand);
        let before = host.snapshot().expect("the store serves dom0");
        let mut lab = Self {
            side,
            host,
            daemon: None,
            before,
            after_death: AfterDeath::Restart(1_000_000_000),
            starts: None,
            config,
            earlier_runs: Vec::new(),
            earlier_trace: Vec::new(),
            deaths: 0,
            visit,
            stand,
        };
        lab.start_daemon();
        lab
    }

    /// Does what is to be done, for ever.
    pub(crate) fn live(&mut self) -> ! {
        loop {
            let errand = self.baton().errands[self.side.index()].front().map(|(when, _)| *when);
            let own = self.next_time();
            let next = [errand, own].into_iter().flatten().min();
            let next = next.map_or(NEVER, |next| next.max(self.host.now()));
            self.stand.idle(next);
            if let Some(errand) = self.take_errand() {
                errand(self);
                self.catch_up();
                let mut state = self.baton();
                state.wake_test(self.host.now());
            } else if let Some(own) = self.next_time() {
                self.step(own);
            }
        }
    }

    fn baton(&self) -> std::sync::MutexGuard<'_, crate::baton::State> {
        self.stand.baton.state()
    }

    fn take_errand(&mut self) -> Option<Errand> {
        let own = self.next_time();
        let mut state = self.stand.baton.state();
        let errands = &mut state.errands[self.side.index()];
        let (when, _) = errands.front()?;
        if own.is_some_and(|own| own < *when) {
            return None;
        }
        let (when, errand) = errands.pop_front()?;
        drop(state);
        self.host.sleep_until(when);
        Some(errand)
    }

    /// When something happens here next.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        match &self.daemon {
            Some(daemon) => daemon.next_time(),
            None => {
                let mail = self.baton().mail[self.side.index()].front().map(|(when, _)| *when);
                [self.starts, self.host.next_time(), mail].into_iter().flatten().min()
            }
        }
    }

    /// Does the next thing, which is due at `until`.
    fn step(&mut self, until: Time) {
        let until = until.max(self.host.now());
        if let Some(daemon) = &mut self.daemon {
            let result = daemon.step(until);
            self.note_death(result.as_ref().err());
            self.catch_up();
            return;
        }
        if self.host.step(until) {
            return;
        }
        self.host.sleep_until(until);
        self.turn_away(until);
        if self.starts.is_some_and(|starts| starts <= until) {
            self.start_daemon();
        }
    }

    /// Does what the daemon has heard of already.
    fn catch_up(&mut self) {
        let now = self.host.now();
        while let Some(daemon) = &mut self.daemon {
            let result = daemon.step(now);
            let is_done = matches!(result, Ok(false));
            self.note_death(result.as_ref().err());
            if is_done {
                break;
            }
        }
    }

    fn is_dead(&self) -> bool {
        self.host.machine().get().faults().is_toolstack_dead()
    }

    /// The daemon may have been killed in what it just did.
    fn note_death(&mut self, error: Option<&ClientError>) {
        if !self.is_dead() && self.host.os().daemon_lives() {
            assert!(error.is_none(), "the daemon lost its store: {error:?}");
            return;
        }
        self.bury();
    }

    fn bury(&mut self) {
        self.deaths += 1;
        self.host.note(format_args!("toolstack: is killed"));
        self.daemon = None;
        match self.after_death {
            AfterDeath::Restart(after_ns) => {
                self.host.os().close_channels();
                self.starts = Some(self.host.now().after(after_ns));
            }
            AfterDeath::Nothing => self.host.os().close_channels(),
            AfterDeath::Reboot(after_ns) => self.reboot(after_ns),
        }
    }

    /// The host loses power, and boots again after a while.
    pub fn crash(&mut self, after_ns: u64) {
        self.deaths += 1;
        self.daemon = None;
        self.reboot(after_ns);
    }

    fn reboot(&mut self, after_ns: u64) {
        self.host.note(format_args!("the host loses power"));
        let now = self.host.now();
        let mut runs = self.host.machine().get().runs().to_vec();
        for span in &mut runs {
            span.ended.get_or_insert(now);
        }
        self.earlier_runs.append(&mut runs);
        self.earlier_trace.extend(self.host.trace());
        self.host.machine().set_turn(Box::new(|_| {}));
        let mut config = self.config.clone();
        // Its domains are others than before.
        config.seed ^= self.deaths << 32;
        self.host = self.host.boot_again(config, after_ns);
        join(&self.host, &self.stand);
        self.starts = Some(self.host.now());
    }

    /// When domains ran here.
    #[must_use]
    pub fn runs(&self) -> Vec<Span<Uuid>> {
        let mut runs = self.earlier_runs.clone();
        runs.extend_from_slice(self.host.machine().get().runs());
        runs
    }

    /// Everything that happened here.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        let mut lines = self.earlier_trace.clone();
        lines.extend(self.host.trace());
        lines
    }

    /// Kills the daemon now.
    pub fn kill(&mut self) {
        if self.daemon.is_some() {
            self.bury();
        }
    }

    /// Starts the daemon, unless it runs.
    pub fn start_daemon(&mut self) {
        if self.daemon.is_some() {
            return;
        }
        self.starts = None;
        self.host.machine().get_mut().faults_mut().revive_toolstack();
        self.host.os().restart_daemon();
        match Daemon::restart(&self.host) {
            Ok(mut daemon) => {
                daemon
                    .set_post(Box::new(LetterBox { stand: self.stand.clone(), visit: self.visit }));
                self.daemon = Some(daemon);
            }
            // A kill may be planned for its first actions.
            Err(error) if self.is_dead() => {
                self.host.note(format_args!("toolstack: {error}"));
                self.bury();
            }
            Err(error) => panic!("the daemon does not start: {error}"),
        }
    }

    /// Whoever comes while there is no daemon is told so.
    fn turn_away(&mut self, now: Time) {
        let mut state = self.stand.baton.state();
        while state.mail[self.side.index()].front().is_some_and(|(when, _)| *when <= now) {
            match state.mail[self.side.index()].pop_front() {
                Some((_, Mail::Visit(cable))) => {
                    state.change(|network| network.close(cable, End::Far, now));
                }
                Some((_, Mail::Request(letter, _))) => {
                    let reply = Reply::Failed("xylemd is not running".to_owned());
                    answer(&mut state, letter, reply, now);
                }
                None => break,
            }
        }
    }

    /// Kills the daemon at its `k`-th action from now on.
    pub fn kill_at(&mut self, k: u64) {
        self.host.machine().get_mut().faults_mut().kill_toolstack(k);
    }

    /// A client hands over its end of a connection.
    pub(crate) fn add_channel(&self, cable: sim::CableId, end: End) -> ChannelId {
        let line = PairLine { stand: self.stand.clone(), cable, end };
        self.host.os().add_channel(Box::new(line))
    }

    /// What is here that was not before the first VM, or the other way round.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        let now = self.host.snapshot().expect("the store serves dom0");
        now.differences(&self.before)
    }
}

/// Connects a host with the others.
fn join(host: &SimHost, stand: &Stand) {
    host.machine().get_mut().record_runs();
    host.os().set_dial(Box::new(stand.clone()));
    let turn = stand.clone();
    host.machine().set_turn(Box::new(move |when| turn.pass(when)));
}

impl Drop for Lab {
    fn drop(&mut self) {
        // These refer to each other.
        self.host.machine().set_turn(Box::new(|_| {}));
        self.host.os().forget_network();
    }
}

fn answer(state: &mut crate::baton::State, letter: LetterId, reply: Reply, now: Time) {
    if state.awaited.contains(&letter) {
        state.wake_test(now);
    }
    state.replies.insert(letter, reply);
}

/// A daemon's letter box.
#[derive(Debug)]
struct LetterBox {
    stand: Stand,
    visit: Option<Visit>,
}

impl Post for LetterBox {
    fn next_time(&self) -> Option<Time> {
        let state = self.stand.baton.state();
        state.mail[self.stand.side.index()].front().map(|(when, _)| *when)
    }

    fn take(&mut self, now: Time) -> Option<Letter> {
        let mut state = self.stand.baton.state();
        let mail = &mut state.mail[self.stand.side.index()];
        if mail.front()?.0 > now {
            return None;
        }
        match mail.pop_front()?.1 {
            Mail::Request(letter, request) => Some(Letter::Request(letter, *request)),
            Mail::Visit(cable) => {
                let Some(visit) = self.visit else {
                    state.change(|network| network.close(cable, End::Far, now));
                    return None;
                };
                state.letter_last += 1;
                let letter = LetterId(state.letter_last);
                drop(state);
                let line = PairLine { stand: self.stand.clone(), cable, end: End::Far };
                let os: &SimOs = &self.stand.os;
                Some(Letter::Request(letter, visit(os.add_channel(Box::new(line)))))
            }
        }
    }

    fn answer(&mut self, letter: LetterId, reply: Reply) {
        let mut state = self.stand.baton.state();
        let now = state.next[self.stand.side.index()];
        answer(&mut state, letter, reply, now);
    }
}
