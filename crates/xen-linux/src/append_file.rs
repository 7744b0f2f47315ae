//! [`AppendFile`]: a file that is appended to by stores to memory, without a system call for each.
//!
//! Appended bytes are in the page cache as soon as they are stored: they survive the process,
//! however it ends, but not the machine. The first page is a header; its first word is the appended
//! length, and bytes beyond it do not count.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use xen::PAGE_BYTES;

use crate::HostError;
use crate::error::Refused;
use crate::mapping::{Access, Mapping};

/// Mapped and allocated at a time, in about a fifth of a millisecond. More would block the caller
/// for longer and count as this process's memory; less costs more calls.
const WINDOW_BYTES: u64 = 256 << 10;
const WINDOW_PAGES: usize = 64;

/// Bytes of the header for the caller, after the length.
const OWN_AT: usize = 8;
const OWN_BYTES: usize = 64;

/// Offset in the header of data that changes all the time.
const NOTES_AT: usize = 1024;

/// Attempts to lock a file that another process has locked.
const LOCK_TRIES: u32 = 500;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// An append-only file, locked against every other process.
#[derive(Debug)]
pub struct AppendFile {
    file: OwnedFd,
    header: Mapping,
    /// The window with the end.
    window: Mapping,
    window_start: u64,
    /// Published length, without the header.
    length: u64,
    /// Allocated length of the file.
    allocated: u64,
    /// Bytes that were appended once and that the file no longer has.
    missing: u64,
}

