//! What the simulated Xen promises at the hypercall boundary, through the typed calls of `xen`.

use sim::{Calls, Dying, Faults, Machine, MachineConfig, Release, SimHypervisor, SimXen, Time};
use xen::{
    CreateDomain, CreateOptions, DomId, DomainInfo, DomainKind, Errno, EvtchnPeer, GrantRef,
    HvmParam, Mfn, ShutdownReason, Uuid, Xen,
};

fn machine_of(release: Release) -> Machine {
    let config =
        MachineConfig { release, pages: 1 << 16, dom0_pages: 1 << 12, ..MachineConfig::default() };
    Machine::new(SimXen::new(config, Faults::default(), 42))
}

fn xen_on(machine: &Machine) -> Xen<SimHypervisor> {
    Xen::probe(machine.hypervisor()).expect("dom0 may control the host")
}

fn wanted(kind: DomainKind) -> CreateDomain {
    CreateDomain {
        kind,
        handle: Uuid([7; 16]),
        vcpus_max: 2,
        evtchn_port_max: 1023,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    }
}

fn create(xen: &mut Xen<SimHypervisor>, kind: DomainKind) -> DomId {
    let domid = xen.create_domain(&wanted(kind)).unwrap();
    xen.set_memory_max(domid, 16 << 10).unwrap();
    domid
}

fn info(xen: &mut Xen<SimHypervisor>, domid: DomId) -> DomainInfo {
    xen.domain(domid).unwrap().expect("the domain exists")
}

/// Lets readers of the domain list leave, so that identifiers become free.
fn let_time_pass(machine: &Machine, xen: &mut Xen<SimHypervisor>) {
    let until = machine.get().now().after(100_000_000);
    while machine.get().now() < until {
        xen.domains().unwrap();
    }
}

#[test]
fn every_release_is_probed_with_its_own_interface_versions() {
    for release in Release::ALL {
        let mut xen = xen_on(&machine_of(release));
        let abi = xen.abi();
        assert_eq!((abi.domctl.0, abi.sysctl.0), (release.domctl(), release.sysctl()));
        assert_eq!(abi.xen, (4, release.minor()));
        assert_eq!(xen.has_domain_state(), release >= Release::Xen4_21);
    }
}

#[test]
fn a_domain_without_privilege_controls_nothing() {
    let machine = machine_of(Release::Xen4_17);
    let error = Xen::probe(machine.hypervisor_of(DomId(1))).unwrap_err();
    assert_eq!(error, xen::ProbeError::NotPrivileged(4, 17, Errno::EPERM));
}

#[test]
fn a_fresh_domain_is_paused_once_and_empty_on_every_release() {
    for release in Release::ALL {
        for kind in [DomainKind::Pv, DomainKind::Pvh] {
            let mut xen = xen_on(&machine_of(release));
            let domid = xen.create_domain(&wanted(kind)).unwrap();
            let info = info(&mut xen, domid);
            assert_eq!((info.domid, info.kind(), info.handle), (domid, kind, Uuid([7; 16])));
            assert_eq!((info.pages, info.pages_max, info.vcpu_id_max), (0, 0, None));
            assert!(info.flags.paused() && !info.flags.running() && !info.flags.blocked());
            assert_eq!(info.flags.shutdown(), None);
            assert_eq!(xen.unpause_domain(domid), Ok(()));
            assert_eq!(xen.unpause_domain(domid), Err(Errno::EINVAL));
        }
    }
}

#[test]
fn the_list_is_ascending_and_a_miss_is_none_on_every_release() {
    for release in Release::ALL {
        let mut xen = xen_on(&machine_of(release));
        let domids: Vec<DomId> = (0..5).map(|_| create(&mut xen, DomainKind::Pv)).collect();
        xen.destroy_domain(domids[2]).unwrap();
        let listed: Vec<DomId> = xen.domains().unwrap().iter().map(|info| info.domid).collect();
        assert_eq!(listed, [DomId(0), domids[0], domids[1], domids[3], domids[4]]);
        assert_eq!(xen.domain(domids[2]), Ok(None));
    }
}

