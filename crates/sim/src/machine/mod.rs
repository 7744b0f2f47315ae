//! A simulated Xen: domains, memory, event channels and grants behind the hypercall boundary.
//!
//! Hypercalls arrive as bytes and are decoded here by the public headers, release by release.
//! Notifications (an event for a domain, a domain that starts to run) are put into an outbox that
//! the simulated host empties; there are no callbacks. Semantics:
//! `xen/common/{domain,domctl,sysctl,memory,event_channel,grant_table}.c` of the releases.

mod creation;
mod devices;
mod domain;
mod domctl;
mod evtchn;
mod frames;
mod grant;
mod host;
mod hvm;
mod hypercall;
mod hypervisor;
mod listing;
mod memory;
mod operator;
mod pagetable;
mod physmap;
mod pod;
mod policy;
mod psr;
mod rival;
mod settings;
mod version;

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, Errno, PAGE_BYTES, Scheduler, ShutdownReason, Uuid};

pub(crate) use domain::VcpuActivity;
pub use domain::{Domain, Dying, Vcpu};
pub use evtchn::Channel;
pub use grant::{GrantStatus, Mapping, MappingId};
pub(crate) use hypervisor::Living;
pub use hypervisor::{Doing, Machine, SimHypervisor, Yielding};
pub use rival::Schedule;
pub use rival::UNREST_HANDLE;

use crate::agenda::Time;
use crate::faults::Faults;
use crate::history::{Runs, Span};
use crate::prng::Prng;
use crate::trace::Trace;
use frames::{Counted, Frames};

/// The VIRQ for "some domain changed its state".
pub const VIRQ_DOM_EXC: u32 = 3;

/// The simulated release of Xen, which determines interface versions, layouts and semantics.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Release {
    Xen4_17,
    Xen4_18,
    Xen4_19,
    Xen4_20,
    Xen4_21,
    Xen4_22,
}

impl Release {
    pub const ALL: [Self; 6] =
        [Self::Xen4_17, Self::Xen4_18, Self::Xen4_19, Self::Xen4_20, Self::Xen4_21, Self::Xen4_22];

    /// `XEN_DOMCTL_INTERFACE_VERSION`.
    #[must_use]
    pub fn domctl(self) -> u32 {
        match self {
            Self::Xen4_17 => 0x15,
            Self::Xen4_18 => 0x16,
            Self::Xen4_19 | Self::Xen4_20 | Self::Xen4_21 => 0x17,
            Self::Xen4_22 => 0x18,
        }
    }

    /// `XEN_SYSCTL_INTERFACE_VERSION`.
    #[must_use]
    pub fn sysctl(self) -> u32 {
        if self >= Self::Xen4_21 { 0x16 } else { 0x15 }
    }

    /// The minor version number.
    #[must_use]
    pub fn minor(self) -> u16 {
        match self {
            Self::Xen4_17 => 17,
            Self::Xen4_18 => 18,
            Self::Xen4_19 => 19,
            Self::Xen4_20 => 20,
            Self::Xen4_21 => 21,
            Self::Xen4_22 => 22,
        }
    }
}

/// The machine to simulate.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    pub release: Release,
    /// The host's memory, in pages.
    pub pages: u64,
    /// Dom0's share of it, in pages.
    pub dom0_pages: u64,
    pub cpus: u32,
    /// Of the first pool.
    pub scheduler: Scheduler,
    /// NUMA nodes, each with an equal part of the CPUs and the memory.
    pub nodes: u32,
    /// vCPUs of dom0; `None`: one for each CPU.
    pub dom0_vcpus: Option<u32>,
    /// Largest free extent order.
    pub order_max: u32,
    /// Whether this Xen was built with shadow paging, which logs the writes of PV domains.
    pub has_shadow: bool,
    /// Whether there is an IOMMU, which can use the tables of a guest's memory.
    pub has_iommu: bool,
    /// Whether guests may count events of the CPU.
    pub has_vpmu: bool,
    /// Whether vCPUs can be traced.
    pub has_vmtrace: bool,
    /// Whether there is the Flask security module.
    pub has_flask: bool,
    /// Whether the CPUs can share out their caches and memory bandwidth.
    pub has_rdt: bool,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            release: Release::Xen4_17,
            pages: 64 << 18,
            dom0_pages: 1 << 18,
            cpus: 2,
            scheduler: Scheduler::Credit2,
            nodes: 1,
            dom0_vcpus: None,
            order_max: 18,
            has_shadow: false,
            has_iommu: false,
            has_vpmu: false,
            has_vmtrace: false,
            has_flask: false,
            has_rdt: false,
        }
    }
}

