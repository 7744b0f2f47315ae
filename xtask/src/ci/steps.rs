//! The steps of `cargo xtask ci`, in the order in which they begin.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{scenarios, web};
use crate::web_host;
use crate::worlds::Worlds;
use lab::cargo::{self, Target};
use lab::{Series, Store, workspace};

/// Seeds of the simulation that every run tries.
const SEEDS: [u64; 8] = [1, 2, 3, 5, 8, 13, 21, 34];

/// Random worlds that every run tries.
const WORLDS: Worlds = Worlds { first: 0, identity: 5_000, swarm: 60, lists: 25_000 };

/// How long each fuzz target runs.
const FUZZ: Duration = Duration::from_secs(10);

/// Seeds and steps of the comparison with the packaged store.
const DIFF_SEEDS: [u64; 3] = [1, 2, 3];
const DIFF_STEPS: u32 = 1500;

/// What a step keeps busy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Load {
    /// One CPU: another such step runs beside it, and its output is printed when it has ended. At a lower priority, so
    /// that an emulated host beside it has all that it wants.
    OneCpu,
    /// One CPU, by an emulated host, whose guests a busy machine delays.
    Lab,
    /// The whole machine: nothing runs beside it.
    Machine,
}

/// One thing that must hold.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) load: Load,
    /// What it takes on two CPUs and without a build cache, in seconds: for the estimate of what is left.
    pub(super) typical_seconds: u32,
    /// The step must have ended before this one begins: it builds what this one runs.
    pub(super) after: Option<&'static str>,
    pub(super) run: fn() -> Result<()>,
}

/// The simulations that steps run.
const SIMULATIONS: [&str; 9] =
    ["churn", "identity", "swarm", "listings", "mass", "kills", "moves", "story", "images"];

/// The step that builds every program that later steps run.
const PROGRAMS: &str = "programs";

/// All steps. While programs are built, what needs neither them nor cargo's lock goes on beside; then the emulated hosts, which
/// are the longest way, beside all the rest.
pub(super) const STEPS: &[Step] = &[
    step("format", Load::OneCpu, 2, format),
    step(PROGRAMS, Load::OneCpu, 700, programs),
    step("the page", Load::OneCpu, 80, web::page),
    step("tidy", Load::OneCpu, 3, || crate::tidy::main().and_then(ensure_success)),
    step("tests of the guest's protocols", Load::OneCpu, 10, || {
        run_cargo_in("guest/proto", &["test", "--quiet", "--config", "build.rustflags=[]"])
    }),
    built("lab: Xylem's store", Load::Lab, 670, || scenarios::run(scenarios::ON_XYLEM)),
    built("lab: from Xen's store", Load::Lab, 230, || scenarios::run(scenarios::ON_C)),
    built("lab: Xen 4.20", Load::Lab, 60, || {
        // Its packages come from another suite, which this machine's mirror may lack.
        if let Err(error) = lab::image(Series::Xen4_20) {
            println!("left out: {error:#}");
            return Ok(());
        }
        scenarios::run(scenarios::ON_XEN_4_20)
    }),
    built("tests", Load::OneCpu, 1000, tests),
    built("lints", Load::OneCpu, 380, lints),
    built("layouts against newer headers", Load::OneCpu, 200, || {
        crate::layouts::main().and_then(ensure_success)
    }),
    step("store: fuzzing", Load::OneCpu, 530, || crate::fuzz::run_all(FUZZ)),
    built("the page in a browser", Load::OneCpu, 240, web::browser),
    built("remote clients that others wrote", Load::OneCpu, 110, web::clients),
    // By itself `cargo xtask churn` tries three times as many hosts.
    built("24 hours of a host's life, with trouble", Load::OneCpu, 60, || {
        crate::churn::run(&["--seeds", "1,2"].map(str::to_owned))
    }),
    built("random worlds", Load::OneCpu, 140, || crate::worlds::run(WORLDS)),
    built("xylemd killed at every step", Load::OneCpu, 90, || crate::kills::run(1)),
    built("moves between two hosts, with trouble", Load::OneCpu, 80, crate::moves::some),
    built("damaged kernels and ramdisks", Load::OneCpu, 50, || {
        crate::images::run(&["--count", "5000", "--seconds", "60"].map(str::to_owned))
    }),
    built("simulation seeds", Load::OneCpu, 20, simulation_seeds),
    built("store: packaged clients", Load::OneCpu, 30, || {
        let findings = store_trials::clients::run(&[Store::Xylem, Store::C])?;
        ensure!(findings == 0, "{findings} commands got different answers");
        Ok(())
    }),
    built("store: conformance scripts", Load::OneCpu, 10, || {
        let findings = store_trials::scripts::run(&[Store::Xylem, Store::C], &[])?;
        ensure!(findings == 0, "{findings} answers differ from what is expected");
        Ok(())
    }),
    built("store: random scripts beside the packaged store", Load::OneCpu, 20, store_diff),
    built("store: handed over and back", Load::OneCpu, 30, || {
        store_trials::take_over::run(store_trials::take_over::Options::new()?)
    }),
    built("store: every row of its benchmark", Load::Machine, 60, || {
        let words = ["store", "--peers", "c,oxen", "--quick"];
        crate::bench::main(&mut lexopt::Parser::from_args(words)).and_then(ensure_success)
    }),
];

