//! The event loop: bytes between sockets, rings and the store. It decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use xen_linux::{HangupSignals, StopSignals};
use xenstore::server::{ConnId, Server};

use crate::rings::{Rings, Turn};

/// Read from a socket in one turn: enough to answer many requests at once, too little for one client
/// to hold the others up.
const READ_BYTES: usize = 16 * 1024;

const LISTENER: u64 = 0;
const EVENT_CHANNELS: u64 = 1;
const STOP: u64 = 2;
const HANGUP: u64 = 3;
/// Socket clients have their connection's number plus this.
const CLIENTS: u64 = 4;

struct Client {
    id: ConnId,
    fd: OwnedFd,
    /// The kernel's buffer was full: wait until it is not.
    waits_to_write: bool,
}

pub(crate) struct Daemon {
    server: Server,
    rings: Rings,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Descriptors ran out: nobody is accepted until one is free.
    is_full: bool,
    stop: StopSignals,
    hangup: HangupSignals,
    clients: BTreeMap<u64, Client>,
    /// Rings that have more to say than one turn gave them.
    unfinished: BTreeSet<ConnId>,
    buffer: Vec<u8>,
}

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

impl Daemon {
    /// `waiting` is a ring that may hold requests for which no event will come.
    pub(crate) fn new(
        server: Server,
        rings: Rings,
        listener: OwnedFd,
        waiting: Option<ConnId>,
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
            clients: BTreeMap::new(),
            unfinished: waiting.into_iter().collect(),
            buffer: vec![0; READ_BYTES],
        };
        daemon.add(LISTENER, &daemon.listener)?;
        daemon.add(STOP, &daemon.stop)?;
        daemon.add(HANGUP, &daemon.hangup)?;
        let epoll = &daemon.epoll;
        if let Some(platform) = daemon.rings.platform() {
            epoll::add(
                epoll,
                platform.events(),
                epoll::EventData::new_u64(EVENT_CHANNELS),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(daemon)
    }

    fn add(&self, token: u64, fd: impl AsFd) -> anyhow::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).context("cannot wait for a file")
    }

    /// Serves until it is told to stop.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        // Domains may have come and gone before we listened for it.
        self.compare_domains();
        loop {
            self.serve_ready();
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let timeout = if self.unfinished.is_empty() && !self.server.has_ready() {
                None
            } else {
                Some(&now)
            };
            let mut events = Vec::with_capacity(256);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for events"),
            }
            // First, so that nobody is answered about a domain that is gone.
            if events.iter().any(|event| event.data.u64() == EVENT_CHANNELS) {
                self.handle_event_channels()?;
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    EVENT_CHANNELS => {}
                    STOP => {
                        if self.stop.received()? {
                            return Ok(());
                        }
                    }
                    HANGUP => {
                        if self.hangup.received()? {
                            self.rings.log.reopen();
                        }
                    }
                    token => self.handle_client(token, event.flags),
                }
            }
            for id in std::mem::take(&mut self.unfinished) {
                self.serve_ring(id);
            }
        }
    }

    fn handle_event_channels(&mut self) -> anyhow::Result<()> {
        let Some(platform) = self.rings.platform() else { return Ok(()) };
        let exception_port = platform.exception_port();
        let fired = platform.fired()?;
        if fired.contains(&exception_port) {
            self.compare_domains();
        }
        for port in fired {
            if let Some(id) = self.rings.by_port(port) {
                self.unfinished.insert(id);
            }
        }
        Ok(())
    }

    fn compare_domains(&mut self) {
        let Some(platform) = self.rings.platform() else { return };
        match platform.domains() {
            Ok(listing) => self.server.handle_domain_states(&mut self.rings, &listing),
            Err(error) => self.rings.log.line(&format!("{error:#}")),
        }
    }

    fn serve_ready(&mut self) {
        for id in self.server.take_ready() {
            if self.rings.contains(id) {
                self.serve_ring(id);
            } else {
                self.flush(id);
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
        loop {
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
            let token = CLIENTS + id.number();
            if let Err(error) = self.add(token, &fd) {
                self.rings.log.line(&format!("{error:#}"));
                self.server.disconnect(id);
                continue;
            }
            self.clients.insert(token, Client { id, fd, waits_to_write: false });
        }
    }

    fn handle_client(&mut self, token: u64, flags: epoll::EventFlags) {
        let Some(client) = self.clients.get(&token) else { return };
        let id = client.id;
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(id);
        }
        if !flags
            .intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            return;
        }
        let Some(client) = self.clients.get(&token) else { return };
        let length = match rustix::io::read(&client.fd, &mut self.buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(length) => length,
            Err(_) => 0,
        };
        if length == 0 {
            return self.close(token);
        }
        match self.server.receive(&mut self.rings, id, &self.buffer[..length]) {
            Ok(()) => self.flush(id),
            Err(_oversized) => self.close(token),
        }
    }

    /// Sends what the kernel takes; the rest when it is ready for more.
    fn flush(&mut self, id: ConnId) {
        let token = CLIENTS + id.number();
        let Some(client) = self.clients.get_mut(&token) else { return };
        let mut is_blocked = false;
        let mut is_broken = false;
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
                Err(_) => {
                    is_broken = true;
                    break;
                }
            }
        }
        if is_broken {
            return self.close(token);
        }
        if client.waits_to_write != is_blocked {
            client.waits_to_write = is_blocked;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, is_blocked);
            let data = epoll::EventData::new_u64(token);
            if let Err(errno) = epoll::modify(&self.epoll, &client.fd, data, flags) {
                self.rings.log.line(&format!("cannot wait for a client: {errno}"));
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: u64) {
        let Some(client) = self.clients.remove(&token) else { return };
        self.server.disconnect(client.id);
        drop(client.fd);
        if self.is_full {
            match self.add(LISTENER, &self.listener) {
                Ok(()) => self.is_full = false,
                Err(error) => self.rings.log.line(&format!("{error:#}")),
            }
        }
    }
}