/// A notification of the hypervisor to a party on the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Occurrence {
    /// An event channel of the domain became pending.
    Event(DomId, xen::EvtchnPort),
    /// The domain's vCPUs may run: it was unpaused or resumed.
    Runnable(DomId),
    /// The domain's domid is free again.
    Gone(DomId),
}

/// A later change of a domain: its removal after the last RCU readers, or the end of its shutdown.
#[derive(Debug)]
struct Retired {
    due: Time,
    domid: DomId,
    unique_id: u64,
}

/// The hypervisor and all domains.
#[derive(Debug)]
pub struct SimXen {
    pub(crate) config: MachineConfig,
    pub(crate) now: Time,
    pub(crate) trace: Trace,
    pub(crate) faults: Faults,
    prng: Prng,
    frames: Frames,
    domains: BTreeMap<DomId, Domain>,
    retired: Vec<Retired>,
    domid_rover: u16,
    unique_id: u64,
    /// Domains whose state changed since the VIRQ's owner last queried (4.21 and later).
    changed: BTreeSet<DomId>,
    /// Claimed pages.
    pages_claimed: u64,
    occurrences: Vec<Occurrence>,
    virq_late: Vec<Time>,
    mappings: BTreeMap<u64, Mapping>,
    mapping_next: u64,
    calls: BTreeMap<&'static str, u64>,
    host: host::HostSettings,
    operator: operator::Operator,
    rdt: psr::Rdt,
    devices: devices::Devices,
    /// Domains that receive global VIRQs instead of dom0.
    virq_handlers: BTreeMap<u32, DomId>,
    judge: Option<rival::Judge>,
    unrest: Option<rival::Unrest>,
    entries_listed: u64,
    /// The current call continues after preemption.
    goes_on: bool,
    preemptions: u64,
    /// Pending shutdowns: completion time and domain.
    shutdowns_deferred: Vec<Retired>,
    /// Domains hidden from dom0's toolstack by a security policy.
    hidden: BTreeSet<DomId>,
    /// Ports of dom0 whose events the toolstack takes itself.
    pub(crate) toolstack_ports: BTreeSet<xen::EvtchnPort>,
    /// When domains ran, if it is recorded.
    runs: Option<Runs>,
}

/// How long readers of the domain list keep an unlinked domain alive, in nanoseconds.
const RCU_NS: u64 = 12_000_000;

