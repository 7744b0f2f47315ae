//! Cells of programs that read what a guest wrote and answer with files: no network, no other process, and a root
//! folder that has the host's programs, one disk to be read and one folder to be written.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, chownat, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_move, mount_remount,
};
use rustix::process::{
    Resource, Rlimit, Signal, chroot, getppid, set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use xen_linux::Namespaces;

/// Where the disk is in a cell.
pub const DISK: &str = "/run/disk";
/// Where the folder is that may be written.
pub const FOLDER: &str = "/run/out";

/// Folders of programs and their libraries; on most hosts some of them are links to others.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Files that the dynamic linker and interpreters read, if they are there.
const SETTINGS: [&str; 2] = ["/etc/ld.so.cache", "/etc/alternatives"];
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// Memory of such a program, as much as pygrub gives itself twice over.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// The largest file that it may write: a ramdisk.
const FILE_BYTES_MAX: u64 = 512 << 20;
const CPU_SECONDS_MAX: u64 = 120;
const PROCESSES_MAX: u64 = 16;
const DESCRIPTORS_MAX: u64 = 64;

/// What a cell is made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cell {
    pub user: u32,
    pub group: u32,
    /// A block device.
    pub disk: String,
    /// A folder of the host with an empty folder `root`, and with `out`, which is the user's.
    pub folder: String,
}

impl Cell {
    pub(crate) fn words(&self) -> [String; 4] {
        let Self { user, group, disk, folder } = self.clone();
        [user.to_string(), group.to_string(), disk, folder]
    }

    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        Some(Self {
            user: words.next()?.parse().ok().filter(|user| *user != 0)?,
            group: words.next()?.parse().ok().filter(|group| *group != 0)?,
            disk: words.next()?,
            folder: words.next()?,
        })
    }

    /// Makes the folder of a cell.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn make_folder(&self) -> io::Result<()> {
        let folder = Path::new(&self.folder);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        DirBuilder::new().mode(0o700).create(folder.join("root"))?;
        let out = folder.join("out");
        DirBuilder::new().mode(0o700).create(&out)?;
        std::os::unix::fs::chown(&out, Some(self.user), Some(self.group))
    }

    /// The files that the program wrote.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        Path::new(&self.folder).join("out")
    }
}

/// Ends this process with the one that started it, whose id this is.
pub(crate) fn end_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // No signal comes of one that ended before.
    let now = getppid().map(|it| it.as_raw_nonzero().get().unsigned_abs());
    if now == Some(parent) { Ok(()) } else { Err(parent_ended()) }
}

/// The same for the first process of a namespace, where no process outside has an id: its standard input is a pipe whose
/// other end only its parent has.
fn end_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let input = io::stdin();
    let input = input.as_fd();
    let mut polled = [PollFd::new(&input, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default()))?;
    if polled[0].revents().is_empty() { Ok(()) } else { Err(parent_ended()) }
}

fn parent_ended() -> io::Error {
    io::Error::other("what started it has ended")
}

/// Starts a command in namespaces of its own, as their first process: what it starts ends with it, and it ends with this
/// process.
pub(crate) fn run_inside(mut inside: Command) -> io::Result<ExitStatus> {
    xen_linux::unshare(Namespaces { ipc: true, mount: true, network: true, pid: true, uts: true })?;
    let (watched, _held) = io::pipe()?;
    inside.stdin(watched).spawn()?.wait()
}

/// Makes the cell this process's world, and its user this process's. The program itself is `program`.
pub(crate) fn enter(cell: &Cell, program: &Path) -> Result<(), String> {
    let told = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let ends_with_parent = || end_with_parent().map_err(told("cannot end with its parent"));
    ends_with_parent()?;
    build(cell, program).map_err(told("cannot make its folders"))?;
    limit().map_err(|error| told("cannot limit resources")(error.into()))?;
    let user = || {
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(cell.group))?;
        set_thread_uid(Uid::from_raw(cell.user))
    };
    user().map_err(|error| told("cannot become its user")(error.into()))?;
    // A change of the user forgets the signal.
    ends_with_parent()
}

