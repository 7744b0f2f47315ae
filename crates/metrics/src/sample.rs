//! What the daemon said last.

use std::collections::BTreeMap;

use api::{Activity, Counters, DomainRow, Info, Limits, Traffic};

const BYTES_PER_MIB: u64 = 1 << 20;

/// The machine as a whole.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Host {
    pub cpus: u64,
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
}

impl Host {
    /// `None` of lines that do not say so.
    #[must_use]
    pub fn of(info: &Info) -> Option<Self> {
        let number = |key: &str| -> Option<u64> {
            let line = info.0.iter().find(|(name, _)| name == key)?;
            line.1.parse().ok()
        };
        Some(Self {
            cpus: number("nr_cpus")?,
            memory_bytes: number("total_memory")?.saturating_mul(BYTES_PER_MIB),
            memory_free_bytes: number("free_memory")?.saturating_mul(BYTES_PER_MIB),
        })
    }

    /// The same while domains have taken and given back memory: the host is asked more rarely than they are listed.
    #[must_use]
    pub fn after(mut self, kib_before: u64, kib_now: u64) -> Self {
        let free = self.memory_free_bytes.saturating_add(kib_before.saturating_mul(1024));
        let free = free.saturating_sub(kib_now.saturating_mul(1024));
        self.memory_free_bytes = free.min(self.memory_bytes);
        self
    }
}

/// What is known of a host, at one time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub unix_s: u64,
    /// Of a clock that only goes forward.
    pub at_ns: u64,
    /// Of the daemon; `None` if it does not answer, and then all else is as it was before.
    pub release: Option<String>,
    pub host: Option<Host>,
    pub domains: Vec<DomainRow>,
    /// VMs, defined or running, by state.
    pub states: BTreeMap<String, u64>,
    /// Operations in progress, by the UUID of their VM.
    pub operations: BTreeMap<String, u64>,
    pub limits: Limits,
    pub counters: Counters,
    pub activity: Activity,
    pub traffic: Traffic,
    /// When that was so, of the same clock as `at_ns`.
    pub traffic_at_ns: u64,
}

impl Sample {
    #[must_use]
    pub fn kib(&self) -> u64 {
        self.domains.iter().map(|it| it.mem_kib).fold(0, u64::saturating_add)
    }
}

/// What the shell counts of itself.
#[derive(Clone, Debug, Default)]
pub struct Own {
    pub release: &'static str,
    pub connections: usize,
    pub readers: usize,
    /// By route, which is one of those that there are, and status.
    pub requests: BTreeMap<(String, u16), u64>,
    /// Requests refused because their client asks too often.
    pub paced: u64,
    /// Operations exported as traces, by outcome.
    pub traces: [(&'static str, u64); 4],
    pub traces_waiting: usize,
    pub history_vms: usize,
    pub history_bytes: usize,
}
