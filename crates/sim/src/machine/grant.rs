//! Grant tables, version 1, and mappings of other domains' pages.
//!
//! A table is memory that its domain writes: eight bytes an entry, {flags, domid, frame}. A mapped
//! page is kept, even if its owner is destroyed. Source: `xen/common/grant_table.c`.

use xen::{DomId, Errno, GrantRef, PAGE_BYTES};

use super::SimXen;
use crate::bytes::{put_u16, u16_at, u32_at};

const ENTRY_BYTES: usize = 8;
const GTF_PERMIT_ACCESS: u16 = 1;
const GTF_TYPE_MASK: u16 = 3;
const GTF_READONLY: u16 = 4;
const GTF_READING: u16 = 8;
const GTF_WRITING: u16 = 16;

/// Why a grant cannot be mapped: `GNTST_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrantStatus {
    GeneralError,
    BadDomain,
    BadGrantRef,
    PermissionDenied,
}

/// A page of one domain, mapped by another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mapping {
    pub holder: DomId,
    pub owner: DomId,
    pub(crate) mfn: u64,
    grant: Option<GrantRef>,
}

/// A mapping that the holder must unmap.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct MappingId(u64);

#[derive(Debug)]
pub(super) struct GrantTable {
    frames_max: u32,
    frames: Vec<Box<[u8; PAGE_BYTES]>>,
    /// Map counts of the entries.
    pins: std::collections::BTreeMap<GrantRef, u32>,
}

impl GrantTable {
    pub(super) fn new(frames_max: u32) -> Self {
        Self { frames_max, frames: Vec::new(), pins: std::collections::BTreeMap::new() }
    }

    fn entry(&mut self, grant: GrantRef) -> Option<&mut [u8]> {
        let offset = usize::try_from(grant.0).ok()? * ENTRY_BYTES;
        let frame = self.frames.get_mut(offset / PAGE_BYTES)?;
        let offset = offset % PAGE_BYTES;
        Some(&mut frame[offset..offset + ENTRY_BYTES])
    }

    pub(super) fn frames_max(&self) -> u32 {
        self.frames_max
    }

    /// Grows the table to this many frames. False if that is not allowed.
    pub(super) fn grow(&mut self, frames: usize) -> bool {
        if u32::try_from(frames).is_ok_and(|frames| frames <= self.frames_max) {
            while self.frames.len() < frames {
                self.frames.push(Box::new([0; PAGE_BYTES]));
            }
            return true;
        }
        false
    }
}

