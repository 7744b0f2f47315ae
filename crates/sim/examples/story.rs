//! Runs the demonstration on the embedded host: `story [VMS [SEED]] [--trace]`.

use sim::demo::{self, DemoConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = DemoConfig::default();
    let mut show_trace = false;
    for (index, argument) in std::env::args().skip(1).enumerate() {
        match (index, argument.as_str()) {
            (_, "--trace") => show_trace = true,
            (0, vms) => config.vms = vms.parse()?,
            (_, seed) => config.seed = seed.parse()?,
        }
    }
    let report = demo::run(config, &mut |_, _, _| {})?;
    let shown = if show_trace { &report.trace } else { &report.lines };
    for line in shown {
        println!("{line}");
    }
    for problem in report.problems.iter().take(50) {
        println!("PROBLEM: {problem}");
    }
    println!("trace digest {:016x}", report.digest);
    if report.problems.is_empty() { Ok(()) } else { Err("something went wrong".into()) }
}
