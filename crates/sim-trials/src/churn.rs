//! Simulated days of a host: VMs are created and destroyed, reboot, get and lose devices, crash;
//! calls fail, storage hangs or fails, memory runs short, the daemon is killed. All in virtual time
//! and from one seed.
//!
//! Every virtual hour the faults end, and the host must become idle with each VM as configured;
//! every six hours everything is destroyed, and nothing may be left. Every request is answered
//! within a bound, and read-only ones at once.

use std::collections::{BTreeMap, BTreeSet};

use storage::{HostError, Kind, Repositories, VdiName};
use toolstack::layout::{self, DeviceKind, DeviceRef};
use toolstack::plan::{Start, Unplug};
use toolstack::scheduler::Limits;
use toolstack::{
    ClientId, Device, Reply, ReplyWhen, Request, ShutdownRequest, VmRow, VmState, xlcfg,
};
use xen::{DomId, Errno, ShutdownReason, Uuid};
use xenstore::client::ClientError;

use crate::swarm::Broken;
use sim::Prng;
use sim::Snapshot;
use sim::Time;
use sim::kernel_image;
use sim::{AttachTimes, Daemon};
use sim::{Calls, Faults, VirqFate};
use sim::{HostConfig, SimHost};
use sim::{MachineConfig, Release};

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3600 * SECOND_NS;
/// Names that VMs may have.
const NAMES: u64 = 24;
/// Disks that a VM may begin with.
const DISKS_MAX: u64 = 9;
/// Memory for VMs, in pages: mostly enough, and not for all names at once.
const MEMORY_PAGES: u64 = 448 << 8;
/// Longest pause between two operations; half of that on average.
const PAUSE_NS: u64 = 20 * SECOND_NS;
/// Every request is answered within this time, with any faults.
const ANSWER_NS: u64 = 600 * SECOND_NS;
/// A read-only request is answered within this time.
const READ_NS: u64 = SECOND_NS;
/// The host must become idle within this time.
const REST_NS: u64 = 900 * SECOND_NS;
/// Lines of the trace kept for the analysis of a failure.
const LINES: usize = 4000;

/// Storage with different faults: the first has none.
const FOLDERS: [&str; 3] = ["/good", "/far", "/odd"];

/// Behaviours of guests; mostly normal.
const BEHAVIOURS: [&str; 7] =
    ["deaf", "silent", "never-connects", "holds-devices", "floods", "toggles", "powers-off"];

/// Calls that may fail.
const FAILING: [&str; 13] = [
    "createdomain",
    "max_vcpus",
    "alloc_unbound",
    "claim_pages",
    "populate_physmap",
    "map_foreign",
    "map_resource",
    "setvcpucontext",
    "sethvmcontext",
    "set_memory_map",
    "destroydomain",
    "pausedomain",
    "unpausedomain",
];

/// Statistics of a run.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub hours: u64,
    /// Requests by kind.
    pub requests: BTreeMap<&'static str, u64>,
    pub answered: u64,
    /// Successful requests by kind.
    pub done: BTreeMap<&'static str, u64>,
    /// Refused requests by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Requests whose daemon was killed.
    pub orphaned: u64,
    pub kills: u64,
    /// Injected faults by kind.
    pub troubles: BTreeMap<&'static str, u64>,
    /// Checks of all VMs, and checks that nothing was left.
    pub rests: u64,
    pub ends: u64,
    pub vms_checked: u64,
    /// Nanoseconds that creates on storage in good health took, while nothing hung and while other storage did.
    pub calm_ns: Vec<u64>,
    pub beside_hang_ns: Vec<u64>,
    pub slowest_answer_ns: u64,
    pub digest: u64,
}

/// A pending request.
#[derive(Debug)]
struct Asked {
    at: Time,
    what: &'static str,
    only_reads: bool,
    /// Its disks are on storage without faults.
    is_on_good: bool,
}

struct Churn {
    prng: Prng,
    host: SimHost,
    daemon: Daemon,
    times: AttachTimes,
    before: Snapshot,
    asked: BTreeMap<ClientId, Asked>,
    /// Folders that hang or fail, and until when.
    sick: BTreeMap<&'static str, Time>,
    uuids: u64,
    /// Devices that each name was last asked to have.
    devices: BTreeMap<u64, BTreeSet<DeviceRef>>,
    tally: Tally,
}

