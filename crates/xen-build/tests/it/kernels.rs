//! Hand-made kernels: ELF files with any notes and segments, in every compression.

use xen_build::Compression;

pub(crate) const ENTRY: u32 = 1;
pub(crate) const HYPERCALL_PAGE: u32 = 2;
pub(crate) const VIRT_BASE: u32 = 3;
pub(crate) const PADDR_OFFSET: u32 = 4;
pub(crate) const XEN_VERSION: u32 = 5;
pub(crate) const LOADER: u32 = 8;
pub(crate) const INIT_P2M: u32 = 15;
pub(crate) const MOD_START_PFN: u32 = 16;
pub(crate) const PHYS32_ENTRY: u32 = 18;

/// Where the notes are.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum NotesIn {
    ProgramHeader,
    SectionHeader,
}

/// Description of an ELF file.
#[derive(Clone)]
pub(crate) struct Elf {
    /// Physical address, bytes in the file, bytes in memory.
    pub(crate) segments: Vec<(u64, Vec<u8>, u64)>,
    pub(crate) notes: Vec<(u32, u64)>,
    /// Notes that are text.
    pub(crate) texts: Vec<(u32, &'static str)>,
    pub(crate) notes_in: NotesIn,
}

/// Bytes like those of code: with calls, which xz's x86 filter rewrites.
pub(crate) fn code(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| match i % 16 {
            0 => 0xe8,
            1..4 => u8::try_from((i / 16) % 251).unwrap(),
            4 => 0,
            rest => u8::try_from(rest).unwrap(),
        })
        .collect()
}

/// A kernel like Linux: high addresses, p2m list and ramdisk outside the mapping, a bss, PV and
/// PVH.
pub(crate) fn linux() -> Elf {
    const BASE: u64 = 0xffff_ffff_8000_0000;
    Elf {
        segments: vec![
            (0x100_0000, code(20_000), 20_000),
            (0x120_0000, code(5_000), 40_000),
            (0x130_0100, code(100), 100),
        ],
        notes: vec![
            (ENTRY, BASE + 0x100_0040),
            (VIRT_BASE, BASE),
            (PADDR_OFFSET, 0),
            (INIT_P2M, 0x80_0000_0000),
            (MOD_START_PFN, 1),
            (PHYS32_ENTRY, 0x100_0050),
        ],
        texts: Vec::new(),
        notes_in: NotesIn::ProgramHeader,
    }
}

/// A small kernel at its own addresses, PV and PVH, that needs everything inside one mapping.
pub(crate) fn unikernel() -> Elf {
    Elf {
        segments: vec![(0x10_0000, code(9_000), 50_000)],
        notes: vec![
            (ENTRY, 0x10_1000),
            (HYPERCALL_PAGE, 0x10_0000),
            (VIRT_BASE, 0),
            (PHYS32_ENTRY, 0x10_1014),
        ],
        texts: Vec::new(),
        notes_in: NotesIn::ProgramHeader,
    }
}

impl Elf {
    pub(crate) fn without(mut self, note: u32) -> Self {
        self.notes.retain(|(kind, _)| *kind != note);
        self
    }

    pub(crate) fn with(self, note: u32, value: u64) -> Self {
        let mut elf = self.without(note);
        elf.notes.push((note, value));
        elf
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_as(2, 62)
    }

    /// As a 32-bit file for this machine.
    pub(crate) fn bytes_32(&self, machine: u16) -> Vec<u8> {
        self.bytes_as(1, machine)
    }

