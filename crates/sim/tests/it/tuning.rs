//! Changes of running domains: what libxl would refuse is refused, and what it would write is written.

use sim::{Daemon, HostConfig, MachineConfig, MonitorFate};
use toolstack::plan::Start;
use toolstack::tuning::{CpuList, HostLimit, Pinning, Tuning};
use toolstack::xen_host::{HostAsk, NewPool, PoolCpus};
use toolstack::{Reply, Request, ShutdownRequest, VmState};
use xen::{DomId, Trigger, Uuid, Xen};
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
    let mut lab = hvm_lab();
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

fn vcpus(lab: &mut Lab, target: &str, count: u32) -> Result<DomId, String> {
    ask(lab, target, Tuning::Vcpus { count, host: HostLimit::Kept })
}

/// A node for each vCPU.
fn availability(lab: &Lab, domid: DomId) -> Vec<String> {
    (0..)
        .map_while(|vcpu| node(lab, &format!("/local/domain/{domid}/cpu/{vcpu}/availability")))
        .collect()
}

#[test]
fn vcpus_are_put_online_and_offline_and_stay_so() {
    for kind in ["pv", "pvh"] {
        let mut lab = lab_of_cpus(8);
        let text = unikernel("one", kind, "normal") + "vcpus = 1\nmaxvcpus = 3\n";
        let domid = lab.create(&text).unwrap();
        assert_eq!(availability(&lab, domid), ["online", "offline", "offline"]);
        assert_eq!(vcpus(&mut lab, "one", 2), Ok(domid));
        assert_eq!(availability(&lab, domid), ["online", "online", "offline"]);
        let refused = vcpus(&mut lab, "one", 4).unwrap_err();
        assert_eq!(refused, "one: 4 vCPUs are above its maxvcpus of 3");
        assert_eq!(vcpus(&mut lab, "one", 0).unwrap_err(), "one: a domain needs a vCPU");
        assert_eq!(availability(&lab, domid), ["online", "online", "offline"]);
        lab.daemon = Daemon::start(&lab.host).unwrap();
        lab.settle();
        let domid = reboot(&mut lab, "one");
        assert_eq!(availability(&lab, domid), ["online", "online", "offline"]);
        lab.destroy("one");
        lab.assert_nothing_left();
    }
}

#[test]
fn more_vcpus_than_the_host_has_cpus_need_a_word() {
    let mut lab = lab_of_cpus(2);
    let text = unikernel("one", "pv", "normal") + "vcpus = 1\nmaxvcpus = 4\n";
    let domid = lab.create(&text).unwrap();
    let refused = vcpus(&mut lab, "one", 3).unwrap_err();
    let why = "3 vCPUs are more than this host has CPUs, 2; --ignore-host allows that";
    assert_eq!(refused, format!("one: {why}"));
    let tuning = Tuning::Vcpus { count: 3, host: HostLimit::Ignored };
    assert_eq!(ask(&mut lab, "one", tuning), Ok(domid));
    assert_eq!(availability(&lab, domid), ["online", "online", "online", "offline"]);
}

fn lab_of_cpus(cpus: u32) -> Lab {
    let machine = MachineConfig { cpus, ..MachineConfig::default() };
    Lab::new(HostConfig { machine, ..HostConfig::default() })
}

fn hvm_lab() -> Lab {
    let mut lab = lab_of_cpus(8);
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    lab
}

