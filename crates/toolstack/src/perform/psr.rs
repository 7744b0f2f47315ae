//! Work on caches and memory bandwidth that CPUs share.

use std::collections::BTreeMap;

use xen::{Allocation, Counter, DomId, Errno, Hypervisor, MonitoringFact, Sample};
use xenstore::client::Transport;

use super::{Performer, failure};
use crate::host::Host;
use crate::psr::{Monitoring, PsrAsk, PsrHardware, PsrSamples, PsrShares, PsrSocket, Shared};
use crate::work::Failure;
use crate::xen_host::HostTold;

const COUNTERS: [Counter; 3] =
    [Counter::CacheOccupancy, Counter::TotalBandwidth, Counter::LocalBandwidth];

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(super) fn psr_work(&mut self, ask: PsrAsk) -> Result<HostTold, Failure> {
        match ask {
            PsrAsk::Hardware => self.psr_hardware().map(HostTold::PsrHardware),
            PsrAsk::Monitor { domid, name, monitored } => {
                let done = self.xen.set_monitored(domid, monitored);
                done.map_err(|errno| failure(name, monitoring_problem(errno)))?;
                Ok(HostTold::Done)
            }
            PsrAsk::Samples { counter, domids } => {
                self.psr_samples(counter, &domids).map(HostTold::PsrSamples)
            }
            PsrAsk::Shares { what, domids } => {
                self.psr_shares(what, &domids).map(HostTold::PsrShares)
            }
            PsrAsk::Set { domid, name, what, sockets, share } => {
                let sockets = match sockets.is_empty() {
                    true => self.sockets()?.into_keys().collect(),
                    false => sockets,
                };
                for socket in sockets {
                    let set = self.xen.set_allocation(domid, what, socket, share);
                    set.map_err(|errno| {
                        failure(format!("{name}: socket {socket}"), sharing_problem(what, errno))
                    })?;
                }
                Ok(HostTold::Done)
            }
        }
    }

    /// Sockets, and one of the CPUs of each.
    fn sockets(&mut self) -> Result<BTreeMap<u32, u32>, Failure> {
        let mut sockets = BTreeMap::new();
        for (cpu, place) in (0..).zip(self.cpu_places()?) {
            if let Some(place) = place {
                sockets.entry(place.socket).or_insert(cpu);
            }
        }
        Ok(sockets)
    }

    fn counters(&mut self) -> Result<Vec<Counter>, Errno> {
        if self.xen.monitoring(MonitoringFact::Enabled)? == 0 {
            return Err(Errno::ENODEV);
        }
        let bits = self.xen.monitoring(MonitoringFact::Counters)?;
        let is_there = |counter: &Counter| bits >> (*counter as u32 - 1) & 1 != 0;
        Ok(COUNTERS.into_iter().filter(is_there).collect())
    }

    fn psr_hardware(&mut self) -> Result<PsrHardware, Failure> {
        let monitoring = match self.counters() {
            Ok(counters) => {
                let total_rmid = self.xen.monitoring(MonitoringFact::TotalRmid);
                let total_rmid =
                    total_rmid.map_err(|errno| failure("monitoring", monitoring_problem(errno)))?;
                Some(Monitoring { total_rmid, counters })
            }
            Err(_) => None,
        };
        let sockets = self.sockets()?.into_iter().map(|(socket, cpu)| PsrSocket {
            socket,
            cache_kib: self.xen.monitoring(MonitoringFact::CacheKib { cpu }).ok(),
            l3: self.xen.allocation_info(Allocation::L3Cache, socket).ok(),
            l2: self.xen.allocation_info(Allocation::L2Cache, socket).ok(),
            bandwidth: self.xen.allocation_info(Allocation::Bandwidth, socket).ok(),
        });
        Ok(PsrHardware { monitoring, sockets: sockets.collect() })
    }

    fn psr_samples(&mut self, counter: Counter, domids: &[DomId]) -> Result<PsrSamples, Failure> {
        let told = |errno| failure("this host", monitoring_problem(errno));
        let counters = self.counters().map_err(told)?;
        if !counters.contains(&counter) {
            return Err(failure("this host", "its CPUs do not count that"));
        }
        let total_rmid = self.xen.monitoring(MonitoringFact::TotalRmid).map_err(told)?;
        let factor = self.xen.monitoring(MonitoringFact::Factor).map_err(told)?;
        let cpus = self.sockets()?;
        let mut sockets = Vec::new();
        for (socket, cpu) in &cpus {
            let kib = self.xen.monitoring(MonitoringFact::CacheKib { cpu: *cpu });
            sockets.push((*socket, kib.map_err(told)?));
        }
        let mut domains = Vec::new();
        for &domid in domids {
            // One that has ended meanwhile is not monitored either.
            let Ok(rmid @ 1..) = self.xen.rmid(domid) else { continue };
            let samples = cpus.values().map(|cpu| {
                let sample = self.xen.monitoring_sample(*cpu, rmid, counter).ok()?;
                Some(Sample { count: sample.count.saturating_mul(factor), ..sample })
            });
            domains.push((domid, samples.collect()));
        }
        Ok(PsrSamples { total_rmid, sockets, domains })
    }

    fn psr_shares(&mut self, what: Shared, domids: &[DomId]) -> Result<Vec<PsrShares>, Failure> {
        let mut shares = Vec::new();
        for (socket, cpu) in self.sockets()? {
            let info = self.xen.allocation_info(what.allocation(), socket).map_err(|errno| {
                failure(format!("socket {socket}"), sharing_problem(what.allocation(), errno))
            })?;
            let is_split = what == Shared::L3Cache && info.flag;
            let kinds = match is_split {
                true => vec![Allocation::L3Code, Allocation::L3Data],
                false => vec![what.allocation()],
            };
            let mut domains = Vec::new();
            for &domid in domids {
                let of_kind = |kind: &Allocation| self.xen.allocation(domid, *kind, socket).ok();
                domains.push((domid, kinds.iter().map(of_kind).collect()));
            }
            let cache_kib = match what {
                // Only the size of this one is known.
                Shared::L3Cache => self.xen.monitoring(MonitoringFact::CacheKib { cpu }).ok(),
                Shared::L2Cache | Shared::Bandwidth => None,
            };
            shares.push(PsrShares { socket, cache_kib, what, info, domains });
        }
        Ok(shares)
    }
}

