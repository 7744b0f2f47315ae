//! LUNs as VDIs and under logical volumes: one session for all SRs of a host, and no stale ones.

use std::collections::BTreeMap;

use sim::SimOs;
use storage::{Access, Command, Kind, Repositories, StorageError, System as _, VdiName};

const TARGET: &str = "iqn.2001-04.com.example:disks";
const MIB: u64 = 1 << 20;

fn config(lun: Option<&str>) -> BTreeMap<String, String> {
    let settings =
        [Some(("server", "10.0.0.9")), Some(("target", TARGET)), lun.map(|it| ("lun", it))];
    settings.into_iter().flatten().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn host() -> SimOs {
    let os = SimOs::default();
    os.add_unit(TARGET, 1, 4 * MIB);
    os.add_unit(TARGET, 7, 64 * MIB);
    os
}

fn name(sr: &str, vdi: &str) -> VdiName {
    VdiName::new(sr, vdi).unwrap()
}

#[test]
fn a_lun_can_be_used_but_is_managed_on_its_server() {
    let mut os = host();
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Iscsi, config(None)).unwrap();
    let found: Vec<_> = srs.scan("s").unwrap().into_iter().map(|it| (it.name, it.bytes)).collect();
    assert_eq!(found, [("lun1".to_owned(), 4 * MIB), ("lun7".to_owned(), 64 * MIB)]);
    let one = name("s", "lun1");
    let device = srs.attach_for(&one, "vm", Access::ReadWrite).unwrap();
    assert_eq!(device.path, "/dev/sda");
    assert!(srs.attach_for(&one, "other", Access::ReadOnly).is_err());
    for refused in [
        srs.create_vdi(&name("s", "new"), MIB),
        srs.clone_vdi(&one, "new"),
        srs.snapshot_vdi(&one, "new"),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("on their server"), "{refused}");
    }
    assert!(srs.resize_vdi(&one, 8 * MIB).unwrap_err().to_string().contains("on its server first"));
    assert!(matches!(
        srs.attach(&name("s", "lun2"), "vm", Access::ReadOnly),
        Err(StorageError::Missing(_))
    ));
    assert!(matches!(srs.forget("s"), Err(StorageError::InUse(_))));
    assert!(os.write_sector(device.number, 3, 9));

    let mut srs = Repositories::new(&mut os);
    srs.detach_for(&one, "vm").unwrap();
    srs.forget("s").unwrap();
    assert_eq!(os.get().iscsi(), [""; 0]);
}

#[test]
fn the_last_sr_of_a_target_ends_its_session() {
    let mut os = host();
    Repositories::new(&mut os).create("a", Kind::Iscsi, config(None)).unwrap();
    Repositories::new(&mut os).create("b", Kind::LvmThin, config(Some("7"))).unwrap();
    assert_eq!(os.get().iscsi().len(), 2, "one session and its record");
    Repositories::new(&mut os).forget("a").unwrap();
    let one = name("b", "one");
    Repositories::new(&mut os).create_vdi(&one, 4 * MIB).unwrap();
    Repositories::new(&mut os).destroy_vdi(&one).unwrap();
    Repositories::new(&mut os).destroy("b").unwrap();
    assert_eq!(os.get().iscsi(), [""; 0]);
    assert_eq!(os.get().paths("/run/xylem/iscsi"), [""; 0]);
}

#[test]
fn a_daemon_killed_at_any_point_leaves_no_session_without_an_sr() {
    for end in 1.. {
        let mut os = host();
        os.kill_daemon_after(end);
        let mut srs = Repositories::new(&mut os);
        let killed = srs.create("s", Kind::Iscsi, config(None)).is_err()
            || srs.attach_for(&name("s", "lun1"), "vm", Access::ReadWrite).is_err()
            || srs.detach_for(&name("s", "lun1"), "vm").is_err()
            || srs.forget("s").is_err();
        os.restart_daemon();
        let mut srs = Repositories::new(&mut os);
        srs.clear().unwrap();
        for it in srs.in_use().unwrap() {
            srs.detach_for(&it.name, &it.owner).unwrap();
        }
        if srs.get("s").is_err() {
            // A repeated request completes what was left.
            srs.create("s", Kind::Iscsi, config(None)).unwrap();
        }
        srs.scan("s").unwrap();
        srs.forget("s").unwrap();
        assert_eq!(os.get().iscsi(), [""; 0], "killed at {end}");
        assert_eq!(os.get().paths("/run/xylem"), [""; 0], "killed at {end}");
        if !killed {
            assert!(end > 20, "only {end} moments");
            break;
        }
    }
}

