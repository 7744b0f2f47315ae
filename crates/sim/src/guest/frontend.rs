//! A guest's frontends: blkfront, netfront and pcifront, up to the connection.
//!
//! ```text
//!   Initialising -- backend InitWait --> Initialised (vbd) -- backend Connected --> Connected
//!                                    \-> Connected (vif)
//!   any -- backend Closing --> Closed
//! ```
//! Sources: `xen/include/public/io/{blkif,netif,pciif,xenbus}.h`; Linux `xen-blkfront.c`, `xen-netfront.c`,
//! `xen-pcifront.c`.

use xen::{DomId, EvtchnPort, GrantRef, PAGE_BYTES, XenbusState};
use xenstore::client::{Batch, Client, ClientError, Nodes as _, Transport};

use crate::machine::Machine;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum DeviceKind {
    Vbd,
    Vif,
    Pci,
}

impl DeviceKind {
    pub(super) const ALL: [Self; 3] = [Self::Vbd, Self::Vif, Self::Pci];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Vbd => "vbd",
            Self::Vif => "vif",
            Self::Pci => "pci",
        }
    }
}

/// A device, as named by its directory under `device/`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct DeviceId {
    pub(super) kind: DeviceKind,
    pub(super) devid: String,
}

impl DeviceId {
    pub(super) fn path(&self) -> String {
        format!("device/{}/{}", self.kind.as_str(), self.devid)
    }

    /// Token of the watch on the other end's state.
    pub(super) fn token(&self) -> String {
        format!("{}/{}", self.kind.as_str(), self.devid)
    }

    pub(super) fn from_token(token: &str) -> Option<Self> {
        let (kind, devid) = token.split_once('/')?;
        let kind = DeviceKind::ALL.into_iter().find(|it| it.as_str() == kind)?;
        Some(Self { kind, devid: devid.to_owned() })
    }
}

/// Pages and grant references that a guest has for its rings.
#[derive(Debug)]
pub(super) struct Resources {
    machine: Machine,
    domid: DomId,
    pages: Vec<u64>,
    grants: Vec<u32>,
}

impl Resources {
    /// Entries below this one are reserved for the toolstack.
    const GRANT_FIRST: u32 = 8;

    pub(super) fn new(machine: Machine, domid: DomId, (first, number): (u64, u64)) -> Self {
        let grants = (Self::GRANT_FIRST..Self::GRANT_FIRST + 64).rev().collect();
        Self { machine, domid, pages: (first..first + number).collect(), grants }
    }

    /// A cleared page, granted to the domain of the backend.
    fn grant_page(&mut self, to: DomId) -> Option<Ring> {
        let pfn = self.pages.pop()?;
        let Some(grant) = self.grants.pop() else {
            self.pages.push(pfn);
            return None;
        };
        let mut xen = self.machine.get_mut();
        assert!(xen.guest_write(self.domid, pfn, 0, &[0; PAGE_BYTES]), "a page of one's own");
        let domain = xen.domain(self.domid)?;
        let gfn = if domain.is_translated() { pfn } else { domain.mfn_of_pfn(pfn)? };
        let grant = GrantRef(grant);
        xen.grant_access(self.domid, grant, to, gfn).then_some(Ring { pfn, grant })
    }

    fn port(&self, to: DomId) -> Option<EvtchnPort> {
        self.machine.get_mut().evtchn_alloc_unbound(self.domid, to).ok()
    }

    fn release(&mut self, rings: &mut Vec<Ring>, ports: &mut Vec<EvtchnPort>) {
        let mut xen = self.machine.get_mut();
        for port in ports.drain(..) {
            xen.evtchn_close(self.domid, port).expect("a port of one's own");
        }
        // A page that the backend still maps stays granted, as Linux would defer it.
        for ring in rings.drain(..) {
            if xen.grant_end_access(self.domid, ring.grant) {
                self.pages.push(ring.pfn);
                self.grants.push(ring.grant.0);
            }
        }
    }
}

#[derive(Debug)]
struct Ring {
    pfn: u64,
    grant: GrantRef,
}

/// Result of a change of the backend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Progress {
    None,
    Connected,
    /// PCI devices came or went.
    Reconfigured,
    Closed,
}

