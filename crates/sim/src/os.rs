//! Dom0's operating system: files, loop devices, bridges and links.
//!
//! Disk images have a length and a byte for each written sector; other files have real bytes.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use storage::{
    Access, BlockDevice, BlockHost, DeviceNumber, DiskId, FileKind, HostError, LoopUse, Mode,
    Repositories, System, TaggedLoop,
};
use toolstack::balloon::{Autoballoon, Dom0Policy};
use toolstack::bootloader::BootloaderRun;
use toolstack::channel::{Channel, ChannelId};
use toolstack::device_model::{Launch, OwnModel, Process};
use toolstack::host::{BootFolder, Host, ImageSink, ImageSource, KernelError, Link, Turn};
use toolstack::hotplug::{ScriptEnd, ScriptRun};
use toolstack::lanes::{LANES_MAX, LaneCall, LaneIn, LaneOut};
use toolstack::moves::Reach;
use toolstack::moves::TransferFile;
use toolstack::network::Networks;
use toolstack::pci::PciBus;
use toolstack::qmp::ModelSocket;
use toolstack::{Begin, Boot, DefinitionFile};
use xen::{DomId, Uuid};
use xen_build::{HvmLoader, KernelImage};

use crate::bootloaders::Bootloaders;
use crate::channel::{Dial, Exchange, Line, SimChannel};
use crate::history::{DiskUse, DiskUses, Span};
use crate::images::DiskFaults;
use crate::machine::Machine;
use crate::models::{self, ModelFate, ModelTable};
use crate::monitor::{MonitorFate, SimMonitor};
use crate::networks::{self, NetworkState};
use crate::pci::PciState;
use crate::prng::split_mix;
use crate::qemu;
use crate::scripts::Scripts;
use crate::shared::Sharing;
use crate::storage::StorageState;

/// A file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum File {
    /// A disk image: its length, and one byte for each written sector.
    Image {
        bytes: u64,
        sectors: BTreeMap<u64, u8>,
    },
    /// A qcow2 image and its backing file.
    Qcow2 {
        bytes: u64,
        sectors: BTreeMap<u64, u8>,
        backing: Option<String>,
    },
    Bytes(Arc<[u8]>),
    Block(DeviceNumber),
    Directory,
    /// A symbolic link to this path.
    Link(String),
}

/// A loop device over a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoopDevice {
    pub path: String,
    pub tag: String,
    pub access: Access,
    /// Open count, by backends.
    pub opened: u32,
    /// Others may write it as well.
    pub is_shared: bool,
}

/// Major number of loop devices.
pub(crate) const LOOP_MAJOR: u32 = 7;

/// The date, unless somebody sets another.
const UNIX_MS: u64 = 1_700_000_000_120;

/// State shared by everything in dom0.
#[derive(Debug, Default)]
pub struct OsState {
    /// The date, in milliseconds since 1970; `None`: [`UNIX_MS`].
    unix_ms: Option<u64>,
    /// When somebody first asked when it had booted.
    booted_unix_ms: Option<u64>,
    pub(crate) files: BTreeMap<String, File>,
    pub(crate) storage: StorageState,
    kernels: BTreeMap<String, Arc<KernelImage>>,
    pub(crate) loops: BTreeMap<u32, LoopDevice>,
    /// Bridges and their ports.
    pub(crate) bridges: BTreeMap<String, BTreeSet<String>>,
    /// Network interfaces created by backends.
    pub(crate) links: BTreeSet<String>,
    /// Current names of renamed links, and their original ones.
    pub(crate) renamed: BTreeMap<String, String>,
    pub(crate) networks: NetworkState,
    /// Definitions of VMs by name, as files that outlive the daemon.
    definitions: BTreeMap<String, String>,
    /// Files about VMs that move, which outlive the daemon.
    transfers: BTreeMap<String, String>,
    /// What libxl finds of each domain.
    userdata: BTreeMap<(DomId, Uuid), String>,
    /// The VMs that start with the host were started.
    booted: bool,
    random_drawn: u64,
    loaders: BTreeMap<String, Arc<HvmLoader>>,
    pub(crate) models: ModelTable,
    pub(crate) bootloaders: Bootloaders,
    pub(crate) scripts: Scripts,
    pub(crate) pci: PciState,
    /// Paths of block devices opened exclusively in dom0.
    exclusive: BTreeSet<String>,
    /// Connections to other hosts.
    pub(crate) exchange: Option<Exchange>,
    /// When backends had disks connected.
    pub(crate) disk_uses: DiskUses,
    /// What other hosts do to shared files.
    pub(crate) sharing: Sharing,
    pub(crate) disk_faults: DiskFaults,
    pub(crate) dom0: Option<Giving>,
    /// The machine whose clock and kills hold here too.
    pub(crate) machine: Option<Machine>,
}

