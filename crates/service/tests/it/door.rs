//! A client at a door of a daemon on a simulated host.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use api::{Answer, Reply, Request};
use service::{Ask, Daemon, Door, Gone, Kernel, News, Role, Service};
use sim::{HostConfig, SimHost, Time};
use storage::System;
use toolstack::work::Cost;
use toolstack::xlcfg::{HostDefaults, read_host};
use toolstack::{Asker, Instant};
use xen::Uuid;
use xenstore::client::Transport;

/// Virtual time that a request may take at most.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Client {
    pub(crate) host: SimHost,
    daemon: RefCell<sim::Daemon>,
    heard: RefCell<Vec<Answer>>,
    uuids: RefCell<u8>,
    /// How often the connection that came with a request was taken.
    pub(crate) channels_taken: Cell<u32>,
    /// What it was joined to.
    pub(crate) relayed: RefCell<Vec<service::Outlet>>,
    /// Of the host's `xl.conf`.
    pub(crate) xl_conf: RefCell<String>,
    pub(crate) role: RefCell<Role>,
    /// Who was refused what.
    pub(crate) refused: RefCell<Vec<String>>,
}

impl Client {
    pub(crate) fn new(seed: u64) -> Self {
        Self::on(HostConfig { seed, ..HostConfig::default() })
    }

    pub(crate) fn on(host: HostConfig) -> Self {
        let host = SimHost::boot(host);
        let os = host.os();
        os.add_file("/vm/kernel", sim::kernel_image());
        os.add_file("/vm/initrd", vec![0x1f; 20_000]);
        os.add_disk("/vm/disk.raw", 1 << 20);
        os.add_disk("/vm/cd.iso", 1 << 20);
        os.add_bridge("xenbr0");
        let mut daemon = sim::Daemon::start(&host).unwrap();
        daemon.told = Some(Vec::new());
        daemon.set_looks_every(toolstack::around::LOOKS_EVERY_NS);
        Self {
            host,
            daemon: daemon.into(),
            heard: RefCell::default(),
            uuids: RefCell::new(0),
            channels_taken: Cell::new(0),
            relayed: RefCell::default(),
            xl_conf: RefCell::default(),
            role: RefCell::new(Role::Admin),
            refused: RefCell::default(),
        }
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Reply, String> {
        let asker = Some(Asker { uid: 1000, pid: 77 });
        let role = *self.role.borrow();
        match (Service { daemon: self, door: self, asker, role })
            .answer(request)
            .expect("nobody left")
        {
            Answer::Ok(reply) => Ok(reply),
            Answer::Error(message) => Err(message),
            other => panic!("no final answer: {other:?}"),
        }
    }

    /// Lets guests come up.
    pub(crate) fn settle(&self) {
        Daemon::pause(self, Duration::from_secs(5));
    }

    /// What was told before the final answers, since the last look.
    pub(crate) fn heard(&self) -> Vec<Answer> {
        self.heard.take()
    }

    /// The lines of the log since the last look, without durations.
    pub(crate) fn logged(&self) -> Vec<String> {
        let is_time = |word: &str| word.contains('.') && word.parse::<f64>().is_ok();
        let without = |line: String| {
            let words = line.split(' ').map(|word| if is_time(word) { "T" } else { word });
            words.collect::<Vec<_>>().join(" ")
        };
        std::mem::take(&mut self.daemon.borrow_mut().logged)
            .into_iter()
            .map(|it| without(it.message))
            .collect()
    }
}

/// A connection to the simulated store.
struct Link(xenstore::client::Client<sim::SocketTransport>);

impl Transport for Link {
    fn send(&mut self, bytes: &[u8]) -> Result<(), xen::Errno> {
        self.0.transport_mut().send(bytes)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, xen::Errno> {
        self.0.transport_mut().recv(into)
    }
}

impl service::StoreLink for Link {
    fn wait(&mut self, _: Duration) -> Result<bool, String> {
        Ok(self.0.transport().has_input())
    }
}

impl Door for Client {
    fn tell(&self, answer: &Answer) -> Result<(), Gone> {
        self.heard.borrow_mut().push(answer.clone());
        Ok(())
    }

    fn channel(&self) -> Option<toolstack::channel::ChannelId> {
        self.channels_taken.set(self.channels_taken.get() + 1);
        Some(toolstack::channel::ChannelId(1))
    }

