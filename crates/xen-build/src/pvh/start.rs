//! The start info that a PVH kernel finds through `ebx`.
//!
//! Source: `xen/include/public/arch-x86/hvm/start_info.h`, version 1.

use alloc::vec::Vec;

use xen::{E820Entry, PAGE_SHIFT};

use super::layout::{ACPI_PFN, PvhLayout};
use crate::BuildConfig;
use crate::record::Record;

/// Bytes of the command line, its NUL included: twice Linux's limit.
pub(crate) const CMDLINE_BYTES_MAX: usize = 4096;
const HEADER_BYTES: usize = 56;
const MODULE_BYTES: usize = 32;
const RANGE_BYTES: usize = 24;
const RANGES_MAX: usize = 4;

/// Most bytes of start info and what it points to.
pub(super) fn bytes_max(config: &BuildConfig<'_>) -> usize {
    HEADER_BYTES + MODULE_BYTES + RANGES_MAX * RANGE_BYTES + config.cmdline.len() + 1
}

/// `struct hvm_start_info`, the list of one module, the memory map and the command line.
pub(super) fn start_info(
    config: &BuildConfig<'_>,
    layout: &PvhLayout,
    e820: &[E820Entry],
) -> Vec<u8> {
    const MAGIC: u32 = 0x336e_c578;
    const VERSION: u32 = 1;
    const MODULES: usize = HEADER_BYTES;
    const RANGES: usize = MODULES + MODULE_BYTES;
    let address = |offset: usize| (layout.start_info_pfn << PAGE_SHIFT) + offset as u64;
    let cmdline = RANGES + e820.len() * RANGE_BYTES;
    let modules = u32::from(layout.ramdisk_bytes > 0);
    let ranges = u32::try_from(e820.len()).expect("the map is short");
    let mut record = Record::new(cmdline + config.cmdline.len() + 1)
        .u32(0, MAGIC)
        .u32(4, VERSION)
        .u32(12, modules)
        .u64(24, address(cmdline))
        .u64(32, ACPI_PFN << PAGE_SHIFT)
        .u64(40, address(RANGES))
        .u32(48, ranges)
        .bytes(cmdline, config.cmdline.as_bytes());
    if modules > 0 {
        record = record
            .u64(16, address(MODULES))
            .u64(MODULES, layout.ramdisk_pfn << PAGE_SHIFT)
            .u64(MODULES + 8, layout.ramdisk_bytes);
    }
    for (index, range) in e820.iter().enumerate() {
        let at = RANGES + index * RANGE_BYTES;
        record =
            record.u64(at, range.address).u64(at + 8, range.bytes).u32(at + 16, range.kind as u32);
    }
    record.done()
}
