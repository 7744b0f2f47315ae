//! Device models: processes that report readiness in the store, or not, and may exit.
//!
//! QEMU's emulation is not simulated, but QEMU keeps its disks open, outlives the daemon and its
//! domain, and must be ready before the guest runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use storage::{DeviceNumber, HostError};
use toolstack::device_model::{Launch, OwnModel, Process, parse_command_line, state_node};
use xen::{DomId, Uuid};
use xenstore::client::{Client, ClientError, Nodes as _};

use crate::machine::{Dying, Machine};
use crate::monitor::MonitorFate;
use crate::os::{OsState, SimOs};
use crate::store::SocketTransport;

/// The driver of its CPUs.
const CPU: &str = "qemu32-i386-cpu";
/// How often one that expects a state looks for it.
const AWAITS_NS: u64 = 50_000_000;

/// Behaviour of device models started from now on. Times are nanoseconds since their start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModelFate {
    /// It is ready after this time.
    Ready(u64),
    /// It exits after this time instead.
    Fails(u64),
    /// It never reports readiness.
    Silent,
    /// It becomes ready, and is killed later.
    Dies { ready: u64, dies: u64 },
}

impl Default for ModelFate {
    fn default() -> Self {
        Self::Ready(300_000_000)
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Life {
    Starting,
    Ready,
    Ended(&'static str),
}

#[derive(Debug)]
pub(crate) struct Model {
    started: u64,
    uuid: Uuid,
    domid: DomId,
    fate: ModelFate,
    life: Life,
    /// Its open block devices, by the names of its drives.
    disks: BTreeMap<String, DeviceNumber>,
    /// The host's interfaces of its cards.
    cards: Vec<String>,
    /// Its serial ports that are pseudo-terminals.
    terminals: Vec<usize>,
    /// Its CD drives.
    drives: BTreeSet<String>,
    /// Devices of the host, and where on its bus they are.
    host_devices: BTreeMap<String, (u32, u32)>,
    pub(crate) is_stopped: bool,
    pub(crate) logs_writes: bool,
    /// It expects another one's state, which it has not got yet.
    is_incoming: bool,
    /// It has got it, and nobody has asked since: it is loaded when somebody asks again.
    is_loading: bool,
    /// It was ready before its time, since it was asked.
    is_early: bool,
    /// What an HVM domain's device model keeps: the VM, and how often it was moved into another process.
    lives: u32,
    /// CPUs that it has, of those that it could have.
    cpus: BTreeSet<u32>,
    cpus_max: u32,
    /// Its guest was woken so often.
    wakes: u32,
}

impl Model {
    /// What it says of itself.
    pub(crate) fn state(&self) -> Vec<u8> {
        format!("QEVM {} {}", self.uuid, self.lives).into_bytes()
    }

    /// All CPUs that it could have, as QEMU lists them: the last one first.
    pub(crate) fn cpu_list(&self) -> String {
        let cpu = |number| {
            let path = match self.cpus.contains(&number) {
                true => format!("\"qom-path\": \"/machine/unattached/device[{number}]\", "),
                false => String::new(),
            };
            let place = format!("\"core-id\": 0, \"thread-id\": 0, \"socket-id\": {number}");
            format!("{{\"props\": {{{place}}}, \"vcpus-count\": 1, {path}\"type\": \"{CPU}\"}}")
        };
        let all: Vec<String> = (0..self.cpus_max).rev().map(cpu).collect();
        all.join(", ")
    }

    /// As QEMU lists them, among its other character devices.
    pub(crate) fn terminals(&self) -> String {
        let one = |(label, path): (String, String)| {
            format!("{{\"label\": \"{label}\", \"filename\": \"{path}\", \"frontend-open\": true}}")
        };
        let port =
            |port: &usize| one((format!("serial{port}"), format!("pty:/dev/pts/{}", 10 + port)));
        let socket = one(("libxl-cmd".to_owned(), "unix:/run,server=on".to_owned()));
        let all: Vec<String> =
            self.terminals.iter().map(port).chain(std::iter::once(socket)).collect();
        all.join(", ")
    }

    /// As QEMU lists them, after those that it emulates.
    pub(crate) fn buses(&self) -> String {
        let one = |(name, (slot, function)): (&str, (u32, u32))| {
            format!(
                "{{\"bus\": 0, \"slot\": {slot}, \"function\": {function}, \"qdev_id\": \"{name}\"}}"
            )
        };
        let emulated = [("", (0, 0)), ("", (1, 1))].map(one);
        let of_host = self.host_devices.iter().map(|(name, place)| one((name, *place)));
        let all: Vec<String> = emulated.into_iter().chain(of_host).collect();
        format!("{{\"bus\": 0, \"devices\": [{}]}}", all.join(", "))
    }

    /// What it says when it has.
    pub(crate) fn wake(&mut self) -> &'static str {
        self.wakes += 1;
        "{\"return\": {}}"
    }

    /// Whether it takes the CPU of a command.
    pub(crate) fn add_cpu(&mut self, command: &str) -> bool {
        let number = command.split_once("\"socket-id\":").and_then(|(_, rest)| {
            let end = rest.find(|it: char| !it.is_ascii_digit())?;
            rest[..end].parse().ok().filter(|number| *number < self.cpus_max)
        });
        let is_cpu = command.contains(&format!("\"driver\":\"{CPU}\""));
        number.filter(|_| is_cpu).is_some_and(|number| self.cpus.insert(number))
    }

    /// As QEMU names it. Whoever asks again finds that it has loaded its state.
    pub(crate) fn status(&mut self) -> &'static str {
        if self.is_incoming || std::mem::take(&mut self.is_loading) {
            return "inmigrate";
        }
        if self.life == Life::Starting {
            (self.life, self.is_early) = (Life::Ready, true);
        }
        if self.is_stopped { "paused" } else { "running" }
    }

    /// Takes another one's state, if it is whole, the same VM's and expected.
    pub(crate) fn load(&mut self, state: &[u8]) -> bool {
        let text = String::from_utf8_lossy(state);
        let mut words = text.split(' ');
        let is_ours = words.next() == Some("QEVM") && words.next() == Some(&self.uuid.to_string());
        let lives = words.next().and_then(|word| word.parse::<u32>().ok());
        match lives.filter(|_| is_ours && self.is_incoming) {
            Some(lives) => {
                self.lives = lives + 1;
                self.is_incoming = false;
                self.is_loading = true;
                true
            }
            None => false,
        }
    }
}

/// All device models of the host, including exited ones.
#[derive(Debug, Default)]
pub(crate) struct ModelTable {
    all: BTreeMap<u32, Model>,
    fate: ModelFate,
    monitor: MonitorFate,
    /// Those not yet scheduled.
    new: VecDeque<u32>,
}

impl ModelTable {
    /// The host has lost power.
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.new.clear();
    }

