//! Requests about Xen and the machine as a whole: its console, CPUs, NUMA nodes and CPU pools.
//!
//! Pools are Xen's; their names are nodes of the store that libxl and we share: `/local/pool/ID/name`.

use std::collections::{BTreeMap, BTreeSet};

use xen::{CpuPlace, DomId, NumaNode, PciAddress, Scheduler, Uuid};

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
    /// Answered by [`HostTold::NotAll`], as is the opposite.
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
    /// A pool for each NUMA node; the pools' UUIDs are made of this one. Answered by [`HostTold::NotAll`].
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
            Self::Console { clear: false }
            | Self::Topology { .. }
            | Self::NodeAffinity { .. }
            | Self::Pools
            | Self::CreatePool { dry_run: true, .. } => return None,
        };
        Some((verb.to_owned(), object))
    }
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
    /// CPUs that could not be moved, and why.
    NotAll(Vec<String>),
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

/// CPUs as xl's users name them: `0-3,^2,node:1,all`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CpuList(Vec<Item>);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Item {
    All,
    /// From the first to the last.
    Cpus {
        first: u32,
        last: u32,
        is_excluded: bool,
    },
    Nodes {
        first: u32,
        last: u32,
        is_excluded: bool,
    },
}

impl CpuList {
    /// # Errors
    /// What cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split(',')
            .filter(|item| !item.is_empty())
            .map(Item::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// These CPUs, on a machine with CPUs at these places.
    #[must_use]
    pub fn on(&self, places: &[Option<CpuPlace>]) -> BTreeSet<u32> {
        let mut cpus = BTreeSet::new();
        for item in &self.0 {
            let (named, is_excluded) = match *item {
                Item::All => (
                    (0..).zip(places).filter(|(_, it)| it.is_some()).map(|(cpu, _)| cpu).collect(),
                    false,
                ),
                Item::Cpus { first, last, is_excluded } => ((first..=last).collect(), is_excluded),
                Item::Nodes { first, last, is_excluded } => {
                    let of_node = |node| Topology::cpus_of_node(places, node);
                    ((first..=last).flat_map(of_node).collect::<BTreeSet<_>>(), is_excluded)
                }
            };
            if is_excluded {
                cpus = &cpus - &named;
            } else {
                cpus.extend(named);
            }
        }
        cpus
    }
}

impl Item {
    fn parse(text: &str) -> Result<Self, String> {
        /// More than any Xen has.
        const NUMBER_MAX: u32 = 8191;
        let wrong = || {
            format!("{text:?} names no CPUs; expected a number, a range as in 0-3, node:N or all")
        };
        let (rest, is_excluded) = match text.strip_prefix('^') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let nodes = rest.strip_prefix("nodes:").or_else(|| rest.strip_prefix("node:"));
        let range = nodes.unwrap_or(rest);
        if range == "all" {
            return if is_excluded { Err(wrong()) } else { Ok(Self::All) };
        }
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
            let number = is_number.then(|| text.parse::<u32>().ok()).flatten();
            number.filter(|it| *it <= NUMBER_MAX).ok_or_else(wrong)
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        Ok(match nodes {
            Some(_) => Self::Nodes { first, last, is_excluded },
            None => Self::Cpus { first, last, is_excluded },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_named_as_for_xl() {
        let place = |node| Some(CpuPlace { core: 0, socket: 0, node });
        let places = [place(0), place(0), place(1), None, place(1)];
        for (text, expected) in [
            ("0", &[0][..]),
            ("0-2,4", &[0, 1, 2, 4]),
            ("0-3,^1-2", &[0, 3]),
            ("node:1", &[2, 4]),
            ("nodes:0-1,^4", &[0, 1, 2]),
            ("all", &[0, 1, 2, 4]),
            ("all,^node:0", &[2, 4]),
            ("9", &[9]),
            ("node:7", &[]),
            ("", &[]),
        ] {
            let cpus = CpuList::parse(text).unwrap().on(&places);
            assert_eq!(cpus, expected.iter().copied().collect(), "{text}");
        }
        for text in ["x", "-1", "3-1", "^all", "1-", "node:", "8192", "+1", "1 "] {
            assert!(CpuList::parse(text).is_err(), "{text}");
        }
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
