//! When to stop sending rounds of changed pages and to suspend the guest: by arithmetic.
//!
//! While a round is sent, the guest changes pages, which the next round sends. A round takes as long as
//! its pages take, so rounds shrink as long as the guest writes slower than pages leave. They are over
//! when what is left fits into the pause that is wanted. Otherwise the guest is slowed down in steps, or the
//! pause may be longer, or the attempt is given up, as the [`Policy`] says. There is always an end: after
//! [`Policy::rounds_max`], [`Policy::total_max_us`] and the last step.
//!
//! All times are in microseconds, and so are the fields that end with `_us`.

use crate::libxc::PAGE_BYTES;

/// What is wanted, and what to do with a guest that writes too fast.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Policy {
    /// The pause that is wanted: copying, registers, and what else the guest waits for.
    pub pause_us: u64,
    /// The longest pause that is taken instead, if rounds do not get shorter.
    pub pause_max_us: u64,
    pub rounds_max: u32,
    pub total_max_us: u64,
    pub busy: Busy,
    pub last: LastRound,
}

/// What to do if rounds do not get shorter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Busy {
    /// Slow the guest down step by step, to this part of its CPU time at least.
    Throttle { percent_min: u8 },
    /// Suspend it if the longest pause allows, give up otherwise.
    Accept,
}

/// Where the pages of the last round go during the pause.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LastRound {
    /// To the other host: the guest waits until they are there.
    Sent,
    /// To memory: the guest goes on here before they are written.
    Copied,
}

impl Policy {
    /// 100 ms, which few clients of a guest notice, and which is 3000 pages of an idle 1 Gbit/s link.
    pub const PAUSE_US: u64 = 100_000;
    /// Below what makes TCP connections of a guest fail, or its watchdogs bark.
    pub const PAUSE_MAX_US: u64 = 2_000_000;
    /// With the steps of throttling, rarely more than thirty are needed.
    pub const ROUNDS_MAX: u32 = 40;
    pub const TOTAL_MAX_US: u64 = 3600 * 1_000_000;

    /// For a migration.
    #[must_use]
    pub fn migration() -> Self {
        Self {
            pause_us: Self::PAUSE_US,
            pause_max_us: Self::PAUSE_MAX_US,
            rounds_max: Self::ROUNDS_MAX,
            total_max_us: Self::TOTAL_MAX_US,
            busy: Busy::Throttle { percent_min: 10 },
            last: LastRound::Sent,
        }
    }

    /// For a checkpoint or a save of a guest that goes on. Copying is fast; the guest is not slowed down.
    #[must_use]
    pub fn copy() -> Self {
        Self { busy: Busy::Accept, last: LastRound::Copied, ..Self::migration() }
    }
}

/// A round that was sent, or as much of it as was.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sent {
    pub pages: u64,
    /// That left, compressed.
    pub bytes: u64,
    pub micros: u64,
    /// Of these, for reading the guest's memory.
    pub copy_micros: u64,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Another round. The guest may have this part of its CPU time: 100 as long as it is not throttled.
    Round { percent: u8 },
    /// Suspend the guest and send the rest: a pause of about this long.
    Stop { pause_us: u64 },
    /// Leave the guest alone.
    GiveUp(GiveUp),
}

/// Why it cannot be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GiveUp {
    #[error(
        "the guest changes {dirty} pages/s and {sent} pages/s can be sent, so that it would stand \
         still for {} ms; allow a longer pause, give it a faster link, or move it when it does less",
        pause_us / 1000
    )]
    TooFast { dirty: u64, sent: u64, pause_us: u64 },
    #[error(
        "after {rounds} rounds it would still stand still for {} ms; allow a longer pause or more \
         rounds",
        pause_us / 1000
    )]
    Rounds { rounds: u32, pause_us: u64 },
    #[error("it took longer than {} s; allow more time or a longer pause", total_us / 1_000_000)]
    Time { total_us: u64 },
}

/// Figures for display.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    /// Counted from 1.
    pub round: u32,
    pub pages: u64,
    pub bytes: u64,
    pub total_us: u64,
    /// Bytes per second that leave.
    pub rate: u64,
    /// Pages per second that the guest changed in the last round.
    pub dirty_rate: u64,
    /// Pages of this round that were not sent yet.
    pub remaining: u64,
    /// Of the guest, if it were suspended after this round.
    pub pause_us: u64,
    /// Of its CPU time.
    pub percent: u8,
}