    pub(crate) fn set_fate(&mut self, fate: ModelFate) {
        self.fate = fate;
    }

    pub(crate) fn set_monitor(&mut self, fate: MonitorFate) {
        self.monitor = fate;
    }

    /// The CPUs that a domain's guest has by its device model, and how often that was woken.
    pub(crate) fn guest_of(&self, domid: DomId) -> Option<(BTreeSet<u32>, u32)> {
        let model = self.alive().map(|(_, it)| it).find(|it| it.domid == domid)?;
        Some((model.cpus.clone(), model.wakes))
    }

    pub(crate) fn monitor(&self) -> MonitorFate {
        self.monitor
    }

    /// A process that has not ended.
    pub(crate) fn living(&mut self, process: Process) -> Option<&mut Model> {
        let model = self.all.get_mut(&process.pid)?;
        let lives = model.started == process.started && !matches!(model.life, Life::Ended(_));
        lives.then_some(model)
    }

    fn awaits(&self, process: Process) -> bool {
        self.all.get(&process.pid).is_some_and(|it| it.is_incoming)
    }

    /// How often a domain's device model was moved into another process.
    pub(crate) fn lives_of(&self, domid: DomId) -> Option<u32> {
        self.alive().find(|(_, it)| it.domid == domid).map(|(_, it)| it.lives)
    }

    /// Whether all device models that run serve their guests, and log no writes for nobody.
    pub(crate) fn are_at_rest(&self) -> bool {
        self.alive().all(|(_, it)| !it.is_stopped && !it.logs_writes && !it.is_incoming)
    }

    fn alive(&self) -> impl Iterator<Item = (&u32, &Model)> {
        self.all.iter().filter(|(_, model)| !matches!(model.life, Life::Ended(_)))
    }

    pub(crate) fn found(&self) -> Vec<OwnModel> {
        let found = |(pid, it): (&u32, &Model)| OwnModel {
            process: Process { pid: *pid, started: it.started },
            uuid: it.uuid,
            domid: it.domid,
        };
        self.alive().map(found).collect()
    }

    /// How a process has exited, if it has.
    pub(crate) fn ending(&self, process: Process) -> Option<&'static str> {
        match self.all.get(&process.pid) {
            Some(model) if model.started == process.started => match model.life {
                Life::Ended(how) => Some(how),
                _ => None,
            },
            _ => Some("has ended"),
        }
    }

    /// Whether it was ready before its time; said once.
    fn was_early(&mut self, process: Process) -> bool {
        self.living(process).is_some_and(|it| std::mem::take(&mut it.is_early))
    }

    /// Whether a domain's device model would answer the guest.
    pub(crate) fn serves(&self, domid: DomId) -> bool {
        self.all.values().any(|it| it.domid == domid && it.life == Life::Ready && !it.is_stopped)
    }
}