impl SimXen {
    /// Writes into the first frame of a domain's grant table, as through a resource mapping.
    pub(super) fn write_grant_table(
        &mut self,
        domid: DomId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let domain = self.live(domid)?;
        if !domain.grants.grow(1) {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(bytes.len()).ok_or(Errno::EINVAL)?;
        domain.grants.frames[0].get_mut(offset..end).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        Ok(())
    }

    /// A domain grants `to` access to one of its frames. False if its table cannot hold the entry.
    pub fn grant_access(&mut self, domid: DomId, grant: GrantRef, to: DomId, gfn: u64) -> bool {
        let Some(domain) = self.domains.get_mut(&domid) else { return false };
        let Ok(frame) = u32::try_from(gfn) else { return false };
        let frames = (grant.0 as usize * ENTRY_BYTES) / PAGE_BYTES + 1;
        if !domain.grants.grow(frames) {
            return false;
        }
        let entry = domain.grants.entry(grant).expect("the table was grown to hold it");
        put_u16(entry, 0, GTF_PERMIT_ACCESS);
        put_u16(entry, 2, to.0);
        entry[4..].copy_from_slice(&frame.to_le_bytes());
        true
    }

    /// A domain revokes a grant. False while the peer still maps it.
    pub fn grant_end_access(&mut self, domid: DomId, grant: GrantRef) -> bool {
        let Some(domain) = self.domains.get_mut(&domid) else { return true };
        let Some(entry) = domain.grants.entry(grant) else { return true };
        if u16_at(entry, 0) & (GTF_READING | GTF_WRITING) != 0 {
            return false;
        }
        entry.fill(0);
        true
    }

    /// Maps a granted frame into `holder`.
    ///
    /// # Errors
    /// The status of `GNTTABOP_map_grant_ref`.
    pub fn map_grant(
        &mut self,
        holder: DomId,
        owner: DomId,
        grant: GrantRef,
    ) -> Result<MappingId, GrantStatus> {
        let domain = self.domains.get_mut(&owner).ok_or(GrantStatus::BadDomain)?;
        if domain.dying != super::Dying::Alive {
            return Err(GrantStatus::GeneralError);
        }
        let entry = domain.grants.entry(grant).ok_or(GrantStatus::BadGrantRef)?;
        let flags = u16_at(entry, 0);
        if flags & GTF_TYPE_MASK != GTF_PERMIT_ACCESS {
            return Err(GrantStatus::BadGrantRef);
        }
        if u16_at(entry, 2) != holder.0 {
            return Err(GrantStatus::PermissionDenied);
        }
        let frame = u64::from(u32_at(entry, 4));
        let mfn = self.mfn_to_use(owner, frame).ok_or(GrantStatus::GeneralError)?;
        let domain = self.domains.get_mut(&owner).expect("it was there above");
        *domain.grants.pins.entry(grant).or_default() += 1;
        let writing = if flags & GTF_READONLY == 0 { GTF_WRITING } else { 0 };
        let entry = domain.grants.entry(grant).expect("it was there above");
        put_u16(entry, 0, flags | GTF_READING | writing);
        Ok(self.hold(Mapping { holder, owner, mfn, grant: Some(grant) }))
    }

    /// Maps a frame of another domain by its number, as a control domain may.
    ///
    /// # Errors
    /// ESRCH without the domain, EINVAL without the frame.
    pub fn map_foreign(
        &mut self,
        holder: DomId,
        owner: DomId,
        gfn: u64,
    ) -> Result<MappingId, Errno> {
        self.live(owner)?;
        let mfn = self.mfn_to_use(owner, gfn).ok_or(Errno::EINVAL)?;
        Ok(self.hold(Mapping { holder, owner, mfn, grant: None }))
    }

    fn hold(&mut self, mapping: Mapping) -> MappingId {
        self.frames.map(mapping.mfn);
        let id = self.mapping_next;
        self.mapping_next += 1;
        self.mappings.insert(id, mapping);
        MappingId(id)
    }

    /// The page behind a mapping.
    ///
    /// # Panics
    /// If it was unmapped.
    pub fn mapped_page(&mut self, id: MappingId) -> &mut [u8; PAGE_BYTES] {
        let mfn = self.mappings.get(&id.0).expect("a page in use is mapped").mfn;
        self.frames.page_mut(mfn)
    }

    /// Unmaps a mapping.
    pub fn unmap(&mut self, id: MappingId) {
        let Some(mapping) = self.mappings.remove(&id.0) else { return };
        if let (Some(grant), Some(domain)) = (mapping.grant, self.domains.get_mut(&mapping.owner)) {
            let pins = domain.grants.pins.entry(grant).or_default();
            *pins = pins.saturating_sub(1);
            if *pins == 0 {
                domain.grants.pins.remove(&grant);
                if let Some(entry) = domain.grants.entry(grant) {
                    let flags = u16_at(entry, 0) & !(GTF_READING | GTF_WRITING);
                    put_u16(entry, 0, flags);
                }
            }
        }
        // A page granted for writing counts as written.
        if mapping.grant.is_some()
            && let Some(pfn) = self.frames.pfn(mapping.mfn)
            && let Some(owner) = self.domains.get_mut(&mapping.owner)
        {
            owner.mark_dirty(pfn);
        }
        if self.frames.unmap(mapping.mfn) {
            self.drop_page_reference(mapping.owner);
        }
    }

    /// Unmaps all of a dying domain's own mappings.
    pub(super) fn release_mappings_of(&mut self, holder: DomId) {
        let held: Vec<u64> =
            self.mappings.iter().filter(|(_, m)| m.holder == holder).map(|(&id, _)| id).collect();
        for id in held {
            self.unmap(MappingId(id));
        }
    }

    /// All mappings, for checkers.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::test_support::{create_with_memory, host};

    const DOM0: DomId = DomId::DOM0;

    #[test]
    fn only_the_grantee_maps_and_the_entry_shows_it() {
        let mut xen = host();
        let guest = create_with_memory(&mut xen, 16);
        let grant = GrantRef(8);
        assert_eq!(xen.map_grant(DOM0, guest, grant), Err(GrantStatus::BadGrantRef));
        assert_eq!(xen.map_grant(DOM0, DomId(77), grant), Err(GrantStatus::BadDomain));
        let gfn = xen.domain(guest).unwrap().mfn_of_pfn(3).unwrap();
        assert!(xen.grant_access(guest, grant, DomId(5), gfn));
        assert_eq!(xen.map_grant(DOM0, guest, grant), Err(GrantStatus::PermissionDenied));
        assert!(xen.grant_access(guest, grant, DOM0, gfn));
        let mapping = xen.map_grant(DOM0, guest, grant).unwrap();
        xen.mapped_page(mapping)[7] = 42;
        let mut byte = [0];
        assert!(xen.guest_read(guest, 3, 7, &mut byte));
        assert_eq!(byte, [42]);
        assert!(!xen.grant_end_access(guest, grant));
        xen.unmap(mapping);
        assert!(xen.grant_end_access(guest, grant));
    }

    #[test]
    fn a_mapped_page_makes_a_zombie_until_it_is_unmapped() {
        let mut xen = host();
        let guest = create_with_memory(&mut xen, 16);
        let free = xen.pages_free();
        let gfn = xen.domain(guest).unwrap().mfn_of_pfn(3).unwrap();
        let mapping = xen.map_foreign(DOM0, guest, gfn).unwrap();
        xen.kill_domain(guest);
        let zombie = xen.domain(guest).unwrap();
        assert_eq!((zombie.dying, zombie.pages), (super::super::Dying::Dead, 1));
        xen.unmap(mapping);
        assert!(xen.domain(guest).is_none());
        // The shared info page was freed too.
        assert_eq!(xen.pages_free(), free + 17);
    }
}
