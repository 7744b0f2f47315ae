//! Memory: populating, claims, the E820 map, pinning page tables.
//!
//! Sources: `xen/include/public/memory.h`, `xen.h` (`mmuext_op`).

use alloc::vec::Vec;

use crate::abi::Layout;
use crate::xen::words;
use crate::{DomId, Errno, Hypervisor, Mfn, Op, Xen};

const XENMEM_POPULATE_PHYSMAP: u64 = 6;
const XENMEM_ADD_TO_PHYSMAP: u64 = 7;
const XENMEM_SET_MEMORY_MAP: u64 = 13;
const XENMEM_CLAIM_PAGES: u64 = 24;

/// Type of a range in the E820 map.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum E820Kind {
    Ram = 1,
    Reserved = 2,
    Acpi = 3,
    AcpiNvs = 4,
}

/// One range of a domain's physical memory map, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct E820Entry {
    pub address: u64,
    pub bytes: u64,
    pub kind: E820Kind,
}

/// A run of `2^order` frames, by its first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    pub first: u64,
    pub order: u32,
}

impl<H: Hypervisor> Xen<H> {
    /// Most extents that one [`Xen::populate`] takes.
    pub const EXTENTS_MAX: usize = Self::DATA_BYTES / 8;

    /// Allocates memory at the given pseudo-physical extents, all of one order.
    ///
    /// Returns the first machine frame of each extent that was populated (for a translated domain:
    /// the frame number itself): fewer than asked for if memory is short or too fragmented for the
    /// order. The caller then tries the rest at a lower order.
    ///
    /// # Errors
    /// E2BIG for more than [`Xen::EXTENTS_MAX`] extents, otherwise what Xen says.
    pub fn populate(
        &mut self,
        domid: DomId,
        order: u32,
        firsts: &[u64],
    ) -> Result<Vec<u64>, Errno> {
        let bytes: Vec<u8> = firsts.iter().flat_map(|first| first.to_ne_bytes()).collect();
        let address = self.put_data(&bytes)?;
        let argument = Layout::<32>::new()
            .u64(0, address)
            .u64(8, firsts.len() as u64)
            .u32(16, order)
            .u16(24, domid.0)
            .done();
        let done =
            self.call_with("populate_physmap", Op::Memory, XENMEM_POPULATE_PHYSMAP, &argument)?;
        let done = usize::try_from(done).unwrap_or(0).min(firsts.len());
        let (_, area) = self.data();
        Ok(words(&area[..done * 8]))
    }

    /// Reserves `pages` for the domain without allocating them; 0 gives the rest of a claim back.
    ///
    /// # Errors
    /// ENOMEM if the host has not that much left; EINVAL for not more than the domain already has, for
    /// more than its limit, and while a claim stands.
    pub fn claim_pages(&mut self, domid: DomId, pages: u64) -> Result<(), Errno> {
        let argument = Layout::<32>::new().u64(8, pages).u16(24, domid.0).done();
        self.call_with("claim_pages", Op::Memory, XENMEM_CLAIM_PAGES, &argument).map(drop)
    }

    /// Puts Xen's shared info page of a translated domain at `gfn`.
    ///
    /// # Errors
    /// EACCES for a PV domain.
    pub fn map_shared_info(&mut self, domid: DomId, gfn: u64) -> Result<(), Errno> {
        const XENMAPSPACE_SHARED_INFO: u32 = 0;
        let argument =
            Layout::<24>::new().u16(0, domid.0).u32(4, XENMAPSPACE_SHARED_INFO).u64(16, gfn).done();
        self.call_with("add_to_physmap", Op::Memory, XENMEM_ADD_TO_PHYSMAP, &argument).map(drop)
    }

    /// Tells Xen the memory map that the domain will be shown.
    ///
    /// # Errors
    /// EINVAL for too many entries.
    pub fn set_memory_map(&mut self, domid: DomId, map: &[E820Entry]) -> Result<(), Errno> {
        // `struct e820entry` is packed: 20 bytes.
        let mut bytes = Vec::with_capacity(map.len() * 20);
        for entry in map {
            bytes.extend_from_slice(&entry.address.to_ne_bytes());
            bytes.extend_from_slice(&entry.bytes.to_ne_bytes());
            bytes.extend_from_slice(&(entry.kind as u32).to_ne_bytes());
        }
        let address = self.put_data(&bytes)?;
        let entries = u32::try_from(map.len()).map_err(|_| Errno::EINVAL)?;
        let argument = Layout::<24>::new().u16(0, domid.0).u32(8, entries).u64(16, address).done();
        self.call_with("set_memory_map", Op::Memory, XENMEM_SET_MEMORY_MAP, &argument).map(drop)
    }

    /// Pins a PV domain's top-level page table.
    ///
    /// # Errors
    /// EINVAL if a table is mapped writable or an entry is not allowed.
    pub fn pin_l4(&mut self, domid: DomId, table: Mfn) -> Result<(), Errno> {
        const MMUEXT_PIN_L4_TABLE: u32 = 3;
        let argument = Layout::<24>::new().u32(0, MMUEXT_PIN_L4_TABLE).u64(8, table.0).done();
        self.counters.count("pin_table");
        let address = self.put_data(&argument)?;
        self.hypervisor.hypercall(Op::Mmuext, [address, 1, 0, u64::from(domid.0), 0]).map(drop)
    }
}