/// How dom0 gives memory to VMs. Otherwise it gives none.
#[derive(Clone, Copy, Debug)]
pub struct Giving {
    pub policy: Dom0Policy,
    /// Whether its kernel obeys.
    pub has_driver: bool,
}

/// Device number of the file system with all files.
const FILE_SYSTEM: DeviceNumber = DeviceNumber { major: 8, minor: 1 };

impl OsState {
    /// Resolves a link; other paths are unchanged.
    pub(crate) fn target<'a>(&'a self, path: &'a str) -> &'a str {
        match self.files.get(path) {
            Some(File::Link(target)) => target,
            _ => path,
        }
    }

    fn identify(&self, path: &str) -> Result<DiskId, HostError> {
        let path = self.target(path);
        if let Some(minor) = path.strip_prefix("/dev/loop").and_then(|it| it.parse().ok()) {
            return Ok(DiskId::Device(DeviceNumber { major: LOOP_MAJOR, minor }));
        }
        match self.files.get(path) {
            None => Err(HostError::Missing),
            Some(File::Block(number)) => Ok(DiskId::Device(*number)),
            Some(_) => {
                // An index would change with every new file: use FNV-1a of the path.
                let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                let inode = path.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
                Ok(DiskId::File { filesystem: FILE_SYSTEM, inode })
            }
        }
    }

    fn loop_uses(&self) -> Vec<LoopUse> {
        let one = |(minor, device): (&u32, &LoopDevice)| {
            let behind = self.identify(&device.path).ok()?;
            let (access, tag) = (device.access, device.tag.clone());
            Some(LoopUse { device: loop_device(*minor), behind, access, tag })
        };
        self.loops.iter().filter_map(one).collect()
    }

    /// The block device at a path: a loop device, or one that was added.
    pub(crate) fn device_at(&self, path: &str) -> Option<DeviceNumber> {
        match self.files.get(path) {
            Some(File::Block(number)) => Some(*number),
            _ => {
                let minor = path.strip_prefix("/dev/loop")?.parse().ok()?;
                Some(DeviceNumber { major: LOOP_MAJOR, minor })
            }
        }
    }

    /// Opens a block device for a backend. False if it does not exist.
    pub(crate) fn open(&mut self, number: DeviceNumber) -> bool {
        if number.major == LOOP_MAJOR {
            return self.loops.get_mut(&number.minor).map(|it| it.opened += 1).is_some();
        }
        self.files.values().any(|file| matches!(file, File::Block(it) if *it == number))
    }

    pub(crate) fn close(&mut self, number: DeviceNumber) {
        if number.major == LOOP_MAJOR
            && let Some(device) = self.loops.get_mut(&number.minor)
        {
            device.opened = device.opened.saturating_sub(1);
        }
    }

    /// A device's length in sectors.
    pub(crate) fn sectors(&self, number: DeviceNumber) -> u64 {
        if let Some(behind) = qemu::behind(&self.storage.served, number) {
            return qemu::bytes(self, behind) / 512;
        }
        if let Some(bytes) = self.storage.targets.bytes(number) {
            return bytes / 512;
        }
        let under = self.loops.get(&number.minor).filter(|_| number.major == LOOP_MAJOR);
        match under.and_then(|device| self.files.get(&device.path)) {
            Some(File::Image { bytes, .. }) => bytes / 512,
            Some(File::Bytes(bytes)) => bytes.len() as u64 / 512,
            _ => self.storage.lvm.bytes(number).map_or(1 << 21, |bytes| bytes / 512),
        }
    }

