//! The stream of domain changes, and the numbers of dead domains that it keeps out of use.

use xen::{DomId, ShutdownReason, Uuid};
use xenstore::wire::MessageType;
use xenstore::wire::changes::{
    DomainChange, DomainIdentity, ENTRIES_MAX, Manner, Position, Push, PushKind, Request, Standing,
    decode_followed,
};
use xenstore::{Error, Quota};

use crate::world::{Message, World};

const KIND: u32 = MessageType::DomainChanges as u32;
const NOTHING: Position = Position { epoch: 0, seq: 0 };

fn world() -> World {
    World::new(Quota::default())
}

fn ask(world: &mut World, peer: &str, request: &Request) -> Result<Vec<u8>, Error> {
    world.call_raw(peer, KIND, 0, &request.encode())
}

fn follow(world: &mut World, peer: &str, from: Position) -> (Position, Manner) {
    let reply = ask(world, peer, &Request::Follow(from)).expect("dom0 may follow");
    decode_followed(&reply).expect("a reply to follow")
}

fn release(world: &mut World, who: DomainIdentity) {
    assert_eq!(ask(world, "dom0", &Request::Release(vec![who])), Ok(b"OK\0".to_vec()));
}

/// What a follower was told since the last time.
fn told(world: &mut World, peer: &str) -> Vec<Push> {
    let messages = &mut world.peers.get_mut(peer).unwrap().messages;
    let push = |message| match message {
        Message::Reply { kind: KIND, request_id: 0, result: Ok(payload), .. } => {
            Push::decode(&payload).expect("a message to followers")
        }
        other => panic!("{other:?} is none"),
    };
    messages.drain(..).map(push).collect()
}

fn entries(pushes: &[Push]) -> Vec<DomainChange> {
    pushes.iter().flat_map(|push| push.entries.clone()).collect()
}

/// A domain by its number, whose handle is told by the number too.
fn who(domid: u16) -> DomainIdentity {
    DomainIdentity {
        domid: DomId(domid),
        unique_id: None,
        handle: Uuid([domid.to_le_bytes()[0]; 16]),
    }
}

fn add_guest(world: &mut World, domid: u16) {
    world.add_guest(domid);
    world.machine.states.get_mut(&DomId(domid)).unwrap().handle = who(domid).handle;
}

fn stop(world: &mut World, domid: u16, reason: ShutdownReason) {
    let state = world.machine.states.get_mut(&DomId(domid)).unwrap();
    (state.shutdown, state.reason) = (true, Some(reason));
    world.raise_exception();
}

/// Xen has torn the domain down, and it is listed as long as something of it is mapped.
fn kill(world: &mut World, domid: u16) {
    world.machine.states.get_mut(&DomId(domid)).unwrap().dying = true;
    world.raise_exception();
}

/// Xen forgets dead domains of which nothing is mapped.
fn unlink(world: &mut World) {
    let machine = &mut world.machine;
    let kept = &machine.kept;
    machine.states.retain(|domid, state| !state.dying || kept.contains(domid));
    world.raise_exception();
}

#[test]
fn only_sockets_are_served() {
    let mut world = world();
    add_guest(&mut world, 1);
    let request = Request::Follow(NOTHING);
    assert_eq!(ask(&mut world, "d1", &request), Err(Error::ENOSYS));
    assert_eq!(world.call_raw("dom0", KIND, 0, b"nonsense"), Err(Error::EINVAL));
}

#[test]
fn a_follower_is_told_how_all_is_and_then_what_changes() {
    let mut world = world();
    add_guest(&mut world, 1);
    world.raise_exception();
    let (position, manner) = follow(&mut world, "dom0", NOTHING);
    assert_eq!((position.seq, manner), (1, Manner::Everything));
    let all = told(&mut world, "dom0");
    assert_eq!((all.len(), all[0].kind), (1, PushKind::End));
    let (absent, alive) = (Standing::Absent, Standing::Alive);
    assert_eq!(all[0].entries, [DomainChange { who: who(1), before: absent, after: alive }]);

    stop(&mut world, 1, ShutdownReason::Reboot);
    let reboot = Standing::Stopped(ShutdownReason::Reboot);
    let pushes = told(&mut world, "dom0");
    assert_eq!((pushes.len(), pushes[0].seq, pushes[0].epoch), (1, 2, position.epoch));
    assert_eq!(entries(&pushes), [DomainChange { who: who(1), before: alive, after: reboot }]);
    // It is told once.
    world.raise_exception();
    assert_eq!(told(&mut world, "dom0"), []);
    kill(&mut world, 1);
    let dead = DomainChange { who: who(1), before: reboot, after: Standing::Dead };
    assert_eq!(entries(&told(&mut world, "dom0")), [dead]);
}

