//! Schedulers of CPU pools, and domains' shares of the CPUs.

use api::{SchedPool, SchedRequest, SchedRow, Target};
use toolstack::tuning::{PoolChange, SchedQuestion, VcpusOf};
use toolstack::work::{PoolReading, ShareReading};
use toolstack::{Reply, Request};
use xen::{SchedParams, SchedTuning, Scheduler};

use crate::{Failed, Service, unexpected};

impl Service<'_> {
    pub(crate) fn sched(&self, request: SchedRequest) -> Result<api::Reply, Failed> {
        let question = match request {
            SchedRequest::Pools { scheduler: it, pool, vcpus } => {
                let of = if vcpus { VcpusOf::Each } else { VcpusOf::None };
                SchedQuestion::Pools { scheduler: scheduler(it), pool, of }
            }
            SchedRequest::Domain { scheduler: it, target: Target(target), vcpus } => {
                let domid = match self.ask(Request::Resolve { target })? {
                    Reply::Resolved { domid, .. } => domid,
                    Reply::Starting { name, .. } => {
                        let why = "has no domain yet; try again when it has started";
                        return Err(Failed::Told(format!("{name}: {why}")));
                    }
                    other => return Err(unexpected(&other)),
                };
                SchedQuestion::Domain { scheduler: scheduler(it), domid, vcpus }
            }
            SchedRequest::Parameters { scheduler: it, pool } => {
                SchedQuestion::Parameters { scheduler: scheduler(it), pool }
            }
            SchedRequest::Change {
                scheduler: it,
                pool,
                timeslice_ms,
                ratelimit_us,
                migration_delay_us,
            } => {
                let change = PoolChange { timeslice_ms, ratelimit_us, migration_delay_us };
                let question = SchedQuestion::Change { scheduler: scheduler(it), pool, change };
                return self.done(Request::Sched(question));
            }
        };
        match self.ask(Request::Sched(question))? {
            Reply::Sched(pools) => Ok(api::Reply::Sched(pools.into_iter().map(pool).collect())),
            other => Err(unexpected(&other)),
        }
    }
}

pub(crate) fn scheduler(scheduler: api::Scheduler) -> Scheduler {
    match scheduler {
        api::Scheduler::Credit => Scheduler::Credit,
        api::Scheduler::Credit2 => Scheduler::Credit2,
        api::Scheduler::Rtds => Scheduler::Rtds,
    }
}

fn pool(reading: PoolReading) -> SchedPool {
    let PoolReading { name, tuning, shares } = reading;
    let rows = shares.into_iter().map(row).collect();
    match tuning {
        None => SchedPool { name, rows, ..SchedPool::default() },
        Some(SchedTuning::Credit { timeslice_ms, ratelimit_us, migration_delay_us }) => SchedPool {
            name,
            timeslice_ms: Some(timeslice_ms),
            ratelimit_us: Some(ratelimit_us),
            migration_delay_us: Some(migration_delay_us),
            rows,
        },
        Some(SchedTuning::Credit2 { ratelimit_us }) => {
            SchedPool { name, ratelimit_us: Some(ratelimit_us), rows, ..SchedPool::default() }
        }
    }
}

fn row(reading: ShareReading) -> SchedRow {
    let ShareReading { domid, name, vcpu, params } = reading;
    let row = SchedRow { name, domid: domid.0, vcpu, ..SchedRow::default() };
    match params {
        SchedParams::Credit { weight, cap } | SchedParams::Credit2 { weight, cap } => {
            SchedRow { weight: Some(weight), cap: Some(cap), ..row }
        }
        SchedParams::Rtds { period_us, budget_us, extra } => SchedRow {
            period_us: Some(period_us),
            budget_us: Some(budget_us),
            extra: extra & SchedParams::RTDS_EXTRA != 0,
            ..row
        },
    }
}
