//! Steps from a configuration to a running domain, except those of single devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use storage::{Attachment, MakeDisk, VdiName};
use xen::{DomId, DomainRef, EvtchnPort, Hypervisor, Uuid};
use xen_build::Built;
use xenstore::client::Transport;

use super::teardown::TeardownStep;
use super::{Completing, IfCancelled, IfFailed, Permit, Preparation, StepInfo};
use crate::checkpoint::DiskFrom;
use crate::config::{Start, VmConfig};
use crate::device_model::{self, Launch, Process};
use crate::host::Host;
use crate::layout::{self, BuiltDomain, Nodes};
use crate::machine::{Action, Facts};
use crate::perform::{Performer, refused, store};
use crate::saved::SavedFile;
use crate::userdata::Userdata;
use crate::work::{
    Failure, IdentityCheck, Images, NewDomain, Output, Quota, WorkClass, WorkInfo, WorkMonitor,
};

/// Steps of a create.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CreateStep {
    /// Read and check kernel and ramdisk.
    LoadImages,
    /// Find the bootloader, in place of reading what it will find.
    FindBootloader,
    /// Run it on its disk, and read the kernel and ramdisk that it found there.
    RunBootloader,
    /// Check the file of a saved VM once more: it may have changed since it was read.
    CheckFile,
    /// Check that the devices of the host that the VM is to have can be assigned.
    CheckPci,
    /// Write the record, which outlives the daemon.
    Record,
    /// Make its disks from snapshots.
    MakeDisks,
    CreateDomain,
    Build,
    /// Fill the domain with a saved one's memory and state, in place of a build.
    LoadState,
    /// Give the domain devices of the host.
    AssignPci,
    /// Start the device model of an HVM domain.
    StartModel,
    /// Write the nodes that depend on nothing that still comes, so that the backends of network interfaces are ready
    /// before the guest has stopped.
    WriteEarlyNodes,
    /// Write the domain's and its devices' nodes, or those that are missing, and complete the record, atomically: from here on
    /// a restarted daemon continues with the rest.
    WriteNodes(Start),
    Introduce,
    /// Write which pseudo-terminals the serial ports of an HVM domain are.
    NoteTerminals,
    /// Write where on an HVM domain's bus its devices of the host are.
    NotePciPlaces,
    Unpause,
}

/// Their work.
#[derive(Clone, Debug)]
pub enum CreateWork {
    LoadImages {
        config: Arc<VmConfig>,
    },
    FindBootloader {
        config: Arc<VmConfig>,
    },
    RunBootloader {
        config: Arc<VmConfig>,
        /// Its path.
        program: String,
        /// The path of the disk's device.
        disk: String,
    },
    CheckFile {
        config: Arc<VmConfig>,
        uuid: Uuid,
        file: Arc<SavedFile>,
        disks: Vec<DiskFrom>,
    },
    CheckPci {
        config: Arc<VmConfig>,
    },
    Record {
        nodes: Nodes,
    },
    MakeDisks {
        vm: String,
        disks: Vec<DiskFrom>,
    },
    CreateDomain {
        config: Arc<VmConfig>,
        uuid: Uuid,
        images: Images,
        /// If it must have a certain one.
        domid: Option<DomId>,
        /// Unique among the domain identities of this machine.
        generation: u64,
    },
    Build {
        config: Arc<VmConfig>,
        images: Images,
        domain: NewDomain,
    },
    LoadState {
        config: Arc<VmConfig>,
        file: Arc<SavedFile>,
        domain: NewDomain,
    },
    AssignPci {
        config: Arc<VmConfig>,
        domain: DomainRef,
    },
    StartModel {
        domain: DomainRef,
        launch: Launch,
    },
    WriteEarlyNodes {
        nodes: Nodes,
        quota: Option<Quota>,
    },
    WriteNodes {
        uuid: Uuid,
        nodes: Nodes,
        quota: Option<Quota>,
        userdata: Userdata,
    },
    Introduce {
        domain: DomainRef,
        check: IdentityCheck,
        store_port: EvtchnPort,
        store_gfn: u64,
    },
    NoteTerminals {
        domain: DomainRef,
        uuid: Uuid,
        model: Option<Process>,
    },
    NotePciPlaces {
        domain: DomainRef,
        uuid: Uuid,
        model: Option<Process>,
    },
    Unpause {
        domain: DomainRef,
        check: IdentityCheck,
    },
}

