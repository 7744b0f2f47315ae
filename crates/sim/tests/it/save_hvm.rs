//! Saves and restores of HVM VMs: their device model's state goes with them.

use sim::{Daemon, MonitorFate};
use toolstack::plan::Start;
use toolstack::saved::{AfterSave, FileFormat, SavedFile};
use toolstack::{Reply, Request, VmState, xlcfg};
use xen::DomId;

use crate::save::{killed, save_as};
use crate::support::{A_WHILE, Lab};

const FILE: &str = "/saved";
const VM: &str = "name = 'one'\ntype = 'hvm'\nmemory = 16\nvcpus = 2\n\
                  disk = ['/disk.raw,raw,hda,w']\nvif = ['type=vif,bridge=xenbr0']\n";

fn lab(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux sim.writes=50");
    lab.before = lab.host.snapshot().unwrap();
    lab
}

fn started(seed: u64) -> (Lab, DomId) {
    let mut lab = lab(seed);
    let domid = lab.create(VM).unwrap();
    for _ in 0..4 {
        lab.pass(A_WHILE);
    }
    (lab, domid)
}

fn read(lab: &mut Lab) -> Box<SavedFile> {
    match lab.ask(Request::ReadSaved { path: FILE.to_owned() }) {
        Reply::SavedFile(file) => file,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn restore_as(lab: &mut Lab, text: Option<&str>) -> Result<DomId, String> {
    let file = read(lab);
    let text = text.unwrap_or(&file.config_text).to_owned();
    let source = xlcfg::Source { file: FILE, text: &text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    match lab.ask(Request::Restore { file, config, start: Start::Running }) {
        Reply::Created(created) => Ok(created.domid),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_runs_on(lab: &mut Lab, domid: DomId) {
    lab.pass(A_WHILE);
    let told = lab.host.console(domid);
    assert!(!told.contains("in a new domain"), "{told}");
    assert_eq!(lab.state("one"), VmState::Running);
    assert!(lab.host.os().models_are_at_rest());
    assert_eq!(lab.host.os().model_lives(domid), Some(0));
}

#[test]
fn a_vm_goes_on_elsewhere_with_its_device_models_state() {
    let (mut lab, _) = started(1);
    for (life, format) in
        [FileFormat::Xylem, FileFormat::Xl, FileFormat::Xylem].into_iter().enumerate()
    {
        let reply = lab.ask(save_as(AfterSave::Destroyed, format));
        assert!(matches!(reply, Reply::Gone { .. }), "{reply:?}");
        lab.settle();
        lab.assert_nothing_left();
        assert_eq!(read(&mut lab).format, format);
        let domid = restore_as(&mut lab, None).unwrap();
        lab.pass(A_WHILE);
        let told = lab.host.console(domid);
        assert!(told.contains("memory: as written"), "{told}");
        assert!(told.contains("in a new domain"), "{told}");
        assert_eq!(lab.host.os().model_lives(domid), Some(u32::try_from(life).unwrap() + 1));
        assert!(lab.host.os().models_are_at_rest());
    }
    lab.destroy("one");
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn a_guest_that_goes_on_keeps_its_device_model() {
    for after in [AfterSave::Running, AfterSave::Paused] {
        let (mut lab, domid) = started(2);
        let reply = lab.ask(save_as(after, FileFormat::Xylem));
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
        if after == AfterSave::Paused {
            assert!(matches!(
                lab.ask(Request::Unpause { target: "one".to_owned() }),
                Reply::Done { .. }
            ));
        }
        assert_runs_on(&mut lab, domid);
        lab.destroy("one");
        lab.settle();
        lab.assert_nothing_left();
        restore_as(&mut lab, None).unwrap();
        lab.destroy("one");
        lab.settle();
        lab.assert_nothing_left();
    }
}

#[test]
fn a_device_model_that_does_not_give_its_state_ends_the_save_and_the_guest_runs_on() {
    for (fate, words) in [
        (MonitorFate::Silent, "the device model of domain 1: it did not answer within 10 s"),
        (
            MonitorFate::Garbage,
            "the device model of domain 1: its monitor said something that is not QMP",
        ),
        (MonitorFate::SavesNothing, "the device model of domain 1: it saved no state"),
        (MonitorFate::Refuses("xen-save-devices-state"), "xen-save-devices-state: no"),
        (MonitorFate::Refuses("stop"), "the device model of domain 1: stop: no"),
    ] {
        let (mut lab, domid) = started(3);
        lab.host.os().set_monitor_fate(fate);
        let reply = lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xylem));
        let Reply::Failed(why) = reply else { panic!("{fate:?}: {reply:?}") };
        assert!(why.contains(words), "{fate:?}: {why}");
        assert!(lab.host.os().file(FILE).is_none());
        lab.host.os().set_monitor_fate(MonitorFate::Answers);
        lab.pass(A_WHILE);
        assert_eq!(lab.state("one"), VmState::Running, "{fate:?}");
        let _ = domid;
        lab.destroy("one");
        lab.settle();
        lab.assert_nothing_left();
    }
}

#[test]
fn a_device_model_that_dies_in_a_save_takes_its_guest_along_and_leaves_nothing() {
    for command in ["qmp_capabilities", "stop", "xen-save-devices-state"] {
        let (mut lab, _) = started(4);
        lab.host.os().set_monitor_fate(MonitorFate::DiesAt(command));
        let reply = lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xylem));
        assert!(matches!(reply, Reply::Failed(_)), "{command}: {reply:?}");
        lab.settle();
        assert_eq!(lab.state("one"), VmState::Gone, "{command}");
        assert!(lab.host.os().file(FILE).is_none());
        lab.assert_nothing_left();
    }
}

#[test]
fn a_state_that_no_device_model_takes_ends_the_restore_and_leaves_nothing() {
    let (mut lab, _) = started(5);
    lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xylem));
    lab.settle();
    for fate in [
        MonitorFate::Refuses("migrate-incoming"),
        MonitorFate::Garbage,
        MonitorFate::DiesAt("getfd"),
    ] {
        lab.host.os().set_monitor_fate(fate);
        let why = restore_as(&mut lab, None).unwrap_err();
        assert!(why.contains("device model"), "{fate:?}: {why}");
        lab.settle();
        lab.assert_nothing_left();
    }
    lab.host.os().set_monitor_fate(MonitorFate::Answers);
    restore_as(&mut lab, None).unwrap();
}