fn monitoring_problem(errno: Errno) -> String {
    match errno {
        Errno::ENODEV | Errno::ENOSYS | Errno::EOPNOTSUPP => {
            "Cache Monitoring Technology is not there, or Xen does not use it; its command line needs psr=cmt".to_owned()
        }
        Errno::EEXIST => "is monitored already".to_owned(),
        Errno::ENOENT => "is not monitored".to_owned(),
        Errno::EOVERFLOW => "no RMID is free; `psr-cmt-detach` another domain".to_owned(),
        errno => format!("Xen returned {errno}"),
    }
}

fn sharing_problem(what: Allocation, errno: Errno) -> String {
    let (name, option) = match what {
        Allocation::L3Cache => ("L3 CAT", "psr=cat"),
        Allocation::L3Code | Allocation::L3Data => ("CDP", "psr=cdp"),
        Allocation::L2Cache => ("L2 CAT", "psr=cat"),
        Allocation::Bandwidth => ("MBA", "psr=mba"),
    };
    match errno {
        Errno::ENODEV | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENOENT => {
            format!("{name} is not there, or Xen does not use it; its command line needs {option}")
        }
        Errno::EOVERFLOW => {
            format!("{name}: no class of service is free; give some domains the same share")
        }
        Errno::EEXIST => format!("{name}: this is its share already"),
        Errno::ENXIO => "code and data have one share: CDP is off".to_owned(),
        Errno::EINVAL => format!("{name}: no such share; `psr-hwinfo` shows the limits"),
        Errno::ERANGE => "no such socket".to_owned(),
        errno => format!("{name}: Xen returned {errno}"),
    }
}
