//! VMs whose kernel is on their own disk.

use sim::{BootloaderFate, Daemon};
use toolstack::plan::CreateStep;
use toolstack::{Reply, Request, ShutdownRequest};

use crate::support::Lab;

const PROGRAM: &str = "/usr/lib/xen/bin/pygrub";
const VM: &str = "name = 'one'\ntype = 'pv'\nbootloader = 'pygrub'\nmemory = 16\n\
                  extra = 'from the file'\nbootloader_args = ['--entry=2']\n\
                  disk = ['/disk.raw,raw,xvda,rw', '/neighbour.raw,raw,xvdb,rw']\n";

fn lab() -> Lab {
    let mut lab = Lab::seeded(1);
    lab.host.os().add_file(PROGRAM, vec![b'#'; 8]);
    lab.host.os().set_bootloader(found("sim.kind=linux"));
    lab.before = lab.host.snapshot().unwrap();
    lab
}

fn found(cmdline: &str) -> BootloaderFate {
    BootloaderFate::finds(sim::kernel_image(), Some(vec![0x1f; 30_000]), cmdline)
}

#[test]
fn a_guest_boots_what_its_bootloader_finds() {
    let mut lab = lab();
    let request = lab.create_request(VM);
    let Reply::Created(created) = lab.ask(request) else { panic!("not created") };
    lab.settle();
    let console = lab.host.console(created.domid);
    assert!(
        console.contains("30000 bytes") && console.contains("vbd 51728: connected"),
        "{console}"
    );
    let runs = lab.host.os().bootloader_runs();
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    assert_eq!(run.program, PROGRAM);
    assert_eq!(
        run.arguments.join(" "),
        "--args=from the file --quiet --output=/run/out/answer --output-format=simple0 \
         --output-directory=/run/out --entry=2 /run/disk"
    );
    assert_eq!(lab.host.os().bootloader_folders(), 0);
    let started =
        |step: CreateStep| created.steps.iter().find(|it| it.step == step.into()).unwrap().started;
    assert!(started(CreateStep::RunBootloader) > started(CreateStep::Record));
    assert!(started(CreateStep::CreateDomain) > started(CreateStep::RunBootloader));
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.assert_nothing_left();
}

/// Which Xen this is was asked only to find the bootloader, whose path depends on it.
#[test]
fn it_is_looked_for_once_at_a_start() {
    let mut lab = lab();
    let questions = |lab: &Lab| {
        let machine = lab.host.machine();
        let calls = machine.get();
        calls.calls().find(|(name, _)| *name == "xen_version").map_or(0, |(_, count)| count)
    };
    let before = questions(&lab);
    lab.create(&VM.replace("bootloader = 'pygrub'", "kernel = '/kernel'")).unwrap();
    let without = questions(&lab) - before;
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    let before = questions(&lab);
    lab.create(VM).unwrap();
    // Those of one look.
    assert_eq!(questions(&lab) - before - without, 9);
}

#[test]
fn it_is_run_again_at_each_start_of_the_vm() {
    let mut lab = lab();
    lab.create(VM).unwrap();
    lab.settle();
    // The guest has installed another kernel meanwhile.
    lab.host.os().set_bootloader(found("sim.kind=linux sim.behaviour=crashes"));
    let client = lab.daemon.request(Lab::shutdown_request("one", ShutdownRequest::Reboot)).unwrap();
    let Reply::Gone { .. } = lab.wait(client) else { panic!("not rebooted") };
    lab.settle();
    assert_eq!(lab.host.os().bootloader_runs().len(), 2);
    // The second kernel crashes, as it was told.
    lab.assert_nothing_left();
}

#[test]
fn whatever_it_does_the_create_fails_with_a_reason_and_leaves_nothing() {
    let answers = |text: &str| BootloaderFate::Answers {
        answer: text.as_bytes().to_vec(),
        files: [("k".to_owned(), vec![7; 9000])].into(),
    };
    let place = format!("vm.cfg:3: bootloader: {PROGRAM}: ");
    for (fate, words) in [
        (
            BootloaderFate::Fails("pygrub did not end within 120 s".to_owned()),
            "did not end within 120 s",
        ),
        (
            BootloaderFate::Fails("was ended by signal 9: without a word".to_owned()),
            "ended by signal 9",
        ),
        (answers(""), "it named no kernel"),
        (answers("kernel /etc/passwd\0"), "it named a file outside of /run/out"),
        (answers("kernel /run/out/none\0"), "the kernel that it found: no such file"),
        (answers("kernel /run/out/k\0"), "the kernel that it found: "),
        (answers(&"x".repeat(70_000)), "longer than 65536 bytes"),
    ] {
        let mut lab = lab();
        lab.host.os().set_bootloader(fate);
        let error = lab.create(VM).unwrap_err();
        assert!(error.contains(words) && error.starts_with(&place), "{error}");
        assert_eq!(lab.host.os().bootloader_folders(), 0);
        lab.assert_nothing_left();
    }
}

#[test]
fn a_missing_bootloader_is_named_before_anything_is_made() {
    let mut lab = lab();
    let text = VM.replace("'pygrub'", "'/opt/mygrub'");
    let error = lab.create(&text).unwrap_err();
    assert!(
        error.contains("vm.cfg:3: bootloader: no bootloader /opt/mygrub on this host"),
        "{error}"
    );
    assert!(lab.host.os().bootloader_runs().is_empty());
    lab.assert_nothing_left();
}

#[test]
fn a_daemon_that_is_killed_meanwhile_leaves_nothing() {
    for steps in 1..40 {
        let mut lab = lab();
        let request = lab.create_request(VM);
        lab.daemon.request(request).unwrap();
        let until = lab.until();
        for _ in 0..steps {
            lab.daemon.step(until).unwrap();
        }
        drop(std::mem::replace(&mut lab.daemon, Daemon::start(&lab.host).unwrap()));
        lab.settle();
        if matches!(lab.ask(Request::Resolve { target: "one".to_owned() }), Reply::Resolved { .. })
        {
            lab.destroy("one");
        }
        lab.assert_nothing_left();
    }
}
