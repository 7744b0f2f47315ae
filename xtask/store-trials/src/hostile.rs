//! `cargo xtask store-hostile`: guests and clients that break every rule, and what the others notice of it.
//!
//! ```text
//! trial ── attack ──> the store's daemon <── reads, writes, commits ── dom0, whose times are taken
//!                                        <── reads and writes ── a guest that minds its own business
//! ```
//! Times are shown, not judged: they are those of this machine. What must hold is checked after each trial: the
//! store serves and counts correctly, no other domain's nodes changed, and no attacker exceeded its limits.

mod attacker;
mod lives;
mod memory;
mod others;
mod requests;
mod rings;
mod scene;
mod sockets;
mod transactions;
mod watches;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Store;
use lexopt::prelude::*;
use serde::Serialize;

use crate::stores::{Daemon, Placement, Programs};
use scene::{NEIGHBOUR, Scene};

const HELP: &str = "\
cargo xtask store-hostile [options]

Attacks xylem-xenstored in every way that is known here, one after the other, each on a store of its own, while a
client in dom0 and another guest work. Prints for each what was tried, what the attacker got, how long dom0's READs
and WRITEs took, and whether all was well. Ends with 1 if something was not.

  --only WORD     only trials with WORD in their names
  --seconds S     how long each attack lasts (default 1.5)
  --realtime N    the store and dom0's client at this real-time priority, so that the times are not those of
                  whatever else runs here (needs root)
  --list          only print what is tried
  --json FILE     write the table there as well";

/// One thing that is tried.
struct Trial {
    name: &'static str,
    tried: &'static str,
    attack: fn(&mut Scene) -> Result<()>,
}

struct Options {
    only: Option<String>,
    length: Duration,
    realtime: Option<u32>,
    lists: bool,
    json: Option<PathBuf>,
}

/// What was seen, times in milliseconds.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    tried: &'static str,
    requests: u64,
    answers: String,
    read_p50: f64,
    read_p99: f64,
    read_max: f64,
    write_p99: f64,
    write_max: f64,
    guest_p99: f64,
    guest_max: f64,
    commits: u64,
    conflicts: u64,
    rss_before_kib: u64,
    rss_after_kib: u64,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// Beside what all others stand.
const QUIET: Trial = Trial {
    name: "no attack",
    tried: "nothing",
    attack: |scene| {
        scene.begin()?;
        scene.rest();
        Ok(())
    },
};

fn trials() -> impl Iterator<Item = &'static Trial> {
    let groups = [
        std::slice::from_ref(&QUIET),
        watches::TRIALS,
        transactions::TRIALS,
        requests::TRIALS,
        rings::TRIALS,
        lives::TRIALS,
        sockets::TRIALS,
        memory::TRIALS,
    ];
    groups.into_iter().flatten()
}

/// # Errors
/// The store does not start, or a trial shows that it does not hold.
pub fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let length = Duration::from_millis(1500);
    let mut options = Options { only: None, length, realtime: None, lists: false, json: None };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("only") => options.only = Some(parser.value()?.string()?),
            Long("seconds") => {
                options.length = Duration::try_from_secs_f64(parser.value()?.parse()?)?;
            }
            Long("realtime") => options.realtime = Some(parser.value()?.parse()?),
            Long("list") => options.lists = true,
            Long("json") => options.json = Some(parser.value()?.into()),
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(&options)
}

fn run(options: &Options) -> Result<ExitCode> {
    let wanted =
        |trial: &&Trial| options.only.as_ref().is_none_or(|word| trial.name.contains(word));
    let chosen: Vec<&Trial> = trials().filter(wanted).collect();
    ensure!(!chosen.is_empty(), "no trial has that in its name; --list shows them");
    if options.lists {
        for trial in chosen {
            println!("{:<28} {}", trial.name, trial.tried);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let programs = Programs::prepare(&[Store::Xylem])?;
    println!(
        "{:<28} {:>22}  {:>13}  {:>7} {:>15}  dom0's times in ms; what the attacker got",
        "trial", "READ p50/p99/max", "WRITE p99/max", "commits", "RSS KiB"
    );
    let mut rows = Vec::new();
    for trial in chosen {
        let row = attempt(&programs, trial, options).with_context(|| trial.name)?;
        print_row(&row);
        rows.push(row);
    }
    let failed = rows.iter().filter(|row| row.failure.is_some()).count();
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    println!("store-hostile: {} trials, {failed} failed", rows.len());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn attempt(programs: &Programs, trial: &'static Trial, options: &Options) -> Result<Row> {
    let placement = Placement { cpu: None, is_realtime: options.realtime.is_some() };
    let daemon = Daemon::start(programs, Store::Xylem, placement, &[])?;
    let socket = daemon.folder().join("socket");
    let mut scene = Scene::new(daemon, options.length)?;
    let neighbour = scene.guest(NEIGHBOUR)?;
    let others = Arc::clone(&scene.others);
    let outcome = std::thread::scope(|threads| {
        let dom0 = threads.spawn(|| {
            others.note("dom0", others.run_dom0(&socket, options.realtime));
        });
        let guest = threads.spawn(|| others.note("the other guest", others.run_guest(neighbour)));
        let outcome = (trial.attack)(&mut scene).context("the attack");
        others.over.store(true, Ordering::Relaxed);
        wait_for(&[&dom0, &guest]);
        outcome
    });
    let rss_after = scene.daemon.resident_bytes().unwrap_or(0);
    let failure = others.take_failure();
    let checked = match (failure, outcome) {
        (Some(failure), _) => Err(anyhow::anyhow!(failure)),
        (None, outcome) => outcome.and_then(|()| scene.check()),
    };
    Ok(row(trial, &scene, rss_after, checked))
}

/// Both end by themselves, by their timeout if the store does not answer.
fn wait_for(threads: &[&std::thread::ScopedJoinHandle<'_, ()>]) {
    let begun = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished())
        && begun.elapsed() < Duration::from_secs(90)
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn row(trial: &'static Trial, scene: &Scene, rss_after: u64, checked: Result<()>) -> Row {
    let measured = scene.others.measured.lock().expect("all threads ended");
    let tally = scene.tally.borrow();
    Row {
        name: trial.name,
        tried: trial.tried,
        requests: tally.sent,
        answers: tally.line(),
        read_p50: measured.reads.at(0.5),
        read_p99: measured.reads.at(0.99),
        read_max: measured.reads.at(1.0),
        write_p99: measured.writes.at(0.99),
        write_max: measured.writes.at(1.0),
        guest_p99: measured.guest.at(0.99),
        guest_max: measured.guest.at(1.0),
        commits: measured.commits,
        conflicts: measured.conflicts,
        rss_before_kib: scene.rss_before() / 1024,
        rss_after_kib: rss_after / 1024,
        failure: checked.err().map(|error| format!("{error:#}")),
    }
}

fn print_row(row: &Row) {
    let read = format!("{:.3}/{:.2}/{:.2}", row.read_p50, row.read_p99, row.read_max);
    let write = format!("{:.2}/{:.2}", row.write_p99, row.write_max);
    let commits = format!("{}-{}", row.commits, row.conflicts);
    let rss = format!("{}->{}", row.rss_before_kib, row.rss_after_kib);
    println!(
        "{:<28} {read:>22}  {write:>13}  {commits:>7} {rss:>15}  {} sent: {}",
        row.name, row.requests, row.answers
    );
    match &row.failure {
        Some(failure) => println!("    FAILED: {failure}"),
        None => println!("    {}; all held", row.tried),
    }
}
