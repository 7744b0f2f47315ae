//! Keys about how Xen runs a guest's machine: what they tell Xen, and what a host must have for them.

use sim::{HostConfig, MachineConfig, Release};
use toolstack::saved::{AfterSave, FileFormat};
use toolstack::{Reply, ShutdownRequest};
use xen::{DomId, HvmParam, Xen};
use xenstore::client::Nodes as _;

use crate::save::save_as;
use crate::save_hvm::restore_as;
use crate::support::{Lab, linux};

const HVM: &str = "name = 'one'\ntype = 'hvm'\nmemory = 64\ndisk = ['/disk.raw,raw,hda,w']\n";
/// `XEN_DOMCTL_CDF_*`.
const OOS_OFF: u32 = 8;
const IOMMU: u32 = 32;
const VPMU: u32 = 128;

fn lab(machine: MachineConfig) -> Lab {
    let mut lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
    sim::add_hvm_files(lab.host.os(), "sim.kind=linux");
    lab.before = lab.host.snapshot().unwrap();
    lab
}

fn able() -> MachineConfig {
    MachineConfig { has_iommu: true, has_vpmu: true, has_vmtrace: true, ..MachineConfig::default() }
}

fn params(lab: &Lab, domid: DomId) -> [u64; 4] {
    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    let params = [HvmParam::TimerMode, HvmParam::VptAlign, HvmParam::HpetEnabled, HvmParam::Altp2m];
    params.map(|param| xen.hvm_param(domid, param).unwrap())
}

fn flags(lab: &Lab, domid: DomId) -> u32 {
    lab.host.machine().get().domain(domid).unwrap().flags
}

fn ends_with_nothing_left(mut lab: Lab) {
    assert!(matches!(lab.destroy("one"), Reply::Gone { .. }));
    lab.settle();
    lab.assert_nothing_left();
}

#[test]
fn timers_and_views_of_memory_are_as_asked_for_on_every_release() {
    for release in Release::ALL {
        let mut lab = lab(MachineConfig { release, ..MachineConfig::default() });
        let domid = lab.create(HVM).unwrap();
        assert_eq!(params(&lab, domid), [1, 1, 1, 0], "{release:?}");
        ends_with_nothing_left(lab);
    }
    for release in Release::ALL {
        let mut lab = lab(MachineConfig { release, ..MachineConfig::default() });
        let lines = "timer_mode = 3\nvpt_align = 0\nhpet = 0\naltp2m = 'external'\n";
        let domid = lab.create(&format!("{HVM}{lines}")).unwrap();
        assert_eq!(params(&lab, domid), [3, 0, 0, 2], "{release:?}");
        ends_with_nothing_left(lab);
    }
}

#[test]
fn a_pvh_guest_has_a_timer_mode_and_views_too() {
    for release in Release::ALL {
        let mut lab = lab(MachineConfig { release, ..MachineConfig::default() });
        let lines = "timer_mode = 0\naltp2m = 'limited'\naltp2m_count = 2\n";
        let domid = lab.create(&format!("{}{lines}", linux("one", "pvh", "boot"))).unwrap();
        assert_eq!(params(&lab, domid), [0, 0, 0, 3], "{release:?}");
        ends_with_nothing_left(lab);
    }
}

#[test]
fn a_restored_guest_has_the_same_timers() {
    let mut lab = lab(MachineConfig::default());
    let vm = format!("{}timer_mode = 2\nvpt_align = 0\nhpet = 0\naltp2m = 1\n", HVM);
    let domid = lab.create(&vm).unwrap();
    lab.settle();
    assert_eq!(params(&lab, domid), [2, 0, 0, 1]);
    for format in [FileFormat::Xylem, FileFormat::Xl] {
        let reply = lab.ask(save_as(AfterSave::Destroyed, format));
        assert!(matches!(reply, Reply::Gone { .. }), "{reply:?}");
        let domid = restore_as(&mut lab, None).unwrap();
        assert_eq!(params(&lab, domid), [2, 0, 0, 1], "{format:?}");
    }
}

#[test]
fn flags_of_the_creation_are_as_asked_for() {
    let mut lab = lab(able());
    let lines = "vpmu = 1\noos = 0\nvmtrace_buf_kb = 64\npassthrough = 'enabled'\n";
    let domid = lab.create(&format!("{HVM}{lines}")).unwrap();
    assert_eq!(flags(&lab, domid) & (OOS_OFF | IOMMU | VPMU), OOS_OFF | IOMMU | VPMU);
    ends_with_nothing_left(lab);
}

