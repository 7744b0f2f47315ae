//! Scenarios on real Xen: as many as share a host in one boot, each that fails once more in a boot of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};

use lab::{Series, Store};

/// Scenarios that run one after the other in one boot.
pub(super) struct Group {
    name: &'static str,
    store: Store,
    series: Series,
    /// Each with its limit in seconds.
    scenarios: &'static [(&'static str, u64)],
}

/// Those that begin with a store of ours. The last ones restart or stop it. `storage-file` and `privileges`, which are slow and
/// seldom fail, are run by command.
pub(super) const ON_XYLEM: &Group = &Group {
    name: "ci-xylem",
    store: Store::Xylem,
    series: Series::Xen4_17,
    scenarios: &[
        ("smoke", 120),
        ("first-light", 1200),
        ("leaves-nothing", 1200),
        ("clean-ends", 600),
        ("plug", 900),
        ("listings", 600),
        ("conformance", 600),
    ],
};

/// Those that begin with Xen's own store.
pub(super) const ON_C: &Group = &Group {
    name: "ci-c",
    store: Store::C,
    series: Series::Xen4_17,
    scenarios: &[("take-over", 900)],
};

/// Those on the newer Xen, with the same programs.
pub(super) const ON_XEN_4_20: &Group = &Group {
    name: "ci-4.20",
    store: Store::Xylem,
    series: Series::Xen4_20,
    scenarios: &[("conformance", 600)],
};

/// Programs of `xen-linux` that scenarios run in dom0.
pub(super) const EXAMPLES: [&str; 3] = ["xen_probe", "xen_conformance", "xen_churn"];

/// A line that the script of a group prints when one of its scenarios has ended.
const ENDED: &str = "== ended: ";

/// What stands between two scenarios: no daemon of the one before, and none of its VMs.
const BETWEEN: &str = r#"
run() {
    echo "== scenario $1"
    lab_began=$(cut -d . -f 1 /proc/uptime)
    timeout -s KILL "$2" sh "/tmp/scenarios/$1.sh"
    lab_status=$?
    for lab_name in $(timeout 60 xl list 2>/dev/null | awk 'NR > 2 { print $1 }'); do
        timeout 60 xy destroy "$lab_name" >/dev/null 2>&1
    done
    lab_pids=$(pidof xylemd) && kill $lab_pids
    echo "== ended: $1 $lab_status $(($(cut -d . -f 1 /proc/uptime) - lab_began))"
    [ "$lab_status" = 0 ] || failed=1
    # Without a store every client waits for ever.
    timeout 60 xenstore-read -s /local/domain/0/name >/dev/null || { echo "the store is gone"; exit 1; }
}
failed=0
"#;

/// Runs a group, then what failed once more: an emulated host on a machine that does other work loses seconds now and
/// then, and time limits inside guests expire. What fails twice is a fault.
///
/// # Errors
/// A scenario failed twice, or the host cannot be set up.
pub(super) fn run(group: &Group) -> Result<()> {
    let statuses = match group.scenarios {
        [_] => BTreeMap::new(),
        _ => boot_group(group)?,
    };
    let mut failed = Vec::new();
    for &(name, seconds) in group.scenarios {
        if statuses.get(name) == Some(&0) {
            continue;
        }
        let alone = || boot_alone(group, name, seconds);
        let outcome = match group.scenarios {
            [_] => alone().or_else(|error| {
                println!("{name}: {error:#}; once more");
                alone()
            }),
            _ => {
                println!("{name} failed beside others; once more, in a boot of its own");
                alone()
            }
        };
        if let Err(error) = outcome {
            println!("{name}: {error:#}");
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "failed twice: {}", failed.join(", "));
    Ok(())
}

/// The exit status of each scenario that came to its end.
fn boot_group(group: &Group) -> Result<BTreeMap<String, i32>> {
    let mut text = String::from("mkdir -p /tmp/scenarios\n");
    let mut seconds = 60;
    for (name, limit) in group.scenarios {
        let script = lab::Scenario::find(name)?.text;
        let end = "END-OF-THE-SCENARIO";
        ensure!(!script.contains(end), "{name} contains the mark {end}");
        write!(text, "cat >/tmp/scenarios/{name}.sh <<'{end}'\n{script}\n{end}\n")?;
        seconds += limit;
    }
    text.push_str(BETWEEN);
    for (name, limit) in group.scenarios {
        writeln!(text, "run {name} {limit}")?;
    }
    text.push_str("exit $failed\n");
    let scenario = lab::Scenario { name: group.name.to_owned(), text };
    let mut statuses = BTreeMap::new();
    let outcome = boot(group, &scenario, seconds, &mut |line| {
        println!("{line}");
        let mut words = line.strip_prefix(ENDED).unwrap_or_default().split(' ');
        if let (Some(name), Some(Ok(status))) = (words.next(), words.next().map(str::parse)) {
            statuses.insert(name.to_owned(), status);
        }
    });
    if let Err(error) = outcome {
        println!("{}: {error:#}", group.name);
    }
    Ok(statuses)
}

fn boot_alone(group: &Group, name: &'static str, seconds: u64) -> Result<()> {
    let scenario = lab::Scenario::find(name)?;
    let status = boot(group, &scenario, seconds, &mut |line| println!("{line}"))?;
    ensure!(status == 0, "the scenario ended with status {status}");
    Ok(())
}

/// The scenario's exit status.
fn boot(
    group: &Group,
    scenario: &lab::Scenario,
    seconds: u64,
    on_line: &mut dyn FnMut(&str),
) -> Result<i32> {
    let mut options = lab::Options::new(&scenario.name)?;
    options.series = group.series;
    options.store = group.store;
    options.timeout = Duration::from_secs(seconds);
    if group.store == Store::C {
        // xl unpacks the kernel for its Linux guest.
        options.guest_kernel = lab::GuestKernel::AlsoUnpacked;
    }
    for program in EXAMPLES {
        options.files.push(lab::build_example(program)?);
    }
    Ok(lab::run(&options, scenario, &[], on_line)?.status)
}
