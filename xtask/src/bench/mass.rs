//! Many unikernels are made, run and are all shut down: by `xy` on our store, and in a second boot by `xl` on
//! the C xenstored. What it takes, what it asks of Xen, and where the CPU time goes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::Activity;

use super::Row;
use super::list::{DOM0_MIB, memory_mib};
use super::samples::Samples;
use crate::flamegraph;
use lab::{Build, ExtraFile, Store};

const COUNTER: &str = include_str!("../../../lab/hypercount.c");

/// What of our CPU time listings may take.
const LISTING_PERCENT_MAX: f64 = 0.1;

/// What one boot brought.
struct Boot {
    samples: Samples,
    results: PathBuf,
    count: u32,
}

/// `count` unikernels by ours, `xl_count` by xl; figures are compared per VM if these differ.
pub(super) fn run(count: u32, xl_count: u32, build: Build) -> Result<Vec<Row>> {
    ensure!(count > 0, "--count 0: at least one unikernel is needed");
    let files = [sampler(build)?, counter()?];
    let ours = boot("xy", Store::Xylem, count, build, &files)?;
    let activity = activity(&ours)?;
    draw_ours(&ours, &activity)?;
    let theirs = match xl_count {
        0 => None,
        _ => Some(boot("xl", Store::C, xl_count, build, &files)?),
    };
    if let Some(theirs) = &theirs {
        draw(theirs, "xl", "CPU time of xl and the C daemons")?;
    }
    rows(&ours, &activity, theirs.as_ref())
}

fn boot(tool: &str, store: Store, count: u32, build: Build, files: &[ExtraFile]) -> Result<Boot> {
    println!("bench: {count} unikernels by {tool}");
    let mut options = lab::Options::new(&format!("bench-mass-{tool}"))?;
    options.store = store;
    options.timeout = Duration::from_secs(3600);
    options.dom0_memory_mib = DOM0_MIB;
    options.memory_mib = memory_mib(count);
    options.build = build;
    options.files.extend_from_slice(files);
    let scenario = lab::Scenario::find("bench-mass")?;
    let mut samples = Samples::default();
    let outcome =
        lab::run(&options, &scenario, &[tool.to_owned(), count.to_string()], &mut |line| {
            println!("   {line}");
            samples.take(line);
        })?;
    ensure!(outcome.status == 0, "{tool} ended with status {}", outcome.status);
    samples.check()?;
    Ok(Boot { samples, results: outcome.results, count })
}

/// The program that samples CPU time.
fn sampler(build: Build) -> Result<ExtraFile> {
    const NAME: &str = "cpu_sampler";
    match build {
        Build::Fresh => lab::build_example(NAME),
        Build::AsIs => lab::built_example(NAME),
    }
}

/// Compiles the counter of xl's hypercalls.
fn counter() -> Result<ExtraFile> {
    let folder = lab::target_directory()?.join("hypercount");
    std::fs::create_dir_all(&folder)?;
    let (source, library) = (folder.join("hypercount.c"), folder.join("hypercount.so"));
    std::fs::write(&source, COUNTER)?;
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status()
        .context("cc does not start; gcc is needed")?;
    ensure!(status.success(), "lab/hypercount.c does not compile");
    Ok(ExtraFile { host: library, dom0: "/root/hypercount.so".to_owned() })
}

impl Boot {
    fn value(&self, name: &str) -> Result<f64> {
        self.samples.value(name)
    }

