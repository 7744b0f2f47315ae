//! Connections of the simulated host to others: what is received takes time, in which the rest of
//! the host lives on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use storage::HostError;
use toolstack::channel::{Broken, Channel, ChannelId, Received};
use toolstack::lanes::{LaneCall, LaneCounts, LaneJob, LaneOut, LaneReceiver, LaneSender};
use toolstack::moves::Reach;
use toolstack::perform::LIMITS;
use xen::Uuid;

use crate::agenda::Time;
use crate::machine::Machine;
use crate::network::Want;

/// One end of a connection, as dom0's kernel has it.
pub trait Line: fmt::Debug {
    /// Sends bytes; returns how many were taken, none if there is no room.
    ///
    /// # Errors
    /// The connection is dead.
    fn send(&mut self, now: Time, bytes: &[u8]) -> Result<usize, Broken>;

    /// Receives what has arrived, without waiting.
    ///
    /// # Errors
    /// The connection is dead.
    fn receive(&mut self, now: Time, into: &mut [u8]) -> Result<Received, Broken>;

    /// Lets other hosts live until something changes at this end, or up to `until`. Returns when that
    /// is.
    fn wait(&mut self, now: Time, until: Time, want: Want) -> Time;

    /// Closes this end.
    fn close(&mut self, now: Time);

    /// This end's host has lost power: the other end is told nothing.
    fn vanish(&mut self, now: Time);
}

/// Connects to other hosts.
pub trait Dial: fmt::Debug {
    /// Connects to another host.
    ///
    /// # Errors
    /// It cannot be called.
    fn dial(&mut self, now: Time, peer: &Reach) -> Result<Box<dyn Line>, HostError>;

    /// Opens a further connection of a move.
    ///
    /// # Errors
    /// It cannot be called.
    fn dial_lane(&mut self, now: Time, call: &LaneCall) -> Result<Box<dyn Line>, HostError>;

    /// One that came here.
    fn take_lane(&mut self, transfer: Uuid, number: u8) -> Option<Box<dyn Line>>;
}

/// What a call costs.
const CALL_NS: u64 = 3_000;

/// An open connection, with what was given back.
#[derive(Debug)]
struct Open {
    line: Box<dyn Line>,
    unread: Vec<u8>,
}

/// The daemon's connections.
#[derive(Debug)]
pub(crate) struct Exchange {
    machine: Machine,
    open: BTreeMap<ChannelId, Rc<RefCell<Open>>>,
    last: u64,
    dial: Option<Box<dyn Dial>>,
}

impl Exchange {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, open: BTreeMap::new(), last: 0, dial: None }
    }

    pub(crate) fn set_dial(&mut self, dial: Box<dyn Dial>) {
        self.dial = Some(dial);
    }

    /// Keeps a connection that a client has handed over.
    pub(crate) fn add(&mut self, line: Box<dyn Line>) -> ChannelId {
        self.last += 1;
        let id = ChannelId(self.last);
        self.open.insert(id, Rc::new(RefCell::new(Open { line, unread: Vec::new() })));
        id
    }

    /// The connection, for one work.
    pub(crate) fn get(&self, id: ChannelId) -> Option<SimChannel> {
        let open = Rc::clone(self.open.get(&id)?);
        Some(SimChannel { machine: self.machine.clone(), open, id, keeper: Keeper::Exchange })
    }

    /// Connects to a peer. The connection is closed when it is dropped.
    pub(crate) fn connect(&mut self, peer: &Reach) -> Result<SimChannel, HostError> {
        if !self.machine.get_mut().faults.count_action() {
            return Err(HostError::Refused("the daemon was killed".to_owned()));
        }
        let now = self.machine.get().now();
        let dial = self.dial.as_mut().ok_or(HostError::Missing)?;
        let line = dial.dial(now, peer)?;
        Ok(self.of_work(line))
    }

    /// A connection that ends with the work that uses it.
    fn of_work(&mut self, line: Box<dyn Line>) -> SimChannel {
        self.last += 1;
        let open = Rc::new(RefCell::new(Open { line, unread: Vec::new() }));
        let (machine, id) = (self.machine.clone(), ChannelId(self.last));
        SimChannel { machine, open, id, keeper: Keeper::Work }
    }

    /// Opens a further connection of a move.
    pub(crate) fn open_lane(&mut self, call: &LaneCall) -> Result<SimLane, HostError> {
        if !self.machine.get_mut().faults.count_action() {
            return Err(HostError::Refused("the daemon was killed".to_owned()));
        }
        let now = self.machine.get().now();
        let line = self.dial.as_mut().ok_or(HostError::Missing)?.dial_lane(now, call)?;
        let machine = self.machine.clone();
        Ok(SimLane { sender: LaneSender::new(self.of_work(line), call), machine })
    }

    /// One that came here.
    pub(crate) fn take_lane(
        &mut self,
        transfer: Uuid,
        number: u8,
    ) -> Result<LaneReceiver<SimChannel>, HostError> {
        let line = self.dial.as_mut().and_then(|it| it.take_lane(transfer, number));
        let channel = self.of_work(line.ok_or(HostError::Missing)?);
        Ok(LaneReceiver::new(channel, transfer, number, LIMITS))
    }

    pub(crate) fn close(&mut self, id: ChannelId) {
        // The connections of a dead daemon are closed by the kernel.
        if !self.machine.get().faults().is_toolstack_dead() {
            self.end(id);
        }
    }

    fn end(&mut self, id: ChannelId) {
        if let Some(open) = self.open.remove(&id) {
            let now = self.machine.get().now();
            open.borrow_mut().line.close(now);
        }
    }

    /// The daemon has ended: the kernel closes what it had open.
    pub(crate) fn close_all(&mut self) {
        while let Some((&id, _)) = self.open.first_key_value() {
            self.end(id);
        }
    }

    /// The host has lost power.
    pub(crate) fn vanish(&mut self) {
        let now = self.machine.get().now();
        for open in std::mem::take(&mut self.open).into_values() {
            open.borrow_mut().line.vanish(now);
        }
    }

    /// Open connections.
    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }
}

