//! Preempted hypercalls: others act meanwhile, and the caller does not notice.

use std::cell::RefCell;
use std::rc::Rc;

use sim::{
    Calls, Dying, Faults, Machine, MachineConfig, Preemption, Release, SimHypervisor, SimXen,
};
use xen::{
    Batch, CreateDomain, CreateOptions, DirtyRead, DomId, DomainKind, Errno, EvtchnPeer, HvmParam,
    Hypervisor as _, Mfn, Op, ShutdownReason, Uuid, Xen,
};

const OURS: Uuid = Uuid([1; 16]);
const THEIRS: Uuid = Uuid([2; 16]);

fn machine_with(release: Release, plan: impl FnOnce(&mut Faults)) -> Machine {
    let config =
        MachineConfig { release, pages: 1 << 16, dom0_pages: 1 << 12, ..MachineConfig::default() };
    let machine = Machine::new(SimXen::new(config, Faults::default(), 3));
    plan(machine.get_mut().faults_mut());
    machine
}

fn preempting() -> Machine {
    machine_with(Release::Xen4_17, |faults| faults.preemption = Preemption::Everywhere)
}

fn xen_on(machine: &Machine) -> Xen<SimHypervisor> {
    Xen::probe(machine.hypervisor()).unwrap()
}

/// A domain with as many extents of one page.
fn create(xen: &mut Xen<SimHypervisor>, kind: DomainKind, pages: u64) -> DomId {
    let domid = xen
        .create_domain(&CreateDomain {
            kind,
            handle: OURS,
            vcpus_max: 1,
            evtchn_port_max: 1023,
            grant_frames_max: None,
            maptrack_frames_max: None,
            options: CreateOptions::default(),
        })
        .unwrap();
    xen.set_vcpus_max(domid, 1).unwrap();
    xen.set_memory_max(domid, pages * 4).unwrap();
    let pfns: Vec<u64> = (0..pages).collect();
    assert_eq!(xen.populate(domid, 0, &pfns).unwrap().len(), pfns.len());
    domid
}

/// Lets something happen at each point where a call is preempted.
fn meanwhile(machine: &Machine, mut doing: impl FnMut(&Machine) + 'static) {
    let here = machine.clone();
    machine.set_meanwhile(Some(Box::new(move || doing(&here))));
}

#[test]
fn a_preempted_destroy_shows_a_dying_domain_and_is_one_call_of_its_caller() {
    let machine = preempting();
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pvh, 8);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let notes = Rc::clone(&seen);
    meanwhile(&machine, move |machine| {
        let info = xen_on(machine).domain(domid).unwrap().unwrap();
        // Only a complete teardown is told of.
        assert!(!info.flags.dying());
        let xen = machine.get();
        let domain = xen.domain(domid).unwrap();
        assert_eq!(domain.dying, Dying::Dying);
        notes.borrow_mut().push(domain.pages);
    });
    let before = xen.counters().total();
    xen.destroy_domain(domid).unwrap();
    assert_eq!(xen.counters().total() - before, 1);
    let pages = seen.borrow();
    assert!(pages.len() > 6 && pages.is_sorted_by(|a, b| a >= b), "{pages:?}");
    assert_eq!((pages.first(), pages.last()), (Some(&8), Some(&0)));
    assert_eq!(xen.domain(domid), Ok(None));
}

#[test]
fn a_continued_destroy_reaches_the_current_owner_of_the_domid_unless_a_page_is_mapped() {
    for held in [false, true] {
        let machine = preempting();
        let mut xen = xen_on(&machine);
        let domid = create(&mut xen, DomainKind::Pv, 4);
        let frame = machine.get().domain(domid).unwrap().mfn_of_pfn(2).unwrap();
        let page = held.then(|| machine.get_mut().map_foreign(DomId::DOM0, domid, frame).unwrap());
        let taken = Rc::new(RefCell::new(None));
        let answer = Rc::clone(&taken);
        meanwhile(&machine, move |machine| {
            answer.borrow_mut().get_or_insert_with(|| {
                let mut xen = machine.get_mut();
                xen.destroy(domid);
                xen.take_number(domid, THEIRS)
            });
        });
        assert_eq!(xen.destroy_domain(domid), Ok(()));
        let answer = *taken.borrow();
        if let Some(page) = page {
            assert_eq!(answer, Some(Err(Errno::EEXIST)), "the number of a zombie is not given out");
            assert_eq!(xen.domain(domid).unwrap().unwrap().handle, OURS);
            machine.get_mut().unmap(page);
        } else {
            assert_eq!(answer, Some(Ok(())));
        }
        assert_eq!(xen.domain(domid), Ok(None), "theirs died of our destroy");
    }
}