    fn has_gone(&self) -> bool {
        false
    }
}

impl Daemon for Client {
    fn ask(
        &self,
        ask: Ask,
        hear: &mut dyn FnMut(News) -> Result<(), Gone>,
    ) -> Result<toolstack::Reply, Gone> {
        Ok(self.wait(ask, Some(PATIENCE), self, hear)?.expect("a reply in time"))
    }

    fn wait(
        &self,
        ask: Ask,
        patience: Option<Duration>,
        _: &dyn Door,
        hear: &mut dyn FnMut(News) -> Result<(), Gone>,
    ) -> Result<Option<toolstack::Reply>, Gone> {
        let mut daemon = self.daemon.borrow_mut();
        daemon.asker = ask.asker;
        let client = daemon.request(ask.request).unwrap();
        let ns = u64::try_from(patience.unwrap_or(PATIENCE).as_nanos()).unwrap();
        let reply = daemon.wait(client, Time(self.host.now().0 + ns)).unwrap();
        let told = std::mem::take(&mut daemon.told_of_each);
        let progress = daemon.told.as_mut().map(std::mem::take).unwrap_or_default();
        drop(daemon);
        for (_, far) in progress {
            if ask.progress == service::Progress::Wanted {
                hear(News::Progress(Box::new(far)))?;
            }
        }
        told.into_iter().try_for_each(|(_, told)| hear(News::Told(told)))?;
        Ok(reply)
    }

    fn put(&self, request: toolstack::Request) {
        let mut daemon = self.daemon.borrow_mut();
        daemon.asker = None;
        daemon.request(request).unwrap();
    }

    fn refused(&self, asker: Option<Asker>, role: Role, request: &Request) {
        let uid = asker.expect("somebody asks").uid;
        let line = format!("{uid} as {}: {}", role.as_str(), api::name_of(request));
        self.refused.borrow_mut().push(line);
    }

    fn pause(&self, time: Duration) {
        let until = Time(self.host.now().0 + u64::try_from(time.as_nanos()).unwrap());
        self.daemon.borrow_mut().run_until_quiet(until).unwrap();
        self.host.sleep_until(until);
    }

    fn fresh_uuid(&self) -> Result<Uuid, String> {
        *self.uuids.borrow_mut() += 1;
        Ok(Uuid([*self.uuids.borrow(); 16]))
    }

    fn unix_ms(&self, at: Instant) -> u64 {
        at.0 / 1_000_000
    }

    fn totals(&self) -> Cost {
        self.daemon.borrow().totals.clone()
    }

    fn activity(&self) -> api::Activity {
        api::Activity::default()
    }

    fn traffic(&self) -> api::Traffic {
        api::Traffic::default()
    }

    fn pong(&self) -> api::Pong {
        api::Pong { release: "1.2.3".to_owned(), pid: 1 }
    }

    fn kernel(&self) -> Kernel {
        Kernel { host: "sim".to_owned(), ..Kernel::default() }
    }

    fn host_defaults(&self) -> Result<Arc<HostDefaults>, String> {
        let reading = read_host("/etc/xen/xl.conf", &self.xl_conf.borrow());
        match reading.faults.first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(Arc::new(reading.defaults)),
        }
    }

    fn peer(&self, _: api::PeerRequest) -> Result<api::Reply, String> {
        Err("it knows no peers".to_owned())
    }

    fn call(&self, peer: &str) -> Result<toolstack::channel::ChannelId, String> {
        Err(format!("it knows no peer {peer}"))
    }

    fn lend(&self, _: toolstack::channel::ChannelId, device: &str) -> Result<(), String> {
        Err(format!("nobody takes {device}"))
    }

    fn pass(
        &self,
        _: toolstack::channel::ChannelId,
        _: &str,
        device: &str,
        _: service::Passing,
    ) -> Result<(), String> {
        Err(format!("nobody takes {device}"))
    }

    fn relay(&self, _: toolstack::channel::ChannelId, to: &service::Outlet) -> Result<(), String> {
        self.relayed.borrow_mut().push(to.clone());
        Ok(())
    }

    fn report(&self, _: toolstack::channel::ChannelId, report: api::Report) -> Result<(), String> {
        Err(format!("nobody makes a {report:?}"))
    }

    fn store(&self) -> Result<Box<dyn service::StoreLink>, String> {
        Ok(Box::new(Link(self.host.connect())))
    }

    fn store_status(&self, _: &str) -> Option<String> {
        None
    }

    fn storage(&self) -> Box<dyn System> {
        Box::new(self.host.os().clone())
    }
}
