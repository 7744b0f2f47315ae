//! Changes of a running domain: what libxl checks, the hypercall, and the nodes.
//!
//! Sources: xen `tools/xl/xl_{misc,vcpu}.c`, `tools/libs/light/libxl_domain.c`.

mod memory;
mod vcpus;

use xen::{DomId, DomainKind, DomainRef, Errno, Hypervisor, Trigger, Uuid};
use xenstore::client::{Nodes as _, Transport};

use super::{Performer, refused, store};
use crate::device_model::Process;
use crate::host::Host;
use crate::layout::{self, Nodes};
use crate::tuning::Tuning;
use crate::work::{Failure, IdentityCheck, Output, WorkClass, WorkInfo};

/// A change of a domain, with what is recorded of it.
#[derive(Clone, Debug)]
pub struct TuneWork {
    pub(crate) subject: Subject,
    pub(crate) tuning: Box<Tuning>,
    /// The changed part of the VM's record.
    pub(crate) record: Nodes,
    /// The file of the VM's definition, if that changes too.
    pub(crate) definition: Option<Box<ChangedFile>>,
    /// The domain of another toolstack that had the wanted name when it was last looked at.
    pub(crate) namesake: Option<DomId>,
}

/// The file of a definition before and after a change.
#[derive(Clone, Debug)]
pub(crate) struct ChangedFile {
    pub(crate) uuid: Uuid,
    pub(crate) before: String,
    pub(crate) after: String,
}

/// Whose domain it is.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) kind: DomainKind,
    /// `None` for domain 0.
    pub(crate) vm: Option<(DomainRef, Uuid)>,
    pub(crate) model: Option<Process>,
}

impl Subject {
    pub(crate) fn dom0() -> Self {
        Self { name: "Domain-0".to_owned(), kind: DomainKind::Pv, vm: None, model: None }
    }

    pub(crate) fn domid(&self) -> DomId {
        self.vm.map_or(DomId::DOM0, |(domain, _)| domain.domid)
    }

    fn node(&self, below: &str) -> String {
        format!("/local/domain/{}/{below}", self.domid())
    }

    /// These nodes below its own.
    fn nodes<const N: usize>(&self, values: [(&str, String); N]) -> Nodes {
        let mut nodes = Nodes::default();
        for (below, value) in values {
            nodes.put(self.node(below), value);
        }
        nodes
    }

    pub(super) fn refuse(&self, why: &str) -> Failure {
        Failure(format!("{}: {why}", self.name))
    }
}

impl TuneWork {
    /// Nothing is recorded of it.
    pub(crate) fn plain(subject: Subject, tuning: Tuning) -> Self {
        let (tuning, record) = (Box::new(tuning), Nodes::default());
        Self { subject, tuning, record, definition: None, namesake: None }
    }

    pub(crate) fn info(&self) -> WorkInfo {
        let domain = self.subject.vm.map(|(domain, _)| domain);
        WorkInfo { name: self.tuning.verb(), class: WorkClass::Change, domain }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        let Self { subject, tuning, record, definition, namesake } = self;
        if let Some((domain, _)) = subject.vm {
            by.check_identity(domain, IdentityCheck::Needed)?;
        }
        let mut nodes = match &*tuning {
            Tuning::MemoryMax { kib } => by.tune_memory_max(&subject, *kib)?,
            Tuning::MemoryTarget { kib } => by.tune_memory_target(&subject, *kib)?,
            Tuning::Vcpus { count, host } => by.tune_vcpus(&subject, *count, *host)?,
            Tuning::Pin(pinning) => by.pin(&subject, pinning)?,
            Tuning::Share(share) => by.tune_share(&subject, share).map(|()| Nodes::default())?,
            Tuning::Budgets(all) => by.tune_budgets(&subject, all).map(|()| Nodes::default())?,
            Tuning::Sysrq { key } => subject.nodes([("control/sysrq", key.to_string())]),
            Tuning::Trigger { trigger, vcpu } => by.trigger(&subject, *trigger, *vcpu)?,
            Tuning::WakeUp => by.wake_up(&subject)?,
            // It is all in the record.
            Tuning::NextConfig(_) => Nodes::default(),
            Tuning::Rename { name } => by.rename(&subject, name, namesake)?,
            Tuning::Pool { pool } => {
                by.put_in_pool(subject.domid(), &subject.name, pool)?;
                Nodes::default()
            }
        };
        nodes.0.extend(record.0);
        if nodes.0.is_empty() {
            return Ok(Output::Done);
        }
        if let Some(ChangedFile { uuid, after, .. }) = definition.as_deref() {
            by.write_definition(*uuid, after)?;
        }
        let (domid, uuid) = (subject.domid(), subject.vm.map(|it| it.1));
        let written = store::write_tuned(&mut by.store, domid, uuid, &nodes);
        if let (Err(_), Some(ChangedFile { uuid, before, .. })) = (&written, definition.as_deref())
        {
            by.write_definition(*uuid, before)?;
        }
        written.map(|()| Output::Done)
    }
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn trigger(
        &mut self,
        subject: &Subject,
        trigger: Trigger,
        vcpu: u32,
    ) -> Result<Nodes, Failure> {
        let domid = subject.domid();
        match self.xen.send_trigger(domid, vcpu, trigger) {
            Ok(()) => Ok(Nodes::default()),
            Err(Errno::ESRCH) => Err(subject.refuse(&format!("has no vCPU {vcpu}"))),
            Err(Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP) => {
                Err(subject.refuse("Xen has no such trigger for its kind of domain"))
            }
            Err(errno) => Err(refused("send a trigger to", domid)(errno)),
        }
    }

    fn wake_up(&mut self, subject: &Subject) -> Result<Nodes, Failure> {
        match subject.model {
            Some(process) => self.wake_model(subject.domid(), process).map(|()| Nodes::default()),
            None => Err(subject.refuse("only an HVM guest sleeps so that it can be woken")),
        }
    }

    fn rename(
        &mut self,
        subject: &Subject,
        name: &str,
        namesake: Option<DomId>,
    ) -> Result<Nodes, Failure> {
        if let Some(domid) = namesake {
            let has = self.store.read_optional(&format!("/local/domain/{domid}/name"))?;
            if has.is_some_and(|it| it == name.as_bytes()) {
                return Err(subject.refuse(&format!("domain {domid} is named {name} already")));
            }
        }
        let mut nodes = subject.nodes([("name", name.to_owned())]);
        if let Some((_, uuid)) = subject.vm {
            nodes.put(format!("{}/name", layout::vm_path(uuid)), name);
        }
        Ok(nodes)
    }
}
