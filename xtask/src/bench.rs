//! `cargo xtask bench NAME`: ours and the real peer, in turn, in one run.

mod api;
mod create;
mod earlier;
mod list;
mod machine;
mod mass;
mod plug;
mod samples;
mod save;
mod store;
mod suspend;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;
use serde::Serialize;

use lab::{Build, Store};

const HELP: &str = "\
cargo xtask bench NAME [--json FILE] [--rounds N]

  api      remote clients of xylem-web before a simulated host of 1000 VMs, a server with nothing behind it in turn: lists,
           VMs, scrapes, starts, 1000 readers of events; creates on the host beside 100 busy clients
           --quick          small and short
  create   creates of a unikernel by xy and by xl, at 1 and at 50 running domains
  list     lists of all domains by xy and by xl, and the ways to ask Xen for them, in one boot
           --sizes 1,100    numbers of unikernels (default 1,100,500,1000, which needs 11 GiB)
  machine  the toolstack's decisions alone: what one VM's operation costs beside 1, 1000 and 10,000 VMs
  mass     many unikernels made one by one, run and all shut down, by xy and in a second boot by xl; where the
           CPU time went is a flame graph in each boot's results folder
           --count N        unikernels by xy (default 100)
           --xl N           and by xl (default as many; 0: only ours)
           --no-build       take the programs as they were built last
  store    the store's requests, transactions, watches and take-over, on this machine without Xen
           --peers c,oxen   and the packaged servers in turn; bare: and one without a store, which
                            shows what of a request's cost is the system's
           --only WORD      only the section of that name, or whose name has WORD in it
           --quick          small and short: every row runs, its figures say nothing
  plug     disks attached, 1 to 255 to a VM, boot storms: in virtual time on the simulated host
           --lab            by xy and by xl, on real Xen
           --rounds N       of those in the lab (default 3)
           --quick          small
  suspend  suspends of unikernels and of Linux guests from the trigger until they are confirmed, by ours and in libxl's
           order, in turn in one boot on Xen's own store: idle, with writers to the store, beside 60 domains; then
           the last rounds of a Linux guest's checkpoints. Takes 3 minutes and 15 s for each round
           --rounds N       of each (default 100)
           --quick          5 rounds
  save     saves and restores of 128 MB Linux guests, and restores of a unikernel beside 1, 50 and 300 VMs, by xy and by
           xl, a boot of its own for each in turn. Takes 7 to 17 minutes for each round
           --rounds N       boots of each (default 2)
  earlier  creates, lists and shutdowns by today's programs and by those of an earlier commit, in turn in one boot
           --earlier FOLDER where those are: xylem-xenstored, xylemd, xy (`store` takes them as a peer, too)

Prints a table; FILE gets the same as an array of rows. Exits 0 when it ran, goals met or not.";

/// One measured thing. Values are medians; `ratio` says how many times better ours is than the better
/// peer, or, where a row says so, how many times worse than ours without what could slow it down.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    ours: f64,
    peers: BTreeMap<&'static str, f64>,
    /// The same of a server that only receives and answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    bare: Option<f64>,
    ratio: f64,
    goal: Option<f64>,
    /// What `goal` is a bound of.
    #[serde(skip)]
    bound: Bound,
    ok: bool,
}

/// Which way a figure gets better.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Better {
    Less,
    More,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Bound {
    /// The ratio is at least the goal.
    RatioAtLeast,
    /// The ratio is at most the goal.
    RatioAtMost,
    /// Our figure is at most the goal.
    OursAtMost,
}

impl Row {
    /// Fewer is better, as for times and counts. Where ours is 0, the ratio is as if it were 1.
    fn fewer(what: String, unit: &'static str, ours: f64, peer: (&'static str, f64)) -> Self {
        Self::against(what, unit, ours, [peer].into(), Better::Less)
    }

    /// Ours against the better of the peers; without peers the ratio is 1.
    fn against(
        what: String,
        unit: &'static str,
        ours: f64,
        peers: BTreeMap<&'static str, f64>,
        better: Better,
    ) -> Self {
        let values = peers.values().copied();
        let ratio = match better {
            Better::Less => match values.reduce(f64::min) {
                Some(peer) if ours == 0.0 => peer.max(1.0),
                Some(peer) => peer / ours,
                None => 1.0,
            },
            Better::More => values.reduce(f64::max).map_or(1.0, |peer| ours / peer),
        };
        let (goal, bound) = (None, Bound::RatioAtLeast);
        Self { what, unit, ours, peers, bare: None, ratio, goal, bound, ok: true }
    }

    /// Ours is to be that many times better.
    fn at_least(mut self, goal: f64) -> Self {
        self.goal = Some(goal);
        // Without a peer there is nothing to be better than.
        self.ok = self.peers.is_empty() || self.ratio >= goal;
        self
    }

    /// Ours is to be no more than that.
    fn at_most(mut self, goal: f64) -> Self {
        self.goal = Some(goal);
        self.bound = Bound::OursAtMost;
        self.ok = self.ours <= goal;
        self
    }

    /// The ratio, here one of ours to ours, is to be no more than that.
    fn within(mut self, goal: f64) -> Self {
        self.goal = Some(goal);
        self.bound = Bound::RatioAtMost;
        self.ok = self.ratio <= goal;
        self
    }
}