#[test]
fn identifiers_go_round_and_are_not_reused_at_once() {
    let machine = machine_of(Release::Xen4_22);
    let mut xen = xen_on(&machine);
    let first = create(&mut xen, DomainKind::Pv);
    xen.destroy_domain(first).unwrap();
    let_time_pass(&machine, &mut xen);
    assert_eq!(create(&mut xen, DomainKind::Pv), DomId(first.0 + 1));
}

#[test]
fn a_pause_count_is_bounded_at_both_ends() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pv);
    for _ in 1..255 {
        xen.pause_domain(domid).unwrap();
    }
    assert_eq!(xen.pause_domain(domid), Err(Errno::EOVERFLOW));
    assert_eq!(xen.pause_domain(DomId::DOM0), Err(Errno::EINVAL));
    assert_eq!(xen.pause_domain(DomId(999)), Err(Errno::ESRCH));
}

#[test]
fn vcpus_come_in_the_number_that_creation_was_told() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pv);
    assert_eq!(xen.set_vcpus_max(domid, 1), Err(Errno::EINVAL));
    assert_eq!(xen.set_vcpus_max(domid, 2), Ok(()));
    let info = info(&mut xen, domid);
    assert_eq!((info.vcpu_id_max, info.vcpus_online), (Some(1), 0));
    assert!(!xen.vcpu_info(domid, 1).unwrap().online);
    assert_eq!(xen.vcpu_info(domid, 2), Err(Errno::EINVAL));
}

#[test]
fn population_stops_at_the_limit_and_says_how_far_it_came() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pv);
    xen.set_memory_max(domid, 4 * 1024).unwrap();
    let mfns = xen.populate(domid, 9, &[0, 512, 1024]).unwrap();
    assert_eq!(mfns.len(), 2);
    assert!(mfns.iter().all(|mfn| mfn % 512 == 0) && mfns[0] != mfns[1]);
    assert_eq!(info(&mut xen, domid).pages, 1024);
    assert_eq!(xen.populate(domid, 0, &[4096]), Ok(vec![]));
}

#[test]
fn a_fragmented_host_gives_small_extents_only() {
    let config = MachineConfig {
        pages: 1 << 14,
        dom0_pages: 1 << 12,
        order_max: 4,
        ..MachineConfig::default()
    };
    let machine = Machine::new(SimXen::new(config, Faults::default(), 1));
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pv);
    assert_eq!(xen.populate(domid, 9, &[0]), Ok(vec![]));
    assert_eq!(xen.populate(domid, 4, &[0, 16]).map(|mfns| mfns.len()), Ok(2));
}

#[test]
fn a_claim_is_kept_from_others_and_used_up_by_its_owner() {
    let machine = machine_of(Release::Xen4_17);
    let mut xen = xen_on(&machine);
    let (a, b) = (create(&mut xen, DomainKind::Pv), create(&mut xen, DomainKind::Pv));
    let free = machine.get().pages_free();
    for domid in [a, b] {
        xen.set_memory_max(domid, free * 4).unwrap();
    }
    assert_eq!(xen.claim_pages(a, free + 1), Err(Errno::EINVAL));
    xen.set_memory_max(a, free * 8).unwrap();
    assert_eq!(xen.claim_pages(a, free + 1), Err(Errno::ENOMEM));
    xen.claim_pages(a, free).unwrap();
    assert_eq!(xen.populate(b, 0, &[0]), Ok(vec![]));
    assert_eq!(xen.populate(a, 0, &[0]).map(|mfns| mfns.len()), Ok(1));
    assert_eq!(info(&mut xen, a).pages_outstanding, free - 1);
    xen.claim_pages(a, 0).unwrap();
    assert_eq!(xen.populate(b, 0, &[0]).map(|mfns| mfns.len()), Ok(1));
}

