//! `cargo xtask bench NAME`: ours and the real peer, in turn, in one run.

mod create;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;
use serde::Serialize;

const HELP: &str = "\
cargo xtask bench NAME [--json FILE] [--rounds N]

  create   creates of a unikernel by xy and by xl, at 1 and at 50 running domains

Prints a table; FILE gets the same as an array of rows. Exits 0 when it ran, goals met or not.";

/// One measured thing. Values are medians; `ratio` says how many times better ours is.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    ours: f64,
    peers: std::collections::BTreeMap<&'static str, f64>,
    ratio: f64,
    goal: Option<f64>,
    ok: bool,
}

impl Row {
    /// Fewer is better, as for times and counts. Where ours is 0, the ratio is as if it were 1.
    fn fewer(what: String, unit: &'static str, ours: f64, peer: (&'static str, f64)) -> Self {
        let peers = [peer].into();
        let ratio = if ours > 0.0 { peer.1 / ours } else { peer.1.max(1.0) };
        Self { what, unit, ours, peers, ratio, goal: None, ok: true }
    }

    fn with_goal(mut self, goal: f64) -> Self {
        self.goal = Some(goal);
        self.ok = self.ratio >= goal;
        self
    }
}

/// Runs the benchmark that the rest of the command line names.
///
/// # Errors
/// It could not run.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut name = None;
    let mut json: Option<PathBuf> = None;
    let mut rounds = 2;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(word) if name.is_none() => name = Some(word.string()?),
            Long("json") => json = Some(parser.value()?.into()),
            Long("rounds") => rounds = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let rows = match name.as_deref() {
        Some("create") => create::run(rounds)?,
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
    println!(
        "{:<48} {:>6} {:>10} {:>10} {:>9} {:>7}  goal met",
        "what", "unit", "ours", "peer", "ratio", "goal"
    );
    for row in rows {
        let peers: Vec<String> =
            row.peers.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        let goal = row.goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal}x"));
        let met = match (row.goal, row.ok) {
            (None, _) => "",
            (_, true) => "yes",
            (_, false) => "NO",
        };
        println!(
            "{:<48} {:>6} {:>10.4} {:>10} {:>8.1}x {goal:>7}  {met}",
            row.what,
            row.unit,
            row.ours,
            peers.join(", "),
            row.ratio,
        );
    }
}
