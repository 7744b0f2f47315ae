//! The live model: objects in the order of their last change.

use serde::{Deserialize, Serialize};

use crate::answer::TraceRow;
use crate::request::is_unset;
use crate::storage::SrRow;

/// Objects that have changed, the earliest change first; each once, as it is now.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Objects {
    /// Where to go on. Its form has no meaning for clients.
    pub cursor: String,
    /// Nothing else has changed: whoever has read up to here knows all as it is.
    pub is_last: bool,
    /// What the reader knows is to be forgotten: these are the first of all objects.
    #[serde(skip_serializing_if = "is_unset")]
    pub starts_again: bool,
    pub changes: Vec<ObjectChange>,
}

/// The last change of an object.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectChange {
    pub revision: u64,
    /// Of a VM its UUID; of a device that, its kind and number with slashes between them; of a domain its domid; of an operation its number; of an
    /// SR its name.
    pub key: String,
    #[serde(flatten)]
    pub object: Object,
}

/// An object by its class, as it is now; `null` if it is there no more.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "class", content = "object", rename_all = "kebab-case")]
pub enum Object {
    Vm(Option<Box<VmObject>>),
    Device(Option<DeviceObject>),
    /// A domain that is not managed by the daemon.
    Domain(Option<DomainObject>),
    Operation(Option<Box<OperationObject>>),
    /// Without its space, which only a look at it tells.
    Sr(Option<SrRow>),
}

/// A VM, defined or only running.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VmObject {
    pub uuid: String,
    pub name: String,
    /// As in [`VmRow`](crate::VmRow).
    pub state: String,
    /// Why it is stuck; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    pub domid: Option<u16>,
    pub defined: bool,
    pub autostart: Option<u32>,
    /// What it is made of; `None` if that cannot be read.
    pub config: Option<VmSizes>,
    /// Operations on it and on its devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<u64>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VmSizes {
    /// `pv`, `pvh` or `hvm`.
    pub kind: String,
    pub memory_mib: u64,
    pub memory_max_mib: u64,
    /// Online at the start.
    pub vcpus: u32,
    pub vcpus_max: u32,
}

/// A device of a VM.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeviceObject {
    /// The VM's UUID.
    pub vm: String,
    /// `vbd`, `vif`, `console`, `vfb`, `vkbd`, `9pfs` or `pci`.
    pub kind: String,
    /// As in the store; of a PCI device its place in `pci`.
    pub devid: u32,
    /// Of a disk, such as `xvda`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As in a configuration file; of a screen nothing.
    pub config: String,
    /// `attaching`, `attached`, `detaching` or `detached`.
    pub state: String,
    /// The operation on it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<u64>,
}

/// A domain that is not managed by the daemon: domain 0, or another toolstack's.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DomainObject {
    pub domid: u16,
    pub name: Option<String>,
    pub uuid: String,
}

/// An operation, in progress or ended.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OperationObject {
    /// Its times are nanoseconds since the daemon's start.
    #[serde(flatten)]
    pub row: TraceRow,
    /// The VM's.
    pub uuid: String,
    pub started_unix_ms: u64,
    /// The first few steps in progress or about to begin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}
