//! Layout of a PV domain's pseudo-physical memory and of its initial address space.
//!
//! Source: `xen/include/public/xen.h`, "Start-of-day memory layout".

use core::ops::Range;

use xen::{PAGE_BYTES, PAGE_SHIFT};

use super::tables::{Mapping, Tables};
use crate::memory::{index, mib_of, pages_of};
use crate::{BuildConfig, BuildError, ElfClass, ImageError, KernelImage};

/// Least free room at the end of the initial mapping.
const SLACK_BYTES: u64 = 512 << 10;
/// The initial mapping ends at a multiple of this.
const MAPPING_ALIGNMENT_BYTES: u64 = 4 << 20;
/// 4 TiB: the p2m list of such a domain is 8 GiB long.
const PAGES_MAX: u64 = 1 << 30;

/// The layout. Frames are pseudo-physical; parts are in the order of the fields.
#[derive(Debug)]
pub(crate) struct PvLayout {
    /// Virtual address of frame 0.
    pub(crate) virt_base: u64,
    /// Offset of the kernel's own physical addresses.
    pub(crate) paddr_offset: u64,
    pub(crate) entry: u64,
    pub(crate) hypercall_pfn: Option<u64>,
    pub(crate) ramdisk: Option<Ramdisk>,
    pub(crate) p2m: P2mList,
    pub(crate) start_info_pfn: u64,
    pub(crate) store_pfn: u64,
    pub(crate) console_pfn: u64,
    /// Frames of the tables of the initial mapping; the root is the first.
    pub(crate) table_pfns: Range<u64>,
    pub(crate) stack_pfn: u64,
    pub(crate) tables: Tables,
    /// First unplanned frame.
    pub(crate) end_pfn: u64,
}

/// Place of the p2m list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct P2mList {
    pub(crate) pfn: u64,
    /// Its virtual address.
    pub(crate) virt: u64,
    /// Frames of the list and of the tables that map it, if it is outside the initial mapping.
    pub(crate) outside: Option<Range<u64>>,
}

/// Place of the ramdisk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ramdisk {
    pub(crate) pfn: u64,
    pub(crate) bytes: u64,
    /// Whether the initial mapping covers it.
    pub(crate) mapped: bool,
}

impl PvLayout {
    pub(crate) fn plan(config: &BuildConfig<'_>) -> Result<Self, BuildError> {
        let notes = config.kernel.notes();
        let entry = entry(config.kernel)?;
        let virt_base = notes.virt_base.unwrap_or(0);
        let paddr_offset = notes.paddr_offset.unwrap_or(0);
        let kernel_end_pfn = kernel_end_pfn(config.kernel, paddr_offset)?;
        let ramdisk_bytes = config.ramdisk.map_or(0, <[u8]>::len) as u64;
        let ramdisk_pages = pages_of(ramdisk_bytes);
        // Do not plan page tables for an impossible size.
        check_memory(config, kernel_end_pfn + ramdisk_pages)?;
        check_entry(config.kernel, entry.wrapping_sub(virt_base).wrapping_add(paddr_offset))?;
        let hypercall_pfn = notes
            .hypercall_page
            .map(|virt| page_in_kernel(virt, virt_base, kernel_end_pfn))
            .transpose()?;

        let mut next = kernel_end_pfn;
        let mut take = |pages: u64| {
            next += pages;
            next - pages
        };
        let mapped_ramdisk_pfn =
            (ramdisk_bytes > 0 && !notes.mod_start_pfn).then(|| take(ramdisk_pages));
        let p2m_pages = pages_of(config.memory_pages * 8);
        let inner_p2m_pfn = notes.init_p2m.is_none().then(|| take(p2m_pages));
        let (start_info_pfn, store_pfn, console_pfn) = (take(1), take(1), take(1));
        let (initial, table_count) = initial_mapping(virt_base, next)?;
        let table_pfns = next..next + table_count;
        let stack_pfn = table_pfns.end;
        let mut tables = Tables::default();
        let mut next = initial.pfns.end;
        tables.add(initial, table_pfns.start);

        let mut p2m = inner_p2m_pfn.map(|pfn| P2mList {
            pfn,
            virt: virt_base + (pfn << PAGE_SHIFT),
            outside: None,
        });
        if let Some(virt) = notes.init_p2m {
            let outside = map_outside(&mut tables, virt, next..next + p2m_pages)
                .ok_or(ImageError::Note { note: "INIT_P2M", value: virt })?;
            next = outside.end;
            p2m = Some(P2mList { pfn: outside.start, virt, outside: Some(outside) });
        }
        let ramdisk = (ramdisk_bytes > 0).then(|| Ramdisk {
            pfn: mapped_ramdisk_pfn.unwrap_or(next),
            bytes: ramdisk_bytes,
            mapped: mapped_ramdisk_pfn.is_some(),
        });
        if ramdisk.is_some_and(|ramdisk| !ramdisk.mapped) {
            next += ramdisk_pages;
        }
        check_memory(config, next)?;
        Ok(Self {
            virt_base,
            paddr_offset,
            entry,
            hypercall_pfn,
            ramdisk,
            p2m: p2m.expect("the list is outside if the kernel says where, else inside"),
            start_info_pfn,
            store_pfn,
            console_pfn,
            table_pfns,
            stack_pfn,
            tables,
            end_pfn: next,
        })
    }

