//! PV domains: a paravirtualised kernel, started with page tables of its own.

mod layout;
mod start;
mod tables;

use alloc::vec::Vec;

use xen::{DomId, E820Entry, E820Kind, Hypervisor, Mfn, PAGE_BYTES, PAGE_SHIFT, Xen};

use crate::memory::{FrameNames, Loader, index, populate};
use crate::{BuildConfig, BuildError, Built, Channels, Monitor, grant_rings};
use layout::PvLayout;

pub(crate) use start::CMDLINE_BYTES_MAX;

/// `XEN_LEGACY_MAX_VCPUS` have their `vcpu_info` in shared info; a guest registers it for more.
pub(crate) const VCPUS_MAX: u32 = 512;

/// Least memory that the domain can be built with, in pages.
pub(crate) fn memory_pages_min(config: &BuildConfig<'_>) -> Result<u64, BuildError> {
    PvLayout::plan(config).map(|layout| layout.end_pfn)
}

pub(crate) fn build<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
    channels: &Channels,
    monitor: &mut dyn Monitor,
) -> Result<Built, BuildError> {
    let layout = PvLayout::plan(config)?;
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    let ram =
        E820Entry { address: 0, bytes: config.memory_pages_max << PAGE_SHIFT, kind: E820Kind::Ram };
    xen.set_memory_map(domid, &[ram]).map_err(refused("set the memory map"))?;

    let mut machine = Vec::with_capacity(index(config.memory_pages));
    let pfns = 0..config.memory_pages;
    populate(xen, domid, &[pfns], monitor, |first, order| {
        machine.extend(first..first + (1 << order));
    })?;
    let info = xen.domain(domid).map_err(refused("read the shared info frame"))?;
    let shared_info_frame = info.ok_or(BuildError::Gone(domid))?.shared_info_frame;

    let start_info = start::start_info(config, &layout, channels, &machine, shared_info_frame);
    let shared_info = (shared_info_frame, start::shared_info());
    load(xen, domid, config, &layout, &machine, &start_info, &shared_info)?;

    if let Some(pfn) = layout.hypercall_pfn {
        xen.init_hypercall_page(domid, machine[index(pfn)])
            .map_err(refused("fill the hypercall page"))?;
    }
    let root = Mfn(machine[index(layout.root_pfn())]);
    xen.pin_l4(domid, root).map_err(refused("pin the page tables"))?;
    xen.set_vcpu_context(domid, 0, &start::vcpu_context(&layout, &machine))
        .map_err(refused("set vCPU 0's registers"))?;

    let (store_frame, console_frame) =
        (machine[index(layout.store_pfn)], machine[index(layout.console_pfn)]);
    grant_rings(xen, domid, channels, store_frame, console_frame)?;
    Ok(Built {
        store_frame,
        console_frame,
        entry: layout.entry,
        pages: config.memory_pages,
        tables: crate::Tables::default(),
    })
}

/// Writes the kernel's initial memory in ascending order, and the shared info page.
fn load<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &BuildConfig<'_>,
    layout: &PvLayout,
    machine: &[u64],
    start_info: &[u8],
    (shared_info_frame, shared_info): &(u64, Vec<u8>),
) -> Result<(), BuildError> {
    let p2m = layout::p2m_bytes(machine);
    let mut tables = layout.tables.contents(machine);
    let outer_tables = tables.split_off(&layout.table_pfns.end);
    let mut loader = Loader::new(xen, domid, FrameNames::Machine(machine));
    let address = |pfn: u64| pfn << PAGE_SHIFT;
    for segment in config.kernel.segments() {
        let bytes = config.kernel.bytes(segment);
        let start = segment.address - layout.paddr_offset;
        loader.put(start, bytes)?;
        loader.zero(start + bytes.len() as u64, segment.memory_bytes - bytes.len() as u64)?;
    }
    let ramdisk = config.ramdisk.unwrap_or_default();
    if let Some(place) = layout.ramdisk.filter(|place| place.mapped) {
        loader.put(address(place.pfn), ramdisk)?;
    }
    if layout.p2m.outside.is_none() {
        loader.put(address(layout.p2m.pfn), &p2m)?;
    }
    loader.put(address(layout.start_info_pfn), start_info)?;
    // Rings start empty, with all feature flags off.
    loader.zero(address(layout.store_pfn), PAGE_BYTES as u64)?;
    loader.zero(address(layout.console_pfn), PAGE_BYTES as u64)?;
    for (pfn, table) in &tables {
        loader.put(address(*pfn), table)?;
    }
    loader.zero(address(layout.stack_pfn), PAGE_BYTES as u64)?;
    if layout.p2m.outside.is_some() {
        loader.put(address(layout.p2m.pfn), &p2m)?;
    }
    for (pfn, table) in &outer_tables {
        loader.put(address(*pfn), table)?;
    }
    if let Some(place) = layout.ramdisk.filter(|place| !place.mapped) {
        loader.put(address(place.pfn), ramdisk)?;
    }
    loader.flush_with(&[(*shared_info_frame, shared_info.as_slice())])
}
