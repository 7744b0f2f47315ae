//! The scheduler against a plain count of what it lets go.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use toolstack::scheduler::{Ask, Class, Limits, Priority, Scheduler, SrRequest, Ticket, Track};
use xen::Uuid;

fn ask(vm: u8, track: Track, class: Class, sr: Option<&str>) -> Ask {
    Ask {
        vm: Uuid([vm; 16]),
        track,
        priority: Priority::Interactive,
        class,
        sr: sr.map(Arc::from),
        backend: None,
    }
}

fn attach(vm: u8) -> Ask {
    ask(vm, Track::Build, Class::Storage, Some("/disks"))
}

fn limits(host: usize, vm: usize, sr: usize) -> Limits {
    Limits { host, vm, sr, ..Limits::default() }
}

fn all_next(scheduler: &mut Scheduler<Ask>) -> Vec<(Ticket, Ask)> {
    std::iter::from_fn(|| scheduler.grant()).collect()
}

fn put(scheduler: &mut Scheduler<Ask>, ask: Ask) -> Ticket {
    scheduler.put(ask.clone(), ask)
}

#[derive(Clone, Debug)]
enum Move {
    Put(Ask),
    /// Gives a permit back: the one at this place among those out.
    Done(usize),
    TakeBack(usize),
    SetLimits(Limits),
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let track = prop_oneof![
        Just(Track::Build),
        Just(Track::Teardown),
        Just(Track::Short),
        Just(Track::Attach),
        Just(Track::Load),
        Just(Track::Scan),
        Just(Track::Change),
    ];
    let priority = prop_oneof![Just(Priority::Interactive), Just(Priority::Bulk)];
    let place = prop::option::of(0..3_u8);
    (0..5_u8, track, priority, 0..Class::ALL.len(), place.clone(), place).prop_map(
        |(vm, track, priority, class, sr, backend)| Ask {
            vm: Uuid([vm; 16]),
            track,
            priority,
            class: Class::ALL[class],
            sr: sr.map(|sr| Arc::from(format!("sr{sr}"))),
            backend: backend.map(|it| Arc::from(format!("backend{it}"))),
        },
    )
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let class = prop::option::of(1..3_usize);
    (1..6_usize, 1..4_usize, 1..4_usize, 1..4_usize, class).prop_map(
        |(host, vm, sr, backend, storage)| Limits {
            host,
            vm,
            sr,
            backend,
            classes: storage.map(|limit| (Class::Storage, limit)).into_iter().collect(),
        },
    )
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => any_ask().prop_map(Move::Put),
        4 => any::<usize>().prop_map(Move::Done),
        1 => any::<usize>().prop_map(Move::TakeBack),
        1 => any_limits().prop_map(Move::SetLimits),
    ]
}

