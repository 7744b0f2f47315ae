//! One domain, and the life cycle of domains.
//!
//! alive -> dying (teardown in progress, unseen by getdomaininfo) -> dead -> unlinked, once none of
//! its pages is mapped -> its domid is free. A dead domain that is still mapped is a zombie.
//! Sources: `xen/common/domain.c`, `xen/common/domid.c`, `xen/common/page_alloc.c`.

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, Errno, Uuid};

use super::domctl::{VCPU_CONTEXT_BYTES, VGCF_ONLINE};
use super::evtchn::Ports;
use super::grant::GrantTable;
use super::hypercall::ERESTART;
use super::settings::Settings;
use super::{Counted, Occurrence, RCU_NS, Release, Retired, SimXen};
use crate::bytes::{put_u64, u64_at};
use crate::prng::split_mix;

/// Whether the call can be preempted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Preemptible {
    Yes,
    No,
}

/// Stage of a domain's teardown.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Dying {
    Alive,
    Dying,
    Dead,
}

/// One virtual CPU.
#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    pub online: bool,
    pub blocked: bool,
    pub running: bool,
    pub cpu_time_ns: u64,
    /// `struct vcpu_guest_context` of a PV vCPU.
    pub context: Option<Box<[u8]>>,
    /// `struct hvm_hw_cpu` of a translated one.
    pub hvm_context: Option<Box<[u8]>>,
    pub mtrr: Option<Box<[u8]>>,
    /// Hard and soft affinity; `None` is all CPUs.
    pub(super) hard: Option<BTreeSet<u32>>,
    pub(super) soft: Option<BTreeSet<u32>>,
    /// Period, budget and flags under the real-time scheduler, if they were set.
    pub(super) budget: Option<[u32; 3]>,
    /// Its own kernel has pinned it, for a call to the firmware.
    pub(super) is_pinned_by_kernel: bool,
    pub(super) ext_context: Option<Box<[u8]>>,
    pub(super) ext_state: Option<Box<[u8]>>,
}

impl Vcpu {
    /// Its registers as `struct vcpu_guest_context`, once it has some. Of a translated one only its
    /// state and `rax` are simulated.
    pub(super) fn guest_context(&self) -> Option<Box<[u8]>> {
        if self.context.is_none() && self.hvm_context.is_some() {
            let mut context = vec![0; VCPU_CONTEXT_BYTES];
            let flags = if self.online { VGCF_ONLINE } else { 0 };
            put_u64(&mut context, 512, flags);
            return Some(context.into());
        }
        self.context.clone()
    }
}

/// Offset of `rax` in `struct vcpu_guest_context`.
const RAX: usize = 600;

/// A domain. Fields that are public are for tests and checkers to read.
#[derive(Debug)]
pub struct Domain {
    pub domid: DomId,
    pub unique_id: u64,
    pub handle: Uuid,
    /// `XEN_DOMCTL_CDF_*`.
    pub flags: u32,
    pub emulation: u32,
    pub vcpus_max: u32,
    pub evtchn_port_max: u32,
    pub pause_count: u32,
    pub creation_finished: bool,
    pub dying: Dying,
    /// The code, once a shutdown is complete.
    pub shutdown: Option<u8>,
    /// The first requested code, and whether the vCPUs have yet to stop.
    pub(super) shutdown_code: Option<u8>,
    pub(super) shuts_down: bool,
    pub vcpus: Vec<Vcpu>,
    pub pages: u64,
    pub pages_max: u64,
    pub pages_claimed: u64,
    /// Machine frame of the shared info page.
    pub shared_info: u64,
    /// Where a translated domain mapped it.
    pub shared_info_gfn: Option<u64>,
    pub e820: Vec<u8>,
    pub tsc_mode: u32,
    pub paging_pool_bytes: u64,
    /// Page tables of the p2m that the paging pool paid for, by level and index.
    pub(super) paging_tables: BTreeSet<(u8, u64)>,
    /// Guest frames: first, count, machine frame.
    pub(super) physmap: BTreeMap<u64, (u64, u64)>,
    pub(super) pod: super::pod::Pod,
    /// Owned extents of machine frames, but for those that back no guest frame yet.
    pub(super) extents: Vec<(u64, u64)>,
    pub(super) ports: Ports,
    pub(super) grants: GrantTable,
    pub(super) params: BTreeMap<u32, u64>,
    pub(super) policy: BTreeMap<(u32, u32), [u32; 4]>,
    /// Machine frames that are page tables, with their level.
    pub(super) tables: BTreeMap<u64, u8>,
    pub(super) pinned: BTreeSet<u64>,
    pub(super) settings: Settings,
    /// Domains that have this one as their target.
    pub(super) references: u32,
    /// Extents that were still mapped by others during teardown.
    pub(super) extents_held: Vec<(u64, u64)>,
    /// Xen itself has paused its vCPUs.
    pub(super) is_held: bool,
}

