//! Files of saved VMs on this machine's file systems.
//!
//! A file is written under a hidden name in the folder of the final one, locked, and renamed when it
//! is whole and durable. The lock ends with the process: a file under such a name that nobody has
//! locked was left by a killed daemon, or put there by somebody else. It is never written to: others
//! may have it open, or it may be a file elsewhere, too. It is removed, and a new one made.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{
    Advice, AtFlags, FileType, FlockOperation, Mode, OFlags, fadvise, flock, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use storage::HostError;
use toolstack::host::{ImageSink, ImageSource, unfinished_name};

/// Pages that were written leave dom0's memory after this many bytes, which others need more.
const FLUSH_BYTES: u64 = 64 << 20;
/// How often a new file is tried to be made while others make and remove theirs.
const ATTEMPTS: usize = 3;

fn refusal(error: &io::Error) -> HostError {
    let told = |text: &str| HostError::Refused(text.to_owned());
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => HostError::Missing,
        Some(Errno::NOSPC) => told("no space left on the disk; free some, or save elsewhere"),
        Some(Errno::DQUOT) => told("the disk quota is used up"),
        Some(Errno::FBIG) => told("larger than a file of this file system can be"),
        Some(Errno::ROFS) => told("the file system is read-only"),
        Some(Errno::ACCESS | Errno::PERM) => told("permission denied"),
        Some(Errno::NAMETOOLONG) => {
            told("the name is too long, with the words that it has until the file is whole")
        }
        Some(Errno::NOTDIR) => told("a part of the path is no directory"),
        Some(Errno::LOOP) => told("leads through too many links"),
        Some(Errno::IO) => told("the disk reports an error"),
        _ => HostError::Refused(error.to_string()),
    }
}

fn refused(errno: Errno) -> HostError {
    refusal(&errno.into())
}

/// Where a file is after all links, and what it is called until it is whole.
#[derive(Debug)]
struct Place {
    /// Kept open: its path may lead elsewhere later.
    folder: File,
    name: OsString,
    unfinished: OsString,
}

impl Place {
    fn of(path: &str) -> Result<Self, HostError> {
        let given = Path::new(path);
        let path = match fs::canonicalize(given) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (Some(folder), Some(name)) = (given.parent(), given.file_name()) else {
                    return Err(HostError::Missing);
                };
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                fs::canonicalize(folder).map(|folder| folder.join(name))
            }
            found => found,
        };
        let path = path.map_err(|error| refusal(&error))?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(HostError::Refused("is a directory".to_owned()));
        };
        let text = name.to_str();
        let text = text.ok_or(HostError::Refused("its name is no text in UTF-8".to_owned()))?;
        let unfinished = unfinished_name(text);
        let unfinished = OsString::from(unfinished.trim_start_matches('/'));
        let flags = flags(OFlags::DIRECTORY | OFlags::NOFOLLOW);
        let folder = File::options().read(true).custom_flags(flags).open(folder);
        let folder = folder.map_err(|error| refusal(&error))?;
        Ok(Self { folder, name: name.to_owned(), unfinished })
    }

    /// What has this name, if anything has.
    fn kind(&self, name: &OsString) -> Result<Option<FileType>, HostError> {
        match statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok(Some(FileType::from_raw_mode(there.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// A new file under the hidden name, which is ours alone.
    fn create(&self) -> Result<File, HostError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for _ in 0..ATTEMPTS {
            match openat(&self.folder, &self.unfinished, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => {
                    let file = File::from(file);
                    lock(&file)?;
                    // Somebody may have removed it before the lock was ours.
                    if self.is_unfinished(&file) {
                        return Ok(file);
                    }
                }
                Err(Errno::EXIST) => self.remove_unfinished()?,
                Err(errno) => return Err(refused(errno)),
            }
        }
        Err(HostError::Busy)
    }

    /// Whether the hidden name still leads to this file.
    fn is_unfinished(&self, file: &File) -> bool {
        let (one, other) = (
            rustix::fs::fstat(file),
            statat(&self.folder, &self.unfinished, AtFlags::SYMLINK_NOFOLLOW),
        );
        let (Ok(one), Ok(other)) = (one, other) else { return false };
        (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    }

    /// Removes what has the hidden name, unless somebody writes it now.
    fn remove_unfinished(&self) -> Result<(), HostError> {
        match self.kind(&self.unfinished)? {
            None => return Ok(()),
            Some(FileType::Directory) => {
                let name = self.unfinished.display();
                return Err(HostError::Refused(format!("the directory {name} is in the way")));
            }
            Some(FileType::RegularFile) => {
                // It is held until it is removed.
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = match openat(&self.folder, &self.unfinished, flags, Mode::empty()) {
                    Ok(file) => File::from(file),
                    Err(Errno::NOENT) => return Ok(()),
                    Err(errno) => return Err(refused(errno)),
                };
                lock(&file)?;
                return if self.is_unfinished(&file) {
                    self.unlink(&self.unfinished)
                } else {
                    Ok(())
                };
            }
            Some(_) => {}
        }
        self.unlink(&self.unfinished)
    }

    fn unlink(&self, name: &OsString) -> Result<(), HostError> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(refused(errno)),
        }
    }
}

/// Begins a file.
pub(crate) fn create(path: &str) -> Result<Box<dyn ImageSink>, HostError> {
    begin(path).map(|sink| Box::new(sink) as Box<dyn ImageSink>)
}

fn begin(path: &str) -> Result<Sink, HostError> {
    let place = Place::of(path)?;
    match place.kind(&place.name)? {
        None | Some(FileType::RegularFile) => {}
        Some(FileType::Directory) => return Err(HostError::Refused("is a directory".to_owned())),
        Some(_) => return Err(HostError::Refused("is not a regular file".to_owned())),
    }
    let file = place.create()?;
    Ok(Sink { place, file, written: 0, flushed: 0, is_whole: false })
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or_default()
}

fn lock(file: &File) -> Result<(), HostError> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => HostError::Busy,
        errno => refused(errno),
    })
}

