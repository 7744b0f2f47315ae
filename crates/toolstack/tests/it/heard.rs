//! What the machine does about the domains that the store tells of.

use std::collections::VecDeque;
use std::sync::Arc;

use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{Start, Unplug};
use toolstack::work::{
    Cost, CreateWork, DeviceWork, Failure, Images, LeftFiles, NewDomain, Output, QueryWork, Record,
    Release, Survey, TeardownWork, Work,
};
use toolstack::{Action, ClientId, Device, Event, Reply, Request, Toolstack, Wanted, xlcfg};
use xen::{DomId, DomainInfo, DomainRef, EvtchnPort, Life, ShutdownReason, Uuid};
use xen_build::{Built, KernelImage};
use xenstore::client::DomainUpdate;
use xenstore::wire::changes::{DomainChange, DomainIdentity, Standing};

use crate::machine::{CLIENT, end_first, handle, own_loop, started, works};
use crate::plan::config;

fn uuid(number: u16) -> Uuid {
    let mut bytes = [7; 16];
    bytes[..2].copy_from_slice(&number.to_le_bytes());
    Uuid(bytes)
}

fn domain_of(number: u16) -> DomainRef {
    let life = Life::Counted { handle: uuid(number), generation: number.into() };
    DomainRef { domid: DomId(number), life }
}

fn change(number: u16, after: Standing) -> DomainChange {
    let who = DomainIdentity { domid: DomId(number), unique_id: None, handle: uuid(number) };
    DomainChange { who, before: Standing::Alive, after }
}

fn changes(changes: Vec<DomainChange>) -> Event {
    Event::Domains(DomainUpdate::Changes(changes))
}

/// The only piece of work among the actions, ended like this.
fn end(machine: &mut Toolstack, actions: &[Action], output: Output) -> Vec<Action> {
    assert_eq!(works(actions).len(), 1, "{actions:?}");
    end_first(machine, actions, Ok(output))
}

/// The smallest kernel there is: one segment of nothing.
fn images() -> Images {
    let mut file = vec![0; 64 + 56];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    for (at, value) in [(16, 2_u16), (18, 62), (54, 56), (56, 1)] {
        file[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    file[32] = 64;
    file[64] = 1;
    // Its size in memory.
    file[64 + 40] = 1;
    let kernel = KernelImage::parse(&file).expect("a kernel");
    Images::Kernel { kernel: Arc::new(kernel), ramdisk: None, cmdline: None, shimmed: None }
}

fn built() -> Built {
    Built {
        store_frame: 1,
        console_frame: 2,
        entry: 0,
        pages: 0,
        tables: xen_build::Tables::default(),
    }
}

/// What work brings back that goes well; a domain that it makes has this number.
pub(crate) fn output_of(work: &Work, number: u16) -> Output {
    match work {
        Work::Create(CreateWork::LoadImages { .. }) => Output::Images(images()),
        Work::Create(CreateWork::CreateDomain { .. }) => Output::Domain(NewDomain {
            domain: domain_of(number),
            store_port: EvtchnPort(1),
            console_port: EvtchnPort(2),
            generation_id: None,
        }),
        Work::Create(CreateWork::Build { .. }) => Output::Built(built()),
        Work::Device(DeviceWork::AttachDisk { .. }) => Output::Attached(own_loop(3, String::new())),
        Work::Device(DeviceWork::CloseAll { .. } | DeviceWork::Close { .. }) => {
            Output::Closing { unseen: Vec::new() }
        }
        _ => Output::Done,
    }
}

/// A VM without devices that runs in the domain of its number.
fn run(machine: &mut Toolstack, number: u16) {
    let config = Box::new(config(&format!("name = 'vm{number}'")));
    let request = Request::Create { config, fresh_uuid: uuid(number), start: Start::Running };
    let mut actions = handle(machine, Event::Request { client: ClientId(number.into()), request });
    loop {
        let next = works(&actions).into_iter().next().cloned();
        let Some(work) = next else { break };
        actions = end_first(machine, &actions, Ok(output_of(&work, number)));
    }
    let is_created =
        |action: &Action| matches!(action, Action::Reply { reply: Reply::Created(_), .. });
    assert!(actions.iter().any(is_created), "{actions:?}");
}

/// Ends all work of these actions and of those that follow, in order. Backends see their devices at once.
fn end_all(machine: &mut Toolstack, actions: Vec<Action>) -> Vec<Work> {
    let mut done = Vec::new();
    let mut actions = VecDeque::from(actions);
    while let Some(action) = actions.pop_front() {
        let event = match action {
            Action::Work { id, work } => {
                let result = Ok(output_of(&work, 2));
                done.push(work);
                Event::Worked { work: id, result, cost: Cost::default() }
            }
            Action::Watch { path } => Event::Node { path, value: Some(b"2".to_vec()) },
            _ => continue,
        };
        actions.extend(handle(machine, event));
    }
    done
}

fn released(actions: &[Action]) -> Vec<DomainIdentity> {
    let domains = |action: &Action| match action {
        Action::Release { domains } => domains.clone(),
        _ => Vec::new(),
    };
    actions.iter().flat_map(domains).collect()
}

#[test]
fn the_end_of_a_domain_is_seen_to_without_a_look_at_the_others() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    run(&mut machine, 1);
    run(&mut machine, 2);
    let off = Standing::Stopped(ShutdownReason::Poweroff);
    let actions = handle(&mut machine, changes(vec![change(2, off)]));
    assert!(
        matches!(works(&actions)[..], [Work::Teardown(TeardownWork::Pause { domain })] if *domain == domain_of(2)),
        "{actions:?}"
    );
}

#[test]
fn what_is_heard_of_another_domain_of_that_number_concerns_nobody() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    run(&mut machine, 1);
    let mut other = change(1, Standing::Dead);
    other.who.handle = uuid(9);
    let actions = handle(&mut machine, changes(vec![other]));
    assert!(works(&actions).is_empty(), "{actions:?}");
    assert_eq!(released(&actions), [other.who]);
}

