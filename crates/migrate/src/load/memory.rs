//! The memory of a domain that is being loaded.

use std::collections::BTreeMap;

use xen::{DomId, Hypervisor, PAGE_BYTES, Piece, Xen};

use super::LoadError;
use crate::frames::{BLOCK_FRAMES, FrameSet};
use crate::libxc::{DomainType, PageData, PageType};

/// Frames below 4 GiB, which have addresses whatever the domain's size.
const LOW_FRAMES: u64 = 1 << 20;
const BLOCK_ORDER: u32 = 9;

/// Which frames the domain has.
#[derive(Debug)]
pub(super) struct Memory {
    domid: DomId,
    pages_max: u64,
    /// The last frame that it can have.
    last: u64,
    names: Names,
    pages: u64,
    /// Frames that had come and are gone in the stream.
    vanished: FrameSet,
    /// The host has no large extents left.
    is_fragmented: bool,
}

/// How frames are named in foreign mappings.
#[derive(Debug)]
enum Names {
    /// By themselves.
    Same(FrameSet),
    /// By machine frame.
    Machine(P2m),
}

/// Machine frames of a PV domain, in the blocks of its own list.
#[derive(Debug, Default)]
pub(super) struct P2m(BTreeMap<u64, Block>);

/// Those of one block. A stream may name one page of each, which must not cost a page here.
#[derive(Debug)]
enum Block {
    /// By their places, ascending.
    Few(Vec<(u16, u64)>),
    Many(Box<[u64; ENTRIES]>),
}

/// A block with more frames than this is kept in full.
const FEW: usize = 64;
const ENTRIES: usize = 512;
/// No machine frame.
pub(super) const NONE: u64 = u64::MAX;

fn place(pfn: u64) -> (u64, usize) {
    let at = usize::try_from(pfn % BLOCK_FRAMES).expect("below 512");
    (pfn / BLOCK_FRAMES, at)
}

impl P2m {
    fn get(&self, pfn: u64) -> Option<u64> {
        let (block, at) = place(pfn);
        self.0.get(&block)?.get(at)
    }

    fn set(&mut self, pfn: u64, mfn: u64) {
        let (block, at) = place(pfn);
        self.0.entry(block).or_insert(Block::Few(Vec::new())).set(at, mfn);
    }
}

impl Block {
    fn get(&self, at: usize) -> Option<u64> {
        let mfn = match self {
            Self::Few(few) => {
                let found = few.binary_search_by_key(&at, |(at, _)| usize::from(*at)).ok()?;
                few[found].1
            }
            Self::Many(all) => all[at],
        };
        (mfn != NONE).then_some(mfn)
    }

    fn set(&mut self, at: usize, mfn: u64) {
        if let Self::Few(few) = self {
            let found = few.binary_search_by_key(&at, |(at, _)| usize::from(*at));
            match found {
                Ok(found) => few[found].1 = mfn,
                Err(_) if few.len() == FEW => *self = Self::Many(self.all()),
                Err(place) => few.insert(place, (u16::try_from(at).expect("below 512"), mfn)),
            }
        }
        if let Self::Many(all) = self {
            all[at] = mfn;
        }
    }

    /// All of its machine frames.
    fn all(&self) -> Box<[u64; ENTRIES]> {
        match self {
            Self::Many(all) => all.clone(),
            Self::Few(few) => {
                let mut all = Box::new([NONE; ENTRIES]);
                few.iter().for_each(|(at, mfn)| all[usize::from(*at)] = *mfn);
                all
            }
        }
    }
}

