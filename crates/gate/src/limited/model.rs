//! A host with VMs of several tags, and any request of a client that is limited to some: it neither changes nor learns
//! anything of others' VMs.
//!
//! Requests are made from their schema, so that a new one is tried as soon as there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use api::{
    CheckpointRow, DomainRow, ListedConfig, Object, OperationObject, Reply, Request, Role, Trace,
    TraceRow, VmObject,
};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::{Scope, Tags};

/// So many VMs at most, whose tag is `a`, `b` or none.
const VMS: usize = 6;

#[derive(Clone, Debug)]
struct Vm {
    number: usize,
    name: String,
    tag: Option<&'static str>,
    domid: Option<u16>,
}

impl Vm {
    fn uuid(&self) -> String {
        format!("00000000-0000-0000-0000-0000000000a{}", self.number)
    }

    fn is_meant(&self, said: &str) -> bool {
        let domid = self.domid.map(|it| it.to_string());
        said == self.name || said == self.uuid() || Some(said) == domid.as_deref()
    }

    fn is_own(&self) -> bool {
        self.tag == Some("a")
    }
}

type World = Vec<Vm>;

fn world() -> impl Strategy<Value = World> {
    let tag = prop_oneof![Just(Some("a")), Just(Some("b")), Just(None)];
    let vm = (tag, any::<bool>(), 0..3u8);
    prop::collection::vec(vm, 0..VMS).prop_map(|all| {
        let vms = all.into_iter().enumerate();
        vms.map(|(number, (tag, runs, name))| {
            let domid = u16::try_from(number).unwrap() + 1;
            // Names are unique, and some look like what others are called by.
            let name = match name {
                0 => format!("vm{number}"),
                1 => format!("{}", number + 2),
                _ => format!("00000000-0000-0000-0000-0000000000a{}", (number + 1) % VMS),
            };
            Vm { number, name, tag, domid: runs.then_some(domid) }
        })
        .collect()
    })
}

fn scope() -> Scope {
    Scope::Tagged(["a".to_owned()].into())
}

fn tags(world: &World) -> Tags {
    let lines = world.iter().filter_map(|it| it.tag.map(|tag| format!("{} {tag}\n", it.uuid())));
    Tags::parse(&lines.collect::<String>()).unwrap()
}

/// The whole live model.
fn objects(world: &World) -> Vec<Object> {
    let objects = world.iter().flat_map(|vm| {
        let row = TraceRow { id: vm.number as u64, vm: vm.name.clone(), ..TraceRow::default() };
        let object = VmObject {
            uuid: vm.uuid(),
            name: vm.name.clone(),
            domid: vm.domid,
            ..VmObject::default()
        };
        let operation = OperationObject { row, uuid: vm.uuid(), ..OperationObject::default() };
        [Object::Vm(Some(Box::new(object))), Object::Operation(Some(Box::new(operation)))]
    });
    objects.collect()
}

fn decided(world: &World, role: Role, request: &Request) -> Verdict {
    let (objects, tags, scope) = (objects(world), tags(world), scope());
    let mut sight = Sight::default();
    for object in objects.iter().filter(|it| tags.permit_object(&scope, it)) {
        match object {
            Object::Vm(Some(vm)) => sight.vms.push(vm),
            Object::Operation(Some(operation)) => sight.operations.push(operation),
            _ => panic!("there is nothing else"),
        }
    }
    decide(role, request.clone(), &sight)
}

fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schemars::schema_for!(Request).to_value())
}