const fn step(
    name: &'static str,
    load: Load,
    typical_seconds: u32,
    run: fn() -> Result<()>,
) -> Step {
    Step { name, load, typical_seconds, after: None, run }
}

/// A step that runs what [`PROGRAMS`] has built.
const fn built(
    name: &'static str,
    load: Load,
    typical_seconds: u32,
    run: fn() -> Result<()>,
) -> Step {
    Step { name, load, typical_seconds, after: Some(PROGRAMS), run }
}

fn format() -> Result<()> {
    run_cargo(&["fmt", "--all", "--check"])?;
    run_cargo_in("guest", &["fmt", "--all", "--check"])
}

/// All that later steps run, so that none of them waits for another's build.
pub(super) fn later_programs() -> Vec<Target<'static>> {
    let in_dom0 = scenarios::EXAMPLES.iter();
    let examples = SIMULATIONS.iter().chain(in_dom0).map(|it| Target::Example(it));
    let web = [web_host::HOST, web_host::DOOR];
    lab::PROGRAMS.into_iter().chain(web).chain(examples).collect()
}

fn programs() -> Result<()> {
    cargo::build(&later_programs())
}

/// Of the documentation none is code, and the examples are built with the programs.
fn tests() -> Result<()> {
    let kinds = ["--lib", "--bins", "--tests"];
    let mut command = cargo::cargo();
    command.args(["test", "--workspace"]).args(kinds);
    cargo::for_platform(&mut command).args(["--no-fail-fast", "--", "--quiet"]);
    cargo::build_with(&mut command, "cargo test failed")
}

fn lints() -> Result<()> {
    let mut command = cargo::cargo();
    command.args(["clippy", "--workspace", "--all-targets"]);
    cargo::for_platform(&mut command).args(["--", "-D", "warnings"]);
    cargo::build_with(&mut command, "cargo clippy failed")?;
    crate::fuzz::lint()?;
    run_cargo_in("guest", &["clippy", "--release", "--", "-D", "warnings"])
}

fn simulation_seeds() -> Result<()> {
    for seed in SEEDS {
        crate::demo::simulate(&["--vms", "100", "--seed", &seed.to_string()])?;
    }
    Ok(())
}

fn store_diff() -> Result<()> {
    for seed in DIFF_SEEDS {
        ensure!(store_trials::diff::run(seed, DIFF_STEPS)?, "seed {seed} shows a difference");
    }
    Ok(())
}

fn ensure_success(code: std::process::ExitCode) -> Result<()> {
    ensure!(code == std::process::ExitCode::SUCCESS, "findings: see above");
    Ok(())
}

fn run_cargo(arguments: &[&str]) -> Result<()> {
    run_cargo_in(".", arguments)
}

/// Runs cargo in a folder of the workspace.
fn run_cargo_in(folder: &str, arguments: &[&str]) -> Result<()> {
    let mut command = cargo::cargo();
    command.args(arguments).current_dir(workspace().join(folder));
    if folder != "." {
        command.env("CARGO_TARGET_DIR", lab::target_directory()?.join("guest"));
    }
    cargo::build_with(&mut command, &format!("cargo {} failed", arguments.join(" ")))
}