/// Parts of the guest's CPU time, one step after the other. Each halves what a guest writes in a round: smaller steps take
/// more rounds, in which the guest is slow, too.
const STEPS: [u8; 3] = [50, 25, 10];
/// A round that has not a fifth fewer pages than the smallest before is no progress.
const SHRINKS: (u64, u64) = (4, 5);
/// A round with fewer pages says how long a round takes whose pages take no time.
const SHORT_PAGES: u64 = 512;
/// So often the hosts wait for each other in a pause: for the last round, for its end, and for the word and its answer, in
/// which both also do as much as in such a round.
const TRIPS: u64 = 4;
/// Rounds without progress after which something is done, and after a step of throttling.
const STALLED: u32 = 2;
const STALLED_THROTTLED: u32 = 1;

/// The rounds of one save or migration.
#[derive(Clone, Debug)]
pub struct Rounds {
    policy: Policy,
    /// What a pause takes without pages: suspend, registers, the device model, the other host's part.
    fixed_us: u64,
    rounds: u32,
    total: Sent,
    last: Sent,
    /// Pages that were dirty at its end.
    dirty: u64,
    /// Nanoseconds for a page, in the pause.
    page_ns: u64,
    /// For a round without pages: to the other host and back, as busy as both are.
    trip_us: u64,
    /// Pages per second that the guest changed at most while it was not slowed down.
    usual_rate: u64,
    /// Fewest dirty pages at the end of a round, and rounds since.
    fewest: u64,
    stalled: u32,
    step: usize,
}

impl Rounds {
    /// `fixed_us` is what the pause takes beside pages, as far as known.
    #[must_use]
    pub fn new(policy: Policy, fixed_us: u64) -> Self {
        Self {
            policy,
            fixed_us,
            rounds: 0,
            total: Sent::default(),
            last: Sent::default(),
            dirty: 0,
            page_ns: 0,
            trip_us: 0,
            usual_rate: 0,
            fewest: u64::MAX,
            stalled: 0,
            step: 0,
        }
    }

    /// A round was sent; as many pages were dirty at its end.
    pub fn ended(&mut self, sent: Sent, dirty: u64) -> Next {
        self.rounds = self.rounds.saturating_add(1);
        self.total = sum(self.total, sent);
        self.measure(sent);
        if self.step == 0 {
            self.usual_rate = self.usual_rate.max(per_second(dirty, sent.micros));
        }
        (self.last, self.dirty) = (sent, dirty);
        let (of, all) = SHRINKS;
        if self.fewest == u64::MAX || dirty.saturating_mul(all) < self.fewest.saturating_mul(of) {
            self.stalled = 0;
        } else {
            self.stalled += 1;
        }
        self.fewest = self.fewest.min(dirty);
        self.next()
    }

    fn next(&mut self) -> Next {
        let (policy, pause_us) = (self.policy, self.pause_us(self.dirty));
        let fixed_us = self.fixed_us();
        let pages_us = pause_us - fixed_us;
        // Where the fixed part is long, pages are no longer what matters once they are short beside it.
        let wanted = policy.pause_us.saturating_sub(fixed_us).max(fixed_us / 4);
        // Nor are they where the guest, which suspends at its full speed, changes as many meanwhile.
        let is_little = self.dirty <= self.burst() && pages_us <= policy.pause_max_us;
        if pages_us <= wanted || is_little {
            return Next::Stop { pause_us };
        }
        let gives_up = if self.rounds >= policy.rounds_max {
            GiveUp::Rounds { rounds: self.rounds, pause_us }
        } else if self.total.micros >= policy.total_max_us {
            GiveUp::Time { total_us: self.total.micros }
        } else if self.stalled < if self.step == 0 { STALLED } else { STALLED_THROTTLED } {
            return Next::Round { percent: self.percent() };
        } else if let Some(percent) = self.slower() {
            return Next::Round { percent };
        } else {
            let dirty = per_second(self.dirty, self.last.micros);
            let sent = per_second(self.last.pages, self.last.micros);
            GiveUp::TooFast { dirty, sent, pause_us }
        };
        // Slow hosts are no reason to leave a guest where it is.
        if pages_us.saturating_add(self.fixed_us) <= policy.pause_max_us.max(policy.pause_us) {
            Next::Stop { pause_us }
        } else {
            Next::GiveUp(gives_up)
        }
    }

