//! The header of a frame, the preamble before the first and the trailer after the last.
//!
//! ```text
//!   preamble  magic[8] version u32, reserved u32, checksum u64
//!   frame     kind u16, codec u8, reserved u8, epoch u32, first u64, count u32, directory u32,
//!             stored u32, raw u32, checksum of the body u64, checksum of these 40 bytes u64
//!   trailer   magic[8] offset of END u64, offset of the index u64, length of the file u64, checksum u64
//! ```
//! All numbers are little-endian. Checksums are XXH64 with seed 0.

use twox_hash::XxHash64;

use crate::bytes::{Fields, put_u32, put_u64};
use crate::error::{Fault, StreamError};
use crate::input::Input;

use super::codec::Codec;
use super::pages::{DIRECTORY_BYTES_MAX, PAGES_MAX};
use crate::libxc::PAGE_BYTES;

const MAGIC: [u8; 8] = *b"XYLEMVM\n";
const TRAILER_MAGIC: [u8; 8] = *b"XYLEMEND";
const VERSION: u32 = 1;

pub(crate) const PREAMBLE_BYTES: usize = 24;
pub(crate) const HEADER_BYTES: usize = 48;
pub(crate) const TRAILER_BYTES: usize = 40;

/// Longest body of a frame without pages: more than any domain's registers or device model.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;
pub(crate) const PAGES_BODY_BYTES_MAX: usize = DIRECTORY_BYTES_MAX + PAGES_MAX * PAGE_BYTES;

/// Whether a file or stream that begins with these bytes is one of this format.
#[must_use]
pub fn is_image(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Head,
    Lane,
    Record,
    Pages,
    Emulator,
    EndOfRound,
    Checkpoint,
    End,
    IndexState,
    IndexPages,
    /// One of a later version that may be skipped.
    Optional,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Head,
        Self::Lane,
        Self::Record,
        Self::Pages,
        Self::Emulator,
        Self::EndOfRound,
        Self::Checkpoint,
        Self::End,
        Self::IndexState,
        Self::IndexPages,
        Self::Optional,
    ];
    const OPTIONAL: u16 = 1 << 15;

    fn code(self) -> u16 {
        match self {
            Self::Head => 1,
            Self::Lane => 2,
            Self::Record => 3,
            Self::Pages => 4,
            Self::Emulator => 5,
            Self::EndOfRound => 6,
            Self::Checkpoint => 7,
            Self::End => 8,
            Self::IndexState => 9,
            Self::IndexPages => 10,
            Self::Optional => Self::OPTIONAL,
        }
    }

    fn decode(code: u16) -> Option<Self> {
        let code = if code & Self::OPTIONAL == 0 { code } else { Self::OPTIONAL };
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Head => "HEAD",
            Self::Lane => "LANE",
            Self::Record => "RECORD",
            Self::Pages => "PAGES",
            Self::Emulator => "EMULATOR",
            Self::EndOfRound => "END_OF_ROUND",
            Self::Checkpoint => "CHECKPOINT",
            Self::End => "END",
            Self::IndexState => "INDEX_STATE",
            Self::IndexPages => "INDEX_PAGES",
            Self::Optional => "of a later version",
        }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) codec: Codec,
    /// The round that it belongs to.
    pub(crate) epoch: u32,
    /// Number of the first page.
    pub(crate) first: u64,
    /// Pages that the directory names.
    pub(crate) count: u32,
    /// Bytes of the directory, which is the beginning of the body.
    pub(crate) directory: u32,
    /// Bytes of the body.
    pub(crate) stored: u32,
    /// Bytes of the pages before compression.
    pub(crate) raw: u32,
    pub(crate) checksum: u64,
}

impl Header {
    /// Of a frame without pages.
    pub(crate) fn plain(kind: Kind, epoch: u32) -> Self {
        Self {
            kind,
            codec: Codec::None,
            epoch,
            first: 0,
            count: 0,
            directory: 0,
            stored: 0,
            raw: 0,
            checksum: 0,
        }
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&self.kind.code().to_le_bytes());
        bytes.extend_from_slice(&[self.codec.code(), 0]);
        put_u32(&mut bytes, self.epoch);
        put_u64(&mut bytes, self.first);
        for word in [self.count, self.directory, self.stored, self.raw] {
            put_u32(&mut bytes, word);
        }
        put_u64(&mut bytes, self.checksum);
        let own = checksum(&bytes);
        put_u64(&mut bytes, own);
        bytes.try_into().expect("the fields are that long")
    }

    /// The header at the beginning of a frame. Checks what holds for all: its checksum, and that its
    /// lengths may be.
    pub(crate) fn decode(frame: &[u8]) -> Result<Self, Fault> {
        let bytes = frame.get(..HEADER_BYTES).ok_or(Fault::Truncated)?;
        let (covered, own) = bytes.split_at(HEADER_BYTES - 8);
        if own != checksum(covered).to_le_bytes() {
            return Err(Fault::Checksum);
        }
        let mut fields = Fields(covered);
        let header = (|| {
            let (kind, [codec, _reserved]) = (fields.u16()?, fields.take()?);
            Some((kind, codec, fields))
        })();
        let (kind, codec, mut fields) = header.ok_or(Fault::Truncated)?;
        let kind = Kind::decode(kind).ok_or(Fault::UnknownRecord)?;
        let codec = Codec::decode(codec).ok_or(Fault::Unknown("the codec", codec.into()))?;
        let mut rest = || {
            Some(Self {
                kind,
                codec,
                epoch: fields.u32()?,
                first: fields.u64()?,
                count: fields.u32()?,
                directory: fields.u32()?,
                stored: fields.u32()?,
                raw: fields.u32()?,
                checksum: fields.u64()?,
            })
        };
        let header = rest().ok_or(Fault::Truncated)?;
        let longest =
            if header.kind == Kind::Pages { PAGES_BODY_BYTES_MAX } else { BODY_BYTES_MAX };
        if header.stored as usize > longest {
            return Err(Fault::TooLong(header.stored.into()));
        }
        Ok(header)
    }

    /// Checks a body that came with this header.
    pub(crate) fn check(&self, body: &[u8]) -> Result<(), Fault> {
        if checksum(body) == self.checksum { Ok(()) } else { Err(Fault::Checksum) }
    }
}