    /// All links are gone, and the boot begins anew.
    pub(crate) fn forget_links(&mut self) {
        self.links.clear();
        self.renamed.clear();
        self.networks.forget();
        self.exclusive.clear();
        self.booted = false;
        self.booted_unix_ms = None;
        for ports in self.bridges.values_mut() {
            ports.clear();
        }
    }

    /// Removes a link, also from its bridge.
    pub(crate) fn remove_link(&mut self, link: &str) {
        let renamed = self.renamed.iter().find(|(_, made)| *made == link);
        let name = renamed.map_or(link.to_owned(), |(name, _)| name.clone());
        self.renamed.remove(&name);
        self.links.remove(&name);
        self.networks.forget_link(&name);
        for ports in self.bridges.values_mut() {
            ports.remove(&name);
        }
    }
}

/// A handle on dom0's operating system.
#[derive(Clone, Debug, Default)]
pub struct SimOs(Rc<RefCell<OsState>>);

impl SimOs {
    /// What a daemon starts with now.
    #[must_use]
    pub fn begin(&self, revision: u64) -> Begin {
        let srs = Repositories::new(&mut self.clone()).names().unwrap_or_default();
        let os = self.get();
        let file = |(name, text): (&String, &String)| DefinitionFile {
            name: name.clone(),
            text: Ok(text.clone()),
        };
        Begin {
            revision,
            definitions: os.definitions.iter().map(file).collect(),
            transfers: os
                .transfers
                .iter()
                .map(|(name, text)| TransferFile { name: name.clone(), text: text.clone() })
                .collect(),
            boot: if os.booted { Boot::Again } else { Boot::First },
            srs,
        }
    }

    /// Sets the date, in milliseconds since 1970. It does not go on with virtual time.
    pub fn set_unix_ms(&self, unix_ms: u64) {
        self.get_mut().unix_ms = Some(unix_ms);
    }

    /// Adds a file to the folder of definitions, as written by another release of the daemon.
    pub fn put_definition(&self, name: &str, text: &str) {
        self.get_mut().definitions.insert(name.to_owned(), text.to_owned());
    }

    /// The files in the folder of definitions.
    #[must_use]
    pub fn definitions(&self) -> BTreeMap<String, String> {
        self.get().definitions.clone()
    }

    /// The files about VMs that move.
    #[must_use]
    pub fn transfers(&self) -> BTreeMap<String, String> {
        self.get().transfers.clone()
    }

    /// What libxl finds of each domain: its configuration as JSON.
    #[must_use]
    pub fn libxl_json(&self) -> BTreeMap<(DomId, Uuid), String> {
        self.get().userdata.clone()
    }

    /// The host reboots: autostart VMs are due again.
    pub fn forget_boot(&self) {
        self.get_mut().booted = false;
    }

