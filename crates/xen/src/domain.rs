//! Domains: creation, listing, pausing, vCPUs, event channels, parameters, death.
//!
//! Sources: `xen/include/public/domctl.h`, `sysctl.h`, `hvm/params.h`, `event_channel.h`, `sched.h`.

use alloc::vec::Vec;

use crate::abi::{DOMAININFO_BYTES, Layout, array_at, domctl, sysctl, u16_at, u32_at, u64_at};
use crate::xen::LIST_OFFSET;
use crate::{DomId, Errno, EvtchnPort, Hypervisor, Op, ShutdownReason, Uuid, Xen};

/// Xen refuses a pause beyond this count.
pub const PAUSE_COUNT_MAX: u32 = 255;

/// How a domain's memory and vCPUs are virtualised.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DomainKind {
    Pv,
    Pvh,
    Hvm,
}

/// `XEN_X86_EMU_*`: which platform devices Xen emulates.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EmulationFlags(pub u32);

impl EmulationFlags {
    pub const LAPIC: Self = Self(1);
}

/// Arguments of `XEN_DOMCTL_createdomain`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CreateDomain {
    pub kind: DomainKind,
    pub handle: Uuid,
    /// At least 1; fixed for the domain's life.
    pub vcpus_max: u32,
    /// Highest event channel port; fixed for the domain's life.
    pub evtchn_port_max: u32,
    /// Frames the grant table may grow to; `None` is Xen's default.
    pub grant_frames_max: Option<u32>,
    /// Frames the maptrack table may grow to; `None` is Xen's default.
    pub maptrack_frames_max: Option<u32>,
    pub options: CreateOptions,
}

/// Options that most domains leave at their defaults.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CreateOptions {
    /// Highest version of grant tables that the domain may switch to, 1 or 2.
    pub grant_version_max: u8,
    /// Shadow page tables of a translated domain, instead of the CPU's own second level.
    pub shadow_paging: bool,
    /// Whether a translated domain may use nested virtualisation.
    pub nested_virt: bool,
    /// Whether reads of unknown model specific registers give 0 instead of a fault.
    pub msr_relaxed: bool,
    /// Mode and number of alternate views of a translated domain's memory, as of Xen 4.19, and of 4.21 for the number.
    /// Earlier ones have [`HvmParam::Altp2m`] instead.
    pub altp2m: (u8, u16),
    /// Whether the interrupts of an HVM domain's devices may be bound to event channels; before Xen 4.19 they always may.
    pub pirqs: bool,
    /// Whether it may count events of the CPU.
    pub vpmu: bool,
    /// Bytes of a buffer for each vCPU, to trace it; 0 for none.
    pub trace_bytes: u32,
    /// Whether shadow page tables are always in sync with the guest's.
    pub always_in_sync: bool,
    pub iommu: Option<IommuTables>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            grant_version_max: 1,
            shadow_paging: false,
            nested_virt: false,
            msr_relaxed: false,
            altp2m: (0, 0),
            pirqs: false,
            vpmu: false,
            trace_bytes: 0,
            always_in_sync: false,
            iommu: None,
        }
    }
}

/// By which tables the IOMMU translates for a domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IommuTables {
    /// Those of the domain's memory.
    Shared,
    /// Its own.
    Own,
}

/// State bits of a domain, decoded.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DomainFlags(u32);

impl DomainFlags {
    /// Teardown is complete; the entry remains until the last reference is dropped.
    #[must_use]
    pub fn dying(self) -> bool {
        self.0 & 1 != 0
    }

