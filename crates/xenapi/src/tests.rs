//! Calls as clients make them, with a daemon that is played.

mod clients;
mod contents;
mod events;

use std::collections::BTreeMap;

use api::{
    DeviceObject, DomainObject, Object, ObjectChange, Objects, OperationObject, Reply, Request,
    Role, SrRow, StorageRequest, TraceRow, VdiList, VdiRow, VmObject, VmSizes,
};
use expect_test::{Expect, expect};
use serde_json::Value as Json;
use xen::Uuid;

use crate::rpc::Call;
use crate::{Facade, Identity, Moment, Outcome, Shown, Value, opaque};

const VM: Uuid = Uuid([1; 16]);
const HOST: Uuid = Uuid([0x42; 16]);
const BASE: u64 = 1_000_000;

/// A façade, its session and a clock.
struct World {
    facade: Facade,
    session: String,
    now_unix_ms: u64,
    fresh: u32,
}

fn vm(state: &str) -> VmObject {
    VmObject {
        uuid: VM.to_string(),
        name: "web".to_owned(),
        state: state.to_owned(),
        domid: (!matches!(state, "down" | "starting")).then_some(7),
        defined: true,
        config: Some(VmSizes {
            kind: "pvh".to_owned(),
            memory_mib: 64,
            memory_max_mib: 128,
            vcpus: 1,
            vcpus_max: 2,
        }),
        ..VmObject::default()
    }
}

fn change(key: &str, object: Object) -> ObjectChange {
    ObjectChange { revision: 1, key: key.to_owned(), object }
}

fn vm_change(vm: VmObject) -> ObjectChange {
    change(&VM.to_string(), Object::Vm(Some(Box::new(vm))))
}

fn disk(state: &str) -> DeviceObject {
    DeviceObject {
        vm: VM.to_string(),
        kind: "vbd".to_owned(),
        devid: 51712,
        name: Some("xvda".to_owned()),
        config: "format=raw,vdev=xvda,access=w,target=files:web".to_owned(),
        state: state.to_owned(),
        network: None,
        operation: None,
    }
}

fn disk_change(device: Option<DeviceObject>) -> ObjectChange {
    change(&format!("{VM}/vbd/51712"), Object::Device(device))
}

impl World {
    fn new(role: Role) -> Self {
        let identity = Identity {
            host: HOST,
            hostname: "sim".to_owned(),
            address: "192.0.2.1".to_owned(),
            authority: "192.0.2.1:8443".to_owned(),
            release: "0.1.0".to_owned(),
            started_unix_s: 1,
            booted_unix_s: 1,
        };
        let facade = Facade::new(identity, BASE, &Json::Null);
        let mut world = Self { facade, session: String::new(), now_unix_ms: 1_000_000, fresh: 0 };
        world.session = world.login("ann", role);
        let sr = SrRow { name: "files".to_owned(), kind: "file".to_owned(), ..SrRow::default() };
        let control = DomainObject {
            domid: 0,
            name: Some("Domain-0".to_owned()),
            uuid: Uuid::default().to_string(),
        };
        let vdi = |name: &str| VdiRow {
            sr: "files".to_owned(),
            name: name.to_owned(),
            bytes: 1 << 30,
            ..VdiRow::default()
        };
        world.apply(
            vec![
                change("0", Object::Domain(Some(control))),
                vm_change(vm("running")),
                disk_change(Some(disk("attached"))),
                change("files", Object::Sr(Some(sr))),
                change("files:web", Object::Vdi(Some(vdi("web")))),
                change("files:spare", Object::Vdi(Some(vdi("spare")))),
            ],
            true,
        );
        world.facade.learn(&Request::Info, &Reply::Info(api::Info::default()));
        let defaults = Reply::Defaults { bridge: "xenbr0".to_owned() };
        world.facade.learn(&Request::Host(api::HostRequest::Defaults), &defaults);
        world
    }