    fn per_vm(&self, total: f64) -> f64 {
        total / f64::from(self.count)
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .with_context(|| format!("the scenario left no {}", path.display()))
}

/// A count or a time far below what an `f64` holds exactly.
fn number(value: u64) -> f64 {
    u32::try_from(value / 1000).map_or(f64::INFINITY, f64::from) * 1000.0
        + u32::try_from(value % 1000).map_or(0.0, f64::from)
}

/// What xylemd did from the first create to the last shutdown.
fn activity(boot: &Boot) -> Result<Activity> {
    let read = |name: &str| -> Result<Activity> {
        Ok(serde_json::from_str(&read(&boot.results.join(name))?)?)
    };
    let (before, mut after) = (read("activity-before.json")?, read("activity.json")?);
    for row in &mut after.hypercalls {
        let known = before.hypercalls.iter().find(|it| it.hypercall == row.hypercall);
        row.count -= known.map_or(0, |it| it.count);
    }
    for row in &mut after.operations {
        let known = before.operations.iter().find(|it| it.operation == row.operation);
        row.cpu_ns -= known.map_or(0, |it| it.cpu_ns);
    }
    after.hypercalls.retain(|row| row.count > 0);
    Ok(after)
}

fn rows(ours: &Boot, activity: &Activity, theirs: Option<&Boot>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let against = |what: String, unit, ours: f64, theirs: Option<f64>| {
        let peers = theirs.map(|value| ("xl", value)).into_iter().collect();
        Row::against(what, unit, ours, peers, super::Better::Less)
    };
    let phases =
        [("create", "creates"), ("boot", "until all run"), ("shutdown", "shutdown of all")];
    for (phase, title) in phases {
        for (kind, title, unit, scale) in [
            ("seconds", format!("{title}, time per VM"), "ms", 1000.0),
            ("cpu-ms", format!("{title}, CPU of dom0 per VM"), "ms", 1.0),
        ] {
            let key = format!("{phase}-{kind}");
            let per_vm = |boot: &Boot| anyhow::Ok(boot.per_vm(boot.value(&key)? * scale));
            rows.push(against(title, unit, per_vm(ours)?, theirs.map(per_vm).transpose()?));
        }
    }
    let our_calls: BTreeMap<String, u64> =
        activity.hypercalls.iter().map(|row| (row.hypercall.clone(), row.count)).collect();
    let their_calls = theirs
        .map(|boot| anyhow::Ok(xl_calls(&read(&boot.results.join("xl-calls"))?)))
        .transpose()?;
    let total = |calls: &BTreeMap<String, u64>| number(calls.values().sum());
    let their_total = theirs.zip(their_calls.as_ref());
    rows.push(against(
        "hypercalls of the toolstack per VM".to_owned(),
        "",
        ours.per_vm(total(&our_calls)),
        their_total.map(|(boot, calls)| boot.per_vm(total(calls))),
    ));
    let mut names: Vec<&String> = our_calls.keys().collect();
    names.extend(their_calls.iter().flat_map(BTreeMap::keys));
    names.sort();
    names.dedup();
    for name in names {
        let count = |calls: &BTreeMap<String, u64>| number(calls.get(name).copied().unwrap_or(0));
        rows.push(against(
            format!("  {name}"),
            "",
            ours.per_vm(count(&our_calls)),
            their_total.map(|(boot, calls)| boot.per_vm(count(calls))),
        ));
    }
    let listing = activity.operations.iter().find(|row| row.operation == "list");
    let listing_ms = number(listing.map_or(0, |row| row.cpu_ns)) / 1e6;
    let looks_ms = ours.value("looks-cpu-us")? / 1e3;
    let dom0_ms = ours.value("boot-cpu-ms")? + ours.value("shutdown-cpu-ms")?;
    let own_ms = own_cpu_ns(&read(&ours.results.join("stacks-xy"))?) / 1e6;
    for (of, all_ms) in [("dom0's CPU", dom0_ms), ("our programs' CPU", own_ms)] {
        let percent = (listing_ms + looks_ms) / all_ms * 100.0;
        let what = format!("lists by xylemd, looks at all by the store, share of {of}");
        rows.push(against(what, "%", percent, None).at_most(LISTING_PERCENT_MAX));
    }
    let looks = ours.value("looks")?;
    rows.push(against(format!("  {looks} looks at all by the store"), "ms", looks_ms, None));
    rows.push(against("  lists by xylemd".to_owned(), "ms", listing_ms, None));
    let broker_ms = ours.value("broker-cpu-ns")? / 1e6;
    let what = "CPU of the store's broker, looks at single domains too, per VM";
    rows.push(against(what.to_owned(), "ms", ours.per_vm(broker_ms), None));
    Ok(rows)
}

/// CPU time of our programs, of what the sampler saw.
fn own_cpu_ns(stacks: &str) -> f64 {
    const OWN: [&str; 4] = ["xy", "xylemd", "xylem-xenstored", "xylem-broker"];
    let own = |line: &str| {
        let (stack, weight) = line.rsplit_once(' ')?;
        let program = stack.split(';').next()?;
        OWN.contains(&program).then(|| weight.parse::<f64>().ok())?
    };
    stacks.lines().filter_map(own).sum()
}

/// The counts of all of xl's processes, by the names that our own have.
fn xl_calls(text: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in text.lines() {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        if let [op, command, count] = numbers[..] {
            *calls.entry(call_name(op, command)).or_default() += count;
        }
    }
    calls
}

/// Sources: `xen/include/public/{xen,domctl,sysctl,memory,event_channel}.h`.
fn call_name(op: u64, command: u64) -> String {
    const DOMCTLS: [(u64, &str); 19] = [
        (1, "createdomain"),
        (2, "destroydomain"),
        (3, "pausedomain"),
        (4, "unpausedomain"),
        (5, "getdomaininfo"),
        (9, "setvcpuaffinity"),
        (10, "shadow_op"),
        (11, "max_mem"),
        (12, "setvcpucontext"),
        (13, "getvcpucontext"),
        (14, "getvcpuinfo"),
        (15, "max_vcpus"),
        (17, "setdomainhandle"),
        (25, "getvcpuaffinity"),
        (35, "set_address_size"),
        (59, "settscinfo"),
        (61, "getpageframeinfo3"),
        (68, "setnodeaffinity"),
        (83, "set_cpu_policy"),
    ];
    const SYSCTLS: [(u64, &str); 7] = [
        (3, "physinfo"),
        (4, "sched_id"),
        (6, "getdomaininfolist"),
        (16, "cputopoinfo"),
        (17, "numainfo"),
        (18, "cpupool_op"),
        (29, "get_cpu_policy"),
    ];
    const MEMORY: [(u64, &str); 4] = [
        (6, "populate_physmap"),
        (13, "set_memory_map"),
        (24, "claim_pages"),
        (28, "acquire_resource"),
    ];
    let find = |table: &[(u64, &str)]| {
        table.iter().find(|(number, _)| *number == command).map(|(_, name)| (*name).to_owned())
    };
    let (group, known) = match op {
        12 => ("memory_op", find(&MEMORY)),
        13 => return "multicall".to_owned(),
        17 => return "xen_version".to_owned(),
        20 => ("grant_table_op", None),
        26 => return "mmuext_op".to_owned(),
        29 => ("sched_op", None),
        32 => ("event_channel_op", find(&[(6, "alloc_unbound")])),
        34 => ("hvm_op", None),
        35 => ("sysctl", find(&SYSCTLS)),
        36 => ("domctl", find(&DOMCTLS)),
        1 => return "mmu_update".to_owned(),
        _ => return format!("hypercall {op}"),
    };
    known.unwrap_or_else(|| format!("{group} {command}"))
}

/// Two pictures of ours: of CPU time by thread and kernel function, and of the work's time by hypercall.
fn draw_ours(boot: &Boot, activity: &Activity) -> Result<()> {
    draw(boot, "xy", "CPU time of xylemd, xylem-xenstored and xy")?;
    let mut lines = String::new();
    for row in &activity.operations {
        let mut left = row.latency.total_ns;
        for call in &row.hypercalls {
            left = left.saturating_sub(call.latency.total_ns);
            lines += &format!("{};{} {}\n", row.operation, call.hypercall, call.latency.total_ns);
        }
        lines += &format!("{} {left}\n", row.operation);
    }
    let path = boot.results.join("operations-xy.svg");
    std::fs::write(&path, flamegraph::draw("time of xylemd's work, by hypercall", &lines))?;
    println!("bench: {}", path.display());
    Ok(())
}

fn draw(boot: &Boot, tool: &str, title: &str) -> Result<()> {
    let stacks = read(&boot.results.join(format!("stacks-{tool}")))?;
    let path = boot.results.join(format!("flamegraph-{tool}.svg"));
    let title = format!("{title}, {} unikernels made and shut down", boot.count);
    std::fs::write(&path, flamegraph::draw(&title, &stacks))?;
    println!("bench: {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_processes_are_added_by_name() {
        let calls = xl_calls("36 5 10\n35 6 2\n36 5 1\nnonsense\n12 6 3\n20 9 1\n40 0 7\n");
        let expected = [
            ("getdomaininfo", 11),
            ("getdomaininfolist", 2),
            ("grant_table_op 9", 1),
            ("hypercall 40", 7),
            ("populate_physmap", 3),
        ];
        let told: Vec<_> = calls.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn only_our_programs_count_as_ours() {
        let stacks = "xy;xy;read 5\nxylem-broker;xylem-broker;do_exit 7\nxenconsoled;a;b 11\nxyz;a 13\nxylemd;x y;z 17\n";
        assert!((own_cpu_ns(stacks) - 29.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_stay_what_they_are() {
        assert_eq!((number(0), number(999), number(1_234_567_891)), (0.0, 999.0, 1_234_567_891.0));
    }
}