#[test]
fn the_file_of_an_hvm_guest_makes_no_pvh_guest() {
    let (mut lab, _) = started(6);
    lab.ask(save_as(AfterSave::Destroyed, FileFormat::Xylem));
    lab.settle();
    let text = "name = 'one'\ntype = 'pvh'\nkernel = '/kernel'\nmemory = 16\nvcpus = 2\n";
    let why = restore_as(&mut lab, Some(text)).unwrap_err();
    assert_eq!(why, "/saved: it has the state of a device model: it is an HVM guest's");
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn whenever_the_daemon_is_killed_the_vm_runs_with_its_device_model_or_is_in_its_file() {
    for after in [AfterSave::Destroyed, AfterSave::Running] {
        let mut in_file = 0;
        for action in (1..600).step_by(7) {
            let (mut lab, domid) = started(7);
            let was_killed = killed(&mut lab, action, save_as(after, FileFormat::Xylem));
            if was_killed {
                lab.daemon = Daemon::start(&lab.host).unwrap();
            }
            lab.pass(A_WHILE);
            lab.pass(A_WHILE);
            match lab.state("one") {
                VmState::Running => assert_runs_on(&mut lab, domid),
                VmState::Gone => {
                    assert_eq!(after, AfterSave::Destroyed, "{action}");
                    in_file += 1;
                    restore_as(&mut lab, None).unwrap();
                }
                other => panic!("{action}: {other:?}"),
            }
            lab.destroy("one");
            lab.assert_nothing_left();
            if !was_killed {
                assert!(action > 50, "{action}");
                break;
            }
        }
        assert_eq!(in_file > 0, after == AfterSave::Destroyed);
    }
}