    /// Borrows the state.
    #[must_use]
    pub fn get(&self) -> Ref<'_, OsState> {
        self.0.borrow()
    }

    pub(crate) fn get_mut(&self) -> RefMut<'_, OsState> {
        self.0.borrow_mut()
    }

    /// Adds a file with these bytes at `path`.
    pub fn add_file(&self, path: &str, bytes: impl Into<Arc<[u8]>>) {
        let mut os = self.get_mut();
        os.files.insert(path.to_owned(), File::Bytes(bytes.into()));
        // A file that has changed is parsed again.
        os.kernels.remove(path);
        os.loaders.remove(path);
    }

    /// Adds a disk image of this size at `path`.
    pub fn add_disk(&self, path: &str, bytes: u64) {
        let image = File::Image { bytes, sectors: BTreeMap::new() };
        self.get_mut().files.insert(path.to_owned(), image);
    }

    /// Adds a block device at `path`.
    pub fn add_block_device(&self, path: &str, number: DeviceNumber) {
        self.get_mut().files.insert(path.to_owned(), File::Block(number));
    }

    /// Adds a symbolic link at `path` to `target`.
    pub fn add_link(&self, path: &str, target: &str) {
        self.get_mut().files.insert(path.to_owned(), File::Link(target.to_owned()));
    }

    /// Opens this block device exclusively in dom0.
    pub fn set_exclusive(&self, device: &str) {
        self.get_mut().exclusive.insert(device.to_owned());
    }

    /// Adds a loop device that another tool has attached to the file at `path`.
    pub fn add_loop(&self, path: &str, access: Access) {
        let mut os = self.get_mut();
        let minor = (0..).find(|minor| !os.loops.contains_key(minor)).expect("numbers abound");
        let (path, tag) = (path.to_owned(), path.to_owned());
        os.loops.insert(minor, LoopDevice { path, tag, access, opened: 0, is_shared: true });
        let number = DeviceNumber { major: LOOP_MAJOR, minor };
        os.files.insert(format!("/dev/loop{minor}"), File::Block(number));
    }

    /// Removes all files below a folder.
    pub fn remove_below(&self, folder: &str) {
        let beginning = format!("{folder}/");
        self.get_mut().files.retain(|path, _| !path.starts_with(&beginning));
    }

    pub fn add_directory(&self, path: &str) {
        self.get_mut().files.insert(path.to_owned(), File::Directory);
    }

    /// The CPUs of a domain's guest, as its device model has them, and how often that woke it.
    #[must_use]
    pub fn model_guest(&self, domid: xen::DomId) -> Option<(BTreeSet<u32>, u32)> {
        self.get().models.guest_of(domid)
    }

    /// How device models behave that are started from now on.
    pub fn set_model_fate(&self, fate: ModelFate) {
        self.get_mut().models.set_fate(fate);
    }

    /// How the monitors of device models behave from now on.
    pub fn set_monitor_fate(&self, fate: MonitorFate) {
        self.get_mut().models.set_monitor(fate);
    }

    /// How often the device model of a domain was moved into another process; `None` without one.
    #[must_use]
    pub fn model_lives(&self, domid: DomId) -> Option<u32> {
        self.get().models.lives_of(domid)
    }

    /// Whether all device models serve their guests, and none was told something that nobody has undone.
    #[must_use]
    pub fn models_are_at_rest(&self) -> bool {
        self.get().models.are_at_rest()
    }

    /// Sets how other hosts are reached.
    pub fn set_dial(&self, dial: Box<dyn Dial>) {
        if let Some(exchange) = &mut self.get_mut().exchange {
            exchange.set_dial(dial);
        }
    }

    /// A client hands over a connection.
    ///
    /// # Panics
    /// On a host without a machine.
    pub fn add_channel(&self, line: Box<dyn Line>) -> ChannelId {
        self.get_mut().exchange.as_mut().expect("a host that is up").add(line)
    }

    /// A connection that a client has handed over.
    ///
    /// # Errors
    /// It is closed.
    pub fn open_channel(&self, id: ChannelId) -> Result<SimChannel, HostError> {
        self.get().exchange.as_ref().and_then(|it| it.get(id)).ok_or(HostError::Missing)
    }

    /// A new connection to a peer.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn connect_to(&self, peer: &Reach) -> Result<SimChannel, HostError> {
        self.get_mut().exchange.as_mut().ok_or(HostError::Missing)?.connect(peer)
    }

    /// Closes a connection that a client has handed over.
    pub fn close_channel(&self, id: ChannelId) {
        if let Some(exchange) = &mut self.get_mut().exchange {
            exchange.close(id);
        }
    }

    /// The daemon has ended: the kernel closes its connections.
    pub fn close_channels(&self) {
        if let Some(exchange) = &mut self.get_mut().exchange {
            exchange.close_all();
        }
    }

    /// Connections that clients have handed over and that are open.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.get().exchange.as_ref().map_or(0, Exchange::count)
    }

    /// How a device model has exited, if it has.
    pub(crate) fn model_ending(&self, process: Process) -> Option<&'static str> {
        self.get().models.ending(process)
    }

    pub fn add_bridge(&self, name: &str) {
        self.get_mut().bridges.insert(name.to_owned(), BTreeSet::new());
    }

    /// Somebody removes a bridge.
    pub fn remove_bridge(&self, name: &str) {
        self.get_mut().bridges.remove(name);
    }
}

