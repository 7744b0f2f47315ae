//! The command line of `cargo xtask lab`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use super::debian::Debian;
use super::{Build, ExtraFile, Failure, GuestKernel, Options, Outcome, Scenario, Series, image};
use super::{Mode, overlay};

const HELP: &str = "\
Boots a real Xen host in QEMU, with Xylem's programs inside.

cargo xtask lab run [options] SCENARIO [arguments]   run a shell script in dom0
cargo xtask lab pair [options] NAME [arguments]      run one on the first of two hosts
cargo xtask lab debian [options] [NAME [arguments]]  run one on a Debian host; without a name, a shell
cargo xtask lab shell [options]                      a shell in dom0; `exit` ends the host
cargo xtask lab image                                only build the image

SCENARIO is a path, or a name from lab/scenarios; NAME is a path, or that of lab/scenarios/pair-NAME.sh or
debian-NAME.sh.

  --store xylem|c|oxen   xenstore server (default xylem)
  --mem MIB              memory of the machine (default 3072)
  --dom0-mem MIB         dom0's share of it (default 1024)
  --cpus N               CPUs of the machine and of dom0 (default 2)
  --timeout SECONDS      end a scenario that takes longer (default 600)
  --results FOLDER       where its files go (default target/lab/SCENARIO)
  --with FILE[:PATH]     take FILE into dom0, as PATH (default /root/FILE)
  --vmlinux              dom0 also gets /guest/vmlinux, the guests' kernel unpacked:
                         seconds less for each Linux guest (66 MB)
  --xen 4.17|4.20        Xen and its tools, of Debian 12 (default) or 13
  --xen-words WORDS      more words for Xen's command line
  --iommu                the machine has an IOMMU, and at 00:10.0 and 00:11.0 devices for guests
  --forward PORT         PORT of 127.0.0.1 leads to 10.0.2.15:8443, dom0's address on one more network card
                         (its driver: lab-addition virtio-net)
  --no-build             take the programs as they were built last

Two hosts have by default 2048 MiB, 1024 of them dom0's, and one CPU each. Each may have its own:

  --store-a, --store-b, --xen-a, --xen-b

A Debian host is installed by root, with Debian's Xen packages, and may take 3600 seconds. It has options of its own, and none
of --store and --xen:

  --suite bookworm|trixie   Debian 12 (default) or 13
  --packages FOLDER         where Xylem's packages are (default: `cargo xtask package` builds them,
                            if it has not); the host has them in /lab/packages
  --older FOLDER            those of an earlier commit, for the host's /lab/older: what `cargo xtask package` left in
                            target/package of a worktree of that commit

Exit status: the scenario's; 124 if it took too long; 125 if the host died or did not start.";

/// Exit status for a scenario that was cut off, as `timeout(1)` has it.
const STATUS_TIMEOUT: u8 = 124;
/// Exit status for a host that died.
const STATUS_HOST: u8 = 125;

