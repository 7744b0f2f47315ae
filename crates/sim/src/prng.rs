//! The only source of randomness: a small seeded generator.
//!
//! Not for secrets. Algorithm: xoshiro256** (Blackman, Vigna), seeded by SplitMix64.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Prng([u64; 4]);

/// One step of SplitMix64, also usable as a hash.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Prng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(core::array::from_fn(|_| split_mix(&mut state)))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below zero");
        // The bias of a plain remainder is negligible here.
        self.next_u64() % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream_and_another_seed_another() {
        let stream = |seed| {
            let mut prng = Prng::new(seed);
            core::array::from_fn::<u64, 8, _>(|_| prng.next_u64())
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
    }

    #[test]
    fn a_bounded_number_stays_below_its_bound_and_reaches_all_values() {
        let mut prng = Prng::new(1);
        let mut seen = [false; 3];
        for _ in 0..100 {
            let value = usize::try_from(prng.below(3)).unwrap();
            seen[value] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}
