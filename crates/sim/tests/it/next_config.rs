//! Another configuration for a VM's next domain.

use sim::Daemon;
use toolstack::tuning::Tuning;
use toolstack::{Reply, Request, ShutdownRequest, VmState, xlcfg};
use xen::{DomId, Uuid};

use crate::save::killed;
use crate::support::{A_WHILE, Lab, linux};

fn update(text: &str) -> Request {
    let source = xlcfg::Source { file: "next.cfg", text, overrides: &[] };
    let config = xlcfg::parse(source).unwrap_or_else(|error| panic!("{error}"));
    Request::Tune { target: "one".to_owned(), tuning: Tuning::NextConfig(Box::new(config)) }
}

/// It has more memory, and another disk in place of the one that it has.
fn next() -> String {
    let text = linux("one", "pvh", "normal").replace("memory = 16", "memory = 24");
    text.replace("/disk.raw,raw,xvda", "/neighbour.raw,raw,xvdb")
}

/// Its domain, and its memory in MiB; Xen's limit is one more.
fn domain(lab: &Lab) -> Option<(DomId, u64)> {
    let machine = lab.host.machine();
    let machine = machine.get();
    let mut all = machine.domains().filter(|domain| domain.domid != DomId::DOM0);
    all.next().map(|domain| (domain.domid, (domain.pages_max >> 8) - 1))
}

fn disks(lab: &Lab) -> Vec<String> {
    let os = lab.host.os();
    let text = format!("{:?}", os.get().loops());
    ["/disk.raw", "/neighbour.raw"]
        .into_iter()
        .filter(|it| text.contains(it))
        .map(str::to_owned)
        .collect()
}

