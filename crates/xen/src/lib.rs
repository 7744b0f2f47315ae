//! Xen's vocabulary: identifiers, states, ABI layouts, and the typed hypercalls a toolstack makes.
//!
//! Hypercalls are encoded here and issued by a [`Hypervisor`], either Linux's `privcmd` or the
//! simulator: everything above that trait, including every layout and quirk, runs on both. Nothing
//! in this crate touches the operating system.
#![no_std]

extern crate alloc;

mod abi;
mod batch;
mod bitset;
mod channel;
pub mod conformance;
mod cpuid;
mod devices;
mod domain;
mod errno;
mod host;
mod hypervisor;
mod identity;
mod ids;
mod info;
mod integer;
mod latency;
mod memory;
mod migrate;
mod operator;
mod probe;
pub mod programs;
mod psr;
mod vcpu;
mod xen;

pub use abi::{Abi, DomctlVersion, SysctlVersion};
pub use batch::{Answer, Batch};
pub use bitset::BitSet;
pub use cpuid::{CpuFacts, CpuPolicy, CpuPolicyKind};
pub use devices::{
    Assignment, GuestIrq, MappingChange, PciAddress, Permission, PirqSource, ReservedMemory,
    Trigger,
};
pub use domain::{
    CreateDomain, CreateOptions, DomainFlags, DomainInfo, DomainKind, EmulationFlags, EvtchnPeer,
    HvmParam, IommuTables, PAUSE_COUNT_MAX,
};
pub use errno::Errno;
pub use host::{
    ChannelStatus, ConsoleText, CpuPlace, CpuPool, IdleStates, NumaNode, PerfCounter, SchedTuning,
};
pub use hypervisor::{
    ARENA_BYTES_FULL, ARENA_BYTES_MIN, ForeignRange, Hypervisor, Op, Piece, Resource,
};
pub use identity::{DomainRef, Life, LifeState, Presence};
pub use ids::{
    DomId, EvtchnPort, Gfn, GrantRef, Mfn, PAGE_BYTES, PAGE_SHIFT, ParseUuidError, Pfn,
    ShutdownReason, Uuid, XenbusState,
};
pub use info::{PhysInfo, SetAside, VcpuInfo, VersionInfo};
pub use integer::integer;
pub use latency::Latencies;
pub use memory::{E820Entry, E820Kind, Extent, PhysmapSpace, Placement};
pub use migrate::{Debugging, Dirty, DirtyRead, FrameUse, TscInfo, Vnuma, VnumaRange};
pub use operator::ParameterError;
pub use probe::ProbeError;
pub use psr::{Allocation, AllocationInfo, Counter, MonitoringFact, Sample};
pub use vcpu::{Affinity, AffinityChange, ExtState, ExtVcpuContext, Msr, SchedParams, Scheduler};
pub use xen::{Counters, ForeignError, Xen};
