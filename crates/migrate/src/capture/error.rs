//! Why a domain cannot be saved.

use xen::{DomId, Errno, ForeignError};

/// A domain's state cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CaptureError {
    #[error("domain {domid} does not exist any more")]
    Gone { domid: DomId },
    #[error("domain {domid} has not suspended")]
    NotSuspended { domid: DomId },
    /// It must be suspended before its memory is read.
    #[error(
        "domain {domid}: this Xen does not log the writes of PV domains (it was built without shadow \
         paging), so the domain cannot be read while it runs"
    )]
    NoLogDirty { domid: DomId },
    #[error("domain {domid}: its log of {pages} pages is larger than the {max} that can be read")]
    TooLarge { domid: DomId, pages: u64, max: u64 },
    #[error("domain {domid}: cannot {action}: {errno}")]
    Hypercall { domid: DomId, action: &'static str, errno: Errno },
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    #[error("domain {domid}: a PV guest of {bits} bits cannot be saved, only one of 64 bits")]
    Width { domid: DomId, bits: u32 },
    /// The guest's list of its frames, by which its page tables are translated.
    #[error("domain {domid}: its guest's list of machine frames {what} ({value:#x})")]
    P2m { domid: DomId, what: &'static str, value: u64 },
    #[error(
        "domain {domid}: its guest moved its list of machine frames meanwhile; the save must be begun \
         again"
    )]
    P2mMoved { domid: DomId },
    #[error(
        "domain {domid}: entry {slot} of the page table at frame {pfn:#x} (level {level}) {what}"
    )]
    Table { domid: DomId, pfn: u64, level: u8, slot: usize, what: &'static str },
    #[error("domain {domid}: vCPU {vcpu}: its {what} ({value:#x}) is not the guest's")]
    Register { domid: DomId, vcpu: u32, what: &'static str, value: u64 },
}

impl CaptureError {
    pub(crate) fn refused(domid: DomId, action: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Hypercall { domid, action, errno }
    }
}
