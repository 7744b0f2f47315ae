//! A PV guest's list of its machine frames (p2m), which it keeps for this purpose.
//!
//! The list is in frames of the guest, its leaves. They are found by page tables that map them one
//! after the other (`p2m_cr3`, `p2m_vaddr`), or by a list of lists of them. Guests that may grow have
//! room in the list for far more memory than they have, all of it in one leaf or table without
//! frames, which is there many times.
//!
//! Source: `xen/include/public/arch-x86/xen.h` (`arch_shared_info`).

use xen::{DomId, DomainInfo, Hypervisor, PAGE_BYTES, PAGE_SHIFT, Xen};

use super::CaptureError;
use crate::layout::{PTE_FRAME, PTE_LARGE, PTE_PRESENT, PTES, shared, u64_at};
use crate::libxc::P2mFrames;

/// Entries of a frame.
const ENTRIES: u64 = PTES as u64;
/// Frames read by one call.
const READ_FRAMES: usize = 1024;

/// The list as it was when it was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct P2m {
    /// One more than the highest frame number.
    pages: u64,
    /// Frame numbers of the leaves.
    leaves: Vec<u64>,
    /// Frame numbers and their machine frames, ascending. As pairs, since a guest may have a list of
    /// leaves with one frame each.
    frames: Vec<(u64, u64)>,
    /// Frame numbers by machine frame, ascending. One that is there twice is nobody's.
    inverse: Vec<(u64, u64)>,
}

/// Entries that a list may have whatever the domain's size: room to grow up to 1 TiB.
const PAGES_ROOM: u64 = 1 << 28;
/// Entries that any list may have. Its frames fit into one record.
const PAGES_MAX: u64 = (1 << 32) - (1 << 20);
/// Machine frames that are named beyond those of the domain, such as those of devices.
const FRAMES_ROOM: u64 = 1 << 16;

/// A reader of frames of one domain.
struct Reader<'a, H> {
    xen: &'a mut Xen<H>,
    domid: DomId,
    /// The machine's last frame.
    last: u64,
}

impl P2m {
    pub(crate) fn read<H: Hypervisor>(
        xen: &mut Xen<H>,
        info: &DomainInfo,
        shared_info: &[u8],
    ) -> Result<Self, CaptureError> {
        let (domid, pages_max) = (info.domid, info.pages_max);
        let unusable = |what, value| CaptureError::P2m { domid, what, value };
        let pages = u64_at(shared_info, shared::PAGES);
        if pages == 0 {
            return Err(unusable("is not there: the guest does not support being saved", 0));
        }
        // What it takes here is in proportion to the domain.
        if pages > pages_max.saturating_mul(8).clamp(PAGES_ROOM, PAGES_MAX) {
            return Err(unusable("is longer than that of a domain of its size", pages));
        }
        let refused = CaptureError::refused(domid, "ask for the machine's last frame");
        let last = xen.last_machine_frame().map_err(refused)?;
        let mut reader = Reader { xen, domid, last };
        let count = pages.div_ceil(ENTRIES);
        let leaves = match u64_at(shared_info, shared::P2M_ROOT) {
            0 => reader.by_lists(u64_at(shared_info, shared::FRAME_LIST_LIST), count)?,
            root => reader.by_tables(root, u64_at(shared_info, shared::P2M_ADDRESS), count)?,
        };
        let pages = pages.min(leaves.len() as u64 * ENTRIES);
        let frames_max = pages_max.saturating_mul(2).saturating_add(FRAMES_ROOM);
        let inverse = alone(reader.frames(&leaves, pages, frames_max)?);
        let mut frames: Vec<(u64, u64)> = inverse.iter().map(|(mfn, pfn)| (*pfn, *mfn)).collect();
        frames.sort_unstable();
        let mut p2m = Self { pages, leaves: Vec::new(), frames, inverse };
        for leaf in leaves {
            let pfn = p2m.pfn(leaf);
            p2m.leaves.push(pfn.ok_or(unusable("lies in a frame that is not in it", leaf))?);
        }
        Ok(p2m)
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// The frames that the list lies in, as in a stream.
    pub(super) fn frames(&self) -> P2mFrames {
        let end = u32::try_from(self.pages - 1).expect("checked when it was read");
        P2mFrames { start: 0, end, frames: self.leaves.clone() }
    }

    /// Whether it lies where another did.
    pub(super) fn is_where(&self, other: &Self) -> bool {
        (self.pages, &self.leaves) == (other.pages, &other.leaves)
    }

    /// The machine frame of a frame number.
    pub(crate) fn mfn(&self, pfn: u64) -> Option<u64> {
        let at = self.frames.binary_search_by_key(&pfn, |(pfn, _)| *pfn).ok()?;
        Some(self.frames[at].1)
    }

    /// The frame number of a machine frame.
    pub(super) fn pfn(&self, mfn: u64) -> Option<u64> {
        let at = self.inverse.binary_search_by_key(&mfn, |(mfn, _)| *mfn).ok()?;
        Some(self.inverse[at].1)
    }

    /// All frame numbers that have a machine frame.
    pub(crate) fn pfns(&self) -> impl Iterator<Item = u64> + '_ {
        self.frames.iter().map(|(pfn, _)| *pfn)
    }

