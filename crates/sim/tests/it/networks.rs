//! Networks that Xylem makes itself: Open vSwitch, routes, NAT, and what guests may send.

use sim::{Daemon, HostConfig};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{Device, Reply, Request, ShutdownRequest, VmState, xlcfg};

use crate::faults::killed_at;
use crate::support::{Lab, linux};

const MAC: &str = "00:16:3e:00:00:07";

fn lab() -> Lab {
    let mut lab = Lab::new(HostConfig { seed: 1, ..HostConfig::default() });
    let os = lab.host.os();
    sim::add_hvm_files(os, "sim.kind=linux");
    os.add_switch("ovs0");
    os.add_card("eth0", Some("192.0.2.1".parse().unwrap()));
    os.add_card("eth1", None);
    os.add_nft();
    lab.before = lab.host.snapshot().unwrap();
    lab
}

/// A guest with an interface of these parameters.
fn vm(name: &str, vif: &str) -> String {
    linux(name, "pv", "normal").replace("bridge=xenbr0", &format!("mac={MAC},{vif}"))
}

/// Parameters, and what the host has for them while the guest runs.
fn cases() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("script=vif-openvswitch,bridge=ovs0", vec!["vif1.0 is a port of ovs0", "vif1.0 is up"]),
        (
            "script=vif-openvswitch,bridge=ovs0.10:20:30,antispoof=1,ip=10.0.0.5,vifname=web",
            vec![
                "web is a port of ovs0 tag 10 trunks [\"set\",[20,30]]",
                "web is up",
                "web may send 00:16:3e:00:00:07 10.0.0.5/32",
            ],
        ),
        (
            "script=vif-route,ip=10.0.0.5 2001:db8::5",
            vec!["vif1.0 is up from 192.0.2.1 to 10.0.0.5/32 2001:db8::5/128"],
        ),
        (
            "script=vif-nat",
            vec!["10.0.1.1 is translated", "vif1.0 is up from 10.0.1.128 to 10.0.1.1/32"],
        ),
        (
            "script=vif-nat,ip=10.9.0.4/16,antispoof=1",
            vec![
                "10.9.0.4 is translated",
                "vif1.0 is up from 10.9.0.131 to 10.9.0.4/32",
                "vif1.0 may send 00:16:3e:00:00:07 10.9.0.4/32",
            ],
        ),
        ("bridge=xenbr0,antispoof=1", vec!["vif1.0 may send 00:16:3e:00:00:07"]),
    ]
}

/// The lines of a later domain of the same VM.
fn of_domain(lines: &[&str], domid: u16) -> Vec<String> {
    let renumbered = |line: &&str| {
        let line = line.replace("vif1.0", &format!("vif{domid}.0"));
        line.replace("10.0.1.", &format!("10.0.{domid}."))
    };
    lines.iter().map(renumbered).collect()
}