impl SimXen {
    /// Boots a host: dom0 runs, nothing else exists.
    #[must_use]
    pub fn new(config: MachineConfig, faults: Faults, seed: u64) -> Self {
        let mut frames = Frames::new(config.pages);
        frames.order_max = config.order_max;
        let mut xen = Self {
            host: host::HostSettings::new(config.cpus, config.scheduler),
            operator: operator::Operator::new(),
            rdt: psr::Rdt::default(),
            devices: devices::Devices::new(),
            virq_handlers: BTreeMap::new(),
            config,
            now: Time(1_000_000_000),
            trace: Trace::default(),
            faults,
            prng: Prng::new(seed),
            frames,
            domains: BTreeMap::new(),
            retired: Vec::new(),
            domid_rover: 0,
            unique_id: seed | 1,
            changed: BTreeSet::new(),
            pages_claimed: 0,
            occurrences: Vec::new(),
            virq_late: Vec::new(),
            mappings: BTreeMap::new(),
            mapping_next: 1,
            calls: BTreeMap::new(),
            judge: None,
            unrest: None,
            entries_listed: 0,
            goes_on: false,
            preemptions: 0,
            shutdowns_deferred: Vec::new(),
            hidden: BTreeSet::new(),
            toolstack_ports: BTreeSet::new(),
            runs: None,
        };
        xen.boot_dom0();
        xen
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    #[must_use]
    pub fn release(&self) -> Release {
        self.config.release
    }

    /// The trace of the host.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Replaces the plan of faults.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The remaining plan of faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The plan of faults, for additions.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// Records from now on when domains run.
    pub fn record_runs(&mut self) {
        self.runs.get_or_insert_default();
        self.look_who_runs();
    }

    /// When domains ran.
    #[must_use]
    pub fn runs(&self) -> &[Span<Uuid>] {
        self.runs.as_ref().map_or(&[], Runs::spans)
    }

    /// Something may have changed who runs.
    pub(crate) fn look_who_runs(&mut self) {
        let Some(runs) = &mut self.runs else { return };
        let guests = self.domains.values().filter(|it| it.domid != DomId::DOM0 && it.is_running());
        let running: Vec<_> = guests.map(|it| (it.unique_id, it.domid, it.handle)).collect();
        runs.look(self.now, &running);
    }

    #[must_use]
    pub fn domain(&self, domid: DomId) -> Option<&Domain> {
        self.domains.get(&domid)
    }

    /// All domains, zombies included, by identifier.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    #[must_use]
    pub fn pages_free(&self) -> u64 {
        self.frames.pages_free()
    }

    /// Pages claimed but not allocated.
    #[must_use]
    pub fn pages_claimed(&self) -> u64 {
        self.pages_claimed
    }

    /// Frames that take up memory of the simulation.
    #[must_use]
    pub fn pages_materialised(&self) -> usize {
        self.frames.pages_materialised()
    }

    /// How often each hypercall was issued, by name.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.calls.iter().map(|(name, count)| (*name, *count))
    }

    /// Hypercalls issued so far.
    #[must_use]
    pub fn calls_total(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Total number of entries in all listings, a measure of their cost.
    #[must_use]
    pub fn entries_listed(&self) -> u64 {
        self.entries_listed
    }

    /// How often long calls were preempted.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Hides this domain by a security policy from now on.
    pub fn hide(&mut self, domid: DomId) {
        self.hidden.insert(domid);
    }

    /// Number of foreign and grant mappings.
    #[must_use]
    pub fn mappings_held(&self) -> usize {
        self.frames.mappings()
    }

    /// Takes the notifications since the last call, in order.
    pub(crate) fn take_occurrences(&mut self) -> Vec<Occurrence> {
        std::mem::take(&mut self.occurrences)
    }

    fn occur(&mut self, occurrence: Occurrence) {
        self.occurrences.push(occurrence);
    }

    /// Advances time by `nanoseconds` and a random part of up to an eighth.
    pub(crate) fn spend(&mut self, nanoseconds: u64) {
        let jitter = self.prng.below(nanoseconds / 8 + 1);
        self.now = self.now.after(nanoseconds + jitter);
    }

    pub(crate) fn chance(&mut self, below: u64) -> u64 {
        self.prng.below(below)
    }

    /// Advances time until no timed work is left.
    pub fn pass_time(&mut self) {
        while let Some(due) = self.next_due() {
            self.now = self.now.max(due);
            self.settle();
        }
    }

    /// Time of the hypervisor's next timed work.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let retired = self.retired.iter().chain(&self.shutdowns_deferred).map(|it| it.due);
        retired.chain(self.virq_late.iter().copied()).min()
    }

    /// Does what is due by now.
    pub(crate) fn settle(&mut self) {
        while let Some(at) = self.retired.iter().position(|retired| retired.due <= self.now) {
            let retired = self.retired.remove(at);
            if self.config.release >= Release::Xen4_21 {
                self.changed.insert(retired.domid);
            }
            self.trace.detail(
                self.now,
                format_args!("xen: domain {} ({:x}) is gone", retired.domid, retired.unique_id),
            );
            self.occur(Occurrence::Gone(retired.domid));
            self.raise_dom_exc();
        }
        while let Some(at) = self.shutdowns_deferred.iter().position(|it| it.due <= self.now) {
            let it = self.shutdowns_deferred.remove(at);
            if self.domains.get(&it.domid).is_some_and(|domain| domain.unique_id == it.unique_id) {
                self.complete_shutdown(it.domid);
            }
        }
        let before = self.virq_late.len();
        self.virq_late.retain(|due| *due > self.now);
        if self.virq_late.len() < before {
            self.deliver_dom_exc();
        }
    }