/// Removes what a killed daemon left.
pub(crate) fn remove_unfinished(path: &str) -> Result<(), HostError> {
    match Place::of(path) {
        Ok(place) => place.remove_unfinished(),
        Err(HostError::Missing) => Ok(()),
        Err(error) => Err(error),
    }
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
    place: Place,
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
        let Place { folder, name, unfinished } = &self.place;
        self.file.sync_all()?;
        renameat(folder, unfinished, folder, name)?;
        self.is_whole = true;
        folder.sync_all().inspect_err(|_| {
            // The caller believes that there is none.
            let _left = self.place.unlink(name);
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
            // The next one to this path removes it.
            let _left = self.place.unlink(&self.place.unfinished);
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
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::PathBuf;

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

    fn save(path: &str) -> Result<(), HostError> {
        let mut sink = create(path)?;
        sink.write(b"memory of a guest")?;
        sink.commit()
    }

    #[test]
    fn what_others_put_under_the_hidden_name_is_neither_written_nor_waited_for() {
        let folder = Folder::new("saved-others");
        let (path, elsewhere) = (folder.path("one"), folder.path("elsewhere"));
        let hidden = unfinished_name(&path);
        fs::write(&elsewhere, "important").unwrap();
        type Trap<'a> = &'a dyn Fn();
        let pipe = || {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, &hidden, FileType::Fifo, mode, 0).unwrap();
        };
        let hard_link = || fs::hard_link(&elsewhere, &hidden).unwrap();
        let symbolic_link = || std::os::unix::fs::symlink(&elsewhere, &hidden).unwrap();
        for (trap, cleans) in [
            (&pipe as Trap<'_>, true),
            (&hard_link, true),
            (&symbolic_link, true),
            (&pipe, false),
            (&symbolic_link, false),
        ] {
            trap();
            if cleans {
                remove_unfinished(&path).unwrap();
                assert_eq!(folder.names().len(), 1 + usize::from(Path::new(&path).exists()));
                trap();
            }
            save(&path).unwrap();
            assert_eq!(folder.names(), ["elsewhere", "one"]);
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::read(&elsewhere).unwrap(), b"important");
        }
        // A file that its owner has open, to read what comes there.
        let theirs = File::create_new(&hidden).unwrap();
        theirs.set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
        save(&path).unwrap();
        assert_eq!(theirs.metadata().unwrap().len(), 0);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::create_dir(&hidden).unwrap();
        let told = create(&path).err().unwrap().to_string();
        assert_eq!(told, "the directory .one.xylem-unfinished is in the way");
    }

    #[test]
    fn a_folder_that_is_exchanged_meanwhile_does_not_lead_astray() {
        let folder = Folder::new("saved-moved");
        let (before, after) = (folder.path("before"), folder.path("after"));
        fs::create_dir(&before).unwrap();
        let mut sink = create(&format!("{before}/one")).unwrap();
        sink.write(b"x").unwrap();
        fs::rename(&before, &after).unwrap();
        fs::create_dir(&before).unwrap();
        sink.commit().unwrap();
        assert_eq!(fs::read_dir(&before).unwrap().count(), 0);
        assert_eq!(fs::read(format!("{after}/one")).unwrap(), b"x");
    }

    #[test]
    fn a_name_that_has_no_room_for_more_is_told_so() {
        let folder = Folder::new("saved-long");
        let told =
            |length| create(&folder.path(&"n".repeat(length))).err().map(|it| it.to_string());
        assert_eq!(told(200), None);
        let long = "the name is too long, with the words that it has until the file is whole";
        assert_eq!([told(250), told(300)], [Some(long.to_owned()), Some(long.to_owned())]);
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