/// One frontend.
#[derive(Debug)]
pub(super) struct Frontend {
    id: DeviceId,
    backend: String,
    /// The domain that it is in.
    served_by: DomId,
    state: XenbusState,
    rings: Vec<Ring>,
    ports: Vec<EvtchnPort>,
    toggles: u32,
    lies: u32,
}

impl Frontend {
    /// Reads a device's directory; `None` if the toolstack has not completed it.
    pub(super) fn probe<T: Transport>(
        store: &mut Client<T>,
        id: &DeviceId,
    ) -> Result<Option<Self>, ClientError> {
        let path = id.path();
        let mut look = Batch::new();
        let (backend, state) =
            (look.read(&format!("{path}/backend")), look.read(&format!("{path}/state")));
        let backend_id = look.read(&format!("{path}/backend-id"));
        let replies = store.run(&look)?;
        let (Ok(backend), Ok(state)) = (replies.get(backend), replies.get(state)) else {
            return Ok(None);
        };
        let backend_id = replies.get(backend_id).ok().and_then(|id| std::str::from_utf8(id).ok());
        let served_by = backend_id.and_then(|id| id.parse().ok()).map(DomId).unwrap_or_default();
        if XenbusState::decode(state) != XenbusState::Initialising {
            return Ok(None);
        }
        Ok(Some(Self {
            id: id.clone(),
            backend: String::from_utf8_lossy(backend).into_owned(),
            served_by,
            state: XenbusState::Initialising,
            rings: Vec::new(),
            ports: Vec::new(),
            toggles: 0,
            lies: 0,
        }))
    }

    /// The toolstack removed the device.
    pub(super) fn forget(mut self, resources: &mut Resources) {
        resources.release(&mut self.rings, &mut self.ports);
    }

    pub(super) fn backend_state(&self) -> String {
        format!("{}/state", self.backend)
    }