/// The interfaces that it makes.
fn cards(launch: &Launch) -> Vec<String> {
    let name = |word: &String| {
        let rest =
            word.strip_prefix("tap,")?.split(',').find_map(|it| it.strip_prefix("ifname="))?;
        Some(rest.to_owned())
    };
    launch.arguments.iter().filter_map(name).collect()
}

/// Names of drives, and the paths of their disks.
fn drives(launch: &Launch) -> impl Iterator<Item = (&str, &str)> {
    launch.arguments.iter().filter_map(|word| {
        let path = word.strip_prefix("file=")?.split(',').next()?;
        Some((word.split(",id=").nth(1)?.split(',').next()?, path))
    })
}

/// Puts a disk into a CD drive, or empties it. Says whether that can be.
pub(crate) fn change(
    os: &mut OsState,
    process: Process,
    drive: Option<&str>,
    path: Option<&str>,
) -> bool {
    let Some(model) = os.models.living(process) else { return false };
    let Some(drive) = drive.filter(|drive| model.drives.contains(*drive)) else { return false };
    match path {
        Some(_) if model.disks.contains_key(drive) => return false,
        Some(path) => {
            let Some(number) = os.device_at(path).filter(|number| os.open(*number)) else {
                return false;
            };
            if let Some(model) = os.models.living(process) {
                model.disks.insert(drive.to_owned(), number);
            }
        }
        None => {
            if let Some(number) = model.disks.remove(drive) {
                os.close(number);
            }
        }
    }
    true
}

fn terminals(launch: &Launch) -> Vec<usize> {
    let ports = launch.arguments.windows(2).filter(|pair| pair[0] == "-serial");
    ports.enumerate().filter(|(_, pair)| pair[1] == "pty").map(|(port, _)| port).collect()
}

fn cd_drives(launch: &Launch) -> BTreeSet<String> {
    let drives = launch.arguments.iter().filter_map(|it| it.strip_prefix("ide-cd,id="));
    drives.filter_map(|it| Some(it.split(',').next()?.to_owned())).collect()
}

/// At the place that they are given, otherwise at the next that is free.
fn host_devices(launch: &Launch) -> BTreeMap<String, (u32, u32)> {
    const FREE_FIRST: u32 = 4;
    let mut free = FREE_FIRST..;
    let mut devices = BTreeMap::new();
    for option in launch.arguments.iter().filter_map(|it| it.strip_prefix("xen-pci-passthrough,")) {
        let value =
            |key: &str| option.split(',').find_map(|it| it.strip_prefix(key)?.strip_prefix('='));
        let number = |text: &str| u32::from_str_radix(text, 16).expect("a number");
        let place = value("addr").and_then(|it| it.split_once('.'));
        let place = place.map(|(slot, function)| (number(slot), number(function)));
        let place = place.unwrap_or_else(|| (free.next().expect("many"), 0));
        devices.insert(value("id").expect("it has one").to_owned(), place);
    }
    devices
}

/// As in `-smp 1,maxcpus=2`.
fn cpus(launch: &Launch) -> Option<(u32, u32)> {
    let value = &launch.arguments.windows(2).find(|pair| pair[0] == "-smp")?[1];
    let (cpus, most) = value.split_once(",maxcpus=")?;
    Some((cpus.parse().ok()?, most.parse().ok()?))
}

pub(crate) fn start(os: &mut OsState, launch: &Launch) -> Result<Process, HostError> {
    let Some((uuid, domid)) = parse_command_line(&launch.arguments) else {
        return Err(HostError::Refused("a command line that nobody would find again".to_owned()));
    };
    let mut disks = BTreeMap::new();
    for (name, path) in drives(launch) {
        match os.device_at(path).filter(|number| os.open(*number)) {
            Some(number) => drop(disks.insert(name.to_owned(), number)),
            None => {
                disks.into_values().for_each(|number| os.close(number));
                return Err(HostError::Refused(format!("no disk {path}")));
            }
        }
    }
    let cards = cards(launch);
    os.links.extend(cards.iter().cloned());
    // Pids are reused, start times are not.
    let pid = (1000..).find(|pid| !os.models.alive().any(|(it, _)| it == pid)).expect("many");
    let started = os.models.all.values().map(|it| it.started).max().unwrap_or_default() + 1;
    let fate = os.models.fate;
    let is_incoming = launch.arguments.windows(2).any(|pair| pair == ["-incoming", "defer"]);
    let (cpus, cpus_max) = cpus(launch).unwrap_or((1, 1));
    let model = Model {
        started,
        uuid,
        domid,
        fate,
        life: Life::Starting,
        disks,
        cards,
        terminals: terminals(launch),
        drives: cd_drives(launch),
        host_devices: host_devices(launch),
        is_stopped: false,
        logs_writes: false,
        is_incoming,
        is_loading: false,
        is_early: false,
        lives: 0,
        cpus: (0..cpus).collect(),
        cpus_max,
        wakes: 0,
    };
    os.models.all.insert(pid, model);
    os.models.new.push_back(pid);
    Ok(Process { pid, started })
}

