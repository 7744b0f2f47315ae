//! How Xen runs a guest's machine: what it is told at its creation, and parameters that are no part of a saved state.

use xen::{DomId, DomainKind, HvmParam, Hypervisor, IommuTables, PAGE_BYTES, PhysInfo, Uuid};
use xenstore::client::{Batch, Nodes as _, Transport};

use super::build::PAGES_PER_MIB;
use super::{Performer, failure, refused, store};
use crate::config::{Altp2m, Passthrough, VmConfig};
use crate::generation::GenerationId;
use crate::host::Host;
use crate::layout;
use crate::work::{Failure, Images};

/// `XEN_HVM_MCA_CAP_LMCE`.
const LMCE: u64 = 1;
pub(super) const NO_IOMMU: &str = "this host has no IOMMU, or Xen does not use it";
/// How many views of an HVM guest's memory libxl asks for.
const ALTP2M_COUNT: u16 = 10;

/// Checks that the host has what a guest's machine needs.
pub(super) fn check(config: &VmConfig, physical: &PhysInfo) -> Result<(), Failure> {
    let options = &config.options.machine;
    let problem =
        |key: &str, problem: &str| Err(Failure(format!("{}: {problem}", config.origin.at(key))));
    if options.vpmu && !physical.has_vpmu() {
        return problem(
            "vpmu",
            "this host's Xen has none for guests; its command line needs vpmu=1",
        );
    }
    if options.trace_kib != 0 && !physical.has_vmtrace() {
        return problem("vmtrace_buf_kb", "this host's CPUs cannot trace vCPUs, or Xen does not");
    }
    if let Some(device) = config.options.pci.first() {
        let place = config.origin.at("pci[0]");
        let refused = |problem| Err(Failure(format!("{place}: {}: {problem}", device.name)));
        if !physical.has_iommu() {
            return refused(NO_IOMMU);
        }
    }
    match options.passthrough {
        Passthrough::Default | Passthrough::Disabled => Ok(()),
        _ if !physical.has_iommu() => problem("passthrough", NO_IOMMU),
        Passthrough::Shared if !physical.shares_iommu_tables() => {
            problem("passthrough", "this host's IOMMU cannot share_pt; sync_pt is the other way")
        }
        Passthrough::Enabled | Passthrough::Synchronised | Passthrough::Shared => Ok(()),
    }
}

/// Mode and number of the views of a guest's memory.
pub(super) fn altp2m(config: &VmConfig) -> (u8, u16) {
    let options = &config.options.machine;
    let usual = match (options.altp2m, config.kind) {
        (Altp2m::Disabled, _) | (_, DomainKind::Pv | DomainKind::Pvh) => 0,
        (_, DomainKind::Hvm) => ALTP2M_COUNT,
    };
    (options.altp2m.number(), options.altp2m_count.unwrap_or(usual))
}

