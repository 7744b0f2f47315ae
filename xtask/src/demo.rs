//! `cargo xtask demo`: the whole system at work, on real Xen or on the simulated host.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;

use lab::{Outcome, Store, cargo, times};

mod web;

use web::Web;

const HELP: &str = "\
cargo xtask demo          20 VMs on a real Xen in QEMU, by Xylem and then by xl
cargo xtask demo --sim    1000 VMs on a simulated host, in seconds, without root or QEMU
cargo xtask demo --web    1000 VMs on a simulated host that lives on, and the web page before it

  --vms N     simulated VMs (default 1000)
  --seed N    seed of the simulation (default 1); the same seed prints the same trace
  --trace     print the simulation's whole trace
  --port N    where the web page is served on 127.0.0.1 (default 8470)
  --for S     end after so many seconds

The first two draw the timeline of a boot storm, and leave it as a picture in target/.";

/// Names of times that are remembered.
const PROGRAMS: &str = "demo: programs";
const HOST: &str = "demo: host";

/// Longest time one of the two boots may take.
const BOOT_LIMIT: Duration = Duration::from_secs(1200);

/// Runs the demo with the rest of the command line.
///
/// # Errors
/// Neither the lab nor the simulation can run.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut simulated = false;
    let mut web = None;
    let mut passed_on = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("sim") => simulated = true,
            Long("web") => drop(web.get_or_insert_with(Web::default)),
            Long("port") => web.get_or_insert_with(Web::default).port = parser.value()?.parse()?,
            Long("for") => {
                web.get_or_insert_with(Web::default).seconds = Some(parser.value()?.parse()?);
            }
            Long("trace") => passed_on.push("--trace".to_owned()),
            Long(name @ ("vms" | "seed")) => {
                let name = format!("--{name}");
                passed_on.extend([name, parser.value()?.string()?]);
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let passed_on: Vec<&str> = passed_on.iter().map(String::as_str).collect();
    if let Some(web) = web {
        ensure!(!simulated && !passed_on.contains(&"--trace"), "--web has no --sim and no --trace");
        return web.show(&passed_on);
    }
    if simulated || !passed_on.is_empty() {
        simulate(&passed_on)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = lab::require_tools() {
        println!("demo: the lab cannot run here: {error:#}");
        println!("demo: the same story on the simulated host instead\n");
        simulate(&[])?;
        return Ok(ExitCode::SUCCESS);
    }
    on_real_xen()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the story on the simulated host.
///
/// # Errors
/// The simulation does not build, or what it checks does not hold.
pub(crate) fn simulate(arguments: &[&str]) -> Result<()> {
    let folder = lab::target_directory()?;
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let picture = folder.join("bootstorm.svg");
    let mut command = cargo::example("story")?;
    command.args(arguments).arg("--svg").arg(&picture);
    cargo::run(&mut command, "the simulation failed")
}

fn on_real_xen() -> Result<()> {
    let began = Instant::now();
    let expected = |what| times::expected(what, "the first time: about 5 min on two CPUs");
    println!("== 1 of 4: Xylem's programs {}", expected(PROGRAMS));
    timed(PROGRAMS, || cargo::build(&lab::PROGRAMS))?;
    println!(
        "\n== 2 of 4: the emulated host {}",
        times::expected(HOST, "the first time: 90 MB to download")
    );
    timed(HOST, || lab::image(lab::Series::default()))?;
    println!(
        "\n== 3 of 4: Xylem on a real Xen, in QEMU's software emulation (times are inflated by it)"
    );
    let ours = boot("demo", Store::Xylem)?;
    println!("\n== 4 of 4: the same by xl, on the C xenstored, in a second boot");
    let theirs = boot("demo-xl", Store::C)?;
    println!();
    print_stages(&ours.results)?;
    print_comparison(&samples(&ours.results)?, &samples(&theirs.results)?)?;
    let picture = ours.results.join("bootstorm.svg");
    println!("timeline of the boot storm: {}", picture.display());
    println!("\ndemo: done in {:.0} s", began.elapsed().as_secs_f32());
    Ok(())
}

/// Does it, and remembers how long that takes here.
fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let done = work()?;
    times::remember(what, began.elapsed().as_secs_f64());
    Ok(done)
}

fn boot(name: &str, store: Store) -> Result<Outcome> {
    let mut options = lab::Options::new(name)?;
    options.store = store;
    options.timeout = BOOT_LIMIT;
    options.memory_mib = 4096;
    let scenario = lab::Scenario::find(name)?;
    println!(
        "   booting {}...",
        times::expected(name, "about 10 s; the scenario then takes about a minute")
    );
    let run = || lab::run(&options, &scenario, &[], &mut |line| println!("   {line}"));
    let outcome = timed(name, run)?;
    println!(
        "   (dom0 was up after {:.1} s, the host ran for {:.1} s)",
        outcome.boot.as_secs_f32(),
        outcome.elapsed.as_secs_f32()
    );
    ensure!(outcome.status == 0, "{name} ended with status {}", outcome.status);
    Ok(outcome)
}

/// What is compared, as `lab/demo.bash` calls it, and as people do.
const COMPARED: [(&str, &str); 4] = [
    ("unikernel", "create of a unikernel"),
    ("linux", "create of a Linux guest"),
    ("save", "save of a Linux guest"),
    ("restore", "restore of it"),
];

/// Milliseconds of each thing that is compared, as the scenario wrote them down.
fn samples(results: &Path) -> Result<BTreeMap<String, Vec<f64>>> {
    let file = results.join("times");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("the scenario left no {}", file.display()))?;
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        let Some((kind, ms)) = line.split_once(' ') else { bail!("no sample: {line}") };
        samples.entry(kind.to_owned()).or_default().push(ms.parse()?);
    }
    Ok(samples)
}

