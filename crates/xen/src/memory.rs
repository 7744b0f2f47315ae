//! Memory: populating, claims, the E820 map, pinning page tables.
//!
//! Sources: `xen/include/public/memory.h`, `xen.h` (`mmuext_op`).

use alloc::vec::Vec;

use crate::abi::{Layout, u32_at, u64_at};
use crate::xen::words;
use crate::{DomId, Errno, Hypervisor, Mfn, Op, Resource, Xen};

const XENMEM_POPULATE_PHYSMAP: u64 = 6;
const XENMEM_DECREASE_RESERVATION: u64 = 1;
const XENMEM_MAXIMUM_RAM_PAGE: u64 = 2;
const XENMEM_CURRENT_RESERVATION: u64 = 3;
const XENMEM_MAXIMUM_RESERVATION: u64 = 4;
const XENMEM_ADD_TO_PHYSMAP: u64 = 7;
const XENMEM_MAXIMUM_GPFN: u64 = 14;
const XENMEM_REMOVE_FROM_PHYSMAP: u64 = 15;
const XENMEM_SET_POD_TARGET: u64 = 16;
const XENMEM_ADD_TO_PHYSMAP_BATCH: u64 = 23;
const XENMEM_RESERVED_DEVICE_MEMORY_MAP: u64 = 27;
const XENMEM_ACQUIRE_RESOURCE: u64 = 28;
const XENMEM_SET_MEMORY_MAP: u64 = 13;
const XENMEM_MACHINE_MEMORY_MAP: u64 = 10;
/// `struct e820entry` is packed.
const E820_BYTES: usize = 20;
const XENMEM_CLAIM_PAGES: u64 = 24;
/// `struct mmuext_op`.
const MMUEXT_BYTES: usize = 24;

/// Type of a range in the E820 map.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum E820Kind {
    Ram = 1,
    Reserved = 2,
    Acpi = 3,
    AcpiNvs = 4,
    Unusable = 5,
}

impl E820Kind {
    /// Firmware has more kinds than these; none of the others is for an operating system.
    fn decode(number: u32) -> Self {
        match number {
            1 => Self::Ram,
            3 => Self::Acpi,
            4 => Self::AcpiNvs,
            5 => Self::Unusable,
            _ => Self::Reserved,
        }
    }
}

/// One range of a physical memory map, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct E820Entry {
    pub address: u64,
    pub bytes: u64,
    pub kind: E820Kind,
}

/// `2^order` frames, by the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    pub first: u64,
    pub order: u32,
}

/// Where a domain's memory is to come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Placement {
    Anywhere,
    /// From that NUMA node first.
    Node(u8),
    /// From that NUMA node or not at all.
    NodeOnly(u8),
    /// On first access, from a pool.
    OnDemand,
}

impl Placement {
    /// `XENMEMF_*`.
    fn flags(self) -> u32 {
        const POPULATE_ON_DEMAND: u32 = 1 << 16;
        const EXACT_NODE: u32 = 1 << 17;
        let node = |node: u8| (u32::from(node) + 1) << 8;
        match self {
            Self::Anywhere => 0,
            Self::Node(number) => node(number),
            Self::NodeOnly(number) => node(number) | EXACT_NODE,
            Self::OnDemand => POPULATE_ON_DEMAND,
        }
    }
}

/// What can be mapped into a translated domain besides its memory. Source: `XENMAPSPACE_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum PhysmapSpace {
    SharedInfo = 0,
    GrantTable = 1,
    /// A frame of the domain, mapped elsewhere.
    Gmfn = 2,
}

impl<H: Hypervisor> Xen<H> {
    /// Most extents that one [`Xen::populate`] takes.
    pub const EXTENTS_MAX: usize = Self::DATA_BYTES / 8;
    /// Most tables that one [`Xen::pin_tables`] takes.
    pub const PINS_MAX: usize = Self::DATA_BYTES / MMUEXT_BYTES;

    /// Allocates memory at the given pseudo-physical extents, all of one order.
    ///
    /// Returns the first machine frame of each extent that was populated (for a translated domain:
    /// the frame number itself): fewer than requested if memory is short or too fragmented for the
    /// order. The caller then tries the rest at a lower order.
    ///
    /// # Errors
    /// E2BIG for more than [`Xen::EXTENTS_MAX`] extents, otherwise the hypercall's errno.
    pub fn populate(
        &mut self,
        domid: DomId,
        order: u32,
        firsts: &[u64],
    ) -> Result<Vec<u64>, Errno> {
        self.populate_placed(domid, order, firsts, Placement::Anywhere)
    }