    #[must_use]
    pub fn hvm(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    #[must_use]
    pub fn paused(self) -> bool {
        self.0 & 1 << 3 != 0
    }

    #[must_use]
    pub fn blocked(self) -> bool {
        self.0 & 1 << 4 != 0
    }

    #[must_use]
    pub fn running(self) -> bool {
        self.0 & 1 << 5 != 0
    }

    /// The reason, if the domain has shut down. The code means nothing without the shutdown bit.
    #[must_use]
    pub fn shutdown(self) -> Option<ShutdownReason> {
        let [.., code, _] = self.0.to_le_bytes();
        (self.0 & 1 << 2 != 0).then(|| ShutdownReason::from_code(code))
    }
}

/// One entry of the domain list.
///
/// Fields are sampled one by one while the domain runs, so they may be inconsistent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DomainInfo {
    pub domid: DomId,
    pub flags: DomainFlags,
    pub pages: u64,
    pub pages_max: u64,
    /// Claimed but not yet allocated.
    pub pages_outstanding: u64,
    /// Shared with other domains.
    pub pages_shared: u64,
    pub shared_info_frame: u64,
    pub cpu_time_ns: u64,
    pub vcpus_online: u32,
    /// Highest vCPU number, `None` before the vCPUs exist.
    pub vcpu_id_max: Option<u32>,
    pub handle: Uuid,
    pub cpupool: u32,
    pub emulation: EmulationFlags,
}

impl DomainInfo {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let vcpu_id_max = u32_at(bytes, 68);
        Self {
            domid: DomId(u16_at(bytes, 0)),
            flags: DomainFlags(u32_at(bytes, 4)),
            pages: u64_at(bytes, 8),
            pages_max: u64_at(bytes, 16),
            pages_outstanding: u64_at(bytes, 24),
            pages_shared: u64_at(bytes, 32),
            shared_info_frame: u64_at(bytes, 48),
            cpu_time_ns: u64_at(bytes, 56),
            vcpus_online: u32_at(bytes, 64),
            vcpu_id_max: (vcpu_id_max != u32::MAX).then_some(vcpu_id_max),
            handle: Uuid(array_at(bytes, 76)),
            cpupool: u32_at(bytes, 92),
            emulation: EmulationFlags(u32_at(bytes, 104)),
        }
    }

    /// vCPUs that it has, online or not.
    #[must_use]
    pub fn vcpu_count(&self) -> u32 {
        self.vcpu_id_max.map_or(0, |highest| highest + 1)
    }

    /// PV, or PVH where only a local APIC is emulated, or HVM.
    #[must_use]
    pub fn kind(&self) -> DomainKind {
        if !self.flags.hvm() {
            DomainKind::Pv
        } else if self.emulation.0 & !EmulationFlags::LAPIC.0 == 0 {
            DomainKind::Pvh
        } else {
            DomainKind::Hvm
        }
    }
}

/// The two ends of an unbound channel that the toolstack allocates for a new domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EvtchnPeer {
    /// The domain that will hold the port.
    pub owner: DomId,
    /// The domain that may bind to it.
    pub remote: DomId,
}

/// HVM parameters that a toolstack sets or reads. Source: `hvm/params.h`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum HvmParam {
    /// How events are delivered to the guest; its PV drivers set it.
    CallbackIrq = 0,
    StorePfn = 1,
    StoreEvtchn = 2,
    PaeEnabled = 4,
    IoreqPfn = 5,
    BufioreqPfn = 6,
    Viridian = 9,
    TimerMode = 10,
    HpetEnabled = 11,
    IdentPt = 12,
    AcpiSState = 14,
    Vm86Tss = 15,
    VptAlign = 16,
    ConsolePfn = 17,
    ConsoleEvtchn = 18,
    AcpiIoportsLocation = 19,
    BufioreqEvtchn = 26,
    PagingRingPfn = 27,
    MonitorRingPfn = 28,
    SharingRingPfn = 29,
    TripleFaultReason = 31,
    IoreqServerPfn = 32,
    IoreqServerPages = 33,
    VmGenerationIdAddress = 34,
    Altp2m = 35,
    X87FipWidth = 36,
    Vm86TssSized = 37,
    McaCapabilities = 38,
}