/// Appends a frame. The body is written by `body`, which may complete the header.
///
/// # Panics
/// If the body is longer than a frame may be.
pub(crate) fn put(
    out: &mut Vec<u8>,
    mut header: Header,
    body: impl FnOnce(&mut Header, &mut Vec<u8>),
) {
    let at = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    body(&mut header, out);
    let stored = &out[at + HEADER_BYTES..];
    assert!(stored.len() <= BODY_BYTES_MAX, "a frame of {} bytes", stored.len());
    header.stored = u32::try_from(stored.len()).expect("checked above");
    header.checksum = checksum(stored);
    out[at..at + HEADER_BYTES].copy_from_slice(&header.encode());
}

/// A frame that has come.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
    pub(crate) place: String,
}

impl Frame<'_> {
    pub(crate) fn error(&self, fault: Fault) -> StreamError {
        StreamError { place: self.place.clone(), fault }
    }

    /// Bytes of header and body.
    pub(crate) fn length(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// What the frame is called in messages.
pub(crate) fn place(header: &Header, number: u64, offset: u64) -> String {
    match header.kind {
        Kind::Pages => {
            format!("frame {number} (pages {:#x} and following) at byte {offset}", header.first)
        }
        kind => format!("frame {number} ({}) at byte {offset}", kind.as_str()),
    }
}

/// The next frame, once it has come. It stays in the input.
pub(crate) fn peek(input: &Input, number: u64) -> Result<Option<Frame<'_>>, StreamError> {
    let what = format!("frame {number}");
    let Some(bytes) = input.peek(HEADER_BYTES, &what)? else { return Ok(None) };
    let header = Header::decode(bytes).map_err(|fault| input.error(&what, fault))?;
    let place = place(&header, number, input.offset());
    let length = HEADER_BYTES + header.stored as usize;
    let bytes = input
        .peek(length, &what)
        .map_err(|error| StreamError { place: place.clone(), fault: error.fault })?;
    let Some(bytes) = bytes else { return Ok(None) };
    let body = &bytes[HEADER_BYTES..];
    header.check(body).map_err(|fault| StreamError { place: place.clone(), fault })?;
    Ok(Some(Frame { header, body, place }))
}

/// Appends what is before the first frame.
pub(crate) fn put_preamble(out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&MAGIC);
    put_u32(out, VERSION);
    put_u32(out, 0);
    let own = checksum(&out[at..]);
    put_u64(out, own);
}

pub(crate) fn check_preamble(bytes: &[u8]) -> Result<(), Fault> {
    if !is_image(bytes) {
        return Err(Fault::NotOne("a VM saved by Xylem"));
    }
    let bytes = bytes.get(..PREAMBLE_BYTES).ok_or(Fault::Truncated)?;
    let (covered, own) = bytes.split_at(PREAMBLE_BYTES - 8);
    if own != checksum(covered).to_le_bytes() {
        return Err(Fault::Checksum);
    }
    match Fields(&covered[MAGIC.len()..]).u32() {
        Some(VERSION) => Ok(()),
        Some(other) => Err(Fault::Version(other)),
        None => Err(Fault::Truncated),
    }
}

/// The last bytes of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Trailer {
    /// Of the frame END.
    pub(crate) end: u64,
    /// Of the first byte behind it.
    pub(crate) index: u64,
    /// Of the whole file.
    pub(crate) length: u64,
}

impl Trailer {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&TRAILER_MAGIC);
        put_u64(out, self.end);
        put_u64(out, self.index);
        put_u64(out, self.length);
        let own = checksum(&out[at..]);
        put_u64(out, own);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let (covered, own) = bytes.split_at_checked(TRAILER_BYTES - 8).ok_or(Fault::Truncated)?;
        if !covered.starts_with(&TRAILER_MAGIC) {
            return Err(Fault::Unfinished);
        }
        if own != checksum(covered).to_le_bytes() {
            return Err(Fault::Checksum);
        }
        let mut fields = Fields(&covered[TRAILER_MAGIC.len()..]);
        let mut numbers =
            || Some(Self { end: fields.u64()?, index: fields.u64()?, length: fields.u64()? });
        numbers().ok_or(Fault::Truncated)
    }
}
