//! Room for a VM in the host's memory, which domain 0 makes if it may.

use std::ops::ControlFlow;

use xen::{DomId, Hypervisor, PhysInfo};
use xenstore::client::{Batch, Nodes as _, Transport};

use super::build::PAGES_PER_MIB;
use super::{Performer, failure, refused, store};
use crate::balloon::{Autoballoon, Balloon, Dom0Memory, Dom0Policy, Next};
use crate::config::VmConfig;
use crate::host::{Host, Turn};
use crate::layout::Nodes;
use crate::work::{Failure, Part, WorkMonitor};

const TARGET: &str = "/local/domain/0/memory/target";
const MAX: &str = "/local/domain/0/memory/static-max";

const KIB_PER_PAGE: u64 = 4;
const MIB: u64 = 1 << 10;
/// Between two looks at domain 0.
const LOOK_NS: u64 = 100_000_000;

fn short_kib(needed_pages: u64, physical: &PhysInfo) -> u64 {
    (needed_pages * KIB_PER_PAGE).saturating_sub(free_kib(physical))
}

fn free_kib(physical: &PhysInfo) -> u64 {
    physical.pages_free.saturating_sub(physical.pages_outstanding) * KIB_PER_PAGE
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn physical(&mut self) -> Result<PhysInfo, Failure> {
        self.xen.phys_info().map_err(|errno| failure("the host's free memory", errno))
    }

    /// What domain 0 may do for VMs; `None` if nothing.
    fn dom0_policy(&mut self) -> Result<Option<Dom0Policy>, Failure> {
        let policy = self.host.dom0_policy();
        let text = match policy.autoballoon {
            Autoballoon::Auto => self.xen.commandline(),
            Autoballoon::On | Autoballoon::Off => Ok(String::new()),
        };
        let text = text.map_err(|errno| failure("Xen's command line", errno))?;
        Ok(policy.autoballoon.is_on(&text).then_some(policy))
    }

    /// Also its maximum. As for libxl, what nobody has written is what Xen says.
    fn dom0_memory(&mut self) -> Result<(Dom0Memory, u64), Failure> {
        let mut look = Batch::new();
        let [target, max] = [TARGET, MAX].map(|path| look.read(path));
        let replies = self.store.run(&look)?;
        let kib = |index| -> Result<Option<u64>, Failure> {
            Ok(replies.get_optional(index)?.and_then(|value| store::text(value).parse().ok()))
        };
        let (target, max) = (kib(target)?, kib(max)?);
        let info = self.xen.domain(DomId::DOM0).map_err(refused("look up", DomId::DOM0))?;
        let info = info.unwrap_or_default();
        let has_kib = info.pages * KIB_PER_PAGE;
        let target_kib = target.unwrap_or(has_kib);
        let max_kib = max.unwrap_or(info.pages_max.saturating_mul(KIB_PER_PAGE));
        Ok((Dom0Memory { has_kib, target_kib }, max_kib))
    }

    fn set_dom0_target(&mut self, target_kib: u64, max_kib: u64) -> Result<(), Failure> {
        let mut nodes = Nodes::default();
        nodes.put(MAX.to_owned(), max_kib.to_string());
        nodes.put(TARGET.to_owned(), target_kib.to_string());
        Ok(store::write_plainly(&mut self.store, &nodes)?)
    }

    /// Checks that the host has the memory, or domain 0 can give it.
    pub(super) fn check_room(
        &mut self,
        config: &VmConfig,
        needed_pages: u64,
    ) -> Result<PhysInfo, Failure> {
        let physical = self.physical()?;
        let short = short_kib(needed_pages, &physical);
        if short == 0 {
            return Ok(physical);
        }
        let givable = match self.dom0_policy()? {
            None => None,
            Some(policy) => Some(self.dom0_memory()?.0.givable_kib(&policy)),
        };
        match givable {
            Some(givable) if short <= givable => Ok(physical),
            givable => Err(memory_failure(config, needed_pages, &physical, givable)),
        }
    }

    /// Waits until the host has the memory, which domain 0 gives as far as it must. Until the VM's claim is made nobody
    /// else is told that there is memory: keep what this returns for as long.
    pub(super) fn make_room(
        &mut self,
        config: &VmConfig,
        needed_pages: u64,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(PhysInfo, Option<Box<dyn Turn>>), Failure> {
        let Some(policy) = self.dom0_policy()? else {
            return self.check_room(config, needed_pages).map(|physical| (physical, None));
        };
        let turn = self.await_turn(config, monitor)?;
        let physical = self.physical()?;
        if short_kib(needed_pages, &physical) == 0 {
            return Ok((physical, Some(turn)));
        }
        let (dom0, max_kib) = self.dom0_memory()?;
        let began = self.xen.now_ns();
        let mut balloon = Balloon::new(needed_pages * KIB_PER_PAGE, dom0, &policy, began);
        let made = self.balloon(config, needed_pages, &mut balloon, max_kib, monitor);
        if made.is_err() && balloon.has_lowered() {
            // Nobody needs it any more. If this fails, too, that is what `xy list` shows.
            let _unchanged = self.set_dom0_target(dom0.target_kib, max_kib);
        }
        made.map(|physical| (physical, Some(turn)))
    }

    fn await_turn(
        &mut self,
        config: &VmConfig,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Box<dyn Turn>, Failure> {
        loop {
            if let Some(turn) = self.host.take_turn() {
                return Ok(turn);
            }
            self.pause(config, Part { done: 0, total: 1, unit: "turns" }, monitor)?;
        }
    }

    fn pause(
        &mut self,
        config: &VmConfig,
        part: Part,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<(), Failure> {
        if monitor.reached(part) == ControlFlow::Break(()) {
            return Err(Failure(format!("{}: cancelled while it waited for memory", config.name)));
        }
        self.xen.let_pass(LOOK_NS);
        Ok(())
    }

    fn balloon(
        &mut self,
        config: &VmConfig,
        needed_pages: u64,
        balloon: &mut Balloon,
        max_kib: u64,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<PhysInfo, Failure> {
        loop {
            let physical = self.physical()?;
            let (dom0, _) = self.dom0_memory()?;
            let free = free_kib(&physical);
            match balloon.next(self.xen.now_ns(), free, dom0) {
                Next::Done => return Ok(physical),
                Next::Lower { target_kib } => self.set_dom0_target(target_kib, max_kib)?,
                Next::Wait => {
                    let (done, total) = (free / MIB, needed_pages.div_ceil(PAGES_PER_MIB));
                    self.pause(config, Part { done, total, unit: "MiB" }, monitor)?;
                }
                Next::Missing { kib } => {
                    let givable = Some(short_kib(needed_pages, &physical).saturating_sub(kib));
                    return Err(memory_failure(config, needed_pages, &physical, givable));
                }
                Next::Stuck => return Err(stuck(config, needed_pages, &physical, dom0)),
            }
        }
    }
}

fn stuck(config: &VmConfig, needed_pages: u64, physical: &PhysInfo, dom0: Dom0Memory) -> Failure {
    Failure(format!(
        "{}: VM {} needs {} MiB, {} MiB are free, and domain 0 does not give more: it has {} MiB, {} MiB are its target; end \
         programs there, or stop another VM",
        config.origin.at("memory"),
        config.name,
        needed_pages.div_ceil(PAGES_PER_MIB),
        free_kib(physical) / MIB,
        dom0.has_kib / MIB,
        dom0.target_kib / MIB,
    ))
}

/// Claimed memory counts as free in Xen, but is not available. `givable_kib` is what domain 0 could give, if it gives any.
pub(super) fn memory_failure(
    config: &VmConfig,
    needed_pages: u64,
    physical: &PhysInfo,
    givable_kib: Option<u64>,
) -> Failure {
    let claimed = match physical.pages_outstanding / PAGES_PER_MIB {
        0 => String::new(),
        mib => format!(" ({mib} MiB of them claimed by starts under way)"),
    };
    let given = givable_kib.map_or(String::new(), |givable| {
        let needed = needed_pages * KIB_PER_PAGE;
        let missing = needed.saturating_sub(free_kib(physical) + givable).div_ceil(MIB);
        format!(" and domain 0 can give {} MiB: {missing} MiB are missing", givable / MIB)
    });
    Failure(format!(
        "{}: VM {} needs {} MiB, {} MiB are free{claimed}{given}; stop another VM or reduce memory",
        config.origin.at("memory"),
        config.name,
        needed_pages.div_ceil(PAGES_PER_MIB),
        physical.pages_free / PAGES_PER_MIB,
    ))
}
