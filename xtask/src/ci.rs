//! `cargo xtask ci`: everything that must hold, cheapest first, on a machine that may lack the tools.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::cargo;
use crate::lab::{self, Series, Store};
use crate::workspace;
use crate::worlds::Worlds;

/// Programs and files that the tests need, with the Debian packages they come in.
const NEEDS: [(&str, &str, &str); 3] = [
    ("/usr/include/xen/xen.h", "libxen-dev", "its headers are compared with our layouts"),
    ("/usr/bin/cc", "gcc", "compiles the comparison with Xen's headers"),
    ("/usr/bin/c++", "g++", "compiles the fuzzer"),
];

/// Seeds of the simulation that every run tries.
const SEEDS: [u64; 8] = [1, 2, 3, 5, 8, 13, 21, 34];

/// Random worlds that every run tries.
const WORLDS: Worlds = Worlds { first: 0, identity: 5_000, swarm: 60, lists: 25_000 };

/// How long each fuzz target runs.
const FUZZ: Duration = Duration::from_secs(60);

/// Seeds and steps of the comparison with the packaged store.
const DIFF_SEEDS: [u64; 3] = [1, 2, 3];
const DIFF_STEPS: u32 = 1500;

/// Scenarios on real Xen, each with its store and its limit in seconds.
const SCENARIOS: &[(&str, Store, u64)] = &[
    ("smoke", Store::Xylem, 300),
    ("conformance", Store::Xylem, 600),
    ("listings", Store::Xylem, 600),
    ("first-light", Store::Xylem, 1200),
    ("leaves-nothing", Store::Xylem, 1200),
    ("clean-ends", Store::Xylem, 600),
    ("storage-file", Store::Xylem, 900),
    ("take-over", Store::C, 900),
    ("privileges", Store::Xylem, 600),
    ("plug", Store::Xylem, 900),
];

/// Scenarios on the newer Xen, with the same programs and their limits in seconds.
const SCENARIOS_NEWER: [(&str, u64); 1] = [("conformance", 600)];

struct Step {
    name: String,
    passed: bool,
    took: Duration,
}