fn limit() -> rustix::io::Result<()> {
    for (resource, most) in [
        (Resource::As, MEMORY_BYTES_MAX),
        (Resource::Fsize, FILE_BYTES_MAX),
        (Resource::Cpu, CPU_SECONDS_MAX),
        (Resource::Nproc, PROCESSES_MAX),
        (Resource::Nofile, DESCRIPTORS_MAX),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

fn build(cell: &Cell, program: &Path) -> io::Result<()> {
    // Its folders are to be passed through by others than root.
    umask(Mode::WGRP | Mode::WOTH);
    // Nothing that is mounted here is seen elsewhere.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let root = Path::new(&cell.folder).join("root");
    mount("tmpfs", &root, "tmpfs", MountFlags::NOSUID, Some(c"mode=755,size=1m"))?;
    for folder in PROGRAMS {
        let path = Path::new(folder);
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => symlink(fs::read_link(path)?, inside(&root, path))?,
            Ok(found) if found.is_dir() => show(&root, path)?,
            _ => {}
        }
    }
    for path in SETTINGS.map(Path::new).into_iter().filter(|path| path.exists()) {
        show(&root, path)?;
    }
    if let Some(folder) = program.parent().filter(|it| !inside(&root, it).exists()) {
        show(&root, folder)?;
    }
    for path in DEVICES {
        show_device(&root, Path::new(path))?;
    }
    let out = inside(&root, Path::new(FOLDER));
    fs::create_dir_all(&out)?;
    mount_bind(cell.files(), &out)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_remount(&out, MountFlags::BIND | flags, "")?;
    make_disk(cell, &inside(&root, Path::new(DISK)))?;
    mount_remount(&root, MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID, "")?;
    std::env::set_current_dir(&root)?;
    mount_move(".", "/")?;
    chroot(".")?;
    std::env::set_current_dir("/")
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Makes a file or folder of the host readable in the cell.
fn show(root: &Path, path: &Path) -> io::Result<()> {
    let place = inside(root, path);
    if path.is_dir() {
        fs::create_dir_all(&place)?;
    } else {
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::create(&place)?;
    }
    mount_bind(path, &place)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount_remount(&place, MountFlags::BIND | flags, "")?)
}

fn show_device(root: &Path, path: &Path) -> io::Result<()> {
    let place = inside(root, path);
    place.parent().map_or(Ok(()), fs::create_dir_all)?;
    File::create(&place)?;
    Ok(mount_bind(path, &place)?)
}

/// A node that the user may read and cannot change. Its owner is root: an owner could give itself more.
fn make_disk(cell: &Cell, place: &Path) -> io::Result<()> {
    let disk = fs::metadata(&cell.disk)?;
    if !disk.file_type().is_block_device() {
        return Err(io::Error::other(format!("{}: not a block device", cell.disk)));
    }
    let mode = Mode::RUSR | Mode::RGRP;
    mknodat(CWD, place, FileType::BlockDevice, mode, disk.rdev())?;
    Ok(chownat(CWD, place, None, Some(Gid::from_raw(cell.group)), AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_read_back_and_never_root_s() {
        let cell = Cell {
            user: 1_900_032_768,
            group: 1_900_032_768,
            disk: "/dev/loop3".to_owned(),
            folder: "/var/lib/xylem/bootloader/a b".to_owned(),
        };
        assert_eq!(Cell::parse(cell.words().into_iter()), Some(cell.clone()));
        for words in [["0", "5"], ["5", "0"], ["-1", "5"], ["root", "5"]] {
            let words = [words[0], words[1], "/dev/loop3", "/x"].map(str::to_owned);
            assert_eq!(Cell::parse(words.into_iter()), None);
        }
        assert_eq!(Cell::parse(["5", "5", "/dev/sda"].map(str::to_owned).into_iter()), None);
    }
}
