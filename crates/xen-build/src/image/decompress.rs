//! Decompresses kernels, in all formats of Linux's build.
//!
//! The unpacked size is known beforehand, so memory is bounded before the first byte is unpacked.
//! Sources: RFC 1952 (gzip), `Documentation/arch/x86/boot.rst` and `scripts/Makefile.lib` of Linux
//! (the compressors, and the size they append), `lz4_Frame_format.md` ("Legacy frame").

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use lzma_rust2::{Action, Status, XzStream};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use super::le;
use super::{Compression, ImageError};

const GZIP_TRAILER_BYTES: usize = 8;

/// The compression format of `payload`, by its magic number.
pub(super) fn recognise(payload: &[u8]) -> Option<Compression> {
    let magics: [(&[u8], Compression); 5] = [
        (b"\x7fELF", Compression::None),
        (b"\x1f\x8b\x08", Compression::Gzip),
        (b"\xfd7zXZ\0", Compression::Xz),
        (b"\x28\xb5\x2f\xfd", Compression::Zstd),
        (LZ4_LEGACY_MAGIC, Compression::Lz4),
    ];
    magics.into_iter().find(|(magic, _)| payload.starts_with(magic)).map(|(_, found)| found)
}

/// Unpacks `payload`, whose last four bytes are the unpacked size: gzip's own trailer, or appended
/// by Linux's build for other formats.
pub(super) fn unpack(
    compression: Compression,
    payload: &[u8],
    unpacked_bytes_max: usize,
) -> Result<Vec<u8>, ImageError> {
    if compression == Compression::None {
        return Ok(payload.to_vec());
    }
    let damaged = |reason| ImageError::Damaged { compression, reason };
    let (packed, size) =
        payload.split_last_chunk::<4>().ok_or(damaged("it is shorter than its own header"))?;
    let size = usize::try_from(u32::from_le_bytes(*size))
        .ok()
        .filter(|size| *size <= unpacked_bytes_max)
        .ok_or(ImageError::TooLarge { max_mib: unpacked_bytes_max >> 20 })?;
    let mut unpacked = vec![0; size];
    let written = match compression {
        Compression::None => unreachable!("returned above"),
        Compression::Gzip => gunzip(payload, &mut unpacked),
        Compression::Xz => unxz(packed, &mut unpacked),
        Compression::Zstd => unzstd(packed, &mut unpacked),
        Compression::Lz4 => unlz4(packed, &mut unpacked),
    }
    .map_err(damaged)?;
    if written == size {
        Ok(unpacked)
    } else {
        Err(damaged("it unpacks to fewer bytes than it says"))
    }
}

fn gunzip(file: &[u8], unpacked: &mut [u8]) -> Result<usize, &'static str> {
    let deflated = gzip_body(file).ok_or("its gzip header is cut off")?;
    let mut state = Box::<DecompressorOxide>::default();
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut state, deflated, unpacked, 0, flags);
    match status {
        TINFLStatus::Done => {}
        TINFLStatus::HasMoreOutput => return Err("it unpacks to more bytes than it says"),
        TINFLStatus::FailedCannotMakeProgress => return Err("it is cut off"),
        _ => return Err("invalid deflate data"),
    }
    let sum = le::u32_at(file, file.len() - GZIP_TRAILER_BYTES);
    if sum == Some(crc32fast::hash(&unpacked[..written])) {
        Ok(written)
    } else {
        Err("its checksum is wrong")
    }
}

/// The deflated data behind gzip's header, whose optional parts have no fixed length.
fn gzip_body(file: &[u8]) -> Option<&[u8]> {
    const FHCRC: u8 = 1 << 1;
    const FEXTRA: u8 = 1 << 2;
    const FNAME: u8 = 1 << 3;
    const FCOMMENT: u8 = 1 << 4;
    let body = file.get(..file.len().checked_sub(GZIP_TRAILER_BYTES)?)?;
    let flags = le::u8_at(body, 3)?;
    let mut offset = 10;
    if flags & FEXTRA != 0 {
        offset += 2 + usize::from(le::u16_at(body, offset)?);
    }
    for text in [FNAME, FCOMMENT] {
        if flags & text != 0 {
            offset += body.get(offset..)?.iter().position(|&byte| byte == 0)? + 1;
        }
    }
    if flags & FHCRC != 0 {
        offset += 2;
    }
    body.get(offset..)
}

fn unxz(packed: &[u8], unpacked: &mut [u8]) -> Result<usize, &'static str> {
    // Limit of the stream's dictionary; Linux's is 32 MiB, xz's presets end at 64 MiB.
    const MEMORY_KIB_MAX: u32 = 160 << 10;
    let mut stream = XzStream::new_mem_limit(false, MEMORY_KIB_MAX);
    let (mut read, mut written) = (0, 0);
    loop {
        let step = stream
            .process(&packed[read..], &mut unpacked[written..], Action::Finish)
            .map_err(xz_reason)?;
        read += step.bytes_consumed;
        written += step.bytes_produced;
        match step.status {
            Status::StreamEnd => return Ok(written),
            Status::Ok if step.bytes_consumed == 0 && step.bytes_produced == 0 => {
                return Err(if written == unpacked.len() {
                    "it unpacks to more bytes than it says"
                } else {
                    "it is cut off"
                });
            }
            Status::Ok => {}
        }
    }
}

fn xz_reason(error: lzma_rust2::Error) -> &'static str {
    use lzma_rust2::Error;
    match error {
        Error::Eof => "it is cut off",
        Error::InvalidData(reason)
        | Error::InvalidInput(reason)
        | Error::OutOfMemory(reason)
        | Error::Other(reason)
        | Error::Unsupported(reason)
        | Error::WriteZero(reason) => reason,
        Error::Interrupted => "the decoder was interrupted",
    }
}

fn unzstd(packed: &[u8], unpacked: &mut [u8]) -> Result<usize, &'static str> {
    use ruzstd::decoding::errors::FrameDecoderError;
    ruzstd::decoding::FrameDecoder::new().decode_all(packed, unpacked).map_err(
        |error| match error {
            FrameDecoderError::TargetTooSmall => "it unpacks to more bytes than it says",
            FrameDecoderError::WindowSizeTooBig { .. } => "its window is above 128 MiB",
            _ => "invalid zstd data",
        },
    )
}

const LZ4_LEGACY_MAGIC: &[u8] = b"\x02\x21\x4c\x18";

/// Legacy frames: a magic number, then blocks of at most 8 MiB unpacked, each behind its packed size.
fn unlz4(packed: &[u8], unpacked: &mut [u8]) -> Result<usize, &'static str> {
    let mut rest = packed;
    let mut written = 0;
    while !rest.is_empty() {
        if let Some(blocks) = rest.strip_prefix(LZ4_LEGACY_MAGIC) {
            rest = blocks;
            continue;
        }
        let size = le::u32_at(rest, 0).and_then(|size| usize::try_from(size).ok());
        let block = size.and_then(|size| le::part(rest, 4, size)).ok_or("it is cut off")?;
        written += lz4_flex::block::decompress_into(block, &mut unpacked[written..])
            .map_err(|_| "invalid lz4 data")?;
        rest = &rest[4 + block.len()..];
    }
    Ok(written)
}
