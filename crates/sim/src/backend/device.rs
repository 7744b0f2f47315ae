//! One backend device: what blkback and netback have in common in Linux's xenbus.

use xen::{DomId, EvtchnPort, GrantRef, XenbusState};
use xenstore::client::{Batch, ClientError, Nodes as _};

use super::load::{Counts, Load, Use};
use super::pci::Bus;
use super::vbd::Vbd;
use super::vif::Vif;
use super::{BackendId, BackendKind, Shared};
use crate::machine::{Domain, MappingId};

/// Whether a device is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Stay,
    Remove,
}

#[derive(Debug)]
enum Driver {
    Vbd(Vbd),
    Vif(Vif),
    Pci(Bus),
}

impl Driver {
    /// What it watches below its own directory.
    fn key(&self) -> &'static str {
        match self {
            Self::Vbd(_) => "physical-device",
            Self::Vif(_) => "hotplug-status",
            Self::Pci(_) => "num_devs",
        }
    }
}

/// A backend's resources of its frontend: mapped rings and bound channels.
#[derive(Debug, Default)]
pub(super) struct Connection {
    mappings: Vec<MappingId>,
    ports: Vec<EvtchnPort>,
}

/// Why a connection failed: an errno and the action.
pub(super) type Fatal = (i32, String);

impl Connection {
    /// Maps the rings and binds the channels that the frontend offers under these keys.
    pub(super) fn make(
        shared: &mut Shared,
        frontend: &str,
        domid: DomId,
        rings: &[&str],
        channels: &[&str],
    ) -> Result<Result<Self, Fatal>, ClientError> {
        let mut look = Batch::new();
        for key in rings.iter().chain(channels) {
            look.read(&format!("{frontend}/{key}"));
        }
        let replies = shared.store.run(&look)?;
        let mut made = Self::default();
        for (index, key) in rings.iter().chain(channels).enumerate() {
            let number = replies.get(index).ok().and_then(number);
            let Some(number) = number else {
                made.drop_all(shared);
                return Ok(Err((-22, format!("reading {key}"))));
            };
            let mut xen = shared.machine.get_mut();
            let done = if index < rings.len() {
                xen.map_grant(DomId::DOM0, domid, GrantRef(number))
                    .map(|mapping| made.mappings.push(mapping))
                    .is_ok()
            } else {
                xen.evtchn_bind_interdomain(DomId::DOM0, domid, EvtchnPort(number))
                    .map(|port| made.ports.push(port))
                    .is_ok()
            };
            drop(xen);
            if !done {
                made.drop_all(shared);
                return Ok(Err((-22, format!("mapping {key} {number}"))));
            }
        }
        Ok(Ok(made))
    }

