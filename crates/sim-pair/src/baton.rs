//! Whose turn it is.
//!
//! The product's code blocks while it waits for another host, so each host has a thread of its own;
//! but exactly one of them runs at a time. It hands on the baton when what it would do next is later
//! than what another would do, by more than a packet needs from host to host. Who runs therefore
//! follows from virtual times alone, and a run from its seed.

use std::collections::{BTreeMap, VecDeque};
use std::panic;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use sim::{CableId, End, LetterId, NEVER, Network, SharedFiles, Time, Want};
use toolstack::{Reply, Request};
use xen::Uuid;

use crate::lab::Lab;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Side {
    Left,
    Right,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Left, Self::Right];

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Left => 0,
            Self::Right => 1,
        }
    }
}

/// Index of the test, which is a party as the hosts are.
pub(crate) const TEST: usize = 2;

/// Something to be done on a host.
pub(crate) type Errand = Box<dyn FnOnce(&mut Lab) + Send>;

/// What comes to a daemon from outside.
pub(crate) enum Mail {
    Request(LetterId, Box<Request>),
    /// A connection from the other host.
    Visit(CableId),
}

/// A host that waits for its end of a connection.
struct Waiting {
    cable: CableId,
    end: End,
    want: Want,
    until: Time,
}

/// What the hosts share.
pub(crate) struct State {
    /// When each party does something next.
    pub(crate) next: [Time; 3],
    running: usize,
    /// All threads end.
    is_over: bool,
    /// A host has failed.
    failure: Option<String>,
    pub(crate) network: Network,
    waiting: [Option<Waiting>; 2],
    pub(crate) errands: [VecDeque<(Time, Errand)>; 2],
    /// The host waits for errands and mail.
    is_idle: [bool; 2],
    /// Further connections that came to each host.
    pub(crate) lanes: [BTreeMap<(Uuid, u8), CableId>; 2],
    pub(crate) mail: [VecDeque<(Time, Mail)>; 2],
    pub(crate) letter_last: u64,
    pub(crate) replies: BTreeMap<LetterId, Reply>,
    /// The test waits for one of these.
    pub(crate) awaited: Vec<LetterId>,
    /// What each host has last shown of its shared files.
    pub(crate) files: [SharedFiles; 2],
}

/// The baton, and what is passed on with it.
pub(crate) struct Baton {
    state: Mutex<State>,
    changed: [Condvar; 3],
    lookahead_ns: u64,
}

/// Ends a thread without a message.
struct Over;

impl State {
    fn earliest(&self) -> usize {
        let all = (0..3).min_by_key(|party| (self.next[*party], *party));
        match all {
            Some(party) if self.next[party] < NEVER => party,
            _ => TEST,
        }
    }

    /// The test has something to look at.
    pub(crate) fn wake_test(&mut self, now: Time) {
        self.next[TEST] = self.next[TEST].min(now);
    }

    /// Something is to be done on a host.
    pub(crate) fn call(&mut self, side: Side, when: Time) {
        let next = &mut self.next[side.index()];
        if self.is_idle[side.index()] {
            *next = when.min(*next);
        }
    }

    /// Changes the network; whoever waits for that is woken.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut Network) -> R) -> R {
        let result = change(&mut self.network);
        for (next, waiting) in self.next.iter_mut().zip(&self.waiting) {
            if let Some(it) = waiting {
                let changes = self.network.next_change(it.cable, it.end, it.want);
                *next = changes.unwrap_or(NEVER).min(it.until);
            }
        }
        result
    }
}

impl Baton {
    pub(crate) fn new(network: Network) -> Self {
        let lookahead_ns = network.config().latency_ns;
        let state = State {
            next: [Time(0), Time(0), NEVER],
            running: TEST,
            is_over: false,
            failure: None,
            network,
            waiting: [None, None],
            errands: [VecDeque::new(), VecDeque::new()],
            is_idle: [false; 2],
            lanes: [BTreeMap::new(), BTreeMap::new()],
            mail: [VecDeque::new(), VecDeque::new()],
            letter_last: 0,
            replies: BTreeMap::new(),
            awaited: Vec::new(),
            files: [SharedFiles::default(), SharedFiles::default()],
        };
        let changed = [Condvar::new(), Condvar::new(), Condvar::new()];
        Self { state: Mutex::new(state), changed, lookahead_ns }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this party may go on with what it does at `until`, without others.
    fn may_go_on(&self, state: &State, party: usize, until: Time) -> bool {
        if until == NEVER {
            return false;
        }
        let first = (0..3).filter(|it| *it != party).all(|other| {
            let ahead = if other == TEST || party == TEST { 0 } else { self.lookahead_ns };
            let limit = state.next[other].after(ahead);
            until < limit || until == limit && (party < other || ahead > 0)
        });
        first && !state.is_over && state.failure.is_none()
    }

    /// Lets others live up to `until`, at which this party does something next. It may be called
    /// earlier. With `show` it shows others its files before it hands on the baton.
    pub(crate) fn pass(&self, party: usize, until: Time, show: &mut dyn FnMut(&mut State)) {
        let mut state = self.state();
        state.next[party] = until;
        if self.may_go_on(&state, party, until) {
            return;
        }
        show(&mut state);
        let next = state.earliest();
        if next != party {
            state.running = next;
            self.changed[next].notify_one();
        }
        self.wait_for_turn(party, state);
    }

    /// Waits until it is this party's turn.
    fn wait_for_turn(&self, party: usize, mut state: MutexGuard<'_, State>) {
        loop {
            if state.is_over && party != TEST {
                drop(state);
                panic::resume_unwind(Box::new(Over));
            }
            if let Some(failure) = &state.failure {
                let failure = failure.clone();
                drop(state);
                if party == TEST {
                    panic!("{failure}");
                }
                panic::resume_unwind(Box::new(Over));
            }
            if state.running == party {
                return;
            }
            state = self.changed[party].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A new thread waits for its first turn.
    pub(crate) fn begin(&self, side: Side) {
        self.wait_for_turn(side.index(), self.state());
    }

    /// As [`Baton::pass`], until an errand or mail comes.
    pub(crate) fn idle(&self, side: Side, until: Time, show: &mut dyn FnMut(&mut State)) {
        self.state().is_idle[side.index()] = true;
        self.pass(side.index(), until, show);
        self.state().is_idle[side.index()] = false;
    }

    /// As [`Baton::pass`], until something changes at an end of a connection. Returns when that is.
    pub(crate) fn wait(
        &self,
        side: Side,
        until: Time,
        (cable, end, want): (CableId, End, Want),
        show: &mut dyn FnMut(&mut State),
    ) -> Time {
        let changes =
            |state: &State| state.network.next_change(cable, end, want).unwrap_or(NEVER).min(until);
        let mut state = self.state();
        let next = changes(&state);
        state.waiting[side.index()] = Some(Waiting { cable, end, want, until });
        drop(state);
        self.pass(side.index(), next, show);
        let mut state = self.state();
        state.waiting[side.index()] = None;
        changes(&state)
    }

    /// A host has failed: the test is told, and everything ends.
    pub(crate) fn fail(&self, side: Side, payload: &(dyn std::any::Any + Send)) {
        if payload.is::<Over>() {
            return;
        }
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let mut state = self.state();
        state.failure = Some(format!("{side:?}: {}", text.unwrap_or_default()));
        drop(state);
        self.wake_all();
    }

    /// All threads end.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.wake_all();
    }

    fn wake_all(&self) {
        for changed in &self.changed {
            changed.notify_all();
        }
    }
}
