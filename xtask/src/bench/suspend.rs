//! Suspends of guests, from the trigger until they are confirmed: ours beside libxl's order, in turn in one boot on
//! Xen's own store, and at its end on Xylem's, which takes that one over.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::{ExtraFile, Store};

const LIBXL: &str = include_str!("../../../lab/xlsuspend.c");
/// What it needs of this machine.
const NEEDS: [(&str, &str); 2] =
    [("/usr/bin/cc", "gcc"), ("/usr/include/xenguest.h", "libxen-dev")];
const LIBRARIES: [&str; 4] = ["-lxenctrl", "-lxenevtchn", "-lxenguest", "-lxenstore"];

/// Domains beside those that are suspended, in the phase `crowd`.
const OTHERS: u32 = 60;

const PHASES: [(&str, &str); 3] =
    [("idle", "idle"), ("loaded", "three writers to the store"), ("crowd", "60 other domains")];

/// Phases on Xylem's store, of the Linux guests alone, and those that they are like.
const OWN_PHASES: [(&str, &str, &str); 2] = [
    ("own-idle", "idle", "idle, on Xylem's store"),
    ("own-loaded", "loaded", "three writers to the store, on Xylem's"),
];

/// Guests, how they are called in rows, and how ours asks them.
const GUESTS: [(&str, &str); 7] = [
    ("pv", "unikernel PV, by event channel"),
    ("pvh", "unikernel PVH, by event channel"),
    ("pv-store", "unikernel PV, by the store"),
    ("pvh-store", "unikernel PVH, by the store"),
    ("linux-pv", "Linux PV"),
    ("linux-pvh", "Linux PVH"),
    ("xen", "by Xen alone"),
];

/// Arms of `suspend_rounds`, and what the table of all figures calls them.
const ARMS: [(&str, &str); 3] =
    [("A", "libxl, store"), ("E", "libxl, event channel"), ("O", "ours")];

/// The last round of 2007, a guest of 128 MB at 3.2 GHz: average, minimum, maximum, median in ms (xen-devel, 8 and 25 May).
const YEAR_2007: [(&str, [f64; 4]); 5] = [
    ("2007: xend and xenstore, as shipped", [133.57, 82.53, 559.86, 135.63]),
    ("2007: asked by event channel", [36.05, 33.99, 52.14, 35.51]),
    ("2007: heard of by event channel", [23.17, 9.08, 545.51, 13.66]),
    ("2007: the same, store on tmpfs", [14.62, 8.27, 32.67, 11.71]),
    ("2007: asked and heard of by event channel", [4.95, 3.46, 14.73, 4.63]),
];

pub(super) fn run(rounds: u32) -> Result<Vec<Row>> {
    let mut options = lab::Options::new("bench-suspend")?;
    options.store = Store::C;
    // With two emulated CPUs each wake of the other one adds a random delay.
    options.cpus = 1;
    options.timeout = Duration::from_secs(7200);
    options.memory_mib = 4096;
    options.files.push(lab::build_example("suspend_rounds")?);
    options.files.push(lab::build_example("checkpoint_rounds")?);
    options.files.push(libxl()?);
    let whole = (rounds / 5).max(1);
    let arguments = [rounds, OTHERS, whole].map(|number| number.to_string());
    let scenario = lab::Scenario::find("bench-suspend")?;
    let mut samples = Samples::default();
    let outcome = lab::run(&options, &scenario, &arguments, &mut |line| {
        if !samples.take(line) {
            println!("   {line}");
        }
    })?;
    print_all(&samples);
    print_calls(&samples);
    ensure!(outcome.status == 0, "the scenario ended with status {}", outcome.status);
    samples.check()?;
    rows(&samples)
}

/// Compiles the program that suspends in libxl's order.
fn libxl() -> Result<ExtraFile> {
    let missing = NEEDS.iter().filter(|(file, _)| !std::path::Path::new(file).exists());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        lab::install(&missing)?;
    }
    let folder = lab::target_directory()?.join("xlsuspend");
    std::fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("xlsuspend.c"), folder.join("xlsuspend"));
    std::fs::write(&source, LIBXL)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-o"]).args([&program, &source]).args(LIBRARIES);
    let status = command.status().context("cc does not start; gcc is needed")?;
    ensure!(status.success(), "lab/xlsuspend.c does not compile");
    Ok(ExtraFile { host: program, dom0: "/root/xlsuspend".to_owned() })
}