fn note_terminals(domain: DomainRef, uuid: Uuid, facts: &Facts) -> CreateWork {
    CreateWork::NoteTerminals { domain, uuid, model: facts.incarnation.model }
}

fn note_pci_places(domain: DomainRef, uuid: Uuid, facts: &Facts) -> CreateWork {
    CreateWork::NotePciPlaces { domain, uuid, model: facts.incarnation.model }
}

/// The record of a VM of which nothing exists yet. From here on nodes may exist, even if the write is never
/// confirmed.
fn record_nodes(config: &VmConfig, uuid: Uuid, facts: &mut Facts) -> Nodes {
    facts.recorded = true;
    let mut nodes = layout::record_nodes(uuid, &config.to_cfg_text());
    if let Some(transfer) = facts.transfer {
        nodes.put(layout::incoming_path(uuid), transfer.to_string());
    }
    let new: Vec<String> = new_disks(&facts.disks_from).map(ToString::to_string).collect();
    if !new.is_empty() {
        nodes.put(layout::made_disks_path(uuid), new.join(" "));
    }
    nodes
}

/// The nodes of its domain, with what completes the record.
fn nodes_of(
    config: &VmConfig,
    uuid: Uuid,
    facts: &mut Facts,
    domain: NewDomain,
    built: Built,
    start: Start,
) -> Nodes {
    let tables = built.tables;
    let built = BuiltDomain {
        domid: domain.domain.domid,
        store_port: domain.store_port,
        store_gfn: built.store_frame,
        console_port: domain.console_port,
        console_gfn: built.console_frame,
    };
    facts.incarnation.nodes = true;
    facts.incarnation.completion = Some(built.completion(start));
    let mut nodes = match facts.incarnation.has_early_nodes {
        true => layout::late_nodes(config, uuid, &built, &facts.disks, start),
        false => {
            let (disks, backends) = (&facts.disks, &facts.backends);
            layout::domain_nodes(config, uuid, &built, disks, backends, start)
        }
    };
    nodes.0.extend(layout::table_nodes(domain.domain.domid, tables).0);
    nodes.0.extend(layout::pci_nodes(domain.domain.domid, &config.name, &facts.pci).0);
    if let Some(id) = domain.generation_id {
        nodes.0.extend(layout::generation_nodes(domain.domain.domid, uuid, id).0);
    }
    if let Some(transfer) = facts.transfer {
        nodes.put(layout::received_path(transfer), uuid.to_string());
    }
    if !facts.made_disks.is_empty() {
        // From here on they are the VM's.
        nodes.put(layout::made_disks_path(uuid), String::new());
    }
    nodes
}

/// All disks that a device model may open.
fn disks_of(facts: &Facts) -> BTreeMap<u32, Attachment> {
    let scripted = facts.scripted.iter();
    let scripted = scripted.map(|(devid, it)| (*devid, Attachment::Block(it.clone())));
    facts.disks.clone().into_iter().chain(scripted).collect()
}

/// The path of the device that a bootloader reads.
fn boot_device(config: &VmConfig, facts: &Facts) -> String {
    let disk = config.disks.first().and_then(|it| facts.disks.get(&it.vdev.number));
    disk.expect("planned after its attach").device().path.clone()
}

fn start_model(config: &VmConfig, uuid: Uuid, facts: &mut Facts, domain: DomainRef) -> CreateWork {
    let state = facts.model_state.take().map(|state| *state);
    let disks = disks_of(facts);
    let launch = device_model::launch(config, uuid, domain.domid, &disks, &facts.pci, state);
    CreateWork::StartModel { domain, launch }
}

fn saved_file(images: Option<&Images>) -> Arc<SavedFile> {
    match images {
        Some(Images::Saved(file)) => Arc::clone(file),
        other => unreachable!("planned for a saved VM, not for {other:?}"),
    }
}

/// Those that must not exist before.
fn new_disks(disks: &[DiskFrom]) -> impl Iterator<Item = &VdiName> {
    disks.iter().filter(|disk| disk.how == MakeDisk::Anew).map(|disk| &disk.to)
}

