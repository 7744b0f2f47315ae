//! The live model: objects in the order of their last change.

use serde::{Deserialize, Serialize};

use crate::answer::TraceRow;
use crate::request::is_unset;
use crate::storage::{SrRow, VdiRow};

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
    /// SR and a network its name; of a VDI `SR:VDI`; of the host `host`.
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
    /// SRs are read for it every minute, and after each change made here.
    Vdi(Option<VdiRow>),
    Network(Option<NetworkObject>),
    /// There is one.
    Host(Option<Box<HostObject>>),
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
    /// The network that an interface is on, or is to be; nothing if another domain or a script of others connects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
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

/// A network that the host has, or that VMs are to be on.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NetworkObject {
    /// That of the bridge; `routed:eth0` for VMs that the host routes to from `eth0`; `nat:host` for those behind its address.
    pub name: String,
    /// `bridge`, `openvswitch`, `routed` or `nat`.
    pub kind: String,
    /// Whether the host has it now.
    pub exists: bool,
    pub up: bool,
    pub mtu: Option<u32>,
    /// Interfaces of the host that are its ports, of which 128 are named.
    pub ports: Vec<String>,
    /// How many interfaces of VMs are to be on it. Which, their devices say.
    pub interfaces: u64,
}

/// The host.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostObject {
    pub name: String,
    /// Of domain 0's kernel.
    pub kernel: String,
    /// Such as `x86_64`.
    pub machine: String,
    /// Xylem's.
    pub release: String,
    pub xen_version: String,
    pub scheduler: String,
    pub cpus: u32,
    pub nodes: u32,
    pub cores_per_socket: u32,
    pub threads_per_core: u32,
    pub cpu_mhz: u32,
    pub memory_mib: u64,
    /// Which no domain has or was promised, as it was seen within the last seconds.
    pub memory_free_mib: u64,
    pub dom0_memory_mib: u64,
    pub dom0_vcpus: u32,
    /// 0 if the host does not say.
    pub booted_unix_ms: u64,
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
