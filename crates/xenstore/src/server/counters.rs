//! Counters since the start of the store.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use crate::wire::MessageType;

/// Counters of requests, transactions and events.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// By message type code; Xylem's own types come last.
    requests: [u64; 29],
    /// Requests of a type that the protocol does not have.
    pub requests_unknown: u64,
    /// Requests that were answered with an error.
    pub requests_refused: u64,
    pub transactions_started: u64,
    pub transactions_committed: u64,
    /// Commits that were refused because of another change.
    pub transactions_conflicted: u64,
    pub transactions_aborted: u64,
    pub events_queued: u64,
    /// Events that were merged with a queued one.
    pub events_coalesced: u64,
    /// Events that were not queued because they fit into no message or a guest's memory was full.
    pub events_dropped: u64,
    /// Queued events that were dropped because the guest did not read.
    pub events_expired: u64,
    /// Times that a guest was throttled because it wrote too fast.
    pub writers_held_back: u64,
    /// Transactions of guests that were open for too long and lost their snapshot.
    pub snapshots_given_up: u64,
    /// Polls of all or of changed domains; not those of a single domain.
    pub looks: u64,
    /// Their CPU time, without the handling of deaths.
    pub looks_cpu_us: u64,
}

impl Counters {
    /// Requests of this type.
    #[must_use]
    pub fn requests(&self, kind: MessageType) -> u64 {
        self.requests[Self::index(kind)]
    }

    /// Requests of every type.
    #[must_use]
    pub fn requests_total(&self) -> u64 {
        self.requests.iter().sum::<u64>() + self.requests_unknown
    }

    pub(super) fn count_look(&mut self, cpu: Duration) {
        self.looks += 1;
        self.looks_cpu_us += u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX);
    }

    pub(super) fn count_request(&mut self, kind: Option<MessageType>) {
        match kind {
            Some(kind) => self.requests[Self::index(kind)] += 1,
            None => self.requests_unknown += 1,
        }
    }

    fn index(kind: MessageType) -> usize {
        match kind {
            MessageType::Batch => 27,
            MessageType::DomainChanges => 28,
            _ => kind.code() as usize,
        }
    }

    /// The counters as the members of a JSON object, without its braces.
    pub(super) fn json_members(&self) -> String {
        let mut requests = String::new();
        for &kind in MessageType::ALL {
            let count = self.requests(kind);
            if count > 0 {
                requests.push_str(&format!("\"{}\":{count},", kind.label()));
            }
        }
        requests.pop();
        format!(
            "\"requests_total\":{},\"requests\":{{{requests}}},\"requests_unknown\":{},\
             \"requests_refused\":{},\"transactions_started\":{},\"transactions_committed\":{},\
             \"transactions_conflicted\":{},\"transactions_aborted\":{},\"events_queued\":{},\
             \"events_coalesced\":{},\"events_dropped\":{},\"events_expired\":{},\
             \"writers_held_back\":{},\"snapshots_given_up\":{},\"looks\":{},\"looks_cpu_us\":{}",
            self.requests_total(),
            self.requests_unknown,
            self.requests_refused,
            self.transactions_started,
            self.transactions_committed,
            self.transactions_conflicted,
            self.transactions_aborted,
            self.events_queued,
            self.events_coalesced,
            self.events_dropped,
            self.events_expired,
            self.writers_held_back,
            self.snapshots_given_up,
            self.looks,
            self.looks_cpu_us,
        )
    }
}
