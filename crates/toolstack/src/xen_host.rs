//! Requests about Xen and the machine as a whole: its console, CPUs, NUMA nodes and CPU pools.
//!
//! Pools are Xen's; their names are nodes of the store that libxl and we share: `/local/pool/ID/name`.

use std::collections::{BTreeMap, BTreeSet};

use xen::{CpuPlace, DomId, NumaNode, PciAddress, Scheduler, Uuid};

use crate::pci::{PciAsk, PciRow};
use crate::psr::{PsrAsk, PsrHardware, PsrSamples, PsrShares};
use crate::tuning::CpuList;

/// What is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostAsk {
    /// Answered by [`HostTold::Text`].
    Console {
        clear: bool,
    },
    DebugKeys {
        keys: String,
    },
    /// Answered by [`HostTold::Topology`].
    Topology {
        pci: Vec<PciAddress>,
    },
    /// The NUMA nodes of these domains. Answered by [`HostTold::Nodes`].
    NodeAffinity {
        domids: Vec<DomId>,
    },
    /// Answered by [`HostTold::Pools`].
    Pools,
    /// Answered by [`HostTold::Pool`].
    CreatePool {
        pool: Box<NewPool>,
        uuid: Uuid,
        dry_run: bool,
    },
    DestroyPool {
        pool: String,
    },
    RenamePool {
        pool: String,
        name: String,
    },
    /// Answered by [`HostTold::Warnings`] about CPUs that could not be moved, as is the opposite.
    AddCpus {
        pool: String,
        cpus: CpuList,
    },
    RemoveCpus {
        pool: String,
        cpus: CpuList,
    },
    MoveDomain {
        domid: DomId,
        handle: Uuid,
        name: String,
        pool: String,
    },
    /// Xen's parameters by name, with their values.
    SetParameters {
        settings: Vec<(String, String)>,
    },
    /// Answered by [`HostTold::Enforcing`].
    Enforcing,
    SetEnforcing {
        enforcing: bool,
    },
    /// A policy of Xen's security module.
    LoadPolicy {
        policy: Vec<u8>,
    },
    Pci(PciAsk),
    Psr(PsrAsk),
    /// A pool for each NUMA node; the pools' UUIDs are made of this one. Answered by
    /// [`HostTold::Warnings`].
    SplitByNode {
        fresh_uuid: Uuid,
    },
}

impl HostAsk {
    /// The request as the log has it: a verb and its object; `None` if it only reads.
    pub(crate) fn deed(&self) -> Option<(String, &str)> {
        let (verb, object) = match self {
            Self::Console { clear: true } => ("clear the console of", "Xen"),
            Self::DebugKeys { keys } => {
                return Some((format!("send debug keys {keys:?} to"), "Xen"));
            }
            Self::CreatePool { dry_run: false, pool, .. } => ("cpupool-create", &*pool.name),
            Self::DestroyPool { pool } => ("cpupool-destroy", &**pool),
            Self::RenamePool { pool, name } => {
                return Some((format!("cpupool-rename to {name}"), pool));
            }
            Self::AddCpus { pool, .. } => ("cpupool-cpu-add", &**pool),
            Self::RemoveCpus { pool, .. } => ("cpupool-cpu-remove", &**pool),
            Self::MoveDomain { name, pool, .. } => {
                return Some((format!("cpupool-migrate to {pool}"), name));
            }
            Self::SplitByNode { .. } => ("cpupool-numa-split", "this host"),
            Self::SetParameters { settings } => {
                let settings: Vec<String> =
                    settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
                return Some((format!("set parameters {:?} of", settings.join(" ")), "Xen"));
            }
            Self::SetEnforcing { enforcing: true } => ("setenforce 1", "Xen's security module"),
            Self::SetEnforcing { enforcing: false } => ("setenforce 0", "Xen's security module"),
            Self::Psr(ask) => return ask.deed(),
            Self::Pci(ask) => return ask.deed().map(|verb| (verb, "this host")),
            Self::LoadPolicy { .. } => ("load a policy into", "Xen's security module"),
            Self::Enforcing
            | Self::Console { clear: false }
            | Self::Topology { .. }
            | Self::NodeAffinity { .. }
            | Self::Pools
            | Self::CreatePool { dry_run: true, .. } => return None,
        };
        Some((verb.to_owned(), object))
    }
}

