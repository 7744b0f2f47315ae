//! A real Xen host in QEMU: built from Debian packages, booted, used for one scenario, gone.
//!
//! ```text
//! packages -> image (cached) --+
//! programs, scenario -> overlay +-> machine -> session: lines, status, results
//! ```
//! Nothing in here knows what a scenario does; `lab/` has the scenarios and the two inits.

mod addition;
pub mod cargo;
mod cargo_output;
pub mod command;
mod console;
mod cpio;
pub mod debian;
mod elf;
mod host_tools;
mod image;
mod kernel;
mod machine;
mod network;
mod overlay;
pub mod packages;
pub mod pair;
mod progress;
mod recipe;
mod session;
pub mod times;

pub use cpio::content as archived;
pub use host_tools::{bound, install, require_all as require_tools};
pub use image::{cache_directory, prepare as image};
pub use overlay::{
    PROGRAMS, build_example, build_wide_unikernel, built_example, target_directory, workspace,
};
pub use recipe::Series;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

/// What a line begins with that says how far something is: where there is no terminal, one now and then.
pub const PROGRESS: &str = "   ... ";

/// The xenstore server that dom0 runs.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Store {
    /// Our own, `xylem-xenstored`.
    #[default]
    Xylem,
    /// Xen's `xenstored`, written in C.
    C,
    /// Xen's `oxenstored`, written in OCaml.
    Oxen,
    /// None: a server that answers everything with `OK`, to compare with in a bench.
    Bare,
    /// Our own of an earlier commit, to compare with in a bench.
    Earlier,
}

impl std::str::FromStr for Store {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "xylem" => Ok(Self::Xylem),
            "c" => Ok(Self::C),
            "oxen" => Ok(Self::Oxen),
            _ => anyhow::bail!("there is no store '{name}'; choose xylem, c or oxen"),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xylem => "xylem",
            Self::C => "c",
            Self::Oxen => "oxen",
            Self::Bare => "bare",
            Self::Earlier => "earlier",
        })
    }
}

/// Whether dom0's programs are built before the boot, or taken as they lie there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Build {
    Fresh,
    AsIs,
}

/// Whether dom0 gets the guests' kernel unpacked as well, as `/guest/vmlinux`: 66 MB more to boot
/// with, and no emulated decompression at each create.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GuestKernel {
    PackedOnly,
    AlsoUnpacked,
}

/// A file of this machine that dom0 shall have.
#[derive(Clone, Debug)]
pub struct ExtraFile {
    pub host: PathBuf,
    /// Absolute path in dom0.
    pub dom0: String,
}

/// The host to boot.
#[derive(Clone, Debug)]
pub struct Options {
    pub store: Store,
    pub memory_mib: u32,
    pub dom0_memory_mib: u32,
    pub cpus: u32,
    /// From the start of QEMU to the end of the scenario. A shell has no limit.
    pub timeout: Duration,
    /// Where the scenario's files and the console's log go.
    pub results: PathBuf,
    pub build: Build,
    pub guest_kernel: GuestKernel,
    pub files: Vec<ExtraFile>,
    pub series: Series,
    /// More words for Xen's command line.
    pub xen_arguments: String,
    /// Whether the machine has an IOMMU, and cards that a guest can be given.
    pub has_iommu: bool,
    /// The port of our loopback that leads to dom0's [`FORWARDED`].
    pub forward: Option<u16>,
}

/// Where dom0 has what is reached from outside: at the address that QEMU's own network knows it by, on a card of that network.
pub const FORWARDED: &str = "10.0.2.15:8443";

impl Options {
    /// What a small scenario needs; results go below the workspace's target folder.
    ///
    /// # Errors
    /// The target folder is unknown.
    pub fn new(name: &str) -> Result<Self> {
        Ok(Self {
            store: Store::default(),
            memory_mib: 3072,
            dom0_memory_mib: 1024,
            cpus: 2,
            timeout: Duration::from_secs(600),
            results: overlay::target_directory()?.join("lab").join(name),
            build: Build::Fresh,
            guest_kernel: GuestKernel::PackedOnly,
            files: Vec::new(),
            series: Series::default(),
            xen_arguments: String::new(),
            has_iommu: false,
            forward: None,
        })
    }
}

/// A shell script for dom0, which may source `/lab/lib.sh`.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub text: String,
}

impl Scenario {
    /// `name` is a path, or the name of a file in `lab/scenarios` without its `.sh`.
    ///
    /// # Errors
    /// There is no such file.
    pub fn find(name: &str) -> Result<Self> {
        Self::find_named(name, name)
    }

    /// One for two hosts: `name` is a path, or what follows `pair-` in the name of a file in `lab/scenarios`.
    ///
    /// # Errors
    /// There is no such file.
    pub fn find_pair(name: &str) -> Result<Self> {
        Self::find_named(name, &format!("pair-{name}"))
    }

    /// One for a Debian host: `name` is a path, or what follows `debian-` in the name of a file in `lab/scenarios`.
    ///
    /// # Errors
    /// There is no such file.
    pub fn find_debian(name: &str) -> Result<Self> {
        Self::find_named(name, &format!("debian-{name}"))
    }

    fn find_named(name: &str, stem: &str) -> Result<Self> {
        let folder = overlay::workspace().join("lab/scenarios");
        let mut path = PathBuf::from(name);
        if !path.is_file() {
            path = folder.join(format!("{stem}.sh"));
        }
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("there is no scenario '{name}': neither a file nor one of {}", folder.display())
        })?;
        let stem = path.file_stem().unwrap_or_default();
        Ok(Self { name: stem.to_string_lossy().into_owned(), text })
    }
}

/// What dom0 does once it is up.
#[derive(Clone, Debug)]
enum Mode {
    Scenario { text: String, arguments: Vec<String> },
    Shell { rows: u16, columns: u16 },
}

/// A scenario that came to its end, well or not.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The scenario's exit status.
    pub status: i32,
    pub results: PathBuf,
    /// From the start of QEMU to the scenario's first command.
    pub boot: Duration,
    pub elapsed: Duration,
}

/// A host that did not get a scenario to its end.
#[derive(Clone, Debug)]
pub struct Failure {
    pub what: String,
    pub console_tail: String,
    pub is_timeout: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if self.console_tail.is_empty() {
            write!(f, "\nthe console is empty")
        } else {
            write!(f, "\nlast lines of the console:\n{}", self.console_tail)
        }
    }
}

impl std::error::Error for Failure {}

/// Boots a host, runs the scenario and hands each line it prints to `on_line`.
///
/// # Errors
/// A [`Failure`] if the host died or hung; another error if it could not be set up.
pub fn run(
    options: &Options,
    scenario: &Scenario,
    arguments: &[String],
    on_line: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let mode = Mode::Scenario { text: scenario.text.clone(), arguments: arguments.to_vec() };
    session::run(options, &mode, on_line)
}

/// Boots a host with a shell on this terminal.
///
/// # Errors
/// As for [`run`].
pub fn shell(options: &Options) -> Result<Outcome> {
    let (rows, columns) = terminal_size();
    session::run(options, &Mode::Shell { rows, columns }, &mut |_| {})
}

fn terminal_size() -> (u16, u16) {
    let output = std::process::Command::new("stty")
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let numbers: Vec<u16> =
        text.unwrap_or_default().split_whitespace().flat_map(str::parse).collect();
    match numbers[..] {
        [rows, columns] if rows > 0 && columns > 0 => (rows, columns),
        _ => (24, 80),
    }
}
