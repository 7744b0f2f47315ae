//! The handle for the product's code: [`xen::Hypervisor`] on the simulated machine.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use xen::{
    ARENA_BYTES_FULL, DomId, Errno, EvtchnPort, ForeignRange, Hypervisor, Op, PAGE_BYTES, Piece,
    Resource,
};

use super::hypercall::{Arena, Call, Progress};
use super::{Release, SimXen};
use crate::agenda::Time;

/// The machine, shared by everything that runs on it. Single-threaded: borrows never overlap.
#[derive(Clone, Debug)]
pub struct Machine {
    xen: Rc<RefCell<SimXen>>,
    /// Runs before each action of the toolstack.
    gap: Gap,
    /// Runs while one of its hypercalls is preempted: the rest of the host continues.
    meanwhile: Gap,
    /// The host's events, while the toolstack waits for something.
    passing: Passing,
    /// Other hosts' turn to live up to a time.
    turn: Turn,
}

/// The rest of the host.
pub(crate) trait Living {
    /// When its next event happens.
    fn next_time(&mut self) -> Option<Time>;
    /// Runs its next event up to this time; false if there is none.
    fn step(&mut self, until: Time) -> bool;
}

/// The host's events, for the toolstack's waits.
#[derive(Clone, Default)]
struct Passing(Rc<RefCell<Option<Box<dyn Living>>>>);

/// Lets other hosts live up to a time.
#[derive(Clone, Default)]
struct Turn(Rc<RefCell<Option<Yielding>>>);

/// What lets other hosts live up to a time.
pub type Yielding = Box<dyn FnMut(Time)>;

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Turn")
    }
}

impl std::fmt::Debug for Passing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passing")
    }
}

/// A hook in which others act.
#[derive(Clone, Default)]
struct Gap(Rc<RefCell<Option<Doing>>>);

/// The action of a hook.
pub type Doing = Box<dyn FnMut()>;

impl std::fmt::Debug for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gap")
    }
}

impl Gap {
    fn set(&self, doing: Option<Doing>) {
        *self.0.borrow_mut() = doing;
    }

    fn pass(&self) {
        // Hooks do not nest.
        let doing = self.0.borrow_mut().take();
        if let Some(mut doing) = doing {
            doing();
            self.0.borrow_mut().get_or_insert(doing);
        }
    }
}

impl Machine {
    #[must_use]
    pub fn new(xen: SimXen) -> Self {
        let xen = Rc::new(RefCell::new(xen));
        Self {
            xen,
            gap: Gap::default(),
            meanwhile: Gap::default(),
            passing: Passing::default(),
            turn: Turn::default(),
        }
    }

    /// Sets or clears the hook before each action of the toolstack.
    pub fn set_gap(&self, gap: Option<Doing>) {
        self.gap.set(gap);
    }

    /// Sets or clears the hook for preempted hypercalls of the toolstack.
    pub fn set_meanwhile(&self, meanwhile: Option<Doing>) {
        self.meanwhile.set(meanwhile);
    }

    /// Sets what runs the host's events while the toolstack waits.
    pub(crate) fn set_passing(&self, living: Box<dyn Living>) {
        *self.passing.0.borrow_mut() = Some(living);
    }

    /// Sets what lets other hosts live. It is called before each action of the toolstack and before
    /// each event of the host, with its time.
    pub fn set_turn(&self, turn: Yielding) {
        *self.turn.0.borrow_mut() = Some(turn);
    }

    /// Something happens here at this time.
    pub(crate) fn turn(&self, when: Time) {
        if let Some(turn) = &mut *self.turn.0.borrow_mut() {
            turn(when);
        }
    }

    /// When the host's next event happens, for a toolstack that waits.
    pub(crate) fn next_event(&self) -> Option<Time> {
        self.passing.0.borrow_mut().as_mut()?.next_time()
    }

    /// Runs the host's next event up to this time; false if there is none.
    pub(crate) fn pass_event(&self, until: Time) -> bool {
        self.passing.0.borrow_mut().as_mut().is_some_and(|living| living.step(until))
    }

    /// The toolstack is about to act.
    pub(crate) fn gap(&self) {
        if self.turn.0.borrow().is_some() {
            let now = self.get().now();
            self.turn(now);
        }
        self.gap.pass();
    }

    /// A hypercall of the toolstack was preempted and will continue.
    fn preempted(&self) {
        self.meanwhile.pass();
        self.gap.pass();
    }

