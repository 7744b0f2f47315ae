//! The host: kernels, storage, bridges.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use storage::{HostError, System};
use storage_host::LinuxSystem;
use toolstack::balloon::{Autoballoon, Dom0Policy};
use toolstack::bootloader::BootloaderRun;
use toolstack::channel::{Channel, ChannelId};
use toolstack::device_model::{Launch, OwnModel, Process};
use toolstack::host::{BootFolder, Host, ImageSink, ImageSource, KernelError, Link, Turn};
use toolstack::hotplug::{ScriptEnd, ScriptRun};
use toolstack::lanes::{LaneCall, LaneIn, LaneOut};
use toolstack::moves::Reach;
use toolstack::network::Networks;
use toolstack::pci::PciBus;
use toolstack::qmp::ModelSocket;
use xen::{DomId, Uuid};
use xen_build::{HvmLoader, KernelImage};

use crate::channels::Channels;
use crate::definitions::Definitions;
use crate::images::Images;
use crate::networks::LinuxNetworks;
use crate::pci::SysPci;
use crate::xlconf::XlConf;
use crate::{bootloaders, models, monitor, saved, scripts, userdata};

/// Connections of a move to a peer: one for each CPU that packs, and a few do for any link.
const LANES_USUAL_MAX: usize = 4;

/// The message of a file error.
pub(crate) fn refusal(error: &io::Error) -> HostError {
    match error.kind() {
        io::ErrorKind::NotFound => HostError::Missing,
        _ => HostError::Refused(error.to_string()),
    }
}

/// Nobody waits for libxl's files of our domains, so a failure is only told.
fn about_userdata(domid: DomId, done: &str, error: &io::Error) -> HostError {
    let refusal = refusal(error);
    if refusal != HostError::Missing {
        crate::log(format_args!(
            "{}: what xl needs to change domain {domid} was not {done}: {refusal}",
            userdata::FOLDER
        ));
    }
    refusal
}

/// The message of a kernel error.
pub(crate) fn refused(error: &xen_linux::HostError) -> HostError {
    match error.errno() {
        xen::Errno::ENOENT | xen::Errno::ENODEV => HostError::Missing,
        xen::Errno::EBUSY => HostError::Busy,
        _ => HostError::Refused(error.to_string()),
    }
}

/// This machine, for one thread.
#[derive(Debug)]
pub(crate) struct LinuxHost {
    images: Images,
    system: LinuxSystem,
    networks: LinuxNetworks,
    definitions: Definitions,
    channels: Channels,
    /// Files of moves.
    transfers: Definitions,
    dom0: Dom0,
    pci: SysPci,
}

/// What domain 0 may give of its memory to VMs.
#[derive(Clone, Debug)]
pub(crate) struct Dom0 {
    pub(crate) xl_conf: Arc<XlConf>,
    pub(crate) least_kib: u64,
}

/// Held by the performer that takes memory.
static TURN: Mutex<()> = Mutex::new(());

