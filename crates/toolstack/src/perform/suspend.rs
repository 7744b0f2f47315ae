//! The suspend of a guest, and its resume.
//!
//! The guest is asked by its own event channel if it offers one, else by `control/shutdown`. That it
//! has suspended is announced on a channel that we make in the domain, for every guest: Xen signals
//! it in place of the VIRQ (`XEN_DOMCTL_subscribe`), so the store is not involved. The channel is a
//! hint: the guest owns the port, so each event is confirmed, and a slow poll runs beside it.

use std::ops::ControlFlow;

use xen::{
    DomId, DomainInfo, DomainKind, DomainRef, EvtchnPeer, EvtchnPort, HvmParam, Hypervisor,
    ShutdownReason, Uuid,
};
use xenstore::client::{PreparedCommit, Transport};

use super::{Performer, failure, refused, store};
use crate::steps::moves::GoOn;
use crate::work::{Failure, IdentityCheck, Part, WorkMonitor};

/// How long a guest may take to acknowledge a request in `control/shutdown`, as in libxl.
const ACKNOWLEDGE_SECONDS: u64 = 60;
/// How long it may then take to suspend. Linux gives up freezing its tasks after 20 s
/// (`/sys/power/pm_freeze_timeout`).
const FREEZE_SECONDS: u64 = 30;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Interval of the poll beside the channel. A shorter one would take CPU time from the guest on its way to the suspend,
/// and helps only against guests that close our port.
const POLL_MS: u64 = 50;
/// Events that are taken before a suspend: one of each end, and what the guest sends meanwhile.
const PENDING_MAX: u32 = 8;

/// Offset of `user_regs.rax` in `struct vcpu_guest_context`. Source:
/// `xen/include/public/arch-x86/xen.h`.
const RAX: usize = 520 + 10 * 8;
/// What the guest's suspend call returns when it was cancelled: the guest keeps its devices.
const CANCELLED: u64 = 1;
/// And when it was not: the guest connects to new ones.
const SUSPENDED: u64 = 0;

/// How a guest is asked to suspend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Trigger {
    /// By Xen itself: the guest has no PV drivers to be told.
    Xen,
    /// By an event on its own port.
    Event(EvtchnPort),
    /// By `control/shutdown`.
    Store,
}

/// How waiting for a suspend ended.
enum Ended {
    Suspended,
    /// It has not suspended; why.
    Not(Failure),
}

/// The VM of a suspend.
#[derive(Clone, Copy, Debug)]
struct Suspended<'a> {
    domain: DomainRef,
    uuid: Uuid,
    name: &'a str,
}

impl Suspended<'_> {
    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure(format!("{}: {what}", self.name))
    }
}

/// A suspend of which all is done that can be done before the guest is to stop.
///
/// In order: [prepared](Performer::prepare_suspend), at any time before; [armed](Performer::arm_suspend),
/// a moment before; [triggered](Performer::trigger_suspend), which is all that the guest's pause has of
/// it; resumed or not; ended, or abandoned after a failure. One that is not ended leaves a subscription
/// and bound ports.
#[must_use = "end or abandon it"]
#[derive(Debug)]
pub struct PreparedSuspend {
    domain: DomainRef,
    uuid: Uuid,
    name: String,
    /// The guest's port, by which it wants to be asked.
    guest_port: Option<EvtchnPort>,
    /// Ours in the domain.
    own_port: EvtchnPort,
    /// Our end of it.
    channel: EvtchnPort,
    armed: Option<Armed>,
}

/// What ends with the subscription.
#[derive(Debug)]
struct Armed {
    trigger: Trigger,
    /// The request in the store but for its last message, until it is sent.
    request: Option<PreparedCommit>,
    takes_answer: TakesAnswer,
    /// The guest was asked.
    is_triggered: bool,
}

/// Whether the guest called for its suspend, and so takes the call's answer. As in libxc: a guest
/// without PV drivers was stopped anywhere.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TakesAnswer {
    Yes,
    No,
}

impl PreparedSuspend {
    fn vm(&self) -> Suspended<'_> {
        Suspended { domain: self.domain, uuid: self.uuid, name: &self.name }
    }
}