impl AppendFile {
    /// Creates an empty file at `path`, replacing any other.
    ///
    /// # Errors
    /// If the file cannot be created, or there is no space for it.
    pub fn create(path: &Path) -> Result<Self, HostError> {
        let context = || format!("cannot create {}", path.display());
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).refused(context),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).refused(context)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).refused(context)?;
        Self::with_file(file, 0).refused(context)
    }

    /// Empties the file at `path` and keeps its space, or creates it.
    ///
    /// # Errors
    /// As for [`create`](Self::create), or if another process has locked it.
    pub fn reuse(path: &Path) -> Result<Self, HostError> {
        let context = || format!("cannot use {}", path.display());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // What is no file of ours is replaced.
        let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
            return Self::create(path);
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).refused(context)?;
        let size = rustix::fs::fstat(&file).refused(context)?.st_size;
        let size = u64::try_from(size).unwrap_or(0) / WINDOW_BYTES * WINDOW_BYTES;
        allocate(&file, 0, size.max(WINDOW_BYTES)).refused(context)?;
        let mut opened = Self::with_file(file, 0).refused(context)?;
        opened.allocated = opened.allocated.max(size);
        opened.clear();
        Ok(opened)
    }

    /// Opens the file at `path`, if there is one, to append to it.
    ///
    /// Waits a few seconds for another process that still has it locked: a killed process releases
    /// it when it has exited.
    ///
    /// # Errors
    /// If it cannot be opened, another process has locked it, or it has no header.
    pub fn open(path: &Path) -> Result<Option<Self>, HostError> {
        let context = || format!("cannot use {}", path.display());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.refused(context)?,
        };
        lock(&file).refused(|| format!("{}: is another process serving?", context()))?;
        let size = rustix::fs::fstat(&file).refused(context)?.st_size;
        let size = u64::try_from(size).unwrap_or(0);
        if size < HEADER_BYTES {
            return Err(Errno::INVAL).refused(|| format!("{}: it has no header", context()));
        }
        let mut word = [0; 8];
        rustix::io::pread(&file, &mut word[..], 0).refused(context)?;
        let length = u64::from_ne_bytes(word);
        // Somebody truncated it.
        let missing = length.saturating_sub(size - HEADER_BYTES);
        let opened = Self::with_file(file, length - missing).refused(context)?;
        Ok(Some(Self { missing, ..opened }))
    }

    /// Waits a few seconds until no other process has locked the file at `path`, if there is one.
    /// Does not read it.
    ///
    /// # Errors
    /// If it cannot be opened, or remains locked.
    pub fn wait_until_free(path: &Path) -> Result<(), HostError> {
        let context = || format!("cannot use {}", path.display());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened.refused(context)?,
        };
        lock(&file).refused(|| format!("{}: is another process serving?", context()))
    }

    /// Takes over a file that another process opened and no longer appends to.
    ///
    /// # Errors
    /// If it is not such a file.
    pub fn adopt(file: OwnedFd) -> Result<Self, HostError> {
        let context = || "cannot use the file that was handed over".to_owned();
        let mut word = [0; 8];
        rustix::io::pread(&file, &mut word[..], 0).refused(context)?;
        Self::with_file(file, u64::from_ne_bytes(word)).refused(context)
    }

    fn with_file(file: OwnedFd, length: u64) -> Result<Self, Errno> {
        let allocated = window_start(length) + WINDOW_BYTES;
        allocate(&file, 0, allocated)?;
        let header = Mapping::new(&file, 1, 0, Access::ReadWrite)?;
        let window_start = window_start(length);
        let window = Mapping::populated(&file, WINDOW_PAGES, window_start)?;
        Ok(Self { file, header, window, window_start, length, allocated, missing: 0 })
    }

    /// How many of the appended bytes the file no longer has, since somebody truncated it.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Number of appended bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many bytes may be appended without more space.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.allocated - HEADER_BYTES - self.length
    }

    /// Allocates a little more space, if there is not room for as many bytes; false if there is more to do.
    ///
    /// # Errors
    /// ENOSPC or another errno of the file system if there is no space.
    pub fn make_room(&mut self, bytes: u64) -> Result<bool, HostError> {
        if self.room() < bytes {
            self.extend(WINDOW_BYTES).refused(|| CANNOT_EXTEND)?;
        }
        Ok(self.room() >= bytes)
    }

    fn extend(&mut self, bytes: u64) -> Result<(), Errno> {
        // One that somebody truncated would have its length again, and nobody would learn what it lost.
        let size = u64::try_from(rustix::fs::fstat(&self.file)?.st_size).unwrap_or(0);
        if size < self.allocated {
            return Err(Errno::NODATA);
        }
        allocate(&self.file, self.allocated, bytes)?;
        self.allocated += bytes;
        Ok(())
    }

    /// Gives a little space back, if there is room for far more bytes than so many; false if there is not.
    pub fn give_room_back(&mut self, bytes: u64) -> bool {
        let shorter = self.allocated - WINDOW_BYTES;
        let gives = self.room() >= bytes + 2 * WINDOW_BYTES
            && rustix::fs::ftruncate(&self.file, shorter).is_ok();
        if gives {
            self.allocated = shorter;
        }
        gives
    }

    /// Forgets all that was appended, and the header; keeps the space.
    pub fn clear(&mut self) {
        self.set_header(&[0; OWN_BYTES]);
        self.length = 0;
        self.publish();
    }

    fn publish(&mut self) {
        let word = self.header.at(0, 8).cast::<u64>();
        // SAFETY: inside the mapping and aligned, since a mapping begins at a page.
        unsafe { AtomicU64::from_ptr(word.as_ptr()) }.store(self.length, Ordering::Release);
    }

    /// All appended bytes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_all(&self) -> Result<Vec<u8>, HostError> {
        let mut bytes = Vec::new();
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        bytes.resize(length, 0);
        let mut read = 0;
        while read < length {
            let at = HEADER_BYTES + read as u64;
            match rustix::io::pread(&self.file, &mut bytes[read..], at) {
                Ok(0) => return Err(Errno::INVAL).refused(|| "its end is missing".to_owned()),
                Ok(count) => read += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).refused(|| "cannot read the file".to_owned()),
            }
        }
        Ok(bytes)
    }

    /// Appends all or nothing, also if the process dies meanwhile.
    ///
    /// # Errors
    /// ENOSPC or another errno of the file system if there is no space.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.append_parts(&[bytes])
    }

    /// As [`append`](Self::append), gathered from several slices.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_parts(&mut self, parts: &[&[u8]]) -> Result<(), HostError> {
        let length = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let end = HEADER_BYTES + self.length + length;
        if end > self.allocated {
            let more = (end - self.allocated).next_multiple_of(WINDOW_BYTES);
            self.extend(more).refused(|| CANNOT_EXTEND)?;
        }
        let mut at = HEADER_BYTES + self.length;
        for part in parts {
            self.store(at, part).refused(|| CANNOT_EXTEND)?;
            at += part.len() as u64;
        }
        self.length += length;
        self.publish();
        Ok(())
    }

    /// Copies bytes into allocated space. They do not count yet.
    fn store(&mut self, mut at: u64, mut rest: &[u8]) -> Result<(), Errno> {
        while !rest.is_empty() {
            let start = at / WINDOW_BYTES * WINDOW_BYTES;
            if start != self.window_start {
                match Mapping::populated(&self.file, WINDOW_PAGES, start) {
                    Ok(window) => (self.window, self.window_start) = (window, start),
                    // The process has no address space left: writing the file needs none.
                    Err(Errno::NOMEM) => {
                        let count = rustix::io::pwrite(&self.file, rest, at)?;
                        rest = &rest[count..];
                        at += count as u64;
                        continue;
                    }
                    Err(errno) => return Err(errno),
                }
            }
            let offset = usize::try_from(at - self.window_start).expect("inside the window");
            let piece = rest.len().min(self.window.bytes() - offset);
            let to = self.window.at(offset, piece);
            // SAFETY: `at` checked the range; no other process writes to the file, which is locked,
            // and no reference to the mapping exists.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to.as_ptr(), piece) };
            rest = &rest[piece..];
            at += piece as u64;
        }
        Ok(())
    }

    /// The caller's bytes of the header.
    #[must_use]
    pub fn header(&self) -> [u8; OWN_BYTES] {
        let mut header = [0; OWN_BYTES];
        let from = self.header.at(OWN_AT, OWN_BYTES);
        // SAFETY: `at` checked the range; only this process writes to it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), header.as_mut_ptr(), OWN_BYTES) };
        header
    }

    /// Size of the notes, which [`set_note`](Self::set_note) changes in place.
    pub const NOTES_BYTES: usize = 1024;

    /// Where [`header`](Self::header) is in the file.
    pub const HEADER_AT: u64 = OWN_AT as u64;

    #[must_use]
    pub fn notes(&self) -> [u8; Self::NOTES_BYTES] {
        let mut notes = [0; Self::NOTES_BYTES];
        let from = self.header.at(NOTES_AT, Self::NOTES_BYTES);
        // SAFETY: `at` checked the range; only this process writes to it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), notes.as_mut_ptr(), notes.len()) };
        notes
    }

    /// Changes the notes from `at` on. Like appended bytes they survive the process.
    ///
    /// # Panics
    /// If `bytes` reach beyond the notes.
    pub fn set_note(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= Self::NOTES_BYTES), "behind the notes");
        let to = self.header.at(NOTES_AT + at, bytes.len());
        // SAFETY: `at` checked the range; only this process writes to it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        // The store takes effect even if the process dies at the next instruction.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    /// A handle to one byte of the notes, for code that does not hold the file.
    ///
    /// # Errors
    /// If the header cannot be mapped again.
    ///
    /// # Panics
    /// If it is beyond the notes.
    pub fn flag(&self, at: usize) -> Result<Flag, HostError> {
        assert!(at < Self::NOTES_BYTES, "behind the notes");
        let header = Mapping::new(&self.file, 1, 0, Access::ReadWrite);
        let header = header.refused(|| "cannot map the header again".to_owned())?;
        Ok(Flag { header, offset: NOTES_AT + at })
    }

    /// Retires the file, to be freed in pieces, since freeing a long file at once takes
    /// milliseconds. It must have been unlinked.
    #[must_use]
    pub fn retire(self) -> RetiredFile {
        RetiredFile { file: self.file, bytes: self.allocated }
    }

    pub fn set_header(&mut self, header: &[u8; OWN_BYTES]) {
        let to = self.header.at(OWN_AT, OWN_BYTES);
        // SAFETY: `at` checked the range; only this process writes to it.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), to.as_ptr(), OWN_BYTES) };
    }
}

