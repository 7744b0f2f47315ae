//! Physical memory layout of a PVH domain.
//!
//! Sources: `xen/include/public/hvm/start_info.h`, `arch-x86/hvm/start_info.h`; special pages and
//! tables are where libxc puts them, so that tools find them.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use xen::{E820Entry, E820Kind, PAGE_BYTES, PAGE_SHIFT};

use crate::memory::{mib_of, pages_of};
use crate::{BuildConfig, BuildError, ImageError};

/// RAM below 4 GiB ends here at the latest.
const HOLE_PFN: u64 = 0xfc000;
/// RAM that does not fit below continues here.
const HIGH_PFN: u64 = 0x10_0000;
/// 4 TiB.
const PAGES_MAX: u64 = 1 << 30;

/// One page holds all ACPI tables.
pub(crate) const ACPI_PFN: u64 = 0xfc000;
/// Xen's special pages; those only for a device model or introspection stay empty.
const SPECIAL_PFNS: Range<u64> = 0xfeff8..0xff000;
pub(crate) const STORE_PFN: u64 = 0xfeffc;
pub(crate) const IDENT_PT_PFN: u64 = 0xfeffe;
pub(crate) const CONSOLE_PFN: u64 = 0xfefff;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PvhLayout {
    pub(crate) entry: u32,
    pub(crate) ram_low: Range<u64>,
    /// Empty unless the memory exceeds what fits below the hole.
    pub(crate) ram_high: Range<u64>,
    /// The kernel that a shim runs, if there is one.
    pub(crate) shimmed_pfn: u64,
    pub(crate) shimmed_bytes: u64,
    pub(crate) ramdisk_pfn: u64,
    pub(crate) ramdisk_bytes: u64,
    /// Start info and what it points to, the command line last.
    pub(crate) start_info_pfn: u64,
    /// First unplanned frame.
    pub(crate) end_pfn: u64,
}

impl PvhLayout {
    pub(crate) fn plan(config: &BuildConfig<'_>) -> Result<Self, BuildError> {
        if config.memory_pages_max > PAGES_MAX {
            let (memory_mib, max_mib) = (mib_of(config.memory_pages_max), mib_of(PAGES_MAX));
            return Err(BuildError::MemoryTooLarge { memory_mib, max_mib });
        }
        let entry = config.kernel.notes().phys32_entry.ok_or(ImageError::NoPvhEntry)?;
        let extent = config.kernel.extent();
        if !extent.contains(&entry.into()) {
            let value = entry.into();
            return Err(ImageError::Note { note: "PHYS32_ENTRY", value }.into());
        }
        let ram_low = 0..config.memory_pages_max.min(HOLE_PFN);
        let ram_high = HIGH_PFN..HIGH_PFN + (config.memory_pages_max - ram_low.end);
        let ramdisk_bytes = config.ramdisk.map_or(0, <[u8]>::len) as u64;
        let shimmed_pfn = pages_of(extent.end);
        let shimmed_bytes = config.shimmed.map_or(0, |it| it.image.len()) as u64;
        let ramdisk_pfn = shimmed_pfn + pages_of(shimmed_bytes);
        let start_info_pfn = ramdisk_pfn + pages_of(ramdisk_bytes);
        let end_pfn = start_info_pfn + pages_of(super::start::bytes_max(config) as u64);
        if end_pfn > ram_low.end.min(config.memory_pages) {
            return Err(BuildError::MemoryTooSmall {
                memory_mib: config.memory_pages >> (20 - PAGE_SHIFT),
                needed_mib: mib_of(end_pfn),
            });
        }
        Ok(Self {
            entry,
            ram_low,
            ram_high,
            shimmed_pfn,
            shimmed_bytes,
            ramdisk_pfn,
            ramdisk_bytes,
            start_info_pfn,
            end_pfn,
        })
    }

    /// The frames of its RAM.
    pub(crate) fn ram(&self) -> [Range<u64>; 2] {
        [self.ram_low.clone(), self.ram_high.clone()]
    }

    /// The memory map, for Xen and for the guest: all memory that it may have, also what it does not
    /// begin with. Linux takes what the map lacks of its maximum off each target of its balloon.
    pub(crate) fn e820(&self) -> Vec<E820Entry> {
        let entry = |pfns: &Range<u64>, kind| E820Entry {
            address: pfns.start << PAGE_SHIFT,
            bytes: (pfns.end - pfns.start) << PAGE_SHIFT,
            kind,
        };
        let mut map = vec![
            entry(&self.ram_low, E820Kind::Ram),
            entry(&(ACPI_PFN..ACPI_PFN + 1), E820Kind::AcpiNvs),
            entry(&SPECIAL_PFNS, E820Kind::Reserved),
        ];
        if !self.ram_high.is_empty() {
            map.push(entry(&self.ram_high, E820Kind::Ram));
        }
        map
    }
}

/// Pages of the paging pool of a translated domain.
#[must_use]
pub fn pool_pages(vcpus: u32, memory_pages_max: u64) -> u64 {
    paging_pool_bytes(vcpus, memory_pages_max).div_ceil(PAGE_BYTES as u64)
}

/// Size of the paging pool, in bytes: 1 MiB for each vCPU, and two pages for each MiB, as in libxl.
pub(crate) fn paging_pool_bytes(vcpus: u32, memory_pages_max: u64) -> u64 {
    let pages = 256 * u64::from(vcpus) + 2 * mib_of(memory_pages_max);
    pages * PAGE_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use expect_test::expect;

    fn e820(pages: u64) -> alloc::string::String {
        let low = pages.min(HOLE_PFN);
        let layout = PvhLayout {
            entry: 0,
            ram_low: 0..low,
            ram_high: HIGH_PFN..HIGH_PFN + pages - low,
            shimmed_pfn: 0,
            shimmed_bytes: 0,
            ramdisk_pfn: 0,
            ramdisk_bytes: 0,
            start_info_pfn: 0,
            end_pfn: 0,
        };
        let line = |e: &E820Entry| format!("{:#x}+{:#x} {:?}\n", e.address, e.bytes, e.kind);
        layout.e820().iter().map(line).collect()
    }

    #[test]
    fn memory_that_does_not_fit_below_the_hole_continues_at_4_gib() {
        expect![[r#"
            0x0+0xfc000000 Ram
            0xfc000000+0x1000 AcpiNvs
            0xfeff8000+0x8000 Reserved
        "#]]
        .assert_eq(&e820(HOLE_PFN));
        expect![[r#"
            0x0+0xfc000000 Ram
            0xfc000000+0x1000 AcpiNvs
            0xfeff8000+0x8000 Reserved
            0x100000000+0x1000 Ram
        "#]]
        .assert_eq(&e820(HOLE_PFN + 1));
    }
}