/// Reads parameters as `xl set-parameters` does: `name=value` and `noname`, with blanks between.
///
/// # Errors
/// One has no value.
pub fn parameters(text: &str) -> Result<Vec<(String, String)>, String> {
    let setting = |word: &str| {
        let owned = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match (word.split_once('='), word.strip_prefix("no")) {
            (Some((name, value)), _) => Ok(owned(name, value)),
            (None, Some(name)) => Ok(owned(name, "no")),
            (None, None) => Err(format!("{word}: has no value; write {word}=VALUE or no{word}")),
        }
    };
    text.split([' ', '\t']).filter(|word| !word.is_empty()).map(setting).collect()
}

/// What is answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostTold {
    Done,
    Text(String),
    Topology(Box<Topology>),
    /// With the number of nodes of the machine.
    Nodes {
        by_domain: BTreeMap<DomId, BTreeSet<u32>>,
        nodes: u32,
    },
    Pools(Vec<Pool>),
    Pool(Pool),
    /// Whether Xen's security module enforces its policy; `None` without one.
    Enforcing(Option<bool>),
    Pci(Vec<PciRow>),
    PsrHardware(PsrHardware),
    PsrSamples(PsrSamples),
    /// By socket.
    PsrShares(Vec<PsrShares>),
    /// It is done, as far as they say.
    Warnings(Vec<String>),
}

/// Where CPUs, memory and devices are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Topology {
    pub cpus: Vec<Option<CpuPlace>>,
    pub nodes: Vec<NumaNode>,
    /// Of each device that was asked for; `None` if Xen does not know it.
    pub pci: Vec<Option<u32>>,
}

impl Topology {
    pub(crate) fn cpus_of_node(places: &[Option<CpuPlace>], node: u32) -> BTreeSet<u32> {
        let of_node = |place: &Option<CpuPlace>| place.is_some_and(|place| place.node == node);
        (0..).zip(places).filter(|(_, place)| of_node(place)).map(|(cpu, _)| cpu).collect()
    }
}

/// A CPU pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pool {
    pub id: u32,
    /// `None` if the store has no name for it.
    pub name: Option<String>,
    pub scheduler_id: u32,
    pub cpus: BTreeSet<u32>,
    pub domains: u32,
}

/// The scheduler's name as libxl has it.
#[must_use]
pub fn scheduler_name(id: u32) -> &'static str {
    match Scheduler::from_id(id) {
        Some(Scheduler::Credit) => "credit",
        Some(Scheduler::Credit2) => "credit2",
        Some(Scheduler::Arinc653) => "arinc653",
        Some(Scheduler::Rtds) => "rtds",
        Some(Scheduler::Null) => "null",
        None => "unknown",
    }
}

pub(crate) fn scheduler_named(name: &str) -> Option<Scheduler> {
    (0..=Scheduler::Null as u32)
        .filter_map(Scheduler::from_id)
        .find(|&scheduler| scheduler_name(scheduler as u32) == name)
}

/// A pool that is to be created.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewPool {
    pub name: String,
    /// `None`: that of Pool-0.
    pub scheduler: Option<Scheduler>,
    pub cpus: PoolCpus,
}

/// The CPUs of a new pool. They must be free.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PoolCpus {
    None,
    /// Those free ones of these NUMA nodes.
    OfNodes(Vec<u32>),
    These(CpuList),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_or_switched_off() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let read = parameters(" a=1\t nob  noc=x=y ").unwrap();
        assert_eq!(read, [setting("a", "1"), setting("b", "no"), setting("noc", "x=y")]);
        assert_eq!(parameters(""), Ok(Vec::new()));
        let refused = parameters("a=1 ept").unwrap_err();
        assert_eq!(refused, "ept: has no value; write ept=VALUE or noept");
    }

    #[test]
    fn schedulers_have_names() {
        for name in ["credit", "credit2", "arinc653", "rtds", "null"] {
            assert_eq!(scheduler_named(name).map(|it| scheduler_name(it as u32)), Some(name));
        }
        assert_eq!(scheduler_named("sedf"), None);
        assert_eq!(scheduler_name(4), "unknown");
    }
}
