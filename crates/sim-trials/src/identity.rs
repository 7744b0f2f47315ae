//! Runs in which domids are reused between any two actions of every operation, and the machine
//! itself knows the intended domain.
//!
//! A [rival](crate::rival) destroys domains of ours at any time and reuses their domids as soon as
//! possible; domids wrap around, so that our own domains reuse them too; the daemon is killed;
//! hypercalls are preempted, and calls fail. No action may reach another domain than intended.

use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{Start, Unplug};
use toolstack::{ClientId, Device, Reply, ReplyWhen, Request, ShutdownRequest, xlcfg};
use xen::{DomId, Errno, Uuid};
use xenstore::client::ClientError;

use crate::rival::{Deeds, RivalHandle};
use crate::swarm::Broken;
use sim::Daemon;
use sim::Pins;
use sim::Prng;
use sim::kernel_image;
use sim::{Calls, Faults, Preemption, VirqFate};
use sim::{HostConfig, SimHost};
use sim::{MachineConfig, Release};

/// Virtual time in which a host must come to rest, in nanoseconds.
const PATIENCE_NS: u64 = 600_000_000_000;

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub operations: u64,
    pub restarts: u64,
    pub preemptions: u64,
    pub faults: u64,
    /// Requests that were answered, and those of them that failed.
    pub answers: u64,
    pub failures: u64,
    pub deeds: Deeds,
    pub digest: u64,
}

impl Tally {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.restarts += other.restarts;
        self.preemptions += other.preemptions;
        self.faults += other.faults;
        self.answers += other.answers;
        self.failures += other.failures;
        self.deeds.gaps += other.deeds.gaps;
        self.deeds.kills += other.deeds.kills;
        self.deeds.taken += other.deeds.taken;
        self.deeds.refused += other.deeds.refused;
    }
}

struct Run {
    host: SimHost,
    daemon: Daemon,
    rival: RivalHandle,
    prng: Prng,
    deadly: bool,
    faulty: bool,
    /// Requests of the present daemon that it has not answered.
    asked: Vec<ClientId>,
    /// Of the VMs that were asked for.
    uuids: Vec<Uuid>,
    tally: Tally,
}

/// Calls that may fail in a run, each with an error that Xen has for it.
const FAILING: [(&str, Errno); 8] = [
    ("createdomain", Errno::ENOMEM),
    ("max_vcpus", Errno::ENOMEM),
    ("populate_physmap", Errno::ENOMEM),
    ("map_foreign", Errno::ENOMEM),
    ("getdomaininfo", Errno::EFAULT),
    ("destroydomain", Errno::EAGAIN),
    ("unpausedomain", Errno::EFAULT),
    ("getdomaininfolist", Errno::EFAULT),
];

/// Runs `operations` random operations against a rival.
///
/// # Errors
/// [`Broken`] as soon as an action reaches another domain than intended.
pub fn run(seed: u64, operations: u64) -> Result<Tally, Box<Broken>> {
    run_on(seed, operations, Pins::Kept)
}

