//! Populate on demand: a translated domain has more guest frames than memory, and a frame gets
//! memory when it is first used.
//!
//! Source: `xen/arch/x86/mm/p2m-pod.c`.

use std::collections::BTreeMap;

use xen::{DomId, Errno, PAGE_BYTES, ShutdownReason};

use super::frames::Frames;
use super::{Domain, Dying, SimXen};

/// Frames that get memory together, if all of them lack it: 2 MiB.
const CHUNK: u64 = 512;

#[derive(Debug, Default)]
pub(super) struct Pod {
    /// The domain's memory that no guest frame has yet: extents of machine frames.
    cache: Vec<(u64, u64)>,
    /// Guest frames that get memory on demand: first and count.
    entries: BTreeMap<u64, u64>,
}

impl Pod {
    pub(super) fn pages_cached(&self) -> u64 {
        self.cache.iter().map(|(_, pages)| pages).sum()
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries.values().sum()
    }

    /// The entries around a frame, if it is one.
    fn around(&self, gfn: u64) -> Option<(u64, u64)> {
        let (&first, &count) = self.entries.range(..=gfn).next_back()?;
        (gfn < first + count).then_some((first, count))
    }

    pub(super) fn has(&self, gfn: u64) -> bool {
        self.around(gfn).is_some()
    }

    /// One more than the last entry.
    pub(super) fn end(&self) -> u64 {
        self.entries.iter().next_back().map_or(0, |(first, count)| first + count)
    }

    fn add(&mut self, first: u64, count: u64) {
        self.forget(first, count);
        self.entries.insert(first, count);
    }

    /// Frames that are no entries any more, whatever they are now.
    pub(super) fn forget(&mut self, first: u64, count: u64) {
        let end = first + count;
        while let Some((&at, &pages)) = self.entries.range(..end).next_back()
            && at + pages > first
        {
            self.entries.remove(&at);
            if at < first {
                self.entries.insert(at, first - at);
            }
            if at + pages > end {
                self.entries.insert(end, at + pages - end);
            }
        }
    }

    /// Takes up to so many frames in a row.
    fn take(&mut self, frames: &mut Frames, pages: u64, gfn: u64) -> Option<(u64, u64)> {
        let (first, count) = self.cache.pop()?;
        let taken = pages.min(count);
        if taken < count {
            self.cache.push((first + taken, count - taken));
        }
        frames.renumber(first, taken, gfn);
        Some((first, taken))
    }

    /// The whole cache, of a domain that dies.
    pub(super) fn end_of_life(&mut self) -> Vec<(u64, u64)> {
        self.entries.clear();
        std::mem::take(&mut self.cache)
    }
}

impl Domain {
    /// The frames that a guest with a balloon driver keeps end here, if it gives back the last of
    /// those that there is no memory for.
    pub(crate) fn kept_end(&self) -> u64 {
        let mut missing = self.pod.entries().saturating_sub(self.pod.pages_cached());
        for (first, count) in self.pod.entries.iter().rev() {
            if missing == 0 {
                break;
            }
            if *count >= missing {
                return first + count - missing;
            }
            missing -= count;
        }
        u64::MAX
    }
}

impl SimXen {
    /// Marks frames that have no memory. False if one has, or the domain cannot have such.
    pub(super) fn mark_on_demand(&mut self, domid: DomId, first: u64, order: u32) -> bool {
        let pages = 1_u64 << order;
        let Some(domain) = self.domains.get_mut(&domid) else { return false };
        let is_used = (first..first + pages).any(|gfn| domain.mfn_of_pfn(gfn).is_some());
        if domain.dying != Dying::Alive
            || !domain.is_translated()
            || first & (pages - 1) != 0
            || is_used
            || domain.has_hardware()
            || !domain.take_paging_tables(first, order)
        {
            return false;
        }
        domain.pod.add(first, pages);
        self.spend(300);
        true
    }

