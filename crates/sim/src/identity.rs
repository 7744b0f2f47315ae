//! Runs in which domids are given out again in every gap of every operation, and the machine itself knows
//! which domain was meant.
//!
//! A [rival](crate::rival) destroys domains of ours at any moment and takes their numbers as soon as it gets
//! them; numbers go round, so that domains of ours follow each other under one number too; the daemon
//! is killed. No action may meet another domain than the one it was meant for.

use toolstack::plan::Start;
use toolstack::{ReplyWhen, Request, ShutdownRequest, xlcfg};
use xen::Uuid;
use xenstore::client::ClientError;

use crate::daemon::Daemon;
use crate::guest::kernel_image;
use crate::host::{HostConfig, SimHost};
use crate::machine::{MachineConfig, Release};
use crate::prng::Prng;
use crate::rival::{Deeds, RivalHandle};
use crate::swarm::Broken;

/// Virtual time in which a host must come to rest, in nanoseconds.
const PATIENCE_NS: u64 = 600_000_000_000;

/// What a run had in it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub operations: u64,
    pub restarts: u64,
    pub deeds: Deeds,
    pub digest: u64,
}

impl Tally {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.restarts += other.restarts;
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
    tally: Tally,
}

/// Runs `operations` random operations against a rival.
///
/// # Errors
/// [`Broken`] as soon as something meets another domain than it was meant for.
pub fn run(seed: u64, operations: u64) -> Result<Tally, Box<Broken>> {
    let release = Release::ALL[usize::try_from(seed % 6).expect("below six")];
    let machine = MachineConfig { release, ..MachineConfig::default() };
    let host = SimHost::boot(HostConfig { machine, seed, ..HostConfig::default() });
    let broken = |what: String| Box::new(Broken { seed, what, trace: host.trace() });
    host.os().add_file("/kernel", kernel_image());
    host.os().add_disk("/disk.raw", 1 << 20);
    let daemon = Daemon::start(&host).map_err(|error| broken(error.to_string()))?;
    host.machine().get_mut().begin_judging();
    let rival = RivalHandle::start(&host, seed);
    let mut prng = Prng::new(seed ^ 0x1d);
    let deadly = prng.below(2) == 0;
    let tally = Tally::default();
    let mut run = Run { host: host.clone(), daemon, rival, prng, deadly, tally };
    let outcome = run.go(operations);
    run.rival.retire();
    outcome.map_err(broken)?;
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
            self.judge()?;
        }
        self.host.machine().get_mut().faults_mut().revive_toolstack();
        let until = self.host.now().after(PATIENCE_NS);
        while self.daemon.step(until).map_err(|error| error.to_string())? {
            self.rival.act();
            self.judge_quickly()?;
        }
        self.judge()
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
        self.daemon = Daemon::start(&self.host).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn operate(&mut self, number: u64) -> Result<(), ClientError> {
        let target = format!("vm{}", self.prng.below(number + 1));
        let request = match self.prng.below(17) {
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
            12 => Request::Vcpus { target },
            13 => Request::Console { target },
            14 => Request::Devices { target },
            15 | 16 if self.deadly => {
                let k = 1 + self.prng.below(30);
                self.host.machine().get_mut().faults_mut().kill_toolstack(k);
                return Ok(());
            }
            _ => Request::List,
        };
        self.daemon.request(request).map(drop)
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
        Request::Create {
            config: Box::new(config),
            fresh_uuid: Uuid(bytes),
            start: if self.prng.below(4) == 0 { Start::Paused } else { Start::Running },
        }
    }
}
