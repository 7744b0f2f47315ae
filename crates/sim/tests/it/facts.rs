//! Reported facts of domains are correct, also for those of other toolstacks.

use sim::Release;
use toolstack::{Reply, Request};
use xen::{AffinityChange, BitSet, CreateDomain, CreateOptions, DomId, DomainKind, Uuid, Xen};

use crate::support::{Lab, unikernel};

fn cpus(numbers: &[u32]) -> BitSet {
    let mut set = BitSet::default();
    numbers.iter().for_each(|number| set.insert(*number));
    set
}

/// All domains that a list has now.
fn identities(lab: &mut Lab) -> Vec<(DomId, Uuid)> {
    let Reply::Domains(listing) = lab.ask(Request::List) else { panic!("no list") };
    listing.rows.iter().map(|row| (row.info.domid, row.info.handle)).collect()
}

#[test]
fn vcpus_of_all_domains_are_reported_with_their_affinity() {
    let mut lab = Lab::of_release(Release::Xen4_17);
    let ours = lab.create(&(unikernel("ours", "pv", "idle") + "vcpus = 2\n")).unwrap();
    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    let theirs = xen
        .create_domain(&CreateDomain {
            kind: DomainKind::Pv,
            handle: Uuid([9; 16]),
            vcpus_max: 3,
            evtchn_port_max: 1023,
            grant_frames_max: None,
            maptrack_frames_max: None,
            options: CreateOptions::default(),
        })
        .unwrap();
    xen.set_vcpus_max(theirs, 3).unwrap();
    let change =
        AffinityChange { hard: Some(cpus(&[1])), soft: Some(cpus(&[0, 1])), is_forced: false };
    xen.set_vcpu_affinity(ours, 1, &change).unwrap();
    let mut of = identities(&mut lab);
    assert_eq!(of.iter().map(|it| it.0).collect::<Vec<_>>(), [DomId::DOM0, ours, theirs]);
    // One that is gone, and a number that is another's by now.
    of.push((DomId(77), Uuid([7; 16])));
    of.push((ours, Uuid([7; 16])));
    let Reply::Vcpus(readings) = lab.ask(Request::Vcpus { of }) else { panic!("no vCPUs") };
    let counts: Vec<_> = readings.domains.iter().map(|(id, vcpus)| (*id, vcpus.len())).collect();
    assert_eq!(counts[1..], [(ours, 2), (theirs, 3)]);
    assert_eq!(readings.domains[&ours][1].affinity.hard, cpus(&[1]));
    assert_eq!(readings.domains[&ours][1].affinity.soft, cpus(&[0, 1]));
    assert_ne!(readings.domains[&ours][0].affinity.hard, cpus(&[1]));
    assert!(readings.cpus > 1);
}

#[test]
fn the_start_time_of_a_domain_is_recorded_and_reported() {
    let mut lab = Lab::seeded(52);
    let domid = lab.create(&unikernel("one", "pv", "idle")).unwrap();
    let of = identities(&mut lab);
    let Reply::StartTimes(times) = lab.ask(Request::StartTimes { of }) else { panic!("no times") };
    // Nobody notes when domain 0 was started.
    assert_eq!(times.into_iter().collect::<Vec<_>>(), [(domid, 1_700_000_000)]);
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn an_interface_has_its_configured_name_exclusively() {
    let mut lab = Lab::seeded(53);
    let text =
        unikernel("one", "pv", "idle") + "vif = ['bridge=xenbr0,vifname=lan0,ip=10.0.0.9']\n";
    let domid = lab.create(&text).unwrap();
    lab.settle();
    assert!(lab.host.os().get().bridges()["xenbr0"].contains("lan0"));
    assert!(!lab.host.os().get().links().contains(&format!("vif{domid}.0")));
    let other = text.replace("'one'", "'two'");
    let refused = lab.create(&other).unwrap_err();
    assert!(refused.contains("on bridge xenbr0"), "{refused}");
    lab.settle();
    assert!(lab.host.os().get().bridges()["xenbr0"].contains("lan0"));
    lab.destroy("one");
    lab.assert_nothing_left();
}