impl<H: Hypervisor, T: Transport, O> Performer<H, T, O> {
    /// Suspends a running guest. After a failure the guest runs on; if it suspends later, somebody
    /// has to resume it.
    pub fn suspend(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        name: &str,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let Some(mut suspend) = self.prepare_suspend(domain, uuid, name)? else { return Ok(()) };
        let armed = self.arm_suspend(&mut suspend);
        match armed.and_then(|()| self.trigger_suspend(&mut suspend, monitor)) {
            Ok(()) => {
                self.end_suspend(suspend);
                Ok(())
            }
            Err(why) => Err(self.abandon_suspend(suspend, why)),
        }
    }

    /// Prepares the suspend of a running guest; it may then run on for as long as wanted. `None` if
    /// it is suspended.
    pub fn prepare_suspend(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        name: &str,
    ) -> Result<Option<PreparedSuspend>, Failure> {
        let vm = Suspended { domain, uuid, name };
        self.check_identity(domain, IdentityCheck::Needed)?;
        if self.running(vm)?.is_none() {
            return Ok(None);
        }
        let nodes = store::suspend_nodes(&mut self.store, domain.domid, uuid)?;
        let (own_port, channel) = self.own_channel(vm, nodes.own_port)?;
        let (name, guest_port) = (name.to_owned(), nodes.guest_port);
        let armed = None;
        Ok(Some(PreparedSuspend { domain, uuid, name, guest_port, own_port, channel, armed }))
    }

    /// Listens for the suspend, and does what else is left before the guest can be asked by one
    /// message. Not to be kept so for long: where the store serves no batches a transaction is open.
    pub fn arm_suspend(&mut self, suspend: &mut PreparedSuspend) -> Result<(), Failure> {
        self.disarm(suspend);
        let vm = suspend.vm();
        let domid = vm.domain.domid;
        let info = self.running(vm)?;
        let info = info.ok_or_else(|| vm.failure("its guest has suspended by itself"))?;
        let takes_answer = self.takes_answer(&info)?;
        let trigger = match takes_answer {
            TakesAnswer::No => Trigger::Xen,
            TakesAnswer::Yes => {
                // A guest may name any port: not ours, and one that it has for us.
                let offered = suspend.guest_port.filter(|port| *port != suspend.own_port);
                let bound = offered.and_then(|port| self.xen.bind_channel(domid, port).ok());
                bound.map_or(Trigger::Store, Trigger::Event)
            }
        };
        suspend.armed = Some(Armed { trigger, request: None, takes_answer, is_triggered: false });
        let vm = suspend.vm();
        let subscribed = self.xen.subscribe_suspend(domid, suspend.own_port);
        subscribed.map_err(refused("listen for the suspend of", domid))?;
        // Every end is pending when it is bound, which says nothing.
        for _ in 0..PENDING_MAX {
            let fired = self.xen.wait_channel(0);
            if !fired.map_err(refused("wait for an event of", domid))? {
                break;
            }
        }
        if trigger == Trigger::Store {
            let request = store::prepare_suspend_request(&mut self.store, domid, vm.uuid)?;
            suspend.armed.as_mut().expect("armed above").request = Some(request);
        }
        Ok(())
    }

    /// Asks the guest of an armed suspend, and waits until it is confirmed to have suspended.
    pub fn trigger_suspend(
        &mut self,
        suspend: &mut PreparedSuspend,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let domid = suspend.domain.domid;
        let armed = suspend.armed.as_mut().expect("it is armed first");
        armed.is_triggered = true;
        let trigger = armed.trigger;
        match trigger {
            Trigger::Xen => {
                let stopped = self.xen.remote_shutdown(domid, ShutdownReason::Suspend);
                stopped.map_err(refused("suspend", domid))?;
            }
            Trigger::Event(channel) => {
                let sent = self.xen.notify_channel(channel);
                sent.map_err(refused("send an event to", domid))?;
            }
            Trigger::Store => {
                let request = armed.request.take().expect("prepared, and triggered once");
                store::request_prepared(&mut self.store, domid, request)?;
            }
        }
        match self.wait_for_suspend(suspend.vm(), trigger, monitor)? {
            Ended::Suspended => Ok(()),
            Ended::Not(why) => Err(why),
        }
    }

