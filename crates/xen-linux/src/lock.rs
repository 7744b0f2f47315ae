//! Locks on disk images, as QEMU takes them.
//!
//! Source: QEMU `block/file-posix.c`: a lock on one byte for each permission in use, and on another
//! for each permission that is not shared with others. The locks belong to the open file
//! description, not to the process.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::fstatfs;
use rustix::io::Errno;

use crate::Access;
use crate::ioctl::last_errno;

/// First byte of the permissions in use, and of those not shared.
const USED: i64 = 100;
const DENIED: i64 = 200;

/// Permissions, by their index in QEMU.
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// `NFS_SUPER_MAGIC`: if the server loses a lock, every request fails.
const NFS: u64 = 0x6969;

fn command(
    file: &OwnedFd,
    command: libc::c_int,
    kind: libc::c_int,
    byte: i64,
) -> Result<libc::flock, Errno> {
    let short = |number: libc::c_int| libc::c_short::try_from(number).expect("a small number");
    let mut lock = libc::flock {
        l_type: short(kind),
        l_whence: short(libc::SEEK_SET),
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: both commands take this structure, which outlives the call; the descriptor is open.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(&mut lock)) };
    if result == -1 { Err(last_errno()) } else { Ok(lock) }
}

/// Locks a file for a user that allows others to read but not to write.
///
/// # Errors
/// EAGAIN if another user's lock conflicts.
pub(crate) fn lock(file: &OwnedFd, access: Access) -> Result<(), Errno> {
    if fstatfs(file).is_ok_and(|it| it.f_type.cast_unsigned() == NFS) {
        return Ok(());
    }
    let used: &[i64] = match access {
        Access::ReadOnly => &[READ],
        Access::ReadWrite => &[READ, WRITE],
    };
    let denied = [WRITE, RESIZE];
    let own = used.iter().map(|it| USED + it).chain(denied.iter().map(|it| DENIED + it));
    for byte in own {
        match command(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte) {
            Ok(_) => {}
            // The file system does not support locks.
            Err(Errno::NOLCK | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    let theirs = used.iter().map(|it| DENIED + it).chain(denied.iter().map(|it| USED + it));
    for byte in theirs {
        let found = command(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?;
        if libc::c_int::from(found.l_type) != libc::F_UNLCK {
            return Err(Errno::AGAIN);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn many_read_or_one_writes() {
        let path = std::env::temp_dir().join(format!("xylem-lock-{}", std::process::id()));
        std::fs::write(&path, [0; 512]).unwrap();
        let open = |access| {
            let write = access == Access::ReadWrite;
            let file = File::options().read(true).write(write).open(&path).unwrap();
            OwnedFd::from(file)
        };
        let (read, write) = (Access::ReadOnly, Access::ReadWrite);
        for (first, second, expected) in [
            (read, read, Ok(())),
            (read, write, Err(Errno::AGAIN)),
            (write, read, Err(Errno::AGAIN)),
            (write, write, Err(Errno::AGAIN)),
        ] {
            let held = open(first);
            assert_eq!(lock(&held, first), Ok(()));
            assert_eq!(lock(&open(second), second), expected, "{first:?} {second:?}");
            // It belongs to the open file description: a duplicated descriptor keeps it.
            let copy = held.try_clone().unwrap();
            drop(held);
            assert_eq!(lock(&open(second), second), expected, "{first:?} {second:?}");
            drop(copy);
            assert_eq!(lock(&open(second), second), Ok(()));
        }
        std::fs::remove_file(&path).unwrap();
    }
}
