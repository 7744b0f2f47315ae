//! The machine's memory: owner, contents and mappings of frames.
//!
//! Frames are allocated from the top downwards in aligned extents, so that a domain's machine
//! frames are never in the order of its guest frames. A fresh frame contains a scrub pattern
//! instead of zeros; only written frames take up memory here.

use std::collections::BTreeMap;

use xen::{DomId, PAGE_BYTES};

/// Scrub pattern of a fresh frame.
const FRESH: u8 = 0xc2;

/// Whether a frame counts towards its owner's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Counted {
    Yes,
    /// Xen's own memory, shared with the domain.
    No,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    pages: u64,
    owner: DomId,
    pfn_first: u64,
    counted: Counted,
}

#[derive(Debug)]
enum Contents {
    Zero,
    Bytes(Box<[u8; PAGE_BYTES]>),
}

#[derive(Debug)]
pub(crate) struct Frames {
    pages_total: u64,
    pages_free: u64,
    free: BTreeMap<u64, u64>,
    runs: BTreeMap<u64, Run>,
    contents: BTreeMap<u64, Contents>,
    mapped: BTreeMap<u64, u32>,
    /// Largest order that can be allocated (fragmentation).
    pub(crate) order_max: u32,
}

impl Frames {
    /// Machine frames below this one belong to firmware and Xen.
    const FIRST: u64 = 0x10_0000;

    pub(crate) fn new(pages: u64) -> Self {
        Self {
            pages_total: pages,
            pages_free: pages,
            free: BTreeMap::from([(Self::FIRST, pages)]),
            runs: BTreeMap::new(),
            contents: BTreeMap::new(),
            mapped: BTreeMap::new(),
            order_max: 18,
        }
    }

    pub(crate) fn pages_total(&self) -> u64 {
        self.pages_total
    }

    pub(crate) fn pages_free(&self) -> u64 {
        self.pages_free
    }

    /// Frames that take up memory of the simulation.
    pub(crate) fn pages_materialised(&self) -> usize {
        self.contents.len()
    }

    /// Allocates `2^order` aligned frames to `owner`, the first as `pfn`.
    pub(crate) fn allocate(
        &mut self,
        owner: DomId,
        pfn: u64,
        order: u32,
        counted: Counted,
    ) -> Option<u64> {
        if order > self.order_max {
            return None;
        }
        let pages = 1_u64 << order;
        let (run_first, run_pages, first) =
            self.free.iter().rev().find_map(|(&run_first, &run_pages)| {
                let first = (run_first + run_pages).checked_sub(pages)? & !(pages - 1);
                (first >= run_first).then_some((run_first, run_pages, first))
            })?;
        self.free.remove(&run_first);
        if first > run_first {
            self.free.insert(run_first, first - run_first);
        }
        let (end, run_end) = (first + pages, run_first + run_pages);
        if end < run_end {
            self.free.insert(end, run_end - end);
        }
        self.pages_free -= pages;
        self.runs.insert(first, Run { pages, owner, pfn_first: pfn, counted });
        Some(first)
    }

    fn run(&self, mfn: u64) -> Option<(u64, Run)> {
        let (&first, &run) = self.runs.range(..=mfn).next_back()?;
        (mfn < first + run.pages).then_some((first, run))
    }

    /// The frame's owner.
    pub(crate) fn owner(&self, mfn: u64) -> Option<DomId> {
        self.run(mfn).map(|(_, run)| run.owner)
    }

    /// The frame's pfn, as in the machine-to-physical table.
    pub(crate) fn pfn(&self, mfn: u64) -> Option<u64> {
        self.run(mfn).map(|(first, run)| run.pfn_first + (mfn - first))
    }

    /// Whether the frame belongs to Xen, shared with its owner.
    pub(crate) fn is_xens(&self, mfn: u64) -> bool {
        self.run(mfn).is_some_and(|(_, run)| run.counted == Counted::No)
    }

