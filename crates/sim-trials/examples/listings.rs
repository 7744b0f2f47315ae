//! Lists domains while others create and destroy them: `listings [--lists N] [--seed N]`.

use sim::{Release, Schedule};
use sim_trials::listings;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut lists, mut seed) = (25_000_u64, 1_u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a number"));
        match argument.as_str() {
            "--lists" => lists = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let runs = (Release::ALL.len() * Schedule::ALL.len()) as u64;
    let mut total = listings::Tally::default();
    for release in Release::ALL {
        for schedule in Schedule::ALL {
            let tally = listings::run(release, schedule, lists.div_ceil(runs), seed)?;
            total.lists += tally.lists;
            total.entries += tally.entries;
            total.unrests += tally.unrests;
        }
    }
    println!(
        "{} lists of {} domains, {} of which came or went in the middle of one: all sorted, no domain twice, \
         none of those that stayed missing, one hypercall each",
        total.lists, total.entries, total.unrests
    );
    Ok(())
}
