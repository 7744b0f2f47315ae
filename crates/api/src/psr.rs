//! Caches and memory bandwidth that CPUs share.

use serde::{Deserialize, Serialize};

use crate::Target;

/// Requests about them. Without targets all domains are meant, and without sockets all sockets.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum PsrRequest {
    /// Answered by [`Reply::PsrHardware`](crate::Reply::PsrHardware).
    Hardware,
    /// Monitors a domain, until it ends.
    CmtAttach {
        target: Target,
    },
    CmtDetach {
        target: Target,
    },
    /// What monitored domains use. Answered by [`Reply::PsrSamples`](crate::Reply::PsrSamples).
    CmtShow {
        counter: PsrCounter,
        targets: Vec<Target>,
    },
    /// What domains may use of a cache of this level, 2 or 3. Answered by [`Reply::PsrShares`](crate::Reply::PsrShares).
    CatShow {
        level: u32,
        targets: Vec<Target>,
    },
    /// By how much their memory bandwidth is throttled. Answered by [`Reply::PsrShares`](crate::Reply::PsrShares).
    MbaShow {
        targets: Vec<Target>,
    },
    CatSet {
        target: Target,
        level: u32,
        /// Where code and data have shares of their own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<CachePart>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sockets: Vec<u32>,
        /// A bit for each part of the cache.
        cbm: u64,
    },
    MbaSet {
        target: Target,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sockets: Vec<u32>,
        /// In percent if throttling is linear.
        thrtl: u64,
    },
}

/// What is counted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PsrCounter {
    CacheOccupancy,
    TotalMemBandwidth,
    LocalMemBandwidth,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CachePart {
    Code,
    Data,
}

/// What the machine can monitor and share out. Source: `XEN_SYSCTL_psr_cmt_op`, `XEN_SYSCTL_psr_alloc`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrHardware {
    pub cmt: Option<PsrCmt>,
    pub sockets: Vec<PsrSocket>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrCmt {
    /// One more than the number of domains that can be monitored.
    pub total_rmid: u64,
    pub counters: Vec<PsrCounter>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrSocket {
    pub socket: u32,
    pub l3_cache_kib: Option<u64>,
    pub l3_cat: Option<PsrLimits>,
    pub l2_cat: Option<PsrLimits>,
    pub mba: Option<PsrLimits>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrLimits {
    /// Bits of a mask, or the most by which bandwidth is throttled.
    pub limit: u32,
    pub cos_max: u32,
    /// Of an L3 cache: code and data have shares of their own.
    #[serde(default)]
    pub cdp: bool,
    /// Of bandwidth: throttling is in percent.
    #[serde(default)]
    pub linear: bool,
}

/// What monitored domains use.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrSamples {
    pub total_rmid: u64,
    pub sockets: Vec<PsrCache>,
    pub domains: Vec<PsrUse>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrCache {
    pub socket: u32,
    pub l3_cache_kib: u64,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrUse {
    pub domid: u16,
    pub name: Option<String>,
    /// By socket; `null` where there is no count.
    pub samples: Vec<Option<PsrSample>>,
}

/// A count: bytes in the cache, or bytes that were moved since some time before.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrSample {
    pub bytes: u64,
    /// Xen's time.
    pub ns: u64,
}

/// What domains may use on a socket.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrShares {
    pub socket: u32,
    pub l3_cache_kib: Option<u64>,
    #[serde(flatten)]
    pub limits: PsrLimits,
    pub domains: Vec<PsrShare>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PsrShare {
    pub domid: u16,
    pub name: Option<String>,
    /// Of code and of data, if these have their own. `null` if Xen does not say.
    pub shares: Vec<Option<u64>>,
}
