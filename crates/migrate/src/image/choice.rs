//! Which codec makes a transfer fastest, by arithmetic on what was measured.
//!
//! A codec's pages leave at the lower of two rates: what it compresses, and what the link or disk takes of
//! its result. With several threads each compresses at its rate; the link is shared.

use super::codec::Codec;

/// What was measured of one piece of work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sample {
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub micros: u64,
}

/// Bytes per second, and bytes in per byte out.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    rate: f64,
    ratio: f64,
    /// Choices since the last sample.
    age: u32,
}

/// How much of a new sample is taken over.
const WEIGHT: f64 = 0.25;
/// Another codec is taken if it is this much faster,
const GAIN: f64 = 1.15;
/// as often as this in a row.
const TIMES: u32 = 3;
/// A codec that was not used for as many choices is worth a try.
const AGE_MAX: u32 = 256;

/// Chooses the codec from samples.
#[derive(Clone, Debug)]
pub struct CodecChoice {
    threads: f64,
    codec: Codec,
    /// Bytes per second that the link or disk takes.
    link: Option<f64>,
    estimates: [(Codec, Estimate); 3],
    /// Another that was better, and how often in a row.
    rival: Option<(Codec, u32)>,
}

impl CodecChoice {
    /// For as many threads as compress. It begins with LZ4, which is rarely wrong by much.
    #[must_use]
    pub fn new(threads: u32) -> Self {
        // Of one core, on pages of programs. The first samples correct it.
        let guess = |rate, ratio| Estimate { rate, ratio, age: 0 };
        Self {
            threads: f64::from(threads.max(1)),
            codec: Codec::Lz4,
            link: None,
            estimates: [
                (Codec::None, guess(4e9, 1.0)),
                (Codec::Lz4, guess(250e6, 1.8)),
                (Codec::Zstd, guess(220e6, 2.5)),
            ],
            rival: None,
        }
    }

    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// A thread compressed as many bytes, in as much time: not counting what it waited.
    pub fn compressed(&mut self, codec: Codec, sample: Sample) {
        let Some((rate, ratio)) = figures(sample) else { return };
        let (_, estimate) = self.of(codec);
        estimate.rate += WEIGHT * (rate - estimate.rate);
        estimate.ratio += WEIGHT * (ratio - estimate.ratio);
        estimate.age = 0;
    }

    /// The link or disk took as many bytes (`bytes_out`), in as much time. Only while it was the slower
    /// part: an idle link says nothing about its speed.
    pub fn sent(&mut self, sample: Sample) {
        let Some((rate, _)) = figures(Sample { bytes_in: sample.bytes_out, ..sample }) else {
            return;
        };
        let link = self.link.get_or_insert(rate);
        *link += WEIGHT * (rate - *link);
    }

    /// Bytes per second that the link or disk takes, as far as known.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is positive, and far below 2^53"
    )]
    pub fn link(&self) -> Option<u64> {
        self.link.map(|rate| rate as u64)
    }

    /// It may have changed: nothing is known of it any more.
    pub fn forget_link(&mut self) {
        self.link = None;
    }

    /// Pages per time that leave with a codec, in bytes per second.
    #[must_use]
    pub fn rate(&self, codec: Codec) -> f64 {
        let estimate = self.estimate(codec);
        let packed = estimate.rate * self.threads;
        match self.link {
            Some(link) => packed.min(link * estimate.ratio),
            None => packed,
        }
    }

    /// The codec for what comes next. It changes if another was clearly faster several times in a row.
    pub fn choose(&mut self) -> Codec {
        self.estimates.iter_mut().for_each(|(_, it)| it.age = it.age.saturating_add(1));
        if self.link.is_none() {
            return self.codec;
        }
        let best = Codec::ALL.into_iter().fold(self.codec, |best, codec| {
            if self.rate(codec) > self.rate(best) { codec } else { best }
        });
        if best == self.codec || self.rate(best) < GAIN * self.rate(self.codec) {
            self.rival = None;
            return self.codec;
        }
        let times = match self.rival {
            Some((rival, times)) if rival == best => times + 1,
            _ => 1,
        };
        self.rival = Some((best, times));
        if times >= TIMES {
            self.codec = best;
            self.rival = None;
        }
        self.codec
    }

    /// A codec to compress one piece with, for a sample: one of which the last is old, as the guest's
    /// memory may have changed. `None` if there is none.
    #[must_use]
    pub fn probe(&self) -> Option<Codec> {
        let others = self.estimates.iter().filter(|(codec, _)| *codec != self.codec);
        let old = others.filter(|(codec, it)| *codec != Codec::None && it.age >= AGE_MAX);
        old.max_by_key(|(_, it)| it.age).map(|(codec, _)| *codec)
    }

    fn of(&mut self, codec: Codec) -> &mut (Codec, Estimate) {
        self.estimates.iter_mut().find(|(other, _)| *other == codec).expect("each has one")
    }

    fn estimate(&self, codec: Codec) -> Estimate {
        self.estimates.iter().find(|(other, _)| *other == codec).expect("each has one").1
    }
}

