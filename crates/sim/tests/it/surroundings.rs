//! Networks and the host as objects: what the host has, what VMs want of it, and who looks when.

use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{
    Classes, Device, NetworkObject, Object, ObjectClass, ObjectKey, Objects, Request, xlcfg,
};
use xen::Uuid;

use crate::support::{Follower, Lab, linux, objects};

const EVERY_NS: u64 = 5_000_000_000;

fn lab(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    lab.daemon.set_looks_every(EVERY_NS);
    lab
}

fn shown(it: &NetworkObject) -> String {
    let there = it.host.as_ref().map(|it| format!("{:?} {}", it.mtu, it.ports.join(",")));
    let there = there.as_deref().unwrap_or("not there").trim_end();
    format!("{}, {there}, {} of VMs", it.kind.as_str(), it.interfaces)
}

fn follower() -> Follower {
    Follower::new(ObjectClass::Network, |change| {
        let ObjectKey::Network(name) = &change.key else { panic!("{change:?}") };
        let text = change.object.as_deref().map(|it| match it {
            Object::Network(it) => shown(it),
            other => panic!("{other:?}"),
        });
        (name.to_string(), text)
    })
}

fn looks(lab: &Lab) -> u64 {
    let made = lab.daemon.totals.hypercalls.iter();
    made.filter(|(name, _)| name.contains("physinfo")).map(|(_, count)| *count).sum()
}

#[test]
fn networks_are_those_of_the_host_and_those_that_vms_want() {
    let mut lab = lab(1);
    let os = lab.host.os();
    os.add_card("eno1", None);
    os.add_port("eno1", "xenbr0");
    os.add_bridge("inside");
    os.add_switch("ovs0");
    let mut follower = follower();
    let expected = "inside: bridge, Some(1500), 0 of VMs\n\
         ovs0: openvswitch, None, 0 of VMs\n\
         xenbr0: bridge, Some(1500) eno1, 0 of VMs";
    assert_eq!(follower.read(&mut lab), expected);
    lab.create(&linux("web", "pv", "normal")).unwrap();
    let wanted = linux("other", "pv", "normal").replace(
        "['bridge=xenbr0']",
        "['bridge=nowhere','script=vif-nat','script=vif-route,gatewaydev=eno1,ip=10.0.0.7',\
         'script=vif-openvswitch,bridge=ovs0.10','script=vif-mine,bridge=inside','backend=net,bridge=inside']",
    );
    let config = xlcfg::parse(xlcfg::Source { file: "a", text: &wanted, overrides: &[] }).unwrap();
    let define = |config| Request::Define {
        config: Box::new(config),
        fresh_uuid: Uuid([9; 16]),
        autostart: None,
    };
    lab.ask(define(config));
    let expected = "inside: bridge, Some(1500), 0 of VMs\n\
         nat:host: nat, None, 1 of VMs\n\
         nowhere: bridge, not there, 1 of VMs\n\
         ovs0: openvswitch, None, 1 of VMs\n\
         routed:eno1: routed, Some(1500) eno1, 1 of VMs\n\
         xenbr0: bridge, Some(1500) eno1, 1 of VMs";
    assert_eq!(follower.read(&mut lab), expected);
    // What goes is told.
    lab.ask(Request::Undefine { target: "other".to_owned() });
    lab.host.os().remove_bridge("inside");
    lab.pass(EVERY_NS);
    let expected = "ovs0: openvswitch, None, 0 of VMs\nxenbr0: bridge, Some(1500) eno1, 1 of VMs";
    assert_eq!(follower.read(&mut lab), expected);
}

#[test]
fn an_interface_is_counted_from_when_it_comes_until_it_is_gone() {
    let mut lab = lab(2);
    lab.create(&linux("web", "pv", "normal")).unwrap();
    let mut follower = follower();
    follower.read(&mut lab);
    let vif = Device::Vif(xlcfg::parse_vif("bridge=xenbr0", 1).unwrap());
    let plug = Request::Plug { target: "web".to_owned(), device: Box::new(vif) };
    let device = DeviceRef { kind: DeviceKind::Vif, devid: 1 };
    let unplug = Request::Unplug { target: "web".to_owned(), device, how: Unplug::Clean };
    let destroy = Request::Destroy { target: "web".to_owned() };
    for (deed, interfaces) in [(plug, 2), (unplug, 1), (destroy, 0)] {
        let waiting = follower.begin_to_wait(&mut lab);
        lab.ask(deed);
        let told = objects(lab.wait(waiting));
        follower.take(&told);
        lab.settle();
        let expected = format!("xenbr0: bridge, Some(1500), {interfaces} of VMs");
        assert_eq!(follower.read(&mut lab), expected);
    }
}

#[test]
fn the_host_is_looked_at_only_for_those_who_follow_it_and_not_too_often() {
    let mut lab = lab(3);
    lab.create(&linux("web", "pv", "normal")).unwrap();
    lab.settle();
    let before = looks(&lab);
    lab.pass(60 * 1_000_000_000);
    assert_eq!(looks(&lab), before, "nobody follows");
    let vms = Classes::from([ObjectClass::Vm]);
    let first =
        objects(lab.ask(Request::Objects { cursor: None, classes: vms.clone(), waits: true }));
    let request = Request::Objects { cursor: Some(first.next), classes: vms, waits: true };
    lab.daemon.request(request).unwrap();
    lab.pass(60 * 1_000_000_000);
    assert_eq!(looks(&lab), before, "whoever follows VMs needs no look");
    let mut crowd = Vec::new();
    for _ in 0..20 {
        let mut follower = follower();
        follower.read(&mut lab);
        crowd.push(follower);
    }
    assert_eq!(looks(&lab), before + 1, "one look does for all who begin");
    for follower in &crowd {
        follower.begin_to_wait(&mut lab);
    }
    lab.pass(60 * 1_000_000_000);
    let made = looks(&lab) - before - 1;
    assert!((11..=13).contains(&made), "{made} looks in a minute");
}

#[test]
fn a_reader_that_has_gone_does_not_have_the_host_looked_at_forever() {
    let mut lab = lab(5);
    let mut follower = follower();
    follower.read(&mut lab);
    let waiting = follower.begin_to_wait(&mut lab);
    lab.pass(70 * 1_000_000_000);
    let told = objects(lab.daemon.take_reply(waiting).expect("it would ask again"));
    assert!(told.items.is_empty() && told.is_last && !told.starts_again, "{told:?}");
    let made = looks(&lab);
    lab.pass(70 * 1_000_000_000);
    assert_eq!(looks(&lab), made);
}

#[test]
fn the_host_is_told_with_its_memory_as_it_is() {
    let mut lab = lab(4);
    let classes = Classes::from([ObjectClass::Host]);
    let request = |cursor, waits| Request::Objects { cursor, classes: classes.clone(), waits };
    let host = |told: &Objects| match told.items.as_slice() {
        [change] => match change.object.as_deref() {
            Some(Object::Host(it)) => (**it).clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let first = objects(lab.ask(request(None, false)));
    let before = host(&first);
    assert!(before.memory_free_mib > 16 && before.memory_free_mib < before.memory_mib);
    assert!(before.dom0_memory_mib > 0 && before.booted_unix_ms > 0 && before.cpus > 0);
    let waiting = lab.daemon.request(request(Some(first.next), true)).unwrap();
    lab.create(&linux("web", "pv", "normal")).unwrap();
    let after = host(&objects(lab.wait(waiting)));
    assert!(after.memory_free_mib < before.memory_free_mib);
    assert_eq!(after.booted_unix_ms, before.booted_unix_ms);
}
