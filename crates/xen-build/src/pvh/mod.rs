//! PVH domains: a kernel started in protected mode, with nested paging and no emulated hardware but
//! the local APIC.

mod layout;
mod start;

use alloc::vec;

use xen::{DomId, Errno, HvmParam, Hypervisor, PAGE_BYTES, PAGE_SHIFT, Xen};

use crate::context::{self, MemoryTypes};
use crate::memory::{
    FrameNames, Loader, claim, pages_of, populate, populate_on_demand, populate_special, unclaim,
};
use crate::{
    BuildConfig, BuildError, Built, Channels, Monitor, Tables, acpi, grant_rings,
    identity_page_table,
};
use layout::{ACPI_PFN, CONSOLE_PFN, IDENT_PT_PFN, PvhLayout, STORE_PFN};

pub(crate) use layout::paging_pool_bytes;
pub use layout::pool_pages;

pub(crate) use start::CMDLINE_BYTES_MAX;

/// `HVM_MAX_VCPUS`.
pub(crate) const VCPUS_MAX: u32 = 128;

/// Least memory that the domain can be built with, in pages.
pub(crate) fn memory_pages_min(config: &BuildConfig<'_>) -> Result<u64, BuildError> {
    PvhLayout::plan(config).map(|layout| layout.end_pfn)
}

/// Pages of the domain's paging pool.
pub(crate) fn paging_pool_pages(config: &BuildConfig<'_>) -> u64 {
    pages_of(paging_pool_bytes(config.vcpus, config.memory_pages_max))
}

/// Also gives it its paging pool, which is not part of the claim, and memory on demand.
pub(crate) fn claim_memory<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
) -> Result<(), BuildError> {
    set_paging_pool(xen, domid, paging_pool_bytes(config.vcpus, config.memory_pages_max))?;
    claim(xen, domid, config.memory_pages + SPECIAL_PFNS.len() as u64)?;
    if config.is_on_demand() {
        let ram = PvhLayout::plan(config)?.ram();
        let given = populate_on_demand(xen, domid, &ram, config.memory_pages);
        given.inspect_err(|_| unclaim(xen, domid))?;
    }
    Ok(())
}

pub(crate) fn build<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
    channels: &Channels,
    monitor: &mut dyn Monitor,
) -> Result<Built, BuildError> {
    let layout = PvhLayout::plan(config)?;
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    let e820 = layout.e820();
    xen.set_memory_map(domid, &e820).map_err(refused("set the memory map"))?;
    if !config.is_on_demand() {
        populate(xen, domid, &layout.ram(), monitor, |_, _| {})?;
    }
    special_pages(xen, domid, config.vcpus)?;

    let start_info_bytes = start::start_info(config, &layout, &e820);
    let mut loader = Loader::new(xen, domid, FrameNames::Same);
    for segment in config.kernel.segments() {
        let bytes = config.kernel.bytes(segment);
        loader.put(segment.address, bytes)?;
        let zeros = segment.memory_bytes - bytes.len() as u64;
        loader.zero(segment.address + bytes.len() as u64, zeros)?;
    }
    let shimmed = config.shimmed.map_or(&[][..], |it| it.image);
    loader.put(layout.shimmed_pfn << PAGE_SHIFT, shimmed)?;
    loader.put(layout.ramdisk_pfn << PAGE_SHIFT, config.ramdisk.unwrap_or_default())?;
    let start_info = layout.start_info_pfn << PAGE_SHIFT;
    loader.put(start_info, &start_info_bytes)?;
    loader.flush()?;

    for (param, value) in [
        (HvmParam::IdentPt, IDENT_PT_PFN << PAGE_SHIFT),
        (HvmParam::StorePfn, STORE_PFN),
        (HvmParam::StoreEvtchn, channels.store.port.0.into()),
        (HvmParam::ConsolePfn, CONSOLE_PFN),
        (HvmParam::ConsoleEvtchn, channels.console.port.0.into()),
    ] {
        xen.set_hvm_param(domid, param, value).map_err(refused("set its parameters"))?;
    }
    let saved = xen.hvm_context(domid).map_err(refused("read the HVM context"))?;
    let records = context::records(&saved, MemoryTypes::WriteBack, layout.entry, start_info)
        .ok_or(BuildError::HvmContext(domid))?;
    xen.set_hvm_context(domid, &records).map_err(refused("set vCPU 0's registers"))?;

    grant_rings(xen, domid, channels, STORE_PFN, CONSOLE_PFN)?;
    Ok(Built {
        store_frame: STORE_PFN,
        console_frame: CONSOLE_PFN,
        entry: layout.entry.into(),
        pages: config.memory_pages,
        tables: Tables::default(),
    })
}

/// Allocates the pool from the host; there are no claims for it.
pub(crate) fn set_paging_pool<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    bytes: u64,
) -> Result<(), BuildError> {
    xen.set_paging_pool(domid, bytes).map_err(|errno| match errno {
        Errno::ENOMEM => {
            BuildError::HostMemory { domid, got_pages: 0, wanted_pages: pages_of(bytes) }
        }
        errno => BuildError::Hypercall { action: "set the paging pool", domid, errno },
    })
}

const SPECIAL_PFNS: [u64; 4] = [ACPI_PFN, STORE_PFN, IDENT_PT_PFN, CONSOLE_PFN];

/// The pages outside the memory map's RAM: ACPI tables, rings, and the page table that Xen uses where
/// the CPU cannot run a guest without paging.
fn special_pages<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    vcpus: u32,
) -> Result<(), BuildError> {
    populate_special(xen, domid, &SPECIAL_PFNS)?;
    // Rings start empty, with all feature flags off.
    let mut pages = acpi::tables(ACPI_PFN << PAGE_SHIFT, vcpus);
    assert!(pages.len() <= PAGE_BYTES, "the tables of {vcpus} vCPUs do not fit into a page");
    pages.resize(2 * PAGE_BYTES, 0);
    pages.extend(identity_page_table());
    pages.extend(vec![0; PAGE_BYTES]);
    Ok(xen.write_foreign(domid, &SPECIAL_PFNS, 0, &pages)?)
}