/// The target of a request; sometimes any VM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Whom {
    Unknown,
    Running,
    Paused,
    /// Defined, and without a domain.
    Down,
    Defined,
}

impl Whom {
    fn is(self, row: Option<&VmRow>) -> bool {
        let Some(row) = row else { return self == Self::Unknown };
        match self {
            Self::Unknown => false,
            Self::Running => row.state == VmState::Running,
            Self::Paused => row.state == VmState::Paused,
            Self::Down => row.state == VmState::Down,
            Self::Defined => row.defined,
        }
    }
}

/// Runs `hours` of virtual time.
///
/// # Errors
/// [`Broken`] as soon as a rule is broken, with the end of the trace.
pub fn run(seed: u64, hours: u64) -> Result<Tally, Box<Broken>> {
    run_shortened(seed, hours, HOUR_NS)
}

/// As [`run`], with hours of so many nanoseconds.
///
/// # Errors
/// As for [`run`].
pub fn run_shortened(seed: u64, hours: u64, hour_ns: u64) -> Result<Tally, Box<Broken>> {
    let broken = |what: String, trace| Box::new(Broken { seed, what, trace });
    let mut churn = Churn::start(seed).map_err(|what| broken(what, Vec::new()))?;
    churn.go(hours, hour_ns).map_err(|what| broken(what, churn.host.trace()))?;
    churn.tally.digest = churn.host.digest();
    Ok(churn.tally)
}

fn vdi(name: u64) -> VdiName {
    VdiName::new("s", &format!("vm{name}")).expect("a name of our own")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The reason of a refusal.
fn why(message: &str) -> &'static str {
    const KINDS: [(&str, &str); 9] = [
        ("MiB are free", "no memory"),
        ("exists already", "there already"),
        ("is running", "there already"),
        ("is a defined VM", "there already"),
        ("has a ", "there already"),
        ("no such ", "not there"),
        ("is down", "not there"),
        ("not defined", "not there"),
        (": has no ", "not there"),
    ];
    let found = KINDS.into_iter().find(|(words, _)| message.contains(words));
    found.map_or("a fault, or somebody else was faster", |(_, kind)| kind)
}

impl Churn {
    fn start(seed: u64) -> Result<Self, String> {
        let mut prng = Prng::new(seed ^ 0xc4_0217);
        let number = prng.below(Release::ALL.len() as u64);
        let release = Release::ALL[usize::try_from(number).expect("a few")];
        let dom0_pages = MachineConfig::default().dom0_pages;
        let pages = dom0_pages + MEMORY_PAGES;
        let machine = MachineConfig { release, pages, ..MachineConfig::default() };
        let host = SimHost::boot(HostConfig { machine, seed, ..HostConfig::default() });
        host.keep_last(LINES);
        let os = host.os();
        os.add_file("/kernel", kernel_image());
        os.add_bridge("xenbr0");
        for (folder, name) in FOLDERS.iter().flat_map(|it| (0..NAMES).map(move |name| (it, name))) {
            for disk in 0..=DISKS_MAX {
                os.add_disk(&format!("{folder}/vm{name}-{disk}.raw"), 1 << 20);
            }
        }
        let mut system = os.clone();
        let mut srs = Repositories::new(&mut system);
        let path = BTreeMap::from([("path".to_owned(), "/srv/vdis".to_owned())]);
        srs.create("s", Kind::File, path).map_err(text)?;
        for name in 0..NAMES {
            srs.create_vdi(&vdi(name), 1 << 20).map_err(text)?;
        }
        let before = host.snapshot().map_err(text)?;
        let daemon = Daemon::start(&host).map_err(text)?;
        let times = AttachTimes {
            seed,
            usual_ns: SECOND_NS / 20,
            spread: 50,
            tail_ns: 5 * SECOND_NS,
            tail_per_mille: 10,
        };
        let mut churn = Self {
            prng,
            host,
            daemon,
            times,
            before,
            asked: BTreeMap::new(),
            sick: BTreeMap::new(),
            uuids: seed << 32,
            devices: BTreeMap::new(),
            tally: Tally::default(),
        };
        churn.daemon.set_attach_times(times);
        Ok(churn)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.prng.below(limit)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.prng.below(from.len() as u64);
        from[usize::try_from(index).expect("an index of a short list")]
    }

