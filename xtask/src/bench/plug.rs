//! Plug and unplug of many disks: on the simulated host, where storage is as slow as wanted, and with
//! `--lab` on a real Xen, `xy` beside `xl` in one boot.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::Store;
use lab::cargo;

/// What is to be measured.
pub(super) struct Options {
    pub(super) is_quick: bool,
    pub(super) in_lab: bool,
    pub(super) rounds: Option<u32>,
}

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    if !options.in_lab {
        return simulated(options.is_quick);
    }
    let rounds = options.rounds.unwrap_or(if options.is_quick { 1 } else { 3 });
    on_real_xen(options.is_quick, rounds)
}

fn simulated(is_quick: bool) -> Result<Vec<Row>> {
    let mut command = cargo::example("storm")?;
    if is_quick {
        command.arg("--quick");
    }
    let output = command.output().context("the example does not start")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the simulation failed: {errors}");
    let mut samples = Samples::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        samples.take(line);
    }
    samples.check()?;
    let mut rows = Vec::new();
    for disks in [1, 2, 5, 8, 10, 20, 50, 100, 255] {
        let ours = samples.value(&format!("table-ours-{disks}"))?;
        let sequential = samples.value(&format!("table-sequential-{disks}"))?;
        let what = format!("sim: {disks} disks of 1 s each, 10 at a time");
        // Ten at a time make the last of 255 wait for 26 rounds.
        let rounds = f64::from(disks).min(f64::from(disks) / (f64::from(disks) / 10.0).ceil());
        let row = Row::fewer(what, "s", ours, ("one by one", sequential));
        rows.push(row.at_least(0.99 * rounds));
    }
    let ours = samples.value("tail-ours")?;
    let ideal = samples.value("tail-ideal")?;
    let what = "sim: 255 disks, 1 % take 5 s, 10 at a time";
    let ratios =
        samples.all("tail-ours")?.iter().zip(samples.all("tail-ideal")?).map(|(a, b)| a / b);
    let worst = ratios.fold(0.0, f64::max);
    rows.push(
        Row::fewer(format!("{what}: over the ideal, worst seed"), "x", worst, ("ideal", 1.0))
            .at_most(1.1),
    );
    rows.push(
        Row::fewer(format!("{what}: median"), "s", ours, ("ideal", ideal)).at_least(1.0 / 1.1),
    );
    for (name, peer) in
        [("chunks of 10, pool of 4", "tail-peer"), ("chunks of 10, pool of 10", "tail-peer-wide")]
    {
        let theirs = samples.value(peer)?;
        rows.push(
            Row::fewer(format!("{what}: {name}"), "s", ours, ("xenopsd", theirs)).at_least(1.0),
        );
    }
    // As many as the example makes.
    let (wide, many) = if is_quick { (13, 50) } else { (125, 1000) };
    for (name, what) in
        [("wide", format!("{wide} VMs x 8 disks")), ("many", format!("{many} VMs x 1 disk"))]
    {
        let ours = samples.value(&format!("storm-{name}-ours"))?;
        let theirs = samples.value(&format!("storm-{name}-peer"))?;
        let ideal = samples.value(&format!("storm-{name}-ideal"))?;
        let what = format!("sim: boot storm of {what}");
        rows.push(Row::fewer(what.clone(), "s", ours, ("xenopsd", theirs)).at_least(1.0));
        let mut row =
            Row::fewer(format!("{what}, over its attaches alone"), "s", ours, ("ideal", ideal));
        row.ratio = ours / ideal;
        rows.push(row.within(1.1));
    }
    let (first, last) = (samples.value("start-at-1")?, samples.value("start-at-many")?);
    let what = format!("sim: start with 8 disks, {many} running against 1");
    let mut row = Row::fewer(what, "s", last, ("at 1", first));
    row.ratio = last / first;
    rows.push(row.within(1.05));
    Ok(rows)
}

/// Disks of the VMs that are started, plugged and shut down on real Xen.
const DISKS: [u32; 5] = [1, 8, 32, 128, 255];
const DISKS_ON_LVM: [u32; 5] = DISKS;

/// When xl is stopped, in seconds: it needs some for each disk, and its VMs with many may never come up.
const XL_SECONDS_MAX: u32 = 300;

/// What is measured, and how a row calls it.
const VERBS: [(&str, &str); 3] = [
    ("start", "start"),
    ("connected", "start until the guest has its disks"),
    ("stop", "shutdown"),
];

