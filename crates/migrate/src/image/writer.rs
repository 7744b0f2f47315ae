//! Writes files and streams.

use crate::bytes::{put_u32, put_u64};
use crate::{libxc, libxl};

use super::codec::{Codec, Effort};
use super::frame::{self, Header, Kind, PREAMBLE_BYTES, TRAILER_BYTES, Trailer};
use super::head::Head;
use super::index::{At, Builder, Part, Slot};
use super::lanes::{Lane, Token};
use super::pages::{self, BLOCK_PAGES, Memory};
use crate::libxc::{PAGE_BYTES, PageData, PageType};

/// What a writer has written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Pages, of all rounds.
    pub pages: u64,
    /// Bytes of those that have contents and are not zero.
    pub raw_bytes: u64,
    /// Bytes that those became.
    pub stored_bytes: u64,
}

/// Writes a file, or one connection of a migration.
///
/// Everything is appended to a buffer, which the caller may empty between calls.
pub struct Writer {
    codec: Codec,
    lane: Lane,
    epoch: u32,
    /// Bytes and frames so far.
    offset: u64,
    frames: u64,
    pages_of_round: u64,
    counts: Counts,
    /// For files.
    index: Option<Builder>,
    memory: Memory,
}

impl Writer {
    /// A file. It has to be [finished](Self::finish), or it cannot be read by its index.
    #[must_use]
    pub fn file(head: &Head, codec: Codec, out: &mut Vec<u8>) -> Self {
        let mut writer = Self::new(Lane::ONLY, codec, Some(Builder::default()), out);
        writer.frame(out, Kind::Head, |_, out| head.encode(out));
        writer
    }

    /// The first connection of a migration, or a pipe: `lane` is number 0.
    ///
    /// # Panics
    /// If it is another lane.
    #[must_use]
    pub fn connection(
        head: &Head,
        lane: Lane,
        token: &Token,
        codec: Codec,
        out: &mut Vec<u8>,
    ) -> Self {
        assert_eq!(lane.number, 0, "the head goes over the first connection");
        let mut writer = Self::new(lane, codec, None, out);
        writer.frame(out, Kind::Head, |_, out| head.encode(out));
        writer.frame(out, Kind::Lane, |_, out| lane.encode(token, out));
        writer
    }

    /// A further connection of a migration: pages and ends of rounds only.
    ///
    /// # Panics
    /// If it is lane 0.
    #[must_use]
    pub fn further(lane: Lane, token: &Token, codec: Codec, out: &mut Vec<u8>) -> Self {
        assert_ne!(lane.number, 0, "the first connection has a head");
        let mut writer = Self::new(lane, codec, None, out);
        writer.frame(out, Kind::Lane, |_, out| lane.encode(token, out));
        writer
    }

    fn new(lane: Lane, codec: Codec, index: Option<Builder>, out: &mut Vec<u8>) -> Self {
        frame::put_preamble(out);
        let effort = if index.is_some() { Effort::OF_A_FILE } else { Effort::Usual };
        Self {
            codec,
            lane,
            epoch: 0,
            offset: PREAMBLE_BYTES as u64,
            frames: 0,
            pages_of_round: 0,
            counts: Counts::default(),
            index,
            memory: Memory::new(effort),
        }
    }

    /// How pages are stored from now on.
    pub fn set_codec(&mut self, codec: Codec) {
        self.codec = codec;
    }

    /// How much is done for fewer bytes from now on.
    pub fn set_effort(&mut self, effort: Effort) {
        self.memory.set_effort(effort);
    }

    /// The connection that it writes.
    #[must_use]
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The current round.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Bytes written so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Appends a record of any kind. The end and checkpoints of libxc's stream have frames of their own
    /// here: the former is left out, as is what says nothing.
    pub fn record(&mut self, record: &libxc::Record, out: &mut Vec<u8>) {
        match record {
            libxc::Record::PageData(data) => self.pages(data, out),
            libxc::Record::Checkpoint => self.checkpoint(out),
            libxc::Record::End | libxc::Record::Verify => {}
            empty if empty.is_empty() => {}
            record => {
                let at = self.frame(out, Kind::Record, |_, out| record.encode(out));
                if let Some(index) = &mut self.index {
                    index.state(Slot::of_record(record), at);
                }
            }
        }
    }

