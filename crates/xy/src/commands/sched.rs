//! Schedulers of CPU pools, and domains' shares of the CPUs, with xl's options and columns.

use api::{Request, SchedPool, SchedRequest, Scheduler, Target, TuneRequest, VcpuBudget};

use super::{expect_done, expect_reply};
use crate::columns::sched as columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn credit(session: &mut Session, options: &Options) -> Result<(), Failure> {
    by_weight(session, options, "sched-credit", Scheduler::Credit)
}

pub(crate) fn credit2(session: &mut Session, options: &Options) -> Result<(), Failure> {
    by_weight(session, options, "sched-credit2", Scheduler::Credit2)
}

fn by_weight(
    session: &mut Session,
    options: &Options,
    verb: &str,
    scheduler: Scheduler,
) -> Result<(), Failure> {
    let wrong = |what: &str| Failure::usage(format!("{verb}: {what}; see 'xy help {verb}'"));
    let domain = options.value("domain");
    let weight: Option<u16> = number(verb, options, "weight", 1)?;
    let cap: Option<u16> = number(verb, options, "cap", 0)?;
    let timeslice_ms: Option<u32> = number(verb, options, "tslice_ms", 0)?;
    let ratelimit_us: Option<u32> = number(verb, options, "ratelimit_us", 0)?;
    let migration_delay_us: Option<u32> = number(verb, options, "migration_delay_us", 0)?;
    let pool = options.value("cpupool").map(str::to_owned);
    let is_schedparam = options.has("schedparam");
    let changes_share = weight.is_some() || cap.is_some();
    let changes_pool =
        timeslice_ms.is_some() || ratelimit_us.is_some() || migration_delay_us.is_some();
    if (pool.is_some() || is_schedparam) && (domain.is_some() || changes_share) {
        return Err(wrong("a cpupool or schedparam and domain options exclude each other"));
    }
    if domain.is_none() && changes_share {
        return Err(wrong("weight and cap are a domain's; give one with -d"));
    }
    if !is_schedparam && changes_pool {
        return Err(wrong("parameters of the scheduler are set with -s"));
    }
    let target = domain.map(|domain| Target(domain.to_owned()));
    let pools = match target {
        _ if changes_pool => {
            let change = SchedRequest::Change {
                scheduler,
                pool,
                timeslice_ms,
                ratelimit_us,
                migration_delay_us,
            };
            return expect_done(&session.call(&Request::Sched(change))?);
        }
        _ if is_schedparam => {
            let pools = ask(session, SchedRequest::Parameters { scheduler, pool })?;
            print(session, options, &pools, |pools| columns::parameters(scheduler, pools));
            return Ok(());
        }
        Some(target) if changes_share => {
            let share = TuneRequest::Share { target, scheduler, weight, cap };
            return expect_done(&session.call(&Request::Tune(share))?);
        }
        Some(target) => {
            let pools = ask(session, SchedRequest::Domain { scheduler, target, vcpus: None })?;
            print(session, options, &pools, |pools| columns::rows(scheduler, false, pools));
            return Ok(());
        }
        None => ask(session, SchedRequest::Pools { scheduler, pool, vcpus: false })?,
    };
    print(session, options, &pools, |pools| columns::pools(scheduler, false, pools));
    Ok(())
}

fn print(
    session: &mut Session,
    options: &Options,
    pools: &[SchedPool],
    table: impl Fn(&[SchedPool]) -> String,
) {
    match options.has("json") {
        true => session.print_json(&pools),
        false => session.print(&table(pools)),
    }
}

fn ask(session: &mut Session, request: SchedRequest) -> Result<Vec<SchedPool>, Failure> {
    Ok(expect_reply!(session.call(&Request::Sched(request))?, Sched))
}

/// The value of an option that is a number.
fn number<T>(verb: &str, options: &Options, name: &str, least: u32) -> Result<Option<T>, Failure>
where
    T: TryFrom<u32>,
{
    let Some(text) = options.value(name) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| *number >= least);
    match number.and_then(|number| T::try_from(number).ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(Failure::usage(format!("{verb}: --{name}: {text:?} is out of range"))),
    }
}