    /// And their machine frames.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.frames.iter().copied()
    }
}

/// Frame numbers by machine frame, but for machine frames that are there twice.
fn alone(mut all: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    all.sort_unstable();
    let same = all.chunk_by(|one, other| one.0 == other.0);
    same.filter(|same| same.len() == 1).flatten().copied().collect()
}

/// Leaves out what is the same at the end: it has no frames, or they could not be told apart.
fn trim(frames: &mut Vec<u64>) {
    let Some(&last) = frames.last() else { return };
    let same = frames.iter().rev().take_while(|frame| **frame == last).count();
    if same > 1 {
        frames.truncate((frames.len() - same).max(1));
    }
}

impl<H: Hypervisor> Reader<'_, H> {
    fn unusable(&self, what: &'static str, value: u64) -> CaptureError {
        CaptureError::P2m { domid: self.domid, what, value }
    }

    fn checked(&self, mfn: u64) -> Result<u64, CaptureError> {
        if mfn == 0 || mfn > self.last {
            return Err(self.unusable("leads to a frame that the machine does not have", mfn));
        }
        Ok(mfn)
    }

    /// Reads the words of frames, one frame after the other. A frame that is there several times is read
    /// once.
    fn words(
        &mut self,
        frames: &[u64],
        mut each: impl FnMut(&Self, usize, &[u8]) -> Result<(), CaptureError>,
    ) -> Result<(), CaptureError> {
        let mut bytes = Vec::new();
        let mut done = 0;
        for frames in frames.chunks(READ_FRAMES) {
            let mut distinct = frames.to_vec();
            distinct.sort_unstable();
            distinct.dedup();
            bytes.resize(distinct.len() * PAGE_BYTES, 0);
            self.xen.read_foreign(self.domid, &distinct, 0, &mut bytes)?;
            for frame in frames {
                let at = distinct.binary_search(frame).expect("it was read");
                each(self, done, &bytes[at * PAGE_BYTES..][..PAGE_BYTES])?;
                done += 1;
            }
        }
        Ok(())
    }

    /// The leaves, by three levels of lists.
    fn by_lists(&mut self, top: u64, count: u64) -> Result<Vec<u64>, CaptureError> {
        let lists = count.div_ceil(ENTRIES);
        if top == 0 {
            return Err(self.unusable("is not there: the guest does not support being saved", 0));
        }
        if lists > ENTRIES {
            return Err(self.unusable("is longer than three levels can be", count * ENTRIES));
        }
        let top = self.checked(top)?;
        let mut lists = self.entries_of(&[top], 0..lists, |_, word| Ok(word))?;
        trim(&mut lists);
        let count = count.min(lists.len() as u64 * ENTRIES);
        let mut leaves = self.entries_of(&lists, 0..count, |_, word| Ok(word))?;
        trim(&mut leaves);
        Ok(leaves)
    }

    /// The leaves, by the page tables that map them.
    fn by_tables(&mut self, root: u64, from: u64, count: u64) -> Result<Vec<u64>, CaptureError> {
        let is_high = |address: u64| address >> 47 == 0x1_ffff;
        let is_canonical = |address: u64| address >> 47 == 0 || is_high(address);
        let last = from.checked_add(count * PAGE_BYTES as u64 - 1);
        let fits = |last: &u64| {
            is_canonical(from) && is_high(from) == is_high(*last) && is_canonical(*last)
        };
        let Some(last) = last.filter(fits).filter(|_| from.is_multiple_of(PAGE_BYTES as u64))
        else {
            return Err(self.unusable("is mapped at no address for it", from));
        };
        const ADDRESS: u64 = (1 << 48) - 1;
        let (from, mut last) = (from & ADDRESS, last & ADDRESS);
        let mut tables = vec![self.checked(root >> PAGE_SHIFT)?];
        for level in (1..=4).rev() {
            let shift = PAGE_SHIFT + 9 * (level - 1);
            let (first, end) = (from >> shift, (last >> shift) + 1);
            let start = first % ENTRIES;
            let range = start..start + (end - first);
            tables = self.entries_of(&tables, range, |reader, entry| {
                let is_leaf = level == 1 || entry & PTE_LARGE == 0;
                match entry & PTE_PRESENT != 0 && is_leaf {
                    true => Ok((entry & PTE_FRAME) >> PAGE_SHIFT),
                    false => Err(reader.unusable("is not mapped where it should be", entry)),
                }
            })?;
            if level <= 2 {
                trim(&mut tables);
                last = last.min(((first + tables.len() as u64) << shift) - 1);
            }
        }
        Ok(tables)
    }

    /// Frames named by entries of a range over all the frames.
    fn entries_of(
        &mut self,
        frames: &[u64],
        range: core::ops::Range<u64>,
        frame_of: impl Fn(&Self, u64) -> Result<u64, CaptureError>,
    ) -> Result<Vec<u64>, CaptureError> {
        let mut words = Vec::new();
        self.words(frames, |_, frame, bytes| {
            let first = frame as u64 * ENTRIES;
            for (at, word) in (first..).zip(bytes.chunks_exact(8)) {
                if range.contains(&at) {
                    words.push(u64_at(word, 0));
                }
            }
            Ok(())
        })?;
        words.into_iter().map(|word| self.checked(frame_of(self, word)?)).collect()
    }

    /// The machine frames that leaves name, at most so many, and their frame numbers. A leaf that is
    /// there several times names none.
    fn frames(
        &mut self,
        leaves: &[u64],
        pages: u64,
        most: u64,
    ) -> Result<Vec<(u64, u64)>, CaptureError> {
        let sorted: Vec<(u64, u64)> = leaves.iter().copied().zip(0..).collect();
        let mut alone: Vec<(u64, u64)> =
            alone(sorted).into_iter().map(|(frame, leaf)| (leaf, frame)).collect();
        alone.sort_unstable();
        let of_leaves: Vec<u64> = alone.iter().map(|(_, frame)| *frame).collect();
        let mut frames = Vec::new();
        self.words(&of_leaves, |reader, frame, bytes| {
            let first = alone[frame].0 * ENTRIES;
            let named = (first..pages).zip(bytes.chunks_exact(8).map(|word| u64_at(word, 0)));
            frames
                .extend(named.filter(|(_, mfn)| *mfn <= reader.last).map(|(pfn, mfn)| (mfn, pfn)));
            match frames.len() as u64 {
                count if count > most => {
                    Err(reader.unusable("names more frames than the domain can have", count))
                }
                _ => Ok(()),
            }
        })?;
        Ok(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_at_the_end_of_a_list_is_left_out() {
        for (list, left) in [
            (&[][..], &[][..]),
            (&[7], &[7]),
            (&[7, 8], &[7, 8]),
            (&[7, 8, 8], &[7]),
            (&[8, 8, 8], &[8]),
            (&[8, 8, 7], &[8, 8, 7]),
        ] {
            let mut trimmed = list.to_vec();
            trim(&mut trimmed);
            assert_eq!(trimmed, left, "{list:?}");
        }
    }

    #[test]
    fn a_machine_frame_that_is_there_twice_is_nobodys() {
        assert_eq!(alone(vec![(6, 1), (5, 0), (6, 1024)]), [(5, 0)]);
    }
}
