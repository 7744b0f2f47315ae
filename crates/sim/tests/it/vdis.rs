//! VDIs as objects: which there are, who is told, and when SRs are read.

use std::collections::BTreeMap;

use storage::{HostError, Kind, Repositories, VdiName};
use toolstack::{Classes, Object, ObjectClass, ObjectKey, PermitRequest, Reply, Request, SrChange};
use xen::Uuid;

use crate::storage::guest;
use crate::support::{Follower, Lab, objects};

const SECOND: u64 = 1_000_000_000;
const EVERY_NS: u64 = 60 * SECOND;

fn vdi(name: &str) -> VdiName {
    VdiName::parse(name).unwrap()
}

fn path(path: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("path".to_owned(), path.to_owned())])
}

/// A host with the SR `s` and its VDI `s:one`.
fn lab(seed: u64) -> Lab {
    let mut lab = Lab::seeded(seed);
    lab.daemon.set_readings_every(EVERY_NS);
    let create = |srs: &mut Repositories<'_>| {
        srs.create("s", Kind::File, path("/srv/vdis")).unwrap();
        srs.create_vdi(&vdi("s:one"), 1 << 20).unwrap();
    };
    do_to(&mut lab, create, SrChange::Come("s".to_owned()));
    lab
}

/// Something is done to SRs as a client does it, who tells the machine then.
fn do_to(lab: &mut Lab, deed: impl FnOnce(&mut Repositories<'_>), change: SrChange) {
    let sr = match &change {
        SrChange::Come(sr) | SrChange::Changed(sr) | SrChange::Gone(sr) => sr.clone(),
    };
    let what = toolstack::scheduler::SrRequest::Change;
    let Reply::Permit(permit) =
        lab.ask(Request::Permit(PermitRequest::Sr { sr, what, deed: None }))
    else {
        panic!("no permit");
    };
    let mut os = lab.host.os().clone();
    deed(&mut Repositories::new(&mut os));
    let change = Some(change);
    lab.ask(Request::Permit(PermitRequest::GiveBack { permit, outcome: Ok(()), change }));
}

fn follower() -> Follower {
    Follower::new(ObjectClass::Vdi, |change| {
        let ObjectKey::Vdi(name) = &change.key else { panic!("{change:?}") };
        let text = change.object.as_deref().map(|it| match it {
            Object::Vdi(it) => {
                let of = it.snapshot_of.as_ref().map(|of| format!(" of {of}"));
                format!("{} KiB{}", it.bytes >> 10, of.unwrap_or_default())
            }
            other => panic!("{other:?}"),
        });
        (name.to_string(), text)
    })
}

#[test]
fn whoever_begins_and_whoever_has_changed_something_is_told_what_is_there_now() {
    let mut lab = lab(1);
    let mut follower = follower();
    assert_eq!(follower.read(&mut lab), "s:one: 1024 KiB");
    let changed = || SrChange::Changed("s".to_owned());
    do_to(&mut lab, |srs| srs.create_vdi(&vdi("s:two"), 2 << 20).unwrap(), changed());
    assert_eq!(follower.read(&mut lab), "s:one: 1024 KiB\ns:two: 2048 KiB");
    do_to(&mut lab, |srs| srs.snapshot_vdi(&vdi("s:one"), "old").unwrap(), changed());
    do_to(&mut lab, |srs| srs.resize_vdi(&vdi("s:two"), 3 << 20).unwrap(), changed());
    let now = "s:old: 1024 KiB of one\ns:one: 1024 KiB\ns:two: 3072 KiB";
    assert_eq!(follower.read(&mut lab), now);
    do_to(&mut lab, |srs| srs.destroy_vdi(&vdi("s:old")).unwrap(), changed());
    let come = SrChange::Come("t".to_owned());
    let create = |srs: &mut Repositories<'_>| {
        srs.create("t", Kind::File, path("/srv/more")).unwrap();
        srs.create_vdi(&vdi("t:one"), 1 << 20).unwrap();
    };
    do_to(&mut lab, create, come);
    let now = "s:one: 1024 KiB\ns:two: 3072 KiB\nt:one: 1024 KiB";
    assert_eq!(follower.read(&mut lab), now);
    do_to(&mut lab, |srs| srs.forget("s").unwrap(), SrChange::Gone("s".to_owned()));
    assert_eq!(follower.read(&mut lab), "t:one: 1024 KiB");
}

#[test]
fn a_follower_hears_of_changes_users_and_what_other_hosts_do() {
    let mut lab = lab(2);
    let mut follower = follower();
    follower.read(&mut lab);
    let waiting = follower.begin_to_wait(&mut lab);
    let create = |srs: &mut Repositories<'_>| srs.create_vdi(&vdi("s:two"), 2 << 20).unwrap();
    do_to(&mut lab, create, SrChange::Changed("s".to_owned()));
    let news = objects(lab.wait(waiting));
    assert_eq!(follower.take(&news), "s:one: 1024 KiB\ns:two: 2048 KiB");
    let waiting = follower.begin_to_wait(&mut lab);
    lab.create(&guest("a", "s:one,,xvda,w")).unwrap();
    let news = objects(lab.wait(waiting));
    let keys: Vec<_> = news.items.iter().map(|it| it.key.clone()).collect();
    assert_eq!(keys, [ObjectKey::Vdi(vdi("s:one"))], "who uses it has changed");
    follower.take(&news);
    let waiting = follower.begin_to_wait(&mut lab);
    let mut os = lab.host.os().clone();
    Repositories::new(&mut os).create_vdi(&vdi("s:far"), 1 << 20).unwrap();
    let begin = lab.host.now();
    let news = objects(lab.wait(waiting));
    assert_eq!(follower.take(&news), "s:far: 1024 KiB\ns:one: 1024 KiB\ns:two: 2048 KiB");
    assert!(lab.host.now().0 - begin.0 <= EVERY_NS + SECOND);
}

