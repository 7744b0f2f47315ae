//! Listings of all domains, by `xy` and by `xl`, in one boot; and the ways to ask Xen for them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::Store;

/// Unikernels at each stage, unless the command line says otherwise.
pub(super) const SIZES: [u32; 4] = [1, 100, 500, 1000];
/// The size at which the goal holds.
const GOAL_SIZE: u32 = 500;

/// Memory of the machine for so many unikernels of 8 MiB: each needs some for Xen's own tables too,
/// and dom0's share stands apart.
pub(super) fn memory_mib(unikernels: u32) -> u32 {
    DOM0_MIB + 768 + unikernels * 17 / 2
}

pub(super) const DOM0_MIB: u32 = 1536;

pub(super) fn run(rounds: u32, sizes: &[u32]) -> Result<Vec<Row>> {
    ensure!(sizes.is_sorted_by(|a, b| a < b), "sizes must ascend");
    let most = *sizes.last().context("no size was given")?;
    let mut options = lab::Options::new("bench-list")?;
    options.store = Store::Xylem;
    options.timeout = Duration::from_secs(1800);
    options.dom0_memory_mib = DOM0_MIB;
    options.memory_mib = memory_mib(most);
    options.files.push(lab::build_example("xen_listing")?);
    let mut samples = Samples::default();
    let scenario = lab::Scenario::find("bench-list")?;
    let arguments: Vec<String> =
        [rounds].iter().chain(sizes).map(|number| number.to_string()).collect();
    let outcome = lab::run(&options, &scenario, &arguments, &mut |line| {
        if !samples.take(line) {
            println!("   {line}");
        }
    })?;
    ensure!(outcome.status == 0, "the scenario ended with status {}", outcome.status);
    samples.check()?;
    rows(&samples, sizes)
}

fn rows(samples: &Samples, sizes: &[u32]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for size in sizes {
        let what = format!("list, {size} domains");
        let ours = samples.value(&format!("xy-seconds-at-{size}"))?;
        let row =
            Row::fewer(what, "s", ours, ("xl", samples.value(&format!("xl-seconds-at-{size}"))?));
        rows.push(if *size == GOAL_SIZE { row.at_least(10.0) } else { row });
    }
    if let [first, .., last] = sizes {
        let growth = |tool: &str| -> Result<f64> {
            let more = samples.value(&format!("{tool}-seconds-at-{last}"))?
                - samples.value(&format!("{tool}-seconds-at-{first}"))?;
            Ok(more * 1e6 / f64::from(last - first))
        };
        let what = format!("list, growth per domain from {first} to {last}");
        rows.push(Row::fewer(what, "us", growth("xy")?, ("xl", growth("xl")?)).at_least(10.0));
    }
    for size in sizes {
        let what = format!("hypercalls per list, {size} domains");
        let ours = samples.value(&format!("xy-calls-at-{size}"))?;
        let row =
            Row::fewer(what, "", ours, ("xl", samples.value(&format!("xl-calls-at-{size}"))?));
        rows.push(row.at_most(1.0));
    }
    for size in sizes {
        for (way, title) in
            [("chunks-of-2", "chunks"), ("bounce", "bounce"), ("bounce-1024", "bounce")]
        {
            let pattern = match way {
                "chunks-of-2" => "chunks of 2, as 4.17's OCaml",
                "bounce" => "a bounce buffer for all, as libxenctrl",
                _ => "a bounce buffer for 1024, as libxl",
            };
            let what = format!("one call against {pattern}, {size} domains");
            let ours = samples.value(&format!("one-call-us-at-{size}"))?;
            rows.push(Row::fewer(
                what,
                "us",
                ours,
                (title, samples.value(&format!("{way}-us-at-{size}"))?),
            ));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_what_each_domain_adds() {
        let mut samples = Samples::default();
        for (name, values) in [("xy", [1.0, 2.0]), ("xl", [1.0, 22.0])] {
            for (size, seconds) in [1, 101].into_iter().zip(values) {
                samples.take(&format!("SAMPLE {name}-seconds-at-{size} {seconds}"));
                samples.take(&format!("SAMPLE {name}-calls-at-{size} 1.0"));
            }
        }
        for (way, size) in ["one-call", "chunks-of-2", "bounce", "bounce-1024"]
            .into_iter()
            .flat_map(|way| [(way, 1), (way, 101)])
        {
            samples.take(&format!("SAMPLE {way}-us-at-{size} 5.0"));
        }
        let rows = rows(&samples, &[1, 101]).unwrap();
        let growth = rows.iter().find(|row| row.what.contains("growth")).unwrap();
        assert!((growth.ours - 10_000.0).abs() < 1e-6, "{}", growth.ours);
        assert!((growth.ratio - 21.0).abs() < 1e-6 && growth.ok);
    }
}