    /// The next step of throttling, if there is one.
    fn slower(&mut self) -> Option<u8> {
        let Busy::Throttle { percent_min } = self.policy.busy else { return None };
        let percent = *STEPS.get(self.step).filter(|percent| **percent >= percent_min)?;
        self.step += 1;
        self.stalled = 0;
        Some(percent)
    }

    /// The part of its CPU time that the guest may have now.
    #[must_use]
    pub fn percent(&self) -> u8 {
        self.step.checked_sub(1).map_or(100, |step| STEPS[step])
    }

    /// Learns from a round how long pages take, or what else takes time if it has few.
    fn measure(&mut self, sent: Sent) {
        if self.policy.last == LastRound::Sent && self.rounds > 1 && sent.pages < SHORT_PAGES {
            let pages_us = sent.pages.saturating_mul(self.page_ns) / 1000;
            let trip = sent.micros.saturating_sub(pages_us);
            let before = if self.trip_us == 0 { trip } else { self.trip_us };
            self.trip_us = trip / 2 + before / 2;
        } else {
            self.page_ns = self.page_time(sent);
        }
    }

    /// Of the pause, beside pages.
    fn fixed_us(&self) -> u64 {
        self.fixed_us.saturating_add(self.trip_us.saturating_mul(TRIPS))
    }

    /// Pages that the guest changes while it is told to suspend, which takes it about as long as all else.
    fn burst(&self) -> u64 {
        mul_div(self.usual_rate, self.fixed_us(), 1_000_000)
    }

    /// Nanoseconds for a page of the last round, from a round before it.
    fn page_time(&self, sent: Sent) -> u64 {
        let micros = match self.policy.last {
            LastRound::Sent => sent.micros,
            LastRound::Copied => sent.copy_micros,
        };
        let Some(page) = micros.saturating_mul(1000).checked_div(sent.pages) else {
            return self.page_ns;
        };
        match self.policy.last {
            // The first round has pages of zeros, which are cheap, and which no later one has.
            LastRound::Sent if self.rounds == 1 => {
                let whole = micros.saturating_mul(1000).saturating_mul(PAGE_BYTES as u64);
                page.max(whole.checked_div(sent.bytes).unwrap_or(0))
            }
            // One round is a bad measure.
            _ if self.rounds > 1 => (page / 2).saturating_add(self.page_ns / 2),
            _ => page,
        }
    }

    fn pause_us(&self, pages: u64) -> u64 {
        let pages = pages.max(self.burst());
        self.fixed_us().saturating_add(pages.saturating_mul(self.page_ns) / 1000)
    }

    /// Figures while a round is sent: what was sent of it, and how many pages it has yet to send.
    #[must_use]
    pub fn progress(&self, sent: Sent, remaining: u64) -> Progress {
        let total = sum(self.total, sent);
        // A round that has just begun says little about the rate.
        let recent = sum(self.last, sent);
        // As many pages change as in the last round, in proportion to its length.
        let dirty_rate = per_second(self.dirty, self.last.micros);
        let expected = match self.last.pages {
            0 => remaining,
            pages => mul_div(self.dirty, sent.pages.saturating_add(remaining), pages),
        };
        Progress {
            round: self.rounds + 1,
            pages: total.pages,
            bytes: total.bytes,
            total_us: total.micros,
            rate: per_second(recent.bytes, recent.micros),
            dirty_rate,
            remaining,
            pause_us: self.pause_us(expected),
            percent: self.percent(),
        }
    }
}

fn sum(one: Sent, other: Sent) -> Sent {
    Sent {
        pages: one.pages.saturating_add(other.pages),
        bytes: one.bytes.saturating_add(other.bytes),
        micros: one.micros.saturating_add(other.micros),
        copy_micros: one.copy_micros.saturating_add(other.copy_micros),
    }
}

fn per_second(count: u64, micros: u64) -> u64 {
    mul_div(count, 1_000_000, micros)
}

