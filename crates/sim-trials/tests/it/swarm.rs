//! Random runs from fixed seeds.

use sim_trials::swarm;

#[test]
fn random_runs_of_fixed_seeds_violate_no_invariant() {
    let mut total = swarm::Tally::default();
    for seed in 0..12 {
        match swarm::run(seed, 50) {
            Ok(tally) => {
                total.creates += tally.creates;
                total.faults += tally.faults;
                total.kills += tally.kills;
                total.preemptions += tally.preemptions;
            }
            Err(broken) => panic!("{broken}"),
        }
    }
    // The runs must have had something in them.
    assert!(total.creates > 150 && total.faults > 10 && total.kills > 5, "{total:?}");
    assert!(total.preemptions > 100, "{total:?}");
}

#[test]
fn a_random_run_is_reproducible() {
    assert_eq!(swarm::run(5, 30).unwrap(), swarm::run(5, 30).unwrap());
    assert_ne!(swarm::run(5, 30).unwrap().digest, swarm::run(6, 30).unwrap().digest);
}
