//! Steps of a save: a guest's state goes to a file.

use std::sync::Arc;

use xen::{DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Completing, IfCancelled, Permit, Preparation, StepInfo};
use crate::config::VmConfig;
use crate::host::Host;
use crate::perform::Performer;
use crate::perform::save::SaveOf;
use crate::saved::{Save, SaveTo, Saving};
use crate::work::{Failure, Output, WorkClass, WorkInfo, WorkMonitor};

/// Steps of a save.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SaveStep {
    /// Write the guest's state to a file.
    Save,
    /// Find out what came of a save whose daemon was killed; the guest goes on unless it is saved.
    Settle,
}

/// Their work.
#[derive(Clone, Debug)]
pub enum SaveWork {
    Save {
        domain: DomainRef,
        uuid: Uuid,
        config: Arc<VmConfig>,
        to: Box<SaveTo>,
    },
    Settle {
        domain: DomainRef,
        uuid: Uuid,
        name: String,
        saving: Saving,
    },
    /// Reads what a file of a saved VM says of itself.
    Read {
        path: String,
    },
}

impl SaveStep {
    pub(super) fn info(self) -> StepInfo {
        let step = StepInfo::plain;
        match self {
            Self::Save => step("save", Permit::MEMORY, IfCancelled::Interrupt),
            Self::Settle => step("settle the save", Permit::MEMORY, IfCancelled::Finish),
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> SaveWork {
        let Preparation { vm, config, save, .. } = with;
        let (domain, uuid) = (vm.facts.incarnation.domain.expect("planned for a domain"), vm.uuid);
        match (self, save.expect("planned for a save")) {
            (Self::Save, Save::New(to)) => SaveWork::Save { domain, uuid, config, to: to.clone() },
            (Self::Settle, Save::Left(saving)) => {
                let (name, saving) = (config.name.clone(), saving.clone());
                SaveWork::Settle { domain, uuid, name, saving }
            }
            (step, save) => unreachable!("{step:?} was planned for {save:?}"),
        }
    }

    pub(super) fn complete(self, output: &Output, with: Completing<'_>) {
        let Completing { vm, .. } = with;
        match self {
            Self::Save | Self::Settle => {
                let Output::Saved(end) = output else { output.misplaced() };
                vm.facts.incarnation.save_end = Some(*end);
            }
        }
    }
}

impl SaveWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::Save { domain, .. } => info("save", WorkClass::Memory, Some(*domain)),
            Self::Settle { domain, .. } => info("settle-save", WorkClass::Memory, Some(*domain)),
            Self::Read { .. } => info("read-saved", WorkClass::Load, None),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Output, Failure> {
        match self {
            Self::Save { domain, uuid, config, to } => {
                let of = SaveOf { domain, uuid, config: &config, to: &to };
                by.save(of, monitor).map(Output::Saved)
            }
            Self::Settle { domain, uuid, name, saving } => {
                by.settle_save(domain, uuid, &name, &saving).map(Output::Saved)
            }
            Self::Read { path } => {
                by.read_saved(&path).map(|file| Output::SavedFile(Box::new(file)))
            }
        }
    }
}
