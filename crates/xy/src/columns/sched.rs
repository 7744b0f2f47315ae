//! xl's tables of schedulers.

use std::fmt::Write as _;

use api::{SchedPool, SchedRow, Scheduler};

use super::{name, put};

/// Each pool, with a row for each domain or, if `is_each`, for each vCPU.
pub(crate) fn pools(scheduler: Scheduler, is_each: bool, pools: &[SchedPool]) -> String {
    let mut out = String::new();
    for pool in pools {
        out += &parameters(scheduler, std::slice::from_ref(pool));
        out += &rows(scheduler, is_each, std::slice::from_ref(pool));
    }
    out
}

/// A line for each pool.
pub(crate) fn parameters(scheduler: Scheduler, pools: &[SchedPool]) -> String {
    let mut out = String::new();
    for pool in pools {
        put!(out, "Cpupool {}: ", pool.name);
        match (scheduler, pool.timeslice_ms, pool.ratelimit_us) {
            (Scheduler::Rtds, ..) => put!(out, "sched=RTDS\n"),
            (Scheduler::Credit, Some(slice), Some(limit)) => {
                let delay = pool.migration_delay_us.unwrap_or_default();
                put!(out, "tslice={slice}ms ratelimit={limit}us migration-delay={delay}us\n");
            }
            (Scheduler::Credit2, _, Some(limit)) => put!(out, "ratelimit={limit}us\n"),
            _ => put!(out, "[sched params unavailable]\n"),
        }
    }
    out
}

/// A row for each domain or, if `is_each`, for each vCPU.
pub(crate) fn rows(scheduler: Scheduler, is_each: bool, pools: &[SchedPool]) -> String {
    match scheduler {
        Scheduler::Rtds => budgets(is_each, pools),
        Scheduler::Credit | Scheduler::Credit2 => shares(pools),
    }
}

fn shares(pools: &[SchedPool]) -> String {
    let mut out = format!("{:<33} {:>4} {:>6} {:>4}\n", "Name", "ID", "Weight", "Cap");
    for row in pools.iter().flat_map(|pool| &pool.rows) {
        let SchedRow { domid, weight, cap, .. } = row;
        let (weight, cap) = (weight.unwrap_or_default(), cap.unwrap_or_default());
        put!(out, "{:<33} {domid:>4} {weight:>6} {cap:>4}\n", name(row.name.as_deref()));
    }
    out
}

fn budgets(is_each: bool, pools: &[SchedPool]) -> String {
    let mut out = format!("{:<33} {:>4} ", "Name", "ID");
    if is_each {
        put!(out, "{:>4} ", "VCPU");
    }
    put!(out, "{:>9} {:>9} {:>10}\n", "Period", "Budget", "Extratime");
    for row in pools.iter().flat_map(|pool| &pool.rows) {
        put!(out, "{:<33} {:>4} ", name(row.name.as_deref()), row.domid);
        if is_each {
            put!(out, "{:>4} ", row.vcpu.unwrap_or_default());
        }
        let (period, budget) =
            (row.period_us.unwrap_or_default(), row.budget_us.unwrap_or_default());
        let extra = if row.extra { "yes" } else { "no" };
        put!(out, "{period:>9} {budget:>9} {extra:>10}\n");
    }
    out
}
