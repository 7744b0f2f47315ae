//! Steps of a teardown.

use storage::VdiName;
use xen::{DomainRef, Errno, Hypervisor, Presence, Uuid};
use xenstore::client::Transport;

use super::{Completing, IfCancelled, IfFailed, Permit, Preparation, StepInfo};
use crate::device_model::Process;
use crate::host::Host;
use crate::layout::{self, Removal};
use crate::machine::Incarnation;
use crate::perform::{Performer, refused, store};
use crate::work::{Failure, IdentityCheck, Output, Release, WorkClass, WorkInfo};

/// Steps of a teardown.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum TeardownStep {
    /// Remove the record's completion mark: after a kill, the next daemon continues the teardown.
    Condemn,
    Pause,
    EndModel,
    DestroyDomain,
    /// Reset the devices of the host that it had, for the next domain.
    ReturnPci,
    /// Destroy disks that were made for a VM which never ran.
    DropDisks,
    /// Remove all nodes, the record last.
    RemoveNodes,
    /// Remove the nodes of a domain whose VM continues in another; the record is kept.
    RemoveDomainNodes,
}

/// Their work.
#[derive(Clone, Debug)]
pub enum TeardownWork {
    Pause {
        domain: DomainRef,
    },
    /// Kills the device model and removes its nodes.
    EndModel {
        domain: DomainRef,
        uuid: Uuid,
        /// `None` if it has exited by itself.
        process: Option<Process>,
    },
    DestroyDomain {
        domain: DomainRef,
    },
    ReturnPci {
        domain: DomainRef,
    },
    DropDisks {
        disks: Vec<VdiName>,
    },
    RemoveNodes {
        /// The owner of the nodes, if there was a domain: nodes of another VM under its domid are
        /// kept.
        domain: Option<DomainRef>,
        uuid: Uuid,
        removals: Vec<Removal>,
        release: Release,
    },
}

impl TeardownStep {
    pub(super) fn info(self) -> StepInfo {
        let step = |name, permit| StepInfo {
            stage: name,
            text: name,
            device: None,
            undo: None,
            if_failed: IfFailed::Fail,
            if_cancelled: IfCancelled::Finish,
            permit: Some(permit),
        };
        match self {
            Self::Condemn => step("condemn", Permit::SHORT),
            Self::Pause => {
                StepInfo { if_failed: IfFailed::FailUnlessReboot, ..step("pause", Permit::SHORT) }
            }
            Self::EndModel => step("end device model", Permit::TEARDOWN),
            Self::DestroyDomain => {
                StepInfo { if_failed: IfFailed::Halt, ..step("destroy domain", Permit::TEARDOWN) }
            }
            Self::ReturnPci => step("return PCI devices", Permit::TEARDOWN),
            Self::DropDisks => step("drop disks", Permit::DISKS),
            Self::RemoveNodes => step("remove nodes", Permit::SHORT),
            Self::RemoveDomainNodes => step("remove the domain's nodes", Permit::SHORT),
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> TeardownWork {
        let Preparation { vm, config, users, .. } = with;
        let (uuid, facts) = (vm.uuid, &mut vm.facts);
        let domain = facts.incarnation.domain;
        let existing = || domain.expect("planned after the domain was created");
        match self {
            Self::Condemn => TeardownWork::RemoveNodes {
                domain: None,
                uuid,
                removals: layout::condemned_paths(uuid),
                release: Release::Later,
            },
            Self::Pause => TeardownWork::Pause { domain: existing() },
            Self::EndModel => {
                // From here on its exit is expected.
                let process = facts.incarnation.model.take();
                TeardownWork::EndModel { domain: existing(), uuid, process }
            }
            Self::DestroyDomain => TeardownWork::DestroyDomain { domain: existing() },
            Self::ReturnPci => {
                facts.pci.clear();
                TeardownWork::ReturnPci { domain: existing() }
            }
            Self::DropDisks => TeardownWork::DropDisks { disks: facts.made_disks.clone() },
            Self::RemoveNodes => {
                let removals = layout::removed_paths(&config, uuid, facts.domid(), &facts.backends);
                let release = users.release(&mut facts.incarnation);
                TeardownWork::RemoveNodes { domain, uuid, removals, release }
            }
            Self::RemoveDomainNodes => {
                let removals =
                    layout::removed_domain_paths(&config, uuid, facts.domid(), &facts.backends);
                let release = users.release(&mut facts.incarnation);
                TeardownWork::RemoveNodes { domain, uuid, removals, release }
            }
        }
    }

    pub(super) fn complete(self, output: &Output, with: Completing<'_>) {
        output.expect_done();
        let Completing { vm, .. } = with;
        match self {
            Self::RemoveDomainNodes => {
                vm.facts.incarnation = Incarnation::default();
                vm.facts.backends.clear();
            }
            Self::DropDisks => vm.facts.made_disks.clear(),
            Self::Condemn
            | Self::Pause
            | Self::EndModel
            | Self::DestroyDomain
            | Self::ReturnPci
            | Self::RemoveNodes => {}
        }
    }
}

impl TeardownWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::Pause { domain } => info("pause", WorkClass::Query, Some(*domain)),
            Self::EndModel { domain, .. } => info("end-model", WorkClass::Release, Some(*domain)),
            Self::DestroyDomain { domain } => {
                info("destroy-domain", WorkClass::Destroy, Some(*domain))
            }
            Self::ReturnPci { domain } => info("return-pci", WorkClass::Release, Some(*domain)),
            Self::DropDisks { .. } => info("drop-disks", WorkClass::Release, None),
            Self::RemoveNodes { domain, .. } => info("remove-nodes", WorkClass::Destroy, *domain),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        match self {
            Self::Pause { domain } => {
                by.check_identity(domain, IdentityCheck::Needed)?;
                let domid = domain.domid;
                by.xen.pause_domain(domid).map_err(refused("pause", domid))?;
            }
            Self::EndModel { domain, uuid, process } => {
                by.end_model(domain.domid, uuid, process)?;
            }
            Self::DestroyDomain { domain } => destroy_domain(by, domain)?,
            Self::ReturnPci { domain } => by.return_devices(domain.domid)?,
            Self::DropDisks { disks } => by.drop_disks(&disks)?,
            Self::RemoveNodes { domain, uuid, removals, release } => {
                let domid = domain.map(|domain| domain.domid);
                if let Some(domid) = domid {
                    // Before the record goes, by which a later daemon finds the domain.
                    let _reported = by.host.remove_userdata(domid, uuid);
                }
                let removed = store::remove(&mut by.store, domid, uuid, &removals);
                if let Some(domain) = domain.filter(|_| release == Release::Now) {
                    store::release(&mut by.store, domain)?;
                }
                removed?;
            }
        }
        Ok(Output::Done)
    }
}

/// Destroys the domain, if it is still the intended one.
fn destroy_domain<H: Hypervisor, T: Transport, O: Host>(
    by: &mut Performer<H, T, O>,
    domain: DomainRef,
) -> Result<(), Failure> {
    if by.presence(domain)? == Presence::Here {
        match by.xen.destroy_domain(domain.domid) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(refused("destroy", domain.domid)(errno)),
        }
    }
    Ok(())
}