#[test]
fn population_continues_and_reports_progress_if_the_domain_is_destroyed() {
    let machine = preempting();
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pv, 1);
    xen.set_memory_max(domid, 64).unwrap();
    let preemptions = machine.get().preemptions();
    let frames = xen.populate(domid, 0, &[4, 5, 6, 7]).unwrap();
    assert_eq!(machine.get().preemptions() - preemptions, 3);
    let pfns =
        frames.iter().map(|&mfn| machine.get().domain(domid).unwrap().mfn_of_pfn(4) == Some(mfn));
    assert_eq!(pfns.collect::<Vec<_>>(), [true, false, false, false]);

    let left = Rc::new(RefCell::new(2));
    meanwhile(&machine, move |machine| {
        *left.borrow_mut() -= 1;
        if *left.borrow() == 0 {
            machine.get_mut().destroy(domid);
        }
    });
    assert_eq!(xen.populate(domid, 0, &[8, 9, 10, 11]).unwrap().len(), 2);
    assert_eq!(
        xen.populate(DomId(999), 0, &[8]),
        Ok(vec![]),
        "nobody's memory cannot be told from none"
    );
}

#[test]
fn a_page_is_taken_or_placed_once_though_the_call_is_preempted() {
    let machine = preempting();
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pvh, 8);
    assert_eq!(xen.decrease_reservation(domid, 0, &[0, 1, 2]), Ok(3));
    assert_eq!(machine.get().domain(domid).unwrap().pages, 5);
    let moved = xen
        .add_all_to_physmap(domid, xen::PhysmapSpace::Gmfn, &[(3, 20), (4, 21), (9, 22)])
        .unwrap();
    assert_eq!(moved.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false]);
    assert!(machine.get().domain(domid).unwrap().mfn_of_pfn(21).is_some());
}

#[test]
fn a_pool_is_found_half_grown_in_the_middle() {
    let machine = preempting();
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pvh, 1);
    let sizes = Rc::new(RefCell::new(Vec::new()));
    let notes = Rc::clone(&sizes);
    meanwhile(&machine, move |machine| {
        notes.borrow_mut().push(machine.get().domain(domid).unwrap().paging_pool_bytes >> 12);
    });
    xen.set_paging_pool(domid, 512 << 12).unwrap();
    assert_eq!(*sizes.borrow(), [320, 384, 448]);
    assert_eq!(machine.get().domain(domid).unwrap().paging_pool_bytes, 512 << 12);
}

#[test]
fn during_a_read_of_dirty_pages_another_is_busy_and_the_domain_does_not_run() {
    let machine = preempting();
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pvh, 1200);
    xen.unpause_domain(domid).unwrap();
    xen.enable_log_dirty(domid).unwrap();
    let written = [3, 700, 1199];
    for pfn in written {
        assert!(machine.get_mut().guest_write(domid, pfn, 0, b"x"));
    }
    let busy = Rc::new(RefCell::new(Vec::new()));
    let answers = Rc::clone(&busy);
    meanwhile(&machine, move |machine| {
        let runs = machine.get().domain(domid).unwrap().is_running();
        let look = xen_on(machine).dirty(domid, 1200, DirtyRead::Peek).err();
        answers.borrow_mut().push((runs, look, xen_on(machine).disable_log_dirty(domid)));
    });
    let dirty = xen.dirty(domid, 5000, DirtyRead::Clean).unwrap();
    assert_eq!((dirty.pages, dirty.dirtied), (1200, 3));
    assert_eq!(dirty.frames().collect::<Vec<_>>(), written);
    assert_eq!(*busy.borrow(), [(false, Some(Errno::EBUSY), Err(Errno::EBUSY)); 2]);
    assert!(machine.get().domain(domid).unwrap().is_running());
    machine.set_meanwhile(None);
    let clean = xen.dirty(domid, 5000, DirtyRead::Peek).unwrap();
    assert_eq!(clean.frames().count(), 0);
}

