//! Reads a file by its index.

use crate::error::{Fault, StreamError};
use crate::libxc::DomainType;
use crate::libxc::PageType;
use crate::{libxc, libxl};

use super::frame::{self, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, TRAILER_BYTES, Trailer};
use super::head::Head;
use super::index::{At, Index, Phase};
use super::pages::{Directory, Pages};
use super::reader::{self, Limits};

/// The file cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(pub String);

/// A file, or whatever else has bytes at offsets.
pub trait ReadAt {
    /// How long it is.
    ///
    /// # Errors
    /// It cannot be found out.
    fn length(&self) -> Result<u64, ReadError>;

    /// Fills the buffer with the bytes from an offset on.
    ///
    /// # Errors
    /// They cannot be read, or are not there.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError>;
}

impl ReadAt for [u8] {
    fn length(&self) -> Result<u64, ReadError> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..start.checked_add(bytes.len())?));
        bytes.copy_from_slice(found.ok_or_else(|| ReadError("it is shorter".to_owned()))?);
        Ok(())
    }
}

/// A file of a saved VM cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// A file, of which the head and the index were read.
///
/// It reads the newest copy of each page only. Everything else may be asked for in any order and by
/// any number of threads.
#[derive(Debug)]
pub struct FileReader {
    limits: Limits,
    head: Head,
    index: Index,
}

/// A frame in memory.
struct Loaded {
    header: Header,
    bytes: Vec<u8>,
    place: String,
}

impl Loaded {
    fn body(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    fn error(&self, fault: Fault) -> ImageError {
        StreamError { place: self.place.clone(), fault }.into()
    }
}

fn error(place: &str, fault: Fault) -> ImageError {
    StreamError { place: place.to_owned(), fault }.into()
}

impl FileReader {
    /// Reads head and index.
    ///
    /// # Errors
    /// The file cannot be read, is damaged or foreign, or was not finished.
    pub fn open<S: ReadAt + ?Sized>(source: &S, limits: Limits) -> Result<Self, ImageError> {
        let length = source.length()?;
        let start = "the beginning";
        let mut preamble =
            vec![0; PREAMBLE_BYTES.min(usize::try_from(length).unwrap_or(usize::MAX))];
        source.read_at(0, &mut preamble)?;
        frame::check_preamble(&preamble).map_err(|fault| error(start, fault))?;
        let trailer = read_trailer(source, length)?;
        let head_at = PREAMBLE_BYTES as u64;
        let head = load(source, head_at, trailer.end)?;
        let first = head_at + head.bytes.len() as u64;
        if head.header.kind != Kind::Head {
            return Err(head.error(Fault::Before("HEAD")));
        }
        let parsed = Head::decode(head.body(), limits.known_facts);
        let parsed = parsed.map_err(|fault| head.error(fault))?;
        let (mut index, mut offset) = (Index::default(), trailer.index);
        let end = length - TRAILER_BYTES as u64;
        while offset < end {
            let part = load(source, offset, end)?;
            let added = index.add(&part.header, part.body(), (first, trailer.end), limits.pfn_max);
            added.map_err(|fault| part.error(fault))?;
            offset += part.bytes.len() as u64;
        }
        Ok(Self { limits, head: parsed, index })
    }

    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Records that come before the pages.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn before_pages<S: ReadAt + ?Sized>(
        &self,
        source: &S,
    ) -> Result<Vec<libxc::Record>, ImageError> {
        self.state(source, Phase::BeforePages, Kind::Record, reader::record)
    }

    /// Records that come after the pages, and state of the device model.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn after_pages<S: ReadAt + ?Sized>(
        &self,
        source: &S,
    ) -> Result<(Vec<libxc::Record>, Vec<libxl::Record>), ImageError> {
        Ok((
            self.state(source, Phase::AfterPages, Kind::Record, reader::record)?,
            self.state(source, Phase::Emulator, Kind::Emulator, reader::emulator)?,
        ))
    }

    fn state<S: ReadAt + ?Sized, T>(
        &self,
        source: &S,
        phase: Phase,
        kind: Kind,
        decode: fn(&[u8]) -> Result<T, Fault>,
    ) -> Result<Vec<T>, ImageError> {
        let of_phase = self.index.state.iter().filter(|(other, _)| *other == phase);
        of_phase
            .map(|(_, at)| {
                let frame = load_indexed(source, *at)?;
                if frame.header.kind != kind {
                    return Err(frame.error(Fault::Mismatch("an entry of the index")));
                }
                decode(frame.body()).map_err(|fault| frame.error(fault))
            })
            .collect()
    }

