//! What the service of requests needs of this daemon.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use local_door::{Relays, Reports};
use service::{Ask, Daemon, Door, Gone, Kernel, News, Outlet, Passing, Role, StoreLink};
use storage_host::LinuxSystem;
use toolstack::channel::{Channel, ChannelId, Received};
use toolstack::work::Cost;
use toolstack::xlcfg::HostDefaults;
use toolstack::{Asker, Reply, Request};
use xen::Uuid;

use crate::channels::Channels;
use crate::core::Core;
use crate::store::StoreLinks;
use crate::traffic::Backends;
use crate::xlconf::XlConf;

/// How often a client that waits is checked: it may have gone.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same, where hanging up is how a client cancels.
const HASTY_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a client that borrows a disk is waited for at once.
const LEND_LOOK_NS: u64 = 1_000_000_000;

/// The running daemon, for all its doors.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) core: Arc<Core>,
    pub(crate) system: LinuxSystem,
    pub(crate) channels: Channels,
    pub(crate) xl_conf: Arc<XlConf>,
    pub(crate) relays: Relays,
    pub(crate) store_links: StoreLinks,
    pub(crate) reports: Reports,
    pub(crate) backends: Backends,
}

impl Daemon for Running {
    fn ask(&self, ask: Ask, hear: &mut dyn FnMut(News) -> Result<(), Gone>) -> Result<Reply, Gone> {
        self.core.ask(ask, hear)
    }

    fn wait(
        &self,
        ask: Ask,
        patience: Option<Duration>,
        door: &dyn Door,
        hear: &mut dyn FnMut(News) -> Result<(), Gone>,
    ) -> Result<Option<Reply>, Gone> {
        let interval = match &ask.request {
            // The guest goes on as soon as the client has gone.
            Request::Migrate(_) | Request::Save { .. } => HASTY_CHECK_INTERVAL,
            _ => CLIENT_CHECK_INTERVAL,
        };
        let answered = self.core.begin(ask);
        local_door::reply_in_time(&answered, (interval, patience), door, hear)
    }

    fn put(&self, request: Request) {
        let ask = Ask { asker: None, request, progress: service::Progress::Unwanted };
        let _reply = self.core.begin(ask);
    }

    fn refused(&self, asker: Option<Asker>, role: Role, request: &api::Request) {
        let by = asker.map_or(String::new(), |it| format!(" by uid {} (pid {})", it.uid, it.pid));
        let (asked, role) = (api::name_of(request), role.as_str());
        crate::warn(format_args!("{asked}{by}: not permitted to a {role}"));
    }

    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }

    fn fresh_uuid(&self) -> Result<Uuid, String> {
        random_uuid().map_err(|error| format!("{error:#}"))
    }

    fn unix_ms(&self, at: toolstack::Instant) -> u64 {
        self.core.unix_ms(at)
    }

    fn totals(&self) -> Cost {
        self.core.totals()
    }

    fn activity(&self) -> api::Activity {
        self.core.activity()
    }

    fn traffic(&self) -> api::Traffic {
        self.backends.traffic()
    }

    fn pong(&self) -> api::Pong {
        api::Pong { release: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
    }

    fn kernel(&self) -> Kernel {
        let uname = rustix::system::uname();
        let text = |text: &CStr| text.to_string_lossy().into_owned();
        Kernel {
            host: text(uname.nodename()),
            release: text(uname.release()),
            version: text(uname.version()),
            machine: text(uname.machine()),
        }
    }

    fn host_defaults(&self) -> Result<Arc<HostDefaults>, String> {
        self.xl_conf.defaults()
    }

    fn peer(&self, request: api::PeerRequest) -> Result<api::Reply, String> {
        self.channels.directory().answer(request)
    }

    fn call(&self, peer: &str) -> Result<ChannelId, String> {
        self.channels.call(peer)
    }

    fn lend(&self, channel: ChannelId, device: &str) -> Result<(), String> {
        let lent = match self.channels.get(channel) {
            Some(mut connection) => lend(&mut *connection, device),
            None => Err("the connection that came with the request is gone".to_owned()),
        };
        self.channels.close(channel);
        lent
    }

    fn pass(&self, channel: ChannelId, _: &str, device: &str, how: Passing) -> Result<(), String> {
        let ends = self.channels.take(channel);
        let ends = ends.ok_or("the connection that came with the request is gone")?;
        local_door::pass_disk(&local_door::open_disk(Path::new(device), how)?, ends, how)
    }

    fn relay(&self, channel: ChannelId, to: &Outlet) -> Result<(), String> {
        let ends = self.channels.take(channel);
        let ends = ends.ok_or("the connection that came with the request is gone")?;
        self.relays.begin(to, ends, || local_door::open_place(to))
    }

    fn report(&self, channel: ChannelId, report: api::Report) -> Result<(), String> {
        let ends = self.channels.take(channel);
        let ends = ends.ok_or("the connection that came with the request is gone")?;
        self.reports.begin(report, ends)
    }

    fn store(&self) -> Result<Box<dyn StoreLink>, String> {
        self.store_links.connect()
    }

    fn store_status(&self, word: &str) -> Option<String> {
        self.store_links.status(word)
    }

    fn storage(&self) -> Box<dyn storage::System> {
        Box::new(self.system.clone())
    }
}

impl local_door::Served for Running {
    fn keep(&self, ends: local_door::ChannelEnds) -> Option<ChannelId> {
        self.channels.put(ends).ok()
    }
}

/// Says the path, and waits for the other end to close the connection.
fn lend(connection: &mut dyn Channel, device: &str) -> Result<(), String> {
    let line = format!("{device}\n");
    let mut left = line.as_bytes();
    while !left.is_empty() {
        match connection.send(left, LEND_LOOK_NS).map_err(|error| error.to_string())? {
            0 => return Err(format!("nobody takes {device}")),
            sent => left = &left[sent..],
        }
    }
    loop {
        match connection.receive(&mut [0; 64], LEND_LOOK_NS) {
            Ok(Received::End) | Err(_) => return Ok(()),
            Ok(Received::Bytes(_) | Received::Nothing) => {}
        }
    }
}

pub(crate) fn random() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if length.context("no random numbers")? < bytes.len() {
        bail!("too few random numbers");
    }
    Ok(bytes)
}

/// A version 4 UUID.
fn random_uuid() -> anyhow::Result<Uuid> {
    random().map(Uuid::of_random)
}