    /// Frees the owner's frames, except mapped ones. Returns the remaining extents, and how many of
    /// their frames count.
    pub(crate) fn release(
        &mut self,
        owner: DomId,
        extents: &[(u64, u64)],
    ) -> (Vec<(u64, u64)>, u64) {
        let (mut left, mut counted) = (Vec::new(), 0);
        for &(first, pages) in extents {
            let run = self.runs.remove(&first).expect("an extent is allocated");
            assert!(run.owner == owner && run.pages == pages, "an extent belongs to one domain");
            let held: Vec<u64> =
                self.mapped.range(first..first + pages).map(|(&mfn, _)| mfn).collect();
            let mut next = first;
            for mfn in held {
                self.free_range(next, mfn - next);
                let pfn_first = run.pfn_first + (mfn - first);
                self.runs.insert(mfn, Run { pages: 1, pfn_first, ..run });
                left.push((mfn, 1));
                counted += u64::from(run.counted == Counted::Yes);
                next = mfn + 1;
            }
            self.free_range(next, first + pages - next);
        }
        (left, counted)
    }

    /// Splits off one frame, so that it can be released alone.
    pub(crate) fn carve(&mut self, mfn: u64) {
        if let Some(pfn) = self.pfn(mfn) {
            self.renumber(mfn, 1, pfn);
        }
    }

    /// Splits off a part of a run, and gives it these frame numbers.
    pub(crate) fn renumber(&mut self, first: u64, pages: u64, pfn_first: u64) {
        let Some((from, run)) = self.run(first) else { return };
        let (end, run_end) = (first + pages, from + run.pages);
        assert!(end <= run_end, "the frames belong together");
        self.runs.remove(&from);
        if from < first {
            self.runs.insert(from, Run { pages: first - from, ..run });
        }
        self.runs.insert(first, Run { pages, pfn_first, ..run });
        if end < run_end {
            let pfn_first = run.pfn_first + (end - from);
            self.runs.insert(end, Run { pages: run_end - end, pfn_first, ..run });
        }
    }

    /// Whether the frame is known to hold zeros alone.
    pub(crate) fn is_zero(&self, mfn: u64) -> bool {
        matches!(self.contents.get(&mfn), Some(Contents::Zero))
    }

    /// Whether the frame is mapped by others.
    pub(crate) fn is_mapped(&self, mfn: u64) -> bool {
        self.mapped.contains_key(&mfn)
    }

    /// The machine's last frame.
    pub(crate) fn last(&self) -> u64 {
        Self::FIRST + self.pages_total - 1
    }

    fn free_range(&mut self, first: u64, pages: u64) {
        if pages == 0 {
            return;
        }
        let held: Vec<u64> = self.contents.range(first..first + pages).map(|(&m, _)| m).collect();
        for mfn in held {
            self.contents.remove(&mfn);
        }
        self.pages_free += pages;
        let (mut start, mut end) = (first, first + pages);
        if let Some((&before, &count)) = self.free.range(..first).next_back()
            && before + count == first
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(count) = self.free.remove(&end) {
            end += count;
        }
        self.free.insert(start, end - start);
    }

    /// Adds a mapping reference to a frame.
    pub(crate) fn map(&mut self, mfn: u64) {
        *self.mapped.entry(mfn).or_default() += 1;
    }

    /// Drops a mapping reference. Returns whether it was the last.
    pub(crate) fn unmap(&mut self, mfn: u64) -> bool {
        let count = self.mapped.get_mut(&mfn).expect("an unmapped frame was mapped");
        *count -= 1;
        let last = *count == 0;
        if last {
            self.mapped.remove(&mfn);
        }
        last
    }

    pub(crate) fn mappings(&self) -> usize {
        self.mapped.len()
    }

    pub(crate) fn read(&self, mfn: u64, offset: usize, into: &mut [u8]) {
        match self.contents.get(&mfn) {
            None => into.fill(FRESH),
            Some(Contents::Zero) => into.fill(0),
            Some(Contents::Bytes(page)) => {
                into.copy_from_slice(&page[offset..offset + into.len()]);
            }
        }
    }