/// `XEN_DOMCTL_CDF_*`.
fn create_flags(wanted: &CreateDomain) -> u32 {
    const HVM: u32 = 1;
    const HAP: u32 = 1 << 1;
    const OOS_OFF: u32 = 1 << 3;
    const IOMMU: u32 = 1 << 5;
    const NESTED_VIRT: u32 = 1 << 6;
    const VPMU: u32 = 1 << 7;
    let options = &wanted.options;
    let is_translated = wanted.kind != DomainKind::Pv;
    [
        (HVM, is_translated),
        (HAP, is_translated && !options.shadow_paging),
        (OOS_OFF, is_translated && options.always_in_sync),
        (IOMMU, options.iommu.is_some()),
        (NESTED_VIRT, is_translated && options.nested_virt),
        (VPMU, options.vpmu),
    ]
    .into_iter()
    .filter(|(_, is_set)| *is_set)
    .fold(0, |flags, (flag, _)| flags | flag)
}

impl<H: Hypervisor> Xen<H> {
    /// Creates a domain, paused once, with no memory.
    ///
    /// # Errors
    /// ENOMEM without memory or identifiers, EINVAL for refused settings.
    pub fn create_domain(&mut self, wanted: &CreateDomain) -> Result<DomId, Errno> {
        self.create_domain_as(DomId::ANY, wanted)
    }

    /// As [`Xen::create_domain`], with exactly this domid.
    ///
    /// # Errors
    /// EEXIST if it is in use, also by a dead domain.
    pub fn create_domain_as(
        &mut self,
        domid: DomId,
        wanted: &CreateDomain,
    ) -> Result<DomId, Errno> {
        let limit = |frames: Option<u32>| {
            frames.map_or(-1, |frames| i32::try_from(frames).unwrap_or(i32::MAX))
        };
        let CreateOptions { grant_version_max, msr_relaxed, trace_bytes, iommu, .. } =
            wanted.options;
        let has_altp2m = self.abi.createdomain_has_altp2m();
        let emulation = match wanted.kind {
            DomainKind::Pv => 0,
            DomainKind::Pvh => EmulationFlags::LAPIC.0,
            // All but vPCI, and from domctl 0x17 without the optional PIRQ support.
            DomainKind::Hvm if has_altp2m && !wanted.options.pirqs => 0x1ff,
            DomainKind::Hvm => 0x3ff,
        };
        // The layouts differ by the four altp2m bytes: one number, or two as of 4.21.
        let tail = if has_altp2m { 4 } else { 0 };
        let (mode, count) = wanted.options.altp2m;
        let count = if self.abi.xen >= (4, 21) { count } else { 0 };
        let altp2m = if has_altp2m { u32::from(mode) | u32::from(count) << 16 } else { 0 };
        let payload = Layout::<68>::new()
            .bytes(4, &wanted.handle.0)
            .u32(20, create_flags(wanted))
            .u32(24, u32::from(iommu == Some(IommuTables::Own)))
            .u32(28, wanted.vcpus_max)
            .u32(32, wanted.evtchn_port_max)
            .i32(36, limit(wanted.grant_frames_max))
            .i32(40, limit(wanted.maptrack_frames_max))
            .u32(44, grant_version_max.into())
            .u32(48, altp2m)
            .u32(48 + tail, trace_bytes)
            .u32(56 + tail, emulation)
            .u32(60 + tail, u32::from(msr_relaxed))
            .done();
        self.domctl("createdomain", domctl::CREATEDOMAIN, domid, &payload[..64 + tail])?;
        Ok(self.domctl_domid())
    }