impl CreateStep {
    pub(super) fn info(self) -> StepInfo {
        let step = |name, permit, undo: Option<TeardownStep>| StepInfo {
            stage: name,
            text: name,
            device: None,
            undo: undo.map(Into::into),
            if_failed: IfFailed::Fail,
            if_cancelled: IfCancelled::Finish,
            permit: Some(permit),
        };
        let remove = Some(TeardownStep::RemoveNodes);
        match self {
            Self::LoadImages => StepInfo {
                if_cancelled: IfCancelled::Abandon,
                ..step("load images", Permit::LOAD, None)
            },
            Self::FindBootloader => step("find the bootloader", Permit::SHORT, None),
            Self::RunBootloader => StepInfo {
                if_cancelled: IfCancelled::Abandon,
                ..step("run the bootloader", Permit::BOOTLOADER, None)
            },
            Self::CheckFile => StepInfo {
                if_cancelled: IfCancelled::Abandon,
                ..step("check the file", Permit::LOAD, None)
            },
            Self::CheckPci => StepInfo {
                if_cancelled: IfCancelled::Abandon,
                ..step("check PCI devices", Permit::SHORT, None)
            },
            Self::Record => step("record", Permit::SHORT, remove),
            Self::MakeDisks => step("make disks", Permit::DISKS, Some(TeardownStep::DropDisks)),
            Self::CreateDomain => StepInfo {
                // It may wait for domain 0's memory.
                if_cancelled: IfCancelled::Interrupt,
                ..step("create domain", Permit::BUILD, Some(TeardownStep::DestroyDomain))
            },
            Self::Build => StepInfo {
                if_cancelled: IfCancelled::Interrupt,
                ..step("build", Permit::BUILD, None)
            },
            Self::LoadState => StepInfo {
                if_cancelled: IfCancelled::Interrupt,
                ..step("load the state", Permit::MEMORY, None)
            },
            Self::AssignPci => step("assign PCI devices", Permit::SHORT.with_backend(), None),
            Self::StartModel => {
                step("start device model", Permit::BUILD, Some(TeardownStep::EndModel))
            }
            Self::WriteEarlyNodes => {
                step("write early nodes", Permit::SHORT.with_backend(), remove)
            }
            Self::WriteNodes(_) => step("write nodes", Permit::SHORT.with_backend(), remove),
            Self::Introduce => step("introduce", Permit::SHORT, None),
            Self::NoteTerminals => step("note serial ports", Permit::SHORT, None),
            Self::NotePciPlaces => step("note places of PCI devices", Permit::SHORT, None),
            Self::Unpause => step("unpause", Permit::SHORT, None),
        }
    }

