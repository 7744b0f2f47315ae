//! Files that appear atomically: new sparse ones, and copies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, ioctl_ficlone, renameat_with};
use rustix::io::Errno;
use storage::{Copying, HostError, PARTIAL_PREFIX};

use crate::bounded::Abandoned;
use crate::{refusal, sync_folder};

/// Bytes copied between two checks for abandonment.
const CHUNK_BYTES: usize = 1 << 20;
/// Lowest rate of a copy.
const BYTES_PER_SECOND_MIN: u64 = 4 << 20;

/// Time limit of a copy.
pub(crate) fn time(bytes: u64) -> Duration {
    Duration::from_secs(60 + bytes / BYTES_PER_SECOND_MIN)
}

/// Temporary name of an incomplete file.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{PARTIAL_PREFIX}{name}"))
}

/// Creates a file under a temporary name with `fill`, then renames it.
fn appear(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let io = |error: io::Error| refusal(&error);
    // Fail early, instead of after a long copy.
    if fs::symlink_metadata(path).is_ok() {
        return Err(HostError::Busy);
    }
    let new = partial(path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let filled = options.open(&new).map_err(io).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all().map_err(io)?;
        rename(&new, path)?;
        sync_folder(path).map_err(io)
    });
    filled.inspect_err(|_| {
        // If this fails too, the next scan removes it.
        let _left = fs::remove_file(&new);
    })
}

/// Renames a file after syncing it.
pub(crate) fn rename_whole(from: &Path, to: &Path) -> Result<(), HostError> {
    let io = |error: io::Error| refusal(&error);
    File::open(from).and_then(|file| file.sync_all()).map_err(io)?;
    rename(from, to)?;
    sync_folder(to).map_err(io)
}

/// Never overwrites a file.
fn rename(from: &Path, to: &Path) -> Result<(), HostError> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(HostError::Busy),
        // NFS does not support it: make a hard link, which must be new, and remove the old name.
        Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(from, to)
            .and_then(|()| fs::remove_file(from))
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => HostError::Busy,
                _ => refusal(&error),
            }),
        Err(errno) => Err(refusal(&errno.into())),
    }
}

pub(crate) fn make_sparse(path: &Path, bytes: u64) -> Result<(), HostError> {
    appear(path, |file| file.set_len(bytes).map_err(|error| refusal(&error)))
}

pub(crate) fn copy(
    from: &Path,
    to: &Path,
    how: Copying,
    abandoned: &Abandoned,
) -> Result<(), HostError> {
    let mut source = File::open(from).map_err(|error| refusal(&error))?;
    appear(to, |file| {
        match ioctl_ficlone(&*file, &source) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::NOTTY | Errno::NOSYS)
                if how == Copying::Any =>
            {
                copy_data(&mut source, file, abandoned).map_err(|error| refusal(&error))?;
            }
            Err(errno) => return Err(refusal(&errno.into())),
        }
        if abandoned.is_so() {
            return Err(HostError::Refused("nobody waits for the copy any more".to_owned()));
        }
        Ok(())
    })
}

/// Copies the file's data; holes stay holes.
fn copy_data(from: &mut File, to: &mut File, abandoned: &Abandoned) -> io::Result<()> {
    let bytes = from.metadata()?.len();
    to.set_len(bytes)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < bytes {
        let start = match rustix::fs::seek(&*from, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            // No data after this.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(&*from, rustix::fs::SeekFrom::Hole(start))?;
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(start))?;
        let mut left = end - start;
        while left > 0 {
            if abandoned.is_so() {
                return Err(io::Error::other("nobody waits for the copy any more"));
            }
            let wanted = usize::try_from(left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            let count = from.read(&mut buffer[..wanted])?;
            if count == 0 {
                return Err(io::Error::other("the file became shorter while it was copied"));
            }
            // Zeros become holes in the copy.
            if buffer[..count].iter().all(|&byte| byte == 0) {
                to.seek(SeekFrom::Current(i64::try_from(count).map_err(io::Error::other)?))?;
            } else {
                to.write_all(&buffer[..count])?;
            }
            left -= count as u64;
        }
        at = end;
    }
    Ok(())
}
