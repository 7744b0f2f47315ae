//! The event loop: bytes between sockets, rings and the store. It decides nothing.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use xen_linux::{HangupSignals, StopSignals};
use xenstore::server::{ByConnection, ConnId, Pace, PollScope, Server};

use crate::patience::{LOOK, Manner, Patience};
use crate::platform::cpu_time;
use crate::rings::{Rings, Turn};
use crate::signs_of_life::SignsOfLife;
use crate::status::{self, StatusSocket};
use crate::update::Update;

/// Read from a socket in one turn: enough to answer many requests at once, too little for one client
/// to hold the others up.
const READ_BYTES: usize = 16 * 1024;

/// Requests of one client whose replies wait for each other: whoever sent more than these has the first
/// replies while the rest is executed.
const REQUESTS_TOGETHER: usize = 8;

/// Files that one wait reports: who waits behind them is not answered before them.
const EVENTS_MAX: usize = 64;

/// Clients accepted in one turn: a crowd at the door does not keep those inside waiting.
const ACCEPTED_IN_TURN: usize = 16;

/// Pieces of removed subtrees that are freed between two turns: about a tenth of a millisecond.
const PIECES_CLEARED_UP: usize = 1_000;

/// What guests may have done for them between two looks at sockets, in [`Server::work`]: about a
/// millisecond.
const STEPS_OF_GUESTS: u64 = 8_000;

const LISTENER: u64 = 0;
const EVENT_CHANNELS: u64 = 1;
const STOP: u64 = 2;
const HANGUP: u64 = 3;
const BROKER: u64 = 4;
/// Socket clients have their connection's number plus this.
const CLIENTS: u64 = 5;

pub(crate) struct Client {
    pub(crate) fd: OwnedFd,
    /// The kernel's buffer was full: wait until it is not.
    waits_to_write: bool,
}

pub(crate) struct Daemon {
    pub(crate) server: Server,
    pub(crate) rings: Rings,
    epoll: OwnedFd,
    pub(crate) listener: OwnedFd,
    /// Descriptors ran out: nobody is accepted until one is free.
    is_full: bool,
    stop: StopSignals,
    hangup: HangupSignals,
    pub(crate) status: StatusSocket,
    pub(crate) clients: ByConnection<Client>,
    /// Clients that had more to say than one turn gave them. The kernel reports what arrives, not what
    /// lies there, so nothing else leads back to them.
    pub(crate) unread: Vec<ConnId>,
    /// Clients that asked something in this turn.
    asked: Vec<ConnId>,
    /// Rings that have more to say than one turn gave them.
    pub(crate) unfinished: BTreeSet<ConnId>,
    /// The guest that had the last turn.
    served_last: ConnId,
    // Kept from turn to turn, so that a turn allocates nothing.
    buffer: Vec<u8>,
    events: Vec<epoll::Event>,
    patience: Patience,
    /// When the domains are looked at.
    pace: Pace,
    ready: Vec<ConnId>,
    /// The store's time is counted from here.
    started: Instant,
    pub(crate) update: Update,
    /// Whether somebody starts a daemon again that ended.
    pub(crate) is_supervised: bool,
    pub(crate) life: SignsOfLife,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Stopped,
    /// This process serves now.
    HandedOver {
        successor: u32,
    },
}

/// Between two looks at a live update, if nothing else happens.
const UPDATE_PAUSE: Duration = Duration::from_millis(1);

/// Makes the socket at `path`; only root may connect.
pub(crate) fn listen(path: &Path) -> anyhow::Result<OwnedFd> {
    let context = || format!("cannot listen at {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(context)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(context);
        }
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .with_context(context)?;
    let address = net::SocketAddrUnix::new(path).with_context(context)?;
    net::bind(&listener, &address).with_context(context)?;
    let owner_only = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::chmod(path, owner_only).with_context(context)?;
    net::listen(&listener, 128).with_context(context)?;
    Ok(listener)
}

