//! The format of core files of domains: ELF with sections and without segments.
//!
//! ```text
//!   ELF header | section headers | notes | registers | shared info | zeros up to a page
//!   pages | table of their frames | names of sections
//! ```
//! Sources: `docs/misc/dump-core-format.txt`, `xen/include/public/elfnote.h` and `tools/libs/guest/xg_core.{c,h}` of Xen.

use xen::{PAGE_BYTES, VersionInfo};

/// Of a page that could not be read, in the table of frames.
pub(super) const NO_FRAME: u64 = u64::MAX;

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: u16 = 56;
/// `ET_CORE`, `EM_X86_64`.
const CORE: u16 = 4;
const X86_64: u16 = 62;

/// `SHT_PROGBITS`, `SHT_STRTAB`, `SHT_NOTE`.
const BITS: u32 = 1;
const NAMES: u32 = 3;
const NOTE: u32 = 7;

/// `XEN_ELFNOTE_DUMPCORE_*`.
const NOTE_NONE: u32 = 0x0200_0000;
const NOTE_HEADER: u32 = 0x0200_0001;
const NOTE_VERSION: u32 = 0x0200_0002;
const NOTE_FORMAT: u32 = 0x0200_0003;
/// Major 0, minor 1.
const FORMAT: u64 = 1;

const MAGIC_PV: u64 = 0xF00F_EBED;
const MAGIC_HVM: u64 = 0xF00F_EBEE;

const P2M: &str = ".xen_p2m";
const PFN: &str = ".xen_pfn";

/// All that comes before the pages.
pub(super) struct Head<'a> {
    pub(super) version: &'a VersionInfo,
    /// `struct vcpu_guest_context` of each vCPU, all of one length.
    pub(super) contexts: &'a [Vec<u8>],
    pub(super) shared_info: Option<Vec<u8>>,
    pub(super) pages: u64,
    pub(super) is_pv: bool,
}

struct Section {
    name: &'static str,
    kind: u32,
    bytes: u64,
    align: u64,
    entry: u64,
}

impl Head<'_> {
    /// And the names of sections, which come last.
    pub(super) fn encode(self) -> (Vec<u8>, Vec<u8>) {
        let notes = self.notes();
        let contexts = self.contexts.concat();
        let shared_info = self.shared_info.unwrap_or_default();
        let of_vcpu = self.contexts.first().map_or(0, Vec::len);
        let page = PAGE_BYTES as u64;
        let section = |name, bytes: usize, align, entry: usize| Section {
            name,
            kind: BITS,
            bytes: bytes as u64,
            align,
            entry: entry as u64,
        };
        let mut sections = vec![
            Section { kind: NOTE, ..section(".note.Xen", notes.len(), 0, 0) },
            section(".xen_prstatus", contexts.len(), 8, of_vcpu),
        ];
        if !shared_info.is_empty() {
            sections.push(section(".xen_shared_info", shared_info.len(), 8, PAGE_BYTES));
        }
        let ahead = sections.len();
        let (table, entry) = if self.is_pv { (P2M, 16) } else { (PFN, 8) };
        sections.push(Section {
            bytes: self.pages * page,
            ..section(".xen_pages", 0, page, PAGE_BYTES)
        });
        sections.push(Section { bytes: self.pages * entry, entry, ..section(table, 0, 8, 0) });

        // And an empty one and that of the names.
        let count = sections.len() + 2;
        let mut at = (HEADER_BYTES + count * SECTION_BYTES) as u64;
        let (mut headers, mut names) = (Vec::new(), format!("\0{NAMES_SECTION}\0"));
        for (index, section) in sections.iter().enumerate() {
            if index == ahead {
                at = at.next_multiple_of(page);
            }
            put_section(&mut headers, names.len(), at, section);
            names += section.name;
            names.push('\0');
            at += section.bytes;
        }
        let of_names = Section { kind: NAMES, ..section(NAMES_SECTION, names.len(), 0, 0) };

        let mut head = header(count);
        head.resize(HEADER_BYTES + SECTION_BYTES, 0);
        put_section(&mut head, 1, at, &of_names);
        for part in [headers, notes, contexts, shared_info] {
            head.extend(part);
        }
        head.resize(head.len().next_multiple_of(PAGE_BYTES), 0);
        (head, names.into_bytes())
    }

    fn notes(&self) -> Vec<u8> {
        let mut notes = Vec::new();
        let mut put = |kind: u32, content: &[u8]| {
            let bytes = u32::try_from(content.len()).expect("a note is short");
            for word in [4, bytes, kind] {
                notes.extend_from_slice(&word.to_le_bytes());
            }
            notes.extend_from_slice(b"Xen\0");
            notes.extend_from_slice(content);
        };
        put(NOTE_NONE, &[]);
        let magic = if self.is_pv { MAGIC_PV } else { MAGIC_HVM };
        let numbers = [magic, self.contexts.len() as u64, self.pages, PAGE_BYTES as u64];
        put(NOTE_HEADER, &numbers.map(u64::to_le_bytes).concat());
        put(NOTE_VERSION, &self.version_note());
        put(NOTE_FORMAT, &FORMAT.to_le_bytes());
        notes
    }

    /// What `xen_version` says, in the fields of its own structures.
    fn version_note(&self) -> Vec<u8> {
        let version = self.version;
        let numbers = |numbers: [u64; 2]| numbers.map(u64::to_le_bytes).concat();
        let mut note = numbers([version.major.into(), version.minor.into()]);
        for (text, bytes) in [
            (&version.extra, 16),
            (&version.compiler, 64),
            (&version.compile_by, 16),
            (&version.compile_domain, 32),
            (&version.compile_date, 32),
            (&version.capabilities, 1024),
            (&version.changeset, 64),
        ] {
            let text = text.as_bytes();
            let end = note.len() + bytes;
            // Xen ends each with a zero.
            note.extend_from_slice(&text[..text.len().min(bytes - 1)]);
            note.resize(end, 0);
        }
        note.extend(numbers([version.virt_start, version.pagesize_bytes]));
        note
    }
}

const NAMES_SECTION: &str = ".shstrtab";

/// The ELF header of a file with so many sections, of which the second has their names.
fn header(sections: usize) -> Vec<u8> {
    let sections = u16::try_from(sections).expect("there are few");
    let mut header = b"\x7fELF\x02\x01\x01\x00\x01".to_vec();
    header.resize(16, 0);
    for half in [CORE, X86_64] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header.extend_from_slice(&1_u32.to_le_bytes());
    // No entry point, no segments; section headers follow.
    for word in [0, 0, HEADER_BYTES as u64] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&0_u32.to_le_bytes());
    let bytes = [HEADER_BYTES, SECTION_BYTES].map(|bytes| u16::try_from(bytes).expect("64"));
    for half in [bytes[0], PROGRAM_HEADER_BYTES, 0, bytes[1], sections, 1] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header
}

fn put_section(out: &mut Vec<u8>, name: usize, at: u64, section: &Section) {
    let name = u32::try_from(name).expect("names are short");
    for word in [name, section.kind] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for word in [0, 0, at, section.bytes] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&[0; 8]);
    for word in [section.align, section.entry] {
        out.extend_from_slice(&word.to_le_bytes());
    }
}