impl OsState {
    /// Loop devices by number.
    #[must_use]
    pub fn loops(&self) -> &BTreeMap<u32, LoopDevice> {
        &self.loops
    }

    /// When backends had disks connected.
    #[must_use]
    pub fn disk_uses(&self) -> &[Span<DiskUse>] {
        self.disk_uses.spans()
    }

    /// Bridges and their ports.
    #[must_use]
    pub fn bridges(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.bridges
    }

    /// Running device models.
    #[must_use]
    pub fn models(&self) -> Vec<OwnModel> {
        self.models.found()
    }

    /// Links created by backends.
    #[must_use]
    pub fn links(&self) -> &BTreeSet<String> {
        &self.links
    }
}

fn loop_device(minor: u32) -> BlockDevice {
    let number = DeviceNumber { major: LOOP_MAJOR, minor };
    BlockDevice { path: format!("/dev/loop{minor}"), number }
}

impl BlockHost for SimOs {
    fn inspect(&mut self, path: &str) -> Result<FileKind, HostError> {
        self.with_state(path, |os, path| match os.files.get(os.target(path)) {
            None => match os.device_at(path).filter(|it| os.loops.contains_key(&it.minor)) {
                Some(number) => Ok(FileKind::Block(number)),
                None => Err(HostError::Missing),
            },
            Some(File::Image { bytes, .. } | File::Qcow2 { bytes, .. }) => {
                Ok(FileKind::Regular { bytes: *bytes })
            }
            Some(File::Bytes(bytes)) => Ok(FileKind::Regular { bytes: bytes.len() as u64 }),
            Some(File::Block(number)) => Ok(FileKind::Block(*number)),
            Some(File::Directory) => Ok(FileKind::Directory),
            Some(File::Link(_)) => unreachable!("a link leads elsewhere"),
        })
    }

    fn identify(&mut self, path: &str) -> Result<DiskId, HostError> {
        self.with_state(path, |os, path| os.identify(path))
    }

    fn attach_loop(&mut self, path: &str, mode: Mode, tag: &str) -> Result<LoopUse, HostError> {
        self.change(path, |os, path| {
            let behind = os.identify(path)?;
            let minor = (0..).find(|minor| !os.loops.contains_key(minor)).expect("numbers abound");
            let (path, tag) = (os.target(path).to_owned(), tag.to_owned());
            let access = mode.access();
            let is_shared = mode == Mode::Shared;
            os.check_lock(&path, access, is_shared)?;
            let device = LoopDevice { path, tag: tag.clone(), access, opened: 0, is_shared };
            os.loops.insert(minor, device);
            Ok(LoopUse { device: loop_device(minor), behind, access, tag })
        })
    }

    fn loops(&mut self) -> Result<Vec<LoopUse>, HostError> {
        self.with_state("/dev", |os, _| Ok(os.loop_uses()))
    }

    fn is_unclaimed(&mut self, device: &str) -> Result<bool, HostError> {
        self.with_state(device, |os, device| Ok(!os.exclusive.contains(device)))
    }

    fn tag_loop(&mut self, device: &str, tag: &str) -> Result<(), HostError> {
        let minor = device.strip_prefix("/dev/loop").and_then(|text| text.parse::<u32>().ok());
        self.change(device, |os, _| {
            let found = minor.and_then(|minor| os.loops.get_mut(&minor));
            found.ok_or(HostError::Missing)?.tag = tag.to_owned();
            Ok(())
        })
    }

    fn detach_loop(&mut self, device: &str) -> Result<(), HostError> {
        let minor = device.strip_prefix("/dev/loop").and_then(|text| text.parse::<u32>().ok());
        let minor = minor.ok_or_else(|| HostError::Refused("not a loop device".to_owned()))?;
        self.change(device, |os, _| match os.loops.get(&minor) {
            Some(device) if device.opened > 0 => Err(HostError::Busy),
            _ => {
                os.loops.remove(&minor);
                Ok(())
            }
        })
    }

