//! Changes of running domains: what libxl would refuse is refused, and what it would write is written.

use sim::{Daemon, HostConfig};
use toolstack::tuning::Tuning;
use toolstack::{Reply, Request, ShutdownRequest};
use xen::{DomId, Xen};
use xenstore::client::Nodes as _;

use crate::support::{Lab, linux, unikernel};

const MIB: u64 = 1024;

fn ask(lab: &mut Lab, target: &str, tuning: Tuning) -> Result<DomId, String> {
    match lab.ask(Request::Tune { target: target.to_owned(), tuning }) {
        Reply::Done { domid } => Ok(domid),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

fn mem_set(lab: &mut Lab, target: &str, kib: u64) -> Result<DomId, String> {
    ask(lab, target, Tuning::MemoryTarget { kib })
}

fn mem_max(lab: &mut Lab, target: &str, kib: u64) -> Result<DomId, String> {
    ask(lab, target, Tuning::MemoryMax { kib })
}

/// A node of a domain, if there is one.
fn node(lab: &Lab, path: &str) -> Option<String> {
    let value = lab.host.connect().read_optional(path).unwrap();
    value.map(|value| String::from_utf8(value).unwrap())
}

fn nodes<const N: usize>(lab: &Lab, domid: DomId, below: [&str; N]) -> [String; N] {
    below.map(|it| node(lab, &format!("/local/domain/{domid}/{it}")).unwrap_or_default())
}

fn limit_kib(lab: &Lab, domid: DomId) -> u64 {
    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    xen.domain(domid).unwrap().unwrap().pages_max * 4
}

/// The domain that a VM has now, after a reboot.
fn reboot(lab: &mut Lab, target: &str) -> DomId {
    lab.ask(Lab::shutdown_request(target, ShutdownRequest::Reboot));
    lab.settle();
    match lab.ask(Request::Resolve { target: target.to_owned() }) {
        Reply::Resolved { domid, .. } => domid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_changed_as_libxl_changes_it_and_stays_so() {
    for (seed, kind) in [(61, "pv"), (62, "pvh")] {
        let mut lab = Lab::seeded(seed);
        let text = unikernel("one", kind, "normal").replace("memory = 8", "memory = 16");
        let domid = lab.create(&(text + "maxmem = 32\n")).unwrap();
        let memory = ["memory/target", "memory/static-max"];
        assert_eq!(nodes(&lab, domid, memory), ["16384", "32768"]);
        assert_eq!(limit_kib(&lab, domid), 17 * MIB);

        assert_eq!(mem_set(&mut lab, "one", 24 * MIB), Ok(domid));
        assert_eq!(nodes(&lab, domid, memory), ["24576", "32768"]);
        assert_eq!(limit_kib(&lab, domid), 25 * MIB);
        let uuid = "01010101-0101-0101-0101-010101010101";
        assert_eq!(node(&lab, &format!("/vm/{uuid}/memory")).as_deref(), Some("24"));
        let refused = mem_set(&mut lab, "one", 32 * MIB + 1).unwrap_err();
        let why = "32769 KiB is above its maximum of 32 MiB; raise that first with `xy mem-max`";
        assert_eq!(refused, format!("one: {why}"));
        let refused = mem_max(&mut lab, "one", 23 * MIB).unwrap_err();
        let why = "a maximum of 23 MiB is below its memory of 24 MiB; lower that first";
        assert_eq!(refused, format!("one: {why} with `xy mem-set`"));
        assert_eq!(nodes(&lab, domid, memory), ["24576", "32768"]);
        assert_eq!(limit_kib(&lab, domid), 25 * MIB);

        assert_eq!(mem_max(&mut lab, "one", 48 * MIB), Ok(domid));
        assert_eq!(nodes(&lab, domid, memory), ["24576", "49152"]);
        assert_eq!(limit_kib(&lab, domid), 49 * MIB);

        // A later daemon knows it, and so does the VM's next domain.
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        let domid = reboot(&mut lab, "one");
        assert_eq!(nodes(&lab, domid, memory), ["24576", "49152"]);
        assert_eq!(limit_kib(&lab, domid), 25 * MIB);
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_device_models_memory_is_not_the_guests_to_give_back() {
    let mut lab = Lab::seeded(63);
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    let text = "name = 'one'\ntype = 'hvm'\nmemory = 64\nmaxmem = 96\n\
                disk = ['/disk.raw,raw,hda,w']\n";
    let domid = lab.create(text).unwrap();
    let memory = ["memory/target", "memory/static-max", "memory/videoram"];
    // libxl's: without the video memory, and a MiB less if the guest begins with less than its maximum.
    assert_eq!(nodes(&lab, domid, memory), ["56320", "98304", "8192"].map(str::to_owned));
    mem_set(&mut lab, "one", 64 * MIB).unwrap();
    assert_eq!(nodes(&lab, domid, memory), ["57344", "98304", "8192"].map(str::to_owned));
    // With libxl's allowance, and the device model's own for its ROMs.
    assert_eq!(limit_kib(&lab, domid), 66 * MIB);
    let refused = mem_set(&mut lab, "one", 7 * MIB).unwrap_err();
    assert_eq!(refused, "one: 7 MiB is less than its video memory of 8 MiB");
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn domain_0_keeps_what_it_needs_and_others_are_left_alone() {
    let mut lab = Lab::seeded(64);
    let refused = mem_set(&mut lab, "0", 127 * MIB).unwrap_err();
    assert_eq!(refused, "Domain-0: 127 MiB is less than domain 0 needs, 128 MiB");
    assert_eq!(mem_set(&mut lab, "Domain-0", 512 * MIB), Ok(DomId::DOM0));
    assert_eq!(nodes(&lab, DomId::DOM0, ["memory/target"]), ["524288"]);
    assert_eq!(limit_kib(&lab, DomId::DOM0), 513 * MIB);
    let refused = mem_set(&mut lab, "nobody", MIB).unwrap_err();
    assert_eq!(refused, "nobody: no such domain; `xy list` shows them all");
}

#[test]
fn a_destroy_waits_for_a_change_that_is_under_way() {
    let mut lab = Lab::new(HostConfig::default());
    lab.create(&linux("one", "pv", "normal")).unwrap();
    lab.settle();
    let tuning = Tuning::MemoryTarget { kib: 12 * MIB };
    let change = Request::Tune { target: "one".to_owned(), tuning };
    let change = lab.daemon.request(change).unwrap();
    let destroy = Request::Destroy { target: "one".to_owned() };
    let destroy = lab.daemon.request(destroy).unwrap();
    assert!(matches!(lab.wait(change), Reply::Done { .. }));
    assert!(matches!(lab.wait(destroy), Reply::Gone { .. }));
    lab.assert_nothing_left();
}
