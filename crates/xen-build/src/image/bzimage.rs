//! Linux's bzImage: finds the compressed kernel after the boot sector and the set-up code.
//!
//! Source: Linux `Documentation/arch/x86/boot.rst`, fields of "The Real-Mode Kernel Header".

use super::ImageError;
use super::le;

const SETUP_SECTS: usize = 0x1f1;
const BOOT_FLAG: usize = 0x1fe;
const HEADER: usize = 0x202;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR_BYTES: usize = 512;

/// Whether the file is a bzImage of any version.
pub(super) fn is_bzimage(file: &[u8]) -> bool {
    le::u16_at(file, BOOT_FLAG) == Some(0xaa55) && le::part(file, HEADER, 4) == Some(b"HdrS")
}

/// The compressed kernel.
pub(super) fn payload(file: &[u8]) -> Result<&[u8], ImageError> {
    /// First version with `payload_offset`.
    const VERSION_MIN: u16 = 0x208;
    let cut_off = ImageError::CutOff("the bzImage header");
    let version = le::u16_at(file, VERSION).ok_or(cut_off.clone())?;
    if version < VERSION_MIN {
        return Err(ImageError::OldBzImage(version));
    }
    // Zero sectors means four, for very old boot loaders.
    let sectors = match le::u8_at(file, SETUP_SECTS).ok_or(cut_off.clone())? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let field = |offset| le::u32_at(file, offset).and_then(|value| usize::try_from(value).ok());
    let (Some(offset), Some(length)) = (field(PAYLOAD_OFFSET), field(PAYLOAD_LENGTH)) else {
        return Err(cut_off);
    };
    offset
        .checked_add((sectors + 1) * SECTOR_BYTES)
        .and_then(|start| le::part(file, start, length))
        .ok_or(ImageError::CutOff("the compressed kernel in the bzImage"))
}
