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
    fn extra_pages(&self) -> u64 {
        let roms = if self.kind == DomainKind::Hvm { ROM_PAGES } else { 0 };
        EXTRA_PAGES + roms
    }

    /// Pages that the domain is to have, and may own once it runs.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.memory_pages + self.extra_pages()
    }

    /// Pages that the domain may own while it is loaded. A guest may not have given back yet what it was told to, and a translated
    /// one had all its frames written, also those that there was no memory for.
    #[must_use]
    pub fn pages_max(&self) -> u64 {
        self.memory_pages_max + self.extra_pages()
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
    let host_pages = config.pages() + pages_of(config.pool_bytes());
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

/// Releases what is left of the claim once the state is loaded, as a guest may have returned some of its
/// memory, and limits that to what the domain may own from now on. One that has more keeps it.
///
/// # Errors
/// [`BuildError`] if a hypercall fails.
pub fn finish_restored<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    config: &RestoredConfig,
) -> Result<(), BuildError> {
    unclaim(xen, domid);
    if config.pages_max() == config.pages() {
        return Ok(());
    }
    let memory_kib = config.pages() << (PAGE_SHIFT - 10);
    let limited = xen.set_memory_max(domid, memory_kib);
    limited.map_err(|errno| BuildError::Hypercall { action: "limit the memory", domid, errno })
}
