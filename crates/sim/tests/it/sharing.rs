//! Many may read a disk, or one may write: by what it is, for all who use it.

use std::collections::BTreeMap;

use expect_test::expect;
use sim::{Daemon, HostConfig};
use storage::{Access, DeviceNumber, Kind, Repositories, VdiName};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{Device, MediumChange, Reply, Request, ShutdownRequest, xlcfg};
use xen::Uuid;
use xenstore::client::Nodes as _;

use crate::support::{Lab, linux, unikernel};

fn plug(target: &str, spec: &str) -> Request {
    let device = xlcfg::parse_disk(spec).map(Device::Disk).unwrap();
    Request::Plug { target: target.to_owned(), device: Box::new(device) }
}

fn unplug(target: &str, devid: u32) -> Request {
    let device = DeviceRef { kind: DeviceKind::Vbd, devid };
    Request::Unplug { target: target.to_owned(), device, how: Unplug::Forced }
}

/// What an attach to a second VM ends with: nothing, or why not.
fn outcome(reply: Reply) -> Option<String> {
    match reply {
        Reply::Done { .. } => None,
        Reply::Failed(message) => Some(message),
        other => panic!("{other:?}"),
    }
}

const SDA: DeviceNumber = DeviceNumber { major: 8, minor: 16 };
const SDA1: DeviceNumber = DeviceNumber { major: 8, minor: 17 };
const LV: DeviceNumber = DeviceNumber { major: 253, minor: 0 };

/// A lab with two VMs, one file by three names, and a disk with a partition and a logical volume on it.
fn lab() -> Lab {
    let mut lab = Lab::new(HostConfig::default());
    let os = lab.host.os();
    os.add_disk("/a.raw", 1 << 20);
    os.add_link("/link.raw", "/a.raw");
    os.add_block_device("/dev/sdb", SDA);
    os.add_block_device("/dev/sdb1", SDA1);
    os.add_block_device("/dev/vg/lv", LV);
    for (path, text) in [
        ("/sys/dev/block/8:16/sdb1/partition", "1\n"),
        ("/sys/dev/block/8:16/sdb1/dev", "8:17\n"),
        ("/sys/dev/block/8:17/partition", "1\n"),
        ("/sys/dev/block/8:17/../dev", "8:16\n"),
    ] {
        os.add_file(path, text.as_bytes().to_vec());
    }
    lab.create(&unikernel("one", "pv", "never-connects")).unwrap();
    lab.create(&unikernel("two", "pv", "never-connects")).unwrap();
    lab.settle();
    lab
}

#[test]
fn a_disk_of_another_vm_is_refused_by_what_it_is() {
    for (first, second, expected) in [
        (
            "/a.raw,,xvdb,w",
            "/a.raw,,xvdc,w",
            Some("/a.raw is in use read-write by VM one (vbd xvdb)"),
        ),
        ("/a.raw,,xvdb,w", "/link.raw,,xvdc,r", Some("/link.raw is in use read-write by VM one")),
        ("/link.raw,,xvdb,r", "/a.raw,,xvdc,w", Some("/a.raw is in use read-only by VM one")),
        ("/a.raw,,xvdb,r", "/link.raw,,xvdc,r", None),
        ("/a.raw,,xvdb,w", "/a.raw,,xvdc,w!", None),
        ("/a.raw,,xvdb,w!", "/a.raw,,xvdc,w", Some("/a.raw is in use read-write by VM one")),
        ("/a.raw,,xvdb,w!", "/a.raw,,xvdc,r", None),
        ("/dev/sdb,,xvdb,w", "/dev/sdb1,,xvdc,w", Some("/dev/sdb1 is in use read-write by VM one")),
        ("/dev/sdb1,,xvdb,w", "/dev/sdb,,xvdc,r", Some("/dev/sdb is in use read-write by VM one")),
        ("/dev/sdb1,,xvdb,r", "/dev/sdb,,xvdc,r", None),
        ("/dev/sdb1,,xvdb,w", "/dev/vg/lv,,xvdc,w", None),
    ] {
        let mut lab = lab();
        assert_eq!(outcome(lab.ask(plug("one", first))), None, "{first}");
        let refusal = outcome(lab.ask(plug("two", second)));
        match expected {
            None => assert_eq!(refusal, None, "{first} then {second}"),
            Some(words) => {
                let refusal = refusal.unwrap_or_else(|| panic!("{first} then {second} is taken"));
                assert!(refusal.starts_with("two: xvdc: ") && refusal.contains(words), "{refusal}");
                // What is refused is free for others once its user is done with it.
                assert_eq!(outcome(lab.ask(unplug("one", 51728))), None);
                assert_eq!(outcome(lab.ask(plug("two", second))), None, "{first} then {second}");
            }
        }
        lab.destroy("one");
        lab.destroy("two");
        lab.assert_nothing_left();
    }
}

