//! Dom0's kernel as a store client: blkback and netback probe their devices, connect and
//! disconnect.
//!
//! ```text
//!   directory with state 1 -> probe -> InitWait -> frontend ready -> Connected
//!   frontend Closing -> Closing; frontend Closed or gone, offline -> device removed, Closed
//! ```
//! Sources: Linux `drivers/xen/xenbus/xenbus_probe{,_backend}.c`, `drivers/block/xen-blkback/xenbus.c`,
//! `drivers/net/xen-netback/xenbus.c`.

mod device;
mod load;
mod pci;
mod vbd;
mod vif;

use std::collections::BTreeMap;

use xen::DomId;
use xenstore::client::{Client, ClientError, Nodes as _, WatchEvent};

use crate::machine::Machine;
use crate::os::SimOs;
use crate::store::SocketTransport;
use device::Device;
pub use load::Counts;

/// Kind of a kernel backend.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum BackendKind {
    Vbd,
    Vif,
    Pci,
}

impl BackendKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Vbd => "vbd",
            Self::Vif => "vif",
            Self::Pci => "pci",
        }
    }
}

/// A backend's device: `KIND/DOMID/DEVID` under `backend/`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct BackendId {
    pub(crate) kind: BackendKind,
    pub(crate) domid: DomId,
    pub(crate) devid: u32,
}

/// What dom0 is to have, in KiB.
const TARGET: &str = "/local/domain/0/memory/target";

/// The directory of all backends of dom0.
const ROOT: &str = "/local/domain/0/backend";

impl BackendId {
    fn path(self) -> String {
        format!("{ROOT}/{}/{}/{}", self.kind.as_str(), self.domid, self.devid)
    }

    /// The device that a path below [`ROOT`] belongs to.
    fn of_path(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix(ROOT)?.strip_prefix('/')?.split('/');
        let kind = match parts.next()? {
            "vbd" => BackendKind::Vbd,
            "vif" => BackendKind::Vif,
            "pci" => BackendKind::Pci,
            _ => return None,
        };
        let domid = DomId(parts.next()?.parse().ok()?);
        let devid = parts.next()?.parse().ok()?;
        Some(Self { kind, domid, devid })
    }
}

/// State shared by all devices of the kernel.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Client<SocketTransport>,
    pub(crate) machine: Machine,
    pub(crate) os: SimOs,
}

/// The kernel's backends.
#[derive(Debug)]
pub(crate) struct Kernel {
    shared: Shared,
    devices: BTreeMap<BackendId, Device>,
    /// Kinds whose driver is not loaded.
    absent: Vec<BackendKind>,
}

impl Kernel {
    /// Starts the drivers. The error is the store's.
    pub(crate) fn start(
        store: Client<SocketTransport>,
        machine: Machine,
        os: SimOs,
        absent: &[BackendKind],
    ) -> Result<Self, ClientError> {
        let mut shared = Shared { store, machine, os };
        shared.store.watch(ROOT, "backend")?;
        if shared.os.get().dom0.is_some_and(|dom0| dom0.has_driver) {
            shared.store.watch(TARGET, TARGET)?;
        }
        Ok(Self { shared, devices: BTreeMap::new(), absent: absent.to_vec() })
    }

    pub(crate) fn transport(&self) -> &SocketTransport {
        self.shared.store.transport()
    }

    /// Devices that exist.
    pub(crate) fn devices(&self) -> usize {
        self.devices.len()
    }

    /// What each disk and interface has been used for so far.
    pub(crate) fn counts(&mut self) -> Vec<(BackendId, Counts)> {
        let Self { shared, devices, .. } = self;
        let used = devices.iter_mut().filter(|(id, _)| id.kind != BackendKind::Pci);
        used.map(|(id, device)| (*id, device.counts(shared))).collect()
    }

    /// Handles what the store reported.
    pub(crate) fn run(&mut self) -> Result<(), ClientError> {
        loop {
            let event = match self.shared.store.poll_event() {
                Some(event) => event,
                None => {
                    self.shared.store.receive()?;
                    let Some(event) = self.shared.store.poll_event() else { return Ok(()) };
                    event
                }
            };
            self.handle(&event)?;
        }
    }

    fn handle(&mut self, event: &WatchEvent) -> Result<(), ClientError> {
        if event.token == "backend" {
            return self.handle_change(&event.path);
        }
        if event.token == TARGET {
            return self.balloon();
        }
        // Tokens of devices are their paths.
        let Some(id) = BackendId::of_path(&event.token) else { return Ok(()) };
        let Some(device) = self.devices.get_mut(&id) else { return Ok(()) };
        if device.handle_change(&mut self.shared)? == device::Fate::Remove {
            self.remove(id)?;
        }
        Ok(())
    }

    /// Gives memory back to Xen. Nobody here asks for it again.
    fn balloon(&mut self) -> Result<(), ClientError> {
        let Some(value) = self.shared.store.read_optional(TARGET)? else { return Ok(()) };
        let kib = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok());
        if let Some(kib) = kib {
            self.shared.machine.get_mut().shrink(DomId::DOM0, kib / 4);
        }
        Ok(())
    }

    fn handle_change(&mut self, path: &str) -> Result<(), ClientError> {
        let exists = self.shared.store.read_optional(path);
        if !matches!(exists, Ok(Some(_))) {
            let below: Vec<BackendId> = self
                .devices
                .keys()
                .filter(|id| {
                    let device = id.path();
                    device == path || device.starts_with(&format!("{path}/"))
                })
                .copied()
                .collect();
            for id in below {
                self.remove(id)?;
            }
            return exists.map(drop);
        }
        let Some(id) = BackendId::of_path(path) else { return Ok(()) };
        if self.devices.contains_key(&id) || self.absent.contains(&id.kind) {
            return Ok(());
        }
        if let Some(device) = Device::probe(&mut self.shared, id)? {
            self.devices.insert(id, device);
        }
        Ok(())
    }

    fn remove(&mut self, id: BackendId) -> Result<(), ClientError> {
        match self.devices.remove(&id) {
            Some(device) => device.remove(&mut self.shared),
            None => Ok(()),
        }
    }
}
