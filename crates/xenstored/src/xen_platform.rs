//! Xen through Linux's devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::Context;
use xen::{ARENA_BYTES_FULL, DomId, EvtchnPort, Gfn, GrantRef, Xen};
use xen_linux::{
    EventChannels, ForeignMemory, GrantDevice, HostError, LinuxHypervisor, OwnStoreRing,
    SharedPage, VIRQ_DOM_EXC,
};
use xenstore::ring::RingPage;
use xenstore::server::{self, DomainNews, LookFor};

use crate::platform::Platform;

/// A mapped page as the ring code wants it.
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
    xen: Xen<LinuxHypervisor>,
    event_channels: EventChannels,
    grants: GrantDevice,
    foreign: ForeignMemory,
    exception_port: EvtchnPort,
}

impl XenPlatform {
    pub(crate) fn open() -> anyhow::Result<Self> {
        Self::with_event_channels(EventChannels::open()?)
    }

    /// Goes on with the event channels of a daemon before this one, which has yielded its exceptions.
    pub(crate) fn adopt(
        device: OwnedFd,
        ports: impl IntoIterator<Item = EvtchnPort>,
    ) -> anyhow::Result<Self> {
        Self::with_event_channels(EventChannels::adopt(device, ports)?)
    }

    fn with_event_channels(mut event_channels: EventChannels) -> anyhow::Result<Self> {
        let xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_FULL)?)?;
        let exception_port = bind_exceptions(&mut event_channels)
            .context("another xenstored may be running on this host")?;
        let grants = GrantDevice::open()?;
        let foreign = ForeignMemory::open()?;
        Ok(Self { xen, event_channels, grants, foreign, exception_port })
    }
}

/// Binds the port that tells of domains. A daemon that was killed holds it until it is quite gone.
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
    fn control_ring(&mut self) -> anyhow::Result<(Box<dyn RingPage>, EvtchnPort)> {
        let ring = OwnStoreRing::open()?;
        Ok((Box::new(Page(ring.page)), ring.port))
    }

    fn map_ring(&mut self, domid: DomId, gfn: Gfn) -> anyhow::Result<Box<dyn RingPage>> {
        // The toolstack grants the page by a fixed entry; a frame number is the older way.
        let page = self
            .grants
            .map_grant(domid, GrantRef::XENSTORE)
            .or_else(|_| self.foreign.map_page(domid, gfn.0))?;
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
        // Unmasked before anybody looks at the rings: what arrives afterwards fires again.
        for port in &ports[..count] {
            self.event_channels.unmask(*port)?;
        }
        Ok(ports[..count].to_vec())
    }

    fn exception_port(&self) -> EvtchnPort {
        self.exception_port
    }

    fn look_at_domains(&mut self, what: LookFor) -> anyhow::Result<DomainNews> {
        server::look_at_domains(&mut self.xen, what).context("cannot look at the domains")
    }

    fn domain_exists(&mut self, domid: DomId) -> bool {
        matches!(self.xen.domain(domid), Ok(Some(info)) if !info.flags.dying())
    }

    fn unique_id(&mut self, domid: DomId) -> Option<u64> {
        if !self.xen.abi().tells_unique_ids() {
            return None;
        }
        self.xen.life_state(domid).ok()?.map(|state| state.unique_id)
    }

    fn yield_exceptions(&mut self) -> anyhow::Result<()> {
        Ok(self.event_channels.unbind(self.exception_port)?)
    }

    fn claim_exceptions(&mut self) -> anyhow::Result<()> {
        self.exception_port = self.event_channels.bind_virq(VIRQ_DOM_EXC)?;
        Ok(())
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.event_channels.as_fd()
    }
}