#[test]
fn a_small_paging_pool_makes_population_come_back_short() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let (pv, pvh) = (create(&mut xen, DomainKind::Pv), create(&mut xen, DomainKind::Pvh));
    assert_eq!(xen.set_paging_pool(pv, 1 << 20), Err(Errno::EOPNOTSUPP));
    assert_eq!(xen.set_paging_pool(pvh, 4095), Err(Errno::EINVAL));
    xen.set_paging_pool(pvh, 4 * 4096).unwrap();
    assert_eq!(xen.populate(pvh, 0, &[0, 1, 512]), Ok(vec![0, 1]));
    xen.set_paging_pool(pvh, 5 * 4096).unwrap();
    assert_eq!(xen.populate(pvh, 0, &[512]), Ok(vec![512]));
}

#[test]
fn foreign_memory_is_written_and_read_across_frames() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pvh);
    xen.populate(domid, 0, &[5, 9]).unwrap();
    let bytes: Vec<u8> = (0..200_u8).collect();
    xen.write_foreign(domid, &[9, 5], 4000, &bytes).unwrap();
    let mut back = [0; 200];
    xen.read_foreign(domid, &[9, 5], 4000, &mut back).unwrap();
    assert_eq!(back[..], bytes[..]);
    let mut second = [0; 104];
    xen.read_foreign(domid, &[5], 0, &mut second).unwrap();
    assert_eq!(second[..], bytes[96..]);
    assert_eq!(xen.write_foreign(domid, &[6], 0, &[1]).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(xen.read_foreign(DomId(99), &[5], 0, &mut back).unwrap_err().errno, Errno::ESRCH);
}

#[test]
fn a_pv_domains_frames_cannot_be_reached_under_another_domains_name() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let (a, b) = (create(&mut xen, DomainKind::Pv), create(&mut xen, DomainKind::Pv));
    let mfn = xen.populate(a, 0, &[0]).unwrap()[0];
    assert!(xen.write_foreign(a, &[mfn], 0, &[1]).is_ok());
    assert_eq!(xen.write_foreign(b, &[mfn], 0, &[1]).unwrap_err().errno, Errno::EINVAL);
}

/// Four tables over one data page, which is mapped with these flags.
fn tables(xen: &mut Xen<SimHypervisor>, domid: DomId, data: u64, flags: u64) -> [u64; 5] {
    let frames = xen.populate(domid, 0, &[0, 1, 2, 3, 4]).unwrap();
    for &frame in &frames {
        xen.write_foreign(domid, &[frame], 0, &[0; 4096]).unwrap();
    }
    let mut entry = |table: u64, slot: usize, target: u64, flags: u64| {
        let word = (target << 12 | flags).to_le_bytes();
        xen.write_foreign(domid, &[table], slot * 8, &word).unwrap();
    };
    entry(frames[0], 0, frames[1], 7);
    entry(frames[1], 0, frames[2], 7);
    entry(frames[2], 0, frames[3], 7);
    let target = if data == u64::MAX { frames[4] } else { data };
    entry(frames[3], 0, target, flags);
    // A second mapping of the last table itself.
    entry(frames[3], 1, frames[3], 1);
    frames.try_into().unwrap()
}

#[test]
fn page_tables_are_pinned_if_they_hold_and_then_cannot_be_written() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pv);
    let frames = tables(&mut xen, domid, u64::MAX, 7);
    xen.pin_l4(domid, Mfn(frames[0])).unwrap();
    assert_eq!(xen.write_foreign(domid, &[frames[3]], 0, &[0]).unwrap_err().errno, Errno::EINVAL);
    assert!(xen.write_foreign(domid, &[frames[4]], 0, &[0]).is_ok());
    assert_eq!(xen.init_hypercall_page(domid, frames[3]), Err(Errno::EPERM));
    assert_eq!(xen.init_hypercall_page(domid, frames[4]), Ok(()));
}

