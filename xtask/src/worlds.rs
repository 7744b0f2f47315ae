//! `cargo xtask worlds`: random worlds on the simulated host, each from a seed, in which as much goes wrong as can.

use std::process::ExitCode;

use anyhow::Result;
use lexopt::prelude::*;

use lab::cargo;

const HELP: &str = "\
cargo xtask worlds [--first SEED] [--identity N] [--swarm N] [--lists N]

On simulated hosts of every release of Xen:

  --identity N  worlds in which another toolstack destroys our domains at any moment and takes their numbers, in every
                gap between two actions and in the middle of hypercalls that are preempted, while calls fail and our
                daemon is killed: no action may meet another domain than the one it was meant for (default 10000).
                Then the same without the numbers being kept by the store, where such a mistake must be found
  --swarm N     worlds of VMs of all kinds, slow, hostile and deaf ones too, with calls that fail, VIRQs that are late
                or lost and a daemon that is killed: nothing may be left behind (default 100)
  --lists N     lists of domains while others come and go in the middle of them: sorted, none twice, none of those
                that stay missing (default 25000)
  --first SEED  the first seed (default 0)

And the death of 1000 domains at once, which must cost as much as 1000 deaths.";

/// How many worlds of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worlds {
    pub(crate) first: u64,
    pub(crate) identity: u64,
    pub(crate) swarm: u64,
    pub(crate) lists: u64,
}

/// Runs the worlds with the rest of the command line.
///
/// # Errors
/// It cannot run, or a rule is broken.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut worlds = Worlds { first: 0, identity: 10_000, swarm: 100, lists: 25_000 };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("first") => worlds.first = parser.value()?.parse()?,
            Long("identity") => worlds.identity = parser.value()?.parse()?,
            Long("swarm") => worlds.swarm = parser.value()?.parse()?,
            Long("lists") => worlds.lists = parser.value()?.parse()?,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(worlds)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the worlds; the first that breaks a rule prints its trace.
///
/// # Errors
/// A rule is broken.
pub(crate) fn run(worlds: Worlds) -> Result<()> {
    let first = worlds.first.to_string();
    let seeds =
        |seeds: u64| ["--first".to_owned(), first.clone(), "--seeds".to_owned(), seeds.to_string()];
    example("identity", &seeds(worlds.identity))?;
    let mut without_pins = seeds(worlds.identity.min(1000)).to_vec();
    without_pins.push("--no-pins".to_owned());
    example("identity", &without_pins)?;
    example("swarm", &seeds(worlds.swarm))?;
    example("listings", &["--lists".to_owned(), worlds.lists.to_string()])?;
    example("mass", &[])
}

fn example(name: &str, arguments: &[String]) -> Result<()> {
    let mut command = cargo::example(name)?;
    let failure = format!("{name}: a rule was broken; its seed and trace are above");
    cargo::run(command.args(arguments), &failure)
}