impl Domain {
    /// `XEN_DOMCTL_CDF_hvm`.
    pub(super) const HVM: u32 = 1;
    pub(super) const HAP: u32 = 2;
    pub(super) const XS_DOMAIN: u32 = 16;

    /// What its scheduler gives it at most, in percent of one CPU; 0 is all.
    #[must_use]
    pub fn cap(&self) -> u16 {
        self.settings.cap
    }

    /// Whether Xen translates its frame numbers: PVH and HVM.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        self.flags & Self::HVM != 0
    }

    /// Whether more than a local APIC is emulated for it.
    #[must_use]
    pub fn has_device_model(&self) -> bool {
        const LAPIC: u32 = 1;
        self.emulation & !LAPIC != 0
    }

    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.pause_count > 0
    }

    /// Whether its vCPUs execute: not paused, not shut down, alive.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let stops = self.shuts_down || self.shutdown.is_some();
        !self.is_paused() && !self.is_held && !stops && self.dying == Dying::Alive
    }

    /// The machine frame of a guest frame.
    #[must_use]
    pub fn mfn_of_pfn(&self, pfn: u64) -> Option<u64> {
        let (&first, &(count, mfn)) = self.physmap.range(..=pfn).next_back()?;
        (pfn < first + count).then(|| mfn + (pfn - first))
    }

    /// Populated guest frames, ascending.
    pub fn frame_numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.physmap.iter().flat_map(|(first, (count, _))| *first..first + count)
    }

    /// Number of populated guest frames.
    #[must_use]
    pub fn pages_mapped(&self) -> u64 {
        self.physmap.values().map(|(count, _)| count).sum()
    }

    /// Maps machine frames at guest frames, replacing earlier mappings.
    pub(super) fn map_physical(&mut self, first: u64, count: u64, mfn: u64) {
        self.pod.forget(first, count);
        let end = first + count;
        let overlapping: Vec<(u64, u64, u64)> = self
            .physmap
            .range(..end)
            .rev()
            .take_while(|&(&at, &(pages, _))| at + pages > first)
            .map(|(&at, &(pages, frame))| (at, pages, frame))
            .collect();
        for (at, pages, frame) in overlapping {
            self.physmap.remove(&at);
            if at < first {
                self.physmap.insert(at, (first - at, frame));
            }
            if at + pages > end {
                self.physmap.insert(end, (at + pages - end, frame + (end - at)));
            }
        }
        self.physmap.insert(first, (count, mfn));
    }

    /// An HVM parameter, zero if it was never set.
    #[must_use]
    pub fn param(&self, index: u32) -> u64 {
        self.params.get(&index).copied().unwrap_or_default()
    }
}

/// Checked arguments of `createdomain`.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) handle: Uuid,
    pub(super) flags: u32,
    pub(super) emulation: u32,
    pub(super) vcpus_max: u32,
    pub(super) evtchn_port_max: u32,
    pub(super) grant_frames_max: u32,
    pub(super) altp2m: u32,
}