    fn drop_all(&mut self, shared: &mut Shared) {
        let mut xen = shared.machine.get_mut();
        for mapping in self.mappings.drain(..) {
            xen.unmap(mapping);
        }
        for port in self.ports.drain(..) {
            xen.evtchn_close(DomId::DOM0, port).expect("a port of dom0's own");
        }
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A device that has been probed.
#[derive(Debug)]
pub(super) struct Device {
    id: BackendId,
    path: String,
    frontend: String,
    state: XenbusState,
    connection: Option<Connection>,
    driver: Driver,
    load: Load,
}

impl Device {
    /// Handles a changed directory; a new device is probed.
    pub(super) fn probe(shared: &mut Shared, id: BackendId) -> Result<Option<Self>, ClientError> {
        let path = id.path();
        let mut look = Batch::new();
        for key in ["state", "frontend", "frontend-id"] {
            look.read(&format!("{path}/{key}"));
        }
        let replies = shared.store.run(&look)?;
        let (Ok(state), Ok(frontend), Ok(frontend_id)) =
            (replies.get(0), replies.get(1), replies.get(2))
        else {
            return Ok(None);
        };
        let expected = number(frontend_id) == Some(id.domid.0.into());
        if XenbusState::decode(state) != XenbusState::Initialising || !expected {
            return Ok(None);
        }
        let frontend = String::from_utf8_lossy(frontend).into_owned();
        let driver = match id.kind {
            BackendKind::Vbd => Driver::Vbd(Vbd::probe(shared, &path)?),
            BackendKind::Vif => Driver::Vif(Vif::probe(shared, &path, id)?),
            BackendKind::Pci => Driver::Pci(Bus::default()),
        };
        let now = shared.machine.get().now();
        let (state, load) = (XenbusState::Initialising, Load::new(now));
        let mut device = Self { id, path, frontend, state, connection: None, driver, load };
        device.switch(shared, XenbusState::InitWait)?;
        let kind = id.kind.as_str();
        shared
            .machine
            .get_mut()
            .trace
            .note(now, format_args!("dom0: {kind} {}/{} is probed", id.domid, id.devid));
        shared.store.watch(&format!("{}/state", device.frontend), &device.path)?;
        let key = device.driver.key();
        shared.store.watch(&format!("{}/{key}", device.path), &device.path)?;
        if let Driver::Pci(bus) = &mut device.driver {
            match bus.reconfigure(shared, &device.path)? {
                Ok(()) => device.switch(shared, XenbusState::Initialised)?,
                Err(fatal) => device.fail(shared, &fatal)?,
            }
        }
        Ok(Some(device))
    }

    /// Writes the state, unless the directory is gone.
    fn switch(&mut self, shared: &mut Shared, state: XenbusState) -> Result<(), ClientError> {
        if self.state == state {
            return Ok(());
        }
        self.state = state;
        let node = format!("{}/state", self.path);
        shared.store.transaction(|transaction| {
            if transaction.read_optional(&node)?.is_some() {
                transaction.write(&node, state.as_str().as_bytes())?;
            }
            Ok(())
        })
    }

    /// Gives up on a device, with an error node for the operator.
    fn fail(&mut self, shared: &mut Shared, (errno, what): &Fatal) -> Result<(), ClientError> {
        let relative = self.path.trim_start_matches("/local/domain/0/");
        let node = format!("/local/domain/0/error/{relative}/error");
        shared.store.write(&node, format!("{errno} {what}").as_bytes())?;
        self.note(shared, &format!("fails: {errno} {what}"));
        self.switch(shared, XenbusState::Closing)
    }

    fn frontend_state(&self, shared: &mut Shared) -> Result<XenbusState, ClientError> {
        let state = shared.store.read_optional(&format!("{}/state", self.frontend))?;
        Ok(state.map_or(XenbusState::Unknown, |state| XenbusState::decode(&state)))
    }

    /// Handles a change of the device: its frontend's state or one of its own keys.
    pub(super) fn handle_change(&mut self, shared: &mut Shared) -> Result<Fate, ClientError> {
        if let Driver::Vbd(vbd) = &mut self.driver
            && let Err(fatal) = vbd.open(shared, &self.path)?
        {
            self.fail(shared, &fatal)?;
            return Ok(Fate::Stay);
        }
        match self.frontend_state(shared)? {
            XenbusState::Reconfiguring => self.reconfigure(shared)?,
            XenbusState::Connected if self.state == XenbusState::Reconfigured => {
                self.switch(shared, XenbusState::Connected)?;
            }
            XenbusState::Initialised | XenbusState::Connected => self.connect(shared)?,
            XenbusState::Closing => {
                self.disconnect(shared);
                self.switch(shared, XenbusState::Closing)?;
            }
            XenbusState::Closed => {
                self.disconnect(shared);
                self.switch(shared, XenbusState::Closed)?;
                let online = shared.store.read_optional(&format!("{}/online", self.path))?;
                if online.as_deref() != Some(b"1") {
                    return Ok(Fate::Remove);
                }
            }
            XenbusState::Unknown => return Ok(Fate::Remove),
            // The frontend starts again, after a reset of its driver.
            XenbusState::Initialising if self.state == XenbusState::Closed => {
                self.switch(shared, XenbusState::InitWait)?;
            }
            _ => {}
        }
        Ok(Fate::Stay)
    }

    fn reconfigure(&mut self, shared: &mut Shared) -> Result<(), ClientError> {
        let Driver::Pci(bus) = &mut self.driver else { return Ok(()) };
        if self.state != XenbusState::Connected {
            return Ok(());
        }
        match bus.reconfigure(shared, &self.path)? {
            Ok(()) => self.switch(shared, XenbusState::Reconfigured),
            Err(fatal) => self.fail(shared, &fatal),
        }
    }

    /// The state in which it waits for its frontend.
    fn waiting(&self) -> XenbusState {
        match self.driver {
            Driver::Vbd(_) | Driver::Vif(_) => XenbusState::InitWait,
            Driver::Pci(_) => XenbusState::Initialised,
        }
    }

    fn connect(&mut self, shared: &mut Shared) -> Result<(), ClientError> {
        let is_waiting = self.state == self.waiting();
        if self.connection.is_none() && is_waiting {
            let made = match &mut self.driver {
                Driver::Vbd(vbd) => vbd.connect(shared, &self.path, &self.frontend, self.id)?,
                Driver::Vif(_) => Vif::connect(shared, &self.frontend, self.id)?,
                Driver::Pci(_) => Connection::make(
                    shared,
                    &self.frontend,
                    self.id.domid,
                    &["pci-op-ref"],
                    &["event-channel"],
                )?
                .map(Some),
            };
            match made {
                Ok(Some(connection)) => self.connection = Some(connection),
                Ok(None) => return Ok(()),
                Err(fatal) => return self.fail(shared, &fatal),
            }
        }
        let ready = match &self.driver {
            Driver::Vbd(_) | Driver::Pci(_) => true,
            Driver::Vif(_) => Vif::is_plugged(shared, &self.path)?,
        };
        if self.connection.is_some() && ready && is_waiting {
            let node = shared.store.read_optional(&format!("{}/state", self.path))?;
            if node.map(|node| XenbusState::decode(&node)) == Some(XenbusState::Closing) {
                // Like the kernel's driver, it uses its own copy of the state.
                self.note(shared, "was asked to close, and connects");
            }
            self.switch(shared, XenbusState::Connected)?;
            self.note(shared, "is connected");
        }
        Ok(())
    }

    /// Adds a line about the device to the trace.
    fn note(&self, shared: &mut Shared, what: &str) {
        let now = shared.machine.get().now();
        let (kind, id) = (self.id.kind.as_str(), self.id);
        let line = format_args!("dom0: {kind} {}/{} {what}", id.domid, id.devid);
        shared.machine.get_mut().trace.note(now, line);
    }

    /// What it has been used for so far.
    pub(super) fn counts(&mut self, shared: &Shared) -> Counts {
        let xen = shared.machine.get();
        let runs = xen.domain(self.id.domid).is_some_and(Domain::is_running);
        let how = if runs && self.connection.is_some() { Use::Used } else { Use::Unused };
        let device = u64::from(self.id.domid.0) << 32 | u64::from(self.id.devid);
        self.load.look(xen.now(), device, how)
    }

    fn disconnect(&mut self, shared: &mut Shared) {
        if let Some(mut connection) = self.connection.take() {
            connection.drop_all(shared);
            if let Driver::Vbd(vbd) = &mut self.driver {
                vbd.disconnect(shared, self.id);
            }
        }
    }

    /// Removes the device; its directory may be gone already.
    pub(super) fn remove(mut self, shared: &mut Shared) -> Result<(), ClientError> {
        self.disconnect(shared);
        for (path, token) in [
            (format!("{}/state", self.frontend), &self.path),
            (format!("{}/{}", self.path, self.driver.key()), &self.path),
        ] {
            shared.store.unwatch(&path, token)?;
        }
        match &mut self.driver {
            Driver::Vbd(vbd) => vbd.close(shared),
            Driver::Vif(vif) => vif.remove(shared, &self.path)?,
            Driver::Pci(bus) => bus.remove(shared),
        }
        let state = shared.store.read_optional(&format!("{}/state", self.path))?;
        if state.map(|state| XenbusState::decode(&state)) == Some(XenbusState::Closing) {
            self.switch(shared, XenbusState::Closed)?;
        }
        self.note(shared, "is removed");
        Ok(())
    }
}