#[test]
fn the_death_of_a_thousand_is_as_much_work_as_a_thousand_deaths() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    for number in 1..=1000 {
        run(&mut machine, number);
    }
    let all = (1..=1000).map(|number| change(number, Standing::Dead)).collect();
    let mut open: Vec<(toolstack::WorkId, Work)> = Vec::new();
    let mut count = 0;
    let take = |actions: Vec<Action>, open: &mut Vec<_>| {
        for action in actions {
            if let Action::Work { id, work } = action {
                open.push((id, work));
            }
        }
    };
    take(handle(&mut machine, changes(all)), &mut open);
    while let Some((work, what)) = open.pop() {
        count += 1;
        assert!(
            !matches!(
                what,
                Work::Query(QueryWork::Survey { .. }) | Work::Query(QueryWork::Find { .. })
            ),
            "{what:?}"
        );
        let event = Event::Worked { work, result: Ok(Output::Done), cost: Cost::default() };
        take(handle(&mut machine, event), &mut open);
    }
    assert!(machine.is_quiet());
    // Pause, destroy, remove the nodes.
    assert_eq!(count, 3 * 1000);
}

#[test]
fn a_domain_is_released_when_nobody_is_about_to_act_on_it() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    run(&mut machine, 1);
    let target = || "vm1".to_owned();
    let ask = |request| Event::Request { client: ClientId(99), request };
    // A pause whose performer has looked, and has not yet acted.
    let pause = handle(&mut machine, ask(Request::Pause { target: target() }));
    let condemn = handle(&mut machine, ask(Request::Destroy { target: target() }));
    let destroy = end(&mut machine, &condemn, Output::Done);
    let destroy = end(&mut machine, &destroy, Output::Done);
    let remove = end(&mut machine, &destroy, Output::Done);
    let [Work::Teardown(TeardownWork::RemoveNodes { release, .. })] = works(&remove)[..] else {
        panic!("{remove:?}")
    };
    assert_eq!(*release, Release::Later);
    // Whoever comes now is too late.
    let late = handle(&mut machine, ask(Request::Unpause { target: target() }));
    assert!(matches!(&late[..], [Action::Reply { reply: Reply::Failed(_), .. }]), "{late:?}");
    let gone = end(&mut machine, &remove, Output::Done);
    assert_eq!(released(&gone), []);
    let last = end_first(&mut machine, &pause, Err(Failure("gone".to_owned())));
    assert_eq!(released(&last), [DomainIdentity::from(domain_of(1))]);

    // Undisturbed, it goes with its nodes.
    run(&mut machine, 2);
    let condemn = handle(&mut machine, ask(Request::Destroy { target: "vm2".to_owned() }));
    let destroy = end(&mut machine, &condemn, Output::Done);
    let destroy = end(&mut machine, &destroy, Output::Done);
    let remove = end(&mut machine, &destroy, Output::Done);
    let [Work::Teardown(TeardownWork::RemoveNodes { release, .. })] = works(&remove)[..] else {
        panic!("{remove:?}")
    };
    assert_eq!(*release, Release::Now);
}

