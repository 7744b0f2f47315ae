//! The cases that hold on every hypervisor, run on the simulated one.

use sim::{Faults, Machine, MachineConfig, Release, SimXen};
use xen::Xen;

#[test]
fn the_simulated_xen_passes_the_cases_of_the_real_one_on_every_release() {
    let all = Release::ALL.into_iter().map(|release| (release, false));
    for (release, has_shadow) in all.chain([(Release::Xen4_17, true)]) {
        let config = MachineConfig { release, has_shadow, ..MachineConfig::default() };
        let machine = Machine::new(SimXen::new(config, Faults::default(), 1));
        let mut xen = Xen::probe(machine.hypervisor()).unwrap();
        let failed: Vec<_> = xen::conformance::run(&mut xen)
            .into_iter()
            .filter_map(|outcome| Some((outcome.case, outcome.result.err()?)))
            .collect();
        assert_eq!(failed, [], "{release:?}");
    }
}
