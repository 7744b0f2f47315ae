//! What every SR must support, and that it leaves nothing behind when interrupted.

use std::collections::BTreeMap;

use sim::SimOs;
use storage::{Access, HostError, Kind, Repositories, StorageError, System as _, VdiName};

/// A size that every kind has exactly: volumes come in extents of 4 MiB.
pub(crate) const SMALL: u64 = 4 << 20;

/// The kinds that support all operations.
pub(crate) const KINDS: [Kind; 6] =
    [Kind::File, Kind::Nfs, Kind::Qcow2, Kind::Lvm, Kind::LvmThin, Kind::Sim];

/// The kinds that can provide disks for a guest.
const USABLE: [Kind; 7] =
    [Kind::File, Kind::Nfs, Kind::Qcow2, Kind::Lvm, Kind::LvmThin, Kind::Nbd, Kind::Sim];

const NBD_SERVER: &str = "10.0.0.9:10809";

type Request = fn(&mut Repositories<'_>) -> Result<(), StorageError>;

pub(crate) struct Lab {
    pub(crate) os: SimOs,
    kind: Kind,
}

fn config(kind: Kind) -> BTreeMap<String, String> {
    let settings: &[(&str, &str)] = match kind {
        Kind::File | Kind::Qcow2 => &[("path", "/srv/vdis")],
        Kind::Nfs => &[("server", "filer"), ("serverpath", "/export")],
        Kind::Lvm | Kind::LvmThin => &[("device", "/dev/sdb")],
        Kind::Nbd => &[("server", NBD_SERVER)],
        Kind::Sim => &[("path", "/srv/vdis"), ("attach", "exp:20ms"), ("tail", "1%:5s")],
        Kind::Iscsi | Kind::Program => unreachable!("the simulated host has no such program"),
    };
    settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Everything of storage that can be left behind.
fn left(os: &SimOs) -> Vec<String> {
    let state = os.get();
    let mut all = state.attached_vdis();
    all.extend(state.active_volumes());
    all.extend(state.served());
    all.extend(state.paths("/run/xylem/nbd"));
    all.extend(state.loops().values().map(|it| format!("loop {}", it.tag)));
    all.extend(state.paths("/").into_iter().filter(|path| path.contains(".part-")));
    all
}

impl Lab {
    pub(crate) fn new(kind: Kind) -> Self {
        let os = SimOs::default();
        os.set_shares_blocks(true);
        os.add_directory("filer:/export");
        os.add_export(NBD_SERVER, "first", SMALL, Access::ReadWrite);
        let mut lab = Self { os, kind };
        lab.srs().create("s", kind, config(kind)).unwrap();
        lab
    }

    pub(crate) fn srs(&mut self) -> Repositories<'_> {
        Repositories::new(&mut self.os)
    }

    /// Starts a new daemon.
    pub(crate) fn restart_daemon(&mut self) {
        self.os.restart_daemon();
        self.srs().clear().unwrap();
    }

    /// A VDI named `one`, created by its SR or on its server.
    fn add_one(&mut self) -> VdiName {
        let one = vdi_name("one");
        if self.kind == Kind::Nbd {
            self.os.add_export(NBD_SERVER, "one", SMALL, Access::ReadWrite);
        } else {
            self.srs().create_vdi(&one, SMALL).unwrap();
        }
        one
    }

    pub(crate) fn names(&mut self) -> Vec<String> {
        self.srs().scan("s").unwrap().into_iter().map(|vdi| vdi.name).collect()
    }

    /// Attaches a VDI, writes a byte as a guest would, and detaches it.
    pub(crate) fn write(&mut self, vdi: &str, byte: u8) {
        let name = vdi_name(vdi);
        let device = self.srs().attach_for(&name, "writer", Access::ReadWrite).unwrap();
        assert!(self.os.write_sector(device.number, 1, byte));
        self.srs().detach_for(&name, "writer").unwrap();
    }

    pub(crate) fn read(&mut self, vdi: &str) -> u8 {
        let name = vdi_name(vdi);
        let device = self.srs().attach_for(&name, "reader", Access::ReadOnly).unwrap();
        let byte = self.os.read_sector(device.number, 1).unwrap();
        self.srs().detach_for(&name, "reader").unwrap();
        byte
    }
}

pub(crate) fn vdi_name(vdi: &str) -> VdiName {
    VdiName::new("s", vdi).unwrap()
}

#[test]
fn a_vdi_is_created_written_copied_grown_and_destroyed() {
    for kind in KINDS {
        let mut lab = Lab::new(kind);
        let (one, snap, copy) = (vdi_name("one"), vdi_name("snap"), vdi_name("copy"));
        lab.srs().create_vdi(&one, SMALL).unwrap();
        lab.write("one", 1);
        // Thick volumes are cloned instead.
        let thick = kind == Kind::Lvm;
        if thick {
            let refused = lab.srs().snapshot_vdi(&one, "snap").unwrap_err();
            assert!(refused.to_string().contains("lvmthin"), "{refused}");
            lab.srs().clone_vdi(&one, "snap").unwrap();
        } else {
            lab.srs().snapshot_vdi(&one, "snap").unwrap();
        }
        lab.write("one", 2);
        lab.srs().clone_vdi(&snap, "copy").unwrap();
        lab.write("copy", 3);
        assert_eq!([lab.read("one"), lab.read("snap"), lab.read("copy")], [2, 1, 3], "{kind}");
        assert_eq!(lab.names(), ["copy", "one", "snap"]);

        // A snapshot does not change.
        if !thick {
            let refused = lab.srs().attach_for(&snap, "vm", Access::ReadWrite).unwrap_err();
            assert!(refused.to_string().contains("snapshot"), "{refused}");
            assert!(lab.srs().resize_vdi(&snap, 2 * SMALL).is_err());
        }

        // Grown while a guest has it, or before, where old data would show or a program has it
        // open.
        let before = thick || kind == Kind::Qcow2;
        let mut device = lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
        let last = 2 * SMALL / 512 - 1;
        assert_eq!(lab.os.read_sector(device.number, last), None);
        if before {
            assert!(lab.srs().resize_vdi(&one, 2 * SMALL).is_err());
            lab.srs().detach_for(&one, "vm").unwrap();
        }
        lab.srs().resize_vdi(&one, 2 * SMALL).unwrap();
        if before {
            device = lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
        }
        assert_eq!(lab.os.read_sector(device.number, last), Some(0));
        assert!(lab.srs().resize_vdi(&one, SMALL).unwrap_err().to_string().contains("cut off"));

        // While in use, it cannot be destroyed; nor can its SR.
        let in_use = |error: &StorageError| matches!(error, StorageError::InUse(_));
        assert!(in_use(&lab.srs().destroy_vdi(&one).unwrap_err()));
        assert!(in_use(&lab.srs().forget("s").unwrap_err()));
        assert!(in_use(&lab.srs().destroy("s").unwrap_err()));
        lab.srs().detach_for(&one, "vm").unwrap();

        // A qcow2 snapshot is behind its clones.
        let goes = lab.srs().destroy_vdi(&snap);
        assert_eq!(goes.is_err(), kind == Kind::Qcow2, "{goes:?}");
        if goes.is_ok() {
            lab.srs().clone_vdi(&one, "snap").unwrap();
        }
        for vdi in [&one, &copy, &snap] {
            lab.srs().destroy_vdi(vdi).unwrap();
            assert!(matches!(lab.srs().destroy_vdi(vdi), Err(StorageError::Missing(_))));
        }
        lab.srs().destroy("s").unwrap();
        assert_eq!(left(&lab.os), [""; 0], "{kind}");
        assert!(lab.os.get().mounts().is_empty());
        assert_eq!(lab.srs().list().unwrap(), []);
    }
}

#[test]
fn a_vdi_has_many_readers_or_one_writer() {
    for kind in USABLE {
        let mut lab = Lab::new(kind);
        let one = lab.add_one();
        let first = lab.srs().attach_for(&one, "a", Access::ReadOnly).unwrap();
        let second = lab.srs().attach_for(&one, "b", Access::ReadOnly).unwrap();
        assert_eq!(first, second, "readers share the device");
        let refused = lab.srs().attach_for(&one, "c", Access::ReadWrite).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "s:one: is in use by a; many may read a VDI, or one may write"
        );
        lab.srs().detach_for(&one, "a").unwrap();
        assert_eq!(lab.os.read_sector(second.number, 1), Some(0), "the other still has it");
        lab.srs().detach_for(&one, "b").unwrap();
        lab.srs().attach_for(&one, "c", Access::ReadWrite).unwrap();
        assert!(lab.srs().attach_for(&one, "a", Access::ReadOnly).is_err());
        lab.srs().detach_for(&one, "c").unwrap();
        assert_eq!(left(&lab.os), [""; 0]);
    }
}

