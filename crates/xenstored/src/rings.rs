//! The rings of the domains that are served, and what the store asks of the machine.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use xen::{DomId, EvtchnPort, Gfn};
use xenstore::Error;
use xenstore::ring::{RING_BYTES, RingError, RingPage, ServerRing};
use xenstore::server::{
    ConnId, DomainState, Endpoint, Host, KnownRing, PollScope, RestoredPeer, Resumption, Server,
    Service,
};

use crate::guard::Verdict;
use crate::journal::Journal;
use crate::live_update::LiveUpdate;
use crate::log::Log;
use crate::platform::Platform;
use crate::trap::Trap;

/// Stands for a channel that could not be bound again. Xen gives it to nobody.
const NO_PORT: EvtchnPort = EvtchnPort(0);

struct Ring {
    domid: DomId,
    /// Our end of its event channel.
    port: EvtchnPort,
    page: ServerRing<Box<dyn RingPage>>,
    /// The features were written to the page.
    offered: bool,
    /// The guest broke the rules; it is left alone until it dies.
    broken: bool,
}

/// Whether a turn took everything that was there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Turn {
    Done,
    MoreToDo,
}

pub(crate) struct Rings {
    platform: Option<Box<dyn Platform>>,
    rings: BTreeMap<ConnId, Ring>,
    by_port: BTreeMap<EvtchnPort, ConnId>,
    by_domid: BTreeMap<DomId, ConnId>,
    /// Pages of dead domains, mapped so that Xen gives nobody their numbers. Whatever ends this process lets
    /// go of them all.
    kept: BTreeMap<DomId, ServerRing<Box<dyn RingPage>>>,
    /// Rings that were introduced again: emptied when it is safe that they were.
    to_reset: Vec<ConnId>,
    pub(crate) journal: Journal,
    pub(crate) live_update: LiveUpdate,
    /// The time of requests is counted from here.
    started: Instant,
    trap: Trap,
    pub(crate) log: Log,
}

impl Rings {
    pub(crate) fn new(platform: Option<Box<dyn Platform>>, journal: Journal, log: Log) -> Self {
        Self {
            platform,
            to_reset: Vec::new(),
            journal,
            live_update: LiveUpdate::default(),
            rings: BTreeMap::new(),
            by_port: BTreeMap::new(),
            by_domid: BTreeMap::new(),
            kept: BTreeMap::new(),
            started: Instant::now(),
            trap: Trap::of_environment(),
            log,
        }
    }

    pub(crate) fn platform(&mut self) -> Option<&mut (dyn Platform + 'static)> {
        self.platform.as_deref_mut()
    }

    /// Takes the control domain's own ring; serve it, since its kernel may have asked before we came.
    pub(crate) fn connect_control_domain(
        &mut self,
        server: &mut Server,
    ) -> anyhow::Result<Option<ConnId>> {
        let Some(platform) = &mut self.platform else { return Ok(None) };
        let (page, port) = connect_own(platform.as_mut())?;
        let id = server.connect_control_domain();
        self.insert(id, DomId::DOM0, page, port);
        // Its kernel uses the ring, and starts its backends, only after a first event from here.
        self.notify(id);
        Ok(Some(id))
    }

    /// Begins to record a store that did not come from the journal.
    pub(crate) fn begin_journal(&mut self, server: &mut Server) {
        self.journal.begin(server, &mut self.log);
    }

