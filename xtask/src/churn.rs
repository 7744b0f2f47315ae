//! `cargo xtask churn`: days of a host's life with all kinds of trouble, in virtual time.

use std::process::ExitCode;

use anyhow::Result;
use lexopt::prelude::*;

use lab::cargo;

const HELP: &str = "\
cargo xtask churn [--hours N] [--seeds A,B,...]

VMs come and go on a simulated host, reboot, get and lose devices and crash, while hypercalls fail, storage
hangs or refuses, memory runs short and the toolstack daemon is killed. Each virtual hour every VM must be as
it is described, every sixth nothing may be left once all are taken down, and every request is answered in time.

  --hours N    virtual hours for each seed (default 12)
  --seeds A,B  hosts that differ in everything (default 1,2,3,4,5,6)";

/// Runs the churn with the rest of the command line.
///
/// # Errors
/// It cannot run, or a rule was broken.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut arguments = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long(name @ ("hours" | "seeds")) => {
                arguments.push(format!("--{name}"));
                arguments.push(parser.value()?.string()?);
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(&arguments)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs it with these arguments; without any, 72 hours.
///
/// # Errors
/// It cannot run, or a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut command = cargo::example("churn")?;
    cargo::run(command.args(arguments), "a rule was broken: the seed brings it back")
}