#[test]
fn a_domain_that_suspends_again_after_a_resume_is_told_again() {
    let mut world = world();
    add_guest(&mut world, 1);
    world.raise_exception();
    follow(&mut world, "dom0", NOTHING);
    told(&mut world, "dom0");
    let (alive, suspended) = (Standing::Alive, Standing::Stopped(ShutdownReason::Suspend));
    for _ in 0..3 {
        stop(&mut world, 1, ShutdownReason::Suspend);
        let change = DomainChange { who: who(1), before: alive, after: suspended };
        assert_eq!(entries(&told(&mut world, "dom0")), [change]);
        // Xen resumes it, and no poll comes before it suspends again.
        let state = world.machine.states.get_mut(&DomId(1)).unwrap();
        (state.shutdown, state.reason) = (false, None);
        world.call_raw("dom0", MessageType::Resume.code(), 0, b"1\0").unwrap();
        let change = DomainChange { who: who(1), before: suspended, after: alive };
        assert_eq!(entries(&told(&mut world, "dom0")), [change]);
    }
    // Of one that runs there is nothing to tell.
    world.call_raw("dom0", MessageType::Resume.code(), 0, b"1\0").unwrap();
    assert_eq!(told(&mut world, "dom0"), []);
}

#[test]
fn a_follower_that_reconnects_resumes_where_possible() {
    let mut world = world();
    for domid in 1..=3 {
        add_guest(&mut world, domid);
    }
    world.raise_exception();
    let (position, _) = follow(&mut world, "dom0", NOTHING);
    told(&mut world, "dom0");
    stop(&mut world, 2, ShutdownReason::Crash);
    stop(&mut world, 3, ShutdownReason::Poweroff);
    let heard = told(&mut world, "dom0");
    let at = |seq| Position { seq, ..position };
    for seen in position.seq..=position.seq + 2 {
        let name = format!("again{seen}");
        world.connect(&name);
        assert_eq!(follow(&mut world, &name, at(seen)), (at(5), Manner::Resumed));
        let missed = entries(&told(&mut world, &name));
        let skipped = usize::try_from(seen - position.seq).unwrap();
        assert_eq!(missed, entries(&heard)[skipped..]);
    }
    // Another run of the daemon, a number it never gave out, one that is too long ago.
    for (name, from) in
        [("other", Position { epoch: position.epoch + 1, seq: 3 }), ("ahead", at(6))]
    {
        world.connect(name);
        assert_eq!(follow(&mut world, name, from), (at(5), Manner::Everything));
        assert_eq!(entries(&told(&mut world, name)).len(), 3);
    }
    for round in 0..3000 {
        for domid in 10..12 {
            if round % 2 == 0 {
                world.create_domain(domid);
            } else {
                world.machine.states.remove(&DomId(domid));
            }
        }
        world.raise_exception();
    }
    world.connect("late");
    assert_eq!(follow(&mut world, "late", at(4)).1, Manner::Resumed, "6000 changes are kept");
    for round in 0..3000 {
        for domid in 10..12 {
            if round % 2 == 0 {
                world.create_domain(domid);
            } else {
                world.machine.states.remove(&DomId(domid));
            }
        }
        world.raise_exception();
    }
    world.connect("too late");
    assert_eq!(follow(&mut world, "too late", at(4)).1, Manner::Everything);
}

#[test]
fn a_dead_domains_number_is_kept_until_it_is_released() {
    let mut world = world();
    follow(&mut world, "dom0", NOTHING);
    told(&mut world, "dom0");
    add_guest(&mut world, 1);
    world.raise_exception();
    kill(&mut world, 1);
    unlink(&mut world);
    assert_eq!(world.server.domains_kept(), 1);
    told(&mut world, "dom0");
    // Neither another domain of its number nor the same handle elsewhere is this one.
    release(&mut world, DomainIdentity { handle: Uuid([9; 16]), ..who(1) });
    release(&mut world, DomainIdentity { domid: DomId(2), ..who(1) });
    assert!(world.machine.kept.contains(&DomId(1)));
    release(&mut world, who(1));
    assert!(world.machine.kept.is_empty());
    unlink(&mut world);
    let gone = DomainChange { who: who(1), before: Standing::Dead, after: Standing::Absent };
    assert_eq!(entries(&told(&mut world, "dom0")), [gone]);
}

