//! An end of a connection between the hosts.

use std::fmt;
use std::sync::Arc;

use sim::{CableId, Dial, End, Line, SimOs, Time, Want};
use storage::HostError;
use toolstack::channel::{Broken, Received};
use toolstack::lanes::LaneCall;
use toolstack::moves::Reach;
use xen::Uuid;

use crate::baton::{Baton, Mail, Side, State};

/// A host's way to the others.
#[derive(Clone)]
pub(crate) struct Stand {
    pub(crate) baton: Arc<Baton>,
    pub(crate) side: Side,
    pub(crate) os: SimOs,
}

impl fmt::Debug for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stand").field(&self.side).finish()
    }
}

impl Stand {
    /// Lets others live up to a time.
    pub(crate) fn pass(&self, until: Time) {
        self.baton.pass(self.side.index(), until, &mut |state| self.show(state));
        self.look();
    }

    /// The same, until there is an errand or mail.
    pub(crate) fn idle(&self, until: Time) {
        self.baton.idle(self.side, until, &mut |state| self.show(state));
        self.look();
    }

    fn show(&self, state: &mut State) {
        let files = &mut state.files[self.side.index()];
        self.os.show_shared(files);
    }

    /// Sees what the other host has done to the shared files.
    fn look(&self) {
        let state = self.baton.state();
        self.os.see_shared(&state.files[self.side.other().index()]);
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct PairLine {
    pub(crate) stand: Stand,
    pub(crate) cable: CableId,
    pub(crate) end: End,
}

impl Line for PairLine {
    fn send(&mut self, now: Time, bytes: &[u8]) -> Result<usize, Broken> {
        let (cable, end) = (self.cable, self.end);
        self.stand.baton.state().change(|network| network.send(cable, end, now, bytes))
    }

    fn receive(&mut self, now: Time, into: &mut [u8]) -> Result<Received, Broken> {
        let (cable, end) = (self.cable, self.end);
        self.stand.baton.state().change(|network| network.receive(cable, end, now, into))
    }

    fn wait(&mut self, _now: Time, until: Time, want: Want) -> Time {
        let (stand, what) = (&self.stand, (self.cable, self.end, want));
        let changes = stand.baton.wait(stand.side, until, what, &mut |state| stand.show(state));
        stand.look();
        changes
    }

    fn close(&mut self, now: Time) {
        let (cable, end) = (self.cable, self.end);
        self.stand.baton.state().change(|network| network.close(cable, end, now));
    }

    fn vanish(&mut self, now: Time) {
        let (cable, end) = (self.cable, self.end);
        self.stand.baton.state().change(|network| network.vanish(cable, end, now));
    }
}

impl Dial for Stand {
    fn dial(&mut self, now: Time, _peer: &Reach) -> Result<Box<dyn Line>, HostError> {
        let other = self.side.other();
        let mut state = self.baton.state();
        let is_cut = state.network.is_cut();
        let cable = state.network.connect(now);
        if !is_cut {
            let arrives = now.after(state.network.config().latency_ns);
            state.mail[other.index()].push_back((arrives, Mail::Visit(cable)));
            state.call(other, arrives);
        }
        drop(state);
        Ok(Box::new(PairLine { stand: self.clone(), cable, end: End::Near }))
    }

    fn dial_lane(&mut self, now: Time, call: &LaneCall) -> Result<Box<dyn Line>, HostError> {
        let mut state = self.baton.state();
        let cable = state.network.connect(now);
        let other = self.side.other().index();
        state.lanes[other].insert((call.transfer, call.lane.number), cable);
        drop(state);
        Ok(Box::new(PairLine { stand: self.clone(), cable, end: End::Near }))
    }

    fn take_lane(&mut self, transfer: Uuid, number: u8) -> Option<Box<dyn Line>> {
        let cable = self.baton.state().lanes[self.side.index()].remove(&(transfer, number))?;
        Some(Box::new(PairLine { stand: self.clone(), cable, end: End::Far }))
    }
}
