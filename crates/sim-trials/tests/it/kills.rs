//! The daemon is killed at every action of some operations on a VM; `cargo xtask kills` has all of them.

use sim_trials::kills::{self, Interrupted, Outcomes};

/// How often the VM must have run on, and how often it must have gone.
fn check(what: Interrupted, running_min: u64, gone_min: u64) {
    let outcomes = kills::run(what, 1).unwrap_or_else(|why| panic!("{why}"));
    let Outcomes { running, gone, .. } = outcomes;
    assert!(running >= running_min && gone >= gone_min, "{what:?}: {outcomes:?}");
}

#[test]
fn of_a_reboot() {
    check(Interrupted::Reboot, 2, 10);
}

#[test]
fn of_a_plug() {
    check(Interrupted::PlugVif, 3, 0);
}

#[test]
fn of_an_unplug() {
    check(Interrupted::UnplugDisk, 4, 0);
}

#[test]
fn of_a_plug_and_an_unplug_with_a_script() {
    check(Interrupted::PlugScript, 5, 0);
    check(Interrupted::UnplugScript, 5, 0);
    check(Interrupted::PlugDiskScript, 5, 0);
}

#[test]
fn of_a_reboot_with_a_script() {
    check(Interrupted::RebootScript, 5, 10);
}