    /// How many parts the pages are in. Their order is that of the file.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.index.parts.len()
    }

    /// Bytes of a part in the file.
    ///
    /// # Panics
    /// If there is no such part.
    #[must_use]
    pub fn part_bytes(&self, part: usize) -> u64 {
        self.index.parts[part].at.length.into()
    }

    /// Numbers of all pages, as the index has them.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.index.parts.iter().flat_map(|part| {
            let first = part.block * super::pages::BLOCK_PAGES;
            part.newest.positions().map(move |position| first + u64::from(position))
        })
    }

    /// The part that has a page.
    #[must_use]
    pub fn part_of(&self, pfn: u64) -> Option<usize> {
        self.index.part_of(pfn)
    }

    /// Pages of a part, but for those of which another has a newer copy.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn part<S: ReadAt + ?Sized>(&self, source: &S, part: usize) -> Result<Pages, ImageError> {
        let part = self.index.parts[part];
        let frame = load_indexed(source, part.at)?;
        let pages = (|| {
            if frame.header.kind != Kind::Pages
                || frame.header.first / super::pages::BLOCK_PAGES != part.block
            {
                return Err(Fault::Mismatch("an entry of the index"));
            }
            let directory = Directory::decode(&frame.header, frame.body(), self.limits.pfn_max)?;
            if !part.newest.without(directory.pages).is_empty() {
                return Err(Fault::Mismatch("an entry of the index"));
            }
            let pages = directory.unpack(&frame.header, frame.body(), part.newest)?;
            let is_table = |(_, kind): &(u64, PageType)| matches!(kind, PageType::Table { .. });
            if self.head.headers.domain == DomainType::Hvm && pages.data.pages.iter().any(is_table)
            {
                return Err(Fault::WrongKind(DomainType::Hvm.as_str()));
            }
            Ok(pages)
        })();
        pages.map_err(|fault| frame.error(fault))
    }
}

fn read_trailer<S: ReadAt + ?Sized>(source: &S, length: u64) -> Result<Trailer, ImageError> {
    const WHAT: &str = "the trailer";
    let at = length.checked_sub(TRAILER_BYTES as u64).filter(|at| *at >= PREAMBLE_BYTES as u64);
    let at = at.ok_or_else(|| error(WHAT, Fault::Unfinished))?;
    let mut bytes = [0; TRAILER_BYTES];
    source.read_at(at, &mut bytes)?;
    let trailer = Trailer::decode(&bytes).map_err(|fault| error(WHAT, fault))?;
    let is_right = trailer.length == length
        && trailer.end >= PREAMBLE_BYTES as u64
        && trailer.end < trailer.index
        && trailer.index <= at;
    if is_right { Ok(trailer) } else { Err(error(WHAT, Fault::Mismatch("the trailer"))) }
}

/// The frame at an offset, which ends at or before `end`.
fn load<S: ReadAt + ?Sized>(source: &S, offset: u64, end: u64) -> Result<Loaded, ImageError> {
    let place = format!("the frame at byte {offset}");
    let room = end.saturating_sub(offset);
    if room < HEADER_BYTES as u64 {
        return Err(error(&place, Fault::Truncated));
    }
    let mut bytes = vec![0; HEADER_BYTES];
    source.read_at(offset, &mut bytes)?;
    let header = Header::decode(&bytes).map_err(|fault| error(&place, fault))?;
    let length = HEADER_BYTES + header.stored as usize;
    if length as u64 > room {
        return Err(error(&place, Fault::Truncated));
    }
    bytes.resize(length, 0);
    source.read_at(offset + HEADER_BYTES as u64, &mut bytes[HEADER_BYTES..])?;
    check(header, bytes, place)
}

/// The frame that an entry of the index names, in one read.
fn load_indexed<S: ReadAt + ?Sized>(source: &S, at: At) -> Result<Loaded, ImageError> {
    let place = format!("the frame at byte {}", at.offset);
    let mut bytes = vec![0; at.length as usize];
    source.read_at(at.offset, &mut bytes)?;
    let header = Header::decode(&bytes).map_err(|fault| error(&place, fault))?;
    if HEADER_BYTES + header.stored as usize != bytes.len() {
        return Err(error(&place, Fault::Mismatch("an entry of the index")));
    }
    check(header, bytes, place)
}

fn check(header: Header, bytes: Vec<u8>, place: String) -> Result<Loaded, ImageError> {
    let loaded = Loaded { header, bytes, place };
    loaded.header.check(loaded.body()).map_err(|fault| loaded.error(fault))?;
    Ok(loaded)
}
