//! `memory_op` beyond populating: removing, moving and counting pages, resources.
//!
//! Sources: `xen/common/memory.c`, `xen/arch/x86/mm.c`, `xen/common/grant_table.c`.

use xen::{DomId, Errno};

use super::hypercall::{Arena, Call, MEMORY_OP_MASK};
use super::{Domain, Release, SimXen};
use crate::bytes::{index, put_u32, put_u64, u16_at, u32_at, u64_at};

const SHARED_INFO: u32 = 0;
const GMFN: u32 = 2;

impl Domain {
    /// Unmaps guest frames.
    pub(super) fn unmap_physical(&mut self, first: u64, count: u64) {
        self.map_physical(first, count, 0);
        self.physmap.remove(&first);
    }

    /// Takes a machine frame out of its extent. False if the domain does not have it.
    pub(super) fn take_extent(&mut self, mfn: u64) -> bool {
        let has = |(first, pages): &(u64, u64)| (*first..first + pages).contains(&mfn);
        let Some(at) = self.extents.iter().position(has) else { return false };
        let (first, pages) = self.extents.swap_remove(at);
        let before = (first, mfn - first);
        let after = (mfn + 1, first + pages - mfn - 1);
        self.extents.extend([before, after].into_iter().filter(|(_, pages)| *pages > 0));
        true
    }
}

