//! Physical memory layout of an HVM domain, and the structures for its loader.
//!
//! Sources: `xen/include/public/hvm/hvm_info_table.h`, `hvm/params.h`, `arch-x86/hvm/start_info.h`;
//! the special pages are where libxc puts them, so that tools and device models find them.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use xen::{E820Entry, E820Kind, PAGE_SHIFT};

use super::HvmConfig;
use crate::memory::{mib_of, pages_of};
use crate::record::Record;
use crate::{BuildError, Tables};

/// RAM below 4 GiB ends here at the latest: 256 MiB for devices.
const HOLE_PFN: u64 = 0xf_0000;
/// RAM that does not fit below continues here.
const HIGH_PFN: u64 = 0x10_0000;
/// 1 TiB.
const PAGES_MAX: u64 = 1 << 28;
/// VGA memory, which the device model emulates.
const VGA_PFNS: Range<u64> = 0xa0..0xc0;
pub(super) const VGA_PAGES: u64 = VGA_PFNS.end - VGA_PFNS.start;
/// Xen's copy of the memory map begins here; below, the loader decides.
const LOW_PFN: u64 = 0x100;

/// `HVM_INFO_PADDR`.
pub(super) const INFO_ADDRESS: u64 = (0x9f << PAGE_SHIFT) + 0x800;
const INFO_BYTES: usize = 48;

pub(super) const SPECIAL_PAGES: u64 = 8;
/// Pages in libxc's order.
pub(super) mod special {
    const FIRST: u64 = 0xfeff8;
    pub(crate) const PAGING: u64 = FIRST;
    pub(crate) const MONITOR: u64 = FIRST + 1;
    pub(crate) const SHARING: u64 = FIRST + 2;
    pub(crate) const BUFIOREQ: u64 = FIRST + 3;
    pub(crate) const STORE: u64 = FIRST + 4;
    pub(crate) const IOREQ: u64 = FIRST + 5;
    pub(crate) const IDENT_PT: u64 = FIRST + 6;
    pub(crate) const CONSOLE: u64 = FIRST + 7;
}
/// Pages for further ioreq servers, right below the special ones.
pub(super) const IOREQ_SERVER_PAGES: u64 = 8;
pub(super) const IOREQ_SERVER_PFN: u64 = special::PAGING - IOREQ_SERVER_PAGES;

const HEADER_BYTES: usize = 56;
const MODULE_BYTES: usize = 32;
/// The loader looks for its firmware by this command line.
const FIRMWARE_NAME: &[u8] = b"firmware\0";
const START_INFO_BYTES: usize = HEADER_BYTES + MODULE_BYTES + FIRMWARE_NAME.len();

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct HvmLayout {
    ram_low: Range<u64>,
    /// Empty unless the memory exceeds what fits below the hole.
    ram_high: Range<u64>,
    pub(super) firmware_pfn: u64,
    firmware_bytes: u64,
    pub(super) start_info_pfn: u64,
    acpi_pfn: u64,
    smbios_pfn: u64,
    /// First unplanned frame.
    pub(super) end_pfn: u64,
}

impl HvmLayout {
    pub(super) fn plan(config: &HvmConfig<'_>) -> Result<Self, BuildError> {
        let pages = config.ram_pages_max();
        if pages > PAGES_MAX {
            let (memory_mib, max_mib) = (mib_of(pages), mib_of(PAGES_MAX));
            return Err(BuildError::MemoryTooLarge { memory_mib, max_mib });
        }
        let hole_pfn = config.hole_pages.map_or(HOLE_PFN, |hole| HIGH_PFN.saturating_sub(hole));
        let ram_low = 0..pages.min(hole_pfn.min(HOLE_PFN));
        let ram_high = HIGH_PFN..HIGH_PFN + (pages - ram_low.end);
        let firmware_bytes = config.firmware.len() as u64;
        let firmware_pfn = pages_of(config.loader.end());
        let start_info_pfn = firmware_pfn + pages_of(firmware_bytes);
        let acpi_pfn = start_info_pfn + pages_of(START_INFO_BYTES as u64);
        let smbios_pfn = acpi_pfn + pages_of(config.acpi_tables.len() as u64);
        let end_pfn = smbios_pfn + pages_of(config.smbios_structures.len() as u64);
        if end_pfn > ram_low.end.min(config.ram_pages()) {
            return Err(BuildError::MemoryTooSmall {
                memory_mib: config.memory_pages >> (20 - PAGE_SHIFT),
                needed_mib: mib_of(end_pfn + config.video_pages),
            });
        }
        Ok(Self {
            ram_low,
            ram_high,
            firmware_pfn,
            firmware_bytes,
            start_info_pfn,
            acpi_pfn,
            smbios_pfn,
            end_pfn,
        })
    }

