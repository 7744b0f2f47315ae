//! Records of XenAPI, derived from what is known.

mod device;
mod host;
mod network;
mod storage;
mod vm;

use api::DeviceObject;
use xen::Uuid;

use crate::facade::Identity;
use crate::labels::Labels;
use crate::mirror::Mirror;
use crate::model::Class;
use crate::objects::{Key, Records};
use crate::refs::{derived, opaque};
use crate::tasks::Tasks;
use crate::value::{Record, Value};

pub(crate) use device::device_uuid;
pub(crate) use device::{device_key, is_cd};
pub(crate) use host::{ROLES, bridges_of};
pub use vm::Shown;
pub(crate) use vm::{allowed, checkpoint_uuid, console_uuid, operation_word, power_state};

/// All that records are derived from.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub mirror: &'a Mirror,
    pub identity: &'a Identity,
    pub labels: &'a Labels,
    pub tasks: &'a Tasks,
    /// Clients may start VMs here.
    pub is_enabled: bool,
}

impl View<'_> {
    pub(crate) fn host(&self) -> Uuid {
        self.identity.host
    }

    pub(crate) fn pool(&self) -> Uuid {
        derived(self.identity.host, "pool", "")
    }

    /// Something of the host's that has no UUID of its own.
    pub(crate) fn of_host(&self, kind: &str, name: &str) -> Uuid {
        derived(self.identity.host, kind, name)
    }

    pub(crate) fn sr(&self, name: &str) -> Uuid {
        self.of_host("sr", name)
    }

    pub(crate) fn vdi(&self, sr: &str, name: &str) -> Uuid {
        derived(self.sr(sr), "vdi", name)
    }

    pub(crate) fn network(&self, bridge: &str) -> Uuid {
        self.of_host("network", bridge)
    }

    /// The devices that a VM has, and those that could be plugged.
    pub(crate) fn devices_of(&self, vm: Uuid) -> impl Iterator<Item = &DeviceObject> {
        let known = self.mirror.live.devices.get(&vm);
        let is_known = move |it: &&DeviceObject| {
            known.is_some_and(|known| known.contains_key(&(it.kind.clone(), it.devid)))
        };
        let planned = self.labels.devices_of(vm).filter(move |it| !is_known(it));
        known.into_iter().flat_map(|it| it.values()).chain(planned)
    }

    /// Those of all VMs.
    pub(crate) fn all_devices(&self) -> impl Iterator<Item = (Uuid, &DeviceObject)> {
        let vms = self.mirror.live.vms.keys();
        vms.flat_map(|vm| self.devices_of(*vm).map(|it| (*vm, it)))
    }

    /// Domain 0's, which says that it is zero.
    pub(crate) fn control_domain(&self) -> Uuid {
        let own = self.mirror.live.domains.get(&0).and_then(|it| it.uuid.parse().ok());
        own.filter(|it| *it != Uuid::default()).unwrap_or_else(|| self.of_host("domain", "0"))
    }
}

/// A record that is being written.
pub(crate) struct Draft {
    key: Key,
    record: Record,
}

impl Draft {
    pub(crate) fn of(class: Class, uuid: Uuid) -> Self {
        let mut draft = Self { key: (class, uuid), record: class.blank() };
        draft.set("uuid", uuid.to_string());
        draft
    }

    pub(crate) fn set(&mut self, field: &'static str, value: impl Into<Value>) {
        let before = self.record.insert(field, value.into());
        assert!(before.is_some(), "{} has no field {field}", self.key.0.name());
    }

    pub(crate) fn point(&mut self, field: &'static str, uuid: Option<Uuid>) {
        self.set(field, uuid.map_or_else(Value::null, |it| opaque(it).into()));
    }

    pub(crate) fn point_all(&mut self, field: &'static str, uuids: impl IntoIterator<Item = Uuid>) {
        self.set(field, uuids.into_iter().map(opaque).collect::<Value>());
    }

    /// With the labels that clients have given it.
    pub(crate) fn finish(mut self, labels: &Labels, records: &mut Records) {
        labels.label(self.key, &mut self.record);
        records.insert(self.key, self.record);
    }
}
