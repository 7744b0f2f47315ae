//! Shutdown requests: their targets, and guests without PV drivers.

use sim::Daemon;
use toolstack::{Fallback, Reply, ReplyWhen, Request, ShutdownRequest, Targets, Told};
use xen::{DomId, ShutdownReason};

use crate::support::{Lab, linux, unikernel};

fn each(targets: Targets, fallback: Fallback, reply: ReplyWhen) -> Request {
    Request::ShutdownEach { targets, how: ShutdownRequest::Poweroff, fallback, reply }
}

fn told(lab: &mut Lab) -> Vec<Told> {
    std::mem::take(&mut lab.daemon.told_of_each).into_iter().map(|(_, told)| told).collect()
}

fn runs(lab: &Lab, domid: DomId) -> bool {
    lab.host.machine().get().domain(domid).is_some_and(sim::Domain::is_running)
}

#[test]
fn all_are_shut_down_and_each_end_is_reported() {
    let mut lab = Lab::seeded(41);
    let a = lab.create(&linux("a", "pv", "normal")).unwrap();
    let b = lab.create(&unikernel("b", "pvh", "normal")).unwrap();
    lab.settle();
    let all = each(Targets::All, Fallback::Refuse, ReplyWhen::Gone);
    assert!(matches!(lab.ask(all), Reply::Ok));
    let told = told(&mut lab);
    let how = ShutdownRequest::Poweroff;
    for domid in [a, b] {
        assert!(told.contains(&Told::Asked { domid, how }), "{told:?}");
        let reason = Some(ShutdownReason::Poweroff);
        assert!(told.contains(&Told::Gone { domid, reason }), "{told:?}");
    }
    let counts: Vec<_> = told
        .iter()
        .filter_map(|it| match it {
            Told::Waiting { done, total, .. } => Some((*done, *total)),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [(0, 2), (1, 2)]);
    lab.assert_nothing_left();
}

#[test]
fn no_vm_is_shut_down_if_one_of_the_named_does_not_exist() {
    let mut lab = Lab::seeded(42);
    let a = lab.create(&unikernel("a", "pv", "normal")).unwrap();
    let these = Targets::These(vec!["a".to_owned(), "nobody".to_owned()]);
    match lab.ask(each(these, Fallback::Refuse, ReplyWhen::Asked)) {
        Reply::Failed(message) => assert!(message.contains("nobody: no such domain"), "{message}"),
        other => panic!("{other:?}"),
    }
    lab.settle();
    assert!(runs(&lab, a) && told(&mut lab).is_empty());
    lab.destroy("a");
    lab.assert_nothing_left();
}

/// Between the moment in which a VM is resolved and that in which its guest is asked, its domain dies and another VM
/// has its number's nodes.
#[test]
fn a_domain_that_reuses_the_domid_of_the_target_is_not_shut_down() {
    for targets in
        [Targets::All, Targets::These(vec!["a".to_owned()]), Targets::These(vec!["1".to_owned()])]
    {
        let mut lab = Lab::seeded(43);
        let a = lab.create(&unikernel("a", "pv", "normal")).unwrap();
        assert_eq!(a, DomId(1));
        lab.settle();
        let what = format!("{targets:?}");
        // The daemon has decided, and its work waits for a worker.
        let asked = lab.daemon.request(each(targets, Fallback::Refuse, ReplyWhen::Asked)).unwrap();
        let mut xen = xen::Xen::probe(lab.host.hypervisor()).unwrap();
        xen.destroy_domain(a).unwrap();
        let mut store = lab.host.connect();
        xenstore::client::Nodes::rm(&mut store, "/local/domain/1").unwrap();
        for (node, value) in [("vm", "/vm/theirs"), ("control/shutdown", "")] {
            let path = format!("/local/domain/1/{node}");
            xenstore::client::Nodes::write(&mut store, &path, value.as_bytes()).unwrap();
        }
        match lab.wait(asked) {
            Reply::Failed(message) => assert!(message.contains("domain 1 is"), "{what}: {message}"),
            other => panic!("{what}: {other:?}"),
        }
        lab.settle();
        let node = xenstore::client::Nodes::read(&mut store, "/local/domain/1/control/shutdown");
        assert_eq!(node.unwrap(), b"", "{what}: another's guest was asked");
    }
}

const HVM: &str = "name = 'hvm'\ntype = 'hvm'\nmemory = 64\ndisk = ['/disk.raw,raw,hda,w']\n";

fn hvm_lab(behaviour: &str) -> (Lab, DomId) {
    let mut lab = Lab::seeded(44);
    let words = format!("sim.kind=linux sim.behaviour={behaviour}");
    sim::add_hvm_files(lab.host.os(), &words);
    lab.before = lab.host.snapshot().unwrap();
    let domid = lab.create(HVM).unwrap();
    lab.settle();
    (lab, domid)
}

#[test]
fn an_hvm_guest_without_pv_drivers_is_asked_by_its_power_button_or_not_at_all() {
    let (mut lab, domid) = hvm_lab("without-drivers");
    for reply in [ReplyWhen::Asked, ReplyWhen::Gone] {
        match lab.ask(each(Targets::All, Fallback::Refuse, reply)) {
            Reply::Failed(message) => {
                assert_eq!(
                    message,
                    "hvm: has no PV drivers, so its guest cannot be asked to shut down; \
                     -F sends it the ACPI power button event instead"
                );
            }
            other => panic!("{other:?}"),
        }
        lab.settle();
        assert!(runs(&lab, domid));
    }
    let how = ShutdownRequest::Reboot;
    let targets = Targets::These(vec!["hvm".to_owned()]);
    let (fallback, reply) = (Fallback::Acpi, ReplyWhen::Asked);
    match lab.ask(Request::ShutdownEach { targets, how, fallback, reply }) {
        Reply::Failed(message) => {
            assert!(message.ends_with("Xen has no ACPI reset event for it"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    told(&mut lab);
    assert!(matches!(lab.ask(each(Targets::All, Fallback::Acpi, ReplyWhen::Gone)), Reply::Ok));
    let how = ShutdownRequest::Poweroff;
    assert!(told(&mut lab).contains(&Told::SentAcpi { domid, how }));
    assert!(!lab.host.console(domid).contains("going down"));
    lab.assert_nothing_left();
}

#[test]
fn an_hvm_guest_with_pv_drivers_is_asked_through_the_store() {
    let (mut lab, domid) = hvm_lab("normal");
    lab.daemon = Daemon::start(&lab.host).unwrap();
    assert!(matches!(lab.ask(each(Targets::All, Fallback::Acpi, ReplyWhen::Gone)), Reply::Ok));
    let told = told(&mut lab);
    let how = ShutdownRequest::Poweroff;
    assert!(!told.contains(&Told::SentAcpi { domid, how }), "{told:?}");
    assert!(lab.host.console(domid).contains("going down: poweroff"));
    lab.assert_nothing_left();
}
