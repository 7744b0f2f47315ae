//! One direction of the link: which frames arrive, and when.

use std::time::{Duration, Instant};

/// A throttled line drops what would wait for longer, as the queue of a slow network card does.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// The conditions of one direction, and what they make of its frames.
#[derive(Debug)]
pub(crate) struct Line {
    pub is_cut: bool,
    pub delay: Duration,
    pub bytes_per_second: Option<u64>,
    pub loss_percent: u32,
    /// Of all frames that came, also of those that were lost.
    pub bytes: u64,
    /// When a throttled line has sent what it has.
    free_at: Option<Instant>,
    random: u64,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            is_cut: false,
            delay: Duration::ZERO,
            bytes_per_second: None,
            loss_percent: 0,
            bytes: 0,
            free_at: None,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Line {
    /// As good as it was at first.
    pub(crate) fn restore(&mut self) {
        *self = Self { bytes: self.bytes, random: self.random, ..Self::default() };
    }

    /// When a frame that is sent now arrives; `None`: never.
    pub(crate) fn accept(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.is_cut || self.is_lost() {
            return None;
        }
        let mut sent_at = now;
        if let Some(rate) = self.bytes_per_second {
            let begins_at = self.free_at.unwrap_or(now).max(now);
            if begins_at > now + WAIT_MAX {
                return None;
            }
            sent_at = begins_at + Duration::from_micros(bytes.saturating_mul(1_000_000) / rate);
            self.free_at = Some(sent_at);
        }
        Some(sent_at + self.delay)
    }

    /// The same frames of each run: a generator with a fixed seed (xorshift).
    fn is_lost(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 100 < u64::from(self.loss_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_line_sends_one_frame_after_the_other_and_drops_what_would_wait_too_long() {
        let now = Instant::now();
        let mut line = Line { bytes_per_second: Some(10_000), ..Line::default() };
        let after = |milliseconds| Some(now + Duration::from_millis(milliseconds));
        let arrivals: Vec<_> = (0..8).map(|_| line.accept(1000, now)).collect();
        let expected = [100, 200, 300, 400, 500, 600].map(after);
        assert_eq!(arrivals[..6], expected);
        assert_eq!(arrivals[6..], [None, None]);
        let later = now + Duration::from_secs(2);
        assert_eq!(line.accept(1000, later), Some(later + Duration::from_millis(100)));
    }

    #[test]
    fn a_delay_is_added_and_a_restored_line_has_none() {
        let now = Instant::now();
        let mut line = Line { delay: Duration::from_millis(30), ..Line::default() };
        assert_eq!(line.accept(1, now), Some(now + Duration::from_millis(30)));
        line.restore();
        assert_eq!(line.accept(1, now), Some(now));
    }

    #[test]
    fn about_as_many_frames_are_lost_as_asked_for() {
        let now = Instant::now();
        let mut line = Line { loss_percent: 20, ..Line::default() };
        let lost = (0..10_000).filter(|_| line.accept(1, now).is_none()).count();
        assert!((1800..2200).contains(&lost), "{lost}");
        line.loss_percent = 0;
        assert!((0..1000).all(|_| line.accept(1, now).is_some()));
        line.loss_percent = 100;
        assert!((0..1000).all(|_| line.accept(1, now).is_none()));
    }
}
