//! How fast guests may change the store while somebody else has a transaction open (XSA-206).
//!
//! A guest that writes without a pause what the control domain's transaction reads would make every
//! commit fail. So each of its changes costs one write of credit. Credit comes with time, shared evenly
//! by the domains; each saves a small burst, and what it does not use goes to a reserve that whoever
//! runs out draws on. A guest without credit is not served until it has some again.
//! Source of the numbers: xen `tools/xenstored/domain.c`, `WRL_*`.

use core::time::Duration;

/// Thousandths of a write, so that little time earns something too.
type Milliwrites = i64;

const WRITE: Milliwrites = 1000;

/// What a guest can save.
const BURST: Milliwrites = 10 * WRITE;

/// What the reserve can hold.
const RESERVE_MAX: Milliwrites = 1000 * WRITE;

/// A new domain gets its burst from the reserve, which may fall this low for it.
const RESERVE_MIN: Milliwrites = -5 * BURST;

/// All domains together earn 200 writes a second.
const MICROSECONDS_PER_MILLIWRITE: i64 = 5;

/// No guest is paid for more than this at once.
const IDLE_MICROSECONDS_MAX: i64 = 1_000_000_000;

/// What one domain may still write.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Credit {
    amount: Milliwrites,
    /// Time up to which it was paid.
    paid_until: Duration,
}

impl Credit {
    pub(super) fn amount(self) -> Milliwrites {
        self.amount
    }

    pub(super) fn is_used_up(self) -> bool {
        self.amount < 0
    }
}

/// What all domains share.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteRate {
    domains: i64,
    reserve: Milliwrites,
}

impl WriteRate {
    /// A domain is introduced.
    pub(super) fn join(&mut self, now: Duration) -> Credit {
        self.domains += 1;
        let amount = (self.reserve - RESERVE_MIN).clamp(0, BURST);
        self.reserve -= amount;
        Credit { amount, paid_until: now }
    }

    /// What the domains saved together.
    pub(super) fn reserve(&self) -> Milliwrites {
        self.reserve
    }

    /// What they had when the state was saved.
    pub(super) fn with_reserve(reserve: Milliwrites) -> Self {
        Self { domains: 0, reserve: reserve.clamp(RESERVE_MIN, RESERVE_MAX) }
    }

    /// A domain was introduced when the state was saved, and may write as much as then.
    pub(super) fn rejoin(&mut self, amount: Milliwrites, now: Duration) -> Credit {
        self.domains += 1;
        Credit { amount: amount.clamp(-BURST, BURST), paid_until: now }
    }

    /// A domain goes, and leaves what it had.
    pub(super) fn leave(&mut self, credit: Credit) {
        self.domains -= 1;
        let room = (BURST - self.reserve).max(0);
        self.reserve += credit.amount.clamp(0, room);
    }

    /// Pays a domain for the time that passed.
    pub(super) fn pay(&mut self, credit: &mut Credit, now: Duration) {
        let price = self.price_microseconds();
        let passed = now.saturating_sub(credit.paid_until).as_micros();
        let passed = i64::try_from(passed).unwrap_or(i64::MAX).min(IDLE_MICROSECONDS_MAX);
        let earned = passed / price;
        if passed == IDLE_MICROSECONDS_MAX {
            credit.paid_until = now;
        } else {
            // The rest of the division is paid next time.
            credit.paid_until += microseconds(earned * price);
        }
        credit.amount += earned;
        self.help(credit);
        let surplus = (credit.amount - BURST).max(0);
        credit.amount -= surplus;
        self.reserve = (self.reserve + surplus).min(RESERVE_MAX.max(self.reserve));
    }

    /// A domain changed something. `Some`: it ran out, and is not to be served until then.
    pub(super) fn spend(&mut self, credit: &mut Credit, now: Duration) -> Option<Duration> {
        self.pay(credit, now);
        credit.amount -= WRITE;
        self.help(credit);
        self.next_payment(*credit)
    }

    /// Whoever ran out draws on the reserve.
    fn help(&mut self, credit: &mut Credit) {
        let help = (-credit.amount).clamp(0, self.reserve.max(0));
        credit.amount += help;
        self.reserve -= help;
    }

    /// When a domain that ran out has credit again; `None` if it has.
    pub(super) fn next_payment(&self, credit: Credit) -> Option<Duration> {
        let missing = (-credit.amount).max(0);
        credit
            .is_used_up()
            .then(|| credit.paid_until + microseconds(missing * self.price_microseconds()))
    }

    fn price_microseconds(&self) -> i64 {
        MICROSECONDS_PER_MILLIWRITE * self.domains.max(1)
    }
}

fn microseconds(count: i64) -> Duration {
    Duration::from_micros(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Writes of a guest that writes whenever it may, until `end`.
    fn writes(rate: &mut WriteRate, credit: &mut Credit, start: Duration, end: Duration) -> u32 {
        let mut now = start;
        let mut count = 0;
        while now < end {
            count += 1;
            match rate.spend(credit, now) {
                Some(next) => {
                    assert!(next > now, "a guest that ran out waits");
                    now = next;
                    rate.pay(credit, now);
                    assert!(!credit.is_used_up(), "it has credit when it was told so");
                }
                None => now += Duration::from_micros(10),
            }
        }
        count
    }

    #[test]
    fn a_guest_writes_its_burst_and_then_its_share() {
        for domains in [1, 4] {
            let mut rate = WriteRate::default();
            let mut credit = rate.join(Duration::ZERO);
            for _ in 1..domains {
                let _idle = rate.join(Duration::ZERO);
            }
            let count = writes(&mut rate, &mut credit, Duration::ZERO, 10 * SECOND);
            let share = 2000 / domains;
            assert!((share..=share + 12).contains(&count), "{count} of {domains}");
        }
    }

    #[test]
    fn what_was_saved_is_a_thousand_writes_at_most() {
        let mut rate = WriteRate::default();
        let mut credit = rate.join(Duration::ZERO);
        rate.pay(&mut credit, 3600 * SECOND);
        let count = writes(&mut rate, &mut credit, 3600 * SECOND, 3601 * SECOND);
        assert!((1200..=1222).contains(&count), "{count}");
    }

    #[test]
    fn looking_often_earns_as_much_as_looking_once() {
        let mut rate = WriteRate::default();
        let mut credits: [Credit; 7] = core::array::from_fn(|_| rate.join(Duration::ZERO));
        for credit in &mut credits {
            while rate.spend(credit, Duration::ZERO).is_none() {}
        }
        let mut eager = credits[0];
        for i in 0..10_000 {
            rate.pay(&mut eager, Duration::from_micros(3 * i));
        }
        rate.pay(&mut credits[0], Duration::from_micros(3 * 9_999));
        assert_eq!(eager, credits[0]);
    }

    #[test]
    fn the_reserve_stays_in_its_bounds_as_domains_come_and_go() {
        let mut rate = WriteRate::default();
        for round in 0..1000u64 {
            let now = Duration::from_millis(round);
            let mut credit = rate.join(now);
            assert!((0..=BURST).contains(&credit.amount));
            rate.pay(&mut credit, now + SECOND);
            rate.leave(credit);
            assert!((RESERVE_MIN..=RESERVE_MAX).contains(&rate.reserve), "{rate:?}");
        }
        assert_eq!(rate.domains, 0);
    }
}
