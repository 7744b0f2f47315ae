//! Facts: what is known of a VM's resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use storage::{Attachment, BlockDevice, VdiName};
use xen::{DomId, DomainRef, Uuid};
use xen_build::Built;

use crate::checkpoint::DiskFrom;
use crate::device_model::{ModelState, Process};
use crate::layout::{Backends, Completion};
use crate::moves::{Handover, Incoming, Speaks};
use crate::pci::Assigned;
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
    /// The path of the bootloader that will find them.
    pub(crate) bootloader: Option<String>,
    /// By `virtual-device`.
    pub(crate) disks: BTreeMap<u32, Attachment>,
    /// Disks that scripts have connected to its domain, by `virtual-device`.
    pub(crate) scripted: BTreeMap<u32, BlockDevice>,
    /// Its domain, or the one that is being made or taken down.
    pub(crate) incarnation: Incarnation,
    /// The file that it is restored from with its host, and that is removed before it runs.
    pub(crate) saved_at: Option<String>,
    /// The driver domains of its domain's devices.
    pub(crate) backends: Backends,
    /// Devices of the host that its domain was given.
    pub(crate) pci: Vec<Assigned>,
    /// Made from snapshots before they are attached.
    pub(crate) disks_from: Vec<DiskFrom>,
    /// New disks that were made for it, or may have been; destroyed if it never runs.
    pub(crate) made_disks: Vec<VdiName>,
    /// That of the device model to be started, if the VM was saved.
    pub(crate) model_state: Option<Box<ModelState>>,
    /// It comes from another host.
    pub(crate) incoming: Option<Arc<Incoming>>,
    /// The transfer by which it comes, as long as it may still be fenced off: it has not run here.
    pub(crate) transfer: Option<Uuid>,
    /// The transfer by which it came, until the machine has taken note.
    pub(crate) came: Option<Uuid>,
    /// How its last handover to another host ended.
    pub(crate) handover: Option<Handover>,
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
    /// Those that need neither memory nor disks are there.
    pub(crate) has_early_nodes: bool,
    pub(crate) completion: Option<Completion>,
    /// What came of its last save.
    pub(crate) save_end: Option<SaveEnd>,
    /// All of it is on another host, which waits for the word to run it, in this protocol.
    pub(crate) is_sent: Option<Speaks>,
}

impl Facts {
    pub(crate) fn disk_ids(&self) -> Vec<u32> {
        self.disks.keys().copied().collect()
    }

    /// The transfer by which it comes or has come, until the machine has taken note.
    pub(crate) fn transfers(&self) -> impl Iterator<Item = Uuid> {
        [self.transfer, self.came].into_iter().flatten()
    }

    pub(crate) fn domid(&self) -> Option<DomId> {
        Some(self.incarnation.domain?.domid)
    }

    pub(crate) fn reached<'a>(&self, disks: &'a [u32], is_condemned: bool) -> Reached<'a> {
        Reached {
            recorded: self.recorded,
            domain: self.incarnation.domain.is_some(),
            nodes: self.incarnation.nodes,
            // What is fenced off is not complete any more.
            condemned: is_condemned
                && self.incarnation.completion.is_some()
                && self.transfer.is_none(),
            coming: self.transfer.is_some(),
            made: !self.made_disks.is_empty(),
            disks,
        }
    }
}
