//! Random runs: VMs of all kinds are created and destroyed, calls fail, VIRQs are late, the daemon
//! is killed; in the end everything is destroyed and nothing may be left.
//!
//! A run is determined by its seed. Its kinds of faults are chosen first, so that some runs have
//! few and others all at once.

use toolstack::plan::Start;
use toolstack::{ReplyWhen, Request, ShutdownRequest, xlcfg};
use xen::{Errno, Uuid};
use xenstore::client::ClientError;

use sim::Prng;
use sim::Snapshot;
use sim::Time;
use sim::kernel_image;
use sim::{Calls, Faults, Preemption, VirqFate};
use sim::{Daemon, DaemonError};
use sim::{HostConfig, SimHost};
use sim::{MachineConfig, Release};
use sim::{ModelFate, add_hvm_files};

/// A violated invariant in a run, reproducible by the seed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}: {what}")]
pub struct Broken {
    pub seed: u64,
    pub what: String,
    /// The whole trace.
    pub trace: Vec<String>,
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub creates: u64,
    pub faults: u64,
    pub kills: u64,
    pub preemptions: u64,
    pub digest: u64,
}

const BEHAVIOURS: [&str; 12] = [
    "normal",
    "deaf",
    "silent",
    "never-connects",
    "holds-devices",
    "breaks-ring",
    "floods",
    "toggles",
    "slow",
    "lies",
    "crashes",
    "powers-off",
];

/// Calls that may fail, each with an error that Xen or Linux has for it.
const FAILING: [(&str, Errno); 16] = [
    ("createdomain", Errno::ENOMEM),
    ("max_vcpus", Errno::ENOMEM),
    ("alloc_unbound", Errno::ENOSPC),
    ("populate_physmap", Errno::ENOMEM),
    ("map_foreign", Errno::ENOMEM),
    ("map_foreign", Errno::EFAULT),
    ("map_resource", Errno::ENOMEM),
    ("setvcpucontext", Errno::EFAULT),
    ("sethvmcontext", Errno::EFAULT),
    ("set_memory_map", Errno::EFAULT),
    ("getdomaininfo", Errno::EFAULT),
    ("getdomaininfolist", Errno::EFAULT),
    ("unpausedomain", Errno::EFAULT),
    ("pausedomain", Errno::EFAULT),
    ("destroydomain", Errno::EAGAIN),
    ("destroydomain", Errno::EFAULT),
];

/// Calls that may fail after taking effect.
const FAILING_AFTER: [&str; 5] =
    ["populate_physmap", "max_vcpus", "unpausedomain", "pausedomain", "destroydomain"];

/// Virtual time in which a host must come to rest, in nanoseconds.
const PATIENCE_NS: u64 = 600_000_000_000;

struct Swarm {
    seed: u64,
    prng: Prng,
    host: SimHost,
    daemon: Daemon,
    before: Snapshot,
    tally: Tally,
    /// Kinds of faults in this run.
    hostile: bool,
    faulty: bool,
    deadly: bool,
    lossy: bool,
}

/// Runs `operations` random operations.
///
/// # Errors
/// [`Broken`] as soon as an invariant is violated.
pub fn run(seed: u64, operations: usize) -> Result<Tally, Box<Broken>> {
    run_traced(seed, operations, Tracing::Brief)
}

/// Detail of the trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tracing {
    Brief,
    /// Every hypercall and every piece of the daemon's work too.
    Detailed,
}

/// As [`run`], with a trace of this detail.
///
/// # Errors
/// [`Broken`] as soon as an invariant is violated.
pub fn run_traced(seed: u64, operations: usize, tracing: Tracing) -> Result<Tally, Box<Broken>> {
    let mut swarm = Swarm::start(seed)
        .map_err(|error| Box::new(Broken { seed, what: error.to_string(), trace: Vec::new() }))?;
    if tracing == Tracing::Detailed {
        swarm.host.keep_details();
    }
    swarm
        .go(operations)
        .map_err(|what| Box::new(Broken { seed, what, trace: swarm.host.trace() }))?;
    swarm.tally.preemptions = swarm.host.machine().get().preemptions();
    swarm.tally.digest = swarm.host.digest();
    Ok(swarm.tally)
}