impl SimXen {
    pub(super) fn boot_dom0(&mut self) {
        let creation = Creation {
            handle: Uuid::default(),
            flags: 0,
            emulation: 0,
            vcpus_max: self.config.dom0_vcpus.unwrap_or(self.config.cpus),
            evtchn_port_max: u32::MAX,
            grant_frames_max: 64,
            altp2m: 0,
        };
        let pages = self.config.dom0_pages;
        self.insert_domain(DomId::DOM0, &creation).expect("an empty host has room for dom0");
        let mut pfn = 0;
        while pfn < pages {
            let order = (pages - pfn).ilog2().min(self.frames.order_max);
            let mfn = self
                .frames
                .allocate(DomId::DOM0, pfn, order, Counted::Yes)
                .expect("dom0 is smaller than the host");
            let dom0 = self.domains.get_mut(&DomId::DOM0).expect("it was inserted above");
            dom0.extents.push((mfn, 1 << order));
            dom0.map_physical(pfn, 1 << order, mfn);
            pfn += 1 << order;
        }
        let vcpus = creation.vcpus_max;
        let dom0 = self.domains.get_mut(&DomId::DOM0).expect("it was inserted above");
        dom0.pages = pages;
        dom0.pages_max = u64::from(u32::MAX);
        dom0.pause_count = 0;
        dom0.creation_finished = true;
        dom0.vcpus =
            (0..vcpus).map(|_| Vcpu { online: true, running: true, ..Vcpu::default() }).collect();
        self.changed.clear();
    }

    pub(super) fn insert_domain(&mut self, domid: DomId, creation: &Creation) -> Result<(), Errno> {
        if !self.is_unclaimed(1) {
            return Err(Errno::ENOMEM);
        }
        let shared_info = self.frames.allocate(domid, 0, 0, Counted::No).ok_or(Errno::ENOMEM)?;
        self.frames.write(shared_info, 0, &[0; xen::PAGE_BYTES]);
        let mut state = self.unique_id;
        let unique_id = split_mix(&mut state) | 1;
        self.unique_id = unique_id;
        let translated = creation.flags & Domain::HVM != 0;
        let domain = Domain {
            domid,
            unique_id,
            handle: creation.handle,
            flags: creation.flags,
            emulation: creation.emulation,
            vcpus_max: creation.vcpus_max,
            evtchn_port_max: creation.evtchn_port_max,
            pause_count: 1,
            creation_finished: false,
            dying: Dying::Alive,
            shutdown: None,
            shutdown_code: None,
            shuts_down: false,
            vcpus: Vec::new(),
            pages: 0,
            pages_max: 0,
            pages_claimed: 0,
            shared_info,
            shared_info_gfn: None,
            e820: Vec::new(),
            tsc_mode: 0,
            // HAP begins with 256 pages.
            paging_pool_bytes: if translated { 1 << 20 } else { 0 },
            paging_tables: BTreeSet::new(),
            physmap: BTreeMap::new(),
            pod: super::pod::Pod::default(),
            extents: vec![(shared_info, 1)],
            ports: Ports::default(),
            grants: GrantTable::new(creation.grant_frames_max),
            params: if creation.altp2m == 0 {
                BTreeMap::new()
            } else {
                BTreeMap::from([(super::hvm::ALTP2M, creation.altp2m.into())])
            },
            policy: super::policy::default(translated),
            tables: BTreeMap::new(),
            pinned: BTreeSet::new(),
            settings: Settings::default(),
            references: 0,
            extents_held: Vec::new(),
            is_held: false,
        };
        self.domains.insert(domid, domain);
        self.changed.insert(domid);
        Ok(())
    }

    fn is_domid_taken(&self, domid: DomId) -> bool {
        let lingering = self.config.release >= Release::Xen4_21
            && self.retired.iter().any(|retired| retired.domid == domid);
        lingering || self.domains.contains_key(&domid)
    }

