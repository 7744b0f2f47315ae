//! How Xen runs a guest's machine: what it is told at its creation, and parameters that are no part of a saved state.

use xen::{DomId, DomainKind, HvmParam, Hypervisor, IommuTables, PhysInfo};
use xenstore::client::Transport;

use super::Performer;
use crate::config::{Altp2m, Passthrough, VmConfig};
use crate::host::Host;
use crate::work::Failure;

/// `XEN_HVM_MCA_CAP_LMCE`.
const LMCE: u64 = 1;
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
    match options.passthrough {
        Passthrough::Default | Passthrough::Disabled => Ok(()),
        _ if !physical.has_iommu() => {
            problem("passthrough", "this host has no IOMMU, or Xen does not use it")
        }
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
        Passthrough::Default | Passthrough::Disabled => None,
        Passthrough::Enabled if can_share => Some(IommuTables::Shared),
        Passthrough::Enabled | Passthrough::Synchronised => Some(IommuTables::Own),
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
        check(config, &physical)
    }
}
