//! How fast a client may ask.

use std::collections::BTreeMap;

/// Clients that are remembered. One that is forgotten may ask as if it had never asked.
const REMEMBERED_MAX: usize = 4096;

/// Requests in a second in the long run, and at once after a while without any.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

/// When a client would have asked for all that it has asked for, at its rate: it may be ahead of the clock by a burst.
#[derive(Debug)]
pub struct Pace {
    rate: Rate,
    /// In nanoseconds.
    ahead_to: BTreeMap<String, u64>,
}

impl Pace {
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, ahead_to: BTreeMap::new() }
    }

    /// A client asks for something.
    ///
    /// # Errors
    /// It has asked too often; the nanoseconds after which it may ask again.
    pub fn take(&mut self, client: &str, now_ns: u64) -> Result<(), u64> {
        let each_ns = 1_000_000_000 / u64::from(self.rate.per_second.max(1));
        let burst_ns = each_ns.saturating_mul(u64::from(self.rate.burst));
        let ahead_to = self.ahead_to.get(client).copied().unwrap_or_default().max(now_ns);
        let next = ahead_to.saturating_add(each_ns);
        let too_far = next.saturating_sub(now_ns).saturating_sub(burst_ns);
        if too_far > 0 {
            return Err(too_far);
        }
        if self.ahead_to.len() >= REMEMBERED_MAX && !self.ahead_to.contains_key(client) {
            self.forget(now_ns);
        }
        self.ahead_to.insert(client.to_owned(), next);
        Ok(())
    }

    /// Those who are not ahead are as good as new; if that is nobody, the one who is least so.
    fn forget(&mut self, now_ns: u64) {
        self.ahead_to.retain(|_, ahead_to| *ahead_to > now_ns);
        if self.ahead_to.len() >= REMEMBERED_MAX
            && let Some(least) = self.ahead_to.iter().min_by_key(|(_, at)| **at)
        {
            let least = least.0.clone();
            self.ahead_to.remove(&least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_client_may_ask_in_bursts_and_at_its_rate() {
        let mut pace = Pace::new(Rate { per_second: 10, burst: 5 });
        let now = 50 * SECOND;
        (0..5).for_each(|_| pace.take("a", now).unwrap());
        assert_eq!(pace.take("a", now), Err(SECOND / 10));
        pace.take("b", now).unwrap();
        pace.take("a", now + SECOND / 10).unwrap();
        pace.take("a", now + SECOND / 10).unwrap_err();
        let asked =
            (0..100u64).filter(|at| pace.take("a", now + SECOND + at * SECOND / 20).is_ok());
        assert_eq!(asked.count(), 54, "5 at once, and 10 in each of 5 seconds");
    }

    #[test]
    fn many_clients_take_no_more_room_than_that() {
        let mut pace = Pace::new(Rate { per_second: 1, burst: 2 });
        for client in 0..2 * REMEMBERED_MAX {
            pace.take(&client.to_string(), 0).unwrap();
        }
        assert_eq!(pace.ahead_to.len(), REMEMBERED_MAX);
        pace.take("x", 10 * SECOND).unwrap();
        assert_eq!(pace.ahead_to.len(), 1);
    }
}