/// Locks a file, waiting a few seconds for the current owner.
fn lock(file: &OwnedFd) -> Result<(), Errno> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// A byte of an [`AppendFile`]'s notes.
#[derive(Debug)]
pub struct Flag {
    header: Mapping,
    offset: usize,
}

impl Flag {
    #[must_use]
    pub fn get(&self) -> u8 {
        self.byte().load(Ordering::Acquire)
    }

    pub fn set(&self, value: u8) {
        self.byte().store(value, Ordering::Release);
    }

    fn byte(&self) -> &AtomicU8 {
        let byte = self.header.at(self.offset, 1);
        // SAFETY: inside the mapping, which lives as long as `self`; other writers store through
        // mappings of their own, not through a reference.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
    }
}

/// The rest of an [`AppendFile`] that is no longer needed.
#[derive(Debug)]
pub struct RetiredFile {
    file: OwnedFd,
    bytes: u64,
}

impl RetiredFile {
    /// Frees this many bytes. `None` when the file is empty.
    #[must_use]
    pub fn shrink(mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.saturating_sub(bytes);
        // A file that cannot be truncated is freed at once.
        let is_shorter = rustix::fs::ftruncate(&self.file, self.bytes).is_ok();
        (is_shorter && self.bytes > 0).then_some(self)
    }
}