    fn go(&mut self, hours: u64, hour_ns: u64) -> Result<(), String> {
        for hour in 1..=hours {
            let end = self.host.now().after(hour_ns);
            while self.host.now() < end {
                let outcome = self.operate();
                self.survive(outcome)?;
                let pause = self.below(PAUSE_NS);
                self.pass(self.host.now().after(pause))?;
                self.host.check_store()?;
            }
            self.tally.hours = hour;
            self.rest().map_err(|what| format!("hour {hour}: {what}"))?;
            if hour % 6 == 0 || hour == hours {
                self.end().map_err(|what| format!("hour {hour}: {what}"))?;
            }
        }
        Ok(())
    }

    /// Advances time.
    fn pass(&mut self, until: Time) -> Result<(), String> {
        loop {
            // Immediate answers count as of now.
            self.take_answers()?;
            let stepped = self.daemon.step(until);
            let more = matches!(stepped, Ok(true));
            self.survive(stepped.map(drop))?;
            if !more && self.daemon_is_idle(until) {
                self.take_answers()?;
                self.host.sleep_until(until);
                return self.check_overdue();
            }
        }
    }

    /// Nothing happens until then: a daemon that has just been started may have found something to do.
    fn daemon_is_idle(&self, until: Time) -> bool {
        self.daemon.next_time().is_none_or(|next| next > until)
    }

    /// Replaces a killed daemon. Any other end of the connection is a failure.
    fn survive(&mut self, outcome: Result<(), ClientError>) -> Result<(), String> {
        let dead = self.host.machine().get().faults().is_toolstack_dead()
            || !self.host.os().daemon_lives();
        match outcome {
            Ok(()) if !dead => return Ok(()),
            Err(error) if !dead => return Err(format!("the daemon lost its store: {error}")),
            _ => {}
        }
        self.replace()
    }

    fn replace(&mut self) -> Result<(), String> {
        self.tally.kills += 1;
        self.tally.orphaned += self.asked.len() as u64;
        self.asked.clear();
        self.host.note(format_args!("churn: the daemon was killed"));
        self.host.machine().get_mut().faults_mut().revive_toolstack();
        self.host.os().restart_daemon();
        self.daemon = Daemon::start(&self.host).map_err(text)?;
        self.daemon.set_attach_times(self.times);
        Ok(())
    }