impl Memory {
    pub(super) fn new(domid: DomId, domain: DomainType, pages_max: u64) -> Self {
        let (names, last) = match domain {
            DomainType::Hvm => {
                (Names::Same(FrameSet::default()), LOW_FRAMES.saturating_add(pages_max))
            }
            // Told by the stream: no frame is known yet.
            DomainType::Pv => (Names::Machine(P2m::default()), 0),
        };
        Self {
            domid,
            pages_max,
            last,
            names,
            pages: 0,
            vanished: FrameSet::default(),
            is_fragmented: false,
        }
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// The last frame that the domain can have.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Allows frames up to this one.
    pub(super) fn extend(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// How a frame is named in foreign mappings, if the domain has it.
    pub(super) fn name(&self, pfn: u64) -> Option<u64> {
        match &self.names {
            Names::Same(frames) => frames.contains(pfn).then_some(pfn),
            Names::Machine(p2m) => p2m.get(pfn),
        }
    }

    /// Machine frames of the block of the list that begins with this frame; `None` if it has none.
    pub(super) fn block(&self, number: u64) -> Option<Box<[u64; ENTRIES]>> {
        match &self.names {
            Names::Same(_) => None,
            Names::Machine(p2m) => p2m.0.get(&number).map(Block::all),
        }
    }

    /// Loads pages as they are, and others that are zero.
    pub(super) fn load<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        data: &PageData,
        zero: &[u64],
    ) -> Result<(), LoadError> {
        self.note(xen, &data.pages)?;
        let zeros: Vec<(u64, PageType)> = zero.iter().map(|pfn| (*pfn, PageType::Normal)).collect();
        self.note(xen, &zeros)?;
        let with_data = data.pages.iter().filter(|(_, kind)| kind.has_data());
        let with_data: Vec<u64> = with_data.map(|(pfn, _)| *pfn).collect();
        if with_data.len().checked_mul(PAGE_BYTES) != Some(data.data.len()) {
            return Err(LoadError::Missing { what: "the content of a page" });
        }
        let names = with_data.iter().chain(zero);
        let names: Vec<u64> = names.map(|pfn| self.name(*pfn).expect("it was allocated")).collect();
        if !names.is_empty() {
            let pieces = [Piece::Bytes(&data.data), Piece::Zeros(zero.len() * PAGE_BYTES)];
            xen.write_foreign_pieces(self.domid, &names, 0, &pieces)?;
        }
        Ok(())
    }

    /// Allocates frames that are going to come, so that they lie in large extents however they come. Too many are
    /// left to who names them.
    pub(super) fn reserve<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        frames: impl Iterator<Item = u64>,
    ) -> Result<(), LoadError> {
        let mut wanted = FrameSet::default();
        for pfn in frames {
            if pfn <= self.last && self.name(pfn).is_none() {
                wanted.insert(pfn);
            }
        }
        if self.pages + wanted.len() > self.pages_max {
            return Ok(());
        }
        self.allocate(xen, wanted)
    }