/// As [`run`], on a store that keeps dead domains' domids or does not.
///
/// # Errors
/// As for [`run`].
pub fn run_on(seed: u64, operations: u64, pins: Pins) -> Result<Tally, Box<Broken>> {
    let release = Release::ALL[usize::try_from(seed % 6).expect("below six")];
    let machine = MachineConfig { release, ..MachineConfig::default() };
    let mut prng = Prng::new(seed ^ 0x1d);
    let mut coin = || prng.below(2) == 0;
    let (deadly, faulty, late) = (coin(), coin(), coin());
    let preemption = [Preemption::Never, Preemption::OneOf(3), Preemption::Everywhere];
    let preemption = preemption[usize::try_from(prng.below(3)).expect("below three")];
    let mut faults = Faults::default();
    faults.preemption = preemption;
    if late {
        faults.virq_fate = VirqFate::Late(2_000_000);
        faults.shutdown_deferred_ns = 3_000_000;
    }
    let host = SimHost::boot(HostConfig { machine, seed, faults, pins, ..HostConfig::default() });
    let broken = |what: String| Box::new(Broken { seed, what, trace: host.trace() });
    host.os().add_file("/kernel", kernel_image());
    host.os().add_bridge("xenbr0");
    host.os().add_disk("/disk.raw", 1 << 20);
    host.os().add_disk("/more.raw", 1 << 20);
    let daemon = Daemon::start(&host).map_err(|error| broken(error.to_string()))?;
    host.machine().get_mut().begin_judging();
    let rival = RivalHandle::start(&host, seed);
    let (asked, uuids, tally) = (Vec::new(), Vec::new(), Tally::default());
    let mut run =
        Run { host: host.clone(), daemon, rival, prng, deadly, faulty, asked, uuids, tally };
    let outcome = run.go(operations);
    run.rival.retire();
    outcome.map_err(broken)?;
    run.tally.preemptions = host.machine().get().preemptions();
    run.tally.deeds = run.rival.deeds();
    run.tally.digest = host.digest();
    Ok(run.tally)
}

impl Run {
    fn go(&mut self, operations: u64) -> Result<(), String> {
        for number in 0..operations {
            self.tally.operations += 1;
            let outcome = self.operate(number);
            self.survive(outcome)?;
            for _ in 0..self.prng.below(60) {
                self.rival.act();
                let until = self.host.now().after(PATIENCE_NS);
                let stepped = self.daemon.step(until).map(drop);
                self.survive(stepped)?;
            }
            self.take_answers()?;
            self.judge()?;
        }
        // Cancel pending faults, so that the host becomes idle.
        self.host.machine().get_mut().set_faults(Faults::default());
        // Requests waiting for a paused guest would wait forever, so all VMs are destroyed.
        for number in 0..operations {
            let target = format!("vm{number}");
            let asked = self.daemon.request(Request::Destroy { target });
            self.asked.push(asked.map_err(|error| error.to_string())?);
        }
        let until = self.host.now().after(PATIENCE_NS);
        while self.daemon.step(until).map_err(|error| error.to_string())? {
            self.rival.act();
            self.judge_quickly()?;
        }
        self.take_answers()?;
        if !self.asked.is_empty() {
            return Err(format!("{} requests were never answered", self.asked.len()));
        }
        self.judge()
    }

    /// Collects answers. Refusals must have a reason.
    fn take_answers(&mut self) -> Result<(), String> {
        let daemon = &mut self.daemon;
        let mut silent = 0;
        self.asked.retain(|client| {
            let Some(reply) = daemon.take_reply(*client) else { return true };
            self.tally.answers += 1;
            if let Reply::Failed(why) = reply {
                self.tally.failures += 1;
                silent += u64::from(why.is_empty());
            }
            false
        });
        if silent == 0 { Ok(()) } else { Err("a request failed without a reason".to_owned()) }
    }

    fn judge_quickly(&self) -> Result<(), String> {
        match self.host.machine().get().wrongs().first() {
            None => Ok(()),
            Some(wrong) => Err(wrong.clone()),
        }
    }

    fn judge(&self) -> Result<(), String> {
        self.judge_quickly()?;
        match self.rival.check().first() {
            None => Ok(()),
            Some(wrong) => Err(wrong.clone()),
        }
    }

