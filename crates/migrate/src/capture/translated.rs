//! The memory and state of PVH and HVM domains.

use xen::{Batch, Dirty, DomId, DomainInfo, FrameUse, Hypervisor, Xen};

use super::{CaptureError, Round, fill, memory};
use crate::frames::{BLOCK_FRAMES, FrameSet};
use crate::hvm_params;
use crate::libxc::{PageData, PageType, Record};

/// Frames below 4 GiB, which have addresses whatever the domain's size.
const LOW_FRAMES: u64 = 1 << 20;

/// Frames that Xen is asked about at a time: as many as it takes.
const ASKED_FRAMES: usize = 1024;

/// What is known of a translated domain's frames.
#[derive(Debug, Default)]
pub(crate) struct Translated {
    frames: FrameSet,
    /// What Xen said when they were looked for.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Seen {
    pages: u64,
    /// One more than the highest frame.
    end: u64,
}

/// How the domain's frames differ from those of the last round.
#[derive(Debug, Default)]
pub(crate) struct Change {
    come: Vec<u64>,
    gone: Vec<u64>,
}

impl Translated {
    pub(super) fn end(&self) -> u64 {
        self.seen.map_or(0, |seen| seen.end)
    }

    /// What was learnt is old.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn all(&self) -> FrameSet {
        self.frames.clone()
    }

    /// Those that are known, and of which none has turned out to be gone.
    pub(crate) fn frames(&self) -> &FrameSet {
        &self.frames
    }

    /// Looks for the domain's frames, unless nothing has changed since the last time.
    pub(crate) fn learn<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        info: &DomainInfo,
    ) -> Result<Change, CaptureError> {
        let refused = CaptureError::refused(info.domid, "ask for its highest frame");
        let last = xen.last_frame(info.domid).map_err(refused)?;
        // Further frames can be mapped, but are not memory: the toolstack gives none there.
        let end = last.saturating_add(1).min(LOW_FRAMES.saturating_add(info.pages_max));
        let now = Seen { pages: info.pages, end };
        if self.seen == Some(now) {
            return Ok(Change::default());
        }
        let before = std::mem::replace(&mut self.frames, look(xen, info, end)?);
        self.seen = Some(now);
        Ok(Change {
            come: self.frames.iter().filter(|frame| !before.contains(*frame)).collect(),
            gone: before.iter().filter(|frame| !self.frames.contains(*frame)).collect(),
        })
    }

    /// The frames to read again.
    pub(super) fn dirtied<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        domid: DomId,
        dirty: &Dirty,
        change: Change,
    ) -> Result<FrameSet, CaptureError> {
        let (mut again, mut unknown) = (FrameSet::default(), Vec::new());
        for frame in dirty.frames() {
            if self.frames.contains(frame) {
                again.insert(frame);
            } else {
                unknown.push(frame);
            }
        }
        for frame in memory_among(xen, domid, unknown.into_iter())? {
            self.frames.insert(frame);
            again.insert(frame);
        }
        // Xen before 4.22 logs no page that is added. What is gone is told to whoever has it.
        for frame in change.come.into_iter().chain(change.gone) {
            again.insert(frame);
        }
        Ok(again)
    }

    /// Reads frames into a batch. Those that are gone are told as such.
    pub(crate) fn read<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        domid: DomId,
        round: Round,
        frames: &[u64],
        batch: &mut PageData,
    ) -> Result<(), CaptureError> {
        let known = frames.iter().copied().filter(|frame| self.frames.contains(*frame));
        let mut present: Vec<u64> = known.collect();
        if fill(xen, domid, &present, batch).is_err() {
            // Some went since, and may go at any time while the guest runs.
            present = memory_among(xen, domid, frames.iter().copied())?;
            if fill(xen, domid, &present, batch).is_err() {
                present = read_singly(xen, domid, round, &present, batch)?;
            }
        }
        let mut read = present.into_iter().peekable();
        for &frame in frames {
            if read.next_if_eq(&frame).is_some() {
                batch.pages.push(memory(frame));
            } else {
                self.frames.remove(frame);
                batch.pages.push((frame, PageType::Invalid));
            }
        }
        Ok(())
    }
}

/// Reads frames one by one; returns those that could be read.
fn read_singly<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    round: Round,
    frames: &[u64],
    batch: &mut PageData,
) -> Result<Vec<u64>, CaptureError> {
    let (mut read, mut data) = (Vec::new(), Vec::new());
    for &frame in frames {
        match (fill(xen, domid, &[frame], batch), round) {
            (Ok(()), _) => {
                data.extend_from_slice(&batch.data);
                read.push(frame);
            }
            (Err(_), Round::Live) => {}
            (Err(error), Round::Last) => return Err(error),
        }
    }
    batch.data = data;
    Ok(read)
}

/// The domain's frames below `end`: memory of its own, not of Xen or a device.
///
/// Most of the address space is a hole. So each block of frames is asked for its ends first, and
/// only those with one of them in full, unless that does not find all of the domain's pages.
fn look<H: Hypervisor>(
    xen: &mut Xen<H>,
    info: &DomainInfo,
    end: u64,
) -> Result<FrameSet, CaptureError> {
    let blocks = end.div_ceil(BLOCK_FRAMES);
    let last_of = |block: u64| (block * BLOCK_FRAMES + BLOCK_FRAMES - 1).min(end - 1);
    let ends = (0..blocks).flat_map(|block| [block * BLOCK_FRAMES, last_of(block)]);
    let found = memory_among(xen, info.domid, ends)?;
    let mut likely: Vec<u64> = found.into_iter().map(|frame| frame / BLOCK_FRAMES).collect();
    likely.dedup();
    let in_full = |block: u64| block * BLOCK_FRAMES..last_of(block) + 1;
    let inside = likely.iter().copied().flat_map(in_full);
    let mut frames = FrameSet::from_iter(memory_among(xen, info.domid, inside)?);
    if frames.len() < info.pages {
        let others = (0..blocks).filter(|block| likely.binary_search(block).is_err());
        for frame in memory_among(xen, info.domid, others.flat_map(in_full))? {
            frames.insert(frame);
        }
    }
    Ok(frames)
}

/// Those of the frames that are the domain's memory.
fn memory_among<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    mut frames: impl Iterator<Item = u64>,
) -> Result<Vec<u64>, CaptureError> {
    let mut memory = Vec::new();
    loop {
        let asked: Vec<u64> = frames.by_ref().take(ASKED_FRAMES).collect();
        if asked.is_empty() {
            return Ok(memory);
        }
        let refused = CaptureError::refused(domid, "ask which frames it has");
        let uses = xen.frame_uses(domid, &asked).map_err(refused)?;
        let present = asked.into_iter().zip(uses);
        memory.extend(present.filter(|(_, is)| *is == FrameUse::Memory).map(|(frame, _)| frame));
    }
}

/// Context and parameters.
pub(super) fn state<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
) -> Result<[Record; 2], CaptureError> {
    let context = xen.hvm_context(domid);
    let context = context.map_err(CaptureError::refused(domid, "read its HVM context"))?;
    let refused = CaptureError::refused(domid, "read its parameters");
    let mut batch = Batch::default();
    for param in hvm_params::SAVED {
        batch.hvm_param(domid, param);
    }
    let answers = xen.issue(&batch).map_err(&refused)?;
    let mut params = Vec::new();
    for (param, answer) in hvm_params::SAVED.into_iter().zip(answers) {
        let value = answer.hvm_param().map_err(&refused)?;
        if value != 0 {
            params.push((param as u64, value));
        }
    }
    Ok([Record::HvmContext(context), Record::HvmParams(params)])
}
