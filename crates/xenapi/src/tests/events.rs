//! Clients that follow events.

use std::collections::BTreeMap;

use api::{Object, Role, VdiRow};
use proptest::prelude::*;

use super::{BASE, VM, World, change, disk, disk_change, operation, reference, vm, vm_change};
use crate::{Outcome, Value, methods, opaque};

/// A client that follows events.
#[derive(Default)]
struct Follower {
    token: String,
    known: BTreeMap<(String, String), Value>,
}

impl Follower {
    fn follow(&mut self, world: &mut World) -> usize {
        let args = [["*"].into_iter().collect(), self.token.as_str().into(), Value::Int(0)];
        let Value::Map(answer) = world.value("event.from", &args) else { panic!("it is a map") };
        self.token = answer["token"].as_str().unwrap_or_default().to_owned();
        let events = answer["events"].as_array().unwrap_or_default();
        for event in events {
            let Value::Map(event) = event else { panic!("it is a map") };
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let key = (text("class"), text("ref"));
            let is_known = self.known.contains_key(&key);
            match text("operation").as_str() {
                "del" => self.known.remove(&key),
                operation => {
                    // One that is gone and there again meanwhile is new, too.
                    assert!(operation == "add" || is_known, "{key:?}: {operation}");
                    self.known.insert(key, event["snapshot"].clone())
                }
            };
        }
        for (class, count) in answer["valid_ref_counts"].as_map().into_iter().flatten() {
            let known = self.known.keys().filter(|(it, _)| it == class).count();
            assert_eq!(count.as_int(), i64::try_from(known).ok(), "{class}");
        }
        events.len()
    }
}

#[test]
fn vdis_come_and_go_with_the_live_model() {
    let mut world = World::new(Role::Admin);
    let mut client = Follower::default();
    client.follow(&mut world);
    let of = |client: &Follower, class: &str, field: &str| -> Vec<String> {
        let of_class = client.known.iter().filter(|((it, _), _)| it == class);
        let text = |it: &Value| match it {
            Value::Record(record) => record.get(field)?.as_str().map(str::to_owned),
            _ => None,
        };
        of_class.filter_map(|(_, it)| text(it)).collect()
    };
    let before = of(&client, "vbd", "VDI");
    assert_ne!(before, ["OpaqueRef:NULL"]);
    assert_eq!(before.len(), 1);
    let new = VdiRow {
        sr: "files".to_owned(),
        name: "new".to_owned(),
        bytes: 1 << 20,
        ..VdiRow::default()
    };
    world.apply(vec![change("files:new", Object::Vdi(Some(new)))], false);
    client.follow(&mut world);
    let mut names = of(&client, "vdi", "name_label");
    names.sort();
    assert_eq!(names, ["new", "spare", "web"]);
    for name in ["files:new", "files:web"] {
        world.apply(vec![change(name, Object::Vdi(None))], false);
    }
    client.follow(&mut world);
    assert_eq!(of(&client, "vdi", "name_label"), ["spare"]);
    assert_eq!(of(&client, "vbd", "VDI"), ["OpaqueRef:NULL"], "its VDI is gone");
}

#[test]
fn an_object_that_changes_often_is_told_once() {
    let mut world = World::new(Role::Admin);
    let mut client = Follower::default();
    client.follow(&mut world);
    assert_eq!(client.follow(&mut world), 0);
    for state in ["paused", "running", "paused"] {
        world.apply(vec![vm_change(vm(state))], false);
    }
    assert_eq!(client.follow(&mut world), 2, "the VM, and its disk, which cannot be plugged now");
    // The same once more is no change, nor is the whole model read anew.
    world.apply(vec![vm_change(vm("paused"))], false);
    assert_eq!(client.follow(&mut world), 0);
    let token = world.value("event.inject", &["VM".into(), reference()]);
    assert_eq!(
        token.as_str(),
        Some(client.token.as_str())
            .map(|it| it.split(',').next().unwrap_or_default())
            .map(|at| format!("{at},{:020}", 0))
            .as_deref()
    );
    assert_eq!(client.follow(&mut world), 1);
    let lost = ["vm"].into_iter().collect::<Value>();
    let old = format!("{:020},{:020}", BASE - 1, BASE - 1);
    assert_eq!(world.short("event.from", &[lost, old.into(), Value::Int(0)]), "EVENTS_LOST");
}

