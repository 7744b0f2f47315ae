//! Devices that QEMU serves to PV and PVH domains: its process runs as long as they do, and they do without it.

use sim::{Daemon, ModelFate};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{CreateStep, Start, Unplug, Wait};
use toolstack::saved::{AfterSave, FileFormat};
use toolstack::{Device, Reply, Request, VmState, xlcfg};
use xen::DomId;
use xenstore::client::{Batch, Nodes as _};
use xenstore::{Access, Permission};

use crate::save::save_as;
use crate::support::Lab;

const VM: &str = "name = 'one'\nkernel = '/kernel'\nramdisk = '/initrd'\nmemory = 16\nextra = 'sim.kind=linux'\nvif = ['']\n\
                  channel = ['connection=pty,name=org.agent']\nvfb = ['']\n";
const FILE: &str = "/saved";

fn lab() -> Lab {
    let mut lab = Lab::seeded(1);
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    lab
}

fn models(lab: &Lab) -> usize {
    lab.host.snapshot().unwrap().models.len()
}

#[test]
fn qemu_starts_when_the_nodes_are_there_and_ends_with_its_domain() {
    let mut lab = lab();
    let request = lab.create_request(VM);
    let Reply::Created(created) = lab.ask(request) else { panic!("not created") };
    let time = |step| created.steps.iter().find(|it| it.step == step).unwrap();
    let nodes = time(CreateStep::WriteNodes(Start::Running).into());
    let model = time(CreateStep::StartModel.into());
    assert!(nodes.ended.unwrap() <= model.started);
    assert!(time(Wait::Model.into()).ended.unwrap() <= time(CreateStep::Unpause.into()).started);
    lab.settle();
    let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: "one".to_owned() })
    else {
        panic!("no devices")
    };
    let kinds: Vec<DeviceKind> = devices.iter().map(|it| it.device.kind).collect();
    use DeviceKind::{Console, Vfb, Vif, Vkbd};
    assert_eq!(kinds, [Vif, Console, Vfb, Vkbd]);
    assert_eq!(devices[1].connection.as_deref(), Some("pty"));
    assert_eq!(models(&lab), 1);
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

/// Programs of domain 0 open the pty of a channel. The guest has its folder in the store, and may make it anew.
#[test]
fn the_pty_of_a_channel_is_what_domain_0_wrote() {
    let mut lab = lab();
    let domid = lab.create(VM).unwrap();
    lab.settle();
    let path = format!("/local/domain/{domid}/device/console/1/tty");
    let tty = |lab: &mut Lab| {
        let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: "one".to_owned() })
        else {
            panic!("no devices")
        };
        devices[1].tty.clone()
    };
    let write = |lab: &Lab, value: &str, owner: DomId| {
        let mut batch = Batch::new();
        batch.rm(&path);
        batch.write(&path, value);
        batch.set_perms(&path, &[Permission::new(Access::None, owner)]);
        lab.host.connect().run(&batch).unwrap().all_ok().unwrap();
    };
    write(&lab, "/dev/pts/7", DomId::DOM0);
    assert_eq!(tty(&mut lab).as_deref(), Some("/dev/pts/7"));
    write(&lab, "/dev/sda", domid);
    assert_eq!(tty(&mut lab), None);
}

#[test]
fn a_create_fails_with_a_qemu_that_fails() {
    for fate in [ModelFate::Fails(1_000_000), ModelFate::Silent] {
        let mut lab = lab();
        lab.host.os().set_model_fate(fate);
        lab.create(VM).unwrap_err();
        lab.settle();
        lab.assert_nothing_left();
    }
    let mut lab = Lab::seeded(1);
    let error = lab.create(VM).unwrap_err();
    assert!(error.contains("QEMU for Xen; on Debian it is in qemu-system-xen"), "{error}");
    lab.assert_nothing_left();
}

#[test]
fn a_guest_goes_on_without_qemu() {
    let mut lab = lab();
    lab.host.os().set_model_fate(ModelFate::Dies { ready: 300_000_000, dies: 5_000_000_000 });
    lab.create(VM).unwrap();
    lab.settle();
    assert_eq!((lab.state("one"), models(&lab)), (VmState::Running, 0));
    // As for the next daemon.
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(lab.state("one"), VmState::Running);
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn the_next_daemon_finds_qemu_and_a_restored_guest_has_another() {
    let mut lab = lab();
    lab.create(VM).unwrap();
    lab.settle();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(models(&lab), 1);
    let saved = lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xylem));
    assert!(!matches!(saved, Reply::Failed(_)), "{saved:?}");
    lab.settle();
    assert_eq!(models(&lab), 0);
    let Reply::SavedFile(file) = lab.ask(Request::ReadSaved { path: FILE.to_owned() }) else {
        panic!("not read")
    };
    let source = xlcfg::Source { file: FILE, text: &file.config_text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    let request = Request::Restore { file, config, start: Start::Running };
    assert!(matches!(lab.ask(request), Reply::Created(_)));
    lab.settle();
    assert_eq!(models(&lab), 1);
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.settle();
}

fn keyboard(devid: u32) -> Request {
    let keyboard = xlcfg::parse_keyboard("backend-type=qemu").unwrap();
    let device = Box::new(Device::Keyboard(devid, keyboard));
    Request::Plug { target: "one".to_owned(), device }
}

fn failure(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_keyboard_is_added_to_a_guest_that_has_a_qemu() {
    let mut lab = lab();
    lab.create(VM).unwrap();
    lab.settle();
    let unplug = |devid| {
        let device = DeviceRef { kind: DeviceKind::Vkbd, devid };
        Request::Unplug { target: "one".to_owned(), device, how: Unplug::Forced }
    };
    assert_eq!(failure(lab.ask(unplug(0))), "one: keyboard 0 is its screen's");
    assert_eq!(failure(lab.ask(unplug(1))), "one: has no keyboard 1");
    assert_eq!(failure(lab.ask(keyboard(0))), "one: has a keyboard 0 already");
    // The simulated QEMU serves none.
    let message = failure(lab.ask(keyboard(1)));
    assert!(message.contains("the backend of keyboard 1 did not answer within 30 s"), "{message}");
    lab.settle();
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();

    let plain = VM.replace("channel = ['connection=pty,name=org.agent']\nvfb = ['']\n", "");
    lab.create(&plain).unwrap();
    lab.settle();
    let message = failure(lab.ask(keyboard(0)));
    assert!(message.starts_with("one: no QEMU runs for it"), "{message}");
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
}