    /// Borrows the machine.
    #[must_use]
    pub fn get(&self) -> Ref<'_, SimXen> {
        self.xen.borrow()
    }

    /// Borrows the machine mutably.
    #[must_use]
    pub fn get_mut(&self) -> RefMut<'_, SimXen> {
        self.xen.borrow_mut()
    }

    /// A hypercall interface for dom0.
    #[must_use]
    pub fn hypervisor(&self) -> SimHypervisor {
        self.hypervisor_of(DomId::DOM0)
    }

    /// A hypercall interface for a domain that may not control others.
    #[must_use]
    pub fn hypervisor_of(&self, caller: DomId) -> SimHypervisor {
        let arena = vec![0; ARENA_BYTES_FULL];
        SimHypervisor {
            machine: self.clone(),
            caller,
            process: Process::Toolstack,
            arena,
            channels: Vec::new(),
        }
    }

    /// The store daemon's hypercall interface: faults are for the toolstack alone.
    pub(crate) fn hypervisor_of_store(&self) -> SimHypervisor {
        let mut hypervisor = self.hypervisor();
        hypervisor.process = Process::Store;
        hypervisor
    }
}

/// A domain's interface to the simulated Xen, with its own hypercall memory.
#[derive(Debug)]
pub struct SimHypervisor {
    machine: Machine,
    caller: DomId,
    process: Process,
    arena: Vec<u8>,
    /// Its own event channels.
    channels: Vec<EvtchnPort>,
}

impl Drop for SimHypervisor {
    /// The kernel closes a process's channels.
    fn drop(&mut self) {
        for port in std::mem::take(&mut self.channels) {
            let _closed = self.machine.get_mut().evtchn_close(self.caller, port);
        }
    }
}

/// The process that issues the hypercalls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Process {
    Toolstack,
    Store,
}

/// The arena's pretended address.
const ARENA_ADDRESS: u64 = 0x7f5c_a000_0000;
/// Mapping foreign frames costs this much, and this much more for each of them, in nanoseconds.
const MAP_NS: u64 = 4_000;
const MAP_FRAME_NS: u64 = 150;

impl SimHypervisor {
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Which Xen this is.
    #[must_use]
    pub fn release(&self) -> Release {
        self.machine.get().release()
    }
}

/// The machine frames of a foreign range, each with its part of the range.
fn frames_of(
    xen: &mut SimXen,
    caller: DomId,
    range: ForeignRange<'_>,
    bytes: usize,
    write: Access,
) -> Result<Vec<u64>, Errno> {
    let room = (range.frames.len() * PAGE_BYTES).checked_sub(range.offset_bytes);
    assert!(room.is_some_and(|room| bytes <= room), "the bytes do not fit into the frames");
    if !xen.faults.count_action() {
        return Err(Errno::EIO);
    }
    *xen.calls.entry("map_foreign").or_default() += 1;
    if let Some(errno) = xen.faults.strike("map_foreign") {
        xen.trace.note(xen.now, format_args!("fault: map_foreign fails with {errno:?}"));
        return Err(errno);
    }
    if caller != DomId::DOM0 {
        return Err(Errno::EPERM);
    }
    xen.judge("map_foreign", range.domid);
    xen.live(range.domid)?;
    let mut mfns = Vec::with_capacity(range.frames.len());
    for &frame in range.frames {
        let mfn = xen.mfn_to_use(range.domid, frame).ok_or(Errno::EINVAL)?;
        // A page table must not be mapped writable.
        if write == Access::Write && xen.is_table(range.domid, mfn) {
            return Err(Errno::EINVAL);
        }
        mfns.push(mfn);
    }
    xen.spend(MAP_NS + MAP_FRAME_NS * mfns.len() as u64 + bytes as u64 / 16);
    Ok(mfns)
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Access {
    Read,
    Write,
}

/// Linux keeps a hypercall's result in an `int`, and takes a negative one for an error.
fn as_int(result: Result<u64, Errno>) -> Result<u64, Errno> {
    let [a, b, c, d, ..] = result?.to_le_bytes();
    let kept = i32::from_le_bytes([a, b, c, d]);
    u64::try_from(kept).map_err(|_| Errno(kept.wrapping_neg()))
}

impl SimHypervisor {
    /// An action on event channels, which may be the last or fail.
    fn channel_call<R>(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut SimXen) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        const NS: u64 = 2_000;
        self.machine.gap();
        let xen = &mut *self.machine.get_mut();
        if !xen.faults.count_action() {
            return Err(Errno::EIO);
        }
        *xen.calls.entry(name).or_default() += 1;
        if let Some(errno) = xen.faults.strike(name) {
            xen.trace.note(xen.now, format_args!("fault: {name} fails with {errno:?}"));
            return Err(errno);
        }
        xen.spend(NS);
        call(xen)
    }
}

