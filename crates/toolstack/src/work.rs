//! Work: a step prepared for a performer, with all its data, and its result.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use migrate::image::Codec;
use migrate::peer::Fate;
use storage::{Attachment, BlockDevice, InUse, Vdi, VdiName};
use xen::{
    Affinity, DomId, DomainInfo, DomainRef, EvtchnPort, PhysInfo, SchedParams, SchedTuning,
    SetAside, Uuid, VcpuInfo, VersionInfo,
};
use xen_build::{Built, HvmLoader, KernelImage};

use crate::around::Around;
use crate::checkpoint::Checkpoint;
use crate::config::VmConfig;
use crate::device_model::{ModelState, OwnModel, Process};
use crate::foreign::ForeignReading;
use crate::generation::GenerationId;
use crate::layout::{self, DeviceRef};
use crate::moves::{Farewell, Greeting, Handover, Speaks};
use crate::pci::Assigned;
pub use crate::perform::{AdoptionWork, DefinitionWork, QueryWork, TuneWork};
use crate::saved::{HostSave, SaveEnd, SavedFile};
pub use crate::steps::create::CreateWork;
pub use crate::steps::devices::DeviceWork;
pub use crate::steps::moves::MoveWork;
pub use crate::steps::save::SaveWork;
pub use crate::steps::suspend::SuspendWork;
pub use crate::steps::teardown::TeardownWork;
use crate::xen_host::HostTold;

/// A VDI as its SR has it, and who uses it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VdiReading {
    pub vdi: Vdi,
    pub users: Vec<InUse>,
}

/// What an SR holds.
#[derive(Clone, Debug)]
pub struct SrReading {
    pub vdis: BTreeMap<VdiName, VdiReading>,
    /// What is wrong with it.
    pub problem: Option<String>,
}

/// Images that a domain is built from, shared by VMs with the same ones.
#[derive(Clone, Debug)]
pub enum Images {
    Kernel {
        kernel: Arc<KernelImage>,
        ramdisk: Option<Arc<[u8]>>,
        /// A bootloader's instead of the configuration's.
        cmdline: Option<String>,
        /// What `kernel` runs if it is a shim: another kernel, unchanged.
        shimmed: Option<Arc<[u8]>>,
    },
    /// hvmloader and a BIOS.
    Firmware {
        loader: Arc<HvmLoader>,
        bios: Arc<[u8]>,
        /// Tables of the configuration's; empty for none.
        acpi_tables: Arc<[u8]>,
        smbios_structures: Arc<[u8]>,
    },
    /// The state of a saved VM, instead of something that boots.
    Saved(Arc<SavedFile>),
    /// It is received.
    Coming,
}

/// A new domain and its two channels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NewDomain {
    pub domain: DomainRef,
    pub store_port: EvtchnPort,
    pub console_port: EvtchnPort,
    /// What an HVM guest is told of its memory's generation, if that is another than before.
    pub generation_id: Option<GenerationId>,
}

/// Whether Xen must be asked first if a domain still exists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IdentityCheck {
    Needed,
    /// It was made by the operation that the work belongs to, has never run and is nobody else's: its domid
    /// is not given out again.
    Needless,
}

/// What a domain with many devices may have in the store. A guest's frontends and their watches count as
/// its own, and 255 disks are above what the store gives by itself; so do the backends of a driver domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    pub domid: DomId,
    pub nodes: u32,
    pub watches: u32,
}

impl Quota {
    /// Up to here the store's own limits do.
    const DEVICES_WITHIN: usize = 64;

    /// Devices that a driver domain may serve; netback has up to six watches for one.
    const SERVED: u32 = 1000;

    /// `None` if the store's own limits do.
    #[must_use]
    pub fn for_devices(domid: DomId, config: &VmConfig) -> Option<Self> {
        let served = layout::served_devices(config).len();
        let devices = config.disks.len() + config.vifs.len() + served;
        let number = u32::try_from(devices).unwrap_or(u32::MAX);
        let served = if config.options.is_driver_domain { Self::SERVED } else { 0 };
        let is_above = devices > Self::DEVICES_WITHIN || served > 0;
        // A frontend with as many queues as blkfront and netfront make has some thirty nodes.
        is_above.then(|| Self {
            domid,
            nodes: number.saturating_add(served).saturating_mul(40).saturating_add(1000),
            watches: number.saturating_mul(3).saturating_add(served * 6 + 128),
        })
    }
}