    fn switch<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        state: XenbusState,
    ) -> Result<(), ClientError> {
        self.state = state;
        match store.write(&format!("{}/state", self.id.path()), state.as_str().as_bytes()) {
            // The toolstack removed the directory.
            Err(error) if error.refusal().is_some() => Ok(()),
            other => other,
        }
    }

    /// Acts on the backend's state. `hold`: never close.
    pub(super) fn handle_backend<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        resources: &mut Resources,
        split_channels: bool,
        hold: bool,
    ) -> Result<Progress, ClientError> {
        let state = match store.read_optional(&self.backend_state()) {
            Ok(state) => state.map_or(XenbusState::Unknown, |state| XenbusState::decode(&state)),
            Err(error) if error.refusal().is_some() => XenbusState::Unknown,
            Err(error) => return Err(error),
        };
        match (state, self.state, self.id.kind) {
            (XenbusState::InitWait, XenbusState::Initialising, DeviceKind::Vbd) => {
                self.offer(store, resources, &["ring-ref"], &["event-channel"])?;
                self.switch(store, XenbusState::Initialised)?;
                Ok(Progress::None)
            }
            (XenbusState::InitWait, XenbusState::Initialising, DeviceKind::Vif) => {
                let channels: &[&str] = if split_channels {
                    &["event-channel-tx", "event-channel-rx"]
                } else {
                    &["event-channel"]
                };
                self.offer(store, resources, &["tx-ring-ref", "rx-ring-ref"], channels)?;
                self.switch(store, XenbusState::Connected)?;
                Ok(Progress::None)
            }
            (XenbusState::Connected, XenbusState::Initialised, DeviceKind::Vbd) => {
                let sectors = store.read_optional(&format!("{}/sectors", self.backend))?;
                if sectors.is_none() {
                    return Ok(Progress::None);
                }
                self.switch(store, XenbusState::Connected)?;
                Ok(Progress::Connected)
            }
            // It does not wait for its backend.
            (_, XenbusState::Initialising, DeviceKind::Pci) => {
                self.offer(store, resources, &["pci-op-ref"], &["event-channel"])?;
                self.switch(store, XenbusState::Initialised)?;
                Ok(Progress::None)
            }
            (XenbusState::Connected, XenbusState::Initialised, DeviceKind::Pci) => {
                self.switch(store, XenbusState::Connected)?;
                Ok(Progress::Connected)
            }
            (XenbusState::Reconfiguring, XenbusState::Connected, DeviceKind::Pci) if !hold => {
                self.switch(store, XenbusState::Reconfiguring)?;
                Ok(Progress::None)
            }
            (XenbusState::Reconfigured, XenbusState::Reconfiguring, DeviceKind::Pci) => {
                self.switch(store, XenbusState::Connected)?;
                Ok(Progress::Reconfigured)
            }
            (XenbusState::Connected, XenbusState::Connected, DeviceKind::Vif) => {
                Ok(Progress::Connected)
            }
            (XenbusState::Closing | XenbusState::Closed, mine, _)
                if mine != XenbusState::Closed && !hold =>
            {
                resources.release(&mut self.rings, &mut self.ports);
                self.switch(store, XenbusState::Closed)?;
                Ok(Progress::Closed)
            }
            _ => Ok(Progress::None),
        }
    }

    /// Grants rings, allocates channels and writes both in one transaction.
    fn offer<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        resources: &mut Resources,
        ring_keys: &[&str],
        channel_keys: &[&str],
    ) -> Result<(), ClientError> {
        let path = self.id.path();
        let mut offer = Batch::new();
        for key in ring_keys {
            let Some(ring) = resources.grant_page(self.served_by) else { return Ok(()) };
            offer.write(&format!("{path}/{key}"), ring.grant.0.to_string());
            self.rings.push(ring);
        }
        for key in channel_keys {
            let Some(port) = resources.port(self.served_by) else { return Ok(()) };
            offer.write(&format!("{path}/{key}"), port.to_string());
            self.ports.push(port);
        }
        match self.id.kind {
            DeviceKind::Vbd => drop(offer.write(&format!("{path}/protocol"), "x86_64-abi")),
            DeviceKind::Vif => drop(offer.write(&format!("{path}/request-rx-copy"), "1")),
            DeviceKind::Pci => drop(offer.write(&format!("{path}/magic"), "7")),
        }
        store.commit(&offer).map(drop)
    }

    /// Hostile: cycles through the states at random.
    pub(super) fn toggle<T: Transport>(
        &mut self,
        store: &mut Client<T>,
    ) -> Result<(), ClientError> {
        const TOGGLES_MAX: u32 = 50;
        const STATES: [XenbusState; 5] = [
            XenbusState::Connected,
            XenbusState::Closing,
            XenbusState::Initialising,
            XenbusState::Closed,
            XenbusState::Unknown,
        ];
        if self.toggles < TOGGLES_MAX {
            let state = STATES[usize::try_from(self.toggles).unwrap_or(0) % STATES.len()];
            self.toggles += 1;
            self.switch(store, state)?;
        }
        Ok(())
    }

    /// Hostile: offers rings that do not exist, with values that are not numbers, and removes its
    /// own directory in between.
    pub(super) fn lie<T: Transport>(&mut self, store: &mut Client<T>) -> Result<(), ClientError> {
        const LIES_MAX: u32 = 40;
        const LIES: [(&str, &[u8]); 10] = [
            ("ring-ref", b"4294967295"),
            ("tx-ring-ref", b"-1"),
            ("event-channel", b"99999999999999999999"),
            ("state", b"4"),
            ("state", b"\xff\xfe not a state"),
            ("ring-ref", b""),
            ("rx-ring-ref", b"8"),
            ("event-channel", b"1"),
            ("state", b"3"),
            ("backend", b"/local/domain/0/backend/vbd/0/0"),
        ];
        if self.lies >= LIES_MAX {
            return Ok(());
        }
        let at = usize::try_from(self.lies).unwrap_or(0);
        self.lies += 1;
        let path = self.id.path();
        let said = if at % 17 == 16 {
            store.rm(&path)
        } else {
            let (key, value) = LIES[at % LIES.len()];
            store.write(&format!("{path}/{key}"), value)
        };
        match said {
            Err(error) if error.refusal().is_some() => Ok(()),
            other => other,
        }
    }
}
