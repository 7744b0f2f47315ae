//! Initial page tables of a PV domain: four levels, with machine addresses, themselves read-only.
//!
//! Sources: `xen/include/public/xen.h` ("Start-of-day memory layout"), `arch-x86/xen-x86_64.h`
//! (the hypervisor's hole), Intel SDM volume 3 chapter 4 (entry format).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use xen::{PAGE_BYTES, PAGE_SHIFT};

use crate::memory::index;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
/// A 64-bit PV kernel runs in ring 3.
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LEAF: u64 = PRESENT | WRITABLE | USER | ACCESSED;
const TABLE: u64 = PRESENT | WRITABLE | USER | ACCESSED | DIRTY;

const ENTRIES: u64 = 512;
const INDEX_BITS: u32 = 9;

/// Virtual addresses that belong to Xen in every PV domain.
const HYPERVISOR: Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;
/// Addresses that are not canonical.
const HOLE: Range<u64> = 0x0000_8000_0000_0000..0xffff_8000_0000_0000;

/// Pages mapped at consecutive addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mapping {
    /// Page-aligned.
    pub(crate) virt: u64,
    pub(crate) pfns: Range<u64>,
}

impl Mapping {
    fn bytes(&self) -> u64 {
        (self.pfns.end - self.pfns.start) << PAGE_SHIFT
    }

    /// Address of the last page.
    fn last(&self) -> u64 {
        self.virt + self.bytes() - PAGE_BYTES as u64
    }

    /// Whether a PV domain may map there.
    pub(crate) fn is_possible(&self) -> bool {
        let Some(last) = self.virt.checked_add(self.bytes().saturating_sub(1)) else {
            return false;
        };
        let touches = |range: &Range<u64>| self.virt < range.end && last >= range.start;
        self.virt.is_multiple_of(PAGE_BYTES as u64) && !touches(&HYPERVISOR) && !touches(&HOLE)
    }
}

/// A table: its level (4 is the root), and its base address, shifted by that level.
type TableKey = (u32, u64);

/// Address bits below a table of this level.
fn shift(level: u32) -> u32 {
    PAGE_SHIFT + INDEX_BITS * level
}

fn key(level: u32, virt: u64) -> TableKey {
    // The root covers everything, in both halves of the address space.
    (level, if level == 4 { 0 } else { virt >> shift(level) })
}

/// The tables that some mappings need, and their frames.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Highest level first, so that the root is the first table of the first pool.
    frames: BTreeMap<core::cmp::Reverse<TableKey>, u64>,
    mappings: Vec<Mapping>,
}

impl Tables {
    /// Number of additional tables that `mapping` needs.
    pub(crate) fn missing(&self, mapping: &Mapping) -> u64 {
        self.missing_keys(mapping).count() as u64
    }

    fn missing_keys(&self, mapping: &Mapping) -> impl Iterator<Item = TableKey> + '_ {
        let (first, last) = (mapping.virt, mapping.last());
        (1..=4_u32)
            .rev()
            .flat_map(move |level| {
                (key(level, first).1..=key(level, last).1).map(move |at| (level, at))
            })
            .filter(|key| !self.frames.contains_key(&core::cmp::Reverse(*key)))
    }

    /// Whether one of the mappings touches the addresses of `mapping`.
    pub(crate) fn covers(&self, mapping: &Mapping) -> bool {
        self.mappings
            .iter()
            .any(|other| other.virt <= mapping.last() && mapping.virt <= other.last())
    }

    /// Adds a mapping whose missing tables take frames from `pool` on.
    pub(crate) fn add(&mut self, mapping: Mapping, pool: u64) {
        let keys: Vec<TableKey> = self.missing_keys(&mapping).collect();
        for (key, pfn) in keys.into_iter().zip(pool..) {
            self.frames.insert(core::cmp::Reverse(key), pfn);
        }
        self.mappings.push(mapping);
    }

    /// Contents of all tables by frame, ascending. `machine` is the p2m list.
    pub(crate) fn contents(&self, machine: &[u64]) -> BTreeMap<u64, Vec<u8>> {
        let table_pfns: Vec<u64> = {
            let mut pfns: Vec<u64> = self.frames.values().copied().collect();
            pfns.sort_unstable();
            pfns
        };
        let mut contents: BTreeMap<u64, Vec<u8>> =
            table_pfns.iter().map(|&pfn| (pfn, vec![0; PAGE_BYTES])).collect();
        for (&core::cmp::Reverse((level, at)), &pfn) in &self.frames {
            if level < 4 {
                let parent = self.frames[&core::cmp::Reverse(key(level + 1, at << shift(level)))];
                let entry = machine[index(pfn)] << PAGE_SHIFT | TABLE;
                set(&mut contents, parent, at, entry);
            }
        }
        for mapping in &self.mappings {
            let mut virt = mapping.virt;
            let mut pfns = mapping.pfns.clone();
            while !pfns.is_empty() {
                // All entries of one table, with a single lookup.
                let table = self.frames[&core::cmp::Reverse(key(1, virt))];
                let page = contents.get_mut(&table).expect("every table has a page");
                let slot = virt >> PAGE_SHIFT & (ENTRIES - 1);
                let here = (ENTRIES - slot).min(pfns.end - pfns.start);
                let mapped = &machine[index(pfns.start)..index(pfns.start + here)];
                let entries = page[index(slot) * 8..].chunks_exact_mut(8);
                for (entry, frame) in entries.zip(mapped) {
                    entry.copy_from_slice(&(frame << PAGE_SHIFT | LEAF).to_le_bytes());
                }
                virt += here << PAGE_SHIFT;
                pfns.start += here;
            }
        }
        self.protect(&table_pfns, machine, &mut contents);
        contents
    }

    /// Makes every entry that maps a table read-only.
    fn protect(&self, table_pfns: &[u64], machine: &[u64], contents: &mut BTreeMap<u64, Vec<u8>>) {
        for mapping in &self.mappings {
            for &pfn in table_pfns.iter().filter(|&pfn| mapping.pfns.contains(pfn)) {
                let virt = mapping.virt + ((pfn - mapping.pfns.start) << PAGE_SHIFT);
                let table = self.frames[&core::cmp::Reverse(key(1, virt))];
                let entry = machine[index(pfn)] << PAGE_SHIFT | LEAF & !WRITABLE;
                set(contents, table, virt >> PAGE_SHIFT, entry);
            }
        }
    }
}

