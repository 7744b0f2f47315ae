//! Creates of a unikernel, by `xy` on our store and by `xl` on the C xenstored.
//!
//! A boot of its own for each, in turn, several rounds: times of one boot alone say little on a
//! noisy machine. What a create costs in calls is counted from outside, with strace, for both.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Row;
use crate::demo::median;
use crate::lab::{self, Store};

/// Creates measured in each boot at each number of running domains.
const CREATES: u32 = 9;

/// Samples and counts by name, from all boots of one toolstack.
type Samples = BTreeMap<String, Vec<f64>>;

pub(super) fn run(rounds: u32) -> Result<Vec<Row>> {
    let mut ours = Samples::new();
    let mut theirs = Samples::new();
    for round in 1..=rounds {
        measure("xy", Store::Xylem, round, &mut ours)?;
        measure("xl", Store::C, round, &mut theirs)?;
    }
    // How many requests libxl sends does not depend on who answers; our store counts them.
    measure("xl-on-xylem", Store::Xylem, 1, &mut theirs)?;

    let value = |samples: &Samples, name: &str| {
        let values = samples.get(name).with_context(|| format!("no sample of {name}"))?;
        median(values).with_context(|| format!("no sample of {name}"))
    };
    let mut rows = Vec::new();
    for (domains, goal) in [(1, 4.0), (50, 15.0)] {
        let name = format!("seconds-at-{domains}");
        let what = format!("create of a unikernel, {domains} running");
        let peer = ("xl", value(&theirs, &name)?);
        rows.push(Row::fewer(what, "s", value(&ours, &name)?, peer).at_least(goal));
    }
    let counts = ["hypercalls", "store-messages", "transactions", "forks"];
    for (name, domains) in counts.iter().flat_map(|name| [(name, 1), (name, 50)]) {
        let key = format!("{name}-at-{domains}");
        let (Ok(ours), Ok(theirs)) = (value(&ours, &key), value(&theirs, &key)) else { continue };
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
    let mut bad = None;
    let outcome = lab::run(&options, &scenario, &arguments, &mut |line| {
        println!("   {line}");
        let mut words = line.split_whitespace();
        if words.next() == Some("SAMPLE") {
            match (words.next(), words.next().and_then(|value| value.parse().ok())) {
                (Some(name), Some(value)) => {
                    samples.entry(name.to_owned()).or_default().push(value);
                }
                _ => bad = Some(line.to_owned()),
            }
        }
    })?;
    ensure!(outcome.status == 0, "{tool} ended with status {}", outcome.status);
    ensure!(bad.is_none(), "not a sample: {bad:?}");
    Ok(())
}