#[test]
fn whoever_waits_for_events_is_woken_by_them() {
    let mut world = World::new(Role::Admin);
    let mut client = Follower::default();
    client.follow(&mut world);
    let args = [["vm"].into_iter().collect(), client.token.as_str().into(), "60.1".into()];
    let Outcome::Wait(waiting) = world.call("event.from", &args) else { panic!("it waits") };
    let deadline = waiting.deadline_unix_ms;
    assert_eq!(deadline, world.now_unix_ms + 60_100);
    // A console is no VM.
    let Outcome::Wait(waiting) = world.facade.woken(waiting, world.now_unix_ms) else {
        panic!("it waits on")
    };
    let Outcome::Reply(Ok(Value::Map(nothing))) = world.facade.woken(waiting.clone(), deadline)
    else {
        panic!("it ends")
    };
    assert_eq!(nothing["events"], Value::Array(Vec::new()));
    world.apply(vec![vm_change(vm("paused"))], false);
    let Outcome::Reply(Ok(Value::Map(news))) =
        world.facade.woken(waiting.clone(), world.now_unix_ms)
    else {
        panic!("it ends")
    };
    assert_eq!(news["events"].as_array().map(<[_]>::len), Some(1));
    world.value("session.logout", &[]);
    let ended = world.facade.woken(waiting, world.now_unix_ms);
    assert!(matches!(ended, Outcome::Reply(Err(it)) if it.code() == "SESSION_INVALID"));
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Vm(usize),
    NoVm,
    Disk(bool),
    Operation(u64),
    Again(usize),
    Tag(u8),
    Follow,
}

const STATES: [&str; 5] = ["down", "running", "paused", "suspended", "stopping"];

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        (0..STATES.len()).prop_map(Deed::Vm),
        Just(Deed::NoVm),
        any::<bool>().prop_map(Deed::Disk),
        (0..4_u64).prop_map(Deed::Operation),
        (0..STATES.len()).prop_map(Deed::Again),
        (0..3_u8).prop_map(Deed::Tag),
        Just(Deed::Follow),
    ]
}

fn do_deed(world: &mut World, client: &mut Follower, deed: Deed) {
    match deed {
        Deed::Vm(state) => world.apply(vec![vm_change(vm(STATES[state]))], false),
        Deed::NoVm => world.apply(vec![change(&VM.to_string(), Object::Vm(None))], false),
        Deed::Disk(is_there) => {
            world.apply(vec![disk_change(is_there.then(|| disk("attached")))], false);
        }
        Deed::Operation(done) => world.apply(vec![operation(done)], false),
        Deed::Again(state) => world.apply(vec![vm_change(vm(STATES[state]))], true),
        Deed::Tag(tag) => {
            let _ = world.call("VM.add_tags", &[reference(), tag.to_string().into()]);
        }
        Deed::Follow => {
            client.follow(world);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, a client that follows events knows what lists would tell it.
    #[test]
    fn events_tell_all_that_lists_tell(deeds in prop::collection::vec(deed(), 1..40)) {
        let mut world = World::new(Role::Admin);
        let mut client = Follower::default();
        for deed in deeds {
            do_deed(&mut world, &mut client, deed);
        }
        client.follow(&mut world);
        let mut listed = BTreeMap::new();
        for class in crate::model::Class::ALL.iter().filter(|it| it.is_listed()) {
            let all = world.value(&format!("{}.get_all_records", class.name()), &[]);
            for (reference, record) in all.as_map().into_iter().flatten() {
                listed.insert((class.name().to_lowercase(), reference.clone()), record.clone());
            }
        }
        prop_assert_eq!(client.known, listed);
    }

    /// No call can do more than fail.
    #[test]
    fn no_call_panics(
        at in any::<prop::sample::Index>(),
        is_async in any::<bool>(),
        args in prop::collection::vec(
            prop_oneof![Just(reference()), Just(opaque(super::HOST).into()), crate::rpc::tests::value()],
            0..5,
        ),
    ) {
        let mut world = World::new(Role::Admin);
        let methods = methods();
        let method = at.get(&methods);
        let prefix = if is_async { "Async." } else { "" };
        let _ = world.call(&format!("{prefix}{method}"), &args);
    }
}
