//! Changes of running domains.

use api::{Target, TuneRequest};
use toolstack::Request;
use toolstack::tuning::{Budget, CpuList, HostLimit, Pinning, Share, Tuning};
use toolstack::xlcfg;
use xen::Trigger;

use crate::{Failed, Service, render, sched};

impl Service<'_> {
    pub(crate) fn tune(&self, request: TuneRequest) -> Result<api::Reply, Failed> {
        let (Target(target), tuning) = match request {
            TuneRequest::MemMax { target, kib } => (target, Tuning::MemoryMax { kib }),
            TuneRequest::MemSet { target, kib } => (target, Tuning::MemoryTarget { kib }),
            TuneRequest::VcpuSet { target, vcpus: count, ignore_host } => {
                let host = if ignore_host { HostLimit::Ignored } else { HostLimit::Kept };
                (target, Tuning::Vcpus { count, host })
            }
            TuneRequest::VcpuPin { target, vcpu, hard, soft, force: is_forced } => {
                let (hard, soft) = (cpus(hard)?, cpus(soft)?);
                (target, Tuning::Pin(Pinning { vcpu, hard, soft, is_forced }))
            }
            TuneRequest::Share { target, scheduler, weight, cap } => {
                let scheduler = sched::scheduler(scheduler);
                (target, Tuning::Share(Share { scheduler, weight, cap }))
            }
            TuneRequest::Budgets { target, budgets } => {
                (target, Tuning::Budgets(budgets.iter().map(budget).collect()))
            }
            TuneRequest::Sysrq { target, key } => (target, Tuning::Sysrq { key }),
            TuneRequest::Trigger { target, trigger, vcpu } => {
                (target, self::trigger(trigger, vcpu))
            }
            TuneRequest::ConfigUpdate(update) => return self.config_update(update),
            TuneRequest::Rename { target, name } => (target, Tuning::Rename { name }),
        };
        self.done(Request::Tune { target, tuning })
    }

    fn config_update(&self, update: api::ConfigUpdate) -> Result<api::Reply, Failed> {
        let api::ConfigUpdate {
            target: Target(target),
            file,
            config_text,
            overrides,
            cwd,
            dry_run,
        } = update;
        let source = xlcfg::Source { file: &file, text: &config_text, overrides: &overrides };
        let config = self.configuration(source, &cwd, false, !dry_run)?;
        if dry_run {
            return Ok(api::Reply::Configs(vec![render::listed_config(None, None, &config)]));
        }
        let tuning = Tuning::NextConfig(Box::new(config));
        self.done(Request::Tune { target, tuning })
    }
}

fn cpus(text: Option<String>) -> Result<Option<CpuList>, Failed> {
    text.map(|text| CpuList::parse(&text)).transpose().map_err(Failed::Told)
}

fn trigger(trigger: api::Trigger, vcpu: u32) -> Tuning {
    let trigger = match trigger {
        api::Trigger::Nmi => Trigger::Nmi,
        api::Trigger::Reset => Trigger::Reset,
        api::Trigger::Init => Trigger::Init,
        api::Trigger::Power => Trigger::Power,
        api::Trigger::Sleep => Trigger::Sleep,
        api::Trigger::S3resume => return Tuning::WakeUp,
    };
    Tuning::Trigger { trigger, vcpu }
}

fn budget(budget: &api::VcpuBudget) -> Budget {
    let api::VcpuBudget { vcpu, period_us, budget_us, extra } = *budget;
    Budget { vcpu, period_us, budget_us, extra }
}
