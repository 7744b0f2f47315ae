//! The live model: whoever follows it knows what a newcomer would be told, at every moment.

use std::collections::{BTreeMap, BTreeSet};

use ::storage::Repositories;
use live::Cursor;
use sim::{Daemon, HostConfig};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{Start, Unplug};
use toolstack::{
    Classes, ClientId, Device, Object, ObjectClass, ObjectKey, Objects, Reply, Request,
    ShutdownRequest, xlcfg,
};
use xen::Uuid;

use crate::storage;
use crate::support::{Lab, linux, objects, unikernel};

fn read(cursor: Option<Cursor>, classes: Classes, waits: bool) -> Request {
    Request::Objects { cursor, classes, waits }
}

/// What the daemon says at once, without anything else happening.
fn at_once(daemon: &mut Daemon, request: Request) -> Reply {
    let client = daemon.request(request).unwrap();
    daemon.take_reply(client).expect("an answer without any work")
}

/// Knows objects by what was told of them.
#[derive(Default)]
struct Follower {
    cursor: Option<Cursor>,
    known: BTreeMap<ObjectKey, String>,
    /// How often it had to start again.
    starts: usize,
}

impl Follower {
    /// Reads up to the present.
    fn read(&mut self, daemon: &mut Daemon) {
        loop {
            let page = objects(at_once(daemon, read(self.cursor, Classes::new(), false)));
            self.take(&page);
            if page.is_last {
                return;
            }
        }
    }

    fn take(&mut self, page: &Objects) {
        if page.starts_again {
            self.starts += 1;
            self.known.clear();
        }
        for change in &page.items {
            match &change.object {
                Some(object) => self.known.insert(change.key.clone(), format!("{object:?}")),
                None => self.known.remove(&change.key),
            };
        }
        self.cursor = Some(page.next);
    }

    fn count(&self, class: ObjectClass) -> usize {
        self.known.keys().filter(|key| key.class() == class).count()
    }
}

/// Lets everything happen, and compares after each event what a follower knows with what a newcomer is told.
fn settle_following(lab: &mut Lab, follower: &mut Follower) {
    let until = lab.until();
    loop {
        follower.read(&mut lab.daemon);
        let mut newcomer = Follower::default();
        newcomer.read(&mut lab.daemon);
        for (key, object) in &newcomer.known {
            assert_eq!(follower.known.get(key), Some(object), "{key:?} has changed unseen");
        }
        assert_eq!(follower.known.len(), newcomer.known.len(), "something has gone unseen");
        if !lab.daemon.step(until).unwrap() {
            return;
        }
    }
}

fn target(name: &str) -> String {
    name.to_owned()
}

fn plug(name: &str, device: Device) -> Request {
    Request::Plug { target: target(name), device: Box::new(device) }
}

fn deeds(lab: &mut Lab) -> Vec<Request> {
    let disk = |spec| Device::Disk(xlcfg::parse_disk(spec).unwrap());
    let text = linux("defined", "pvh", "normal");
    let parse = |text: &str| {
        Box::new(xlcfg::parse(xlcfg::Source { file: "vm.cfg", text, overrides: &[] }).unwrap())
    };
    let larger = text.replace("memory = 16", "memory = 24");
    assert_ne!(larger, text);
    let missing = unikernel("missing", "pvh", "normal").replace("/kernel", "/not-there");
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    let vif = DeviceRef { kind: DeviceKind::Vif, devid: 1 };
    vec![
        lab.create_request(&linux("web", "pv", "normal")),
        lab.create_request(&missing),
        lab.create_request(&unikernel("tiny", "pvh", "normal")),
        plug("web", disk("/neighbour.raw,raw,xvdb,w")),
        plug("web", disk("/nowhere.raw,raw,xvdc,w")),
        plug("web", Device::Vif(xlcfg::parse_vif("bridge=xenbr0", 1).unwrap())),
        Request::Pause { target: target("tiny") },
        Request::Unpause { target: target("tiny") },
        Request::Unplug { target: target("web"), device: vbd, how: Unplug::Clean },
        Request::Unplug { target: target("web"), device: vif, how: Unplug::Forced },
        Request::Define { config: parse(&text), fresh_uuid: Uuid([77; 16]), autostart: Some(3) },
        Request::Define { config: parse(&larger), fresh_uuid: Uuid([77; 16]), autostart: None },
        Request::Start { target: target("defined"), start: Start::Paused },
        Lab::shutdown_request("web", ShutdownRequest::Reboot),
        Request::Suspend { target: target("web") },
        Request::Resume { target: target("web") },
        Lab::shutdown_request("tiny", ShutdownRequest::Poweroff),
        Request::Destroy { target: target("defined") },
        Request::Undefine { target: target("defined") },
        Request::Disown { target: target("web") },
        Request::Destroy { target: target("web") },
    ]
}

