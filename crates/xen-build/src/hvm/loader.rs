//! Xen's hvmloader, or a replacement: a 32-bit ELF file.

use alloc::vec::Vec;

use crate::image::Segment;
use crate::image::elf::{self, Elf};
use crate::{BuildError, ElfClass};

/// Most memory that a loader may occupy.
const BYTES_MAX: u64 = 16 << 20;

/// The loader, parsed once, shared by any number of domains.
///
/// Invariant: the segments ascend, do not overlap, lie inside the file, and above the first MiB.
#[derive(Clone, Debug)]
pub struct HvmLoader {
    file: Vec<u8>,
    segments: Vec<Segment>,
    entry: u32,
}

impl HvmLoader {
    /// Lowest address of a loader: above a PC's low memory.
    const ADDRESS_MIN: u64 = 1 << 20;

    /// Parses the file.
    ///
    /// # Errors
    /// [`BuildError::LoaderImage`] or [`BuildError::Loader`] for an invalid file.
    pub fn parse(file: &[u8]) -> Result<Self, BuildError> {
        let bad = BuildError::Loader;
        let Elf { class, entry, segments, .. } =
            elf::parse(file).map_err(BuildError::LoaderImage)?;
        let Some(entry) = u32::try_from(entry).ok().filter(|_| class == ElfClass::Bits32) else {
            return Err(bad("is not a 32-bit ELF file"));
        };
        if segments.iter().any(|segment| segment.memory_bytes > BYTES_MAX) {
            return Err(bad("has a segment of invalid size"));
        }
        if segments.iter().any(|segment| segment.address < Self::ADDRESS_MIN) {
            return Err(bad("has a segment in the first MiB"));
        }
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
            return Err(bad("has nothing to load"));
        };
        let extent = first.address..last.end();
        if !extent.contains(&entry.into()) || extent.end - extent.start > BYTES_MAX {
            return Err(bad("has an entry point outside its segments, or is too large"));
        }
        Ok(Self { file: file.to_vec(), segments, entry })
    }

    /// The entry point.
    pub(super) fn entry(&self) -> u32 {
        self.entry
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// A segment's bytes in the file; the rest of its memory is zero.
    pub(super) fn bytes(&self, segment: &Segment) -> &[u8] {
        &self.file[segment.file_range.clone()]
    }

    /// The end address.
    pub(super) fn end(&self) -> u64 {
        self.segments.last().map_or(0, Segment::end)
    }
}
