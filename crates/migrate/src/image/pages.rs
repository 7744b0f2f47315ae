//! Frames of pages.
//!
//! The body is a directory and then the contents of the pages that have some, compressed together. The
//! directory is a list of runs, 32 bits each: the first page's position in the block (8 bits), the number of
//! pages less one (8), their type as in libxc's stream (4), whether they are zero (1).

use std::ops::Range;

use crate::bytes::{Fields, put_u32};
use crate::error::Fault;
use crate::libxc::{PAGE_BYTES, PageData, PageType};

use super::codec::{Codec, Compressor, Effort, unpack};
use super::frame::{Header, Kind};

/// Pages that a frame may cover: 1 MiB, more than any codec looks back.
pub const BLOCK_PAGES: u64 = PAGES_MAX as u64;
pub(crate) const PAGES_MAX: usize = 256;
pub(crate) const DIRECTORY_BYTES_MAX: usize = 4 * PAGES_MAX;

const POSITION_BITS: u32 = 8;
const TYPE_SHIFT: u32 = 16;
const ZERO: u32 = 1 << 20;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Run {
    pub first: u64,
    pub count: u64,
}

/// Pages that have come. None is in both lists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Pages {
    /// The round that they belong to.
    pub epoch: u32,
    /// All but those of zeros.
    pub data: PageData,
    /// Ordinary pages of zeros. A loader that has not filled them yet need not write them.
    pub zero: Vec<Run>,
}

impl Pages {
    /// All of them with their contents, for a loader that does not treat zeros apart.
    #[must_use]
    pub fn into_page_data(self) -> PageData {
        let mut data = self.data;
        for run in self.zero {
            data.pages
                .extend((run.first..run.first + run.count).map(|pfn| (pfn, PageType::Normal)));
            let bytes = usize::try_from(run.count).expect("a frame is short") * PAGE_BYTES;
            data.data.resize(data.data.len() + bytes, 0);
        }
        data
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.data.pages.len() as u64 + self.zero.iter().map(|run| run.count).sum::<u64>()
    }
}

/// A set of the pages of a block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Set([u64; PAGES_MAX / 64]);

impl Set {
    pub(crate) fn insert(&mut self, position: u8) {
        self.0[usize::from(position / 64)] |= 1 << (position % 64);
    }

    pub(crate) fn contains(self, position: u8) -> bool {
        self.0[usize::from(position / 64)] >> (position % 64) & 1 == 1
    }

    pub(crate) fn positions(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |position| self.contains(*position))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(one, other)| one & other != 0)
    }

    pub(crate) fn words(self) -> [u64; PAGES_MAX / 64] {
        self.0
    }

    pub(crate) fn from_words(words: [u64; PAGES_MAX / 64]) -> Self {
        Self(words)
    }
}

/// The page's position in its block.
pub(crate) fn position(pfn: u64) -> u8 {
    pfn.to_le_bytes()[0]
}

/// Pages of one directory entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    position: u8,
    count: u16,
    kind: PageType,
    is_zero: bool,
}

impl Entry {
    fn encode(self) -> u32 {
        u32::from(self.position)
            | u32::from(self.count - 1) << POSITION_BITS
            | u32::try_from(self.kind.code()).expect("four bits") << TYPE_SHIFT
            | if self.is_zero { ZERO } else { 0 }
    }

    fn decode(word: u32) -> Result<Self, Fault> {
        let [position, count, rest, high] = word.to_le_bytes();
        let kind = PageType::decode(rest & 0xf);
        let kind = kind.ok_or(Fault::Unknown("the type of a page", (rest & 0xf).into()))?;
        let entry = Self { position, count: u16::from(count) + 1, kind, is_zero: word & ZERO != 0 };
        let is_beyond = u16::from(position) + entry.count > 256;
        let is_strange = entry.is_zero && kind != PageType::Normal;
        if rest >> 5 != 0 || high != 0 || is_beyond || is_strange {
            return Err(Fault::Unknown("a run of pages", word.into()));
        }
        Ok(entry)
    }

    fn has_data(self) -> bool {
        self.kind.has_data() && !self.is_zero
    }
}

/// Appends the body of a frame for these pages, which are in one block and ascend. Their contents are
/// in `contents`, one after the other.
pub(crate) fn encode(
    pages: &[(u64, PageType)],
    contents: &[u8],
    codec: Codec,
    memory: &mut Memory,
    header: &mut Header,
    out: &mut Vec<u8>,
) -> Set {
    let mut set = Set::default();
    let mut run: Option<Entry> = None;
    let (mut rest, mut with_data) = (contents.chunks_exact(PAGE_BYTES), 0);
    memory.gathered.clear();
    let directory_at = out.len();
    // The contents are in one piece as long as no page of zeros was left out before one.
    let mut piece: Option<Range<usize>> = None;
    for (&(pfn, kind), at) in pages.iter().zip(0..) {
        let content = if kind.has_data() { rest.next() } else { None };
        let is_zero = kind == PageType::Normal && content.is_some_and(is_zero);
        if let Some(content) = content {
            if !is_zero {
                memory.add(contents, &mut piece, with_data, content);
            }
            with_data += 1;
        }
        let position = position(pfn);
        set.insert(position);
        match &mut run {
            Some(run)
                if run.kind == kind
                    && run.is_zero == is_zero
                    && u16::from(run.position) + run.count == u16::from(position) =>
            {
                run.count += 1;
            }
            other => {
                let ended = other.replace(Entry { position, count: 1, kind, is_zero });
                ended.into_iter().for_each(|run| put_u32(out, run.encode()));
            }
        }
        header.count = at + 1;
    }
    run.into_iter().for_each(|run| put_u32(out, run.encode()));
    let length = |bytes: usize| u32::try_from(bytes).expect("a frame is short");
    header.directory = length(out.len() - directory_at);
    let bytes = match piece {
        Some(piece) => &contents[piece],
        None => &memory.gathered,
    };
    header.raw = length(bytes.len());
    header.codec = memory.compressor.append(codec, bytes, out);
    set
}

