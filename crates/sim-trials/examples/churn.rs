//! Simulates days of a host in virtual time: `churn [--hours N] [--seeds A,B,...]`. The hours are
//! those of each seed.
//!
//! Stops at the first seed that violates an invariant, and prints the end of its trace.

use std::collections::BTreeMap;

use sim_trials::churn;

fn counts(counts: &BTreeMap<&'static str, u64>) -> String {
    let words: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    words.join(", ")
}

/// Median and 99th percentile, in milliseconds.
fn times(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let Some(last) = times.len().checked_sub(1) else { return "none".to_owned() };
    let milliseconds = |nanoseconds: u64| nanoseconds / 1_000_000;
    let (median, p99) = (times[last / 2], times[last * 99 / 100]);
    format!(
        "{} of them, median {} ms, 99 of 100 within {} ms",
        last + 1,
        milliseconds(median),
        milliseconds(p99)
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut hours, mut seeds) = (12_u64, vec![1_u64, 2, 3, 4, 5, 6]);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        match argument.as_str() {
            "--hours" => hours = value()?.parse()?,
            "--seeds" => seeds = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let (mut calm, mut beside_hang) = (Vec::new(), Vec::new());
    for seed in &seeds {
        let tally = match churn::run(*seed, hours) {
            Ok(tally) => tally,
            Err(broken) => {
                for line in &broken.trace {
                    println!("{line}");
                }
                return Err(broken.to_string().into());
            }
        };
        println!("seed {seed}, {hours} h: {}", counts(&tally.requests));
        println!("  trouble: {} daemons killed, {}", tally.kills, counts(&tally.troubles));
        let done: u64 = tally.done.values().sum();
        println!(
            "  {} answers, the slowest after {} s; {} requests died with their daemon",
            tally.answered,
            tally.slowest_answer_ns / 1_000_000_000,
            tally.orphaned
        );
        println!("  {done} carried out: {}", counts(&tally.done));
        println!("  {} refused: {}", tally.answered - done, counts(&tally.refusals));
        println!(
            "  {} rests with {} VMs as described, {} ends with nothing left; digest {:016x}",
            tally.rests, tally.vms_checked, tally.ends, tally.digest
        );
        calm.extend(tally.calm_ns);
        beside_hang.extend(tally.beside_hang_ns);
    }
    println!("creates on healthy storage: {}", times(calm));
    println!("  while other storage is sick: {}", times(beside_hang));
    println!("{} virtual hours without a broken rule", seeds.len() as u64 * hours);
    Ok(())
}
