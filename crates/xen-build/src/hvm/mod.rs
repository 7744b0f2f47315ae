//! HVM domains: Xen's hvmloader runs in 32-bit mode, sets the machine up and starts a firmware; a
//! device model (QEMU) emulates the hardware.
//!
//! The caller starts the device model, which must be ready before the domain runs. It allocates
//! video memory itself, within the limit that [`build_hvm`] sets.

mod layout;
mod loader;

use alloc::vec;

use xen::{DomId, HvmParam, Hypervisor, PAGE_BYTES, PAGE_SHIFT, Xen};

use crate::context::{self, MemoryTypes};
use crate::memory::{
    FrameNames, Loader, claim, mib_of, pages_of, populate, populate_on_demand, populate_special,
    unclaim,
};
use crate::{
    BuildError, Built, Channels, EXTRA_PAGES, Monitor, Needs, TscMode, grant_rings,
    identity_page_table, pvh,
};
use layout::{HvmLayout, IOREQ_SERVER_PAGES, IOREQ_SERVER_PFN, SPECIAL_PAGES, special};
pub use loader::HvmLoader;

/// Largest firmware that fits below 4 GiB next to Xen's special pages.
pub const FIRMWARE_BYTES_MAX: usize = 16 << 20;

/// Pages that a device model allocates for option ROMs.
pub(crate) const ROM_PAGES: u64 = 256;

/// Configuration of an HVM domain's build.
#[derive(Clone, Copy, Debug)]
pub struct HvmConfig<'a> {
    pub loader: &'a HvmLoader,
    /// SeaBIOS or OVMF. The store's `hvmloader/bios` tells the loader which.
    pub firmware: &'a [u8],
    /// Memory the domain starts with, video memory included.
    pub memory_pages: u64,
    /// Memory the domain may grow to; at least `memory_pages`.
    pub memory_pages_max: u64,
    /// Part of `memory_pages` that the device model will allocate as video memory.
    pub video_pages: u64,
    /// What createdomain and max_vcpus were told.
    pub vcpus: u32,
    pub tsc_mode: TscMode,
    /// Whether the firmware tells the guest of its interrupt controllers for many CPUs.
    pub apic: bool,
    /// Hyper-V enlightenments (`HVMPV_*`), 0 for none.
    pub viridian: u64,
    /// Pages below 4 GiB without memory, for devices; at least the default.
    pub hole_pages: Option<u64>,
    /// Tables that the loader adds to its own, one after the other; empty for none.
    pub acpi_tables: &'a [u8],
    /// The same for SMBIOS: each structure with its size before it.
    pub smbios_structures: &'a [u8],
}

impl HvmConfig<'_> {
    fn ram_pages(&self) -> u64 {
        self.memory_pages.saturating_sub(self.video_pages)
    }

    fn ram_pages_max(&self) -> u64 {
        self.memory_pages_max.saturating_sub(self.video_pages)
    }

    /// Whether the guest finds more frames than it has memory for: all that it may have.
    fn is_on_demand(&self) -> bool {
        self.memory_pages < self.memory_pages_max
    }
}

/// As [`check`](crate::check), for an HVM domain.
///
/// # Errors
/// [`BuildError`] if the configuration itself is impossible.
pub fn check_hvm(config: &HvmConfig<'_>) -> Result<Needs, BuildError> {
    let layout = plan(config)?;
    let memory_pages_min = layout.end_pfn + config.video_pages;
    let translation_pages = pages_of(pvh::paging_pool_bytes(config.vcpus, config.memory_pages_max));
    let host_pages = config.memory_pages + translation_pages + EXTRA_PAGES + ROM_PAGES;
    Ok(Needs { memory_pages_min, host_pages })
}

fn plan(config: &HvmConfig<'_>) -> Result<HvmLayout, BuildError> {
    if !(1..=pvh::VCPUS_MAX).contains(&config.vcpus) {
        return Err(BuildError::Vcpus { vcpus: config.vcpus, max: pvh::VCPUS_MAX });
    }
    if config.memory_pages > config.memory_pages_max {
        return Err(BuildError::MemoryAboveMax {
            memory_mib: mib_of(config.memory_pages),
            max_mib: mib_of(config.memory_pages_max),
        });
    }
    let bytes = config.firmware.len();
    if !(1..=FIRMWARE_BYTES_MAX).contains(&bytes) {
        return Err(BuildError::Firmware { bytes, max: FIRMWARE_BYTES_MAX });
    }
    HvmLayout::plan(config)
}

/// Sets a new domain's limits, claims its memory and gives it memory on demand. After this its
/// device model, which allocates memory too, may be started.
///
/// # Errors
/// [`BuildError`] if a hypercall fails, which leaves no claim.
pub fn prepare_hvm<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &HvmConfig<'_>,
) -> Result<(), BuildError> {
    let layout = plan(config)?;
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    let memory_kib = (config.memory_pages + EXTRA_PAGES + ROM_PAGES) << (PAGE_SHIFT - 10);
    xen.set_memory_max(domid, memory_kib).map_err(refused("limit the memory"))?;
    let pool_bytes = pvh::paging_pool_bytes(config.vcpus, config.memory_pages_max);
    pvh::set_paging_pool(xen, domid, pool_bytes)?;
    // Early, so that nothing else uses it up; the device model's video memory is part of the claim.
    let ram_pages = config.ram_pages().saturating_sub(layout::VGA_PAGES);
    let special_pages = IOREQ_SERVER_PAGES + SPECIAL_PAGES;
    claim(xen, domid, ram_pages + special_pages + config.video_pages)?;
    if config.is_on_demand() {
        let given = populate_on_demand(xen, domid, &layout.ram(), ram_pages);
        given.inspect_err(|_| unclaim(xen, domid))?;
    }
    Ok(())
}