    /// Lets go of all that belongs to a suspend. The guest stays as it is.
    pub fn end_suspend(&mut self, mut suspend: PreparedSuspend) {
        self.disarm(&mut suspend);
        // The domain may be gone, and its ports with it.
        let _gone = self.xen.unbind_channel(suspend.channel);
    }

    /// Ends a suspend that failed, and returns why it did. The guest runs on.
    pub fn abandon_suspend(&mut self, suspend: PreparedSuspend, why: Failure) -> Failure {
        let PreparedSuspend { domain, uuid, ref name, .. } = suspend;
        let name = name.clone();
        let was_asked = suspend.armed.as_ref().is_some_and(|armed| armed.is_triggered);
        self.end_suspend(suspend);
        let vm = Suspended { domain, uuid, name: &name };
        // It may have suspended before the subscription ended; then nobody was told.
        if was_asked && matches!(self.is_suspended(vm), Ok(true)) {
            if let Err(Failure(more)) = self.resume(domain, &name) {
                return Failure(format!("{}; it has suspended since, and stays so: {more}", why.0));
            }
        }
        why
    }

    /// From here on a suspend is announced by the VIRQ again.
    fn disarm(&mut self, suspend: &mut PreparedSuspend) {
        let Some(armed) = suspend.armed.take() else { return };
        // The domain may be gone, and its ports with it.
        let _gone = self.xen.subscribe_suspend(suspend.domain.domid, EvtchnPort(0));
        if let Trigger::Event(channel) = armed.trigger {
            let _gone = self.xen.unbind_channel(channel);
        }
        if let Some(request) = armed.request {
            self.store.discard(request);
        }
    }

    /// Lets the guest of a suspend go on where it was: as few hypercalls as there can be, and the
    /// store is not told yet ([`tell_resumed`](Self::tell_resumed)).
    pub fn resume_at_once(&mut self, suspend: &PreparedSuspend) -> Result<(), Failure> {
        let armed = suspend.armed.as_ref().expect("it is resumed before it is ended");
        self.let_go_on(suspend.domain.domid, armed.takes_answer)
    }

    /// Resumes a suspended guest where it was: it keeps its devices.
    pub fn resume(&mut self, domain: DomainRef, name: &str) -> Result<(), Failure> {
        self.check_identity(domain, IdentityCheck::Needed)?;
        let domid = domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.filter(|info| info.flags.shutdown() == Some(ShutdownReason::Suspend));
        let Some(info) = info else {
            return Err(Failure(format!("{name}: is not suspended")));
        };
        let takes_answer = self.takes_answer(&info)?;
        self.let_go_on(domid, takes_answer)?;
        self.tell_resumed(domid)
    }

    fn let_go_on(&mut self, domid: DomId, takes_answer: TakesAnswer) -> Result<(), Failure> {
        if takes_answer == TakesAnswer::Yes {
            self.answer(domid, CANCELLED)?;
        }
        self.xen.resume_domain(domid).map_err(refused("resume", domid))
    }

    /// Sets what a suspended guest's call returns.
    fn answer(&mut self, domid: DomId, answer: u64) -> Result<(), Failure> {
        let context = self.xen.vcpu_context(domid, 0);
        let mut context = context.map_err(refused("read the registers of", domid))?;
        let answer = answer.to_le_bytes();
        if context[RAX..RAX + 8] == answer {
            return Ok(());
        }
        context[RAX..RAX + 8].copy_from_slice(&answer);
        let set = self.xen.set_vcpu_context(domid, 0, &context);
        set.map_err(refused("set the registers of", domid))
    }

