//! Where the newest copy of everything is in a file.

use std::collections::BTreeMap;

use crate::bytes::{Fields, put_u32, put_u64};
use crate::error::Fault;
use crate::{libxc, libxl};

use super::frame::{self, HEADER_BYTES, Header, Kind};
use super::pages::{BLOCK_PAGES, Set};

/// Entries of one frame of the index.
const ENTRIES_MAX: usize = 4096;
const PAGES_ENTRY_BYTES: usize = 56;
const STATE_ENTRY_BYTES: usize = 16;
/// Bytes of all that is no page: registers of thousands of vCPUs, or the list of a PV guest's frames.
const STATE_BYTES_MAX: u64 = 128 << 20;

/// A frame of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct At {
    pub(crate) offset: u64,
    /// Of header and body.
    pub(crate) length: u32,
}

impl At {
    /// For one that [is within](Self::is_within) a file.
    fn end(self) -> u64 {
        self.offset.saturating_add(self.length.into())
    }

    /// Whether a frame with at most such a body can be there, in this part of the file.
    fn is_within(self, (start, end): (u64, u64), body_bytes_max: usize) -> bool {
        self.offset >= start
            && (HEADER_BYTES..=HEADER_BYTES + body_bytes_max).contains(&(self.length as usize))
            && self.offset.checked_add(self.length.into()).is_some_and(|it| it <= end)
    }
}

/// A frame of pages, with those of which it has the newest copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Part {
    pub(crate) block: u64,
    pub(crate) at: At,
    pub(crate) newest: Set,
}

/// When a record is read, and what tells it from others.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Slot {
    pub(crate) phase: Phase,
    kind: u32,
    number: u32,
}

/// What comes when, to a loader.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Phase {
    BeforePages,
    AfterPages,
    Emulator,
}

impl Phase {
    const ALL: [Self; 3] = [Self::BeforePages, Self::AfterPages, Self::Emulator];

    fn code(self) -> u32 {
        match self {
            Self::BeforePages => 0,
            Self::AfterPages => 1,
            Self::Emulator => 2,
        }
    }
}

impl Slot {
    pub(crate) fn of_record(record: &libxc::Record) -> Self {
        use libxc::Record as R;
        let phase = match record {
            R::PvInfo { .. }
            | R::P2mFrames(_)
            | R::CpuidPolicy(_)
            | R::MsrPolicy(_)
            | R::StaticDataEnd => Phase::BeforePages,
            R::End
            | R::PageData(_)
            | R::Vcpu(_)
            | R::SharedInfo(_)
            | R::Tsc(_)
            | R::HvmContext(_)
            | R::HvmParams(_)
            | R::Verify
            | R::Checkpoint => Phase::AfterPages,
        };
        let number = match record {
            R::Vcpu(blob) => blob.vcpu,
            R::P2mFrames(p2m) => p2m.start,
            _ => 0,
        };
        Self { phase, kind: record.kind(), number }
    }

    pub(crate) fn of_emulator(record: &libxl::Record) -> Self {
        let (kind, number) = match record {
            libxl::Record::EmulatorNodes { index, .. } => (0, *index),
            libxl::Record::EmulatorContext { index, .. } => (1, *index),
            libxl::Record::End | libxl::Record::LibxcContext | libxl::Record::CheckpointEnd => {
                (2, 0)
            }
        };
        Self { phase: Phase::Emulator, kind, number }
    }
}

/// An index while its file is written: what was replaced is dropped.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    blocks: BTreeMap<u64, Vec<Part>>,
    state: BTreeMap<Slot, At>,
}

impl Builder {
    pub(crate) fn pages(&mut self, part: Part) {
        let parts = self.blocks.entry(part.block).or_default();
        for older in &mut *parts {
            older.newest = older.newest.without(part.newest);
        }
        parts.retain(|older| !older.newest.is_empty());
        parts.push(part);
    }

    pub(crate) fn state(&mut self, slot: Slot, at: At) {
        self.state.insert(slot, at);
    }

    /// Frames that [`encode`](Self::encode) will append.
    pub(crate) fn frames(&self) -> usize {
        let parts: usize = self.blocks.values().map(Vec::len).sum();
        self.state.len().div_ceil(ENTRIES_MAX) + parts.div_ceil(ENTRIES_MAX)
    }

