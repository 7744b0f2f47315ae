//! A host made of files (`--host dir:PATH`), for guests without Xen.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use anyhow::Context;
use file_host::{DomainFile, EXCEPTION_PORT, HostFolder, State, domain_of_port, port_of_domain};
use xen::{DomId, EvtchnPort, Gfn};
use xenstore::ring::RingPage;
use xenstore::server::{DomainNews, DomainState, PollScope};

use crate::platform::Platform;

/// Events taken in one turn.
const EVENTS_MAX: usize = 256;

pub(crate) struct FilePlatform {
    folder: HostFolder,
    events: UnixDatagram,
}

impl FilePlatform {
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let folder = HostFolder::open(path).context("cannot use this folder as a host")?;
        let events = folder.bind_daemon_events().context("cannot listen for events of guests")?;
        Self::with_events(folder, events)
    }

    /// Takes over the event socket of a previous daemon.
    pub(crate) fn adopt(path: PathBuf, events: OwnedFd) -> anyhow::Result<Self> {
        Self::with_events(HostFolder::existing(path), events.into())
    }

    fn with_events(folder: HostFolder, events: UnixDatagram) -> anyhow::Result<Self> {
        events.set_nonblocking(true).context("cannot listen for events of guests")?;
        Ok(Self { folder, events })
    }
}

impl Platform for FilePlatform {
    fn map_control_ring(&mut self) -> anyhow::Result<Box<dyn RingPage>> {
        Ok(Box::new(self.folder.map_ring(DomId::DOM0)?))
    }

    fn control_port(&mut self) -> anyhow::Result<EvtchnPort> {
        Ok(EvtchnPort(1))
    }

    fn map_ring(&mut self, domid: DomId, _gfn: Gfn) -> anyhow::Result<Box<dyn RingPage>> {
        Ok(Box::new(self.folder.map_ring(domid)?))
    }

    fn bind(&mut self, domid: DomId, _port: EvtchnPort) -> anyhow::Result<EvtchnPort> {
        Ok(port_of_domain(domid))
    }

    fn unbind(&mut self, _port: EvtchnPort) -> anyhow::Result<()> {
        Ok(())
    }

    fn notify(&mut self, port: EvtchnPort) -> anyhow::Result<()> {
        let Some(domid) = domain_of_port(port) else { return Ok(()) };
        match self.events.send_to(b"!", self.folder.guest_events(domid)) {
            // The peer does not listen, or has not handled earlier events: as with an event
            // channel, whose events merge, and are lost if the other end is closed.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::WouldBlock
                ) =>
            {
                Ok(())
            }
            result => result.map(drop).context("cannot send an event to a guest"),
        }
    }

    fn fired(&mut self) -> anyhow::Result<Vec<EvtchnPort>> {
        let mut ports = Vec::new();
        let mut datagram = [0; 8];
        while ports.len() < EVENTS_MAX {
            match self.events.recv(&mut datagram) {
                Ok(length) => ports.extend(HostFolder::port_of_datagram(&datagram[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read events of guests"),
            }
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(ports)
    }

    fn exception_port(&self) -> EvtchnPort {
        EXCEPTION_PORT
    }

    fn poll_domains(&mut self, _what: PollScope) -> anyhow::Result<DomainNews> {
        let domains = self.folder.domains().context("cannot list the domains")?;
        Ok(DomainNews::All(domains.iter().map(|(domid, file)| state(*domid, file)).collect()))
    }

    fn domain(&mut self, domid: DomId) -> Option<DomainState> {
        self.folder.find_domain(domid).map(|file| state(domid, &file))
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn state(domid: DomId, file: &DomainFile) -> DomainState {
    DomainState {
        domid,
        shutdown: file.state == State::Shutdown,
        dying: file.state == State::Dying,
        unique_id: Some(file.unique_id),
        ..DomainState::default()
    }
}
