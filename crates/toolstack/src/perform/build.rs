//! Loading of images and creation of domains.

use std::ops::ControlFlow;
use std::sync::Arc;

use xen::{
    CreateDomain, CreateOptions, DomId, DomainKind, Errno, EvtchnPeer, Hypervisor, PAGE_BYTES,
    PhysInfo, Uuid,
};
use xen_build::{
    BitPolicy, BuildConfig, BuildError, Built, Channel, Channels, CpuConfig, CpuidOverride,
    CpuidRegister, HvmConfig, KernelImage, NO_SUBLEAF, Needs, RestoredConfig, Shimmed, TscMode,
};
use xenstore::client::Transport;

use super::restore::restored;
use super::room::memory_failure;
use super::{Performer, failure, machine, refused};
use crate::config::VmConfig;
use crate::host::{Host, KernelError};
use crate::work::{Failure, Images, NewDomain, Part, WorkMonitor};

/// Pages of a MiB.
pub(super) const PAGES_PER_MIB: u64 = (1 << 20) / PAGE_BYTES as u64;
/// Highest event channel port of a domain, as with xl.
const EVTCHN_PORT_MAX: u32 = 1023;
/// Attempts to destroy an incomplete domain if Xen refuses.
const DESTROY_ATTEMPTS_MAX: u32 = 5;

/// Reports a build's memory in MiB.
struct Allocation<'a>(&'a mut dyn WorkMonitor);

