//! Files of saved VMs on this machine's file systems.
//!
//! A file is written under a hidden name in the folder of the final one, locked, and renamed when it
//! is whole and durable. The lock ends with the process: a file under such a name that nobody has
//! locked was left by a killed daemon.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FlockOperation, OFlags, fadvise, flock};
use rustix::io::Errno;
use storage::HostError;
use toolstack::host::{ImageSink, ImageSource, unfinished_name};

/// Pages that were written leave dom0's memory after this many bytes, which others need more.
const FLUSH_BYTES: u64 = 64 << 20;

fn refusal(error: &io::Error) -> HostError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => HostError::Missing,
        Some(Errno::NOSPC) => {
            HostError::Refused("no space left on the disk; free some, or save elsewhere".to_owned())
        }
        Some(Errno::DQUOT) => HostError::Refused("the disk quota is used up".to_owned()),
        Some(Errno::FBIG) => {
            HostError::Refused("larger than a file of this file system can be".to_owned())
        }
        _ => HostError::Refused(error.to_string()),
    }
}

/// Where the file is after all links, and what it is called until it is whole.
fn places(path: &str) -> io::Result<(PathBuf, PathBuf)> {
    let given = Path::new(path);
    let path = match fs::canonicalize(given) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(folder), Some(name)) = (given.parent(), given.file_name()) else {
                return Err(error);
            };
            fs::canonicalize(folder)?.join(name)
        }
        Err(error) => return Err(error),
    };
    let text = path.to_str().ok_or_else(|| io::Error::other("its name is no text in UTF-8"))?;
    let unfinished = PathBuf::from(unfinished_name(text));
    Ok((path, unfinished))
}

/// Begins a file.
pub(crate) fn create(path: &str) -> Result<Box<dyn ImageSink>, HostError> {
    begin(path).map(|sink| Box::new(sink) as Box<dyn ImageSink>)
}

fn begin(path: &str) -> Result<Sink, HostError> {
    let told = |error: io::Error| refusal(&error);
    let (path, unfinished) = places(path).map_err(told)?;
    match fs::metadata(&path) {
        Ok(there) if there.is_dir() => {
            return Err(HostError::Refused("is a directory".to_owned()));
        }
        Ok(there) if !there.is_file() => {
            return Err(HostError::Refused("is not a regular file".to_owned()));
        }
        _ => {}
    }
    let mut options = File::options();
    options.write(true).create(true).mode(0o600).custom_flags(flags(OFlags::NOFOLLOW));
    let file = options.open(&unfinished).map_err(told)?;
    lock(&file)?;
    // Its owner may have renamed or removed it before the lock was ours.
    if !is_still(&file, &unfinished) {
        return Err(HostError::Busy);
    }
    file.set_len(0).map_err(told)?;
    Ok(Sink { path, unfinished, file, written: 0, flushed: 0, is_whole: false })
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or_default()
}

fn lock(file: &File) -> Result<(), HostError> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => HostError::Busy,
        errno => refusal(&errno.into()),
    })
}

/// Whether the name still leads to this file.
fn is_still(file: &File, path: &Path) -> bool {
    let (Ok(one), Ok(other)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    one.dev() == other.dev() && one.ino() == other.ino()
}

/// Removes what a killed daemon left.
pub(crate) fn remove_unfinished(path: &str) -> Result<(), HostError> {
    let told = |error: io::Error| refusal(&error);
    let unfinished = match places(path) {
        Ok((_, unfinished)) => unfinished,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refusal(&error)),
    };
    let mut options = File::options();
    let file = match options.write(true).custom_flags(flags(OFlags::NOFOLLOW)).open(&unfinished) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refusal(&error)),
    };
    lock(&file)?;
    if is_still(&file, &unfinished) { fs::remove_file(&unfinished).map_err(told) } else { Ok(()) }
}

