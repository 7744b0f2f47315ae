//! Small files that are replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// Opens a regular file. Links are not followed, and what could block is not opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
}

/// The text of a file of at most `bytes_max`.
pub(crate) fn read(file: File, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is larger than {} KiB", bytes_max / 1024)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is no text in UTF-8"))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Atomic, also on a power failure. Only the owner may read it.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = beside(path, ".new");
    // One that a killed daemon left could have other permissions.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let put = || {
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    put().inspect_err(|_| {
        let _left = fs::remove_file(&unfinished);
    })?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Keeps others from replacing the file until it is dropped.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(beside(path, ".lock"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Makes the folder of a file.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}
