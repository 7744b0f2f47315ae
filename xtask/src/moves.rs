//! `cargo xtask moves`: a VM goes from one simulated host to another while something goes wrong.

use std::process::ExitCode;

use anyhow::Result;
use lexopt::prelude::*;

use lab::cargo;

const HELP: &str = "\
cargo xtask moves [--seeds N] [--stride N]

On two simulated hosts a VM goes from one to the other. At each point of that a daemon is killed, a host loses power or the
network fails. The VM must never run twice, and must in the end run on one of them, with nothing of it left on the other.

  --seeds N    pairs of hosts that differ in their timing (default 1)
  --stride N   only each N-th point (default 1)";

/// Runs the moves with the rest of the command line.
///
/// # Errors
/// It cannot run, or a move went wrong.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let (mut seeds, mut stride) = (1_u64, 1_u64);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seeds") => seeds = parser.value()?.parse()?,
            Long("stride") => stride = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let mut command = cargo::example("sim-pair", "moves");
    command.args(["--seeds", &seeds.to_string(), "--stride", &stride.to_string()]);
    cargo::run(&mut command, "a VM ran twice, was lost, or left something behind")?;
    Ok(ExitCode::SUCCESS)
}