#[test]
fn a_vdi_in_use_is_copied_atomically_or_not_at_all() {
    let mut lab = Lab::new(Kind::File);
    let one = vdi_name("one");
    lab.srs().create_vdi(&one, SMALL).unwrap();
    let device = lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
    lab.os.write_sector(device.number, 1, 7);
    lab.srs().snapshot_vdi(&one, "snap").unwrap();
    lab.os.write_sector(device.number, 1, 8);
    assert_eq!(lab.read("snap"), 7);
    lab.os.set_shares_blocks(false);
    let refused = lab.srs().snapshot_vdi(&one, "other").unwrap_err();
    assert!(matches!(refused, StorageError::InUse(_)), "{refused}");
    assert!(refused.to_string().contains("stop its VM"), "{refused}");
    lab.srs().detach_for(&one, "vm").unwrap();
    lab.srs().snapshot_vdi(&one, "other").unwrap();
    assert_eq!(lab.names(), ["one", "other", "snap"]);
}

/// All requests of a VDI's life, with the daemon killed at each point: a new daemon cleans up by
/// the files alone, and the SR remains usable.
#[test]
fn a_new_daemon_clears_what_a_daemon_killed_at_any_point_left() {
    let thick: [Request; 9] = [
        |srs| srs.create_vdi(&vdi_name("one"), SMALL),
        |srs| srs.resize_vdi(&vdi_name("one"), 2 * SMALL),
        |srs| srs.attach(&vdi_name("one"), "vm", Access::ReadWrite),
        |srs| srs.activate(&vdi_name("one"), "vm").map(drop),
        |srs| srs.deactivate(&vdi_name("one"), "vm"),
        |srs| srs.detach(&vdi_name("one"), "vm"),
        |srs| srs.clone_vdi(&vdi_name("one"), "copy"),
        |srs| srs.destroy_vdi(&vdi_name("copy")),
        |srs| srs.destroy_vdi(&vdi_name("one")),
    ];
    let others: [Request; 9] = [
        |srs| srs.create_vdi(&vdi_name("one"), SMALL),
        |srs| srs.attach(&vdi_name("one"), "vm", Access::ReadWrite),
        |srs| srs.activate(&vdi_name("one"), "vm").map(drop),
        |srs| srs.resize_vdi(&vdi_name("one"), 2 * SMALL),
        |srs| srs.snapshot_vdi(&vdi_name("one"), "snap"),
        |srs| srs.clone_vdi(&vdi_name("snap"), "copy"),
        |srs| srs.deactivate(&vdi_name("one"), "vm"),
        |srs| srs.detach(&vdi_name("one"), "vm"),
        |srs| srs.destroy_vdi(&vdi_name("one")),
    ];
    let unused: [Request; 9] = [
        |srs| srs.create_vdi(&vdi_name("one"), SMALL),
        |srs| srs.resize_vdi(&vdi_name("one"), 2 * SMALL),
        |srs| srs.snapshot_vdi(&vdi_name("one"), "snap"),
        |srs| srs.attach(&vdi_name("one"), "vm", Access::ReadWrite),
        |srs| srs.activate(&vdi_name("one"), "vm").map(drop),
        |srs| srs.clone_vdi(&vdi_name("snap"), "copy"),
        |srs| srs.deactivate(&vdi_name("one"), "vm"),
        |srs| srs.detach(&vdi_name("one"), "vm"),
        |srs| srs.destroy_vdi(&vdi_name("one")),
    ];
    for kind in KINDS {
        let life = match kind {
            Kind::Lvm => thick,
            Kind::Qcow2 => unused,
            _ => others,
        };
        let mut moments = 0;
        for end in 1.. {
            let mut lab = Lab::new(kind);
            let begin = lab.os.get().moments();
            lab.os.kill_daemon_after(end);
            let killed = life.iter().any(|request| request(&mut lab.srs()).is_err());
            moments = lab.os.get().moments() - begin;
            lab.restart_daemon();
            for it in lab.srs().in_use().unwrap() {
                lab.srs().detach_for(&it.name, &it.owner).unwrap();
            }
            let names = lab.names();
            assert_eq!(left(&lab.os), [""; 0], "{kind}, killed at {end}");
            // Snapshots are still snapshots, and all can be used and destroyed.
            for name in &names {
                let writable = lab.srs().attach_for(&vdi_name(name), "new", Access::ReadWrite);
                assert_eq!(writable.is_ok(), name != "snap", "{kind}, killed at {end}: {name}");
                lab.srs().detach_for(&vdi_name(name), "new").unwrap();
                lab.srs().destroy_vdi(&vdi_name(name)).unwrap();
            }
            lab.srs().destroy("s").unwrap();
            assert_eq!(lab.os.get().paths("/run/xylem/sr"), [""; 0]);
            if !killed {
                break;
            }
        }
        assert!(moments > 20, "{kind}: only {moments} moments");
    }
}