/// What a table says of samples, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    average: f64,
    minimum: f64,
    maximum: f64,
    median: f64,
    p99: f64,
}

impl Spread {
    fn of(samples: &Samples, name: &str) -> Result<Self> {
        let mut values: Vec<f64> = samples.all(name)?.iter().map(|us| us / 1000.0).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let (minimum, maximum) = (values[0], values[count - 1]);
        let mut average = 0.0;
        for (index, value) in (1_u32..).zip(&values) {
            average += (value - average) / f64::from(index);
        }
        let median = samples.value(name)? / 1000.0;
        Ok(Self { average, minimum, maximum, median, p99: values[(count * 99).div_ceil(100) - 1] })
    }
}

/// Every figure, as the table of 2007 had them, and that table.
fn print_all(samples: &Samples) {
    println!(
        "{:<70} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "trigger to confirmed, ms", "avg", "min", "max", "median", "p99"
    );
    let print = |what: &str, name: &str| {
        if let Ok(spread) = Spread::of(samples, name) {
            let Spread { average, minimum, maximum, median, p99 } = spread;
            println!(
                "{what:<70} {average:>8.2} {minimum:>8.2} {maximum:>8.2} {median:>8.2} {p99:>8.2}"
            );
        }
    };
    let own = OWN_PHASES.map(|(phase, _, when)| (phase, when));
    for (phase, when) in PHASES.into_iter().chain(own) {
        for (guest, which) in GUESTS {
            for (arm, whose) in ARMS {
                print(&format!("{which}, {when}: {whose}"), &format!("{guest}-{arm}-{phase}"));
            }
            let of_a = format!("{which}, {when}: libxl, until the acknowledgement");
            print(&of_a, &format!("{guest}-A-ack-{phase}"));
            for (stage, title) in
                [("before", "ours, before the trigger"), ("resume", "ours, resume")]
            {
                let name = format!("{guest}-O-{stage}-{phase}");
                print(&format!("{which}, {when}: {title}"), &name);
            }
            print(&format!("{which}, {when}: ours, in xylemd"), &format!("{guest}-whole-{phase}"));
            let command = format!("{guest}-command-{phase}");
            print(&format!("{which}, {when}: ours, `xy suspend`"), &command);
        }
    }
    for (stage, what) in [("suspend", "confirmed"), ("pause", "guest goes on")] {
        for (arm, whose) in [("O", "ours"), ("A", "libxc in libxl's order")] {
            let title = format!("last round of a checkpoint, Linux PVH: until {what}, {whose}");
            print(&title, &format!("checkpoint-{arm}-{stage}"));
        }
    }
    for (what, [average, minimum, maximum, median]) in YEAR_2007 {
        println!("{what:<70} {average:>8.2} {minimum:>8.2} {maximum:>8.2} {median:>8.2}");
    }
}

/// System calls between the trigger and the resume of a checkpoint, by name.
fn print_calls(samples: &Samples) {
    for (arm, whose) in [("O", "ours"), ("A", "libxc in libxl's order")] {
        let prefix = format!("calls-{arm}-");
        let calls = samples.names().filter_map(|name| {
            let call = name.strip_prefix(&prefix)?;
            Some(format!("{call} {:.1}", samples.value(name).ok()?))
        });
        let calls: Vec<String> = calls.collect();
        println!("system calls while paused, {whose}: {}", calls.join(", "));
    }
}

/// How many times faster than libxl ours is to be.
fn goal(guest: &str, phase: &str) -> Option<f64> {
    match (guest, phase) {
        ("pv" | "pvh", "idle") => Some(20.0),
        ("linux-pv" | "linux-pvh", "idle") => Some(1.3),
        ("linux-pv" | "linux-pvh", "loaded") => Some(1.4),
        _ => None,
    }
}

fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let median = |name: &str| anyhow::Ok(samples.value(name)? / 1000.0);
    let mut rows = Vec::new();
    for (guest, which) in GUESTS.into_iter().filter(|(guest, _)| *guest != "xen") {
        for (phase, when) in PHASES {
            let ours = median(&format!("{guest}-O-{phase}"))?;
            let theirs = median(&format!("{guest}-A-{phase}"))?;
            let row =
                Row::fewer(format!("suspend, {which}, {when}"), "ms", ours, ("libxl", theirs));
            rows.push(match goal(guest, phase) {
                Some(goal) => row.at_least(goal),
                None => row,
            });
        }
    }
    for (guest, which) in &GUESTS[4..6] {
        for (phase, like, when) in OWN_PHASES {
            let ours = median(&format!("{guest}-O-{phase}"))?;
            let on_ours = median(&format!("{guest}-A-{phase}"))?;
            let theirs = ("libxl on Xen's", median(&format!("{guest}-A-{like}"))?);
            let row = Row::fewer(format!("suspend, {which}, {when}"), "ms", ours, theirs);
            rows.push(match goal(guest, like) {
                Some(goal) => row.at_least(goal),
                None => row,
            });
            let what = format!("suspend in libxl's order, {which}, {when}");
            rows.push(Row::fewer(what, "ms", on_ours, theirs).at_least(1.0));
        }
    }
    let idle = median("xen-O-idle")?;
    let what = "suspend by Xen alone: the control plane's share";
    let share = Row::against(what.to_owned(), "ms", idle, [].into(), super::Better::Less);
    rows.push(share.at_most(1.0));
    for (guest, which) in [("xen", "by Xen alone"), ("pv", GUESTS[0].1), ("pvh", GUESTS[1].1)] {
        let idle = median(&format!("{guest}-O-idle"))?;
        for (phase, when) in &PHASES[1..] {
            let ours = median(&format!("{guest}-O-{phase}"))?;
            let what = format!("suspend, {which}, {when} against idle");
            let mut row = Row::fewer(what, "ms", ours, ("idle", idle));
            row.ratio = ours / idle;
            rows.push(if guest == "xen" { row.within(1.2) } else { row });
        }
    }
    for (guest, which) in &GUESTS[..2] {
        let spread = Spread::of(samples, &format!("{guest}-O-idle"))?;
        let what = format!("suspend, {which}, slowest against median");
        let mut row = Row::fewer(what, "ms", spread.maximum, ("median", spread.median));
        row.ratio = spread.maximum / spread.median;
        rows.push(row.within(3.0));
    }
    for (stage, until) in [("suspend", "confirmed"), ("pause", "the guest goes on")] {
        let ours = median(&format!("checkpoint-O-{stage}"))?;
        let peer = ("libxl", median(&format!("checkpoint-A-{stage}"))?);
        let what = format!("last round of a checkpoint, Linux PVH, until {until}");
        rows.push(Row::fewer(what, "ms", ours, peer));
    }
    for (phase, when) in [PHASES[0], PHASES[2]] {
        for (guest, which) in [GUESTS[0], GUESTS[1], GUESTS[4], GUESTS[5]] {
            for (stage, what) in [("whole", "operation of xylemd"), ("command", "`xy suspend`")] {
                let ours = median(&format!("{guest}-{stage}-{phase}"))?;
                let what = format!("{what}, {which}, {when}");
                let peers = [("libxl's suspend", median(&format!("{guest}-A-{phase}"))?)].into();
                rows.push(Row::against(what, "ms", ours, peers, super::Better::Less));
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_all_samples() {
        let mut samples = Samples::default();
        for value in 1..=200 {
            samples.take(&format!("SAMPLE a {}", value * 1000));
        }
        let expected =
            Spread { average: 100.5, minimum: 1.0, maximum: 200.0, median: 100.5, p99: 198.0 };
        let spread = Spread::of(&samples, "a").unwrap();
        assert!((spread.average - expected.average).abs() < 1e-9);
        assert_eq!(Spread { average: 100.5, ..spread }, expected);
    }
}
