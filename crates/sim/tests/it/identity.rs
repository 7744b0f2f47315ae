//! Domids are reused; the intended domain is distinguished from the current one.

use sim::{Faults, Machine, MachineConfig, Release, SimXen};
use xen::{CreateDomain, CreateOptions, DomId, DomainKind, Life, Presence, Uuid, Xen};

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
        options: CreateOptions::default(),
    }
}

#[test]
fn a_domain_is_distinguished_from_one_that_reuses_its_domid_on_every_release() {
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
fn xen_4_21_distinguishes_lives_with_one_domid_and_one_handle() {
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
