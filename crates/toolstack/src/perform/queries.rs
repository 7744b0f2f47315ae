//! Work that reads, or sends requests to guests, and does not change a VM.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use storage::{Repositories, Vdi, VdiName};
use xen::{DomId, DomainInfo, DomainRef, Errno, HvmParam, Hypervisor, Trigger, Uuid, VersionInfo};
use xenstore::client::{Batch, Client, Nodes as _, Transport};

use super::build::PAGES_PER_MIB;
use super::checkpoint::told;
use super::{Performer, failure, refused, store};
use crate::ConsoleKind;
use crate::around::{self, Around, HostFacts};
use crate::config::VmConfig;
use crate::device_model::Process;
use crate::domains::DomainSet;
use crate::host::Host;
use crate::layout::{Ends, vm_link};
use crate::machine::{Fallback, ShutdownRequest};
use crate::network;
use crate::tuning::SchedQuestion;
use crate::work::{
    Failure, HostInfo, IdentityCheck, Output, SrReading, Survey, VcpuReading, VcpuReadings,
    VdiReading, WorkClass, WorkInfo,
};
use crate::xen_host::HostAsk;

/// Queries.
#[derive(Clone, Debug)]
pub enum QueryWork {
    /// One list of all domains, and the names of those not in `known`.
    Survey {
        known: BTreeMap<DomId, Uuid>,
    },
    /// One domain, and its name unless it is the one with this handle.
    Find {
        domid: DomId,
        known: Option<Uuid>,
    },
    ReadConsole {
        domain: DomainRef,
        uuid: Uuid,
        kind: ConsoleKind,
        number: u32,
    },
    /// Where its screen's server listens.
    ReadScreen {
        domain: DomainRef,
        uuid: Uuid,
    },
    ReadDevices {
        domain: DomainRef,
        uuid: Uuid,
        devices: Vec<Ends>,
    },
    /// A command for people to a device model's monitor.
    SpeakToModel {
        domain: DomainRef,
        model: Process,
        command: String,
    },
    HostInfo,
    /// What may change on the host without our doing. What is known of Xen need not be read again; of VMs' networks
    /// these are in use.
    LookAround {
        known: Option<Arc<VersionInfo>>,
        used: BTreeSet<Arc<str>>,
    },
    /// What an SR holds, and who uses it.
    ReadSr {
        sr: String,
    },
    /// What concerns Xen and the machine as a whole.
    Host(Box<HostAsk>),
    /// Checks a configuration against the host; nothing is created.
    Check {
        config: Arc<VmConfig>,
        uuid: Uuid,
        /// It is valid.
        is_whole: bool,
        /// The domains of our VMs.
        own: DomainSet,
    },
    ReadVcpus {
        domains: Vec<(DomId, Uuid)>,
    },
    ReadStartTimes {
        domains: Vec<(DomId, Uuid)>,
    },
    /// Schedulers and domains' shares of the CPUs.
    Sched(SchedQuestion),
    /// Writes `control/shutdown`, if the guest has PV drivers.
    RequestShutdown {
        domain: DomainRef,
        uuid: Uuid,
        name: String,
        how: ShutdownRequest,
        /// PV drivers must be detected.
        is_hvm: bool,
        fallback: Fallback,
    },
}

