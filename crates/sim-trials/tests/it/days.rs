//! Runs of everything at once; `cargo xtask churn` has the days.

use sim_trials::churn;

/// An hour of a few minutes.
const SHORT_NS: u64 = 300_000_000_000;

#[test]
fn minutes_of_fixed_seeds_violate_no_invariant() {
    for seed in 1..=2 {
        let tally = churn::run_shortened(seed, 1, SHORT_NS).unwrap_or_else(|broken| {
            panic!("{broken}\n{}", broken.trace.join("\n"));
        });
        assert_eq!((tally.rests, tally.ends), (1, 1));
        assert!(tally.answered > 10, "{tally:?}");
    }
}

#[test]
fn a_run_is_reproducible() {
    let digest = |seed| churn::run_shortened(seed, 1, SHORT_NS / 10).map(|tally| tally.digest).ok();
    assert!(digest(3).is_some());
    assert_eq!(digest(3), digest(3));
    assert_ne!(digest(3), digest(4));
}