#[test]
fn a_lost_target_fails_at_once_and_an_absent_one_leaves_nothing() {
    let mut os = host();
    os.set_targets_lost(true);
    let refused = Repositories::new(&mut os).create("s", Kind::Iscsi, config(None)).unwrap_err();
    assert!(refused.to_string().contains("Could not login"), "{refused}");
    assert_eq!(os.get().iscsi(), [""; 0]);
    assert_eq!(os.get().paths("/run/xylem"), [""; 0]);

    os.set_targets_lost(false);
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Iscsi, config(None)).unwrap();
    srs.attach_for(&name("s", "lun1"), "vm", Access::ReadWrite).unwrap();
    os.set_targets_lost(true);
    let mut srs = Repositories::new(&mut os);
    let refused = srs.scan("s").unwrap_err();
    assert!(refused.to_string().contains("its session is FAILED"), "{refused}");
    srs.detach_for(&name("s", "lun1"), "vm").unwrap();
    os.set_targets_lost(false);
    Repositories::new(&mut os).scan("s").unwrap();
}

#[test]
fn a_lun_that_a_backend_still_serves_stays_in_use_across_retries() {
    const SERVED: &str = "/sys/bus/xen-backend/devices/vbd-1-51712/physical_device";
    let mut os = host();
    let one = name("s", "lun1");
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Iscsi, config(None)).unwrap();
    let device = srs.attach_for(&one, "vm", Access::ReadWrite).unwrap();
    os.write(SERVED, format!("{}\n", device.number).as_bytes()).unwrap();
    for _ in 0..3 {
        let mut srs = Repositories::new(&mut os);
        let refused = srs.detach_for(&one, "vm").unwrap_err();
        assert!(matches!(refused, StorageError::InUse(_)), "{refused}");
        srs.scan("s").unwrap();
        assert!(srs.attach_for(&one, "other", Access::ReadWrite).is_err());
    }
    os.remove(SERVED).unwrap();
    let mut srs = Repositories::new(&mut os);
    srs.attach_for(&one, "other", Access::ReadWrite).unwrap();
}

/// As after a restart of the host.
#[test]
fn an_sr_of_volumes_whose_session_is_gone_can_be_forgotten() {
    let mut os = host();
    Repositories::new(&mut os).create("s", Kind::Lvm, config(Some("7"))).unwrap();
    let arguments = ["-m", "node", "-T", TARGET, "-p", "10.0.0.9:3260", "--logout"];
    os.run(&Command::new("/usr/sbin/iscsiadm", &arguments, 60)).unwrap();
    Repositories::new(&mut os).forget("s").unwrap();
    assert_eq!(os.get().iscsi(), [""; 0]);
}

#[test]
fn a_target_is_one_sr_under_any_name_of_its_server() {
    let mut os = host();
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Iscsi, config(None)).unwrap();
    let mut other = config(None);
    other.insert("server".to_owned(), "filer.example:3260".to_owned());
    let refused = srs.create("t", Kind::Iscsi, other).unwrap_err();
    assert_eq!(refused.to_string(), "t: is the SR s already");
}

#[test]
fn an_invalid_target_is_refused() {
    for (key, value) in
        [("target", "-x"), ("target", "iqn.a b"), ("server", "--help"), ("server", "a b")]
    {
        let mut config = config(None);
        config.insert(key.to_owned(), value.to_owned());
        let mut os = host();
        let refused = Repositories::new(&mut os).create("s", Kind::Iscsi, config).unwrap_err();
        assert!(refused.to_string().contains(&format!("{key}={value:?}: expected")), "{refused}");
    }
}
