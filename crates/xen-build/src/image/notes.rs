//! Xen's ELF notes, from the kernel to the domain builder.
//!
//! Source: `xen/include/public/elfnote.h`; the format of a note segment is in the System V gABI.

use alloc::string::String;

use super::le;

const ENTRY: u32 = 1;
const HYPERCALL_PAGE: u32 = 2;
const VIRT_BASE: u32 = 3;
const PADDR_OFFSET: u32 = 4;
const XEN_VERSION: u32 = 5;
const GUEST_OS: u32 = 6;
const LOADER: u32 = 8;
const PAE_MODE: u32 = 9;
const FEATURES: u32 = 10;
const HV_START_LOW: u32 = 12;
const L1_MFN_VALID: u32 = 13;
const INIT_P2M: u32 = 15;
const MOD_START_PFN: u32 = 16;
const SUPPORTED_FEATURES: u32 = 17;
const PHYS32_ENTRY: u32 = 18;
const PHYS32_RELOC: u32 = 19;

/// Where a PVH kernel may be relocated to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Relocation {
    pub alignment_bytes: u32,
    pub address_min: u32,
    pub address_max: u32,
}

/// Xen's notes of a kernel; an absent one is `None`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Notes {
    /// Virtual address where a PV kernel starts.
    pub entry: Option<u64>,
    /// Virtual address of the page that becomes the hypercall page.
    pub hypercall_page: Option<u64>,
    /// Virtual address at which pseudo-physical address [`Notes::paddr_offset`] is mapped.
    pub virt_base: Option<u64>,
    /// What `p_paddr` counts from: 0 for Linux, `virt_base` for kernels linked without an offset.
    pub paddr_offset: Option<u64>,
    /// Virtual address where the p2m list is to be mapped, outside the initial mapping.
    pub init_p2m: Option<u64>,
    /// The ramdisk may be left out of the initial mapping and is named by frame number.
    pub mod_start_pfn: bool,
    /// Physical address where a PVH kernel starts.
    pub phys32_entry: Option<u32>,
    pub phys32_reloc: Option<Relocation>,
    pub hv_start_low: Option<u64>,
    /// `XENFEAT_*` bits that the kernel supports.
    pub supported_features: Option<u64>,
    /// Names of features; required ones are prefixed with `!`.
    pub features: Option<String>,
    pub l1_mfn_valid: bool,
    pub loader: Option<String>,
    pub guest_os: Option<String>,
    pub xen_version: Option<String>,
    pub pae_mode: Option<String>,
}

impl Notes {
    /// Most bytes of notes that are read: in a hostile file each of 65,535 headers could cover the
    /// whole file. Linux has some hundred bytes.
    pub(super) const BYTES_MAX: usize = 1 << 20;

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether these are the notes of a PV kernel: for the generic loader or Linux, and Xen 3's
    /// ABI.
    pub(crate) fn are_of_a_pv_kernel(&self) -> bool {
        let begins = |text: &Option<String>, with| {
            text.as_deref().is_some_and(|text| text.starts_with(with))
        };
        (begins(&self.loader, "generic") || begins(&self.guest_os, "linux"))
            && begins(&self.xen_version, "xen-3.0")
    }

    /// Collects Xen's notes of a segment, reading at most `bytes_left` bytes. Stops at a damaged
    /// note.
    pub(super) fn collect(&mut self, segment: &[u8], alignment: usize, bytes_left: &mut usize) {
        let mut rest = &segment[..segment.len().min(*bytes_left)];
        *bytes_left -= rest.len();
        let alignment = if alignment == 8 { 8 } else { 4 };
        let field = |bytes, at| le::u32_at(bytes, at).and_then(|value| usize::try_from(value).ok());
        while let (Some(name_bytes), Some(value_bytes), Some(kind)) =
            (field(rest, 0), field(rest, 4), le::u32_at(rest, 8))
        {
            let value_at = (12 + name_bytes).next_multiple_of(alignment);
            let (Some(name), Some(value)) =
                (le::part(rest, 12, name_bytes), le::part(rest, value_at, value_bytes))
            else {
                return;
            };
            if name == b"Xen\0" {
                self.take(kind, value);
            }
            let end = (value_at + value_bytes).next_multiple_of(alignment);
            rest = rest.get(end..).unwrap_or_default();
        }
    }

    fn take(&mut self, kind: u32, value: &[u8]) {
        match kind {
            ENTRY => self.entry = number(value),
            HYPERCALL_PAGE => self.hypercall_page = number(value),
            VIRT_BASE => self.virt_base = number(value),
            PADDR_OFFSET => self.paddr_offset = number(value),
            INIT_P2M => self.init_p2m = number(value),
            MOD_START_PFN => self.mod_start_pfn = number(value).is_some_and(|flag| flag != 0),
            PHYS32_ENTRY => {
                self.phys32_entry = number(value).and_then(|entry| u32::try_from(entry).ok());
            }
            PHYS32_RELOC => self.phys32_reloc = relocation(value),
            HV_START_LOW => self.hv_start_low = number(value),
            SUPPORTED_FEATURES => self.supported_features = number(value),
            FEATURES => self.features = Some(text(value)),
            L1_MFN_VALID => self.l1_mfn_valid = true,
            LOADER => self.loader = Some(text(value)),
            GUEST_OS => self.guest_os = Some(text(value)),
            XEN_VERSION => self.xen_version = Some(text(value)),
            PAE_MODE => self.pae_mode = Some(text(value)),
            _ => {}
        }
    }
}

/// A numeric note may have any of four sizes.
fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        1 => le::u8_at(value, 0).map(u64::from),
        2 => le::u16_at(value, 0).map(u64::from),
        4 => le::u32_at(value, 0).map(u64::from),
        8 => le::u64_at(value, 0),
        _ => None,
    }
}

fn text(value: &[u8]) -> String {
    /// More than any of Linux's lists.
    const TEXT_BYTES_MAX: usize = 4096;
    let value = &value[..value.len().min(TEXT_BYTES_MAX)];
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// Empty, or one to three words: alignment, least and greatest address.
fn relocation(value: &[u8]) -> Option<Relocation> {
    Some(Relocation {
        alignment_bytes: le::u32_at(value, 0)?,
        address_min: le::u32_at(value, 4).unwrap_or(0),
        address_max: le::u32_at(value, 8).unwrap_or(u32::MAX),
    })
}
