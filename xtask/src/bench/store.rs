//! `cargo xtask bench store`: our store and the packaged ones, on one machine, with one driver.
//!
//! All servers are alive at the same time, each on a host made of files, and are measured in turn,
//! round by round, so that whatever else the machine does hits all of them. Servers share one CPU and
//! the driver has another; both are real-time where that is permitted, and no CPU sleeps meanwhile (see
//! `awake`). Figures are medians of the rounds. CPU time is the scheduler's own accounting.

mod awake;
mod field;
mod load;
mod rows;

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Row;
use lab::Store;
use lab::cargo::{self, Target};

/// Set for the driver once it is where it should be.
const PLACED: &str = "XYLEM_BENCH_PLACED";

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub peers: Vec<Store>,
    /// Where our programs of an earlier commit are: they are a peer too.
    pub earlier: Option<std::path::PathBuf>,
    pub rounds: u32,
    /// Short rounds on small stores: says that all rows run, and nothing more.
    pub is_quick: bool,
    /// Only sections whose name contains this.
    pub only: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let Ok(placed) = std::env::var(PLACED) else { return Err(run_placed()) };
    let cpus = std::thread::available_parallelism()?.get();
    let bench = field::Bench::new(options, &placed)?;
    // The driver sees its own CPU only: the last one.
    let all = if bench.placement.cpu.is_some() { online_cpus()? } else { cpus };
    let _awake =
        (bench.placement.is_realtime && !options.is_quick).then(|| awake::Awake::keep(all));
    println!(
        "bench: {} rounds; servers and driver pinned: {}; real-time: {}; {cpus} CPU for the driver",
        options.rounds,
        if bench.placement.cpu.is_some() { "yes" } else { "no, there is one CPU" },
        if bench.placement.is_realtime { "yes" } else { "no, it is not permitted" },
    );
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for (name, section) in rows::SECTIONS {
        if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let started = std::time::Instant::now();
        match section(&bench) {
            Ok(more) => rows.extend(more),
            Err(error) => failures.push(format!("section {name}: {error:#}")),
        }
        println!("bench: {name}: {:.1} s", started.elapsed().as_secs_f32());
    }
    if !failures.is_empty() {
        super::print(&rows);
        bail!("{}", failures.join("\n"));
    }
    ensure!(!rows.is_empty(), "no section is named so; there are: {}", rows::names());
    Ok(rows)
}

fn online_cpus() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("cannot count the CPUs")?;
    Ok(text.lines().filter(|line| line.starts_with("processor")).count().max(1))
}

/// Runs the same command again, optimised, on the last CPU and real-time if possible. Returns only
/// what went wrong.
fn run_placed() -> anyhow::Error {
    match placed_command() {
        Ok(mut command) => anyhow::Error::new(command.exec()).context("the driver does not start"),
        Err(error) => error,
    }
}

fn placed_command() -> Result<Command> {
    let driver = Target::Program("xtask");
    cargo::build(&[driver])?;
    let mut words: Vec<String> = Vec::new();
    let mut placed = Vec::new();
    let realtime = ["chrt", "--fifo", "20"];
    let permitted = Command::new(realtime[0]).args(&realtime[1..]).arg("true").output();
    if permitted.is_ok_and(|output| output.status.success()) {
        words.extend(realtime.map(str::to_owned));
        placed.push("realtime");
    }
    let cpus = std::thread::available_parallelism()?.get();
    if cpus > 1 {
        words.extend(["taskset".to_owned(), "--cpu-list".to_owned(), (cpus - 1).to_string()]);
        placed.push("pinned");
    }
    words.push(cargo::path(driver)?.to_string_lossy().into_owned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(std::env::args_os().skip(1)).env(PLACED, placed.join(","));
    Ok(command)
}