impl QueryWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, domain| WorkInfo { name, class: WorkClass::Query, domain };
        match self {
            Self::Survey { .. } => info("list", None),
            Self::Find { .. } => info("look-at", None),
            Self::ReadConsole { domain, .. } => info("read-console", Some(*domain)),
            Self::ReadScreen { domain, .. } => info("read-screen", Some(*domain)),
            Self::ReadDevices { domain, .. } => info("read-devices", Some(*domain)),
            // It may take its time.
            Self::SpeakToModel { domain, .. } => WorkInfo {
                name: "qemu-monitor-command",
                class: WorkClass::Change,
                domain: Some(*domain),
            },
            Self::HostInfo => info("host-info", None),
            // Open vSwitch may take its time.
            Self::LookAround { .. } => {
                WorkInfo { name: "look-around", class: WorkClass::Change, domain: None }
            }
            Self::ReadSr { .. } => {
                WorkInfo { name: "read-sr", class: WorkClass::Scan, domain: None }
            }
            Self::Host(_) => info("host", None),
            // It may have to parse a kernel.
            Self::Check { .. } => {
                WorkInfo { name: "check", class: WorkClass::Change, domain: None }
            }
            Self::ReadVcpus { .. } => info("read-vcpus", None),
            Self::ReadStartTimes { .. } => info("read-start-times", None),
            Self::Sched(_) => info("sched", None),
            Self::RequestShutdown { domain, .. } => info("request-shutdown", Some(*domain)),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        match self {
            Self::Survey { known } => by.survey(&known).map(Output::Survey),
            Self::Find { domid, known } => by.find(domid, known),
            Self::ReadConsole { domain, uuid, kind, number } => {
                let tty = store::console_tty(&mut by.store, domain.domid, uuid, kind, number);
                tty.map(Output::Console)
            }
            Self::ReadScreen { domain, uuid } => {
                screen(&mut by.store, domain.domid, uuid).map(Output::Text)
            }
            Self::ReadDevices { domain, uuid, devices } => {
                store::device_readings(&mut by.store, domain.domid, uuid, &devices)
                    .map(Output::Devices)
            }
            Self::SpeakToModel { domain, model, command } => {
                by.check_identity(domain, IdentityCheck::Needed)?;
                by.speak_to_model(domain.domid, model, command).map(Output::Text)
            }
            Self::HostInfo => by.host_info().map(|info| Output::HostInfo(Box::new(info))),
            Self::LookAround { known, used } => {
                Ok(Output::Around(Box::new(by.look_around(known, &used))))
            }
            Self::ReadSr { sr } => by.read_sr(&sr).map(Output::Sr),
            Self::Host(ask) => by.host_work(*ask),
            Self::Check { config, uuid, is_whole, own } => {
                Ok(Output::Checked(by.check(&config, uuid, is_whole, &own)))
            }
            Self::ReadVcpus { domains } => by.read_vcpus(&domains),
            Self::ReadStartTimes { domains } => {
                store::start_times(&mut by.store, &domains).map(Output::StartTimes)
            }
            Self::Sched(asked) => by.sched(asked),
            Self::RequestShutdown { domain, uuid, name, how, is_hvm, fallback } => {
                if is_hvm && !by.has_pv_drivers(domain)? {
                    return by.send_acpi(domain, &name, how, fallback);
                }
                store::request_shutdown(&mut by.store, domain.domid, uuid, how.as_str())?;
                Ok(Output::Done)
            }
        }
    }
}