#[test]
fn what_is_heard_before_the_first_look_waits_for_it() {
    let mut machine = Toolstack::new();
    let look = handle(&mut machine, Event::Started);
    let ours = change(5, Standing::Dead);
    let theirs = change(6, Standing::Dead);
    let early = Event::Domains(DomainUpdate::Everything(vec![ours, theirs]));
    assert!(handle(&mut machine, early).is_empty(), "nobody knows whose they are");
    let config_text = config("name = 'old'").to_cfg_text();
    let record = Record { uuid: uuid(5), config_text, domid: Some(DomId(5)), ..Record::default() };
    let observed = Output::Observed {
        left: LeftFiles::default(),
        survey: Survey::default(),
        records: vec![record],
        loops: Vec::new(),
        unique_ids: std::collections::BTreeMap::new(),
        received: Vec::new(),
        models: Vec::new(),
    };
    let actions = end_first(&mut machine, &look, Ok(observed));
    assert_eq!(released(&actions), [theirs.who], "the other is released when it is taken down");
}

#[test]
fn a_new_domain_of_others_is_looked_at_alone() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    run(&mut machine, 1);
    let introduced = |domid| Event::Introduced { domid: Some(DomId(domid)) };
    assert!(handle(&mut machine, introduced(1)).is_empty(), "our own is no news");
    let look = handle(&mut machine, introduced(7));
    assert!(
        matches!(works(&look)[..], [Work::Query(QueryWork::Find { domid: DomId(7), .. })]),
        "{look:?}"
    );
}

fn info(number: u16, handle: Uuid) -> DomainInfo {
    DomainInfo { domid: DomId(number), handle, ..DomainInfo::default() }
}

fn find(machine: &mut Toolstack, client: u64, wanted: Wanted) -> Vec<Action> {
    handle(machine, Event::Request { client: ClientId(client), request: Request::Find { wanted } })
}

/// What the only look among the actions says.
fn looked(machine: &mut Toolstack, actions: &[Action], found: Option<(u16, Uuid)>) -> Vec<Action> {
    let info = found.map(|(number, handle)| Box::new(info(number, handle)));
    end(machine, actions, Output::Looked { info, name: Some("theirs".to_owned()) })
}

fn found(actions: &[Action]) -> Vec<Option<u16>> {
    let reply = |action: &Action| match action {
        Action::Reply { reply: Reply::Found(row), .. } => {
            Some(row.as_ref().map(|row| row.info.domid.0))
        }
        _ => None,
    };
    actions.iter().filter_map(reply).collect()
}

#[test]
fn a_known_uuid_is_looked_up_by_a_look_at_one_domain() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    run(&mut machine, 1);
    let look = handle(&mut machine, Event::Introduced { domid: Some(DomId(7)) });
    looked(&mut machine, &look, Some((7, uuid(70))));
    for (handle, domid) in [(uuid(1), 1), (uuid(70), 7)] {
        let look = find(&mut machine, 50, Wanted::Handle(handle));
        assert!(
            matches!(works(&look)[..], [Work::Query(QueryWork::Find { domid: DomId(at), .. })] if *at == domid)
        );
        let told = looked(&mut machine, &look, Some((domid, handle)));
        assert_eq!(found(&told), [Some(domid)]);
    }
}