impl Swarm {
    fn start(seed: u64) -> Result<Self, DaemonError> {
        let mut prng = Prng::new(seed ^ 0x5_3a72);
        let pick = |prng: &mut Prng, limit: usize| {
            usize::try_from(prng.below(limit as u64)).expect("below a small number")
        };
        let release = Release::ALL[pick(&mut prng, Release::ALL.len())];
        let order_max = [18, 9, 3][pick(&mut prng, 3)];
        let virq_fate = [VirqFate::Delivered, VirqFate::Delivered, VirqFate::Late(3_000_000)]
            [pick(&mut prng, 3)];
        let machine = MachineConfig { release, order_max, ..MachineConfig::default() };
        let preemption = [Preemption::Never, Preemption::OneOf(4), Preemption::Everywhere];
        let mut faults = Faults::default();
        faults.virq_fate = virq_fate;
        faults.preemption = preemption[pick(&mut prng, 3)];
        faults.shutdown_deferred_ns = [0, 2_000_000, 80_000_000][pick(&mut prng, 3)];
        let host = SimHost::boot(HostConfig { machine, seed, faults, ..HostConfig::default() });
        host.os().add_file("/kernel", kernel_image());
        add_hvm_files(host.os(), "sim.behaviour=normal");
        host.os().add_bridge("xenbr0");
        for number in 0..8 {
            host.os().add_disk(&format!("/disk{number}.raw"), 1 << 20);
        }
        let before = host.snapshot()?;
        let daemon = Daemon::start(&host)?;
        let mut coin = || prng.below(2) == 0;
        let (hostile, faulty, deadly, lossy) = (coin(), coin(), coin(), coin());
        let tally = Tally::default();
        Ok(Self { seed, prng, host, daemon, before, tally, hostile, faulty, deadly, lossy })
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.prng.below(limit)
    }

    fn until(&self) -> Time {
        self.host.now().after(PATIENCE_NS)
    }

    fn go(&mut self, operations: usize) -> Result<(), String> {
        for _ in 0..operations {
            let outcome = self.operate();
            self.survive(outcome)?;
            for _ in 0..self.below(40) {
                let until = self.until();
                let stepped = self.daemon.step(until).map(drop);
                self.survive(stepped)?;
            }
            self.host.check_store()?;
        }
        self.finish()
    }