/// Builds the domain, which stays paused. The caller's part is as for [`build`](crate::build); it sets the parameters of
/// timers, and [`prepare_hvm`] first, and awaits the device model before the domain runs.
///
/// # Errors
/// As [`check_hvm`], or [`BuildError`] if a hypercall fails.
pub fn build_hvm<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &HvmConfig<'_>,
    channels: &Channels,
    monitor: &mut dyn Monitor,
) -> Result<Built, BuildError> {
    build_claimed(xen, domid, config, channels, monitor).inspect_err(|_| unclaim(xen, domid))
}

fn build_claimed<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &HvmConfig<'_>,
    channels: &Channels,
    monitor: &mut dyn Monitor,
) -> Result<Built, BuildError> {
    let layout = plan(config)?;
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    if config.tsc_mode != TscMode::Default {
        xen.set_tsc_mode(domid, config.tsc_mode.code())
            .map_err(refused("set the time stamp counter mode"))?;
    }
    xen.set_memory_map(domid, &layout.e820()).map_err(refused("set the memory map"))?;
    if !config.is_on_demand() {
        populate(xen, domid, &layout.ram(), monitor, |_, _| {})?;
    }
    special_pages(xen, domid)?;

    let info = layout.info(config.vcpus, config.apic);
    let start_info = layout.start_info();
    let mut loader = Loader::new(xen, domid, FrameNames::Same);
    loader.put(layout::INFO_ADDRESS, &info)?;
    for segment in config.loader.segments() {
        let bytes = config.loader.bytes(segment);
        loader.put(segment.address, bytes)?;
        let zeros = segment.memory_bytes - bytes.len() as u64;
        loader.zero(segment.address + bytes.len() as u64, zeros)?;
    }
    loader.put(layout.firmware_pfn << PAGE_SHIFT, config.firmware)?;
    loader.put(layout.start_info_pfn << PAGE_SHIFT, &start_info)?;
    let tables = layout.tables(config);
    for (place, bytes) in
        [(tables.acpi, config.acpi_tables), (tables.smbios, config.smbios_structures)]
    {
        if let Some((address, _)) = place {
            loader.put(address, bytes)?;
        }
    }
    loader.flush()?;

    for (param, value) in params(channels) {
        xen.set_hvm_param(domid, param, value).map_err(refused("set its parameters"))?;
    }
    if config.viridian != 0 {
        xen.set_hvm_param(domid, HvmParam::Viridian, config.viridian)
            .map_err(refused("set the Hyper-V enlightenments"))?;
    }
    let saved = xen.hvm_context(domid).map_err(refused("read the HVM context"))?;
    let entry = config.loader.entry();
    let start_info = layout.start_info_pfn << PAGE_SHIFT;
    let records = context::records(&saved, MemoryTypes::Firmware, entry, start_info)
        .ok_or(BuildError::HvmContext(domid))?;
    xen.set_hvm_context(domid, &records).map_err(refused("set vCPU 0's registers"))?;

    grant_rings(xen, domid, channels, special::STORE, special::CONSOLE)?;
    Ok(Built {
        store_frame: special::STORE,
        console_frame: special::CONSOLE,
        entry: entry.into(),
        pages: config.ram_pages(),
        tables,
    })
}

/// Parameters that are set for every domain.
fn params(channels: &Channels) -> [(HvmParam, u64); 12] {
    [
        (HvmParam::IdentPt, special::IDENT_PT << PAGE_SHIFT),
        (HvmParam::StorePfn, special::STORE),
        (HvmParam::StoreEvtchn, channels.store.port.0.into()),
        (HvmParam::ConsolePfn, special::CONSOLE),
        (HvmParam::ConsoleEvtchn, channels.console.port.0.into()),
        (HvmParam::PagingRingPfn, special::PAGING),
        (HvmParam::MonitorRingPfn, special::MONITOR),
        (HvmParam::SharingRingPfn, special::SHARING),
        (HvmParam::BufioreqPfn, special::BUFIOREQ),
        (HvmParam::IoreqPfn, special::IOREQ),
        (HvmParam::IoreqServerPfn, IOREQ_SERVER_PFN),
        (HvmParam::IoreqServerPages, IOREQ_SERVER_PAGES),
    ]
}

/// Pages below 4 GiB that Xen, its tools and the device model share with the domain.
fn special_pages<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Result<(), BuildError> {
    let pfns: vec::Vec<u64> =
        (IOREQ_SERVER_PFN..IOREQ_SERVER_PFN + IOREQ_SERVER_PAGES + SPECIAL_PAGES).collect();
    populate_special(xen, domid, &pfns)?;
    let mut pages = vec![0; pfns.len() * PAGE_BYTES];
    let at = pfns.iter().position(|pfn| *pfn == special::IDENT_PT).expect("it is one of them");
    let table = identity_page_table();
    pages[at * PAGE_BYTES..(at + 1) * PAGE_BYTES].copy_from_slice(&table);
    Ok(xen.write_foreign(domid, &pfns, 0, &pages)?)
}
