//! Carries work out on a hypervisor, a store and a host: nothing here decides.
//!
//! The same code runs on Linux's threads and in the simulator.

mod hvm;
mod store;

use std::collections::{BTreeMap, BTreeSet};

use storage::HostError;
use xen::{
    CreateDomain, DomId, DomainRef, Errno, EvtchnPeer, Hypervisor, PAGE_BYTES, PhysInfo, Presence,
    Uuid, Xen,
};
use xen_build::{BuildConfig, BuildError, Channel, Channels, HvmConfig, Needs};
use xenstore::client::{Client, ClientCounters, ClientError, Transport};

use crate::config::VmConfig;
use crate::device_model::OwnModel;
use crate::foreign::{ForeignLoop, ForeignReading};
use crate::host::{Host, KernelError};
use crate::layout::{Nodes, Removal};
use crate::work::{
    Cost, Failure, HostInfo, Images, LOOP_TAG_PREFIX, LetGo, Look, NewDomain, Output, OwnLoop,
    Work, loop_tag,
};

/// Pages of a MiB.
const PAGES_PER_MIB: u64 = (1 << 20) / PAGE_BYTES as u64;
/// Highest event channel port of a domain: what xl gives.
const EVTCHN_PORT_MAX: u32 = 1023;

/// Somebody who carries out work: a connection each to Xen, the store and the host.
#[derive(Debug)]
pub struct Performer<H, T, O> {
    pub xen: Xen<H>,
    pub store: Client<T>,
    pub host: O,
}