/// As much as fits; 0 if the divisor is.
fn mul_div(one: u64, other: u64, divisor: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    let quotient = product.checked_div(divisor.into()).unwrap_or(0);
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const FIXED_US: u64 = 10_000;

    /// Pages that a guest changes in a time from a moment on, at a part of its CPU time.
    type Writes = fn(start: u64, micros: u64, percent: u8) -> u64;

    /// What happens to a guest with as many pages if so many leave in a second.
    fn story(policy: Policy, pages: u64, link: u64, writes: Writes) -> (Rounds, Next) {
        let mut rounds = Rounds::new(policy, FIXED_US);
        let (mut to_send, mut now, mut percent) = (pages, 0, 100);
        loop {
            let micros = 2000 + to_send * SECOND / link;
            let dirty = writes(now, micros, percent).min(pages);
            let (bytes, copy_micros) = (to_send * 4096, to_send);
            let next = rounds.ended(Sent { pages: to_send, bytes, micros, copy_micros }, dirty);
            let Next::Round { percent: allowed } = next else { return (rounds, next) };
            assert!(allowed <= percent, "it is never made faster");
            (to_send, now, percent) = (dirty, now + micros, allowed);
        }
    }

    fn steady(micros: u64, per_second: u64, percent: u8) -> u64 {
        mul_div(per_second * u64::from(percent) / 100, micros, SECOND)
    }

    const IDLE: Writes = |_, micros, percent| steady(micros, 300, percent);
    const MODERATE: Writes = |_, micros, percent| steady(micros, 10_000, percent);
    /// It changes the same 20000 pages again and again.
    const WORKING_SET: Writes = |_, micros, percent| steady(micros, 1_000_000, percent).min(20_000);
    const FASTER: Writes = |_, micros, percent| steady(micros, 60_000, percent);
    const FURIOUS: Writes = |_, micros, percent| steady(micros, 5_000_000, percent);
    /// For a second of every five, it writes faster than the link.
    const BURSTY: Writes = |start, micros, percent| {
        let rate = if (start / SECOND).is_multiple_of(5) { 60_000 } else { 500 };
        steady(micros, rate, percent)
    };

    /// A 1 Gbit/s link, and a lab's.
    const GIGABIT: u64 = 28_000;
    const LAB: u64 = 5_000;
    const GIB: u64 = 262_144;
    const SMALL: u64 = 32_768;

    #[test]
    fn a_guest_that_writes_slowly_is_stopped_in_time() {
        for (name, pages, link, writes, rounds_max) in [
            ("idle", GIB, GIGABIT, IDLE, 3),
            ("idle in the lab", SMALL, LAB, IDLE, 3),
            ("moderate", GIB, GIGABIT, MODERATE, 9),
            ("bursty", GIB, GIGABIT, BURSTY, 9),
        ] {
            let (rounds, next) = story(Policy::migration(), pages, link, writes);
            let Next::Stop { pause_us } = next else { panic!("{name}: {next:?}") };
            assert!(pause_us <= Policy::PAUSE_US, "{name}: {pause_us}");
            assert!(rounds.rounds <= rounds_max, "{name}: {} rounds", rounds.rounds);
            assert_eq!(rounds.percent(), 100, "{name}");
        }
    }

    #[test]
    fn a_guest_that_writes_too_fast_is_slowed_down_until_it_can_be_stopped() {
        for (name, link, writes, percent_min) in [
            ("faster", GIGABIT, FASTER, 25),
            ("moderate in the lab", LAB, MODERATE, 25),
            ("the same pages", GIGABIT, WORKING_SET, 10),
        ] {
            let (rounds, next) = story(Policy::migration(), GIB, link, writes);
            let Next::Stop { pause_us } = next else { panic!("{name}: {next:?}") };
            assert!(pause_us <= Policy::PAUSE_MAX_US, "{name}: {pause_us}");
            assert!(rounds.percent() < 100, "{name}");
            assert!(rounds.percent() >= percent_min, "{name}: {} %", rounds.percent());
            assert!(rounds.rounds <= 30, "{name}: {} rounds", rounds.rounds);
        }
    }

    #[test]
    fn what_is_hopeless_is_given_up_and_says_why() {
        let (rounds, next) = story(Policy::migration(), GIB, GIGABIT, FURIOUS);
        let Next::GiveUp(reason) = next else { panic!("{next:?}") };
        assert_eq!(rounds.percent(), 10);
        assert_eq!(
            reason.to_string(),
            "the guest changes 27994 pages/s and 27994 pages/s can be sent, so that it would stand \
             still for 9373 ms; allow a longer pause, give it a faster link, or move it when it \
             does less"
        );
        let policy = Policy { busy: Busy::Accept, ..Policy::migration() };
        let (rounds, next) = story(policy, GIB, GIGABIT, FURIOUS);
        assert!(matches!(next, Next::GiveUp(GiveUp::TooFast { .. })), "{next:?}");
        assert_eq!(rounds.rounds, 3);
        let policy = Policy { pause_max_us: 20 * SECOND, ..policy };
        let (_, next) = story(policy, GIB, GIGABIT, FURIOUS);
        assert!(matches!(next, Next::Stop { pause_us: 9_000_000..10_000_000 }), "{next:?}");
    }

    #[test]
    fn it_ends_after_its_rounds_and_its_time() {
        let policy = Policy { rounds_max: 2, ..Policy::migration() };
        let (rounds, next) = story(policy, GIB, GIGABIT, FASTER);
        assert!(matches!(next, Next::GiveUp(GiveUp::Rounds { rounds: 2, .. })), "{next:?}");
        assert_eq!(rounds.rounds, 2);
        let policy = Policy { total_max_us: SECOND, ..Policy::migration() };
        let (rounds, next) = story(policy, GIB, GIGABIT, FASTER);
        assert!(matches!(next, Next::GiveUp(GiveUp::Time { .. })), "{next:?}");
        assert_eq!(rounds.rounds, 1);
    }

    #[test]
    fn a_checkpoint_waits_for_copies_only() {
        // A page takes a microsecond to copy: 100 ms are 90000 of them.
        for (writes, rounds_max) in [(FASTER, 2), (WORKING_SET, 1)] {
            let (rounds, next) = story(Policy::copy(), 65_536, LAB, writes);
            let Next::Stop { pause_us } = next else { panic!("{next:?}") };
            assert!(pause_us <= Policy::PAUSE_US);
            assert!(rounds.rounds <= rounds_max);
        }
    }

    #[test]
    fn a_long_fixed_part_does_not_make_it_endless() {
        let mut rounds = Rounds::new(Policy::migration(), SECOND);
        let sent = |pages| Sent { pages, bytes: pages * 4096, micros: pages * 40, copy_micros: 0 };
        assert_eq!(rounds.ended(sent(100_000), 8000), Next::Round { percent: 100 });
        assert_eq!(rounds.ended(sent(8000), 5000), Next::Stop { pause_us: 1_625_000 });
    }

    #[test]
    fn slow_hosts_do_not_make_pages_look_slow() {
        let mut rounds = Rounds::new(Policy::migration(), FIXED_US);
        let sent = |pages, micros| Sent { pages, bytes: pages * 4096, micros, copy_micros: 0 };
        assert_eq!(rounds.ended(sent(32_768, 32_768_000), 2000), Next::Round { percent: 100 });
        assert_eq!(rounds.ended(sent(2000, 2_100_000), 300), Next::Round { percent: 100 });
        // Their answer takes 200 ms, and 120 pages of a millisecond are short beside four of those.
        assert_eq!(rounds.ended(sent(300, 507_000), 120), Next::Stop { pause_us: 1_002_750 });
    }

    #[test]
    fn progress_has_what_a_person_wants_to_know() {
        let mut rounds = Rounds::new(Policy::migration(), FIXED_US);
        let half = Sent { pages: 500, bytes: 2_000_000, micros: SECOND / 2, copy_micros: 0 };
        let first = rounds.progress(half, 500);
        assert_eq!((first.round, first.rate, first.remaining), (1, 4_000_000, 500));
        assert_eq!(first.pause_us, FIXED_US);
        let whole = Sent { pages: 1000, bytes: 4_000_000, micros: SECOND, copy_micros: 0 };
        assert_eq!(rounds.ended(whole, 200), Next::Round { percent: 100 });
        let second =
            rounds.progress(Sent { pages: 100, bytes: 400_000, micros: SECOND / 10, ..whole }, 100);
        assert_eq!(
            second,
            Progress {
                round: 2,
                pages: 1100,
                bytes: 4_400_000,
                total_us: SECOND * 11 / 10,
                rate: 4_000_000,
                dirty_rate: 200,
                remaining: 100,
                // 40 pages of 1.024 ms.
                pause_us: FIXED_US + 40_960,
                percent: 100,
            }
        );
    }

    #[test]
    fn numbers_that_cannot_be_do_no_harm() {
        for sent in
            [Sent::default(), Sent { pages: u64::MAX, bytes: 0, micros: u64::MAX, copy_micros: 1 }]
        {
            for dirty in [0, u64::MAX] {
                let mut rounds = Rounds::new(Policy::migration(), 0);
                let ends = |next: Next| !matches!(next, Next::Round { .. });
                assert!((0..=Policy::ROUNDS_MAX).any(|_| ends(rounds.ended(sent, dirty))));
                let _ = rounds.progress(sent, dirty);
            }
        }
    }
}
