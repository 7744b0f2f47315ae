//! Kills of the daemon at every single action of an operation.
//!
//! The process is killed during an operation, another takes its place, and the VM must be either as
//! configured, with every device connected, or gone without a trace.

use storage::DeviceNumber;
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{Start, Unplug};
use toolstack::{Device, Reply, ReplyWhen, Request, ShutdownRequest, xlcfg};
use xen::Uuid;

use sim::Daemon;
use sim::ScriptFate;
use sim::Snapshot;
use sim::Time;
use sim::add_hvm_files;
use sim::kernel_image;
use sim::{HostConfig, SimHost};

/// The operation during which the daemon is killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interrupted {
    Start,
    Destroy,
    /// The guest shuts down on request.
    Shutdown,
    Reboot,
    PlugDisk,
    PlugVif,
    UnplugDisk,
    UnplugVif,
    TakeDisk,
    TakeVif,
    /// The same with a device model.
    StartHvm,
    DestroyHvm,
    RebootHvm,
    /// The same with interfaces that hotplug scripts connect.
    StartScript,
    RebootScript,
    PlugScript,
    UnplugScript,
    /// A disk.
    PlugDiskScript,
}

impl Interrupted {
    pub const ALL: [Self; 18] = [
        Self::Start,
        Self::Destroy,
        Self::Shutdown,
        Self::Reboot,
        Self::PlugDisk,
        Self::PlugVif,
        Self::UnplugDisk,
        Self::UnplugVif,
        Self::TakeDisk,
        Self::TakeVif,
        Self::StartHvm,
        Self::DestroyHvm,
        Self::RebootHvm,
        Self::StartScript,
        Self::RebootScript,
        Self::PlugScript,
        Self::UnplugScript,
        Self::PlugDiskScript,
    ];

    /// The VM of the operation.
    fn vm(self) -> &'static str {
        match self {
            Self::StartHvm | Self::DestroyHvm | Self::RebootHvm => HVM,
            Self::StartScript | Self::RebootScript => SCRIPTED_HVM,
            Self::PlugScript | Self::UnplugScript | Self::PlugDiskScript => SCRIPTED,
            _ => VM,
        }
    }

    fn is_start(self) -> bool {
        matches!(self, Self::Start | Self::StartHvm | Self::StartScript)
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Destroy => "destroy",
            Self::Shutdown => "shutdown",
            Self::Reboot => "reboot",
            Self::PlugDisk => "plug of a disk",
            Self::PlugVif => "plug of a vif",
            Self::UnplugDisk => "unplug of a disk",
            Self::UnplugVif => "unplug of a vif",
            Self::TakeDisk => "forced unplug of a disk",
            Self::TakeVif => "forced unplug of a vif",
            Self::StartHvm => "start of an HVM domain",
            Self::DestroyHvm => "destroy of an HVM domain",
            Self::RebootHvm => "reboot of an HVM domain",
            Self::StartScript => "start with scripts",
            Self::RebootScript => "reboot with scripts",
            Self::PlugScript => "plug with a script",
            Self::UnplugScript => "unplug with a script",
            Self::PlugDiskScript => "plug of a disk with a script",
        }
    }
}

/// Results of the kills during one operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcomes {
    pub kills: u64,
    /// Kills after which the VM ran as configured.
    pub running: u64,
    /// Kills after which it was gone.
    pub gone: u64,
}

const PATIENCE_NS: u64 = 600_000_000_000;
const VM: &str = "name = 'vm'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n\
                  extra = 'sim.kind=linux'\ndisk = ['/a.raw,raw,xvda,w']\nvif = ['bridge=xenbr0']\n";

const HVM: &str = "name = 'vm'\ntype = 'hvm'\nmemory = 24\n\
                   disk = ['/a.raw,raw,hda,w']\nvif = ['bridge=xenbr0,type=vif']\n";

/// An emulated card has two interfaces.
const SCRIPTED_HVM: &str = "name = 'vm'\ntype = 'hvm'\nmemory = 24\n\
                            disk = ['vdev=hda,script=wire,target=/dev/wired']\nvif = ['script=wire']\n";

const SCRIPTED: &str = "name = 'vm'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n\
                        extra = 'sim.kind=linux'\ndisk = ['/a.raw,raw,xvda,w']\nvif = ['script=wire']\n";

const SCRIPT: &str = "/etc/xen/scripts/wire";

struct Run {
    what: Interrupted,
    host: SimHost,
    daemon: Daemon,
    before: Snapshot,
}

