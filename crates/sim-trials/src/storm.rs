//! Boot storms: total time of attaches for one VM with many disks, and for many VMs at once, on
//! slow storage, in virtual time.
//!
//! The peer is the algorithm of xenopsd (`xenops_server.ml`), simulated with this toolstack's own
//! work: chunks of ten with a barrier after each, and a pool of four workers for the host.

use std::collections::{BTreeMap, VecDeque};

use toolstack::plan::{DeviceStep, Start, Step};
use toolstack::scheduler::Limits;
use toolstack::{ClientId, Created, Device, Reply, Request, xlcfg};
use xen::Uuid;

use sim::MachineConfig;
use sim::Time;
use sim::kernel_image;
use sim::{AttachTimes, Daemon};
use sim::{HostConfig, SimHost};

/// xenopsd: `max_parallel_atoms`, and the default of `worker-pool-size`.
pub const PEER_CHUNK: usize = 10;
pub const PEER_POOL: usize = 4;

const PATIENCE_NS: u64 = 1_000_000_000_000_000;

/// A host ready for VMs, with storage of these times.
pub struct BootStorm {
    host: SimHost,
    daemon: Daemon,
    times: AttachTimes,
    vms: u64,
}

/// A failure.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(String);

fn trouble(error: impl std::fmt::Display) -> Trouble {
    Trouble(error.to_string())
}

/// The name of a disk by index: xvda to xvdiv.
#[must_use]
pub fn vdev(disk: usize) -> String {
    let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).expect("below 26"));
    if disk < 26 {
        format!("xvd{}", letter(disk))
    } else {
        format!("xvd{}{}", letter(disk / 26 - 1), letter(disk))
    }
}

/// When the last of `times` ends if each begins as soon as one of `width` places is free, in order.
#[must_use]
pub fn list_schedule(times: &[u64], width: usize) -> u64 {
    let mut places = vec![0_u64; width.max(1)];
    for time in times {
        let first = places.iter_mut().min().expect("at least one");
        *first += time;
    }
    places.into_iter().max().unwrap_or_default()
}

impl BootStorm {
    /// Boots a host whose toolstack has these limits.
    ///
    /// # Errors
    /// The daemon does not start.
    pub fn new(times: AttachTimes, limits: &Limits) -> Result<Self, Trouble> {
        let machine = MachineConfig::default();
        let host = SimHost::boot(HostConfig { machine, seed: times.seed, ..HostConfig::default() });
        host.os().add_file("/kernel", kernel_image());
        let mut daemon = Daemon::start(&host).map_err(trouble)?;
        daemon.set_attach_times(times);
        let mut storm = Self { host, daemon, times, vms: 0 };
        let wanted = Some(limits.clone());
        storm.ask(Request::Limits { wanted })?;
        Ok(storm)
    }

    fn path(&self, vm: u64, disk: usize) -> String {
        format!("/disks/{vm}-{disk}.raw")
    }

    /// Attach times of a VM's disks, in order.
    #[must_use]
    pub fn attach_times(&self, vm: u64, disks: usize) -> Vec<u64> {
        (0..disks).map(|disk| self.times.of(&self.path(vm, disk))).collect()
    }