#[test]
fn what_the_host_has_not_is_refused_before_anything_is_made() {
    for (line, problem) in [
        ("vpmu = 1", "vpmu: this host's Xen has none for guests; its command line needs vpmu=1"),
        (
            "vmtrace_buf_kb = 64",
            "vmtrace_buf_kb: this host's CPUs cannot trace vCPUs, or Xen does not",
        ),
        ("pci = ['1:0.0']", "pci[0]: 0000:01:00.0: this host has no IOMMU, or Xen does not use it"),
        ("passthrough = 'share_pt'", "passthrough: this host has no IOMMU, or Xen does not use it"),
    ] {
        let mut lab = lab(MachineConfig::default());
        let error = lab.create(&format!("{HVM}{line}\n")).unwrap_err();
        assert!(error.contains(problem), "{error}");
        lab.settle();
        lab.assert_nothing_left();
    }
}

fn told(lab: &Lab, domid: DomId) -> Option<Vec<u8>> {
    lab.host.connect().read(&format!("/local/domain/{domid}/platform/generation-id")).ok()
}

/// What a guest finds where its firmware told Xen that it looks.
fn in_memory(lab: &Lab, domid: DomId) -> [u8; 16] {
    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    let mut bytes = [0; 16];
    xen.read_foreign(domid, &[ADDRESS >> 12], index(ADDRESS & 0xfff), &mut bytes).unwrap();
    bytes
}

const ADDRESS: u64 = 0x20_0010;

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

#[test]
fn the_generation_of_a_guests_memory_changes_when_it_is_restored_and_not_when_it_reboots() {
    let mut lab = lab(MachineConfig::default());
    let domid = lab.create(&format!("{HVM}ms_vm_genid = 'generate'\n")).unwrap();
    let first = told(&lab, domid).unwrap();
    lab.settle();
    let reboot = Lab::shutdown_request("one", ShutdownRequest::Reboot);
    assert!(matches!(lab.ask(reboot), Reply::Gone { .. }));
    lab.settle();
    let domid = lab.host.machine().get().domains().map(|it| it.domid).max().unwrap();
    assert_eq!(told(&lab, domid), Some(first.clone()));

    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    xen.set_hvm_param(domid, HvmParam::VmGenerationIdAddress, ADDRESS).unwrap();
    for format in [FileFormat::Xylem, FileFormat::Xl] {
        let reply = lab.ask(save_as(AfterSave::Destroyed, format));
        assert!(matches!(reply, Reply::Gone { .. }), "{reply:?}");
        let domid = restore_as(&mut lab, None).unwrap();
        let now = told(&lab, domid).unwrap();
        assert_ne!(now, first);
        let id = toolstack::generation::GenerationId(in_memory(&lab, domid));
        assert_eq!(id.to_string().into_bytes(), now);
    }
    ends_with_nothing_left(lab);
}

#[test]
fn a_guest_without_a_generation_is_told_none() {
    let mut lab = lab(MachineConfig::default());
    let domid = lab.create(HVM).unwrap();
    assert_eq!(told(&lab, domid), None);
    ends_with_nothing_left(lab);
}

#[test]
fn a_device_that_the_host_does_not_have_is_named() {
    let mut lab = lab(able());
    let error = lab.create(&format!("{HVM}pci = ['1:0.0']\n")).unwrap_err();
    assert!(error.contains("pci[0]: 0000:01:00.0: this host has no such PCI device"), "{error}");
    lab.settle();
    lab.assert_nothing_left();
    // This one has reserved no memory, so there is nothing to leave alone.
    lab.create(&format!("{HVM}rdm = 'strategy=host'\n")).unwrap();
    ends_with_nothing_left(lab);
}

#[test]
fn a_driver_domain_may_use_libxl_itself() {
    for (line, may) in [("", false), ("driver_domain = 1\n", true)] {
        let mut lab = lab(MachineConfig::default());
        let domid = lab.create(&format!("{}{line}", linux("one", "pv", "boot"))).unwrap();
        for name in ["libxl", "device-model"] {
            let path = format!("/local/domain/{domid}/{name}");
            let permissions = lab.host.connect().get_perms(&path);
            let owner = permissions.ok().and_then(|them| them.first().map(|it| it.domid));
            assert_eq!(owner == Some(domid), may, "{path}");
        }
        ends_with_nothing_left(lab);
    }
}

#[test]
fn a_guest_in_a_shim_starts_and_leaves_nothing() {
    let mut lab = lab(MachineConfig::default());
    let text = "name = 'one'\ntype = 'pvh'\nkernel = '/no-kernel'\nmemory = 16\npvshim = 1\n";
    let error = lab.create(text).unwrap_err();
    assert!(error.contains("pvshim: this host has no shim of Xen"), "{error}");
    // What the shim runs is not looked at: it may be anything.
    lab.create(&format!("{text}pvshim_path = '/kernel'\n")).unwrap();
    lab.settle();
    ends_with_nothing_left(lab);
}