    /// Tears a domain down. Can take long; meanwhile other domains may be created and destroyed.
    ///
    /// # Errors
    /// ESRCH if there is no such domain, EINVAL for the caller's own, EAGAIN if Xen still wants it
    /// repeated after many times.
    pub fn destroy_domain(&mut self, domid: DomId) -> Result<(), Errno> {
        /// Each call makes progress.
        const REPEATS_MAX: u32 = 1000;
        for _ in 0..REPEATS_MAX {
            match self.domctl("destroydomain", domctl::DESTROYDOMAIN, domid, &[]) {
                Err(Errno::EAGAIN) => {}
                answer => return answer.map(drop),
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Adds one to the domain's pause count.
    ///
    /// # Errors
    /// ESRCH, or EOVERFLOW at [`PAUSE_COUNT_MAX`].
    pub fn pause_domain(&mut self, domid: DomId) -> Result<(), Errno> {
        self.domctl("pausedomain", domctl::PAUSEDOMAIN, domid, &[]).map(drop)
    }

    /// Takes one off the domain's pause count; at zero it runs.
    ///
    /// # Errors
    /// ESRCH, or EINVAL if the domain is not paused.
    pub fn unpause_domain(&mut self, domid: DomId) -> Result<(), Errno> {
        self.domctl("unpausedomain", domctl::UNPAUSEDOMAIN, domid, &[]).map(drop)
    }

    /// Clears a domain's shutdown state so that it continues after a suspend. Does nothing if it is
    /// not shut down.
    ///
    /// # Errors
    /// ESRCH, or EINVAL for the caller's own domain.
    pub fn resume_domain(&mut self, domid: DomId) -> Result<(), Errno> {
        self.domctl("resumedomain", domctl::RESUMEDOMAIN, domid, &[]).map(drop)
    }

    /// Shuts a domain down as if it had called `SCHEDOP_shutdown` itself.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn remote_shutdown(&mut self, domid: DomId, reason: ShutdownReason) -> Result<(), Errno> {
        const SCHEDOP_REMOTE_SHUTDOWN: u64 = 4;
        let argument = Layout::<8>::new().u16(0, domid.0).u32(4, reason.code().into()).done();
        self.call_with("remote_shutdown", Op::Sched, SCHEDOP_REMOTE_SHUTDOWN, &argument).map(drop)
    }

    /// Gives the domain another UUID.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn set_handle(&mut self, domid: DomId, handle: Uuid) -> Result<(), Errno> {
        self.domctl("setdomainhandle", domctl::SETDOMAINHANDLE, domid, &handle.0).map(drop)
    }

    /// Allocates the vCPUs; the number must be the one given to createdomain.
    ///
    /// # Errors
    /// EINVAL for another number, ENOMEM.
    pub fn set_vcpus_max(&mut self, domid: DomId, vcpus: u32) -> Result<(), Errno> {
        self.domctl("max_vcpus", domctl::MAX_VCPUS, domid, &vcpus.to_ne_bytes()).map(drop)
    }

    /// Limits the domain's memory, in KiB. Below the current use it only stops further growth.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn set_memory_max(&mut self, domid: DomId, kib: u64) -> Result<(), Errno> {
        self.domctl("max_mem", domctl::MAX_MEM, domid, &kib.to_ne_bytes()).map(drop)
    }

    /// Sets a PV domain's address size to 64 bits, which is the default.
    ///
    /// # Errors
    /// EOPNOTSUPP for a translated domain, ESRCH.
    pub fn set_address_size_64(&mut self, domid: DomId) -> Result<(), Errno> {
        self.domctl("set_address_size", domctl::SET_ADDRESS_SIZE, domid, &64_u32.to_ne_bytes())
            .map(drop)
    }

    /// Fills a PV domain's hypercall page.
    ///
    /// # Errors
    /// EINVAL if the frame is not the domain's, EPERM if it is in use as a page table.
    pub fn init_hypercall_page(&mut self, domid: DomId, frame: u64) -> Result<(), Errno> {
        self.domctl("hypercall_init", domctl::HYPERCALL_INIT, domid, &frame.to_ne_bytes()).map(drop)
    }

    /// Sets how a domain sees the time stamp counter (`XEN_CPUID_TSC_MODE_*`: 0 default, 1 always
    /// emulate, 2 native).
    ///
    /// # Errors
    /// EINVAL for an unknown mode, ESRCH.
    pub fn set_tsc_mode(&mut self, domid: DomId, mode: u32) -> Result<(), Errno> {
        let payload = Layout::<24>::new().u32(0, mode).done();
        self.domctl("settscinfo", domctl::SETTSCINFO, domid, &payload).map(drop)
    }

    /// Gives a vCPU its register state: `struct vcpu_guest_context`, 5168 bytes.
    ///
    /// # Errors
    /// EINVAL for a state that Xen does not accept, ESRCH.
    pub fn set_vcpu_context(
        &mut self,
        domid: DomId,
        vcpu: u32,
        context: &[u8],
    ) -> Result<(), Errno> {
        let address = self.put_data(context)?;
        let payload = Layout::<16>::new().u32(0, vcpu).u64(8, address).done();
        self.domctl("setvcpucontext", domctl::SETVCPUCONTEXT, domid, &payload).map(drop)
    }