/// Bytes per second, and ratio.
fn figures(sample: Sample) -> Option<(f64, f64)> {
    let Sample { bytes_in, bytes_out, micros } = sample;
    if bytes_in == 0 || micros == 0 {
        return None;
    }
    let rate = number(bytes_in) * 1e6 / number(micros);
    Some((rate, number(bytes_in) / number(bytes_out.max(1))))
}

/// Exact to 53 bits, which is more than is measured.
#[expect(clippy::cast_precision_loss)]
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: u64 = 1_000_000;

    /// Feeds what such a world would measure; the codec in the end, and how often it changed.
    fn settle(choice: &mut CodecChoice, link: u64, codecs: [(u64, u64); 2]) -> (Codec, u32) {
        let mut changes = 0;
        for _ in 0..200 {
            let before = choice.codec();
            if let Some((rate, ratio)) = match before {
                Codec::None => None,
                Codec::Lz4 => Some(codecs[0]),
                Codec::Zstd => Some(codecs[1]),
            } {
                let bytes_out = rate * MEGABYTE * 10 / ratio;
                let sample = Sample { bytes_in: rate * MEGABYTE, bytes_out, micros: MEGABYTE };
                choice.compressed(before, sample);
            }
            let bytes_out = link * MEGABYTE;
            choice.sent(Sample { bytes_in: 0, bytes_out, micros: MEGABYTE });
            changes += u32::from(choice.choose() != before);
        }
        (choice.codec(), changes)
    }

    #[test]
    fn a_slow_link_is_worth_compression_and_a_fast_one_is_not() {
        // MB/s, with ratios in tenths.
        let usual = [(250, 18), (220, 25)];
        for (threads, link, codecs, expected) in [
            (1, 12, usual, Codec::Zstd),
            (1, 60, usual, Codec::Zstd),
            (1, 1000, usual, Codec::None),
            (1, 5000, usual, Codec::None),
            (8, 500, usual, Codec::Zstd),
            (8, 3000, usual, Codec::None),
            // Contents that do not compress.
            (4, 100, [(250, 10), (220, 10)], Codec::Lz4),
            // An emulated CPU.
            (1, 100, [(20, 18), (8, 25)], Codec::None),
            (1, 12, [(40, 18), (8, 25)], Codec::Lz4),
        ] {
            let mut choice = CodecChoice::new(threads);
            let (codec, changes) = settle(&mut choice, link, codecs);
            assert_eq!(codec, expected, "{threads} threads, {link} MB/s, {codecs:?}");
            assert!(changes <= 3, "{changes} changes for {link} MB/s");
        }
    }

    #[test]
    fn nothing_changes_before_the_link_is_known() {
        let mut choice = CodecChoice::new(1);
        let slow = Sample { bytes_in: 1000, bytes_out: 1000, micros: MEGABYTE };
        for _ in 0..10 {
            choice.compressed(Codec::Lz4, slow);
            choice.sent(Sample::default());
            assert_eq!(choice.choose(), Codec::Lz4);
        }
    }

    #[test]
    fn a_link_at_the_border_does_not_make_it_swing() {
        let mut choice = CodecChoice::new(1);
        let mut changes = 0;
        for round in 0..1000_u64 {
            let before = choice.codec();
            // None and LZ4 are equal at 250 MB/s; the link varies by a tenth.
            let bytes_out = (250 + 25 * (round % 3) - 25) * MEGABYTE;
            choice.sent(Sample { bytes_in: 0, bytes_out, micros: MEGABYTE });
            changes += u32::from(choice.choose() != before);
        }
        assert!(changes <= 1, "{changes} changes");
    }

    #[test]
    fn a_codec_of_which_the_last_sample_is_old_is_tried() {
        let mut choice = CodecChoice::new(1);
        assert_eq!(choice.probe(), None);
        for _ in 0..AGE_MAX {
            choice.choose();
        }
        assert_eq!(choice.probe(), Some(Codec::Zstd));
        let sample = Sample { bytes_in: 1000, bytes_out: 10, micros: 1 };
        choice.compressed(Codec::Zstd, sample);
        assert_eq!(choice.probe(), None);
    }
}