/// Goes on with the socket of a daemon before this one.
pub(crate) fn adopt_listener(listener: OwnedFd) -> anyhow::Result<OwnedFd> {
    let context = "cannot use the socket that was handed over";
    let flags = rustix::fs::fcntl_getfl(&listener).context(context)?;
    rustix::fs::fcntl_setfl(&listener, flags | rustix::fs::OFlags::NONBLOCK).context(context)?;
    Ok(listener)
}

impl Daemon {
    /// `waiting` are rings that may hold requests for which no event will come; the store's time is
    /// counted from `started`.
    pub(crate) fn new(
        server: Server,
        rings: Rings,
        listener: OwnedFd,
        status: OwnedFd,
        waiting: Vec<ConnId>,
        started: Instant,
    ) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make an epoll")?;
        let mut daemon = Self {
            server,
            rings,
            epoll,
            listener,
            is_full: false,
            stop: StopSignals::open()?,
            hangup: HangupSignals::open()?,
            status: StatusSocket::new(status),
            clients: ByConnection::new(),
            unread: Vec::new(),
            asked: Vec::new(),
            unfinished: waiting.into_iter().collect(),
            served_last: ConnId::of_number(0),
            buffer: vec![0; READ_BYTES],
            events: Vec::with_capacity(EVENTS_MAX),
            patience: Patience::new(),
            pace: Pace::default(),
            ready: Vec::new(),
            started,
            update: Update::default(),
            is_supervised: false,
            life: SignsOfLife::default(),
        };
        daemon.watch_broker()?;
        daemon.add(LISTENER, &daemon.listener)?;
        daemon.add(STOP, &daemon.stop)?;
        daemon.add(HANGUP, &daemon.hangup)?;
        // Reported once: without a descriptor left, nobody is accepted and this must not go on.
        let token = epoll::EventData::new_u64(status::TOKENS);
        let once = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&daemon.epoll, daemon.status.listener(), token, once)
            .context("cannot wait for a file")?;
        let epoll = &daemon.epoll;
        if let Some(platform) = daemon.rings.platform() {
            epoll::add(
                epoll,
                platform.events(),
                epoll::EventData::new_u64(EVENT_CHANNELS),
                epoll::EventFlags::IN,
            )?;
        }
        // No two runs of a daemon begin at the same nanosecond.
        let epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        daemon.server.begin_epoch(u64::try_from(epoch).unwrap_or(u64::MAX));
        Ok(daemon)
    }

    fn add(&self, token: u64, fd: impl AsFd) -> anyhow::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).context("cannot wait for a file")
    }

    /// Serves until it is told to stop, or another process serves.
    pub(crate) fn run(&mut self) -> anyhow::Result<End> {
        // Domains may have come and gone before we listened for it.
        self.compare_domains(PollScope::Everything);
        loop {
            // Everybody is heard first and answered then.
            self.serve_ready();
            self.server.clear_up(PIECES_CLEARED_UP);
            let (events, now) = self.wait()?;
            self.life.show(now, &self.server);
            self.server.advance(&mut self.rings, now);
            self.check_broker(events.iter().any(|event| event.data.u64() == BROKER))?;
            // First, so that nobody is answered about a domain that is gone.
            if events.iter().any(|event| event.data.u64() == EVENT_CHANNELS) {
                self.handle_event_channels()?;
            }
            if self.pace.is_due(self.started.elapsed()) {
                self.compare_domains(PollScope::Changes);
            }
            let unread = std::mem::take(&mut self.unread);
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    EVENT_CHANNELS | BROKER => {}
                    STOP => {
                        if self.stop.received()? {
                            return Ok(End::Stopped);
                        }
                    }
                    HANGUP => {
                        if self.hangup.received()? {
                            self.reload();
                        }
                    }
                    token if token & status::TOKENS != 0 => {
                        self.status.handle(&self.epoll, &self.server, token);
                    }
                    token => self.handle_client(token, event.flags),
                }
            }
            self.events = events;
            for id in unread {
                self.take_requests(id, Rest::MayBeThere);
            }
            self.serve_rings();
            if let Some(successor) = self.work_on_update() {
                return Ok(End::HandedOver { successor });
            }
        }
    }

    /// Opens the trace file again.
    fn reload(&mut self) {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = monotonic.tv_sec * 1_000_000 + monotonic.tv_nsec / 1000;
        // Nothing depends on what the manager hears of it.
        let _unheard = service_manager::tell(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\n"));
        self.rings.log.reopen();
        let _unheard = service_manager::tell("READY=1\n");
    }

    /// What happened, at once if there is something left to do, and when that was.
    fn wait(&mut self) -> anyhow::Result<(Vec<epoll::Event>, Duration)> {
        let timeout = self.timeout();
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        if timeout.is_some_and(|timeout| timeout == NOW) {
            wait_for(&self.epoll, &mut events, timeout)?;
            return Ok((events, self.started.elapsed()));
        }
        // The clock is asked no more than needed: each time costs as much as a lookup.
        let begun = self.started.elapsed();
        let manner = self.patience.manner();
        if manner == Manner::Looked {
            loop {
                wait_for(&self.epoll, &mut events, Some(NOW))?;
                if !events.is_empty() || self.started.elapsed() - begun >= LOOK {
                    break;
                }
            }
        }
        if events.is_empty() {
            wait_for(&self.epoll, &mut events, timeout)?;
        }
        let now = self.started.elapsed();
        self.patience.note(manner, now - begun);
        Ok((events, now))
    }

    /// How long to wait if nothing happens; `None` for ever.
    fn timeout(&mut self) -> Option<Timespec> {
        let is_idle = self.unfinished.is_empty()
            && self.unread.is_empty()
            && !self.server.has_ready()
            && self.server.is_cleared_up();
        let journal = self.rings.work_on_journal(&mut self.server);
        if !is_idle {
            return Some(NOW);
        }
        let update = self.rings.live_update.started().map(|_| UPDATE_PAUSE);
        let deadline = self.server.next_deadline();
        let deadline = deadline.map(|deadline| deadline.saturating_sub(self.started.elapsed()));
        let look = self.pace.due().map(|due| due.saturating_sub(self.started.elapsed()));
        let life = self.life.due().map(|due| due.saturating_sub(self.started.elapsed()));
        let others = deadline.into_iter().chain(update).chain(look).chain(life);
        let wait = journal.into_iter().chain(others).min()?;
        Timespec::try_from(wait).ok()
    }

    fn handle_event_channels(&mut self) -> anyhow::Result<()> {
        let Some(platform) = self.rings.platform() else { return Ok(()) };
        let exception_port = platform.exception_port();
        let fired = platform.fired()?;
        if fired.contains(&exception_port) {
            self.pace.want();
        }
        for port in fired {
            if let Some(id) = self.rings.by_port(port) {
                self.unfinished.insert(id);
            }
        }
        Ok(())
    }

    pub(crate) fn compare_domains(&mut self, what: PollScope) {
        let Some(platform) = self.rings.platform() else { return };
        let begun = self.started.elapsed();
        let cpu = cpu_time();
        let looked = platform.poll_domains(what);
        let has_failed = looked.is_err();
        let cpu = cpu_time().saturating_sub(cpu) + platform.poll_cpu();
        self.server.count_look(cpu);
        match looked {
            Ok(news) => self.server.handle_domain_news(&mut self.rings, &news),
            Err(error) => self.rings.log.line(&format!("{error:#}")),
        }
        let now = self.started.elapsed();
        self.pace.polled(now, now.saturating_sub(begun));
        if has_failed {
            // Nobody says again what was not heard.
            self.pace.want();
        }
    }

    /// Waits for the broker's end. It is not heard of otherwise but when it is asked.
    fn watch_broker(&mut self) -> anyhow::Result<()> {
        let epoll = &self.epoll;
        let Some(broker) = self.rings.platform().and_then(|platform| platform.broker()) else {
            return Ok(());
        };
        let token = epoll::EventData::new_u64(BROKER);
        epoll::add(epoll, broker, token, epoll::EventFlags::RDHUP)
            .context("cannot wait for the broker's end")
    }

    /// Sees to a broker that was lost, or has `hung_up`.
    fn check_broker(&mut self, hung_up: bool) -> anyhow::Result<()> {
        if hung_up {
            self.compare_domains(PollScope::Everything);
        }
        let loss = self.rings.platform().and_then(|platform| platform.take_loss());
        let Some(loss) = loss else { return Ok(()) };
        self.rings.log.line(&format!("{loss:#}"));
        match self.start_broker() {
            Ok(()) => {
                self.rings.log.note("another broker of hypercalls was started");
                // What it had been told of changes is lost.
                self.compare_domains(PollScope::Everything);
                Ok(())
            }
            // A new daemon goes on from the journal, and opens what this one may not.
            Err(error) if self.is_supervised => {
                Err(error).context("no other broker can be started, so this daemon ends")
            }
            Err(error) => {
                self.rings.log.line(&format!(
                    "no other broker can be started ({error:#}). Guests are served on, but no domain is \
                     introduced and no death is noticed until this daemon is started again; it goes on from its journal"
                ));
                Ok(())
            }
        }
    }

    /// Starts a broker if there is to be one and there is none.
    pub(crate) fn start_broker(&mut self) -> anyhow::Result<()> {
        match self.rings.platform() {
            Some(platform) if platform.broker().is_none() => platform.start_broker()?,
            _ => return Ok(()),
        }
        self.watch_broker()
    }

    fn serve_ready(&mut self) {
        // Who asked waits for the answer. Who is told of a change by it does not, and would be woken first.
        let mut asked = std::mem::take(&mut self.asked);
        for id in asked.drain(..) {
            self.flush(id);
        }
        self.asked = asked;
        let mut ready = std::mem::take(&mut self.ready);
        self.server.take_ready_into(&mut ready);
        for &id in &ready {
            if self.clients.contains_key(&id) {
                self.flush(id);
            } else {
                self.rings.send(&mut self.server, id);
                self.unfinished.insert(id);
            }
        }
        self.ready = ready;
    }

    /// Gives each ring a turn, the control domain's first and then one guest after the other, until guests
    /// had their share of time. The others come next, after everybody else was heard.
    fn serve_rings(&mut self) {
        if self.unfinished.is_empty() {
            return;
        }
        let rings = std::mem::take(&mut self.unfinished);
        let (of_guests, of_dom0): (Vec<ConnId>, Vec<ConnId>) =
            rings.into_iter().partition(|id| !self.server.is_privileged(*id));
        for id in of_dom0 {
            self.serve_ring(id);
        }
        let next = of_guests.partition_point(|id| *id <= self.served_last);
        let (earlier, later) = of_guests.split_at(next);
        let end = self.server.work() + STEPS_OF_GUESTS;
        for &id in later.iter().chain(earlier) {
            if self.server.work() < end {
                self.serve_ring(id);
                self.served_last = id;
            } else {
                self.unfinished.insert(id);
            }
        }
    }

    fn serve_ring(&mut self, id: ConnId) {
        if self.rings.serve(&mut self.server, id) == Turn::MoreToDo {
            self.unfinished.insert(id);
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Who still waits is reported again.
        for _ in 0..ACCEPTED_IN_TURN {
            let fd = match net::accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    self.rings.log.line(&format!("cannot accept a client: {errno}"));
                    // It would be readable again at once.
                    self.is_full = epoll::delete(&self.epoll, &self.listener).is_ok();
                    return;
                }
            };
            let id = self.server.connect_socket();
            if let Err(errno) = epoll::add(&self.epoll, &fd, data(id), CLIENT_EVENTS) {
                self.rings.log.line(&format!("cannot wait for a client: {errno}"));
                self.server.disconnect(id);
                continue;
            }
            self.clients.insert(id, Client { fd, waits_to_write: false });
        }
    }

    /// Goes on with a client of a daemon before this one.
    pub(crate) fn adopt(&mut self, id: ConnId, fd: OwnedFd) -> anyhow::Result<()> {
        let context = "cannot serve a client that was handed over";
        let flags = rustix::fs::fcntl_getfl(&fd).context(context)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK).context(context)?;
        epoll::add(&self.epoll, &fd, data(id), CLIENT_EVENTS).context(context)?;
        self.clients.insert(id, Client { fd, waits_to_write: false });
        // What lies there is not reported.
        self.unread.push(id);
        Ok(())
    }

    fn handle_client(&mut self, token: u64, flags: epoll::EventFlags) {
        let id = ConnId::of_number(token - CLIENTS);
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(id);
        }
        let hung_up = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if flags.intersects(hung_up) {
            self.take_requests(id, Rest::MayBeThere);
        } else if flags.contains(epoll::EventFlags::IN) {
            self.take_requests(id, Rest::WillBeReported);
        }
    }

    /// Reads once and executes what came. The replies wait for the end of the turn.
    fn take_requests(&mut self, id: ConnId, rest: Rest) {
        let Some(client) = self.clients.get(&id) else { return };
        if self.server.waits_with_transaction(id) {
            return;
        }
        let length = match net::recv(&client.fd, &mut self.buffer[..], net::RecvFlags::empty()) {
            Err(Errno::AGAIN) => return,
            Err(Errno::INTR) => return self.unread.push(id),
            Ok((length, _)) => length,
            Err(_) => 0,
        };
        if length == 0 {
            return self.close(id);
        }
        if rest == Rest::MayBeThere || length == self.buffer.len() {
            self.unread.push(id);
        }
        self.asked.push(id);
        let buffer = std::mem::take(&mut self.buffer);
        let mut bytes = &buffer[..length];
        while !bytes.is_empty() {
            match self.server.receive_some(&mut self.rings, id, bytes, REQUESTS_TOGETHER) {
                Ok(left) => bytes = &bytes[bytes.len() - left..],
                Err(_oversized) => {
                    self.close(id);
                    break;
                }
            }
            if !bytes.is_empty() {
                self.flush(id);
            }
        }
        self.buffer = buffer;
    }

    /// Sends what the kernel takes; the rest when it is ready for more.
    pub(crate) fn flush(&mut self, id: ConnId) {
        self.rings.commit(&mut self.server);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut is_blocked = false;
        loop {
            let bytes = self.server.output(id);
            if bytes.is_empty() {
                break;
            }
            match net::send(&client.fd, bytes, net::SendFlags::NOSIGNAL) {
                Ok(sent) => self.server.consume(id, sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    is_blocked = true;
                    break;
                }
                Err(_) => return self.close(id),
            }
        }
        if client.waits_to_write != is_blocked {
            client.waits_to_write = is_blocked;
            let mut flags = CLIENT_EVENTS;
            flags.set(epoll::EventFlags::OUT, is_blocked);
            if let Err(errno) = epoll::modify(&self.epoll, &client.fd, data(id), flags) {
                self.rings.log.line(&format!("cannot wait for a client: {errno}"));
                self.close(id);
            }
        }
    }

    pub(crate) fn close(&mut self, id: ConnId) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.end_update_of(id);
        self.server.disconnect(id);
        drop(client.fd);
        if self.is_full {
            match self.add(LISTENER, &self.listener) {
                Ok(()) => self.is_full = false,
                Err(error) => self.rings.log.line(&format!("{error:#}")),
            }
        }
    }
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Waits for events; after a signal there are none.
fn wait_for(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Timespec>,
) -> anyhow::Result<()> {
    let room = rustix::buffer::spare_capacity(events);
    match epoll::wait(epoll, room, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("cannot wait for events"),
    }
}

/// Whether there may be more to read than one read took, without another report of the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rest {
    MayBeThere,
    /// Unless the read filled the buffer.
    WillBeReported,
}

/// Each arrival is reported once: a report of what lies there costs a look at every client that was
/// served, each turn.
const CLIENT_EVENTS: epoll::EventFlags =
    epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP).union(epoll::EventFlags::ET);

fn data(id: ConnId) -> epoll::EventData {
    epoll::EventData::new_u64(CLIENTS + id.number())
}
