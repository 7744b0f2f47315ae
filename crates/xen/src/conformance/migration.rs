//! Cases about what migration needs.

use alloc::vec;
use alloc::vec::Vec;

use super::{Case, Checked, Doing, distinct, same, unused, with_domain};
use crate::{
    Answer, Batch, Debugging, DirtyRead, DomId, DomainKind, Errno, EvtchnPeer, EvtchnPort,
    FrameUse, HvmParam, Hypervisor, Mfn, PAGE_BYTES, Piece, ShutdownReason, TscInfo, Vnuma, Xen,
};

pub(super) fn cases<H: Hypervisor>() -> Vec<Case<H>> {
    vec![
        ("dirty pages are logged while log-dirty mode is on", log_dirty),
        ("what is written through a mapping of one's own is not logged", foreign_writes),
        ("a PV domain's frames have a use", frame_uses),
        ("a translated domain's frames are its memory, not Xen's nor holes", translated_uses),
        ("page tables are pinned several at a time", pins),
        ("parameters are read by one call", params),
        ("a vCPU's extended context is taken as it was given", ext_context),
        ("one HVM record can be read alone", hvm_record),
        ("a translated domain has no address size", address_size),
        ("the time stamp counter's settings read back", tsc),
        ("a domain's clock can be moved", time_offset),
        ("a suspend can be announced to any port", subscribe),
        ("a suspend is announced to a channel of our own, once", announced),
        ("only a domain that shut down for soft reset can be soft-reset", soft_reset),
        ("a domain does not debug itself", debugging),
        ("a VIRQ of each vCPU has no handler for the host", virq_handler),
        ("NUMA nodes of a domain must fit together", vnuma),
    ]
}

fn log_dirty<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    /// `XEN_SYSCTL_PHYSCAP_shadow`: without shadow paging there is no log-dirty mode for PV
    /// domains.
    const SHADOW: u32 = 1 << 4;
    let has_shadow = xen.phys_info().doing("physinfo")?.capabilities & SHADOW != 0;
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        with_domain(xen, kind, |xen, domid| {
            xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
            let pfns: Vec<u64> = (0..32).collect();
            xen.populate(domid, 0, &pfns).doing("populate_physmap")?;
            if kind == DomainKind::Pv && !has_shadow {
                let answer = xen.enable_log_dirty(domid);
                return same("of a PV domain", &answer, &Err(Errno::EOPNOTSUPP));
            }
            xen.enable_log_dirty(domid).doing("shadow_op")?;
            same("enabled twice", &xen.enable_log_dirty(domid), &Err(Errno::EINVAL))?;
            for look in [DirtyRead::Clean, DirtyRead::Peek, DirtyRead::Final] {
                let dirty = xen.dirty(domid, 32, look).doing("shadow_op")?;
                // It has not run, so it has not written.
                same("dirty", &dirty.frames().count(), &0)?;
                same("pages told", &(dirty.pages <= 32), &true)?;
            }
            xen.disable_log_dirty(domid).doing("shadow_op")?;
            xen.enable_log_dirty(domid).doing("shadow_op again")?;
            xen.disable_log_dirty(domid).doing("shadow_op again")
        })?;
    }
    Ok(())
}

fn frame_uses<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        let frames = xen.populate(domid, 0, &[0, 1, 2]).doing("populate_physmap")?;
        distinct(&frames)?;
        let uses = xen.frame_uses(domid, &frames).doing("getpageframeinfo3")?;
        same("memory", &uses, &vec![FrameUse::Memory; 3])?;
        let uses =
            xen.frame_uses(domid, &[frames[1], 0xff_ffff_ffff]).doing("getpageframeinfo3")?;
        same("a frame of nobody", &uses, &vec![FrameUse::Memory, FrameUse::None])
    })
}

fn foreign_writes<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        let pfns: Vec<u64> = (0..32).collect();
        xen.populate(domid, 0, &pfns).doing("populate_physmap")?;
        xen.enable_log_dirty(domid).doing("shadow_op")?;
        xen.write_foreign(domid, &[3, 4], 0, &[7; 2 * PAGE_BYTES]).doing("write")?;
        for look in [DirtyRead::Clean, DirtyRead::Final] {
            let dirty = xen.dirty(domid, 32, look).doing("shadow_op")?;
            same("dirty", &dirty.frames().count(), &0)?;
        }
        xen.disable_log_dirty(domid).doing("shadow_op")
    })
}