fn failure(object: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
    Failure(format!("{object}: {error}"))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

/// Xen refused something for a domain.
fn refused(action: &'static str, domid: DomId) -> impl Fn(Errno) -> Failure {
    move |errno| Failure(format!("Xen refused to {action} domain {domid}: {errno}"))
}

/// How often a domain that could not be finished is destroyed, should Xen refuse.
const DESTROY_ATTEMPTS_MAX: u32 = 5;

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// Carries out one piece of work; also says what it cost.
    pub fn perform(&mut self, work: Work) -> (Result<Output, Failure>, Cost) {
        self.xen.take_counters();
        self.store.counters = ClientCounters::default();
        let result = self.carry_out(work);
        let cost = Cost {
            hypercalls: self.xen.counters().iter().collect(),
            store_messages: self.store.counters.messages,
            store_round_trips: self.store.counters.round_trips,
            transactions: self.store.counters.transactions,
            conflicts: self.store.counters.conflicts,
            queued_ns: 0,
        };
        (result, cost)
    }

    fn carry_out(&mut self, work: Work) -> Result<Output, Failure> {
        match work {
            Work::LoadImages { config } => self.load_images(&config).map(Output::Images),
            Work::CheckBridge { config, index } => {
                let bridge = &config.vifs[index].bridge;
                self.host.check_bridge(bridge).map_err(|error| {
                    let place = config.origin.at(&format!("vif[{index}]"));
                    match error {
                        HostError::Missing => Failure(format!(
                            "{place}: no bridge named {bridge} on this host; \
                             `ip link add {bridge} type bridge` makes one"
                        )),
                        error => failure(format!("{place}: bridge {bridge}"), error),
                    }
                })?;
                Ok(Output::Done)
            }
            Work::AttachDisk { config, index, tag } => {
                let disk = &config.disks[index];
                storage::attach(self.host.system(), &disk.target, disk.access, &tag)
                    .map(Output::Attached)
                    .map_err(|error| failure(config.origin.at(&format!("disk[{index}]")), error))
            }
            Work::DetachDisk { attachment } => {
                storage::detach(self.host.system(), &attachment)
                    .map_err(|error| Failure(error.to_string()))?;
                Ok(Output::Done)
            }
            Work::DetachOrphans { attachments } => {
                // One that cannot be detached keeps no other.
                let mut failed = None;
                for attachment in attachments {
                    if let Err(error) = storage::detach(self.host.system(), &attachment) {
                        failed.get_or_insert(Failure(error.to_string()));
                    }
                }
                failed.map_or(Ok(Output::Done), Err)
            }
            Work::Record { nodes } => {
                store::write_plainly(&mut self.store, &nodes)?;
                Ok(Output::Done)
            }
            Work::WriteNodes { nodes, quota } => {
                if let Some(quota) = quota {
                    store::raise_quota(&mut self.store, quota)?;
                }
                store::write_as_one(&mut self.store, &nodes)?;
                Ok(Output::Done)
            }
            Work::AddDevice { domain, uuid, nodes, quota } => {
                if let Some(quota) = quota {
                    store::raise_quota(&mut self.store, quota)?;
                }
                store::add_device(&mut self.store, domain.domid, uuid, &nodes)?;
                Ok(Output::Done)
            }
            Work::AskToClose { domain, uuid, device, nodes } => {
                store::write_as_one(&mut self.store, &nodes)?;
                store::ask_to_close(&mut self.store, domain.domid, uuid, device)?;
                Ok(Output::Done)
            }
            Work::CloseDevice { domain, uuid, device, nodes } => {
                store::write_as_one(&mut self.store, &nodes)?;
                let unseen = store::close_devices(&mut self.store, domain.domid, uuid, &[device])?;
                Ok(Output::Closing { unseen })
            }
            Work::RemoveDevice { domain, uuid, removals, nodes } => {
                store::remove(&mut self.store, Some(domain.domid), uuid, &removals)?;
                store::write_as_one(&mut self.store, &nodes)?;
                Ok(Output::Done)
            }
            Work::StartModel { domain, launch } => {
                self.start_model(domain, &launch).map(Output::Model)
            }
            Work::EndModel { domain, uuid, process } => {
                self.end_model(domain.domid, uuid, process)?;
                Ok(Output::Done)
            }
            Work::EndOrphans { models } => {
                // One that does not end keeps no other.
                let end = |model: OwnModel| {
                    self.end_model(model.domid, model.uuid, Some(model.process)).err()
                };
                let failed: Vec<Failure> = models.into_iter().filter_map(end).collect();
                failed.into_iter().next().map_or(Ok(Output::Done), Err)
            }
            Work::CreateDomain { config, uuid, images, generation } => {
                self.create_domain(&config, uuid, &images, generation).map(Output::Domain)
            }
            Work::Build { config, images, domain } => {
                let channels = Channels {
                    store: Channel { port: domain.store_port, backend: DomId::DOM0 },
                    console: Channel { port: domain.console_port, backend: DomId::DOM0 },
                };
                let domid = domain.domain.domid;
                let materials = materials(&config, &images);
                let built = match &materials {
                    Materials::Kernel(build) => {
                        xen_build::build(&mut self.xen, domid, build, &channels)
                    }
                    Materials::Firmware(build) => {
                        xen_build::build_hvm(&mut self.xen, domid, build, &channels)
                    }
                };
                built
                    .map(Output::Built)
                    .map_err(|error| self.build_failure(&config, &materials, &error))
            }
            Work::Introduce { domain, look, store_port, store_gfn } => {
                self.look(domain, look)?;
                self.store.introduce(domain.domid, xen::Gfn(store_gfn), store_port)?;
                Ok(Output::Done)
            }
            Work::JoinBridge { bridge, links, mtu, backend } => {
                for link in links {
                    self.host
                        .join_bridge(&bridge, &link, mtu)
                        .map_err(|error| failure(format!("{link} on bridge {bridge}"), error))?;
                }
                store::write_one(
                    &mut self.store,
                    &format!("{backend}/hotplug-status"),
                    "connected",
                )?;
                Ok(Output::Done)
            }
            Work::Unpause { domain, look } => {
                self.look(domain, look)?;
                let domid = domain.domid;
                self.xen.unpause_domain(domid).map_err(refused("unpause", domid))?;
                Ok(Output::Done)
            }
            Work::Pause { domain } => {
                self.look(domain, Look::First)?;
                let domid = domain.domid;
                self.xen.pause_domain(domid).map_err(refused("pause", domid))?;
                Ok(Output::Done)
            }
            Work::CloseDevices { domain, uuid, devices } => {
                let unseen = store::close_devices(&mut self.store, domain.domid, uuid, &devices)?;
                Ok(Output::Closing { unseen })
            }
            Work::DestroyDomain { domain } => self.destroy_domain(domain),
            Work::RemoveNodes { domain, uuid, removals, then } => {
                let domid = domain.map(|domain| domain.domid);
                let removed = store::remove(&mut self.store, domid, uuid, &removals);
                if let Some(domain) = domain.filter(|_| then == LetGo::Now) {
                    store::let_go(&mut self.store, domain)?;
                }
                removed?;
                Ok(Output::Done)
            }
            Work::RequestShutdown { domain, uuid, request } => {
                store::request_shutdown(&mut self.store, domain.domid, uuid, request)?;
                Ok(Output::Done)
            }
            Work::WriteDefinition { uuid, text } => {
                self.host
                    .write_definition(&uuid.to_string(), &text)
                    .map_err(|error| failure(format!("definition {uuid}"), error))?;
                Ok(Output::Done)
            }
            Work::RemoveDefinition { uuid } => {
                self.host
                    .remove_definition(&uuid.to_string())
                    .map_err(|error| failure(format!("definition {uuid}"), error))?;
                Ok(Output::Done)
            }
            Work::FinishBoot => {
                self.host.finish_boot().map_err(|error| failure("the end of the boot", error))?;
                Ok(Output::Done)
            }
            Work::Survey { known } => self.survey(&known).map(Output::Survey),
            Work::LookAt { domid, known } => {
                let info = self.xen.domain(domid).map_err(refused("tell about", domid))?;
                let name = match &info {
                    Some(info) if Some(info.handle) == known => None,
                    Some(_) => store::names(&mut self.store, &[domid])?.remove(&domid),
                    None => None,
                };
                Ok(Output::Looked { info: info.map(Box::new), name })
            }
            Work::Observe => {
                let survey = self.survey(&BTreeMap::new())?;
                let records = store::records(&mut self.store)?;
                let unique_ids = self.unique_ids(&survey, &records)?;
                let loops = self.attached()?;
                let models =
                    self.host.models().map_err(|error| failure("the host's processes", error))?;
                Ok(Output::Observed { survey, records, loops, unique_ids, models })
            }
            Work::ReadForeign { domid, uuid, generation } => {
                self.read_foreign(domid, uuid, generation).map(Output::Foreign)
            }
            Work::Adopt { domain, uuid, loops, nodes, removals } => {
                self.look(domain, Look::First)?;
                self.adopt(domain.domid, uuid, &loops, &nodes, &removals)?;
                Ok(Output::Done)
            }
            Work::ReadConsole { domain, uuid } => {
                store::console_tty(&mut self.store, domain.domid, uuid).map(Output::Console)
            }
            Work::ReadDevices { domain, uuid, devices } => {
                store::device_readings(&mut self.store, domain.domid, uuid, &devices)
                    .map(Output::Devices)
            }
            Work::HostInfo => {
                let unreadable = |errno: Errno| failure("Xen's host information", errno);
                let info = HostInfo {
                    version: self.xen.version_info().map_err(unreadable)?,
                    physical: self.xen.phys_info().map_err(unreadable)?,
                    set_aside: self.xen.set_aside().ok(),
                };
                Ok(Output::HostInfo(Box::new(info)))
            }
            Work::CpuTimes { domain, vcpus } => {
                self.look(domain, Look::First)?;
                let domid = domain.domid;
                let read = |vcpu| self.xen.vcpu_info(domid, vcpu);
                let infos: Result<Vec<_>, Errno> = (0..vcpus).map(read).collect();
                infos.map(Output::CpuTimes).map_err(refused("tell the vCPUs of", domid))
            }
        }
    }

    fn read_foreign(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        generation: u64,
    ) -> Result<Box<ForeignReading>, Failure> {
        let gone = || Failure(format!("domain {domid} is gone; `xy list` shows what is there"));
        let info = self.xen.domain(domid).map_err(refused("tell about", domid))?;
        let info = info.filter(|info| info.handle == uuid).ok_or_else(gone)?;
        let domain = self
            .xen
            .identify(domid, uuid, generation)
            .map_err(refused("tell the number of", domid))?;
        let mut reading = store::foreign(&mut self.store, domain, info)?;
        for device in &mut reading.devices {
            let Some(path) = device.keys.get("params").filter(|path| !path.is_empty()) else {
                continue;
            };
            device.file = match self.host.system().inspect(path) {
                Ok(kind) => Some(kind),
                Err(HostError::Missing) => None,
                Err(error) => return Err(failure(path, error)),
            };
        }
        Ok(Box::new(reading))
    }

    /// The tags come first: a tag without a record is nothing as long as the domain lives, and a record without
    /// tags would lose the devices.
    fn adopt(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        loops: &[ForeignLoop],
        nodes: &Nodes,
        removals: &[Removal],
    ) -> Result<(), Failure> {
        let adopted = self
            .tag_loops(uuid, loops)
            .and_then(|()| store::adopt(&mut self.store, domid, uuid, nodes, removals));
        if adopted.is_err() {
            for it in loops {
                // Under either name it is its maker's.
                let _left = self.host.system().tag_loop(&it.device.path, &it.path);
            }
        }
        adopted
    }

    fn tag_loops(&mut self, uuid: Uuid, loops: &[ForeignLoop]) -> Result<(), Failure> {
        loops.iter().try_for_each(|it| {
            let tag = loop_tag(uuid, it.devid);
            let tagged = self.host.system().tag_loop(&it.device.path, &tag);
            tagged.map_err(|error| failure(&it.device.path, error))
        })
    }

    /// Everything that is attached for a VM, by the tag that says for which.
    fn attached(&mut self) -> Result<Vec<OwnLoop>, Failure> {
        let system = self.host.system();
        let loops =
            system.tagged_loops(LOOP_TAG_PREFIX).map_err(|error| failure("loop devices", error))?;
        let vdis = storage::Repositories::new(system)
            .in_use()
            .map_err(|error| failure("attached VDIs", error))?;
        let loops = loops
            .into_iter()
            .map(|it| OwnLoop { attachment: storage::Attachment::Loop(it.device), tag: it.tag });
        let vdis = vdis.into_iter().map(|it| OwnLoop {
            attachment: storage::Attachment::Vdi {
                name: it.name,
                owner: it.owner.clone(),
                device: it.device.unwrap_or_default(),
            },
            tag: it.owner,
        });
        Ok(loops.chain(vdis).collect())
    }

    fn load_images(&mut self, config: &VmConfig) -> Result<Images, Failure> {
        let images = match (&config.hvm, &config.kernel) {
            (Some(hvm), _) => self.load_firmware(config, hvm)?,
            (None, Some(kernel)) => self.load_kernel(config, kernel)?,
            (None, None) => unreachable!("only an HVM domain does without a kernel"),
        };
        materials(config, &images).check().map_err(|error| build_failure(config, &error))?;
        Ok(images)
    }

    fn load_kernel(&mut self, config: &VmConfig, kernel: &str) -> Result<Images, Failure> {
        let place = |key: &str, path: &str| format!("{}: {path}", config.origin.at(key));
        let loaded = self.host.kernel(kernel).map_err(|error| match error {
            KernelError::Host(error) => failure(place("kernel", kernel), error),
            KernelError::Image(error) => failure(place("kernel", kernel), error),
        })?;
        let ramdisk = match &config.ramdisk {
            Some(path) => {
                let bytes = self.host.ramdisk(path);
                Some(bytes.map_err(|error| failure(place("ramdisk", path), error))?)
            }
            None => None,
        };
        Ok(Images::Kernel { kernel: loaded, ramdisk })
    }

    fn create_domain(
        &mut self,
        config: &VmConfig,
        uuid: Uuid,
        images: &Images,
        generation: u64,
    ) -> Result<NewDomain, Failure> {
        let materials = materials(config, images);
        let needs = materials.check().map_err(|error| build_failure(config, &error))?;
        let physical =
            self.xen.phys_info().map_err(|errno| failure("the host's free memory", errno))?;
        let unclaimed = physical.pages_free.saturating_sub(physical.pages_outstanding);
        if needs.host_pages > unclaimed {
            return Err(memory_failure(config, needs.host_pages, &physical));
        }
        let wanted = CreateDomain {
            kind: config.kind,
            handle: uuid,
            vcpus_max: config.vcpus_max,
            evtchn_port_max: EVTCHN_PORT_MAX,
            grant_frames_max: config.grant_frames_max,
            maptrack_frames_max: None,
        };
        let domid = self.xen.create_domain(&wanted).map_err(|errno| {
            Failure(format!("{}: Xen refused to create the domain: {errno}", config.name))
        })?;
        self.finish_domain(domid, uuid, generation, config, &materials).map_err(|Failure(why)| {
            // The domain is ours alone and empty: gone at once.
            let mut attempts = (0..DESTROY_ATTEMPTS_MAX).map(|_| self.xen.destroy_domain(domid));
            match attempts.find(|gone| matches!(gone, Ok(()) | Err(Errno::ESRCH))) {
                Some(_) => Failure(why),
                // Nothing of ours leads to it any more once its record is gone.
                None => Failure(format!(
                    "{why}; and domain {domid} could not be destroyed: `xl destroy {domid}` does it"
                )),
            }
        })
    }

    fn finish_domain(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        generation: u64,
        config: &VmConfig,
        materials: &Materials<'_>,
    ) -> Result<NewDomain, Failure> {
        let domain = self
            .xen
            .identify(domid, uuid, generation)
            .map_err(refused("tell the number of", domid))?;
        self.xen
            .set_vcpus_max(domid, config.vcpus_max)
            .map_err(refused("make the vCPUs of", domid))?;
        if let Materials::Firmware(build) = materials {
            xen_build::prepare_hvm(&mut self.xen, domid, build)
                .map_err(|error| self.build_failure(config, materials, &error))?;
        }
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        let channel = refused("make an event channel of", domid);
        let store_port = self.xen.alloc_unbound(peer).map_err(&channel)?;
        let console_port = self.xen.alloc_unbound(peer).map_err(&channel)?;
        Ok(NewDomain { domain, store_port, console_port })
    }

    /// Names the key that is to blame; for want of memory, also how much there is.
    fn build_failure(
        &mut self,
        config: &VmConfig,
        materials: &Materials<'_>,
        error: &BuildError,
    ) -> Failure {
        let BuildError::HostMemory { got_pages, .. } = error else {
            return build_failure(config, error);
        };
        match (materials.check(), self.xen.phys_info()) {
            (Ok(needs), Ok(mut physical)) => {
                // Its own part goes back with the domain.
                physical.pages_free += got_pages;
                memory_failure(config, needs.host_pages, &physical)
            }
            _ => build_failure(config, error),
        }
    }

    /// Looks whether the domain is still the one that is meant.
    fn look(&mut self, domain: DomainRef, look: Look) -> Result<(), Failure> {
        if look == Look::Needless || self.presence(domain)? == Presence::Here {
            return Ok(());
        }
        let domid = domain.domid;
        Err(Failure(format!(
            "domain {domid} is gone, and nothing was done to whoever bears its number now; \
             `xy list` shows what is there"
        )))
    }

    fn presence(&mut self, domain: DomainRef) -> Result<Presence, Failure> {
        self.xen.presence(domain).map_err(refused("tell about", domain.domid))
    }

    /// Destroys the domain, if it is still the one we mean.
    fn destroy_domain(&mut self, domain: DomainRef) -> Result<Output, Failure> {
        if self.presence(domain)? == Presence::Here {
            match self.xen.destroy_domain(domain.domid) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(refused("destroy", domain.domid)(errno)),
            }
        }
        Ok(Output::Done)
    }

    /// Xen's numbers of the domains that our records speak of, where it has such.
    fn unique_ids(
        &mut self,
        survey: &crate::work::Survey,
        records: &[crate::work::Record],
    ) -> Result<BTreeMap<DomId, u64>, Failure> {
        let mut unique_ids = BTreeMap::new();
        if !self.xen.abi().tells_unique_ids() {
            return Ok(unique_ids);
        }
        let recorded: BTreeSet<Uuid> = records.iter().map(|record| record.uuid).collect();
        for info in survey.domains.iter().filter(|info| recorded.contains(&info.handle)) {
            let domid = info.domid;
            let state = self.xen.life_state(domid).map_err(refused("tell about", domid))?;
            // What has gone since the list was made is seen to be gone when it is looked for.
            unique_ids.extend(state.map(|state| (domid, state.unique_id)));
        }
        Ok(unique_ids)
    }

    fn survey(&mut self, known: &BTreeMap<DomId, Uuid>) -> Result<crate::work::Survey, Failure> {
        let domains = self.xen.domains().map_err(|errno| failure("the list of domains", errno))?;
        let unknown: Vec<DomId> = domains
            .iter()
            .filter(|info| known.get(&info.domid) != Some(&info.handle))
            .map(|info| info.domid)
            .collect();
        let names = store::names(&mut self.store, &unknown)?;
        Ok(crate::work::Survey { domains, names })
    }
}

