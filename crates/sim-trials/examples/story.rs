//! Runs the demonstration on the embedded host: `story [--vms N] [--seed N] [--trace]
//! [--svg FILE]`.
//!
//! The same seed prints the same trace.

use std::io::{IsTerminal, Write};

use sim_trials::demo::{self, DemoConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = DemoConfig::default();
    let mut show_trace = false;
    let mut svg = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        match argument.as_str() {
            "--trace" => show_trace = true,
            "--svg" => svg = Some(value()?),
            "--vms" => config.vms = value()?.parse()?,
            "--seed" => config.seed = value()?.parse()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let interactive = std::io::stderr().is_terminal();
    let mut progress = |what: &str, done: usize, all: usize| {
        if interactive && (done.is_multiple_of(10) || done == all) {
            let end = if done == all { "\n" } else { "" };
            eprint!("\r{what}: {done} of {all}{end}");
            // A display that cannot be drawn is no reason to stop.
            let _unseen = std::io::stderr().flush();
        }
    };
    let report = demo::run(config, &mut progress)?;
    if show_trace {
        for line in &report.trace {
            println!("{line}");
        }
    }
    for line in &report.lines {
        println!("{line}");
    }
    println!();
    print!("{}", timeline::overview(&report.timeline));
    for problem in report.problems.iter().take(50) {
        println!("PROBLEM: {problem}");
    }
    if let Some(file) = svg {
        #[expect(clippy::disallowed_methods, reason = "this program's picture is for a real file")]
        std::fs::write(&file, timeline::svg(&report.timeline))?;
        println!("timeline of the creates: {file}");
    }
    println!("seed {}, trace {:016x}", config.seed, report.digest);
    if report.problems.is_empty() { Ok(()) } else { Err("not all went well".into()) }
}
