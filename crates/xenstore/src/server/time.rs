//! Timed work: resumes throttled guests, and drops events that a guest does not read.
//!
//! The shell sets the time at the beginning of a turn, and calls again by
//! [`Server::next_deadline`].

use alloc::format;
use core::time::Duration;

use crate::server::{ConnId, Host, Server, Topic};

/// Timeout of events for a guest that does not read. Source: xen `tools/xenstored/core.c`,
/// `timeout_watch_event_msec`.
pub(super) const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// What is to be done at a deadline.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Task {
    /// The guest can have credit for a write again.
    Serve,
    /// Events of the guest may have waited for too long.
    DropEvents,
}

impl Server {
    /// Advances the time: `now` has an arbitrary epoch, and is monotonic.
    pub fn advance(&mut self, host: &mut dyn Host, now: Duration) {
        self.now = self.now.max(now);
        while let Some(&(time, id, task)) = self.deadlines.first()
            && time <= self.now
        {
            self.deadlines.pop_first();
            match task {
                Task::Serve => self.serve_again(id),
                Task::DropEvents => self.drop_old_events(host, id),
            }
        }
    }

    /// When [`advance`](Self::advance) has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(time, _, _)| *time)
    }

    /// When a guest that wrote too fast is served again; `None` if that is not what it waits for.
    #[must_use]
    pub fn resumes_at(&self, id: ConnId) -> Option<Duration> {
        let guest = self.subject(id).guest()?;
        self.write_rate.next_payment(self.domains.get(guest.domid)?.credit)
    }

    /// Sets the timeout of events for a guest that does not read; `None` means never.
    pub fn set_event_timeout(&mut self, timeout: Option<Duration>) {
        self.event_timeout = timeout;
    }

    /// A guest changed something that others may have in a transaction.
    pub(super) fn spend_write(&mut self, host: &mut dyn Host, id: ConnId) {
        let Some(guest) = self.subject(id).guest() else { return };
        let own = self.connections.get(&id).map_or(0, |c| c.transactions.len());
        if self.transactions_open == own {
            return;
        }
        let Some(domain) = self.domains.get_mut(guest.domid) else { return };
        let Some(until) = self.write_rate.spend(&mut domain.credit, self.now) else { return };
        self.deadlines.insert((until, id, Task::Serve));
        if self.traces(Topic::WriteRate) {
            let (id, wait) = (id.number(), until.saturating_sub(self.now));
            host.trace(format_args!("wrl {id} waits for {} us", wait.as_micros()));
        }
        self.counters.writers_held_back += 1;
        let Some(domain) = self.domains.get_mut(guest.domid) else { return };
        if !core::mem::replace(&mut domain.slowed, true) {
            let domid = guest.domid;
            let line = format!("domain {domid} writes so fast that it is slowed down");
            host.log_about(domid, &line);
        }
    }

    fn serve_again(&mut self, id: ConnId) {
        let Some(guest) = self.subject(id).guest() else { return };
        let Some(domain) = self.domains.get_mut(guest.domid) else { return };
        self.write_rate.pay(&mut domain.credit, self.now);
        match self.write_rate.next_payment(domain.credit) {
            // Others came meanwhile, and its share is smaller.
            Some(until) => drop(self.deadlines.insert((until, id, Task::Serve))),
            None => self.ready.insert(id),
        }
    }

    /// An event was queued for a guest.
    pub(super) fn expect_to_be_read(&mut self, id: ConnId) {
        let Some(timeout) = self.event_timeout else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !core::mem::replace(&mut connection.events_have_deadline, true) {
            self.deadlines.insert((self.now.saturating_add(timeout), id, Task::DropEvents));
        }
    }

    fn drop_old_events(&mut self, host: &mut dyn Host, id: ConnId) {
        let Some(timeout) = self.event_timeout else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.events_have_deadline = false;
        let mut dropped = 0;
        if let Some(oldest) = self.now.checked_sub(timeout) {
            dropped = connection.output.drop_events_until(oldest);
        }
        if let Some(next) = connection.output.oldest_event() {
            connection.events_have_deadline = true;
            self.deadlines.insert((next.saturating_add(timeout), id, Task::DropEvents));
        }
        if dropped > 0 {
            self.counters.events_expired += dropped as u64;
            self.record_output(id);
            if let Some(guest) = self.subject(id).guest() {
                let domid = guest.domid;
                let line = format!("domain {domid} does not read; {dropped} events are dropped");
                host.log_about(domid, &line);
            }
            if self.accepts_requests(id) {
                self.ready.insert(id);
            }
        }
    }
}
