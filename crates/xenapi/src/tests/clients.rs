//! What trials with real clients have shown (docs/xenapi.md).

use api::{CheckpointRequest, CheckpointRow, TuneRequest};

use super::*;

/// Makes a snapshot as Xen Orchestra does, and returns it with the name that the daemon is told.
fn snapshot(world: &mut World, label: &str) -> (Value, String) {
    let args = [reference(), label.into(), Value::Array(Vec::new())];
    let Outcome::Started { task, work } = world.call("Async.VM.snapshot", &args) else {
        panic!("it is started")
    };
    let Outcome::Ask(asking) = *work else { panic!("the daemon is asked") };
    let Request::Checkpoint(CheckpointRequest::Checkpoint(make)) = &asking.requests[0] else {
        panic!("{:?}", asking.requests)
    };
    let name = make.name.clone().expect("it has one");
    let row = CheckpointRow {
        vm: "web".to_owned(),
        uuid: VM.to_string(),
        name: name.clone(),
        ..CheckpointRow::default()
    };
    let known = world.facade.mirror.checkpoints.get(&VM).cloned().unwrap_or_default();
    let rows = known.into_iter().chain([row]).collect();
    let replies = [Reply::Checkpointed { name: name.clone() }, Reply::Checkpoints(rows)];
    let now = world.now_unix_ms;
    world.facade.answered(asking, replies.map(Ok).into(), now);
    assert_eq!(world.value("task.get_status", std::slice::from_ref(&task)), "success".into());
    let result = world.value("task.get_result", &[task]);
    let text = result.as_str().and_then(|it| it.strip_prefix("<value>")?.strip_suffix("</value>"));
    (text.expect("a value as in XML-RPC").into(), name)
}

#[test]
fn a_snapshot_is_a_checkpoint_that_is_called_as_the_client_says() {
    let mut world = World::new(Role::Admin);
    let (first, name) = snapshot(&mut world, "before a test");
    assert_eq!(name, "before-a-test");
    let first = [first];
    assert_eq!(world.value("VM.get_name_label", &first), "before a test".into());
    assert_eq!(world.value("VM.get_is_a_snapshot", &first), Value::Bool(true));
    let (_, name) = snapshot(&mut world, "before a test");
    assert!(name.starts_with("before-a-test-"), "{name}");
    let all = world.value("VM.get_by_name_label", &["before a test".into()]);
    assert_eq!(all.as_array().map(<[Value]>::len), Some(2));
    let kept = world.facade.labels().1;
    assert!(kept.to_string().contains("before a test"), "for the next process, too");
    world.apply(vec![vm_change(vm("down"))], false);
    let args = [reference(), "x".into()];
    assert_eq!(world.short("VM.snapshot", &args), "VM_BAD_POWER_STATE");
}

/// Xen Orchestra marks snapshots as no templates, may describe them, and turns off what is suspended before it is destroyed.
#[test]
fn a_snapshot_is_labelled_and_destroyed() {
    let mut world = World::new(Role::Admin);
    let (snapshot, _) = snapshot(&mut world, "s");
    let with = |value: Value| [snapshot.clone(), value];
    assert_eq!(world.short("VM.set_is_a_template", &with(Value::Bool(false))), "done");
    assert_eq!(world.value("VM.get_is_a_template", &with(Value::null())[..1]), Value::Bool(false));
    assert_eq!(world.short("VM.set_name_label", &with("another".into())), "done");
    assert_eq!(world.value("VM.get_name_label", &with(Value::null())[..1]), "another".into());
    assert_eq!(world.short("VM.set_name_description", &with("why".into())), "done");
    let alone = [snapshot];
    assert_eq!(world.short("VM.hard_shutdown", &alone), "done");
    assert_eq!(
        world.short("VM.destroy", &alone),
        "checkpoint checkpoint-destroy, checkpoint checkpoint-list"
    );
}

/// Xen Orchestra sets it, of each VM that has none, whenever the VM changes.
#[test]
fn a_vm_says_how_many_cores_its_socket_has() {
    let mut world = World::new(Role::Viewer);
    let platform = world.value("VM.get_platform", &[reference()]);
    assert_eq!(platform, Value::texts([("cores-per-socket", "2")]));
}

/// Xen Orchestra gives a VM that runs more of them in two calls, the second with the number as text.
#[test]
fn vcpus_of_a_vm_that_runs_are_set_by_either_call() {
    let mut world = World::new(Role::Admin);
    for (method, value) in
        [("VM.set_VCPUs_at_startup", Value::Int(2)), ("VM.set_VCPUs_number_live", "2".into())]
    {
        let Outcome::Ask(asking) = world.call(method, &[reference(), value]) else {
            panic!("{method}: the daemon is asked")
        };
        let target = api::Target(VM.to_string());
        let tune = TuneRequest::VcpuSet { target, vcpus: 2, ignore_host: false };
        assert_eq!(asking.requests, [Request::Tune(tune)]);
    }
    world.apply(vec![vm_change(vm("down"))], false);
    let args = [reference(), Value::Int(2)];
    assert_eq!(world.short("VM.set_VCPUs_at_startup", &args), "config-text");
}