fn translated_uses<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        xen.populate(domid, 0, &[0, 1, 700]).doing("populate_physmap")?;
        xen.map_shared_info(domid, 5).doing("add_to_physmap")?;
        same("highest", &xen.last_frame(domid), &Ok(700))?;
        let uses = xen.frame_uses(domid, &[0, 5, 6, 700, 701]).doing("getpageframeinfo3")?;
        let (memory, none) = (FrameUse::Memory, FrameUse::None);
        same("uses", &uses, &vec![memory, none, none, memory, none])
    })
}

fn pins<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_memory_max(domid, 64 * 4).doing("max_mem")?;
        let frames = xen.populate(domid, 0, &[0, 1, 2]).doing("populate_physmap")?;
        xen.write_foreign_pieces(domid, &frames, 0, &[Piece::Zeros(3 * PAGE_BYTES)])
            .doing("write")?;
        let tables = [(1, Mfn(frames[0])), (4, Mfn(frames[1]))];
        xen.pin_tables(domid, &tables).doing("pin_table")?;
        same("pinned twice", &xen.pin_tables(domid, &tables[1..]), &Err(Errno::EINVAL))?;
        let uses = xen.frame_uses(domid, &frames).doing("getpageframeinfo3")?;
        let table = |level| FrameUse::Table { level, is_pinned: true };
        same("uses", &uses, &vec![table(1), table(4), FrameUse::Memory])?;
        for (_, table) in tables {
            xen.unpin_table(domid, table).doing("unpin_table")?;
        }
        Ok(())
    })
}

fn params<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        xen.set_hvm_param(domid, HvmParam::StorePfn, 0x123).doing("hvm_set_param")?;
        let mut batch = Batch::default();
        for param in [HvmParam::StorePfn, HvmParam::ConsolePfn, HvmParam::PaeEnabled] {
            batch.hvm_param(domid, param);
        }
        let answers = xen.issue(&batch).doing("multicall")?;
        let seen: Vec<Result<u64, Errno>> = answers.iter().map(Answer::hvm_param).collect();
        same("values", &seen, &vec![Ok(0x123), Ok(0), Err(Errno::EINVAL)])
    })
}

fn ext_context<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let fresh = xen.ext_vcpu_bytes(domid, 1).doing("get_ext_vcpucontext")?;
        same("its length", &(8..=128).contains(&fresh.len()), &true)?;
        // Xen puts the guest's privilege into selectors.
        xen.set_ext_vcpu_bytes(domid, 1, &fresh).doing("set_ext_vcpucontext")?;
        let bytes = xen.ext_vcpu_bytes(domid, 1).doing("get_ext_vcpucontext")?;
        xen.set_ext_vcpu_bytes(domid, 0, &bytes).doing("set_ext_vcpucontext")?;
        let again = xen.ext_vcpu_bytes(domid, 0).doing("get_ext_vcpucontext")?;
        same("all but the vCPU's number", &again[8..].to_vec(), &bytes[8..].to_vec())?;
        same("too short", &xen.set_ext_vcpu_bytes(domid, 0, &bytes[..7]), &Err(Errno::EINVAL))
    })
}

fn hvm_record<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const MTRR: u16 = 14;
    const UNKNOWN: u16 = 120;
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        let record = xen.hvm_record(domid, MTRR, 1).doing("gethvmcontext_partial")?;
        same("bytes", &record.len(), &240)?;
        let unknown = xen.hvm_record(domid, UNKNOWN, 0).err();
        same("unknown kind", &unknown, &Some(Errno::EINVAL))?;
        let beyond = xen.hvm_record(domid, MTRR, 2).err();
        same("vCPU beyond", &beyond, &Some(Errno::ENOENT))
    })?;
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        same("of a PV domain", &xen.hvm_record(domid, MTRR, 0).err(), &Some(Errno::EINVAL))
    })
}

fn address_size<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        same("of a PV domain", &xen.address_size(domid), &Ok(64))
    })?;
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        same("of a translated one", &xen.address_size(domid), &Err(Errno::EOPNOTSUPP))
    })
}

