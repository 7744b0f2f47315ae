//! A server with everybody who talks to it, one request at a time: what each of them is told, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use file_host::State;
use xenstore::wire::MessageType;

use super::client::Connection;
use super::daemon::{Daemon, Placement, Programs};
use super::guest::Guest;
use super::message::{Answer, Event};
use lab::Store;

/// How long a poll of the domains may take to come: a second at most, and more is for a loaded machine.
const POLL_WITHIN: Duration = Duration::from_secs(30);

/// What happens to a domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transition {
    Shutdown,
    /// A shutdown that is taken back, as at a resume.
    Running,
    Dying,
    Destroyed,
}

#[derive(Debug)]
enum Running {
    /// Ours to start and to end, with fake domains.
    Started(Box<Daemon>),
    /// The store of this very host, at this socket; it has real domains, whose rings are theirs.
    OfHost(PathBuf),
}

/// Socket clients have any names; guests are `d1`, `d2`, as their domains.
#[derive(Debug)]
pub struct Stage {
    server: Running,
    sockets: BTreeMap<String, Connection>,
    domains: BTreeMap<u16, Guest>,
    /// Domains whose rings are served.
    served: BTreeSet<u16>,
}

/// The domain that a guest's name stands for.
pub fn domid_of(name: &str) -> Option<u16> {
    name.strip_prefix('d')?.parse().ok()
}

impl Running {
    fn connect(&self) -> Result<Connection> {
        match self {
            Self::Started(daemon) => daemon.connect(),
            Self::OfHost(socket) => Connection::open(socket),
        }
    }

    fn fake(&self) -> Result<&Daemon> {
        match self {
            Self::Started(daemon) => Ok(daemon),
            Self::OfHost(_) => bail!("the domains of this host are real"),
        }
    }
}

