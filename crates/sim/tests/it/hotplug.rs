//! Hotplug scripts: whatever they and the daemon do, nothing is connected twice, and nothing is left.

use sim::{Daemon, HostConfig, ScriptFate};
use storage::{BlockHost as _, DeviceNumber};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{Device, Reply, Request, ShutdownRequest, VmState, xlcfg};
use xenstore::client::{Batch, Nodes as _};

use crate::faults::killed_at;
use crate::support::{Lab, linux};

const SCRIPT: &str = "/etc/xen/scripts/wire";
const VIF: DeviceRef = DeviceRef { kind: DeviceKind::Vif, devid: 0 };

fn lab(fate: ScriptFate) -> Lab {
    let mut lab = Lab::new(HostConfig { seed: 1, ..HostConfig::default() });
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.host.os().add_script(SCRIPT, fate);
    lab.before = lab.host.snapshot().unwrap();
    lab
}

/// A guest whose interface a script connects, and whose bridge this host does not have.
fn vm(name: &str) -> String {
    linux(name, "pv", "normal").replace("bridge=xenbr0", "script=wire,bridge=ovsbr0.10:20")
}

fn connected(lab: &Lab) -> Vec<String> {
    lab.host.os().get().connected_by_scripts().iter().cloned().collect()
}

fn failed(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn plug(devid: u32) -> Request {
    let device = xlcfg::parse_vif("script=wire", devid).map(Device::Vif).unwrap();
    Request::Plug { target: "one".to_owned(), device: Box::new(device) }
}

fn unplug(device: DeviceRef, how: Unplug) -> Request {
    Request::Unplug { target: "one".to_owned(), device, how }
}

#[test]
fn a_script_connects_an_interface_once_and_disconnects_it_at_the_end() {
    let mut lab = lab(ScriptFate::Works);
    let domid = lab.create(&vm("one")).unwrap();
    lab.settle();
    assert_eq!(connected(&lab), [format!("{SCRIPT} vif{domid}.0")]);
    assert!(lab.host.console(domid).contains("eth0: up"), "{}", lab.host.console(domid));
    let backend = VIF.in_domain_0(domid).backend_path();
    let mut store = lab.host.connect();
    assert_eq!(store.read(&format!("{backend}/script")).unwrap(), SCRIPT.as_bytes());
    assert_eq!(store.read(&format!("{backend}/bridge")).unwrap(), b"ovsbr0.10:20");
    // A daemon that starts anew has nothing to do with it.
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(lab.host.os().script_runs().len(), 1);
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    let domid = lab.host.machine().get().domains().map(|it| it.domid).max().unwrap();
    assert_eq!(connected(&lab), [format!("{SCRIPT} vif{domid}.0")]);
    assert!(lab.host.console(domid).contains("eth0: up"));
    lab.destroy("one");
    let runs = lab.host.os().script_runs();
    let done: Vec<&str> = runs.iter().filter_map(|run| run.split(' ').next()).collect();
    assert_eq!(done, ["online", "offline", "online", "offline"]);
    lab.assert_nothing_left();
}

#[test]
fn an_emulated_cards_interface_has_a_run_of_its_own() {
    let mut lab = lab(ScriptFate::Works);
    let text = "name = 'one'\ntype = 'hvm'\nmemory = 64\nvif = ['script=wire']\n";
    let domid = lab.create(text).unwrap();
    lab.settle();
    let (vif, tap) = (format!("{SCRIPT} vif{domid}.0"), format!("{SCRIPT} vif{domid}.0-emu"));
    assert_eq!(connected(&lab), [vif.as_str(), tap.as_str()]);
    lab.destroy("one");
    assert_eq!(
        lab.host.os().script_runs(),
        [
            format!("online {vif}"),
            format!("add {tap}"),
            format!("offline {vif}"),
            format!("remove {tap}")
        ]
    );
    lab.assert_nothing_left();
}

#[test]
fn a_script_that_fails_or_hangs_fails_the_start_with_its_reason_and_leaves_nothing() {
    for (fate, words) in [
        (
            ScriptFate::Fails("Could not find bridge device br9".to_owned()),
            "vif 0: the script /etc/xen/scripts/wire online failed with status 1: \
             Could not find bridge device br9",
        ),
        (
            ScriptFate::Says("no such switch".to_owned()),
            "vif 0: the script /etc/xen/scripts/wire online failed with status 1: no such switch",
        ),
        (
            ScriptFate::Hangs,
            "vif 0: the script /etc/xen/scripts/wire online did not end within 40 s",
        ),
    ] {
        let mut lab = lab(fate);
        assert_eq!(lab.create(&vm("one")).unwrap_err(), words);
        let message = lab.create(&linux("two", "pvh", "normal")).map(drop);
        assert_eq!(message, Ok(()), "another VM is not concerned");
        lab.destroy("two");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_script_that_is_not_there_is_told_before_anything_is_made() {
    let mut lab = lab(ScriptFate::Works);
    let text = vm("one").replace("script=wire", "script=/usr/local/bin/other");
    assert_eq!(
        lab.create(&text).unwrap_err(),
        "vm.cfg:9: vif[0]: no hotplug script /usr/local/bin/other on this host"
    );
    lab.assert_nothing_left();
}

#[test]
fn other_vms_do_not_wait_for_a_script_that_hangs() {
    let mut lab = lab(ScriptFate::Hangs);
    let request = lab.create_request(&vm("one"));
    let hanging = lab.daemon.request(request).unwrap();
    let began = lab.host.now();
    lab.create(&linux("two", "pvh", "normal").replace("/disk.raw", "/neighbour.raw")).unwrap();
    lab.destroy("two");
    assert!(lab.host.now().0 - began.0 < 20_000_000_000, "it waited");
    assert!(failed(lab.wait(hanging)).contains("did not end within 40 s"));
    lab.assert_nothing_left();
}

#[test]
fn an_interface_with_a_script_comes_and_goes_while_the_guest_runs() {
    let mut lab = lab(ScriptFate::Works);
    let domid = lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    let vif = DeviceRef { devid: 1, ..VIF };
    for how in [Unplug::Clean, Unplug::Forced] {
        assert!(matches!(lab.ask(plug(1)), Reply::Done { .. }));
        lab.settle();
        assert_eq!(connected(&lab), [format!("{SCRIPT} vif{domid}.1")]);
        assert!(matches!(lab.ask(unplug(vif, how)), Reply::Done { .. }), "{how:?}");
        assert!(connected(&lab).is_empty(), "{how:?}");
    }
    lab.host.os().add_script(SCRIPT, ScriptFate::Fails("no".to_owned()));
    assert!(failed(lab.ask(plug(1))).ends_with("failed with status 1: no"));
    lab.settle();
    let devices = lab.ask(Request::Devices { target: "one".to_owned() });
    assert!(matches!(devices, Reply::Devices { devices, .. } if devices.len() == 2));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn whenever_the_daemon_is_killed_in_a_start_a_script_is_not_run_twice_and_nothing_is_left() {
    for k in 1.. {
        let mut lab = lab(ScriptFate::Works);
        let request = lab.create_request(&vm("one"));
        let killed = killed_at(&mut lab, k, request);
        // A second run without an end of the first would have failed.
        let runs = lab.state("one") == VmState::Running;
        assert_eq!(connected(&lab).len(), usize::from(runs), "killed at {k}");
        if runs {
            lab.destroy("one");
        }
        // Empty directories left by a killed daemon are removed with the next VM.
        lab.create(&vm("two")).unwrap();
        lab.destroy("two");
        lab.assert_nothing_left();
        if !killed {
            break;
        }
    }
}

const XVDB: DeviceRef = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };

fn lab_with_device(fate: ScriptFate) -> Lab {
    let mut lab = lab(fate);
    lab.host.os().add_block_device("/dev/wired", DeviceNumber { major: 253, minor: 10 });
    lab.before = lab.host.snapshot().unwrap();
    lab
}

/// A guest with a second disk that a script connects.
fn with_disk(name: &str, kind: &str) -> String {
    linux(name, kind, "normal").replace(
        "disk = ['/disk.raw,raw,xvda,rw'",
        "disk = ['/disk.raw,raw,xvda,rw', 'vdev=xvdb,script=wire,untrusted,target=/dev/wired'",
    )
}

#[test]
fn a_script_connects_a_disk_and_says_what_it_is() {
    let mut lab = lab_with_device(ScriptFate::Works);
    for kind in ["pv", "pvh"] {
        let domid = lab.create(&with_disk("one", kind)).unwrap();
        lab.settle();
        assert_eq!(connected(&lab), [format!("{SCRIPT} backend/vbd/{domid}/51728")]);
        assert!(lab.host.console(domid).contains("vbd 51728: connected"));
        let mut store = lab.host.connect();
        let mut node = |path: String| String::from_utf8(store.read(&path).unwrap()).unwrap();
        assert_eq!(
            node(format!("{}/params", XVDB.in_domain_0(domid).backend_path())),
            "/dev/wired"
        );
        assert_eq!(node(format!("{}/script", XVDB.in_domain_0(domid).backend_path())), SCRIPT);
        assert_eq!(
            node(format!("{}/physical-device", XVDB.in_domain_0(domid).backend_path())),
            "fd:a"
        );
        assert_eq!(node(format!("{}/trusted", XVDB.frontend(domid))), "0");
        let json = lab.host.os().libxl_json().into_values().next().unwrap();
        assert!(json.contains("\"script\":\"wire\""), "{json}");
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
        lab.settle();
        let domid = lab.host.machine().get().domains().map(|it| it.domid).max().unwrap();
        assert_eq!(connected(&lab), [format!("{SCRIPT} backend/vbd/{domid}/51728")]);
        assert!(lab.host.console(domid).contains("vbd 51728: connected"));
        lab.destroy("one");
        lab.assert_nothing_left();
    }
    let runs = lab.host.os().script_runs();
    let done: Vec<&str> = runs.iter().filter_map(|run| run.split(' ').next()).collect();
    assert_eq!(done, ["add", "remove", "add", "remove"].repeat(2));
}

#[test]
fn a_device_model_has_the_disk_that_a_script_connected_before_it_starts() {
    let mut lab = lab_with_device(ScriptFate::Works);
    let text = "name = 'one'\ntype = 'hvm'\nmemory = 64\n\
                disk = ['vdev=hda,script=wire,target=/dev/wired']\nvif = ['type=vif']\n";
    let domid = lab.create(text).unwrap();
    lab.settle();
    assert!(lab.host.console(domid).contains("vbd 768: connected"), "{}", lab.host.console(domid));
    assert_eq!(connected(&lab).len(), 1);
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    assert_eq!(lab.state("one"), VmState::Running);
    assert_eq!(connected(&lab).len(), 1);
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_disk_whose_script_fails_or_names_no_device_fails_the_start() {
    for (fate, words) in [
        (
            ScriptFate::Fails("Device already opened".to_owned()),
            "disk xvdb: the script /etc/xen/scripts/wire add failed with status 1: \
             Device already opened",
        ),
        (
            ScriptFate::IsSilent,
            "disk xvdb: the script /etc/xen/scripts/wire add named no device (physical-device in \
             the store)",
        ),
        (
            ScriptFate::Hangs,
            "disk xvdb: the script /etc/xen/scripts/wire add did not end within 40 s",
        ),
    ] {
        let mut lab = lab_with_device(fate);
        assert_eq!(lab.create(&with_disk("one", "pv")).unwrap_err(), words);
        lab.assert_nothing_left();
    }
    let mut lab = lab_with_device(ScriptFate::Works);
    let text = with_disk("one", "pv").replace("script=wire", "script=block-mine");
    assert_eq!(
        lab.create(&text).unwrap_err(),
        "vm.cfg:8: disk[1]: no hotplug script /etc/xen/scripts/block-mine on this host"
    );
    lab.assert_nothing_left();
}

#[test]
fn a_disk_with_a_script_comes_and_goes_while_the_guest_runs() {
    let mut lab = lab_with_device(ScriptFate::Works);
    let domid = lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    let plug = || {
        let disk = xlcfg::parse_disk("vdev=xvdb,script=wire,target=/dev/wired");
        let device = Box::new(disk.map(Device::Disk).unwrap());
        Request::Plug { target: "one".to_owned(), device }
    };
    for (round, how) in [Unplug::Clean, Unplug::Forced].into_iter().enumerate() {
        assert!(matches!(lab.ask(plug()), Reply::Done { .. }));
        lab.settle();
        assert_eq!(connected(&lab), [format!("{SCRIPT} backend/vbd/{domid}/51728")]);
        let console = lab.host.console(domid);
        assert_eq!(console.matches("vbd 51728: connected").count(), round + 1, "{console}");
        assert!(matches!(lab.ask(unplug(XVDB, how)), Reply::Done { .. }), "{how:?}");
        assert!(connected(&lab).is_empty(), "{how:?}");
    }
    lab.host.os().add_script(SCRIPT, ScriptFate::Says("no".to_owned()));
    assert!(failed(lab.ask(plug())).ends_with("failed with status 1: no"));
    lab.settle();
    let devices = lab.ask(Request::Devices { target: "one".to_owned() });
    assert!(matches!(devices, Reply::Devices { devices, .. } if devices.len() == 2));
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn what_another_toolstack_had_scripts_connect_is_disconnected_by_them_after_an_adoption() {
    let mut lab = lab_with_device(ScriptFate::Works);
    let text = with_disk("one", "pv").replace("bridge=xenbr0", "script=wire,bridge=ovsbr0");
    let domid = lab.create(&text).unwrap();
    lab.settle();
    // As xl would have left it.
    let mut batch = Batch::new();
    for path in ["/xylem".to_owned(), VIF.script_mark(domid), XVDB.script_mark(domid)] {
        batch.rm(&path);
    }
    lab.host.connect().commit(&batch).unwrap();
    lab.host.os().clone().tag_loop("/dev/loop0", "/disk.raw").unwrap();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    let file =
        "name = 'a'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 4\nextra = 'sim.kind=linux'\n";
    let source = xlcfg::Source { file: "one.cfg", text: file, overrides: &[] };
    let base = Some(Box::new(xlcfg::parse(source).unwrap()));
    let adopted = lab.ask(Request::Adopt { target: "one".to_owned(), base });
    assert!(!matches!(adopted, Reply::Failed(_)), "{adopted:?}");
    assert_eq!(connected(&lab).len(), 2);
    lab.destroy("one");
    let runs = lab.host.os().script_runs();
    let last: Vec<&str> = runs[2..].iter().filter_map(|run| run.split(' ').next()).collect();
    assert_eq!(last.len(), 2, "{last:?}");
    assert!(last.contains(&"remove") && last.contains(&"offline"));
    assert!(connected(&lab).is_empty());
    lab.assert_nothing_left();
}