    /// As [`Xen::populate`], with a choice of where the memory comes from.
    ///
    /// # Errors
    /// As for [`Xen::populate`].
    pub fn populate_placed(
        &mut self,
        domid: DomId,
        order: u32,
        firsts: &[u64],
        placement: Placement,
    ) -> Result<Vec<u64>, Errno> {
        let call = ("populate_physmap", XENMEM_POPULATE_PHYSMAP);
        let done = self.reservation(call, domid, order, firsts, placement)?;
        let done = usize::try_from(done).unwrap_or(0).min(firsts.len());
        let (_, area) = self.data();
        Ok(words(&area[..done * 8]))
    }

    /// Removes extents from a domain: mfns of a PV domain, gfns of a translated one. Returns how
    /// many were removed.
    ///
    /// # Errors
    /// E2BIG for more than [`Xen::EXTENTS_MAX`] extents, otherwise the hypercall's errno.
    pub fn decrease_reservation(
        &mut self,
        domid: DomId,
        order: u32,
        firsts: &[u64],
    ) -> Result<u64, Errno> {
        let call = ("decrease_reservation", XENMEM_DECREASE_RESERVATION);
        self.reservation(call, domid, order, firsts, Placement::Anywhere)
    }

    fn reservation(
        &mut self,
        (name, cmd): (&'static str, u64),
        domid: DomId,
        order: u32,
        firsts: &[u64],
        placement: Placement,
    ) -> Result<u64, Errno> {
        let bytes: Vec<u8> = firsts.iter().flat_map(|first| first.to_ne_bytes()).collect();
        let address = self.put_data(&bytes)?;
        let argument = Layout::<32>::new()
            .u64(0, address)
            .u64(8, firsts.len() as u64)
            .u32(16, order)
            .u32(20, placement.flags())
            .u16(24, domid.0)
            .done();
        self.call_with(name, Op::Memory, cmd, &argument)
    }

    /// The highest frame of the machine's memory.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn last_machine_frame(&mut self) -> Result<u64, Errno> {
        self.counters.count("maximum_ram_page");
        self.hypervisor.hypercall(Op::Memory, [XENMEM_MAXIMUM_RAM_PAGE, 0, 0, 0, 0])
    }

