//! What the service of requests needs of a daemon, by messages to the simulation's thread.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use local_door::{Answered, ChannelEnds, Reports, Served, Waiting};
use service::{Ask, Daemon, Door, Gone, Kernel, News, Outlet, Passing, Role, StoreLink};
use storage::System;
use toolstack::channel::ChannelId;
use toolstack::work::Cost;
use toolstack::xlcfg::HostDefaults;
use toolstack::{Asker, Reply};
use xen::Uuid;

use crate::consoles::Consoles;
use crate::store::{self, StoreDoor};
use crate::system::RemoteSystem;
use crate::world::{Deed, World, WorldConfig};

/// How often a client that waits is checked: it may have gone.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A daemon on a simulated host.
#[derive(Clone, Debug)]
pub struct SimDaemon {
    deeds: Sender<Deed>,
    /// The virtual time 0, in milliseconds since 1970.
    origin_unix_ms: u64,
    defaults: Arc<HostDefaults>,
    consoles: Consoles,
    reports: Option<Reports>,
    disks: Option<PathBuf>,
}

impl SimDaemon {
    /// Boots a host, which lives on a thread of its own for as long as somebody has this.
    ///
    /// # Errors
    /// The host cannot be booted.
    pub fn start(config: WorldConfig) -> anyhow::Result<Self> {
        let (deeds, to_do) = mpsc::channel();
        let (booted, is_booted) = mpsc::channel();
        thread::Builder::new().name("world".to_owned()).spawn(move || {
            match World::boot(config) {
                Ok(world) => {
                    let _gone = booted.send(Ok(world.origin()));
                    if let Err(error) = world.live(&to_do) {
                        eprintln!("the simulated host cannot go on: {error}");
                    }
                }
                Err(error) => {
                    let _gone = booted.send(Err(error.to_string()));
                }
            }
        })?;
        let origin = is_booted.recv()?.map_err(anyhow::Error::msg)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin_unix = now.saturating_sub(Instant::now().duration_since(origin));
        let origin_unix_ms = u64::try_from(origin_unix.as_millis()).unwrap_or(u64::MAX);
        let consoles = Consoles::new(deeds.clone());
        Ok(Self {
            deeds,
            origin_unix_ms,
            defaults: Arc::default(),
            consoles,
            reports: None,
            disks: None,
        })
    }

    /// All VMs have this server's screen.
    #[must_use]
    pub fn with_screen(mut self, address: String) -> Self {
        self.consoles.screen = Some(address);
        self
    }

    /// The bytes of VDIs are in files of their names in this folder.
    #[must_use]
    pub fn with_disks(self, folder: PathBuf) -> Self {
        Self { disks: Some(folder), ..self }
    }

    /// Has reports made by these.
    #[must_use]
    pub fn with_reports(self, reports: Reports) -> Self {
        Self { reports: Some(reports), ..self }
    }

    /// Serves the simulated host's store on a socket, as `xylem-xenstored` does.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn serve_store(&self, listener: UnixListener) -> std::io::Result<()> {
        store::serve(listener, self.deeds.clone())
    }

    fn begin(&self, ask: Ask) -> mpsc::Receiver<Answered> {
        let (answers, answered) = mpsc::channel();
        let waiting = Waiting { answers, progress: ask.progress };
        // Without the thread nobody answers.
        let _ended = self.deeds.send(Deed::Ask(ask, waiting));
        answered
    }
}

impl Daemon for SimDaemon {
    fn ask(&self, ask: Ask, hear: &mut dyn FnMut(News) -> Result<(), Gone>) -> Result<Reply, Gone> {
        local_door::reply(&self.begin(ask), hear)
    }

    fn wait(
        &self,
        ask: Ask,
        patience: Option<Duration>,
        door: &dyn Door,
        hear: &mut dyn FnMut(News) -> Result<(), Gone>,
    ) -> Result<Option<Reply>, Gone> {
        let answered = self.begin(ask);
        local_door::reply_in_time(&answered, (CLIENT_CHECK_INTERVAL, patience), door, hear)
    }