/// Ours beside what xl took. If xl was stopped, what had passed by then is the least that it takes; if it failed there is
/// nothing to compare with. The row's name says so.
fn beside_xl(samples: &Samples, verb: &str, which: &str, what: String) -> Result<Row> {
    let ours = samples.value(&format!("xy-{verb}-{which}"))?;
    let xl = |word: &str, verb: &str| samples.value(&format!("{word}xl-{verb}-{which}")).ok();
    let (peer, remark) = match (xl("", verb), xl("BOUND ", verb), xl("FAILED ", verb)) {
        (Some(theirs), _, _) => (Some(theirs), String::new()),
        (_, Some(bound), _) => (Some(bound), format!("; xl was stopped after {bound:.0} s")),
        (_, _, Some(failed)) => (None, format!("; xl failed after {failed:.0} s")),
        (None, None, None) => {
            // A VM that does not start is not connected, and not shut down.
            let earlier = ["start", "connected"]
                .iter()
                .any(|verb| xl("BOUND ", verb).is_some() || xl("FAILED ", verb).is_some());
            let why = if earlier { "xl did not get so far" } else { "not measured for xl" };
            (None, format!("; {why}"))
        }
    };
    let peers = peer.map(|peer| [("xl", peer)].into()).unwrap_or_default();
    Ok(Row::against(what + &remark, "s", ours, peers, super::Better::Less))
}

/// VMs with eight disks each that are started at once.
const MANY: u32 = 20;

fn on_real_xen(is_quick: bool, rounds: u32) -> Result<Vec<Row>> {
    let mut options = lab::Options::new("bench-plug")?;
    // xl and xy in one boot, on one store.
    options.store = Store::Xylem;
    options.timeout = Duration::from_secs(3600);
    options.memory_mib = 6144;
    // xl runs a script for each disk, all at once.
    options.dom0_memory_mib = 3072;
    options.files.push(lab::build_wide_unikernel()?);
    let (disks, many, on_lvm): (&[u32], u32, &[u32]) = match is_quick {
        true => (&[1, 8], 2, &[8]),
        false => (&DISKS, MANY, &DISKS_ON_LVM),
    };
    let words = |sizes: &[u32]| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let arguments = [
        rounds.to_string(),
        words(disks),
        many.to_string(),
        words(on_lvm),
        XL_SECONDS_MAX.to_string(),
    ];
    let scenario = lab::Scenario::find("bench-plug")?;
    let mut samples = Samples::default();
    let outcome = lab::run(&options, &scenario, &arguments, &mut |line| {
        println!("   {line}");
        samples.take(line);
    })?;
    ensure!(outcome.status == 0, "the scenario ended with status {}", outcome.status);
    samples.check()?;
    let mut rows = Vec::new();
    for disks in disks {
        for (verb, what) in VERBS {
            let what = format!("lab: {what} of a VM with {disks} disks on files");
            let row = beside_xl(&samples, verb, &disks.to_string(), what)?;
            rows.push(match (verb, disks) {
                ("start", 8) => row.at_least(5.0),
                ("start", 128) => row.at_least(20.0),
                _ => row,
            });
        }
    }
    for disks in on_lvm {
        for (verb, what) in VERBS {
            let what = format!("lab: {what} of a VM with {disks} disks on LVM");
            let row = beside_xl(&samples, verb, &format!("lvm-{disks}"), what)?;
            rows.push(if (verb, disks) == ("start", &8) { row.at_least(5.0) } else { row });
        }
    }
    for (verb, what) in VERBS {
        let what = format!("lab: {what} of {many} VMs with 8 disks each, at once");
        rows.push(beside_xl(&samples, verb, "many", what)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::{Samples, beside_xl};

    fn row(lines: &[&str]) -> super::Row {
        let mut samples = Samples::default();
        for line in lines {
            assert!(samples.take(line));
        }
        beside_xl(&samples, "start", "128", "start".to_owned()).unwrap()
    }

    #[test]
    fn where_xl_was_stopped_its_time_is_a_lower_bound() {
        let ours = "SAMPLE xy-start-128 10.0";
        let stopped = row(&[ours, "BOUND xl-start-128 300.0"]).at_least(20.0);
        assert_eq!(stopped.what, "start; xl was stopped after 300 s");
        assert!(stopped.ok);
        assert!(!row(&[ours, "BOUND xl-start-128 150.0"]).at_least(20.0).ok);
        assert!(!row(&[ours, "SAMPLE xl-start-128 150.0"]).at_least(20.0).ok);
    }

    #[test]
    fn where_xl_failed_its_failure_is_shown_and_no_ratio() {
        let ours = "SAMPLE xy-start-128 10.0";
        let failed = row(&[ours, "FAILED xl-start-128 5.0"]).at_least(20.0);
        assert_eq!(failed.what, "start; xl failed after 5 s");
        assert!(failed.ok && failed.peers.is_empty());
        assert_eq!(row(&[ours]).what, "start; not measured for xl");
    }
}
