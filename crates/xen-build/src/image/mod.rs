//! Kernel images: unpacked and parsed once, loaded into any number of domains.

mod bzimage;
mod decompress;
pub(crate) mod elf;
pub(crate) mod le;
mod notes;
mod parts;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

pub use elf::ElfClass;
pub use notes::{Notes, Relocation};
pub use parts::DescriptionError;

/// Compression format of a kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
    Lz4,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "unpacked",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        })
    }
}

/// What is wrong with a kernel image.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ImageError {
    #[error("not an ELF or bzImage kernel: starts with {0}")]
    Unknown(String),
    #[error("an empty file, not a kernel")]
    Empty,
    #[error("the kernel file is cut off: it ends before {0}")]
    CutOff(&'static str),
    #[error("bzImage boot protocol {0:#x} is too old: 0x208 (Linux 2.6.24) or later is needed")]
    OldBzImage(u16),
    #[error("unknown compression of the kernel in the bzImage: it starts with {0}")]
    Packing(String),
    #[error("the {compression} kernel is damaged: {reason}")]
    Damaged { compression: Compression, reason: &'static str },
    #[error("the kernel unpacks to more than the limit of {max_mib} MiB")]
    TooLarge { max_mib: usize },
    #[error("unknown ELF class {0}: only 32-bit (1) and 64-bit (2) files can be loaded")]
    Class(u8),
    #[error("a big-endian ELF file; x86 is little-endian")]
    BigEndian,
    #[error("ELF file for machine {0}: only x86_64 (62) and 32-bit i386 (3) can be loaded")]
    Machine(u16),
    #[error("not an ELF executable: perhaps an object file or a core dump")]
    NotExecutable,
    #[error("ELF file without a load segment")]
    NoSegments,
    #[error("ELF file with overlapping load segments")]
    SegmentsOverlap,
    #[error("ELF program header {index} {reason}")]
    Segment { index: usize, reason: &'static str },
    #[error("no Xen notes of a PV kernel: it cannot run as a PV guest; try type = \"pvh\"")]
    NoPvNotes,
    #[error("a 32-bit kernel cannot run as a PV guest here: try type = \"pvh\"")]
    Pv32,
    #[error(
        "entry point {0:#x} of the ELF file lies outside it, and there is no Xen note ENTRY: \
         this kernel cannot run as a PV guest"
    )]
    PvEntry(u64),
    #[error("no Xen note PHYS32_ENTRY: this kernel cannot run as a PVH guest; try type = \"pv\"")]
    NoPvhEntry,
    #[error("the kernel's Xen note {note} has an invalid value: {value:#x}")]
    Note { note: &'static str, value: u64 },
}

/// A part of the kernel to be loaded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Segment {
    /// `p_paddr`: the load address.
    pub(crate) address: u64,
    /// Its size in memory: the bytes of the file, then zeros.
    pub(crate) memory_bytes: u64,
    pub(crate) file_range: Range<usize>,
}

impl Segment {
    /// The end address.
    pub(crate) fn end(&self) -> u64 {
        self.address + self.memory_bytes
    }
}

/// An x86 kernel, unpacked.
///
/// Invariant: segments are in ascending order, do not overlap, and are inside the file.
#[derive(Clone)]
pub struct KernelImage {
    compression: Compression,
    file: Vec<u8>,
    class: ElfClass,
    entry: u64,
    segments: Vec<Segment>,
    notes: Notes,
}

impl KernelImage {
    /// Most bytes that a compressed kernel may unpack to, unless the caller sets another bound.
    pub const UNPACKED_BYTES_MAX: usize = 512 << 20;

    /// Parses an ELF file, a bzImage or a gzip'ed ELF file.
    ///
    /// # Errors
    /// [`ImageError`] for an invalid file.
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        Self::parse_bounded(bytes, Self::UNPACKED_BYTES_MAX)
    }

    /// As [`KernelImage::parse`], unpacking to at most `unpacked_bytes_max` bytes.
    ///
    /// # Errors
    /// [`ImageError`] for an invalid file.
    pub fn parse_bounded(bytes: &[u8], unpacked_bytes_max: usize) -> Result<Self, ImageError> {
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        let (payload, compression) = if bzimage::is_bzimage(bytes) {
            let payload = bzimage::payload(bytes)?;
            let packing = || ImageError::Packing(first_bytes(payload));
            (payload, decompress::recognise(payload).ok_or_else(packing)?)
        } else {
            match decompress::recognise(bytes) {
                Some(compression @ (Compression::None | Compression::Gzip)) => (bytes, compression),
                // Bare xz, zstd and lz4 files do not end with the unpacked size.
                _ => return Err(ImageError::Unknown(first_bytes(bytes))),
            }
        };
        let file = decompress::unpack(compression, payload, unpacked_bytes_max)?;
        if decompress::recognise(&file) != Some(Compression::None) {
            return Err(ImageError::Unknown(first_bytes(&file)));
        }
        let elf::Elf { class, entry, segments, notes } = elf::parse(&file)?;
        Ok(Self { compression, file, class, entry, segments, notes })
    }

    /// The kernel's compression format.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The file's ELF class.
    #[must_use]
    pub fn class(&self) -> ElfClass {
        self.class
    }

    /// The ELF file's own entry point, which a PV kernel's note may replace.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// The kernel's Xen notes.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Memory of the loaded kernel, without gaps between segments.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.memory_bytes).sum()
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// A segment's bytes in the file; the rest of its memory is zero.
    pub(crate) fn bytes(&self, segment: &Segment) -> &[u8] {
        &self.file[segment.file_range.clone()]
    }

    /// The lowest address and the end of the highest segment.
    pub(crate) fn extent(&self) -> Range<u64> {
        match self.segments.as_slice() {
            [first, .., last] => first.address..last.end(),
            [only] => only.address..only.end(),
            [] => 0..0,
        }
    }
}

impl fmt::Debug for KernelImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelImage")
            .field("compression", &self.compression)
            .field("class", &self.class)
            .field("entry", &self.entry)
            .field("segments", &self.segments)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

/// A file's first bytes, for a message.
fn first_bytes(file: &[u8]) -> String {
    use fmt::Write;
    const SHOWN: usize = 8;
    let mut text = String::new();
    for (index, byte) in file.iter().take(SHOWN).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{byte:02x}", if index == 0 { "" } else { " " });
    }
    text
}
