//! Sets of a domain's frames.

use std::collections::BTreeMap;

/// Frames of a block: those of a superpage.
pub(crate) const BLOCK_FRAMES: u64 = 512;
const WORDS: usize = 8;

/// Frame numbers, ascending. Takes up memory for the blocks that have some, wherever they are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct FrameSet {
    blocks: BTreeMap<u64, [u64; WORDS]>,
    len: u64,
}

/// Block, word and bit of a frame.
fn place(frame: u64) -> (u64, usize, u64) {
    let word = usize::try_from(frame % BLOCK_FRAMES / 64).expect("one of eight");
    (frame / BLOCK_FRAMES, word, 1 << (frame % 64))
}

impl FrameSet {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn contains(&self, frame: u64) -> bool {
        let (block, word, bit) = place(frame);
        self.blocks.get(&block).is_some_and(|words| words[word] & bit != 0)
    }

    /// Whether it was not there.
    pub(crate) fn insert(&mut self, frame: u64) -> bool {
        let (block, word, bit) = place(frame);
        let words = self.blocks.entry(block).or_default();
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        self.len += u64::from(is_new);
        is_new
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, frame: u64) -> bool {
        let (block, word, bit) = place(frame);
        let Some(words) = self.blocks.get_mut(&block) else { return false };
        let was_there = words[word] & bit != 0;
        words[word] &= !bit;
        self.len -= u64::from(was_there);
        if words.iter().all(|word| *word == 0) {
            self.blocks.remove(&block);
        }
        was_there
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().flat_map(|(block, words)| frames_of(*block, words))
    }

    /// Takes the lowest block's frames, unless they are more than `most`.
    pub(crate) fn take_block(&mut self, most: usize) -> Option<Vec<u64>> {
        let first = self.blocks.first_entry()?;
        let frames: Vec<u64> = frames_of(*first.key(), first.get()).collect();
        if frames.len() > most {
            return None;
        }
        first.remove();
        self.len -= frames.len() as u64;
        Some(frames)
    }
}

fn frames_of(block: u64, words: &[u64; WORDS]) -> impl Iterator<Item = u64> + use<> {
    let words = *words;
    (0..BLOCK_FRAMES).filter_map(move |at| {
        let (_, word, bit) = place(at);
        (words[word] & bit != 0).then_some(block * BLOCK_FRAMES + at)
    })
}

impl FromIterator<u64> for FrameSet {
    fn from_iter<I: IntoIterator<Item = u64>>(frames: I) -> Self {
        let mut set = Self::default();
        for frame in frames {
            set.insert(frame);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_in_order_block_by_block() {
        let wanted = [0, 63, 64, 511, 512, 1 << 40, (1 << 52) - 1];
        let mut set: FrameSet = wanted.into_iter().rev().chain([64]).collect();
        assert_eq!((set.len(), set.iter().collect::<Vec<_>>()), (7, wanted.to_vec()));
        assert_eq!(set.take_block(3), None);
        assert_eq!(set.take_block(4), Some(vec![0, 63, 64, 511]));
        assert!(set.remove(512) && !set.remove(512) && !set.remove(7));
        assert!(set.contains(1 << 40) && !set.contains(512));
        assert_eq!(set.take_block(1), Some(vec![1 << 40]));
        assert_eq!((set.take_block(1), set.len()), (Some(vec![(1 << 52) - 1]), 0));
    }
}