struct Held(#[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'static, ()>);

impl Turn for Held {}

/// What the kernel could use without swapping: `MemAvailable` of `proc_meminfo(5)`.
fn available_kib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

impl LinuxHost {
    pub(crate) fn open(
        images: Images,
        system: LinuxSystem,
        [definitions, transfers]: [Definitions; 2],
        channels: Channels,
        dom0: Dom0,
    ) -> Result<Self, xen_linux::HostError> {
        let networks = LinuxNetworks::open()?;
        let pci = SysPci::default();
        Ok(Self { images, system, networks, definitions, channels, transfers, dom0, pci })
    }
}

impl Host for LinuxHost {
    fn system(&mut self) -> &mut dyn System {
        &mut self.system
    }

    fn pci(&mut self) -> &mut dyn PciBus {
        &mut self.pci
    }

    fn booted_unix_ms(&mut self) -> u64 {
        // Domain 0 boots with the host.
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("btime "));
        line.and_then(|it| it.trim().parse::<u64>().ok()).map_or(0, |seconds| seconds * 1000)
    }

    fn local_offset_seconds(&mut self) -> i32 {
        xen_linux::local_offset_seconds()
    }

    fn kernel(&mut self, path: &str) -> Result<Arc<KernelImage>, KernelError> {
        Ok(self.images.kernel(path)?)
    }

    fn loader(&mut self, path: &str) -> Result<Arc<HvmLoader>, HostError> {
        self.images.loader(path)
    }

    fn ramdisk(&mut self, path: &str) -> Result<Arc<[u8]>, HostError> {
        self.images.ramdisk(path)
    }

    fn networks(&mut self) -> &mut dyn Networks {
        &mut self.networks
    }

    fn check_bridge(&mut self, bridge: &str) -> Result<(), HostError> {
        self.networks.links.bridge(bridge).map(drop).map_err(|error| refused(&error))
    }

    fn check_script(&mut self, path: &str) -> Result<(), HostError> {
        scripts::check(path)
    }

    fn run_script(&mut self, run: &ScriptRun) -> Result<ScriptEnd, HostError> {
        scripts::run(run)
    }

    fn dom0_policy(&mut self) -> Dom0Policy {
        // While the file cannot be read no VM is created by a client; others start as xl's own default has it.
        let autoballoon =
            self.dom0.xl_conf.defaults().map_or_else(|_| Autoballoon::Auto, |it| it.autoballoon);
        Dom0Policy { autoballoon, least_kib: self.dom0.least_kib, available_kib: available_kib() }
    }

    fn take_turn(&mut self) -> Option<Box<dyn Turn>> {
        let guard = match TURN.try_lock() {
            Ok(guard) => guard,
            // Nothing is behind it.
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Box::new(Held(guard)))
    }

    fn random(&mut self) -> Result<[u8; 16], HostError> {
        crate::daemon::random().map_err(|error| HostError::Refused(format!("{error:#}")))
    }

    fn unix_ms(&mut self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn has_link(&mut self, name: &str) -> Result<bool, HostError> {
        self.networks.links.find(name).map(|link| link.is_some()).map_err(|error| refused(&error))
    }

    fn channel(&mut self, id: ChannelId) -> Result<Box<dyn Channel>, HostError> {
        self.channels.get(id).ok_or(HostError::Missing)
    }

    fn lanes_usual(&mut self) -> u8 {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        u8::try_from(processors.min(LANES_USUAL_MAX)).expect("a few")
    }

    fn open_lane(&mut self, peer: &Reach, call: &LaneCall) -> Result<Box<dyn LaneOut>, HostError> {
        self.channels.open_lane(peer, call)
    }

    fn expect_lanes(&mut self, channel: ChannelId, transfer: Uuid, token: [u8; 16]) -> u8 {
        self.channels.expect_lanes(channel, transfer, token)
    }

    fn take_lane(&mut self, transfer: Uuid, number: u8) -> Result<Box<dyn LaneIn>, HostError> {
        self.channels.take_lane(transfer, number)
    }

    fn forget_lanes(&mut self, transfer: Uuid) {
        self.channels.directory().forget_lanes(transfer);
    }

    fn connect(&mut self, peer: &Reach) -> Result<Box<dyn Channel>, HostError> {
        self.channels.connect(peer)
    }

    fn write_transfer(&mut self, name: &str, text: &str) -> Result<(), HostError> {
        self.transfers.write(name, text).map_err(|error| HostError::Refused(error.to_string()))
    }

    fn remove_transfer(&mut self, name: &str) -> Result<(), HostError> {
        self.transfers.remove(name).map_err(|error| HostError::Refused(error.to_string()))
    }

    fn write_definition(&mut self, name: &str, text: &str) -> Result<(), HostError> {
        let told = |error: std::io::Error| HostError::Refused(error.to_string());
        self.definitions.write(name, text).map_err(told)
    }

    fn remove_definition(&mut self, name: &str) -> Result<(), HostError> {
        let told = |error: std::io::Error| HostError::Refused(error.to_string());
        self.definitions.remove(name).map_err(told)
    }

    fn write_userdata(&mut self, domid: DomId, uuid: Uuid, json: &str) -> Result<(), HostError> {
        let written = userdata::write(Path::new(userdata::FOLDER), domid, uuid, json);
        written.map_err(|error| about_userdata(domid, "written", &error))
    }

    fn userdata(&mut self) -> Result<Vec<(DomId, Uuid)>, HostError> {
        userdata::all(Path::new(userdata::FOLDER)).map_err(|error| refusal(&error))
    }

    fn remove_userdata(&mut self, domid: DomId, uuid: Uuid) -> Result<(), HostError> {
        let removed = userdata::remove(Path::new(userdata::FOLDER), domid, uuid);
        removed.map_err(|error| about_userdata(domid, "removed", &error))
    }

    fn finish_boot(&mut self) -> Result<(), HostError> {
        self.definitions.finish_boot().map_err(|error| HostError::Refused(error.to_string()))
    }

    fn join_bridge(
        &mut self,
        bridge: &str,
        link: &Link,
        mtu: Option<u32>,
    ) -> Result<u32, HostError> {
        let told = |error: xen_linux::HostError| HostError::Refused(error.to_string());
        let name = link.rename.as_ref().unwrap_or(&link.name);
        self.networks.name_link(link)?;
        let links = &mut self.networks.links;
        let of_bridge = links.add_port(bridge, name).map_err(told)?;
        if let Some(bytes) = mtu {
            links.set_mtu(name, bytes).map_err(told)?;
        }
        Ok(mtu.unwrap_or(of_bridge))
    }

    fn run_bootloader(&mut self, run: &BootloaderRun) -> Result<Box<dyn BootFolder>, HostError> {
        bootloaders::run(run, &self.images, self.system.jail())
    }

    fn start_model(&mut self, program: &str, launch: &Launch) -> Result<Process, HostError> {
        models::start(program, launch, self.system.jail())
    }

    fn end_model(&mut self, process: Process) -> Result<(), HostError> {
        models::end(process)
    }

    fn model_socket(
        &mut self,
        domid: DomId,
        process: Process,
        timeout_ns: u64,
    ) -> Result<Box<dyn ModelSocket>, HostError> {
        monitor::connect(domid, process, Duration::from_nanos(timeout_ns))
    }

    fn remove_model_socket(&mut self, domid: DomId) -> Result<(), HostError> {
        monitor::remove(domid)
    }

    fn models(&mut self) -> Result<Vec<OwnModel>, HostError> {
        models::all()
    }

    fn create_image(&mut self, path: &str) -> Result<Box<dyn ImageSink>, HostError> {
        saved::create(path)
    }

    fn open_image(&mut self, path: &str) -> Result<Box<dyn ImageSource>, HostError> {
        saved::open(path)
    }

    fn remove_unfinished_image(&mut self, path: &str) -> Result<(), HostError> {
        saved::remove_unfinished(path)
    }
}