#[test]
fn page_tables_that_do_not_hold_are_refused() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let other = create(&mut xen, DomainKind::Pv);
    let foreign = xen.populate(other, 0, &[0]).unwrap()[0];
    // A table mapped writable, somebody else's frame, a frame that does not exist.
    let domid = create(&mut xen, DomainKind::Pv);
    let frames = tables(&mut xen, domid, foreign, 1);
    assert_eq!(xen.pin_l4(domid, Mfn(frames[0])), Err(Errno::EINVAL));
    let domid = create(&mut xen, DomainKind::Pv);
    let frames = tables(&mut xen, domid, 0x99_9999, 1);
    assert_eq!(xen.pin_l4(domid, Mfn(frames[0])), Err(Errno::EINVAL));
    let domid = create(&mut xen, DomainKind::Pv);
    let frames = tables(&mut xen, domid, u64::MAX, 3);
    let writable = (frames[2] << 12 | 3).to_le_bytes();
    xen.write_foreign(domid, &[frames[3]], 16, &writable).unwrap();
    assert_eq!(xen.pin_l4(domid, Mfn(frames[0])), Err(Errno::EINVAL));
    // The level is wrong.
    assert_eq!(xen.pin_l4(domid, Mfn(frames[4])), Ok(()));
    assert_eq!(xen.pin_l4(domid, Mfn(frames[1])), Err(Errno::EINVAL));
}

#[test]
fn parameters_are_a_translated_domains_and_some_are_set_once() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let (pv, pvh) = (create(&mut xen, DomainKind::Pv), create(&mut xen, DomainKind::Pvh));
    assert_eq!(xen.set_hvm_param(pv, HvmParam::StorePfn, 1), Err(Errno::EINVAL));
    assert_eq!(xen.set_hvm_param(pvh, HvmParam::StorePfn, 1), Ok(()));
    assert_eq!(xen.set_hvm_param(pvh, HvmParam::StorePfn, 2), Ok(()));
    assert_eq!(xen.hvm_param(pvh, HvmParam::StorePfn), Ok(2));
    assert_eq!(xen.set_hvm_param(pvh, HvmParam::IoreqPfn, 1), Ok(()));
    assert_eq!(xen.set_hvm_param(pvh, HvmParam::IoreqPfn, 1), Ok(()));
    assert_eq!(xen.set_hvm_param(pvh, HvmParam::IoreqPfn, 2), Err(Errno::EEXIST));
    assert_eq!(xen.set_hvm_param(pvh, HvmParam::PaeEnabled, 1), Err(Errno::EINVAL));
}

#[test]
fn a_down_vcpu_has_no_cpu_record_and_loading_one_brings_it_up() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pvh);
    xen.set_vcpus_max(domid, 2).unwrap();
    let codes = |records: &[u8]| {
        let (mut at, mut codes) = (0, vec![]);
        while at < records.len() {
            let bytes = u32::from_le_bytes(records[at + 4..at + 8].try_into().unwrap());
            codes.push(u16::from_le_bytes([records[at], records[at + 1]]));
            at += 8 + usize::try_from(bytes).unwrap();
        }
        codes
    };
    let records = xen.hvm_context(domid).unwrap();
    assert_eq!(codes(&records), [1, 14, 14, 0]);
    let mut load = records[..32].to_vec();
    load.extend_from_slice(&[2, 0, 0, 0, 0x08, 0x04, 0, 0]);
    let mut cpu = vec![0; 1032];
    cpu[656] = 0x11;
    load.extend_from_slice(&cpu);
    assert_eq!(xen.set_hvm_context(domid, &load), Err(Errno::ENODATA), "no end record");
    load.extend_from_slice(&[0; 8]);
    assert_eq!(xen.set_hvm_context(domid, &load), Ok(()));
    assert_eq!(info(&mut xen, domid).vcpus_online, 1);
    assert_eq!(codes(&xen.hvm_context(domid).unwrap()), [1, 2, 14, 14, 0]);
    load[32 + 8 + 656] = 1;
    assert_eq!(xen.set_hvm_context(domid, &load), Err(Errno::EINVAL), "cr0 without ET");
}

#[test]
fn the_cpu_policy_is_fixed_by_the_first_run() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pvh);
    let mut policy = xen.cpu_policy(domid).unwrap();
    policy.leaves.retain(|leaf| leaf[0] == 1);
    policy.leaves[0][3] ^= 1;
    xen.set_cpu_policy(domid, &policy).unwrap();
    assert!(xen.cpu_policy(domid).unwrap().leaves.contains(&policy.leaves[0]));
    xen.unpause_domain(domid).unwrap();
    assert_eq!(xen.set_cpu_policy(domid, &policy), Err(Errno::EEXIST));
}