#[test]
fn a_domain_released_before_its_death_was_seen_is_not_kept() {
    let mut world = world();
    follow(&mut world, "dom0", NOTHING);
    add_guest(&mut world, 1);
    add_guest(&mut world, 2);
    release(&mut world, who(1));
    release(&mut world, DomainIdentity { handle: Uuid([9; 16]), ..who(2) });
    kill(&mut world, 1);
    kill(&mut world, 2);
    let kept: Vec<DomId> = world.machine.kept.iter().copied().collect();
    assert_eq!(kept, [DomId(2)], "only what was meant is let go");
}

#[test]
fn a_released_dead_domain_is_handled_at_once() {
    let mut world = world();
    follow(&mut world, "dom0", NOTHING);
    for domid in 1..=3 {
        add_guest(&mut world, domid);
        world.machine.states.get_mut(&DomId(domid)).unwrap().dying = domid < 3;
    }
    told(&mut world, "dom0");
    release(&mut world, who(1));
    // Another one that had the number, and one that lives.
    release(&mut world, DomainIdentity { handle: Uuid([9; 16]), ..who(2) });
    release(&mut world, who(3));
    let served: Vec<u16> = world.machine.rings.keys().map(|domid| domid.0).collect();
    assert_eq!(served, [2, 3], "the page of what was let go is not mapped any more");
    assert!(world.machine.kept.is_empty());
    let deaths = entries(&told(&mut world, "dom0"));
    assert_eq!(
        deaths.iter().map(|it| (it.who, it.after)).collect::<Vec<_>>(),
        [(who(1), Standing::Dead)]
    );
    // The look that comes later says it again, and it is not news.
    kill(&mut world, 1);
    assert_eq!(entries(&told(&mut world, "dom0")).iter().filter(|it| it.who == who(1)).count(), 0);
    world.assert_counts();
}

#[test]
fn nothing_is_kept_if_nobody_ever_followed_and_all_is_kept_while_nobody_does() {
    let mut world = world();
    add_guest(&mut world, 1);
    kill(&mut world, 1);
    assert!(world.machine.kept.is_empty());
    unlink(&mut world);
    world.connect("toolstack");
    follow(&mut world, "toolstack", NOTHING);
    let id = world.peers["toolstack"].id;
    world.server.disconnect(id);
    world.peers.remove("toolstack");
    assert_eq!(world.server.followers(), []);
    add_guest(&mut world, 2);
    kill(&mut world, 2);
    assert!(world.machine.kept.contains(&DomId(2)));
    // Whoever comes next learns of it.
    follow(&mut world, "dom0", NOTHING);
    let all = entries(&told(&mut world, "dom0"));
    let dead = all.iter().filter(|it| it.after == Standing::Dead);
    assert_eq!(dead.map(|it| it.who).collect::<Vec<_>>(), [who(2)]);
    release(&mut world, who(2));
    assert!(world.machine.kept.is_empty());
}

#[test]
fn a_domain_that_is_released_alive_is_not_kept() {
    let mut world = world();
    follow(&mut world, "dom0", NOTHING);
    add_guest(&mut world, 1);
    assert_eq!(world.call("dom0", MessageType::Release, 0, "1|"), Ok(b"OK\0".to_vec()));
    assert!(world.machine.kept.is_empty() && world.machine.rings.is_empty());
}

#[test]
fn a_thousand_deaths_are_told_in_a_few_messages() {
    let mut world = world();
    follow(&mut world, "dom0", NOTHING);
    for domid in 1..=1000 {
        add_guest(&mut world, domid);
    }
    world.raise_exception();
    told(&mut world, "dom0");
    for domid in 1..=1000 {
        world.machine.states.get_mut(&DomId(domid)).unwrap().dying = true;
    }
    world.raise_exception();
    let pushes = told(&mut world, "dom0");
    assert_eq!(pushes.len(), 1000_usize.div_ceil(ENTRIES_MAX));
    assert_eq!(entries(&pushes).len(), 1000);
    assert_eq!(world.machine.kept.len(), 1000);
    world.assert_counts();
}