#[test]
fn an_interface_has_its_network_while_its_guest_runs() {
    for (vif, lines) in cases() {
        let mut lab = lab();
        let domid = lab.create(&vm("one", vif)).unwrap();
        lab.settle();
        assert_eq!(lab.host.os().networks(), lines, "{vif}");
        let console = lab.host.console(domid);
        assert!(console.contains("eth0: up"), "{vif}: {console}");
        assert!(lab.host.os().script_runs().is_empty(), "{vif}");
        // A daemon that starts anew has nothing to do with it.
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
        lab.settle();
        let domid = lab.host.machine().get().domains().map(|it| it.domid).max().unwrap();
        assert_eq!(lab.host.os().networks(), of_domain(&lines, domid.0), "{vif}");
        assert!(lab.host.console(domid).contains("eth0: up"), "{vif}");
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn whenever_the_daemon_is_killed_in_a_start_no_network_is_left() {
    for (vif, lines) in cases() {
        for k in 1.. {
            let mut lab = lab();
            let request = lab.create_request(&vm("one", vif));
            let killed = killed_at(&mut lab, k, request);
            let runs = lab.state("one") == VmState::Running;
            let count = if runs { lines.len() } else { 0 };
            let found = lab.host.os().networks();
            assert_eq!(found.len(), count, "{vif}, killed at {k}: {found:?}");
            if runs {
                lab.destroy("one");
            }
            // Empty directories left by a killed daemon are removed with the next VM.
            lab.create(&vm("two", vif)).unwrap();
            lab.destroy("two");
            lab.assert_nothing_left();
            if !killed {
                break;
            }
        }
    }
}

#[test]
fn an_interface_comes_and_goes_with_its_network_while_the_guest_runs() {
    for (vif, lines) in cases() {
        let mut lab = lab();
        lab.create(&linux("one", "pv", "normal")).unwrap();
        lab.settle();
        let text = format!("mac={MAC},{vif}");
        let plug = || {
            let device = xlcfg::parse_vif(&text, 1).map(Device::Vif).unwrap();
            Request::Plug { target: "one".to_owned(), device: Box::new(device) }
        };
        let vif1 = DeviceRef { kind: DeviceKind::Vif, devid: 1 };
        for how in [Unplug::Clean, Unplug::Forced] {
            assert!(matches!(lab.ask(plug()), Reply::Done { .. }), "{vif}");
            lab.settle();
            assert_eq!(lab.host.os().networks().len(), lines.len(), "{vif}");
            let unplug = Request::Unplug { target: "one".to_owned(), device: vif1, how };
            assert!(matches!(lab.ask(unplug), Reply::Done { .. }), "{vif} {how:?}");
            assert_eq!(lab.host.os().networks(), [""; 0], "{vif} {how:?}");
        }
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

fn assert_refused(lab: &mut Lab, vif: &str, told: &str) {
    let message = lab.create(&vm("one", vif)).unwrap_err();
    assert_eq!(message, format!("vm.cfg:9: vif[0]: {told}"));
    lab.assert_nothing_left();
}

#[test]
fn what_this_host_lacks_is_told_before_anything_is_made() {
    let mut bare = Lab::new(HostConfig { seed: 1, ..HostConfig::default() });
    for (vif, told) in [
        ("script=vif-openvswitch,bridge=ovs0", "Open vSwitch does not run on this host"),
        ("script=vif-route,ip=10.0.0.5", "gatewaydev=eth0: no such interface on this host"),
        (
            "script=vif-nat",
            "the program nft is not on this host; on Debian, `apt install nftables`",
        ),
        (
            "bridge=xenbr0,antispoof=1",
            "the program nft is not on this host; on Debian, `apt install nftables`",
        ),
    ] {
        assert_refused(&mut bare, vif, told);
    }
    let mut lab = lab();
    for (vif, told) in [
        (
            "script=vif-openvswitch,bridge=ovs1",
            "no bridge named ovs1 in Open vSwitch; `ovs-vsctl add-br ovs1` makes one",
        ),
        (
            "script=vif-route,gatewaydev=eth1",
            "gatewaydev=eth1: this interface of the host has no IPv4 address",
        ),
        (
            "bridge=br9,antispoof=1",
            "no bridge named br9 on this host; `ip link add br9 type bridge` makes one",
        ),
    ] {
        assert_refused(&mut lab, vif, told);
    }
}

#[test]
fn a_switch_that_does_not_take_the_port_fails_the_start_and_keeps_nothing() {
    let vif = "script=vif-openvswitch,bridge=ovs0";
    let mut deaf = lab();
    deaf.host.os().deafen_switch();
    let message = deaf.create(&vm("one", vif)).unwrap_err();
    assert_eq!(message, "vif1.0: ovs-vswitchd does not take note of its database");
    deaf.assert_nothing_left();
    let mut lab = lab();
    lab.host.os().have_switch_complain("could not open network device vif1.0 (No such device)");
    let message = lab.create(&vm("one", vif)).unwrap_err();
    let why = "Open vSwitch: could not open network device vif1.0 (No such device)";
    assert_eq!(message, format!("vif1.0: {why}"));
    lab.assert_nothing_left();
}

#[test]
fn of_two_guests_with_one_address_the_second_is_refused() {
    let mut lab = lab();
    lab.create(&vm("one", "script=vif-route,ip=10.0.0.5")).unwrap();
    let two = vm("two", "script=vif-route,ip=10.0.0.5").replace("/disk.raw", "/neighbour.raw");
    let message = lab.create(&two).unwrap_err();
    assert!(message.ends_with("another route goes there"), "{message}");
    assert_eq!(lab.host.os().networks().len(), 1);
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn an_emulated_card_is_filtered_too() {
    let mut lab = lab();
    let text = format!(
        "name = 'one'\ntype = 'hvm'\nmemory = 64\n\
         vif = ['mac={MAC},bridge=xenbr0,antispoof=1', 'mac=00:16:3e:00:00:08,script=vif-route,ip=10.0.0.5']\n"
    );
    let domid = lab.create(&text).unwrap();
    lab.settle();
    let routed = |link: &str| format!("{link} is up from 192.0.2.1 to 10.0.0.5/32");
    assert_eq!(
        lab.host.os().networks(),
        [
            format!("vif{domid}.0 may send {MAC}"),
            format!("vif{domid}.0-emu may send {MAC}"),
            routed(&format!("vif{domid}.1")),
            routed(&format!("vif{domid}.1-emu")),
        ]
    );
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn a_host_that_wants_no_spoofing_filters_interfaces_that_say_nothing() {
    let reading = xlcfg::read_host("xl.conf", "vif.default.antispoof=1\n");
    assert!(reading.faults.is_empty() && reading.warnings.is_empty(), "{reading:?}");
    let wanted = |text| xlcfg::parse_vif_on(&reading.defaults, text, 0).unwrap().antispoof;
    assert!(wanted("bridge=xenbr0"));
    assert!(!wanted("bridge=xenbr0,antispoof=0"));
    let odd = xlcfg::read_host("xl.conf", "vif.default.antispoof='yes'\n");
    assert_eq!(
        odd.faults[0].to_string(),
        "xl.conf:1: vif.default.antispoof: \"yes\": expected 0 or 1"
    );
}