/// Runs `cargo xtask lab` with the rest of the command line. `build_packages` is for a Debian host.
///
/// # Errors
/// The command line is wrong, or the host cannot be set up.
pub fn main(parser: &mut lexopt::Parser, build_packages: fn() -> Result<()>) -> Result<ExitCode> {
    let command = match parser.next()? {
        Some(Value(word)) => word.string()?,
        Some(Short('h') | Long("help")) | None => {
            println!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => return Err(other.unexpected().into()),
    };
    match command.as_str() {
        "run" => run(parser),
        "pair" => run_pair(parser),
        "debian" => run_debian(parser, build_packages),
        "shell" => {
            let mut options = Options::new("shell")?;
            while let Some(argument) = parser.next()? {
                let option = option_name(argument)?;
                apply(&mut options, &option, parser)?;
            }
            report(super::shell(&options).map(|outcome| outcome.status))
        }
        "image" => {
            let image = image::prepare(Series::default())?;
            println!("{}", image.root.display());
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("there is no `lab {other}`; choose run, pair, debian, shell or image"),
    }
}

fn run(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut options = Options::new("")?;
    let default_results = options.results.clone();
    let scenario = loop {
        match parser.next()?.context("which scenario? See `cargo xtask lab --help`")? {
            Value(name) => break Scenario::find(&name.string()?)?,
            argument => {
                let option = option_name(argument)?;
                apply(&mut options, &option, parser)?;
            }
        }
    };
    if options.results == default_results {
        options.results = default_results.join(&scenario.name);
    }
    // Everything after the scenario's name belongs to the scenario.
    let arguments: Result<Vec<String>, _> = parser.raw_args()?.map(ValueExt::string).collect();
    tell(&scenario, super::run(&options, &scenario, &arguments?, &mut print))
}

fn run_pair(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut common = Options::new("")?;
    let default_results = common.results.clone();
    (common.memory_mib, common.cpus) = (2048, 1);
    let mut stores = [None; 2];
    let mut series = [None; 2];
    let scenario = loop {
        match parser.next()?.context("which scenario? See `cargo xtask lab --help`")? {
            Value(name) => break Scenario::find_pair(&name.string()?)?,
            argument => match option_name(argument)?.as_str() {
                "store-a" => stores[0] = Some(parser.value()?.string()?.parse()?),
                "store-b" => stores[1] = Some(parser.value()?.string()?.parse()?),
                "xen-a" => series[0] = Some(parser.value()?.string()?.parse()?),
                "xen-b" => series[1] = Some(parser.value()?.string()?.parse()?),
                option => apply(&mut common, option, parser)?,
            },
        }
    };
    if common.results == default_results {
        common.results = default_results.join(&scenario.name);
    }
    let arguments: Result<Vec<String>, _> = parser.raw_args()?.map(ValueExt::string).collect();
    let hosts = [0, 1].map(|at| Options {
        store: stores[at].unwrap_or(common.store),
        series: series[at].unwrap_or(common.series),
        ..common.clone()
    });
    tell(&scenario, super::pair::run(&hosts, &scenario, &arguments?, &mut print))
}

fn run_debian(parser: &mut lexopt::Parser, build_packages: fn() -> Result<()>) -> Result<ExitCode> {
    let mut options = Options::new("")?;
    let default_results = options.results.clone();
    options.timeout = Duration::from_secs(3600);
    let mut suite = super::debian::Suite::default();
    let mut folder = None;
    let mut older = Vec::new();
    let mut scenario = None;
    while let Some(argument) = parser.next()? {
        if let Value(name) = argument {
            scenario = Some(Scenario::find_debian(&name.string()?)?);
            break;
        }
        match option_name(argument)?.as_str() {
            "suite" => suite = parser.value()?.string()?.parse()?,
            "packages" => folder = Some(PathBuf::from(parser.value()?)),
            "older" => older = packages_in(Path::new(&parser.value()?))?,
            option @ ("store" | "xen") => {
                bail!("a Debian host has Debian's own: --{option} is not for it")
            }
            option => apply(&mut options, option, parser)?,
        }
    }
    if options.results == default_results {
        let name = scenario.as_ref().map_or("debian-shell", |scenario| &scenario.name);
        options.results = default_results.join(name);
    }
    let packages = match folder {
        Some(folder) => packages_in(&folder)?,
        None => {
            let folder = overlay::target_directory()?.join("package");
            if packages_in(&folder).is_err() {
                build_packages()?;
            }
            packages_in(&folder)?
        }
    };
    for package in older.iter().chain(&packages) {
        eprintln!("lab: the host gets {}", package.display());
    }
    let host = Debian { suite, options, packages, older };
    let Some(scenario) = scenario else {
        let (rows, columns) = super::terminal_size();
        let shell = host.run(&Mode::Shell { rows, columns }, &mut |_| {});
        return report(shell.map(|outcome| outcome.status));
    };
    let arguments: Result<Vec<String>, _> = parser.raw_args()?.map(ValueExt::string).collect();
    let mode = Mode::Scenario { text: scenario.text.clone(), arguments: arguments? };
    tell(&scenario, host.run(&mode, &mut print))
}

/// The Debian packages in a folder.
fn packages_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("there is no folder {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    found.sort();
    if found.is_empty() {
        bail!("there is no Debian package in {}", folder.display());
    }
    Ok(found)
}

fn print(line: &str) {
    // A reader that went away is no reason to leave the host half-way.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Says how a scenario ended, and gives our exit status.
fn tell(scenario: &Scenario, outcome: Result<Outcome>) -> Result<ExitCode> {
    if let Ok(outcome) = &outcome {
        eprintln!(
            "lab: {} ended with {} after {:.1} s (dom0 up after {:.1} s); results in {}",
            scenario.name,
            outcome.status,
            outcome.elapsed.as_secs_f32(),
            outcome.boot.as_secs_f32(),
            outcome.results.display(),
        );
    }
    report(outcome.map(|outcome| outcome.status))
}

fn option_name(argument: lexopt::Arg<'_>) -> Result<String> {
    match argument {
        Long(name) => Ok(name.to_owned()),
        other => Err(other.unexpected().into()),
    }
}

fn apply(options: &mut Options, option: &str, parser: &mut lexopt::Parser) -> Result<()> {
    match option {
        "store" => options.store = parser.value()?.string()?.parse()?,
        "mem" => options.memory_mib = parser.value()?.parse()?,
        "dom0-mem" => options.dom0_memory_mib = parser.value()?.parse()?,
        "cpus" => options.cpus = parser.value()?.parse()?,
        "timeout" => options.timeout = Duration::from_secs(parser.value()?.parse()?),
        "results" => options.results = parser.value()?.into(),
        "with" => options.files.push(extra_file(&parser.value()?.string()?)),
        "xen" => options.series = parser.value()?.string()?.parse()?,
        "xen-words" => options.xen_arguments = parser.value()?.string()?,
        "vmlinux" => options.guest_kernel = GuestKernel::AlsoUnpacked,
        "iommu" => options.has_iommu = true,
        "forward" => options.forward = Some(parser.value()?.parse()?),
        "no-build" => options.build = Build::AsIs,
        other => bail!("there is no option --{other}; see `cargo xtask lab --help`"),
    }
    Ok(())
}

fn extra_file(text: &str) -> ExtraFile {
    match text.split_once(':') {
        Some((host, dom0)) => ExtraFile { host: host.into(), dom0: dom0.to_owned() },
        None => {
            let name = text.rsplit('/').next().unwrap_or(text);
            ExtraFile { host: text.into(), dom0: format!("/root/{name}") }
        }
    }
}

/// Our exit status; only what is not about the host itself stays an error.
fn report(status: Result<i32>) -> Result<ExitCode> {
    match status {
        Ok(status) => Ok(ExitCode::from(u8::try_from(status).unwrap_or(1))),
        Err(error) => match error.downcast::<Failure>() {
            Ok(failure) => {
                eprintln!("lab: {failure}");
                let status = if failure.is_timeout { STATUS_TIMEOUT } else { STATUS_HOST };
                Ok(ExitCode::from(status))
            }
            Err(error) => Err(error),
        },
    }
}
