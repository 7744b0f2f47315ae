//! A parsed kernel in two parts, for parsing in another process: a short description, and the
//! unpacked file.
//!
//! Neither part is trusted: [`KernelImage::assemble`] checks all invariants of [`KernelImage`].
//! Values of notes are the kernel's, and are checked by the builder.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Compression, ElfClass, KernelImage, Notes, Relocation, Segment, le};

/// Magic number of a description; it changes with the layout.
const MAGIC: &[u8; 8] = b"XYKERN\x00\x02";

/// Two parts that do not form a kernel.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid description of the parsed kernel: {0}")]
pub struct DescriptionError(pub &'static str);

impl KernelImage {
    /// All that is known of the kernel besides its bytes.
    #[must_use]
    pub fn describe(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(self.compression as u8);
        out.push(self.class as u8);
        out.extend(self.entry.to_le_bytes());
        put_length(&mut out, self.segments.len());
        for segment in &self.segments {
            let range = &segment.file_range;
            for word in [segment.address, segment.memory_bytes, range.start as u64] {
                out.extend(word.to_le_bytes());
            }
            out.extend((range.len() as u64).to_le_bytes());
        }
        put_notes(&mut out, &self.notes);
        out
    }

    /// The unpacked file.
    #[must_use]
    pub fn unpacked(&self) -> &[u8] {
        &self.file
    }

    /// The inverse of [`KernelImage::describe`] and [`KernelImage::unpacked`].
    ///
    /// # Errors
    /// [`DescriptionError`] if the parts are invalid.
    pub fn assemble(description: &[u8], unpacked: Vec<u8>) -> Result<Self, DescriptionError> {
        let bad = DescriptionError;
        let mut rest = description.strip_prefix(MAGIC).ok_or(bad("its magic number is wrong"))?;
        let cut_off = bad("it is cut off");
        let compression = Compression::from_number(take(&mut rest, 1).ok_or(cut_off.clone())?[0])
            .ok_or(bad("unknown compression"))?;
        let class = match take(&mut rest, 1).ok_or(cut_off.clone())?[0] {
            1 => ElfClass::Bits32,
            2 => ElfClass::Bits64,
            _ => return Err(bad("unknown ELF class")),
        };
        let entry = take_u64(&mut rest).ok_or(cut_off.clone())?;
        let mut segments = Vec::new();
        for _ in 0..take_length(&mut rest).ok_or(cut_off.clone())? {
            segments.push(take_segment(&mut rest).ok_or(bad("a segment is cut off or too long"))?);
        }
        let notes = take_notes(&mut rest).ok_or(bad("a note is cut off"))?;
        if !rest.is_empty() {
            return Err(bad("trailing bytes"));
        }
        if segments.is_empty() {
            return Err(bad("it has no segments"));
        }
        for segment in &segments {
            let range = &segment.file_range;
            let is_sound = range.end <= unpacked.len()
                && segment.memory_bytes != 0
                && range.len() as u64 <= segment.memory_bytes
                && segment.address.checked_add(segment.memory_bytes).is_some();
            if !is_sound {
                return Err(bad("a segment lies outside the file or the address space"));
            }
        }
        if segments.windows(2).any(|pair| pair[0].end() > pair[1].address) {
            return Err(bad("segments overlap or are not in ascending order"));
        }
        Ok(Self { compression, file: unpacked, class, entry, segments, notes })
    }
}

impl Compression {
    fn from_number(number: u8) -> Option<Self> {
        [Self::None, Self::Gzip, Self::Xz, Self::Zstd, Self::Lz4]
            .into_iter()
            .find(|compression| *compression as u8 == number)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("an ELF file has at most 65,535 headers");
    out.extend(length.to_le_bytes());
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    le::u32_at(take(rest, 4)?, 0).and_then(|length| usize::try_from(length).ok())
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    le::u64_at(take(rest, 8)?, 0)
}

fn take_size(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(take_u64(rest)?).ok()
}

fn take_segment(rest: &mut &[u8]) -> Option<Segment> {
    let (address, memory_bytes) = (take_u64(rest)?, take_u64(rest)?);
    let start = take_size(rest)?;
    let end = start.checked_add(take_size(rest)?)?;
    Some(Segment { address, memory_bytes, file_range: start..end })
}

fn put_notes(out: &mut Vec<u8>, notes: &Notes) {
    let Notes {
        entry,
        hypercall_page,
        virt_base,
        paddr_offset,
        init_p2m,
        mod_start_pfn,
        phys32_entry,
        phys32_reloc,
        hv_start_low,
        supported_features,
        features,
        l1_mfn_valid,
        loader,
        guest_os,
        xen_version,
        pae_mode,
    } = notes;
    out.push(u8::from(*mod_start_pfn) | u8::from(*l1_mfn_valid) << 1);
    for number in
        [entry, hypercall_page, virt_base, paddr_offset, init_p2m, hv_start_low, supported_features]
    {
        put_number(out, *number);
    }
    put_number(out, phys32_entry.map(u64::from));
    let Relocation { alignment_bytes, address_min, address_max } =
        phys32_reloc.unwrap_or(Relocation { alignment_bytes: 0, address_min: 0, address_max: 0 });
    put_number(out, phys32_reloc.map(|_| u64::from(alignment_bytes)));
    put_number(out, phys32_reloc.map(|_| u64::from(address_min) << 32 | u64::from(address_max)));
    for text in [features, loader, guest_os, xen_version, pae_mode] {
        out.push(u8::from(text.is_some()));
        let text = text.as_deref().unwrap_or_default();
        put_length(out, text.len());
        out.extend(text.as_bytes());
    }
}

fn put_number(out: &mut Vec<u8>, number: Option<u64>) {
    out.push(u8::from(number.is_some()));
    out.extend(number.unwrap_or_default().to_le_bytes());
}

fn take_flag(rest: &mut &[u8]) -> Option<bool> {
    match take(rest, 1)?[0] {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// The outer `None` means truncated input.
fn take_number(rest: &mut &[u8]) -> Option<Option<u64>> {
    let is_there = take_flag(rest)?;
    let number = take_u64(rest)?;
    Some(is_there.then_some(number))
}

fn take_u32(rest: &mut &[u8]) -> Option<Option<u32>> {
    match take_number(rest)? {
        None => Some(None),
        Some(number) => u32::try_from(number).ok().map(Some),
    }
}

fn take_text(rest: &mut &[u8]) -> Option<Option<String>> {
    let is_there = take_flag(rest)?;
    let length = take_length(rest)?;
    let text = take(rest, length)?;
    let text = core::str::from_utf8(text).ok()?;
    Some(is_there.then(|| text.into()))
}

fn take_notes(rest: &mut &[u8]) -> Option<Notes> {
    let flags = take(rest, 1)?[0];
    let mut numbers = [None; 7];
    for number in &mut numbers {
        *number = take_number(rest)?;
    }
    let [
        entry,
        hypercall_page,
        virt_base,
        paddr_offset,
        init_p2m,
        hv_start_low,
        supported_features,
    ] = numbers;
    let phys32_entry = take_u32(rest)?;
    let alignment_bytes = take_u32(rest)?;
    let bounds = take_number(rest)?;
    let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).ok();
    let phys32_reloc = match (alignment_bytes, bounds) {
        (None, None) => None,
        (Some(alignment_bytes), Some(bounds)) => Some(Relocation {
            alignment_bytes,
            address_min: low(bounds >> 32)?,
            address_max: low(bounds)?,
        }),
        _ => return None,
    };
    Some(Notes {
        entry,
        hypercall_page,
        virt_base,
        paddr_offset,
        init_p2m,
        mod_start_pfn: flags & 1 != 0,
        phys32_entry,
        phys32_reloc,
        hv_start_low,
        supported_features,
        l1_mfn_valid: flags & 2 != 0,
        features: take_text(rest)?,
        loader: take_text(rest)?,
        guest_os: take_text(rest)?,
        xen_version: take_text(rest)?,
        pae_mode: take_text(rest)?,
    })
}
