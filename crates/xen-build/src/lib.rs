//! Builds domains: a kernel image, a ramdisk and a command line become the memory, tables and
//! registers of a new PV or PVH domain; hvmloader and a firmware those of an HVM domain.
//!
//! All work goes through [`xen::Xen`], so the same code builds on a real Xen and on the simulator.
//! This crate does not create or destroy domains, write to the store or know about devices.
//!
//! Division of work. The caller, before [`build`]: [`xen::Xen::create_domain`],
//! [`xen::Xen::set_vcpus_max`] and one [`xen::Xen::alloc_unbound`] each for store and console.
//! [`build`]: memory limit, claim, time stamp counter mode, memory map, paging pool (PVH), memory,
//! loading, tables, parameters, vCPU contexts, grant entries. The caller, afterwards: the store's
//! nodes and introduction from [`Built`], then unpause. If [`build`] fails, the caller destroys the
//! domain.
#![no_std]

extern crate alloc;

mod acpi;
mod config;
mod context;
mod cpuid;
mod error;
mod host_map;
mod hvm;
mod image;
mod memory;
mod monitor;
mod pv;
mod pvh;
mod record;
mod restored;

pub use config::{BuildConfig, Built, Channel, Channels, Needs, Shimmed, Tables, TscMode};
pub use cpuid::{
    BitPolicy, CpuConfig, CpuidOverride, CpuidRegister, MsrOverride, NO_SUBLEAF, apply_cpu_policy,
};
pub use error::BuildError;
pub use host_map::host_map;
pub use hvm::{FIRMWARE_BYTES_MAX, HvmConfig, HvmLoader, build_hvm, check_hvm, prepare_hvm};
pub use image::{
    Compression, DescriptionError, ElfClass, ImageError, KernelImage, Notes, Relocation,
};
pub use monitor::Monitor;
pub use pvh::pool_pages as paging_pool_pages;
pub use restored::{RestoredConfig, check_restored, finish_restored, prepare_restored};

use xen::{DomId, DomainKind, GrantRef, Hypervisor, PAGE_SHIFT, Xen};

/// Pages that a domain may own beyond its memory: 1 MiB, libxl's allowance for ring and table
/// pages.
const EXTRA_PAGES: u64 = 256;

/// KiB that a domain of this kind may have beyond its memory.
#[must_use]
pub fn extra_kib(kind: DomainKind) -> u64 {
    let roms = if kind == DomainKind::Hvm { hvm::ROM_PAGES } else { 0 };
    (EXTRA_PAGES + roms) << (PAGE_SHIFT - 10)
}

/// Checks whether a domain can be built with this configuration, before it is created.
///
/// # Errors
/// [`BuildError`] if the configuration itself is impossible.
pub fn check(config: &BuildConfig<'_>) -> Result<Needs, BuildError> {
    config.check()?;
    let (memory_pages_min, translation_pages) = match config.kind {
        DomainKind::Pv => (pv::memory_pages_min(config)?, 0),
        DomainKind::Pvh => (pvh::memory_pages_min(config)?, pvh::paging_pool_pages(config)),
        DomainKind::Hvm => return Err(BuildError::Kind(config.kind)),
    };
    let host_pages = config.memory_pages + translation_pages + EXTRA_PAGES;
    Ok(Needs { memory_pages_min, host_pages })
}

/// Limits the domain's memory and claims it, so that nobody else counts on it until it is built.
///
/// # Errors
/// As [`check`], or [`BuildError`] if a hypercall fails, which leaves no claim.
pub fn prepare<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
) -> Result<(), BuildError> {
    config.check()?;
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    let memory_kib = (config.memory_pages + EXTRA_PAGES) << (PAGE_SHIFT - 10);
    xen.set_memory_max(domid, memory_kib).map_err(refused("limit the memory"))?;
    match config.kind {
        DomainKind::Pv => memory::claim(xen, domid, config.memory_pages),
        DomainKind::Pvh => pvh::claim_memory(xen, domid, config),
        DomainKind::Hvm => Err(BuildError::Kind(config.kind)),
    }
}

/// Builds a domain that was [prepared](prepare), and stays paused.
///
/// # Errors
/// [`BuildError`] if a hypercall fails. The claim has ended.
pub fn build_prepared<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
    channels: &Channels,
    monitor: &mut dyn Monitor,
) -> Result<Built, BuildError> {
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    let mut build = || {
        if config.tsc_mode != TscMode::Default {
            xen.set_tsc_mode(domid, config.tsc_mode.code())
                .map_err(refused("set the time stamp counter mode"))?;
        }
        match config.kind {
            DomainKind::Pv => pv::build(xen, domid, config, channels, monitor),
            DomainKind::Pvh => pvh::build(xen, domid, config, channels, monitor),
            DomainKind::Hvm => Err(BuildError::Kind(config.kind)),
        }
    };
    let built = build();
    // A built domain has used up its claim.
    built.inspect_err(|_| memory::unclaim(xen, domid))
}

/// Prepares and builds the domain, which stays paused.
///
/// # Errors
/// As [`prepare`] and [`build_prepared`].
pub fn build<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
    channels: &Channels,
    monitor: &mut dyn Monitor,
) -> Result<Built, BuildError> {
    prepare(xen, domid, config)?;
    build_prepared(xen, domid, config, channels, monitor)
}

/// Grants the rings to the backends of console and store.
fn grant_rings<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    channels: &Channels,
    store_frame: u64,
    console_frame: u64,
) -> Result<(), BuildError> {
    const { assert!(GrantRef::XENSTORE.0 == GrantRef::CONSOLE.0 + 1) };
    let entries =
        [(channels.console.backend, console_frame), (channels.store.backend, store_frame)];
    xen.seed_grants(domid, GrantRef::CONSOLE, &entries).map_err(|errno| BuildError::Hypercall {
        action: "grant the ring pages",
        domid,
        errno,
    })
}

/// 1024 entries of 4 MiB pages that map the first 4 GiB to themselves.
fn identity_page_table() -> alloc::vec::Vec<u8> {
    /// Present, writable, user, accessed, dirty, large.
    const FLAGS: u32 = 0xe7;
    (0..1024_u32).flat_map(|entry| (entry << 22 | FLAGS).to_le_bytes()).collect()
}
