//! The host's event loop: delivers events to the store, the backends and the guests.
//!
//! It owns the simulation's queue. A step takes the next event, advances time to it and runs the
//! party concerned; resulting events go back into the queue.

use std::collections::{BTreeMap, BTreeSet};

use toolstack::device_model::Process;
use xen::{DomId, EvtchnPort};
use xenstore::client::ClientError;

use crate::agenda::{Agenda, Time};
use crate::backend::Kernel;
use crate::consoled::Consoled;
use crate::guest::{Guest, Next};
use crate::machine::{Domain, Dying, Machine, Occurrence};
use crate::models::Models;
use crate::store::{Store, StorePort};

#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A domain's vCPU runs; the number distinguishes it from a later domain with the same domid.
    Guest {
        domid: DomId,
        unique_id: u64,
    },
    Kernel,
    Consoled,
    Console(EvtchnPort),
    StoreRing(DomId),
    DomExc,
    Look,
    Model(Process),
}

/// Latency of a wake-up, in nanoseconds.
const GUEST_NS: u64 = 4_000;
const KERNEL_NS: u64 = 60_000;
const DAEMON_NS: u64 = 30_000;

/// Everything on the host but the toolstack.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) store: Store,
    pub(crate) kernel: Kernel,
    pub(crate) consoled: Consoled,
    models: Models,
    guests: BTreeMap<DomId, (u64, Guest)>,
    agenda: Agenda<Happening>,
    /// Guests already in the agenda because of an event.
    woken: BTreeSet<DomId>,
    kernel_woken: bool,
    consoled_woken: bool,
}

impl World {
    pub(crate) fn new(
        machine: Machine,
        store: Store,
        kernel: Kernel,
        consoled: Consoled,
        models: Models,
    ) -> Self {
        Self {
            machine,
            store,
            kernel,
            consoled,
            models,
            guests: BTreeMap::new(),
            agenda: Agenda::new(),
            woken: BTreeSet::new(),
            kernel_woken: false,
            consoled_woken: false,
        }
    }

    /// Guests that have booted and still exist.
    pub(crate) fn guests(&self) -> usize {
        self.guests.len()
    }

    /// Time of the next event.
    pub(crate) fn next_time(&mut self) -> Option<Time> {
        self.collect();
        let due = self.machine.get().next_due();
        [self.agenda.next_time(), due].into_iter().flatten().min()
    }