    /// Makes safe what was done. Before anything that follows from it is sent.
    pub(crate) fn commit(&mut self, server: &mut Server) {
        self.journal.commit(server, &mut self.log);
        if self.to_reset.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.to_reset) {
            if let Some(ring) = self.rings.get(&id) {
                ring.page.reset();
                server.note_indexes(id, ring.page.indexes());
                self.journal.commit(server, &mut self.log);
            }
        }
    }

    /// Keeps the journal short. Says when it wants to be called again for this alone.
    pub(crate) fn work_on_journal(&mut self, server: &mut Server) -> Option<Duration> {
        // A checkpoint of what is also recorded after it would make it twice.
        self.commit(server);
        self.journal.work(server, &mut self.log);
        self.journal.wakeup()
    }

    /// Goes on with the rings of a store from the journal: what died meanwhile is reported, the others
    /// are connected as they were. Gives the connections, all of which want to be served.
    pub(crate) fn resume(&mut self, server: &mut Server) -> anyhow::Result<Vec<ConnId>> {
        server.start_recording();
        if let Some(platform) = &mut self.platform {
            let news = platform.poll_domains(PollScope::Everything)?;
            server.handle_domain_news(self, &news);
        }
        let known = server.known_rings();
        for ring in &known {
            if let Err(error) = self.resume_ring(server, *ring) {
                let line = format!("cannot serve domain {} again: {error:#}", ring.domid);
                self.log.line(&line);
                server.stop_serving(ring.connection);
            }
        }
        self.commit(server);
        // Events may have been lost with the process, in both directions.
        for ring in &known {
            self.notify(ring.connection);
        }
        Ok(known.into_iter().map(|ring| ring.connection).collect())
    }

    fn resume_ring(&mut self, server: &mut Server, known: KnownRing) -> anyhow::Result<()> {
        let platform = self.platform.as_mut().context("this host has no rings")?;
        let id = known.connection;
        let (page, port) = match known.domid {
            DomId::DOM0 => connect_own(platform.as_mut())?,
            domid => connect(platform.as_mut(), domid, known.gfn, known.port)?,
        };
        self.insert(id, known.domid, page, port);
        let Some(ring) = self.rings.get_mut(&id) else { return Ok(()) };
        ring.broken = known.broken;
        // A ring that is to begin anew has indexes of no meaning; that is seen to when it is served.
        if known.broken || ring.page.wants_reconnect() {
            return Ok(());
        }
        match server.resume_ring(id, ring.page.indexes()) {
            Ok(Resumption::From(taken)) => ring.page.release_requests(taken),
            Ok(Resumption::Reset) => self.to_reset.push(id),
            Err(error) => self.break_ring(server, id, error),
        }
        Ok(())
    }

    /// Takes the rings of a store that another process served, with its event channels.
    pub(crate) fn adopt(&mut self, server: &mut Server, peers: &[(ConnId, RestoredPeer)]) {
        let known: BTreeMap<ConnId, KnownRing> =
            server.known_rings().into_iter().map(|ring| (ring.connection, ring)).collect();
        for (id, peer) in peers {
            let RestoredPeer::Ring { domid, port, service } = *peer else { continue };
            let gfn = known.get(id).map_or(Gfn(0), |ring| ring.gfn);
            let page = match &mut self.platform {
                Some(platform) if domid == DomId::DOM0 => platform.map_control_ring(),
                Some(platform) => platform.map_ring(domid, gfn),
                None => Err(anyhow::anyhow!("this host has no rings")),
            };
            match page {
                Ok(page) => {
                    self.insert(*id, domid, page, port);
                    if let Some(ring) = self.rings.get_mut(id) {
                        ring.broken = service == Service::Stopped;
                    }
                }
                Err(error) => {
                    let line = format!("cannot serve domain {domid} any more: {error:#}");
                    self.log.line(&line);
                    server.stop_serving(*id);
                }
            }
        }
    }

    /// Where each ring's event channel is, for another process.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (ConnId, Endpoint)> {
        self.rings.iter().map(|(id, ring)| (*id, Endpoint::Ring { port: ring.port }))
    }

    /// Wakes everybody: events may have been lost in between.
    pub(crate) fn notify_all(&mut self) {
        for id in self.rings.keys().copied().collect::<Vec<_>>() {
            self.notify(id);
        }
    }

    fn insert(&mut self, id: ConnId, domid: DomId, page: Box<dyn RingPage>, port: EvtchnPort) {
        let page = ServerRing::new(page);
        self.by_port.insert(port, id);
        self.by_domid.insert(domid, id);
        self.rings.insert(id, Ring { domid, port, page, offered: false, broken: false });
    }

    /// The connection whose event channel this is.
    pub(crate) fn by_port(&self, port: EvtchnPort) -> Option<ConnId> {
        self.by_port.get(&port).copied()
    }

    /// Puts replies and events into the ring, and takes nothing out.
    pub(crate) fn send(&mut self, server: &mut Server, id: ConnId) {
        self.commit(server);
        let Some(ring) = self.rings.get_mut(&id) else { return };
        // A ring that begins, or begins anew, is served before anything is put into it.
        if ring.broken || !ring.offered || ring.page.wants_reconnect() {
            return;
        }
        match flush(server, id, ring) {
            Ok(0) => {}
            Ok(_) => self.notify(id),
            Err(error) => self.break_ring(server, id, error),
        }
    }

    /// Moves bytes both ways, one ring full at most, so that no guest holds the others up.
    pub(crate) fn serve(&mut self, server: &mut Server, id: ConnId) -> Turn {
        match self.try_serve(server, id) {
            Ok(turn) => turn,
            Err(error) => {
                self.break_ring(server, id, error);
                Turn::Done
            }
        }
    }

    fn break_ring(&mut self, server: &mut Server, id: ConnId, error: RingError) {
        server.break_ring(id, error);
        self.commit(server);
        if let Some(ring) = self.rings.get_mut(&id) {
            ring.broken = true;
            ring.page.set_error(error);
            let line = format!("domain {} is not served any more: {error}", ring.domid);
            self.log.about(ring.domid, &line);
        }
        self.notify(id);
    }

    fn try_serve(&mut self, server: &mut Server, id: ConnId) -> Result<Turn, RingError> {
        // It may be one that is to be emptied first.
        self.commit(server);
        let Some(ring) = self.rings.get_mut(&id) else { return Ok(Turn::Done) };
        if ring.broken {
            return Ok(Turn::Done);
        }
        if !ring.offered {
            ring.page.offer(server.ring_features(ring.domid));
            ring.offered = true;
            if server.needs_indexes(id) {
                server.note_indexes(id, ring.page.indexes());
            }
        }
        let mut moved = false;
        if ring.page.wants_reconnect() {
            server.handle_reconnect(id);
            self.to_reset.push(id);
            self.commit(server);
            moved = true;
        }
        let Some(ring) = self.rings.get_mut(&id) else { return Ok(Turn::Done) };
        moved |= flush(server, id, ring)? > 0;
        let mut bytes = [0; RING_BYTES];
        let mut held = (0, 0);
        if server.accepts_requests(id) {
            // They stay in the ring until it is safe that they were executed.
            held = ring.page.copy_requests(&mut bytes)?;
        }
        let (held, end) = held;
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring has")]
        let index = |taken: usize| end.wrapping_sub((held - taken) as u32);
        self.journal.begin_turn(index(0));
        let received = server.receive_from_ring(self, id, &bytes[..held]);
        let taken = received.map_err(|_| RingError::PayloadTooLong)?;
        if taken > 0 {
            server.note_taken(id, index(taken));
        }
        self.commit(server);
        let Some(ring) = self.rings.get_mut(&id) else { return Ok(Turn::Done) };
        if taken > 0 {
            ring.page.release_requests(index(taken));
        }
        moved |= flush(server, id, ring)? > 0;
        if moved || taken > 0 {
            self.notify(id);
        }
        Ok(if taken == 0 { Turn::Done } else { Turn::MoreToDo })
    }

    /// Takes a ring out of service.
    fn take_ring(&mut self, domid: DomId) -> Option<Ring> {
        let id = self.by_domid.remove(&domid)?;
        let ring = self.rings.remove(&id)?;
        self.by_port.remove(&ring.port);
        if let Some(platform) = &mut self.platform
            && ring.port != NO_PORT
            && let Err(error) = platform.unbind(ring.port)
        {
            self.log.about(domid, &format!("domain {domid}: {error:#}"));
        }
        Some(ring)
    }

    fn notify(&mut self, id: ConnId) {
        let (Some(ring), Some(platform)) = (self.rings.get(&id), &mut self.platform) else {
            return;
        };
        // A domain that is about to go has no event channel; its death is reported by itself.
        if ring.port != NO_PORT
            && let Err(error) = platform.notify(ring.port)
        {
            self.log.about(ring.domid, &format!("domain {}: {error:#}", ring.domid));
        }
    }
}

