//! Cargo: the one that runs us, in this workspace.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{target_directory, workspace};

/// Cargo in the workspace's folder.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}

/// A target of the workspace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target<'a> {
    Program(&'a str),
    /// All examples of a workspace have names of their own.
    Example(&'a str),
}

/// Builds targets, optimised. Cargo shows what it compiles: the first build takes minutes.
///
/// The whole workspace is selected, whatever is built of it: a dependency's features are those that the selection wants,
/// and with other features it, and all that uses it, would be built again.
///
/// # Errors
/// One of them does not build.
pub fn build(targets: &[Target<'_>]) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--release", "--workspace"]);
    let mut names = Vec::new();
    for target in targets {
        let (kind, name) = match target {
            Target::Program(name) => ("--bin", name),
            Target::Example(name) => ("--example", name),
        };
        command.args([kind, name]);
        names.push(*name);
    }
    run(&mut command, &format!("{} does not build", names.join(", ")))
}

/// Where a target is once it is built.
///
/// # Errors
/// The current folder is unknown.
pub fn path(target: Target<'_>) -> Result<PathBuf> {
    let folder = target_directory()?.join("release");
    Ok(match target {
        Target::Program(name) => folder.join(name),
        Target::Example(name) => folder.join("examples").join(name),
    })
}

/// Builds an example. Its arguments follow.
///
/// # Errors
/// It does not build.
pub fn example(name: &str) -> Result<Command> {
    let target = Target::Example(name);
    build(&[target])?;
    let mut command = Command::new(path(target)?);
    command.current_dir(workspace());
    Ok(command)
}

/// Runs cargo, or what it built, to the end.
///
/// # Errors
/// `failure`, if it fails.
pub fn run(command: &mut Command, failure: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{} does not start", command.get_program().display()))?;
    ensure!(status.success(), "{failure}");
    Ok(())
}
