//! HVM domains: their device model runs exactly as long as they do.

use sim::{Daemon, HostConfig, ModelFate, MonitorFate};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{CreateStep, Unplug, Wait};
use toolstack::{ConsoleKind, MediumChange, Reply, Request, xlcfg};
use xenstore::client::Nodes as _;

use crate::support::{Lab, unikernel};

const VM: &str = "name = 'hvm'\ntype = 'hvm'\nmemory = 64\n\
                  disk = ['/disk.raw,raw,hda,w']\nvif = ['type=vif']\n";

fn lab() -> Lab {
    let mut lab = Lab::seeded(1);
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    lab
}

#[test]
fn a_device_model_is_spoken_to_by_people() {
    let mut lab = lab();
    lab.create(VM).unwrap();
    let ask = |lab: &mut Lab, target: &str| {
        let command = "info block".to_owned();
        match lab.ask(Request::SpeakToModel { target: target.to_owned(), command }) {
            Reply::Text(text) => Ok(text),
            Reply::Failed(message) => Err(message),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut lab, "hvm"), Ok("you said: info block\n".to_owned()));
    lab.host.os().set_monitor_fate(MonitorFate::Refuses("human-monitor-command"));
    let refused = "the device model of domain 1: human-monitor-command: no";
    assert_eq!(ask(&mut lab, "hvm"), Err(refused.to_owned()));
    lab.host.os().set_monitor_fate(MonitorFate::Silent);
    let silent = "the device model of domain 1: it did not answer within 10 s";
    assert_eq!(ask(&mut lab, "hvm"), Err(silent.to_owned()));
    lab.host.os().set_monitor_fate(MonitorFate::Answers);
    lab.create(&unikernel("pv", "pv", "idle")).unwrap();
    assert_eq!(ask(&mut lab, "pv"), Err("pv: has no device model".to_owned()));
    lab.destroy("pv");
    lab.destroy("hvm");
    lab.assert_nothing_left();
}

/// The reasons of what has happened after a revision, and the revision now.
fn events(lab: &mut Lab, since: Option<u64>) -> (Vec<String>, u64) {
    let Reply::Changes(changes) = lab.ask(Request::Events { since, waits: false }) else {
        panic!("no changes");
    };
    let told = changes.changes.iter().map(|change| change.reason.clone());
    (told.filter(|reason| !reason.is_empty()).collect(), changes.revision)
}

