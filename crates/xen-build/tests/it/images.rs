//! Kernel images: every compression and both places of the notes give the same kernel.

use expect_test::{Expect, expect};
use xen_build::{Compression, ElfClass, ImageError, KernelImage};

use crate::kernels::{self, Elf, NotesIn, bzimage, pack};

pub(crate) const PACKINGS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Xz, Compression::Zstd, Compression::Lz4];

fn error(file: &[u8]) -> String {
    KernelImage::parse_bounded(file, 1 << 20).err().map_or("no error".into(), |e| e.to_string())
}

fn check(file: &[u8], expected: &Expect) {
    expected.assert_eq(&error(file));
}

/// A file with one byte changed.
fn changed(mut file: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    file[at] = byte;
    file
}

#[test]
fn every_compression_gives_the_same_kernel() {
    let elf = kernels::linux().bytes();
    let plain = KernelImage::parse(&elf).unwrap();
    for compression in PACKINGS {
        let packed = KernelImage::parse(&bzimage(&pack(&elf, compression))).unwrap();
        assert_eq!(packed.compression(), compression);
        assert_eq!(packed.notes(), plain.notes());
        assert_eq!(packed.memory_bytes(), plain.memory_bytes());
    }
    let gzipped = KernelImage::parse(&pack(&elf, Compression::Gzip)).unwrap();
    assert_eq!(gzipped.notes(), plain.notes());
    assert_eq!(plain.memory_bytes(), 20_000 + 40_000 + 100);
}