fn tsc<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const ALWAYS_EMULATE: u32 = 1;
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let wanted =
            TscInfo { mode: ALWAYS_EMULATE, khz: 1_000_000, incarnation: 0, elapsed_ns: 5_000 };
        xen.set_tsc_info(domid, wanted).doing("settscinfo")?;
        let seen = xen.tsc_info(domid).doing("gettscinfo")?;
        same("mode and frequency", &(seen.mode, seen.khz), &(ALWAYS_EMULATE, 1_000_000))?;
        same("time that has passed", &(seen.elapsed_ns >= 5_000), &true)?;
        let nobody = unused(xen)?;
        same("of nobody", &xen.tsc_info(nobody).err(), &Some(Errno::ESRCH))
    })
}

fn time_offset<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        xen.set_time_offset(domid, -3600).doing("settimeoffset")?;
        let nobody = unused(xen)?;
        same("of nobody", &xen.set_time_offset(nobody, 1), &Err(Errno::ESRCH))
    })
}

fn subscribe<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        // Xen checks that the port exists only when it signals it.
        let nowhere = xen.subscribe_suspend(domid, EvtchnPort(0x7fff_fff0));
        same("to a port that is none", &nowhere, &Ok(()))?;
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        let port = xen.alloc_unbound(peer).doing("alloc_unbound")?;
        same("to a port that exists", &xen.subscribe_suspend(domid, port), &Ok(()))?;
        let own = EvtchnPeer { owner: DomId::SELF, remote: DomId::SELF };
        let port = xen.alloc_unbound(own).doing("alloc_unbound")?;
        xen.close_channel(port).doing("close")?;
        same("closed twice", &xen.close_channel(port), &Err(Errno::EINVAL))
    })
}

fn announced<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const SECOND_NS: u64 = 1_000_000_000;
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        with_domain(xen, kind, |xen, domid| {
            let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
            let port = xen.alloc_unbound(peer).doing("alloc_unbound")?;
            let ours = xen.bind_channel(domid, port).doing("bind_interdomain")?;
            same("bound twice", &xen.bind_channel(domid, port), &Err(Errno::EINVAL))?;
            same("after the bind", &xen.wait_channel(SECOND_NS), &Ok(true))?;
            same("nothing yet", &xen.wait_channel(0), &Ok(false))?;
            xen.subscribe_suspend(domid, port).doing("subscribe")?;
            for _ in 0..2 {
                xen.remote_shutdown(domid, ShutdownReason::Suspend).doing("remote_shutdown")?;
                same("suspended", &xen.wait_channel(SECOND_NS), &Ok(true))?;
                same("told once", &xen.wait_channel(0), &Ok(false))?;
                xen.resume_domain(domid).doing("resumedomain")?;
            }
            // Unbound, the port stays the domain's and can be bound again.
            xen.unbind_channel(ours).doing("close")?;
            let ours = xen.bind_channel(domid, port).doing("bind_interdomain again")?;
            xen.unbind_channel(ours).doing("close")?;
            xen.subscribe_suspend(domid, EvtchnPort(0)).doing("no subscription")
        })?;
    }
    Ok(())
}

fn soft_reset<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pvh, |xen, domid| {
        same("as it is", &xen.soft_reset(domid), &Err(Errno::EINVAL))
    })
}

fn debugging<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        for debugging in [Debugging::On, Debugging::Off] {
            xen.set_debugging(domid, debugging).doing("setdebugging")?;
        }
        same("oneself", &xen.set_debugging(DomId::DOM0, Debugging::On), &Err(Errno::EINVAL))
    })
}

fn virq_handler<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    const VIRQ_TIMER: u32 = 0;
    const BEYOND: u32 = 24;
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        for virq in [VIRQ_TIMER, BEYOND] {
            same("handler", &xen.set_virq_handler(domid, virq), &Err(Errno::EINVAL))?;
        }
        Ok(())
    })
}

fn vnuma<H: Hypervisor>(xen: &mut Xen<H>) -> Checked {
    with_domain(xen, DomainKind::Pv, |xen, domid| {
        let too_few = Vnuma {
            distances: vec![10],
            node_of_vcpu: vec![0],
            machine_node_of_node: vec![0],
            ranges: vec![crate::VnumaRange { start: 0, end: 1 << 20, node: 0 }],
        };
        same("a vCPU is left out", &xen.set_vnuma(domid, &too_few), &Err(Errno::EINVAL))?;
        let fits = Vnuma { node_of_vcpu: vec![0, 0], ..too_few };
        same("all are there", &xen.set_vnuma(domid, &fits), &Ok(()))
    })
}