    fn put(&self, request: toolstack::Request) {
        let progress = service::Progress::Unwanted;
        let _reply = self.begin(Ask { asker: None, request, progress });
    }

    fn refused(&self, _: Option<Asker>, _: Role, _: &api::Request) {}

    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }

    fn fresh_uuid(&self) -> Result<Uuid, String> {
        let mut bytes = [0; 16];
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes, flags) {
            Ok(16) => Ok(Uuid::of_random(bytes)),
            _ => Err("no random numbers".to_owned()),
        }
    }

    fn unix_ms(&self, at: toolstack::Instant) -> u64 {
        self.origin_unix_ms + at.0 / 1_000_000
    }

    fn totals(&self) -> Cost {
        let (answer, answered) = mpsc::channel();
        let _ended = self.deeds.send(Deed::Totals(answer));
        answered.recv().unwrap_or_default()
    }

    fn activity(&self) -> api::Activity {
        api::Activity::default()
    }

    fn traffic(&self) -> api::Traffic {
        let (answer, answered) = mpsc::channel();
        let _ended = self.deeds.send(Deed::Traffic(answer));
        answered.recv().unwrap_or_default()
    }

    fn pong(&self) -> api::Pong {
        let release = concat!(env!("CARGO_PKG_VERSION"), " on a simulated host");
        api::Pong { release: release.to_owned(), pid: std::process::id() }
    }

    fn kernel(&self) -> Kernel {
        Kernel {
            host: "simulated".to_owned(),
            release: "0".to_owned(),
            version: "simulated".to_owned(),
            machine: "x86_64".to_owned(),
        }
    }

    fn host_defaults(&self) -> Result<Arc<HostDefaults>, String> {
        Ok(Arc::clone(&self.defaults))
    }

    fn peer(&self, _: api::PeerRequest) -> Result<api::Reply, String> {
        Err("a simulated host has no peers".to_owned())
    }

    fn call(&self, peer: &str) -> Result<ChannelId, String> {
        Err(format!("{peer}: a simulated host has no peers"))
    }

    fn lend(&self, _: ChannelId, device: &str) -> Result<(), String> {
        Err(format!("{device} is a device of a simulated host, and cannot be lent"))
    }

    fn pass(
        &self,
        channel: ChannelId,
        vdi: &str,
        device: &str,
        how: Passing,
    ) -> Result<(), String> {
        // Whatever comes of it, its other end must not wait.
        let gone = "the connection that came with the request is gone";
        let ends = self.consoles.take(channel).ok_or(gone)?;
        let none = || format!("{device} is a device of a simulated host, which has no bytes");
        let file = self.disks.as_ref().ok_or_else(none)?.join(vdi);
        local_door::pass_disk(&local_door::open_disk(&file, how)?, ends, how)
    }

    fn relay(&self, channel: ChannelId, to: &Outlet) -> Result<(), String> {
        self.consoles.relay(channel, to)
    }

    fn report(&self, channel: ChannelId, report: api::Report) -> Result<(), String> {
        let none = "nobody makes reports about a simulated host";
        let reports = self.reports.as_ref().ok_or(none)?;
        let gone = "the connection that came with the request is gone";
        reports.begin(report, self.consoles.take(channel).ok_or(gone)?)
    }

    fn store(&self) -> Result<Box<dyn StoreLink>, String> {
        Ok(Box::new(StoreDoor::new(self.deeds.clone())))
    }

    fn store_status(&self, _: &str) -> Option<String> {
        None
    }

    fn storage(&self) -> Box<dyn System> {
        Box::new(RemoteSystem::new(self.deeds.clone()))
    }
}

impl Served for SimDaemon {
    fn keep(&self, ends: ChannelEnds) -> Option<ChannelId> {
        Some(self.consoles.keep(ends))
    }
}