#[test]
fn a_checkpoint_with_its_snapshots_comes_and_goes() {
    let mut lab = lab(3);
    lab.host.os().set_shares_blocks(true);
    let mut follower = follower();
    lab.create(&guest("a", "s:one,,xvda,w")).unwrap();
    lab.settle();
    assert_eq!(follower.read(&mut lab), "s:one: 1024 KiB");
    let (id, uuid) = (Uuid([7; 16]), Uuid([1; 16]));
    let request = Request::Checkpoint { target: "a".to_owned(), name: "before".to_owned(), id };
    let reply = lab.ask(request);
    let with = follower.read(&mut lab);
    assert!(with.lines().count() == 2 && with.contains(" of one"), "{reply:?}: {with}");
    lab.ask(Request::DestroyCheckpoint { uuid, name: "before".to_owned() });
    assert_eq!(follower.read(&mut lab), "s:one: 1024 KiB");
}

#[test]
fn an_sr_that_cannot_be_read_says_why_and_its_vdis_stay() {
    let mut lab = lab(4);
    let mut follower = follower();
    follower.read(&mut lab);
    lab.host
        .os()
        .set_failing("/srv/vdis", Some(HostError::Refused("no access to /srv/vdis".to_owned())));
    follower.begin_to_wait(&mut lab);
    lab.pass(EVERY_NS + SECOND);
    let classes = Classes::from([ObjectClass::Sr]);
    let request = Request::Objects { cursor: None, classes, waits: false };
    let Reply::Objects(srs) = lab.ask(request) else { panic!("no answer") };
    let problem = match srs.items[0].object.as_deref() {
        Some(Object::Sr { problem }) => problem.clone(),
        other => panic!("{other:?}"),
    };
    assert!(problem.as_deref().is_some_and(|it| it.contains("/srv/vdis")), "{problem:?}");
    assert_eq!(follower.read(&mut lab), "s:one: 1024 KiB");
    lab.host.os().set_failing("/srv/vdis", None);
    follower.begin_to_wait(&mut lab);
    lab.pass(EVERY_NS + SECOND);
    let request =
        Request::Objects { cursor: None, classes: Classes::from([ObjectClass::Sr]), waits: false };
    let Reply::Objects(srs) = lab.ask(request) else { panic!("no answer") };
    assert!(matches!(srs.items[0].object.as_deref(), Some(Object::Sr { problem: None })));
}

#[test]
fn an_sr_that_hangs_holds_up_nobody_for_long() {
    let mut lab = lab(6);
    let mut follower = follower();
    follower.read(&mut lab);
    lab.host.os().set_hanging("/srv/vdis", true);
    do_to(&mut lab, |_| (), SrChange::Changed("s".to_owned()));
    for seconds in [2, 0] {
        let begin = lab.host.now();
        assert_eq!(follower.read(&mut lab), "s:one: 1024 KiB");
        assert_eq!((lab.host.now().0 - begin.0) / SECOND, seconds);
    }
}

#[test]
fn an_sr_that_changes_all_the_time_is_not_read_all_the_time() {
    let mut lab = lab(7);
    let mut follower = follower();
    follower.read(&mut lab);
    let before = lab.daemon.works_begun["read-sr"];
    let begin = lab.host.now();
    let mut changes = 0;
    while lab.host.now().0 - begin.0 < SECOND {
        follower.begin_to_wait(&mut lab);
        do_to(&mut lab, |_| (), SrChange::Changed("s".to_owned()));
        lab.pass(10_000);
        changes += 1;
    }
    let made = lab.daemon.works_begun["read-sr"] - before;
    assert!(made > 1 && made * 10 < changes, "{made} readings for {changes} changes");
}

#[test]
fn srs_are_read_only_for_those_who_follow_and_not_for_those_who_have_gone() {
    let mut lab = lab(5);
    let readings = |lab: &Lab| lab.daemon.works_begun.get("read-sr").copied().unwrap_or_default();
    lab.pass(10 * EVERY_NS);
    assert_eq!(readings(&lab), 0, "nobody follows");
    let mut follower = follower();
    follower.read(&mut lab);
    follower.read(&mut lab);
    assert_eq!(readings(&lab), 1, "one reading does for all who begin");
    follower.begin_to_wait(&mut lab);
    lab.pass(3 * EVERY_NS + SECOND);
    assert_eq!(readings(&lab), 4);
    lab.pass(20 * EVERY_NS);
    assert!(readings(&lab) <= 8, "{} readings for one that has gone", readings(&lab));
}