    /// Virtual address of a frame of the initial mapping.
    pub(crate) fn virt(&self, pfn: u64) -> u64 {
        self.virt_base.wrapping_add(pfn << PAGE_SHIFT)
    }

    pub(crate) fn root_pfn(&self) -> u64 {
        self.table_pfns.start
    }
}

/// A PV kernel's entry point: from its note, otherwise from its ELF header.
fn entry(kernel: &KernelImage) -> Result<u64, ImageError> {
    let notes = kernel.notes();
    match (kernel.class(), notes.entry) {
        (ElfClass::Bits32, _) => Err(ImageError::Pv32),
        (ElfClass::Bits64, Some(entry)) => Ok(entry),
        (ElfClass::Bits64, None) if notes.are_of_a_pv_kernel() => Ok(kernel.entry()),
        (ElfClass::Bits64, None) => Err(ImageError::NoPvNotes),
    }
}

/// Checks that the entry point is in the kernel, `offset` being its place in the image's memory.
fn check_entry(kernel: &KernelImage, offset: u64) -> Result<(), ImageError> {
    if kernel.extent().contains(&offset) {
        return Ok(());
    }
    Err(match kernel.notes().entry {
        Some(value) => ImageError::Note { note: "ENTRY", value },
        None => ImageError::PvEntry(kernel.entry()),
    })
}

/// Checks that the domain has enough memory and does not exceed the limit.
fn check_memory(config: &BuildConfig<'_>, needed_pages: u64) -> Result<(), BuildError> {
    let memory_mib = config.memory_pages >> (20 - PAGE_SHIFT);
    if config.memory_pages > PAGES_MAX {
        Err(BuildError::MemoryTooLarge { memory_mib, max_mib: mib_of(PAGES_MAX) })
    } else if config.memory_pages < needed_pages {
        Err(BuildError::MemoryTooSmall { memory_mib, needed_mib: mib_of(needed_pages) })
    } else {
        Ok(())
    }
}

/// Maps `pfns` at `virt` with tables in the frames after them; returns the frames of both if the
/// addresses are free.
fn map_outside(tables: &mut Tables, virt: u64, pfns: Range<u64>) -> Option<Range<u64>> {
    let mapping = Mapping { virt, pfns: pfns.clone() };
    if !mapping.is_possible() || tables.covers(&mapping) {
        return None;
    }
    let end = pfns.end + tables.missing(&mapping);
    tables.add(mapping, pfns.end);
    Some(pfns.start..end)
}

/// First frame after the kernel, whose addresses must not be below their offset.
fn kernel_end_pfn(kernel: &KernelImage, paddr_offset: u64) -> Result<u64, ImageError> {
    let extent = kernel.extent();
    let too_low = ImageError::Note { note: "PADDR_OFFSET", value: paddr_offset };
    if extent.start < paddr_offset || extent.end - paddr_offset > PAGES_MAX << PAGE_SHIFT {
        return Err(too_low);
    }
    Ok(pages_of(extent.end - paddr_offset))
}

/// The frame of the hypercall page, which must be a page of the kernel.
fn page_in_kernel(virt: u64, virt_base: u64, kernel_end_pfn: u64) -> Result<u64, ImageError> {
    virt.checked_sub(virt_base)
        .filter(|offset| offset.is_multiple_of(PAGE_BYTES as u64))
        .map(|offset| offset >> PAGE_SHIFT)
        .filter(|pfn| *pfn < kernel_end_pfn)
        .ok_or(ImageError::Note { note: "HYPERCALL_PAGE", value: virt })
}

/// The mapping of everything up to `tables_pfn`, of the tables from there on, a stack and the
/// slack; and the number of tables, which are mapped too.
fn initial_mapping(virt_base: u64, tables_pfn: u64) -> Result<(Mapping, u64), ImageError> {
    const STACK_PAGES: u64 = 1;
    let impossible = ImageError::Note { note: "VIRT_BASE", value: virt_base };
    let mut table_count = 1;
    loop {
        let parts_bytes = (tables_pfn + table_count + STACK_PAGES) << PAGE_SHIFT;
        let end = virt_base
            .checked_add(parts_bytes + SLACK_BYTES)
            .and_then(|end| end.checked_next_multiple_of(MAPPING_ALIGNMENT_BYTES))
            .ok_or(impossible.clone())?;
        let mapping = Mapping { virt: virt_base, pfns: 0..(end - virt_base) >> PAGE_SHIFT };
        if !mapping.is_possible() {
            return Err(impossible);
        }
        let needed = Tables::default().missing(&mapping);
        if needed <= table_count {
            return Ok((mapping, needed));
        }
        table_count = needed;
    }
}

/// The p2m list as the guest reads it, padded to whole pages with invalid entries.
pub(crate) fn p2m_bytes(machine: &[u64]) -> alloc::vec::Vec<u8> {
    let length = index(pages_of(machine.len() as u64 * 8) << PAGE_SHIFT);
    let mut bytes = alloc::vec::Vec::with_capacity(length);
    for frame in machine {
        bytes.extend_from_slice(&frame.to_le_bytes());
    }
    bytes.resize(length, 0xff);
    bytes
}