/// A further connection, which is worked on by the same thread.
pub(crate) struct SimLane {
    sender: LaneSender<SimChannel>,
    machine: Machine,
}

impl LaneOut for SimLane {
    fn give(&mut self, job: LaneJob, _timeout_ns: u64) -> Result<Option<LaneJob>, Broken> {
        let machine = self.machine.clone();
        self.sender.perform(job, &|| machine.get().now().0, &mut || false).map(|()| None)
    }

    fn counts(&self) -> LaneCounts {
        self.sender.counts()
    }
}

/// Who closes a connection.
#[derive(Debug, Eq, PartialEq)]
enum Keeper {
    Exchange,
    Work,
}

/// The product's interface to a connection.
#[derive(Debug)]
pub struct SimChannel {
    machine: Machine,
    open: Rc<RefCell<Open>>,
    id: ChannelId,
    keeper: Keeper,
}

impl SimChannel {
    fn now(&self) -> Time {
        self.machine.get().now()
    }

    /// An action of the daemon, which may be its last.
    fn act(&self) -> Result<(), Broken> {
        self.machine.gap();
        let xen = &mut *self.machine.get_mut();
        if xen.faults.count_action() {
            xen.spend(CALL_NS);
            return Ok(());
        }
        Err(Broken("the daemon was killed".to_owned()))
    }

    /// Lets both hosts live until something changes at this end, at most until then.
    fn wait(&self, until: Time, want: Want) {
        let now = self.now();
        let next = self.machine.next_event().map_or(until, |next| next.max(now).min(until));
        let changes = self.open.borrow_mut().line.wait(now, next, want).max(now).min(next);
        if changes < next || !self.machine.pass_event(next) {
            let xen = &mut *self.machine.get_mut();
            xen.now = xen.now.max(changes);
        }
    }

    fn detail(&self, what: fmt::Arguments<'_>) {
        let xen = &mut *self.machine.get_mut();
        xen.trace.detail(xen.now, format_args!("channel {}: {what}", self.id.0));
    }
}

impl Channel for SimChannel {
    fn send(&mut self, bytes: &[u8], timeout_ns: u64) -> Result<usize, Broken> {
        let before = self.machine.get().faults().is_toolstack_dead();
        if let Err(dies) = self.act() {
            // The write was under way.
            if !before {
                let half = &bytes[..bytes.len() / 2];
                let _taken = self.open.borrow_mut().line.send(self.now(), half);
            }
            return Err(dies);
        }
        self.detail(format_args!("sends {} bytes", bytes.len()));
        let until = self.now().after(timeout_ns);
        let mut sent = 0;
        while sent < bytes.len() {
            let now = self.now();
            let taken = self.open.borrow_mut().line.send(now, &bytes[sent..])?;
            sent += taken;
            match taken {
                0 if now >= until => break,
                0 => self.wait(until, Want::Room),
                _ => {}
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, Broken> {
        self.act()?;
        {
            let open = &mut *self.open.borrow_mut();
            if !open.unread.is_empty() {
                let count = open.unread.len().min(into.len());
                into[..count].copy_from_slice(&open.unread[..count]);
                open.unread.drain(..count);
                return Ok(Received::Bytes(count));
            }
        }
        let until = self.now().after(timeout_ns);
        loop {
            let now = self.now();
            let received = self.open.borrow_mut().line.receive(now, into);
            match received {
                Ok(Received::Nothing) if now < until => self.wait(until, Want::Input),
                Ok(Received::Nothing) => return Ok(Received::Nothing),
                other => {
                    // It may be killed before it knows of what has come.
                    self.act()?;
                    self.detail(format_args!("receives {other:?}"));
                    return other;
                }
            }
        }
    }

    fn unread(&mut self, bytes: &[u8]) {
        let unread = &mut self.open.borrow_mut().unread;
        unread.splice(0..0, bytes.iter().copied());
    }
}

impl Drop for SimChannel {
    fn drop(&mut self) {
        if self.keeper == Keeper::Work {
            let now = self.now();
            self.open.borrow_mut().line.close(now);
        }
    }
}
