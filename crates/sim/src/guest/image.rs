//! A kernel image for simulated guests: an ELF file with Xen's notes, for PV and PVH.
//!
//! It contains no code. The guest machine recognises it by its marker and then checks, as far as a
//! kernel's first instructions would notice, that the builder placed everything correctly: its text
//! is checksummed, its bss must be zero. Sources: `elf.h`, `xen/include/public/elfnote.h`.

use crate::bytes::Digest;
use crate::prng::Prng;

/// First bytes at the entry point.
pub(super) const MARKER: &[u8; 16] = b"XYLEM-SIM-GUEST\0";
/// Base of the kernel's virtual addresses.
pub(super) const VIRT_BASE: u64 = 0xffff_ffff_8000_0000;
/// Load offset from [`VIRT_BASE`] or physical address zero.
pub(super) const LOAD_ADDRESS: u64 = 0x10_0000;
/// Where a suspended guest goes on in another domain, behind the entry point.
pub(super) const WAKE: u64 = 24;
/// The entry point is in page 0, the hypercall page is page 1, text follows, then the bss.
pub(super) const TEXT_PAGES: u64 = 6;
pub(super) const BSS_PAGES: u64 = 2;
pub(super) const HYPERCALL_PAGE: u64 = 1;
const PAGE: usize = xen::PAGE_BYTES;

/// The digest of everything but the first two pages.
pub(super) fn digest(text: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.bytes(text);
    digest.value()
}

/// The image file.
#[must_use]
pub fn kernel_image() -> Vec<u8> {
    let text = text();
    let notes = notes();
    let headers = 64 + 2 * 56;
    let text_offset = PAGE as u64;
    let notes_offset = text_offset + text.len() as u64;
    let entry = VIRT_BASE + LOAD_ADDRESS;

    let mut file = Vec::new();
    file.extend_from_slice(b"\x7fELF\x02\x01\x01");
    file.resize(16, 0);
    for half in [2_u16, 62] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1_u32.to_le_bytes());
    for word in [entry, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64_u16, 56, 2, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    let memory_bytes = (TEXT_PAGES + BSS_PAGES) * PAGE as u64;
    program_header(&mut file, 1, 7, text_offset, entry, [text.len() as u64, memory_bytes, 4096]);
    let notes_bytes = notes.len() as u64;
    program_header(&mut file, 4, 4, notes_offset, 0, [notes_bytes, notes_bytes, 4]);
    assert_eq!(file.len(), headers, "the headers are of known size");
    file.resize(PAGE, 0);
    file.extend_from_slice(&text);
    file.extend_from_slice(&notes);
    file
}

/// An hvmloader image: 32-bit, with the same markers.
#[must_use]
pub(crate) fn loader_image() -> Vec<u8> {
    const HEADERS: u32 = 52 + 32;
    let text = text();
    let at = u32::try_from(LOAD_ADDRESS).expect("low");
    let file_bytes = u32::try_from(text.len()).expect("a few pages");
    let memory_bytes = file_bytes + u32::try_from(BSS_PAGES).expect("few") * 4096;
    let mut file = b"\x7fELF\x01\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([2_u16, 3].into_iter().flat_map(u16::to_le_bytes));
    file.extend([1, at, 52, 0, 0].into_iter().flat_map(u32::to_le_bytes));
    file.extend([52_u16, 32, 1, 0, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    let header = [1, HEADERS, at, at, file_bytes, memory_bytes, 7, 16];
    file.extend(header.into_iter().flat_map(u32::to_le_bytes));
    file.extend(text);
    file
}

fn program_header(
    file: &mut Vec<u8>,
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    [file_bytes, memory_bytes, align]: [u64; 3],
) {
    file.extend_from_slice(&kind.to_le_bytes());
    file.extend_from_slice(&flags.to_le_bytes());
    let physical = address.saturating_sub(VIRT_BASE);
    for word in [offset, address, physical, file_bytes, memory_bytes, align] {
        file.extend_from_slice(&word.to_le_bytes());
    }
}

fn text() -> Vec<u8> {
    let pages = usize::try_from(TEXT_PAGES).expect("a handful");
    let mut text = vec![0; pages * PAGE];
    let mut prng = Prng::new(4);
    for word in text[2 * PAGE..].chunks_exact_mut(8) {
        word.copy_from_slice(&prng.next_u64().to_le_bytes());
    }
    text[..16].copy_from_slice(MARKER);
    let digest = digest(&text[2 * PAGE..]);
    text[16..24].copy_from_slice(&digest.to_le_bytes());
    text
}

fn notes() -> Vec<u8> {
    let mut notes = Vec::new();
    let mut note = |kind: u32, body: &[u8]| {
        for word in [4, u32::try_from(body.len()).expect("short"), kind] {
            notes.extend_from_slice(&word.to_le_bytes());
        }
        notes.extend_from_slice(b"Xen\0");
        notes.extend_from_slice(body);
        notes.resize(notes.len().next_multiple_of(4), 0);
    };
    let entry = VIRT_BASE + LOAD_ADDRESS;
    note(1, &entry.to_le_bytes());
    note(2, &(entry + HYPERCALL_PAGE * PAGE as u64).to_le_bytes());
    note(3, &VIRT_BASE.to_le_bytes());
    note(4, &0_u64.to_le_bytes());
    note(5, b"xen-3.0\0");
    note(6, b"xylem-sim\0");
    note(8, b"generic\0");
    note(10, b"writable_page_tables|auto_translated_physmap\0");
    note(18, &u32::try_from(LOAD_ADDRESS).expect("low").to_le_bytes());
    notes
}