/// The middle value; the mean of the two middle ones of an even number.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

fn print_comparison(
    ours: &BTreeMap<String, Vec<f64>>,
    theirs: &BTreeMap<String, Vec<f64>>,
) -> Result<()> {
    println!("median times, in ms                  xy         xl      ratio   (of)");
    for (kind, what) in COMPARED {
        let [samples, theirs] = [ours, theirs].map(|from| from.get(kind));
        let samples = samples.with_context(|| format!("xy has no time of a {what}"))?;
        let theirs = theirs.with_context(|| format!("xl has no time of a {what}"))?;
        let [ours, theirs] = [samples, theirs].map(|from| median(from).unwrap_or_default());
        println!(
            "  {what:<28} {ours:>10.1} {theirs:>10.1} {:>9.1}x   ({})",
            theirs / ours,
            samples.len()
        );
    }
    Ok(())
}

/// One row of the table: what a stage took in each of the reports.
fn print_stages(results: &Path) -> Result<()> {
    for (kind, title) in
        [("unikernel", "a unikernel's create"), ("linux", "a Linux guest's create")]
    {
        let mut reports = Vec::new();
        for entry in std::fs::read_dir(results)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("create-{kind}-")) {
                let text = std::fs::read(results.join(&name))?;
                let report: api::CreateReport = serde_json::from_slice(&text)
                    .with_context(|| format!("{name} is no report"))?;
                reports.push(report);
            }
        }
        let Some(typical) = reports.iter().max_by_key(|report| report.domid) else { continue };
        println!("where the time of {title} went (medians of {})", reports.len());
        for stage in &typical.stages {
            let spans: Vec<f64> = reports
                .iter()
                .filter_map(|report| report.stages.iter().find(|it| it.name == stage.name))
                .map(|stage| micros(stage.end_us.saturating_sub(stage.start_us)))
                .collect();
            let ms = median(&spans).unwrap_or_default() / 1000.0;
            println!("  {:<28} {ms:>10.2} ms", stage.name);
        }
        let cost = &typical.cost;
        let hypercalls: u64 = cost.hypercalls.values().sum();
        println!(
            "  cost: {hypercalls} hypercalls, {} store messages in {} round trips, {} transactions\n",
            cost.store_messages, cost.store_round_trips, cost.transactions
        );
    }
    Ok(())
}

/// A duration in microseconds is far below what an `f64` holds exactly.
fn micros(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_the_middle_of_the_sorted_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
