//! Cache of kernels and ramdisks.
//!
//! A kernel is parsed by a confined process; a ramdisk is only read by its guest.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::sync::{Arc, Mutex, PoisonError};

use image_parser::Parser;
use storage::HostError;
use xen_build::{HvmLoader, KernelImage};

use crate::host::refusal;

/// Most cached kernels and ramdisks; the least recently used is evicted.
const IMAGES_MAX: usize = 16;
/// Largest ramdisk. It must fit below 4 GiB in its guest, and into this process's memory.
const RAMDISK_BYTES_MAX: u64 = 2 << 30;

/// Identifies the version of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Parsed kernels and read ramdisks, shared by all threads.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    parser: Arc<Parser>,
    kernels: Arc<Cache<Arc<KernelImage>>>,
    loaders: Arc<Cache<Arc<HvmLoader>>>,
    ramdisks: Arc<Cache<Arc<[u8]>>>,
}

impl Images {
    pub(crate) fn new(parser: Parser) -> Self {
        Self {
            parser: Arc::new(parser),
            kernels: Arc::default(),
            loaders: Arc::default(),
            ramdisks: Arc::default(),
        }
    }

    /// No process of this daemon's own is left.
    pub(crate) fn end(&self) {
        self.parser.end();
    }

    pub(crate) fn kernel(&self, path: &str) -> Result<Arc<KernelImage>, HostError> {
        self.kernels.load(path, |file, _| self.parse_kernel(&file).map(Arc::new))
    }

    /// One that is used once.
    pub(crate) fn parse_kernel(&self, file: &File) -> Result<KernelImage, HostError> {
        self.parser.parse(file).map_err(|error| HostError::Refused(error.to_string()))
    }

    /// Xen's loader is a trusted file of the host and not compressed, so it is parsed here.
    pub(crate) fn loader(&self, path: &str) -> Result<Arc<HvmLoader>, HostError> {
        const BYTES_MAX: u64 = 16 << 20;
        self.loaders.load(path, |file, _| {
            let mut content = Vec::new();
            file.take(BYTES_MAX).read_to_end(&mut content).map_err(|error| refusal(&error))?;
            let parsed = HvmLoader::parse(&content);
            parsed.map(Arc::new).map_err(|error| HostError::Refused(error.to_string()))
        })
    }

    pub(crate) fn ramdisk(&self, path: &str) -> Result<Arc<[u8]>, HostError> {
        self.ramdisks.load(path, Self::read_ramdisk)
    }

    /// One that is used once.
    pub(crate) fn read_ramdisk(file: File, bytes: u64) -> Result<Arc<[u8]>, HostError> {
        let too_large = || {
            let most = RAMDISK_BYTES_MAX >> 20;
            HostError::Refused(format!("larger than {most} MiB, the most for a ramdisk"))
        };
        if bytes > RAMDISK_BYTES_MAX {
            return Err(too_large());
        }
        let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
        // A file may grow while it is read.
        let read = file.take(RAMDISK_BYTES_MAX + 1).read_to_end(&mut content);
        match read.map_err(|error| refusal(&error))? as u64 {
            0 => Err(HostError::Refused("an empty file, not a ramdisk".to_owned())),
            read if read > RAMDISK_BYTES_MAX => Err(too_large()),
            _ => Ok(content.into()),
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    loaded: Option<(Stamp, T)>,
}

/// Slot of one file. Locked while it is loaded.
type SharedSlot<T> = Arc<Mutex<Slot<T>>>;

#[derive(Debug)]
struct Slots<T> {
    /// With the time of the last use.
    by_path: BTreeMap<String, (u64, SharedSlot<T>)>,
    used: u64,
}

/// Results of files, while these are unchanged.
#[derive(Debug)]
struct Cache<T>(Mutex<Slots<T>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::new(Slots { by_path: BTreeMap::new(), used: 0 }))
    }
}

impl<T: Clone> Cache<T> {
    /// The file's slot. Its lock is held while loading; only requests for the same file wait.
    fn slot(&self, path: &str) -> SharedSlot<T> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.used += 1;
        let used = slots.used;
        let fresh = || (used, Arc::new(Mutex::new(Slot { loaded: None })));
        let entry = slots.by_path.entry(path.to_owned()).or_insert_with(fresh);
        entry.0 = used;
        let slot = Arc::clone(&entry.1);
        if slots.by_path.len() > IMAGES_MAX {
            let oldest = slots.by_path.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(path, _)| path.clone());
            oldest.and_then(|path| slots.by_path.remove(&path));
        }
        slot
    }

    /// The cached result, or that of `make` with the open file and its size.
    fn load(
        &self,
        path: &str,
        make: impl FnOnce(File, u64) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        // Opening a pipe without a writer must not block.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(path)
            .map_err(|error| refusal(&error))?;
        let metadata = file.metadata().map_err(|error| refusal(&error))?;
        if !metadata.is_file() {
            return Err(HostError::Refused("not a regular file".to_owned()));
        }
        let stamp = Stamp::of(&metadata);
        let slot = self.slot(path);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, image)) = &slot.loaded
            && *known == stamp
        {
            return Ok(image.clone());
        }
        let image = make(file, metadata.len())?;
        slot.loaded = Some((stamp, image.clone()));
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path unique to this process.
    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("xylem-images-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_file_is_read_again_only_when_it_has_changed() {
        let cache = Cache::<u64>::default();
        let path = path("change");
        std::fs::write(&path, "one").unwrap();
        let name = path.to_str().unwrap();
        let mut made = 0;
        let mut load = || {
            let make = |_, bytes| {
                made += 1;
                Ok(bytes)
            };
            cache.load(name, make)
        };
        assert_eq!((load(), load()), (Ok(3), Ok(3)));
        std::fs::write(&path, "three").unwrap();
        assert_eq!(load(), Ok(5));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(load(), Err(HostError::Missing));
        assert_eq!(made, 2);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let cache = Cache::<()>::default();
        for name in ["/", "/dev/null"] {
            let refused = cache.load(name, |_, _| Ok(()));
            assert_eq!(refused, Err(HostError::Refused("not a regular file".to_owned())), "{name}");
        }
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let cache = Cache::<()>::default();
        for n in 0..=IMAGES_MAX {
            cache.slot(&n.to_string());
            cache.slot("0");
        }
        let slots = cache.0.lock().unwrap();
        assert_eq!(slots.by_path.len(), IMAGES_MAX);
        assert!(slots.by_path.contains_key("0") && !slots.by_path.contains_key("1"));
    }
}