/// Memory that is claimed is free still, and nobody else's to have.
fn memory_failure(config: &VmConfig, needed_pages: u64, physical: &PhysInfo) -> Failure {
    let claimed = match physical.pages_outstanding / PAGES_PER_MIB {
        0 => String::new(),
        mib => format!(" ({mib} MiB of them claimed by starts under way)"),
    };
    Failure(format!(
        "{}: VM {} needs {} MiB, {} MiB are free{claimed}; stop another VM or take less",
        config.origin.at("memory"),
        config.name,
        needed_pages.div_ceil(PAGES_PER_MIB),
        physical.pages_free / PAGES_PER_MIB,
    ))
}

/// What a domain is built of, as the builder wants it.
enum Materials<'a> {
    Kernel(BuildConfig<'a>),
    Firmware(HvmConfig<'a>),
}

impl Materials<'_> {
    fn check(&self) -> Result<Needs, BuildError> {
        match self {
            Self::Kernel(build) => xen_build::check(build),
            Self::Firmware(build) => xen_build::check_hvm(build),
        }
    }
}

fn materials<'a>(config: &'a VmConfig, images: &'a Images) -> Materials<'a> {
    let memory_pages = config.memory_mib * PAGES_PER_MIB;
    let memory_pages_max = config.memory_max_mib * PAGES_PER_MIB;
    let (vcpus, tsc_mode) = (config.vcpus_max, config.tsc_mode);
    match images {
        Images::Kernel { kernel, ramdisk } => Materials::Kernel(BuildConfig {
            kind: config.kind,
            kernel,
            ramdisk: ramdisk.as_deref(),
            cmdline: &config.cmdline,
            memory_pages,
            memory_pages_max,
            vcpus,
            tsc_mode,
        }),
        Images::Firmware { loader, bios } => {
            let hvm = config.hvm.as_deref();
            Materials::Firmware(HvmConfig {
                loader,
                firmware: bios,
                memory_pages,
                memory_pages_max,
                video_pages: hvm.map_or(0, |hvm| hvm.video_mib * PAGES_PER_MIB),
                vcpus,
                tsc_mode,
                hpet: hvm.is_some_and(|hvm| hvm.hpet),
            })
        }
    }
}

/// Names the key that is to blame.
fn build_failure(config: &VmConfig, error: &BuildError) -> Failure {
    let key = match error {
        BuildError::Image(_) => {
            let place = config.origin.at("kernel");
            let kernel = config.kernel.as_deref().unwrap_or_default();
            return failure(format!("{place}: {kernel}"), error);
        }
        BuildError::Kind(_) => "type",
        BuildError::Loader(_) => "firmware_override",
        BuildError::Firmware { .. } => "bios",
        BuildError::MemoryAboveMax { .. } => "maxmem",
        BuildError::MemoryTooSmall { .. }
        | BuildError::MemoryTooLarge { .. }
        | BuildError::HostMemory { .. } => "memory",
        BuildError::CmdlineTooLong { .. } | BuildError::CmdlineNul => "cmdline",
        BuildError::Vcpus { .. } => "vcpus",
        _ => "name",
    };
    failure(config.origin.at(key), error)
}