    /// Replaces a killed daemon. Any other end of the connection is a failure.
    fn survive(&mut self, outcome: Result<(), ClientError>) -> Result<(), String> {
        let dead = self.host.machine().get().faults().is_toolstack_dead();
        match outcome {
            Ok(()) if !dead => return Ok(()),
            Err(error) if !dead => return Err(format!("the daemon lost its store: {error}")),
            _ => {}
        }
        self.tally.kills += 1;
        self.host.note(format_args!("swarm: the daemon was killed"));
        self.host.machine().get_mut().faults_mut().revive_toolstack();
        self.daemon = Daemon::restart(&self.host).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn operate(&mut self) -> Result<(), ClientError> {
        let target = format!("vm{}", self.below(self.tally.creates + 1));
        match self.below(13) {
            0..=4 => {
                let request = self.create();
                self.daemon.request(request).map(drop)
            }
            5 => self.daemon.request(Request::Destroy { target }).map(drop),
            6 | 7 => {
                let how = match self.below(3) {
                    0 => ShutdownRequest::Reboot,
                    _ => ShutdownRequest::Poweroff,
                };
                let reply = ReplyWhen::Asked;
                self.daemon.request(Request::Shutdown { target, how, reply }).map(drop)
            }
            8 => self.daemon.request(Request::List).map(drop),
            9 if self.faulty => {
                let index = self.below((FAILING.len() + FAILING_AFTER.len()) as u64);
                let index = usize::try_from(index).expect("an index");
                let k = 1 + self.below(6);
                self.tally.faults += 1;
                let mut xen = self.host.machine().get_mut();
                let faults = xen.faults_mut();
                match FAILING.get(index) {
                    Some((name, errno)) => faults.fail(Calls::Named(name), k, *errno),
                    None => {
                        let name = FAILING_AFTER[index - FAILING.len()];
                        faults.fail_after(Calls::Named(name), k, Errno::EFAULT);
                    }
                }
                Ok(())
            }
            10 if self.deadly => {
                let k = 1 + self.below(80);
                self.host.machine().get_mut().faults_mut().kill_toolstack(k);
                Ok(())
            }
            11 if self.lossy => {
                // A lost VIRQ is made up for by the next one.
                self.host.machine().get_mut().faults_mut().virqs(&[VirqFate::Lost]);
                Ok(())
            }
            _ => {
                let pause = self.below(200_000_000);
                let until = self.host.now().after(pause);
                while self.daemon.step(until)? {}
                Ok(())
            }
        }
    }

    fn create(&mut self) -> Request {
        let number = self.tally.creates;
        self.tally.creates += 1;
        let behaviour = if self.hostile {
            BEHAVIOURS[usize::try_from(self.below(BEHAVIOURS.len() as u64)).expect("an index")]
        } else {
            BEHAVIOURS[0]
        };
        let (kind, memory) = match self.below(5) {
            0 | 1 => ("pv", 8),
            2 | 3 => ("pvh", 8),
            _ => ("hvm", 24),
        };
        let mut text = format!(
            "name = 'vm{number}'\ntype = '{kind}'\nkernel = '/kernel'\nmemory = {memory}\n\
             on_crash = 'destroy'\nextra = 'sim.behaviour={behaviour}'\n"
        );
        if self.below(2) == 0 {
            let disk = self.below(8);
            text += &format!(
                "disk = ['/disk{disk}.raw,raw,xvda,rw']\nvif = ['bridge=xenbr0,type=vif']\n"
            );
        }
        let fate = match self.below(6) {
            0 if self.hostile => ModelFate::Fails(self.below(400_000_000)),
            1 if self.hostile => ModelFate::Silent,
            2 if self.hostile => {
                let ready = 100_000_000;
                ModelFate::Dies { ready, dies: ready + self.below(3_000_000_000) }
            }
            _ => ModelFate::Ready(self.below(400_000_000)),
        };
        self.host.os().set_model_fate(fate);
        self.request(&text)
    }

    fn request(&mut self, text: &str) -> Request {
        let source = xlcfg::Source { file: "swarm.cfg", text, overrides: &[] };
        let config = xlcfg::parse(source).expect("the swarm's own configuration");
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.prng.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&self.prng.next_u64().to_le_bytes());
        let fresh_uuid = Uuid(bytes);
        Request::Create { config: Box::new(config), fresh_uuid, start: Start::Running }
    }

    /// Ends all faults, destroys everything and checks what is left.
    fn finish(&mut self) -> Result<(), String> {
        let healed = Faults::default();
        self.host.machine().get_mut().set_faults(healed);
        self.settle()?;
        for number in 0..self.tally.creates {
            let target = format!("vm{number}");
            let asked = self.daemon.request(Request::Destroy { target }).map(drop);
            self.survive(asked)?;
        }
        self.settle()?;
        // Empty directories left by a killed daemon are removed with the next VM.
        let text = "name = 'last'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n\
                    disk = ['/disk0.raw,raw,xvda,rw']\nvif = ['bridge=xenbr0']\n";
        let request = self.request(text);
        self.daemon.request(request).map_err(|error| error.to_string())?;
        self.settle()?;
        let last = Request::Destroy { target: "last".to_owned() };
        self.daemon.request(last).map_err(|error| error.to_string())?;
        self.settle()?;

        let mut now = self.host.snapshot().map_err(|error| error.to_string())?;
        // The kernel's error nodes of failed devices remain.
        now.nodes.retain(|path, _| !path.starts_with("/local/domain/0/error"));
        let left = now.differences(&self.before);
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join("; "))) }
    }

    fn settle(&mut self) -> Result<(), String> {
        let until = self.until();
        match self.daemon.run_until_quiet(until) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("the host of seed {} does not come to rest", self.seed)),
            Err(error) => Err(error.to_string()),
        }
    }
}