/// Each request alone, interrupted and then repeated by the next daemon.
#[test]
fn an_interrupted_request_can_be_repeated() {
    for kind in USABLE {
        for end in 1..60 {
            let mut lab = Lab::new(kind);
            let one = lab.add_one();
            lab.os.kill_daemon_after(end);
            let _killed = lab.srs().attach_for(&one, "vm", Access::ReadWrite);
            lab.restart_daemon();
            let device = lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
            assert!(lab.os.write_sector(device.number, 0, 9), "{kind}, killed at {end}");
            let active = lab.os.get().loops().len()
                + lab.os.get().active_volumes().len()
                + lab.os.get().served().len();
            assert_eq!(active, 1, "{kind}, killed at {end}");
            lab.os.kill_daemon_after(end);
            let _killed = lab.srs().detach_for(&one, "vm");
            lab.restart_daemon();
            lab.srs().detach_for(&one, "vm").unwrap();
            assert_eq!(left(&lab.os), [""; 0], "{kind}, killed at {end}");
        }
    }
}

#[test]
fn a_full_disk_and_a_lost_server_fail_their_own_requests_only() {
    for kind in [Kind::File, Kind::Nfs, Kind::Qcow2] {
        let mut lab = Lab::new(kind);
        let one = vdi_name("one");
        lab.srs().create_vdi(&one, SMALL).unwrap();
        let device = lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
        let other: BTreeMap<_, _> = [("path".to_owned(), "/other".to_owned())].into();
        lab.srs().create("t", Kind::File, other).unwrap();

        let (folder, copies) = match kind {
            Kind::File | Kind::Qcow2 => ("/srv/vdis", "/srv/vdis/.part-"),
            _ => ("/run/xylem/mount/s", "/run/xylem/mount/s/.part-"),
        };
        let full = HostError::Refused("No space left on device".to_owned());
        lab.os.set_failing(copies, Some(full));
        let refused = lab.srs().snapshot_vdi(&one, "snap").unwrap_err();
        assert!(refused.to_string().contains("No space left on device"), "{refused}");
        lab.os.set_failing(copies, None);
        assert_eq!(lab.names(), ["one"]);

        let lost = HostError::Refused("no answer within 30 s".to_owned());
        lab.os.set_failing(folder, Some(lost));
        for error in [
            lab.srs().scan("s").unwrap_err(),
            lab.srs().create_vdi(&vdi_name("two"), SMALL).unwrap_err(),
            lab.srs().attach(&one, "vm2", Access::ReadOnly).unwrap_err(),
        ] {
            let expected = error.to_string().contains("no answer within 30 s")
                || error.to_string().contains("in use by vm");
            assert!(expected, "{error}");
        }
        lab.srs().create_vdi(&VdiName::new("t", "two").unwrap(), SMALL).unwrap();
        assert_eq!(lab.srs().list().unwrap().len(), 2, "the list asks nobody");
        // Attached VDIs can be detached without the server.
        lab.srs().detach_for(&one, "vm").unwrap();
        lab.os.set_failing(folder, None);
        assert_eq!(lab.os.read_sector(device.number, 1), None);

        // What a lost server could not detach is detached by the next request after it responds
        // again.
        let look: [Request; 3] = [
            |srs| srs.scan("s").map(drop),
            |srs| srs.attach(&vdi_name("one"), "vm2", Access::ReadWrite),
            |srs| srs.forget("s"),
        ];
        for look in look {
            lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
            for hung in ["/dev/loop", "/usr/bin/qemu-nbd"] {
                let lost = HostError::Refused("no answer within 30 s".to_owned());
                lab.os.set_failing(hung, Some(lost));
            }
            assert!(lab.srs().detach_for(&one, "vm").is_err());
            let _in_vain = look(&mut lab.srs());
            assert_eq!(lab.srs().in_use().unwrap()[0].owner, "vm");
            for hung in ["/dev/loop", "/usr/bin/qemu-nbd"] {
                lab.os.set_failing(hung, None);
            }
            look(&mut lab.srs()).unwrap();
            assert!(lab.srs().in_use().unwrap().iter().all(|it| it.owner == "vm2"));
            lab.srs().detach(&one, "vm2").unwrap();
        }
        lab.srs().introduce("s", kind, config(kind)).unwrap();
        assert_eq!(left(&lab.os), [""; 0]);
        assert_eq!(lab.names(), ["one"]);
    }
}

