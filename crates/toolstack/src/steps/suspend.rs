//! Steps of a suspend.

use xen::{DomainRef, Hypervisor, Uuid};
use xenstore::client::Transport;

use super::{Completing, IfCancelled, IfFailed, Permit, Preparation, StepInfo};
use crate::host::Host;
use crate::perform::Performer;
use crate::work::{Failure, Output, WorkClass, WorkInfo, WorkMonitor};

/// Steps of a suspend.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SuspendStep {
    /// Ask the guest to suspend, and wait until it has.
    Suspend,
}

/// Their work.
#[derive(Clone, Debug)]
pub enum SuspendWork {
    Suspend {
        domain: DomainRef,
        uuid: Uuid,
        name: String,
    },
    /// Resumes a suspended guest where it was.
    Resume {
        domain: DomainRef,
        name: String,
        /// The VM whose recorded save is forgotten first.
        forgets: Option<Uuid>,
    },
    /// Ends the notification that a killed daemon may have left.
    EndSubscription {
        domain: DomainRef,
    },
}

impl SuspendStep {
    pub(super) fn info(self) -> StepInfo {
        match self {
            Self::Suspend => StepInfo {
                stage: "suspend",
                text: "suspend the guest",
                device: None,
                undo: None,
                if_failed: IfFailed::Fail,
                if_cancelled: IfCancelled::Interrupt,
                permit: Some(Permit::SUSPEND),
            },
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> SuspendWork {
        let Preparation { vm, config, .. } = with;
        let domain = vm.facts.incarnation.domain.expect("planned for a domain");
        match self {
            Self::Suspend => {
                SuspendWork::Suspend { domain, uuid: vm.uuid, name: config.name.clone() }
            }
        }
    }

    pub(super) fn complete(self, output: &Output, _with: Completing<'_>) {
        match self {
            Self::Suspend => output.expect_done(),
        }
    }
}

impl SuspendWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info =
            |name, class, domain: &DomainRef| WorkInfo { name, class, domain: Some(*domain) };
        match self {
            Self::Suspend { domain, .. } => info("suspend", WorkClass::Suspend, domain),
            Self::Resume { domain, .. } => info("resume", WorkClass::Query, domain),
            Self::EndSubscription { domain } => info("end-subscription", WorkClass::Query, domain),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Output, Failure> {
        match self {
            Self::Suspend { domain, uuid, name } => by.suspend(domain, uuid, &name, monitor)?,
            Self::Resume { domain, name, forgets } => {
                forgets.map_or(Ok(()), |uuid| by.forget_save(uuid))?;
                by.resume(domain, &name)?;
            }
            Self::EndSubscription { domain } => by.end_subscription(domain)?,
        }
        Ok(Output::Done)
    }
}