    /// Runs the next event if it is due by `until`. Returns whether there was one.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        self.collect();
        let due = self.machine.get().next_due();
        if let Some(due) = due
            && due <= until
            && self.agenda.next_time().is_none_or(|next| due <= next)
        {
            self.machine.turn(due);
            let mut xen = self.machine.get_mut();
            xen.now = xen.now.max(due);
            xen.settle();
            xen.look_who_runs();
            return true;
        }
        let Some((when, happening)) = self.agenda.pop(until) else { return false };
        self.machine.turn(when);
        {
            let mut xen = self.machine.get_mut();
            xen.now = xen.now.max(when);
        }
        self.happen(happening);
        self.machine.get_mut().look_who_runs();
        self.collect();
        true
    }

    /// Runs due events while a hypercall is preempted.
    pub(crate) fn catch_up(&mut self) {
        let now = self.machine.get().now();
        while self.step(now) {}
    }

    fn put(&mut self, delay_ns: u64, happening: Happening) {
        let when = {
            let mut xen = self.machine.get_mut();
            let jitter = xen.chance(delay_ns / 4 + 1);
            xen.now.after(delay_ns + jitter)
        };
        self.agenda.put(when, happening);
    }

    /// Puts events of the hypervisor and the store into the agenda.
    fn collect(&mut self) {
        for (process, after_ns) in self.models.take_new() {
            self.put(after_ns, Happening::Model(process));
        }
        loop {
            let occurrences = self.machine.get_mut().take_occurrences();
            let ready = self.store.take_ready();
            if occurrences.is_empty() && ready.is_empty() {
                return;
            }
            for occurrence in occurrences {
                self.collect_one(occurrence);
            }
            for connection in ready {
                if connection == self.kernel.transport().connection() {
                    self.wake_kernel();
                } else if connection == self.consoled.transport().connection() {
                    self.wake_consoled();
                }
            }
        }
    }

    fn wake_kernel(&mut self) {
        if !std::mem::replace(&mut self.kernel_woken, true) {
            self.put(KERNEL_NS, Happening::Kernel);
        }
    }

    fn wake_consoled(&mut self) {
        if !std::mem::replace(&mut self.consoled_woken, true) {
            self.put(DAEMON_NS, Happening::Consoled);
        }
    }

    fn wake_guest(&mut self, domid: DomId, delay_ns: u64) {
        let unique_id = self.machine.get().domain(domid).map(|domain| domain.unique_id);
        if let Some(unique_id) = unique_id
            && self.woken.insert(domid)
        {
            self.put(delay_ns, Happening::Guest { domid, unique_id });
        }
    }

    fn collect_one(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Event(DomId::DOM0, port) => match self.store.port(port) {
                Some(StorePort::Ring(domid)) => self.put(DAEMON_NS, Happening::StoreRing(domid)),
                Some(StorePort::DomExc) => self.put(DAEMON_NS, Happening::DomExc),
                None if self.consoled.owns(port) => {
                    self.put(DAEMON_NS, Happening::Console(port));
                }
                None if self.machine.get().toolstack_ports.contains(&port) => {}
                // A backend's data path is not simulated: the event is consumed.
                None => drop(self.machine.get_mut().evtchn_take(DomId::DOM0, port)),
            },
            Occurrence::Event(domid, port) => {
                self.machine.get_mut().evtchn_take(domid, port);
                if let Some((_, guest)) = self.guests.get_mut(&domid) {
                    guest.note_event(port);
                    self.wake_guest(domid, GUEST_NS);
                }
            }
            Occurrence::Runnable(domid) => self.wake_guest(domid, GUEST_NS),
            Occurrence::Gone(domid) => {
                self.woken.remove(&domid);
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Guest { domid, unique_id } => self.run_guest(domid, unique_id),
            Happening::Kernel => {
                self.kernel_woken = false;
                let result = self.kernel.run();
                self.mourn("dom0's kernel", result);
            }
            Happening::Consoled => {
                self.consoled_woken = false;
                let result = self.consoled.run();
                self.mourn("xenconsoled", result);
            }
            Happening::Console(port) => self.consoled.drain(port),
            Happening::StoreRing(domid) => self.store.serve_ring(domid),
            Happening::DomExc => {
                if let Some(due) = self.store.handle_dom_exc() {
                    let now = self.machine.get().now();
                    self.agenda.put(now.max(due), Happening::Look);
                }
            }
            Happening::Model(process) => match self.models.run(process) {
                Ok(Some(after_ns)) => self.put(after_ns, Happening::Model(process)),
                Ok(None) => {}
                result => self.mourn("a device model", result.map(drop)),
            },
            Happening::Look => {
                self.store.poll_changed_domains();
                self.bury();
            }
        }
    }

    /// A part of dom0 lost its store connection; it cannot continue.
    fn mourn(&mut self, who: &str, result: Result<(), ClientError>) {
        if let Err(error) = result
            && !matches!(error, ClientError::Transport(xen::Errno::EAGAIN))
        {
            let xen = &mut *self.machine.get_mut();
            xen.trace.note(xen.now, format_args!("{who}: {error}"));
        }
    }

    /// Forgets guests whose domain is dead.
    fn bury(&mut self) {
        let machine = self.machine.clone();
        self.guests.retain(|domid, (unique_id, _)| {
            let xen = machine.get();
            let domain = xen.domain(*domid);
            domain.is_some_and(|domain| {
                domain.unique_id == *unique_id && domain.dying == Dying::Alive
            })
        });
    }

    fn run_guest(&mut self, domid: DomId, unique_id: u64) {
        self.woken.remove(&domid);
        let runs = {
            let xen = self.machine.get();
            xen.domain(domid).is_some_and(|it| it.unique_id == unique_id && it.is_running())
        };
        if !runs {
            // Paused: unpausing makes it runnable again, and it then handles missed events.
            return;
        }
        if self.guests.get(&domid).is_some_and(|(known, _)| *known != unique_id) {
            self.guests.remove(&domid);
        }
        let is_served = {
            let xen = self.machine.get();
            let needs = xen.domain(domid).is_some_and(Domain::has_device_model);
            !needs || self.models.os().get().models.serves(domid)
        };
        let next = match self.guests.get_mut(&domid) {
            // Its first access to emulated hardware never ends.
            _ if !is_served => Next::Block,
            Some((_, guest)) => guest.run(),
            None => match Guest::boot(&self.machine, &self.store, domid) {
                Ok((guest, next)) => {
                    self.guests.insert(domid, (unique_id, guest));
                    next
                }
                Err(why) => {
                    let xen = &mut *self.machine.get_mut();
                    xen.trace.note(xen.now, format_args!("guest {domid} crashes: {why}"));
                    Next::Shutdown(xen::ShutdownReason::Crash)
                }
            },
        };
        let activity = match next {
            Next::Block | Next::Shutdown(_) => crate::machine::VcpuActivity::Blocks,
            Next::Sleep(_) => crate::machine::VcpuActivity::Runs,
        };
        self.machine.get_mut().set_vcpu_activity(domid, activity);
        match next {
            Next::Block => {}
            Next::Sleep(nanoseconds) => self.wake_guest(domid, nanoseconds),
            Next::Shutdown(reason) => self.machine.get_mut().guest_shutdown(domid, reason),
        }
    }
}