/// Runs all steps, even after one failed; ends with the table and a line of counts.
///
/// # Errors
/// A tool is missing and cannot be installed.
pub(crate) fn main() -> Result<ExitCode> {
    require_needs()?;
    let mut steps = Vec::new();
    let mut step = |name: &str, run: &mut dyn FnMut() -> Result<()>| {
        println!("\n==== {name}");
        let started = Instant::now();
        let outcome = run();
        if let Err(error) = &outcome {
            println!("{name}: {error:#}");
        }
        let passed = outcome.is_ok();
        steps.push(Step { name: name.to_owned(), passed, took: started.elapsed() });
    };
    step("format", &mut || {
        run_cargo(&["fmt", "--all", "--check"])?;
        run_cargo_in("guest", &["fmt", "--all", "--check"])
    });
    step("tidy", &mut || run_cargo(&["xtask", "tidy"]));
    step("lints", &mut || {
        run_cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
        run_cargo_in("guest", &["clippy", "--release", "--quiet", "--", "-D", "warnings"])
    });
    step("layouts against newer headers", &mut || run_cargo(&["xtask", "layouts"]));
    step("tests", &mut || run_cargo(&["test", "--workspace", "--quiet"]));
    step("tests of the guest's protocols", &mut || {
        run_cargo_in("guest/proto", &["test", "--quiet", "--config", "build.rustflags=[]"])
    });
    step("packaged clients of the store", &mut || {
        let findings = crate::store_clients::run(&[Store::Xylem, Store::C])?;
        ensure!(findings == 0, "{findings} commands were answered otherwise");
        Ok(())
    });
    step("simulation seeds", &mut || {
        for seed in SEEDS {
            crate::demo::simulate(&["--vms", "100", "--seed", &seed.to_string()])?;
        }
        Ok(())
    });
    step("damaged kernels and ramdisks", &mut || {
        let arguments = ["--count", "10000", "--seconds", "90"];
        crate::images::run(&arguments.map(str::to_owned))
    });
    step("the daemon is killed at every step", &mut || crate::kills::run(1));
    step("random worlds", &mut || crate::worlds::run(WORLDS));
    step("72 hours of a host's life, with trouble", &mut || crate::churn::run(&[]));
    step("store: conformance scripts on running servers", &mut || {
        let findings = crate::store_scripts::run(&[Store::Xylem, Store::C], &[])?;
        ensure!(findings == 0, "{findings} answers are not the expected ones");
        Ok(())
    });
    step("store: the same random script for ours and the packaged one", &mut || {
        for seed in DIFF_SEEDS {
            ensure!(crate::store_diff::run(seed, DIFF_STEPS)?, "seed {seed} shows a difference");
        }
        Ok(())
    });
    step("store: handed over and back under clients and guests", &mut || {
        crate::store_take_over::run(crate::store_take_over::Options::new()?)
    });
    step("store: arbitrary bytes, a minute for each kind", &mut || {
        crate::fuzz::run_all(FUZZ)?;
        crate::fuzz::lint()
    });
    step("store: every row of its benchmark", &mut || {
        run_cargo(&["xtask", "bench", "store", "--peers", "c,oxen", "--quick"])
    });
    let mut again = Vec::new();
    for &(scenario, store, seconds) in SCENARIOS {
        step(&format!("lab: {scenario}"), &mut || {
            run_scenario_twice(scenario, store, Series::default(), seconds, &mut again)
        });
    }

    let newer = Series::Xen4_20;
    for (scenario, seconds) in SCENARIOS_NEWER {
        step(&format!("lab: {scenario} on Xen {}", newer.name()), &mut || {
            // Its packages come from another suite, which this machine's mirror may lack.
            if let Err(error) = lab::image(newer) {
                println!("left out: {error:#}");
                return Ok(());
            }
            run_scenario_twice(scenario, Store::Xylem, newer, seconds, &mut again)
        });
    }

    println!("\n==== summary");
    for step in &steps {
        let verdict = if step.passed { "ok" } else { "FAILED" };
        println!("{verdict:<7} {:>6.1} s  {}", step.took.as_secs_f32(), step.name);
    }
    for scenario in again {
        println!("lab: {scenario} was run twice: see above what its first run found");
    }
    let failed = steps.iter().filter(|step| !step.passed).count();
    println!("{} passed, {failed} failed", steps.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a scenario, and once more if it fails: an emulated host on a machine that does other work loses seconds now
/// and then, and with them guests that wait for nobody. What fails twice is ours.
fn run_scenario_twice(
    name: &'static str,
    store: Store,
    series: Series,
    seconds: u64,
    again: &mut Vec<&'static str>,
) -> Result<()> {
    run_scenario(name, store, series, seconds).or_else(|error| {
        println!("lab: {name}: {error:#}; once more");
        again.push(name);
        run_scenario(name, store, series, seconds)
    })
}

fn run_scenario(name: &str, store: Store, series: Series, seconds: u64) -> Result<()> {
    let mut options = lab::Options::new(name)?;
    options.series = series;
    options.store = store;
    options.timeout = Duration::from_secs(seconds);
    if name == "take-over" {
        // xl unpacks the kernel for its Linux guest.
        options.guest_kernel = lab::GuestKernel::AlsoUnpacked;
    }
    let programs: &[&str] = match name {
        "conformance" => &["xen_probe", "xen_conformance"],
        "listings" => &["xen_churn"],
        _ => &[],
    };
    for program in programs {
        options.files.push(lab::build_example("xen-linux", program)?);
    }
    let scenario = lab::Scenario::find(name)?;
    let outcome = lab::run(&options, &scenario, &[], &mut |line| println!("{line}"))?;
    ensure!(outcome.status == 0, "the scenario ended with status {}", outcome.status);
    Ok(())
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
    cargo::run(&mut command, &format!("cargo {} failed", arguments.join(" ")))
}
