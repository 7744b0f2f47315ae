//! The thread on which the simulated host lives.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use local_door::Waiting;
use service::{Ask, News};
use sim::{
    BackendKind, Counts, Daemon, DaemonError, DeviceCounts, HostConfig, MachineConfig, SimHost,
    SimOs, Time,
};
use toolstack::ClientId;
use toolstack::around::{LOOKS_EVERY_NS, READINGS_EVERY_NS};
use toolstack::work::Cost;
use xen::DomId;

use crate::store::{StoreDeed, StoreLinks};

/// How long the thread sleeps at most: time goes on for guests that do nothing, too.
const TICK: Duration = Duration::from_millis(100);

/// Steps that are done before clients are looked at again.
const STEPS: usize = 64;

/// The host to simulate.
#[derive(Clone, Copy, Debug)]
pub struct WorldConfig {
    pub seed: u64,
    /// Of the host.
    pub memory_mib: u64,
    pub cpus: u32,
}

/// Something to be done on the simulation's thread.
pub(crate) enum Deed {
    /// A request to the machine, and who waits for its reply.
    Ask(Ask, Waiting),
    /// A call to the simulated operating system.
    System(Box<dyn FnOnce(&mut SimOs) + Send>),
    /// What a domain has printed on its console; `None` if it has none any more.
    Printed(DomId, Sender<Option<String>>),
    /// A client's connection to the store.
    Store(StoreDeed),
    /// What all work has cost.
    Totals(Sender<Cost>),
    /// What devices have been used for.
    Traffic(Sender<api::Traffic>),
}

/// What VMs are made of there.
fn furnish(os: &SimOs) {
    os.add_file("/boot/vmlinuz", sim::kernel_image());
    os.add_file("/boot/initrd.img", vec![0x1f; 20_000]);
    os.add_directory("/srv");
    os.add_card("eno1", None);
    os.add_bridge("xenbr0");
    os.add_port("eno1", "xenbr0");
    // For guests that talk to each other only.
    os.add_bridge("inside");
    // So that disks can be snapshotted and copied while VMs run.
    os.set_shares_blocks(true);
}

/// What backends have counted, in the words of the API.
fn traffic(host: &SimHost) -> api::Traffic {
    let mut traffic = api::Traffic::default();
    for DeviceCounts { kind, domid, devid, counts } in host.device_counts() {
        let Counts { requests_in, bytes_in, requests_out, bytes_out } = counts;
        match kind {
            BackendKind::Vbd => traffic.disks.push(api::DiskTraffic {
                domid: domid.0,
                device: toolstack::xlcfg::vdev_name(devid),
                reads: requests_in,
                writes: requests_out,
                read_bytes: bytes_in,
                written_bytes: bytes_out,
                ..api::DiskTraffic::default()
            }),
            BackendKind::Vif => traffic.vifs.push(api::VifTraffic {
                domid: domid.0,
                devid,
                received_bytes: bytes_in,
                received_packets: requests_in,
                sent_bytes: bytes_out,
                sent_packets: requests_out,
                ..api::VifTraffic::default()
            }),
            BackendKind::Pci => {}
        }
    }
    traffic
}

/// A host, a daemon on it, and who waits for that.
pub(crate) struct World {
    host: SimHost,
    daemon: Daemon,
    waiting: BTreeMap<ClientId, Waiting>,
    store_links: StoreLinks,
    /// The real time of the virtual time 0.
    origin: Instant,
}

