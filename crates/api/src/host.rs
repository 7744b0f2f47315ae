//! Xen and the machine as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::psr::PsrRequest;
use crate::request::{Target, is_unset};

/// Requests about them.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum HostRequest {
    /// Xen's messages. Answered by [`Reply::Text`](crate::Reply::Text).
    Console {
        /// Remove what was read.
        #[serde(default, skip_serializing_if = "is_unset")]
        clear: bool,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done).
    DebugKeys {
        keys: String,
    },
    /// Answered by [`Reply::Topology`](crate::Reply::Topology).
    Topology {
        /// Devices by name, as in `0000:00:1f.2`.
        #[serde(default)]
        pci: Vec<String>,
    },
    /// Answered by [`Reply::Defaults`](crate::Reply::Defaults).
    Defaults,
    /// What guests can boot from here. Answered by [`Reply::Boot`](crate::Reply::Boot).
    Boot,
    /// The NUMA nodes of domains. Answered by [`Reply::NodeAffinity`](crate::Reply::NodeAffinity).
    NodeAffinity {
        domids: Vec<u16>,
    },
    /// Answered by [`Reply::Pools`](crate::Reply::Pools).
    Pools,
    /// Answered by [`Reply::Pools`](crate::Reply::Pools) with the new one.
    PoolCreate {
        /// The file's name as the user gave it; empty if there is none.
        file: String,
        /// The file's content.
        text: String,
        /// `key=value` settings of the command line.
        #[serde(default)]
        overrides: Vec<String>,
        /// Check everything, create nothing.
        #[serde(default, skip_serializing_if = "is_unset")]
        dry_run: bool,
    },
    /// Answered by [`Reply::Done`](crate::Reply::Done), as are the others. A pool is given by name or number.
    PoolDestroy {
        pool: String,
    },
    PoolRename {
        pool: String,
        name: String,
    },
    /// An [`Answer::Warning`](crate::Answer::Warning) is sent for each CPU that is not added.
    PoolAdd {
        pool: String,
        cpus: String,
    },
    /// An [`Answer::Warning`](crate::Answer::Warning) is sent for each CPU that stays.
    PoolRemove {
        pool: String,
        cpus: String,
    },
    PoolMigrate {
        target: Target,
        pool: String,
    },
    PoolSplit,
    /// `name=value` and `noname`, with blanks between.
    SetParameters {
        text: String,
    },
    /// Answered by [`Reply::Enforcing`](crate::Reply::Enforcing).
    Enforcing,
    SetEnforcing {
        enforcing: bool,
    },
    Pci(PciRequest),
    Psr(PsrRequest),
    /// A policy of Xen's security module, as hexadecimal digits.
    LoadPolicy {
        policy: String,
    },
}

/// About PCI devices of the host for domains. Addresses are as in `[0000:]00:1f.2`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum PciRequest {
    /// Those that can be assigned and are not. Answered by [`Reply::Pci`](crate::Reply::Pci).
    Assignable,
    /// An [`Answer::Warning`](crate::Answer::Warning) is sent if it is assignable already, or had no driver.
    AssignableAdd {
        device: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    AssignableRemove {
        /// By name, otherwise by address.
        device: String,
        /// Also give it to the driver that had it before.
        #[serde(default, skip_serializing_if = "is_unset")]
        rebind: bool,
    },
    /// Those that a domain has. Answered by [`Reply::Pci`](crate::Reply::Pci).
    List { target: Target },
    /// Gives one to a running domain, in the syntax of `pci=`.
    Attach { target: Target, device: String },
    /// Takes one from it, by address or `name=NAME`.
    Detach {
        target: Target,
        device: String,
        /// Even if the guest does not let go of it.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
}

/// A CPU pool.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PoolRow {
    pub id: u32,
    /// `None` if the store has no name for it.
    pub name: Option<String>,
    pub scheduler: String,
    pub cpus: Vec<u32>,
    pub domains: u32,
}

/// A PCI device.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PciRow {
    /// As in `0000:00:1f.2`.
    pub device: String,
    /// Given by `pci-assignable-add -n`.
    pub name: Option<String>,
    /// Its slot and function on the guest's bus: `slot * 8 + function`.
    pub vdevfn: u8,
}

/// Where CPUs, memory and devices are.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Topology {
    pub cpus: Vec<CpuRow>,
    pub nodes: Vec<NodeRow>,
    /// Devices whose node Xen knows.
    pub pci: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CpuRow {
    pub cpu: u32,
    pub core: u32,
    pub socket: u32,
    pub node: u32,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NodeRow {
    pub node: u32,
    pub bytes: u64,
    pub bytes_free: u64,
    /// To each node.
    pub distances: Vec<u32>,
}

/// Programs of the host that guests boot by.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BootRow {
    /// Paths of GRUB for guests of these kinds.
    pub pvh_grub: Option<String>,
    pub pv_grub: Option<String>,
    /// Xen's own boot loader for PV guests is there.
    pub pygrub: bool,
    pub device_model: bool,
}