    pub(crate) fn encode(&self, epoch: u32, out: &mut Vec<u8>) {
        let mut state: Vec<(Phase, At)> =
            self.state.iter().map(|(slot, at)| (slot.phase, *at)).collect();
        state.sort_by_key(|(phase, at)| (*phase, at.offset));
        for entries in state.chunks(ENTRIES_MAX) {
            frame::put(out, Header::plain(Kind::IndexState, epoch), |_, out| {
                for (phase, at) in entries {
                    put_u64(out, at.offset);
                    put_u32(out, at.length);
                    put_u32(out, phase.code());
                }
            });
        }
        let mut parts: Vec<&Part> = self.blocks.values().flatten().collect();
        parts.sort_by_key(|part| part.at.offset);
        for entries in parts.chunks(ENTRIES_MAX) {
            frame::put(out, Header::plain(Kind::IndexPages, epoch), |_, out| {
                for part in entries {
                    put_u64(out, part.block);
                    put_u64(out, part.at.offset);
                    put_u32(out, part.at.length);
                    put_u32(out, 0);
                    part.newest.words().iter().for_each(|word| put_u64(out, *word));
                }
            });
        }
    }
}

/// The index of a file that is read.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// In the order of the file.
    pub(crate) parts: Vec<Part>,
    /// Each phase in the order of the file.
    pub(crate) state: Vec<(Phase, At)>,
    state_bytes: u64,
    /// Numbers of the parts of each block.
    blocks: BTreeMap<u64, Vec<usize>>,
}

impl Index {
    /// Takes a frame of the index of a file whose frames are within these bounds.
    pub(crate) fn add(
        &mut self,
        header: &Header,
        body: &[u8],
        bounds: (u64, u64),
        pfn_max: u64,
    ) -> Result<(), Fault> {
        let wrong = || Fault::Length(body.len() as u64);
        match header.kind {
            Kind::IndexState if body.len().is_multiple_of(STATE_ENTRY_BYTES) => {
                let mut fields = Fields(body);
                while !fields.is_empty() {
                    let (phase, at) = state_entry(&mut fields).ok_or_else(wrong)?;
                    let known = Phase::ALL.into_iter().find(|it| it.code() == phase);
                    let known = known.ok_or(Fault::Unknown("the phase", phase.into()))?;
                    // Entries that name one frame again and again would be many times the file.
                    let is_behind = self.state.last().is_none_or(|(phase, last)| {
                        *phase < known || *phase == known && last.end() <= at.offset
                    });
                    if !at.is_within(bounds, frame::BODY_BYTES_MAX) || !is_behind {
                        return Err(Fault::Mismatch("an entry of the index"));
                    }
                    self.state_bytes += u64::from(at.length);
                    if self.state_bytes > STATE_BYTES_MAX {
                        return Err(Fault::TooLong(self.state_bytes));
                    }
                    self.state.push((known, at));
                }
                Ok(())
            }
            Kind::IndexPages if body.len().is_multiple_of(PAGES_ENTRY_BYTES) => {
                let mut fields = Fields(body);
                while !fields.is_empty() {
                    let part = pages_entry(&mut fields).ok_or_else(wrong)?;
                    let is_there = part.at.is_within(bounds, frame::PAGES_BODY_BYTES_MAX)
                        && self.parts.last().is_none_or(|last| last.at.end() <= part.at.offset);
                    if !is_there || part.newest.is_empty() {
                        return Err(Fault::Mismatch("an entry of the index"));
                    }
                    if part.block > pfn_max / BLOCK_PAGES {
                        return Err(Fault::PageBeyond(part.block.saturating_mul(BLOCK_PAGES)));
                    }
                    self.add_part(part)?;
                }
                Ok(())
            }
            Kind::IndexState | Kind::IndexPages => Err(wrong()),
            _ => Err(Fault::UnknownRecord),
        }
    }

    /// No page has two newest copies.
    fn add_part(&mut self, part: Part) -> Result<(), Fault> {
        let of_block = self.blocks.entry(part.block).or_default();
        if of_block.iter().any(|other| self.parts[*other].newest.overlaps(part.newest)) {
            return Err(Fault::Mismatch("an entry of the index"));
        }
        of_block.push(self.parts.len());
        self.parts.push(part);
        Ok(())
    }

    /// The part that has the newest copy of a page.
    pub(crate) fn part_of(&self, pfn: u64) -> Option<usize> {
        let position = super::pages::position(pfn);
        let of_block = self.blocks.get(&(pfn / BLOCK_PAGES))?;
        of_block.iter().copied().find(|part| self.parts[*part].newest.contains(position))
    }
}

fn state_entry(fields: &mut Fields<'_>) -> Option<(u32, At)> {
    let at = At { offset: fields.u64()?, length: fields.u32()? };
    Some((fields.u32()?, at))
}

fn pages_entry(fields: &mut Fields<'_>) -> Option<Part> {
    let block = fields.u64()?;
    let at = At { offset: fields.u64()?, length: fields.u32()? };
    fields.u32()?;
    let words = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
    Some(Part { block, at, newest: Set::from_words(words) })
}
