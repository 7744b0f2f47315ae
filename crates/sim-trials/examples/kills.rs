//! The daemon is killed at every action of every operation: `kills [--seeds N]`.

use sim_trials::kills::{self, Interrupted};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut seeds = 1;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seeds" => seeds = arguments.next().ok_or("--seeds wants a number")?.parse()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let mut broken = 0;
    println!(
        "{:<26} {:>6} {:>6} {:>12} {:>6}",
        "operation", "seed", "kills", "as described", "gone"
    );
    for what in Interrupted::ALL {
        for seed in 1..=seeds {
            match kills::run(what, seed) {
                Ok(it) => println!(
                    "{:<26} {seed:>6} {:>6} {:>12} {:>6}",
                    what.as_str(),
                    it.kills,
                    it.running,
                    it.gone
                ),
                Err(why) => {
                    broken += 1;
                    println!("BROKEN, seed {seed}: {why}");
                }
            }
        }
    }
    if broken == 0 { Ok(()) } else { Err(format!("{broken} operations are not safe").into()) }
}