#[test]
fn between_the_entries_of_a_multicall_others_act() {
    let machine = preempting();
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pv, 1);
    let mut batch = Batch::default();
    batch.pause_domain(domid);
    batch.domain(domid);
    batch.pause_domain(domid);
    let before = machine.get().preemptions();
    let answers = xen.issue(&batch).unwrap();
    assert!(answers.iter().all(|answer| answer.result.is_ok()));
    assert_eq!(machine.get().preemptions() - before, 2);
    assert_eq!(machine.get().domain(domid).unwrap().pause_count, 3);
    meanwhile(&machine, move |machine| machine.get_mut().destroy(domid));
    let answers = xen.issue(&batch).unwrap();
    let results: Vec<_> = answers.iter().map(|answer| answer.result).collect();
    assert_eq!(results, [Ok(0), Err(Errno::ESRCH), Err(Errno::ESRCH)]);
}

#[test]
fn a_call_can_fail_after_taking_effect() {
    let machine = machine_with(Release::Xen4_17, |_| {});
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pv, 1);
    machine.get_mut().faults_mut().fail_after(Calls::Named("pausedomain"), 1, Errno::EFAULT);
    assert_eq!(xen.pause_domain(domid), Err(Errno::EFAULT));
    assert_eq!(machine.get().domain(domid).unwrap().pause_count, 2);
    assert_eq!(xen.pause_domain(domid), Ok(()));
}

#[test]
fn a_destroy_is_repeated_for_as_long_as_xen_asks_for_it() {
    let machine = machine_with(Release::Xen4_17, |faults| {
        for _ in 0..3 {
            faults.fail(Calls::Named("destroydomain"), 1, Errno::EAGAIN);
        }
    });
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pv, 1);
    assert_eq!(xen.destroy_domain(domid), Ok(()));
    assert_eq!(xen.domain(domid), Ok(None));
}

#[test]
fn a_shutdown_waits_for_the_device_model_unless_it_is_a_crash() {
    let machine = machine_with(Release::Xen4_17, |faults| faults.shutdown_deferred_ns = 5_000_000);
    let mut xen = xen_on(&machine);
    let told =
        |xen: &mut Xen<SimHypervisor>, domid| xen.domain(domid).unwrap().unwrap().flags.shutdown();
    let [pvh, resumed, crashed] = [(); 3].map(|()| create(&mut xen, DomainKind::Pvh, 1));
    let pv = create(&mut xen, DomainKind::Pv, 1);
    for domid in [pvh, resumed, pv] {
        xen.remote_shutdown(domid, ShutdownReason::Reboot).unwrap();
    }
    assert_eq!(told(&mut xen, pvh), None);
    assert_eq!(told(&mut xen, pv), Some(ShutdownReason::Reboot));
    // The first reason stays, and what is resumed does not stop any more.
    xen.remote_shutdown(pvh, ShutdownReason::Crash).unwrap();
    assert_eq!(told(&mut xen, pvh), None);
    xen.resume_domain(resumed).unwrap();
    xen.remote_shutdown(crashed, ShutdownReason::Crash).unwrap();
    assert_eq!(told(&mut xen, crashed), Some(ShutdownReason::Crash));
    machine.get_mut().pass_time();
    assert_eq!(told(&mut xen, pvh), Some(ShutdownReason::Reboot));
    assert_eq!(told(&mut xen, resumed), None);
}

