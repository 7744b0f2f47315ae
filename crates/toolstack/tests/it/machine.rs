//! The machine alone, with its work carried out by hand.

use std::collections::BTreeMap;

use storage::{Attachment, BlockDevice, DeviceNumber};
use toolstack::plan::{CreateStep, Start};
use toolstack::work::{
    AdoptionWork, Cost, CreateWork, Failure, LeftFiles, Output, OwnLoop, Part, QueryWork, Record,
    Survey, TeardownWork, Work, loop_tag,
};
use toolstack::{
    Action, ClientId, Event, Instant, Reply, Request, StepTime, Toolstack, Trace, WorkId,
};
use xen::{DomId, DomainInfo, Uuid};

use crate::plan::config;

pub(crate) const CLIENT: ClientId = ClientId(1);

pub(crate) fn handle(machine: &mut Toolstack, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    machine.handle(Instant(0), event, &mut actions);
    // What is logged is nothing that is done.
    actions.retain(|action| !matches!(action, Action::Log(_)));
    actions
}

/// A machine that found the given records and loop devices, and what it wants to do about them.
pub(crate) fn started(records: Vec<Record>, loops: Vec<OwnLoop>) -> (Toolstack, Vec<Action>) {
    let mut machine = Toolstack::new();
    let actions = handle(&mut machine, Event::Started);
    let [Action::Work { id, work: Work::Adoption(AdoptionWork::Observe) }] = actions.as_slice()
    else {
        panic!("a start begins with a look: {actions:?}");
    };
    let observed = Output::Observed {
        left: LeftFiles::default(),
        survey: Survey::default(),
        records,
        loops,
        unique_ids: BTreeMap::new(),
        received: Vec::new(),
        models: Vec::new(),
    };
    let worked = Event::Worked { work: *id, result: Ok(observed), cost: Cost::default() };
    let actions = handle(&mut machine, worked);
    (machine, actions)
}

pub(crate) fn works(actions: &[Action]) -> Vec<&Work> {
    let work = |action: &'_ Action| matches!(action, Action::Work { .. });
    let actions = actions.iter().filter(|action| work(action));
    actions
        .map(|action| match action {
            Action::Work { work, .. } => work,
            _ => unreachable!("filtered"),
        })
        .collect()
}

pub(crate) fn create(text: &str) -> Event {
    let config = Box::new(config(text));
    let request = Request::Create { config, fresh_uuid: Uuid([7; 16]), start: Start::Running };
    Event::Request { client: CLIENT, request }
}

/// Ends the first piece of work among `actions`.
pub(crate) fn end_first(
    machine: &mut Toolstack,
    actions: &[Action],
    result: Result<Output, Failure>,
) -> Vec<Action> {
    let work = work_id(actions);
    handle(machine, Event::Worked { work, result, cost: Cost::default() })
}

fn failed(actions: &[Action]) -> Option<&str> {
    actions.iter().find_map(|action| match action {
        Action::Reply { reply: Reply::Failed(message), .. } => Some(message.as_str()),
        _ => None,
    })
}

#[test]
fn requests_wait_until_the_machine_has_looked_around() {
    let mut machine = Toolstack::new();
    let look = handle(&mut machine, Event::Started);
    let request = Event::Request { client: CLIENT, request: Request::List };
    assert!(handle(&mut machine, request).is_empty());
    let observed = Output::Observed {
        left: LeftFiles::default(),
        survey: Survey::default(),
        records: Vec::new(),
        loops: Vec::new(),
        unique_ids: BTreeMap::new(),
        received: Vec::new(),
        models: Vec::new(),
    };
    let actions = end_first(&mut machine, &look, Ok(observed));
    assert!(matches!(works(&actions)[..], [Work::Query(QueryWork::Survey { .. })]), "{actions:?}");
}

#[test]
fn a_create_that_fails_before_anything_exists_is_answered_at_once() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let actions = handle(&mut machine, create("name = 'g'"));
    let bad = Err(Failure("test.cfg:2: kernel: /kernel: no such file".to_owned()));
    let actions = end_first(&mut machine, &actions, bad);
    assert_eq!(failed(&actions), Some("test.cfg:2: kernel: /kernel: no such file"));
    assert!(works(&actions).is_empty() && machine.is_quiet());
    // The name is free again.
    assert_eq!(failed(&handle(&mut machine, create("name = 'g'"))), None);
}

