//! The rings of the domains that are served, and what the store asks of the machine.

use std::collections::BTreeMap;
use std::io::Write;

use xen::{DomId, EvtchnPort, Gfn};
use xenstore::Error;
use xenstore::ring::{RING_BYTES, RingError, RingPage, ServerRing};
use xenstore::server::{ConnId, Host, Server};

use crate::log::Log;
use crate::platform::Platform;

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
    pub(crate) log: Log,
}

impl Rings {
    pub(crate) fn new(platform: Option<Box<dyn Platform>>, log: Log) -> Self {
        Self {
            platform,
            rings: BTreeMap::new(),
            by_port: BTreeMap::new(),
            by_domid: BTreeMap::new(),
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
        let (page, remote) = platform.control_ring()?;
        let port = platform.bind(DomId::DOM0, remote)?;
        let id = server.connect_control_domain();
        self.insert(id, DomId::DOM0, page, port);
        // Its kernel uses the ring, and starts its backends, only after a first event from here.
        self.notify(id);
        Ok(Some(id))
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

    /// Moves bytes both ways, one ring full at most, so that no guest holds the others up.
    pub(crate) fn serve(&mut self, server: &mut Server, id: ConnId) -> Turn {
        match self.try_serve(server, id) {
            Ok(turn) => turn,
            Err(error) => {
                if let Some(ring) = self.rings.get_mut(&id) {
                    ring.broken = true;
                    ring.page.set_error(error);
                    server.stop_serving(id);
                    let line = format!("domain {} is not served any more: {error}", ring.domid);
                    self.log.line(&line);
                }
                self.notify(id);
                Turn::Done
            }
        }
    }

    fn try_serve(&mut self, server: &mut Server, id: ConnId) -> Result<Turn, RingError> {
        let Some(ring) = self.rings.get_mut(&id) else { return Ok(Turn::Done) };
        if ring.broken {
            return Ok(Turn::Done);
        }
        if !ring.offered {
            ring.page.offer(server.ring_features(ring.domid));
            ring.offered = true;
        }
        let mut moved = false;
        if ring.page.wants_reconnect() {
            server.handle_reconnect(id);
            ring.page.reset();
            moved = true;
        }
        moved |= flush(server, id, ring)? > 0;
        let mut bytes = [0; RING_BYTES];
        let mut taken = 0;
        if server.accepts_requests(id) {
            taken = ring.page.take_requests(&mut bytes)?;
        }
        let received = server.receive(self, id, &bytes[..taken]);
        received.map_err(|_| RingError::PayloadTooLong)?;
        let Some(ring) = self.rings.get_mut(&id) else { return Ok(Turn::Done) };
        moved |= flush(server, id, ring)? > 0;
        if moved || taken > 0 {
            self.notify(id);
        }
        Ok(if taken == 0 { Turn::Done } else { Turn::MoreToDo })
    }

    fn notify(&mut self, id: ConnId) {
        let (Some(ring), Some(platform)) = (self.rings.get(&id), &mut self.platform) else {
            return;
        };
        // A domain that is about to go has no event channel; its death is reported by itself.
        if let Err(error) = platform.notify(ring.port) {
            self.log.line(&format!("domain {}: {error:#}", ring.domid));
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

impl Host for Rings {
    fn connect_ring(
        &mut self,
        connection: ConnId,
        domid: DomId,
        gfn: Gfn,
        port: EvtchnPort,
    ) -> Result<(), Error> {
        let platform = self.platform.as_mut().ok_or(Error::EINVAL)?;
        let connected = platform.map_ring(domid, gfn).and_then(|page| {
            // A domain made at boot names its event channel in the page.
            let own = ServerRing::new(&*page).port();
            let remote = if own == 0 { port } else { EvtchnPort(own) };
            let local = platform.bind(domid, remote)?;
            Ok((page, local))
        });
        match connected {
            Ok((page, local)) => {
                self.insert(connection, domid, page, local);
                Ok(())
            }
            Err(error) => {
                self.log.line(&format!("cannot serve domain {domid}: {error:#}"));
                Err(Error::EINVAL)
            }
        }
    }

    fn reset_ring(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Error> {
        let id = *self.by_domid.get(&domid).ok_or(Error::ENOENT)?;
        let ring = self.rings.get_mut(&id).ok_or(Error::ENOENT)?;
        let platform = self.platform.as_mut().ok_or(Error::EINVAL)?;
        let rebound = platform.unbind(ring.port).and_then(|()| platform.bind(domid, port));
        match rebound {
            Ok(local) => {
                self.by_port.remove(&ring.port);
                self.by_port.insert(local, id);
                ring.port = local;
                ring.page.reset();
                Ok(())
            }
            Err(error) => {
                self.log.line(&format!("cannot serve domain {domid} again: {error:#}"));
                Err(Error::EINVAL)
            }
        }
    }

    fn disconnect_ring(&mut self, domid: DomId) {
        let Some(id) = self.by_domid.remove(&domid) else { return };
        let Some(ring) = self.rings.remove(&id) else { return };
        self.by_port.remove(&ring.port);
        if let Some(platform) = &mut self.platform
            && let Err(error) = platform.unbind(ring.port)
        {
            self.log.line(&format!("domain {domid}: {error:#}"));
        }
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        // Without Xen there is nobody to ask, and permissions of guests can still be tried.
        self.platform.as_mut().is_none_or(|platform| platform.domain_exists(domid))
    }

    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        self.platform.as_mut()?.unique_id(domid)
    }

    fn log(&mut self, line: &str) {
        self.log.line(line);
    }

    fn trace(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(file) = &mut self.log.trace {
            // A full disk must not stop the store.
            let _lost = writeln!(file, "{line}");
        }
    }
}