/// Moves as much of the output as fits, and says how much that was.
fn flush(server: &mut Server, id: ConnId, ring: &Ring) -> Result<usize, RingError> {
    let mut total = 0;
    loop {
        let sent = ring.page.put_replies(server.output(id))?;
        if sent == 0 {
            return Ok(total);
        }
        server.consume(id, sent);
        total += sent;
    }
}

fn connect_own(platform: &mut dyn Platform) -> anyhow::Result<(Box<dyn RingPage>, EvtchnPort)> {
    let page = platform.map_control_ring()?;
    let remote = platform.control_port()?;
    Ok((page, platform.bind(DomId::DOM0, remote)?))
}

fn connect(
    platform: &mut dyn Platform,
    domid: DomId,
    gfn: Gfn,
    port: EvtchnPort,
) -> anyhow::Result<(Box<dyn RingPage>, EvtchnPort)> {
    let page = platform.map_ring(domid, gfn)?;
    // A domain made at boot names its event channel in the page.
    let own = ServerRing::new(&*page).port();
    let remote = if own == 0 { port } else { EvtchnPort(own) };
    let local = platform.bind(domid, remote)?;
    Ok((page, local))
}

impl Host for Rings {
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        gfn: Gfn,
        port: EvtchnPort,
    ) -> Result<(), Error> {
        let platform = self.platform.as_mut().ok_or(Error::EINVAL)?;
        match connect(platform.as_mut(), domid, gfn, port) {
            Ok((page, local)) => {
                self.insert(connection, domid, page, local);
                Ok(())
            }
            Err(error) => {
                self.log.about(domid, &format!("cannot serve domain {domid}: {error:#}"));
                Err(Error::EINVAL)
            }
        }
    }

    fn reset_ring(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Error> {
        let id = *self.by_domid.get(&domid).ok_or(Error::ENOENT)?;
        let ring = self.rings.get_mut(&id).ok_or(Error::ENOENT)?;
        let platform = self.platform.as_mut().ok_or(Error::EINVAL)?;
        let unbound = if ring.port == NO_PORT { Ok(()) } else { platform.unbind(ring.port) };
        let rebound = unbound.and_then(|()| platform.bind(domid, port));
        match rebound {
            Ok(local) => {
                self.by_port.remove(&ring.port);
                self.by_port.insert(local, id);
                ring.port = local;
                self.to_reset.push(id);
                Ok(())
            }
            Err(error) => {
                // The old channel is closed, and its number may be another ring's by and by.
                self.by_port.remove(&ring.port);
                ring.port = NO_PORT;
                self.log.about(domid, &format!("cannot serve domain {domid} again: {error:#}"));
                Err(Error::EINVAL)
            }
        }
    }

    fn disconnect_ring(&mut self, domid: DomId) {
        drop(self.take_ring(domid));
    }

    fn keep_ring(&mut self, domid: DomId) {
        if let Some(ring) = self.take_ring(domid) {
            self.kept.insert(domid, ring.page);
        }
    }

    fn drop_kept_ring(&mut self, domid: DomId) {
        self.kept.remove(&domid);
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        // Without Xen there is nobody to ask, and permissions of guests can still be tried.
        let Some(platform) = &mut self.platform else { return true };
        platform.domain(domid).is_some_and(|state| !state.dying)
    }

    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        self.domain(domid)?.unique_id
    }

    fn domain(&mut self, domid: DomId) -> Option<DomainState> {
        self.platform.as_mut()?.domain(domid)
    }

    fn live_update(&mut self, client: ConnId, words: &[&str]) -> Result<Option<String>, Error> {
        self.live_update.command(client, words)
    }

    fn begin_request(
        &mut self,
        ring: Option<ConnId>,
        code: u32,
        payload: &[u8],
    ) -> Result<(), Error> {
        let ring = ring.map_or(0, ConnId::number);
        match self.journal.begin_request(ring, code, payload, &mut self.log) {
            Verdict::Execute => {}
            Verdict::NoRoom => return Err(Error::ENOSPC),
            Verdict::Refuse(request) => {
                self.log.line(&format!("refused, as daemons before ended in it: {request}"));
                return Err(Error::EIO);
            }
        }
        self.trap.check(payload);
        Ok(())
    }

    fn end_request(&mut self) {
        self.journal.end_request();
    }

    fn clock(&mut self) -> Option<Duration> {
        Some(self.started.elapsed())
    }

    fn log(&mut self, line: &str) {
        self.log.line(line);
    }

    fn log_about(&mut self, domid: DomId, line: &str) {
        self.log.about(domid, line);
    }

    fn open_trace(&mut self, file: Option<&str>) -> Result<(), Error> {
        self.log.open_trace(file.map(Path::new))
    }

    fn write_report(&mut self, file: Option<&str>, text: &str) -> Result<(), Error> {
        self.log.write_report(file.map(Path::new), text)
    }

    fn trace(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(file) = &mut self.log.trace {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // A full disk must not stop the store.
            let _lost = writeln!(file, "{}.{:06} {line}", now.as_secs(), now.subsec_micros());
        }
    }
}
