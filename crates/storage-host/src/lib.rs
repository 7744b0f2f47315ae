//! Storage on Linux: programs, files, loop devices and locks, each call with a timeout.
//!
//! Access to a file system whose server is lost may hang forever, uninterruptible by signals or
//! timeouts. So every access to a path that is not our own is done by a thread that can be
//! abandoned ([`bounded`]), and a program that does not exit is killed and abandoned too
//! ([`program`]).

mod bounded;
mod conversation;
mod copy;
mod dial;
mod joined;
mod locks;
mod program;

pub use program::{Ended, ending, run_to_end, run_with_input};

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jail::Jail;
use storage::{
    Access, BlockDevice, BlockHost, Command, Connection, Copying, DeviceNumber, DiskId, FileKind,
    HostError, Job, Lock, LoopUse, Mode, NbdExport, Space, StorageError, System, TaggedLoop,
};
use xen_linux::{Backing, FileIdentity, FileLock, LoopDevice, NetworkBlockDevices, Served};

use bounded::{Bounded, Undo};
use conversation::Conversations;
use dial::Dialled;
use joined::Joined;
use locks::Locks;

/// Local folders: those of our records, and the kernel's.
const OWN: [&str; 8] = [
    "/run/xylem/disks/",
    "/run/xylem/disk-owners",
    "/run/xylem/sr/",
    "/run/xylem/nbd/",
    "/run/xylem/iscsi/",
    "/var/lib/xylem/",
    "/proc/",
    "/sys/",
];
/// Timeout of a file system call.
const FILE_TIME: Duration = Duration::from_secs(30);
/// Timeout for the last close of a detached loop device.
const DETACH_TIME: Duration = Duration::from_secs(30);
/// Timeout of name resolution and connection, for all addresses.
const DIAL_TIME: Duration = Duration::from_secs(30);
/// Timeout of a request to an NBD server, in seconds.
const NBD_SECONDS: u64 = 20;
/// Timeout for a lock.
const LOCK_TIME: Duration = Duration::from_secs(60);

/// This machine. Clones share locks and running programs.
#[derive(Clone, Debug, Default)]
pub struct LinuxSystem {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// If programs are confined.
    jail: Option<Jail>,
    locks: Locks,
    conversations: Conversations,
    joined: Joined,
    bounded: Bounded,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl LinuxSystem {
    /// A host that confines the programs that ask for it.
    #[must_use]
    pub fn confining(jail: Jail) -> Self {
        Self { shared: Arc::new(Shared { jail: Some(jail), ..Shared::default() }) }
    }

    #[must_use]
    pub fn jail(&self) -> Option<&Jail> {
        self.shared.jail.as_ref()
    }
}

/// The message of a kernel error.
fn refusal(error: &io::Error) -> HostError {
    match error.kind() {
        io::ErrorKind::NotFound => HostError::Missing,
        io::ErrorKind::ResourceBusy => HostError::Busy,
        _ => HostError::Refused(error.to_string()),
    }
}

fn refused(error: &xen_linux::HostError) -> HostError {
    match error.errno() {
        xen::Errno::ENOENT | xen::Errno::ENODEV => HostError::Missing,
        xen::Errno::EBUSY => HostError::Busy,
        _ => HostError::Refused(error.to_string()),
    }
}

/// Message for a file locked by QEMU or a program that locks files in the same way.
const LOCKED: &str = "is in use by a program that has locked it, such as QEMU; stop that first, or share it with mode w!";
/// "Resource temporarily unavailable": locked by another process.
const EAGAIN: xen::Errno = xen::Errno(11);

/// "No such device or address": the loop device has no file.
const ENXIO: xen::Errno = xen::Errno(6);

fn number(number: xen_linux::DeviceNumber) -> DeviceNumber {
    DeviceNumber { major: number.major, minor: number.minor }
}

fn loop_device(device: LoopDevice) -> Result<BlockDevice, xen_linux::HostError> {
    let path = device.path().to_string_lossy().into_owned();
    Ok(BlockDevice { path, number: number(device.number()?) })
}

fn by_path(device: &str) -> Result<LoopDevice, HostError> {
    let index = device.strip_prefix("/dev/loop").and_then(|n| n.parse().ok());
    index.map(LoopDevice).ok_or_else(|| HostError::Refused("not a loop device".to_owned()))
}

fn nbd_index(device: &str) -> Result<u32, HostError> {
    let index = device.strip_prefix("nbd").and_then(|n| n.parse().ok());
    index.ok_or_else(|| HostError::Refused("not a network block device".to_owned()))
}

/// Already removed is success.
fn unless_missing(result: io::Result<()>) -> Result<(), HostError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refusal(&error)),
        _ => Ok(()),
    }
}

