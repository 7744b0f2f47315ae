//! Saves and restores: of a Linux guest with disk and network, and of a unikernel beside many VMs; by `xy` on our
//! store and by `xl` on the C xenstored.
//!
//! A boot of its own for each, in turn.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::{GuestKernel, Store};

/// Times that each Linux guest is saved and restored in a boot.
const TIMES: u32 = 3;
/// VMs that exist beside the unikernel that is restored; by xl only the first two.
const BESIDE: [u32; 3] = [1, 50, 300];
const BESIDE_XL: usize = 2;

const LINUX: [(&str, &str); 2] = [("linux-pvh", "Linux PVH"), ("linux-pv", "Linux PV")];
const MIB: f64 = 1_048_576.0;

pub(super) fn run(rounds: u32) -> Result<Vec<Row>> {
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for round in 1..=rounds {
        measure("xy", Store::Xylem, round, &BESIDE, &mut ours)?;
        measure("xl", Store::C, round, &BESIDE[..BESIDE_XL], &mut theirs)?;
    }
    let compared = |what: String, unit, name: &str, scale: f64| {
        let (ours, theirs) = (ours.value(name)? / scale, theirs.value(name)? / scale);
        anyhow::Ok(Row::fewer(what, unit, ours, ("xl", theirs)))
    };
    let mut rows = Vec::new();
    for (guest, which) in LINUX {
        for verb in ["save", "restore"] {
            let what = format!("{verb} of {which}, 128 MB");
            rows.push(compared(what, "s", &format!("{guest}-{verb}-seconds"), 1.0)?.at_least(3.0));
        }
        let what = format!("file of {which}, 128 MB");
        rows.push(compared(what, "MiB", &format!("{guest}-file-bytes"), MIB)?.at_least(3.0));
    }
    let name = |beside: u32| format!("unikernel-restore-at-{beside}-seconds");
    let what = |beside: u32| format!("restore of a unikernel, {beside} running");
    for beside in &BESIDE[..BESIDE_XL] {
        let row = compared(what(*beside), "s", &name(*beside), 1.0)?;
        rows.push(if *beside == 50 { row.at_least(10.0) } else { row });
    }
    let [few, .., many] = BESIDE;
    let (alone, beside) = (ours.value(&name(few))?, ours.value(&name(many))?);
    let mut flat = Row::fewer(what(many), "s", beside, ("ours, 1 running", alone));
    flat.ratio = beside / alone;
    rows.push(flat.within(1.2));
    Ok(rows)
}

fn measure(
    tool: &str,
    store: Store,
    round: u32,
    beside: &[u32],
    samples: &mut Samples,
) -> Result<()> {
    println!("bench: round {round}, {tool}");
    let mut options = lab::Options::new(&format!("bench-save-{tool}-{round}"))?;
    options.store = store;
    options.timeout = Duration::from_secs(3600);
    options.memory_mib = 5120;
    // One emulated CPU: with two, times wander by several times.
    options.cpus = 1;
    options.guest_kernel = GuestKernel::AlsoUnpacked;
    let scenario = lab::Scenario::find("bench-save")?;
    let mut arguments = vec![tool.to_owned(), TIMES.to_string()];
    arguments.extend(beside.iter().map(u32::to_string));
    let outcome = lab::run(&options, &scenario, &arguments, &mut |line| {
        println!("   {line}");
        samples.take(line);
    })?;
    ensure!(outcome.status == 0, "{tool} ended with status {}", outcome.status);
    samples.check()
}