    /// A domain's current and maximum number of pages.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn reservations(&mut self, domid: DomId) -> Result<(u64, u64), Errno> {
        let domid = domid.0.to_ne_bytes();
        let has = self.call_with("reservation", Op::Memory, XENMEM_CURRENT_RESERVATION, &domid)?;
        let may = self.call_with("reservation", Op::Memory, XENMEM_MAXIMUM_RESERVATION, &domid)?;
        Ok((has, may))
    }

    /// Sets how many pages a translated domain may have that takes some of them on first access only. One that has
    /// none of these is not changed.
    ///
    /// # Errors
    /// EINVAL for a PV domain, or for more than its maximum.
    pub fn set_pod_target(&mut self, domid: DomId, pages: u64) -> Result<(), Errno> {
        let argument = Layout::<40>::new().u64(0, pages).u16(32, domid.0).done();
        self.call_with("set_pod_target", Op::Memory, XENMEM_SET_POD_TARGET, &argument).map(drop)
    }

    /// The highest frame number that a domain uses.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn last_frame(&mut self, domid: DomId) -> Result<u64, Errno> {
        let argument = domid.0.to_ne_bytes();
        self.call_with("maximum_gpfn", Op::Memory, XENMEM_MAXIMUM_GPFN, &argument)
    }

    /// Maps a frame of another kind into a translated domain, at `gfn`.
    ///
    /// # Errors
    /// EACCES for a PV domain, EINVAL for no such frame.
    pub fn add_to_physmap(
        &mut self,
        domid: DomId,
        space: PhysmapSpace,
        index: u64,
        gfn: u64,
    ) -> Result<(), Errno> {
        let argument = Layout::<24>::new()
            .u16(0, domid.0)
            .u32(4, space as u32)
            .u64(8, index)
            .u64(16, gfn)
            .done();
        self.call_with("add_to_physmap", Op::Memory, XENMEM_ADD_TO_PHYSMAP, &argument).map(drop)
    }

    /// As [`Xen::add_to_physmap`] for many frames in one call, with a result for each.
    ///
    /// # Errors
    /// As for [`Xen::add_to_physmap`], or E2BIG if the lists do not fit into the arena.
    pub fn add_all_to_physmap(
        &mut self,
        domid: DomId,
        space: PhysmapSpace,
        places: &[(u64, u64)],
    ) -> Result<Vec<Result<(), Errno>>, Errno> {
        let count = u16::try_from(places.len()).map_err(|_| Errno::E2BIG)?;
        let mut bytes = Vec::with_capacity(places.len() * 20);
        bytes.extend(places.iter().flat_map(|(index, _)| index.to_ne_bytes()));
        bytes.extend(places.iter().flat_map(|(_, gfn)| gfn.to_ne_bytes()));
        let errs_at = bytes.len();
        bytes.resize(errs_at + places.len() * 4, 0);
        let address = self.put_data(&bytes)?;
        let space = u16::try_from(space as u32).map_err(|_| Errno::EINVAL)?;
        let argument = Layout::<32>::new()
            .u16(0, domid.0)
            .u16(2, space)
            .u16(4, count)
            .u64(8, address)
            .u64(16, address + errs_at as u64 / 2)
            .u64(24, address + errs_at as u64)
            .done();
        let name = "add_to_physmap_batch";
        self.call_with(name, Op::Memory, XENMEM_ADD_TO_PHYSMAP_BATCH, &argument)?;
        let (_, area) = self.data();
        let errs = area[errs_at..errs_at + places.len() * 4].chunks_exact(4);
        Ok(errs
            .map(|err| match u32_at(err, 0).cast_signed() {
                0 => Ok(()),
                err => Err(Errno(-err)),
            })
            .collect())
    }

    /// Unmaps a frame from a translated domain.
    ///
    /// # Errors
    /// EACCES for a PV domain, ENOENT or EINVAL if nothing is mapped there.
    pub fn remove_from_physmap(&mut self, domid: DomId, gfn: u64) -> Result<(), Errno> {
        let argument = Layout::<16>::new().u16(0, domid.0).u64(8, gfn).done();
        self.call_with("remove_from_physmap", Op::Memory, XENMEM_REMOVE_FROM_PHYSMAP, &argument)
            .map(drop)
    }

    /// Memory reserved for the machine's devices (RMRR), as (first frame, frames).
    ///
    /// # Errors
    /// ENOSYS on a machine without an IOMMU, E2BIG for more than 1024 ranges.
    pub fn reserved_device_memory(&mut self) -> Result<Vec<(u64, u64)>, Errno> {
        const RDM_ALL: u32 = 1;
        const RANGES_MAX: u32 = 1024;
        const ERANGE: Errno = Errno(34);
        let (address, _) = self.data();
        let argument =
            Layout::<24>::new().u32(0, RDM_ALL).u32(4, RANGES_MAX).u64(8, address).done();
        let name = "reserved_device_memory_map";
        match self.call_with(name, Op::Memory, XENMEM_RESERVED_DEVICE_MEMORY_MAP, &argument) {
            Ok(_) => {}
            Err(ERANGE) => return Err(Errno::E2BIG),
            Err(errno) => return Err(errno),
        }
        let found = u32_at(self.argument(8), 4).min(RANGES_MAX) as usize;
        let (_, area) = self.data();
        Ok(words(&area[..found * 16]).chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// Number of frames of a domain's resource that can be mapped.
    ///
    /// # Errors
    /// ESRCH; EOPNOTSUPP for a kind that the domain does not have.
    pub fn resource_frames(&mut self, domid: DomId, resource: Resource) -> Result<u32, Errno> {
        let argument = Layout::<32>::new().u16(0, domid.0).u16(2, resource.number()).done();
        self.call_with("acquire_resource", Op::Memory, XENMEM_ACQUIRE_RESOURCE, &argument)?;
        Ok(u32_at(self.argument(32), 8))
    }

    /// The machine frames of a domain's resource from `first` on, for a PV control domain.
    ///
    /// # Errors
    /// ESRCH, EINVAL beyond the resource's size.
    pub fn resource_list(
        &mut self,
        domid: DomId,
        resource: Resource,
        first: u64,
        frames: u32,
    ) -> Result<Vec<u64>, Errno> {
        let bytes = frames as usize * 8;
        let address = self.put_data(&alloc::vec![0; bytes])?;
        let argument = Layout::<32>::new()
            .u16(0, domid.0)
            .u16(2, resource.number())
            .u32(8, frames)
            .u64(16, first)
            .u64(24, address)
            .done();
        self.call_with("acquire_resource", Op::Memory, XENMEM_ACQUIRE_RESOURCE, &argument)?;
        let (_, area) = self.data();
        Ok(words(&area[..bytes]))
    }

    /// Undoes [`Xen::pin_l4`].
    ///
    /// # Errors
    /// EINVAL if it is not pinned.
    pub fn unpin_table(&mut self, domid: DomId, table: Mfn) -> Result<(), Errno> {
        const MMUEXT_UNPIN_TABLE: u32 = 4;
        let argument = Layout::<24>::new().u32(0, MMUEXT_UNPIN_TABLE).u64(8, table.0).done();
        self.counters.count("unpin_table");
        let address = self.put_data(&argument)?;
        self.hypervisor.hypercall(Op::Mmuext, [address, 1, 0, u64::from(domid.0), 0]).map(drop)
    }

    /// Reserves `pages` for the domain without allocating them; 0 releases the rest of a claim.
    ///
    /// # Errors
    /// ENOMEM if the host has too little free; EINVAL for no more than the domain already has, for
    /// more than its limit, and while a claim is active.
    pub fn claim_pages(&mut self, domid: DomId, pages: u64) -> Result<(), Errno> {
        let argument = Layout::<32>::new().u64(8, pages).u16(24, domid.0).done();
        self.call_with("claim_pages", Op::Memory, XENMEM_CLAIM_PAGES, &argument).map(drop)
    }

    /// Maps a translated domain's shared info page at `gfn`.
    ///
    /// # Errors
    /// EACCES for a PV domain.
    pub fn map_shared_info(&mut self, domid: DomId, gfn: u64) -> Result<(), Errno> {
        self.add_to_physmap(domid, PhysmapSpace::SharedInfo, 0, gfn)
    }

    /// Sets the memory map that the domain will see.
    ///
    /// # Errors
    /// EINVAL for too many entries.
    pub fn set_memory_map(&mut self, domid: DomId, map: &[E820Entry]) -> Result<(), Errno> {
        let mut bytes = Vec::with_capacity(map.len() * E820_BYTES);
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

    /// The machine's own, as its firmware gave it to Xen.
    ///
    /// # Errors
    /// EPERM for an unprivileged domain.
    pub fn machine_memory_map(&mut self) -> Result<Vec<E820Entry>, Errno> {
        const ENTRIES_MAX: u32 = 1024;
        let address = self.put_data(&alloc::vec![0; E820_BYTES * ENTRIES_MAX as usize])?;
        let argument = Layout::<16>::new().u32(0, ENTRIES_MAX).u64(8, address).done();
        self.call_with("machine_memory_map", Op::Memory, XENMEM_MACHINE_MEMORY_MAP, &argument)?;
        let found = u32_at(self.argument(16), 0).min(ENTRIES_MAX) as usize;
        let (_, area) = self.data();
        let entry = |entry: &[u8]| E820Entry {
            address: u64_at(entry, 0),
            bytes: u64_at(entry, 8),
            kind: E820Kind::decode(u32_at(entry, 16)),
        };
        Ok(area[..found * E820_BYTES].chunks_exact(E820_BYTES).map(entry).collect())
    }

    /// Pins a PV domain's top-level page table.
    ///
    /// # Errors
    /// EINVAL if a table is mapped writable or an entry is not allowed.
    pub fn pin_l4(&mut self, domid: DomId, table: Mfn) -> Result<(), Errno> {
        self.pin_tables(domid, &[(4, table)])
    }

    /// Pins page tables of a PV domain, each of a level of 1 to 4, in order up to the first that fails.
    ///
    /// # Errors
    /// As for [`Xen::pin_l4`]; E2BIG for more than [`Xen::PINS_MAX`].
    ///
    /// # Panics
    /// If a level is not one.
    pub fn pin_tables(&mut self, domid: DomId, tables: &[(u8, Mfn)]) -> Result<(), Errno> {
        let mut bytes = Vec::with_capacity(tables.len() * MMUEXT_BYTES);
        for (level, table) in tables {
            assert!((1..=4).contains(level), "page tables have four levels");
            // `MMUEXT_PIN_L1_TABLE` is 0.
            let op = Layout::<MMUEXT_BYTES>::new().u32(0, u32::from(*level) - 1).u64(8, table.0);
            bytes.extend_from_slice(&op.done());
        }
        self.counters.count("pin_table");
        let address = self.put_data(&bytes)?;
        let count = tables.len() as u64;
        self.hypervisor.hypercall(Op::Mmuext, [address, count, 0, u64::from(domid.0), 0]).map(drop)
    }
}