    fn until(&self) -> Time {
        Time(self.host.now().0 + PATIENCE_NS)
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Trouble> {
        let client = self.daemon.request(request).map_err(trouble)?;
        self.wait(client)
    }

    fn wait(&mut self, client: ClientId) -> Result<Reply, Trouble> {
        let until = self.until();
        match self.daemon.wait(client, until).map_err(trouble)? {
            Some(Reply::Failed(message)) => Err(Trouble(message)),
            Some(reply) => Ok(reply),
            None => Err(Trouble("no answer in time".to_owned())),
        }
    }

    /// A request for a further VM with this many disks.
    fn create_request(&mut self, disks: usize) -> Result<Request, Trouble> {
        let vm = self.vms;
        self.vms += 1;
        let mut text = format!(
            "name = 'vm{vm}'\ntype = 'pv'\nkernel = '/kernel'\nmemory = 8\n\
             extra = 'sim.behaviour=never-connects'\ndisk = ["
        );
        for disk in 0..disks {
            let path = self.path(vm, disk);
            self.host.os().add_disk(&path, 1 << 20);
            text += &format!("'{path},raw,{},w',", vdev(disk));
        }
        text += "]\n";
        let source = xlcfg::Source { file: "storm.cfg", text: &text, overrides: &[] };
        let config = Box::new(xlcfg::parse(source).map_err(trouble)?);
        let fresh_uuid = Uuid((u128::from(vm) + 1).to_be_bytes());
        Ok(Request::Create { config, fresh_uuid, start: Start::Running })
    }

    /// Creates a VM alone.
    ///
    /// # Errors
    /// The create failed.
    pub fn create(&mut self, disks: usize) -> Result<Created, Trouble> {
        let request = self.create_request(disks)?;
        match self.ask(request)? {
            Reply::Created(created) => Ok(*created),
            other => Err(Trouble(format!("not created: {other:?}"))),
        }
    }

    /// Creates VMs, this many at a time; returns the total time.
    ///
    /// # Errors
    /// A create failed.
    pub fn create_many(
        &mut self,
        vms: usize,
        disks: usize,
        at_a_time: usize,
    ) -> Result<u64, Trouble> {
        let began = self.host.now();
        let mut waiting = VecDeque::new();
        for _ in 0..vms {
            let request = self.create_request(disks)?;
            waiting.push_back(request);
        }
        let mut open = 0;
        while open > 0 || !waiting.is_empty() {
            while open < at_a_time
                && let Some(request) = waiting.pop_front()
            {
                self.daemon.request(request).map_err(trouble)?;
                open += 1;
            }
            let until = self.until();
            if !self.daemon.step(until).map_err(trouble)? {
                return Err(Trouble("the host stands still".to_owned()));
            }
            while let Some(client) = self.daemon.poll_answered() {
                match self.daemon.take_reply(client) {
                    Some(Reply::Created(_)) => open -= 1,
                    Some(other) => return Err(Trouble(format!("{other:?}"))),
                    None => {}
                }
            }
        }
        Ok(self.host.now().0 - began.0)
    }

    /// Plugs disks into a running VM like xenopsd: a chunk begins when the previous one has ended.
    ///
    /// # Errors
    /// A plug failed.
    pub fn plug_in_chunks(&mut self, disks: usize, chunk: usize) -> Result<u64, Trouble> {
        let vm = self.vms;
        self.create(0)?;
        let began = self.host.now();
        let all: Vec<usize> = (0..disks).collect();
        for disks in all.chunks(chunk.max(1)) {
            let mut asked = Vec::new();
            for disk in disks {
                let path = self.path(vm, *disk);
                self.host.os().add_disk(&path, 1 << 20);
                let spec = format!("{path},raw,{},w", vdev(*disk));
                let device = Box::new(Device::Disk(xlcfg::parse_disk(&spec).map_err(Trouble)?));
                let request = Request::Plug { target: format!("vm{vm}"), device };
                asked.push(self.daemon.request(request).map_err(trouble)?);
            }
            for client in asked {
                self.wait(client)?;
            }
        }
        Ok(self.host.now().0 - began.0)
    }
}

/// Time from the first attach's start to the last one's end, and the most that ran concurrently.
#[must_use]
pub fn attach_span(created: &Created) -> (u64, usize) {
    let steps = created
        .steps
        .iter()
        .filter(|it| matches!(it.step, Step::Device(DeviceStep::AttachDisk(_))));
    let mut changes: BTreeMap<(u64, bool), usize> = BTreeMap::new();
    let (mut first, mut last) = (u64::MAX, 0_u64);
    for step in steps {
        let Some(ended) = step.ended else { continue };
        first = first.min(step.started.0);
        last = last.max(ended.0);
        // At equal times, ends come first.
        *changes.entry((step.started.0, true)).or_default() += 1;
        *changes.entry((ended.0, false)).or_default() += 1;
    }
    let (mut now, mut most) = (0, 0);
    for ((_, begins), count) in changes {
        now = if begins { now + count } else { now - count };
        most = most.max(now);
    }
    (last.saturating_sub(first), most)
}
