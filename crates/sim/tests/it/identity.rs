//! Domids are given out again; what was meant is told from what is there.

use sim::{Faults, Machine, MachineConfig, Pins, Release, SimXen};
use xen::{CreateDomain, DomId, DomainKind, Life, Presence, Uuid, Xen};

const OURS: Uuid = Uuid([1; 16]);
const THEIRS: Uuid = Uuid([2; 16]);

fn machine_of(release: Release) -> Machine {
    let config =
        MachineConfig { release, pages: 1 << 16, dom0_pages: 1 << 12, ..MachineConfig::default() };
    Machine::new(SimXen::new(config, Faults::default(), 7))
}

fn wanted() -> CreateDomain {
    CreateDomain {
        kind: DomainKind::Pv,
        handle: OURS,
        vcpus_max: 1,
        evtchn_port_max: 1023,
        grant_frames_max: None,
        maptrack_frames_max: None,
    }
}

#[test]
fn a_domain_is_told_from_one_that_took_its_number_on_every_release() {
    for release in Release::ALL {
        let machine = machine_of(release);
        let mut xen = Xen::probe(machine.hypervisor()).unwrap();
        let domid = xen.create_domain(&wanted()).unwrap();
        let before = xen.counters().total();
        let domain = xen.identify(domid, OURS, 1).unwrap();
        let is_new = release >= Release::Xen4_21;
        assert_eq!(matches!(domain.life, Life::Unique(_)), is_new, "{release:?}");
        assert_eq!(xen.counters().total() - before, u64::from(is_new));
        assert_eq!(xen.presence(domain), Ok(Presence::Here));
        assert_eq!(xen.counters().total() - before, 1 + u64::from(is_new));

        // A neighbour above it, which 4.17 tells about when it is asked for one that is missing.
        machine.get_mut().take_number(DomId(domid.0 + 1), OURS).unwrap();
        xen.destroy_domain(domid).unwrap();
        assert_eq!(xen.presence(domain), Ok(Presence::Gone), "{release:?}");

        machine.get_mut().pass_time();
        machine.get_mut().take_number(domid, THEIRS).unwrap();
        assert_eq!(xen.presence(domain), Ok(Presence::Gone), "{release:?}");
        let theirs = xen.identify(domid, THEIRS, 2).unwrap();
        assert_ne!(domain, theirs);
        assert_eq!(xen.presence(theirs), Ok(Presence::Here));
    }
}

#[test]
fn xen_4_21_tells_lives_of_one_number_and_one_handle_apart() {
    let machine = machine_of(Release::Xen4_21);
    let mut xen = Xen::probe(machine.hypervisor()).unwrap();
    let domid = xen.create_domain(&wanted()).unwrap();
    let first = xen.identify(domid, OURS, 1).unwrap();
    xen.destroy_domain(domid).unwrap();
    machine.get_mut().pass_time();
    machine.get_mut().take_number(domid, OURS).unwrap();
    assert_eq!(xen.presence(first), Ok(Presence::Gone));
    let second = xen.identify(domid, OURS, 2).unwrap();
    assert_ne!(first.life, second.life);
}

#[test]
fn nothing_meets_a_domain_it_was_not_meant_for() {
    let mut total = sim::identity::Tally::default();
    for seed in 0..40 {
        match sim::identity::run(seed, 10) {
            Ok(tally) => total.add(&tally),
            Err(broken) => panic!("{broken}"),
        }
    }
    // The runs must have had something in them.
    let deeds = total.deeds;
    assert!(deeds.kills > 40 && deeds.taken > 40 && deeds.refused > 20, "{total:?}");
    assert!(total.restarts > 3, "{total:?}");
    assert!(total.preemptions > 40 && total.faults > 5 && total.answers > 100, "{total:?}");
}

#[test]
fn a_run_against_a_rival_follows_from_its_seed() {
    let run = |seed| sim::identity::run(seed, 8).unwrap();
    for seed in 0..6 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(0).digest, run(6).digest);
}

#[test]
fn without_pinned_numbers_something_is_met_by_mistake() {
    let met = (0..40).find_map(|seed| sim::identity::run_on(seed, 10, Pins::Dropped).err());
    let what = met.expect("forty runs, and nobody was mistaken for another").what;
    assert!(what.contains("met domain") || what.contains("of the rival"), "{what}");
}
