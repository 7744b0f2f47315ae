//! `memory_op`: populating, claiming, placing frames, the memory map.
//!
//! Sources: `xen/common/memory.c`, `xen/common/page_alloc.c`, `xen/arch/x86/mm.c`.

use xen::{DomId, Errno, PAGE_SHIFT};

use super::hypercall::{Arena, Call, MEMORY_OP_MASK};
use super::{Counted, Domain, Dying, SimXen};
use crate::bytes::{index, put_u32, put_u64, u16_at, u32_at, u64_at};

const POPULATE_PHYSMAP: u64 = 6;
const SET_MEMORY_MAP: u64 = 13;
const MACHINE_MEMORY_MAP: u64 = 10;
const CLAIM_PAGES: u64 = 24;
/// Most entries of an E820 map.
const E820_MAX: u32 = 1024;
/// Largest extent that the control domain may request: 1 GiB.
const ORDER_MAX: u32 = 18;

impl SimXen {
    pub(super) fn memory_op(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Result<u64, Errno> {
        if caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        let address = call.args[1];
        match call.args[0] & MEMORY_OP_MASK {
            POPULATE_PHYSMAP => self.populate(arena, call),
            SET_MEMORY_MAP => self.set_memory_map(arena, address),
            MACHINE_MEMORY_MAP => self.machine_memory_map(arena, address),
            CLAIM_PAGES => self.claim(arena, address),
            _ => self.physmap_call(arena, call).unwrap_or(Err(Errno::ENOSYS)),
        }
    }

    /// Allocates extents until something runs out; returns their number. If the domain is invalid,
    /// that is the number done before.
    fn populate(&mut self, arena: &mut Arena<'_>, call: &mut Call) -> Result<u64, Errno> {
        let begun_at = call.extent_first();
        let Ok(argument) = arena.get(call.args[1], 32) else { return Ok(begun_at) };
        let (list, count) = (u64_at(argument, 0), u64_at(argument, 8));
        let (order, flags) = (u32_at(argument, 16), u32_at(argument, 20));
        let domid = DomId(u16_at(argument, 24));
        let is_too_long = count > u64::from(u32::MAX >> 6);
        if is_too_long || begun_at >= count || !self.domains.contains_key(&domid) {
            return Ok(begun_at);
        }
        const ON_DEMAND: u32 = 1 << 16;
        /// The machine has one NUMA node.
        const FLAGS_KNOWN: u32 = 0xff00 | 1 << 17 | ON_DEMAND;
        let is_other_node = flags >> 17 & 1 != 0 && flags >> 8 & 0xff != 1;
        if order > ORDER_MAX || flags & !FLAGS_KNOWN != 0 || is_other_node {
            return Ok(begun_at);
        }
        let bytes = index(count).checked_mul(8).ok_or(Errno::EFAULT)?;
        arena.get(list, bytes)?;
        for extent in begun_at..count {
            if extent > begun_at && self.is_preempted() {
                return Err(call.go_on_at(extent));
            }
            let at = list + extent * 8;
            let first = u64_at(arena.get(at, 8)?, 0);
            if flags & ON_DEMAND != 0 {
                if !self.mark_on_demand(domid, first, order) {
                    return Ok(extent);
                }
                continue;
            }
            let Some(mfn) = self.populate_extent(domid, first, order) else {
                return Ok(extent);
            };
            if !self.live(domid)?.is_translated() {
                arena.get_mut(at, 8)?.copy_from_slice(&mfn.to_le_bytes());
            }
        }
        Ok(count)
    }

    fn populate_extent(&mut self, domid: DomId, first: u64, order: u32) -> Option<u64> {
        let pages = 1_u64 << order;
        let domain = self.domains.get_mut(&domid)?;
        let has_room = domain.pages + pages <= domain.pages_max;
        if domain.dying != Dying::Alive || first & (pages - 1) != 0 || !has_room {
            return None;
        }
        if domain.is_translated() && !domain.take_paging_tables(first, order) {
            return None;
        }
        let mfn = self.take_memory(domid, first, order)?;
        let domain = self.domains.get_mut(&domid)?;
        domain.extents.push((mfn, pages));
        domain.map_physical(first, pages, mfn);
        self.spend(300 + pages * 12);
        Some(mfn)
    }

    /// Memory for a domain, from its claim if it has one.
    pub(super) fn take_memory(&mut self, domid: DomId, first: u64, order: u32) -> Option<u64> {
        let pages = 1_u64 << order;
        let is_unclaimed = self.is_unclaimed(pages);
        let domain = self.domains.get_mut(&domid)?;
        if domain.pages + pages > domain.pages_max {
            return None;
        }
        // The domain's own claim is used if it covers the whole extent.
        if !is_unclaimed && domain.pages_claimed < pages {
            return None;
        }
        let mfn = self.frames.allocate(domid, first, order, Counted::Yes)?;
        let domain = self.domains.get_mut(&domid)?;
        domain.pages += pages;
        let consumed = pages.min(domain.pages_claimed);
        domain.pages_claimed -= consumed;
        self.pages_claimed -= consumed;
        Some(mfn)
    }

    /// Whether this many pages are free and unclaimed.
    pub(super) fn is_unclaimed(&self, pages: u64) -> bool {
        self.pages_claimed + pages <= self.frames.pages_free()
    }

    fn claim(&mut self, arena: &mut Arena<'_>, address: u64) -> Result<u64, Errno> {
        let argument = arena.get(address, 32)?;
        let (list, pages) = (u64_at(argument, 0), u64_at(argument, 8));
        let (order, flags) = (u32_at(argument, 16), u32_at(argument, 20));
        let domid = DomId(u16_at(argument, 24));
        if list != 0 || order != 0 || flags != 0 {
            return Err(Errno::EINVAL);
        }
        let available = self.frames.pages_free().saturating_sub(self.pages_claimed);
        let domain = self.live(domid)?;
        if pages == 0 {
            let given_back = std::mem::take(&mut domain.pages_claimed);
            self.pages_claimed -= given_back;
            return Ok(0);
        }
        if domain.pages_claimed > 0 || pages <= domain.pages || pages > domain.pages_max {
            return Err(Errno::EINVAL);
        }
        let claim = pages - domain.pages;
        if claim > available {
            return Err(Errno::ENOMEM);
        }
        domain.pages_claimed = claim;
        self.pages_claimed += claim;
        Ok(0)
    }

    /// As of a PC: devices below 4 GiB, and what memory has no room there above.
    fn machine_memory_map(&self, arena: &mut Arena<'_>, address: u64) -> Result<u64, Errno> {
        const LOW_END: u64 = 0x9_fc00;
        const MIB: u64 = 1 << 20;
        const HOLE: u64 = 3 << 30;
        const RAM: u32 = 1;
        const RESERVED: u32 = 2;
        let end = MIB + ((self.frames.last() + 1) << PAGE_SHIFT);
        let low_end = end.min(HOLE - MIB);
        let ranges = [
            (0, LOW_END, RAM),
            (0xf_0000, MIB, RESERVED),
            (MIB, low_end, RAM),
            (low_end, low_end + MIB, RESERVED),
            (4 << 30, (4 << 30) + end - low_end, RAM),
        ];
        let argument = arena.get(address, 16)?;
        let (room, buffer) = (u32_at(argument, 0), u64_at(argument, 8));
        let count = room.min(5);
        let bytes = arena.get_mut(buffer, 20 * index(count.into()))?;
        for (place, (from, to, kind)) in bytes.chunks_exact_mut(20).zip(ranges) {
            put_u64(place, 0, from);
            put_u64(place, 8, to - from);
            put_u32(place, 16, kind);
        }
        put_u32(arena.get_mut(address, 16)?, 0, count);
        Ok(0)
    }

    fn set_memory_map(&mut self, arena: &Arena<'_>, address: u64) -> Result<u64, Errno> {
        const ENTRY_BYTES: usize = 20;
        let argument = arena.get(address, 24)?;
        let (domid, entries) = (DomId(u16_at(argument, 0)), u32_at(argument, 8));
        if entries > E820_MAX {
            return Err(Errno::EINVAL);
        }
        let bytes = arena.get(u64_at(argument, 16), index(entries.into()) * ENTRY_BYTES)?.to_vec();
        self.live(domid)?.e820 = bytes;
        Ok(0)
    }
}

impl Domain {
    /// Tables for an extent, from the paging pool. False if that has no room for them.
    pub(super) fn take_paging_tables(&mut self, first: u64, order: u32) -> bool {
        let mut tables = paging_tables(first, order);
        tables.retain(|table| !self.paging_tables.contains(table));
        let needed = self.paging_tables.len() + tables.len();
        let has_room = needed as u64 <= self.paging_pool_bytes >> PAGE_SHIFT;
        if has_room {
            self.paging_tables.extend(tables);
        }
        has_room
    }
}

/// The p2m tables that an extent needs, by level and index: a table of level n maps 512^n pages.
fn paging_tables(first: u64, order: u32) -> Vec<(u8, u64)> {
    let mut tables = vec![(4, 0), (3, first >> 27)];
    if order < 18 {
        tables.push((2, first >> 18));
    }
    if order < 9 {
        tables.push((1, first >> 9));
    }
    tables
}
