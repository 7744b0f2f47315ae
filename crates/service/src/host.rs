//! Requests about Xen and the machine as a whole.

use std::collections::BTreeMap;

use api::{Answer, CpuRow, HostRequest, NodeRow, PoolRow, Target};
use toolstack::pci::parse_address;
use toolstack::tuning::{CpuList, Tuning};

use toolstack::xen_host::{HostAsk, HostTold, Pool, Topology, scheduler_name};
use toolstack::{Reply, Request, xlcfg};
use xen::DomId;

use crate::boot::boot;
use crate::{Failed, Service, pci, render, unexpected};

impl Service<'_> {
    pub(crate) fn host(&self, request: HostRequest) -> Result<api::Reply, Failed> {
        let cpus = |text: &str| CpuList::parse(text).map_err(Failed::Told);
        // Those that are asked for, by name.
        let mut devices = Vec::new();
        let ask = match request {
            HostRequest::Console { clear } => HostAsk::Console { clear },
            HostRequest::DebugKeys { keys } => HostAsk::DebugKeys { keys },
            HostRequest::Topology { pci } => {
                let known = pci.into_iter().filter_map(|name| Some((parse_address(&name)?, name)));
                let pci;
                (pci, devices) = known.unzip::<_, _, Vec<_>, Vec<_>>();
                HostAsk::Topology { pci }
            }
            HostRequest::NodeAffinity { domids } => {
                HostAsk::NodeAffinity { domids: domids.into_iter().map(DomId).collect() }
            }
            HostRequest::Defaults => {
                let bridge = self.host_defaults()?.bridge().unwrap_or_default().to_owned();
                return Ok(api::Reply::Defaults { bridge });
            }
            HostRequest::Boot => {
                let info = self.info_rows()?;
                let word = |key: &str| info.iter().find(|it| it.0 == key).map_or("", |it| &it.1);
                let version = format!("{}.{}", word("xen_major"), word("xen_minor"));
                return Ok(api::Reply::Boot(boot(&mut *self.daemon.storage(), &version)));
            }
            HostRequest::Pools => HostAsk::Pools,
            HostRequest::PoolCreate { file, text, overrides, dry_run } => {
                let source = xlcfg::Source { file: &file, text: &text, overrides: &overrides };
                let pool = xlcfg::read_pool(source);
                let pool = pool.map_err(|fault| Failed::Told(fault.to_string()))?;
                let (pool, uuid) = (Box::new(pool), self.fresh_uuid()?);
                HostAsk::CreatePool { pool, uuid, dry_run }
            }
            HostRequest::PoolDestroy { pool } => HostAsk::DestroyPool { pool },
            HostRequest::PoolRename { pool, name } => HostAsk::RenamePool { pool, name },
            HostRequest::PoolAdd { pool, cpus: text } => {
                HostAsk::AddCpus { pool, cpus: cpus(&text)? }
            }
            HostRequest::PoolRemove { pool, cpus: text } => {
                HostAsk::RemoveCpus { pool, cpus: cpus(&text)? }
            }
            HostRequest::PoolMigrate { target, pool } => match self.moved(&target, pool)? {
                Moved::Other(ask) => ask,
                Moved::Own(request) => return self.done(request),
            },
            HostRequest::SetParameters { text } => {
                let settings = toolstack::xen_host::parameters(&text).map_err(Failed::Told)?;
                HostAsk::SetParameters { settings }
            }
            HostRequest::Enforcing => HostAsk::Enforcing,
            HostRequest::SetEnforcing { enforcing } => HostAsk::SetEnforcing { enforcing },
            HostRequest::LoadPolicy { policy } => {
                let no_digits = |_| Failed::Told("a policy is sent as digits".to_owned());
                let policy = base16ct::mixed::decode_vec(policy).map_err(no_digits)?;
                HostAsk::LoadPolicy { policy }
            }
            HostRequest::Pci(request) => return self.pci(request),
            HostRequest::Psr(request) => return self.psr(request),
            HostRequest::PoolSplit => HostAsk::SplitByNode { fresh_uuid: self.fresh_uuid()? },
        };
        let told = self.ask_host(ask)?;
        self.told_of_host(told, &devices)
    }

    pub(crate) fn ask_host(&self, ask: HostAsk) -> Result<HostTold, Failed> {
        match self.ask(Request::Host(Box::new(ask)))? {
            Reply::Host(told) => Ok(*told),
            other => Err(unexpected(&other)),
        }
    }

    /// Any toolstack's domain can be moved, but Xen's own control domain.
    fn moved(&self, target: &Target, pool: String) -> Result<Moved, Failed> {
        let row = self.row(target)?;
        let (domid, handle) = (row.info.domid, row.info.handle);
        if domid == DomId::DOM0 {
            return Err(Failed::Told("Domain-0: stays in its pool".to_owned()));
        }
        if row.config.is_some() {
            let (target, tuning) = (handle.to_string(), Tuning::Pool { pool });
            return Ok(Moved::Own(Request::Tune { target, tuning }));
        }
        let name = row.name.clone().unwrap_or_else(|| domid.to_string());
        Ok(Moved::Other(HostAsk::MoveDomain { domid, handle, name, pool }))
    }

    pub(crate) fn told_of_host(
        &self,
        told: HostTold,
        pci: &[String],
    ) -> Result<api::Reply, Failed> {
        match told {
            HostTold::Done => Ok(api::Reply::Done),
            HostTold::Text(text) => Ok(api::Reply::Text(text)),
            HostTold::Topology(topology) => Ok(api::Reply::Topology(rows_of(*topology, pci))),
            HostTold::Nodes { by_domain, nodes } => {
                let text = |(domid, numbers): (DomId, std::collections::BTreeSet<u32>)| {
                    (domid.0, render::ranges(numbers, nodes))
                };
                let by_domain: BTreeMap<u16, String> = by_domain.into_iter().map(text).collect();
                Ok(api::Reply::NodeAffinity(by_domain))
            }
            HostTold::Pools(pools) => {
                Ok(api::Reply::Pools(pools.into_iter().map(pool_row).collect()))
            }
            HostTold::Pool(pool) => Ok(api::Reply::Pools(vec![pool_row(pool)])),
            HostTold::Enforcing(enforcing) => Ok(api::Reply::Enforcing(enforcing)),
            HostTold::PsrHardware(_) | HostTold::PsrSamples(_) | HostTold::PsrShares(_) => {
                unreachable!("asked for elsewhere")
            }
            HostTold::Pci(rows) => Ok(api::Reply::Pci(rows.into_iter().map(pci::row).collect())),
            HostTold::Warnings(lines) => {
                lines.into_iter().try_for_each(|it| self.door.tell(&Answer::Warning(it)))?;
                Ok(api::Reply::Done)
            }
        }
    }
}

/// How a domain gets into another pool.
enum Moved {
    /// As a change of one of our VMs, whose next domain begins there too.
    Own(Request),
    Other(HostAsk),
}

fn pool_row(pool: Pool) -> PoolRow {
    let Pool { id, name, scheduler_id, cpus, domains } = pool;
    let (scheduler, cpus) = (scheduler_name(scheduler_id).to_owned(), cpus.into_iter().collect());
    PoolRow { id, name, scheduler, cpus, domains }
}

fn rows_of(topology: Topology, pci: &[String]) -> api::Topology {
    let Topology { cpus, nodes, pci: pci_nodes } = topology;
    let cpus = (0..).zip(cpus).filter_map(|(cpu, place)| {
        let xen::CpuPlace { core, socket, node } = place?;
        Some(CpuRow { cpu, core, socket, node })
    });
    let nodes = (0..).zip(nodes).map(|(node, it)| {
        let xen::NumaNode { bytes, bytes_free, distances } = it;
        NodeRow { node, bytes, bytes_free, distances }
    });
    let pci = pci.iter().zip(pci_nodes).filter_map(|(name, node)| Some((name.clone(), node?)));
    api::Topology { cpus: cpus.collect(), nodes: nodes.collect(), pci: pci.collect() }
}
