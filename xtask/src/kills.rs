//! `cargo xtask kills`: the toolstack daemon is killed at every action of every operation.

use std::process::ExitCode;

use anyhow::Result;
use lexopt::prelude::*;

use lab::cargo;

const HELP: &str = "\
cargo xtask kills [--seeds N]

On a simulated host the toolstack daemon is killed at each action of a start, a shutdown, a destroy, a reboot,
a plug and an unplug, and another takes its place. The VM must then run as described, with every device
connected, or be gone with nothing left of it.

  --seeds N   hosts that differ in their timing (default 3)";

/// Runs the kills with the rest of the command line.
///
/// # Errors
/// It cannot run.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut seeds = 3_u32;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seeds") => seeds = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(seeds)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs all kills on so many hosts.
///
/// # Errors
/// Something was left after one of them.
pub(crate) fn run(seeds: u32) -> Result<()> {
    let mut command = cargo::example("kills")?;
    command.args(["--seeds", &seeds.to_string()]);
    cargo::run(&mut command, "a kill left a VM half made or something behind")
}
