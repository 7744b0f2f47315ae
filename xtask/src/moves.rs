//! `cargo xtask moves`: a VM goes from one simulated host to another while something goes wrong.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use lexopt::prelude::*;

use lab::cargo;

const HELP: &str = "\
cargo xtask moves [--seeds N] [--seed FIRST] [--stride N] [--only WORDS]
cargo xtask moves --walks N [--seed FIRST]

On two simulated hosts a VM goes from one to the other: live, over one connection or several, stopped, or by a file. At each point of that a daemon is killed,
a host loses power, the network fails or the VM is destroyed. It must never run twice, and must in the end run on one of them
with all of its memory and its disk, or be where the hosts say it is, and nothing of it may be left on the other.

  --seeds N     pairs of hosts that differ in their timing (default 1)
  --seed FIRST  the first of them (default 1)
  --stride N    only each N-th point (default 1)
  --only WORDS  only sweeps whose line has these words, such as \"live pvh kill of the left\"
  --walks N     in place of that, random walks of several moves back and forth, each with its own trouble";

/// The distance of the points that `cargo xtask ci` tries. The first depends on the seed.
const CI_STRIDE: u64 = 29;
const CI_WALKS: u64 = 40;
/// Neither part of it takes longer.
const CI_SECONDS: u64 = 40;

/// Runs the moves with the rest of the command line.
///
/// # Errors
/// It cannot run, or a move went wrong.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut arguments = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long(name @ ("seeds" | "seed" | "stride" | "walks")) => {
                let name = format!("--{name}");
                arguments.extend([name, parser.value()?.parse::<u64>()?.to_string()]);
            }
            Long("only") => {
                arguments.extend(["--only".to_owned(), parser.value()?.string()?]);
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    example(&arguments)?;
    Ok(ExitCode::SUCCESS)
}

/// Other points and other walks in each run, for about a minute.
///
/// # Errors
/// A move went wrong.
pub(crate) fn some() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = now.as_secs() / 60;
    println!("moves with seed {seed}");
    let (first, seconds) = (1 + seed % CI_STRIDE, CI_SECONDS);
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    example(&words(format!(
        "--seed {seed} --first {first} --stride {CI_STRIDE} --seconds {seconds}"
    )))?;
    example(&words(format!("--seed {seed} --walks {CI_WALKS} --seconds {seconds}")))
}

fn example(arguments: &[String]) -> Result<()> {
    let mut command = cargo::example("moves")?;
    let failure = "a VM ran twice, was lost, or left something behind";
    cargo::run(command.args(arguments), failure)
}
