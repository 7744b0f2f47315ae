//! Cargo: the one that runs us, in this workspace.

use std::io::{IsTerminal as _, Read, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cargo_output::{Progress, Said, read};
use crate::{PROGRESS, target_directory, times, workspace};

/// How often a line says how far a build is, where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(15);

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

impl Target<'_> {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &str {
        match self {
            Self::Program(name) | Self::Example(name) => name,
        }
    }
}

/// What all programs are built for: naming the one platform that is installed everywhere keeps [`FLAGS`] away from
/// build scripts.
pub const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Programs are static, as packages have them: most of a short command's time would otherwise be the dynamic linker's
/// (measured in the lab: 47 ms against 15 ms to start `xy`).
pub const FLAGS: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Crelocation-model=static"];

/// Whether this process builds programs in the profile of tests.
static AS_TESTS: AtomicBool = AtomicBool::new(false);

/// From now on programs are built in the profile of tests, so that what both are made of is built once. They check more, and
/// are slower.
pub fn build_as_tests() {
    AS_TESTS.store(true, Ordering::Relaxed);
}

/// What [`build`] need not look at.
static BUILT: Mutex<Vec<Target<'static>>> = Mutex::new(Vec::new());

/// From now on these are taken as they are: whoever started this process has built them. Cargo would find nothing to do, but only
/// when another build lets it look.
pub fn take_as_built(targets: &[Target<'static>]) {
    BUILT.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(targets);
}

fn are_built_as_tests() -> bool {
    AS_TESTS.load(Ordering::Relaxed)
}

/// Has cargo build for [`PLATFORM`], static.
pub fn for_platform(command: &mut Command) -> &mut Command {
    command.args(["--target", PLATFORM]);
    command.arg(format!("--config=target.{PLATFORM}.rustflags={FLAGS:?}"))
}

/// Builds targets, optimised, and shows how far it is: the first build takes minutes.
///
/// The whole workspace is selected, whatever is built of it: a dependency's features are those that the selection wants,
/// and with other features it, and all that uses it, would be built again.
///
/// # Errors
/// One of them does not build.
pub fn build(targets: &[Target<'_>]) -> Result<()> {
    let built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if targets.iter().all(|target| built.contains(target)) {
        return Ok(());
    }
    drop(built);
    let mut command = cargo();
    command.args(["build", "--workspace"]);
    if !are_built_as_tests() {
        command.arg("--release");
    }
    for_platform(&mut command);
    let mut names = Vec::new();
    for target in targets {
        let kind = match target {
            Target::Program(_) => "--bin",
            Target::Example(_) => "--example",
        };
        command.args([kind, target.name()]);
        names.push(target.name());
    }
    build_with(&mut command, &format!("{} does not build", names.join(", ")))
}

/// Where a target is once it is built.
///
/// # Errors
/// The current folder is unknown.
pub fn path(target: Target<'_>) -> Result<PathBuf> {
    let profile = if are_built_as_tests() { "debug" } else { "release" };
    let folder = target_directory()?.join(PLATFORM).join(profile);
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

/// Runs cargo to the end of what it builds, and shows how far it is: by cargo's own bar on a terminal, by a line now and then
/// elsewhere. What has to be read, as an error, is passed on at once.
///
/// # Errors
/// `failure`, if it fails.
pub fn build_with(command: &mut Command, failure: &str) -> Result<()> {
    if std::io::stderr().is_terminal() {
        return run(command, failure);
    }
    let began = Instant::now();
    let mut child = command
        .envs([("CARGO_TERM_PROGRESS_WHEN", "always"), ("CARGO_TERM_PROGRESS_WIDTH", "120")])
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} does not start", command.get_program().display()))?;
    let output = child.stderr.take().context("cargo has no standard error")?;
    let progress = watch(output, began)?;
    ensure!(child.wait()?.success(), "{failure}");
    if let Some(rate) = progress.rate(began.elapsed()) {
        times::remember(CRATE, rate);
    }
    Ok(())
}

/// The name of the time that a crate takes.
const CRATE: &str = "a crate";

/// Passes on what cargo says, until it says no more.
fn watch(mut output: impl Read, began: Instant) -> Result<Progress> {
    let earlier = times::earlier(CRATE);
    let mut progress = Progress::default();
    let mut told = began;
    let mut piece = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = output.read(&mut buffer)?;
        for &byte in &buffer[..count] {
            if byte != b'\r' && byte != b'\n' {
                piece.push(byte);
                continue;
            }
            let text = String::from_utf8_lossy(&piece).into_owned();
            piece.clear();
            let line = match read(&text) {
                Said::Built { done, of } => {
                    progress.built(done, of);
                    Some(progress.line(began.elapsed(), earlier))
                }
                Said::Downloading(what) => Some(format!("downloading {what}")),
                Said::Status => None,
                Said::Other(text) => {
                    pass_on(text);
                    None
                }
            };
            if let Some(line) = line.filter(|_| told.elapsed() >= LINE_INTERVAL) {
                told = Instant::now();
                pass_on(&format!("{PROGRESS}building: {line}"));
            }
        }
        if count == 0 {
            pass_on_rest(&piece);
            return Ok(progress);
        }
    }
}

fn pass_on(line: &str) {
    // A reader that went away is no reason to end a build.
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn pass_on_rest(piece: &[u8]) {
    let text = String::from_utf8_lossy(piece);
    if let Said::Other(text) = read(&text) {
        pass_on(text);
    }
}
