//! Memory accounting of guests, and warnings about it.
//!
//! Nothing is charged or refunded anywhere: the memory held for a guest is the sum of its
//! connection, watches, transactions and nodes, which know their own sizes. A guest at its limit
//! gets nothing that needs more, but can read, remove and abort.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use xen::DomId;

use crate::Error;
use crate::quota::{Quota, Seen, admits};
use crate::server::{ConnId, Host, Server};
use crate::wire::PAYLOAD_BYTES_MAX;

/// Minimum interval of warnings about a domain's memory, except about the limit itself.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// The last warning about a domain's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryNotice {
    above_soft: bool,
    above_hard: bool,
    last: Option<Duration>,
}

impl Server {
    /// The domain's current use of its limits.
    pub(super) fn in_use(&self, domid: DomId) -> Seen {
        let connection = self.domains.introduced(domid).and_then(|id| self.connections.get(&id));
        let held = connection.map_or(0, |connection| connection.held_bytes());
        Seen {
            nodes: self.store.owned_count(domid),
            watches: connection.map_or(0, |connection| connection.watches.len()),
            outstanding: connection.map_or(0, |connection| connection.output.unread_replies()),
            memory_bytes: held + self.store.owned_bytes(domid),
            transactions: connection.map_or(0, |connection| connection.transactions.len()),
        }
    }

    /// Memory held for the guest at this connection; 0 for the control domain.
    pub(super) fn held_bytes(&self, id: ConnId) -> usize {
        let Some(guest) = self.subject(id).guest() else { return 0 };
        let held = self.connections.get(&id).map_or(0, |connection| connection.held_bytes());
        held + self.store.owned_bytes(guest.domid)
    }

    /// Whether the client may use this many more bytes.
    pub(super) fn has_room(&self, id: ConnId, bytes: usize) -> bool {
        // Refusals before the restart are replayed by their recorded answers.
        if self.is_replaying {
            return true;
        }
        let Some(quota) = self.guest_quota(id) else { return true };
        admits(quota.memory_bytes, self.held_bytes(id) + bytes)
    }

    /// A guest uses more memory: its limits are checked where the host is available.
    pub(super) fn note_crowd(&mut self, id: ConnId) {
        let Some(quota) = self.guest_quota(id) else { return };
        if quota.memory_bytes_soft != 0 && !admits(quota.memory_bytes_soft, self.held_bytes(id)) {
            self.crowded.insert(id);
        }
    }

    /// Whether there was a warning about the guest's memory, so that its end is reported too.
    pub(super) fn was_told_of(&self, id: ConnId) -> bool {
        let Some(guest) = self.subject(id).guest() else { return false };
        let notice = self.domains.get(guest.domid).map(|domain| domain.memory_notice);
        notice.is_some_and(MemoryNotice::is_told)
    }

    /// Refuses what would exceed the client's memory limit.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn check_room(&self, id: ConnId, bytes: usize) -> Result<(), Error> {
        if self.has_room(id, bytes) { Ok(()) } else { Err(Error::ENOMEM) }
    }

    /// Records the maximum use of the guest at this connection, and logs a warning if it passed a
    /// memory limit.
    pub(super) fn note_use(&mut self, host: &mut dyn Host, id: ConnId) {
        let Some(guest) = self.subject(id).guest() else { return };
        let in_use = self.in_use(guest.domid);
        let now = self.now;
        let Some(domain) = self.domains.get_mut(guest.domid) else { return };
        domain.seen = domain.seen.max(&in_use);
        self.most_seen = self.most_seen.max(&in_use);
        let news = domain.memory_notice.news(in_use.memory_bytes, &domain.quota, now);
        for news in news {
            let line =
                format!("domain {} holds {} bytes, {news}", guest.domid, in_use.memory_bytes);
            host.log_about(guest.domid, &line);
        }
    }
}

impl MemoryNotice {
    pub(super) fn is_told(self) -> bool {
        self.above_soft || self.above_hard
    }

    /// Warnings for a domain that holds this much.
    fn news(&mut self, bytes: usize, quota: &Quota, now: Duration) -> Vec<String> {
        let mut news = Vec::new();
        let (hard, soft) = (quota.memory_bytes, quota.memory_bytes_soft);
        // Less is left than one message may need: the next one can be refused.
        let is_above_hard = !admits(hard, bytes + PAYLOAD_BYTES_MAX);
        let is_above_soft = !admits(soft, bytes);
        if is_above_hard && !self.above_hard {
            news.push(format!("nearly all of its {hard}; what needs more is refused"));
        }
        let is_late = self.last.is_none_or(|last| now.saturating_sub(last) >= NOTICE_INTERVAL);
        if is_above_hard {
            self.above_hard = true;
        } else if is_late {
            if self.above_hard {
                news.push("below its limit again".into());
            }
            if is_above_soft && !self.above_soft {
                news.push(format!("above its soft limit of {soft}"));
            }
            if !is_above_soft && self.above_soft {
                news.push("below its soft limit again".into());
            }
            self.above_hard = false;
            self.above_soft = is_above_soft;
        }
        if !news.is_empty() {
            self.last = Some(now);
        }
        news
    }
}