pub(crate) fn end(os: &mut OsState, process: Process, how: &'static str) {
    let model = os.models.all.get_mut(&process.pid).filter(|it| it.started == process.started);
    let Some(model) = model else { return };
    if matches!(model.life, Life::Ended(_)) {
        return;
    }
    model.life = Life::Ended(how);
    let cards = std::mem::take(&mut model.cards);
    for (_, number) in std::mem::take(&mut model.disks) {
        os.close(number);
    }
    for card in cards {
        os.remove_link(&card);
    }
}

/// The driver of device models.
#[derive(Debug)]
pub(crate) struct Models {
    store: Client<SocketTransport>,
    machine: Machine,
    os: SimOs,
}

impl Models {
    pub(crate) fn new(store: Client<SocketTransport>, machine: Machine, os: SimOs) -> Self {
        Self { store, machine, os }
    }

    pub(crate) fn os(&self) -> &SimOs {
        &self.os
    }

    /// Newly started ones, with the time of their next action.
    pub(crate) fn take_new(&mut self) -> Vec<(Process, u64)> {
        let mut os = self.os.get_mut();
        let new = std::mem::take(&mut os.models.new);
        let acts = new.into_iter().filter_map(|pid| {
            let model = &os.models.all[&pid];
            let after = match model.fate {
                ModelFate::Ready(ns) | ModelFate::Fails(ns) => ns,
                ModelFate::Dies { ready, .. } => ready,
                ModelFate::Silent => return None,
            };
            Some((Process { pid, started: model.started }, after))
        });
        acts.collect()
    }

    /// Runs a process's next action. Returns the delay of the following one.
    pub(crate) fn run(&mut self, process: Process) -> Result<Option<u64>, ClientError> {
        let (domid, fate, life) = {
            let os = self.os.get();
            match os.models.all.get(&process.pid) {
                Some(it) if it.started == process.started => (it.domid, it.fate, it.life),
                _ => return Ok(None),
            }
        };
        let lives = {
            let xen = self.machine.get();
            xen.domain(domid).is_some_and(|domain| domain.dying == Dying::Alive)
        };
        match (life, fate) {
            (Life::Ended(_), _) => Ok(None),
            (Life::Starting, ModelFate::Fails(_)) => {
                end(&mut self.os.get_mut(), process, "ended with status 1");
                Ok(None)
            }
            (Life::Starting, _) if !lives => {
                end(&mut self.os.get_mut(), process, "ended with status 1: no domain");
                Ok(None)
            }
            // Its guest's hardware is not there before its state is.
            (Life::Starting, _) if self.os.get().models.awaits(process) => Ok(Some(AWAITS_NS)),
            (Life::Starting, _) => {
                self.store.write(&state_node(domid), b"running")?;
                if let Some(model) = self.os.get_mut().models.all.get_mut(&process.pid) {
                    model.life = Life::Ready;
                }
                Ok(until_its_death(fate))
            }
            (Life::Ready, _) if self.os.get_mut().models.was_early(process) => {
                Ok(until_its_death(fate))
            }
            (Life::Ready, _) => {
                end(&mut self.os.get_mut(), process, "was ended by signal 11");
                Ok(None)
            }
        }
    }
}

/// From when it is ready.
fn until_its_death(fate: ModelFate) -> Option<u64> {
    match fate {
        ModelFate::Dies { ready, dies } => Some(dies.saturating_sub(ready)),
        ModelFate::Ready(_) | ModelFate::Fails(_) | ModelFate::Silent => None,
    }
}

/// Adds the files that an HVM domain needs: hvmloader, QEMU, and a BIOS with a guest of this
/// behaviour.
pub fn add_hvm_files(os: &SimOs, behaviour: &str) {
    os.add_file("/usr/lib/xen/boot/hvmloader", crate::guest::loader_image());
    os.add_file("/usr/libexec/xen-qemu-system-i386", b"\x7fELF".to_vec());
    let mut bios = behaviour.as_bytes().to_vec();
    bios.resize(4096, 0);
    os.add_file("/usr/share/seabios/bios-256k.bin", bios);
}