    fn moment(&mut self) -> Moment {
        self.fresh += 1;
        self.now_unix_ms += 1;
        let mut fresh = [0xf0; 16];
        fresh[..4].copy_from_slice(&self.fresh.to_be_bytes());
        Moment { unix_ms: self.now_unix_ms, fresh: Uuid(fresh) }
    }

    fn login(&mut self, who: &str, role: Role) -> String {
        let params = vec![who.into(), "x".into()];
        let call = Call { method: "session.login_with_password".to_owned(), params };
        let moment = self.moment();
        let Outcome::Authenticate(login) = self.facade.call(&call, &moment) else {
            panic!("a login asks who it is")
        };
        let outcome = self.facade.authenticated(login, Some((who.to_owned(), role)), &moment);
        let Outcome::Reply(Ok(Value::Str(session))) = outcome else { panic!("it is right") };
        session
    }

    fn apply(&mut self, changes: Vec<ObjectChange>, starts_again: bool) {
        let cursor = String::new();
        self.facade.apply(Objects { cursor, is_last: true, starts_again, changes });
    }

    fn call(&mut self, method: &str, args: &[Value]) -> Outcome {
        let session = Value::from(self.session.as_str());
        let params = std::iter::once(session).chain(args.iter().cloned()).collect();
        let moment = self.moment();
        self.facade.call(&Call { method: method.to_owned(), params }, &moment)
    }

    fn value(&mut self, method: &str, args: &[Value]) -> Value {
        match self.call(method, args) {
            Outcome::Reply(Ok(value)) => value,
            other => panic!("{method}: {other:?}"),
        }
    }

    /// What comes of a call, in a word or two.
    fn short(&mut self, method: &str, args: &[Value]) -> String {
        match self.call(method, args) {
            Outcome::Reply(Ok(_)) => "done".to_owned(),
            Outcome::Reply(Err(failure)) => failure.code().to_owned(),
            Outcome::Authenticate(_) => "authenticate".to_owned(),
            Outcome::Ask(asking) => {
                asking.requests.iter().map(api::name_of).collect::<Vec<_>>().join(", ")
            }
            Outcome::Wait(_) => "wait".to_owned(),
            Outcome::Started { .. } => "started".to_owned(),
        }
    }
}

fn reference() -> Value {
    opaque(VM).into()
}

