//! Faults of others: the operation ends in bounded time with a clear error, nothing is left, and
//! other VMs are not delayed.

use sim::{BackendKind, Calls, Daemon, Domain, HostConfig, MachineConfig, SimHypervisor};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::work::Cost;
use toolstack::{ClientId, Device, Reply, Request, ShutdownRequest, xlcfg};
use xen::{CreateDomain, CreateOptions, DomId, DomainKind, Errno, ShutdownReason, Uuid, Xen};

use crate::support::{Lab, linux, unikernel};

const SECOND_NS: u64 = 1_000_000_000;

fn with_disk(name: &str, disk: &str) -> String {
    format!("{}disk = ['{disk},raw,xvda,w']\n", unikernel(name, "pv", "normal"))
}

/// Creates a VM with a disk and destroys it again, and says how long that took.
fn neighbour(lab: &mut Lab) -> u64 {
    let began = lab.host.now();
    lab.create(&with_disk("neighbour", "/neighbour.raw")).unwrap();
    lab.destroy("neighbour");
    lab.host.now().0 - began.0
}

/// The VM beside took as long as it does on a quiet host, but for chance in the order of events.
fn assert_unaffected(lab: &mut Lab) {
    let quiet = neighbour(&mut Lab::seeded(1));
    let beside = neighbour(lab);
    assert!(beside < 2 * quiet, "{beside} ns, and {quiet} ns on a quiet host");
}