    /// Lets a suspended guest go on as if in another domain: it connects its devices anew.
    ///
    /// Xen takes the place of a vCPU's `vcpu_info` from a PV guest once in a domain's life, and a guest that is told
    /// that its domain is a new one names it again. Linux does not survive the refusal, so a PV guest goes on so only if
    /// somebody wants it.
    pub(crate) fn resume_anew(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        name: &str,
        how: GoOn,
    ) -> Result<(), Failure> {
        let domid = domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        if let Some(info) = info.as_ref().filter(|info| info.kind() == DomainKind::Pv) {
            if how != GoOn::AnewByWish {
                return Err(Failure(format!(
                    "{name}: is a PV guest whose devices were closed, which Linux survives in a new domain only: \
                     `xy save` and `xy restore` give it one"
                )));
            }
            let rings = store::ring_frames(&mut self.store, domid, uuid)?;
            let prepared = migrate::prepare_in_place(&mut self.xen, info, rings);
            prepared.map_err(|error| failure(name, error))?;
        }
        // The registers hold the answer already, unless a daemon was killed when it had just cancelled the suspend.
        if let Some(info) = info.filter(|info| info.flags.shutdown().is_some())
            && self.takes_answer(&info)? == TakesAnswer::Yes
        {
            self.answer(domid, SUSPENDED)?;
        }
        self.xen.resume_domain(domid).map_err(refused("resume", domid))?;
        self.tell_resumed(domid)
    }

    /// Tells the store that a suspended domain runs again, so that it reports a further suspend.
    pub fn tell_resumed(&mut self, domid: DomId) -> Result<(), Failure> {
        match self.store.resume(domid) {
            // It is not introduced.
            Err(error) if error.is_not_found() => Ok(()),
            other => Ok(other?),
        }
    }

    fn takes_answer(&mut self, info: &DomainInfo) -> Result<TakesAnswer, Failure> {
        if info.kind() == DomainKind::Pv {
            return Ok(TakesAnswer::Yes);
        }
        let irq = self.xen.hvm_param(info.domid, HvmParam::CallbackIrq);
        let irq = irq.map_err(refused("read the callback interrupt of", info.domid))?;
        Ok(if irq == 0 { TakesAnswer::No } else { TakesAnswer::Yes })
    }

    /// Ends the subscription that a killed daemon may have left: Xen would signal a port that nobody
    /// has bound, and no VIRQ.
    pub(crate) fn end_subscription(&mut self, domain: DomainRef) -> Result<(), Failure> {
        self.check_identity(domain, IdentityCheck::Needed)?;
        let ended = self.xen.subscribe_suspend(domain.domid, EvtchnPort(0));
        ended.map_err(refused("end the suspend notification of", domain.domid))
    }

    fn info_of(&mut self, vm: Suspended<'_>) -> Result<DomainInfo, Failure> {
        let domid = vm.domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let lives = |info: &DomainInfo| info.handle == vm.uuid && !info.flags.dying();
        info.filter(lives).ok_or_else(|| vm.failure("its domain was destroyed"))
    }

    /// A domain whose guest can suspend; `None` if it has.
    fn running(&mut self, vm: Suspended<'_>) -> Result<Option<DomainInfo>, Failure> {
        let info = self.info_of(vm)?;
        match info.flags.shutdown() {
            Some(ShutdownReason::Suspend) => Ok(None),
            Some(reason) => Err(vm.failure(format!("has stopped ({reason})"))),
            None if info.flags.paused() => {
                let advice = "is paused, so its guest cannot suspend; `xy unpause` first";
                Err(vm.failure(advice))
            }
            None => Ok(Some(info)),
        }
    }

    fn is_suspended(&mut self, vm: Suspended<'_>) -> Result<bool, Failure> {
        Ok(self.info_of(vm)?.flags.shutdown() == Some(ShutdownReason::Suspend))
    }

    /// Binds to a port of the domain that was made for us. It is made once for a domain: dom0
    /// cannot close it, so one for each suspend would use the guest's ports up.
    fn own_channel(
        &mut self,
        vm: Suspended<'_>,
        known: Option<EvtchnPort>,
    ) -> Result<(EvtchnPort, EvtchnPort), Failure> {
        let domid = vm.domain.domid;
        // The guest may have closed it.
        let bound = known.and_then(|port| Some((port, self.xen.bind_channel(domid, port).ok()?)));
        if let Some(bound) = bound {
            return Ok(bound);
        }
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        let made = self.xen.alloc_unbound(peer);
        let port = made.map_err(refused("make an event channel in", domid))?;
        store::keep_suspend_port(&mut self.store, domid, vm.uuid, port)?;
        let bound = self.xen.bind_channel(domid, port);
        Ok((port, bound.map_err(refused("bind to an event channel of", domid))?))
    }