    pub(crate) fn write(&mut self, mfn: u64, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let whole = bytes.len() == PAGE_BYTES;
        if whole && bytes.iter().all(|&byte| byte == 0) {
            self.contents.insert(mfn, Contents::Zero);
            return;
        }
        let page = self
            .contents
            .entry(mfn)
            .or_insert_with(|| Contents::Bytes(Box::new([FRESH; PAGE_BYTES])));
        if let Contents::Zero = page {
            *page = Contents::Bytes(Box::new([0; PAGE_BYTES]));
        }
        if let Contents::Bytes(page) = page {
            page[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The page's bytes, to be changed in place.
    pub(crate) fn page_mut(&mut self, mfn: u64) -> &mut [u8; PAGE_BYTES] {
        let page = self
            .contents
            .entry(mfn)
            .or_insert_with(|| Contents::Bytes(Box::new([FRESH; PAGE_BYTES])));
        if let Contents::Zero = page {
            *page = Contents::Bytes(Box::new([0; PAGE_BYTES]));
        }
        match page {
            Contents::Bytes(page) => page,
            Contents::Zero => unreachable!("it was turned into bytes above"),
        }
    }

    pub(crate) fn u64(&self, mfn: u64, word: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(mfn, word * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: DomId = DomId(1);

    #[test]
    fn a_fresh_frame_holds_garbage_until_it_is_written() {
        let mut frames = Frames::new(64);
        let mfn = frames.allocate(OWNER, 0, 0, Counted::Yes).unwrap();
        let mut bytes = [0; 4];
        frames.read(mfn, 100, &mut bytes);
        assert_eq!(bytes, [FRESH; 4]);
        frames.write(mfn, 101, &[1, 2]);
        frames.read(mfn, 100, &mut bytes);
        assert_eq!(bytes, [FRESH, 1, 2, FRESH]);
        frames.write(mfn, 0, &[0; PAGE_BYTES]);
        frames.read(mfn, 100, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn freed_frames_join_again_to_the_largest_extent() {
        let mut frames = Frames::new(64);
        let extents: Vec<(u64, u64)> =
            (0..64).map(|pfn| (frames.allocate(OWNER, pfn, 0, Counted::Yes).unwrap(), 1)).collect();
        assert_eq!(frames.allocate(OWNER, 0, 0, Counted::Yes), None);
        assert_eq!(frames.release(OWNER, &extents), (vec![], 0));
        assert_eq!(frames.pages_free(), 64);
        assert!(frames.allocate(OWNER, 0, 6, Counted::Yes).is_some());
    }

    #[test]
    fn a_frame_from_the_middle_of_an_extent_is_released_alone() {
        let mut frames = Frames::new(64);
        let first = frames.allocate(OWNER, 16, 3, Counted::Yes).unwrap();
        frames.carve(first + 2);
        assert_eq!(frames.release(OWNER, &[(first + 2, 1)]), (vec![], 0));
        assert_eq!((frames.pages_free(), frames.owner(first + 2)), (64 - 7, None));
        assert_eq!((frames.pfn(first + 1), frames.pfn(first + 3)), (Some(17), Some(19)));
        assert_eq!(frames.release(OWNER, &[(first, 2), (first + 3, 5)]), (vec![], 0));
        assert_eq!(frames.pages_free(), 64);
    }

    #[test]
    fn a_mapped_frame_outlives_the_release_of_its_extent() {
        let mut frames = Frames::new(64);
        let first = frames.allocate(OWNER, 16, 3, Counted::Yes).unwrap();
        frames.map(first + 2);
        let (left, counted) = frames.release(OWNER, &[(first, 8)]);
        assert_eq!((left.as_slice(), counted), (&[(first + 2, 1)][..], 1));
        assert_eq!((frames.owner(first + 1), frames.owner(first + 2)), (None, Some(OWNER)));
        assert_eq!(frames.pfn(first + 2), Some(18));
        assert!(frames.unmap(first + 2));
        assert_eq!(frames.release(OWNER, &left), (vec![], 0));
        assert_eq!(frames.pages_free(), 64);
    }
}
