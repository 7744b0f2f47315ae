//! ELF for x86, 32-bit and 64-bit: load segments, entry point and Xen's notes.
//!
//! Source: System V gABI chapters 4 and 5, its i386 and x86-64 supplements.

use alloc::vec::Vec;
use core::ops::Range;

use super::le;
use super::notes::Notes;
use super::{ImageError, Segment};

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHT_NOTE: u32 = 7;
const MACHINE_386: u16 = 3;
const MACHINE_X86_64: u16 = 62;

/// Class of an ELF file (`EI_CLASS`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ElfClass {
    Bits32 = 1,
    Bits64 = 2,
}

/// What a loader needs of an ELF file.
#[derive(Debug)]
pub(crate) struct Elf {
    pub(crate) class: ElfClass,
    /// `e_entry`.
    pub(crate) entry: u64,
    /// By ascending address, not overlapping, none empty.
    pub(crate) segments: Vec<Segment>,
    pub(crate) notes: Notes,
}

/// Field offsets of one class's structures.
struct Format {
    class: ElfClass,
    header_bytes: usize,
    entry: usize,
    /// `e_phoff`, `e_phentsize`, `e_phnum`.
    program_headers: [usize; 3],
    /// `e_shoff`, `e_shentsize`, `e_shnum`.
    section_headers: [usize; 3],
    program_header_bytes: usize,
    section_header_bytes: usize,
    /// `p_offset`, `p_filesz`.
    file_part: [usize; 2],
    paddr: usize,
    memory_bytes: usize,
    alignment: usize,
    /// `sh_offset`, `sh_size`.
    section_part: [usize; 2],
    section_alignment: usize,
}

const FORMAT_32: Format = Format {
    class: ElfClass::Bits32,
    header_bytes: 52,
    entry: 24,
    program_headers: [28, 42, 44],
    section_headers: [32, 46, 48],
    program_header_bytes: 32,
    section_header_bytes: 40,
    file_part: [4, 16],
    paddr: 12,
    memory_bytes: 20,
    alignment: 28,
    section_part: [16, 20],
    section_alignment: 32,
};

const FORMAT_64: Format = Format {
    class: ElfClass::Bits64,
    header_bytes: 64,
    entry: 24,
    program_headers: [32, 54, 56],
    section_headers: [40, 58, 60],
    program_header_bytes: 56,
    section_header_bytes: 64,
    file_part: [8, 32],
    paddr: 24,
    memory_bytes: 40,
    alignment: 48,
    section_part: [24, 32],
    section_alignment: 48,
};

pub(crate) fn parse(file: &[u8]) -> Result<Elf, ImageError> {
    let format = recognise(file)?;
    let headers = format
        .table(file, format.program_headers, format.program_header_bytes)
        .ok_or(ImageError::CutOff("the ELF program headers"))?;
    let mut segments = Vec::new();
    let mut notes = Notes::default();
    let mut left = Notes::BYTES_MAX;
    for (index, header) in headers.iter().enumerate() {
        match le::u32_at(header, 0) {
            Some(PT_LOAD) => segments.extend(format.segment(file, header, index)?),
            Some(PT_NOTE) => {
                let part = format.part(header, format.file_part).and_then(|range| file.get(range));
                let alignment = format.size(header, format.alignment).unwrap_or(4);
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
        // Section headers may be missing or wrong in a file that can be loaded.
        let sections = format.table(file, format.section_headers, format.section_header_bytes);
        for header in sections.unwrap_or_default() {
            if le::u32_at(header, 4) == Some(SHT_NOTE) {
                let part =
                    format.part(header, format.section_part).and_then(|range| file.get(range));
                let alignment = format.size(header, format.section_alignment).unwrap_or(4);
                notes.collect(part.unwrap_or_default(), alignment, &mut left);
            }
        }
    }
    let entry = format.number(file, format.entry).unwrap_or_default();
    Ok(Elf { class: format.class, entry, segments, notes })
}

/// The class of an x86 executable. A 32-bit file may name either machine: a 64-bit program
/// converted to 32-bit ELF keeps its machine.
fn recognise(file: &[u8]) -> Result<&'static Format, ImageError> {
    const LITTLE_ENDIAN: u8 = 1;
    const TYPES_EXECUTABLE: Range<u16> = 2..4;
    let cut_off = ImageError::CutOff("the ELF header");
    let format = match le::u8_at(file, 4) {
        None => return Err(cut_off),
        Some(1) => &FORMAT_32,
        Some(2) => &FORMAT_64,
        Some(class) => return Err(ImageError::Class(class)),
    };
    if file.len() < format.header_bytes {
        return Err(cut_off);
    }
    let (order, kind, machine) = (le::u8_at(file, 5), le::u16_at(file, 16), le::u16_at(file, 18));
    match (machine.ok_or(cut_off)?, format.class) {
        _ if order != Some(LITTLE_ENDIAN) => Err(ImageError::BigEndian),
        (MACHINE_386, ElfClass::Bits32) | (MACHINE_X86_64, _) => {
            if kind.is_some_and(|kind| TYPES_EXECUTABLE.contains(&kind)) {
                Ok(format)
            } else {
                Err(ImageError::NotExecutable)
            }
        }
        (machine, _) => Err(ImageError::Machine(machine)),
    }
}

impl Format {
    /// A field as wide as an address.
    fn number(&self, bytes: &[u8], offset: usize) -> Option<u64> {
        match self.class {
            ElfClass::Bits32 => le::u32_at(bytes, offset).map(u64::from),
            ElfClass::Bits64 => le::u64_at(bytes, offset),
        }
    }

    /// An offset or length field, if it fits into a `usize`.
    fn size(&self, bytes: &[u8], offset: usize) -> Option<usize> {
        usize::try_from(self.number(bytes, offset)?).ok()
    }

    /// The entries of a header table, described by fields of the ELF header: offset, bytes of an
    /// entry, entries.
    fn table<'a>(
        &self,
        file: &'a [u8],
        [offset_at, entry_bytes_at, count_at]: [usize; 3],
        entry_bytes_min: usize,
    ) -> Option<Vec<&'a [u8]>> {
        let start = self.size(file, offset_at)?;
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
    fn part(&self, header: &[u8], [offset_at, bytes_at]: [usize; 2]) -> Option<Range<usize>> {
        let start = self.size(header, offset_at)?;
        Some(start..start.checked_add(self.size(header, bytes_at)?)?)
    }

    /// A load segment, or `None` if it is empty.
    fn segment(
        &self,
        file: &[u8],
        header: &[u8],
        index: usize,
    ) -> Result<Option<Segment>, ImageError> {
        let bad = |reason| ImageError::Segment { index, reason };
        let part = self.part(header, self.file_part).filter(|range| range.end <= file.len());
        let field =
            |at| self.number(header, at).ok_or(ImageError::CutOff("the ELF program headers"));
        let (address, memory_bytes) = (field(self.paddr)?, field(self.memory_bytes)?);
        if memory_bytes == 0 {
            return Ok(None);
        }
        let file_range = part.ok_or(bad("reaches beyond the end of the file"))?;
        if file_range.len() as u64 > memory_bytes {
            return Err(bad("has more bytes in the file than in memory"));
        }
        let end = address.checked_add(memory_bytes);
        if !end.is_some_and(|end| self.class == ElfClass::Bits64 || end <= 1 << 32) {
            return Err(bad("wraps around the end of the address space"));
        }
        Ok(Some(Segment { address, memory_bytes, file_range }))
    }
}
