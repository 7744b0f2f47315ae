//! Programs of the machine that the lab needs: found, or installed through apt when we are root.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::PROGRESS;

/// How often a line says how far an installation is.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A program to start, which ends with this one even if this one is killed.
#[must_use]
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A program, the Debian package it comes in, and what the lab does with it.
struct Tool {
    program: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        purpose: "emulates the machine that Xen runs on",
    },
    Tool { program: "xz", package: "xz-utils", purpose: "unpacks the dom0 kernel ahead of boot" },
    Tool { program: "mke2fs", package: "e2fsprogs", purpose: "makes the guests' disk image" },
    Tool {
        program: "setpriv",
        package: "util-linux",
        purpose: "ends QEMU and servers when their starter is killed",
    },
];

const DEBIAN_TOOLS: &[Tool] = &[
    Tool { program: "zstd", package: "zstd", purpose: "unpacks the kernel of Debian 13" },
    Tool { program: "mmdebstrap", package: "mmdebstrap", purpose: "installs Debian into a folder" },
    Tool {
        program: "qemu-img",
        package: "qemu-utils",
        purpose: "keeps what a run writes apart from the image",
    },
];

const SFDISK: Tool =
    Tool { program: "sfdisk", package: "fdisk", purpose: "partitions the disks of guests" };

const SSH_KEYGEN: Tool = Tool {
    program: "ssh-keygen",
    package: "openssh-client",
    purpose: "makes the key with which two hosts know each other",
};

/// Where a program of that name is, with the `sbin` directories that `PATH` may leave out.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Makes sure that every tool is there.
///
/// # Errors
/// This is no Debian, or a package is missing and we may not or could not install it.
pub fn require_all() -> Result<()> {
    if find("apt-get").is_none() || find("dpkg").is_none() {
        bail!("the lab takes Xen from Debian packages and needs apt-get and dpkg (Debian 12)");
    }
    require(TOOLS)
}

/// Makes sure that keys can be made.
///
/// # Errors
/// As for [`require_all`].
pub(crate) fn require_ssh_keygen() -> Result<()> {
    require(&[SSH_KEYGEN])
}

/// Makes sure that a guest's image can be made.
///
/// # Errors
/// As for [`require_all`].
pub(crate) fn require_for_cloud_images() -> Result<()> {
    require(DEBIAN_TOOLS)?;
    require(&[SFDISK])
}

/// Makes sure that a Debian host can be made.
///
/// # Errors
/// As for [`require_all`].
pub(crate) fn require_for_debian() -> Result<()> {
    require(DEBIAN_TOOLS)
}

fn require(tools: &[Tool]) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| find(tool.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    for tool in &missing {
        eprintln!("lab: {} is missing; it {}", tool.program, tool.purpose);
    }
    install(&packages)
}

/// Installs Debian packages, saying so.
///
/// # Errors
/// We are not root, or apt-get fails.
pub fn install(packages: &[&str]) -> Result<()> {
    if !is_root() {
        bail!("install the missing packages first: apt-get install {}", packages.join(" "));
    }
    eprintln!("lab: apt-get install {}", packages.join(" "));
    super::packages::update_lists_if_missing()?;
    let mut command = Command::new("apt-get");
    command
        .args(["install", "-y", "-qq", "--no-install-recommends", "-o", "APT::Status-Fd=1"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("apt-get does not start")?;
    let output = child.stdout.take().context("apt-get has no output")?;
    let mut told = Instant::now();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some((percent, what)) = apt_status(&line)
            && told.elapsed() >= LINE_INTERVAL
        {
            told = Instant::now();
            eprintln!("{PROGRESS}installing: {percent} %, {what}");
        }
    }
    if !child.wait()?.success() {
        bail!("apt-get install {} failed", packages.join(" "));
    }
    Ok(())
}

/// How far apt is and at what, from a line that it writes for programs: `dlstatus:3:42.5:Retrieving file 3 of 9`.
fn apt_status(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.splitn(4, ':');
    let doing = match fields.next()? {
        "dlstatus" => "downloading",
        "pmstatus" => "",
        _ => return None,
    };
    let package = fields.next()?;
    let percent = fields.next()?.split('.').next()?;
    // A package's name says more than what dpkg does with it.
    Some((percent, if doing.is_empty() { package } else { doing }))
}

/// Runs a tool to its end, with nothing to read.
///
/// # Errors
/// It does not start, or fails; with what it said.
pub(crate) fn run(command: &mut Command, purpose: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} does not start"))?;
    if !output.status.success() {
        bail!("{program} cannot {purpose}:\n{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apts_lines_for_programs_say_how_far_it_is() {
        for (line, found) in [
            ("dlstatus:3:42.5:Retrieving file 3 of 9", Some(("42", "downloading"))),
            (
                "pmstatus:qemu-utils:71.1538:Unpacking qemu-utils (amd64)",
                Some(("71", "qemu-utils")),
            ),
            ("Selecting previously unselected package", None),
            ("pmstatus:dpkg-exec", None),
        ] {
            assert_eq!(apt_status(line), found, "{line}");
        }
    }
}