#[test]
fn a_disk_of_dom0_is_refused() {
    let mounted = |options: &str| format!("29 1 8:17 / /mnt rw - ext4 /dev/sdb1 {options}\n");
    for (what, spec, expected) in [
        (Some(mounted("rw")), "/dev/sdb1,,xvdb,r", Some("read-write by dom0, mounted at /mnt")),
        (Some(mounted("rw")), "/dev/sdb,,xvdb,w", Some("read-write by dom0, mounted at /mnt")),
        (Some(mounted("ro")), "/dev/sdb1,,xvdb,w", Some("read-only by dom0, mounted at /mnt")),
        (Some(mounted("ro")), "/dev/sdb1,,xvdb,r", None),
        (Some(mounted("rw")), "/dev/sdb1,,xvdb,w!", None),
        (Some(mounted("rw")), "/dev/vg/lv,,xvdb,w", None),
        (None, "/dev/sdb1,,xvdb,w", None),
    ] {
        let mut lab = lab();
        if let Some(text) = what {
            lab.host.os().add_file("/proc/self/mountinfo", text.into_bytes());
        }
        let refusal = outcome(lab.ask(plug("one", spec)));
        match expected {
            None => assert_eq!(refusal, None, "{spec}"),
            Some(words) => {
                assert!(refusal.as_ref().is_some_and(|it| it.contains(words)), "{refusal:?}");
            }
        }
    }
    let mut lab = lab();
    lab.host.os().add_file("/proc/swaps", b"Filename Type\n/a.raw file 1 0 -2\n".to_vec());
    let refusal = outcome(lab.ask(plug("one", "/link.raw,,xvdb,r"))).unwrap();
    assert!(refusal.contains("by dom0 as swap; `swapoff /a.raw` first"), "{refusal}");
    lab.host.os().set_exclusive("/dev/vg/lv");
    let refusal = outcome(lab.ask(plug("one", "/dev/vg/lv,,xvdb,r"))).unwrap();
    assert!(refusal.contains("has it to itself"), "{refusal}");
}

#[test]
fn a_loop_device_or_volume_on_a_disk_uses_it() {
    let mut lab = lab();
    lab.host.os().add_loop("/a.raw", Access::ReadWrite);
    let refusal = outcome(lab.ask(plug("one", "/link.raw,,xvdb,r"))).unwrap();
    assert!(refusal.contains("by dom0 as /dev/loop0; detach it first"), "{refusal}");
    // The loop device itself may be a disk, of one VM.
    assert_eq!(outcome(lab.ask(plug("one", "/dev/loop0,,xvdb,w"))), None);
    let refusal = outcome(lab.ask(plug("two", "/dev/loop0,,xvdb,r"))).unwrap();
    assert!(refusal.contains("VM one (vbd xvdb)"), "{refusal}");
    for (path, text) in [
        ("/sys/dev/block/8:17/holders/dm-0/dev", "253:0\n"),
        ("/sys/dev/block/253:0/slaves/sdb1/dev", "8:17\n"),
        ("/sys/dev/block/253:0/dm/name", "vg-lv\n"),
        ("/sys/dev/block/253:0/dm/uuid", "LVM-abc\n"),
    ] {
        lab.host.os().add_file(path, text.as_bytes().to_vec());
    }
    let refusal = outcome(lab.ask(plug("one", "/dev/sdb,,xvdc,w"))).unwrap();
    assert!(
        refusal.contains("by the logical volume /dev/mapper/vg-lv, which lies on it"),
        "{refusal}"
    );
    assert_eq!(outcome(lab.ask(plug("one", "/dev/vg/lv,,xvdc,w"))), None);
}

