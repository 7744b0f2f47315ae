//! `cargo xtask store-unit`: the store's systemd unit, run by a systemd.
//!
//! That one is the first process of namespaces of its own, where everything but memory is read-only. The
//! unit is as it is installed, but that the store serves a host made of files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xenstore::wire::MessageType;

use crate::stores::Connection;
use lab::cargo::{self, Target};

/// Inside: asks the store for a live update.
pub const LIVE_UPDATE: &str = "unit-live-update";

const BOOT: &str = include_str!("unit/boot.sh");
const CHECKS: &str = include_str!("unit/checks.sh");

/// What has to be on this machine, with the packages it comes in.
const NEEDS: [(&str, &str); 3] = [
    ("/lib/systemd/systemd", "systemd"),
    ("/usr/bin/unshare", "util-linux"),
    ("/usr/bin/nsenter", "util-linux"),
];

/// How long a systemd may take until it can be talked to.
const BOOT_MAX: Duration = Duration::from_secs(120);

/// A systemd in its namespaces; ended with this value.
struct Booted {
    unshare: Child,
    group: PathBuf,
    shared: PathBuf,
}

/// # Errors
/// The machine lacks something, or the unit does not do what it has to.
pub fn main() -> Result<ExitCode> {
    for (file, package) in NEEDS {
        ensure!(Path::new(file).exists(), "{file} is missing; install {package}");
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can make the namespaces for a systemd"
    );
    let booted = Booted::boot()?;
    let status = booted.inside(&["sh", "/mnt/shared/checks.sh"])?.status()?;
    if !status.success() {
        println!("the store said:\n{}", booted.read("output"));
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks the store at `socket` to hand over to `program`.
///
/// # Errors
/// It does not.
pub fn update(socket: &Path, program: &str) -> Result<ExitCode> {
    let mut operator = Connection::open(socket)?;
    for words in [["live-update", "-f", program].as_slice(), &["live-update", "-s", "-t", "30"]] {
        let payload = [words.join("\0").as_bytes(), b"\0"].concat();
        let answer = operator.call(MessageType::Control, 0, &payload)?;
        let text = String::from_utf8_lossy(&answer);
        ensure!(answer == b"OK\0", "{}: {text}", words.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

impl Booted {
    fn boot() -> Result<Self> {
        let shared = Self::prepare_folder()?;
        let group = group_of_ours()?;
        let log = fs::File::create(shared.join("boot.log"))?;
        // The group is joined first, as the namespace of groups begins where its maker is.
        let line = r#"echo $$ >"$0/cgroup.procs" && exec unshare --mount --pid --fork --cgroup --ipc --uts --kill-child bash "$1/boot.sh" "$1""#;
        let unshare = Command::new("sh")
            .args(["-c", line])
            .args([&group, &shared])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("sh does not start")?;
        let mut booted = Self { unshare, group, shared };
        let started = Instant::now();
        loop {
            let is_up = booted.inside(&["systemctl", "show", "--property", "Version"]);
            if let Ok(mut asked) = is_up
                && asked.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success()
            {
                return Ok(booted);
            }
            let ended = booted.unshare.try_wait()?;
            if ended.is_some() || started.elapsed() > BOOT_MAX {
                bail!("systemd does not start ({ended:?}): {}", booted.read("boot.log"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What both sides see: the programs, the unit, the scripts, and the store's host.
    fn prepare_folder() -> Result<PathBuf> {
        let [store, client] = ["xylem-xenstored", "xy"].map(Target::Program);
        cargo::build(&[store, client])?;
        let shared = std::env::temp_dir().join(format!("xylem-unit-{}", std::process::id()));
        fs::create_dir_all(shared.join("host"))?;
        let dist = lab::workspace().join("dist");
        let copies = [
            (cargo::path(store)?, "xylem-xenstored"),
            (cargo::path(client)?, "xy"),
            (std::env::current_exe()?, "xtask"),
            (dist.join("xylem-xenstored.service"), "xylem-xenstored.service"),
            (dist.join("xylem-xenstored.sysusers"), "xylem-xenstored.sysusers"),
        ];
        for (from, name) in copies {
            fs::copy(&from, shared.join(name))
                .with_context(|| format!("cannot copy {}", from.display()))?;
        }
        fs::write(shared.join("boot.sh"), BOOT)?;
        fs::write(shared.join("checks.sh"), CHECKS)?;
        Ok(shared)
    }

    /// A command beside the systemd.
    fn inside(&self, words: &[&str]) -> Result<Command> {
        let unshare = self.unshare.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
        let init = children.split_whitespace().next().context("no process in there")?;
        let mut command = Command::new("nsenter");
        command.args(["--target", init, "--mount", "--pid", "--cgroup"]).args(words);
        Ok(command)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.shared.join(file)).unwrap_or_default()
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // With it goes the systemd, and with that everything in its namespace.
        let _ended = self.unshare.kill();
        let _status = self.unshare.wait();
        for _ in 0..100 {
            if remove_groups(&self.group).is_ok() {
                break;
            }
            // Processes that are ending are still in there.
            std::thread::sleep(Duration::from_millis(50));
        }
        let _left = fs::remove_dir_all(&self.shared);
    }
}

/// A control group for the systemd to rule over.
fn group_of_ours() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.find(|fields| fields.get(2) == Some(&"cgroup2"));
    let mount = mount.and_then(|fields| fields.get(1).copied()).context("no cgroup2 is mounted")?;
    let group = Path::new(mount).join(format!("xylem-unit-{}", std::process::id()));
    fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
    Ok(group)
}

fn remove_groups(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_groups(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