fn set(contents: &mut BTreeMap<u64, Vec<u8>>, table: u64, slot: u64, entry: u64) {
    let page = contents.get_mut(&table).expect("every table has a page");
    let at = index(slot % ENTRIES) * 8;
    page[at..at + 8].copy_from_slice(&entry.to_le_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Walks from the root: the machine address of the page, and whether it is writable.
    pub(crate) fn walk(
        memory: &BTreeMap<u64, Vec<u8>>,
        root: u64,
        virt: u64,
    ) -> Option<(u64, bool)> {
        let mut table = root;
        for level in (1..=4).rev() {
            let at = index(virt >> (shift(level) - INDEX_BITS) & (ENTRIES - 1)) * 8;
            let entry = u64::from_le_bytes(memory.get(&table)?[at..at + 8].try_into().unwrap());
            if entry & PRESENT == 0 || entry & USER == 0 {
                return None;
            }
            table = (entry & 0x000f_ffff_ffff_f000) >> PAGE_SHIFT;
            if level == 1 {
                return Some((table, entry & WRITABLE != 0));
            }
        }
        None
    }

    #[test]
    fn mappings_at_both_ends_of_the_address_space_share_only_the_root() {
        let high = Mapping { virt: 0xffff_ffff_8000_0000, pfns: 0..1024 };
        let low = Mapping { virt: 0x80_0000_0000, pfns: 1024..1026 };
        let mut tables = Tables::default();
        assert_eq!(tables.missing(&high), 1 + 1 + 1 + 2);
        tables.add(high, 100);
        assert_eq!(tables.missing(&low), 3);
        tables.add(low, 1026);
        let machine: Vec<u64> = (0..2048).map(|pfn| 0x10_0000 + pfn * 3).collect();
        let contents = tables.contents(&machine);
        let frames: Vec<u64> = contents.keys().copied().collect();
        assert_eq!(frames, [100, 101, 102, 103, 104, 1026, 1027, 1028]);
        let by_machine: BTreeMap<u64, Vec<u8>> =
            contents.into_iter().map(|(pfn, page)| (machine[index(pfn)], page)).collect();
        let root = machine[100];
        for pfn in 0..1026 {
            let virt = if pfn < 1024 {
                0xffff_ffff_8000_0000 + (pfn << PAGE_SHIFT)
            } else {
                0x80_0000_0000 + ((pfn - 1024) << PAGE_SHIFT)
            };
            let writable = !(100..105).contains(&pfn);
            assert_eq!(walk(&by_machine, root, virt), Some((machine[index(pfn)], writable)));
        }
        assert_eq!(walk(&by_machine, root, 0xffff_ffff_8040_0000), None);
    }

    #[test]
    fn xens_range_and_noncanonical_addresses_cannot_be_mapped() {
        let at = |virt, pages| Mapping { virt, pfns: 0..pages }.is_possible();
        assert!(at(0, 1));
        assert!(at(0x7fff_ffff_f000, 1));
        assert!(!at(0x7fff_ffff_f000, 2));
        assert!(!at(0xffff_8000_0000_0000, 1));
        assert!(!at(0xffff_87ff_ffff_f000, 1));
        assert!(at(0xffff_8800_0000_0000, 1));
        assert!(!at(0x1000_0800, 1));
        assert!(at(0xffff_ffff_ffff_f000, 1));
        assert!(!at(0xffff_ffff_ffff_f000, 2));
    }
}
