//! Why a domain cannot be built.

use alloc::format;
use alloc::string::String;

use xen::{DomId, DomainKind, Errno, ForeignError};

use crate::ImageError;
use crate::cpuid::NO_SUBLEAF;

/// Why a domain cannot be built.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BuildError {
    #[error("{0}")]
    Image(#[from] ImageError),
    #[error("{0:?} domains are built from a firmware, not from a kernel")]
    Kind(DomainKind),
    #[error(
        "memory = {memory_mib} MiB is too little: kernel, ramdisk and start-up tables need {needed_mib} MiB"
    )]
    MemoryTooSmall { memory_mib: u64, needed_mib: u64 },
    #[error("memory = {memory_mib} MiB exceeds the limit of {max_mib} MiB")]
    MemoryTooLarge { memory_mib: u64, max_mib: u64 },
    #[error("maxmem = {max_mib} MiB is less than memory = {memory_mib} MiB")]
    MemoryAboveMax { memory_mib: u64, max_mib: u64 },
    #[error("the kernel command line has {bytes} bytes, at most {max} are allowed")]
    CmdlineTooLong { bytes: usize, max: usize },
    #[error("the kernel command line contains a NUL byte")]
    CmdlineNul,
    #[error("vcpus = {vcpus} is out of range: 1 to {max}")]
    Vcpus { vcpus: u32, max: u32 },
    #[error("the loader of HVM domains {0}; Debian has it in xen-utils, as hvmloader")]
    Loader(&'static str),
    #[error("the loader of HVM domains: {0}")]
    LoaderImage(ImageError),
    #[error("the firmware has {bytes} bytes, expected 1 to {max}")]
    Firmware { bytes: usize, max: usize },
    #[error("this host has no CPUID leaf {leaf:#x}{}", subleaf_text(*.subleaf))]
    CpuidLeaf { leaf: u32, subleaf: u32 },
    #[error("this host's CPU policy has no model specific register {0:#x}")]
    Msr(u32),
    /// The host is out of memory.
    #[error(
        "out of memory for domain {domid}: only {got_pages} of {wanted_pages} pages were allocated"
    )]
    HostMemory { domid: DomId, got_pages: u64, wanted_pages: u64 },
    #[error("cannot {action} for domain {domid}: Xen returned {errno}")]
    Hypercall { action: &'static str, domid: DomId, errno: Errno },
    #[error("domain {0} was destroyed while it was being built")]
    Gone(DomId),
    /// The build's [`Monitor`](crate::Monitor) ended it.
    #[error("the build of domain {0} was cancelled")]
    Interrupted(DomId),
    #[error("{0}")]
    Foreign(#[from] ForeignError),
    /// Xen's own save records are not as this builder expects.
    #[error("Xen's HVM context of domain {0} has no usable CPU record; this Xen is not supported")]
    HvmContext(DomId),
}

fn subleaf_text(subleaf: u32) -> String {
    match subleaf {
        NO_SUBLEAF => String::new(),
        subleaf => format!(", subleaf {subleaf:#x}"),
    }
}
