//! Schedulers of pools, and domains' shares of the CPUs under each of them.

use sim::{Daemon, HostConfig, MachineConfig};
use toolstack::tuning::{Budget, PoolChange, SchedQuestion, Share, Tuning, VcpusOf};
use toolstack::work::PoolReading;
use toolstack::{Reply, Request, ShutdownRequest};
use xen::{DomId, SchedParams, SchedTuning, Scheduler, Xen};
use xenstore::client::Nodes as _;

use crate::support::{Lab, unikernel};

fn lab(scheduler: Scheduler) -> Lab {
    let machine = MachineConfig { scheduler, cpus: 4, ..MachineConfig::default() };
    Lab::new(HostConfig { machine, ..HostConfig::default() })
}

fn ask(lab: &mut Lab, question: SchedQuestion) -> Result<Vec<PoolReading>, String> {
    match lab.ask(Request::Sched(question)) {
        Reply::Sched(pools) => Ok(pools),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

fn tune(lab: &mut Lab, target: &str, tuning: Tuning) -> Result<DomId, String> {
    match lab.ask(Request::Tune { target: target.to_owned(), tuning }) {
        Reply::Done { domid } => Ok(domid),
        Reply::Failed(message) => Err(message),
        other => panic!("{other:?}"),
    }
}

/// Pools with their names, and each share with domain and vCPU.
fn shares(pools: &[PoolReading]) -> Vec<(String, u16, Option<u32>, SchedParams)> {
    let shares = pools.iter().flat_map(|pool| &pool.shares);
    let share = |it: &toolstack::work::ShareReading| {
        (it.name.clone().unwrap_or_default(), it.domid.0, it.vcpu, it.params)
    };
    shares.map(share).collect()
}

#[test]
fn weights_and_caps_are_listed_by_pool_and_set_under_their_own_scheduler() {
    for (scheduler, other) in
        [(Scheduler::Credit, Scheduler::Credit2), (Scheduler::Credit2, Scheduler::Credit)]
    {
        let mut lab = lab(scheduler);
        let domid = lab.create(&unikernel("one", "pv", "idle")).unwrap();
        let share = |weight, cap| Tuning::Share(Share { scheduler, weight, cap });
        assert_eq!(tune(&mut lab, "one", share(Some(512), None)), Ok(domid));
        assert_eq!(tune(&mut lab, "one", share(None, Some(50))), Ok(domid));
        assert_eq!(tune(&mut lab, "0", share(Some(1000), None)), Ok(DomId::DOM0));
        let params = |weight, cap| match scheduler {
            Scheduler::Credit => SchedParams::Credit { weight, cap },
            _ => SchedParams::Credit2 { weight, cap },
        };
        let all = SchedQuestion::Pools { scheduler, pool: None, of: VcpusOf::None };
        let pools = ask(&mut lab, all).unwrap();
        assert_eq!(
            shares(&pools),
            [
                ("Domain-0".to_owned(), 0, None, params(1000, 0)),
                ("one".to_owned(), domid.0, None, params(512, 50)),
            ]
        );
        assert_eq!(pools[0].name, "Pool-0");

        let refused = tune(&mut lab, "one", share(None, Some(101))).unwrap_err();
        let why = "cpu cap out of range, valid range is from 0 to 100 for its vCPUs";
        assert_eq!(refused, format!("one: {why}"));
        assert!(tune(&mut lab, "one", share(Some(0), None)).is_err());
        let wrong = Tuning::Share(Share { scheduler: other, weight: Some(9), cap: None });
        let refused = tune(&mut lab, "one", wrong).unwrap_err();
        assert!(
            refused.starts_with("one: the scheduler of its pool Pool-0 is credit"),
            "{refused}"
        );
        let all = SchedQuestion::Pools { scheduler: other, pool: None, of: VcpusOf::None };
        assert_eq!(ask(&mut lab, all), Ok(Vec::new()));
        let one = SchedQuestion::Domain { scheduler, domid, vcpus: None };
        let pools = ask(&mut lab, one).unwrap();
        assert_eq!(shares(&pools), [("one".to_owned(), domid.0, None, params(512, 50))]);
    }
}

#[test]
fn a_pool_is_meant_by_its_name_or_number() {
    let mut lab = lab(Scheduler::Credit2);
    let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
    let pool = xen.create_cpupool(Some(7), Scheduler::Credit).unwrap();
    xen.remove_cpu_from_pool(0, 3).unwrap();
    xen.add_cpu_to_pool(pool, 3).unwrap();
    lab.host.connect().write("/local/pool/7/name", b"fast").unwrap();
    let domid = lab.create(&unikernel("one", "pv", "idle")).unwrap();
    xen.move_domain_to_pool(pool, domid).unwrap();

    let scheduler = Scheduler::Credit;
    for wanted in [None, Some("fast"), Some("7")] {
        let pool = wanted.map(str::to_owned);
        let pools = ask(&mut lab, SchedQuestion::Pools { scheduler, pool, of: VcpusOf::None });
        let pools = pools.unwrap();
        assert_eq!((pools.len(), pools[0].name.as_str()), (1, "fast"));
        let share = SchedParams::Credit { weight: 256, cap: 0 };
        assert_eq!(shares(&pools), [("one".to_owned(), domid.0, None, share)]);
    }
    let pool = Some("slow".to_owned());
    let unknown = ask(&mut lab, SchedQuestion::Pools { scheduler, pool, of: VcpusOf::None });
    assert_eq!(unknown, Err("slow: no such CPU pool; `xy cpupool-list` shows them all".to_owned()));

    let change = PoolChange { timeslice_ms: Some(5), ratelimit_us: Some(0), ..Default::default() };
    let pool = Some("fast".to_owned());
    ask(&mut lab, SchedQuestion::Change { scheduler, pool: pool.clone(), change }).unwrap();
    let pools = ask(&mut lab, SchedQuestion::Parameters { scheduler, pool: pool.clone() });
    let tuning = SchedTuning::Credit { timeslice_ms: 5, ratelimit_us: 0, migration_delay_us: 0 };
    assert_eq!(pools.unwrap()[0].tuning, Some(tuning));
    let change = PoolChange { ratelimit_us: Some(5001), ..Default::default() };
    let refused = ask(&mut lab, SchedQuestion::Change { scheduler, pool, change }).unwrap_err();
    assert_eq!(refused, "a ratelimit of 5001 us is greater than the time slice of 5 ms");
    // The first pool has another scheduler.
    let first = SchedQuestion::Parameters { scheduler, pool: None };
    assert_eq!(ask(&mut lab, first).unwrap()[0].tuning, None);
    let first = SchedQuestion::Change { scheduler, pool: None, change };
    let refused = ask(&mut lab, first).unwrap_err();
    assert_eq!(refused, "cpupool Pool-0: its scheduler is credit2, not credit");
}

#[test]
fn budgets_are_set_for_single_vcpus_or_all_of_a_domain() {
    let mut lab = lab(Scheduler::Rtds);
    let text = unikernel("one", "pv", "idle") + "vcpus = 2\n";
    let domid = lab.create(&text).unwrap();
    let budget = |vcpu, period_us, budget_us, extra| Budget { vcpu, period_us, budget_us, extra };
    let set =
        |lab: &mut Lab, budgets: &[Budget]| tune(lab, "one", Tuning::Budgets(budgets.to_vec()));
    set(&mut lab, &[budget(None, 20_000, 5_000, false)]).unwrap();
    set(&mut lab, &[budget(Some(1), 30_000, 30_000, true)]).unwrap();
    let scheduler = Scheduler::Rtds;
    let params = |period_us, budget_us, extra| SchedParams::Rtds { period_us, budget_us, extra };
    let question = SchedQuestion::Domain { scheduler, domid, vcpus: Some(Vec::new()) };
    let pools = ask(&mut lab, question).unwrap();
    let expected = [
        ("one".to_owned(), domid.0, Some(0), params(20_000, 5_000, 0)),
        ("one".to_owned(), domid.0, Some(1), params(30_000, 30_000, 1)),
    ];
    assert_eq!(shares(&pools), expected);
    let question = SchedQuestion::Domain { scheduler, domid, vcpus: Some(vec![1]) };
    assert_eq!(shares(&ask(&mut lab, question).unwrap()), expected[1..]);
    let question = SchedQuestion::Domain { scheduler, domid, vcpus: None };
    let pools = ask(&mut lab, question).unwrap();
    assert_eq!(shares(&pools), [("one".to_owned(), domid.0, None, params(10_000, 4_000, 1))]);
    let question = SchedQuestion::Pools { scheduler, pool: None, of: VcpusOf::Each };
    let pools = ask(&mut lab, question).unwrap();
    assert_eq!(shares(&pools).iter().filter(|it| it.1 == domid.0).count(), 2);

    for (wrong, why) in [
        (budget(Some(2), 10, 10, true), "has no vCPU 2"),
        (budget(None, 0, 0, true), "a vCPU's period and budget are at least 1 us"),
        (budget(None, 10, 11, true), "a budget of 11 us is longer than its period of 10 us"),
        (budget(None, 10, 9, true), "Xen takes no such period and budget; each is at least 10 us"),
    ] {
        assert_eq!(set(&mut lab, &[wrong]).unwrap_err(), format!("one: {why}"));
    }
    let share = Share { scheduler: Scheduler::Credit2, weight: Some(1), cap: None };
    let refused = tune(&mut lab, "one", Tuning::Share(share)).unwrap_err();
    assert_eq!(refused, "one: the scheduler of its pool Pool-0 is rtds, not credit2");
}

#[test]
fn a_vm_keeps_its_share_after_a_reboot_and_a_restart_of_the_daemon() {
    let mut lab = lab(Scheduler::Credit2);
    let text = unikernel("one", "pv", "normal") + "vcpus = 2\ncpu_weight = 128\ncap = 150\n";
    let domid = lab.create(&text).unwrap();
    let scheduler = Scheduler::Credit2;
    let params = |lab: &Lab, domid| {
        let mut xen = Xen::probe(lab.host.machine().hypervisor()).unwrap();
        xen.sched_params(domid, scheduler).unwrap()
    };
    assert_eq!(params(&lab, domid), SchedParams::Credit2 { weight: 128, cap: 150 });
    let share = Share { scheduler, weight: Some(512), cap: Some(0) };
    tune(&mut lab, "one", Tuning::Share(share)).unwrap();
    assert_eq!(params(&lab, domid), SchedParams::Credit2 { weight: 512, cap: 0 });
    lab.daemon = Daemon::start(&lab.host).unwrap();
    lab.settle();
    lab.ask(Lab::shutdown_request("one", ShutdownRequest::Reboot));
    lab.settle();
    let Reply::Resolved { domid: next, .. } =
        lab.ask(Request::Resolve { target: "one".to_owned() })
    else {
        panic!("the VM is gone");
    };
    assert_ne!(next, domid);
    assert_eq!(params(&lab, next), SchedParams::Credit2 { weight: 512, cap: 0 });
    lab.destroy("one");
    lab.assert_nothing_left();
}

#[test]
fn under_a_scheduler_without_weights_a_vm_starts_with_its_own_budgets() {
    let mut lab = lab(Scheduler::Rtds);
    let text = unikernel("one", "pvh", "idle") + "cpu_weight = 128\n";
    let domid = lab.create(&text).unwrap();
    let one = SchedQuestion::Domain { scheduler: Scheduler::Rtds, domid, vcpus: None };
    assert_eq!(ask(&mut lab, one).unwrap()[0].shares.len(), 1);
}
