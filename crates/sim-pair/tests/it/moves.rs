//! A VM is sent from one host to the other.

use sim_pair::Side;
use sim_pair::moves::{self, Guest, Outcome, Plan, Trouble, Way};

fn plan(way: Way, guest: Guest) -> Plan {
    Plan { way, guest, trouble: Trouble::Nothing, seed: 1 }
}

#[test]
fn it_goes_on_on_the_other_host() {
    for (way, guest) in
        [(Way::Live, Guest::Pvh), (Way::Stopped, Guest::Pvh), (Way::Stopped, Guest::Pv)]
    {
        let outcome = moves::run(&plan(way, guest)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(outcome, Outcome { runs_on: Some(Side::Right), was_hit: false });
    }
}
