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
use xenstore::client::Transport;

use super::{Performer, refused, store};
use crate::host::Host;
use crate::work::{Failure, IdentityCheck, Part, WorkMonitor};

/// How long a guest may take to acknowledge a request in `control/shutdown`, as in libxl.
const ACKNOWLEDGE_SECONDS: u64 = 60;
/// How long it may then take to suspend. Linux gives up freezing its tasks after 20 s
/// (`/sys/power/pm_freeze_timeout`).
const FREEZE_SECONDS: u64 = 30;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Intervals of the poll beside the channel; the last one repeats.
const POLLS_MS: [u64; 6] = [1, 2, 5, 10, 20, 50];

/// Offset of `user_regs.rax` in `struct vcpu_guest_context`. Source:
/// `xen/include/public/arch-x86/xen.h`.
const RAX: usize = 520 + 10 * 8;
/// What the guest's suspend call returns when it was cancelled: the guest keeps its devices.
const CANCELLED: u64 = 1;

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

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Suspends a running guest. After a failure the guest runs on; if it suspends later, somebody
    /// has to resume it.
    pub(crate) fn suspend(
        &mut self,
        domain: DomainRef,
        uuid: Uuid,
        name: &str,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        let vm = Suspended { domain, uuid, name };
        let domid = domain.domid;
        self.check_identity(domain, IdentityCheck::Needed)?;
        let info = self.info_of(vm)?;
        match info.flags.shutdown() {
            Some(ShutdownReason::Suspend) => return Ok(()),
            Some(reason) => return Err(vm.failure(format!("has stopped ({reason})"))),
            None if info.flags.paused() => {
                let advice = "is paused, so its guest cannot suspend; `xy unpause` first";
                return Err(vm.failure(advice));
            }
            None => {}
        }
        let nodes = store::suspend_nodes(&mut self.store, domid, uuid)?;
        let (port, channel) = self.own_channel(vm, nodes.own_port)?;
        let ended = self.ask_and_wait(vm, &info, nodes.guest_port, port, monitor);
        self.end_channel(domid, channel);
        match ended? {
            Ended::Suspended => Ok(()),
            Ended::Not(why) => {
                // It may have suspended before the subscription ended; then nobody was told.
                if self.is_suspended(vm)? {
                    self.resume(domain, name)?;
                }
                Err(why)
            }
        }
    }

    /// Resumes a suspended guest where it was: it keeps its devices.
    pub(crate) fn resume(&mut self, domain: DomainRef, name: &str) -> Result<(), Failure> {
        self.check_identity(domain, IdentityCheck::Needed)?;
        let domid = domain.domid;
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.filter(|info| info.flags.shutdown() == Some(ShutdownReason::Suspend));
        let Some(info) = info else {
            return Err(Failure(format!("{name}: is not suspended")));
        };
        if self.takes_answer(&info)? {
            let context = self.xen.vcpu_context(domid, 0);
            let mut context = context.map_err(refused("read the registers of", domid))?;
            context[RAX..RAX + 8].copy_from_slice(&CANCELLED.to_le_bytes());
            let set = self.xen.set_vcpu_context(domid, 0, &context);
            set.map_err(refused("set the registers of", domid))?;
        }
        self.xen.resume_domain(domid).map_err(refused("resume", domid))?;
        match self.store.resume(domid) {
            // It is not introduced.
            Err(error) if error.is_not_found() => Ok(()),
            other => Ok(other?),
        }
    }

    /// Whether the guest called for its suspend, and so takes the call's answer. As in libxc: a
    /// guest without PV drivers was stopped anywhere.
    fn takes_answer(&mut self, info: &DomainInfo) -> Result<bool, Failure> {
        Ok(info.kind() == DomainKind::Pv || self.callback_irq(info.domid)? != 0)
    }

    fn callback_irq(&mut self, domid: DomId) -> Result<u64, Failure> {
        let irq = self.xen.hvm_param(domid, HvmParam::CallbackIrq);
        irq.map_err(refused("read the callback interrupt of", domid))
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
        let (port, channel) = match bound {
            Some(bound) => bound,
            None => {
                let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
                let made = self.xen.alloc_unbound(peer);
                let port = made.map_err(refused("make an event channel in", domid))?;
                store::keep_suspend_port(&mut self.store, domid, vm.uuid, port)?;
                let bound = self.xen.bind_channel(domid, port);
                (port, bound.map_err(refused("bind to an event channel of", domid))?)
            }
        };
        let armed = self.xen.subscribe_suspend(domid, port);
        armed.map_err(refused("listen for the suspend of", domid)).inspect_err(|_| {
            let _unbound = self.xen.unbind_channel(channel);
        })?;
        Ok((port, channel))
    }

    /// From here on a suspend is announced by the VIRQ again.
    fn end_channel(&mut self, domid: DomId, channel: EvtchnPort) {
        // The domain may be gone, and its ports with it.
        let _gone = self.xen.subscribe_suspend(domid, EvtchnPort(0));
        let _gone = self.xen.unbind_channel(channel);
    }

    fn ask_and_wait(
        &mut self,
        vm: Suspended<'_>,
        info: &DomainInfo,
        guest_port: Option<EvtchnPort>,
        own_port: EvtchnPort,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Ended, Failure> {
        let domid = vm.domain.domid;
        let trigger = if info.kind() != DomainKind::Pv && self.callback_irq(domid)? == 0 {
            Trigger::Xen
        } else {
            // A guest may name any port: not ours, and one that it has for us.
            let offered = guest_port.filter(|port| *port != own_port);
            let bound = offered.and_then(|port| self.xen.bind_channel(domid, port).ok());
            bound.map_or(Trigger::Store, Trigger::Event)
        };
        let asked = match trigger {
            Trigger::Xen => self
                .xen
                .remote_shutdown(domid, ShutdownReason::Suspend)
                .map_err(refused("suspend", domid)),
            Trigger::Event(channel) => {
                self.xen.notify_channel(channel).map_err(refused("send an event to", domid))
            }
            Trigger::Store => store::request_shutdown(&mut self.store, domid, vm.uuid, "suspend"),
        };
        let ended = asked.and_then(|()| self.wait_for_suspend(vm, trigger, monitor));
        if let Trigger::Event(channel) = trigger {
            let _gone = self.xen.unbind_channel(channel);
        }
        ended
    }

    fn wait_for_suspend(
        &mut self,
        vm: Suspended<'_>,
        trigger: Trigger,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Ended, Failure> {
        let began = self.xen.now_ns();
        let mut limit = Limit::new(trigger);
        let mut polls = POLLS_MS.into_iter();
        let mut interval = 0;
        loop {
            interval = polls.next().unwrap_or(interval);
            let waited = self.xen.wait_channel(interval * MS);
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