/// Whether a dead domain's number may be given out again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Release {
    Now,
    /// Somebody else may still be about to act on the domain.
    Later,
}

/// Queues of work: one class never waits for another's slow calls.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum WorkClass {
    /// Reads and lists.
    Query,
    /// Reading and parsing what a VM's domain is built of: somebody else's bytes, on storage that may be slow.
    Load,
    /// Attaching disks, whose storage may be slow.
    Attach,
    /// Everything else that makes a VM.
    Change,
    /// Waiting for guests to suspend, which they may never do.
    Suspend,
    /// Copying domains' memory to and from files.
    Memory,
    /// Sending domains to other hosts, which may be slow.
    Send,
    /// Receiving domains from them. Two hosts that send to each other must not wait for each other.
    Receive,
    /// Short words with other hosts, which may be slow to answer.
    Talk,
    /// Waiting for what other hosts may say, or never do. No word to one waits for that.
    Listen,
    /// Hotplug scripts, which may take as long as they are let.
    Script,
    /// Reading what SRs hold. Some are slow, or hang.
    Scan,
    /// Ending domains, their nodes and devices, which can take long.
    Destroy,
    /// Letting go of what they had of the host: disks, whose storage may hang, and device models.
    Release,
}

/// Something to be done outside the machine, with all that is needed to do it. Each group has a file that also says how
/// its work is performed.
#[derive(Clone, Debug)]
pub enum Work {
    Create(CreateWork),
    Device(DeviceWork),
    Teardown(TeardownWork),
    Suspend(SuspendWork),
    Save(SaveWork),
    Move(MoveWork),
    Adoption(AdoptionWork),
    Query(QueryWork),
    Tune(TuneWork),
    Definition(DefinitionWork),
}

/// What is to be known of work without doing it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WorkInfo {
    /// What it is called where operators count it.
    pub name: &'static str,
    /// The queue that it goes to.
    pub class: WorkClass,
    /// The domain that it acts on or reads of, if it is about one that exists.
    pub domain: Option<DomainRef>,
}

impl Work {
    #[must_use]
    pub fn info(&self) -> WorkInfo {
        match self {
            Self::Create(work) => work.info(),
            Self::Device(work) => work.info(),
            Self::Teardown(work) => work.info(),
            Self::Suspend(work) => work.info(),
            Self::Save(work) => work.info(),
            Self::Move(work) => work.info(),
            Self::Adoption(work) => work.info(),
            Self::Query(work) => work.info(),
            Self::Tune(work) => work.info(),
            Self::Definition(work) => work.info(),
        }
    }

    /// What it is called where operators count it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.info().name
    }

    /// The queue that it goes to.
    #[must_use]
    pub fn class(&self) -> WorkClass {
        self.info().class
    }
}

macro_rules! groups {
    ($($group:ident($work:ty)),* $(,)?) => {
        $(impl From<$work> for Work {
            fn from(work: $work) -> Self {
                Self::$group(work)
            }
        })*
    };
}

groups! {
    Create(CreateWork),
    Device(DeviceWork),
    Teardown(TeardownWork),
    Suspend(SuspendWork),
    Save(SaveWork),
    Move(MoveWork),
    Adoption(AdoptionWork),
    Query(QueryWork),
    Tune(TuneWork),
    Definition(DefinitionWork),
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
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record {
    pub uuid: Uuid,
    /// The first release wrote none.
    pub format: Option<String>,
    /// The configuration in the first release's words, and all of it if those do not do.
    pub config_text: String,
    pub full_text: String,
    /// What its next domain is made of instead; empty if that is the same.
    pub next_text: String,
    /// Present once the domain's nodes were written.
    pub domid: Option<DomId>,
    /// Present once the domain's nodes were written.
    pub complete: Option<String>,
    /// Devices that were being plugged or unplugged.
    pub pending: String,
    /// A suspend was begun in the domain's life.
    pub has_suspend_port: bool,
    /// A save that was in progress.
    pub saving: Option<String>,
    /// A move to another host that was in progress.
    pub leaving: Option<String>,
    /// The transfer by which it came, or was coming.
    pub incoming: Option<String>,
    /// Disks that were being made for it.
    pub made_disks: Option<String>,
    /// The driver domains of its domain's devices.
    pub backends: Option<String>,
}

/// One line of `xl block-list` and the like, as read from the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceReading {
    pub device: DeviceRef,
    pub backend: String,
    pub backend_domid: DomId,
    pub state: u32,
    pub mac: Option<String>,
    pub event_channel: Option<i64>,
    /// The ring, or a vif's transmit ring.
    pub ring_ref: Option<i64>,
    /// A vif's receive ring.
    pub rx_ring_ref: Option<i64>,
    /// What domain 0's end of a channel is, and the path of its pty.
    pub connection: Option<String>,
    pub tty: Option<String>,
    /// A channel's name, a keyboard's unique ID.
    pub name: Option<String>,
}