    fn live(&mut self, domid: DomId) -> Result<&mut Domain, Errno> {
        self.domains.get_mut(&domid).ok_or(Errno::ESRCH)
    }

    /// Reads a domain's own memory by its own frame number, as its kernel would. False if there is
    /// no such frame.
    #[must_use]
    pub fn guest_read(&self, domid: DomId, pfn: u64, offset: usize, into: &mut [u8]) -> bool {
        assert!(offset + into.len() <= PAGE_BYTES, "one frame at a time");
        let Some(domain) = self.domains.get(&domid) else { return false };
        match domain.mfn_of_pfn(pfn) {
            Some(mfn) => self.frames.read(mfn, offset, into),
            // It would get memory now, and that is empty.
            None if domain.pod.has(pfn) => into.fill(0),
            None => return false,
        }
        true
    }

    /// Writes a domain's own memory as its kernel would. False if there is no such frame.
    pub fn guest_write(&mut self, domid: DomId, pfn: u64, offset: usize, bytes: &[u8]) -> bool {
        self.demand(domid, pfn);
        let Some(mfn) = self.domains.get(&domid).and_then(|domain| domain.mfn_of_pfn(pfn)) else {
            return false;
        };
        self.frames.write(mfn, offset, bytes);
        if let Some(domain) = self.domains.get_mut(&domid) {
            domain.mark_dirty(pfn);
        }
        true
    }

    /// The machine frame of a frame number that the domain writes into grants and page tables: its
    /// gfn if it is translated, otherwise a machine frame that it must own.
    #[must_use]
    pub(crate) fn mfn_of_gfn(&self, domid: DomId, gfn: u64) -> Option<u64> {
        let domain = self.domains.get(&domid)?;
        if domain.is_translated() {
            return domain.mfn_of_pfn(gfn);
        }
        (self.frames.owner(gfn) == Some(domid)).then_some(gfn)
    }

    /// A PV domain's page tables: machine frame and level of each.
    pub fn page_tables(&self, domid: DomId) -> impl Iterator<Item = (u64, u8)> + '_ {
        let domain = self.domains.get(&domid);
        domain.into_iter().flat_map(|domain| &domain.tables).map(|(mfn, level)| (*mfn, *level))
    }

    /// The number that a machine frame has in its domain.
    #[must_use]
    pub fn frame_number(&self, mfn: u64) -> Option<u64> {
        self.frames.pfn(mfn)
    }

    /// The pfn of a machine frame.
    #[must_use]
    pub(crate) fn pfn_of_mfn(&self, mfn: u64) -> Option<u64> {
        self.frames.pfn(mfn)
    }

    pub(crate) fn frame_read(&self, mfn: u64, offset: usize, into: &mut [u8]) {
        self.frames.read(mfn, offset, into);
    }

    /// A frame that the domain itself writes to.
    pub(crate) fn guest_frame_mut(&mut self, domid: DomId, mfn: u64) -> &mut [u8; PAGE_BYTES] {
        if let Some(pfn) = self.frames.pfn(mfn)
            && let Some(domain) = self.domains.get_mut(&domid)
        {
            domain.mark_dirty(pfn);
        }
        self.frames.page_mut(mfn)
    }

    pub(crate) fn frame_mut(&mut self, mfn: u64) -> &mut [u8; PAGE_BYTES] {
        self.frames.page_mut(mfn)
    }

    pub(crate) fn frame_owner(&self, mfn: u64) -> Option<DomId> {
        self.frames.owner(mfn)
    }

    /// A domain's kernel pins one of its vCPUs (`SCHEDOP_pin_override`).
    pub fn guest_pins(&mut self, domid: DomId, vcpu: usize) {
        let vcpus = self.domains.get_mut(&domid).map(|domain| &mut domain.vcpus);
        if let Some(vcpu) = vcpus.and_then(|vcpus| vcpus.get_mut(vcpu)) {
            vcpu.is_pinned_by_kernel = true;
        }
    }

    /// A domain shuts itself down (`SCHEDOP_shutdown`).
    pub fn guest_shutdown(&mut self, domid: DomId, reason: ShutdownReason) {
        self.clear_shutdown_result(domid);
        self.shutdown_domain(domid, reason.code());
    }
}

#[cfg(test)]
mod test_support;