fn failed(reply: Reply) -> String {
    match reply {
        Reply::Failed(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

/// Waits for an answer that must come within so many seconds since `began`.
fn within(lab: &mut Lab, client: ClientId, began: sim::Time, seconds: u64) -> Reply {
    let until = began.0 + seconds * SECOND_NS;
    let reply = lab.daemon.wait(client, sim::Time(until)).unwrap();
    reply.unwrap_or_else(|| panic!("no answer within {seconds} s"))
}

#[test]
fn storage_that_hangs_fails_its_own_vms_within_its_bound_and_no_other() {
    let mut lab = Lab::seeded(1);
    let os = lab.host.os().clone();
    for number in 0..20 {
        os.add_disk(&format!("/far/{number}.raw"), 1 << 20);
    }
    os.set_hanging("/far", true);
    let began = lab.host.now();
    let asked: Vec<ClientId> = (0..20)
        .map(|number| {
            let text = with_disk(&format!("far{number}"), &format!("/far/{number}.raw"));
            let request = lab.create_request(&text);
            lab.daemon.request(request).unwrap()
        })
        .collect();
    let soon = sim::Time(lab.host.now().0 + SECOND_NS);
    while lab.daemon.step(soon).unwrap() {}
    assert_unaffected(&mut lab);
    // A destroy of one that hangs waits for the call under way and no longer.
    let destroy = lab.daemon.request(Request::Destroy { target: "far0".to_owned() }).unwrap();
    let gone = within(&mut lab, destroy, began, 35);
    assert!(matches!(gone, Reply::Gone { .. }), "{gone:?}");
    // Twelve at a time on one storage: the last come in the second round.
    for (number, client) in asked.into_iter().enumerate() {
        let message = failed(within(&mut lab, client, began, 65));
        let is_clear = message.contains(&format!("/far/{number}.raw"))
            && message.contains("no answer within 30 s");
        assert!(is_clear || number == 0, "{message}");
    }
    os.set_hanging("/far", false);
    lab.create(&with_disk("far0", "/far/0.raw")).unwrap();
    lab.destroy("far0");
    lab.assert_nothing_left();
}

#[test]
fn a_backend_that_never_answers_fails_its_own_vms_within_its_bound_and_no_other() {
    let config = HostConfig { backends_absent: vec![BackendKind::Vif], ..HostConfig::default() };
    let mut lab = Lab::new(config);
    let began = lab.host.now();
    let asked: Vec<ClientId> = (0..20)
        .map(|number| {
            let text =
                unikernel(&format!("vm{number}"), "pv", "normal") + "vif = ['bridge=xenbr0']\n";
            let request = lab.create_request(&text);
            lab.daemon.request(request).unwrap()
        })
        .collect();
    let soon = sim::Time(lab.host.now().0 + SECOND_NS);
    while lab.daemon.step(soon).unwrap() {}
    assert_unaffected(&mut lab);
    for client in asked {
        // A backend that has not seen its device is not waited for until it lets go.
        let message = failed(within(&mut lab, client, began, 35));
        assert!(message.contains("vif 0") && message.contains("driver"), "{message}");
    }
    lab.assert_nothing_left();
}

#[test]
fn a_guest_that_never_closes_its_devices_is_taken_down_within_the_bound() {
    for behaviour in ["holds-devices", "silent", "never-connects"] {
        let mut lab = Lab::seeded(2);
        lab.create(&linux("bad", "pv", behaviour).replace("/disk", "/more")).unwrap_err();
        lab.host.os().add_disk("/more.raw", 1 << 20);
        lab.create(&linux("bad", "pv", behaviour).replace("/disk", "/more")).unwrap();
        lab.settle();
        let began = lab.host.now();
        let destroy = lab.daemon.request(Request::Destroy { target: "bad".to_owned() }).unwrap();
        assert_unaffected(&mut lab);
        let gone = within(&mut lab, destroy, began, 35);
        assert!(matches!(gone, Reply::Gone { .. }), "{behaviour}: {gone:?}");
        lab.assert_nothing_left_but("/local/domain/0/error");
    }
}

#[test]
fn a_host_without_memory_refuses_at_once_and_says_how_much_is_missing() {
    let pages = MachineConfig::default().dom0_pages + (48 << 8);
    let machine = MachineConfig { pages, ..MachineConfig::default() };
    let mut lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
    lab.create(&unikernel("first", "pv", "normal")).unwrap();
    let began = lab.host.now();
    let large = unikernel("large", "pv", "normal").replace("memory = 8", "memory = 64");
    let message = lab.create(&large).unwrap_err();
    assert!(lab.host.now().0 - began.0 < SECOND_NS);
    assert!(message.contains("memory") && message.contains("free"), "{message}");
    // All at once want more than there is: some have it, the others are told, nobody waits.
    let asked: Vec<ClientId> = (0..12)
        .map(|number| {
            let request = lab.create_request(&unikernel(&format!("vm{number}"), "pv", "normal"));
            lab.daemon.request(request).unwrap()
        })
        .collect();
    let (mut made, mut refused) = (0, 0);
    for client in asked {
        match within(&mut lab, client, began, 10) {
            Reply::Created(_) => made += 1,
            Reply::Failed(message) => {
                refused += 1;
                assert!(message.contains("memory"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(made >= 2 && refused >= 4, "{made} made, {refused} refused");
    lab.settle();
    let Reply::Domains(listing) = lab.ask(Request::List) else { panic!("no list") };
    assert_eq!(listing.rows.len(), 2 + made);
}

#[test]
fn of_two_starts_side_by_side_that_do_not_both_fit_one_has_the_memory() {
    let free_mib = 96;
    for (kind, seed) in [("pv", 1), ("pvh", 2), ("pv", 3), ("pvh", 4), ("pv", 5), ("pvh", 6)] {
        let pages = MachineConfig::default().dom0_pages + (free_mib << 8);
        let machine = MachineConfig { pages, ..MachineConfig::default() };
        let mut lab = Lab::new(HostConfig { machine, seed, ..HostConfig::default() });
        let asked: Vec<ClientId> = ["one", "two"]
            .map(|name| {
                let text = unikernel(name, kind, "normal").replace("memory = 8", "memory = 64");
                let request = lab.create_request(&text);
                lab.daemon.request(request).unwrap()
            })
            .into();
        let replies: Vec<Reply> = asked.into_iter().map(|client| lab.wait(client)).collect();
        let made = replies.iter().filter(|it| matches!(it, Reply::Created(_))).count();
        assert_eq!(made, 1, "{replies:?}");
        let told = |it: &Reply| match it {
            Reply::Failed(message) => Some(message.clone()),
            _ => None,
        };
        let message = replies.iter().find_map(told).unwrap();
        assert!(message.contains("needs 6") && message.contains(" MiB are free"), "{message}");
        assert_eq!(lab.host.machine().get().pages_claimed(), 0);
        lab.destroy("one");
        lab.destroy("two");
        lab.assert_nothing_left();
    }
}

/// A lab with so much memory for VMs, and another toolstack's domain that may take all of it.
fn lab_with_stranger(mib: u64) -> (Lab, Xen<SimHypervisor>, DomId) {
    let pages = MachineConfig::default().dom0_pages + (mib << 8);
    let machine = MachineConfig { pages, ..MachineConfig::default() };
    let lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
    let mut xen = Xen::probe(lab.host.hypervisor()).unwrap();
    let wanted = CreateDomain {
        kind: DomainKind::Pv,
        handle: Uuid([9; 16]),
        vcpus_max: 1,
        evtchn_port_max: 15,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    };
    let domid = xen.create_domain(&wanted).unwrap();
    xen.set_memory_max(domid, mib << 10).unwrap();
    (lab, xen, domid)
}

#[test]
fn the_memory_of_an_admitted_start_is_not_given_to_others() {
    for kind in ["pv", "pvh"] {
        let (mut lab, mut xen, stranger) = lab_with_stranger(96);
        let machine = lab.host.machine().clone();
        let mut next = 0;
        lab.host.machine().set_gap(Some(Box::new(move || {
            let is_begun = |it: &Domain| it.pages + it.pages_claimed > 0;
            let others = [DomId::DOM0, stranger];
            let is_building =
                machine.get().domains().any(|it| !others.contains(&it.domid) && is_begun(it));
            while is_building && xen.populate(stranger, 8, &[next]).is_ok_and(|it| it.len() == 1) {
                next += 1 << 8;
            }
        })));
        // An odd MiB: its last pages are small ones, by a call of their own.
        let large = unikernel("large", kind, "normal").replace("memory = 8", "memory = 65");
        lab.create(&large).unwrap_or_else(|message| panic!("{kind}: {message}"));
        lab.host.machine().set_gap(None);
        let taken = lab.host.machine().get().domain(stranger).map(|it| it.pages);
        assert!(taken > Some(20 << 8), "{kind}: the stranger has {taken:?} pages");
    }
}

#[test]
fn memory_claimed_by_others_is_reported_separately() {
    let (mut lab, mut xen, domid) = lab_with_stranger(96);
    xen.claim_pages(domid, 80 << 8).unwrap();
    let large = unikernel("large", "pv", "normal").replace("memory = 8", "memory = 32");
    let message = lab.create(&large).unwrap_err();
    assert!(
        message.contains("VM large needs 33 MiB, 95 MiB are free (80 MiB of them claimed"),
        "{message}"
    );
    xen.destroy_domain(domid).unwrap();
    lab.create(&large).unwrap();
}

#[test]
fn a_failed_build_releases_its_claim() {
    for call in ["populate_physmap", "map_foreign", "setvcpucontext"] {
        let mut lab = Lab::seeded(7);
        lab.host.machine().get_mut().faults_mut().fail(Calls::Named(call), 1, Errno::ENOMEM);
        lab.create(&unikernel("one", "pv", "normal")).unwrap_err();
        assert_eq!(lab.host.machine().get().pages_claimed(), 0);
        lab.assert_nothing_left();
    }
}

/// A lab whose toolstack finds a store without batches: each commit is a transaction, which others can meet.
fn lab_with_transactions(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    lab.daemon = Daemon::start_without_batches(&lab.host).unwrap();
    lab.settle();
    lab.host.os().add_disk("/more.raw", 1 << 20);
    lab
}

#[test]
fn conflicting_changes_are_retried_but_not_forever() {
    let disk = || Device::Disk(xlcfg::parse_disk("/more.raw,raw,xvdb,w").unwrap());
    let plug = || Request::Plug { target: "one".to_owned(), device: Box::new(disk()) };
    let mut lab = lab_with_transactions(5);
    lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    lab.host.make_conflicts(7);
    lab.daemon.totals = Cost::default();
    let reply = lab.ask(plug());
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    assert!(lab.daemon.totals.conflicts >= 1, "{:?}", lab.daemon.totals);
    lab.settle();
    let running = lab.host.snapshot().unwrap();

    // Somebody who never stops: an answer all the same, and everything as it was.
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    let how = Unplug::Clean;
    lab.host.make_conflicts(u64::MAX);
    let began = lab.host.now();
    let unplug = || Request::Unplug { target: "one".to_owned(), device: vbd, how };
    let client = lab.daemon.request(unplug()).unwrap();
    let message = failed(within(&mut lab, client, began, 60));
    assert!(message.contains("conflicting change") && !message.contains('\n'), "{message}");
    lab.host.make_conflicts(0);
    assert_unaffected(&mut lab);
    lab.settle();
    let loops = |lab: &Lab| lab.host.os().get().loops().clone();
    assert_eq!(loops(&lab), running.loops, "the disk is still there");
    let reply = lab.ask(unplug());
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    lab.destroy("one");
    lab.assert_nothing_left_but("/local/domain/0/error");
}

#[test]
fn a_forced_unplug_with_endless_conflicts_leaves_nothing_after_a_destroy() {
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
    let mut lab = lab_with_transactions(6);
    lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    lab.host.make_conflicts(u64::MAX);
    let began = lab.host.now();
    let how = Unplug::Forced;
    let request = Request::Unplug { target: "one".to_owned(), device: vbd, how };
    let client = lab.daemon.request(request).unwrap();
    let message = failed(within(&mut lab, client, began, 60));
    assert!(message.contains("conflicting change"), "{message}");
    lab.settle();
    lab.host.make_conflicts(0);
    let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target: "one".to_owned() })
    else {
        panic!("no devices");
    };
    assert!(devices.iter().any(|it| it.device == vbd), "it has it until it is gone: {devices:?}");
    lab.destroy("one");
    lab.assert_nothing_left_but("/local/domain/0/error");
}

/// How a domain ends.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// By itself.
    Stops(ShutdownReason),
    /// Another toolstack destroys it.
    Destroyed,
}

fn die(lab: &Lab, death: Death) {
    let found = lab.host.snapshot().unwrap().domains;
    let Some(domid) = found.into_iter().find(|domid| domid.0 != 0) else { return };
    match death {
        Death::Stops(reason) => {
            lab.host.machine().get_mut().guest_shutdown(domid, reason);
        }
        Death::Destroyed => {
            let mut xen = Xen::probe(lab.host.hypervisor()).unwrap();
            // It may be going already.
            let _gone = xen.destroy_domain(domid);
        }
    }
}

/// The domain dies after `steps` events of the operation. Says whether the operation was still under way.
fn dies_after(lab: &mut Lab, steps: usize, request: Request, death: Death) -> bool {
    let began = lab.host.now();
    let client = lab.daemon.request(request).unwrap();
    let until = lab.until();
    let mut reply = None;
    for _ in 0..steps {
        reply = lab.daemon.take_reply(client);
        if reply.is_some() || !lab.daemon.step(until).unwrap() {
            break;
        }
    }
    die(lab, death);
    let was_under_way = reply.is_none();
    let reply = reply.unwrap_or_else(|| within(lab, client, began, 40));
    if let Reply::Failed(message) = reply {
        assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
    }
    lab.settle();
    was_under_way
}

#[test]
fn a_domain_may_die_anywhere_in_its_start() {
    for death in [Death::Stops(ShutdownReason::Crash), Death::Destroyed] {
        for steps in (0..).step_by(13) {
            let mut lab = Lab::seeded(3);
            let text = linux("one", "pv", "normal") + "on_crash = 'destroy'\n";
            let request = lab.create_request(&text);
            let more = dies_after(&mut lab, steps, request, death);
            lab.destroy("one");
            lab.assert_nothing_left_but("/local/domain/0/error");
            if !more {
                assert!(steps > 20, "a create has only {steps} steps");
                break;
            }
        }
    }
}

#[test]
fn a_domain_may_die_anywhere_in_an_operation() {
    let disk = || Device::Disk(xlcfg::parse_disk("/more.raw,raw,xvdb,w").unwrap());
    let target = || "one".to_owned();
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
    let requests: [&dyn Fn() -> Request; 4] = [
        &|| Request::Plug { target: target(), device: Box::new(disk()) },
        &|| Request::Unplug { target: target(), device: vbd, how: Unplug::Clean },
        &|| Lab::shutdown_request("one", ShutdownRequest::Reboot),
        &|| Request::Destroy { target: target() },
    ];
    for request in requests {
        for death in [Death::Stops(ShutdownReason::Crash), Death::Destroyed] {
            for steps in (0..).step_by(25) {
                let mut lab = Lab::seeded(4);
                lab.host.os().add_disk("/more.raw", 1 << 20);
                lab.create(&(linux("one", "pv", "normal") + "on_crash = 'destroy'\n")).unwrap();
                lab.settle();
                let more = dies_after(&mut lab, steps, request(), death);
                lab.destroy("one");
                lab.assert_nothing_left_but("/local/domain/0/error");
                if !more {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_guest_may_start_again_anywhere_in_a_detach() {
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    let reboot = Death::Stops(ShutdownReason::Reboot);
    for how in [Unplug::Clean, Unplug::Forced] {
        for steps in 0.. {
            let mut lab = Lab::seeded(5);
            lab.host.os().add_disk("/more.raw", 1 << 20);
            let disks = "disk = ['/disk.raw,raw,xvda,rw', '/more.raw,raw,xvdb,w']";
            let text = linux("one", "pv", "normal");
            lab.create(&text.replace("disk = ['/disk.raw,raw,xvda,rw']", disks)).unwrap();
            lab.settle();
            let request = Request::Unplug { target: "one".to_owned(), device: vbd, how };
            let more = dies_after(&mut lab, steps, request, reboot);
            let target = "one".to_owned();
            let Reply::Devices { devices, .. } = lab.ask(Request::Devices { target }) else {
                panic!("after {steps} steps: no devices");
            };
            let wanted = devices.iter().filter(|it| it.device.kind == DeviceKind::Vbd).count();
            let attached = lab.host.snapshot().unwrap().loops.len();
            assert_eq!(attached, wanted, "attached disks after {steps} steps of {how:?}");
            lab.destroy("one");
            lab.assert_nothing_left_but("/local/domain/0/error");
            if !more {
                break;
            }
        }
    }
}
