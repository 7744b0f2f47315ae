//! Facts: what is known of a VM's resources.

use std::collections::BTreeMap;

use storage::Attachment;
use xen::{DomId, DomainRef};
use xen_build::Built;

use crate::device_model::Process;
use crate::layout::Completion;
use crate::plan::Reached;
use crate::saved::SaveEnd;
use crate::work::{Images, NewDomain};

/// What exists of a VM on the host.
///
/// What outlives a reboot is the VM's; the rest is of its domain, an [`Incarnation`]. A reboot begins the next
/// one; images and disks are kept for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) recorded: bool,
    pub(crate) images: Option<Images>,
    /// By `virtual-device`.
    pub(crate) disks: BTreeMap<u32, Attachment>,
    /// Its domain, or the one that is being made or taken down.
    pub(crate) incarnation: Incarnation,
}

/// One domain of a VM, from its making until nothing of it is left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incarnation {
    pub(crate) domain: Option<DomainRef>,
    /// Present if this process made the domain.
    pub(crate) new: Option<NewDomain>,
    pub(crate) built: Option<Built>,
    /// Its device model.
    pub(crate) model: Option<Process>,
    /// It was released: no further work on it may begin.
    pub(crate) is_released: bool,
    /// Nodes of the domain and devices were, or may have been, written.
    pub(crate) nodes: bool,
    pub(crate) completion: Option<Completion>,
    /// What came of its last save.
    pub(crate) save_end: Option<SaveEnd>,
}

impl Facts {
    pub(crate) fn disk_ids(&self) -> Vec<u32> {
        self.disks.keys().copied().collect()
    }

    pub(crate) fn domid(&self) -> Option<DomId> {
        Some(self.incarnation.domain?.domid)
    }

    pub(crate) fn reached<'a>(&self, disks: &'a [u32], is_condemned: bool) -> Reached<'a> {
        Reached {
            recorded: self.recorded,
            domain: self.incarnation.domain.is_some(),
            nodes: self.incarnation.nodes,
            condemned: is_condemned && self.incarnation.completion.is_some(),
            disks,
        }
    }
}
