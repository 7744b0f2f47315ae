//! Xen through Linux's devices: event channels and grants directly, hypercalls by a broker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, bail};
use xen::{DomId, EvtchnPort, Gfn, GrantRef};
use xen_linux::{EventChannels, GrantDevice, HostError, OwnStoreRing, SharedPage, VIRQ_DOM_EXC};
use xenstore::ring::RingPage;
use xenstore::server::{DomainNews, DomainState, PollScope};

use crate::broker::{AskError, Broker};
use crate::confinement::Account;
use crate::platform::Platform;

/// A mapped page for the ring code.
struct Page(SharedPage);

impl RingPage for Page {
    fn load_u32(&self, offset: usize) -> u32 {
        self.0.load_u32(offset)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.0.store_u32(offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
}

pub(crate) struct XenPlatform {
    /// The broker, which makes hypercalls: this process makes none.
    broker: Option<Broker>,
    /// The next broker's account.
    account: Account,
    /// Changes may have been lost: all domains must be polled.
    is_behind: bool,
    /// How the last broker was lost.
    loss: Option<anyhow::Error>,
    /// A lost broker had worked: another one may work too.
    may_restart: bool,
    event_channels: EventChannels,
    grants: GrantDevice,
    own_ring: OwnStoreRing,
    /// The control domain's port, if this process could read it: only root can.
    control_port: Option<EvtchnPort>,
    exception_port: EvtchnPort,
}

/// Devices besides event channels, which always come from a previous daemon if there is one.
pub(crate) struct Devices {
    broker: Broker,
    grants: GrantDevice,
    own_ring: OwnStoreRing,
}

impl Devices {
    /// Only for root. The broker may have been started long before.
    pub(crate) fn open(broker: Broker) -> anyhow::Result<Self> {
        Ok(Self { broker, grants: GrantDevice::open()?, own_ring: OwnStoreRing::open()? })
    }

    /// Takes over those of a previous daemon, if it [lent](Platform::lend) them.
    pub(crate) fn lent(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [grants, own_ring, socket, entries] = <[OwnedFd; 4]>::try_from(descriptors).ok()?;
        Some(Self {
            broker: Broker::lent(socket, entries),
            grants: GrantDevice::adopt(grants),
            own_ring: OwnStoreRing::adopt(own_ring),
        })
    }
}

impl XenPlatform {
    pub(crate) fn open(account: Account) -> anyhow::Result<Self> {
        let broker = Broker::start(account)?;
        Self::with_event_channels(EventChannels::open()?, Devices::open(broker)?, account)
    }

    /// Takes over the event channels of a previous daemon, which has released VIRQ_DOM_EXC.
    pub(crate) fn adopt(
        device: OwnedFd,
        ports: impl IntoIterator<Item = EvtchnPort>,
        devices: Devices,
        account: Account,
    ) -> anyhow::Result<Self> {
        Self::with_event_channels(EventChannels::adopt(device, ports)?, devices, account)
    }

    fn with_event_channels(
        mut event_channels: EventChannels,
        devices: Devices,
        account: Account,
    ) -> anyhow::Result<Self> {
        let exception_port = bind_exceptions(&mut event_channels)
            .context("another xenstored may be running on this host")?;
        let Devices { mut broker, grants, own_ring } = devices;
        // It opened its devices meanwhile.
        broker.wait()?;
        Ok(Self {
            broker: Some(broker),
            account,
            is_behind: false,
            loss: None,
            may_restart: true,
            event_channels,
            grants,
            own_ring,
            control_port: OwnStoreRing::port().ok(),
            exception_port,
        })
    }

    /// Sends a request to the broker, and records its loss.
    fn ask<R>(
        &mut self,
        question: impl FnOnce(&mut Broker) -> Result<R, AskError>,
    ) -> anyhow::Result<R> {
        let broker = self.broker.as_mut().context("there is no broker of hypercalls")?;
        match question(broker) {
            Ok(answer) => Ok(answer),
            Err(AskError::Refused(errno)) => Err(errno.into()),
            Err(AskError::Late) => {
                // An ignored answer may have contained changes, which Xen reports only once.
                self.is_behind = true;
                bail!("the broker of hypercalls does not answer in time")
            }
            Err(AskError::Lost(error)) => {
                self.may_restart = broker.has_answered();
                self.broker = None;
                let text = format!("{error:#}");
                self.loss = Some(error);
                Err(anyhow::anyhow!(text))
            }
        }
    }
}

/// Binds VIRQ_DOM_EXC. A killed daemon holds it until it has completely exited.
fn bind_exceptions(event_channels: &mut EventChannels) -> Result<EvtchnPort, HostError> {
    for _ in 0..100 {
        match event_channels.bind_virq(VIRQ_DOM_EXC) {
            Err(error) if error.errno() == xen::Errno::EEXIST => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            result => return result,
        }
    }
    event_channels.bind_virq(VIRQ_DOM_EXC)
}

impl Platform for XenPlatform {
    fn map_control_ring(&mut self) -> anyhow::Result<Box<dyn RingPage>> {
        Ok(Box::new(Page(self.own_ring.map()?)))
    }

    fn control_port(&mut self) -> anyhow::Result<EvtchnPort> {
        match self.control_port {
            Some(port) => Ok(port),
            None => Ok(OwnStoreRing::port()?),
        }
    }

    fn map_ring(&mut self, domid: DomId, gfn: Gfn) -> anyhow::Result<Box<dyn RingPage>> {
        // Every toolstack grants the page by a fixed entry. Mapping it by frame would need privcmd.
        let page = self
            .grants
            .map_grant(domid, GrantRef::XENSTORE)
            .with_context(|| format!("its ring (frame {:#x}) is not granted", gfn.0))?;
        Ok(Box::new(Page(page)))
    }

    fn bind(&mut self, domid: DomId, port: EvtchnPort) -> anyhow::Result<EvtchnPort> {
        Ok(self.event_channels.bind_interdomain(domid, port)?)
    }

    fn unbind(&mut self, port: EvtchnPort) -> anyhow::Result<()> {
        Ok(self.event_channels.unbind(port)?)
    }

    fn notify(&mut self, port: EvtchnPort) -> anyhow::Result<()> {
        Ok(self.event_channels.notify(port)?)
    }

    fn fired(&mut self) -> anyhow::Result<Vec<EvtchnPort>> {
        let mut ports = [EvtchnPort(0); 256];
        let count = self.event_channels.pending(&mut ports)?;
        // Unmasked before the rings are read: later events fire again.
        for port in &ports[..count] {
            self.event_channels.unmask(*port)?;
        }
        Ok(ports[..count].to_vec())
    }

    fn exception_port(&self) -> EvtchnPort {
        self.exception_port
    }

    fn poll_domains(&mut self, what: PollScope) -> anyhow::Result<DomainNews> {
        let what = if self.is_behind { PollScope::Everything } else { what };
        let news = self.ask(|broker| broker.poll(what)).context("cannot look at the domains")?;
        self.is_behind = false;
        Ok(news)
    }

    fn poll_cpu(&self) -> Duration {
        self.broker.as_ref().map_or(Duration::ZERO, Broker::poll_cpu)
    }

    fn domain(&mut self, domid: DomId) -> Option<DomainState> {
        self.ask(|broker| broker.domain(domid)).ok()?
    }

    fn yield_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(self.event_channels.unbind(self.exception_port)?)
    }

    fn claim_exceptions(&mut self) -> anyhow::Result<()> {
        self.exception_port = self.event_channels.bind_virq(VIRQ_DOM_EXC)?;
        Ok(())
    }

    fn broker(&self) -> Option<BorrowedFd<'_>> {
        self.broker.as_ref().map(Broker::as_fd)
    }

    fn take_loss(&mut self) -> Option<anyhow::Error> {
        self.loss.take()
    }

    fn start_broker(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(self.may_restart, "it had answered nothing, and would not do so now");
        let mut broker = Broker::start(self.account)?;
        broker.wait()?;
        self.broker = Some(broker);
        Ok(())
    }

    fn end_broker(&mut self) {
        self.broker = None;
    }

    fn lend(&self) -> Vec<BorrowedFd<'_>> {
        let Some(broker) = &self.broker else { return Vec::new() };
        let devices = [self.grants.as_fd(), self.own_ring.as_fd()];
        devices.into_iter().chain(broker.lend()).collect()
    }

    fn leave_to_borrower(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.leave();
        }
    }

    fn opens_devices(&self) -> bool {
        true
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.event_channels.as_fd()
    }
}
