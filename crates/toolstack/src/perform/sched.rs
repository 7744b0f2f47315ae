//! Schedulers of CPU pools: their parameters, and domains' shares of the CPUs.
//!
//! Sources: xen `tools/xl/xl_sched.c`, `tools/libs/light/libxl_sched.c`.

use xen::{DomId, DomainInfo, Errno, Hypervisor, SchedParams, SchedTuning, Scheduler};
use xenstore::client::Transport;

use super::tuning::Subject;
use super::xen_host::find_pool;
use super::{Performer, failure, refused, store};
use crate::config::{GuestOptions, VmConfig};
use crate::host::Host;
use crate::tuning::{Budget, PoolChange, SchedQuestion, Share, VcpusOf};
use crate::work::{Failure, Output, PoolReading, ShareReading};
use crate::xen_host::{Pool, scheduler_name};

fn name_of(pool: &Pool) -> String {
    pool.name.clone().unwrap_or_else(|| format!("Pool-{}", pool.id))
}

/// Whether domains have weights under this scheduler.
fn has_weights(scheduler: Scheduler) -> bool {
    matches!(scheduler, Scheduler::Credit | Scheduler::Credit2)
}

/// Whether a pool has this scheduler.
fn has(pool: &Pool, scheduler: Scheduler) -> bool {
    pool.scheduler_id == scheduler as u32
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(super) fn sched(&mut self, asked: SchedQuestion) -> Result<Output, Failure> {
        let pools = match asked {
            SchedQuestion::Pools { scheduler, pool, of } => {
                self.pool_readings(scheduler, pool.as_deref(), of)?
            }
            SchedQuestion::Domain { scheduler, domid, vcpus } => {
                vec![self.domain_reading(scheduler, domid, vcpus.as_deref())?]
            }
            SchedQuestion::Parameters { scheduler, pool } => {
                let pool = self.pool_meant(pool.as_deref())?;
                let name = name_of(&pool);
                let tuning = self.tuning_of(&pool, scheduler);
                vec![PoolReading { name, tuning, shares: Vec::new() }]
            }
            SchedQuestion::Change { scheduler, pool, change } => {
                let pool = self.pool_meant(pool.as_deref())?;
                self.change_pool(&pool, scheduler, change)?;
                Vec::new()
            }
        };
        Ok(Output::Sched(pools))
    }

    /// The pool of this number or name; the first one if none is meant.
    fn pool_meant(&mut self, wanted: Option<&str>) -> Result<Pool, Failure> {
        self.pool(wanted.unwrap_or("0"))
    }

    /// `None` if it has none, or another scheduler.
    fn tuning_of(&mut self, pool: &Pool, scheduler: Scheduler) -> Option<SchedTuning> {
        self.xen.sched_tuning(pool.id, scheduler).ok()
    }

    fn pool_readings(
        &mut self,
        scheduler: Scheduler,
        wanted: Option<&str>,
        of: VcpusOf,
    ) -> Result<Vec<PoolReading>, Failure> {
        let pools = self.pools()?;
        let wanted = wanted.map(|wanted| find_pool(&pools, wanted)).transpose()?;
        let domains = self.xen.domains().map_err(|errno| failure("the list of domains", errno))?;
        let is_meant =
            |pool: &Pool| has(pool, scheduler) && wanted.is_none_or(|wanted| wanted.id == pool.id);
        let mut readings = Vec::new();
        for pool in pools.iter().filter(|pool| is_meant(pool)) {
            let name = name_of(pool);
            let tuning = self.tuning_of(pool, scheduler);
            let mut shares = Vec::new();
            for info in domains.iter().filter(|info| info.cpupool == pool.id) {
                // Domains end and move while they are read.
                match self.shares_of(scheduler, info, (of == VcpusOf::Each).then_some(&[])) {
                    Ok(more) => shares.extend(more),
                    Err(Errno::ESRCH | Errno::EINVAL) => {}
                    Err(errno) => return Err(refused("read the share of", info.domid)(errno)),
                }
            }
            self.put_names(&mut shares)?;
            readings.push(PoolReading { name, tuning, shares });
        }
        Ok(readings)
    }

    fn put_names(&mut self, shares: &mut [ShareReading]) -> Result<(), Failure> {
        let domids: Vec<DomId> = shares.iter().map(|share| share.domid).collect();
        let names = store::names(&mut self.store, &domids)?;
        for share in shares {
            share.name = names.get(&share.domid).cloned();
        }
        Ok(())
    }

    /// The share of a domain, or those of its vCPUs: these, or all if there are none.
    fn shares_of(
        &mut self,
        scheduler: Scheduler,
        info: &DomainInfo,
        vcpus: Option<&[u32]>,
    ) -> Result<Vec<ShareReading>, Errno> {
        let domid = info.domid;
        let share = |vcpu, params| ShareReading { name: None, domid, vcpu, params };
        let Some(vcpus) = vcpus else {
            return Ok(vec![share(None, self.xen.sched_params(domid, scheduler)?)]);
        };
        let all: Vec<u32> = (0..info.vcpu_count()).collect();
        let vcpus = if vcpus.is_empty() { &all[..] } else { vcpus };
        let params = self.xen.rtds_vcpus(domid, vcpus)?;
        Ok(vcpus.iter().zip(params).map(|(vcpu, params)| share(Some(*vcpu), params)).collect())
    }

    fn domain_reading(
        &mut self,
        scheduler: Scheduler,
        domid: DomId,
        vcpus: Option<&[u32]>,
    ) -> Result<PoolReading, Failure> {
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.ok_or_else(|| Failure(format!("domain {domid} is gone")))?;
        let subject = format!("domain {domid}");
        let pool = self.check_scheduler(&subject, &info, scheduler)?;
        check_vcpus(&subject, &info, vcpus.unwrap_or_default())?;
        let shares = self.shares_of(scheduler, &info, vcpus);
        let mut shares = shares.map_err(refused("read the share of", domid))?;
        self.put_names(&mut shares)?;
        Ok(PoolReading { name: name_of(&pool), tuning: None, shares })
    }

    /// The domain's pool, unless that has another scheduler.
    fn check_scheduler(
        &mut self,
        subject: &str,
        info: &DomainInfo,
        scheduler: Scheduler,
    ) -> Result<Pool, Failure> {
        let pool = self.pool(&info.cpupool.to_string())?;
        if has(&pool, scheduler) {
            return Ok(pool);
        }
        let name = name_of(&pool);
        let (has, wanted) = (scheduler_name(pool.scheduler_id), scheduler_name(scheduler as u32));
        Err(Failure(format!("{subject}: the scheduler of its pool {name} is {has}, not {wanted}")))
    }

    fn change_pool(
        &mut self,
        pool: &Pool,
        scheduler: Scheduler,
        change: PoolChange,
    ) -> Result<(), Failure> {
        let name = name_of(pool);
        let tuning = self.xen.sched_tuning(pool.id, scheduler).map_err(|errno| match errno {
            Errno::EINVAL => {
                let has = scheduler_name(pool.scheduler_id);
                Failure(format!(
                    "cpupool {name}: its scheduler is {has}, not {}",
                    scheduler_name(scheduler as u32)
                ))
            }
            errno => failure(format!("the scheduler of cpupool {name}"), errno),
        })?;
        let tuning = change.applied_to(tuning).map_err(Failure)?;
        let set = self.xen.set_sched_tuning(pool.id, tuning);
        set.map_err(|errno| failure(format!("the scheduler of cpupool {name}"), errno))
    }

    /// Sets the weight and cap of a new domain, if its VM has any and its scheduler knows them, as libxl does.
    pub(super) fn set_first_share(
        &mut self,
        domid: DomId,
        config: &VmConfig,
    ) -> Result<(), Failure> {
        let GuestOptions { cpu_weight, cpu_cap, .. } = config.options;
        if cpu_weight.is_none() && cpu_cap.is_none() {
            return Ok(());
        }
        let scheduler = match self.wanted_pool(config)? {
            Some(pool) => Scheduler::from_id(pool.scheduler_id),
            None => {
                let pool = self.xen.cpupool_from(0);
                let pool = pool.map_err(|errno| failure("the list of CPU pools", errno))?;
                pool.and_then(|pool| Scheduler::from_id(pool.scheduler_id))
            }
        };
        let Some(scheduler) = scheduler.filter(|it| has_weights(*it)) else { return Ok(()) };
        self.put_share(domid, Share { scheduler, weight: cpu_weight, cap: cpu_cap })
    }

    fn put_share(&mut self, domid: DomId, share: Share) -> Result<(), Failure> {
        let Share { scheduler, weight, cap } = share;
        let before = self.xen.sched_params(domid, scheduler);
        let before = before.map_err(refused("read the share of", domid))?;
        let wanted = before.with_share(weight, cap);
        self.xen.set_sched_params(domid, wanted).map_err(refused("set the share of", domid))
    }

    /// Sets a domain's weight and cap.
    pub(super) fn tune_share(&mut self, subject: &Subject, share: &Share) -> Result<(), Failure> {
        let Share { scheduler, weight, cap } = *share;
        let domid = subject.domid();
        let info = self.tuned_info(subject)?;
        self.check_scheduler(&subject.name, &info, scheduler)?;
        if weight == Some(0) {
            return Err(subject.refuse("cpu weight out of range, valid range is from 1 to 65535"));
        }
        let cap_max = 100 * u64::from(info.vcpu_count());
        if cap.is_some_and(|cap| u64::from(cap) > cap_max) {
            let why =
                format!("cpu cap out of range, valid range is from 0 to {cap_max} for its vCPUs");
            return Err(subject.refuse(&why));
        }
        self.put_share(domid, *share)
    }

    /// Sets the budgets of vCPUs under the real-time scheduler.
    pub(super) fn tune_budgets(
        &mut self,
        subject: &Subject,
        budgets: &[Budget],
    ) -> Result<(), Failure> {
        let info = self.tuned_info(subject)?;
        self.check_scheduler(&subject.name, &info, Scheduler::Rtds)?;
        let vcpus: Vec<u32> = budgets.iter().filter_map(|budget| budget.vcpu).collect();
        check_vcpus(&subject.name, &info, &vcpus)?;
        let mut given = Vec::new();
        if let Some(why) = budgets.iter().find_map(|budget| budget.problem()) {
            return Err(subject.refuse(&why));
        }
        for Budget { vcpu, period_us, budget_us, extra } in budgets.iter().copied() {
            let extra = if extra { SchedParams::RTDS_EXTRA } else { 0 };
            let params = SchedParams::Rtds { period_us, budget_us, extra };
            match vcpu {
                Some(vcpu) => given.push((vcpu, params)),
                None => {
                    let all = 0..info.vcpu_count();
                    given.extend(all.map(|vcpu| (vcpu, params)));
                }
            }
        }
        match self.xen.set_rtds_vcpus(subject.domid(), &given) {
            Ok(()) => Ok(()),
            Err(Errno::EINVAL) => {
                Err(subject.refuse("Xen takes no such period and budget; each is at least 10 us"))
            }
            Err(errno) => Err(refused("set the budgets of", subject.domid())(errno)),
        }
    }
}

fn check_vcpus(subject: &str, info: &DomainInfo, vcpus: &[u32]) -> Result<(), Failure> {
    let most = info.vcpu_count();
    match vcpus.iter().find(|vcpu| **vcpu >= most) {
        Some(vcpu) => Err(Failure(format!("{subject}: has no vCPU {vcpu}"))),
        None => Ok(()),
    }
}