#[test]
fn a_follower_knows_at_every_moment_what_a_newcomer_is_told() {
    for seed in 0..4 {
        let mut lab = Lab::seeded(seed);
        let mut follower = Follower::default();
        let mut operations = 0;
        let mut classes = Classes::new();
        for deed in deeds(&mut lab) {
            lab.daemon.request(deed).unwrap();
            settle_following(&mut lab, &mut follower);
            classes.extend(follower.known.keys().map(ObjectKey::class));
            let now = follower.count(ObjectClass::Operation);
            assert!(now >= operations, "an operation that has ended is forgotten too early");
            operations = now;
        }
        // SRs change by what clients do themselves, and nobody looks at this host (`surroundings.rs`, `vdis.rs`).
        classes.extend([ObjectClass::Sr, ObjectClass::Vdi, ObjectClass::Host]);
        assert_eq!(classes.into_iter().collect::<Vec<_>>(), ObjectClass::ALL, "all were seen");
        assert!(operations > 10, "{operations} operations");
        assert_eq!(follower.starts, 1, "it never had to start again");
        assert_eq!(follower.count(ObjectClass::Vm), 0, "{:?}", follower.known);
        assert_eq!(follower.count(ObjectClass::Device), 0);
        assert_eq!(follower.count(ObjectClass::Network), 0);
    }
}

/// The state that is told of a device, after each other.
fn states(lab: &mut Lab, deed: Request, device: DeviceRef) -> Vec<&'static str> {
    let mut cursor = None;
    let mut seen = Vec::new();
    let until = lab.until();
    lab.daemon.request(deed).unwrap();
    loop {
        let page = objects(at_once(&mut lab.daemon, read(cursor, Classes::new(), false)));
        for change in &page.items {
            let state = match (&change.key, change.object.as_deref()) {
                (ObjectKey::Device(_, it), Some(Object::Device(object))) if *it == device => {
                    object.state.as_str()
                }
                (ObjectKey::Device(_, it), None) if *it == device => "gone",
                _ => continue,
            };
            if seen.last() != Some(&state) {
                seen.push(state);
            }
        }
        cursor = Some(page.next);
        if page.is_last && !lab.daemon.step(until).unwrap() {
            return seen;
        }
    }
}

#[test]
fn a_device_is_attaching_attached_detaching_and_gone() {
    let mut lab = Lab::seeded(1);
    let disk = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
    let second = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    let create = lab.create_request(&linux("web", "pv", "normal"));
    assert_eq!(states(&mut lab, create, disk), ["attaching", "attached"]);
    let device = Device::Disk(xlcfg::parse_disk("/neighbour.raw,raw,xvdb,w").unwrap());
    assert_eq!(states(&mut lab, plug("web", device), second), ["attaching", "attached"]);
    let how = Unplug::Clean;
    let unplug = Request::Unplug { target: target("web"), device: second, how };
    assert_eq!(states(&mut lab, unplug, second), ["detaching", "gone"]);
    let destroy = Request::Destroy { target: target("web") };
    assert_eq!(states(&mut lab, destroy, disk), ["detaching", "gone"]);
    lab.assert_nothing_left();
}