    /// Picks the domid of a new domain.
    pub(super) fn choose_domid(&mut self, asked: DomId) -> Result<DomId, Errno> {
        let explicit = asked.is_ordinary() && asked != DomId::DOM0;
        if explicit {
            return if self.is_domid_taken(asked) { Err(Errno::EEXIST) } else { Ok(asked) };
        }
        if self.config.release >= Release::Xen4_22 && asked != DomId::ANY {
            return Err(Errno::EEXIST);
        }
        let first = self.domid_rover;
        for step in 1..=DomId::FIRST_RESERVED {
            let candidate = (first + step) % DomId::FIRST_RESERVED;
            if candidate != 0 && !self.is_domid_taken(DomId(candidate)) {
                self.domid_rover = candidate;
                return Ok(DomId(candidate));
            }
        }
        let exhausted =
            if self.config.release >= Release::Xen4_21 { Errno::EEXIST } else { Errno::ENOMEM };
        Err(exhausted)
    }

    /// Begins a shutdown; the first reason is kept. It is complete when all vCPUs have stopped;
    /// those that wait for a device model stop later, unless it is a crash.
    pub(super) fn shutdown_domain(&mut self, domid: DomId, reason: u8) {
        const CRASH: u8 = 3;
        let deferred_ns = self.faults.shutdown_deferred_ns;
        let Some(domain) = self.domains.get_mut(&domid) else { return };
        if domain.dying != Dying::Alive {
            return;
        }
        let reason = *domain.shutdown_code.get_or_insert(reason);
        if domain.shuts_down || domain.shutdown.is_some() {
            return;
        }
        domain.shuts_down = true;
        if domain.is_translated() && deferred_ns > 0 && reason != CRASH {
            let unique_id = domain.unique_id;
            let due = self.now.after(deferred_ns);
            self.shutdowns_deferred.push(Retired { due, domid, unique_id });
            return;
        }
        self.complete_shutdown(domid);
    }

    /// All vCPUs have stopped.
    pub(super) fn complete_shutdown(&mut self, domid: DomId) {
        let Some(domain) = self.domains.get_mut(&domid) else { return };
        let (true, Some(reason), Dying::Alive) =
            (domain.shuts_down, domain.shutdown_code, domain.dying)
        else {
            return;
        };
        domain.shuts_down = false;
        domain.shutdown = Some(reason);
        for vcpu in &mut domain.vcpus {
            vcpu.running = false;
        }
        let name = xen::ShutdownReason::from_code(reason);
        self.trace.note(self.now, format_args!("xen: domain {domid} shut down: {name}"));
        self.changed.insert(domid);
        // A subscribed port is signalled on suspend, instead of the VIRQ.
        let subscribed = self.domains[&domid].settings.suspend_port.filter(|port| port.0 != 0);
        match subscribed {
            Some(port) if name == xen::ShutdownReason::Suspend => {
                // A port that does not exist is not signalled.
                let _ = self.evtchn_send(domid, port);
            }
            _ => self.raise_dom_exc(),
        }
    }

    /// Tears a domain down without preemption.
    pub(super) fn kill_domain(&mut self, domid: DomId) {
        let whole = self.tear_down(domid, Preemptible::No);
        assert!(whole.is_ok(), "nothing came between");
    }

    /// Tears a domain down, or continues to. `ERESTART`: preempted.
    pub(super) fn tear_down(
        &mut self,
        domid: DomId,
        preemptible: Preemptible,
    ) -> Result<(), Errno> {
        let Some(domain) = self.domains.get_mut(&domid) else { return Ok(()) };
        match domain.dying {
            Dying::Dead => return Ok(()),
            Dying::Dying => {}
            Dying::Alive => {
                domain.dying = Dying::Dying;
                let claimed = std::mem::take(&mut domain.pages_claimed);
                for vcpu in &mut domain.vcpus {
                    vcpu.running = false;
                }
                self.pages_claimed -= claimed;
                self.spend(20_000);
                self.stop_here(preemptible)?;
            }
        }
        self.release_mappings_of(domid);
        self.virq_handlers.retain(|_, handler| *handler != domid);
        self.close_all_ports(domid);
        let Some(domain) = self.domains.get_mut(&domid) else { return Ok(()) };
        domain.physmap.clear();
        let cached = domain.pod.end_of_life();
        domain.extents.extend(cached);
        domain.tables.clear();
        domain.pinned.clear();
        self.give_pages_back(domid, preemptible)?;
        let Some(domain) = self.domains.get_mut(&domid) else { return Ok(()) };
        domain.dying = Dying::Dead;
        // Extents that were mapped before may be unmapped by now.
        let held = std::mem::take(&mut domain.extents_held);
        (domain.extents, domain.pages) = self.frames.release(domid, &held);
        self.trace.note(self.now, format_args!("xen: domain {domid} is dead"));
        self.changed.insert(domid);
        self.raise_dom_exc();
        self.unlink_if_unreferenced(domid);
        Ok(())
    }

