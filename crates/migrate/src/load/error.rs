//! Why a saved domain cannot be loaded.

use xen::{Errno, ForeignError};

/// A stream cannot be loaded into a domain.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LoadError {
    #[error("a saved {stream} domain cannot be loaded into a {domain} domain")]
    WrongType { stream: &'static str, domain: &'static str },
    #[error("a record {record} makes no sense for a {domain} domain")]
    Unexpected { record: &'static str, domain: &'static str },
    #[error("a record {record} comes before the end of the static data")]
    BeforeStaticData { record: &'static str },
    #[error("a record {record} comes after the end of the static data")]
    AfterStaticData { record: &'static str },
    #[error("a record {record} comes after the end")]
    AfterEnd { record: &'static str },
    #[error("the saved domain is incomplete, without {what}")]
    Missing { what: &'static str },
    #[error("frame {pfn:#x} lies beyond the domain's last possible one, {max:#x}")]
    FrameBeyond { pfn: u64, max: u64 },
    #[error("the saved domain has more than the {max} pages that the new one may have")]
    TooManyPages { max: u64 },
    /// The host, or the domain's p2m pool, is out of memory.
    #[error("Xen gave {got} of {wanted} pages: the host or the domain's p2m pool is out of memory")]
    Memory { got: u64, wanted: u64 },
    /// EINVAL: this host's CPU lacks something.
    #[error("the saved domain's CPU cannot be had on this host: {errno}")]
    Policy { errno: Errno },
    #[error("cannot {action}: {errno}")]
    Hypercall { action: &'static str, errno: Errno },
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    #[error("the domain's parameter {index} is not part of a saved domain")]
    Param { index: u64 },
    #[error("{what} leads to frame {pfn:#x}, which the domain does not have")]
    NoSuchFrame { what: &'static str, pfn: u64 },
    #[error("a PV guest of {bits} bits cannot be loaded, only one of 64 bits")]
    Width { bits: u32 },
    #[error("vCPU {vcpu}: {what} ({value:#x})")]
    Vcpu { vcpu: u32, what: &'static str, value: u64 },
    #[error("the guest's list of machine frames: {what} ({value:#x})")]
    P2m { what: &'static str, value: u64 },
    #[error("entry {slot} of the page table at frame {pfn:#x} leads to frame {target:#x}, {why}")]
    Table { pfn: u64, slot: usize, target: u64, why: &'static str },
}

impl LoadError {
    pub(super) fn refused(action: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Hypercall { action, errno }
    }
}