    /// Allocates those of the pages that the domain is to have, and notes those that it is not.
    fn note<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        pages: &[(u64, PageType)],
    ) -> Result<(), LoadError> {
        let mut wanted = FrameSet::default();
        for &(pfn, kind) in pages {
            if pfn > self.last {
                return Err(LoadError::FrameBeyond { pfn, max: self.last });
            }
            match kind {
                PageType::Broken | PageType::Invalid => {
                    if wanted.contains(pfn) || self.name(pfn).is_some() {
                        self.vanished.insert(pfn);
                    }
                }
                PageType::Normal | PageType::Table { .. } | PageType::AllocateOnly => {
                    self.vanished.remove(pfn);
                    if self.name(pfn).is_none() {
                        wanted.insert(pfn);
                    }
                }
            }
        }
        self.allocate(xen, wanted)
    }

    /// Allocates frames that the domain does not have yet, in large extents where whole blocks are
    /// among them.
    pub(super) fn allocate<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        mut wanted: FrameSet,
    ) -> Result<(), LoadError> {
        if self.pages + wanted.len() > self.pages_max {
            return Err(LoadError::TooManyPages { max: self.pages_max });
        }
        let (mut blocks, mut singles) = (Vec::new(), Vec::new());
        while let Some(frames) = wanted.take_block(usize::MAX) {
            let is_whole = frames.len() as u64 == BLOCK_FRAMES;
            match frames.first() {
                Some(first) if is_whole && !self.is_fragmented => blocks.push(*first),
                _ => singles.extend(frames),
            }
        }
        for blocks in blocks.chunks(Xen::<H>::EXTENTS_MAX) {
            let done = match self.is_fragmented {
                false => self.populate(xen, BLOCK_ORDER, blocks)?,
                true => 0,
            };
            for first in &blocks[done..] {
                self.is_fragmented = true;
                singles.extend(*first..first + BLOCK_FRAMES);
            }
        }
        for singles in singles.chunks(Xen::<H>::EXTENTS_MAX) {
            let done = self.populate(xen, 0, singles)?;
            if done < singles.len() {
                let (got, wanted) = (done as u64, singles.len() as u64);
                return Err(LoadError::Memory {
                    got: self.pages,
                    wanted: self.pages + wanted - got,
                });
            }
        }
        Ok(())
    }

    /// Allocates extents and notes their names; returns how many there were.
    fn populate<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        order: u32,
        firsts: &[u64],
    ) -> Result<usize, LoadError> {
        if firsts.is_empty() {
            return Ok(0);
        }
        let refused = LoadError::refused("allocate memory");
        let names = xen.populate(self.domid, order, firsts).map_err(refused)?;
        for (first, name) in firsts.iter().zip(&names) {
            for page in 0..1 << order {
                match &mut self.names {
                    Names::Same(frames) => {
                        frames.insert(first + page);
                    }
                    Names::Machine(p2m) => p2m.set(first + page, name + page),
                }
            }
            self.pages += 1 << order;
        }
        Ok(names.len())
    }

    /// Gives pages back that the domain had for a while only.
    pub(super) fn remove_vanished<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
    ) -> Result<(), LoadError> {
        let vanished = std::mem::take(&mut self.vanished);
        let named: Vec<(u64, u64)> =
            vanished.iter().filter_map(|pfn| Some((pfn, self.name(pfn)?))).collect();
        for part in named.chunks(Xen::<H>::EXTENTS_MAX) {
            let names: Vec<u64> = part.iter().map(|(_, name)| *name).collect();
            let refused = LoadError::refused("give back pages that the domain has lost");
            let done = xen.decrease_reservation(self.domid, 0, &names).map_err(&refused)?;
            if done != names.len() as u64 {
                return Err(refused(xen::Errno::EBUSY));
            }
            for (pfn, _) in part {
                match &mut self.names {
                    Names::Same(frames) => {
                        frames.remove(*pfn);
                    }
                    Names::Machine(p2m) => p2m.set(*pfn, NONE),
                }
                self.pages -= 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_the_same_whether_it_has_few_frames_or_many() {
        let mut p2m = P2m::default();
        let pfn = |number: u64| (number * 7) % BLOCK_FRAMES + 3 * BLOCK_FRAMES;
        for number in 0..BLOCK_FRAMES {
            p2m.set(pfn(number), number);
            p2m.set(pfn(number / 2), number);
            let expected = |other: u64| match other {
                other if 2 * other + 1 == number || 2 * other == number => Some(number),
                other if 2 * other < number => Some(2 * other + 1),
                other => (other <= number).then_some(other),
            };
            assert!((0..BLOCK_FRAMES).all(|other| p2m.get(pfn(other)) == expected(other)));
            let all = p2m.0[&3].all();
            let frames = all.iter().filter(|mfn| **mfn != NONE).count();
            assert_eq!(frames as u64, number + 1);
        }
        p2m.set(pfn(1), NONE);
        assert_eq!((p2m.get(pfn(1)), p2m.get(0)), (None, None));
    }

    #[test]
    fn pages_that_are_far_apart_take_up_little() {
        let mut p2m = P2m::default();
        (0..1000).for_each(|number| p2m.set(number * BLOCK_FRAMES, number));
        let few = |block: &Block| matches!(block, Block::Few(few) if few.capacity() <= 4);
        assert!(p2m.0.values().all(few));
    }
}