impl Run {
    fn start(what: Interrupted, seed: u64) -> Result<Self, String> {
        let host = SimHost::boot(HostConfig { seed, ..HostConfig::default() });
        host.os().add_file("/kernel", kernel_image());
        add_hvm_files(host.os(), "sim.kind=linux");
        host.os().add_bridge("xenbr0");
        host.os().add_script(SCRIPT, ScriptFate::Works);
        host.os().add_block_device("/dev/wired", DeviceNumber { major: 253, minor: 1 });
        host.os().add_disk("/a.raw", 1 << 20);
        host.os().add_disk("/b.raw", 1 << 20);
        let before = host.snapshot().map_err(|error| error.to_string())?;
        let daemon = Daemon::start(&host).map_err(|error| error.to_string())?;
        let mut run = Self { what, host, daemon, before };
        run.settle()?;
        Ok(run)
    }

    fn until(&self) -> Time {
        self.host.now().after(PATIENCE_NS)
    }

    fn settle(&mut self) -> Result<(), String> {
        let until = self.until();
        match self.daemon.run_until_quiet(until) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the host does not come to rest".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn ask(&mut self, request: Request) -> Result<Reply, String> {
        let client = self.daemon.request(request).map_err(|error| error.to_string())?;
        let until = self.until();
        let reply = self.daemon.wait(client, until).map_err(|error| error.to_string())?;
        reply.ok_or_else(|| "no answer in time".to_owned())
    }

    /// Kills the daemon at its `k`-th action from now on, and starts another. Returns whether there
    /// was such an action.
    fn kill_at(&mut self, k: u64, request: Request) -> Result<bool, String> {
        self.host.machine().get_mut().faults_mut().kill_toolstack(k);
        let until = self.until();
        let mut error = self.daemon.request(request).err();
        let is_dead = |run: &Self| run.host.machine().get().faults().is_toolstack_dead();
        while error.is_none() && !is_dead(self) {
            match self.daemon.step(until) {
                Ok(true) => {}
                Ok(false) => break,
                Err(it) => error = Some(it),
            }
        }
        let killed = is_dead(self);
        if let (false, Some(error)) = (killed, error) {
            return Err(format!("the daemon lost its store: {error}"));
        }
        self.host.machine().get_mut().faults_mut().revive_toolstack();
        self.daemon = Daemon::start(&self.host).map_err(|error| error.to_string())?;
        self.settle()?;
        Ok(killed)
    }

    /// Whether the VM runs; an error if it does not match its configuration.
    fn runs_as_described(&mut self) -> Result<bool, String> {
        let Reply::Domains(rows) = self.ask(Request::List)? else {
            return Err("no list".to_owned());
        };
        let Some(row) = rows.rows.iter().find(|row| row.name.as_deref() == Some("vm")) else {
            return Ok(false);
        };
        let config = row.config.clone().ok_or("the VM is not ours any more")?;
        if row.info.flags.paused() || row.info.flags.shutdown().is_some() {
            return Err(format!("the VM does not run: {:?}", row.info.flags));
        }
        let target = "vm".to_owned();
        let Reply::Devices { domid, devices } = self.ask(Request::Devices { target })? else {
            return Err("no devices".to_owned());
        };
        for reading in &devices {
            if reading.state != 4 {
                return Err(format!("{} is in state {}", reading.device, reading.state));
            }
        }
        let snapshot = self.host.snapshot().map_err(|error| error.to_string())?;
        let wanted = config.disks.len() + config.vifs.len();
        let files = config.disks.iter().filter(|disk| disk.is_attached_first()).count();
        if snapshot.backends != wanted || snapshot.loops.len() != files {
            let (backends, loops) = (snapshot.backends, snapshot.loops.len());
            return Err(format!("{wanted} devices, {backends} backends, {loops} loop devices"));
        }
        if snapshot.models.len() != usize::from(config.has_model()) {
            return Err(format!("{} device models", snapshot.models.len()));
        }
        for disk in config.disks.iter().filter(|disk| disk.script.is_some()) {
            let object = format!("{SCRIPT} backend/vbd/{domid}/{}", disk.vdev.number);
            if !snapshot.scripts.contains(&object) {
                return Err(format!("{object} is not connected"));
            }
        }
        for vif in &config.vifs {
            let link = format!("vif{domid}.{}", vif.devid);
            if vif.script.is_some() {
                let is_connected =
                    |link: &str| snapshot.scripts.contains(&format!("{SCRIPT} {link}"));
                let has_tap = vif.model.is_some();
                if !is_connected(&link) || has_tap != is_connected(&format!("{link}-emu")) {
                    return Err(format!("{link} is connected so: {:?}", snapshot.scripts));
                }
                continue;
            }
            if !snapshot.bridges["xenbr0"].contains(&link) {
                return Err(format!("{link} is not on its bridge"));
            }
        }
        Ok(true)
    }