pub(crate) fn rtds(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let scheduler = Scheduler::Rtds;
    let asked = Rtds::parse(options)?;
    let (target, is_each) = (asked.target.clone(), asked.vcpus.is_some());
    let pools = match (target, asked.vcpus) {
        (Some(target), Some(_)) if !asked.budgets.is_empty() => {
            let budgets = TuneRequest::Budgets { target, budgets: asked.budgets };
            return expect_done(&session.call(&Request::Tune(budgets))?);
        }
        (Some(target), vcpus) => {
            let pools = ask(session, SchedRequest::Domain { scheduler, target, vcpus })?;
            print(session, options, &pools, |pools| columns::rows(scheduler, is_each, pools));
            return Ok(());
        }
        (None, vcpus) => {
            let vcpus = vcpus.is_some();
            ask(session, SchedRequest::Pools { scheduler, pool: asked.pool, vcpus })?
        }
    };
    print(session, options, &pools, |pools| columns::pools(scheduler, is_each, pools));
    Ok(())
}

/// What is asked of the real-time scheduler.
#[derive(Debug)]
struct Rtds {
    target: Option<Target>,
    /// These, or all if there are none.
    vcpus: Option<Vec<u32>>,
    budgets: Vec<VcpuBudget>,
    pool: Option<String>,
}

impl Rtds {
    fn parse(options: &Options) -> Result<Self, Failure> {
        let wrong =
            |what: &str| Failure::usage(format!("sched-rtds: {what}; see 'xy help sched-rtds'"));
        let numbers = |name: &str| -> Result<Vec<u32>, Failure> {
            let texts = options.values(name).into_iter().filter(|text| *text != "all");
            let number = |text: &str| {
                text.parse().map_err(|_| wrong(&format!("--{name}: {text:?} is no number")))
            };
            texts.map(number).collect()
        };
        let target = options.value("domain").map(|domain| Target(domain.to_owned()));
        let pool = options.value("cpupool").map(str::to_owned);
        let is_all = options.values("vcpuid").contains(&"all");
        let vcpus = numbers("vcpuid")?;
        let (periods, budgets) = (numbers("period")?, numbers("budget")?);
        let extras = numbers("extratime")?;
        if extras.iter().any(|extra| *extra > 1) || options.values("extratime").contains(&"all") {
            return Err(wrong("extratime is 0 or 1"));
        }
        let changes = !(periods.is_empty() && budgets.is_empty() && extras.is_empty());
        let has_vcpu = is_all || !vcpus.is_empty();
        if pool.is_some() && (target.is_some() || changes || has_vcpu) {
            return Err(wrong("a cpupool and other options exclude each other"));
        }
        if target.is_none() && (changes || !vcpus.is_empty()) {
            return Err(wrong("these are a domain's; give one with -d"));
        }
        if changes && !has_vcpu {
            return Err(wrong("it is set for a VCPU, or for all; give one with -v"));
        }
        if is_all && !vcpus.is_empty() {
            return Err(wrong("a VCPU and all exclude each other"));
        }
        let counts = [periods.len(), budgets.len(), extras.len()];
        let least = if changes { vcpus.len() } else { 0 };
        if counts.iter().any(|count| *count != counts[0] || *count < least) {
            return Err(wrong("each VCPU needs a period, a budget and an extratime"));
        }
        let mut targets: Vec<Option<u32>> = vcpus.iter().copied().map(Some).collect();
        if is_all {
            targets.push(None);
        }
        let given = periods.into_iter().zip(budgets).zip(extras);
        let budgets =
            targets.into_iter().zip(given).map(|(vcpu, ((period_us, budget_us), extra))| {
                VcpuBudget { vcpu, period_us, budget_us, extra: extra == 1 }
            });
        Ok(Self { target, budgets: budgets.collect(), vcpus: has_vcpu.then_some(vcpus), pool })
    }
}
