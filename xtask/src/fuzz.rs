//! `cargo xtask fuzz`: libFuzzer against the store, on the stable compiler.
//!
//! The targets are in `fuzz/`. They are built with the compiler's own coverage instrumentation, which
//! needs no other compiler; libFuzzer itself is C++ and comes with a crate. What was found worth keeping
//! is kept from run to run under the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;

use lab::{cargo, workspace};

const HELP: &str = "\
cargo xtask fuzz [TARGET...] [--seconds N] [--fresh] [--input FILE]

Feeds arbitrary bytes to the store and to parsers, and checks their invariants.

  socket    requests of clients and guests, with deaths, restarts and hand-overs between them
  ring      a ring page whose words another thread changes
  state     the state stream that a daemon takes over
  journal   the journal of a killed daemon
  client    answers of a store that lies
  streams   streams of saved domains
  image     saved VMs in our own format
  load      records of a saved domain, loaded into one of the simulated Xen

  --seconds N    for each target [60]
  --fresh        as CI does it: always the same inputs, and nothing kept from earlier runs
  --input FILE   run this one input of a single target, as a finding is told";

/// Targets, each a program of `fuzz/`.
pub(crate) const TARGETS: [&str; 8] =
    ["socket", "ring", "state", "journal", "client", "streams", "image", "load"];

/// Inputs of each target in [`run_all`], in thousands: what a minute on a slow machine has room for.
const THOUSANDS: [(&str, u32); 8] = [
    ("socket", 60),
    ("ring", 50),
    ("state", 200),
    ("journal", 1000),
    ("client", 2000),
    ("streams", 1000),
    ("image", 300),
    ("load", 60),
];

/// What a run begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Corpus {
    /// What earlier runs found worth keeping, and another seed each time.
    Kept,
    /// The samples alone, and always the same seed and number of inputs.
    Fresh,
}

/// The compiler's instrumentation, as cargo-fuzz has it without sanitizers.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// So many at a time by hand; in CI one, beside other steps.
const AT_ONCE: usize = 2;

/// Longest input in bytes: twice what a message holds.
const INPUT_BYTES_MAX: u32 = 8192;

/// An input that takes so long has found an endless loop, however busy the machine is.
const INPUT_SECONDS_MAX: u32 = 120;

/// What a target may take: an input of a few kilobytes has no reason to need more.
const MEMORY_MIB_MAX: u32 = 1024;

pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut targets = Vec::new();
    let mut seconds = 60;
    let mut input = None;
    let mut begin = Corpus::Kept;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seconds") => seconds = parser.value()?.parse()?,
            Long("fresh") => begin = Corpus::Fresh,
            Long("input") => input = Some(PathBuf::from(parser.value()?)),
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            Value(name) => {
                let known = TARGETS.into_iter().find(|target| name == *target);
                targets.push(known.with_context(|| format!("no target {}", name.display()))?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let programs = build()?;
    match (input, &targets[..]) {
        (Some(input), [target]) => {
            let status = Command::new(programs.join(target)).arg(input).status()?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        (Some(_), _) => bail!("--input needs one target"),
        (None, []) => run(&programs, &TARGETS, Duration::from_secs(seconds), begin),
        (None, targets) => run(&programs, targets, Duration::from_secs(seconds), begin),
    }
}

/// Every target for so long, from one seed and from nothing that an earlier run kept; fails if one finds
/// something. The same commit is fed the same bytes, so what it stood once it stands again (but for `ring`, where
/// a second thread has its part); new ones are for runs by hand.
pub(crate) fn run_all(time: Duration) -> Result<()> {
    let programs = build()?;
    let code = run(&programs, &TARGETS, time, Corpus::Fresh)?;
    ensure!(code == ExitCode::SUCCESS, "the store fails on some inputs");
    Ok(())
}

/// Formats and lints of `fuzz/`, without the instrumentation: what it depends on is mostly what the workspace's lints have
/// checked.
pub(crate) fn lint() -> Result<()> {
    let mut format = cargo::cargo();
    format.args(["fmt", "--check"]).current_dir(folder_of_sources());
    cargo::run(&mut format, "cargo fmt --check failed in fuzz/")?;
    let mut clippy = cargo::cargo();
    clippy.args(["clippy", "--locked", "--quiet"]).current_dir(folder_of_sources());
    clippy.env("CARGO_TARGET_DIR", lab::target_directory()?);
    cargo::for_platform(&mut clippy).args(["--", "-D", "warnings"]);
    cargo::run(&mut clippy, "cargo clippy failed in fuzz/")
}

fn folder_of_sources() -> PathBuf {
    workspace().join("fuzz")
}

fn folder() -> Result<PathBuf> {
    Ok(lab::target_directory()?.join("fuzz"))
}

/// The compiler's name for this machine. With it, the flags are for the targets and not for build scripts.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc does not start")?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc does not say what machine this is")?.to_owned())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let mut command = cargo::cargo();
    command.args(arguments).current_dir(folder_of_sources());
    command.env("CARGO_TARGET_DIR", folder()?).env("RUSTFLAGS", FLAGS);
    cargo::run(&mut command, &format!("cargo {} failed", arguments.join(" ")))
}

/// Builds the targets and says where they are.
fn build() -> Result<PathBuf> {
    let host = host()?;
    cargo(&["build", "--locked", "--release", "--target", &host])?;
    Ok(folder()?.join(host).join("release"))
}

struct Outcome {
    target: &'static str,
    passed: bool,
    /// Inputs that were tried, and those that were worth keeping.
    tried: Option<u64>,
    kept: usize,
    took: Duration,
    log: PathBuf,
}

fn run(
    programs: &Path,
    targets: &[&'static str],
    time: Duration,
    begin: Corpus,
) -> Result<ExitCode> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let at_once = match begin {
            Corpus::Kept => AT_ONCE.min(targets.len()),
            Corpus::Fresh => 1,
        };
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run_one(programs, target, time, begin);
                    outcomes.lock().expect("not poisoned").push(outcome);
                }
            });
        }
    });
    let mut passed = true;
    for outcome in outcomes.into_inner().expect("not poisoned") {
        let Outcome { target, passed: this_passed, tried, kept, took, log } = outcome?;
        let verdict = if this_passed { "ok" } else { "FAILED" };
        let tried = tried.map_or("?".to_owned(), |tried| tried.to_string());
        let seconds = took.as_secs();
        println!("{verdict:<7} {target:<8} {tried:>9} inputs in {seconds} s, {kept} kept");
        if !this_passed {
            passed = false;
            report(target, &log)?;
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_one(
    programs: &Path,
    target: &'static str,
    time: Duration,
    begin: Corpus,
) -> Result<Outcome> {
    let corpus = match begin {
        Corpus::Kept => folder()?.join("corpus").join(target),
        Corpus::Fresh => {
            let corpus = folder()?.join("corpus-fresh").join(target);
            if corpus.exists() {
                fs::remove_dir_all(&corpus)?;
            }
            corpus
        }
    };
    let thousands = THOUSANDS.iter().find(|(name, _)| *name == target).map_or(0, |(_, n)| *n);
    let fixed = match begin {
        Corpus::Kept => Vec::new(),
        Corpus::Fresh => vec!["-seed=1".to_owned(), format!("-runs={}", thousands * 1000)],
    };
    let findings = folder()?.join("findings").join(target);
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let log = findings.with_extension("log");
    let file = fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let started = Instant::now();
    let status = Command::new(programs.join(target))
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .args(fixed)
        .arg(&corpus)
        .env("FUZZ_SEEDS", &corpus)
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("the target {target} does not start"))?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let tried = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("Done ")?.split(' ').next()?.parse().ok());
    let kept = fs::read_dir(&corpus)?.count();
    Ok(Outcome { target, passed: status.success(), tried, kept, took: started.elapsed(), log })
}

/// What is to be known of a finding: why, which bytes, and how to see it again.
fn report(target: &str, log: &Path) -> Result<()> {
    let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    let told = |line: &&str| {
        let begins = ["SUMMARY", "Base64", "ALARM", "artifact_prefix", "assertion"];
        line.contains("panicked at") || begins.iter().any(|begin| line.contains(begin))
    };
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| told(line)) {
        println!("  {line}");
        if line.contains("panicked at") {
            lines.iter().skip(at + 1).take(3).for_each(|line| println!("  {line}"));
        }
    }
    println!("  all of it: {}", log.display());
    println!("  again: cargo xtask fuzz {target} --input FILE, with the file that is named above");
    Ok(())
}
