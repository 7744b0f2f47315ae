//! Exports of an NBD server as VDIs: use, loss, and disconnection.

use std::collections::BTreeMap;

use sim::SimOs;
use storage::{Access, HostError, Kind, Repositories, StorageError, VdiName};

const SERVER: &str = "10.0.0.9:10809";
const MIB: u64 = 1 << 20;

fn config(server: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("server".to_owned(), server.to_owned())])
}

fn host() -> SimOs {
    let os = SimOs::default();
    os.add_export(SERVER, "one", 4 * MIB, Access::ReadWrite);
    os.add_export(SERVER, "cd", MIB + 100, Access::ReadOnly);
    os.add_export(SERVER, "not one of our names", MIB, Access::ReadWrite);
    os
}

fn name(vdi: &str) -> VdiName {
    VdiName::new("s", vdi).unwrap()
}

#[test]
fn an_export_can_be_used_but_is_managed_on_its_server() {
    let mut os = host();
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Nbd, config("10.0.0.9")).unwrap();
    let refused = srs.create("t", Kind::Nbd, config("10.0.0.9:10809")).unwrap_err();
    assert_eq!(refused.to_string(), "t: is the SR s already");
    let found: Vec<_> = srs.scan("s").unwrap().into_iter().map(|it| (it.name, it.bytes)).collect();
    assert_eq!(found, [("cd".to_owned(), MIB), ("one".to_owned(), 4 * MIB)]);
    let device = srs.attach_for(&name("one"), "vm", Access::ReadWrite).unwrap();
    assert_eq!(device.path, "/dev/nbd0");
    let cd = srs.attach_for(&name("cd"), "vm", Access::ReadOnly).unwrap();
    assert_eq!(cd.path, "/dev/nbd1");
    let refused = srs.resize_vdi(&name("one"), 8 * MIB).unwrap_err().to_string();
    assert!(refused.contains("on its server first"), "{refused}");
    for refused in [
        srs.create_vdi(&name("new"), MIB),
        srs.destroy_vdi(&name("other")).and(Ok(())),
        srs.clone_vdi(&name("one"), "new"),
        srs.snapshot_vdi(&name("one"), "new"),
    ] {
        let refused = refused.unwrap_err();
        let expected = matches!(refused, StorageError::Missing(_))
            || refused.to_string().contains("on their server");
        assert!(expected, "{refused}");
    }
    assert!(os.write_sector(device.number, 3, 9));
    assert_eq!(os.get().served(), [format!("{SERVER}/one w"), format!("{SERVER}/cd r")]);

    let mut srs = Repositories::new(&mut os);
    srs.detach_for(&name("one"), "vm").unwrap();
    srs.detach_for(&name("cd"), "vm").unwrap();
    let refused = srs.destroy_vdi(&name("one")).unwrap_err().to_string();
    assert!(refused.contains("on their server"), "{refused}");
    assert!(matches!(srs.destroy("s"), Err(StorageError::InUse(_))), "it has VDIs");
    srs.forget("s").unwrap();
    assert_eq!(os.get().served(), [""; 0]);
    assert_eq!(os.get().paths("/run/xylem"), [""; 0]);
}

#[test]
fn a_size_that_is_sent_only_on_go_is_found() {
    let mut os = host();
    os.set_nbd_shy(true);
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Nbd, config("10.0.0.9")).unwrap();
    let found: Vec<_> = srs.scan("s").unwrap().into_iter().map(|it| it.bytes).collect();
    assert_eq!(found, [MIB, 4 * MIB]);
    srs.attach_for(&name("one"), "vm", Access::ReadWrite).unwrap();
}

#[test]
fn a_read_only_export_is_not_written_and_a_missing_one_is_named() {
    let mut os = host();
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Nbd, config("10.0.0.9")).unwrap();
    for (vdi, expected) in [
        ("cd", "s:cd: its server exports it for reading only"),
        ("gone", "s:gone: no such file or directory"),
    ] {
        let refused = srs.attach(&name(vdi), "vm", Access::ReadWrite).unwrap_err();
        assert_eq!(refused.to_string(), expected);
    }
    assert_eq!(srs.in_use().unwrap(), []);
}

#[test]
fn a_grown_export_has_its_new_size_on_the_next_attach() {
    let mut os = host();
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Nbd, config("10.0.0.9")).unwrap();
    srs.attach_for(&name("one"), "vm", Access::ReadWrite).unwrap();
    os.add_export(SERVER, "one", 8 * MIB, Access::ReadWrite);
    let mut srs = Repositories::new(&mut os);
    let refused = srs.resize_vdi(&name("one"), 8 * MIB).unwrap_err();
    assert!(refused.to_string().contains("stop its VM"), "{refused}");
    srs.detach_for(&name("one"), "vm").unwrap();
    srs.resize_vdi(&name("one"), 8 * MIB).unwrap();
    let device = srs.attach_for(&name("one"), "vm", Access::ReadWrite).unwrap();
    assert_eq!(os.read_sector(device.number, 8 * MIB / 512 - 1), Some(0));
}

#[test]
fn a_lost_server_gives_errors_and_its_devices_can_be_detached() {
    let mut os = host();
    let mut srs = Repositories::new(&mut os);
    srs.create("s", Kind::Nbd, config("10.0.0.9")).unwrap();
    let device = srs.attach_for(&name("one"), "vm", Access::ReadWrite).unwrap();
    os.set_nbd_lost(true);
    assert!(!os.write_sector(device.number, 1, 1), "the guest gets an error");
    let mut srs = Repositories::new(&mut os);
    for refused in [
        srs.scan("s").unwrap_err(),
        srs.attach(&name("cd"), "vm", Access::ReadOnly).unwrap_err(),
        srs.create("t", Kind::Nbd, config("10.0.0.8")).unwrap_err(),
    ] {
        assert!(refused.to_string().contains("Connection refused"), "{refused}");
    }
    srs.detach_for(&name("one"), "vm").unwrap();
    os.set_nbd_lost(false);
    let lost = HostError::Refused("no answer within 20 s".to_owned());
    os.set_failing("tcp:", Some(lost));
    let refused = Repositories::new(&mut os).scan("s").unwrap_err();
    assert_eq!(refused.to_string(), "s: 10.0.0.9: no answer within 20 s");
    os.set_failing("tcp:", None);
    let device =
        Repositories::new(&mut os).attach_for(&name("one"), "vm", Access::ReadWrite).unwrap();
    assert!(os.write_sector(device.number, 1, 1), "a new connection");
}

#[test]
fn an_invalid_server_is_refused() {
    for server in ["", "--help", "a b", "host:10809 -x"] {
        let mut os = host();
        let refused =
            Repositories::new(&mut os).create("s", Kind::Nbd, config(server)).unwrap_err();
        assert!(refused.to_string().contains(&format!("server={server:?}: expected")), "{refused}");
    }
}
