//! Guarantees of a list while others create and destroy domains.

use sim::{Release, Schedule};
use sim_trials::listings;

#[test]
fn a_list_is_sorted_without_duplicates_and_has_every_domain_that_stays() {
    for release in Release::ALL {
        for (seed, schedule) in (1..).zip(Schedule::ALL) {
            let tally = listings::run(release, schedule, 25, seed).unwrap();
            // Others must have been at work.
            assert!(tally.unrests > 100, "{release:?} {schedule:?}: {tally:?}");
            assert!(tally.same_sizes < 20, "{release:?} {schedule:?}: {tally:?}");
        }
    }
}