#[test]
fn a_device_model_gets_the_cpus_that_it_lacks_and_keeps_them() {
    let mut lab = hvm_lab();
    let text = "name = 'one'\ntype = 'hvm'\nmemory = 64\nvcpus = 1\nmaxvcpus = 4\n\
                disk = ['/disk.raw,raw,hda,w']\n";
    let domid = lab.create(text).unwrap();
    vcpus(&mut lab, "one", 3).unwrap();
    let cpus = |lab: &Lab, domid| {
        lab.host.os().model_guest(domid).unwrap().0.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(cpus(&lab, domid), [0, 1, 2]);
    assert_eq!(availability(&lab, domid), ["online", "online", "online", "offline"]);
    vcpus(&mut lab, "one", 2).unwrap();
    assert_eq!(cpus(&lab, domid), [0, 1, 2]);
    assert_eq!(availability(&lab, domid), ["online", "online", "offline", "offline"]);
    lab.host.os().set_monitor_fate(MonitorFate::Refuses("device_add"));
    let refused = vcpus(&mut lab, "one", 4).unwrap_err();
    assert!(refused.contains("device_add: no"), "{refused}");
    assert_eq!(availability(&lab, domid), ["online", "online", "offline", "offline"]);
    lab.host.os().set_monitor_fate(MonitorFate::Answers);
    // What it has is what its next one begins with.
    let domid = reboot(&mut lab, "one");
    assert_eq!(cpus(&lab, domid), [0, 1, 2]);
    lab.destroy("one");
    lab.assert_nothing_left();
}

fn pin(vcpu: Option<u32>, hard: &str, soft: &str, is_forced: bool) -> Tuning {
    let list = |text: &str| (text != "-").then(|| CpuList::parse(text).unwrap());
    Tuning::Pin(Pinning { vcpu, hard: list(hard), soft: list(soft), is_forced })
}

/// Hard and soft affinity.
fn affinity(lab: &Lab, domid: DomId, vcpu: u32) -> (Vec<u32>, Vec<u32>) {
    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    let affinity = xen.vcpu_affinity(domid, vcpu).unwrap();
    (affinity.hard.iter().collect(), affinity.soft.iter().collect())
}

#[test]
fn vcpus_begin_where_their_configuration_says() {
    let mut lab = lab_of_cpus(4);
    let text =
        unikernel("one", "pvh", "normal") + "vcpus = 2\ncpus = ['0', '0-2,^0']\ncpus_soft = '3'\n";
    let domid = lab.create(&text).unwrap();
    assert_eq!(affinity(&lab, domid, 0), (vec![0], vec![3]));
    assert_eq!(affinity(&lab, domid, 1), (vec![1, 2], vec![3]));
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    let refused = lab.create(&text.replace("'0-2,^0'", "'4'")).unwrap_err();
    assert!(
        refused.ends_with("cpus: vCPU 1 cannot run on \"4\": none of these CPUs is in its pool"),
        "{refused}"
    );
    lab.assert_nothing_left();
}

#[test]
fn vcpus_are_pinned_by_lists_of_cpus() {
    let mut lab = lab_of_cpus(4);
    let text = unikernel("one", "pv", "normal") + "vcpus = 2\n";
    let domid = lab.create(&text).unwrap();
    let all = vec![0, 1, 2, 3];
    assert_eq!(ask(&mut lab, "one", pin(Some(1), "0-3,^1", "-", false)), Ok(domid));
    assert_eq!(affinity(&lab, domid, 1), (vec![0, 2, 3], all.clone()));
    assert_eq!(affinity(&lab, domid, 0), (all.clone(), all.clone()));
    ask(&mut lab, "one", pin(None, "-", "nodes:0,^0", false)).unwrap();
    assert_eq!(affinity(&lab, domid, 1), (vec![0, 2, 3], vec![1, 2, 3]));
    assert_eq!(affinity(&lab, domid, 0), (all.clone(), vec![1, 2, 3]));
    ask(&mut lab, "0", pin(Some(0), "1", "all", false)).unwrap();
    assert_eq!(affinity(&lab, DomId::DOM0, 0), (vec![1], all));
    let refused = ask(&mut lab, "one", pin(Some(2), "1", "-", false)).unwrap_err();
    assert_eq!(refused, "one: has no vCPU 2");
    let refused = ask(&mut lab, "one", pin(None, "8-9", "-", false)).unwrap_err();
    let why = "vCPU 0 cannot run on \"8-9\": none of these CPUs is in its pool";
    assert_eq!(refused, format!("one: {why}"));
}

#[test]
fn a_pinning_by_the_kernel_is_overridden_by_force() {
    let mut lab = lab_of_cpus(2);
    lab.host.machine().get_mut().guest_pins(DomId::DOM0, 0);
    let refused = ask(&mut lab, "0", pin(Some(0), "1", "-", false)).unwrap_err();
    let why = "vCPU 0 is pinned by the domain's own kernel; -f overrides that";
    assert_eq!(refused, format!("Domain-0: {why}"));
    ask(&mut lab, "0", pin(Some(0), "1", "-", true)).unwrap();
    assert_eq!(affinity(&lab, DomId::DOM0, 0).0, [1]);
}

#[test]
fn keys_and_triggers_reach_the_guest_or_are_refused() {
    let mut lab = hvm_lab();
    let text = "name = 'hvm'\ntype = 'hvm'\nmemory = 64\ndisk = ['/disk.raw,raw,hda,w']\n";
    let hvm = lab.create(text).unwrap();
    let pv = lab.create(&unikernel("pv", "pv", "normal")).unwrap();
    ask(&mut lab, "pv", Tuning::Sysrq { key: 's' }).unwrap();
    assert_eq!(nodes(&lab, pv, ["control/sysrq"]), ["s"]);
    let trigger = |trigger, vcpu| Tuning::Trigger { trigger, vcpu };
    assert_eq!(ask(&mut lab, "pv", trigger(Trigger::Nmi, 0)), Ok(pv));
    assert_eq!(ask(&mut lab, "hvm", trigger(Trigger::Sleep, 0)), Ok(hvm));
    let refused = ask(&mut lab, "pv", trigger(Trigger::Nmi, 1)).unwrap_err();
    assert_eq!(refused, "pv: has no vCPU 1");
    let none = "Xen has no such trigger for its kind of domain";
    for (target, sent) in [("pv", Trigger::Power), ("hvm", Trigger::Reset), ("hvm", Trigger::Init)]
    {
        let refused = ask(&mut lab, target, trigger(sent, 0)).unwrap_err();
        assert_eq!(refused, format!("{target}: {none}"));
    }
    ask(&mut lab, "hvm", Tuning::WakeUp).unwrap();
    assert_eq!(lab.host.os().model_guest(hvm).unwrap().1, 1);
    let refused = ask(&mut lab, "pv", Tuning::WakeUp).unwrap_err();
    assert_eq!(refused, "pv: only an HVM guest sleeps so that it can be woken");
}

fn rename(lab: &mut Lab, target: &str, name: &str) -> Result<DomId, String> {
    ask(lab, target, Tuning::Rename { name: name.to_owned() })
}

#[test]
fn a_vm_has_its_new_name_everywhere_and_keeps_it() {
    let mut lab = Lab::seeded(70);
    let domid = lab.create(&unikernel("one", "pv", "normal")).unwrap();
    assert_eq!(rename(&mut lab, "one", "web"), Ok(domid));
    assert_eq!(nodes(&lab, domid, ["name"]), ["web"]);
    let uuid = "01010101-0101-0101-0101-010101010101";
    assert_eq!(node(&lab, &format!("/vm/{uuid}/name")).as_deref(), Some("web"));
    assert_eq!(lab.state("web"), VmState::Running);
    let refused = mem_set(&mut lab, "one", MIB).unwrap_err();
    assert_eq!(refused, "one: no such domain; `xy list` shows them all");
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert_eq!(lab.state("web"), VmState::Running);
    let domid = reboot(&mut lab, "web");
    assert_eq!(nodes(&lab, domid, ["name"]), ["web"]);
    // Its old name is free.
    lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.destroy("one");
    lab.destroy("web");
    lab.assert_nothing_left();
}

#[test]
fn a_name_that_is_taken_or_none_is_refused() {
    let mut lab = Lab::seeded(71);
    let domid = lab.create(&unikernel("one", "pv", "normal")).unwrap();
    lab.create(&unikernel("two", "pv", "normal")).unwrap();
    let refused = rename(&mut lab, "one", "two").unwrap_err();
    let two = "02020202-0202-0202-0202-020202020202";
    assert_eq!(refused, format!("one: cannot be renamed: two is the VM {two} already"));
    let refused = rename(&mut lab, "one", "Domain-0").unwrap_err();
    assert_eq!(refused, "one: domain 0 is named Domain-0 already");
    let refused = rename(&mut lab, "one", "").unwrap_err();
    assert_eq!(refused, "one: cannot be renamed: \"\" is empty");
    let refused = rename(&mut lab, "one", "7").unwrap_err();
    assert_eq!(refused, "one: cannot be renamed: \"7\" would be read as a domain ID");
    assert!(rename(&mut lab, "0", "host").unwrap_err().starts_with("0: not managed by Xylem"));
    assert_eq!(nodes(&lab, domid, ["name"]), ["one"]);
    // To its own name.
    assert_eq!(rename(&mut lab, "one", "one"), Ok(domid));
    // What is refused leaves no trace of the wanted name.
    lab.create(&unikernel("three", "pv", "normal")).unwrap();
    assert_eq!(lab.state("one"), VmState::Running);
}

#[test]
fn a_definition_is_renamed_with_its_vm_and_without() {
    let mut lab = Lab::seeded(72);
    let Request::Create { config, fresh_uuid, .. } =
        lab.create_request(&unikernel("one", "pv", "normal"))
    else {
        unreachable!()
    };
    lab.ask(Request::Define { config, fresh_uuid, autostart: Some(3) });
    let named = |lab: &mut Lab, name: &str| match lab.ask(Request::Vms) {
        Reply::Vms(rows) => rows.iter().any(|it| it.name == name && it.autostart == Some(3)),
        other => panic!("{other:?}"),
    };
    let rename_down = Tuning::Rename { name: "down".to_owned() };
    let reply = lab.ask(Request::Tune { target: "one".to_owned(), tuning: rename_down });
    assert!(matches!(reply, Reply::Defined { .. }), "{reply:?}");
    assert!(named(&mut lab, "down"));
    lab.ask(Request::Start { target: "down".to_owned(), start: Start::Running });
    rename(&mut lab, "down", "up").unwrap();
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    assert!(named(&mut lab, "up"));
    lab.destroy("up");
    assert_eq!(lab.state("up"), VmState::Down);
    assert!(named(&mut lab, "up"));
}

#[test]
fn a_vm_is_in_its_pool_from_its_creation_on_and_over_a_reboot() {
    let mut lab = Lab::seeded(9);
    let host = |lab: &mut Lab, ask| match lab.ask(Request::Host(Box::new(ask))) {
        Reply::Host(_) => {}
        other => panic!("{other:?}"),
    };
    let cpus = |text| CpuList::parse(text).unwrap();
    let text = format!("{}pool = 'lab'\ncap = 50\n", unikernel("one", "pv", "normal"));
    assert_eq!(
        lab.create(&text).unwrap_err(),
        "vm.cfg:6: pool: lab: no such CPU pool; `xy cpupool-list` shows them all"
    );
    host(&mut lab, HostAsk::RemoveCpus { pool: "0".to_owned(), cpus: cpus("1") });
    let pool = NewPool { name: "lab".to_owned(), scheduler: None, cpus: PoolCpus::None };
    host(
        &mut lab,
        HostAsk::CreatePool { pool: Box::new(pool), uuid: Uuid([9; 16]), dry_run: false },
    );
    assert_eq!(
        lab.create(&text).unwrap_err(),
        "vm.cfg:6: pool: lab has no CPUs; give it some with `xy cpupool-cpu-add`"
    );
    host(&mut lab, HostAsk::AddCpus { pool: "lab".to_owned(), cpus: cpus("1") });
    let pool_of = |lab: &Lab, domid: DomId| {
        let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
        xen.domain(domid).unwrap().unwrap().cpupool
    };
    let first = lab.create(&text).unwrap();
    assert_eq!(pool_of(&lab, first), 1);
    let second = reboot(&mut lab, "one");
    assert_eq!(pool_of(&lab, second), 1);
    for (pool, number) in [("Pool-0", 0), ("lab", 1)] {
        let moved = ask(&mut lab, "one", Tuning::Pool { pool: pool.to_owned() }).unwrap();
        assert_eq!(pool_of(&lab, moved), number);
        let next = reboot(&mut lab, "one");
        assert!(next != moved && pool_of(&lab, next) == number);
    }
    lab.destroy("one");
}