impl xen_build::Monitor for Allocation<'_> {
    fn allocated(&mut self, pages: u64, total: u64) -> ControlFlow<()> {
        let (done, total) = (pages / PAGES_PER_MIB, total.div_ceil(PAGES_PER_MIB));
        self.0.reached(Part { done, total, unit: "MiB" })
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(crate) fn load_images(&mut self, config: &VmConfig) -> Result<Images, Failure> {
        self.wanted_pool(config)?;
        self.check_machine(config)?;
        let images = match (&config.hvm, &config.kernel) {
            (Some(hvm), _) => self.load_firmware(config, hvm)?,
            _ if config.options.bootloader.is_some() => unreachable!("its bootloader is run"),
            (None, Some(kernel)) => self.load_kernel(config, kernel)?,
            (None, None) => unreachable!("only an HVM domain does without a kernel"),
        };
        if config.hvm.is_none() {
            self.check_model(config)?;
        }
        check_images(config, &images)?;
        Ok(images)
    }

    /// Checks that the host has the memory.
    pub(super) fn check_memory(
        &mut self,
        config: &VmConfig,
        images: &Images,
    ) -> Result<PhysInfo, Failure> {
        let needs = materials(config, images).check();
        let needs = needs.map_err(|error| build_failure(config, &error))?;
        self.check_room(config, needs.host_pages + more_for_pool(config))
    }

    pub(super) fn load_kernel(
        &mut self,
        config: &VmConfig,
        kernel: &str,
    ) -> Result<Images, Failure> {
        let place = |key: &str, path: &str| format!("{}: {path}", config.origin.at(key));
        let (loaded, shimmed) = match &config.options.shim {
            None => (self.kernel("kernel", kernel, config)?, None),
            Some(_) => {
                let bytes = self.host.ramdisk(kernel);
                let bytes = bytes.map_err(|error| failure(place("kernel", kernel), error))?;
                (self.load_shim(config)?, Some(bytes))
            }
        };
        let ramdisk = match &config.ramdisk {
            Some(path) => {
                let bytes = self.host.ramdisk(path);
                Some(bytes.map_err(|error| failure(place("ramdisk", path), error))?)
            }
            None => None,
        };
        Ok(Images::Kernel { kernel: loaded, ramdisk, cmdline: None, shimmed })
    }

    pub(super) fn kernel(
        &mut self,
        key: &str,
        path: &str,
        config: &VmConfig,
    ) -> Result<Arc<KernelImage>, Failure> {
        let place = || format!("{}: {path}", config.origin.at(key));
        self.host.kernel(path).map_err(|error| match error {
            KernelError::Host(error) => failure(place(), error),
            KernelError::Image(error) => failure(place(), error),
        })
    }

    pub(crate) fn create_domain(
        &mut self,
        config: &VmConfig,
        (uuid, domid, generation): (Uuid, Option<DomId>, u64),
        images: &Images,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<NewDomain, Failure> {
        let materials = materials(config, images);
        let generation_id = self.generation_id(config, uuid, images)?;
        self.wanted_pool(config)?;
        let needs = materials.check().map_err(|error| build_failure(config, &error))?;
        let host_pages = needs.host_pages + more_for_pool(config);
        // Until the memory is claimed, at the end of this.
        let (physical, _turn) = self.make_room(config, host_pages, monitor)?;
        machine::check(config, &physical)?;
        let wanted = wanted(config, uuid, &physical);
        let created = match domid {
            None => self.xen.create_domain(&wanted),
            Some(domid) => self.xen.create_domain_as(domid, &wanted),
        };
        let domid = created.map_err(|errno| {
            let name = &config.name;
            match (domid, errno) {
                (Some(domid), Errno::EEXIST) => {
                    Failure(format!("{name}: there is a domain {domid} already"))
                }
                _ => Failure(format!("{name}: cannot create the domain: Xen returned {errno}")),
            }
        })?;
        let cpu_count = physical.cpu_id_max + 1;
        let finished = self.finish_domain(domid, (uuid, generation), config, &materials, cpu_count);
        finished.map(|domain| NewDomain { generation_id, ..domain }).map_err(|Failure(why)| {
            // The domain is empty and unused: it is destroyed at once.
            let mut attempts = (0..DESTROY_ATTEMPTS_MAX).map(|_| self.xen.destroy_domain(domid));
            match attempts.find(|gone| matches!(gone, Ok(()) | Err(Errno::ESRCH))) {
                Some(_) => Failure(why),
                // Nothing refers to it once its record is gone.
                None => Failure(format!(
                    "{why}; and domain {domid} could not be destroyed; `xl destroy {domid}` destroys it"
                )),
            }
        })
    }

    fn finish_domain(
        &mut self,
        domid: DomId,
        (uuid, generation): (Uuid, u64),
        config: &VmConfig,
        materials: &Materials<'_>,
        cpu_count: u32,
    ) -> Result<NewDomain, Failure> {
        let domain =
            self.xen.identify(domid, uuid, generation).map_err(refused("identify", domid))?;
        if let Some(pool) = &config.options.pool {
            self.put_in_pool(domid, &config.name, pool)?;
        }
        self.xen
            .set_vcpus_max(domid, config.vcpus_max)
            .map_err(refused("allocate the vCPUs of", domid))?;
        self.set_first_share(domid, config)?;
        self.give_affinity(domid, config, cpu_count)?;
        self.set_clock(domid, config)?;
        let registers = registers(config);
        xen_build::apply_cpu_policy(&mut self.xen, domid, &cpu_config(config, &registers))
            .map_err(|error| build_failure(config, &error))?;
        let prepared = match materials {
            Materials::Kernel(build) => xen_build::prepare(&mut self.xen, domid, build),
            Materials::Firmware(build) => xen_build::prepare_hvm(&mut self.xen, domid, build),
            Materials::Saved(sizes) => xen_build::prepare_restored(&mut self.xen, domid, sizes),
        };
        prepared.map_err(|error| self.build_failure(config, materials, &error))?;
        if matches!(materials, Materials::Saved(_)) {
            self.set_host_map(domid, config)?;
        }
        self.set_paging_pool(domid, config)?;
        self.set_machine(domid, config)?;
        self.give_hardware(domid, config)?;
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        let channel = refused("allocate an event channel for", domid);
        let store_port = self.xen.alloc_unbound(peer).map_err(&channel)?;
        let console_port = self.xen.alloc_unbound(peer).map_err(&channel)?;
        Ok(NewDomain { domain, store_port, console_port, generation_id: None })
    }

    /// In place of the one that was computed.
    fn set_paging_pool(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        let Some(mib) = pool_mib(config) else { return Ok(()) };
        self.xen.set_paging_pool(domid, u64::from(mib) << 20).map_err(|errno| {
            let place = config.origin.at("shadow_memory");
            Failure(format!("{place}: {mib} MiB: Xen returned {errno}"))
        })
    }

    /// What a saved or moved guest's clock was is part of its state, and comes later.
    fn set_clock(&mut self, domid: DomId, config: &VmConfig) -> Result<(), Failure> {
        let clock = config.options.clock;
        let local = if clock.is_local { self.host.local_offset_seconds() } else { 0 };
        match i64::from(clock.seconds) + i64::from(local) {
            0 => Ok(()),
            offset => self
                .xen
                .set_time_offset(domid, offset)
                .map_err(refused("set the clock's offset of", domid)),
        }
    }

    pub(crate) fn build(
        &mut self,
        config: &VmConfig,
        images: &Images,
        domain: NewDomain,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Built, Failure> {
        let channels = Channels {
            store: Channel { port: domain.store_port, backend: DomId::DOM0 },
            console: Channel { port: domain.console_port, backend: DomId::DOM0 },
        };
        let domid = domain.domain.domid;
        let materials = materials(config, images);
        let monitor = &mut Allocation(monitor);
        let built = match &materials {
            Materials::Kernel(build) => {
                xen_build::build_prepared(&mut self.xen, domid, build, &channels, monitor)
            }
            Materials::Firmware(build) => {
                xen_build::build_hvm(&mut self.xen, domid, build, &channels, monitor)
            }
            Materials::Saved(_) => unreachable!("its state is loaded"),
        };
        let built = built.map_err(|error| self.build_failure(config, &materials, &error))?;
        self.set_host_map(domid, config)?;
        self.map_hardware(domid, config)?;
        Ok(built)
    }

    /// Names the responsible key; if memory is short, also the free amount.
    fn build_failure(
        &mut self,
        config: &VmConfig,
        materials: &Materials<'_>,
        error: &BuildError,
    ) -> Failure {
        let BuildError::HostMemory { got_pages, .. } = error else {
            return build_failure(config, error);
        };
        match (materials.check(), self.xen.phys_info()) {
            (Ok(needs), Ok(mut physical)) => {
                // Its own pages are freed with the domain.
                physical.pages_free += got_pages;
                memory_failure(config, needs.host_pages, &physical, None)
            }
            _ => build_failure(config, error),
        }
    }
}

/// Finds errors of a build that need no domain.
pub(super) fn check_images(config: &VmConfig, images: &Images) -> Result<(), Failure> {
    let needs = materials(config, images).check();
    needs.map(drop).map_err(|error| build_failure(config, &error))
}

/// The paging pool that is wanted; PV domains have none.
fn pool_mib(config: &VmConfig) -> Option<u32> {
    config.options.paging_pool_mib.filter(|_| config.kind != DomainKind::Pv)
}

/// Pages by which the wanted paging pool is larger than the computed one.
pub(super) fn more_for_pool(config: &VmConfig) -> u64 {
    let wanted = u64::from(pool_mib(config).unwrap_or_default()) * PAGES_PER_MIB;
    let memory_pages_max = config.memory_max_mib * PAGES_PER_MIB;
    wanted.saturating_sub(xen_build::paging_pool_pages(config.vcpus_max, memory_pages_max))
}

/// Arguments of createdomain. Grant tables may have the highest version that Xen supports.
fn wanted(config: &VmConfig, uuid: Uuid, physical: &PhysInfo) -> CreateDomain {
    let options = &config.options;
    CreateDomain {
        kind: config.kind,
        handle: uuid,
        vcpus_max: config.vcpus_max,
        evtchn_port_max: options.evtchn_port_max.unwrap_or(EVTCHN_PORT_MAX),
        grant_frames_max: config.grant_frames_max.map(u32::from),
        maptrack_frames_max: options.maptrack_frames_max,
        options: CreateOptions {
            grant_version_max: options
                .grant_version_max
                .unwrap_or_else(|| physical.grant_version_max()),
            shadow_paging: options.shadow_paging,
            nested_virt: options.nested_virt,
            msr_relaxed: options.msr_relaxed,
            altp2m: machine::altp2m(config),
            pirqs: options.machine.pirqs,
            vpmu: options.machine.vpmu,
            trace_bytes: options.machine.trace_kib << 10,
            always_in_sync: !options.machine.out_of_sync,
            iommu: machine::iommu(config, physical),
        },
    }
}

/// What the configuration says of CPUID, with what other keys say of it.
fn registers(config: &VmConfig) -> Vec<CpuidOverride> {
    const PAE: u32 = 1 << 6;
    let mut registers = Vec::new();
    if config.hvm.as_ref().is_some_and(|hvm| !hvm.pae) {
        registers.push(CpuidOverride {
            leaf: 1,
            subleaf: NO_SUBLEAF,
            register: CpuidRegister::Edx,
            bits: BitPolicy { ones: 0, host: 0, default: !PAE },
        });
    }
    registers.extend(config.options.cpuid.iter().flat_map(|cpuid| cpuid.registers.iter().copied()));
    registers
}

fn cpu_config<'a>(config: &'a VmConfig, registers: &'a [CpuidOverride]) -> CpuConfig<'a> {
    let cpuid = config.options.cpuid.as_deref();
    CpuConfig {
        kind: config.kind,
        // Another host's counter would go on elsewhere, and at another pace, unless it is emulated.
        invariant_tsc: config.tsc_mode == TscMode::AlwaysEmulate || config.options.never_moves,
        nested_virt: config.options.nested_virt,
        registers,
        msrs: cpuid.map_or(&[], |cpuid| &cpuid.msrs),
    }
}

/// Input of the domain builder.
enum Materials<'a> {
    Kernel(BuildConfig<'a>),
    Firmware(HvmConfig<'a>),
    /// No build: the state of a saved VM is loaded.
    Saved(RestoredConfig),
}

impl Materials<'_> {
    fn check(&self) -> Result<Needs, BuildError> {
        match self {
            Self::Kernel(build) => xen_build::check(build),
            Self::Firmware(build) => xen_build::check_hvm(build),
            Self::Saved(sizes) => xen_build::check_restored(sizes),
        }
    }
}

fn materials<'a>(config: &'a VmConfig, images: &'a Images) -> Materials<'a> {
    let memory_pages = config.memory_mib * PAGES_PER_MIB;
    let memory_pages_max = config.memory_max_mib * PAGES_PER_MIB;
    let (vcpus, tsc_mode) = (config.vcpus_max, config.tsc_mode);
    match images {
        Images::Saved(_) | Images::Coming => Materials::Saved(restored(config)),
        Images::Kernel { kernel, ramdisk, cmdline, shimmed } => {
            let own = cmdline.as_deref().unwrap_or(&config.cmdline);
            let of_shim = config.options.shim.as_deref().map(|shim| shim.cmdline.as_str());
            Materials::Kernel(BuildConfig {
                kind: config.kind,
                kernel,
                ramdisk: ramdisk.as_deref(),
                cmdline: of_shim.unwrap_or(own),
                shimmed: shimmed.as_deref().map(|image| Shimmed { image, cmdline: own }),
                memory_pages,
                memory_pages_max,
                vcpus,
                tsc_mode,
            })
        }
        Images::Firmware { loader, bios, acpi_tables, smbios_structures } => {
            let hvm = config.hvm.as_deref();
            Materials::Firmware(HvmConfig {
                loader,
                firmware: bios,
                memory_pages,
                memory_pages_max,
                video_pages: hvm.map_or(0, |hvm| hvm.video_mib * PAGES_PER_MIB),
                vcpus,
                tsc_mode,
                apic: hvm.is_some_and(|hvm| hvm.apic),
                viridian: hvm.map_or(0, |hvm| hvm.viridian),
                acpi_tables,
                smbios_structures,
                hole_pages: hvm
                    .and_then(|hvm| hvm.hole_mib)
                    .map(|mib| u64::from(mib) * PAGES_PER_MIB),
            })
        }
    }
}

/// Names the responsible key.
fn build_failure(config: &VmConfig, error: &BuildError) -> Failure {
    let key = match error {
        BuildError::Image(_) | BuildError::CmdlineTooLong { .. } | BuildError::CmdlineNul
            if config.options.bootloader.is_some() =>
        {
            "bootloader"
        }
        BuildError::Image(_) if config.options.shim.is_some() => "pvshim",
        BuildError::Image(_) => {
            let place = config.origin.at("kernel");
            let kernel = config.kernel.as_deref().unwrap_or_default();
            return failure(format!("{place}: {kernel}"), error);
        }
        BuildError::Kind(_) => "type",
        BuildError::Loader(_) | BuildError::LoaderImage(_) => "firmware_override",
        BuildError::Firmware { .. } => "bios",
        BuildError::MemoryAboveMax { .. } => "maxmem",
        BuildError::MemoryTooSmall { .. }
        | BuildError::MemoryTooLarge { .. }
        | BuildError::HostMemory { .. } => "memory",
        BuildError::CmdlineTooLong { .. } | BuildError::CmdlineNul => "cmdline",
        BuildError::Vcpus { .. } => "vcpus",
        BuildError::CpuidLeaf { .. } | BuildError::Msr(_) => "cpuid",
        _ => "name",
    };
    failure(config.origin.at(key), error)
}