/// Address and port of the server of a domain's screen.
fn screen<T: Transport>(
    store: &mut Client<T>,
    domid: DomId,
    uuid: Uuid,
) -> Result<String, Failure> {
    let mut batch = Batch::new();
    let link = batch.read(&vm_link(domid));
    let [listen, port] = ["vnc-listen", "vnc-port"]
        .map(|key| batch.read(&format!("/local/domain/{domid}/console/{key}")));
    let replies = store.run(&batch)?;
    store::check_link(&replies, link, domid, uuid)?;
    let (listen, port) = (replies.get_optional(listen)?, replies.get_optional(port)?);
    let Some((listen, port)) = listen.zip(port) else {
        return Err(Failure(format!(
            "domain {domid} has no screen; HVM domains have one unless their vnc = 0"
        )));
    };
    let (listen, port) = (store::text(listen), store::text(port));
    // IPv6 addresses contain colons.
    Ok(if listen.contains(':') { format!("[{listen}]:{port}") } else { format!("{listen}:{port}") })
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Whether an HVM guest has PV drivers, detected as in libxl: they register a callback
    /// interrupt.
    fn has_pv_drivers(&mut self, domain: DomainRef) -> Result<bool, Failure> {
        self.check_identity(domain, IdentityCheck::Needed)?;
        let domid = domain.domid;
        let interrupt = self.xen.hvm_param(domid, HvmParam::CallbackIrq);
        Ok(interrupt.map_err(refused("tell the callback interrupt of", domid))? != 0)
    }

    /// The fallback for a guest without PV drivers.
    fn send_acpi(
        &mut self,
        domain: DomainRef,
        name: &str,
        how: ShutdownRequest,
        fallback: Fallback,
    ) -> Result<Output, Failure> {
        let (verb, event, trigger) = match how {
            ShutdownRequest::Poweroff => ("shut down", "power button", Trigger::Power),
            ShutdownRequest::Reboot => ("reboot", "reset", Trigger::Reset),
        };
        let lacks = format!("{name}: has no PV drivers, so its guest cannot be asked to {verb}");
        if fallback == Fallback::Refuse {
            return Err(Failure(format!("{lacks}; -F sends it the ACPI {event} event instead")));
        }
        match self.xen.send_trigger(domain.domid, 0, trigger) {
            Ok(()) => Ok(Output::SentAcpi),
            Err(Errno::ENOSYS) => {
                Err(Failure(format!("{lacks}, and Xen has no ACPI {event} event for it")))
            }
            Err(errno) => Err(refused("send an ACPI event to", domain.domid)(errno)),
        }
    }

    fn find(&mut self, domid: DomId, known: Option<Uuid>) -> Result<Output, Failure> {
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let name = match &info {
            Some(info) if Some(info.handle) == known => None,
            Some(_) => store::names(&mut self.store, &[domid])?.remove(&domid),
            None => None,
        };
        Ok(Output::Looked { info: info.map(Box::new), name })
    }

    fn read_vcpus(&mut self, domains: &[(DomId, Uuid)]) -> Result<Output, Failure> {
        let mut readings = VcpuReadings { cpus: self.cpu_count()?, domains: BTreeMap::new() };
        for &(domid, handle) in domains {
            let Some(info) = self.domain_of(domid, handle)? else { continue };
            let count = info.vcpu_count();
            let vcpus: Result<Vec<_>, Errno> =
                (0..count).map(|vcpu| self.read_vcpu(domid, vcpu)).collect();
            // The result is that domain's only if it still has the domid.
            if self.domain_of(domid, handle)?.is_some() {
                let vcpus = vcpus.map_err(refused("read the vCPUs of", domid))?;
                readings.domains.insert(domid, vcpus);
            }
        }
        Ok(Output::Vcpus(Box::new(readings)))
    }

    fn read_vcpu(&mut self, domid: DomId, vcpu: u32) -> Result<VcpuReading, Errno> {
        let info = self.xen.vcpu_info(domid, vcpu)?;
        Ok(VcpuReading { info, affinity: self.xen.vcpu_affinity(domid, vcpu)? })
    }

    /// The domain with that domid, if it has this handle.
    fn domain_of(&mut self, domid: DomId, handle: Uuid) -> Result<Option<DomainInfo>, Failure> {
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        Ok(info.filter(|info| info.handle == handle))
    }

    fn host_info(&mut self) -> Result<HostInfo, Failure> {
        let unreadable = |errno: Errno| failure("Xen's host information", errno);
        Ok(HostInfo {
            version: self.xen.version_info().map_err(unreadable)?,
            physical: self.xen.phys_info().map_err(unreadable)?,
            set_aside: self.xen.set_aside().ok(),
        })
    }

    /// Two hypercalls, once Xen's version is known, whatever the number of domains.
    fn look_around(
        &mut self,
        known: Option<Arc<VersionInfo>>,
        used: &BTreeSet<Arc<str>>,
    ) -> Around {
        let host = self.host_facts(known).ok().flatten();
        let links = self.host.networks().links();
        let networks = links.and_then(|links| {
            let switches = network::switches(&mut self.host)?;
            Ok(around::networks(&links, &switches, |key| used.contains(key)))
        });
        Around { host, networks: networks.ok() }
    }

    fn host_facts(&mut self, known: Option<Arc<VersionInfo>>) -> Result<Option<HostFacts>, Errno> {
        let version = match known {
            Some(version) => version,
            None => Arc::new(self.xen.version_info()?),
        };
        let it = self.xen.phys_info()?;
        let Some(dom0) = self.xen.domain(DomId::DOM0)? else { return Ok(None) };
        Ok(Some(HostFacts {
            version,
            cpus: it.cpus,
            nodes: it.nodes,
            cores_per_socket: it.cores_per_socket,
            threads_per_core: it.threads_per_core,
            cpu_khz: it.cpu_khz,
            memory_mib: it.pages / PAGES_PER_MIB,
            memory_free_mib: it.pages_free.saturating_sub(it.pages_outstanding) / PAGES_PER_MIB,
            dom0_memory_mib: dom0.pages / PAGES_PER_MIB,
            dom0_vcpus: dom0.vcpus_online,
            booted_unix_ms: self.host.booted_unix_ms(),
        }))
    }

    /// What an SR holds.
    fn read_sr(&mut self, sr: &str) -> Result<SrReading, Failure> {
        let mut srs = Repositories::new(self.host.system());
        let vdis = srs.scan(sr).map_err(told)?;
        let mut users = srs.users().map_err(told)?;
        let reading = |vdi: Vdi| {
            // Names that we do not take are no VDIs of ours.
            let name = VdiName::new(sr, &vdi.name).ok()?;
            let users = users.remove(&name).unwrap_or_default();
            Some((name, VdiReading { vdi, users }))
        };
        let vdis = vdis.into_iter().filter_map(reading).collect();
        let troubles = srs.troubles(sr).unwrap_or_default();
        let problem = (!troubles.is_empty()).then(|| troubles.join("; "));
        Ok(SrReading { vdis, problem })
    }

    pub(super) fn survey(&mut self, known: &BTreeMap<DomId, Uuid>) -> Result<Survey, Failure> {
        let domains = self.xen.domains().map_err(|errno| failure("the list of domains", errno))?;
        let unknown: Vec<DomId> = domains
            .iter()
            .filter(|info| known.get(&info.domid) != Some(&info.handle))
            .map(|info| info.domid)
            .collect();
        let names = store::names(&mut self.store, &unknown)?;
        Ok(Survey { domains, names })
    }
}
