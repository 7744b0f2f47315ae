//! Random runs on the embedded host: `swarm [--first SEED] [--seeds N] [--operations N] [--details]`.
//!
//! Stops at the first seed that violates an invariant, and prints its trace.

use sim_trials::swarm::{self, Tracing};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut first, mut seeds, mut operations) = (0_u64, 100_u64, 100_usize);
    let mut tracing = Tracing::Brief;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a number"));
        match argument.as_str() {
            "--first" => first = value()?.parse()?,
            "--seeds" => seeds = value()?.parse()?,
            "--operations" => operations = value()?.parse()?,
            "--details" => tracing = Tracing::Detailed,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let mut total = swarm::Tally::default();
    for seed in first..first + seeds {
        match swarm::run_traced(seed, operations, tracing) {
            Ok(tally) => {
                total.creates += tally.creates;
                total.faults += tally.faults;
                total.kills += tally.kills;
                total.preemptions += tally.preemptions;
            }
            Err(broken) => {
                for line in &broken.trace {
                    println!("{line}");
                }
                return Err(broken.to_string().into());
            }
        }
    }
    println!(
        "{seeds} seeds from {first} broke no rule: {} creates, {} planned faults, {} killed daemons, \
         {} preemptions",
        total.creates, total.faults, total.kills, total.preemptions
    );
    Ok(())
}