    /// The memory that a domain is to have, as far as frames lack it.
    pub(super) fn set_pod_target(&mut self, domid: DomId, target: u64) -> Result<(), Errno> {
        let domain = self.domains.get(&domid).ok_or(Errno::ESRCH)?;
        if !domain.is_translated() || target > domain.pages_max {
            return Err(Errno::EINVAL);
        }
        let populated = domain.pages - domain.pod.pages_cached();
        let entries = domain.pod.entries();
        let is_new = populated == 0;
        if !is_new && entries == 0 || domain.dying != Dying::Alive || target < domain.pages {
            return Ok(());
        }
        if domain.has_hardware() {
            return Err(Errno::ENOTEMPTY);
        }
        let wanted = target - populated;
        let wanted = if is_new { wanted } else { wanted.min(entries) };
        while let Some(domain) = self.domains.get(&domid)
            && let missing = wanted.saturating_sub(domain.pod.pages_cached())
            && missing > 0
        {
            let order = if missing >= CHUNK { 9 } else { 0 };
            let got = self.take_memory(domid, 0, order).map(|mfn| (mfn, 1 << order));
            let got = got.or_else(|| self.take_memory(domid, 0, 0).map(|mfn| (mfn, 1)));
            self.cache(domid, got.ok_or(Errno::ENOMEM)?);
        }
        Ok(())
    }

    /// Memory is cached as zeros.
    fn cache(&mut self, domid: DomId, (first, pages): (u64, u64)) {
        for mfn in first..first + pages {
            self.frames.write(mfn, 0, &[0; PAGE_BYTES]);
        }
        if let Some(domain) = self.domains.get_mut(&domid) {
            domain.pod.cache.push((first, pages));
        }
        self.spend(pages * 100);
    }

    /// Gives a frame memory, if it is to get it on demand. A domain that has none left crashes.
    pub(super) fn demand(&mut self, domid: DomId, gfn: u64) {
        let Some(domain) = self.domains.get(&domid) else { return };
        let Some((first, count)) = domain.pod.around(gfn) else { return };
        if domain.dying != Dying::Alive {
            return;
        }
        if domain.pod.cache.is_empty() {
            self.sweep(domid);
        }
        let (chunk, end) = (gfn & !(CHUNK - 1), first + count);
        let domain = self.domains.get_mut(&domid).expect("it was there above");
        let is_whole = first <= chunk && chunk + CHUNK <= end;
        let large = domain.pod.cache.last().is_some_and(|(_, pages)| *pages >= CHUNK);
        let (at, pages) = if is_whole && large { (chunk, CHUNK) } else { (gfn, 1) };
        let Some((mfn, pages)) = domain.pod.take(&mut self.frames, pages, at) else {
            self.trace.note(self.now, format_args!("xen: domain {domid} out of PoD memory"));
            self.shutdown_domain(domid, ShutdownReason::Crash.code());
            return;
        };
        domain.extents.push((mfn, pages));
        domain.map_physical(at, pages, mfn);
        (at..at + pages).for_each(|gfn| domain.mark_dirty(gfn));
        self.spend(300 + pages * 12);
    }

    /// The machine frame of a frame number that another domain uses, which gets memory now if it is to.
    pub(super) fn mfn_to_use(&mut self, domid: DomId, gfn: u64) -> Option<u64> {
        self.demand(domid, gfn);
        self.mfn_of_gfn(domid, gfn)
    }

    /// Takes back what is all zeros: its frames get memory on demand again.
    fn sweep(&mut self, domid: DomId) {
        let Some(domain) = self.domains.get(&domid) else { return };
        let pairs: Vec<(u64, u64)> = domain
            .frame_numbers()
            .filter_map(|gfn| Some((gfn, domain.mfn_of_pfn(gfn)?)))
            .filter(|(_, mfn)| {
                let frames = &self.frames;
                frames.is_zero(*mfn) && !frames.is_xens(*mfn) && !frames.is_mapped(*mfn)
            })
            .collect();
        for (gfn, mfn) in pairs {
            self.steal(domid, gfn, mfn);
            if let Some(domain) = self.domains.get_mut(&domid) {
                domain.pod.add(gfn, 1);
            }
        }
    }

    /// A page that a domain has returned, for its frames that lack one.
    fn steal(&mut self, domid: DomId, gfn: u64, mfn: u64) {
        self.frames.carve(mfn);
        if let Some(domain) = self.domains.get_mut(&domid) {
            domain.take_extent(mfn);
            domain.unmap_physical(gfn, 1);
        }
        self.cache(domid, (mfn, 1));
    }

