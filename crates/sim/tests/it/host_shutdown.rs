//! VMs when their host is shut down, and after its next boot.

use sim::{Daemon, HostConfig};
use toolstack::config::OnHostShutdown;
use toolstack::plan::Start;
use toolstack::saved::HOST_FOLDER;
use toolstack::{Reply, Request, xlcfg};
use xen::{DomId, Uuid};

use crate::support::Lab;

fn guest(name: &str, action: &str) -> String {
    format!(
        "name = '{name}'\ntype = 'pvh'\nkernel = '/kernel'\nmemory = 8\nvcpus = 2\n\
         extra = 'sim.writes=50 sim.kind=linux'\nvif = ['bridge=xenbr0']\n{action}\n"
    )
}

fn with(action: OnHostShutdown) -> String {
    format!("on_host_shutdown = '{}'", action.as_str())
}

fn define(lab: &mut Lab, name: &str, action: &str) {
    let text = guest(name, action);
    let source = xlcfg::Source { file: "vm.cfg", text: &text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    let fresh_uuid = Uuid([name.as_bytes()[0]; 16]);
    let reply = lab.ask(Request::Define { config, fresh_uuid, autostart: Some(0) });
    assert!(matches!(reply, Reply::Defined { .. }), "{reply:?}");
    start(lab, name);
}

fn start(lab: &mut Lab, name: &str) {
    let reply = lab.ask(Request::Start { target: name.to_owned(), start: Start::Running });
    assert!(matches!(reply, Reply::Created(_)), "{reply:?}");
}

fn domain(lab: &mut Lab, name: &str) -> Option<DomId> {
    match lab.ask(Request::Resolve { target: name.to_owned() }) {
        Reply::Resolved { domid, .. } => Some(domid),
        _ => None,
    }
}

fn files(lab: &Lab) -> Vec<String> {
    let paths = lab.host.os().get().paths(&format!("{HOST_FOLDER}/"));
    paths.iter().map(|path| path[HOST_FOLDER.len() + 1..].to_owned()).collect()
}

fn reboot(lab: &mut Lab) {
    lab.host = lab.host.boot_again(HostConfig::default(), 1_000_000_000);
    lab.host.os().forget_boot();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    for _ in 0..3 {
        lab.pass(600_000_000);
    }
}

#[track_caller]
fn assert_restored(lab: &mut Lab, name: &str) {
    let domid = domain(lab, name).unwrap_or_else(|| panic!("{name} does not run"));
    let told = lab.host.console(domid);
    assert!(told.contains("memory: as written"), "{name}: {told}");
    assert!(told.contains("suspend: returned 0, in a new domain"), "{name}: {told}");
}

fn shut_down(lab: &mut Lab) {
    let reply = lab.ask(Request::HostShutdown);
    assert!(matches!(reply, Reply::Ok), "{reply:?}");
}

fn saved(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    define(&mut lab, "a", &with(OnHostShutdown::Save));
    lab.pass(600_000_000);
    shut_down(&mut lab);
    assert_eq!(files(&lab), [Uuid([b'a'; 16]).to_string()]);
    lab
}

#[test]
fn each_vm_is_dealt_with_as_it_says_and_what_was_saved_comes_back() {
    let mut lab = Lab::seeded(1);
    define(&mut lab, "a", &with(OnHostShutdown::Save));
    define(&mut lab, "b", "");
    lab.create(&guest("c", &with(OnHostShutdown::Save))).unwrap();
    lab.create(&guest("d", &with(OnHostShutdown::Shutdown))).unwrap();
    lab.create(&guest("e", &with(OnHostShutdown::Ignore))).unwrap();
    lab.pass(600_000_000);
    shut_down(&mut lab);
    for (name, runs) in [("a", false), ("b", false), ("c", false), ("d", false), ("e", true)] {
        assert_eq!(domain(&mut lab, name).is_some(), runs, "{name}");
    }
    assert_eq!(files(&lab).len(), 2);
    reboot(&mut lab);
    assert_restored(&mut lab, "a");
    assert_restored(&mut lab, "c");
    assert!(files(&lab).is_empty(), "{:?}", files(&lab));
    for (name, runs) in [("b", true), ("d", false), ("e", false)] {
        assert_eq!(domain(&mut lab, name).is_some(), runs, "{name}");
    }
}

#[test]
fn what_cannot_be_saved_is_shut_down() {
    let mut lab = Lab::seeded(2);
    lab.create(&guest("a", &with(OnHostShutdown::Save))).unwrap();
    lab.pass(600_000_000);
    lab.host.os().set_room(Some(1000));
    shut_down(&mut lab);
    assert_eq!(domain(&mut lab, "a"), None);
    assert!(files(&lab).is_empty());
    lab.host.os().set_room(None);
    lab.assert_nothing_left();
}

#[test]
fn a_memory_that_fits_the_disks_no_more_is_never_restored_by_itself() {
    // It was started from its disk after all.
    let mut lab = saved(3);
    start(&mut lab, "a");
    lab.pass(600_000_000);
    let aside = format!("{}.not-restored", Uuid([b'a'; 16]));
    assert_eq!(files(&lab), [aside.as_str()]);
    // The same, by a later daemon on the same day.
    let mut lab = saved(3);
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.pass(600_000_000);
    assert_eq!(domain(&mut lab, "a"), None);
    start(&mut lab, "a");
    lab.pass(600_000_000);
    assert_eq!(files(&lab), [aside.as_str()]);
    // It cannot be read.
    let mut lab = saved(3);
    let path = format!("{HOST_FOLDER}/{}", files(&lab)[0]);
    let bytes = lab.host.os().file(&path).unwrap();
    lab.host.os().add_file(&path, &bytes[..bytes.len() / 2]);
    reboot(&mut lab);
    assert_eq!((domain(&mut lab, "a"), files(&lab)), (None, vec![aside]));
}

#[test]
fn whenever_the_daemon_is_killed_a_vm_comes_back_with_its_host_once() {
    let mut kills = 0;
    for action in (1..).filter(|it: &u64| *it < 12 || it.is_multiple_of(3)) {
        let mut lab = saved(action);
        lab.host = lab.host.boot_again(HostConfig::default(), 1_000_000_000);
        lab.host.os().forget_boot();
        lab.host.machine().get_mut().faults_mut().kill_toolstack(action);
        if let Ok(daemon) = Daemon::start(&lab.host) {
            lab.daemon = daemon;
            let until = sim::Time(lab.host.now().0 + 600_000_000);
            while let Ok(true) = lab.daemon.step(until) {}
        }
        let is_dead = lab.host.machine().get().faults().is_toolstack_dead();
        lab.host.machine().get_mut().faults_mut().revive_toolstack();
        if is_dead {
            kills += 1;
            lab.daemon = Daemon::start(&lab.host).unwrap();
        }
        for _ in 0..3 {
            lab.pass(600_000_000);
        }
        assert_restored(&mut lab, "a");
        assert!(files(&lab).is_empty(), "action {action}: {:?}", files(&lab));
        if !is_dead {
            break;
        }
    }
    assert!(kills > 20, "{kills}");
}
