//! Bootloaders: run in a cell, and what they found there.
//!
//! Everything in a folder was written on a guest's behalf. It is read when no process that could change it is left, and
//! removed when it has been read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jail::{Cell, Jail};
use rustix::fs::{Advice, OFlags, fadvise};
use storage::HostError;
use toolstack::bootloader::{ANSWER, BootloaderRun, DISK, FOLDER};
use toolstack::device_model::USER_FIRST;
use toolstack::host::{BootFolder, KernelError};
use xen_build::KernelImage;

use crate::host::refusal;
use crate::images::Images;

/// Where their folders are. A ramdisk may be larger than what `/run` has room for.
const FOLDERS: &str = "/var/lib/xylem/bootloader";
/// Behind the users of device models, of which each domain has one.
const BOOTLOADER_USER_FIRST: u32 = USER_FIRST + 0x8000;
const USERS: u32 = 0x4000;
/// What is kept of its words.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Removes what bootloaders of a killed daemon left: they ended with it.
pub(crate) fn clear() {
    let _nothing_there = fs::remove_dir_all(FOLDERS);
}

/// Runs one to its end.
pub(crate) fn run(
    run: &BootloaderRun,
    images: &Images,
    jail: Option<&Jail>,
) -> Result<Box<dyn BootFolder>, HostError> {
    // Those that run at the same time have different numbers.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed) % USERS;
    assert!(DISK == jail::CELL_DISK && FOLDER == jail::CELL_FOLDER, "both mean the same");
    let told = |what: &str, error: &io::Error| HostError::Refused(format!("{what}: {error}"));
    let jail = jail.ok_or_else(|| HostError::Refused("it would not be confined".to_owned()))?;
    let (user, group) = match &run.user {
        None => (BOOTLOADER_USER_FIRST + number, BOOTLOADER_USER_FIRST + number),
        Some(name) => named_user(name)?,
    };
    forget_cached(&run.disk).map_err(|error| told(&run.disk, &error))?;
    let folder = format!("{FOLDERS}/{number}");
    let cell = Cell { user, group, disk: run.disk.clone(), folder };
    // One of that number has ended long ago.
    let _nothing_there = fs::remove_dir_all(&cell.folder);
    cell.make_folder().map_err(|error| told(&cell.folder, &error))?;
    let folder = Folder { cell, images: images.clone() };
    // A bootloader opens it without making it.
    folder.make(ANSWER).map_err(|error| told(&folder.cell.folder, &error))?;
    let mut command =
        jail.cell_command(&folder.cell, &format!("bootloader-{number}"), &run.program);
    command.args(&run.arguments);
    // As for bootloaders of libxl.
    let environment = [("TERM", "vt100")];
    let ended = storage_host::run_to_end(&run.program, &mut command, &environment, run.seconds)?;
    keep_log(&run.log, &ended.words);
    match ended.status {
        Some(status) if status.success() => Ok(Box::new(folder)),
        Some(status) => Err(HostError::Refused(ending(status, &ended.words))),
        None => {
            let (name, seconds) = (run.program.rsplit('/').next().unwrap_or_default(), run.seconds);
            Err(HostError::Refused(format!("{name} did not end within {seconds} s")))
        }
    }
}

/// How it ended, in one line. Its last line is the reason: programs in Python tell their whole way before.
fn ending(status: ExitStatus, words: &str) -> String {
    const CHARS_MAX: usize = 200;
    let how = match status.code() {
        Some(code @ 129..=192) => format!("was ended by signal {}", code & 127),
        Some(code) => format!("failed with status {code}"),
        None => "was killed".to_owned(),
    };
    let last = words.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last: String = last.unwrap_or("without a word").chars().take(CHARS_MAX).collect();
    format!("{how}: {}", last.escape_debug())
}

/// As for xl, what it says is in a log. A guest cannot make it long.
fn keep_log(path: &str, words: &str) {
    let bytes = words.as_bytes();
    let last = &bytes[bytes.len().saturating_sub(LOG_BYTES_MAX)..];
    let write = || {
        let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o640);
        options.open(path)?.write_all(last)
    };
    // It is for those who look for the reason of a failure, which has the last line of it.
    let _lost: io::Result<()> = write();
}

/// The user and group of this name in the host's own list.
fn named_user(name: &str) -> Result<(u32, u32), HostError> {
    let list = fs::read_to_string("/etc/passwd").map_err(|error| refusal(&error))?;
    let ids = list.lines().find_map(|line| {
        let mut words = line.split(':');
        (words.next()? == name).then_some(())?;
        let mut number = || words.next()?.parse::<u32>().ok();
        let _password = number();
        Some((number()?, number()?))
    });
    match ids {
        None => Err(HostError::Refused(format!("no user {name} on this host"))),
        Some((0, _) | (_, 0)) => {
            Err(HostError::Refused(format!("user {name} is root, which runs no bootloader")))
        }
        Some(ids) => Ok(ids),
    }
}

/// The guest's own writes went past this host's cache of the disk.
fn forget_cached(disk: &str) -> io::Result<()> {
    let disk = File::open(disk)?;
    Ok(fadvise(&disk, 0, None, Advice::DontNeed)?)
}

/// A folder of a bootloader that has ended.
struct Folder {
    cell: Cell,
    images: Images,
}

impl Folder {
    fn make(&self, name: &str) -> io::Result<()> {
        let path = self.cell.files().join(name);
        File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        std::os::unix::fs::chown(&path, Some(self.cell.user), Some(self.cell.group))
    }

    /// Opens a plain file.
    fn open(&self, name: &str) -> Result<File, HostError> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let path = self.cell.files().join(name);
        let opened = File::options().read(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| refusal(&error))?;
        let found = file.metadata().map_err(|error| refusal(&error))?;
        match found.is_file() {
            true => Ok(file),
            false => Err(HostError::Refused("not a regular file".to_owned())),
        }
    }
}

impl BootFolder for Folder {
    fn answer(&mut self, bytes_max: usize) -> Result<Vec<u8>, HostError> {
        let mut bytes = Vec::new();
        let file = self.open(ANSWER)?.take(bytes_max as u64);
        { file }.read_to_end(&mut bytes).map_err(|error| refusal(&error))?;
        Ok(bytes)
    }

    fn kernel(&mut self, name: &str) -> Result<Arc<KernelImage>, KernelError> {
        let file = self.open(name)?;
        Ok(self.images.parse_kernel(&file).map(Arc::new)?)
    }

    fn ramdisk(&mut self, name: &str) -> Result<Arc<[u8]>, HostError> {
        let file = self.open(name)?;
        let bytes = file.metadata().map_err(|error| refusal(&error))?.len();
        Images::read_ramdisk(file, bytes)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a last process of it still writes is in the way of the first attempt.
        for _ in 0..5 {
            match fs::remove_dir_all(&self.cell.folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_is_never_root() {
        assert!(named_user("root").unwrap_err().to_string().contains("is root"));
        let missing = named_user("nobody-of-that-name").unwrap_err();
        assert_eq!(missing.to_string(), "no user nobody-of-that-name on this host");
    }
}
