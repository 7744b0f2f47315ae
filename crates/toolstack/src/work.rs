//! Work: what a step is to somebody who performs it, with everything it needs as data, and what
//! comes back.

use std::collections::BTreeMap;
use std::sync::Arc;

use storage::Attachment;
use xen::{DomId, DomainInfo, DomainRef, EvtchnPort, PhysInfo, SetAside, Uuid, VersionInfo};
use xen_build::{Built, HvmLoader, KernelImage};

use crate::config::VmConfig;
use crate::device_model::{Launch, OwnModel, Process};
use crate::foreign::{ForeignLoop, ForeignReading};
use crate::layout::{Completion, DeviceRef, Nodes, Removal};

/// What a VM's domain is built of, shared with every other VM that has the same.
#[derive(Clone, Debug)]
pub enum Images {
    Kernel {
        kernel: Arc<KernelImage>,
        ramdisk: Option<Arc<[u8]>>,
    },
    /// Xen's loader and a BIOS.
    Firmware {
        loader: Arc<HvmLoader>,
        bios: Arc<[u8]>,
    },
}

/// A new domain and its two channels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NewDomain {
    pub domain: DomainRef,
    pub store_port: EvtchnPort,
    pub console_port: EvtchnPort,
}

/// Whether somebody who is about to act on a domain has to look first if it is still that domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Look {
    First,
    /// It was made by the operation that the work belongs to, has never run and is nobody else's: its domid
    /// is not given out again.
    Needless,
}

/// What a domain with many devices may have in the store. A guest's frontends and their watches count as
/// its own, and 255 disks are above what the store gives by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    pub domid: DomId,
    pub nodes: u32,
    pub watches: u32,
}

impl Quota {
    /// Up to here the store's own limits do.
    const DEVICES_WITHIN: usize = 64;

    /// `None` if the store's own limits do.
    #[must_use]
    pub fn for_devices(domid: DomId, config: &VmConfig) -> Option<Self> {
        let devices = config.disks.len() + config.vifs.len();
        let number = u32::try_from(devices).unwrap_or(u32::MAX);
        // A frontend with as many queues as blkfront and netfront make has some thirty nodes.
        (devices > Self::DEVICES_WITHIN).then(|| Self {
            domid,
            nodes: number.saturating_mul(40).saturating_add(1000),
            watches: number.saturating_mul(3).saturating_add(128),
        })
    }
}

/// Whether a dead domain's number may be given out again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LetGo {
    Now,
    /// Somebody else may still be about to act on the domain.
    Later,
}

/// Queues of work: one class never waits for another's slow calls.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum WorkClass {
    /// Reads and lists.
    Query,
    /// Everything that makes a VM.
    Change,
    /// Ending domains, their nodes and devices, which can take long.
    Destroy,
    /// Letting go of what they had of the host: disks, whose storage may hang, and device models.
    Release,
}