    pub(super) fn prepare(self, with: Preparation<'_>) -> CreateWork {
        let Preparation { vm, config, generation, .. } = with;
        let (uuid, facts) = (vm.uuid, &mut vm.facts);
        let domain = facts.incarnation.domain;
        let domain = || domain.expect("planned after the domain was created");
        let check = if facts.incarnation.new.is_some() {
            IdentityCheck::Needless
        } else {
            IdentityCheck::Needed
        };
        match self {
            Self::LoadImages => CreateWork::LoadImages { config },
            Self::FindBootloader => CreateWork::FindBootloader { config },
            Self::RunBootloader => {
                let program = facts.bootloader.take().expect("planned after it was found");
                CreateWork::RunBootloader { program, disk: boot_device(&config, facts), config }
            }
            Self::CheckFile => {
                let (file, disks) = (saved_file(facts.images.as_ref()), facts.disks_from.clone());
                CreateWork::CheckFile { config, uuid, file, disks }
            }
            Self::CheckPci => CreateWork::CheckPci { config },
            Self::Record => CreateWork::Record { nodes: record_nodes(&config, uuid, facts) },
            Self::MakeDisks => {
                CreateWork::MakeDisks { vm: config.name.clone(), disks: facts.disks_from.clone() }
            }
            Self::CreateDomain => {
                let images = facts.images.clone().expect("planned after the images");
                let domid = facts.incoming.as_ref().and_then(|it| it.domid);
                CreateWork::CreateDomain { config, uuid, images, domid, generation }
            }
            Self::Build => {
                // The builder is the last user of the images.
                let images = facts.images.take().expect("planned after the images");
                let domain = facts.incarnation.new.expect("planned after the domain");
                CreateWork::Build { config, images, domain }
            }
            Self::LoadState => {
                let file = saved_file(facts.images.take().as_ref());
                let domain = facts.incarnation.new.expect("planned after the domain");
                CreateWork::LoadState { config, file, domain }
            }
            Self::AssignPci => CreateWork::AssignPci { config, domain: domain() },
            Self::StartModel => start_model(&config, uuid, facts, domain()),
            Self::WriteEarlyNodes => {
                let domid = domain().domid;
                facts.incarnation.nodes = true;
                facts.incarnation.has_early_nodes = true;
                let quota = Quota::for_devices(domid, &config);
                let nodes = layout::early_nodes(&config, uuid, domid, &facts.backends);
                CreateWork::WriteEarlyNodes { nodes, quota }
            }
            Self::WriteNodes(start) => {
                let domain = facts.incarnation.new.expect("planned after the domain");
                let built = facts.incarnation.built.expect("planned after the build");
                let nodes = nodes_of(&config, uuid, facts, domain, built, start);
                let domid = domain.domain.domid;
                let quota = Quota::for_devices(domid, &config);
                let userdata = Userdata::of(&config, uuid, domid, &facts.disks);
                CreateWork::WriteNodes { uuid, nodes, quota, userdata }
            }
            Self::Introduce => {
                let completion = facts.incarnation.completion.expect("planned after the nodes");
                let (store_port, store_gfn) = (completion.store_port, completion.store_gfn);
                CreateWork::Introduce { domain: domain(), check, store_port, store_gfn }
            }
            Self::NoteTerminals => note_terminals(domain(), uuid, facts),
            Self::NotePciPlaces => note_pci_places(domain(), uuid, facts),
            Self::Unpause => CreateWork::Unpause { domain: domain(), check },
        }
    }

    pub(super) fn complete(self, output: Output, with: Completing<'_>) {
        let Completing { vm, out, .. } = with;
        let facts = &mut vm.facts;
        if self == Self::Unpause {
            // It has run: it is this host's for good.
            facts.came = facts.transfer.take();
        }
        match self {
            Self::LoadImages | Self::RunBootloader => {
                let Output::Images(images) = output else { output.misplaced() };
                facts.images = Some(images);
            }
            Self::FindBootloader => {
                let Output::Bootloader(program) = output else { output.misplaced() };
                facts.bootloader = Some(program);
            }
            Self::CreateDomain => {
                let Output::Domain(domain) = output else { output.misplaced() };
                facts.incarnation.domain = Some(domain.domain);
                facts.incarnation.new = Some(domain);
            }
            Self::Build => {
                let Output::Built(built) = output else { output.misplaced() };
                facts.incarnation.built = Some(built);
            }
            Self::LoadState => {
                let Output::Loaded(loaded) = output else { output.misplaced() };
                facts.incarnation.built = Some(loaded.built);
                facts.model_state = loaded.model.map(Box::new);
            }
            Self::AssignPci => {
                let Output::Assigned(devices) = output else { output.misplaced() };
                facts.pci = devices;
            }
            Self::StartModel => {
                let Output::Model(process) = output else { output.misplaced() };
                facts.incarnation.model = Some(process);
                let log = device_model::log_file(&vm.config);
                out.push(Action::Follow { process, log });
            }
            Self::MakeDisks => {
                output.expect_done();
                facts.made_disks = new_disks(&facts.disks_from).cloned().collect();
            }
            Self::CheckFile
            | Self::CheckPci
            | Self::Record
            | Self::WriteEarlyNodes
            | Self::WriteNodes(_)
            | Self::Introduce
            | Self::NoteTerminals
            | Self::NotePciPlaces
            | Self::Unpause => {
                output.expect_done();
            }
        }
    }
}

