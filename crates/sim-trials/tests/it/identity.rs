//! Domids are reused: runs against a rival.

use sim::Pins;
use sim_trials::identity;

#[test]
fn no_action_reaches_another_domain_than_intended() {
    let mut total = identity::Tally::default();
    for seed in 0..40 {
        match identity::run(seed, 10) {
            Ok(tally) => total.add(&tally),
            Err(broken) => panic!("{broken}"),
        }
    }
    // The runs must have had something in them.
    let deeds = total.deeds;
    assert!(deeds.kills > 40 && deeds.taken > 40 && deeds.refused > 20, "{total:?}");
    assert!(total.restarts > 3, "{total:?}");
    assert!(total.preemptions > 40 && total.faults > 5 && total.answers > 100, "{total:?}");
}

#[test]
fn a_run_against_a_rival_is_reproducible() {
    let run = |seed| identity::run(seed, 8).unwrap();
    for seed in 0..6 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(0).digest, run(6).digest);
}

#[test]
fn without_kept_domids_an_action_reaches_another_domain() {
    // About one run in sixty shows it; the first that does ends the search.
    let met = (0..1000).find_map(|seed| identity::run_on(seed, 10, Pins::Dropped).err());
    let what = met.expect("a thousand runs, and nobody was mistaken for another").what;
    assert!(what.contains("met domain") || what.contains("of the rival"), "{what}");
}