    /// A translated domain returns a frame: an entry has no page, and a page may be needed for an
    /// entry. False if neither is so.
    pub(super) fn return_to_pod(&mut self, domid: DomId, gfn: u64) -> bool {
        let Some(domain) = self.domains.get_mut(&domid) else { return false };
        if domain.pod.has(gfn) {
            domain.pod.forget(gfn, 1);
            self.trim_cache(domid);
            return true;
        }
        let lacks = domain.pod.entries() > domain.pod.pages_cached();
        match domain.mfn_of_pfn(gfn) {
            Some(mfn) if lacks && !self.frames.is_xens(mfn) && !self.frames.is_mapped(mfn) => {
                self.steal(domid, gfn, mfn);
                true
            }
            _ => false,
        }
    }

    /// Frees what no entry can need.
    fn trim_cache(&mut self, domid: DomId) {
        while let Some(domain) = self.domains.get_mut(&domid)
            && let spare = domain.pod.pages_cached().saturating_sub(domain.pod.entries())
            && spare > 0
            && let Some((first, pages)) = domain.pod.take(&mut self.frames, spare, 0)
        {
            domain.pages -= pages;
            self.frames.release(domid, &[(first, pages)]);
        }
    }

    /// A guest's balloon driver gives back the frames that there is no memory for.
    pub(crate) fn give_back_missing(&mut self, domid: DomId) {
        if let Some(domain) = self.domains.get_mut(&domid) {
            let (from, end) = (domain.kept_end(), domain.pod.end());
            domain.pod.forget(from.min(end), end.saturating_sub(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{create_translated, host};
    use super::*;

    /// A domain of 16 pages with 24 frames.
    fn on_demand() -> (SimXen, DomId) {
        let mut xen = host();
        let guest = create_translated(&mut xen, 20);
        xen.set_pod_target(guest, 16).unwrap();
        for first in [0, 8, 16] {
            assert!(xen.mark_on_demand(guest, first, 3));
        }
        (xen, guest)
    }

    fn state(xen: &SimXen, guest: DomId) -> (u64, u64, u64) {
        let domain = xen.domain(guest).unwrap();
        (domain.pages, domain.pod.pages_cached(), domain.pod.entries())
    }

    #[test]
    fn a_frame_gets_memory_when_it_is_first_written() {
        let (mut xen, guest) = on_demand();
        assert_eq!(state(&xen, guest), (16, 16, 24));
        let mut bytes = [7; 4];
        assert!(xen.guest_read(guest, 23, 0, &mut bytes));
        assert_eq!((bytes, state(&xen, guest)), ([0; 4], (16, 16, 24)));
        assert!(xen.guest_write(guest, 23, 0, b"x"));
        assert_eq!(state(&xen, guest), (16, 15, 23));
        assert!(!xen.guest_write(guest, 24, 0, b"x"));
    }

    #[test]
    fn a_guest_that_uses_more_than_its_memory_crashes() {
        let (mut xen, guest) = on_demand();
        for pfn in 0..16 {
            assert!(xen.guest_write(guest, pfn, 0, b"x"));
        }
        assert_eq!(xen.domain(guest).unwrap().shutdown_code, None);
        assert!(!xen.guest_write(guest, 16, 0, b"x"));
        assert_eq!(xen.domain(guest).unwrap().shutdown_code, Some(3));
    }

    #[test]
    fn what_is_all_zeros_is_taken_back() {
        let (mut xen, guest) = on_demand();
        for pfn in 0..16 {
            assert!(xen.guest_write(guest, pfn, 0, &[u8::from(pfn > 3); PAGE_BYTES]));
        }
        assert!(xen.guest_write(guest, 16, 0, b"x"));
        assert_eq!(state(&xen, guest), (16, 3, 11));
    }

    #[test]
    fn a_balloon_driver_ends_the_debt() {
        let (mut xen, guest) = on_demand();
        assert!(xen.guest_write(guest, 20, 0, b"x"));
        assert_eq!(xen.domain(guest).unwrap().kept_end(), 15);
        xen.give_back_missing(guest);
        assert_eq!(state(&xen, guest), (16, 15, 15));
        // Another one, and the page for it is free.
        assert!(xen.return_to_pod(guest, 14));
        assert_eq!(state(&xen, guest), (15, 14, 14));
        assert!(!xen.return_to_pod(guest, 20));
    }
}