/// A value of this schema, chosen by these numbers.
fn value_of(schema: &Value, choices: &mut dyn FnMut(usize) -> usize) -> Value {
    if let Some(to) = schema["$ref"].as_str() {
        let to = self::schema().pointer(to.strip_prefix('#').unwrap()).unwrap();
        let mut value = value_of(to, choices);
        if let (Value::Object(value), Value::Object(more)) =
            (&mut value, object_of(schema, choices))
        {
            value.extend(more);
        }
        return value;
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(kinds) = schema[key].as_array() {
            let mut value = value_of(&kinds[choices(kinds.len())], choices);
            if let (Value::Object(value), Value::Object(more)) =
                (&mut value, object_of(schema, choices))
            {
                value.extend(more);
            }
            return value;
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        return values[choices(values.len())].clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[choices(kinds.len())].as_str(),
        kind => kind.as_str(),
    };
    match kind {
        Some("string") => match schema["maxLength"].as_u64() {
            Some(1) => json!("h"),
            _ => Value::from(word(choices)),
        },
        Some("integer") => json!(choices(VMS + 2)),
        Some("boolean") => json!(choices(2) == 1),
        Some("array") => {
            (0..choices(3)).map(|_| value_of(&schema["items"], choices)).collect::<Vec<_>>().into()
        }
        Some("object") => object_of(schema, choices),
        _ => Value::Null,
    }
}

fn object_of(schema: &Value, choices: &mut dyn FnMut(usize) -> usize) -> Value {
    let mut object = Map::new();
    for (name, of) in schema["properties"].as_object().into_iter().flatten() {
        object.insert(name.clone(), value_of(of, choices));
    }
    Value::Object(object)
}

/// What a VM may be called, or nothing is.
fn word(choices: &mut dyn FnMut(usize) -> usize) -> String {
    let number = choices(VMS + 1);
    match choices(4) {
        0 => format!("vm{number}"),
        1 => number.to_string(),
        2 => format!("00000000-0000-0000-0000-0000000000A{number}"),
        _ => format!("00000000-0000-0000-0000-0000000000a{number}"),
    }
}

fn request() -> impl Strategy<Value = Request> {
    prop::collection::vec(any::<usize>(), 64).prop_map(|numbers| {
        let mut numbers = numbers.into_iter().cycle();
        let mut choices = |count: usize| numbers.next().unwrap() % count.max(1);
        let value = value_of(schema(), &mut choices);
        serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
    })
}

/// What is said of VMs in a request; `None` of all of them.
fn said(of: &Value, found: &mut Vec<Option<String>>) {
    let Value::Object(fields) = of else { return };
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("target" | "vm", Value::String(text)) => found.push(Some(text.clone())),
            ("targets" | "vms" | "these", Value::Array(all)) if all.is_empty() => found.push(None),
            ("targets" | "vms" | "these", Value::Array(all)) => {
                found.extend(all.iter().map(|it| it.as_str().map(str::to_owned)));
            }
            ("targets", Value::String(_)) => found.push(None),
            _ => said(value, found),
        }
    }
}

/// Requests whose replies have rows of all VMs if none is named.
fn is_filtered(request: &Request) -> bool {
    let name = api::name_of(request);
    ["list", "uptime", "configs", "checkpoint checkpoint-list", "operations", "ping"]
        .contains(&&*name)
}

/// Replies with a row for each VM.
fn replies(world: &World) -> Vec<Reply> {
    let domains = world.iter().filter_map(|it| {
        let name = Some(it.name.clone());
        let domid = it.domid?;
        Some(DomainRow { name, domid, uuid: it.uuid(), managed: true, ..DomainRow::default() })
    });
    let configs = world.iter().map(|it| {
        let mut config = ListedConfig::default();
        config.config.c_info.uuid = it.uuid();
        config
    });
    let checkpoints =
        world.iter().map(|it| CheckpointRow { uuid: it.uuid(), ..CheckpointRow::default() });
    let traces = world.iter().map(|it| Reply::Trace(Trace { uuid: it.uuid(), ..Trace::default() }));
    let rows = [
        Reply::Domains(domains.collect()),
        Reply::Configs(configs.collect()),
        Reply::Checkpoints(checkpoints.collect()),
        Reply::Operations(Operations {
            rows: vec![TraceRow::default(); world.len()],
            ..Operations::default()
        }),
    ];
    rows.into_iter().chain(traces).collect()
}

fn shown(world: &World) -> Vec<Reply> {
    let (tags, scope) = (tags(world), scope());
    let permits = |uuid: &str| tags.permit(&scope, uuid);
    replies(world).into_iter().filter_map(|it| show(it, &permits)).collect()
}

