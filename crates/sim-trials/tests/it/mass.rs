//! Many domains die at once: what that costs everybody together.

use sim::Release;
use sim_trials::mass;

#[test]
fn the_cost_of_many_deaths_is_linear() {
    for release in [Release::Xen4_17, Release::Xen4_22] {
        let (few, many) = (mass::run(release, 10).unwrap(), mass::run(release, 100).unwrap());
        assert_eq!(mass::check(release, &few, &many), Ok(()));
        assert_eq!(few.hypercalls / few.vms, many.hypercalls / many.vms, "{few:?} {many:?}");
    }
}
