//! Work on the files of definitions.

use xen::{Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Performer, failure};
use crate::host::Host;
use crate::work::{Failure, Output, WorkClass, WorkInfo};

/// Work on the files of definitions.
#[derive(Clone, Debug)]
pub enum DefinitionWork {
    Write {
        uuid: Uuid,
        text: String,
    },
    Remove {
        uuid: Uuid,
    },
    /// The autostart VMs were started.
    FinishBoot,
}

impl DefinitionWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name| WorkInfo { name, class: WorkClass::Change, domain: None };
        match self {
            Self::Write { .. } => info("write-definition"),
            Self::Remove { .. } => info("remove-definition"),
            Self::FinishBoot => info("finish-boot"),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        match self {
            Self::Write { uuid, text } => by.write_definition(uuid, &text)?,
            Self::Remove { uuid } => by
                .host
                .remove_definition(&uuid.to_string())
                .map_err(|error| failure(format!("definition {uuid}"), error))?,
            Self::FinishBoot => {
                by.host.finish_boot().map_err(|error| failure("the end of the boot", error))?;
            }
        }
        Ok(Output::Done)
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(super) fn write_definition(&mut self, uuid: Uuid, text: &str) -> Result<(), Failure> {
        let written = self.host.write_definition(&uuid.to_string(), text);
        written.map_err(|error| failure(format!("definition {uuid}"), error))
    }
}