/// The same own VMs, and others.
fn with_others(world: &World, others: &World) -> World {
    let own = world.iter().filter(|it| it.is_own()).cloned();
    let others = others.iter().filter(|it| !it.is_own());
    let is_free = |it: &&Vm| !world.iter().any(|own| own.is_own() && own.number == it.number);
    own.clone().chain(others.filter(is_free).cloned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_request_that_is_asked_is_about_own_vms_alone(
        world in world(),
        role in prop::sample::select(&Role::ALL[..]),
        request in request(),
    ) {
        let Verdict::Ask(Asked { request: asked, of }) = decided(&world, role, &request) else {
            return Ok(());
        };
        prop_assert_eq!(role.refusal(&asked), None);
        let own: BTreeSet<String> =
            world.iter().filter(|it| it.is_own()).map(Vm::uuid).collect();
        prop_assert!(of.is_subset(&own), "{of:?}");
        prop_assert_eq!(api::name_of(&asked), api::name_of(&request));
        let mut names = Vec::new();
        said(&serde_json::to_value(&asked).unwrap(), &mut names);
        for name in names {
            match (name, &asked) {
                // A number of an operation, of which the reply says whose it is.
                (Some(number), Request::Trace { .. }) if number.parse::<u64>().is_ok() => {}
                (Some(name), _) => prop_assert!(own.contains(&name), "{name} in {asked:?}"),
                (None, asked) => prop_assert!(is_filtered(asked), "all are meant by {asked:?}"),
            }
        }
        prop_assert!(is_filtered(&asked) || !of.is_empty(), "{asked:?}");
    }

    #[test]
    fn what_a_client_is_told_does_not_depend_on_others_vms(
        world in world(),
        others in world(),
        role in prop::sample::select(&Role::ALL[..]),
        request in request(),
    ) {
        let other = with_others(&world, &others);
        prop_assert_eq!(decided(&world, role, &request), decided(&other, role, &request));
        prop_assert_eq!(shown(&world), shown(&other));
        // One of others' is as one that is not there.
        if let Verdict::Unknown(said) = decided(&world, role, &request)
            && !matches!(request, Request::Domname { .. })
        {
            let own = world.iter().filter(|it| it.is_own() && it.domid.is_some());
            let is_own = own.into_iter().any(|it| it.is_meant(&said));
            prop_assert!(!is_own, "{said} in {world:?}");
        }
    }
}

/// Each request once, by what a limited admin gets.
#[test]
fn what_is_of_the_host_is_refused() {
    let vm = Vm { number: 0, name: "vm0".to_owned(), tag: Some("a"), domid: Some(0) };
    let world = vec![vm];
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    // Enough numbers for each request to come with the VM's name.
    let mut seed = 1u64;
    for _ in 0..10_000 {
        let mut choices = |count: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % count.max(1)
        };
        let request: Request = serde_json::from_value(value_of(schema(), &mut choices)).unwrap();
        let name = api::name_of(&request);
        match decided(&world, Role::Admin, &request) {
            Verdict::Ask(_) => all.entry("asked").or_default().insert(name),
            Verdict::Answer(_) => all.entry("answered").or_default().insert(name),
            Verdict::Refused(_) => all.entry("refused").or_default().insert(name),
            Verdict::Unknown(_) => all.entry("unknown").or_default().insert(name),
        };
    }
    let may: BTreeSet<_> = all["asked"].union(&all["answered"]).cloned().collect();
    assert!(all["refused"].is_disjoint(&may), "it depends on more than the VM");
    assert_eq!(all["unknown"].difference(&may).collect::<Vec<_>>(), Vec::<&String>::new());
    expect![[r#"
        block-detach
        block-list
        cd-eject
        channel-list
        checkpoint checkpoint-list
        config-text
        configs
        destroy
        domid
        domname
        explain
        keyboard-detach
        keyboard-list
        list
        network-detach
        network-list
        operations
        pause
        ping
        reboot
        relay console
        relay screen
        resume
        shutdown
        start
        suspend
        trace
        tune sysrq
        tune trigger
        undefine
        unpause
        uptime
        vcpu-list
        vms
        wait-for"#]]
    .assert_eq(&may.into_iter().collect::<Vec<_>>().join("\n"));
}