impl AsFd for AppendFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

const HEADER_BYTES: u64 = PAGE_BYTES as u64;

const CANNOT_EXTEND: &str = "cannot extend the file";

/// The window that contains the end of this length.
fn window_start(length: u64) -> u64 {
    (HEADER_BYTES + length) / WINDOW_BYTES * WINDOW_BYTES
}

/// Allocates space, so that a later store to it cannot fail, which would kill the process.
fn allocate(file: &OwnedFd, start: u64, bytes: u64) -> Result<(), Errno> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), start, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        result => return result,
    }
    // Without fallocate: existing bytes are kept, missing ones are written.
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let mut at = size.max(start);
    let zeros = [0; PAGE_BYTES];
    while at < start + bytes {
        let count = (start + bytes - at).min(PAGE_BYTES as u64);
        let count = usize::try_from(count).expect("at most a page");
        at += rustix::io::pwrite(file, &zeros[..count], at)? as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("append-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).expect("made by the test");
        }
    }

    #[test]
    fn appended_bytes_survive_for_the_next_process() {
        let place = Place::new("again");
        let mut file = AppendFile::create(&place.0).unwrap();
        let mut all = Vec::new();
        for i in 0..40_u8 {
            let piece = vec![i; 100_000 + usize::from(i)];
            file.append(&piece).unwrap();
            all.extend(piece);
        }
        let mut header = [0; OWN_BYTES];
        header[63] = 9;
        file.set_header(&header);
        drop(file);
        let mut file = AppendFile::open(&place.0).unwrap().unwrap();
        assert_eq!(file.length(), all.len() as u64);
        assert!(file.read_all().unwrap() == all);
        assert_eq!(file.header(), header);
        file.append(b"more").unwrap();
        all.extend(b"more");
        drop(file);
        assert!(AppendFile::open(&place.0).unwrap().unwrap().read_all().unwrap() == all);
    }

    #[test]
    fn a_file_that_somebody_truncated_is_not_extended() {
        let place = Place::new("cut");
        let mut file = AppendFile::create(&place.0).unwrap();
        file.append(b"bytes").unwrap();
        let cut = std::fs::OpenOptions::new().write(true).open(&place.0).unwrap();
        cut.set_len(0).unwrap();
        assert!(file.make_room(u64::MAX).is_err());
        assert!(file.append(&vec![1; 2 * WINDOW_PAGES * PAGE_BYTES]).is_err());
        assert_eq!(cut.metadata().unwrap().len(), 0);
    }

    #[test]
    fn notes_survive_for_the_next_process_and_a_flag_is_one_of_them() {
        let place = Place::new("notes");
        let mut file = AppendFile::create(&place.0).unwrap();
        assert_eq!(file.notes(), [0; AppendFile::NOTES_BYTES]);
        file.set_note(AppendFile::NOTES_BYTES - 2, b"ab");
        let flag = file.flag(7).unwrap();
        flag.set(9);
        file.append(b"bytes").unwrap();
        drop(file);
        flag.set(flag.get() + 1);
        // A flag is a mapping of the file, which stays locked while any mapping exists.
        drop(flag);
        let file = AppendFile::open(&place.0).unwrap().unwrap();
        let notes = file.notes();
        assert_eq!((notes[7], &notes[1022..]), (10, &b"ab"[..]));
        assert_eq!((file.header(), file.read_all().unwrap()), ([0; OWN_BYTES], b"bytes".to_vec()));
    }

    #[test]
    fn the_window_ends_exactly_where_an_append_does() {
        let place = Place::new("edge");
        let mut file = AppendFile::create(&place.0).unwrap();
        let first = usize::try_from(WINDOW_BYTES - HEADER_BYTES).unwrap();
        file.append(&vec![1; first]).unwrap();
        drop(file);
        let mut file = AppendFile::open(&place.0).unwrap().unwrap();
        file.append(&[2]).unwrap();
        let bytes = file.read_all().unwrap();
        assert_eq!((bytes.len(), bytes[first - 1], bytes[first]), (first + 1, 1, 2));
    }

    #[test]
    fn a_retired_file_shrinks_until_it_is_empty() {
        let place = Place::new("retired");
        let mut file = AppendFile::create(&place.0).unwrap();
        file.append(&vec![7; 3 << 20]).unwrap();
        let length = || std::fs::metadata(&place.0).unwrap().len();
        let mut before = length();
        let mut retired = file.retire();
        let mut pieces = 0;
        while let Some(rest) = retired.shrink(1 << 20) {
            retired = rest;
            assert_eq!(length(), before - (1 << 20));
            before = length();
            pieces += 1;
        }
        assert_eq!((length(), pieces), (0, 3));
    }

    #[test]
    fn a_file_is_used_again_with_its_space() {
        let place = Place::new("again");
        let mut file = AppendFile::create(&place.0).unwrap();
        file.set_header(&[5; 64]);
        file.append(&vec![7; 1 << 20]).unwrap();
        let size = || std::fs::metadata(&place.0).unwrap().len();
        let before = size();
        assert!(AppendFile::reuse(&place.0).is_err(), "it is locked");
        drop(file);
        let mut file = AppendFile::reuse(&place.0).unwrap();
        assert_eq!((file.length(), file.header(), size()), (0, [0; 64], before));
        file.append(b"new").unwrap();
        assert_eq!((file.read_all().unwrap(), size()), (b"new".to_vec(), before));
        while !file.make_room(2 << 20).unwrap() {}
        assert!(size() > 2 << 20 && file.room() >= 2 << 20);
        while file.give_room_back(1 << 20) {}
        assert!(file.room() >= 1 << 20 && file.room() < (1 << 20) + 3 * WINDOW_BYTES);
        drop(file);
        let file = AppendFile::open(&place.0).unwrap().unwrap();
        assert_eq!(file.read_all().unwrap(), b"new");
    }

    #[test]
    fn a_truncated_file_says_what_is_missing_and_a_foreign_one_is_refused() {
        let place = Place::new("short");
        let mut file = AppendFile::create(&place.0).unwrap();
        file.append(&[7; 5000]).unwrap();
        drop(file);
        let plain = std::fs::OpenOptions::new().write(true).open(&place.0).unwrap();
        plain.set_len(PAGE_BYTES as u64 + 4997).unwrap();
        let file = AppendFile::open(&place.0).unwrap().unwrap();
        assert_eq!((file.missing(), file.read_all().unwrap()), (3, vec![7; 4997]));
        drop(file);
        plain.set_len(10).unwrap();
        assert!(AppendFile::open(&place.0).is_err());
    }

    #[test]
    fn a_missing_file_opens_as_none() {
        let path = std::env::temp_dir().join(format!("append-none-{}", std::process::id()));
        assert!(AppendFile::open(&path).unwrap().is_none());
    }
}