/// A folder's entries are durable once it is synced itself.
fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

impl LinuxSystem {
    /// Does something with `path`, for [`FILE_TIME`] at most.
    fn at<T: Send + 'static>(
        &self,
        path: &str,
        operation: impl FnOnce(&str) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        // Our own records and the kernel's files are local and do not hang.
        if OWN.iter().any(|own| path.starts_with(own)) {
            return operation(path);
        }
        let path = path.to_owned();
        self.shared.bounded.run(FILE_TIME, move |_| operation(&path), Undo::nothing())
    }

    /// Whether a loop device has this tag. The kernel may ask the file's server.
    fn carries(&self, device: &str, tag: &str) -> Result<bool, HostError> {
        let (device, tag) = (by_path(device)?, tag.to_owned());
        self.shared.bounded.run(FILE_TIME, move |_| carries(device, &tag), Undo::nothing())
    }
}

fn carries(device: LoopDevice, tag: &str) -> Result<bool, HostError> {
    match device.backing() {
        Ok(backing) => Ok(backing.is_some_and(|it| it.name == tag)),
        Err(error) if error.errno() == ENXIO || error.errno() == xen::Errno::ENOENT => Ok(false),
        Err(error) => Err(refused(&error)),
    }
}

fn inspect(path: &str) -> Result<FileKind, HostError> {
    let metadata = fs::metadata(path).map_err(|error| refusal(&error))?;
    let kind = metadata.file_type();
    Ok(if kind.is_file() {
        FileKind::Regular { bytes: metadata.len() }
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_block_device() {
        let found = xen_linux::block_device(Path::new(path)).map_err(|e| refused(&e))?;
        FileKind::Block(number(found))
    } else {
        FileKind::Other
    })
}

impl BlockHost for LinuxSystem {
    fn inspect(&mut self, path: &str) -> Result<FileKind, HostError> {
        self.at(path, inspect)
    }

    fn identify(&mut self, path: &str) -> Result<DiskId, HostError> {
        self.at(path, |path| {
            xen_linux::identify(Path::new(path)).map(disk_id).map_err(|error| refused(&error))
        })
    }

    fn attach_loop(&mut self, path: &str, mode: Mode, tag: &str) -> Result<LoopUse, HostError> {
        let (path, tag) = (path.to_owned(), tag.to_owned());
        let lock = if mode == Mode::Shared { FileLock::None } else { FileLock::Qemu };
        let attach = move |_: &bounded::Abandoned| {
            let access = match mode.access() {
                Access::ReadOnly => xen_linux::Access::ReadOnly,
                Access::ReadWrite => xen_linux::Access::ReadWrite,
            };
            let (loop_number, behind) = LoopDevice::attach(Path::new(&path), access, &tag, lock)
                .map_err(|error| match error.errno() {
                    EAGAIN => HostError::Refused(LOCKED.to_owned()),
                    _ => refused(&error),
                })?;
            let device = loop_device(loop_number).map_err(|error| {
                // Without its number it is useless for a backend; report the first error.
                let _undone = loop_number.detach();
                refused(&error)
            })?;
            Ok(LoopUse { device, behind: disk_id(behind), access: mode.access(), tag })
        };
        // If attached after the timeout, it would remain forever.
        let undo = Undo::by(|it: LoopUse| {
            let _gone = by_path(&it.device.path).map(LoopDevice::detach);
        });
        self.shared.bounded.run(FILE_TIME, attach, undo)
    }

    fn loops(&mut self) -> Result<Vec<LoopUse>, HostError> {
        // The kernel may ask a file's server.
        let all = |_: &bounded::Abandoned| {
            let all = LoopDevice::all().map_err(|error| refused(&error))?;
            all.into_iter().map(|(device, backing)| loop_use(device, backing)).collect()
        };
        self.shared.bounded.run(FILE_TIME, all, Undo::nothing())
    }

    fn is_unclaimed(&mut self, device: &str) -> Result<bool, HostError> {
        self.at(device, |device| {
            xen_linux::is_unclaimed(Path::new(device)).map_err(|error| refused(&error))
        })
    }

    fn tag_loop(&mut self, device: &str, tag: &str) -> Result<(), HostError> {
        let (device, tag) = (by_path(device)?, tag.to_owned());
        let rename = move |_: &bounded::Abandoned| match device.rename(&tag) {
            Err(error) if error.errno() == ENXIO || error.errno() == xen::Errno::ENOENT => {
                Err(HostError::Missing)
            }
            other => other.map_err(|error| refused(&error)),
        };
        self.shared.bounded.run(FILE_TIME, rename, Undo::nothing())
    }

    fn detach_loop(&mut self, device: &str) -> Result<(), HostError> {
        let device = by_path(device)?;
        let detach = move |_: &bounded::Abandoned| match device.detach() {
            Err(error) if error.errno() != ENXIO && error.errno() != xen::Errno::ENOENT => {
                Err(refused(&error))
            }
            _ => Ok(()),
        };
        self.shared.bounded.run(FILE_TIME, detach, Undo::nothing())
    }

    fn tagged_loops(&mut self, prefix: &str) -> Result<Vec<TaggedLoop>, HostError> {
        let all = LoopDevice::all().map_err(|error| refused(&error))?;
        let ours = all.into_iter().filter(|(_, backing)| backing.name.starts_with(prefix));
        ours.map(|(device, backing)| {
            let LoopUse { device, behind, access, tag } = loop_use(device, backing)?;
            Ok(TaggedLoop { device, tag, behind, access })
        })
        .collect()
    }
}

fn disk_id(identity: FileIdentity) -> DiskId {
    match identity {
        FileIdentity::File { filesystem, inode } => {
            DiskId::File { filesystem: number(filesystem), inode }
        }
        FileIdentity::Device(device) => DiskId::Device(number(device)),
    }
}

fn loop_use(device: LoopDevice, backing: Backing) -> Result<LoopUse, HostError> {
    Ok(LoopUse {
        device: loop_device(device).map_err(|error| refused(&error))?,
        behind: disk_id(backing.identity),
        access: match backing.access {
            xen_linux::Access::ReadOnly => Access::ReadOnly,
            xen_linux::Access::ReadWrite => Access::ReadWrite,
        },
        tag: backing.name,
    })
}

fn replace(path: &str, bytes: &[u8]) -> io::Result<()> {
    let path = Path::new(path);
    // Writers of one file are serialised, so the name is unique.
    replace_file(path, &copy::partial(path), bytes)
}

/// Replaces a file, and makes its folder; atomic, also on a power failure. It is written under another name in the same
/// folder first, of which nothing is left if this fails.
///
/// # Errors
/// The kernel's.
pub fn replace_file(path: &Path, unfinished: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let put = || {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(unfinished, path)
    };
    put().inspect_err(|_| {
        let _left = fs::remove_file(unfinished);
    })?;
    sync_folder(path)
}

impl System for LinuxSystem {
    fn run(&mut self, command: &Command) -> Result<String, HostError> {
        program::run(command, self.shared.jail.as_ref())
    }

    fn run_with(
        &mut self,
        among: &str,
        command: &Command,
        argument: &str,
    ) -> Result<String, HostError> {
        let jail = self.shared.jail.as_ref();
        let run = |command: &Command| program::run(command, jail);
        self.shared.joined.run(among, command, argument, joined::gather, run)
    }

    fn converse(&mut self, command: &Command, line: &str) -> Result<String, HostError> {
        self.shared.conversations.converse(command, line)
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, HostError> {
        self.at(path, |path| fs::read(path).map_err(|error| refusal(&error)))
    }

    fn read_start(&mut self, path: &str, bytes: usize) -> Result<Vec<u8>, HostError> {
        self.at(path, move |path| {
            let mut start = Vec::new();
            let file = fs::File::open(path).map_err(|error| refusal(&error))?;
            file.take(bytes as u64).read_to_end(&mut start).map_err(|error| refusal(&error))?;
            Ok(start)
        })
    }

    fn rename_new(&mut self, from: &str, to: &str) -> Result<(), HostError> {
        let to = to.to_owned();
        self.at(from, move |from| copy::rename_whole(Path::new(from), Path::new(&to)))
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), HostError> {
        let bytes = bytes.to_owned();
        self.at(path, move |path| replace(path, &bytes).map_err(|error| refusal(&error)))
    }

    fn remove(&mut self, path: &str) -> Result<(), HostError> {
        self.at(path, |path| unless_missing(fs::remove_file(path)))
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, HostError> {
        self.at(folder, |folder| {
            let entries = match fs::read_dir(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                other => other.map_err(|error| refusal(&error))?,
            };
            let mut names = Vec::new();
            for entry in entries {
                let name = entry.map_err(|error| refusal(&error))?.file_name();
                // A name that is not UTF-8 is not ours.
                names.extend(name.into_string());
            }
            names.sort();
            Ok(names)
        })
    }

    fn make_folder(&mut self, folder: &str) -> Result<(), HostError> {
        self.at(folder, |folder| fs::create_dir_all(folder).map_err(|error| refusal(&error)))
    }

    fn remove_folder(&mut self, folder: &str) -> Result<(), HostError> {
        self.at(folder, |folder| unless_missing(fs::remove_dir(folder)))
    }

    fn make_sparse(&mut self, path: &str, bytes: u64) -> Result<(), HostError> {
        self.at(path, move |path| copy::make_sparse(Path::new(path), bytes))
    }

    fn grow(&mut self, path: &str, bytes: u64) -> Result<(), HostError> {
        self.at(path, move |path| {
            let file = fs::OpenOptions::new().write(true).open(path);
            let grown = file.and_then(|file| {
                file.set_len(bytes)?;
                file.sync_all()
            });
            grown.map_err(|error| refusal(&error))
        })
    }

    fn copy(&mut self, from: &str, to: &str, how: Copying) -> Result<(), HostError> {
        let bytes = match self.inspect(from)? {
            FileKind::Regular { bytes } => bytes,
            _ => return Err(HostError::Refused(format!("{from}: not a regular file"))),
        };
        let (from, to) = (from.to_owned(), to.to_owned());
        let copy = move |abandoned: &bounded::Abandoned| {
            copy::copy(Path::new(&from), Path::new(&to), how, abandoned)
        };
        self.shared.bounded.run(copy::time(bytes), copy, Undo::nothing())
    }

    fn used_bytes(&mut self, path: &str) -> Result<u64, HostError> {
        self.at(path, |path| {
            fs::metadata(path).map(|found| found.blocks() * 512).map_err(|error| refusal(&error))
        })
    }

    fn space(&mut self, path: &str) -> Result<Space, HostError> {
        self.at(path, |path| {
            let found = rustix::fs::statvfs(path).map_err(|errno| refusal(&errno.into()))?;
            Ok(Space {
                bytes: found.f_blocks * found.f_frsize,
                free_bytes: found.f_bavail * found.f_frsize,
            })
        })
    }

    fn flush(&mut self, device: &str) -> Result<(), HostError> {
        self.at(device, |device| {
            let flushed = fs::File::open(device).and_then(|device| device.sync_all());
            flushed.map_err(|error| refusal(&error))
        })
    }

    fn do_each(&mut self, jobs: Vec<Job<'_>>) -> Vec<Result<(), StorageError>> {
        let mut jobs = jobs;
        let Some(own) = jobs.pop() else { return Vec::new() };
        let shared = self.clone();
        thread::scope(|scope| {
            let run = |job: Job<'_>| job(&mut shared.clone());
            let others: Vec<_> =
                jobs.into_iter().map(|job| scope.spawn(move || run(job))).collect();
            // The last one on this thread: one alone needs no other.
            let last = own(self);
            let ended = others.into_iter().map(|other| {
                let failed = || StorageError::Refused("a thread for a disk failed".to_owned());
                other.join().unwrap_or_else(|_| Err(failed()))
            });
            let mut results: Vec<_> = ended.collect();
            results.push(last);
            results
        })
    }

    fn resize_loop(&mut self, device: &str) -> Result<(), HostError> {
        by_path(device)?.see_new_size().map_err(|error| refused(&error))
    }

    fn detach_tagged(&mut self, device: &str, tag: &str) -> Result<(), HostError> {
        if !self.carries(device, tag)? {
            return Ok(());
        }
        self.detach_loop(device)?;
        let deadline = Instant::now() + DETACH_TIME;
        let mut nap = Duration::from_millis(1);
        // A backend may keep it open a little longer, and could still write until then.
        while self.carries(device, tag)? {
            if Instant::now() >= deadline {
                return Err(HostError::Busy);
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(100));
        }
        Ok(())
    }

    fn dial(&mut self, server: &str) -> Result<Box<dyn Connection>, HostError> {
        let server = server.to_owned();
        let dialled =
            self.shared.bounded.run(DIAL_TIME, move |_| dial::dial(&server), Undo::nothing())?;
        Ok(Box::new(dialled))
    }

    fn serve_nbd(
        &mut self,
        device: &str,
        connection: Box<dyn Connection>,
        export: &NbdExport,
    ) -> Result<(), HostError> {
        let index = nbd_index(device)?;
        let connection: Box<dyn Any> = connection;
        let dialled = connection
            .downcast::<Dialled>()
            .map_err(|_| HostError::Refused("not a connection of this host".to_owned()))?;
        let served = Served {
            socket: dialled.socket()?,
            bytes: export.bytes,
            block_bytes: export.block_bytes,
            flags: export.flags,
            timeout_s: NBD_SECONDS,
        };
        let mut devices =
            NetworkBlockDevices::open().map_err(|e| HostError::Refused(e.to_string()))?;
        devices.connect(index, &served).map_err(|error| refused(&error))
    }

    fn release_nbd(&mut self, device: &str) -> Result<(), HostError> {
        let index = nbd_index(device)?;
        let mut devices =
            NetworkBlockDevices::open().map_err(|e| HostError::Refused(e.to_string()))?;
        devices.disconnect(index).map_err(|error| refused(&error))
    }

    fn sleep(&mut self, nanoseconds: u64) {
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }

    fn count(&mut self, name: &str) -> u64 {
        // The counts are always consistent.
        let mut counts = self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    fn pause(&mut self, waits_so_far: u32) -> bool {
        // Ten seconds in all.
        std::thread::sleep(Duration::from_millis(20));
        waits_so_far < 500
    }

    fn lock(&mut self, name: &str) -> Result<Lock, HostError> {
        self.shared.locks.lock(name, LOCK_TIME).map(Lock::new).ok_or(HostError::Busy)
    }
}