#[test]
fn a_name_in_use_is_refused_by_file_line_and_key() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    handle(&mut machine, create("name = 'g'"));
    let second =
        handle(&mut machine, create("name = 'g'\nuuid = '01234567-89ab-cdef-0123-456789abcdef'"));
    assert_eq!(failed(&second), Some("test.cfg:4: name: a domain named g exists already"));
}

/// A machine that knows of a domain `g` of another toolstack.
fn beside_a_foreign_g() -> Toolstack {
    let mut machine = Toolstack::new();
    let actions = handle(&mut machine, Event::Started);
    let info = DomainInfo { domid: DomId(5), handle: Uuid([5; 16]), ..DomainInfo::default() };
    let observed = Output::Observed {
        left: LeftFiles::default(),
        survey: Survey { domains: vec![info], names: BTreeMap::from([(DomId(5), "g".to_owned())]) },
        records: Vec::new(),
        loops: Vec::new(),
        unique_ids: BTreeMap::new(),
        received: Vec::new(),
        models: Vec::new(),
    };
    let _ = end_first(&mut machine, &actions, Ok(observed));
    machine
}

/// What such a machine does when a VM `g` is to be created.
fn create_beside_a_foreign_g() -> (Toolstack, Vec<Action>) {
    let mut machine = beside_a_foreign_g();
    let actions = handle(&mut machine, create("name = 'g'"));
    assert!(
        matches!(
            works(&actions)[..],
            [Work::Query(QueryWork::Find { domid: DomId(5), known: None })]
        ),
        "{actions:?}"
    );
    (machine, actions)
}

#[test]
fn the_name_of_a_foreign_domain_is_free_once_that_is_gone_or_renamed() {
    let info =
        || Box::new(DomainInfo { domid: DomId(5), handle: Uuid([5; 16]), ..DomainInfo::default() });
    for (info, name, is_free) in [
        (None, None, true),
        (Some(info()), Some("other"), true),
        // Its name is being removed, or was.
        (Some(info()), None, true),
        (Some(info()), Some("g"), false),
    ] {
        let (mut machine, actions) = create_beside_a_foreign_g();
        let looked = Output::Looked { info, name: name.map(str::to_owned) };
        let actions = end_first(&mut machine, &actions, Ok(looked));
        let refusal = (!is_free).then_some("test.cfg:4: name: a domain named g exists already");
        assert_eq!(failed(&actions), refusal, "{name:?}");
        assert_eq!(works(&actions).is_empty(), !is_free, "{name:?}");
    }
    // What cannot be looked at is there still.
    let (mut machine, actions) = create_beside_a_foreign_g();
    let actions = end_first(&mut machine, &actions, Err(Failure("no answer".to_owned())));
    assert_eq!(failed(&actions), Some("test.cfg:4: name: a domain named g exists already"));
}

#[test]
fn a_defined_vm_starts_once_the_foreign_domain_of_its_name_is_gone_or_renamed() {
    let info =
        || Box::new(DomainInfo { domid: DomId(5), handle: Uuid([5; 16]), ..DomainInfo::default() });
    for (info, name, is_free) in [
        (None, None, true),
        (Some(info()), Some("other"), true),
        (Some(info()), None, true),
        (Some(info()), Some("g"), false),
    ] {
        let mut machine = beside_a_foreign_g();
        let config = Box::new(config("name = 'g'"));
        let request = Request::Define { config, fresh_uuid: Uuid([7; 16]), autostart: None };
        let actions = handle(&mut machine, Event::Request { client: CLIENT, request });
        end_first(&mut machine, &actions, Ok(Output::Done));
        let request = Request::Start { target: "g".to_owned(), start: Start::Running };
        let actions = handle(&mut machine, Event::Request { client: CLIENT, request });
        let looked = Output::Looked { info, name: name.map(str::to_owned) };
        let actions = end_first(&mut machine, &actions, Ok(looked));
        let refusal = "g: domain 5, which another toolstack made, has its name or UUID";
        assert_eq!(failed(&actions), (!is_free).then_some(refusal), "{name:?}");
        assert_eq!(works(&actions).is_empty(), !is_free, "{name:?}");
    }
}

