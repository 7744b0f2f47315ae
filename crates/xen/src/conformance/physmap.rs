//! Cases about memory beyond populating it, event channels' states, and batches of calls.

use alloc::vec;
use alloc::vec::Vec;

use super::{Case, Checked, Doing, existing, same, unused, with_domain};
use crate::{
    Batch, ChannelStatus, DomId, DomainKind, Errno, EvtchnPeer, EvtchnPort, Hypervisor,
    PhysmapSpace, Resource, Xen,
};

pub(super) fn cases<H: Hypervisor>() -> Vec<Case<H>> {
    vec![
        ("memory can be taken from a domain", decrease),
        ("all calls that count a domain's pages agree", reservations),
        ("frames move in a translated domain, each with a result of its own", physmap),
        ("a grant table has a size, and frames that dom0 can map", resource),
        ("the p2m pool reads back", pool),
        ("reserved device memory is listed, or there is no IOMMU", reserved_memory),
        ("the machine's last frame lies behind its memory", last_machine_frame),
        ("a port reports what it is connected to, and a reset closes it", channels),
        ("a batch is one hypercall with a result for each of its calls", batch),
    ]
}

fn decrease<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        with_domain(xen, kind, |xen, domid| {
            xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
            let pfns: Vec<u64> = (0..16).collect();
            let frames = xen.populate(domid, 0, &pfns).doing("populate_physmap")?;
            let gone = xen.decrease_reservation(domid, 0, &frames[..4]);
            same("taken away", &gone, &Ok(4))?;
            same("pages", &existing(xen, domid)?.pages, &12)?;
            let again = xen.decrease_reservation(domid, 0, &frames[..1]);
            same("once more", &again, &Ok(0))?;
            let more = xen.populate(domid, 0, &pfns[..4]).doing("populate_physmap")?;
            same("given again", &more.len(), &4)
        })?;
    }
    Ok(())
}

fn reservations<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        let pfns: Vec<u64> = (16..32).collect();
        xen.populate(domid, 0, &pfns).doing("populate_physmap")?;
        let info = existing(xen, domid)?;
        same("pages and limit", &xen.reservations(domid), &Ok((info.pages, info.pages_max)))?;
        same("last frame", &xen.last_frame(domid), &Ok(31))?;
        let nobody = unused(xen)?;
        same("of nobody", &xen.last_frame(nobody), &Err(Errno::ESRCH))
    })
}

fn physmap<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        xen.populate(domid, 0, &[1, 2, 3]).doing("populate_physmap")?;
        xen.write_foreign(domid, &[1], 8, b"moved").doing("write_foreign")?;
        xen.add_to_physmap(domid, PhysmapSpace::Gmfn, 1, 20).doing("add_to_physmap")?;
        let mut seen = [0; 5];
        xen.read_foreign(domid, &[20], 8, &mut seen).doing("read_foreign")?;
        same("bytes", &seen, b"moved")?;
        let old = xen.read_foreign(domid, &[1], 8, &mut seen);
        same("the old place", &old.map_err(|error| error.errno), &Err(Errno::EINVAL))?;
        let places = [(2, 21), (0x7_0000, 22), (3, 23)];
        let results = xen
            .add_all_to_physmap(domid, PhysmapSpace::Gmfn, &places)
            .doing("add_to_physmap_batch")?;
        same("those that are there", &(results[0], results[2]), &(Ok(()), Ok(())))?;
        match results[1] {
            // Newer releases return the second.
            Err(Errno::EINVAL | Errno::EACCES) => {}
            other => same("the one that is not", &other, &Err(Errno::EINVAL))?,
        }
        xen.remove_from_physmap(domid, 20).doing("remove_from_physmap")?;
        same("removed twice", &xen.remove_from_physmap(domid, 20), &Err(Errno::ENOENT))
    })?;
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let answer = xen.add_to_physmap(domid, PhysmapSpace::Gmfn, 1, 20);
        same("of a PV domain", &answer, &Err(Errno::EACCES))?;
        same("removing there", &xen.remove_from_physmap(domid, 20), &Err(Errno::EACCES))
    })
}

fn resource<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let frames = xen.resource_frames(domid, Resource::GrantTable).doing("acquire_resource")?;
        same("frames", &frames, &64)?;
        let list = xen.resource_list(domid, Resource::GrantTable, 0, 2);
        let list = list.doing("acquire_resource")?;
        same("distinct", &(list[0] != list[1] && list[0] != 0), &true)?;
        let beyond = xen.resource_list(domid, Resource::GrantTable, 64, 1).err();
        same("beyond", &beyond, &Some(Errno::EINVAL))?;
        let nobody = unused(xen)?;
        let answer = xen.resource_frames(nobody, Resource::GrantTable);
        same("of nobody", &answer, &Err(Errno::ESRCH))
    })
}

fn pool<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_paging_pool(domid, 3 << 20).doing("set_paging_mempool_size")?;
        same("bytes", &xen.paging_pool(domid), &Ok(3 << 20))
    })?;
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        same("of a PV domain", &xen.paging_pool(domid), &Err(Errno::EOPNOTSUPP))
    })
}

fn reserved_memory<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    match xen.reserved_device_memory() {
        Ok(_) | Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => Ok(()),
        Err(errno) => same("error", &errno, &Errno::ENOSYS),
    }
}

fn last_machine_frame<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    let last = xen.last_machine_frame().doing("maximum_ram_page")?;
    let pages = xen.phys_info().doing("physinfo")?.pages;
    same("not below the number of pages", &(last + 1 >= pages), &true)
}

fn channels<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        let port = xen.alloc_unbound(peer).doing("alloc_unbound")?;
        let unbound = ChannelStatus::Unbound { remote: DomId::DOM0 };
        same("a new one", &xen.channel_status(domid, port), &Ok(unbound))?;
        let free = xen.channel_status(domid, EvtchnPort(port.0 + 1));
        same("a free one", &free, &Ok(ChannelStatus::Closed))?;
        let beyond = xen.channel_status(domid, EvtchnPort(0x7fff_ffff)).err();
        same("beyond the last", &beyond, &Some(Errno::EINVAL))?;
        let answer = xen.reset_channels(domid);
        same("reset", &answer, &Ok(()))?;
        let status = xen.channel_status(domid, port);
        same("afterwards", &status, &Ok(ChannelStatus::Closed))?;
        let nobody = unused(xen)?;
        same("of nobody", &xen.reset_channels(nobody), &Err(Errno::ESRCH))
    })
}

fn batch<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let nobody = unused(xen)?;
        let mut batch = Batch::default();
        for _ in 0..100 {
            batch.domain(domid);
            batch.domain(nobody);
        }
        batch.pause_domain(nobody);
        batch.set_memory_max(domid, 40);
        batch.alloc_unbound(EvtchnPeer { owner: domid, remote: DomId::DOM0 });
        let before = xen.counters().total();
        let answers = xen.issue(&batch).doing("multicall")?;
        same("hypercalls", &(xen.counters().total() - before), &1)?;
        for pair in answers[..200].chunks(2) {
            let found = pair[0].domain(domid).doing("getdomaininfo")?;
            same("domain", &found.map(|info| info.domid), &Some(domid))?;
            same("nobody", &pair[1].domain(nobody), &Ok(None))?;
        }
        same("a call that fails", &answers[200].result, &Err(Errno::ESRCH))?;
        same("one behind it", &answers[201].result, &Ok(0))?;
        same("limit", &existing(xen, domid)?.pages_max, &10)?;
        same("port", &answers[202].port(), &Ok(EvtchnPort(1)))
    })
}
