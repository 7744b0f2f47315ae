//! ELF64 for x86_64: load segments and Xen's notes.
//!
//! Source: System V gABI chapters 4 and 5, and its x86-64 supplement.

use alloc::vec::Vec;
use core::ops::Range;

use super::le;
use super::notes::Notes;
use super::{ImageError, Segment};

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHT_NOTE: u32 = 7;

/// What a loader needs to know of an ELF file.
#[derive(Debug)]
pub(super) struct Elf {
    /// By ascending address, not overlapping, none empty.
    pub(super) segments: Vec<Segment>,
    pub(super) notes: Notes,
}

pub(super) fn parse(file: &[u8]) -> Result<Elf, ImageError> {
    check_identity(file)?;
    let headers = table(file, 32, 54, 56, PROGRAM_HEADER_BYTES)
        .ok_or(ImageError::CutOff("the ELF program headers"))?;
    let mut segments = Vec::new();
    let mut notes = Notes::default();
    let mut left = Notes::BYTES_MAX;
    for (index, header) in headers.iter().enumerate() {
        match le::u32_at(header, 0) {
            Some(PT_LOAD) => segments.extend(segment(file, header, index)?),
            Some(PT_NOTE) => {
                let part = file_range(header, 8, 32).and_then(|range| file.get(range));
                let alignment = le::size_at(header, 48).unwrap_or(4);
                notes.collect(part.unwrap_or_default(), alignment, &mut left);
            }
            _ => {}
        }
    }
    segments.sort_by_key(|segment| segment.address);
    if segments.is_empty() {
        return Err(ImageError::NoSegments);
    }
    if segments.windows(2).any(|pair| pair[0].end() > pair[1].address) {
        return Err(ImageError::SegmentsOverlap);
    }
    if notes.is_empty() {
        // Section headers may be missing or wrong in a file that loads perfectly well.
        for header in table(file, 40, 58, 60, SECTION_HEADER_BYTES).unwrap_or_default() {
            if le::u32_at(header, 4) == Some(SHT_NOTE) {
                let part = file_range(header, 24, 32).and_then(|range| file.get(range));
                let alignment = le::size_at(header, 48).unwrap_or(4);
                notes.collect(part.unwrap_or_default(), alignment, &mut left);
            }
        }
    }
    Ok(Elf { segments, notes })
}

fn check_identity(file: &[u8]) -> Result<(), ImageError> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const MACHINE_X86_64: u16 = 62;
    const TYPES_EXECUTABLE: Range<u16> = 2..4;
    match (le::u8_at(file, 4), le::u8_at(file, 5), le::u16_at(file, 16), le::u16_at(file, 18)) {
        _ if file.len() < HEADER_BYTES => Err(ImageError::CutOff("the ELF header")),
        (Some(CLASS_64), Some(LITTLE_ENDIAN), Some(kind), Some(MACHINE_X86_64)) => {
            if TYPES_EXECUTABLE.contains(&kind) {
                Ok(())
            } else {
                Err(ImageError::NotExecutable)
            }
        }
        (Some(CLASS_64), _, _, Some(machine)) => Err(ImageError::Machine(machine)),
        _ => Err(ImageError::Elf32),
    }
}

/// The entries of a header table, described by the ELF header's fields at the given offsets.
fn table(
    file: &[u8],
    offset_at: usize,
    entry_bytes_at: usize,
    count_at: usize,
    entry_bytes_min: usize,
) -> Option<Vec<&[u8]>> {
    let start = le::size_at(file, offset_at)?;
    let entry_bytes = usize::from(le::u16_at(file, entry_bytes_at)?);
    let count = usize::from(le::u16_at(file, count_at)?);
    if count == 0 {
        return Some(Vec::new());
    }
    if entry_bytes < entry_bytes_min {
        return None;
    }
    let table = le::part(file, start, entry_bytes * count)?;
    Some(table.chunks_exact(entry_bytes).collect())
}

/// The part of the file that a header's offset and size fields name.
fn file_range(header: &[u8], offset_at: usize, bytes_at: usize) -> Option<Range<usize>> {
    let start = le::size_at(header, offset_at)?;
    Some(start..start.checked_add(le::size_at(header, bytes_at)?)?)
}

/// A load segment, or none if it has no memory.
fn segment(file: &[u8], header: &[u8], index: usize) -> Result<Option<Segment>, ImageError> {
    let bad = |reason| ImageError::Segment { index, reason };
    let file_range = file_range(header, 8, 32).filter(|range| range.end <= file.len());
    let (Some(address), Some(memory_bytes)) = (le::u64_at(header, 24), le::u64_at(header, 40))
    else {
        return Err(ImageError::CutOff("the ELF program headers"));
    };
    if memory_bytes == 0 {
        return Ok(None);
    }
    let file_range = file_range.ok_or(bad("reaches beyond the end of the file"))?;
    if file_range.len() as u64 > memory_bytes {
        return Err(bad("has more bytes in the file than in memory"));
    }
    if address.checked_add(memory_bytes).is_none() {
        return Err(bad("wraps around the end of the address space"));
    }
    Ok(Some(Segment { address, memory_bytes, file_range }))
}
