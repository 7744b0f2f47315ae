//! The demonstration, small.

use sim_trials::demo::{self, DemoConfig};

fn run(seed: u64, vms: usize) -> demo::DemoReport {
    let config = DemoConfig { seed, vms, linux_every: 4, parallel: 5 };
    demo::run(config, &mut |_, _, _| {}).unwrap()
}

#[test]
fn many_vms_are_created_and_shut_down_and_nothing_is_left() {
    let report = run(1, 12);
    assert_eq!(report.problems, Vec::<String>::new(), "{}", report.lines.join("\n"));
    assert!(report.lines.iter().any(|line| line.starts_with("12 of 12 VMs created")));
    let builds = report.timeline.spans.iter().filter(|span| span.kind == "build");
    assert_eq!(builds.count(), 12, "the timeline has each VM's build");
}

#[test]
fn the_same_seed_prints_the_same_trace_and_another_seed_another() {
    let (one, again, other) = (run(7, 6), run(7, 6), run(8, 6));
    assert_eq!(one.trace, again.trace);
    assert_eq!(one.digest, again.digest);
    assert_ne!(one.digest, other.digest);
}