    fn wait_for_suspend(
        &mut self,
        vm: Suspended<'_>,
        trigger: Trigger,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Ended, Failure> {
        let began = self.xen.now_ns();
        let mut limit = Limit::new(trigger);
        loop {
            let waited = self.xen.wait_channel(POLL_MS * MS);
            waited.map_err(refused("wait for an event of", vm.domain.domid))?;
            match self.info_of(vm)?.flags.shutdown() {
                Some(ShutdownReason::Suspend) => return Ok(Ended::Suspended),
                Some(reason) => {
                    return Err(
                        vm.failure(format!("its guest stopped ({reason}) and did not suspend"))
                    );
                }
                None => {}
            }
            let elapsed = self.xen.now_ns().saturating_sub(began);
            let part = Part { done: elapsed / SECOND, total: limit.seconds, unit: "s" };
            if monitor.reached(part) == ControlFlow::Break(()) {
                self.call_off(vm, trigger)?;
                return Ok(Ended::Not(vm.failure("the suspend was cancelled")));
            }
            if elapsed < limit.seconds * SECOND {
                continue;
            }
            match self.late(vm, trigger, &mut limit)? {
                Some(why) => return Ok(Ended::Not(why)),
                None => limit.seconds += FREEZE_SECONDS,
            }
        }
    }

    /// What follows when a guest takes too long: an error, or more time since it has acknowledged.
    fn late(
        &mut self,
        vm: Suspended<'_>,
        trigger: Trigger,
        limit: &mut Limit,
    ) -> Result<Option<Failure>, Failure> {
        let acknowledged = self.call_off(vm, trigger)? == CalledOff::TooLate;
        if acknowledged && trigger == Trigger::Store && !limit.is_extended {
            limit.is_extended = true;
            return Ok(None);
        }
        let seconds = limit.seconds;
        let why = match trigger {
            Trigger::Store if acknowledged => format!(
                "its guest acknowledged the suspend and did not suspend within {FREEZE_SECONDS} s: \
                 a task or a driver cannot be frozen, its console says which; it runs on"
            ),
            Trigger::Store => format!(
                "its guest did not acknowledge the suspend within {seconds} s: its kernel has no \
                 support for it, or hangs; it runs on"
            ),
            Trigger::Event(_) => format!(
                "its guest did not suspend within {seconds} s of the event that asks for it; it runs on"
            ),
            Trigger::Xen => format!("Xen did not stop its vCPUs within {seconds} s"),
        };
        Ok(Some(vm.failure(why)))
    }

    /// Takes the request back, if the guest has not acknowledged it.
    fn call_off(&mut self, vm: Suspended<'_>, trigger: Trigger) -> Result<CalledOff, Failure> {
        match trigger {
            Trigger::Store => {
                let taken = store::cancel_suspend(&mut self.store, vm.domain.domid, vm.uuid)?;
                Ok(if taken { CalledOff::InTime } else { CalledOff::TooLate })
            }
            Trigger::Xen | Trigger::Event(_) => Ok(CalledOff::TooLate),
        }
    }
}

/// Whether a request could be taken back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CalledOff {
    InTime,
    /// The guest has acknowledged it, or it cannot be taken back.
    TooLate,
}

/// How long to wait.
struct Limit {
    seconds: u64,
    is_extended: bool,
}

impl Limit {
    fn new(trigger: Trigger) -> Self {
        let seconds = match trigger {
            Trigger::Store => ACKNOWLEDGE_SECONDS,
            // There is no acknowledgement.
            Trigger::Xen | Trigger::Event(_) => FREEZE_SECONDS,
        };
        Self { seconds, is_extended: false }
    }
}
