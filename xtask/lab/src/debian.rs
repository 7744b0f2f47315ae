//! A Debian host as people have it: systemd, Debian's Xen packages, a root file system on a disk.
//!
//! ```text
//! mmdebstrap -> image (cached): xen, vmlinux, initrd, root.img --+
//! scenario, packages of ours, guests -> a disk of this run ------+-> machine -> session
//! ```
//! What a host writes to its disks goes with the run.

mod cloud_image;
mod host_image;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::Software;
use super::overlay::{self, Unikernel};
use super::session::{self, Patience, Plan, ScratchFolder};
use super::{GuestKernel, Mode, Options, Outcome, Series, cpio, host_tools, image};

pub use host_image::Suite;
use host_image::{Image, make_file_system, put};

const START: &str = include_str!("../../../lab/debian/start.sh");
const LIB: &str = include_str!("../../../lab/lib.sh");
const LIB_DEBIAN: &str = include_str!("../../../lab/debian/lib.sh");

/// With this line a scenario gets a guest's disk as clouds have it, in `/guest`.
const CLOUD_GUEST: &str = "# lab-guest: cloud";

const KERNEL_ARGUMENTS: &str = "root=/dev/vda rw";

/// Emulated systemd at a low priority takes minutes, and so does its journal.
const PATIENCE: Patience =
    Patience { boot: Duration::from_secs(900), stop: Duration::from_secs(180) };

/// A Debian host to boot.
#[derive(Clone, Debug)]
pub struct Debian {
    pub suite: Suite,
    pub options: Options,
    /// Debian packages of ours; the host finds them in `/lab/packages`.
    pub packages: Vec<PathBuf>,
    /// Those of an earlier commit, in `/lab/older`.
    pub older: Vec<PathBuf>,
}

impl Debian {
    /// Boots the host and does there what `mode` says.
    ///
    /// # Errors
    /// A [`Failure`](super::Failure) if the host died or hung; another error if it could not be set up.
    pub(crate) fn run(&self, mode: &Mode, on_line: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let Image { xen, kernel, initrd, root } = host_image::prepare(self.suite)?;
        let scratch = ScratchFolder::create()?;
        let disks = vec![
            overlay_of(&root, &scratch.0.join("root.qcow2"))?,
            overlay_of(&self.disk(mode, &scratch.0)?, &scratch.0.join("lab.qcow2"))?,
        ];
        session::prepare_results(&self.options.results)?;
        let software = Software {
            xen,
            kernel,
            initrd,
            kernel_arguments: KERNEL_ARGUMENTS,
            disks,
            reboots: true,
        };
        let plan = Plan {
            options: &self.options,
            mode,
            software,
            folder: scratch.0.clone(),
            side: None,
            patience: PATIENCE,
        };
        session::run_plan(&plan, on_line)
    }

    /// The disk with what belongs to this run.
    fn disk(&self, mode: &Mode, scratch: &Path) -> Result<PathBuf> {
        let folder = scratch.join("lab");
        put(&folder.join("start"), START)?;
        put(&folder.join("lib.sh"), LIB)?;
        put(&folder.join("lib-debian.sh"), LIB_DEBIAN)?;
        put(&folder.join("settings"), settings(mode))?;
        if let Mode::Scenario { text, .. } = mode {
            put(&folder.join("scenario"), text)?;
            if text.lines().any(|line| line == CLOUD_GUEST) {
                let target = folder.join("guest").join(cloud_image::file_name(self.suite));
                put(&target, "")?;
                std::fs::copy(cloud_image::prepare(self.suite)?, &target)?;
            }
        }
        for (packages, place) in [(&self.packages, "packages"), (&self.older, "older")] {
            for package in packages {
                let name = package.file_name().context("a package has no name")?;
                put(&folder.join(place).join(name), image::read(package)?)?;
            }
        }
        let small = image::prepare(Series::default())?;
        let archive = image::read(&small.root)?;
        for name in ["guest/vmlinuz", "guest/initramfs", "guest/disk.img"] {
            let content = cpio::content(&archive, name)
                .with_context(|| format!("there is no {name} in {}", small.root.display()))?;
            put(&folder.join(name), content)?;
        }
        if self.options.guest_kernel == GuestKernel::AlsoUnpacked {
            put(&folder.join("guest/vmlinux"), image::read(&small.kernel)?)?;
        }
        if let Some(path) = overlay::unikernel(self.options.build, Unikernel::Small)? {
            put(&folder.join("guest/unikernel"), image::read(&path)?)?;
        }
        for file in &self.options.files {
            let target = folder.join("files").join(file.dom0.trim_start_matches('/'));
            put(&target, "")?;
            std::fs::copy(&file.host, &target)
                .with_context(|| format!("cannot take {} along", file.host.display()))?;
        }
        let disk = scratch.join("lab.img");
        make_file_system(&folder, "1G", &disk, &[])?;
        Ok(disk)
    }
}

/// A disk that takes what is written, so that the image stays as it is.
fn overlay_of(base: &Path, path: &Path) -> Result<PathBuf> {
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).args([base, path]);
    host_tools::run(&mut command, &format!("make an overlay of {}", base.display()))?;
    Ok(path.to_owned())
}

/// Shell text that `start.sh` reads.
fn settings(mode: &Mode) -> String {
    match mode {
        Mode::Scenario { arguments, .. } => {
            format!("mode=scenario\nset --{}\n", overlay::quoted(arguments))
        }
        Mode::Shell { rows, columns } => format!("mode=shell\nrows={rows}\ncolumns={columns}\n"),
    }
}