/// Something to be done outside the machine. Each variant says all that is needed to do it.
#[derive(Clone, Debug)]
pub enum Work {
    LoadImages {
        config: Arc<VmConfig>,
    },
    CheckBridge {
        config: Arc<VmConfig>,
        index: usize,
    },
    AttachDisk {
        config: Arc<VmConfig>,
        index: usize,
        tag: String,
    },
    Record {
        nodes: Nodes,
    },
    CreateDomain {
        config: Arc<VmConfig>,
        uuid: Uuid,
        images: Images,
        /// No other domain that this machine speaks of has it.
        generation: u64,
    },
    Build {
        config: Arc<VmConfig>,
        images: Images,
        domain: NewDomain,
    },
    StartModel {
        domain: DomainRef,
        launch: Launch,
    },
    /// Ends the device model and removes what it left.
    EndModel {
        domain: DomainRef,
        uuid: Uuid,
        /// `None` if it has ended by itself meanwhile.
        process: Option<Process>,
    },
    WriteNodes {
        nodes: Nodes,
        quota: Option<Quota>,
    },
    /// Writes the nodes of one more device of a domain that is there.
    AddDevice {
        domain: DomainRef,
        uuid: Uuid,
        nodes: Nodes,
        quota: Option<Quota>,
    },
    /// Asks the guest to let go of a device, after `nodes` were written.
    AskToClose {
        domain: DomainRef,
        uuid: Uuid,
        device: DeviceRef,
        nodes: Nodes,
    },
    /// Takes a device from its guest, after `nodes` were written.
    CloseDevice {
        domain: DomainRef,
        uuid: Uuid,
        device: DeviceRef,
        nodes: Nodes,
    },
    /// Removes a device's nodes, then writes `nodes`.
    RemoveDevice {
        domain: DomainRef,
        uuid: Uuid,
        removals: Vec<Removal>,
        nodes: Nodes,
    },
    Introduce {
        domain: DomainRef,
        look: Look,
        store_port: EvtchnPort,
        store_gfn: u64,
    },
    /// Puts the links on the bridge, then tells netback so.
    JoinBridge {
        bridge: String,
        /// That of netback, and maybe that of an emulated card.
        links: Vec<String>,
        mtu: Option<u32>,
        backend: String,
    },
    Unpause {
        domain: DomainRef,
        look: Look,
    },
    Pause {
        domain: DomainRef,
    },
    CloseDevices {
        domain: DomainRef,
        uuid: Uuid,
        devices: Vec<DeviceRef>,
    },
    DestroyDomain {
        domain: DomainRef,
    },
    DetachDisk {
        attachment: Attachment,
    },
    RemoveNodes {
        /// Whose nodes they are, if there was a domain: another VM's under its domid stay.
        domain: Option<DomainRef>,
        uuid: Uuid,
        removals: Vec<Removal>,
        then: LetGo,
    },
    /// Writes `control/shutdown`.
    RequestShutdown {
        domain: DomainRef,
        uuid: Uuid,
        request: &'static str,
    },
    WriteDefinition {
        uuid: Uuid,
        text: String,
    },
    RemoveDefinition {
        uuid: Uuid,
    },
    /// The VMs that start with the host were started.
    FinishBoot,
    /// One list of all domains, and the names of those not in `known`.
    Survey {
        known: BTreeMap<DomId, Uuid>,
    },
    /// One domain, and its name unless it is the one with this handle.
    LookAt {
        domid: DomId,
        known: Option<Uuid>,
    },
    /// Survey, our records, and what is attached for VMs of ours.
    Observe,
    /// What is attached for VMs that are no more.
    DetachOrphans {
        attachments: Vec<Attachment>,
    },
    /// Device models of domains that are no more.
    EndOrphans {
        models: Vec<OwnModel>,
    },
    /// All that is known of a domain that another toolstack made.
    ReadForeign {
        domid: DomId,
        uuid: Uuid,
        generation: u64,
    },
    /// Makes such a domain ours: what is attached for it first, its record last.
    Adopt {
        domain: DomainRef,
        uuid: Uuid,
        loops: Vec<ForeignLoop>,
        nodes: Nodes,
        removals: Vec<Removal>,
    },
    ReadConsole {
        domain: DomainRef,
        uuid: Uuid,
    },
    ReadDevices {
        domain: DomainRef,
        uuid: Uuid,
        devices: Vec<DeviceRef>,
    },
    HostInfo,
    CpuTimes {
        domain: DomainRef,
        vcpus: u32,
    },
}

impl Work {
    /// The domain that this work acts on or reads of, if it is about one that exists.
    #[must_use]
    pub fn domain(&self) -> Option<DomainRef> {
        match self {
            Self::Build { domain, .. } => Some(domain.domain),
            Self::StartModel { domain, .. }
            | Self::EndModel { domain, .. }
            | Self::Introduce { domain, .. }
            | Self::Unpause { domain, .. }
            | Self::Pause { domain }
            | Self::CloseDevices { domain, .. }
            | Self::AddDevice { domain, .. }
            | Self::AskToClose { domain, .. }
            | Self::CloseDevice { domain, .. }
            | Self::RemoveDevice { domain, .. }
            | Self::DestroyDomain { domain }
            | Self::RequestShutdown { domain, .. }
            | Self::Adopt { domain, .. }
            | Self::ReadConsole { domain, .. }
            | Self::ReadDevices { domain, .. }
            | Self::CpuTimes { domain, .. } => Some(*domain),
            Self::RemoveNodes { domain, .. } => *domain,
            _ => None,
        }
    }

    /// What this is called where operators count it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::LoadImages { .. } => "load-images",
            Self::CheckBridge { .. } => "check-bridge",
            Self::AttachDisk { .. } => "attach-disk",
            Self::Record { .. } => "record",
            Self::CreateDomain { .. } => "create-domain",
            Self::Build { .. } => "build",
            Self::StartModel { .. } => "start-model",
            Self::EndModel { .. } => "end-model",
            Self::EndOrphans { .. } => "end-orphans",
            Self::WriteNodes { .. } => "write-nodes",
            Self::Introduce { .. } => "introduce",
            Self::JoinBridge { .. } => "join-bridge",
            Self::Unpause { .. } => "unpause",
            Self::Pause { .. } => "pause",
            Self::AddDevice { .. } => "add-device",
            Self::AskToClose { .. } => "ask-to-close",
            Self::CloseDevice { .. } => "close-device",
            Self::RemoveDevice { .. } => "remove-device",
            Self::CloseDevices { .. } => "close-devices",
            Self::DestroyDomain { .. } => "destroy-domain",
            Self::DetachDisk { .. } => "detach-disk",
            Self::RemoveNodes { .. } => "remove-nodes",
            Self::RequestShutdown { .. } => "request-shutdown",
            Self::Survey { .. } => "list",
            Self::Observe => "observe",
            Self::DetachOrphans { .. } => "detach-orphans",
            Self::WriteDefinition { .. } => "write-definition",
            Self::RemoveDefinition { .. } => "remove-definition",
            Self::FinishBoot => "finish-boot",
            Self::ReadForeign { .. } => "read-foreign",
            Self::Adopt { .. } => "adopt",
            Self::ReadConsole { .. } => "read-console",
            Self::ReadDevices { .. } => "read-devices",
            Self::HostInfo => "host-info",
            Self::CpuTimes { .. } => "cpu-times",
            Self::LookAt { .. } => "look-at",
        }
    }

    /// Which queue this work goes to.
    #[must_use]
    pub fn class(&self) -> WorkClass {
        match self {
            Self::Survey { .. }
            | Self::LookAt { .. }
            | Self::Observe
            | Self::ReadForeign { .. }
            | Self::ReadConsole { .. }
            | Self::ReadDevices { .. }
            | Self::HostInfo
            | Self::CpuTimes { .. }
            | Self::RequestShutdown { .. }
            | Self::Pause { .. }
            | Self::Unpause { .. } => WorkClass::Query,
            Self::DestroyDomain { .. }
            | Self::CloseDevices { .. }
            | Self::AskToClose { .. }
            | Self::CloseDevice { .. }
            | Self::RemoveDevice { .. }
            | Self::RemoveNodes { .. } => WorkClass::Destroy,
            Self::DetachDisk { .. }
            | Self::DetachOrphans { .. }
            | Self::EndModel { .. }
            | Self::EndOrphans { .. } => WorkClass::Release,
            _ => WorkClass::Change,
        }
    }
}

