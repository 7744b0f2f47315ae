//! Creates of a unikernel, by `xy` on our store and by `xl` on the C xenstored.
//!
//! A boot of its own for each, in turn, several rounds: times of one boot alone say little on a
//! noisy machine. What a create costs in calls is counted from outside, with strace, for both.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::Store;

/// Creates measured in each boot at each number of running domains.
const CREATES: u32 = 9;

pub(super) fn run(rounds: u32) -> Result<Vec<Row>> {
    // From all boots of one toolstack.
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for round in 1..=rounds {
        measure("xy", Store::Xylem, round, &mut ours)?;
        measure("xl", Store::C, round, &mut theirs)?;
    }
    // How many requests libxl sends does not depend on who answers; our store counts them.
    measure("xl-on-xylem", Store::Xylem, 1, &mut theirs)?;

    let mut rows = Vec::new();
    for (domains, goal) in [(1, 4.0), (50, 15.0)] {
        let name = format!("seconds-at-{domains}");
        let what = format!("create of a unikernel, {domains} running");
        let peer = ("xl", theirs.value(&name)?);
        rows.push(Row::fewer(what, "s", ours.value(&name)?, peer).at_least(goal));
    }
    let counts = ["hypercalls", "store-messages", "transactions", "forks"];
    for (name, domains) in counts.iter().flat_map(|name| [(name, 1), (name, 50)]) {
        let key = format!("{name}-at-{domains}");
        let (Ok(ours), Ok(theirs)) = (ours.value(&key), theirs.value(&key)) else { continue };
        let what = format!("{} per create, {domains} running", name.replace('-', " "));
        rows.push(Row::fewer(what, "", ours, ("xl", theirs)));
    }
    Ok(rows)
}

fn measure(tool: &str, store: Store, round: u32, samples: &mut Samples) -> Result<()> {
    println!("bench: round {round}, {tool}");
    let mut options = lab::Options::new(&format!("bench-create-{tool}-{round}"))?;
    options.store = store;
    options.timeout = Duration::from_secs(1200);
    options.memory_mib = 4096;
    // One emulated CPU: with two, times wander by several times.
    options.cpus = 1;
    let scenario = lab::Scenario::find("bench-create")?;
    let arguments = [tool.to_owned(), CREATES.to_string()];
    let outcome = lab::run(&options, &scenario, &arguments, &mut |line| {
        println!("   {line}");
        samples.take(line);
    })?;
    ensure!(outcome.status == 0, "{tool} ended with status {}", outcome.status);
    samples.check()
}