    /// Appends state of the device model.
    pub fn emulator(&mut self, record: &libxl::Record, out: &mut Vec<u8>) {
        let is_emulators = matches!(
            record,
            libxl::Record::EmulatorNodes { .. } | libxl::Record::EmulatorContext { .. }
        );
        if is_emulators && !record.is_empty() {
            let at = self.frame(out, Kind::Emulator, |_, out| record.encode(out));
            if let Some(index) = &mut self.index {
                index.state(Slot::of_emulator(record), at);
            }
        }
    }

    /// Appends those of the pages that this connection carries. Each replaces an earlier copy.
    pub fn pages(&mut self, data: &PageData, out: &mut Vec<u8>) {
        let (mut pages, mut contents) = (&data.pages[..], &data.data[..]);
        while let Some(&(first, _)) = pages.first() {
            let same = |pair: &&[(u64, PageType)]| {
                pair[0].0 < pair[1].0 && pair[1].0 / BLOCK_PAGES == first / BLOCK_PAGES
            };
            let count = 1 + pages.windows(2).take_while(same).count();
            let (of_frame, rest) = pages.split_at(count);
            let with_data = of_frame.iter().filter(|(_, kind)| kind.has_data()).count();
            let (of_frame_data, rest_data) = contents.split_at(with_data * PAGE_BYTES);
            if self.lane.carries(first) {
                self.pages_of_block(of_frame, of_frame_data, out);
            }
            (pages, contents) = (rest, rest_data);
        }
    }

    fn pages_of_block(&mut self, pages: &[(u64, PageType)], contents: &[u8], out: &mut Vec<u8>) {
        let block = pages[0].0 / BLOCK_PAGES;
        let (codec, mut memory) = (self.codec, std::mem::take(&mut self.memory));
        let (mut set, mut raw, mut stored) = (pages::Set::default(), 0, 0);
        let at = self.frame(out, Kind::Pages, |header, out| {
            header.first = block * BLOCK_PAGES;
            let start = out.len();
            set = pages::encode(pages, contents, codec, &mut memory, header, out);
            raw = u64::from(header.raw);
            stored = (out.len() - start) as u64 - u64::from(header.directory);
        });
        self.memory = memory;
        self.pages_of_round += pages.len() as u64;
        self.counts.pages += pages.len() as u64;
        self.counts.raw_bytes += raw;
        self.counts.stored_bytes += stored;
        if let Some(index) = &mut self.index {
            index.pages(Part { block, at, newest: set });
        }
    }

    /// The pages that follow are of the next round.
    ///
    /// # Panics
    /// After 2^32 rounds.
    pub fn end_round(&mut self, out: &mut Vec<u8>) {
        let pages = std::mem::take(&mut self.pages_of_round);
        self.frame(out, Kind::EndOfRound, |_, out| put_u64(out, pages));
        self.epoch = self.epoch.checked_add(1).expect("rounds are bounded");
    }

    /// All before is consistent.
    pub fn checkpoint(&mut self, out: &mut Vec<u8>) {
        self.frame(out, Kind::Checkpoint, |_, _| {});
    }

    /// Appends the end: of a file with its index.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        let (end, frames) = (self.offset, self.frames);
        let index = self.index.take();
        let index_frames = index.as_ref().map_or(0, Builder::frames);
        let index_frames = u32::try_from(index_frames).expect("an index is short");
        self.frame(out, Kind::End, |_, out| {
            put_u64(out, frames);
            put_u64(out, end);
            put_u32(out, u32::from(index.is_some()));
            put_u32(out, index_frames);
        });
        let Some(builder) = index else { return };
        let index = self.offset;
        let start = out.len();
        builder.encode(self.epoch, out);
        let length = index + (out.len() - start) as u64 + TRAILER_BYTES as u64;
        Trailer { end, index, length }.encode(out);
    }

    /// Appends a frame of this round.
    fn frame(
        &mut self,
        out: &mut Vec<u8>,
        kind: Kind,
        body: impl FnOnce(&mut Header, &mut Vec<u8>),
    ) -> At {
        let (start, offset) = (out.len(), self.offset);
        frame::put(out, Header::plain(kind, self.epoch), body);
        let length = u32::try_from(out.len() - start).expect("a frame is short");
        self.offset += u64::from(length);
        self.frames += 1;
        At { offset, length }
    }
}