    fn bytes_as(&self, class: u8, machine: u16) -> Vec<u8> {
        let is_wide = class == 2;
        let (header, program_header, section_header) =
            if is_wide { (64, 56, 64) } else { (52, 32, 40) };
        // A word is as wide as an address.
        let word = |value: u64| {
            let bytes = value.to_le_bytes();
            if is_wide { bytes.to_vec() } else { bytes[..4].to_vec() }
        };
        let in_program = self.notes_in == NotesIn::ProgramHeader;
        let program_headers = self.segments.len() + usize::from(in_program);
        let data_at = header + program_headers * program_header;
        let mut headers = Vec::new();
        let mut data = Vec::new();
        let mut put = |kind: u32, at: usize, address: u64, bytes: usize, memory: u64| {
            headers.extend(kind.to_le_bytes());
            let (at, bytes) = (at as u64, bytes as u64);
            // The flags are second in a 64-bit header, and second to last in a 32-bit one.
            headers.extend([0; 4].iter().filter(|_| is_wide));
            for value in [at, address, address, bytes, memory] {
                headers.extend(word(value));
            }
            headers.extend([0; 4].iter().filter(|_| !is_wide));
            headers.extend(word(4));
        };
        for (address, bytes, memory) in &self.segments {
            put(1, data_at + data.len(), *address, bytes.len(), *memory);
            data.extend(bytes);
        }
        let notes_at = data_at + data.len();
        let notes = self.note_bytes();
        if in_program {
            put(4, notes_at, 0, notes.len(), notes.len() as u64);
        }
        data.extend(&notes);
        let sections_at = data_at + data.len();
        if !in_program {
            data.extend([0, 7_u32].iter().flat_map(|word| word.to_le_bytes()));
            for value in [0, 0, notes_at as u64, notes.len() as u64] {
                data.extend(word(value));
            }
            data.extend([0; 8]);
            for value in [4, 0] {
                data.extend(word(value));
            }
        }

        let mut file = Vec::from(*b"\x7fELF\0\x01\x01\0\0\0\0\0\0\0\0\0");
        file[4] = class;
        file.extend([2, machine].iter().flat_map(|half| half.to_le_bytes()));
        file.extend(1_u32.to_le_bytes());
        for value in [self.segments[0].0, header as u64, sections_at as u64] {
            file.extend(word(value));
        }
        file.extend([0; 4]);
        let half = |n: usize| u16::try_from(n).unwrap();
        let sections = usize::from(!in_program);
        for field in [header, program_header, program_headers, section_header, sections, 0] {
            file.extend(half(field).to_le_bytes());
        }
        file.extend(headers);
        file.extend(data);
        file
    }

    fn note_bytes(&self) -> Vec<u8> {
        // A note of another owner first, which must be skipped.
        let mut bytes = Vec::new();
        for word in [4_u32, 3, ENTRY] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"GNU\0abc\0");
        for (kind, value) in &self.notes {
            for word in [4, 8, *kind] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(b"Xen\0");
            bytes.extend(value.to_le_bytes());
        }
        for (kind, text) in &self.texts {
            for word in [4, u32::try_from(text.len()).unwrap(), *kind] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(b"Xen\0");
            bytes.extend(text.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }
}

/// The file as Linux's build would compress it, with the unpacked size appended.
pub(crate) fn pack(file: &[u8], compression: Compression) -> Vec<u8> {
    let size = u32::try_from(file.len()).unwrap().to_le_bytes();
    let mut packed = match compression {
        Compression::None => return file.to_vec(),
        Compression::Gzip => {
            // With a name and a comment, as gzip writes them.
            let mut packed = Vec::from(*b"\x1f\x8b\x08\x18\0\0\0\0\x02\x03vmlinux\0comment\0");
            packed.extend(miniz_oxide::deflate::compress_to_vec(file, 6));
            packed.extend(crc32fast::hash(file).to_le_bytes());
            packed
        }
        Compression::Xz => {
            use lzma_rust2::{CheckType, FilterType, Write, XzOptions, XzWriter};
            let mut options = XzOptions::with_preset(1);
            options.set_check_sum_type(CheckType::Crc32);
            options.prepend_pre_filter(FilterType::BcjX86, 0);
            let mut writer = XzWriter::new(Sink(Vec::new()), options).unwrap();
            writer.write_all(file).unwrap();
            writer.finish().unwrap().0
        }
        Compression::Zstd => {
            ruzstd::encoding::compress_to_vec(file, ruzstd::encoding::CompressionLevel::Fastest)
        }
        Compression::Lz4 => {
            let mut packed = Vec::from(*b"\x02\x21\x4c\x18");
            // Blocks smaller than Linux's 8 MiB, so that there are several.
            for block in file.chunks(8 << 10) {
                let block = lz4_flex::block::compress(block);
                packed.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
                packed.extend(block);
            }
            packed
        }
    };
    packed.extend(size);
    packed
}

/// The compressed kernel after a boot sector and one sector of set-up code.
pub(crate) fn bzimage(payload: &[u8]) -> Vec<u8> {
    const SETUP: usize = 2 * 512;
    const GAP: usize = 100;
    let mut file = vec![0x90; SETUP + GAP];
    file[0x1f1] = 1;
    file[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
    file[0x248..0x24c].copy_from_slice(&u32::try_from(GAP).unwrap().to_le_bytes());
    file[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    file.extend(payload);
    file.extend([0; 50]);
    file
}

/// lzma-rust2 without std has its own `Write`, which `Vec` does not implement.
struct Sink(Vec<u8>);

impl lzma_rust2::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> lzma_rust2::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> lzma_rust2::Result<()> {
        Ok(())
    }
}
