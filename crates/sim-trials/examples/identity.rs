//! Runs against a rival that reuses domids: `identity [--first SEED] [--seeds N] [--operations N]
//! [--no-pins]`.
//!
//! Stops at the first seed in which an action reached another domain than intended. With
//! `--no-pins` the store does not keep the domids of dead domains, and such a seed must be found.

use sim::Pins;
use sim_trials::identity;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut first, mut seeds, mut operations) = (0_u64, 1000_u64, 12_u64);
    let mut pins = Pins::Kept;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a number"));
        match argument.as_str() {
            "--first" => first = value()?.parse()?,
            "--seeds" => seeds = value()?.parse()?,
            "--no-pins" => pins = Pins::Dropped,
            "--operations" => operations = value()?.parse()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let mut total = identity::Tally::default();
    for seed in first..first + seeds {
        match identity::run_on(seed, operations, pins) {
            Ok(tally) => total.add(&tally),
            Err(broken) if pins == Pins::Dropped => {
                println!("without pins, as it must be: {broken}");
                return Ok(());
            }
            Err(broken) => {
                for line in &broken.trace {
                    println!("{line}");
                }
                return Err(broken.to_string().into());
            }
        }
    }
    if pins == Pins::Dropped {
        return Err(format!("{seeds} seeds without pins, and nothing was met by mistake").into());
    }
    let deeds = total.deeds;
    println!(
        "{seeds} seeds from {first}: no action met a domain it was not meant for; {} operations, {} answers of which \
         {} say why it cannot be, {} restarts, {} planned faults, {} preemptions, {} gaps, {} domains killed, \
         {} numbers taken, {} refused",
        total.operations,
        total.answers,
        total.failures,
        total.restarts,
        total.faults,
        total.preemptions,
        deeds.gaps,
        deeds.kills,
        deeds.taken,
        deeds.refused
    );
    Ok(())
}