#[test]
fn a_place_that_is_somebody_elses_by_now_is_a_miss_and_misses_share_a_list() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let look = handle(&mut machine, Event::Introduced { domid: Some(DomId(7)) });
    looked(&mut machine, &look, Some((7, uuid(70))));
    // Its number went to another, its handle to another number.
    let look = find(&mut machine, 50, Wanted::Handle(uuid(70)));
    let list = looked(&mut machine, &look, Some((7, uuid(71))));
    assert!(matches!(works(&list)[..], [Work::Query(QueryWork::Survey { .. })]), "{list:?}");
    // Whoever asks now gets the next list, and all of them one.
    let mut later = Vec::new();
    for client in 60..70 {
        later.extend(find(
            &mut machine,
            client,
            Wanted::Handle(uuid(u16::try_from(client).unwrap())),
        ));
    }
    assert!(later.is_empty(), "{later:?}");
    let survey = |domains: &[(u16, Uuid)]| {
        let domains = domains.iter().map(|(number, handle)| info(*number, *handle)).collect();
        Output::Survey(Survey { domains, ..Survey::default() })
    };
    let second = end(&mut machine, &list, survey(&[(7, uuid(71)), (8, uuid(70))]));
    assert_eq!(found(&second), [Some(8)]);
    let last = end(&mut machine, &second, survey(&[(7, uuid(71)), (8, uuid(65))]));
    let hits: Vec<_> = found(&last).into_iter().flatten().collect();
    assert_eq!((found(&last).len(), hits), (10, vec![8]));
    assert!(machine.is_quiet());
}

#[test]
fn pages_of_a_list_fit_together() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    let list = Event::Request { client: CLIENT, request: Request::List };
    let list = handle(&mut machine, list);
    let domains: Vec<_> = [0, 3, 4, 9, 200].iter().map(|n| info(*n, uuid(*n))).collect();
    let survey = Survey { domains, ..Survey::default() };
    let told = end(&mut machine, &list, Output::Survey(survey));
    let [Action::Reply { reply: Reply::Domains(listing), .. }] = &told[..] else {
        panic!("{told:?}")
    };
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = listing.page(after, 2);
        let Some(last) = page.last() else { break };
        after = Some(last.info.domid);
        seen.extend(page.iter().map(|row| row.info.domid.0));
    }
    assert_eq!(seen, [0, 3, 4, 9, 200]);
    assert_eq!(listing.page(Some(DomId(5)), 9).len(), 2);
    assert_eq!(listing.row(DomId(9)).map(|row| row.info.handle), Some(uuid(9)));
    assert_eq!(listing.row(DomId(10)), None);
}

#[test]
fn a_disk_whose_detach_met_the_end_of_its_domain_is_detached_before_the_next_start() {
    let (mut machine, _) = started(Vec::new(), Vec::new());
    run(&mut machine, 1);
    let target = || "vm1".to_owned();
    let disk = xlcfg::parse_disk("/a,raw,xvda,w").unwrap();
    let plug = Request::Plug { target: target(), device: Box::new(Device::Disk(disk)) };
    let actions = handle(&mut machine, Event::Request { client: CLIENT, request: plug });
    end_all(&mut machine, actions);
    let device = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
    let unplug = Request::Unplug { target: target(), device, how: Unplug::Clean };
    let mut actions = handle(&mut machine, Event::Request { client: CLIENT, request: unplug });
    // Up to the record's end, which is under way when the guest starts again.
    let states: [&[u8]; 2] = [b"4", b"6"];
    for value in states {
        let path = actions.iter().find_map(|action| match action {
            Action::Watch { path } if path.ends_with("/state") => Some(path.clone()),
            _ => None,
        });
        let event = Event::Node { path: path.expect("a wait"), value: Some(value.to_vec()) };
        actions = handle(&mut machine, event);
        if value == b"4" {
            actions = end(&mut machine, &actions, Output::Done);
        }
    }
    assert!(
        matches!(works(&actions)[..], [Work::Device(DeviceWork::Remove { .. })]),
        "{actions:?}"
    );
    let again = Standing::Stopped(ShutdownReason::Reboot);
    let none = handle(&mut machine, changes(vec![change(1, again)]));
    assert!(works(&none).is_empty(), "{none:?}");
    let done = end_all(&mut machine, actions);
    let at = |wanted: fn(&Work) -> bool| done.iter().position(wanted).expect("done");
    let destroyed = at(|work| matches!(work, Work::Teardown(TeardownWork::DestroyDomain { .. })));
    let detached = at(|work| matches!(work, Work::Device(DeviceWork::DetachDisk { .. })));
    let made = at(|work| matches!(work, Work::Create(CreateWork::CreateDomain { .. })));
    assert!(destroyed < detached && destroyed < made, "{done:?}");
}
