//! HVM domains: their device model runs exactly as long as they do.

use sim::{Daemon, HostConfig, ModelFate};
use toolstack::plan::{CreateStep, Wait};
use toolstack::{Reply, Request};

use crate::support::Lab;

const VM: &str = "name = 'hvm'\ntype = 'hvm'\nmemory = 64\n\
                  disk = ['/disk.raw,raw,hda,w']\nvif = ['type=vif']\n";

fn lab() -> Lab {
    let mut lab = Lab::seeded(1);
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    lab
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