#[test]
fn whoever_calls_wrongly_is_told_how() {
    let mut world = World::new(Role::Viewer);
    let mut table = String::new();
    for (method, args) in [
        ("VM.get_all", &[][..]),
        ("VM.get_all", &[Value::from("x")]),
        ("VM.get_power_state", &[reference()]),
        ("VM.get_power_state", &["OpaqueRef:NULL".into()]),
        ("VM.get_power_state", &[Value::Int(1)]),
        ("VM.get_by_uuid", &["1".into()]),
        ("VM.fly", &[]),
        ("vm.get_all", &[]),
        ("VM", &[]),
        ("", &[]),
        ("session.get_all", &[]),
        ("VM.start", &[reference()]),
        ("VM.snapshot_with_quiesce", &[reference(), "x".into()]),
        ("VM.set_tags", &[reference(), Value::Array(Vec::new())]),
        ("VM.set_PV_args", &[reference(), "quiet".into()]),
        ("VM.set_nothing", &[reference(), "x".into()]),
        ("Async.event.from", &[Value::Array(Vec::new()), "".into(), Value::Float(0.0)]),
        ("event.from", &["vm".into(), "".into(), Value::Float(0.0)]),
        ("VM.get_all_records_where", &["field \"name__label\" = \"web\"".into()]),
        ("VM.get_all_records_where", &["(".into()]),
        ("host.call_plugin", &[opaque(HOST).into(), "p".into(), "f".into(), Value::map()]),
    ] {
        let short = world.short(method, args);
        table += &format!("{method}({}): {short}\n", args.len());
    }
    expect![[r#"
        VM.get_all(0): done
        VM.get_all(1): MESSAGE_PARAMETER_COUNT_MISMATCH
        VM.get_power_state(1): done
        VM.get_power_state(1): HANDLE_INVALID
        VM.get_power_state(1): FIELD_TYPE_ERROR
        VM.get_by_uuid(1): UUID_INVALID
        VM.fly(0): MESSAGE_METHOD_UNKNOWN
        vm.get_all(0): MESSAGE_METHOD_UNKNOWN
        VM(0): MESSAGE_METHOD_UNKNOWN
        (0): MESSAGE_METHOD_UNKNOWN
        session.get_all(0): MESSAGE_METHOD_UNKNOWN
        VM.start(1): RBAC_PERMISSION_DENIED
        VM.snapshot_with_quiesce(2): NOT_IMPLEMENTED
        VM.set_tags(2): RBAC_PERMISSION_DENIED
        VM.set_PV_args(2): NOT_IMPLEMENTED
        VM.set_nothing(2): MESSAGE_METHOD_UNKNOWN
        Async.event.from(3): MESSAGE_METHOD_UNKNOWN
        event.from(3): FIELD_TYPE_ERROR
        VM.get_all_records_where(1): done
        VM.get_all_records_where(1): INTERNAL_ERROR
        host.call_plugin(4): XENAPI_MISSING_PLUGIN
    "#]]
    .assert_eq(&table);
}

#[test]
fn a_session_ends_with_its_logout() {
    let mut world = World::new(Role::Viewer);
    let other = world.login("bob", Role::Viewer);
    assert_eq!(world.short("session.get_record", &[other.as_str().into()]), "HANDLE_INVALID");
    let own = world.session.clone();
    assert_eq!(world.short("session.get_this_host", &[own.as_str().into()]), "done");
    let waiting =
        world.call("event.from", &[["vm"].into_iter().collect(), "".into(), Value::Float(9.0)]);
    assert!(matches!(waiting, Outcome::Reply(Ok(_))), "all is news");
    assert_eq!(world.short("session.logout", &[]), "done");
    assert_eq!(world.short("VM.get_all", &[]), "SESSION_INVALID");
}

#[test]
fn doors_beside_calls_know_sessions_and_consoles() {
    let mut world = World::new(Role::Operator);
    let (session, now) = (world.session.clone(), world.now_unix_ms);
    assert_eq!(world.facade.user(&session, now), Ok(("ann".to_owned(), Role::Operator)));
    assert!(world.facade.user("OpaqueRef:NULL", now).is_err());
    let consoles = world.value("VM.get_consoles", &[reference()]);
    let consoles = consoles.as_array().expect("a list").to_vec();
    let mut of = |console: &Value| {
        let protocol = world.value("console.get_protocol", std::slice::from_ref(console));
        let text = console.as_str().expect("a reference");
        (protocol, world.facade.console(text))
    };
    // Xen Orchestra's page takes the first, and its server one that is a screen.
    let console = consoles[0].clone();
    assert_eq!(of(&console), ("rfb".into(), Some((VM, Shown::Drawn))));
    assert_eq!(of(&consoles[1]), ("vt100".into(), Some((VM, Shown::Text))));
    let location = world.value("console.get_location", std::slice::from_ref(&console));
    let (door, uuid) = location.as_str().and_then(|it| it.split_once('=')).expect("it has one");
    assert_eq!(door, "https://192.0.2.1:8443/console?uuid");
    assert_eq!(world.facade.console(uuid), Some((VM, Shown::Drawn)));
    assert_eq!(world.facade.console("x"), None);
}

/// Nobody is let in here whom the daemon would refuse.
#[test]
fn each_method_needs_the_role_that_its_requests_need() {
    let mut asked = 0;
    for state in ["down", "running", "paused", "suspended"] {
        let mut world = World::new(Role::Admin);
        let plugged = if state == "down" { "detached" } else { "attached" };
        world.apply(vec![vm_change(vm(state)), disk_change(Some(disk(plugged)))], false);
        let of = |world: &mut World, class: &str| {
            let all = world.value(&format!("{class}.get_all"), &[]);
            all.as_array().and_then(|all| all.first().cloned()).unwrap_or_else(Value::null)
        };
        let host = Value::from(opaque(HOST));
        for row in crate::calls::TABLE {
            let class = row.name.split('.').next().unwrap_or_default();
            let first = match class {
                "VM" => reference(),
                "VBD" | "VDI" | "SR" | "host" => of(&mut world, class),
                _ => continue,
            };
            for second in [host.clone(), Value::Int(64 << 20), "power".into()] {
                let most = row.params.split_ascii_whitespace().count();
                let all = [first.clone(), second, Value::Int(1), Value::Int(1), Value::Int(1)];
                let args = &all[..most.min(all.len())];
                if let Outcome::Ask(asking) = world.call(row.name, args) {
                    asked += 1;
                    for request in asking.requests {
                        let name = api::name_of(&request);
                        assert!(Role::needed(&request) <= row.role, "{}: {name}", row.name);
                    }
                }
            }
        }
    }
    assert!(asked > 100, "{asked}");
}

#[test]
fn each_state_has_its_operations() {
    let mut table = String::new();
    for state in ["down", "starting", "running", "paused", "suspended", "stopping", "preserved"] {
        let mut world = World::new(Role::Admin);
        world.apply(vec![vm_change(vm(state))], false);
        let shown = world.value("VM.get_power_state", &[reference()]);
        table += &format!("{state} is {}:", shown.as_str().unwrap_or_default());
        for method in [
            "start",
            "clean_shutdown",
            "hard_shutdown",
            "clean_reboot",
            "hard_reboot",
            "pause",
            "unpause",
            "suspend",
            "resume",
            "destroy",
        ] {
            let short = world.short(&format!("VM.{method}"), &[reference()]);
            if short != "VM_BAD_POWER_STATE" {
                table += &format!(" {method}={short};");
            }
        }
        table.push('\n');
    }
    expect![[r#"
        down is Halted: start=start; destroy=undefine;
        starting is Halted: start=start; destroy=undefine;
        running is Running: clean_shutdown=shutdown; hard_shutdown=destroy; clean_reboot=reboot; hard_reboot=destroy, start; pause=pause; suspend=suspend;
        paused is Paused: hard_shutdown=destroy; hard_reboot=destroy, start; unpause=unpause;
        suspended is Suspended: hard_shutdown=destroy; resume=resume;
        stopping is Running: clean_shutdown=shutdown; hard_shutdown=destroy; clean_reboot=reboot; hard_reboot=destroy, start; pause=pause; suspend=suspend;
        preserved is Paused: hard_shutdown=destroy; hard_reboot=destroy, start; unpause=OPERATION_NOT_ALLOWED;
    "#]]
    .assert_eq(&table);
}

fn operation(done: u64) -> ObjectChange {
    let row = TraceRow {
        id: 5,
        what: "stop".to_owned(),
        vm: "web".to_owned(),
        steps: 4,
        done,
        ..TraceRow::default()
    };
    let object = OperationObject { row, uuid: VM.to_string(), ..OperationObject::default() };
    change("5", Object::Operation(Some(Box::new(object))))
}

#[test]
fn what_is_under_way_is_seen_and_can_only_be_ended() {
    let mut world = World::new(Role::Operator);
    let busy = VmObject { operations: vec![5], ..vm("running") };
    world.apply(vec![operation(1), vm_change(busy)], false);
    let current = world.value("VM.get_current_operations", &[reference()]);
    let Value::Map(current) = current else { panic!("it is a map") };
    let (task, what) = current.first_key_value().expect("there is one");
    assert_eq!(what, &Value::from("clean_shutdown"));
    assert_eq!(world.value("task.get_progress", &[task.as_str().into()]), Value::Float(0.25));
    assert_eq!(world.short("task.destroy", &[task.as_str().into()]), "OPERATION_NOT_ALLOWED");
    assert_eq!(world.short("VM.pause", &[reference()]), "OTHER_OPERATION_IN_PROGRESS");
    assert_eq!(world.short("VM.hard_shutdown", &[reference()]), "destroy");
    let allowed = world.value("VM.get_allowed_operations", &[reference()]);
    assert_eq!(allowed, Value::Array(Vec::new()));
}

#[test]
fn a_task_goes_on_until_the_model_shows_its_work() {
    let mut world = World::new(Role::Operator);
    let Outcome::Started { task, work } = world.call("Async.VM.pause", &[reference()]) else {
        panic!("it is started")
    };
    let task = [task];
    let Outcome::Ask(asking) = *work else { panic!("the daemon is asked") };
    assert_eq!(asking.requests, [Request::Pause { target: api::Target(VM.to_string()) }]);
    assert_eq!(world.value("task.get_status", &task), "pending".into());
    assert_eq!(world.short("VM.pause", &[reference()]), "OTHER_OPERATION_IN_PROGRESS");
    let now = world.now_unix_ms;
    let Outcome::Wait(waiting) = world.facade.answered(asking, vec![Ok(Reply::Done)], now) else {
        panic!("the model does not show it yet")
    };
    world.apply(vec![vm_change(vm("paused"))], false);
    assert_eq!(world.facade.woken(waiting, now), Outcome::Reply(Ok(Value::void())));
    assert_eq!(world.value("task.get_status", &task), "success".into());
    assert_eq!(world.value("task.get_result", &task), "".into());
    assert_eq!(world.short("task.destroy", &task), "done");
}

#[test]
fn an_error_of_the_daemon_is_the_failure_of_the_task() {
    let mut world = World::new(Role::Admin);
    let mut check = |text: &str, expected: Expect| {
        world.apply(vec![vm_change(vm("down"))], false);
        let Outcome::Started { task, work } = world.call("Async.VM.start", &[reference()]) else {
            panic!("it is started")
        };
        let Outcome::Ask(asking) = *work else { panic!("the daemon is asked") };
        let now = world.now_unix_ms;
        world.facade.answered(asking, vec![Err(text.to_owned())], now);
        let info = world.value("task.get_error_info", &[task]);
        expected.assert_eq(&format!("{info:?}"));
    };
    check("web: no kernel", expect![[r#"Array([Str("INTERNAL_ERROR"), Str("web: no kernel")])"#]]);
    check(
        "VM web needs 513 MiB, 300 MiB are free (100 MiB of them claimed by starts under way)",
        expect![[
            r#"Array([Str("HOST_NOT_ENOUGH_FREE_MEMORY"), Str("537919488"), Str("314572800")])"#
        ]],
    );
}

#[test]
fn a_checkpoint_can_be_given_up() {
    let mut world = World::new(Role::Admin);
    let args = [reference(), "a b".into()];
    let Outcome::Started { task, work } = world.call("Async.VM.checkpoint", &args) else {
        panic!("it is started")
    };
    let Outcome::Ask(asking) = *work else { panic!("the daemon is asked") };
    let names: Vec<_> = asking.requests.iter().map(api::name_of).collect();
    assert_eq!(names, ["checkpoint checkpoint", "checkpoint checkpoint-list"]);
    assert!(!world.facade.is_given_up(&asking));
    let task = [task];
    assert_eq!(world.short("task.cancel", &task), "done");
    assert!(world.facade.is_given_up(&asking));
    assert_eq!(world.short("task.destroy", &task), "OPERATION_NOT_ALLOWED");
    let now = world.now_unix_ms;
    world.facade.answered(asking, vec![Err("given up".to_owned())], now);
    assert_eq!(world.value("task.get_status", &task), "cancelled".into());
    assert_eq!(world.short("task.destroy", &task), "done");
}

#[test]
fn a_disk_is_made_plugged_unplugged_and_forgotten() {
    let mut world = World::new(Role::Admin);
    let vdi = world.value("VDI.get_by_name_label", &["spare".into()]);
    let vdi = vdi.as_array().expect("a list")[0].clone();
    let record = BTreeMap::from([
        ("VM".to_owned(), reference()),
        ("VDI".to_owned(), vdi),
        ("userdevice".to_owned(), "autodetect".into()),
        ("mode".to_owned(), "RW".into()),
    ]);
    let vbd = [world.value("VBD.create", &[Value::Map(record)])];
    assert_eq!(world.value("VBD.get_userdevice", &vbd), "1".into());
    let revision = world.facade.labels_revision();
    let Outcome::Ask(asking) = world.call("VBD.plug", &vbd) else { panic!("the daemon is asked") };
    expect![[r#"[BlockAttach { target: Target("01010101-0101-0101-0101-010101010101"), disk: "format=raw,vdev=xvdb,access=w,target=files:spare", cwd: "/", progress: false }]"#]]
    .assert_eq(&format!("{:?}", asking.requests));
    let plugged = DeviceObject {
        devid: 51728,
        name: Some("xvdb".to_owned()),
        config: "format=raw,vdev=xvdb,access=w,target=files:spare".to_owned(),
        ..disk("attached")
    };
    let key = format!("{VM}/vbd/51728");
    world.apply(vec![change(&key, Object::Device(Some(plugged)))], false);
    let now = world.now_unix_ms;
    let outcome = world.facade.answered(asking, vec![Ok(Reply::Done)], now);
    assert_eq!(outcome, Outcome::Reply(Ok(Value::void())));
    assert_eq!(world.short("VBD.plug", &vbd), "DEVICE_ALREADY_ATTACHED");
    assert_eq!(world.short("VBD.destroy", &vbd), "OPERATION_NOT_ALLOWED");
    assert_eq!(world.short("VBD.unplug", &vbd), "block-detach");
    world.apply(vec![change(&key, Object::Device(None))], false);
    assert_eq!(world.value("VBD.get_currently_attached", &vbd), Value::Bool(false));
    assert!(world.facade.labels_revision() > revision);
    assert_eq!(world.short("VBD.destroy", &vbd), "done");
    assert_eq!(world.short("VBD.get_record", &vbd), "HANDLE_INVALID");
}

#[test]
fn a_vm_that_is_down_is_defined_again() {
    let mut world = World::new(Role::Admin);
    world.apply(vec![vm_change(vm("down")), disk_change(Some(disk("detached")))], false);
    let vdi = world.value("VDI.get_by_name_label", &["spare".into()]);
    let vdi = vdi.as_array().expect("a list")[0].clone();
    let record = BTreeMap::from([("VM".to_owned(), reference()), ("VDI".to_owned(), vdi)]);
    let Outcome::Ask(asking) = world.call("VBD.create", &[Value::Map(record)]) else {
        panic!("the daemon is asked")
    };
    assert_eq!(asking.requests, [Request::ConfigText { target: api::Target(VM.to_string()) }]);
    // Another client has added a disk, which the model does not show yet.
    let told = |disks: &[&str]| {
        let lines: String = disks.iter().map(|it| format!("  \"format=raw,{it}\",\n")).collect();
        format!("name = \"web\"\ndisk = [\n{lines}]\n")
    };
    let text = told(&["vdev=xvda,access=w,target=files:web"]);
    let now = world.now_unix_ms;
    let asked = world.facade.answered(asking, vec![Ok(Reply::Text(text))], now);
    let Outcome::Ask(asking) = asked else { panic!("the daemon is asked again") };
    assert_eq!(api::name_of(&asking.requests[0]), "define");
    let refused = vec![Err(format!("web: {}", api::REPLACED))];
    let Outcome::Ask(asking) = world.facade.answered(asking, refused, now) else {
        panic!("it begins anew")
    };
    assert_eq!(asking.requests, [Request::ConfigText { target: api::Target(VM.to_string()) }]);
    let text =
        told(&["vdev=xvda,access=w,target=files:web", "vdev=xvdc,access=w,target=files:a\\\\b"]);
    let replies = vec![Ok(Reply::Text(text.clone()))];
    let Outcome::Ask(asking) = world.facade.answered(asking, replies, now) else {
        panic!("the daemon is asked again")
    };
    let [Request::Define(define)] = asking.requests.as_slice() else { panic!("it is defined") };
    assert_eq!((&define.config_text, define.replaces.as_ref()), (&text, Some(&text)));
    expect![[r#"
        [
            "disk=[\"format=raw,vdev=xvda,access=w,target=files:web\",\"format=raw,vdev=xvdc,access=w,target=files:a\\\\b\",\"format=raw,vdev=xvdb,access=w,target=files:spare\"]",
        ]"#]]
    .assert_eq(&format!("{:#?}", define.overrides));
    let vbds = world.value("VM.get_VBDs", &[reference()]);
    let vbd = vbds.as_array().expect("a list")[0].clone();
    for (method, args) in [
        ("VBD.destroy", &[vbd][..]),
        ("VM.set_memory", &[reference(), Value::Int(64 << 20)]),
        ("VM.set_VCPUs_max", &[reference(), Value::Int(4)]),
    ] {
        assert_eq!(world.short(method, args), "config-text", "{method}");
    }
    let too_few = [reference(), Value::Int(0)];
    assert_eq!(world.short("VM.set_VCPUs_at_startup", &too_few), "MEMORY_CONSTRAINT_VIOLATION");
    world.apply(vec![vm_change(vm("running"))], false);
    assert_eq!(
        world.short("VM.set_VCPUs_max", &[reference(), Value::Int(4)]),
        "VM_BAD_POWER_STATE"
    );
}

#[test]
fn what_a_failed_copy_has_made_is_taken_away() {
    let mut world = World::new(Role::Admin);
    world.apply(vec![vm_change(vm("down")), disk_change(Some(disk("detached")))], false);
    let Outcome::Ask(asking) = world.call("VM.clone", &[reference(), "a b".into()]) else {
        panic!("the daemon is asked")
    };
    let names: Vec<_> = asking.requests.iter().map(api::name_of).collect();
    assert_eq!(names, ["storage vdi-clone", "storage vdi-list", "config-text"]);
    let text = Reply::Text("name = 'web'".to_owned());
    let replies = vec![Ok(Reply::Done), Ok(Reply::Vdis(VdiList::default())), Ok(text)];
    let now = world.now_unix_ms;
    let Outcome::Ask(asking) = world.facade.answered(asking, replies, now) else {
        panic!("it is defined")
    };
    let refused = vec![Err("no".to_owned())];
    let Outcome::Ask(asking) = world.facade.answered(asking, refused, now) else {
        panic!("the disk goes again")
    };
    let destroy = StorageRequest::VdiDestroy { vdi: "files:a-b-xvda".to_owned() };
    assert_eq!(asking.requests, [Request::Storage(destroy)]);
    let outcome = world.facade.answered(asking, vec![Ok(Reply::Done)], now);
    assert!(matches!(outcome, Outcome::Reply(Err(it)) if it.code() == "INTERNAL_ERROR"));
}

#[test]
fn labels_are_kept_for_the_next_process() {
    let mut world = World::new(Role::Admin);
    world.value("VM.add_to_other_config", &[reference(), "k".into(), "v".into()]);
    assert_eq!(
        world.short("VM.add_to_other_config", &[reference(), "k".into(), "w".into()]),
        "MAP_DUPLICATE_KEY"
    );
    let (_, kept) = world.facade.labels();
    let mut next = Facade::new(Identity { host: HOST, ..Identity::default() }, BASE * 2, &kept);
    std::mem::swap(&mut world.facade, &mut next);
    world.apply(vec![vm_change(vm("running"))], true);
    world.session = world.login("ann", Role::Viewer);
    assert_eq!(world.value("VM.get_other_config", &[reference()]), Value::texts([("k", "v")]));
    // A VM that is there no more takes its labels with it.
    world.apply(vec![change(&VM.to_string(), Object::Vm(None)), disk_change(None)], false);
    world.apply(vec![vm_change(vm("running"))], false);
    assert_eq!(world.value("VM.get_other_config", &[reference()]), Value::map());
}
