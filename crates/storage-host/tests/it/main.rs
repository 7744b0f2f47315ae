//! Files on this machine, each test in its own folder.

mod driver;

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use storage::{BlockHost as _, Copying, FileKind, HostError, System as _};
use storage_host::LinuxSystem;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("storage-it-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn small_files_are_replaced_and_gone_ones_are_no_error() {
    let (scratch, mut system) = (Scratch::new(), LinuxSystem::default());
    let path = scratch.path("deep/er/a.json");
    assert_eq!(system.read(&path), Err(HostError::Missing));
    system.write(&path, b"one").unwrap();
    system.write(&path, b"two").unwrap();
    assert_eq!(system.read(&path).unwrap(), b"two");
    assert_eq!(system.list(&scratch.path("deep/er")).unwrap(), ["a.json"]);
    assert_eq!(system.list(&scratch.path("nowhere")).unwrap(), [""; 0]);
    assert!(system.remove_folder(&scratch.path("deep/er")).is_err(), "it is not empty");
    for _ in 0..2 {
        system.remove(&path).unwrap();
    }
    for _ in 0..2 {
        system.remove_folder(&scratch.path("deep/er")).unwrap();
    }
}

#[test]
fn a_sparse_file_takes_no_room_and_never_replaces_another() {
    let (scratch, mut system) = (Scratch::new(), LinuxSystem::default());
    let path = scratch.path("a.raw");
    system.make_sparse(&path, 1 << 30).unwrap();
    assert_eq!(system.inspect(&path), Ok(FileKind::Regular { bytes: 1 << 30 }));
    assert!(system.used_bytes(&path).unwrap() < 1 << 20);
    assert_eq!(system.make_sparse(&path, 512), Err(HostError::Busy));
    assert_eq!(system.copy(&path, &path, Copying::Any), Err(HostError::Busy));
    system.grow(&path, 2 << 30).unwrap();
    assert_eq!(system.inspect(&path), Ok(FileKind::Regular { bytes: 2 << 30 }));
    assert_eq!(system.list(scratch.0.to_str().unwrap()).unwrap(), ["a.raw"]);
    assert!(system.space(scratch.0.to_str().unwrap()).unwrap().bytes > 0);
}

#[test]
fn a_copy_has_the_bytes_and_the_holes() {
    let (scratch, mut system) = (Scratch::new(), LinuxSystem::default());
    let (from, to) = (scratch.path("a.raw"), scratch.path("b.raw"));
    system.make_sparse(&from, 64 << 20).unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(&from).unwrap();
    for at in [0, (20 << 20) + 4096, (64 << 20) - 4] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(b"data").unwrap();
    }
    file.sync_all().unwrap();
    system.copy(&from, &to, Copying::Any).unwrap();
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "the copies differ");
    assert!(fs::metadata(&to).unwrap().blocks() * 512 < 16 << 20, "the holes are holes");
    assert_eq!(system.list(scratch.0.to_str().unwrap()).unwrap(), ["a.raw", "b.raw"]);
    assert_eq!(
        system.copy(&scratch.path("nowhere"), &scratch.path("c"), Copying::Any),
        Err(HostError::Missing)
    );
}