/// A failed attach is not repeated by its owner: the SR detaches the VDI when it responds again.
#[test]
fn an_attach_that_fails_and_cannot_be_undone_does_not_keep_the_vdi() {
    let mut lab = Lab::new(Kind::File);
    lab.os.add_file("/driver", Vec::new());
    let program = [("program".to_owned(), "/driver".to_owned())].into();
    lab.srs().create("p", Kind::Program, program).unwrap();
    let one = VdiName::new("p", "one").unwrap();
    let look: [Request; 2] = [
        |srs| srs.scan("p").map(drop),
        |srs| srs.attach(&VdiName::new("p", "one").unwrap(), "vm2", Access::ReadWrite),
    ];
    for look in look {
        let hung = HostError::Refused("no answer within 60 s".to_owned());
        lab.os.set_failing("/driver", Some(hung));
        assert!(lab.srs().attach_for(&one, "vm", Access::ReadWrite).is_err());
        assert_eq!(lab.srs().in_use().unwrap()[0].owner, "vm", "it may be attached");
        lab.os.set_failing("/driver", None);
        look(&mut lab.srs()).unwrap();
        assert!(lab.srs().in_use().unwrap().iter().all(|it| it.owner == "vm2"));
        lab.srs().detach(&one, "vm2").unwrap();
        assert!(lab.srs().in_use().unwrap().is_empty());
    }
}