impl World {
    /// Boots the host and starts the daemon.
    pub(crate) fn boot(config: WorldConfig) -> Result<Self, DaemonError> {
        let WorldConfig { seed, memory_mib, cpus } = config;
        let pages = memory_mib * 256;
        let dom0_pages = (pages / 8).clamp(64 << 8, 4096 << 8);
        let machine = MachineConfig { pages, dom0_pages, cpus, ..MachineConfig::default() };
        let host = SimHost::boot(HostConfig { seed, machine, ..HostConfig::default() });
        furnish(host.os());
        // Nobody reads it, and it would grow for days.
        host.keep_last(0);
        let mut daemon = Daemon::start(&host)?;
        daemon.told = Some(Vec::new());
        daemon.set_looks_every(LOOKS_EVERY_NS);
        daemon.set_readings_every(READINGS_EVERY_NS);
        let now = Duration::from_nanos(host.now().0);
        let began = Instant::now();
        let origin = began.checked_sub(now).unwrap_or(began);
        let store_links = StoreLinks::default();
        Ok(Self { host, daemon, waiting: BTreeMap::new(), store_links, origin })
    }

    /// The real time of the virtual time 0.
    pub(crate) fn origin(&self) -> Instant {
        self.origin
    }

    /// Lives until nobody can ask for anything any more.
    pub(crate) fn live(mut self, deeds: &Receiver<Deed>) -> Result<(), DaemonError> {
        loop {
            let now = Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let date = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.host.os().set_unix_ms(u64::try_from(date.as_millis()).unwrap_or(u64::MAX));
            let is_busy = self.go_on_to(now)?;
            let sleep = if is_busy { Duration::ZERO } else { self.until_next(now) };
            match deeds.recv_timeout(sleep) {
                Ok(deed) => self.take(deed)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while let Ok(deed) = deeds.try_recv() {
                self.take(deed)?;
            }
        }
    }

    /// Does what is due by now, or a part of it. Returns whether there is more.
    fn go_on_to(&mut self, now: Time) -> Result<bool, DaemonError> {
        for _ in 0..STEPS {
            let went_on = self.daemon.step(now)?;
            self.answer();
            if !went_on {
                // What hypercalls took may be ahead of the real clock; then it waits for that.
                self.host.sleep_until(now);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn until_next(&self, now: Time) -> Duration {
        let next = self.daemon.next_time().map(|next| next.0.saturating_sub(now.0));
        next.map_or(TICK, |ns| TICK.min(Duration::from_nanos(ns)))
    }

    fn take(&mut self, deed: Deed) -> Result<(), DaemonError> {
        match deed {
            Deed::Ask(Ask { asker, request, .. }, waiting) => {
                self.daemon.asker = asker;
                let client = self.daemon.request(request)?;
                self.waiting.insert(client, waiting);
                self.answer();
            }
            Deed::System(call) => call(&mut self.host.os().clone()),
            Deed::Printed(domid, answer) => {
                let _gone = answer.send(self.host.printed(domid));
            }
            Deed::Store(deed) => self.store_links.take(&self.host, deed),
            Deed::Totals(answer) => {
                // A client that has hung up no longer wants to know.
                let _gone = answer.send(self.daemon.totals.clone());
            }
            Deed::Traffic(answer) => {
                let _gone = answer.send(traffic(&self.host));
            }
        }
        Ok(())
    }

    /// Passes on what the daemon has said.
    fn answer(&mut self) {
        let progress = self.daemon.told.as_mut().map(std::mem::take).unwrap_or_default();
        for (client, far) in progress {
            self.tell(client, News::Progress(Box::new(far)));
        }
        for (client, told) in std::mem::take(&mut self.daemon.told_of_each) {
            self.tell(client, News::Told(told));
        }
        for (client, started) in std::mem::take(&mut self.daemon.started) {
            let sim::Started { vm, done, total, failure } = started;
            self.tell(client, News::Started { vm, done, total, failure });
        }
        while let Some(client) = self.daemon.poll_answered() {
            let reply = self.daemon.take_reply(client);
            if let (Some(reply), Some(waiting)) = (reply, self.waiting.remove(&client)) {
                waiting.reply(reply);
            }
        }
        self.daemon.logged.clear();
    }

    fn tell(&self, client: ClientId, news: News) {
        if let Some(waiting) = self.waiting.get(&client) {
            waiting.tell(news);
        }
    }
}
