//! `cargo xtask ci`: everything that must hold, on a machine that may lack the tools.

mod scenarios;
mod schedule;
mod space;
mod steps;
mod web;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use steps::STEPS;

const HELP: &str = "\
cargo xtask ci              format, lints, tests, simulation, fuzzing, scenarios on real Xen
cargo xtask ci --step NAME  only this step
cargo xtask ci --list       the steps, and what each takes on two CPUs

Steps that use one CPU run two at a time; the output of such a step is printed when it has ended. Once a minute a line says
what runs and how far it is. What is left is estimated from what the steps took here before.";

/// Programs and files that the tests need, with the Debian packages they come in.
const NEEDS: [(&str, &str, &str); 3] = [
    ("/usr/include/xen/xen.h", "libxen-dev", "its headers are compared with our layouts"),
    ("/usr/bin/cc", "gcc", "compiles the comparison with Xen's headers"),
    ("/usr/bin/c++", "g++", "compiles the fuzzer"),
];

/// Runs the command with the rest of the command line.
///
/// # Errors
/// A tool is missing and cannot be installed, or the command line is wrong.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    lab::cargo::build_as_tests();
    match parser.next()? {
        None => {
            require_needs()?;
            space::require()?;
            schedule::run(STEPS)
        }
        Some(Long("step")) => {
            let name = parser.value()?.string()?;
            let step = STEPS.iter().find(|step| step.name == name);
            let step = step.with_context(|| format!("there is no step '{name}'; see --list"))?;
            match parser.next()? {
                None => {}
                // The schedule, which has run the step that builds them.
                Some(Long("built")) => lab::cargo::take_as_built(&steps::later_programs()),
                Some(other) => return Err(other.unexpected().into()),
            }
            (step.run)()?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Long("list")) => {
            for step in STEPS {
                println!("{:>5} s  {}", step.typical_seconds, step.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Short('h') | Long("help")) => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => Err(other.unexpected().into()),
    }
}

/// Installs what is missing, or says what to install.
fn require_needs() -> Result<()> {
    let missing: Vec<_> =
        NEEDS.iter().filter(|(file, _, _)| !std::path::Path::new(file).exists()).collect();
    if !missing.is_empty() {
        let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
        for (_, package, purpose) in &missing {
            println!("ci: {package} is missing; {purpose}");
        }
        lab::install(&packages)?;
    }
    for component in ["clippy", "fmt"] {
        let found = Command::new("cargo").args([component, "--version"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            bail!("cargo {component} is missing: rustup component add clippy rustfmt");
        }
    }
    Ok(())
}