/// Xen Orchestra ejects whatever a VM has before it makes a template of it.
#[test]
fn a_disk_is_no_drive_whether_the_vm_runs_or_not() {
    for state in ["running", "down"] {
        let mut world = World::new(Role::Admin);
        world.apply(vec![vm_change(vm(state))], false);
        let vbds = world.value("VM.get_VBDs", &[reference()]);
        let vbd = vbds.as_array().expect("a list")[0].clone();
        assert_eq!(world.short("VBD.eject", &[vbd]), "VBD_NOT_REMOVABLE_MEDIA");
    }
}

/// Xen Orchestra destroys a disk that a VM has, and starts the VM.
#[test]
fn a_vm_that_is_down_does_not_keep_a_disk_that_is_gone() {
    let mut world = World::new(Role::Admin);
    world.apply(vec![vm_change(vm("down")), disk_change(Some(disk("detached")))], false);
    let vdi = world.value("VDI.get_by_name_label", &["web".into()]);
    let vdi = vdi.as_array().expect("a list")[0].clone();
    let Outcome::Ask(asking) = world.call("VDI.destroy", &[vdi]) else {
        panic!("the daemon is asked")
    };
    let names: Vec<_> = asking.requests.iter().map(api::name_of).collect();
    assert_eq!(names, ["storage vdi-destroy", "storage vdi-list", "config-text"]);
    let list = VdiList { vdis: Vec::new(), problems: Vec::new() };
    let text = Reply::Text("name = 'web'".to_owned());
    let replies = vec![Ok(Reply::Done), Ok(Reply::Vdis(list)), Ok(text)];
    let now = world.now_unix_ms;
    let Outcome::Ask(asking) = world.facade.answered(asking, replies, now) else {
        panic!("the VM is defined again")
    };
    let [Request::Define(define)] = &asking.requests[..] else { panic!("{:?}", asking.requests) };
    assert_eq!(define.overrides, ["disk=[]"]);
    let done = world.facade.answered(asking, vec![Ok(Reply::Done)], now);
    assert_eq!(done, Outcome::Reply(Ok(Value::void())));
}

/// The same of a disk that a VM could plug.
#[test]
fn nobody_can_plug_a_disk_that_is_gone() {
    let mut world = World::new(Role::Admin);
    let vdi = world.value("VDI.get_by_name_label", &["spare".into()]);
    let vdi = vdi.as_array().expect("a list")[0].clone();
    let record = BTreeMap::from([("VM".to_owned(), reference()), ("VDI".to_owned(), vdi.clone())]);
    let vbd = [world.value("VBD.create", &[Value::Map(record)])];
    let Outcome::Ask(asking) = world.call("VDI.destroy", &[vdi]) else {
        panic!("the daemon is asked")
    };
    let list = Reply::Vdis(VdiList { vdis: Vec::new(), problems: Vec::new() });
    let now = world.now_unix_ms;
    let done = world.facade.answered(asking, vec![Ok(Reply::Done), Ok(list)], now);
    assert_eq!(done, Outcome::Reply(Ok(Value::void())));
    assert_eq!(world.short("VBD.get_record", &vbd), "HANDLE_INVALID");
}

/// Xen Orchestra sets memory and vCPUs of a new VM at once: neither call undoes the other.
#[test]
fn sizes_are_changed_one_by_one() {
    let mut world = World::new(Role::Admin);
    world.apply(vec![vm_change(vm("down"))], false);
    let mut overrides = Vec::new();
    let mut last = None;
    let memory = Value::Int(32 << 20);
    for (method, value) in
        [("VM.set_memory_dynamic_max", memory), ("VM.set_VCPUs_at_startup", Value::Int(2))]
    {
        let Outcome::Ask(asking) = world.call(method, &[reference(), value]) else {
            panic!("{method}: the daemon is asked")
        };
        let text = Reply::Text("name = 'web'".to_owned());
        let now = world.now_unix_ms;
        let Outcome::Ask(asking) = world.facade.answered(asking, vec![Ok(text)], now) else {
            panic!("{method}: the VM is defined again")
        };
        let [Request::Define(define)] = &asking.requests[..] else { panic!("{method}") };
        overrides.extend(define.overrides.clone());
        last = Some(asking);
    }
    assert_eq!(overrides, ["memory=32", "vcpus=2"]);
    let mut both = vm("down");
    if let Some(sizes) = both.config.as_mut() {
        (sizes.memory_mib, sizes.vcpus) = (32, 2);
    }
    world.apply(vec![vm_change(both)], false);
    let now = world.now_unix_ms;
    let done = world.facade.answered(last.expect("two"), vec![Ok(Reply::Done)], now);
    assert_eq!(
        done,
        Outcome::Reply(Ok(Value::void())),
        "it is seen beside what the other has changed"
    );
}