#[test]
fn the_first_shutdown_reason_stays_and_resume_clears_it() {
    let mut xen = xen_on(&machine_of(Release::Xen4_17));
    let domid = create(&mut xen, DomainKind::Pv);
    xen.remote_shutdown(domid, ShutdownReason::Reboot).unwrap();
    xen.remote_shutdown(domid, ShutdownReason::Crash).unwrap();
    assert_eq!(info(&mut xen, domid).flags.shutdown(), Some(ShutdownReason::Reboot));
    xen.resume_domain(domid).unwrap();
    assert_eq!(info(&mut xen, domid).flags.shutdown(), None);
    let error = xen.remote_shutdown(DomId(99), ShutdownReason::Reboot);
    assert_eq!(error, Err(Errno::ESRCH));
}

#[test]
fn destroying_gives_all_back() {
    let machine = machine_of(Release::Xen4_21);
    let mut xen = xen_on(&machine);
    let free = machine.get().pages_free();
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        let domid = create(&mut xen, kind);
        xen.populate(domid, 9, &[0, 512]).unwrap();
        xen.seed_grant(domid, GrantRef::XENSTORE, DomId::DOM0, 3).unwrap();
        xen.alloc_unbound(EvtchnPeer { owner: domid, remote: DomId::DOM0 }).unwrap();
        xen.destroy_domain(domid).unwrap();
        assert_eq!(xen.domain(domid), Ok(None));
        assert_eq!(xen.destroy_domain(domid), Err(Errno::ESRCH));
    }
    assert_eq!(machine.get().pages_free(), free);
    assert_eq!(machine.get().pages_materialised(), 1, "dom0's shared info");
    assert_eq!(xen.destroy_domain(DomId::DOM0), Err(Errno::EINVAL));
}

#[test]
fn a_planned_fault_strikes_the_call_it_names_before_it_has_an_effect() {
    let machine = machine_of(Release::Xen4_17);
    let mut xen = xen_on(&machine);
    let mut faults = Faults::default();
    faults.fail(Calls::Named("createdomain"), 2, Errno::ENOMEM);
    faults.fail(Calls::Named("map_foreign"), 1, Errno::EFAULT);
    machine.get_mut().set_faults(faults);
    let domid = create(&mut xen, DomainKind::Pvh);
    assert_eq!(xen.create_domain(&wanted(DomainKind::Pv)), Err(Errno::ENOMEM));
    assert_eq!(machine.get().domains().count(), 2);
    xen.populate(domid, 0, &[0]).unwrap();
    assert_eq!(xen.write_foreign(domid, &[0], 0, &[1]).unwrap_err().errno, Errno::EFAULT);
    assert!(xen.write_foreign(domid, &[0], 0, &[1]).is_ok());
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let run = |seed| {
        let machine = Machine::new(SimXen::new(MachineConfig::default(), Faults::default(), seed));
        let mut xen = xen_on(&machine);
        for _ in 0..20 {
            let domid = create(&mut xen, DomainKind::Pv);
            xen.populate(domid, 9, &[0, 512]).unwrap();
            xen.destroy_domain(domid).unwrap();
        }
        let xen = machine.get();
        (xen.trace().digest(), xen.now())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!(run(1).1 > Time(0));
}

#[test]
fn a_dead_domain_with_a_mapped_page_is_listed_as_dying() {
    let machine = machine_of(Release::Xen4_17);
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pvh);
    xen.populate(domid, 0, &[0, 1]).unwrap();
    let page = machine.get_mut().map_foreign(DomId::DOM0, domid, 1).unwrap();
    xen.destroy_domain(domid).unwrap();
    let zombie = info(&mut xen, domid);
    assert!(zombie.flags.dying());
    assert_eq!(zombie.pages, 1);
    assert_eq!(machine.get().domain(domid).unwrap().dying, Dying::Dead);
    machine.get_mut().unmap(page);
    assert_eq!(xen.domain(domid), Ok(None));
}
