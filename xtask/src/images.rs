//! `cargo xtask images`: VMs of damaged kernels and ramdisks on the simulated host, none of which may do harm.
//!
//! The images are those of the lab, so that real ones are damaged: Debian's kernel, packed and unpacked, the
//! guests' initramfs, our own guest kernel. Where the lab cannot run, hand-made ones have to do.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use lexopt::prelude::*;

use lab::cargo;

const HELP: &str = "\
cargo xtask images [--count N] [--seed N] [--seconds N] [--case N]

Damages the lab's kernels and ramdisks in N ways (default 10000), and makes a VM of each on the simulated
host. Fails at the first that crashes, takes more than a second, leaves something behind or is not named.

  --seconds N   stop after that time, with as many as were done by then
  --case N      only that one";

/// Runs the command with the rest of the command line.
///
/// # Errors
/// An image did harm, or the program does not build.
pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut arguments = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long(name @ ("count" | "seed" | "seconds" | "case")) => {
                let name = format!("--{name}");
                arguments.extend([name, parser.value()?.string()?]);
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    run(&arguments)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs it with these arguments.
///
/// # Errors
/// As for [`main`].
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let originals = match lab_images() {
        Ok(originals) => originals,
        Err(error) => {
            println!("images: without the lab's: {error:#}");
            Vec::new()
        }
    };
    let mut command = cargo::example("images")?;
    command.args(arguments);
    command.args(originals.iter().map(|(role, path)| format!("{role}={}", path.display())));
    cargo::run(&mut command, "a damaged image did harm; --case runs it again")
}

/// The lab's images as files: what they are, and where.
fn lab_images() -> Result<Vec<(&'static str, PathBuf)>> {
    let image = lab::image(lab::Series::default())?;
    let folder = lab::target_directory()?.join("images");
    std::fs::create_dir_all(&folder)?;
    let root = std::fs::read(&image.root)
        .with_context(|| format!("cannot read {}", image.root.display()))?;
    // A copy: the cache keeps few images.
    let vmlinux = folder.join("vmlinux");
    std::fs::copy(&image.kernel, &vmlinux)
        .with_context(|| format!("cannot copy {}", image.kernel.display()))?;
    let mut originals = vec![("kernel", vmlinux)];
    for (role, name) in [("kernel", "guest/vmlinuz"), ("ramdisk", "guest/initramfs")] {
        let content =
            lab::archived(&root, name).with_context(|| format!("no {name} in the lab"))?;
        let path = folder.join(Path::new(name).file_name().unwrap_or_default());
        std::fs::write(&path, content)?;
        originals.push((role, path));
    }
    let unikernel = lab::target_directory()?.join("guest/release/unikernel");
    if unikernel.is_file() {
        originals.push(("kernel", unikernel));
    }
    Ok(originals)
}