/// The tables by which the IOMMU is to translate, if it is.
pub(super) fn iommu(config: &VmConfig, physical: &PhysInfo) -> Option<IommuTables> {
    let can_share = config.kind == DomainKind::Hvm
        && !config.options.shadow_paging
        && physical.shares_iommu_tables();
    match config.options.machine.passthrough {
        Passthrough::Default if config.options.pci.is_empty() => None,
        Passthrough::Disabled => None,
        Passthrough::Default | Passthrough::Enabled if can_share => Some(IommuTables::Shared),
        Passthrough::Default | Passthrough::Enabled | Passthrough::Synchronised => {
            Some(IommuTables::Own)
        }
        Passthrough::Shared => Some(IommuTables::Shared),
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// As libxl does: before a guest is built, and also before a saved one's state is loaded, which says nothing of them.
    pub(super) fn set_machine(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        if config.kind == DomainKind::Pv {
            return Ok(());
        }
        let options = &config.options.machine;
        self.set_param(domid, HvmParam::TimerMode, options.timer_mode.number().into())?;
        if let Some(hvm) = config.hvm.as_deref() {
            self.set_param(domid, HvmParam::HpetEnabled, hvm.hpet.into())?;
            self.set_param(domid, HvmParam::VptAlign, options.timers_aligned.into())?;
            if hvm.lmce {
                self.set_machine_checks(domid, config)?;
            }
        }
        let (mode, _) = altp2m(config);
        if mode != 0 && !self.xen.abi().createdomain_has_altp2m() {
            self.set_param(domid, HvmParam::Altp2m, mode.into())?;
        }
        Ok(())
    }

    /// In place of the map that its builder set.
    pub(super) fn set_host_map(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        if !config.options.host_map {
            return Ok(());
        }
        let place = config.origin.at("e820_host");
        let host = self.xen.machine_memory_map();
        let host =
            host.map_err(|errno| failure(format!("{place}: the host's memory map"), errno))?;
        let pages = |mib| mib * PAGES_PER_MIB;
        let map =
            xen_build::host_map(&host, pages(config.memory_mib), pages(config.memory_max_mib));
        self.xen.set_memory_map(domid, &map).map_err(|errno| failure(place, errno))
    }

    /// What a new domain's guest is to be told: another one than before if its memory is an earlier one, the same if it only
    /// reboots. That of a guest that comes from another host stays in its memory.
    pub(super) fn generation_id(
        &mut self,
        config: &VmConfig,
        uuid: Uuid,
        images: &Images,
    ) -> Result<Option<GenerationId>, Failure> {
        if config.hvm.as_ref().is_none_or(|hvm| !hvm.generation_id) {
            return Ok(None);
        }
        let earlier = match images {
            Images::Coming => return Ok(None),
            Images::Saved(_) => None,
            Images::Kernel { .. } | Images::Firmware { .. } => {
                let mut look = Batch::new();
                let index = look.read(&layout::generation_path(uuid));
                let replies = self.store.run(&look)?;
                let value = replies.get_optional(index)?;
                value.and_then(|value| store::text(value).parse().ok())
            }
        };
        let fresh = || self.host.random().map(GenerationId);
        let id = earlier.map_or_else(fresh, Ok);
        let place = || config.origin.at("ms_vm_genid");
        id.map(Some).map_err(|error| failure(place(), error))
    }

    /// Tells a guest whose memory was loaded, if its firmware told it where it looks.
    pub(super) fn tell_generation(
        &mut self,
        domid: DomId,
        id: GenerationId,
    ) -> Result<(), Failure> {
        let address = self.xen.hvm_param(domid, HvmParam::VmGenerationIdAddress);
        let address = address.map_err(refused("find the generation ID of", domid))?;
        if address == 0 {
            return Ok(());
        }
        let page = PAGE_BYTES as u64;
        let offset = usize::try_from(address % page).unwrap_or_default();
        let first = address / page;
        // It may reach into a second page.
        let pages = [first, first + 1];
        let used = (offset + id.0.len()).div_ceil(PAGE_BYTES);
        self.xen
            .write_foreign(domid, &pages[..used], offset, &id.0)
            .map_err(|error| failure(format!("the generation ID of domain {domid}"), error))
    }

    fn set_param(&mut self, domid: DomId, param: HvmParam, value: u64) -> Result<(), Failure> {
        self.xen.set_hvm_param(domid, param, value).map_err(|errno| {
            Failure(format!("cannot set {param:?} of domain {domid}: Xen returned {errno}"))
        })
    }

    fn set_machine_checks(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        self.xen.set_hvm_param(domid, HvmParam::McaCapabilities, LMCE).map_err(|errno| {
            let place = config.origin.at("mca_caps");
            Failure(format!("{place}: do this host's CPUs have lmce? Xen returned {errno}"))
        })
    }

    /// As [`check`], on this host.
    pub(super) fn check_machine(&mut self, config: &VmConfig) -> Result<(), Failure> {
        let physical = self.xen.phys_info();
        let physical = physical
            .map_err(|errno| Failure(format!("the host's abilities: Xen returned {errno}")))?;
        check(config, &physical)?;
        self.check_reserved(config)
    }

    /// Guests' memory is not laid out around what the host's devices have reserved.
    fn check_reserved(&mut self, config: &VmConfig) -> Result<(), Failure> {
        if config.options.rdm.is_none_or(|rdm| !rdm.of_host) {
            return Ok(());
        }
        let place = config.origin.at("rdm");
        match self.xen.reserved_device_memory() {
            Ok(reserved) if reserved.is_empty() => Ok(()),
            Ok(_) => Err(Failure(format!(
                "{place}: devices of this host have reserved memory, and a guest's is not laid out around it yet"
            ))),
            Err(errno) => Err(Failure(format!("{place}: Xen returned {errno}"))),
        }
    }
}
