//! Cargo: the one that runs us, in this workspace.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Cargo in the workspace's folder.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}

/// The profile of what only tests and measures: optimised, without the link-time optimisation of the programs, which takes
/// half a minute for each of a dozen examples.
pub const TRIAL: &str = "trial";

/// Runs an example of a package, optimised. Its arguments follow.
pub fn example(package: &str, name: &str) -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--profile", TRIAL, "--package", package]);
    command.args(["--example", name, "--"]);
    command
}

/// Builds programs of packages, optimised.
///
/// # Errors
/// One of them does not build.
pub fn build_release(packages: &[&str]) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--release"]);
    for package in packages {
        command.args(["--package", package]);
    }
    run(&mut command, &format!("{} does not build", packages.join(", ")))
}

/// Builds all examples of a package, optimised.
///
/// # Errors
/// One of them does not build.
pub fn build_examples(package: &str) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--profile", TRIAL, "--package", package, "--examples"]);
    run(&mut command, &format!("the examples of {package} do not build"))
}

/// Runs to the end what is started by cargo.
///
/// # Errors
/// `failure`, if it fails.
pub fn run(command: &mut Command, failure: &str) -> Result<()> {
    let status = command.status().context("cargo does not start")?;
    ensure!(status.success(), "{failure}");
    Ok(())
}