    /// Destroys the VM, if it exists, and checks what is left.
    fn finish(&mut self, runs: bool) -> Result<(), String> {
        if runs {
            let gone = self.ask(Request::Destroy { target: "vm".to_owned() })?;
            if !matches!(gone, Reply::Gone { .. }) {
                return Err(format!("not destroyed: {gone:?}"));
            }
        }
        self.settle()?;
        // Empty directories left by a killed daemon are removed with the next VM.
        self.ask(create(self.what))?;
        self.ask(Request::Destroy { target: "vm".to_owned() })?;
        self.settle()?;
        let now = self.host.snapshot().map_err(|error| error.to_string())?;
        let left = now.differences(&self.before);
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join("; "))) }
    }
}

fn create(what: Interrupted) -> Request {
    let source = xlcfg::Source { file: "kills.cfg", text: what.vm(), overrides: &[] };
    let config = Box::new(xlcfg::parse(source).expect("a configuration of our own"));
    Request::Create { config, fresh_uuid: Uuid([7; 16]), start: Start::Running }
}

fn disk() -> Device {
    Device::Disk(xlcfg::parse_disk("/b.raw,raw,xvdb,w").expect("a disk of our own"))
}

fn scripted(kind: DeviceKind) -> Device {
    match kind {
        DeviceKind::Vif => {
            Device::Vif(xlcfg::parse_vif("script=wire", 1).expect("a vif of our own"))
        }
        _ => {
            let disk = xlcfg::parse_disk("vdev=xvdb,script=wire,target=/dev/wired");
            Device::Disk(disk.expect("a disk of our own"))
        }
    }
}

fn vif() -> Device {
    Device::Vif(xlcfg::parse_vif("bridge=xenbr0", 1).expect("a vif of our own"))
}

/// The request that is interrupted.
fn request(what: Interrupted) -> Request {
    let target = || "vm".to_owned();
    let asked = |how| {
        let reply = ReplyWhen::Gone;
        Request::Shutdown { target: target(), how, reply }
    };
    let plug = |device: Device| Request::Plug { target: target(), device: Box::new(device) };
    let unplug = |kind, devid, how| {
        let device = DeviceRef { kind, devid };
        Request::Unplug { target: target(), device, how }
    };
    match what {
        Interrupted::Start | Interrupted::StartHvm | Interrupted::StartScript => create(what),
        Interrupted::Destroy | Interrupted::DestroyHvm => Request::Destroy { target: target() },
        Interrupted::Shutdown => asked(ShutdownRequest::Poweroff),
        Interrupted::Reboot | Interrupted::RebootHvm | Interrupted::RebootScript => {
            asked(ShutdownRequest::Reboot)
        }
        Interrupted::PlugDisk => plug(disk()),
        Interrupted::PlugVif => plug(vif()),
        Interrupted::PlugScript => plug(scripted(DeviceKind::Vif)),
        Interrupted::PlugDiskScript => plug(scripted(DeviceKind::Vbd)),
        Interrupted::UnplugDisk => unplug(DeviceKind::Vbd, 51712, Unplug::Clean),
        Interrupted::UnplugVif | Interrupted::UnplugScript => {
            unplug(DeviceKind::Vif, 0, Unplug::Clean)
        }
        Interrupted::TakeDisk => unplug(DeviceKind::Vbd, 51712, Unplug::Forced),
        Interrupted::TakeVif => unplug(DeviceKind::Vif, 0, Unplug::Forced),
    }
}

/// Kills the daemon at each action of an operation, on a new host each time.
///
/// # Errors
/// The first kill after which the VM was neither as configured nor gone, or something was left.
pub fn run(what: Interrupted, seed: u64) -> Result<Outcomes, String> {
    let mut outcomes = Outcomes::default();
    for k in 1.. {
        let trouble = |why: String| format!("{}, killed at action {k}: {why}", what.as_str());
        let mut run = Run::start(what, seed)?;
        if !what.is_start() {
            match run.ask(create(what))? {
                Reply::Created(_) => run.settle()?,
                other => return Err(format!("not created: {other:?}")),
            }
        }
        let killed = run.kill_at(k, request(what)).map_err(trouble)?;
        let runs = run.runs_as_described().map_err(trouble)?;
        run.finish(runs).map_err(trouble)?;
        if !killed {
            break;
        }
        outcomes.kills += 1;
        if runs {
            outcomes.running += 1;
        } else {
            outcomes.gone += 1;
        }
    }
    Ok(outcomes)
}