/// What an operation cost outside the machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    /// By name.
    pub hypercalls: BTreeMap<&'static str, u64>,
    pub store_messages: u64,
    pub store_round_trips: u64,
    pub transactions: u64,
    /// Transactions that had to be tried again.
    pub conflicts: u64,
    /// Time between being given out and being taken by a worker, in nanoseconds.
    pub queued_ns: u64,
}

impl Cost {
    /// Adds another cost to this one.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.hypercalls {
            *self.hypercalls.entry(name).or_default() += count;
        }
        self.store_messages += other.store_messages;
        self.store_round_trips += other.store_round_trips;
        self.transactions += other.transactions;
        self.conflicts += other.conflicts;
        self.queued_ns += other.queued_ns;
    }
}

/// A VM's record as found in the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    pub uuid: Uuid,
    pub config_text: String,
    /// Present once the domain's nodes were written.
    pub domid: Option<DomId>,
    /// Present once the domain's nodes were written.
    pub complete: Option<Completion>,
    /// Devices that were being plugged or unplugged.
    pub pending: String,
}

/// One line of `xl block-list` or `xl network-list`, as read from the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceReading {
    pub device: DeviceRef,
    pub backend: String,
    pub state: u32,
    pub mac: Option<String>,
    pub event_channel: Option<i64>,
    /// The ring, or a vif's transmit ring.
    pub ring_ref: Option<i64>,
    /// A vif's receive ring.
    pub rx_ring_ref: Option<i64>,
}

/// All domains at one moment, with the names that were asked for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Survey {
    pub domains: Vec<DomainInfo>,
    pub names: BTreeMap<DomId, String>,
}

/// A loop device or VDI that was attached for a VM: its tag says for which.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnLoop {
    pub attachment: Attachment,
    pub tag: String,
}

/// The hypervisor and the machine below it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostInfo {
    pub version: VersionInfo,
    pub physical: PhysInfo,
    /// `None` on a Xen that was built without sharing or pools.
    pub set_aside: Option<SetAside>,
}

/// What finished work brings back.
#[derive(Clone, Debug)]
pub enum Output {
    Done,
    Images(Images),
    Attached(Attachment),
    Domain(NewDomain),
    Built(Built),
    Model(Process),
    /// Backends were told to close, all but these of which have looked at their devices.
    Closing {
        unseen: Vec<DeviceRef>,
    },
    Survey(Survey),
    Looked {
        info: Option<Box<DomainInfo>>,
        name: Option<String>,
    },
    Observed {
        survey: Survey,
        records: Vec<Record>,
        loops: Vec<OwnLoop>,
        /// Xen's own numbers of those domains that a record speaks of, where Xen has such.
        unique_ids: BTreeMap<DomId, u64>,
        models: Vec<OwnModel>,
    },
    /// `None`: xenconsoled has not yet made the terminal.
    Console(Option<String>),
    Foreign(Box<ForeignReading>),
    Devices(Vec<DeviceReading>),
    HostInfo(Box<HostInfo>),
    CpuTimes(Vec<xen::VcpuInfo>),
}

/// Work that failed: a sentence for the operator that names the object.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// Tag of a loop device under a disk: it leads from the device back to the VM.
#[must_use]
pub fn loop_tag(uuid: Uuid, vdev_number: u32) -> String {
    format!("{LOOP_TAG_PREFIX}{uuid}/{vdev_number}")
}

/// What all our tags begin with.
pub const LOOP_TAG_PREFIX: &str = "xylem/";

/// The VM and virtual device that a tag of ours speaks of.
#[must_use]
pub fn parse_loop_tag(tag: &str) -> Option<(Uuid, u32)> {
    let (uuid, number) = tag.strip_prefix(LOOP_TAG_PREFIX)?.split_once('/')?;
    Some((uuid.parse().ok()?, number.parse().ok()?))
}