    /// Frees a dying domain's pages one by one, which takes most of a destroy's time.
    fn give_pages_back(&mut self, domid: DomId, preemptible: Preemptible) -> Result<(), Errno> {
        let mut stopped = Ok(());
        while let Some(domain) = self.domains.get_mut(&domid)
            && stopped.is_ok()
            && let Some((first, pages)) = domain.extents.pop()
        {
            let is_xens = self.frames.is_xens(first);
            let (held, _) = self.frames.release(domid, &[(first, pages)]);
            let gone = if is_xens { 0 } else { pages - held.len() as u64 };
            domain.pages -= gone;
            domain.extents_held.extend(held);
            let is_last = domain.extents.is_empty();
            self.spend(pages * 90);
            if !is_last {
                stopped = self.stop_here(preemptible);
            }
        }
        stopped
    }

    /// A preemption point of a long call.
    fn stop_here(&mut self, preemptible: Preemptible) -> Result<(), Errno> {
        if preemptible == Preemptible::Yes && self.is_preempted() { Err(ERESTART) } else { Ok(()) }
    }

    /// A reference to a dead domain's page was dropped.
    pub(super) fn drop_page_reference(&mut self, owner: DomId) {
        if let Some(domain) = self.domains.get_mut(&owner)
            && domain.dying == Dying::Dead
        {
            let extents = std::mem::take(&mut domain.extents);
            (domain.extents, domain.pages) = self.frames.release(owner, &extents);
            self.unlink_if_unreferenced(owner);
        }
    }

    fn unlink_if_unreferenced(&mut self, domid: DomId) {
        let Some(domain) = self.domains.get(&domid) else { return };
        if domain.dying != Dying::Dead || !domain.extents.is_empty() || domain.references > 0 {
            return;
        }
        let (unique_id, target) = (domain.unique_id, domain.settings.target);
        self.domains.remove(&domid);
        self.hidden.remove(&domid);
        let jitter = self.chance(RCU_NS);
        self.retired.push(Retired { due: self.now.after(RCU_NS + jitter), domid, unique_id });
        if let Some(target) = target
            && let Some(domain) = self.domains.get_mut(&target)
        {
            domain.references -= 1;
            self.unlink_if_unreferenced(target);
        }
    }

    /// Adds one to the controller's pause count.
    pub(super) fn pause(&mut self, domid: DomId) -> Result<(), Errno> {
        let domain = self.live(domid)?;
        if domain.pause_count == xen::PAUSE_COUNT_MAX {
            return Err(Errno::EOVERFLOW);
        }
        domain.pause_count += 1;
        Ok(())
    }

    /// Takes one off the controller's pause count.
    pub(super) fn unpause(&mut self, domid: DomId) -> Result<(), Errno> {
        let domain = self.live(domid)?;
        domain.pause_count = domain.pause_count.checked_sub(1).ok_or(Errno::EINVAL)?;
        if domain.pause_count == 0 {
            domain.creation_finished = true;
            if domain.is_running() {
                self.occur(Occurrence::Runnable(domid));
            }
        }
        Ok(())
    }

