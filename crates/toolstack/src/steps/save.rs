//! Steps of a save or a dump: a guest's state goes to a file.

use std::sync::Arc;

use xen::{DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Completing, IfCancelled, Permit, Preparation, StepInfo};
use crate::checkpoint::disks_again;
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::host::Host;
use crate::perform::dump::DumpOf;
use crate::perform::save::SaveOf;
use crate::perform::{Performer, failure};
use crate::saved::{DumpTo, SET_ASIDE, Save, SaveTo, SavedFile, Saving};
use crate::work::{Failure, Output, WorkClass, WorkInfo, WorkMonitor};

/// Steps of a save.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SaveStep {
    /// Write the guest's state to a file.
    Save,
    /// Write the domain's memory to a core file.
    Dump,
    /// Remove the file from which a VM was restored with its host, before it runs.
    Remove,
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
        model: Option<Process>,
    },
    Dump {
        domain: DomainRef,
        uuid: Uuid,
        name: String,
        to: Box<DumpTo>,
    },
    Settle {
        domain: DomainRef,
        uuid: Uuid,
        name: String,
        saving: Saving,
        model: Option<Process>,
    },
    /// Removes the file of a VM that is restored, durably.
    Remove {
        path: String,
    },
    /// Gives the file of a VM that could not be restored another name.
    SetAside {
        path: String,
    },
    /// Reads what the files say that were written when the host was shut down.
    ReadHostSaves,
    /// Reads what a file of a saved VM says of itself.
    Read {
        path: String,
    },
    /// Finishes checkpoints that killed daemons were making or removing.
    SettleCheckpoints,
    Checkpoints,
    DestroyCheckpoint {
        uuid: Uuid,
        name: String,
    },
    /// Checks a checkpoint and its disks before its VM is taken down.
    CheckRevert {
        config: Arc<VmConfig>,
        file: Arc<SavedFile>,
    },
}

impl SaveStep {
    pub(super) fn info(self) -> StepInfo {
        let step = StepInfo::plain;
        match self {
            Self::Save => step("save", Permit::MEMORY, IfCancelled::Interrupt),
            Self::Dump => step("dump", Permit::MEMORY, IfCancelled::Interrupt),
            Self::Remove => step("remove the file", Permit::SHORT, IfCancelled::Finish),
            Self::Settle => step("settle the save", Permit::MEMORY, IfCancelled::Finish),
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> SaveWork {
        let Preparation { vm, config, save, dump, .. } = with;
        if self == Self::Remove {
            let path = vm.facts.saved_at.take().expect("planned for a VM that was saved");
            return SaveWork::Remove { path };
        }
        let (domain, uuid) = (vm.facts.incarnation.domain.expect("planned for a domain"), vm.uuid);
        if self == Self::Dump {
            let to = Box::new(dump.expect("planned for a dump").clone());
            return SaveWork::Dump { domain, uuid, name: config.name.clone(), to };
        }
        let model = vm.emulator();
        match (self, save.expect("planned for a save")) {
            (Self::Save, Save::New(to)) => {
                SaveWork::Save { domain, uuid, config, to: to.clone(), model }
            }
            (Self::Settle, Save::Left(saving)) => {
                let (name, saving) = (config.name.clone(), saving.clone());
                SaveWork::Settle { domain, uuid, name, saving, model }
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
            Self::Dump | Self::Remove => output.expect_done(),
        }
    }
}

impl SaveWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::Save { domain, .. } => info("save", WorkClass::Memory, Some(*domain)),
            Self::Dump { domain, .. } => info("dump", WorkClass::Memory, Some(*domain)),
            Self::Settle { domain, .. } => info("settle-save", WorkClass::Memory, Some(*domain)),
            Self::Remove { .. } => info("remove-saved", WorkClass::Change, None),
            Self::SetAside { .. } => info("set-saved-aside", WorkClass::Change, None),
            Self::ReadHostSaves => info("read-host-saves", WorkClass::Load, None),
            Self::Read { .. } => info("read-saved", WorkClass::Load, None),
            Self::SettleCheckpoints => info("settle-checkpoints", WorkClass::Load, None),
            Self::Checkpoints => info("list-checkpoints", WorkClass::Load, None),
            Self::DestroyCheckpoint { .. } => info("destroy-checkpoint", WorkClass::Attach, None),
            Self::CheckRevert { .. } => info("check-revert", WorkClass::Load, None),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Output, Failure> {
        match self {
            Self::Save { domain, uuid, config, to, model } => {
                let of = SaveOf { domain, uuid, config: &config, to: &to, model };
                let end = match &to.checkpoint {
                    Some(name) => by.checkpoint(of, name, monitor),
                    None => by.save(of, monitor),
                };
                end.map(Output::Saved)
            }
            Self::Dump { domain, uuid, name, to } => {
                let of = DumpOf { domain, uuid, name: &name, to: &to };
                by.dump(of, monitor).map(|()| Output::Done)
            }
            Self::Settle { domain, uuid, name, saving, model } => {
                by.settle_save(domain, uuid, &name, &saving, model).map(Output::Saved)
            }
            Self::Remove { path } => {
                let removed = by.host.system().remove(&path);
                removed.map(|()| Output::Done).map_err(|error| failure(path, error))
            }
            Self::SetAside { path } => {
                let aside = format!("{path}{SET_ASIDE}");
                let system = by.host.system();
                let renamed = system.remove(&aside).and_then(|()| system.rename_new(&path, &aside));
                renamed.map(|()| Output::Done).map_err(|error| failure(path, error))
            }
            Self::ReadHostSaves => by.read_host_saves().map(Output::HostSaves),
            Self::Read { path } => {
                by.read_saved(&path).map(|file| Output::SavedFile(Box::new(file)))
            }
            Self::SettleCheckpoints => by.settle_checkpoints().map(|()| Output::Done),
            Self::Checkpoints => by.checkpoints().map(Output::Checkpoints),
            Self::DestroyCheckpoint { uuid, name } => {
                by.destroy_checkpoint(uuid, &name).map(|()| Output::Done)
            }
            Self::CheckRevert { config, file } => {
                if by.read_saved(&file.path)? != *file {
                    return Err(Failure(format!(
                        "{}: has changed meanwhile; try again",
                        file.path
                    )));
                }
                let disks = disks_again(&file);
                by.check_disks_from(&config, file.uuid, &disks).map(|()| Output::Done)
            }
        }
    }
}
