//! Small hosts and domains for the machine's unit tests.

use xen::{DomId, Uuid};

use super::domain::Creation;
use super::{Counted, Domain, MachineConfig, SimXen};
use crate::faults::Faults;

pub(super) fn host() -> SimXen {
    let config = MachineConfig { pages: 1 << 16, dom0_pages: 1 << 12, ..MachineConfig::default() };
    SimXen::new(config, Faults::default(), 1)
}

pub(super) fn create(xen: &mut SimXen) -> DomId {
    create_with_flags(xen, 0)
}

/// A PVH domain that may have so many pages.
pub(super) fn create_translated(xen: &mut SimXen, pages_max: u64) -> DomId {
    let domid = create_with_flags(xen, Domain::HVM | Domain::HAP);
    xen.domains.get_mut(&domid).unwrap().pages_max = pages_max;
    domid
}

fn create_with_flags(xen: &mut SimXen, flags: u32) -> DomId {
    let domid = xen.choose_domid(DomId::ANY).unwrap();
    let creation = Creation {
        handle: Uuid::default(),
        flags,
        emulation: 0,
        vcpus_max: 1,
        evtchn_port_max: 1023,
        grant_frames_max: 64,
        altp2m: 0,
    };
    xen.insert_domain(domid, &creation).unwrap();
    domid
}

pub(super) fn create_with_memory(xen: &mut SimXen, pages: u64) -> DomId {
    let domid = create(xen);
    for pfn in 0..pages {
        let mfn = xen.frames.allocate(domid, pfn, 0, Counted::Yes).unwrap();
        let domain = xen.domains.get_mut(&domid).unwrap();
        domain.extents.push((mfn, 1));
        domain.map_physical(pfn, 1, mfn);
        domain.pages += 1;
    }
    domid
}