#[test]
fn notes_are_found_by_either_kind_of_header() {
    let linux = kernels::linux();
    let by_program = KernelImage::parse(&linux.bytes()).unwrap();
    let by_section = Elf { notes_in: NotesIn::SectionHeader, ..linux };
    let by_section = KernelImage::parse(&by_section.bytes()).unwrap();
    assert_eq!(by_section.notes(), by_program.notes());
    expect![[r#"
        Notes {
            entry: Some(
                18446744071578845248,
            ),
            hypercall_page: None,
            virt_base: Some(
                18446744071562067968,
            ),
            paddr_offset: Some(
                0,
            ),
            init_p2m: Some(
                549755813888,
            ),
            mod_start_pfn: true,
            phys32_entry: Some(
                16777296,
            ),
            phys32_reloc: None,
            hv_start_low: None,
            supported_features: None,
            features: None,
            l1_mfn_valid: false,
            loader: None,
            guest_os: None,
            xen_version: None,
            pae_mode: None,
        }
    "#]]
    .assert_debug_eq(by_program.notes());
}

#[test]
fn a_32_bit_file_gives_the_same_kernel_for_either_machine() {
    let wide = KernelImage::parse(&kernels::unikernel().bytes()).unwrap();
    for (machine, notes_in) in
        [(3, NotesIn::ProgramHeader), (62, NotesIn::ProgramHeader), (62, NotesIn::SectionHeader)]
    {
        let elf = Elf { notes_in, ..kernels::unikernel() };
        let narrow = KernelImage::parse(&elf.bytes_32(machine)).unwrap();
        assert_eq!(narrow.class(), ElfClass::Bits32);
        assert_eq!(narrow.notes(), wide.notes());
        assert_eq!(narrow.memory_bytes(), wide.memory_bytes());
        assert_eq!(narrow.entry(), wide.entry());
    }
}

#[test]
fn other_files_are_refused_with_a_reason() {
    check(b"", &expect!["an empty file, not a kernel"]);
    check(
        b"#!/bin/sh\n",
        &expect!["not an ELF or bzImage kernel: starts with 23 21 2f 62 69 6e 2f 73"],
    );
    check(b"\x7fELF", &expect!["the kernel file is cut off: it ends before the ELF header"]);
    check(
        &pack(b"a text, packed", Compression::Gzip),
        &expect!["not an ELF or bzImage kernel: starts with 61 20 74 65 78 74 2c 20"],
    );
    // Without a bzImage around it an xz file does not end with its size.
    check(
        &pack(&kernels::linux().bytes(), Compression::Xz),
        &expect!["not an ELF or bzImage kernel: starts with fd 37 7a 58 5a 00 00 01"],
    );
}

#[test]
fn unsuitable_elf_files_are_refused_with_a_reason() {
    let elf = kernels::unikernel().bytes();
    check(
        &changed(elf.clone(), 4, 3),
        &expect!["unknown ELF class 3: only 32-bit (1) and 64-bit (2) files can be loaded"],
    );
    check(&changed(elf.clone(), 5, 2), &expect!["a big-endian ELF file; x86 is little-endian"]);
    check(
        &changed(elf.clone(), 18, 183),
        &expect!["ELF file for machine 183: only x86_64 (62) and 32-bit i386 (3) can be loaded"],
    );
    check(
        &changed(elf.clone(), 18, 3),
        &expect!["ELF file for machine 3: only x86_64 (62) and 32-bit i386 (3) can be loaded"],
    );
    check(
        &changed(elf.clone(), 16, 1),
        &expect!["not an ELF executable: perhaps an object file or a core dump"],
    );
    check(
        &changed(elf.clone(), 56, 200),
        &expect!["the kernel file is cut off: it ends before the ELF program headers"],
    );
    check(&elf[..5000], &expect!["ELF program header 0 reaches beyond the end of the file"]);
    let segments = |segments| Elf { segments, ..kernels::unikernel() }.bytes();
    check(&segments(vec![(0, vec![], 0)]), &expect!["ELF file without a load segment"]);
    check(
        &segments(vec![(0x1000, vec![1; 9], 8)]),
        &expect!["ELF program header 0 has more bytes in the file than in memory"],
    );
    check(
        &segments(vec![(u64::MAX - 6, vec![], 8)]),
        &expect!["ELF program header 0 wraps around the end of the address space"],
    );
    check(
        &segments(vec![(0x1007, vec![], 8), (0x1000, vec![], 8)]),
        &expect!["ELF file with overlapping load segments"],
    );
    check(&segments(vec![(0x1008, vec![], 8), (0x1000, vec![], 8)]), &expect!["no error"]);
    let narrow = |segments| Elf { segments, ..kernels::unikernel() }.bytes_32(3);
    check(
        &narrow(vec![(0xffff_fff9, vec![], 8)]),
        &expect!["ELF program header 0 wraps around the end of the address space"],
    );
    check(&narrow(vec![(0xffff_fff8, vec![], 8)]), &expect!["no error"]);
}

#[test]
fn unsuitable_bzimages_are_refused_with_a_reason() {
    let elf = kernels::linux().bytes();
    let image = bzimage(&pack(&elf, Compression::Gzip));
    check(
        &changed(image.clone(), 0x206, 7),
        &expect!["bzImage boot protocol 0x207 is too old: 0x208 (Linux 2.6.24) or later is needed"],
    );
    check(&changed(image.clone(), 0x206, 8), &expect!["no error"]);
    check(
        &image[..image.len() - 60],
        &expect!["the kernel file is cut off: it ends before the compressed kernel in the bzImage"],
    );
    check(
        &bzimage(b"BZh91AY&SY, says bzip2"),
        &expect![
            "unknown compression of the kernel in the bzImage: it starts with 42 5a 68 39 31 41 59 26"
        ],
    );
}

#[test]
fn damage_is_detected_in_every_compression() {
    let elf = kernels::linux().bytes();
    let mut told = String::new();
    for compression in &PACKINGS[1..] {
        let packed = pack(&elf, *compression);
        let half = [&packed[..packed.len() / 2], &packed[packed.len() - 4..]].concat();
        let size = u32::try_from(elf.len()).unwrap();
        let mut short = packed.clone();
        *short.last_chunk_mut().unwrap() = (size - 1).to_le_bytes();
        let mut long = packed.clone();
        *long.last_chunk_mut().unwrap() = (size + 1).to_le_bytes();
        for file in [half, short, long] {
            told += &format!("{}\n", error(&bzimage(&file)));
        }
    }
    expect![[r#"
        the gzip kernel is damaged: it is cut off
        the gzip kernel is damaged: it unpacks to more bytes than it says
        the gzip kernel is damaged: it unpacks to fewer bytes than it says
        the xz kernel is damaged: it is cut off
        the xz kernel is damaged: it unpacks to more bytes than it says
        the xz kernel is damaged: it unpacks to fewer bytes than it says
        the zstd kernel is damaged: invalid zstd data
        the zstd kernel is damaged: it unpacks to more bytes than it says
        the zstd kernel is damaged: it unpacks to fewer bytes than it says
        the lz4 kernel is damaged: it is cut off
        the lz4 kernel is damaged: invalid lz4 data
        the lz4 kernel is damaged: it unpacks to fewer bytes than it says
    "#]]
    .assert_eq(&told);
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    let zeros = vec![0; 2 << 20];
    for compression in &PACKINGS[1..] {
        let file = bzimage(&pack(&zeros, *compression));
        assert_eq!(
            KernelImage::parse_bounded(&file, 1 << 20).err(),
            Some(ImageError::TooLarge { max_mib: 1 })
        );
    }
    // Understating the unpacked size does not evade the limit.
    let mut liar = pack(&zeros, Compression::Zstd);
    *liar.last_chunk_mut().unwrap() = 1000_u32.to_le_bytes();
    check(
        &bzimage(&liar),
        &expect!["the zstd kernel is damaged: it unpacks to more bytes than it says"],
    );
}
