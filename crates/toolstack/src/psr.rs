//! Caches and memory bandwidth that CPUs share: what domains use of them, and what they may use.
//!
//! All of it is Xen's, and ends with the domain. Source: xen `tools/libs/light/libxl_psr.c`.

use xen::{Allocation, AllocationInfo, Counter, DomId, Sample};

/// What is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PsrAsk {
    /// Answered by [`HostTold::PsrHardware`](crate::xen_host::HostTold::PsrHardware).
    Hardware,
    /// Begins or ends to monitor a domain.
    Monitor { domid: DomId, name: String, monitored: bool },
    /// What these domains use, of those that are monitored. Answered by
    /// [`HostTold::PsrSamples`](crate::xen_host::HostTold::PsrSamples).
    Samples { counter: Counter, domids: Vec<DomId> },
    /// What these domains may use. Answered by [`HostTold::PsrShares`](crate::xen_host::HostTold::PsrShares).
    Shares { what: Shared, domids: Vec<DomId> },
    /// On these sockets, or on all.
    Set { domid: DomId, name: String, what: Allocation, sockets: Vec<u32>, share: u64 },
}

/// What is shared out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shared {
    L3Cache,
    L2Cache,
    Bandwidth,
}

impl Shared {
    /// In terms of Xen. If code and data have shares of their own, [`AllocationInfo::flag`] says so.
    pub(crate) fn allocation(self) -> Allocation {
        match self {
            Self::L3Cache => Allocation::L3Cache,
            Self::L2Cache => Allocation::L2Cache,
            Self::Bandwidth => Allocation::Bandwidth,
        }
    }
}

impl PsrAsk {
    /// What it does, and to which domain; `None` if it only reads.
    pub(crate) fn deed(&self) -> Option<(String, &str)> {
        match self {
            Self::Monitor { name, monitored: true, .. } => {
                Some(("psr-cmt-attach".to_owned(), name))
            }
            Self::Monitor { name, monitored: false, .. } => {
                Some(("psr-cmt-detach".to_owned(), name))
            }
            Self::Set { name, what: Allocation::Bandwidth, share, .. } => {
                Some((format!("psr-mba-set to {share}"), name))
            }
            Self::Set { name, share, .. } => Some((format!("psr-cat-set to {share:#x}"), name)),
            Self::Hardware | Self::Samples { .. } | Self::Shares { .. } => None,
        }
    }
}

/// What the machine can monitor and share out.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PsrHardware {
    pub monitoring: Option<Monitoring>,
    pub sockets: Vec<PsrSocket>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Monitoring {
    pub total_rmid: u64,
    pub counters: Vec<Counter>,
}

/// What one socket can share out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PsrSocket {
    pub socket: u32,
    pub cache_kib: Option<u64>,
    pub l3: Option<AllocationInfo>,
    pub l2: Option<AllocationInfo>,
    pub bandwidth: Option<AllocationInfo>,
}

/// What monitored domains use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PsrSamples {
    pub total_rmid: u64,
    /// Sockets, and the size of the L3 cache of each in KiB.
    pub sockets: Vec<(u32, u64)>,
    /// By socket; counts are in bytes. `None` where there is no count.
    pub domains: Vec<(DomId, Vec<Option<Sample>>)>,
}

/// What domains may use on a socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PsrShares {
    pub socket: u32,
    pub cache_kib: Option<u64>,
    pub what: Shared,
    pub info: AllocationInfo,
    /// Two shares if code and data have shares of their own. `None` if Xen does not say.
    pub domains: Vec<(DomId, Vec<Option<u64>>)>,
}
