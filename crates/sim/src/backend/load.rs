//! What guests ask of their devices. No data path is simulated: the device of a guest that runs counts as much as if it
//! were used, some more and some less, and not evenly.

use crate::agenda::Time;

/// Requests of a disk, or packets of an interface: read or received, and written or sent by the guest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    pub requests_in: u64,
    pub bytes_in: u64,
    pub requests_out: u64,
    pub bytes_out: u64,
}

/// One device's counters, and up to when they have been counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    until_ms: u64,
    /// Thousandths of requests.
    milli_in: u64,
    milli_out: u64,
}

/// Whether the guest can have used the device since it was last looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Use {
    Used,
    Unused,
}

/// Of the busiest, and of all others, in a second.
const REQUESTS_MAX: u64 = 400;
const REQUESTS_MIN: u64 = 2;
/// It rises and falls in so long.
const WAVE_S: u64 = 60;
const REQUEST_BYTES: u64 = 4096;

/// A number that looks like no other device's.
fn scatter(device: u64) -> u64 {
    device.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Requests in a second.
fn rate(device: u64, now_s: u64) -> u64 {
    let scattered = scatter(device);
    // A third of all is busy.
    let most = if scattered.is_multiple_of(3) {
        REQUESTS_MAX / (1 + scattered / 3 % 8)
    } else {
        REQUESTS_MIN
    };
    let phase = now_s.wrapping_add(scattered) % WAVE_S;
    let height = phase.min(WAVE_S - phase);
    most * (WAVE_S / 6 + height) / (WAVE_S / 2)
}

impl Load {
    /// Counts until now, for the device with this number.
    pub(super) fn look(&mut self, now: Time, device: u64, how: Use) -> Counts {
        let now_ms = now.0 / 1_000_000;
        let elapsed_ms = now_ms.saturating_sub(std::mem::replace(&mut self.until_ms, now_ms));
        if how == Use::Used {
            let milli = rate(device, now_ms / 1000).saturating_mul(elapsed_ms);
            self.milli_in = self.milli_in.saturating_add(milli);
            self.milli_out = self.milli_out.saturating_add(milli / 3);
        }
        let bytes = (1 + scatter(device) % 4).saturating_mul(REQUEST_BYTES);
        let (requests_in, requests_out) = (self.milli_in / 1000, self.milli_out / 1000);
        Counts {
            requests_in,
            bytes_in: requests_in.saturating_mul(bytes),
            requests_out,
            bytes_out: requests_out.saturating_mul(bytes),
        }
    }

    /// Begins at this time.
    pub(super) fn new(now: Time) -> Self {
        Self { until_ms: now.0 / 1_000_000, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_rise_while_the_device_is_used_and_some_more_than_others() {
        let at = |s: u64| Time(s * 1_000_000_000);
        let mut totals: Vec<u64> = (0..30)
            .map(|device| {
                let mut load = Load::new(at(10));
                let mut last = Counts::default();
                for second in 11..=70 {
                    let now = load.look(at(second), device, Use::Used);
                    assert!(now.requests_in >= last.requests_in && now.bytes_out >= last.bytes_out);
                    last = now;
                }
                assert_eq!(load.look(at(500), device, Use::Unused), last);
                assert_eq!(load.look(at(500), device, Use::Used), last);
                last.requests_in
            })
            .collect();
        totals.sort_unstable();
        assert!(totals[0] > 0 && totals[0] * 20 < totals[29], "{totals:?}");
    }
}