#[test]
fn a_disk_of_another_toolstacks_domain_is_refused() {
    let mut lab = lab();
    let mut store = lab.host.connect_inside();
    for (path, value) in [
        ("/local/domain/77/name", "theirs"),
        ("/local/domain/0/backend/vbd/77/51712/physical-device", "8:11"),
        ("/local/domain/0/backend/vbd/77/51712/mode", "w"),
        ("/local/domain/0/backend/vbd/77/51712/dev", "xvda"),
        ("/local/domain/0/backend/qdisk/77/51728/params", "aio:/link.raw"),
        ("/local/domain/0/backend/qdisk/77/51728/mode", "r"),
    ] {
        store.write(path, value.as_bytes()).unwrap();
    }
    let refusal = outcome(lab.ask(plug("one", "/dev/sdb,,xvdb,r"))).unwrap();
    let words = "in use read-write by domain 77 (theirs) of another toolstack (vbd xvda)";
    assert!(refusal.contains(words), "{refusal}");
    let refusal = outcome(lab.ask(plug("one", "/a.raw,,xvdb,w"))).unwrap();
    assert!(refusal.contains("read-only by domain 77 (theirs)"), "{refusal}");
    assert_eq!(outcome(lab.ask(plug("one", "/a.raw,,xvdb,r"))), None);
}

