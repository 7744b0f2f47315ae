//! What is known of a VM's parts.

use std::collections::BTreeMap;

use storage::Attachment;
use xen::{DomId, DomainRef};
use xen_build::Built;

use crate::device_model::Process;
use crate::layout::Completion;
use crate::plan::Reached;
use crate::work::{Images, NewDomain};

/// What exists of a VM on the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) recorded: bool,
    pub(super) images: Option<Images>,
    /// By `virtual-device`.
    pub(super) disks: BTreeMap<u32, Attachment>,
    pub(super) domain: Option<DomainRef>,
    /// Present if this process made the domain.
    pub(super) new: Option<NewDomain>,
    pub(super) built: Option<Built>,
    /// Its device model.
    pub(super) model: Option<Process>,
    /// Its number may be given out again: nothing more is begun that acts on it.
    pub(super) is_let_go: bool,
    /// Nodes of domain and devices were written, or may have been.
    pub(super) nodes: bool,
    pub(super) completion: Option<Completion>,
}

impl Facts {
    pub(super) fn disk_ids(&self) -> Vec<u32> {
        self.disks.keys().copied().collect()
    }

    /// What is left when only the domain has gone; images are the next one's already.
    pub(super) fn without_domain(&self) -> Self {
        Self {
            recorded: self.recorded,
            images: self.images.clone(),
            disks: self.disks.clone(),
            ..Self::default()
        }
    }

    pub(super) fn domid(&self) -> Option<DomId> {
        Some(self.domain?.domid)
    }

    pub(super) fn reached<'a>(&self, disks: &'a [u32], is_condemned: bool) -> Reached<'a> {
        Reached {
            recorded: self.recorded,
            domain: self.domain.is_some(),
            nodes: self.nodes,
            condemned: is_condemned && self.completion.is_some(),
            disks,
        }
    }
}
