//! Requests about caches and memory bandwidth that CPUs share.

use api::{
    CachePart, PsrCache, PsrCmt, PsrCounter, PsrLimits, PsrRequest, PsrSample, PsrShare, PsrSocket,
    PsrUse, Target,
};
use toolstack::psr::{PsrAsk, PsrHardware, PsrSamples, PsrShares, Shared};
use toolstack::xen_host::{HostAsk, HostTold};
use xen::{Allocation, AllocationInfo, Counter, DomId, Sample};

use crate::{Failed, Service};

/// Domains and their names.
type Names = Vec<(DomId, Option<String>)>;

impl Service<'_> {
    pub(crate) fn psr(&self, request: PsrRequest) -> Result<api::Reply, Failed> {
        let mut names = Names::new();
        let ask = match request {
            PsrRequest::Hardware => PsrAsk::Hardware,
            PsrRequest::CmtAttach { target } => self.monitor(&target, true)?,
            PsrRequest::CmtDetach { target } => self.monitor(&target, false)?,
            PsrRequest::CmtShow { counter, targets } => {
                names = self.names(&targets)?;
                PsrAsk::Samples { counter: counter_of(counter), domids: domids(&names) }
            }
            PsrRequest::CatShow { level, targets } => {
                names = self.names(&targets)?;
                PsrAsk::Shares { what: cache(level)?, domids: domids(&names) }
            }
            PsrRequest::MbaShow { targets } => {
                names = self.names(&targets)?;
                PsrAsk::Shares { what: Shared::Bandwidth, domids: domids(&names) }
            }
            PsrRequest::CatSet { target, level, part, sockets, cbm } => {
                let what = match (cache(level)?, part) {
                    (Shared::L3Cache, Some(CachePart::Code)) => Allocation::L3Code,
                    (Shared::L3Cache, Some(CachePart::Data)) => Allocation::L3Data,
                    (Shared::L3Cache, None) => Allocation::L3Cache,
                    // As in xl, code and data are those of level 3.
                    (_, _) => Allocation::L2Cache,
                };
                self.set_share(&target, what, sockets, cbm)?
            }
            PsrRequest::MbaSet { target, sockets, thrtl } => {
                self.set_share(&target, Allocation::Bandwidth, sockets, thrtl)?
            }
        };
        Ok(match self.ask_host(HostAsk::Psr(ask))? {
            HostTold::PsrHardware(hardware) => api::Reply::PsrHardware(hardware_row(hardware)),
            HostTold::PsrSamples(samples) => api::Reply::PsrSamples(samples_row(samples, &names)),
            HostTold::PsrShares(shares) => {
                let rows = shares.into_iter().map(|shares| shares_row(shares, &names));
                api::Reply::PsrShares(rows.collect())
            }
            _ => api::Reply::Done,
        })
    }

    fn names(&self, targets: &[Target]) -> Result<Names, Failed> {
        let rows = self.rows(targets)?;
        Ok(rows.into_iter().map(|row| (row.info.domid, row.name)).collect())
    }

    fn one(&self, target: &Target) -> Result<(DomId, String), Failed> {
        let row = self.row(target)?;
        let domid = row.info.domid;
        Ok((domid, row.name.unwrap_or_else(|| domid.to_string())))
    }

    fn monitor(&self, target: &Target, monitored: bool) -> Result<PsrAsk, Failed> {
        let (domid, name) = self.one(target)?;
        Ok(PsrAsk::Monitor { domid, name, monitored })
    }

    fn set_share(
        &self,
        target: &Target,
        what: Allocation,
        sockets: Vec<u32>,
        share: u64,
    ) -> Result<PsrAsk, Failed> {
        let (domid, name) = self.one(target)?;
        Ok(PsrAsk::Set { domid, name, what, sockets, share })
    }
}

fn domids(names: &Names) -> Vec<DomId> {
    names.iter().map(|(domid, _)| *domid).collect()
}

fn name_of(names: &Names, domid: DomId) -> Option<String> {
    names.iter().find(|(it, _)| *it == domid)?.1.clone()
}

fn cache(level: u32) -> Result<Shared, Failed> {
    match level {
        2 => Ok(Shared::L2Cache),
        3 => Ok(Shared::L3Cache),
        other => Err(Failed::Told(format!("a cache of level {other}: expected 2 or 3"))),
    }
}

fn counter_of(counter: PsrCounter) -> Counter {
    match counter {
        PsrCounter::CacheOccupancy => Counter::CacheOccupancy,
        PsrCounter::TotalMemBandwidth => Counter::TotalBandwidth,
        PsrCounter::LocalMemBandwidth => Counter::LocalBandwidth,
    }
}

fn limits(info: AllocationInfo, what: Shared) -> PsrLimits {
    let AllocationInfo { limit, classes_max, flag } = info;
    PsrLimits {
        limit,
        cos_max: classes_max,
        cdp: flag && what == Shared::L3Cache,
        linear: flag && what == Shared::Bandwidth,
    }
}

fn hardware_row(hardware: PsrHardware) -> api::PsrHardware {
    let counter = |counter| match counter {
        Counter::CacheOccupancy => PsrCounter::CacheOccupancy,
        Counter::TotalBandwidth => PsrCounter::TotalMemBandwidth,
        Counter::LocalBandwidth => PsrCounter::LocalMemBandwidth,
    };
    api::PsrHardware {
        cmt: hardware.monitoring.map(|it| PsrCmt {
            total_rmid: it.total_rmid,
            counters: it.counters.into_iter().map(counter).collect(),
        }),
        sockets: hardware
            .sockets
            .into_iter()
            .map(|it| PsrSocket {
                socket: it.socket,
                l3_cache_kib: it.cache_kib,
                l3_cat: it.l3.map(|info| limits(info, Shared::L3Cache)),
                l2_cat: it.l2.map(|info| limits(info, Shared::L2Cache)),
                mba: it.bandwidth.map(|info| limits(info, Shared::Bandwidth)),
            })
            .collect(),
    }
}

fn samples_row(samples: PsrSamples, names: &Names) -> api::PsrSamples {
    let cache = |(socket, l3_cache_kib)| PsrCache { socket, l3_cache_kib };
    let sample = |Sample { count, ns }| PsrSample { bytes: count, ns };
    let used = |(domid, samples): (DomId, Vec<Option<Sample>>)| PsrUse {
        domid: domid.0,
        name: name_of(names, domid),
        samples: samples.into_iter().map(|it| it.map(sample)).collect(),
    };
    api::PsrSamples {
        total_rmid: samples.total_rmid,
        sockets: samples.sockets.into_iter().map(cache).collect(),
        domains: samples.domains.into_iter().map(used).collect(),
    }
}

fn shares_row(shares: PsrShares, names: &Names) -> api::PsrShares {
    let PsrShares { socket, cache_kib, what, info, domains } = shares;
    api::PsrShares {
        socket,
        l3_cache_kib: cache_kib,
        limits: limits(info, what),
        domains: domains
            .into_iter()
            .map(|(domid, shares)| PsrShare { domid: domid.0, name: name_of(names, domid), shares })
            .collect(),
    }
}
