//! The daemon's signs of life, without which the service manager ends it and starts another one.
//!
//! They are given in the event loop only, once in a turn at most: a daemon that hangs in a turn gives none.

use std::time::Duration;

use xenstore::server::Server;

/// Signs in the time after which the manager ends the daemon.
const SIGNS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct SignsOfLife {
    /// Time between two of them; none without a manager that waits for them.
    every: Option<Duration>,
    due: Duration,
}

impl SignsOfLife {
    /// As the manager wants them. The daemon before may have been another one: see [`excuse`].
    pub(crate) fn begin() -> Self {
        let Some(limit) = service_manager::watchdog() else { return Self::default() };
        insist(limit);
        Self { every: Some(limit / SIGNS), due: Duration::ZERO }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.every.map(|_| self.due)
    }

    /// Gives one if it is time.
    pub(crate) fn show(&mut self, now: Duration, server: &Server) {
        if let Some(every) = self.every
            && now >= self.due
        {
            self.due = now + every;
            let (nodes, connections) = (server.node_count(), server.connection_count());
            // A lost one is followed by others.
            let _lost = service_manager::tell(&format!(
                "WATCHDOG=1\nSTATUS={nodes} nodes, {connections} connections\n"
            ));
        }
    }
}

/// The next program of this process may know nothing of signs of life: none are waited for.
pub(crate) fn excuse() {
    if service_manager::watchdog().is_some() {
        let _lost = service_manager::tell("WATCHDOG_USEC=0\n");
    }
}

/// It did not become another program.
pub(crate) fn insist_again() {
    if let Some(limit) = service_manager::watchdog() {
        insist(limit);
    }
}

fn insist(limit: Duration) {
    let _lost = service_manager::tell(&format!("WATCHDOG_USEC={}\n", limit.as_micros()));
}

#[cfg(test)]
mod tests {
    use xenstore::Quota;

    use super::*;

    #[test]
    fn signs_are_given_when_they_are_due() {
        let server = Server::new(Quota::default());
        let mut nobody = SignsOfLife::default();
        nobody.show(Duration::from_secs(9), &server);
        assert_eq!(nobody.due(), None);
        let mut life = SignsOfLife { every: Some(Duration::from_secs(10)), due: Duration::ZERO };
        for (now, due) in [(0, 10), (9, 10), (10, 20), (35, 45)] {
            life.show(Duration::from_secs(now), &server);
            assert_eq!(life.due(), Some(Duration::from_secs(due)), "{now}");
        }
    }
}
