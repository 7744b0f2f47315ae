//! Xen's loader of HVM domains: a 32-bit ELF file.
//!
//! Source: System V gABI chapters 4 and 5, and its supplement for i386.

use alloc::vec::Vec;

use crate::BuildError;
use crate::image::{Segment, le};

/// Most memory that a loader may take.
const BYTES_MAX: u64 = 16 << 20;

/// The loader, parsed once for any number of domains.
///
/// Invariant: the segments ascend, do not overlap, lie inside the file, and above the first MiB.
#[derive(Clone, Debug)]
pub struct HvmLoader {
    file: Vec<u8>,
    segments: Vec<Segment>,
    entry: u32,
}

impl HvmLoader {
    /// Where a loader may lie: behind what a PC keeps below.
    const ADDRESS_MIN: u64 = 1 << 20;

    /// Parses the file.
    ///
    /// # Errors
    /// [`BuildError::Loader`] says what is wrong with it.
    pub fn parse(file: &[u8]) -> Result<Self, BuildError> {
        const PT_LOAD: u32 = 1;
        let bad = BuildError::Loader;
        if !file.starts_with(b"\x7fELF\x01\x01") || le::u16_at(file, 18) != Some(3) {
            return Err(bad("is no ELF file for i386"));
        }
        let cut = || bad("is cut off");
        let entry = le::u32_at(file, 24).ok_or_else(cut)?;
        let start = word(file, 28).ok_or_else(cut)?;
        let bytes = usize::from(le::u16_at(file, 42).ok_or_else(cut)?);
        let count = usize::from(le::u16_at(file, 44).ok_or_else(cut)?);
        if bytes < 32 {
            return Err(bad("has no program headers"));
        }
        let table = le::part(file, start, bytes * count).ok_or_else(cut)?;
        let mut segments = Vec::new();
        for header in table.chunks_exact(bytes) {
            let field = |at| le::u32_at(header, at).expect("32 bytes or more");
            let memory_bytes = u64::from(field(20));
            if field(0) != PT_LOAD || memory_bytes == 0 {
                continue;
            }
            let (Some(offset), Some(file_bytes)) = (word(header, 4), word(header, 16)) else {
                return Err(cut());
            };
            let end = offset.checked_add(file_bytes).filter(|end| *end <= file.len());
            let file_range = offset..end.ok_or_else(cut)?;
            let address = u64::from(field(12));
            if file_bytes as u64 > memory_bytes || memory_bytes > BYTES_MAX {
                return Err(bad("has a segment of an impossible size"));
            }
            if address < Self::ADDRESS_MIN {
                return Err(bad("wants to lie in the first MiB"));
            }
            segments.push(Segment { address, memory_bytes, file_range });
        }
        segments.sort_by_key(|segment| segment.address);
        if segments.windows(2).any(|pair| pair[0].end() > pair[1].address) {
            return Err(bad("has segments that overlap"));
        }
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
            return Err(bad("has nothing to load"));
        };
        let extent = first.address..last.end();
        if !extent.contains(&entry.into()) || extent.end - extent.start > BYTES_MAX {
            return Err(bad("starts outside itself, or is spread too wide"));
        }
        Ok(Self { file: file.to_vec(), segments, entry })
    }

    /// Where it starts.
    pub(super) fn entry(&self) -> u32 {
        self.entry
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The bytes that a segment begins with; the rest of its memory is zero.
    pub(super) fn bytes(&self, segment: &Segment) -> &[u8] {
        &self.file[segment.file_range.clone()]
    }

    /// The first address behind it.
    pub(super) fn end(&self) -> u64 {
        self.segments.last().map_or(0, Segment::end)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    le::u32_at(bytes, at).and_then(|value| usize::try_from(value).ok())
}