impl Hypervisor for SimHypervisor {
    fn arena(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    fn arena_address(&self) -> u64 {
        ARENA_ADDRESS
    }

    fn hypercall(&mut self, op: Op, args: [u64; 5]) -> Result<u64, Errno> {
        let mut arena = Arena { address: ARENA_ADDRESS, bytes: &mut self.arena };
        let mut call = Call::new(op, args);
        if self.process == Process::Store {
            return self.machine.get_mut().hypercall_of_store(self.caller, &mut arena, &mut call);
        }
        self.machine.gap();
        if !self.machine.get_mut().faults.count_action() {
            return Err(Errno::EIO);
        }
        // The kernel continues a preempted call by itself: signals do not interrupt it, and the
        // caller does not notice.
        loop {
            let mut xen = self.machine.get_mut();
            let progress = xen.hypercall(self.caller, &mut arena, &mut call);
            xen.look_who_runs();
            drop(xen);
            match progress {
                Progress::Done(result) => return as_int(result),
                Progress::Preempted => self.machine.preempted(),
            }
        }
    }

    fn write_foreign(
        &mut self,
        range: ForeignRange<'_>,
        pieces: &[Piece<'_>],
    ) -> Result<(), Errno> {
        let bytes = Piece::joined(pieces);
        self.machine.gap();
        let mut xen = self.machine.get_mut();
        let mfns = frames_of(&mut xen, self.caller, range, bytes.len(), Access::Write)?;
        let mut rest = bytes.as_slice();
        let mut skip = range.offset_bytes;
        for mfn in mfns {
            if skip >= PAGE_BYTES {
                skip -= PAGE_BYTES;
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(PAGE_BYTES - skip));
            xen.frames.write(mfn, skip, now);
            (rest, skip) = (later, 0);
        }
        Ok(())
    }

    fn read_foreign(&mut self, range: ForeignRange<'_>, into: &mut [u8]) -> Result<(), Errno> {
        self.machine.gap();
        let mut xen = self.machine.get_mut();
        let mfns = frames_of(&mut xen, self.caller, range, into.len(), Access::Read)?;
        let mut rest = into;
        let mut skip = range.offset_bytes;
        for mfn in mfns {
            if skip >= PAGE_BYTES {
                skip -= PAGE_BYTES;
                continue;
            }
            let here = rest.len().min(PAGE_BYTES - skip);
            let (now, later) = rest.split_at_mut(here);
            xen.frames.read(mfn, skip, now);
            (rest, skip) = (later, 0);
        }
        Ok(())
    }

    fn write_resource(
        &mut self,
        domid: DomId,
        resource: Resource,
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        self.machine.gap();
        let xen = &mut *self.machine.get_mut();
        if !xen.faults.count_action() {
            return Err(Errno::EIO);
        }
        *xen.calls.entry("map_resource").or_default() += 1;
        if let Some(errno) = xen.faults.strike("map_resource") {
            xen.trace.note(xen.now, format_args!("fault: map_resource fails with {errno:?}"));
            return Err(errno);
        }
        if self.caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        xen.judge("map_resource", domid);
        xen.spend(MAP_NS);
        match resource {
            Resource::GrantTable => xen.write_grant_table(domid, offset_bytes, bytes),
        }
    }

    fn now_ns(&self) -> u64 {
        self.machine.get().now().0
    }

    fn let_pass(&mut self, ns: u64) {
        let until = self.machine.get().now().after(ns);
        while !self.machine.get().faults.is_toolstack_dead() && self.machine.pass_event(until) {}
        let mut xen = self.machine.get_mut();
        xen.now = xen.now.max(until);
    }

    fn bind_channel(&mut self, domid: DomId, port: EvtchnPort) -> Result<EvtchnPort, Errno> {
        let caller = self.caller;
        let bound = self.channel_call("bind_interdomain", |xen| {
            xen.judge("bind_interdomain", domid);
            let bound = xen.evtchn_bind_interdomain(caller, domid, port)?;
            xen.toolstack_ports.insert(bound);
            Ok(bound)
        })?;
        self.channels.push(bound);
        Ok(bound)
    }

    fn notify_channel(&mut self, port: EvtchnPort) -> Result<(), Errno> {
        let caller = self.caller;
        self.channel_call("evtchn_send", |xen| xen.evtchn_send(caller, port))
    }

    fn unbind_channel(&mut self, port: EvtchnPort) -> Result<(), Errno> {
        let caller = self.caller;
        self.channel_call("evtchn_close", |xen| xen.evtchn_close(caller, port))?;
        self.channels.retain(|channel| *channel != port);
        Ok(())
    }

    fn wait_channel(&mut self, timeout_ns: u64) -> Result<bool, Errno> {
        let until = self.machine.get().now().after(timeout_ns);
        loop {
            if self.machine.get().faults.is_toolstack_dead() {
                return Err(Errno::EIO);
            }
            let caller = self.caller;
            let mut xen = self.machine.get_mut();
            let fired = self.channels.iter().filter(|port| xen.evtchn_take(caller, **port)).count();
            drop(xen);
            if fired > 0 {
                return Ok(true);
            }
            if !self.machine.pass_event(until) {
                let mut xen = self.machine.get_mut();
                xen.now = xen.now.max(until);
                return Ok(false);
            }
        }
    }
}