/// Opens a file to be read.
pub(crate) fn open(path: &str) -> Result<Box<dyn ImageSource>, HostError> {
    let told = |error: io::Error| refusal(&error);
    // Others could block.
    let flags = flags(OFlags::NONBLOCK);
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(told)?;
    let about = file.metadata().map_err(told)?;
    if !about.is_file() {
        return Err(HostError::Refused("is not a regular file".to_owned()));
    }
    // It only speeds reading up.
    let _not_supported = fadvise(&file, 0, None, Advice::Sequential);
    Ok(Box::new(Source { file, bytes: about.len() }))
}

#[derive(Debug)]
struct Sink {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    written: u64,
    /// What of it is on the disk.
    flushed: u64,
    is_whole: bool,
}

impl Sink {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written - self.flushed >= FLUSH_BYTES {
            self.file.sync_data()?;
            let length = std::num::NonZeroU64::new(self.written);
            let _not_supported = fadvise(&self.file, 0, length, Advice::DontNeed);
            self.flushed = self.written;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.is_whole = true;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let durable = File::open(folder).and_then(|folder| folder.sync_all());
        durable.inspect_err(|_| {
            // The caller believes that there is none.
            let _left = fs::remove_file(&self.path);
        })
    }
}

impl ImageSink for Sink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.put(bytes).map_err(|error| refusal(&error))
    }

    fn commit(mut self: Box<Self>) -> Result<(), HostError> {
        self.finish().map_err(|error| refusal(&error))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.is_whole {
            // The next one to this path overwrites it.
            let _left = fs::remove_file(&self.unfinished);
        }
    }
}

#[derive(Debug)]
struct Source {
    file: File,
    bytes: u64,
}

impl ImageSource for Source {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, HostError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(refusal(&error)),
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own, which ends with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xylemd-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(fs::canonicalize(path).unwrap())
        }

        fn path(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_owned()
        }

        fn names(&self) -> Vec<String> {
            let name =
                |it: io::Result<fs::DirEntry>| it.unwrap().file_name().into_string().unwrap();
            let mut names: Vec<_> = fs::read_dir(&self.0).unwrap().map(name).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _left = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_not_before() {
        let folder = Folder::new("saved-whole");
        let path = folder.path("one");
        fs::write(&path, "before").unwrap();
        let mut sink = create(&path).unwrap();
        sink.write(b"some").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(create(&path).err(), Some(HostError::Busy));
        assert_eq!(remove_unfinished(&path), Err(HostError::Busy));
        drop(sink);
        assert_eq!(folder.names(), ["one"]);
        let mut sink = create(&path).unwrap();
        sink.write(b"all ").unwrap();
        sink.write(b"of it").unwrap();
        sink.commit().unwrap();
        assert_eq!(folder.names(), ["one"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let source = open(&path).unwrap();
        let mut buffer = [0; 16];
        assert_eq!((source.bytes(), source.read_at(4, &mut buffer)), (9, Ok(5)));
        assert_eq!(&buffer[..5], b"of it");
    }

    #[test]
    fn what_a_killed_daemon_left_is_removed_or_overwritten() {
        let folder = Folder::new("saved-left");
        let path = folder.path("one");
        let left = unfinished_name(&path);
        fs::write(&left, "half").unwrap();
        remove_unfinished(&path).unwrap();
        remove_unfinished(&path).unwrap();
        assert_eq!(folder.names(), [""; 0]);
        fs::write(&left, "half of it").unwrap();
        let mut sink = create(&path).unwrap();
        sink.write(b"new").unwrap();
        sink.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(folder.names(), ["one"]);
    }

    #[test]
    fn links_are_followed_and_only_files_are_replaced() {
        let folder = Folder::new("saved-links");
        let (path, link) = (folder.path("one"), folder.path("link"));
        fs::write(&path, "before").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut sink = create(&link).unwrap();
        sink.write(b"after").unwrap();
        sink.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let refused = |path: &str| create(path).err().map(|error| error.to_string());
        assert_eq!(refused(&folder.path("")).unwrap(), "is a directory");
        assert_eq!(refused("/dev/null").unwrap(), "is not a regular file");
        assert_eq!(create(&folder.path("none/one")).err(), Some(HostError::Missing));
        assert_eq!(open(&folder.path("none")).err(), Some(HostError::Missing));
        assert_eq!(open("/dev/null").err().unwrap().to_string(), "is not a regular file");
    }
}