impl CreateWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::LoadImages { .. } => info("load-images", WorkClass::Load, None),
            Self::FindBootloader { .. } => info("find-bootloader", WorkClass::Load, None),
            Self::RunBootloader { .. } => info("run-bootloader", WorkClass::Load, None),
            Self::CheckFile { .. } => info("check-file", WorkClass::Load, None),
            Self::CheckPci { .. } => info("check-pci", WorkClass::Query, None),
            Self::Record { .. } => info("record", WorkClass::Change, None),
            Self::MakeDisks { .. } => info("make-disks", WorkClass::Attach, None),
            Self::CreateDomain { .. } => info("create-domain", WorkClass::Change, None),
            Self::Build { domain, .. } => info("build", WorkClass::Change, Some(domain.domain)),
            Self::LoadState { domain, .. } => {
                info("load-state", WorkClass::Memory, Some(domain.domain))
            }
            Self::AssignPci { domain, .. } => info("assign-pci", WorkClass::Change, Some(*domain)),
            Self::StartModel { domain, .. } => {
                info("start-model", WorkClass::Change, Some(*domain))
            }
            Self::WriteEarlyNodes { .. } => info("write-early-nodes", WorkClass::Change, None),
            Self::WriteNodes { .. } => info("write-nodes", WorkClass::Change, None),
            Self::Introduce { domain, .. } => info("introduce", WorkClass::Change, Some(*domain)),
            Self::NotePciPlaces { domain, .. } => {
                info("note-pci-places", WorkClass::Change, Some(*domain))
            }
            Self::NoteTerminals { domain, .. } => {
                info("note-serial-ports", WorkClass::Change, Some(*domain))
            }
            Self::Unpause { domain, .. } => info("unpause", WorkClass::Query, Some(*domain)),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
        monitor: &mut dyn WorkMonitor,
    ) -> Result<Output, Failure> {
        match self {
            Self::LoadImages { config } => return by.load_images(&config).map(Output::Images),
            Self::FindBootloader { config } => {
                return by.find_bootloader(&config).map(Output::Bootloader);
            }
            Self::RunBootloader { config, program, disk } => {
                return by.run_bootloader(&config, program, disk).map(Output::Images);
            }
            Self::CheckFile { config, uuid, file, disks } => {
                by.check_saved(&config, &file)?;
                by.check_disks_from(&config, uuid, &disks)?;
            }
            Self::MakeDisks { vm, disks } => by.make_disks(&vm, &disks)?,
            Self::CheckPci { config } => by.check_devices(&config, None)?,
            Self::Record { nodes } => store::write_plainly(&mut by.store, &nodes)?,
            Self::CreateDomain { config, uuid, images, domid, generation } => {
                let identity = (uuid, domid, generation);
                return by.create_domain(&config, identity, &images, monitor).map(Output::Domain);
            }
            Self::Build { config, images, domain } => {
                return by.build(&config, &images, domain, monitor).map(Output::Built);
            }
            Self::LoadState { config, file, domain } => {
                let loaded = by.load_state(&config, &file, domain, monitor)?;
                by.map_hardware(domain.domain.domid, &config)?;
                return Ok(Output::Loaded(Box::new(loaded)));
            }
            Self::AssignPci { config, domain } => {
                return by.assign_devices(domain.domid, &config).map(Output::Assigned);
            }
            Self::StartModel { domain, launch } => {
                return by.start_model(domain, &launch).map(Output::Model);
            }
            Self::WriteEarlyNodes { nodes, quota } => {
                if let Some(quota) = quota {
                    store::raise_quota(&mut by.store, quota)?;
                }
                store::write_as_one(&mut by.store, &nodes)?;
            }
            Self::WriteNodes { uuid, mut nodes, quota, userdata } => {
                nodes.put(layout::start_time_path(uuid), store::start_time(by.host.unix_ms()));
                if let Some(quota) = quota {
                    store::raise_quota(&mut by.store, quota)?;
                }
                store::write_as_one(&mut by.store, &nodes)?;
                userdata.keep(&mut by.host);
            }
            Self::Introduce { domain, check, store_port, store_gfn } => {
                by.check_identity(domain, check)?;
                by.store.introduce(domain.domid, xen::Gfn(store_gfn), store_port)?;
            }
            Self::NotePciPlaces { domain, uuid, model } => {
                by.note_pci_places(domain.domid, uuid, model)?;
            }
            Self::NoteTerminals { domain, uuid, model } => {
                by.note_terminals(domain.domid, uuid, model)?;
            }
            Self::Unpause { domain, check } => {
                by.check_identity(domain, check)?;
                let domid = domain.domid;
                by.xen.unpause_domain(domid).map_err(refused("unpause", domid))?;
            }
        }
        Ok(Output::Done)
    }
}