/// A reader that has read everything and waits.
fn waiting(lab: &mut Lab, classes: &Classes) -> ClientId {
    let mut cursor = None;
    loop {
        let page = objects(at_once(&mut lab.daemon, read(cursor, classes.clone(), false)));
        cursor = Some(page.next);
        if page.is_last {
            break;
        }
    }
    lab.daemon.request(read(cursor, classes.clone(), true)).unwrap()
}

#[test]
fn a_reader_that_waits_is_told_at_once_and_then_of_what_was_collected_each_object_once() {
    let mut lab = Lab::seeded(2);
    let reader = waiting(&mut lab, &Classes::new());
    lab.settle();
    assert!(lab.daemon.take_reply(reader).is_none(), "nothing has happened");
    let create = lab.create_request(&unikernel("tiny", "pvh", "normal"));
    let began = lab.host.now();
    let since = |lab: &Lab| lab.host.now().0 - began.0;
    lab.daemon.request(create).unwrap();
    let first = objects(lab.wait(reader));
    assert!(since(&lab) < 1_000_000, "told after {} ns", since(&lab));
    assert!(!first.items.is_empty());
    let reader = lab.daemon.request(read(Some(first.next), Classes::new(), true)).unwrap();
    let told = objects(lab.wait(reader));
    assert!((50_000_000..60_000_000).contains(&since(&lab)), "told after {} ns", since(&lab));
    let mut keys: Vec<ObjectKey> = told.items.iter().map(|it| it.key.clone()).collect();
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), told.is_last), (count, true), "{told:?}");
    let classes: Vec<ObjectClass> = keys.iter().map(ObjectKey::class).collect();
    assert_eq!(classes, [ObjectClass::Vm, ObjectClass::Operation]);
}

#[test]
fn whoever_asks_without_waiting_has_those_who_wait_told_too() {
    let mut lab = Lab::seeded(2);
    let reader = waiting(&mut lab, &Classes::new());
    let create = lab.create_request(&unikernel("tiny", "pvh", "normal"));
    let began = lab.host.now();
    let create = lab.daemon.request(create).unwrap();
    let first = objects(lab.wait(reader));
    let reader = lab.daemon.request(read(Some(first.next), Classes::new(), true)).unwrap();
    lab.wait(create);
    assert!(lab.daemon.take_reply(reader).is_none(), "the rest is collected");
    let asked = objects(at_once(&mut lab.daemon, read(Some(first.next), Classes::new(), false)));
    let told = objects(lab.wait(reader));
    assert!(lab.host.now().0 - began.0 < 50_000_000, "it was not waited for");
    assert_eq!((told.next, told.items.len()), (asked.next, asked.items.len()));
}