#[test]
fn a_thick_volume_never_shows_old_data_even_if_the_daemon_is_killed() {
    for end in 1..80 {
        let mut lab = Lab::new(Kind::Lvm);
        let one = vdi_name("one");
        lab.srs().create_vdi(&one, SMALL).unwrap();
        lab.os.kill_daemon_after(end);
        let _killed = lab.srs().resize_vdi(&one, 2 * SMALL);
        lab.restart_daemon();
        let device = lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
        let sectors = lab.srs().scan("s").unwrap()[0].bytes / 512;
        for sector in [0, sectors / 2, sectors - 1] {
            assert_eq!(lab.os.read_sector(device.number, sector), Some(0), "killed at {end}");
        }
    }
}

#[test]
fn a_volume_group_written_by_a_guest_is_ignored() {
    for kind in [Kind::Lvm, Kind::LvmThin] {
        let mut lab = Lab::new(kind);
        lab.os.forge_group("/dev/loop9", "xylem-s");
        let one = vdi_name("one");
        lab.srs().create_vdi(&one, SMALL).unwrap();
        lab.write("one", 6);
        assert_eq!((lab.names(), lab.read("one")), (vec!["one".to_owned()], 6));
        lab.srs().destroy_vdi(&one).unwrap();
        lab.srs().destroy("s").unwrap();
    }
}

/// A VDI's device may have been reused when a new daemon deactivates the VDI.
#[test]
fn a_device_number_reused_after_a_kill_is_not_detached() {
    for kind in KINDS {
        for end in 1.. {
            let mut lab = Lab::new(kind);
            let (one, two) = (vdi_name("one"), vdi_name("two"));
            lab.srs().create_vdi(&one, SMALL).unwrap();
            lab.srs().create_vdi(&two, SMALL).unwrap();
            lab.srs().attach_for(&one, "vm", Access::ReadWrite).unwrap();
            lab.os.kill_daemon_after(end);
            let killed = lab.srs().detach_for(&one, "vm").is_err();
            lab.restart_daemon();
            let device = lab.srs().attach_for(&two, "other", Access::ReadWrite).unwrap();
            lab.srs().detach_for(&one, "vm").unwrap();
            assert!(lab.os.write_sector(device.number, 1, 8), "{kind}, killed at {end}");
            if !killed {
                break;
            }
        }
    }
}