/// Whether an item may go beside those that are out, by counting.
fn fits(limits: &Limits, out: &BTreeMap<Ticket, Ask>, ask: &Ask) -> bool {
    let used = |same: &dyn Fn(&Ask) -> bool| {
        out.values().filter(|it| it.track == ask.track && same(it)).count()
    };
    used(&|_| true) < limits.host
        && used(&|it| it.vm == ask.vm) < limits.vm
        && (ask.sr.is_none() || used(&|it| it.sr == ask.sr) < limits.sr)
        && (ask.backend.is_none() || used(&|it| it.backend == ask.backend) < limits.backend)
        && used(&|it| it.class == ask.class)
            < limits.classes.get(&ask.class).copied().unwrap_or(usize::MAX)
        && (!matches!(ask.class, Class::Record | Class::Change)
            || used(&|it| it.vm == ask.vm && it.class == ask.class) < 1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Nothing goes above a limit, and nothing waits that could go.
    #[test]
    fn it_is_within_its_limits_and_never_idle(
        first in any_limits(),
        moves in prop::collection::vec(any_move(), 1..120),
    ) {
        let mut scheduler = Scheduler::new(first);
        let mut waiting: BTreeMap<Ticket, Ask> = BTreeMap::new();
        let mut out: BTreeMap<Ticket, Ask> = BTreeMap::new();
        for it in moves {
            match it {
                Move::Put(ask) => {
                    let ticket = put(&mut scheduler, ask.clone());
                    waiting.insert(ticket, ask);
                }
                Move::Done(at) => {
                    if let Some(ticket) = out.keys().nth(at % out.len().max(1)).copied() {
                        out.remove(&ticket);
                        scheduler.done(ticket);
                    }
                }
                Move::TakeBack(at) => {
                    if let Some(ticket) = waiting.keys().nth(at % waiting.len().max(1)).copied() {
                        prop_assert_eq!(scheduler.take_back(ticket), waiting.remove(&ticket));
                    }
                }
                Move::SetLimits(limits) => scheduler.set_limits(limits),
            }
            while let Some((ticket, ask)) = scheduler.grant() {
                prop_assert!(fits(scheduler.limits(), &out, &ask), "{:?} above a limit", ask);
                prop_assert_eq!(waiting.remove(&ticket), Some(ask.clone()));
                out.insert(ticket, ask);
            }
            for (ticket, ask) in &waiting {
                prop_assert!(!fits(scheduler.limits(), &out, ask), "{:?} could go", ask);
                let why = scheduler.why(*ticket).expect("it waits");
                prop_assert!(why != "its turn", "no limit keeps {:?}", ask);
            }
            prop_assert_eq!(scheduler.counts(), (waiting.len(), out.len()));
        }
        // Whatever came is let go in the end.
        while let Some(ticket) = out.keys().next().copied() {
            out.remove(&ticket);
            scheduler.done(ticket);
            for (ticket, ask) in all_next(&mut scheduler) {
                waiting.remove(&ticket);
                out.insert(ticket, ask);
            }
        }
        prop_assert!(waiting.is_empty(), "starved: {:?}", waiting);
    }

    /// Of VMs that all have work, none is more than one permit ahead, however much each has.
    #[test]
    fn vms_take_turns(sizes in prop::collection::vec(20..60_usize, 2..6), host in 1..8_usize) {
        let mut scheduler = Scheduler::new(limits(host, host, host));
        for (vm, size) in (0..).zip(&sizes) {
            for _ in 0..*size {
                put(&mut scheduler, attach(vm));
            }
        }
        let mut out = all_next(&mut scheduler);
        let mut granted: BTreeMap<Uuid, usize> = BTreeMap::new();
        out.iter().for_each(|(_, ask)| *granted.entry(ask.vm).or_default() += 1);
        while granted.values().max() < sizes.iter().min() {
            let (ticket, _) = out.remove(0);
            scheduler.done(ticket);
            for (ticket, ask) in all_next(&mut scheduler) {
                *granted.entry(ask.vm).or_default() += 1;
                out.push((ticket, ask));
            }
            let most = granted.values().max().copied().unwrap_or_default();
            let least = (0..sizes.len()).map(|vm| {
                let vm = Uuid([u8::try_from(vm).expect("few"); 16]);
                granted.get(&vm).copied().unwrap_or_default()
            });
            let least = least.min().unwrap_or_default();
            prop_assert!(most - least <= 1, "{:?}", granted);
        }
    }
}

#[test]
fn a_teardown_goes_although_starts_hold_every_permit() {
    let mut scheduler = Scheduler::new(limits(4, 2, 4));
    for vm in 0..10 {
        put(&mut scheduler, attach(vm));
    }
    assert_eq!(all_next(&mut scheduler).len(), 4);
    let destroy = put(&mut scheduler, ask(3, Track::Teardown, Class::Domain, None));
    let next: Vec<Ticket> = all_next(&mut scheduler).into_iter().map(|(it, _)| it).collect();
    assert_eq!(next, [destroy]);
}

#[test]
fn what_somebody_waits_for_goes_before_bulk_work_which_still_goes_on() {
    let mut scheduler = Scheduler::new(limits(1, 1, 1));
    for number in 0..100 {
        let priority = if number < 50 { Priority::Bulk } else { Priority::Interactive };
        put(&mut scheduler, Ask { priority, ..attach(u8::from(number >= 50)) });
    }
    let mut order = Vec::new();
    while let Some((ticket, ask)) = scheduler.grant() {
        order.push(ask.priority);
        scheduler.done(ticket);
    }
    let bulk_among_first =
        order[..56].iter().filter(|priority| **priority == Priority::Bulk).count();
    assert_eq!((bulk_among_first, order.len()), (7, 100), "one of eight");
}

#[test]
fn a_storage_that_hangs_leaves_permits_to_others() {
    let mut scheduler = Scheduler::new(limits(8, 8, 3));
    for vm in 0..20 {
        put(&mut scheduler, ask(vm, Track::Build, Class::Storage, Some("/hangs")));
    }
    assert_eq!(all_next(&mut scheduler).len(), 3);
    let other = ask(30, Track::Build, Class::Storage, Some("/works"));
    put(&mut scheduler, other.clone());
    let went: Vec<Ask> = all_next(&mut scheduler).into_iter().map(|(_, ask)| ask).collect();
    assert_eq!(went, [other]);
}

#[test]
fn limits_that_change_hold_from_then_on() {
    let mut scheduler = Scheduler::new(limits(2, 2, 2));
    let tickets: Vec<Ticket> = (0..20).map(|_| put(&mut scheduler, attach(1))).collect();
    assert_eq!(all_next(&mut scheduler).len(), 2);
    assert_eq!(scheduler.why(tickets[5]).as_deref(), Some("the limit of 2 for one VM"));
    scheduler.set_limits(limits(10, 7, 10));
    assert_eq!(all_next(&mut scheduler).len(), 5);
    assert_eq!(scheduler.why(tickets[19]).as_deref(), Some("the limit of 7 for one VM"));
    scheduler.set_limits(limits(0, 0, 0));
    assert_eq!((scheduler.limits().host, all_next(&mut scheduler).len()), (1, 0));
}

#[test]
fn an_sr_changes_once_at_a_time_and_neither_looks_nor_starts_wait_for_that() {
    let mut scheduler = Scheduler::new(limits(2, 10, 2));
    let changes: Vec<Ticket> =
        (0..100).map(|_| put(&mut scheduler, Ask::for_sr("a", SrRequest::Change))).collect();
    assert_eq!(all_next(&mut scheduler).len(), 1);
    assert_eq!(scheduler.why(changes[1]).unwrap(), "an earlier change of the SR");
    // Another SR goes; a third waits for the host's limit.
    put(&mut scheduler, Ask::for_sr("b", SrRequest::Change));
    let third = put(&mut scheduler, Ask::for_sr("c", SrRequest::Change));
    assert_eq!(all_next(&mut scheduler).len(), 1);
    assert_eq!(scheduler.why(third).unwrap(), "the limit of 2 for the host");
    for _ in 0..3 {
        put(&mut scheduler, Ask::for_sr("a", SrRequest::Scan));
        put(&mut scheduler, ask(1, Track::Build, Class::Storage, Some("a")));
    }
    let granted = all_next(&mut scheduler);
    let of = |class| granted.iter().filter(|(_, ask)| ask.class == class).count();
    assert_eq!((of(Class::Scan), of(Class::Storage)), (2, 2));
    scheduler.done(changes[0]);
    // They take turns: the third SR has waited, and the first has just been served.
    assert_eq!(all_next(&mut scheduler)[0].0, third);
}

#[test]
fn a_backend_has_a_limit_of_its_own() {
    let mut scheduler = Scheduler::new(Limits { backend: 2, ..limits(9, 9, 9) });
    let on_backend = |vm| Ask {
        backend: Some(Arc::from("domain 0")),
        ..ask(vm, Track::Short, Class::Short, None)
    };
    let tickets: Vec<Ticket> = (0..4).map(|vm| put(&mut scheduler, on_backend(vm))).collect();
    put(&mut scheduler, ask(9, Track::Short, Class::Short, None));
    assert_eq!(all_next(&mut scheduler).len(), 3);
    assert_eq!(scheduler.why(tickets[2]).unwrap(), "the limit of 2 for the backend domain 0");
}