/// What a check of a VM with these disks finds. A create must agree: it fails for one of these.
fn found(lab: &mut Lab, disks: &[&str]) -> String {
    let specs: Vec<String> = disks.iter().map(|spec| format!("'{spec}'")).collect();
    let disks = format!("disk = [ {} ]\n", specs.join(", "));
    let text = format!("{}{disks}", unikernel("new", "pv", "never-connects"));
    let source = xlcfg::Source { file: "vm.cfg", text: &text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    let request = Request::Check { config, fresh_uuid: Uuid([7; 16]), is_whole: true };
    let Reply::Checked { faults } = lab.ask(request) else { panic!("no check") };
    match lab.create(&text) {
        Ok(_) => {
            assert_eq!(faults, Vec::<String>::new(), "{disks}");
            lab.destroy("new");
        }
        Err(refused) => {
            // A create attaches them side by side, so which of two of its own meets the other is open.
            let clashes = |it: &str| it.contains("in use") && it.contains(" by VM new ");
            let disk =
                |it: &str| it.split_once("]: ").unwrap().1.split(" by ").next().map(str::to_owned);
            let agrees =
                |it: &String| disk(it) == disk(&refused) || (clashes(it) && clashes(&refused));
            let agrees = faults.iter().any(agrees);
            assert!(agrees, "{refused}, but the check says {faults:?}");
        }
    }
    lab.settle();
    faults.join("\n")
}

#[test]
fn a_check_finds_every_disk_that_is_in_use() {
    let mut lab = lab();
    let os = lab.host.os();
    os.add_disk("/b.raw", 1 << 20);
    os.add_link("/b-link.raw", "/b.raw");
    let mounted = "29 1 8:17 / /mnt rw - ext4 /dev/sdb1 rw\n";
    os.add_file("/proc/self/mountinfo", mounted.as_bytes().to_vec());
    assert_eq!(outcome(lab.ask(plug("one", "/a.raw,,xvdb,w"))), None);
    let all = found(&mut lab, &["/link.raw,,xvda,r", "/dev/sdb1,,xvdb,w", "/b.raw,,xvdc,w"]);
    expect![[r#"
        vm.cfg:6: disk[0]: /link.raw is in use read-write by VM one (vbd xvdb); detach it there first, or share it with mode w!
        vm.cfg:6: disk[1]: /dev/sdb1 is in use read-write by dom0, mounted at /mnt; unmount it first"#]].assert_eq(&all);
    // One disk twice: by two names, and in part.
    let all = found(&mut lab, &["/b.raw,,xvda,w", "/b-link.raw,,xvdb,r", "/b.raw,,xvdc,w"]);
    expect![[r#"
        vm.cfg:6: disk[1]: /b-link.raw is in use read-write by VM new (vbd xvda); detach it there first, or share it with mode w!
        vm.cfg:6: disk[2]: /b.raw is in use read-write by VM new (vbd xvda); detach it there first, or share it with mode w!"#]].assert_eq(&all);
    assert_eq!(found(&mut lab, &["/b.raw,,xvda,r", "/b-link.raw,,xvdb,r"]), "");
    lab.host.os().add_file("/proc/self/mountinfo", Vec::new());
    let all = found(&mut lab, &["/dev/sdb,,xvda,w", "/dev/sdb1,,xvdb,r"]);
    expect!["vm.cfg:6: disk[1]: /dev/sdb1 is in use read-write by VM new (vbd xvda); detach it there first, or share it with mode w!"].assert_eq(&all);
}

#[test]
fn a_check_knows_a_vdi_by_its_file() {
    let mut lab = lab();
    let mut os = lab.host.os().clone();
    let mut srs = Repositories::new(&mut os);
    let config = BTreeMap::from([("path".to_owned(), "/srv/vdis".to_owned())]);
    srs.create("s", Kind::File, config).unwrap();
    srs.create_vdi(&VdiName::new("s", "v").unwrap(), 1 << 20).unwrap();
    let file = "/srv/vdis/v.raw,,xvdb,w";
    assert_eq!(outcome(lab.ask(plug("one", file))), None);
    expect!["vm.cfg:6: disk[0]: s:v is in use read-write by VM one (vbd xvdb); detach it there first, or share it with mode w!"].assert_eq(&found(&mut lab, &["s:v,,xvda,w"]));
    assert_eq!(outcome(lab.ask(unplug("one", 51728))), None);
    assert_eq!(found(&mut lab, &["s:v,,xvda,w"]), "");
    expect!["vm.cfg:6: disk[1]: /srv/vdis/v.raw is in use read-write by VM new (vbd xvda); detach it there first, or share it with mode w!"].assert_eq(&found(&mut lab, &["s:v,,xvda,w", file]));
}

#[test]
fn of_two_creates_at_once_one_gets_the_disk() {
    let mut lab = lab();
    let disk = |name: &str, path: &str| {
        unikernel(name, "pv", "never-connects") + &format!("disk = ['{path},raw,xvda,w']\n")
    };
    let asked: Vec<_> = [disk("three", "/a.raw"), disk("four", "/link.raw")]
        .iter()
        .map(|text| {
            let request = lab.create_request(text);
            lab.daemon.request(request).unwrap()
        })
        .collect();
    lab.settle();
    let replies: Vec<Reply> = asked.into_iter().map(|client| lab.wait(client)).collect();
    let made = replies.iter().filter(|it| matches!(it, Reply::Created(_))).count();
    assert_eq!(made, 1, "{replies:?}");
    let refused = |it: &Reply| matches!(it, Reply::Failed(why) if why.contains("is in use read-write by VM "));
    assert!(replies.iter().any(refused), "{replies:?}");
}

#[test]
fn a_disk_stays_its_users_across_reboots_and_daemons() {
    let mut lab = lab();
    let disks = "'/disk.raw,raw,xvda,rw', '/a.raw,,xvdb,w', '/dev/sdb,,xvdc,w'";
    let text = linux("three", "pv", "normal").replace("'/disk.raw,raw,xvda,rw'", disks);
    lab.create(&text).unwrap();
    lab.settle();
    let restart = |lab: &mut Lab| {
        lab.daemon = Daemon::restart(&lab.host).unwrap();
        lab.settle();
    };
    for _ in 0..2 {
        lab.ask(Lab::shutdown_request("three", ShutdownRequest::Reboot));
        lab.settle();
        restart(&mut lab);
        for disk in ["/link.raw", "/dev/sdb1"] {
            let refusal = outcome(lab.ask(plug("one", &format!("{disk},,xvdb,r")))).unwrap();
            assert!(refusal.contains("by VM three (vbd xvd"), "{refusal}");
        }
    }
    // An earlier release claimed nothing.
    for folder in ["/run/xylem/disks", "/run/xylem/disk-owners"] {
        lab.host.os().remove_below(folder);
    }
    restart(&mut lab);
    for disk in ["/link.raw", "/dev/sdb1"] {
        let refusal = outcome(lab.ask(plug("one", &format!("{disk},,xvdb,r")))).unwrap();
        assert!(refusal.contains("by VM three (vbd xvd"), "{refusal}");
    }
    lab.destroy("three");
    assert_eq!(outcome(lab.ask(plug("one", "/a.raw,,xvdb,w"))), None);
    assert_eq!(outcome(lab.ask(plug("one", "/dev/sdb1,,xvdc,w"))), None);
    lab.destroy("one");
    lab.destroy("two");
    lab.assert_nothing_left();
}

/// What is in the drive xvdc, by its loop device.
fn media(lab: &Lab) -> Vec<String> {
    let os = lab.host.os();
    let os = os.get();
    os.loops().values().map(|it| it.path.clone()).filter(|it| it.starts_with("/cd")).collect()
}

fn change(drive: u32, medium: Option<&str>, how: Unplug) -> Request {
    let spec = |path: &str| format!("{path},raw,xvdc:cdrom,r");
    let medium = medium.map(|path| xlcfg::parse_disk(&spec(path)).unwrap());
    let drive = DeviceRef { kind: DeviceKind::Vbd, devid: drive };
    let change = Box::new(MediumChange { drive, medium, how });
    Request::ChangeMedium { target: "cd".to_owned(), change }
}

#[test]
fn a_cd_drive_stays_whatever_becomes_of_its_cds() {
    const DRIVE: u32 = 51744;
    let mut lab = Lab::new(HostConfig::default());
    for path in ["/cd-1.iso", "/cd-2.iso"] {
        lab.host.os().add_disk(path, 1 << 20);
    }
    let text = linux("cd", "pv", "normal");
    let text = text.replace("xvda,rw'", "xvda,rw', ',,xvdc:cdrom,r'");
    let domid = lab.create(&text).unwrap();
    lab.settle();
    let connected = |lab: &Lab| lab.host.console(domid).matches("vbd 51744: connected").count();
    assert_eq!((connected(&lab), media(&lab)), (0, Vec::new()));
    // A hard disk is no drive, and no drive is none.
    for how in [Unplug::Clean, Unplug::Forced] {
        for medium in [None, Some("/cd-1.iso")] {
            let refusal = outcome(lab.ask(change(51712, medium, how))).unwrap();
            assert_eq!(refusal, "cd: xvda is not a CD drive");
            let refusal = outcome(lab.ask(change(51728, medium, how))).unwrap();
            assert!(
                refusal.starts_with("cd: has no CD drive ") && refusal.contains("xvdb"),
                "{refusal}"
            );
        }
    }
    for how in [Unplug::Clean, Unplug::Forced] {
        assert_eq!(outcome(lab.ask(change(DRIVE, None, how))), None, "ejected from an empty drive");
        assert_eq!(outcome(lab.ask(change(DRIVE, Some("/cd-1.iso"), how))), None);
        lab.settle();
        assert_eq!(outcome(lab.ask(change(DRIVE, Some("/cd-2.iso"), how))), None);
        lab.settle();
        assert_eq!(media(&lab), ["/cd-2.iso"]);
        // One that cannot be had leaves the other where it is.
        let refusal = outcome(lab.ask(change(DRIVE, Some("/cd-3.iso"), how))).unwrap();
        assert_eq!(refusal, "cd: xvdc: /cd-3.iso: no such file or directory");
        assert_eq!(media(&lab), ["/cd-2.iso"]);
        assert_eq!(outcome(lab.ask(change(DRIVE, None, how))), None);
        assert_eq!(media(&lab), [""; 0]);
        lab.daemon = Daemon::restart(&lab.host).unwrap();
        lab.settle();
    }
    assert_eq!(connected(&lab), 4);
    // Where a disk could be, there is a drive.
    let refusal = outcome(lab.ask(plug("cd", "/cd-1.iso,raw,xvdc,r"))).unwrap();
    assert!(refusal.contains("already; use another or detach it first"), "{refusal}");
    lab.destroy("cd");
    lab.assert_nothing_left();
}
