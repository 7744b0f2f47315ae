//! Slows a guest down that writes faster than its pages leave, by the cap of Xen's scheduler.
//!
//! The cap that it had is in the store before it gets another, below the record of its move: so it has it back also if the
//! daemon is killed meanwhile.

use xen::{DomainRef, Hypervisor, SchedParams, Scheduler, Uuid};
use xenstore::client::Transport;

use super::{Performer, refused, store};
use crate::host::Host;
use crate::work::Failure;

/// A cap below this part of a CPU would keep a guest from doing anything in time.
const PERCENT_MIN: u64 = 2;

/// A guest that may be slowed down.
#[derive(Debug)]
pub(super) struct Brake {
    domain: DomainRef,
    uuid: Uuid,
    before: SchedParams,
    /// CPU time that it had used, and when; with that a part of what it uses is known.
    used: (u64, u64),
    vcpus: u32,
    /// What it used before it was slowed down, in percent of one CPU.
    usual: Option<u64>,
}

impl Brake {
    fn cap(params: SchedParams) -> u16 {
        match params {
            SchedParams::Credit { cap, .. } | SchedParams::Credit2 { cap, .. } => cap,
            SchedParams::Rtds { .. } => 0,
        }
    }

    /// What it uses at most, and did use so far if that is less.
    fn usual(&self, used_ns: u64, now: u64) -> u64 {
        let (used_before, since) = self.used;
        let most = match Self::cap(self.before) {
            0 => 100 * u64::from(self.vcpus.max(1)),
            cap => u64::from(cap),
        };
        let used = used_ns.saturating_sub(used_before).saturating_mul(100);
        match used.checked_div(now.saturating_sub(since)) {
            None | Some(0) => most,
            Some(percent) => percent.clamp(PERCENT_MIN, most),
        }
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// `None` if the domain's scheduler knows no caps.
    pub(super) fn brake(&mut self, domain: DomainRef, uuid: Uuid) -> Option<Brake> {
        let info = self.xen.domain(domain.domid).ok()??;
        let before = self.share_of_cpus(domain)?;
        let used = (info.cpu_time_ns, self.xen.now_ns());
        Some(Brake { domain, uuid, before, used, vcpus: info.vcpus_online, usual: None })
    }

    fn share_of_cpus(&mut self, domain: DomainRef) -> Option<SchedParams> {
        let pool = self.xen.domain(domain.domid).ok()??.cpupool;
        let pool = self.xen.cpupool_from(pool).ok()?.filter(|it| it.id == pool)?;
        match Scheduler::from_id(pool.scheduler_id)? {
            scheduler @ (Scheduler::Credit | Scheduler::Credit2) => {
                self.xen.sched_params(domain.domid, scheduler).ok()
            }
            Scheduler::Arinc653 | Scheduler::Rtds | Scheduler::Null => None,
        }
    }

    /// The guest may have this part of the CPU time that it used before.
    pub(super) fn slow_down(&mut self, brake: &mut Brake, percent: u8) -> Result<(), Failure> {
        let domid = brake.domain.domid;
        let usual = match brake.usual {
            Some(usual) => usual,
            None => {
                let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
                let used = info.map_or(0, |info| info.cpu_time_ns);
                let usual = brake.usual(used, self.xen.now_ns());
                store::keep_cap(&mut self.store, domid, brake.uuid, Brake::cap(brake.before))?;
                *brake.usual.insert(usual)
            }
        };
        let cap = (usual * u64::from(percent) / 100).max(PERCENT_MIN);
        let cap = u16::try_from(cap).unwrap_or(u16::MAX);
        let slowed = brake.before.with_share(None, Some(cap));
        self.xen.set_sched_params(domid, slowed).map_err(refused("slow down", domid))
    }

    /// It has all that it had.
    pub(super) fn release_brake(&mut self, brake: &mut Brake) {
        if brake.usual.take().is_some() {
            // A domain that has died needs no time.
            let _gone = self.xen.set_sched_params(brake.domain.domid, brake.before);
        }
    }

    /// The same after a kill of the daemon, by what is in the store.
    pub(super) fn give_cap_back(&mut self, domain: DomainRef, uuid: Uuid) -> Result<(), Failure> {
        let Some(cap) = store::cap(&mut self.store, uuid)? else { return Ok(()) };
        let domid = domain.domid;
        match self.share_of_cpus(domain) {
            Some(now) if Brake::cap(now) != cap => {
                let before = now.with_share(None, Some(cap));
                self.xen.set_sched_params(domid, before).map_err(refused("speed up", domid))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_of_what_the_guest_uses_and_never_more_than_it_may() {
        let brake = |cap, vcpus| Brake {
            domain: DomainRef { domid: xen::DomId(1), life: xen::Life::Unique(1) },
            uuid: Uuid([1; 16]),
            before: SchedParams::Credit2 { weight: 256, cap },
            used: (1000, 10_000),
            vcpus,
            usual: None,
        };
        for (cap, vcpus, used, now, expected) in [
            // One of four vCPUs is busy.
            (0, 4, 11_000, 20_000, 100),
            (0, 1, 11_000, 20_000, 100),
            (40, 1, 11_000, 20_000, 40),
            (0, 2, 1201, 20_000, 2),
            // No clock, or nothing measured.
            (0, 2, 1000, 10_000, 200),
            (0, 2, 1000, 20_000, 200),
        ] {
            assert_eq!(brake(cap, vcpus).usual(used, now), expected, "{cap} {vcpus} {used}");
        }
    }
}
