//! Disks of another host: their bytes go by the network.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::daemon::Scratch;
use crate::remote::{Remote, told};

const BYTES: u64 = 6 << 20;

/// A host with two SRs. The bytes of its disks are in files of this folder, which are there as soon as a test needs them.
fn host() -> (Remote, Scratch) {
    let folder = Scratch::new();
    let path = folder.path.clone();
    let remote = Remote::of(|daemon| daemon.with_disks(path));
    for sr in ["one", "two"] {
        let path = format!("path=/srv/{sr}");
        assert_eq!(
            remote.run(&["sr-create", sr, "file", &path]),
            (0, String::new(), String::new())
        );
    }
    (remote, folder)
}

impl Scratch {
    fn disk(&self, vdi: &str, bytes: u64) -> File {
        let mut options = File::options();
        let path = self.path.join(vdi);
        let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    fn file(&self, name: &str, text: &[u8]) -> String {
        let path = self.path.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn done(remote: &Remote, arguments: &[&str]) -> String {
    let (status, said, error) = remote.run(arguments);
    assert_eq!(status, 0, "{arguments:?}: {said}{error}");
    said
}

#[test]
fn an_image_is_sent_and_a_vm_made_of_it_exported_and_imported() {
    let (remote, folder) = host();
    let mut data = vec![0; usize::try_from(BYTES).unwrap()];
    data[..5].copy_from_slice(b"begin");
    data[3 << 20..4 << 20].fill(7);
    data[(6 << 20) - 3..].copy_from_slice(b"end");
    let image = folder.file("disk.raw", &data);
    let sent = folder.disk("one:image-disk", BYTES);
    let said = done(&remote, &["image", "import", "--sr", "one", &image]);
    assert!(said.starts_with("disk: "), "{said}");
    assert!(bytes(&sent) == data, "the image");
    assert!(done(&remote, &["image", "list"]).contains("disk"));

    // A VM, whose disk the host makes of the image's.
    let template = folder.file("t.cfg", b"kernel = '/boot/vmlinuz'\nmemory = 8\nvif = []\n");
    let seed = folder.disk("one:vm-seed", 1 << 20);
    let create = ["vm-create", "--image", "disk", "--template", &template, "--no-start", "vm"];
    done(&remote, &create);
    assert!(bytes(&seed).windows(5).any(|it| it == b"CIDAT" || it == b"cidat"), "the seed");

    // Both disks, in one file here.
    folder.disk("one:vm", BYTES).write_all_at(&data, 0).unwrap();
    let file = folder.path.join("vm.xylem");
    let file = file.to_str().unwrap();
    let seed_row = done(&remote, &["vdi-list", "one"]);
    assert!(seed_row.contains("vm-seed"), "{seed_row}");
    let wrong = remote.run(&["export", "vm", file]);
    assert_eq!(wrong.0, 0, "{wrong:?}");
    let (disk, other) = (folder.disk("two:new", BYTES), folder.disk("two:new-1", 1 << 20));
    done(&remote, &["import", "--sr", "two", "--name", "new", "--trust", file]);
    assert!(bytes(&disk) == data, "the disk");
    assert!(bytes(&other) == bytes(&seed), "the seed");
    assert!(done(&remote, &["vm-list"]).contains("new"));

    let moved = folder.disk("two:vm-seed", 1 << 20);
    done(&remote, &["undefine", "vm"]);
    done(&remote, &["vdi-move", "one:vm-seed", "two"]);
    assert!(bytes(&moved) == bytes(&seed), "the moved one");
}

#[test]
fn disks_are_for_admins_and_errors_leave_nothing() {
    let (remote, folder) = host();
    let image = folder.file("disk.raw", &[1; 1 << 20]);
    let import = ["image", "import", "--sr", "one", &image];
    let mut command = remote.command(&import);
    let refused = told(&command.env("XYLEM_TOKEN", &remote.viewer).output().unwrap());
    assert!(refused.2.contains("this needs the role admin, and yours is viewer"), "{refused:?}");
    // A disk that cannot be written to: the host has no such file.
    let (status, _, error) = remote.run(&import);
    assert_eq!(status, 1);
    assert!(error.contains("cannot open"), "{error}");
    assert!(!done(&remote, &["vdi-list", "one"]).contains("image-disk"));
    assert_eq!(done(&remote, &["image", "list"]).lines().count(), 1);
}