/// What is used again for every frame.
#[derive(Default)]
pub(crate) struct Memory {
    compressor: Compressor,
    gathered: Vec<u8>,
}

impl Memory {
    pub(crate) fn new(effort: Effort) -> Self {
        Self { compressor: Compressor::new(effort), gathered: Vec::new() }
    }

    pub(crate) fn set_effort(&mut self, effort: Effort) {
        self.compressor.set_effort(effort);
    }

    /// The content of page `number` of `contents` is stored. `piece` is all that is stored so far, if
    /// it is one piece; otherwise it was gathered.
    fn add(
        &mut self,
        contents: &[u8],
        piece: &mut Option<Range<usize>>,
        number: usize,
        content: &[u8],
    ) {
        let start = number * PAGE_BYTES;
        match piece {
            None if self.gathered.is_empty() => *piece = Some(start..start + PAGE_BYTES),
            Some(piece) if piece.end == start => piece.end += PAGE_BYTES,
            _ => {
                let earlier = piece.take().unwrap_or_default();
                self.gathered.extend_from_slice(&contents[earlier]);
                self.gathered.extend_from_slice(content);
            }
        }
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|line| {
        let words =
            line.chunks_exact(8).map(|it| u64::from_ne_bytes(*it.first_chunk().expect("8")));
        words.fold(0, |all, word| all | word) == 0
    })
}

/// A directory that was checked against its header.
#[derive(Debug)]
pub(crate) struct Directory {
    first: u64,
    entries: Vec<Entry>,
    pub(crate) pages: Set,
}

impl Directory {
    /// Of the frame with this header.
    pub(crate) fn decode(header: &Header, body: &[u8], pfn_max: u64) -> Result<Self, Fault> {
        debug_assert_eq!(header.kind, Kind::Pages);
        let wrong = || Fault::Length(header.directory.into());
        let directory = body.get(..header.directory as usize).ok_or_else(wrong)?;
        if directory.is_empty()
            || directory.len() > DIRECTORY_BYTES_MAX
            || !directory.len().is_multiple_of(4)
        {
            return Err(wrong());
        }
        if !header.first.is_multiple_of(BLOCK_PAGES) {
            return Err(Fault::Unknown("the first page", header.first));
        }
        let mut fields = Fields(directory);
        let (mut entries, mut pages) = (Vec::new(), Set::default());
        let (mut next, mut count, mut with_data) = (0, 0, 0);
        while let Some(word) = fields.u32() {
            let entry = Entry::decode(word)?;
            if u16::from(entry.position) < next {
                return Err(Fault::Unknown("a run of pages", word.into()));
            }
            next = u16::from(entry.position) + entry.count;
            count += u32::from(entry.count);
            with_data += if entry.has_data() { u32::from(entry.count) } else { 0 };
            (u16::from(entry.position)..next)
                .for_each(|at| pages.insert(u8::try_from(at).expect("checked by decode")));
            entries.push(entry);
        }
        if count != header.count || with_data * 4096 != header.raw {
            return Err(Fault::Mismatch("the directory"));
        }
        let last = header.first.saturating_add(u64::from(next) - 1);
        if last > pfn_max {
            return Err(Fault::PageBeyond(last));
        }
        Ok(Self { first: header.first, entries, pages })
    }

    /// The pages that are in `wanted`.
    pub(crate) fn unpack(&self, header: &Header, body: &[u8], wanted: Set) -> Result<Pages, Fault> {
        let stored = &body[header.directory as usize..];
        let bytes = unpack(header.codec, stored, header.raw as usize)?;
        let mut pages = Pages { epoch: header.epoch, ..Pages::default() };
        let is_whole = self.pages.without(wanted).is_empty();
        let mut contents = bytes.chunks_exact(PAGE_BYTES);
        for entry in &self.entries {
            let start = u16::from(entry.position);
            for at in start..start + entry.count {
                let content = if entry.has_data() { contents.next() } else { None };
                if !wanted.contains(u8::try_from(at).expect("checked by decode")) {
                    continue;
                }
                let pfn = self.first + u64::from(at);
                match pages.zero.last_mut() {
                    Some(run) if entry.is_zero && run.first + run.count == pfn => run.count += 1,
                    _ if entry.is_zero => pages.zero.push(Run { first: pfn, count: 1 }),
                    _ => pages.data.pages.push((pfn, entry.kind)),
                }
                if let Some(content) = content.filter(|_| !is_whole) {
                    pages.data.data.extend_from_slice(content);
                }
            }
        }
        if is_whole {
            pages.data.data = bytes;
        }
        Ok(pages)
    }
}