#[test]
fn a_guest_boots_when_its_device_model_is_ready_and_leaves_nothing() {
    let mut lab = lab();
    let domid = lab.create(VM).unwrap();
    lab.settle();
    assert!(lab.host.console(domid).contains("hello from init"), "{}", lab.host.console(domid));
    assert!(lab.host.console(domid).contains("vbd 768: connected"));
    assert_eq!(lab.host.snapshot().unwrap().models.len(), 1);
    assert!(matches!(lab.destroy("hvm"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn a_device_model_starts_while_the_domain_is_built() {
    let mut lab = lab();
    let request = lab.create_request(VM);
    let Reply::Created(created) = lab.ask(request) else { panic!("not created") };
    let time = |step| created.steps.iter().find(|it| it.step == step).unwrap();
    let (model, build) = (time(CreateStep::StartModel.into()), time(CreateStep::Build.into()));
    assert!(model.started < build.ended.unwrap());
    assert!(time(Wait::Model.into()).ended.unwrap() <= time(CreateStep::Unpause.into()).started);
}

#[test]
fn a_device_model_that_fails_or_is_silent_fails_the_create_and_leaves_nothing() {
    for (fate, words) in [
        (ModelFate::Fails(1_000_000), "its device model (pid 1000) ended with status 1"),
        (ModelFate::Fails(500_000_000), "its device model (pid 1000) ended with status 1"),
        (ModelFate::Silent, "the device model was not ready within 60 s"),
    ] {
        let mut lab = lab();
        lab.host.os().set_model_fate(fate);
        let error = lab.create(VM).unwrap_err();
        assert!(error.contains(words), "{fate:?}: {error}");
        lab.settle();
        lab.assert_nothing_left();
    }
}

#[test]
fn the_death_of_a_device_model_is_a_crash_of_its_domain() {
    let mut lab = lab();
    lab.host.os().set_model_fate(ModelFate::Dies { ready: 300_000_000, dies: 5_000_000_000 });
    let (_, before) = events(&mut lab, None);
    lab.create(VM).unwrap();
    lab.settle();
    let (events, _) = events(&mut lab, Some(before));
    let told =
        events.iter().any(|it| it.contains("device model (pid 1000) was ended by signal 11"));
    assert!(told, "{events:?}");
    lab.assert_nothing_left();

    // By the VM's policy it comes back, with another device model, until that is a loop.
    lab.create(&format!("{VM}on_crash = 'restart'\n")).unwrap();
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn the_next_daemon_finds_the_device_model_and_notices_its_exit() {
    let mut lab = lab();
    lab.create(VM).unwrap();
    lab.settle();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(lab.host.snapshot().unwrap().models.len(), 1);
    assert!(matches!(lab.destroy("hvm"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();

    lab.host.os().set_model_fate(ModelFate::Dies { ready: 300_000_000, dies: 60_000_000_000 });
    lab.create(VM).unwrap();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn a_guest_that_reboots_gets_another_device_model() {
    let mut lab = lab();
    let before = lab.create(VM).unwrap();
    lab.settle();
    let models = lab.host.os().get().models();
    let reboot = Request::Shutdown {
        target: "hvm".to_owned(),
        how: toolstack::ShutdownRequest::Reboot,
        reply: toolstack::ReplyWhen::Gone,
    };
    assert!(matches!(lab.ask(reboot), Reply::Gone { .. }));
    lab.settle();
    let now = lab.host.os().get().models();
    assert_eq!((models.len(), now.len()), (1, 1));
    assert_ne!((models[0].domid, models[0].process), (now[0].domid, now[0].process));
    assert_eq!(models[0].domid, before);
    assert!(matches!(lab.destroy("hvm"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn a_missing_qemu_is_reported_before_anything_is_created() {
    let mut lab = Lab::new(HostConfig::default());
    let error = lab.create(VM).unwrap_err();
    assert!(error.contains("hvmloader; on Debian it is in xen-utils"), "{error}");
    lab.settle();
    lab.assert_nothing_left();
}

fn change(lab: &mut Lab, path: Option<&str>, how: Unplug) -> Option<String> {
    let drive = DeviceRef { kind: DeviceKind::Vbd, devid: 5632 };
    let spec = |path: &str| format!("{path},raw,hdc:cdrom,r");
    let medium = path.map(|path| xlcfg::parse_disk(&spec(path)).unwrap());
    let change = Box::new(MediumChange { drive, medium, how });
    match lab.ask(Request::ChangeMedium { target: "hvm".to_owned(), change }) {
        Reply::Done { .. } => None,
        Reply::Failed(message) => Some(message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_serial_ports_are_is_in_the_store_as_long_as_the_domain() {
    let mut lab = lab();
    let domid = lab.create(&format!("{VM}serial = ['null', 'pty']\n")).unwrap();
    lab.settle();
    let tty = |lab: &Lab, port| {
        lab.host.connect().read(&format!("/local/domain/{domid}/serial/{port}/tty")).ok()
    };
    assert_eq!(tty(&lab, 1).as_deref(), Some(&b"/dev/pts/11"[..]));
    assert_eq!(tty(&lab, 0), None);
    let console = |lab: &mut Lab, kind, number| match lab.ask(Request::Console {
        target: "hvm".to_owned(),
        kind,
        number,
    }) {
        Reply::Console { tty, .. } => tty,
        other => panic!("{other:?}"),
    };
    let pv = console(&mut lab, Some(ConsoleKind::Pv), 0);
    assert!(pv.is_some());
    let serial = Some("/dev/pts/11".to_owned());
    assert_eq!(console(&mut lab, Some(ConsoleKind::Serial), 1), serial);
    assert_eq!(console(&mut lab, None, 1), serial, "the primary console is the serial port");
    assert_eq!(console(&mut lab, None, 0), pv, "without that port it is the PV console");
    assert_eq!(console(&mut lab, Some(ConsoleKind::Pv), 1), None);
    assert!(matches!(lab.destroy("hvm"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

/// CDs that are attached. What QEMU still has open cannot be detached.
fn media(lab: &Lab) -> Vec<String> {
    let os = lab.host.os();
    let os = os.get();
    os.loops().values().map(|it| it.path.clone()).filter(|it| it.starts_with("/cd")).collect()
}

fn lab_with_drive() -> Lab {
    let mut lab = lab();
    for path in ["/cd-1.iso", "/cd-2.iso"] {
        lab.host.os().add_disk(path, 1 << 20);
    }
    lab.create(&VM.replace("hda,w'", "hda,w', ',,hdc:cdrom,r'")).unwrap();
    lab.settle();
    lab
}

#[test]
fn the_device_model_changes_the_cd_of_an_emulated_drive() {
    let mut lab = lab_with_drive();
    for how in [Unplug::Clean, Unplug::Forced] {
        assert_eq!(change(&mut lab, None, how), None, "ejected from an empty drive");
        assert_eq!(change(&mut lab, Some("/cd-1.iso"), how), None);
        assert_eq!(media(&lab), ["/cd-1.iso"]);
        assert_eq!(change(&mut lab, Some("/cd-2.iso"), how), None);
        assert_eq!(media(&lab), ["/cd-2.iso"]);
        let refusal = change(&mut lab, Some("/cd-3.iso"), how).unwrap();
        assert_eq!(refusal, "hvm: hdc: /cd-3.iso: no such file or directory");
        assert_eq!(media(&lab), ["/cd-2.iso"]);
        lab.daemon = Daemon::restart(&lab.host).unwrap();
        lab.settle();
        assert_eq!(change(&mut lab, None, how), None);
        assert_eq!(media(&lab), [""; 0]);
    }
    assert!(matches!(lab.destroy("hvm"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn a_device_model_that_refuses_a_cd_leaves_the_drive_as_it_was() {
    let mut lab = lab_with_drive();
    lab.host.os().set_monitor_fate(MonitorFate::Refuses("blockdev-change-medium"));
    let refusal = change(&mut lab, Some("/cd-1.iso"), Unplug::Clean).unwrap();
    assert!(
        refusal.contains("the device model of domain 1: blockdev-change-medium: no"),
        "{refusal}"
    );
    assert_eq!(media(&lab), [""; 0]);
    lab.host.os().set_monitor_fate(MonitorFate::Answers);
    assert_eq!(change(&mut lab, Some("/cd-1.iso"), Unplug::Clean), None);
    lab.host.os().set_monitor_fate(MonitorFate::Refuses("eject"));
    for path in [None, Some("/cd-2.iso")] {
        let refusal = change(&mut lab, path, Unplug::Clean).unwrap();
        assert!(refusal.contains("eject: no"), "{refusal}");
        assert_eq!(media(&lab), ["/cd-1.iso"]);
    }
    lab.host.os().set_monitor_fate(MonitorFate::Answers);
    assert_eq!(change(&mut lab, Some("/cd-2.iso"), Unplug::Clean), None);
    assert!(matches!(lab.destroy("hvm"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}