impl SimXen {
    /// The memory ops of this file; `None` for any other.
    pub(super) fn physmap_call(
        &mut self,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Option<Result<u64, Errno>> {
        let args = call.args;
        Some(match args[0] & MEMORY_OP_MASK {
            1 => self.decrease(arena, call),
            2 => Ok(self.frames.last()),
            3 | 4 | 14 => self.count_pages(arena, args),
            7 => self.add_to_physmap(arena, args[1]),
            15 => self.remove_from_physmap(arena, args[1]),
            16 => self.pod_target(arena, args[1]),
            // No page is shared between domains.
            18 | 19 => Ok(0),
            23 => self.add_all_to_physmap(arena, call),
            27 => {
                // No IOMMU: there is no reserved device memory.
                let argument = arena.get_mut(args[1], 24);
                argument.map(|argument| {
                    put_u32(argument, 4, 0);
                    0
                })
            }
            28 => self.acquire_resource(arena, args[1]),
            _ => return None,
        })
    }

    fn pod_target(&mut self, arena: &mut Arena<'_>, address: u64) -> Result<u64, Errno> {
        let argument = arena.get_mut(address, 40)?;
        let domid = DomId(u16_at(argument, 32));
        self.set_pod_target(domid, u64_at(argument, 0))?;
        let domain = self.domains.get(&domid).ok_or(Errno::ESRCH)?;
        put_u64(argument, 8, domain.pages);
        put_u64(argument, 16, domain.pod.pages_cached());
        put_u64(argument, 24, domain.pod.entries());
        Ok(0)
    }

    fn decrease(&mut self, arena: &Arena<'_>, call: &mut Call) -> Result<u64, Errno> {
        let begun_at = call.extent_first();
        let Ok(argument) = arena.get(call.args[1], 32) else { return Ok(begun_at) };
        let (list, count) = (u64_at(argument, 0), u64_at(argument, 8));
        let (order, domid) = (u32_at(argument, 16), DomId(u16_at(argument, 24)));
        let is_too_long = count > u64::from(u32::MAX >> 6) || order > 18;
        if is_too_long || begun_at >= count || !self.domains.contains_key(&domid) {
            return Ok(begun_at);
        }
        for extent in begun_at..count {
            if extent > begun_at && self.is_preempted() {
                return Err(call.go_on_at(extent));
            }
            let first = u64_at(arena.get(list + extent * 8, 8)?, 0);
            for page in 0..1 << order {
                if !self.take_page(domid, first + page) {
                    return Ok(extent);
                }
            }
        }
        Ok(count)
    }

    /// A domain gives its last pages back until it has no more than so many.
    pub(crate) fn shrink(&mut self, domid: DomId, pages: u64) {
        while let Some(domain) = self.domains.get(&domid)
            && domain.pages > pages
            && let Some(&(first, count)) = domain.extents.last()
            && self.take_page(domid, first + count - 1)
        {}
    }

    /// Takes one page from a domain. False if it has none there, or the page is mapped.
    fn take_page(&mut self, domid: DomId, frame: u64) -> bool {
        if self.return_to_pod(domid, frame) {
            return true;
        }
        let Some(mfn) = self.mfn_of_gfn(domid, frame) else { return false };
        if self.frames.is_xens(mfn) || self.frames.is_mapped(mfn) || self.is_table(domid, mfn) {
            return false;
        }
        let Some(pfn) = self.frames.pfn(mfn) else { return false };
        let Some(domain) = self.domains.get_mut(&domid) else { return false };
        let pfn = if domain.is_translated() { frame } else { pfn };
        if !domain.take_extent(mfn) {
            return false;
        }
        domain.unmap_physical(pfn, 1);
        domain.pages -= 1;
        // In these releases claims follow a domain's pages rather than its allocations.
        if domain.pages_claimed > 0 && self.config.release < Release::Xen4_22 {
            domain.pages_claimed += 1;
            self.pages_claimed += 1;
        }
        self.frames.carve(mfn);
        self.frames.release(domid, &[(mfn, 1)]);
        true
    }

    fn count_pages(&mut self, arena: &Arena<'_>, args: [u64; 5]) -> Result<u64, Errno> {
        let domain = self.live(DomId(u16_at(arena.get(args[1], 2)?, 0)))?;
        Ok(match args[0] {
            3 => domain.pages,
            4 => domain.pages_max,
            _ => domain.pfn_end().saturating_sub(1),
        })
    }

    fn add_to_physmap(&mut self, arena: &Arena<'_>, address: u64) -> Result<u64, Errno> {
        let argument = arena.get(address, 24)?;
        let (domid, space) = (DomId(u16_at(argument, 0)), u32_at(argument, 4));
        self.place(domid, space, u64_at(argument, 8), u64_at(argument, 16))?;
        Ok(0)
    }

    fn place(&mut self, domid: DomId, space: u32, idx: u64, gfn: u64) -> Result<(), Errno> {
        let missing =
            if self.release() >= super::Release::Xen4_20 { Errno::EACCES } else { Errno::EINVAL };
        let domain = self.live(domid)?;
        if !domain.is_translated() {
            return Err(Errno::EACCES);
        }
        match (space, idx) {
            (SHARED_INFO, 0) => {
                let mfn = domain.shared_info;
                domain.map_physical(gfn, 1, mfn);
                domain.shared_info_gfn = Some(gfn);
            }
            (GMFN, from) => {
                let mfn = domain.mfn_of_pfn(from).ok_or(missing)?;
                domain.unmap_physical(from, 1);
                domain.map_physical(gfn, 1, mfn);
            }
            // A grant table is not in machine memory here, so it has no frame number.
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn add_all_to_physmap(&mut self, arena: &mut Arena<'_>, call: &mut Call) -> Result<u64, Errno> {
        let begun_at = call.extent_first();
        let argument = arena.get(call.args[1], 32)?;
        let (domid, space) = (DomId(u16_at(argument, 0)), u16_at(argument, 2));
        let count = u64::from(u16_at(argument, 4));
        let (indexes, gfns, errs) =
            (u64_at(argument, 8), u64_at(argument, 16), u64_at(argument, 24));
        self.live(domid)?;
        for entry in begun_at..count {
            if entry > begun_at && self.is_preempted() {
                return Err(call.go_on_at(entry));
            }
            let idx = u64_at(arena.get(indexes + entry * 8, 8)?, 0);
            let gfn = u64_at(arena.get(gfns + entry * 8, 8)?, 0);
            let err = match self.place(domid, space.into(), idx, gfn) {
                Ok(()) => 0,
                Err(errno) => -errno.0,
            };
            put_u32(arena.get_mut(errs + entry * 4, 4)?, 0, err.cast_unsigned());
        }
        Ok(0)
    }

    fn remove_from_physmap(&mut self, arena: &Arena<'_>, address: u64) -> Result<u64, Errno> {
        let argument = arena.get(address, 16)?;
        let (domid, gfn) = (DomId(u16_at(argument, 0)), u64_at(argument, 8));
        let domain = self.live(domid)?;
        if !domain.is_translated() {
            return Err(Errno::EACCES);
        }
        domain.mfn_of_pfn(gfn).ok_or(Errno::ENOENT)?;
        domain.unmap_physical(gfn, 1);
        Ok(0)
    }

    fn acquire_resource(&mut self, arena: &mut Arena<'_>, address: u64) -> Result<u64, Errno> {
        const GRANT_TABLE: u16 = 1;
        /// Xen's own frames, outside machine memory: only visible in a mapping.
        const FIRST: u64 = 1 << 36;
        let argument = arena.get(address, 32)?;
        let (domid, kind) = (DomId(u16_at(argument, 0)), u16_at(argument, 2));
        let (id, count, padding) = (u32_at(argument, 4), u32_at(argument, 8), u32_at(argument, 12));
        let (first, list) = (u64_at(argument, 16), u64_at(argument, 24));
        let grants = &mut self.live(domid)?.grants;
        if kind != GRANT_TABLE {
            return Err(Errno::EOPNOTSUPP);
        }
        if padding != 0 || id != 0 {
            return Err(Errno::EINVAL);
        }
        if count == 0 && list == 0 {
            put_u32(arena.get_mut(address, 32)?, 8, grants.frames_max());
            return Ok(0);
        }
        let end = first.checked_add(count.into()).ok_or(Errno::EINVAL)?;
        if !grants.grow(index(end)) {
            return Err(Errno::EINVAL);
        }
        for frame in 0..u64::from(count) {
            let number = FIRST + (u64::from(domid.0) << 16) + first + frame;
            put_u64(arena.get_mut(list + frame * 8, 8)?, 0, number);
        }
        Ok(0)
    }
}