    /// Clears the shutdown state.
    pub(super) fn resume(&mut self, domid: DomId) -> Result<(), Errno> {
        self.shutdowns_deferred.retain(|it| it.domid != domid);
        let domain = self.live(domid)?;
        let stopped = domain.shutdown_code.take().is_some();
        domain.shutdown = None;
        domain.shuts_down = false;
        if stopped && domain.is_running() {
            self.occur(Occurrence::Runnable(domid));
        }
        Ok(())
    }

    /// What the call by which the domain stopped returned to it.
    pub(crate) fn shutdown_result(&self, domid: DomId) -> u64 {
        let vcpu = self.domains.get(&domid).and_then(|domain| domain.vcpus.first());
        let context = vcpu.and_then(Vcpu::guest_context);
        context.map_or(0, |context| u64_at(&context, RAX))
    }

    /// A vCPU calls for a shutdown: it gets an answer only if somebody gives one.
    pub(super) fn clear_shutdown_result(&mut self, domid: DomId) {
        let vcpu = self.domains.get_mut(&domid).and_then(|domain| domain.vcpus.first_mut());
        if let Some(context) = vcpu.and_then(|vcpu| vcpu.context.as_mut()) {
            put_u64(context, RAX, 0);
        }
    }

    /// Where a guest goes on if its registers are loaded into another domain: at `rip`, with a number of
    /// its own; a PV guest's suspend call is also given the machine frame of its start info.
    pub(crate) fn set_wake(&mut self, domid: DomId, rip: u64, own: u64, start_info: u64) {
        let vcpu = self.domains.get_mut(&domid).and_then(|domain| domain.vcpus.first_mut());
        let Some(vcpu) = vcpu else { return };
        if let Some(cpu) = &mut vcpu.hvm_context {
            put_u64(cpu, 640, rip);
            put_u64(cpu, 520, own);
        } else if let Some(context) = &mut vcpu.context {
            put_u64(context, 648, rip);
            put_u64(context, 624, own);
            put_u64(context, 616, start_info);
        }
    }

    /// A guest has been busy for so long.
    pub(crate) fn use_cpu(&mut self, domid: DomId, nanoseconds: u64) {
        if let Some(vcpu) = self.domains.get_mut(&domid).and_then(|d| d.vcpus.first_mut()) {
            vcpu.cpu_time_ns += nanoseconds;
        }
    }

    /// Sets a vCPU's activity: running, or blocked until an event.
    pub(crate) fn set_vcpu_activity(&mut self, domid: DomId, activity: VcpuActivity) {
        if let Some(vcpu) = self.domains.get_mut(&domid).and_then(|d| d.vcpus.first_mut()) {
            vcpu.running = activity == VcpuActivity::Runs;
            vcpu.blocked = activity == VcpuActivity::Blocks;
            vcpu.cpu_time_ns += 40_000;
        }
    }
}

/// Activity of a guest's vCPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VcpuActivity {
    Runs,
    Blocks,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::test_support::{create, host};

    #[test]
    fn without_a_free_domid_old_xen_returns_enomem_and_new_xen_eexist() {
        let mut xen = host();
        for _ in 1..DomId::FIRST_RESERVED {
            create(&mut xen);
        }
        assert_eq!(xen.choose_domid(DomId::ANY), Err(Errno::ENOMEM));
        xen.config.release = Release::Xen4_22;
        assert_eq!(xen.choose_domid(DomId::ANY), Err(Errno::EEXIST));
        assert_eq!(xen.choose_domid(DomId(0)), Err(Errno::EEXIST), "it asks for any by its name");
        // A domid is free after the last RCU reader of its domain, on an old Xen when it is not
        // listed.
        xen.kill_domain(DomId(77));
        assert_eq!(xen.choose_domid(DomId::ANY), Err(Errno::EEXIST));
        xen.config.release = Release::Xen4_20;
        assert_eq!(xen.choose_domid(DomId(0)), Ok(DomId(77)));
        xen.config.release = Release::Xen4_22;
        xen.pass_time();
        assert_eq!(xen.choose_domid(DomId::ANY), Ok(DomId(77)));
    }
}
