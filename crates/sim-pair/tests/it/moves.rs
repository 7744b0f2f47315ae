//! A VM is sent from one host to the other.

use sim_pair::moves::{self, Guest, Outcome, Plan, Trouble, Way};
use sim_pair::{Pair, Side, checks};
use toolstack::{Reply, Request};

use crate::support::{create, migration, seeded, unikernel};

fn plan(way: Way, guest: Guest) -> Plan {
    Plan { way, guest, trouble: Trouble::Nothing, seed: 1 }
}

#[test]
fn it_goes_on_on_the_other_host() {
    for (way, guest) in [
        (Way::Live, Guest::Pvh),
        (Way::Stopped, Guest::Pvh),
        (Way::Stopped, Guest::Pv),
        (Way::Live, Guest::Scripted),
    ] {
        let outcome = moves::run(&plan(way, guest)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(outcome, Outcome { runs_on: Some(Side::Right), was_hit: false });
    }
}

fn wrong(
    way: Way,
    guest: Guest,
    trouble: fn(u64) -> Trouble,
    first: u64,
    stride: u64,
) -> Vec<String> {
    moves::sweep(plan(way, guest), trouble, first, stride).wrong
}

#[test]
fn a_receiver_that_is_killed_at_its_end_forgets_the_transfer_and_keeps_the_definition() {
    let kill = |k| Trouble::Kill(Side::Right, k);
    assert_eq!(wrong(Way::Live, Guest::Pvh, kill, 90, 6), [""; 0]);
}

#[test]
fn what_scripts_connect_is_connected_where_the_vm_is_whichever_daemon_is_killed() {
    for side in [Side::Left, Side::Right] {
        let trouble = match side {
            Side::Left => |k| Trouble::Kill(Side::Left, k),
            Side::Right => |k| Trouble::Kill(Side::Right, k),
        };
        assert_eq!(wrong(Way::Live, Guest::Scripted, trouble, 3, 9), [""; 0], "{side:?}");
    }
}

#[test]
fn a_pv_guest_that_is_taken_back_late_goes_on_in_a_new_domain_or_by_wish_in_its_own() {
    for k in [36, 37] {
        let plan = Plan { trouble: Trouble::Kill(Side::Left, k), ..plan(Way::Stopped, Guest::Pv) };
        let outcome = moves::run(&plan).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(outcome.runs_on, Some(Side::Left));
    }
}

#[test]
fn it_goes_back_and_forth_whatever_happens() {
    moves::walk(Guest::Pv, 2).unwrap_or_else(|why| panic!("{why}"));
}

/// The VMs that a host knows: name, whether defined, place in the start of the host.
fn vms(pair: &mut Pair, side: Side) -> Vec<(String, bool, Option<u32>)> {
    match pair.say(side, Request::Vms) {
        Reply::Vms(rows) => {
            rows.into_iter().map(|row| (row.name, row.defined, row.autostart)).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// A request to the left host to move a VM; the right host waits for it.
fn move_of(pair: &mut Pair) -> Request {
    Request::Migrate(Box::new(migration(pair)))
}

#[test]
fn somebody_who_unpauses_it_there_too_early_does_not_run_it() {
    let mut refused = 0;
    for after_us in (0..6_000).step_by(500) {
        let mut pair = seeded(1);
        assert!(matches!(
            pair.say(Side::Left, create(&unikernel("vm", "pvh"), 0x11)),
            Reply::Created(_)
        ));
        let migrate = move_of(&mut pair);
        let migrate = pair.ask(Side::Left, migrate);
        let unpause = Request::Unpause { target: "vm".to_owned() };
        let unpause = pair.ask_after(Side::Right, after_us * 1_000, unpause);
        let done = pair.wait(migrate, 60_000_000_000);
        assert!(matches!(done, Some(Reply::Ok)), "after {after_us}: {done:?}");
        pair.pass(10_000_000_000);
        let twice = checks::twice(&pair.runs());
        assert!(twice.is_empty(), "after {after_us}: {twice:?}");
        if let Some(Reply::Failed(why)) = pair.take_reply(unpause) {
            refused += usize::from(why == "vm: is being received; try again when that has ended");
        }
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn its_definition_goes_with_it() {
    let mut pair = seeded(1);
    let text = unikernel("vm", "pvh");
    let Request::Create { config, fresh_uuid, start } = create(&text, 0x11) else { unreachable!() };
    let define = Request::Define { config, fresh_uuid, autostart: Some(7) };
    assert!(matches!(pair.say(Side::Left, define), Reply::Defined { .. }));
    let begin = Request::Start { target: "vm".to_owned(), start };
    assert!(matches!(pair.say(Side::Left, begin), Reply::Created(_)));
    let migrate = move_of(&mut pair);
    assert!(matches!(pair.say(Side::Left, migrate), Reply::Ok));
    pair.pass(10_000_000_000);
    assert_eq!(vms(&mut pair, Side::Left), []);
    assert_eq!(vms(&mut pair, Side::Right), [("vm".to_owned(), true, Some(7))]);
}