    fn survive(&mut self, outcome: Result<(), ClientError>) -> Result<(), String> {
        let dead = self.host.machine().get().faults().is_toolstack_dead();
        match outcome {
            Ok(()) if !dead => return Ok(()),
            Err(error) if !dead => return Err(format!("the daemon lost its store: {error}")),
            _ => {}
        }
        self.tally.restarts += 1;
        self.host.machine().get_mut().faults_mut().revive_toolstack();
        self.asked.clear();
        self.daemon = Daemon::restart(&self.host).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn operate(&mut self, number: u64) -> Result<(), ClientError> {
        let target = format!("vm{}", self.prng.below(number + 1));
        let request = match self.prng.below(22) {
            0..=5 => self.create(number),
            6 | 7 => Request::Destroy { target },
            8 => {
                let how = ShutdownRequest::Reboot;
                Request::Shutdown { target, how, reply: ReplyWhen::Asked }
            }
            9 => {
                let how = ShutdownRequest::Poweroff;
                Request::Shutdown { target, how, reply: ReplyWhen::Gone }
            }
            10 => Request::Pause { target },
            11 => Request::Unpause { target },
            12 => Request::Vcpus { of: vec![(DomId(1), Uuid([1; 16]))] },
            13 => Request::Console { target, kind: None, number: 0 },
            14 => Request::Devices { target },
            15 | 16 if self.deadly => {
                let k = 1 + self.prng.below(30);
                self.host.machine().get_mut().faults_mut().kill_toolstack(k);
                return Ok(());
            }
            17 | 18 => {
                let device = match self.prng.below(2) {
                    0 => Device::Disk(
                        xlcfg::parse_disk("/more.raw,raw,xvdb,r").expect("a disk of our own"),
                    ),
                    _ => {
                        Device::Vif(xlcfg::parse_vif("bridge=xenbr0", 1).expect("a vif of our own"))
                    }
                };
                Request::Plug { target, device: Box::new(device) }
            }
            19 => {
                let device = match self.prng.below(2) {
                    0 => DeviceRef { kind: DeviceKind::Vbd, devid: 51728 },
                    _ => DeviceRef { kind: DeviceKind::Vif, devid: 1 },
                };
                let how = if self.prng.below(2) == 0 { Unplug::Clean } else { Unplug::Forced };
                Request::Unplug { target, device, how }
            }
            20 => {
                // A name, UUID or domid, which may belong to another VM.
                let at = self.prng.below(self.uuids.len() as u64 * 2 + 4);
                let target = match usize::try_from(at).expect("an index") {
                    0 => target,
                    at if at <= self.uuids.len() => self.uuids[at - 1].to_string(),
                    at => at.to_string(),
                };
                Request::Resolve { target }
            }
            21 if self.faulty => {
                let at = self.prng.below(FAILING.len() as u64);
                let (name, errno) = FAILING[usize::try_from(at).expect("an index")];
                let k = 1 + self.prng.below(4);
                self.tally.faults += 1;
                self.host.machine().get_mut().faults_mut().fail(Calls::Named(name), k, errno);
                return Ok(());
            }
            _ => Request::List,
        };
        let client = self.daemon.request(request)?;
        self.asked.push(client);
        Ok(())
    }

    fn create(&mut self, number: u64) -> Request {
        let kind = if self.prng.below(2) == 0 { "pv" } else { "pvh" };
        let behaviour = ["normal", "normal", "powers-off", "crashes"]
            [usize::try_from(self.prng.below(4)).expect("below four")];
        let mut text = format!(
            "name = 'vm{number}'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = 8\n\
             extra = 'sim.behaviour={behaviour}'\n"
        );
        if self.prng.below(3) == 0 {
            text += "disk = ['/disk.raw,raw,xvda,rw']\n";
        }
        if self.prng.below(3) == 0 && behaviour == "normal" {
            text += "on_crash = 'restart'\n";
        }
        let source = xlcfg::Source { file: "identity.cfg", text: &text, overrides: &[] };
        let config = xlcfg::parse(source).expect("the run's own configuration");
        let mut bytes = [1; 16];
        bytes[..8].copy_from_slice(&self.prng.next_u64().to_le_bytes());
        self.uuids.push(Uuid(bytes));
        Request::Create {
            config: Box::new(config),
            fresh_uuid: Uuid(bytes),
            start: if self.prng.below(4) == 0 { Start::Paused } else { Start::Running },
        }
    }
}