    /// Where the tables are that the loader adds.
    pub(super) fn tables(&self, config: &HvmConfig<'_>) -> Tables {
        let place = |pfn: u64, bytes: &[u8]| {
            (!bytes.is_empty()).then_some((pfn << PAGE_SHIFT, bytes.len() as u64))
        };
        Tables {
            acpi: place(self.acpi_pfn, config.acpi_tables),
            smbios: place(self.smbios_pfn, config.smbios_structures),
        }
    }

    /// The frames of its RAM.
    pub(super) fn ram(&self) -> [Range<u64>; 3] {
        [0..VGA_PFNS.start, VGA_PFNS.end..self.ram_low.end, self.ram_high.clone()]
    }

    /// The memory map that Xen shows to the loader, which derives the guest's from it: all memory
    /// that the guest may have, also what it does not begin with.
    pub(super) fn e820(&self) -> Vec<E820Entry> {
        let ram = |pfns: Range<u64>| E820Entry {
            address: pfns.start << PAGE_SHIFT,
            bytes: (pfns.end - pfns.start) << PAGE_SHIFT,
            kind: E820Kind::Ram,
        };
        let mut map = vec![ram(LOW_PFN..self.ram_low.end)];
        if !self.ram_high.is_empty() {
            map.push(ram(self.ram_high.clone()));
        }
        map
    }

    /// `struct hvm_info_table`: the sum of all bytes is 0.
    pub(super) fn info(&self, vcpus: u32, apic: bool) -> Vec<u8> {
        const CHECKSUM: usize = 12;
        let pgend = |pfn: u64| u32::try_from(pfn).expect("frames of a domain are below 16 TiB");
        let high = if self.ram_high.is_empty() { 0 } else { self.ram_high.end };
        let mut online = [0; 16];
        for vcpu in 0..usize::try_from(vcpus).expect("a few") {
            online[vcpu / 8] |= 1 << (vcpu % 8);
        }
        let mut table = Record::new(INFO_BYTES)
            .bytes(0, b"HVM INFO")
            .u32(8, u32::try_from(INFO_BYTES).expect("a constant"))
            .bytes(13, &[u8::from(apic)]) // apic_mode
            .u32(16, vcpus)
            .u32(20, pgend(self.ram_low.end))
            .u32(24, pgend(IOREQ_SERVER_PFN))
            .u32(28, pgend(high))
            .bytes(32, &online)
            .done();
        let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        table[CHECKSUM] = sum.wrapping_neg();
        table
    }

    /// `struct hvm_start_info` with one module, the firmware.
    pub(super) fn start_info(&self) -> Vec<u8> {
        const MAGIC: u32 = 0x336e_c578;
        const VERSION: u32 = 1;
        const NAME: usize = HEADER_BYTES + MODULE_BYTES;
        let address = |offset: usize| (self.start_info_pfn << PAGE_SHIFT) + offset as u64;
        Record::new(START_INFO_BYTES)
            .u32(0, MAGIC)
            .u32(4, VERSION)
            .u32(12, 1)
            .u64(16, address(HEADER_BYTES))
            .u64(HEADER_BYTES, self.firmware_pfn << PAGE_SHIFT)
            .u64(HEADER_BYTES + 8, self.firmware_bytes)
            .u64(HEADER_BYTES + 16, address(NAME))
            .bytes(NAME, FIRMWARE_NAME)
            .done()
    }
}