impl Stage {
    /// Starts a server; the only client is `dom0`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(programs: &Programs, store: Store) -> Result<Self> {
        let daemon = Daemon::start(programs, store, Placement::default(), &[])?;
        Self::over(Running::Started(Box::new(daemon)))
    }

    /// On the store that this host runs, which is one of ours. Nothing can happen to domains.
    ///
    /// # Errors
    /// Nobody listens at the socket.
    pub fn on_host(socket: &Path) -> Result<Self> {
        Self::over(Running::OfHost(socket.to_owned()))
    }

    fn over(server: Running) -> Result<Self> {
        let sockets = [("dom0".to_owned(), server.connect()?)].into();
        Ok(Self { server, sockets, domains: BTreeMap::new(), served: BTreeSet::new() })
    }

    pub fn store(&self) -> Store {
        match &self.server {
            Running::Started(daemon) => daemon.store,
            Running::OfHost(_) => Store::Xylem,
        }
    }

    /// Whether things can happen to domains here.
    pub fn has_domains(&self) -> bool {
        matches!(self.server, Running::Started(_))
    }

    /// Whether the server's process has ended.
    pub fn has_died(&mut self) -> bool {
        match &mut self.server {
            Running::Started(daemon) => daemon.has_died(),
            Running::OfHost(_) => false,
        }
    }

    /// A new socket client, unless there is one of this name.
    ///
    /// # Errors
    /// The server does not listen.
    pub fn connect(&mut self, name: &str) -> Result<()> {
        if !self.sockets.contains_key(name) {
            self.sockets.insert(name.to_owned(), self.server.connect()?);
        }
        Ok(())
    }

    /// Closes a client's socket. What others are told of that is theirs to see.
    pub fn close(&mut self, name: &str) {
        self.sockets.remove(name);
    }

    /// Whether requests of that name reach the server.
    pub fn is_served(&self, name: &str) -> bool {
        self.sockets.contains_key(name)
            || domid_of(name).is_some_and(|domid| self.served.contains(&domid))
    }

    /// # Errors
    /// The server is stuck or ended the connection.
    pub fn ask(
        &mut self,
        name: &str,
        code: u32,
        transaction: u32,
        payload: &[u8],
    ) -> Result<Answer> {
        let answer = if let Some(socket) = self.sockets.get_mut(name) {
            socket.call_raw(code, transaction, payload)
        } else {
            let domain = domid_of(name).and_then(|domid| self.domains.get_mut(&domid));
            let Some(guest) = domain else { bail!("there is no {name}") };
            guest.call_raw(code, transaction, payload)
        };
        answer.with_context(|| format!("{name}, on the {} server", self.store()))
    }

    /// Waits until everybody was told what there is to tell.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn settle(&mut self) -> Result<()> {
        // A reply comes after every event that was queued before.
        for name in self.names() {
            self.ask(&name, MessageType::GetDomainPath.code(), 0, b"0\0")?.ok();
        }
        Ok(())
    }

    /// Everybody who can ask.
    pub fn names(&self) -> Vec<String> {
        let guests = self.served.iter().map(|domid| format!("d{domid}"));
        self.sockets.keys().cloned().chain(guests).collect()
    }

    /// Events that came for a client since it was last asked for.
    pub fn take_events(&mut self, name: &str) -> Vec<Event> {
        if let Some(socket) = self.sockets.get_mut(name) {
            return socket.take_events();
        }
        let guest = domid_of(name).and_then(|domid| self.domains.get_mut(&domid));
        guest.map(Guest::take_events).unwrap_or_default()
    }

    /// Xen has a new domain; the store does not know it.
    ///
    /// # Errors
    /// Its files cannot be made.
    pub fn create_domain(&mut self, domid: u16) -> Result<()> {
        let guest = self.server.fake()?.create_domain(domid)?;
        self.domains.insert(domid, guest);
        Ok(())
    }

    /// The domain was released: its ring is not served any more.
    pub fn abandon_ring(&mut self, domid: u16) {
        self.served.remove(&domid);
    }

    /// The domain was introduced: `d<domid>` may ask now.
    pub fn adopt_ring(&mut self, domid: u16) {
        self.served.insert(domid);
    }

    /// Xen has a new domain, and the toolstack introduces it.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn add_guest(&mut self, domid: u16) -> Result<()> {
        self.create_domain(domid)?;
        let payload = format!("{domid}\x005\x007\0");
        let answer = self.ask("dom0", MessageType::Introduce.code(), 0, payload.as_bytes())?;
        if let Err(error) = answer {
            bail!("domain {domid} is not introduced: {error}");
        }
        self.adopt_ring(domid);
        Ok(())
    }

    /// Changes domains; the server hears of all of them at once.
    ///
    /// # Errors
    /// There is no such domain.
    pub fn change(&mut self, change: Transition, domids: &[u16]) -> Result<()> {
        self.change_all(&domids.iter().map(|&domid| (change, domid)).collect::<Vec<_>>())
    }

    /// Waits until ours has polled the domains again. After a slow poll it pauses for a second at most.
    fn wait_for_poll(&self, before: Option<u64>) -> Result<()> {
        let end = Instant::now() + POLL_WITHIN;
        while before.is_some() && self.server.fake()?.polls() == before {
            ensure!(Instant::now() < end, "the {} server does not poll the domains", self.store());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// As [`change`](Self::change), each in a way of its own.
    ///
    /// # Errors
    /// There is no such domain.
    pub fn change_all(&mut self, changes: &[(Transition, u16)]) -> Result<()> {
        let polls = self.server.fake()?.polls();
        for (change, domid) in changes {
            let guest = self.domains.get(domid).with_context(|| format!("no domain {domid}"))?;
            match change {
                Transition::Shutdown => guest.set_state(State::Shutdown)?,
                Transition::Running => guest.set_state(State::Running)?,
                Transition::Dying => guest.set_state(State::Dying)?,
                Transition::Destroyed => guest.destroy()?,
            }
            if matches!(change, Transition::Dying | Transition::Destroyed) {
                self.served.remove(domid);
            }
            if *change == Transition::Destroyed {
                self.domains.remove(domid);
            }
        }
        if changes.iter().any(|(change, _)| *change != Transition::Running) {
            self.server.fake()?.raise()?;
            self.wait_for_poll(polls)?;
        }
        // The datagram was there before the requests, but one turn may take sockets alone.
        self.settle()?;
        self.settle()
    }
}