#[test]
fn linux_keeps_results_in_an_int_and_a_policy_hides_domains() {
    let config = MachineConfig { pages: 1 << 31, ..MachineConfig::default() };
    let machine = Machine::new(SimXen::new(config, Faults::default(), 1));
    // 2^31 frames and a few more are no number that an `int` has.
    let frame = xen_on(&machine).last_machine_frame();
    assert!(frame.is_err(), "{frame:?}");

    let machine = machine_with(Release::Xen4_22, |_| {});
    let mut xen = xen_on(&machine);
    let (hidden, seen) = (create(&mut xen, DomainKind::Pv, 1), create(&mut xen, DomainKind::Pv, 1));
    machine.get_mut().hide(hidden);
    let listed: Vec<DomId> = xen.domains().unwrap().iter().map(|info| info.domid).collect();
    assert_eq!(listed, [DomId::DOM0, seen]);
    assert_eq!(xen.domain(hidden), Err(Errno::EACCES));
}

#[test]
fn a_guest_sets_few_of_its_parameters() {
    let machine = machine_with(Release::Xen4_17, |_| {});
    let mut xen = xen_on(&machine);
    let domid = create(&mut xen, DomainKind::Pvh, 1);
    let port = xen.alloc_unbound(EvtchnPeer { owner: domid, remote: DomId::DOM0 }).unwrap();
    xen.set_hvm_param(domid, HvmParam::StoreEvtchn, port.0.into()).unwrap();
    let mut guest = machine.hypervisor_of(domid);
    let mut call = |cmd: u64, param: HvmParam| {
        let arena = guest.arena();
        arena[..2].copy_from_slice(&domid.0.to_le_bytes());
        arena[4..8].copy_from_slice(&(param as u32).to_le_bytes());
        let address = guest.arena_address();
        guest.hypercall(Op::Hvm, [cmd, address, 0, 0, 0])
    };
    let (set, get) = (0, 1);
    assert_eq!(call(get, HvmParam::StoreEvtchn), Ok(0));
    assert_eq!(call(set, HvmParam::StoreEvtchn), Ok(0));
    assert_eq!(call(set, HvmParam::StorePfn), Err(Errno::EPERM));
    assert_eq!(call(get, HvmParam::IdentPt), Err(Errno::EPERM));
    assert_eq!(
        xen.pin_l4(domid, Mfn(1)),
        Err(Errno::EINVAL),
        "a translated domain has no such tables"
    );
}

#[test]
fn the_same_calls_have_the_same_effect_preempted_or_not_and_the_same_seed_the_same_trace() {
    let run = |preemption: Preemption, seed: u64| {
        let config =
            MachineConfig { pages: 1 << 16, dom0_pages: 1 << 12, ..MachineConfig::default() };
        let machine = Machine::new(SimXen::new(config, Faults::default(), seed));
        machine.get_mut().faults_mut().preemption = preemption;
        let mut xen = xen_on(&machine);
        for _ in 0..5 {
            let domid = create(&mut xen, DomainKind::Pvh, 20);
            create(&mut xen, DomainKind::Pv, 10);
            xen.destroy_domain(domid).unwrap();
        }
        machine.get_mut().pass_time();
        let xen = machine.get();
        let domains: Vec<(DomId, u64)> = xen.domains().map(|it| (it.domid, it.pages)).collect();
        (domains, xen.pages_free(), xen.trace().digest())
    };
    let whole = run(Preemption::Never, 1);
    for preemption in [Preemption::Everywhere, Preemption::OneOf(3)] {
        let parts = run(preemption, 1);
        assert_eq!((&parts.0, parts.1), (&whole.0, whole.1));
        assert_ne!(parts.2, whole.2);
        assert_eq!(run(preemption, 1), parts);
        assert_ne!(run(preemption, 2).2, parts.2);
    }
}

#[test]
fn a_version_is_not_taken_from_a_call_that_failed_before_it_was_compared() {
    for (name, k) in [("getdomaininfo", 1), ("getdomaininfo", 4), ("sched_id", 1)] {
        let machine = machine_with(Release::Xen4_17, |faults| {
            faults.fail(Calls::Named(name), k, Errno::EFAULT);
        });
        let error = Xen::probe(machine.hypervisor()).unwrap_err();
        assert_eq!(error, xen::ProbeError::NotTold(4, 17, Errno::EFAULT));
        assert!(Xen::probe(machine.hypervisor()).is_ok());
    }
}