    fn take_answers(&mut self) -> Result<(), String> {
        while let Some(client) = self.daemon.poll_answered() {
            let reply = self.daemon.take_reply(client);
            // One of the checks' own.
            let Some(asked) = self.asked.remove(&client) else { continue };
            let took = self.host.now().0 - asked.at.0;
            self.check_time(&asked, took)?;
            self.tally.answered += 1;
            self.tally.slowest_answer_ns = self.tally.slowest_answer_ns.max(took);
            if !matches!(reply, Some(Reply::Failed(_))) {
                *self.tally.done.entry(asked.what).or_default() += 1;
            }
            match reply {
                Some(Reply::Failed(message)) => {
                    *self.tally.refusals.entry(why(&message)).or_default() += 1;
                    if message.is_empty() || message.contains('\n') {
                        return Err(format!("{} was refused with {message:?}", asked.what));
                    }
                }
                Some(Reply::Created(_)) if asked.is_on_good => {
                    let times = match self.sick.is_empty() {
                        true => &mut self.tally.calm_ns,
                        false => &mut self.tally.beside_hang_ns,
                    };
                    times.push(took);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_time(&self, asked: &Asked, took: u64) -> Result<(), String> {
        let most = if asked.only_reads { READ_NS } else { ANSWER_NS };
        if took <= most {
            return Ok(());
        }
        let (what, at, most) = (asked.what, asked.at, most / SECOND_NS);
        Err(format!("{what}, asked for at {at}, was not answered within {most} s"))
    }

    fn check_overdue(&self) -> Result<(), String> {
        let now = self.host.now().0;
        self.asked.values().try_for_each(|asked| self.check_time(asked, now - asked.at.0))
    }

    fn ask(&mut self, what: &'static str, request: Request) -> Result<(), ClientError> {
        self.ask_on(what, request, false)
    }

    fn ask_on(
        &mut self,
        what: &'static str,
        request: Request,
        is_on_good: bool,
    ) -> Result<(), ClientError> {
        let only_reads = matches!(
            request,
            Request::List
                | Request::Vms
                | Request::HostInfo
                | Request::Operations
                | Request::Devices { .. }
        );
        *self.tally.requests.entry(what).or_default() += 1;
        let at = self.host.now();
        let client = self.daemon.request(request)?;
        self.asked.insert(client, Asked { at, what, only_reads, is_on_good });
        Ok(())
    }

    /// One of those; anybody once in eight times, or if there is none.
    fn one_of(&mut self, whom: Whom) -> Result<u64, ClientError> {
        let client = self.daemon.request(Request::Vms)?;
        let anybody = self.below(NAMES);
        // A daemon that has just been started does not know yet.
        let Some(Reply::Vms(rows)) = self.daemon.take_reply(client) else { return Ok(anybody) };
        let row = |name: u64| rows.iter().find(|row| row.name == format!("vm{name}"));
        let meant: Vec<u64> = (0..NAMES).filter(|name| whom.is(row(*name))).collect();
        Ok(if meant.is_empty() || self.below(8) == 0 { anybody } else { self.pick(&meant) })
    }

    fn target(&mut self, whom: Whom) -> Result<String, ClientError> {
        Ok(format!("vm{}", self.one_of(whom)?))
    }

    fn operate(&mut self) -> Result<(), ClientError> {
        let now = self.host.now();
        let well: Vec<&'static str> =
            self.sick.iter().filter(|(_, until)| **until <= now).map(|(it, _)| *it).collect();
        for folder in well {
            self.heal(folder);
        }
        match self.below(100) {
            roll @ 0..=29 => self.define_or_start(roll),
            roll @ 30..=80 => self.change(roll),
            roll @ 81..=88 => self.ask_of_the_host(roll),
            roll => {
                self.make_trouble(roll);
                Ok(())
            }
        }
    }

    fn define_or_start(&mut self, roll: u64) -> Result<(), ClientError> {
        match roll {
            0..=18 => {
                let name = self.one_of(Whom::Unknown)?;
                self.create(name)
            }
            19..=22 => {
                let name = self.one_of(Whom::Unknown)?;
                let request = self.definition(name);
                self.ask("define", request)
            }
            23..=26 => {
                let target = self.target(Whom::Down)?;
                self.ask("start", Request::Start { target, start: Start::Running })
            }
            _ => {
                let target = self.target(Whom::Defined)?;
                self.ask("undefine", Request::Undefine { target })
            }
        }
    }

    /// Changes a running VM.
    fn change(&mut self, roll: u64) -> Result<(), ClientError> {
        match roll {
            30..=38 => {
                let target = self.target(Whom::Running)?;
                self.ask("destroy", Request::Destroy { target })
            }
            39..=48 => {
                let how = match self.below(3) {
                    0 => ShutdownRequest::Poweroff,
                    _ => ShutdownRequest::Reboot,
                };
                let target = self.target(Whom::Running)?;
                self.ask("shutdown", Request::Shutdown { target, how, reply: ReplyWhen::Asked })
            }
            49..=61 => self.plug(),
            62..=73 => self.unplug(),
            74 => {
                let target = self.target(Whom::Running)?;
                self.ask("pause", Request::Pause { target })
            }
            75 | 76 => {
                let target = self.target(Whom::Paused)?;
                self.ask("unpause", Request::Unpause { target })
            }
            _ => self.guest_stops(),
        }
    }

    /// Limits, a start of all, and reads.
    fn ask_of_the_host(&mut self, roll: u64) -> Result<(), ClientError> {
        match roll {
            81 => {
                // More than one storage may take, so that one that hangs leaves room.
                let host = usize::try_from(16 + self.below(17)).expect("a small number");
                let limits = Limits { host, ..Limits::default() };
                self.ask("limits", Request::Limits { wanted: Some(limits) })
            }
            82 => self.ask("start all", Request::StartAll),
            _ => {
                let target = self.target(Whom::Running)?;
                let request = match self.below(5) {
                    0 => Request::Vms,
                    1 => Request::HostInfo,
                    2 => Request::Operations,
                    3 => Request::Devices { target },
                    _ => Request::List,
                };
                self.ask("read", request)
            }
        }
    }

    /// Injects a fault: failing calls, lost events, hanging storage, a killed daemon.
    fn make_trouble(&mut self, roll: u64) {
        match roll {
            89..=92 => {
                let (call, k) = (self.pick(&FAILING), 1 + self.below(6));
                let errno = self.pick(&[Errno::ENOMEM, Errno::EBUSY, Errno::EINVAL]);
                self.trouble("a hypercall fails");
                self.host.machine().get_mut().faults_mut().fail(Calls::Named(call), k, errno);
            }
            93 => {
                self.trouble("an event of Xen's is late or lost");
                let fate = self.pick(&[VirqFate::Late(2 * SECOND_NS), VirqFate::Lost]);
                self.host.machine().get_mut().faults_mut().virqs(&[fate]);
            }
            94 | 95 => self.sicken(),
            96 | 97 => {
                let k = 1 + self.below(120);
                self.host.machine().get_mut().faults_mut().kill_toolstack(k);
            }
            98 => {
                let moments = 1 + self.below(8);
                self.host.os().kill_daemon_after(moments);
            }
            _ => self.host.machine().get_mut().faults_mut().kill_toolstack(1),
        }
    }

    fn trouble(&mut self, what: &'static str) {
        *self.tally.troubles.entry(what).or_default() += 1;
    }

    /// Makes storage hang or fail for a while.
    fn sicken(&mut self) {
        let folder = self.pick(&FOLDERS[1..]);
        let until = self.host.now().after(30 * SECOND_NS + self.prng.below(300 * SECOND_NS));
        self.host.note(format_args!("churn: {folder} is sick until {until}"));
        self.sick.insert(folder, until);
        if folder == "/far" {
            self.trouble("storage hangs");
            self.host.os().set_hanging(folder, true);
        } else {
            self.trouble("storage refuses");
            let error = HostError::Refused("input/output error".to_owned());
            self.host.os().set_failing(folder, Some(error));
        }
    }

    fn heal(&mut self, folder: &'static str) {
        self.sick.remove(folder);
        self.host.os().set_hanging(folder, false);
        self.host.os().set_failing(folder, None);
    }

    /// A guest stops by itself, as guests do.
    fn guest_stops(&mut self) -> Result<(), ClientError> {
        let running: Vec<DomId> = {
            let xen = self.host.machine().get();
            let guests = xen.domains().filter(|it| it.domid != DomId::DOM0 && it.is_running());
            guests.map(|domain| domain.domid).collect()
        };
        if !running.is_empty() {
            let domid = self.pick(&running);
            let reason = self.pick(&[
                ShutdownReason::Crash,
                ShutdownReason::Crash,
                ShutdownReason::Watchdog,
                ShutdownReason::Reboot,
                ShutdownReason::Poweroff,
            ]);
            self.trouble("a guest stops");
            self.host.machine().get_mut().guest_shutdown(domid, reason);
        }
        Ok(())
    }

    fn create(&mut self, name: u64) -> Result<(), ClientError> {
        let (config, is_on_good) = self.config(name);
        let request = Request::Create {
            config: Box::new(config),
            fresh_uuid: self.uuid(),
            start: Start::Running,
        };
        self.ask_on("create", request, is_on_good)
    }

    fn definition(&mut self, name: u64) -> Request {
        let (config, _) = self.config(name);
        let autostart = (self.below(2) == 0).then_some(3);
        Request::Define { config: Box::new(config), fresh_uuid: self.uuid(), autostart }
    }

    fn uuid(&mut self) -> Uuid {
        self.uuids += 1;
        Uuid((u128::from(self.uuids) | 0xc4 << 120).to_be_bytes())
    }

    /// A configuration, and whether its disks are on storage without faults.
    fn config(&mut self, name: u64) -> (toolstack::config::VmConfig, bool) {
        let kind = self.pick(&["pv", "pvh"]);
        let system = self.pick(&["unikernel", "unikernel", "linux"]);
        let behaviour = if self.below(4) == 0 { self.pick(&BEHAVIOURS) } else { "normal" };
        let memory = self.pick(&[8, 8, 16, 32, 64]);
        let on_crash = self.pick(&["destroy", "restart"]);
        let folder = self.pick(&FOLDERS);
        let number = self.pick(&[0, 1, 1, 1, 2, 3, DISKS_MAX]);
        let mut disks: Vec<String> = (0..number)
            .map(|disk| format!("'{folder}/vm{name}-{disk}.raw,raw,{},w'", letter(disk)))
            .collect();
        if self.below(4) == 0 {
            disks.push(format!("'{},,xvdz,w'", vdi(name)));
        }
        let vif = self.pick(&["", "'bridge=xenbr0'"]);
        let text = format!(
            "name = 'vm{name}'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = {memory}\n\
             on_crash = '{on_crash}'\non_watchdog = '{on_crash}'\n\
             extra = 'sim.kind={system} sim.behaviour={behaviour}'\n\
             disk = [{}]\nvif = [{vif}]\n",
            disks.join(", ")
        );
        let source = xlcfg::Source { file: "churn.cfg", text: &text, overrides: &[] };
        let config = xlcfg::parse(source).expect("a configuration of our own");
        self.devices.insert(name, layout::devices(&config).into_iter().collect());
        (config, folder == FOLDERS[0])
    }

    fn plug(&mut self) -> Result<(), ClientError> {
        let name = self.one_of(Whom::Running)?;
        let device = if self.below(3) == 0 {
            let devid = u32::try_from(1 + self.below(2)).expect("a small number");
            Device::Vif(xlcfg::parse_vif("bridge=xenbr0", devid).expect("a vif of our own"))
        } else {
            let folder = self.pick(&FOLDERS);
            let place = letter(10 + self.below(3));
            let spec = format!("{folder}/vm{name}-{DISKS_MAX}.raw,raw,{place},w");
            Device::Disk(xlcfg::parse_disk(&spec).expect("a disk of our own"))
        };
        self.devices.entry(name).or_default().insert(device.id());
        self.ask("plug", Request::Plug { target: format!("vm{name}"), device: Box::new(device) })
    }

    fn unplug(&mut self) -> Result<(), ClientError> {
        let name = self.one_of(Whom::Running)?;
        let devices: Vec<DeviceRef> =
            self.devices.get(&name).into_iter().flatten().copied().collect();
        let device = if devices.is_empty() || self.below(8) == 0 {
            DeviceRef { kind: DeviceKind::Vbd, devid: 202 << 8 }
        } else {
            self.pick(&devices)
        };
        self.devices.entry(name).or_default().remove(&device);
        let how = if self.below(3) == 0 { Unplug::Forced } else { Unplug::Clean };
        self.ask("unplug", Request::Unplug { target: format!("vm{name}"), device, how })
    }

    /// Asks and waits for the answer.
    fn ask_now(&mut self, request: Request) -> Result<Reply, String> {
        let client = self.daemon.request(request).map_err(text)?;
        let until = self.host.now().after(REST_NS);
        let reply = self.daemon.wait(client, until).map_err(text)?;
        reply.ok_or_else(|| "no answer in time".to_owned())
    }

    fn settle(&mut self) -> Result<(), String> {
        let until = self.host.now().after(REST_NS);
        let quiet = self.daemon.run_until_quiet(until).map_err(text)?;
        self.take_answers()?;
        if quiet { Ok(()) } else { Err("the host does not come to rest".to_owned()) }
    }

    /// Triggers a poll: creates and destroys a VM, which also makes up for a lost event.
    fn stir(&mut self) -> Result<(), String> {
        let memory = "name = 'stir'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n";
        let source = xlcfg::Source { file: "stir.cfg", text: memory, overrides: &[] };
        let config = Box::new(xlcfg::parse(source).expect("a configuration of our own"));
        let fresh_uuid = self.uuid();
        let create = Request::Create { config, fresh_uuid, start: Start::Running };
        let mut target = "stir".to_owned();
        if let Reply::Failed(_) = self.ask_now(create)? {
            // There is no memory for it: another VM ends instead.
            let running = self.vms()?.into_iter().find(|vm| vm.state == VmState::Running);
            target = running.map_or(target, |vm| vm.name);
        }
        self.ask_now(Request::Destroy { target })?;
        self.settle()
    }

    /// Ends all faults and checks that each VM is as configured.
    fn rest(&mut self) -> Result<(), String> {
        self.host.machine().get_mut().set_faults(Faults::default());
        self.host.os().restart_daemon();
        for folder in FOLDERS {
            self.heal(folder);
        }
        self.settle()?;
        self.stir()?;
        if let Some(asked) = self.asked.values().next() {
            return Err(format!("{}, asked for at {}, has no answer", asked.what, asked.at));
        }
        // Destroy what could not be destroyed because of a fault.
        for vm in self.vms()? {
            if vm.state == VmState::Stuck {
                self.ask_now(Request::Destroy { target: vm.name })?;
            }
        }
        self.settle()?;
        self.check_vms()?;
        self.tally.rests += 1;
        Ok(())
    }

    fn vms(&mut self) -> Result<Vec<toolstack::VmRow>, String> {
        match self.ask_now(Request::Vms)? {
            Reply::Vms(rows) => Ok(rows),
            other => Err(format!("no list of VMs: {other:?}")),
        }
    }

    fn check_vms(&mut self) -> Result<(), String> {
        let Reply::Domains(listing) = self.ask_now(Request::List)? else {
            return Err("no list".to_owned());
        };
        let (mut devices_wanted, mut loops_wanted, mut closed) = (0, 0, 0);
        for row in listing.rows.iter().filter(|row| row.info.domid != DomId::DOM0) {
            let name = row.name.clone().unwrap_or_default();
            let config = row.config.clone().ok_or(format!("domain {name:?} is nobody's"))?;
            self.tally.vms_checked += 1;
            if let Some(reason) = row.info.flags.shutdown() {
                return Err(format!("{name} has stopped ({reason:?}) and nobody acts"));
            }
            let target = name.clone();
            let Reply::Devices { domid, devices } = self.ask_now(Request::Devices { target })?
            else {
                return Err(format!("{name}: no devices"));
            };
            let wanted = config.disks.len() + config.vifs.len();
            if devices.len() != wanted {
                return Err(format!("{name}: {wanted} devices wanted, {} found", devices.len()));
            }
            // If a device was detached while the guest was paused, the guest closes it long after
            // the detach has failed. The device remains part of the VM; its backend may be gone.
            closed += devices.iter().filter(|reading| reading.state == 6).count();
            let obeys = config.cmdline.contains("sim.behaviour=normal");
            for reading in devices.iter().filter(|_| obeys && !row.info.flags.paused()) {
                if reading.state != 4 && reading.state != 6 {
                    let (device, state) = (reading.device, reading.state);
                    return Err(format!("{name}: {device} is in state {state}"));
                }
            }
            let os = self.host.os().get();
            for vif in config.vifs.iter().filter(|_| obeys) {
                let link = format!("vif{domid}.{}", vif.devid);
                if !os.bridges()["xenbr0"].contains(&link) {
                    return Err(format!("{name}: {link} is not on its bridge"));
                }
            }
            devices_wanted += wanted;
            loops_wanted += config.disks.len();
        }
        let snapshot = self.host.snapshot().map_err(text)?;
        let found = (snapshot.backends, snapshot.loops.len(), snapshot.domains.len());
        let wanted = (devices_wanted, loops_wanted, listing.rows.len());
        let are_served = (devices_wanted - closed..=devices_wanted).contains(&found.0);
        if !are_served || (found.1, found.2) != (wanted.1, wanted.2) {
            return Err(format!(
                "backends, loop devices and domains are {found:?}, the VMs need {wanted:?}"
            ));
        }
        Ok(())
    }

    /// Destroys everything; nothing may be left.
    fn end(&mut self) -> Result<(), String> {
        for vm in self.vms()? {
            if vm.state != VmState::Down {
                self.ask_now(Request::Destroy { target: vm.name.clone() })?;
            }
            if vm.defined {
                self.ask_now(Request::Undefine { target: vm.name })?;
            }
        }
        self.settle()?;
        self.stir()?;
        let mut now = self.host.snapshot().map_err(text)?;
        // The kernel's error nodes of failed devices remain.
        now.nodes.retain(|path, _| !path.starts_with("/local/domain/0/error"));
        let left = now.differences(&self.before);
        if !left.is_empty() {
            return Err(format!("left behind: {}", left.join("; ")));
        }
        self.tally.ends += 1;
        Ok(())
    }
}

/// The letter of this disk: xvda and on.
fn letter(disk: u64) -> String {
    format!("xvd{}", char::from(b'a' + u8::try_from(disk).expect("below 26")))
}
