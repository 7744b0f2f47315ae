//! Runs against a rival that takes domids: `identity [--first SEED] [--seeds N] [--operations N]`.
//!
//! Ends with the first seed in which something met another domain than it was meant for.

use sim::identity;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut first, mut seeds, mut operations) = (0_u64, 1000_u64, 12_u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a number"));
        match argument.as_str() {
            "--first" => first = value()?.parse()?,
            "--seeds" => seeds = value()?.parse()?,
            "--operations" => operations = value()?.parse()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let mut total = identity::Tally::default();
    for seed in first..first + seeds {
        match identity::run(seed, operations) {
            Ok(tally) => total.add(&tally),
            Err(broken) => {
                for line in &broken.trace {
                    println!("{line}");
                }
                return Err(broken.to_string().into());
            }
        }
    }
    let deeds = total.deeds;
    println!(
        "{seeds} seeds from {first}: no action met a domain it was not meant for; {} operations, {} restarts, \
         {} gaps, {} domains killed, {} numbers taken, {} refused",
        total.operations, total.restarts, deeds.gaps, deeds.kills, deeds.taken, deeds.refused
    );
    Ok(())
}