#[test]
fn a_reader_of_one_class_is_not_woken_by_others() {
    let mut lab = Lab::seeded(3);
    let domains = waiting(&mut lab, &[ObjectClass::Domain].into());
    lab.create(&linux("web", "pv", "normal")).unwrap();
    lab.settle();
    assert!(lab.daemon.take_reply(domains).is_none(), "no domain of others has come");
    let disowned = lab.ask(Request::Disown { target: target("web") });
    assert!(!matches!(disowned, Reply::Failed(_)), "{disowned:?}");
    let told = objects(lab.wait(domains));
    let [change] = told.items.as_slice() else { panic!("{told:?}") };
    match change.object.as_deref() {
        Some(Object::Domain { name, .. }) => assert_eq!(name.as_deref(), Some("web")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_daemon_makes_a_follower_start_again() {
    let mut lab = Lab::seeded(4);
    lab.create(&linux("web", "pv", "normal")).unwrap();
    lab.settle();
    let mut follower = Follower::default();
    follower.read(&mut lab.daemon);
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    follower.read(&mut lab.daemon);
    assert_eq!(follower.starts, 2);
    assert_eq!(follower.count(ObjectClass::Vm), 1, "{:?}", follower.known);
    settle_following(&mut lab, &mut follower);
}

#[test]
fn a_crowd_of_readers_is_bounded_and_the_one_that_has_waited_longest_is_answered() {
    let mut lab = Lab::seeded(5);
    let readers: Vec<ClientId> = (0..300).map(|_| waiting(&mut lab, &Classes::new())).collect();
    let answered = |lab: &mut Lab, id: ClientId| lab.daemon.take_reply(id).is_some();
    let early: Vec<bool> = readers.iter().map(|id| answered(&mut lab, *id)).collect();
    assert!(early[..44].iter().all(|it| *it) && !early[44..].iter().any(|it| *it), "{early:?}");
    lab.create(&unikernel("tiny", "pvh", "normal")).unwrap();
    lab.pass(100_000_000);
    assert!(readers[44..].iter().all(|id| answered(&mut lab, *id)));
}

#[test]
fn a_snapshot_is_told_in_parts_while_vms_come_and_go() {
    let mut lab = Lab::new(HostConfig { seed: 6, ..HostConfig::default() });
    let name = |at: usize| format!("vm{at}");
    for at in 0..90 {
        lab.create(&unikernel(&name(at), "pvh", "normal")).unwrap();
    }
    let mut follower = Follower::default();
    let mut parts = 0;
    loop {
        let page = objects(at_once(&mut lab.daemon, read(follower.cursor, Classes::new(), false)));
        assert!(page.items.len() <= 64, "the machine is held up by {} objects", page.items.len());
        assert_eq!(page.starts_again, parts == 0);
        follower.take(&page);
        if page.is_last {
            break;
        }
        // One that may have been told goes, and another comes.
        lab.destroy(&name(parts));
        lab.create(&unikernel(&name(100 + parts), "pvh", "normal")).unwrap();
        parts += 1;
    }
    assert!(parts > 1, "{parts}");
    settle_following(&mut lab, &mut follower);
    assert_eq!(follower.count(ObjectClass::Vm), 90);
}

#[test]
fn operations_that_are_remembered_no_more_are_gone() {
    let mut lab = Lab::seeded(7);
    let mut follower = Follower::default();
    for _ in 0..105 {
        lab.create(&unikernel("tiny", "pvh", "normal")).unwrap();
        lab.destroy("tiny");
        follower.read(&mut lab.daemon);
    }
    settle_following(&mut lab, &mut follower);
    assert_eq!(follower.count(ObjectClass::Operation), 200);
    assert_eq!(follower.starts, 1);
}

/// Who uses which image of an SR, and how.
fn users(lab: &Lab) -> String {
    let mut os = lab.host.os().clone();
    format!("{:?}", Repositories::new(&mut os).in_use().unwrap())
}

#[test]
fn an_sr_is_told_whenever_the_users_of_its_images_have_changed() {
    let mut lab = storage::lab(8);
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    let mut known = users(&lab);
    let mut seen = BTreeSet::from([known.clone()]);
    let mut cursor = None;
    let disk = |spec| Device::Disk(xlcfg::parse_disk(spec).unwrap());
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    let deeds = [
        lab.create_request(&storage::guest("a", "s:one,,xvda,w")),
        Lab::shutdown_request("a", ShutdownRequest::Reboot),
        Request::Destroy { target: target("a") },
        lab.create_request(&linux("b", "pv", "normal")),
        plug("b", disk("s:one,,xvdb,w")),
        Request::Unplug { target: target("b"), device: vbd, how: Unplug::Clean },
        plug("b", disk("s:one,,xvdb,w")),
        Request::Destroy { target: target("b") },
    ];
    for deed in deeds {
        lab.daemon.request(deed).unwrap();
        let until = lab.until();
        loop {
            let classes = [ObjectClass::Sr].into();
            let page = objects(at_once(&mut lab.daemon, read(cursor, classes, false)));
            cursor = Some(page.next);
            if !page.items.is_empty() {
                known = users(&lab);
                seen.insert(known.clone());
            }
            assert_eq!(known, users(&lab), "they have changed untold");
            if !lab.daemon.step(until).unwrap() {
                break;
            }
        }
    }
    assert!(seen.len() >= 3, "{seen:?}");
}