#[test]
fn destruction_overtakes_a_create() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let creating = handle(&mut machine, create("name = 'g'\nvif = ['bridge=b']"));
    assert_eq!(works(&creating).len(), 2, "images and bridge are looked at side by side");
    let request = Request::Destroy { target: "g".to_owned() };
    let destroyer = Event::Request { client: ClientId(2), request };
    let cancelled = handle(&mut machine, destroyer);
    assert!(works(&cancelled).is_empty() && failed(&cancelled).is_none(), "{cancelled:?}");
    let Some(Action::Work { id: images, work }) = creating.last() else { panic!("{creating:?}") };
    let is_told = |action: &Action| matches!(action, Action::Cancel { work } if work == images);
    assert!(cancelled.iter().any(is_told), "{cancelled:?}");
    // Who reads the bridge ends soon; nobody waits for the images.
    let end = end_first(&mut machine, &creating, Err(Failure("x".to_owned())));
    let replies = end.iter().filter(|action| matches!(action, Action::Reply { .. })).count();
    assert_eq!((replies, machine.is_quiet()), (2, false), "{end:?}");
    let result = Ok(crate::heard::output_of(work, 1));
    let event = Event::Worked { work: *images, result, cost: Cost::default() };
    assert!(handle(&mut machine, event).is_empty() && machine.is_quiet());
}

#[test]
fn a_build_reports_how_far_it_is_and_ends_early_when_its_vm_is_destroyed() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let mut actions = handle(&mut machine, create("name = 'g'"));
    let build = loop {
        match works(&actions)[..] {
            [Work::Create(CreateWork::Build { .. })] => break work_id(&actions),
            [work] => {
                let output = crate::heard::output_of(work, 1);
                actions = end_first(&mut machine, &actions, Ok(output));
            }
            _ => panic!("one after the other: {actions:?}"),
        }
    };
    let reached =
        |done| Event::Reached { work: build, far: Part { done, total: 64, unit: "MiB" }.into() };
    let told = handle(&mut machine, reached(32));
    let [Action::Progress { client: CLIENT, progress }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(progress.waits_for[0].to_string(), "build (32 of 64 MiB)");

    // It is told to end; the domain is destroyed once it has.
    let request = Request::Destroy { target: "g".to_owned() };
    let destroyer = Event::Request { client: ClientId(2), request };
    let cancelled = handle(&mut machine, destroyer);
    assert!(matches!(cancelled[..], [Action::Cancel { work }] if work == build), "{cancelled:?}");
    let ended = Event::Worked {
        work: build,
        result: Err(Failure("the build was cancelled".to_owned())),
        cost: Cost::default(),
    };
    let actions = handle(&mut machine, ended);
    assert!(
        matches!(works(&actions)[..], [Work::Teardown(_)]) && failed(&actions).is_none(),
        "{actions:?}"
    );
    // A report that comes late means nothing.
    assert!(handle(&mut machine, reached(64)).is_empty());
}

fn work_id(actions: &[Action]) -> WorkId {
    let id = actions.iter().find_map(|action| match action {
        Action::Work { id, .. } => Some(*id),
        _ => None,
    });
    id.expect("there is work")
}

fn record(uuid: Uuid, complete: Option<String>) -> Record {
    let config_text = config("name = 'old'\ndisk = ['/a,raw,xvda,w']").to_cfg_text();
    Record { uuid, config_text, domid: Some(DomId(5)), complete, ..Record::default() }
}

pub(crate) fn own_loop(index: u32, tag: String) -> OwnLoop {
    let number = DeviceNumber { major: 7, minor: index };
    let device = BlockDevice { path: format!("/dev/loop{index}"), number };
    OwnLoop { attachment: Attachment::Loop(device), tag }
}

#[test]
fn what_an_earlier_daemon_left_half_made_is_taken_down() {
    let uuid = Uuid([9; 16]);
    let (_, actions) = started(vec![record(uuid, None)], vec![own_loop(3, loop_tag(uuid, 51712))]);
    assert!(
        matches!(works(&actions)[..], [Work::Teardown(TeardownWork::Pause { domain })] if domain.domid == DomId(5)),
        "{actions:?}"
    );
}

