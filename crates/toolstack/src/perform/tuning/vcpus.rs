//! How many vCPUs a domain has online, and where they may run.
//!
//! Sources: xen `tools/xl/xl_vcpu.c`, `tools/libs/light/libxl_{domain,sched}.c`.

use xen::{AffinityChange, DomId, DomainInfo, DomainKind, Errno, Hypervisor};
use xenstore::client::Transport;

use super::Subject;
use crate::config::{AffinityConfig, VmConfig};
use crate::host::Host;
use crate::layout::Nodes;
use crate::perform::{Performer, failure, refused};
use crate::tuning::{CpuList, HostLimit, Pinning};
use crate::work::Failure;

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(in crate::perform) fn tuned_info(
        &mut self,
        subject: &Subject,
    ) -> Result<DomainInfo, Failure> {
        let info = self.xen.domain(subject.domid()).map_err(refused("look up", subject.domid()))?;
        info.ok_or_else(|| subject.refuse("its domain is gone"))
    }

    /// CPUs that the host can have, from 0.
    pub(in crate::perform) fn cpu_count(&mut self) -> Result<u32, Failure> {
        let physical = self.xen.phys_info();
        let physical = physical.map_err(|errno| failure("Xen's host information", errno))?;
        Ok(physical.cpu_id_max + 1)
    }

    pub(super) fn tune_vcpus(
        &mut self,
        subject: &Subject,
        count: u32,
        host: HostLimit,
    ) -> Result<Nodes, Failure> {
        let info = self.tuned_info(subject)?;
        let most = info.vcpu_count();
        if count == 0 {
            return Err(subject.refuse("a domain needs a vCPU"));
        }
        if host == HostLimit::Kept && count > info.vcpus_online {
            let cpus = self.cpu_count()?;
            if count > cpus {
                return Err(subject.refuse(&format!(
                    "{count} vCPUs are more than this host has CPUs, {cpus}; --ignore-host \
                     allows that"
                )));
            }
        }
        if count > most {
            return Err(subject.refuse(&format!("{count} vCPUs are above its maxvcpus of {most}")));
        }
        if subject.kind == DomainKind::Hvm {
            let Some(process) = subject.model else {
                return Err(subject.refuse("its device model has ended"));
            };
            self.add_model_cpus(subject.domid(), process, count)?;
        }
        let mut nodes = Nodes::default();
        for vcpu in 0..most {
            let state = if vcpu < count { "online" } else { "offline" };
            nodes.put(subject.node(&format!("cpu/{vcpu}/availability")), state);
        }
        Ok(nodes)
    }

    /// As its configuration says, of a new domain.
    pub(crate) fn give_affinity(
        &mut self,
        domid: DomId,
        config: &VmConfig,
        cpu_count: u32,
    ) -> Result<(), Failure> {
        let Some(AffinityConfig { hard, soft }) = config.options.affinity.as_deref() else {
            return Ok(());
        };
        let mut places = Vec::new();
        for vcpu in 0..config.vcpus_max {
            let lists = [hard, soft].map(|lists| lists.as_ref().and_then(|it| it.of(vcpu)));
            if places.is_empty() && lists.iter().flatten().any(|it| it.names_nodes()) {
                places = self.cpu_places()?;
            }
            let [hard, soft] = lists.map(|list| list.map(|it| it.cpus(cpu_count, &places)));
            if hard.is_none() && soft.is_none() {
                continue;
            }
            let change = AffinityChange { hard, soft, is_forced: false };
            self.xen.set_vcpu_affinity(domid, vcpu, &change).map_err(|errno| {
                match (errno, lists[0]) {
                    (Errno::EINVAL, Some(list)) => Failure(format!(
                        "{}: vCPU {vcpu} cannot run on {:?}: none of these CPUs is in its pool",
                        config.origin.at("cpus"),
                        list.text()
                    )),
                    _ => refused("pin a vCPU of", domid)(errno),
                }
            })?;
        }
        Ok(())
    }

    pub(super) fn pin(&mut self, subject: &Subject, pinning: &Pinning) -> Result<Nodes, Failure> {
        let Pinning { vcpu, hard, soft, is_forced } = pinning;
        let count = self.cpu_count()?;
        let needs_places = [hard, soft].into_iter().flatten().any(CpuList::names_nodes);
        let places = match needs_places {
            true => self.cpu_places()?,
            false => Vec::new(),
        };
        let cpus = |list: &Option<CpuList>| list.as_ref().map(|it| it.cpus(count, &places));
        let change = AffinityChange { hard: cpus(hard), soft: cpus(soft), is_forced: *is_forced };
        let most = self.tuned_info(subject)?.vcpu_count();
        let vcpus = match vcpu {
            Some(vcpu) if *vcpu >= most => {
                return Err(subject.refuse(&format!("has no vCPU {vcpu}")));
            }
            Some(vcpu) => *vcpu..*vcpu + 1,
            None => 0..most,
        };
        // As in xl, one that cannot be pinned does not spare the others.
        let pinned: Vec<_> =
            vcpus.map(|vcpu| self.pin_vcpu(subject, vcpu, &change, hard)).collect();
        pinned.into_iter().collect::<Result<(), Failure>>()?;
        Ok(Nodes::default())
    }

    fn pin_vcpu(
        &mut self,
        subject: &Subject,
        vcpu: u32,
        change: &AffinityChange,
        hard: &Option<CpuList>,
    ) -> Result<(), Failure> {
        let domid = subject.domid();
        match (self.xen.set_vcpu_affinity(domid, vcpu, change), hard) {
            (Ok(_), _) => Ok(()),
            (Err(Errno::EINVAL), Some(hard)) => Err(subject.refuse(&format!(
                "vCPU {vcpu} cannot run on {:?}: none of these CPUs is in its pool",
                hard.text()
            ))),
            (Err(Errno::EBUSY), _) => Err(subject.refuse(&format!(
                "vCPU {vcpu} is pinned by the domain's own kernel; -f overrides that"
            ))),
            (Err(errno), _) => Err(refused("pin a vCPU of", domid)(errno)),
        }
    }
}
