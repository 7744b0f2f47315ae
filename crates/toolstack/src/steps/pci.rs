//! PCI devices that come to a running domain, and go from it.

use std::sync::Arc;

use xen::{DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::devices::DeviceStep;
use super::{IfCancelled, IfFailed, Permit, StepInfo};
use crate::config::{PciDevice, VmConfig};
use crate::host::Host;
use crate::layout::{DeviceKind, DeviceRef, Nodes};
use crate::perform::Performer;
use crate::userdata::Userdata;
use crate::work::{Failure, WorkClass, WorkInfo};

/// Their work. Entries are those of `pci`, by place or as they are.
#[derive(Clone, Debug)]
pub enum PciWork {
    Check {
        config: Arc<VmConfig>,
        entry: usize,
    },
    Assign {
        domain: DomainRef,
        uuid: Uuid,
        config: Arc<VmConfig>,
        entry: usize,
    },
    /// Asks the guest to let go of them, after `nodes` were written.
    AskToClose {
        domain: DomainRef,
        uuid: Uuid,
        entry: Box<PciDevice>,
        nodes: Nodes,
    },
    /// Takes them from the domain, then writes `nodes`.
    Remove {
        domain: DomainRef,
        uuid: Uuid,
        entry: Box<PciDevice>,
        nodes: Nodes,
        userdata: Userdata,
    },
}

/// The place of an entry.
pub(super) fn index(place: u32) -> usize {
    usize::try_from(place).expect("a place in a list")
}

pub(super) fn info(step: DeviceStep, place: u32) -> StepInfo {
    let (stage, text, permit) = match step {
        DeviceStep::AssignPci(_) => {
            ("assign PCI devices", "assign {}", Permit::SHORT.with_backend())
        }
        _ => ("check PCI devices", "check {}", Permit::SHORT),
    };
    StepInfo {
        stage,
        text,
        device: Some(DeviceRef { kind: DeviceKind::Pci, devid: place }),
        undo: None,
        if_failed: IfFailed::Fail,
        if_cancelled: IfCancelled::Finish,
        permit: Some(permit),
    }
}

impl PciWork {
    pub(super) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::Check { .. } => info("check-pci", WorkClass::Query, None),
            Self::Assign { domain, .. } => info("assign-pci", WorkClass::Change, Some(*domain)),
            Self::AskToClose { domain, .. } => {
                info("ask-to-close", WorkClass::Destroy, Some(*domain))
            }
            Self::Remove { domain, .. } => info("remove-device", WorkClass::Destroy, Some(*domain)),
        }
    }

    pub(super) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<(), Failure> {
        match self {
            Self::Check { config, entry } => by.check_more_devices(&config, entry),
            Self::Assign { domain, uuid, config, entry } => {
                by.plug_devices(domain, uuid, &config, entry)
            }
            Self::AskToClose { domain, uuid, entry, nodes } => {
                by.ask_for_devices(domain, uuid, &entry, &nodes)
            }
            Self::Remove { domain, uuid, entry, nodes, userdata } => {
                by.unplug_devices(domain, uuid, &entry, &nodes)?;
                userdata.keep(&mut by.host);
                Ok(())
            }
        }
    }
}
