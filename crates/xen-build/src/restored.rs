//! What a new domain needs before a saved one's state is loaded into it.

use xen::{DomId, DomainKind, E820Entry, E820Kind, Hypervisor, PAGE_SHIFT, Xen};

use crate::hvm::ROM_PAGES;
use crate::memory::{claim, mib_of, pages_of, unclaim};
use crate::{BuildError, EXTRA_PAGES, Needs, pvh};

/// The sizes of a domain that goes on where another was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RestoredConfig {
    pub kind: DomainKind,
    pub memory_pages: u64,
    pub memory_pages_max: u64,
    pub vcpus: u32,
}

impl RestoredConfig {
    /// Pages that the domain may own.
    #[must_use]
    pub fn pages_max(&self) -> u64 {
        let roms = if self.kind == DomainKind::Hvm { ROM_PAGES } else { 0 };
        self.memory_pages + EXTRA_PAGES + roms
    }

    fn pool_bytes(&self) -> u64 {
        match self.kind {
            DomainKind::Pv => 0,
            DomainKind::Pvh | DomainKind::Hvm => {
                pvh::paging_pool_bytes(self.vcpus, self.memory_pages_max)
            }
        }
    }
}

/// Checks the sizes, before the domain is created.
///
/// # Errors
/// [`BuildError`] if no domain can have them.
pub fn check_restored(config: &RestoredConfig) -> Result<Needs, BuildError> {
    if config.memory_pages > config.memory_pages_max {
        return Err(BuildError::MemoryAboveMax {
            memory_mib: mib_of(config.memory_pages),
            max_mib: mib_of(config.memory_pages_max),
        });
    }
    let host_pages = config.pages_max() + pages_of(config.pool_bytes());
    Ok(Needs { memory_pages_min: 0, host_pages })
}

/// Sets a new domain's limits and claims its memory.
///
/// # Errors
/// [`BuildError`] if a hypercall fails.
pub fn prepare_restored<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &RestoredConfig,
) -> Result<(), BuildError> {
    let refused = |action| move |errno| BuildError::Hypercall { action, domid, errno };
    let memory_kib = config.pages_max() << (PAGE_SHIFT - 10);
    xen.set_memory_max(domid, memory_kib).map_err(refused("limit the memory"))?;
    match config.kind {
        // Its guest may ask for the map again.
        DomainKind::Pv => {
            let bytes = config.memory_pages_max << PAGE_SHIFT;
            let ram = E820Entry { address: 0, bytes, kind: E820Kind::Ram };
            xen.set_memory_map(domid, &[ram]).map_err(refused("set the memory map"))?;
        }
        DomainKind::Pvh | DomainKind::Hvm => {
            pvh::set_paging_pool(xen, domid, config.pool_bytes())?;
        }
    }
    claim(xen, domid, config.memory_pages)
}

/// Releases what is left of the claim: a guest may have returned some of its memory.
pub fn end_claim<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) {
    unclaim(xen, domid);
}