    /// The HVM save records of all vCPUs and the platform.
    ///
    /// # Errors
    /// ENOSPC if they do not fit into the arena, EINVAL for a PV domain, ESRCH.
    pub fn hvm_context(&mut self, domid: DomId) -> Result<Vec<u8>, Errno> {
        let (address, area) = self.data_to_end();
        let capacity = u32::try_from(area.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<16>::new().u32(0, capacity).u64(8, address).done();
        self.domctl("gethvmcontext", domctl::GETHVMCONTEXT, domid, &payload)?;
        let used = u32_at(self.domctl_payload(), 0);
        let used = usize::try_from(used).map_err(|_| Errno::E2BIG)?;
        let (_, area) = self.data_to_end();
        area.get(..used).map(<[u8]>::to_vec).ok_or(Errno::E2BIG)
    }

    /// Loads HVM save records.
    ///
    /// # Errors
    /// EINVAL for records that Xen does not accept, E2BIG if they do not fit into the arena.
    pub fn set_hvm_context(&mut self, domid: DomId, records: &[u8]) -> Result<(), Errno> {
        let (address, area) = self.data_to_end();
        area.get_mut(..records.len()).ok_or(Errno::E2BIG)?.copy_from_slice(records);
        let bytes = u32::try_from(records.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<16>::new().u32(0, bytes).u64(8, address).done();
        self.domctl("sethvmcontext", domctl::SETHVMCONTEXT, domid, &payload).map(drop)
    }

    /// Sizes the pool for a translated domain's p2m, in bytes (a multiple of the page size). Must
    /// precede the population of memory.
    ///
    /// # Errors
    /// ENOMEM, or EOPNOTSUPP for a PV domain.
    pub fn set_paging_pool(&mut self, domid: DomId, bytes: u64) -> Result<(), Errno> {
        self.domctl(
            "set_paging_mempool_size",
            domctl::SET_PAGING_MEMPOOL_SIZE,
            domid,
            &bytes.to_ne_bytes(),
        )
        .map(drop)
    }

    /// The size of the pool for a translated domain's p2m, in bytes.
    ///
    /// # Errors
    /// EOPNOTSUPP for a PV domain, ESRCH.
    pub fn paging_pool(&mut self, domid: DomId) -> Result<u64, Errno> {
        self.domctl("get_paging_mempool_size", domctl::GET_PAGING_MEMPOOL_SIZE, domid, &[])?;
        Ok(u64_at(self.domctl_payload(), 0))
    }

    /// Allocates an unbound event channel port in a new domain.
    ///
    /// # Errors
    /// ENOSPC when the domain's ports are used up, ESRCH.
    pub fn alloc_unbound(&mut self, peer: EvtchnPeer) -> Result<EvtchnPort, Errno> {
        const EVTCHNOP_ALLOC_UNBOUND: u64 = 6;
        let argument = Layout::<8>::new().u16(0, peer.owner.0).u16(2, peer.remote.0).done();
        self.call_with("alloc_unbound", Op::EventChannel, EVTCHNOP_ALLOC_UNBOUND, &argument)?;
        Ok(EvtchnPort(u32_at(self.argument(8), 4)))
    }

    /// Sets an HVM parameter.
    ///
    /// # Errors
    /// EEXIST for a set-once parameter, EINVAL for a PV domain.
    pub fn set_hvm_param(
        &mut self,
        domid: DomId,
        param: HvmParam,
        value: u64,
    ) -> Result<(), Errno> {
        const HVMOP_SET_PARAM: u64 = 0;
        let argument =
            Layout::<16>::new().u16(0, domid.0).u32(4, param as u32).u64(8, value).done();
        self.call_with("hvm_set_param", Op::Hvm, HVMOP_SET_PARAM, &argument).map(drop)
    }

    /// Reads an HVM parameter.
    ///
    /// # Errors
    /// EINVAL for a PV domain, ESRCH.
    pub fn hvm_param(&mut self, domid: DomId, param: HvmParam) -> Result<u64, Errno> {
        const HVMOP_GET_PARAM: u64 = 1;
        let argument = Layout::<16>::new().u16(0, domid.0).u32(4, param as u32).done();
        self.call_with("hvm_get_param", Op::Hvm, HVMOP_GET_PARAM, &argument)?;
        Ok(u64_at(self.argument(16), 8))
    }

    /// One domain, or `None` if there is none with this identifier.
    ///
    /// # Errors
    /// Any errno of the hypercall but ESRCH.
    pub fn domain(&mut self, domid: DomId) -> Result<Option<DomainInfo>, Errno> {
        match self.domctl("getdomaininfo", domctl::GETDOMAININFO, domid, &[]) {
            Ok(_) => {}
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let info = DomainInfo::decode(self.domctl_payload());
        // Up to 4.17 a miss returns the next domain; comparing is right on every version.
        Ok((info.domid == domid).then_some(info))
    }

    /// All domains in ascending order of identifiers, by one hypercall.
    ///
    /// Each domain that exists during the whole call is listed exactly once; one that is created or
    /// removed meanwhile may or may not be.
    ///
    /// # Errors
    /// E2BIG if the arena is too small for the host's domains.
    pub fn domains(&mut self) -> Result<Vec<DomainInfo>, Errno> {
        let capacity = ((self.hypervisor.arena().len() - LIST_OFFSET) / DOMAININFO_BYTES)
            .min(usize::from(DomId::FIRST_RESERVED));
        let address = self.hypervisor.arena_address() + LIST_OFFSET as u64;
        let count = u32::try_from(capacity).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<24>::new().u32(4, count).u64(8, address).done();
        self.sysctl("getdomaininfolist", sysctl::GETDOMAININFOLIST, &payload)?;
        let found = usize::try_from(u32_at(self.sysctl_payload(), 16)).map_err(|_| Errno::E2BIG)?;
        if found == capacity && capacity < usize::from(DomId::FIRST_RESERVED) {
            return Err(Errno::E2BIG);
        }
        let list = &self.hypervisor.arena()[LIST_OFFSET..LIST_OFFSET + found * DOMAININFO_BYTES];
        Ok(list.chunks_exact(DOMAININFO_BYTES).map(DomainInfo::decode).collect())
    }

    /// Whether the stable get_domain_state call exists (Xen 4.21 and later).
    pub fn has_domain_state(&mut self) -> bool {
        self.counters.count("get_domain_state");
        let answer = crate::xen::domctl_raw(
            &mut self.hypervisor,
            0,
            domctl::GET_DOMAIN_STATE,
            DomId::DOM0,
            &[],
        );
        answer.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn entry(flags: u32, emulation: u32) -> Vec<u8> {
        let mut bytes = vec![0; DOMAININFO_BYTES];
        bytes[..2].copy_from_slice(&7_u16.to_ne_bytes());
        bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[68..72].copy_from_slice(&u32::MAX.to_ne_bytes());
        bytes[104..108].copy_from_slice(&emulation.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_live_domain_has_no_shutdown_reason_although_the_code_field_is_full() {
        let info = DomainInfo::decode(&entry(0xffff_0008, 0));
        assert_eq!(
            (info.domid, info.flags.paused(), info.flags.shutdown()),
            (DomId(7), true, None)
        );
        assert_eq!(info.vcpu_id_max, None);
    }

    #[test]
    fn the_reason_of_a_shut_down_domain_is_read_from_its_flags() {
        let info = DomainInfo::decode(&entry(0x0001_000c, 0));
        assert_eq!(info.flags.shutdown(), Some(ShutdownReason::Reboot));
    }

    #[test]
    fn pvh_is_a_translated_domain_with_nothing_but_a_local_apic() {
        assert_eq!(DomainInfo::decode(&entry(0, 0)).kind(), DomainKind::Pv);
        assert_eq!(DomainInfo::decode(&entry(2, 1)).kind(), DomainKind::Pvh);
        assert_eq!(DomainInfo::decode(&entry(2, 0x3ff)).kind(), DomainKind::Hvm);
    }
}
