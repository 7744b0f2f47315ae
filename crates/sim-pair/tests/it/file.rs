//! A VM is saved on one host and restored on the other, from a file that both see.

use sim_pair::Side;
use sim_pair::moves::{self, Guest, Outcome, Plan, Tally, Trouble, Way};

fn plan(guest: Guest) -> Plan {
    Plan { way: Way::File, guest, trouble: Trouble::Nothing, seed: 1 }
}

#[test]
fn it_goes_on_on_the_other_host() {
    for guest in Guest::ALL {
        let outcome = moves::run(&plan(guest)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(outcome, Outcome { runs_on: Some(Side::Right), was_hit: false });
    }
}

fn sweep(guest: Guest, trouble: impl Fn(u64) -> Trouble, stride: u64) -> Tally {
    let tally = moves::sweep(plan(guest), trouble, 5, stride);
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
    tally
}

#[test]
fn daemons_that_are_killed_leave_it_on_one_host() {
    let tally = sweep(Guest::Pvh, |k| Trouble::Kill(Side::Left, k), 17);
    assert!(tally.on_left > 0 && tally.on_right > 0, "{tally:?}");
    let tally = sweep(Guest::Pv, |k| Trouble::Kill(Side::Right, k), 17);
    assert!(tally.on_left == 0 && tally.on_right > 0, "{tally:?}");
}

#[test]
fn a_host_that_loses_power_loses_only_what_runs_on_it() {
    let tally = sweep(Guest::Pvh, |k| Trouble::Crash(Side::Left, k), 23);
    assert!(tally.nowhere > 0 && tally.on_left == 0, "{tally:?}");
}