/// The header of a qcow2 image, version 3, with incompatible features and a backing file.
fn qcow2_header(features: u64, backing: &str) -> Vec<u8> {
    let at: u64 = if backing.is_empty() { 0 } else { 112 };
    let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
    header.extend(at.to_be_bytes());
    header.extend(u32::try_from(backing.len()).unwrap().to_be_bytes());
    header.extend(16_u32.to_be_bytes());
    header.extend(SMALL.to_be_bytes());
    header.resize(72, 0);
    header.extend(features.to_be_bytes());
    header.resize(112, 0);
    header.extend(backing.as_bytes());
    header
}

#[test]
fn an_image_backed_by_a_file_of_the_host_is_refused() {
    let mut lab = Lab::new(Kind::Qcow2);
    lab.srs().create_vdi(&vdi_name("one"), SMALL).unwrap();
    for (header, expected) in [
        (qcow2_header(0, "/etc/shadow"), "bad.qcow2 has \"/etc/shadow\" behind it"),
        (qcow2_header(0, "../x.qcow2"), "which is no image of its SR"),
        (qcow2_header(0, "json:{\"driver\":\"nbd\"}"), "which is no image of its SR"),
        (qcow2_header(0, "bad.qcow2"), "more than 200 images are behind it"),
        (qcow2_header(4, ""), "keeps its data in another file"),
        (b"no image".to_vec(), "not an image in format qcow2"),
    ] {
        lab.os.write("/srv/vdis/bad.qcow2", &header).unwrap();
        let refused = lab.srs().attach(&vdi_name("bad"), "vm", Access::ReadOnly).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
        // The others remain usable, and it can be destroyed.
        assert_eq!(lab.names(), ["bad", "one"]);
        lab.srs().resize_vdi(&vdi_name("one"), SMALL).unwrap();
    }
    lab.srs().destroy_vdi(&vdi_name("bad")).unwrap();
    lab.write("one", 1);
}

/// An attach queries one volume only, so it finds what a scan would have removed.
#[test]
fn an_incomplete_volume_is_refused() {
    let makers: [Request; 2] = [
        |srs| srs.create_vdi(&vdi_name("new"), SMALL),
        |srs| srs.clone_vdi(&vdi_name("one"), "new"),
    ];
    for (make, expected) in makers.into_iter().zip([0, 4]) {
        let mut refused = 0;
        for end in 1.. {
            let mut lab = Lab::new(Kind::Lvm);
            lab.srs().create_vdi(&vdi_name("one"), SMALL).unwrap();
            lab.write("one", 4);
            lab.os.kill_daemon_after(end);
            let killed = make(&mut lab.srs()).is_err();
            lab.restart_daemon();
            match lab.srs().attach_for(&vdi_name("new"), "vm", Access::ReadOnly) {
                Ok(device) => {
                    let found = lab.os.read_sector(device.number, 1);
                    assert_eq!(found, Some(expected), "killed at {end}");
                }
                Err(error) => refused += u32::from(error.to_string().contains("is being made")),
            }
            if !killed {
                break;
            }
        }
        assert!(refused > 3, "half-made at {refused} moments only");
    }
}

#[test]
fn a_vdi_whose_server_was_killed_is_reported_and_can_be_detached() {
    let mut lab = Lab::new(Kind::Qcow2);
    let one = vdi_name("one");
    lab.srs().create_vdi(&one, SMALL).unwrap();
    lab.write("one", 5);
    let device = lab.srs().attach_for(&one, "a", Access::ReadOnly).unwrap();
    assert_eq!(lab.srs().troubles("s").unwrap(), [""; 0]);
    lab.os.kill_server(device.number);
    assert_eq!(lab.os.read_sector(device.number, 1), None);

    let told = lab.srs().troubles("s").unwrap();
    assert!(matches!(&told[..], [one] if one.starts_with("s:one: ")), "{told:?}");
    let refused = lab.srs().attach_for(&one, "b", Access::ReadOnly).unwrap_err();
    assert_eq!(refused.to_string(), told[0], "nobody else is given a dead device");
    assert_eq!(lab.srs().in_use().unwrap().len(), 1);
    assert_eq!(lab.names(), ["one"], "the SR itself goes on");

    lab.srs().detach_for(&one, "a").unwrap();
    assert_eq!(left(&lab.os), [""; 0]);
    assert_eq!(lab.read("one"), 5);
}