/// All domains at one moment, with the names that were asked for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Survey {
    pub domains: Vec<DomainInfo>,
    pub names: BTreeMap<DomId, String>,
}

impl Survey {
    /// Whether this domain lives, as this VM's.
    #[must_use]
    pub fn has(&self, domid: DomId, uuid: Uuid) -> bool {
        let is_it = |it: &&DomainInfo| it.domid == domid && it.handle == uuid;
        self.domains.iter().find(is_it).is_some_and(|it| !it.flags.dying())
    }
}

/// A loop device or VDI that was attached for a VM: its tag says for which.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnLoop {
    pub attachment: Attachment,
    pub tag: String,
}

/// A vCPU: what it does, and on which CPUs it may.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VcpuReading {
    pub info: VcpuInfo,
    pub affinity: Affinity,
}

/// The vCPUs of some domains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct VcpuReadings {
    /// CPUs that the host can have, from 0.
    pub cpus: u32,
    pub domains: BTreeMap<DomId, Vec<VcpuReading>>,
}

/// A CPU pool, with domains in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolReading {
    pub name: String,
    /// Parameters of its scheduler, if they were asked for and it has some.
    pub tuning: Option<SchedTuning>,
    pub shares: Vec<ShareReading>,
}

/// The share of the CPUs that a domain has, or one of its vCPUs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShareReading {
    pub domid: DomId,
    /// `None` if its store node could not be read.
    pub name: Option<String>,
    pub vcpu: Option<u32>,
    pub params: SchedParams,
}

/// The hypervisor and the machine below it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostInfo {
    pub version: VersionInfo,
    pub physical: PhysInfo,
    /// `None` on a Xen that was built without sharing or pools.
    pub set_aside: Option<SetAside>,
}

/// Whether files were found that ask for work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeftFiles {
    /// Of checkpoints that were being made or removed.
    pub checkpoints: bool,
    /// Of VMs that were saved with the host.
    pub host_saves: bool,
}

/// A domain that has a saved one's state.
#[derive(Clone, Debug)]
pub struct LoadedVm {
    pub built: Built,
    /// For its device model, if it is to have one.
    pub model: Option<ModelState>,
}

/// What finished work brings back.
#[derive(Clone, Debug)]
pub enum Output {
    Done,
    Images(Images),
    /// The path of a bootloader.
    Bootloader(String),
    /// The driver domain of a device.
    Backend(DomId),
    /// What is wrong, a failure each.
    Checked(Vec<Failure>),
    Attached(OwnLoop),
    /// A script has connected a device, a disk to this.
    Connected(Option<BlockDevice>),
    Domain(NewDomain),
    Built(Built),
    Loaded(Box<LoadedVm>),
    Assigned(Vec<Assigned>),
    Model(Process),
    /// A file of a saved VM can be loaded.
    SavedFile(Box<SavedFile>),
    /// A save has ended so.
    Saved(SaveEnd),
    Checkpoints(Vec<Checkpoint>),
    HostSaves(Vec<HostSave>),
    Sent(Speaks),
    HandedOver(Handover),
    Greeted(Greeting),
    Fate(Fate),
    Farewell(Farewell),
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
        /// Transfers that came, with their VMs.
        received: Vec<(Uuid, Uuid)>,
        left: LeftFiles,
    },
    /// `None`: xenconsoled has not yet made the terminal.
    Console(Option<String>),
    Foreign(Box<ForeignReading>),
    Left(Vec<DeviceRef>),
    /// A guest without PV drivers was sent an ACPI event.
    SentAcpi,
    Devices(Vec<DeviceReading>),
    HostInfo(Box<HostInfo>),
    Around(Box<Around>),
    Sr(SrReading),
    Host(Box<HostTold>),
    Text(String),
    Vcpus(Box<VcpuReadings>),
    StartTimes(BTreeMap<DomId, u64>),
    Sched(Vec<PoolReading>),
}