#[test]
fn a_domain_that_cannot_be_destroyed_stays_ours_and_can_be_tried_again() {
    let uuid = Uuid([9; 16]);
    let config_text = config("name = 'old'").to_cfg_text();
    let left = Record { uuid, config_text, domid: Some(DomId(5)), ..Record::default() };
    let (mut machine, pause) = started(vec![left], Vec::new());
    let destroy = end_first(&mut machine, &pause, Ok(Output::Done));
    assert!(
        matches!(works(&destroy)[..], [Work::Teardown(TeardownWork::DestroyDomain { .. })]),
        "{destroy:?}"
    );
    let end = end_first(&mut machine, &destroy, Err(Failure("Xen refused".to_owned())));
    assert!(works(&end).is_empty(), "its record stays: {end:?}");
    assert!(machine.is_quiet());
    let request = Request::Destroy { target: "old".to_owned() };
    let again = handle(&mut machine, Event::Request { client: CLIENT, request });
    assert!(
        matches!(works(&again)[..], [Work::Teardown(TeardownWork::Pause { domain })] if domain.domid == DomId(5)),
        "{again:?}"
    );
}

#[test]
fn a_loop_device_that_no_record_speaks_of_is_detached() {
    let orphan = own_loop(4, loop_tag(Uuid([1; 16]), 51712));
    let (_, actions) = started(Vec::new(), vec![orphan]);
    match works(&actions)[..] {
        [Work::Adoption(AdoptionWork::DetachOrphans { orphans })] => {
            assert_eq!(orphans[0].attachment.device().path, "/dev/loop4");
        }
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn changes_during_a_look_cause_one_more_look() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let first = handle(&mut machine, Event::DomainsChanged);
    assert_eq!(works(&first).len(), 1);
    for _ in 0..100 {
        assert!(handle(&mut machine, Event::DomainsChanged).is_empty());
    }
    let survey = || Ok(Output::Survey(Survey { domains: Vec::new(), names: BTreeMap::new() }));
    let second = end_first(&mut machine, &first, survey());
    assert_eq!(works(&second).len(), 1);
    assert!(end_first(&mut machine, &second, survey()).is_empty());
}

fn trace_of(machine: &mut Toolstack, target: &str) -> Result<Trace, String> {
    let request = Request::Trace { target: target.to_owned() };
    let actions = handle(machine, Event::Request { client: ClientId(9), request });
    match actions.as_slice() {
        [Action::Reply { reply: Reply::Trace { trace, .. }, .. }] => Ok((**trace).clone()),
        other => Err(failed(other).unwrap_or("no answer").to_owned()),
    }
}

#[test]
fn a_trace_tells_of_steps_under_way_and_what_ended_ones_waited_for() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let creating = handle(&mut machine, create("name = 'g'"));
    let trace = trace_of(&mut machine, "g").unwrap();
    assert_eq!((trace.what, trace.ended, trace.steps.len()), ("start", None, 1));
    assert_eq!(trace.steps[0].ended, None);

    let Some(Action::Work { id, .. }) = creating.last() else { panic!("{creating:?}") };
    let cost = Cost { queued_ns: 700, ..Cost::default() };
    let result = Err(Failure("no kernel".to_owned()));
    let mut actions = Vec::new();
    machine.handle(Instant(1000), Event::Worked { work: *id, result, cost }, &mut actions);
    let trace = trace_of(&mut machine, "1").unwrap();
    assert_eq!(trace.failure.as_deref(), Some("no kernel"));
    let expected = StepTime {
        step: CreateStep::LoadImages.into(),
        ready: Instant(0),
        started: Instant(700),
        ended: Some(Instant(1000)),
        waited_for: Some("a worker".to_owned()),
        failed: true,
    };
    assert_eq!(trace.steps, [expected]);
    // The VM's last operation took down what there was, which was nothing.
    assert_eq!(trace_of(&mut machine, "g").unwrap().what, "undo");
    let refusal = trace_of(&mut machine, "17").unwrap_err();
    assert!(refusal.starts_with("17: no operation"), "{refusal}");
}