#[test]
fn a_volume_without_space_is_refused_and_leaves_nothing() {
    let mut lab = Lab::new(Kind::Lvm);
    let free = lab.srs().space("s").unwrap().free_bytes;
    let refused = lab.srs().create_vdi(&vdi_name("one"), 2 * free).unwrap_err();
    assert!(refused.to_string().contains("insufficient free space"), "{refused}");
    assert_eq!(lab.names(), [""; 0]);
    lab.srs().create_vdi(&vdi_name("one"), free).unwrap();
    assert_eq!(lab.srs().space("s").unwrap().free_bytes, 0);
}

#[test]
fn an_sr_is_created_once_and_names_its_settings() {
    let mut lab = Lab::new(Kind::File);
    let kind = lab.kind;
    let setting = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    for (name, config, expected) in [
        ("s", setting("path", "/x"), "s: there is an SR of this name"),
        ("t", setting("path", "/srv/vdis"), "t: is the SR s already"),
        ("t", setting("path", "//srv/vdis/"), "t: is the SR s already"),
        (
            "t",
            setting("folder", "/x"),
            "t: \"folder\" is no setting of an SR of kind file; it has path",
        ),
        ("t", BTreeMap::new(), "t: an SR of kind file needs path=..; it has path"),
        (
            "t",
            setting("path", "/x/../y"),
            "t: path=\"/x/../y\": expected an absolute path without . and ..",
        ),
        (
            "t",
            setting("path", "/srv"),
            "/srv: the folder is not empty; `xy sr-introduce` takes over one that has VDIs",
        ),
    ] {
        let error = lab.srs().create(name, kind, config).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    lab.srs().create_vdi(&vdi_name("one"), SMALL).unwrap();
    lab.srs().forget("s").unwrap();
    assert!(matches!(lab.srs().scan("s"), Err(StorageError::Missing(_))));
    lab.srs().introduce("u", kind, setting("path", "/srv/vdis")).unwrap();
    assert_eq!(lab.srs().scan("u").unwrap()[0].name, "one");
}

#[test]
fn sizes_are_whole_sectors() {
    let mut lab = Lab::new(Kind::File);
    for bytes in [0, 511, 513, u64::MAX / 512 * 512] {
        let error = lab.srs().create_vdi(&vdi_name("one"), bytes).unwrap_err();
        assert!(error.to_string().contains("a multiple of a sector"), "{error}");
    }
    assert_eq!(lab.names(), [""; 0]);
}

#[test]
fn simulated_failures_are_reproducible_and_leave_nothing() {
    let run = |seed: &str| {
        let mut lab = Lab::new(Kind::File);
        let settings = [
            ("path", "/srv/sim"),
            ("attach", "exp:20ms"),
            ("fail", "attach:20%,activate:20%,deactivate:20%,detach:20%"),
            ("hang", "activate:5%"),
            ("seed", seed),
        ];
        let config = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        lab.srs().create("slow", Kind::Sim, config).unwrap();
        let one = VdiName::new("slow", "one").unwrap();
        lab.srs().create_vdi(&one, SMALL).unwrap();
        let mut story = Vec::new();
        for _ in 0..200 {
            let attached = lab.srs().attach_for(&one, "vm", Access::ReadWrite);
            let words = attached.map_or_else(|error| error.to_string(), |it| it.path);
            story.push((words, lab.os.take_slept()));
            // Repeated until it succeeds, as the next request would.
            while lab.srs().detach_for(&one, "vm").is_err() {}
            assert_eq!(left(&lab.os), [""; 0]);
        }
        story
    };
    let story = run("1");
    for words in ["/dev/loop0", "attach was made", "activate was made", "no answer within 30 s"] {
        assert!(story.iter().any(|(told, _)| told.contains(words)), "{words}");
    }
    assert!(story.iter().any(|(_, slept)| *slept > 30_000_000_000), "one hung");
    assert_eq!(story, run("1"));
    assert_ne!(story, run("2"));
}