    fn tagged_loops(&mut self, prefix: &str) -> Result<Vec<TaggedLoop>, HostError> {
        self.with_state("/dev", |os, _| {
            let tagged = os.loop_uses().into_iter().filter(|it| it.tag.starts_with(prefix));
            let tagged = tagged.map(|LoopUse { device, behind, access, tag }| TaggedLoop {
                device,
                tag,
                behind,
                access,
            });
            Ok(tagged.collect())
        })
    }
}

impl Host for SimOs {
    fn system(&mut self) -> &mut dyn System {
        self
    }

    fn pci(&mut self) -> &mut dyn PciBus {
        self
    }

    fn local_offset_seconds(&mut self) -> i32 {
        3600
    }

    fn kernel(&mut self, path: &str) -> Result<Arc<KernelImage>, KernelError> {
        if let Some(kernel) = self.get().kernels.get(path) {
            return Ok(Arc::clone(kernel));
        }
        let bytes = self.ramdisk(path)?;
        let kernel = Arc::new(KernelImage::parse(&bytes)?);
        self.get_mut().kernels.insert(path.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }

    fn loader(&mut self, path: &str) -> Result<Arc<HvmLoader>, HostError> {
        if let Some(loader) = self.get().loaders.get(path) {
            return Ok(Arc::clone(loader));
        }
        let bytes = self.ramdisk(path)?;
        let parsed = HvmLoader::parse(&bytes);
        let loader = Arc::new(parsed.map_err(|error| HostError::Refused(error.to_string()))?);
        self.get_mut().loaders.insert(path.to_owned(), Arc::clone(&loader));
        Ok(loader)
    }

    fn ramdisk(&mut self, path: &str) -> Result<Arc<[u8]>, HostError> {
        match self.get().files.get(path) {
            None => Err(HostError::Missing),
            Some(File::Bytes(bytes)) => Ok(Arc::clone(bytes)),
            Some(_) => Err(HostError::Refused("not a regular file with contents".to_owned())),
        }
    }

    fn check_bridge(&mut self, bridge: &str) -> Result<(), HostError> {
        let os = self.get();
        match (os.bridges.contains_key(bridge), os.links.contains(bridge)) {
            (true, _) => Ok(()),
            (false, true) => Err(HostError::Refused("not a bridge".to_owned())),
            (false, false) => Err(HostError::Missing),
        }
    }

    fn check_script(&mut self, path: &str) -> Result<(), HostError> {
        self.find_script(path)
    }

    fn run_script(&mut self, run: &ScriptRun) -> Result<ScriptEnd, HostError> {
        self.script(run)
    }

    fn dom0_policy(&mut self) -> Dom0Policy {
        let none = Dom0Policy { autoballoon: Autoballoon::Off, least_kib: 0, available_kib: None };
        self.get().dom0.map_or(none, |dom0| dom0.policy)
    }

    fn take_turn(&mut self) -> Option<Box<dyn Turn>> {
        // Works do not overlap here.
        struct Alone;
        impl Turn for Alone {}
        Some(Box::new(Alone))
    }

    fn random(&mut self) -> Result<[u8; 16], HostError> {
        // Other ones each time.
        let mut os = self.get_mut();
        os.random_drawn += 1;
        let mut state = os.random_drawn;
        let halves = [split_mix(&mut state), split_mix(&mut state)].map(u64::to_le_bytes);
        Ok(halves.concat().try_into().expect("two halves"))
    }

    fn unix_ms(&mut self) -> u64 {
        self.get().unix_ms.unwrap_or(UNIX_MS)
    }

    fn booted_unix_ms(&mut self) -> u64 {
        let now = self.unix_ms();
        *self.get_mut().booted_unix_ms.get_or_insert(now)
    }

    fn has_link(&mut self, name: &str) -> Result<bool, HostError> {
        let os = self.get();
        Ok(os.links.contains(name) || os.bridges.contains_key(name))
    }

    fn channel(&mut self, id: ChannelId) -> Result<Box<dyn Channel>, HostError> {
        Ok(Box::new(self.open_channel(id)?))
    }

    fn lanes_usual(&mut self) -> u8 {
        1
    }

    fn open_lane(&mut self, _: &Reach, call: &LaneCall) -> Result<Box<dyn LaneOut>, HostError> {
        let exchange = &mut self.get_mut().exchange;
        Ok(Box::new(exchange.as_mut().ok_or(HostError::Missing)?.open_lane(call)?))
    }

    fn expect_lanes(&mut self, _: ChannelId, _: Uuid, _: [u8; 16]) -> u8 {
        LANES_MAX - 1
    }

    fn take_lane(&mut self, transfer: Uuid, number: u8) -> Result<Box<dyn LaneIn>, HostError> {
        let exchange = &mut self.get_mut().exchange;
        let lane = exchange.as_mut().ok_or(HostError::Missing)?.take_lane(transfer, number)?;
        Ok(Box::new(lane))
    }

    fn forget_lanes(&mut self, _: Uuid) {}

    fn connect(&mut self, peer: &Reach) -> Result<Box<dyn Channel>, HostError> {
        Ok(Box::new(self.connect_to(peer)?))
    }

    fn write_transfer(&mut self, name: &str, text: &str) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().transfers.insert(name.to_owned(), text.to_owned());
        // The caller may be killed before it knows.
        self.act()
    }

