//! Runs steps, two side by side where each keeps one CPU busy, and prints the table.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::steps::{Load, Step};
use lab::times;

/// CPUs that steps keep busy at a time.
const CPUS: usize = 2;

/// The niceness of what may run beside an emulated host.
const BESIDE: &str = "10";

/// How often the running steps are polled.
const TICK: Duration = Duration::from_millis(100);

/// How often a line says what runs.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// A step that takes this many times what it typically takes, or took here before, and [`SLACK`] more, hangs.
const TIMES_TYPICAL: u32 = 4;
const SLACK: Duration = Duration::from_secs(5 * 60);

/// After this long the run ends: what has not ended by then has failed. An outer limit that kills the
/// whole run would print neither which step it was nor the summary.
const LONGEST: Duration = Duration::from_secs(80 * 60);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Waiting,
    Running,
    Passed,
    Failed,
}

struct Running {
    index: usize,
    child: Child,
    started: Instant,
    /// What a short step prints, until it has ended: two that print at a time could not be read.
    output: Option<File>,
}

/// Runs all steps, even after one failed; ends with the table and a line of counts.
///
/// # Errors
/// A step cannot be started.
pub(super) fn run(steps: &[Step]) -> Result<ExitCode> {
    let began = Instant::now();
    let mut states = vec![State::Waiting; steps.len()];
    let mut took = vec![Duration::ZERO; steps.len()];
    let mut running: Vec<Running> = Vec::new();
    let mut told = Instant::now();
    loop {
        while let Some(index) = next(steps, &states) {
            announce(steps, &states, &running, index);
            running.push(start(index, &steps[index], is_built(steps, &states, index))?);
            states[index] = State::Running;
        }
        if running.is_empty() {
            break;
        }
        std::thread::sleep(TICK);
        if told.elapsed() >= LINE_INTERVAL {
            told = Instant::now();
            println!("ci: {}", what_runs(steps, &running, seconds_left(steps, &states, &running)));
        }
        let mut still = Vec::new();
        let mut has_printed = false;
        for mut step in running {
            let passed = match step.child.try_wait()? {
                Some(status) => status.success(),
                None if !is_overdue(&step, &steps[step.index], began) => {
                    still.push(step);
                    continue;
                }
                None => {
                    kill_with_descendants(&mut step.child)?;
                    println!("\nci: {}: killed, it took too long", steps[step.index].name);
                    false
                }
            };
            took[step.index] = step.started.elapsed();
            states[step.index] = if passed { State::Passed } else { State::Failed };
            if passed {
                times::remember(&time_name(steps[step.index].name), took[step.index].as_secs_f64());
            }
            print_output(&step, &steps[step.index])?;
            has_printed = true;
            if !passed {
                super::space::full().iter().for_each(|line| println!("ci: {line}"));
            }
        }
        running = still;
        // What follows belongs to it again.
        if has_printed && let Some(step) = running.iter().find(|step| step.output.is_none()) {
            println!("\n---- {}, continued", steps[step.index].name);
        }
        if began.elapsed() > LONGEST {
            println!("\nci: {} min are over: no further step begins", LONGEST.as_secs() / 60);
            break;
        }
    }
    println!("\n==== summary");
    for ((step, state), took) in steps.iter().zip(&states).zip(&took) {
        let verdict = match state {
            State::Passed => "ok",
            State::Waiting => "NOT RUN",
            State::Running | State::Failed => "FAILED",
        };
        println!("{verdict:<7} {:>6.1} s  {}", took.as_secs_f32(), step.name);
    }
    let failed = states.iter().filter(|state| **state != State::Passed).count();
    println!("all in {:.1} min", began.elapsed().as_secs_f32() / 60.0);
    println!("{} passed, {failed} failed", steps.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first step that may begin now.
fn next(steps: &[Step], states: &[State]) -> Option<usize> {
    let running = |load| {
        let is = |(step, state): &(&Step, &State)| **state == State::Running && step.load == load;
        steps.iter().zip(states).filter(is).count()
    };
    let has_room = |step: &Step| {
        let busy = running(Load::OneCpu) + running(Load::Lab);
        running(Load::Machine) == 0
            && match step.load {
                Load::OneCpu => busy < CPUS,
                Load::Lab => busy < CPUS && running(Load::Lab) == 0,
                Load::Machine => busy == 0,
            }
    };
    let is_ready = |step: &Step| {
        let before = step.after.and_then(|name| steps.iter().position(|it| it.name == name));
        before.is_none_or(|at| matches!(states[at], State::Passed | State::Failed))
    };
    (0..steps.len()).find(|&index| {
        let step = &steps[index];
        states[index] == State::Waiting && is_ready(step) && has_room(step)
    })
}

/// Whether the step before this one has built what this one runs.
fn is_built(steps: &[Step], states: &[State], index: usize) -> bool {
    let passed = |(step, state): (&Step, &State)| {
        Some(step.name) == steps[index].after && *state == State::Passed
    };
    steps.iter().zip(states).any(passed)
}

/// Under which what a step took is remembered.
fn time_name(step: &str) -> String {
    format!("ci: {step}")
}

/// What a step takes here: as it did before, or typically.
fn expected_seconds(step: &Step) -> f64 {
    times::earlier(&time_name(step.name)).unwrap_or_else(|| step.typical_seconds.into())
}

/// Seconds until all steps have ended, if each takes what it did before. A step that runs has done a part of its work.
fn seconds_left(steps: &[Step], states: &[State], running: &[Running]) -> f64 {
    let seconds = steps.iter().zip(states).enumerate().map(|(index, (step, state))| {
        let began = running.iter().find(|it| it.index == index).map(|it| it.started.elapsed());
        let left = match state {
            State::Passed | State::Failed => 0.0,
            State::Waiting => expected_seconds(step),
            State::Running => {
                (expected_seconds(step) - began.unwrap_or_default().as_secs_f64()).max(0.0)
            }
        };
        match step.load {
            Load::OneCpu | Load::Lab => left / 2.0,
            Load::Machine => left,
        }
    });
    seconds.sum()
}

fn announce(steps: &[Step], states: &[State], running: &[Running], index: usize) {
    let number = states.iter().filter(|state| **state != State::Waiting).count() + 1;
    println!(
        "\n==== {} ({number} of {}, about {} left)",
        steps[index].name,
        steps.len(),
        spoken_left(seconds_left(steps, states, running))
    );
}

fn spoken_left(seconds: f64) -> String {
    times::spoken(Duration::from_secs_f64(seconds))
}

/// One line: the steps that run, for how long, and how far they say they are.
fn what_runs(steps: &[Step], running: &[Running], seconds_left: f64) -> String {
    let steps = running.iter().map(|step| {
        let progress = step.output.as_ref().and_then(last_progress);
        let progress = progress.map_or(String::new(), |line| format!(", {line}"));
        format!("{} ({}{progress})", steps[step.index].name, times::spoken(step.started.elapsed()))
    });
    let steps: Vec<_> = steps.collect();
    format!("{}; about {} left in all", steps.join(", "), spoken_left(seconds_left))
}

/// The last line in which a step said how far it is, if it has said nothing else since.
fn last_progress(output: &File) -> Option<String> {
    // Where the step writes next must not move.
    let length = output.metadata().ok()?.len();
    let mut end = vec![0; usize::try_from(length.min(1024)).ok()?];
    output.read_exact_at(&mut end, length - length.min(1024)).ok()?;
    let text = String::from_utf8_lossy(&end).into_owned();
    text.lines().last()?.strip_prefix(lab::PROGRESS).map(str::to_owned)
}

fn start(index: usize, step: &Step, is_built: bool) -> Result<Running> {
    let program = std::env::current_exe()?;
    let mut command = match step.load {
        Load::OneCpu => {
            let mut command = Command::new("nice");
            command.args(["-n", BESIDE]).arg(program);
            command
        }
        Load::Lab | Load::Machine => Command::new(program),
    };
    command.args(["ci", "--step", step.name]).args(is_built.then_some("--built"));
    command.stdin(Stdio::null());
    let output = match step.load {
        Load::Lab | Load::Machine => None,
        Load::OneCpu => {
            let file = tempfile::tempfile().context("no temporary file")?;
            command.stdout(file.try_clone()?).stderr(file.try_clone()?);
            Some(file)
        }
    };
    let child = command.spawn().with_context(|| format!("{} does not start", step.name))?;
    Ok(Running { index, child, started: Instant::now(), output })
}

fn is_overdue(step: &Running, of: &Step, began: Instant) -> bool {
    // A slow machine took longer before, and will again.
    let typical = Duration::from_secs_f64(expected_seconds(of).max(of.typical_seconds.into()));
    step.started.elapsed() > typical * TIMES_TYPICAL + SLACK || began.elapsed() > LONGEST
}

/// Kills a step's process and all that it started: cargo, emulators, daemons.
///
/// They stay in the terminal's process group, so that Ctrl-C reaches them too.
fn kill_with_descendants(child: &mut Child) -> Result<()> {
    let mut family = vec![child.id()];
    let mut parents = Vec::new();
    for process in std::fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let status = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name in parentheses may contain anything; the state and the parent follow it.
        let parent = status.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        parents.push((pid, parent.and_then(|parent| parent.parse().ok()).unwrap_or(0)));
    }
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    for pid in family {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // One that has ended meanwhile needs no signal.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    child.wait()?;
    Ok(())
}

fn print_output(step: &Running, of: &Step) -> Result<()> {
    let Some(mut file) = step.output.as_ref() else { return Ok(()) };
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    println!("\n---- {} ({:.0} s)", of.name, step.started.elapsed().as_secs_f32());
    // How far it was is no news any more.
    let lines = text.lines().filter(|line| !line.starts_with(lab::PROGRESS));
    lines.for_each(|line| println!("{line}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const STEPS: &[Step] = &[
        Step {
            name: "build",
            load: Load::OneCpu,
            typical_seconds: 10,
            after: None,
            run: || Ok(()),
        },
        Step {
            name: "built",
            load: Load::OneCpu,
            typical_seconds: 10,
            after: Some("build"),
            run: || Ok(()),
        },
        Step {
            name: "alone",
            load: Load::Machine,
            typical_seconds: 60,
            after: None,
            run: || Ok(()),
        },
        Step { name: "free", load: Load::OneCpu, typical_seconds: 10, after: None, run: || Ok(()) },
        Step { name: "lab", load: Load::Lab, typical_seconds: 10, after: None, run: || Ok(()) },
        Step { name: "more", load: Load::Lab, typical_seconds: 10, after: None, run: || Ok(()) },
    ];

    #[test]
    fn a_step_waits_for_what_builds_it_and_for_the_cpus_it_needs() {
        use State::{Failed, Passed, Running, Waiting};
        // "build", "built", "alone", "free", then both hosts.
        let next = |states: [State; 4], hosts| next(STEPS, &[&states[..], &[hosts; 2]].concat());
        assert_eq!(next([Waiting; 4], Waiting), Some(0));
        // Neither what is built nor what needs the whole machine.
        assert_eq!(next([Running, Waiting, Waiting, Waiting], Waiting), Some(3));
        assert_eq!(next([Running, Waiting, Waiting, Running], Waiting), None);
        assert_eq!(next([Failed, Waiting, Waiting, Running], Waiting), Some(1));
        // A host beside one step, but no second one beside it.
        assert_eq!(next([Passed, Passed, Waiting, Running], Waiting), Some(4));
        assert_eq!(next([Passed, Passed, Waiting, Running], Running), None);
        assert_eq!(next([Passed, Passed, Waiting, Passed], Passed), Some(2));
        assert_eq!(next([Passed, Waiting, Running, Passed], Waiting), None);
    }

    #[test]
    fn one_host_is_emulated_at_a_time() {
        use State::{Passed, Running, Waiting};
        let states = [Passed, Passed, Passed, Passed, Running, Waiting];
        assert_eq!(next(STEPS, &states), None);
        let states = [Passed, Passed, Passed, Waiting, Running, Waiting];
        assert_eq!(next(STEPS, &states), Some(3));
    }

    #[test]
    fn a_step_that_hangs_is_killed_with_all_it_started() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        kill_with_descendants(&mut child).unwrap();
        // The pipe ends only when all writers have closed it.
        assert_eq!(std::io::Read::read_to_string(&mut output, &mut line).unwrap(), 0);
    }

    #[test]
    fn what_is_left_counts_pairs_of_one_cpu_once() {
        // Nothing of these names was ever remembered: five of 10 s on one CPU each, and one of 60 s.
        assert!((seconds_left(STEPS, &[State::Waiting; 6], &[]) - 85.0).abs() < 0.1);
        assert!(seconds_left(STEPS, &[State::Passed; 6], &[]).abs() < 0.1);
    }

    #[test]
    fn a_line_says_what_runs_and_how_far_that_is() {
        let mut output = tempfile::tempfile().unwrap();
        let child = Command::new("true").spawn().unwrap();
        writeln!(output, "text\n{}building: 3 of 9 crates", lab::PROGRESS).unwrap();
        let file = output.try_clone().unwrap();
        let mut running =
            vec![Running { index: 0, child, started: Instant::now(), output: Some(file) }];
        assert_eq!(
            what_runs(STEPS, &running, 600.0),
            "build (0 s, building: 3 of 9 crates); about 10 min left in all"
        );
        writeln!(output, "its tests run").unwrap();
        assert_eq!(what_runs(STEPS, &running, 60.0), "build (0 s); about 60 s left in all");
        running[0].child.wait().unwrap();
    }
}
