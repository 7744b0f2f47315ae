//! Today's programs and those of an earlier commit, in turn in one boot: what a change of the shape has cost.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::{ExtraFile, Store};

/// Programs of an earlier commit, and where dom0 finds them.
const PROGRAMS: [&str; 3] = ["xylem-xenstored", "xylemd", "xy"];

/// What is measured, with the unit of its samples.
const FIGURES: [(&str, &str, &str); 5] = [
    ("create-at-1", "create of a unikernel, 1 running", "s"),
    ("create-at-50", "create of a unikernel, 50 running", "s"),
    ("list-at-50", "list, 50 running", "s"),
    ("mass-create", "50 creates, one after the other", "s"),
    ("mass-shutdown", "shutdown of 50 at once", "s"),
];

/// So much worse may today's be: what is less cannot be told from noise.
const TOLERANCE: f64 = 1.1;

pub(super) fn run(folder: &Path, rounds: u32) -> Result<Vec<Row>> {
    let mut options = lab::Options::new("bench-earlier")?;
    options.store = Store::Xylem;
    options.timeout = Duration::from_secs(3000);
    options.memory_mib = 4096;
    // One emulated CPU: with two, times wander by several times.
    options.cpus = 1;
    for program in PROGRAMS {
        let host = folder.join(program);
        ensure!(host.is_file(), "{}: no such file", host.display());
        let dom0 = format!("/root/earlier/{program}");
        options.files.push(ExtraFile { host, dom0 });
    }
    let mut samples = Samples::default();
    let scenario = lab::Scenario::find("bench-earlier")?;
    let outcome = lab::run(&options, &scenario, &[rounds.to_string()], &mut |line| {
        if !samples.take(line) {
            println!("   {line}");
        }
    })?;
    ensure!(outcome.status == 0, "the scenario ended with status {}", outcome.status);
    samples.check()?;
    let row = |(name, what, unit): (&str, &str, &'static str)| -> Result<Row> {
        let value = |arm: &str| {
            let key = format!("{name}-{arm}");
            samples.value(&key).with_context(|| format!("{what}: {arm}"))
        };
        let row = Row::fewer(what.to_owned(), unit, value("now")?, ("earlier", value("earlier")?));
        Ok(row.at_least(1.0 / TOLERANCE))
    };
    FIGURES.into_iter().map(row).collect()
}