/// With two digits behind the point at most, rounded up: a goal is not to look smaller than it is.
fn short(goal: f64) -> f64 {
    (goal * 100.0 - 1e-9).ceil() / 100.0
}

/// Runs the benchmark that the rest of the command line names.
///
/// # Errors
/// It could not run.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut name = None;
    let mut json: Option<PathBuf> = None;
    let mut rounds = None;
    let mut peers = Vec::new();
    let mut only = None;
    let mut earlier: Option<PathBuf> = None;
    let (mut count, mut xl_count, mut build) = (100, None, Build::Fresh);
    let mut sizes = list::SIZES.to_vec();
    let mut is_quick = false;
    let mut in_lab = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(word) if name.is_none() => name = Some(word.string()?),
            Long("json") => json = Some(parser.value()?.into()),
            Long("count") => count = parser.value()?.parse()?,
            Long("xl") => xl_count = Some(parser.value()?.parse()?),
            Long("no-build") => build = Build::AsIs,
            Long("rounds") => rounds = Some(parser.value()?.parse()?),
            Long("peers") => {
                for peer in parser.value()?.string()?.split(',') {
                    peers.push(if peer == "bare" { Store::Bare } else { peer.parse()? });
                }
            }
            Long("sizes") => {
                let text = parser.value()?.string()?;
                sizes = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            Long("earlier") => earlier = Some(parser.value()?.into()),
            Long("only") => only = Some(parser.value()?.string()?),
            Long("quick") => is_quick = true,
            Long("lab") => in_lab = true,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let rows = match name.as_deref() {
        Some("api") => api::run(is_quick)?,
        Some("create") => create::run(rounds.unwrap_or(2))?,
        Some("earlier") => {
            let folder = earlier.context("--earlier FOLDER: where are the earlier programs?")?;
            earlier::run(&folder, rounds.unwrap_or(4))?
        }
        Some("list") => list::run(rounds.unwrap_or(15), &sizes)?,
        Some("machine") => machine::run()?,
        Some("mass") => mass::run(count, xl_count.unwrap_or(count), build)?,
        Some("plug") => plug::run(&plug::Options { is_quick, in_lab, rounds })?,
        Some("suspend") => suspend::run(rounds.unwrap_or(if is_quick { 5 } else { 100 }))?,
        Some("save") => save::run(rounds.unwrap_or(2))?,
        Some("store") => {
            let rounds = rounds.unwrap_or(if is_quick { 1 } else { 5 });
            store::run(&store::Options { peers, earlier, rounds, is_quick, only })?
        }
        Some(other) => bail!("there is no benchmark '{other}'\n{HELP}"),
        None => bail!("which benchmark?\n{HELP}"),
    };
    print(&rows);
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&rows)?;
        std::fs::write(&file, text + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(rows: &[Row]) {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or_default();
    println!(
        "{:<width$} {:>5} {:>10} {:>30} {:>9} {:>9}  goal met",
        "what", "unit", "ours", "peers", "ratio", "goal"
    );
    for row in rows {
        let peers: Vec<String> =
            row.peers.iter().map(|(name, value)| format!("{name} {}", shown(*value))).collect();
        let bare = row.bare.map(|value| format!("bare {}", shown(value)));
        let peers: Vec<String> = peers.into_iter().chain(bare).collect();
        let goal = match (row.goal, row.bound) {
            (None, _) => "-".to_owned(),
            (Some(goal), Bound::RatioAtLeast) => format!("{}x", short(goal)),
            (Some(goal), Bound::RatioAtMost) => format!("<= {goal:.2}x"),
            (Some(goal), Bound::OursAtMost) => format!("<= {goal}"),
        };
        let met = match (row.goal, row.ok) {
            (None, _) => "",
            (_, true) => "yes",
            (_, false) => "NO",
        };
        println!(
            "{:<width$} {:>5} {:>10} {:>30} {:>8.2}x {goal:>9}  {met}",
            row.what,
            row.unit,
            shown(row.ours),
            peers.join(", "),
            row.ratio,
        );
    }
}

/// As many digits as tell two figures apart.
fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        small if small < 1.0 => format!("{value:.4}"),
        _ => format!("{value:.2}"),
    }
}