    fn remove_transfer(&mut self, name: &str) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().transfers.remove(name);
        self.act()
    }

    fn write_definition(&mut self, name: &str, text: &str) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().definitions.insert(name.to_owned(), text.to_owned());
        Ok(())
    }

    fn remove_definition(&mut self, name: &str) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().definitions.remove(name);
        Ok(())
    }

    fn write_userdata(&mut self, domid: DomId, uuid: Uuid, json: &str) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().userdata.insert((domid, uuid), json.to_owned());
        Ok(())
    }

    fn userdata(&mut self) -> Result<Vec<(DomId, Uuid)>, HostError> {
        Ok(self.get().userdata.keys().copied().collect())
    }

    fn remove_userdata(&mut self, domid: DomId, uuid: Uuid) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().userdata.remove(&(domid, uuid));
        Ok(())
    }

    fn finish_boot(&mut self) -> Result<(), HostError> {
        self.act()?;
        self.get_mut().booted = true;
        Ok(())
    }

    fn networks(&mut self) -> &mut dyn Networks {
        self
    }

    fn join_bridge(
        &mut self,
        bridge: &str,
        link: &Link,
        mtu: Option<u32>,
    ) -> Result<u32, HostError> {
        let name = self.named(link)?;
        let mut os = self.get_mut();
        os.bridges.get_mut(bridge).ok_or(HostError::Missing)?.insert(name);
        Ok(mtu.unwrap_or(networks::MTU))
    }

    fn run_bootloader(&mut self, run: &BootloaderRun) -> Result<Box<dyn BootFolder>, HostError> {
        self.boot(run)
    }

    fn start_model(&mut self, program: &str, launch: &Launch) -> Result<Process, HostError> {
        self.change(program, |os, program| match os.files.contains_key(program) {
            true => models::start(os, launch),
            false => Err(HostError::Missing),
        })
    }

    fn end_model(&mut self, process: Process) -> Result<(), HostError> {
        self.change("/proc", |os, _| {
            models::end(os, process, "was ended by signal 9");
            Ok(())
        })
    }

    fn model_socket(
        &mut self,
        _: DomId,
        process: Process,
        _: u64,
    ) -> Result<Box<dyn ModelSocket>, HostError> {
        self.act()?;
        if self.get_mut().models.living(process).is_none() {
            return Err(HostError::Refused("has ended".to_owned()));
        }
        let machine = self.get().machine.clone().expect("the host runs");
        Ok(Box::new(SimMonitor::new(self.clone(), machine, process)))
    }

    fn remove_model_socket(&mut self, _: DomId) -> Result<(), HostError> {
        self.act()
    }

    fn models(&mut self) -> Result<Vec<OwnModel>, HostError> {
        Ok(self.get().models())
    }

    fn create_image(&mut self, path: &str) -> Result<Box<dyn ImageSink>, HostError> {
        self.begin_image(path)
    }

    fn open_image(&mut self, path: &str) -> Result<Box<dyn ImageSource>, HostError> {
        self.source(path)
    }

    fn remove_unfinished_image(&mut self, path: &str) -> Result<(), HostError> {
        self.remove_unfinished(path)
    }
}