fn config_text(lab: &mut Lab) -> String {
    match lab.ask(Request::ConfigText { target: "one".to_owned() }) {
        Reply::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

fn reboot(lab: &mut Lab) {
    let reply = lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    assert!(matches!(reply, Reply::Gone { .. }), "{reply:?}");
    lab.pass(10 * A_WHILE);
}

#[track_caller]
fn assert_done(reply: &Reply) {
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

fn define(lab: &mut Lab, text: &str) {
    let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    let request = Request::Define { config, fresh_uuid: Uuid([7; 16]), autostart: Some(3) };
    assert!(matches!(lab.ask(request), Reply::Defined { .. }));
}

fn start() -> Request {
    Request::Start { target: "one".to_owned(), start: toolstack::plan::Start::Running }
}

#[test]
fn a_vm_has_it_from_its_next_reboot_on() {
    let mut lab = Lab::seeded(1);
    let first = lab.create(&linux("one", "pvh", "normal")).unwrap();
    lab.pass(A_WHILE);
    // The last one counts.
    let other = linux("one", "pvh", "normal").replace("memory = 16", "memory = 20");
    assert_done(&lab.ask(update(&(other + &format!("# {}\n", "x".repeat(5000))))));
    assert_done(&lab.ask(update(&next())));
    lab.pass(A_WHILE);
    assert_eq!((domain(&lab), disks(&lab)), (Some((first, 16)), vec!["/disk.raw".to_owned()]));
    assert!(config_text(&mut lab).contains("memory = 16"));
    reboot(&mut lab);
    let (second, memory) = domain(&lab).unwrap();
    assert!(second != first && memory == 24, "{memory}");
    assert_eq!(disks(&lab), ["/neighbour.raw"]);
    assert_eq!(lab.state("one"), VmState::Running);
    let text = config_text(&mut lab);
    assert!(text.contains("memory = 24"), "{text}");
    reboot(&mut lab);
    let (third, memory) = domain(&lab).unwrap();
    assert!(third != second && memory == 24, "{memory}");
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_later_daemon_knows_it() {
    let mut lab = Lab::seeded(2);
    lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.pass(A_WHILE);
    assert_done(&lab.ask(update(&next().replace("pvh", "pv"))));
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.pass(A_WHILE);
    reboot(&mut lab);
    assert_eq!(domain(&lab).map(|(_, memory)| memory), Some(24));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_vm_that_ends_before_leaves_nothing_of_it() {
    let mut lab = Lab::seeded(3);
    lab.create(&linux("one", "pvh", "normal")).unwrap();
    lab.pass(A_WHILE);
    assert_done(&lab.ask(update(&next())));
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Poweroff));
    assert_eq!(lab.state("one"), VmState::Gone);
    lab.assert_nothing_left();
}

#[test]
fn a_defined_vm_starts_from_it_too() {
    let mut lab = Lab::seeded(4);
    define(&mut lab, &linux("one", "pvh", "normal"));
    lab.ask(start());
    lab.pass(A_WHILE);
    assert_done(&lab.ask(update(&next())));
    let files: Vec<String> = lab.host.os().definitions().into_values().collect();
    assert!(files[0].contains("memory = 24") && files[0].contains("# autostart 3"), "{files:?}");
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Poweroff));
    assert_eq!(lab.state("one"), VmState::Down);
    lab.ask(start());
    lab.pass(A_WHILE);
    assert_eq!(domain(&lab).map(|(_, memory)| memory), Some(24));
    lab.destroy("one");
}

#[test]
fn one_that_cannot_be_is_refused() {
    let mut lab = Lab::seeded(5);
    let refused = |lab: &mut Lab, text: &str| match lab.ask(update(text)) {
        Reply::Failed(message) => message,
        other => panic!("{other:?}"),
    };
    let none = "one: no such domain; `xy list` shows them all";
    assert_eq!(refused(&mut lab, &next()), none);
    let first = lab.create(&linux("one", "pvh", "normal")).unwrap();
    for (more, expected) in [
        ("uuid = '00000000-0000-0000-0000-000000000009'\n", "uuid: one has the UUID"),
        ("on_reboot = 'rename-restart'\n", "on_reboot: rename-restart is not supported"),
    ] {
        let message = refused(&mut lab, &(next() + more));
        assert!(message.contains(expected), "{message}");
    }
    let renamed = next().replace("'one'", "'two'");
    let message = refused(&mut lab, &renamed);
    assert!(message.ends_with("name: one is not two; `xy rename` names it otherwise"), "{message}");
    reboot(&mut lab);
    let (second, memory) = domain(&lab).unwrap();
    assert!(second != first && memory == 16);
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_vm_that_cannot_start_from_it_is_down_and_nothing_is_left() {
    for defines in [false, true] {
        let mut lab = Lab::seeded(6);
        if defines {
            define(&mut lab, &linux("one", "pvh", "normal"));
            lab.ask(start());
        } else {
            lab.create(&linux("one", "pvh", "normal")).unwrap();
        }
        lab.pass(A_WHILE);
        assert_done(&lab.ask(update(&next().replace("/neighbour.raw", "/none.raw"))));
        lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
        lab.settle();
        let expected = if defines { VmState::Down } else { VmState::Gone };
        assert_eq!((domain(&lab), lab.state("one")), (None, expected));
        if !defines {
            lab.assert_nothing_left();
        }
    }
}

#[test]
fn whenever_the_daemon_is_killed_a_vm_has_the_old_configuration_or_the_new_one() {
    let (mut kills, mut new) = (0, 0);
    for action in 1.. {
        let mut lab = Lab::seeded(action);
        define(&mut lab, &linux("one", "pvh", "normal"));
        lab.ask(start());
        lab.pass(A_WHILE);
        let is_dead = killed(&mut lab, action, update(&next()));
        if is_dead {
            kills += 1;
            lab.daemon = Daemon::start(&lab.host).unwrap();
        }
        lab.pass(A_WHILE);
        assert_eq!(lab.state("one"), VmState::Running, "action {action}");
        reboot(&mut lab);
        match domain(&lab) {
            Some((_, 16)) => {}
            Some((_, 24)) => new += 1,
            other => panic!("action {action}: {other:?}"),
        }
        if !is_dead {
            break;
        }
    }
    assert!(kills > 2 && new > 0, "{kills} {new}");
}
