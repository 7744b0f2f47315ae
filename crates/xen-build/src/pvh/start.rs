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
/// A shim's kernel, and a ramdisk.
const MODULES_MAX: usize = 2;
const RANGES_MAX: usize = 4;

/// Most bytes of start info and what it points to.
pub(super) fn bytes_max(config: &BuildConfig<'_>) -> usize {
    let of_shimmed = config.shimmed.map_or(0, |it| it.cmdline.len() + 1);
    let texts = config.cmdline.len() + 1 + of_shimmed;
    HEADER_BYTES + MODULES_MAX * MODULE_BYTES + RANGES_MAX * RANGE_BYTES + texts
}

/// `struct hvm_start_info`, the list of modules, the memory map and the command lines.
pub(super) fn start_info(
    config: &BuildConfig<'_>,
    layout: &PvhLayout,
    e820: &[E820Entry],
) -> Vec<u8> {
    const MAGIC: u32 = 0x336e_c578;
    const VERSION: u32 = 1;
    const MODULES: usize = HEADER_BYTES;
    const RANGES: usize = MODULES + MODULES_MAX * MODULE_BYTES;
    let address = |offset: usize| (layout.start_info_pfn << PAGE_SHIFT) + offset as u64;
    let cmdline = RANGES + e820.len() * RANGE_BYTES;
    let shimmed_cmdline = cmdline + config.cmdline.len() + 1;
    let of_shimmed = config.shimmed.map(|it| it.cmdline);
    // Address, length and the address of a command line; the order is the shim's.
    let shimmed =
        of_shimmed.map(|_| (layout.shimmed_pfn, layout.shimmed_bytes, address(shimmed_cmdline)));
    let ramdisk =
        (layout.ramdisk_bytes > 0).then_some((layout.ramdisk_pfn, layout.ramdisk_bytes, 0));
    let modules = [shimmed, ramdisk].into_iter().flatten();
    let count = u32::from(shimmed.is_some()) + u32::from(ramdisk.is_some());
    let bytes = shimmed_cmdline + of_shimmed.map_or(0, |it| it.len() + 1);
    let ranges = u32::try_from(e820.len()).expect("the map is short");
    let mut record = Record::new(bytes)
        .u32(0, MAGIC)
        .u32(4, VERSION)
        .u32(12, count)
        .u64(24, address(cmdline))
        .u64(32, ACPI_PFN << PAGE_SHIFT)
        .u64(40, address(RANGES))
        .u32(48, ranges)
        .bytes(cmdline, config.cmdline.as_bytes());
    if count > 0 {
        record = record.u64(16, address(MODULES));
    }
    if let Some(cmdline) = of_shimmed {
        record = record.bytes(shimmed_cmdline, cmdline.as_bytes());
    }
    for (index, (pfn, bytes, cmdline)) in modules.enumerate() {
        let at = MODULES + index * MODULE_BYTES;
        record = record.u64(at, pfn << PAGE_SHIFT).u64(at + 8, bytes).u64(at + 16, cmdline);
    }
    for (index, range) in e820.iter().enumerate() {
        let at = RANGES + index * RANGE_BYTES;
        record =
            record.u64(at, range.address).u64(at + 8, range.bytes).u32(at + 16, range.kind as u32);
    }
    record.done()
}