impl Output {
    /// What releases it when nobody has a use for it any more.
    pub(crate) fn discard(self) -> Option<Work> {
        match self {
            Self::Attached(OwnLoop { attachment, tag }) => {
                Some(DeviceWork::DetachDisk { attachment, tag }.into())
            }
            Self::Domain(new) => Some(TeardownWork::DestroyDomain { domain: new.domain }.into()),
            // Its domain is taken down, and it with it.
            Self::Model(_)
            | Self::Done
            | Self::Connected(_)
            | Self::Images(_)
            | Self::Bootloader(_)
            | Self::Backend(_)
            | Self::SavedFile(_)
            | Self::Saved(_)
            | Self::Checkpoints(_)
            | Self::HostSaves(_)
            | Self::Sent(_)
            | Self::HandedOver(_)
            | Self::Greeted(_)
            | Self::Fate(_)
            | Self::Farewell(_)
            | Self::Built(_)
            | Self::Loaded(_)
            | Self::Assigned(_)
            | Self::Closing { .. }
            | Self::Survey(_)
            | Self::Looked { .. }
            | Self::Observed { .. }
            | Self::Console(_)
            | Self::Foreign(_)
            | Self::Devices(_)
            | Self::Left(_)
            | Self::Checked(_)
            | Self::HostInfo(_)
            | Self::Around(_)
            | Self::Sr(_)
            | Self::Host(_)
            | Self::Text(_)
            | Self::SentAcpi
            | Self::Vcpus(_)
            | Self::StartTimes(_)
            | Self::Sched(_) => None,
        }
    }

    /// For work that brings nothing back.
    pub(crate) fn expect_done(&self) {
        if !matches!(self, Self::Done) {
            self.misplaced();
        }
    }

    /// The work brought back what belongs to other work.
    pub(crate) fn misplaced(&self) -> ! {
        unreachable!("this work does not bring back {self:?}")
    }
}

/// How far work in progress is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    pub done: u64,
    pub total: u64,
    pub unit: &'static str,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.done, self.total, self.unit)
    }
}

/// How memory leaves for another host at the moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow {
    pub rounds: migrate::rounds::Progress,
    /// `None` if it leaves in another toolstack's form.
    pub codec: Option<Codec>,
    /// Connections.
    pub lanes: u8,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = &self.rounds;
        let mib = |bytes: u64| bytes >> 20;
        let codec = match self.codec {
            None | Some(Codec::None) => "",
            Some(Codec::Lz4) => " of lz4",
            Some(Codec::Zstd) => " of zstd",
        };
        write!(f, "round {}, {} MiB/s{codec}", rounds.round, mib(rounds.rate))?;
        if self.lanes > 1 {
            write!(f, " on {} connections", self.lanes)?;
        }
        write!(f, ", pause of {} ms expected", rounds.pause_us.div_ceil(1000))?;
        match rounds.percent {
            100 => Ok(()),
            percent => write!(f, ", guest slowed to {percent} %"),
        }
    }
}

/// All that is known of how far work is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Far {
    pub part: Part,
    pub flow: Option<Flow>,
}

impl From<Part> for Far {
    fn from(part: Part) -> Self {
        Self { part, flow: None }
    }
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt(f)?;
        self.flow.map_or(Ok(()), |flow| write!(f, ", {flow}"))
    }
}

/// Watches work in progress, for whoever waits for it.
pub trait WorkMonitor {
    /// So far it has done this; it ends early if this returns `Break`.
    fn reached(&mut self, part: Part) -> ControlFlow<()>;

    /// The same, of memory that is sent.
    fn flows(&mut self, part: Part, flow: Flow) -> ControlFlow<()> {
        let _untold = flow;
        self.reached(part)
    }
}

/// Nobody watches.
impl WorkMonitor for () {
    fn reached(&mut self, _part: Part) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
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
