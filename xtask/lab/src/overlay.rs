//! The part of dom0's root file system that belongs to one run: scripts, settings, the scenario
//! and freshly built programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use super::image::Image;
use super::pair::{Keys, Membership};
use super::{Build, ExtraFile, GuestKernel, Mode, Options};
use crate::cargo;

const INIT: &str = include_str!("../../../lab/init.sh");
/// Scripts that scenarios share, by their names below `/lab`.
const SCRIPTS: &[(&str, &str)] = &[
    ("lib.sh", include_str!("../../../lab/lib.sh")),
    ("lib-pair.sh", include_str!("../../../lab/lib-pair.sh")),
    ("storage.sh", include_str!("../../../lab/storage.sh")),
    ("storage-files.sh", include_str!("../../../lab/storage-files.sh")),
    ("storage-iscsi.sh", include_str!("../../../lab/storage-iscsi.sh")),
    ("storage-lvm.sh", include_str!("../../../lab/storage-lvm.sh")),
    ("storage-driver.sh", include_str!("../../../lab/storage-driver.sh")),
    ("demo.bash", include_str!("../../../lab/demo.bash")),
    ("bench-create.bash", include_str!("../../../lab/bench-create.bash")),
    ("bench-earlier.bash", include_str!("../../../lab/bench-earlier.bash")),
    ("bench-mass.bash", include_str!("../../../lab/bench-mass.bash")),
    ("bench-list.bash", include_str!("../../../lab/bench-list.bash")),
    ("bench-plug.bash", include_str!("../../../lab/bench-plug.bash")),
    ("bench-save.bash", include_str!("../../../lab/bench-save.bash")),
    ("bench-suspend.bash", include_str!("../../../lab/bench-suspend.bash")),
    ("soak.bash", include_str!("../../../lab/soak.bash")),
    ("soak-vms.bash", include_str!("../../../lab/soak-vms.bash")),
    ("soak-others.bash", include_str!("../../../lab/soak-others.bash")),
];

/// Xylem's programs, which go into the image.
pub const PROGRAMS: [cargo::Target<'_>; 4] = [
    cargo::Target::Program("xylem-xenstored"),
    cargo::Target::Program("xylemd"),
    cargo::Target::Program("xylem-web"),
    cargo::Target::Program("xy"),
];

/// The overlay's archive.
///
/// # Errors
/// A build fails, or a file to take along cannot be read.
pub(crate) fn build(
    options: &Options,
    mode: &Mode,
    peer: Option<&Membership>,
    image: &Image,
) -> Result<Vec<u8>> {
    if options.build == Build::Fresh {
        cargo::build(&PROGRAMS)?;
    }
    let mut archive = Archive::default();
    archive.character_device("dev/console", 5, 1);
    archive.file("init", 0o755, INIT.as_bytes());
    for (name, text) in SCRIPTS {
        archive.file(&format!("lab/{name}"), 0o644, text.as_bytes());
    }
    archive.file("lab/settings", 0o644, settings(options, mode, peer).as_bytes());
    if let Some(peer) = peer {
        add_keys(&mut archive, &peer.keys);
    }
    if let Mode::Scenario { text, .. } = mode {
        archive.file("lab/scenario", 0o755, text.as_bytes());
    }
    for program in PROGRAMS {
        if let Some(content) = stripped(&cargo::path(program)?)? {
            archive.file(&format!("usr/local/bin/{}", program.name()), 0o755, &content);
        }
    }
    if let Some(path) = unikernel(options.build, Unikernel::Small)? {
        archive.file("guest/unikernel", 0o644, &std::fs::read(path)?);
    }
    if options.guest_kernel == GuestKernel::AlsoUnpacked {
        archive.file("guest/vmlinux", 0o644, &std::fs::read(&image.kernel)?);
    }
    for file in &options.files {
        add(&mut archive, file)?;
    }
    Ok(archive.finish())
}

/// Where Cargo puts what it builds for this workspace.
///
/// # Errors
/// The current folder is unknown.
pub fn target_directory() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => Ok(std::path::absolute(directory)?),
        None => Ok(workspace().join("target")),
    }
}

/// Root of the checkout.
#[must_use]
pub fn workspace() -> PathBuf {
    // Cargo sets it for `cargo xtask`; the compiled-in path serves a binary started by hand.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.unwrap_or(&manifest).to_owned()
}

/// Builds an example program; dom0 finds it in `/root`.
///
/// # Errors
/// It does not build.
pub fn build_example(name: &str) -> Result<ExtraFile> {
    cargo::build(&[cargo::Target::Example(name)])?;
    built_example(name)
}

/// An example program that was built before.
///
/// # Errors
/// The target folder is unknown.
pub fn built_example(name: &str) -> Result<ExtraFile> {
    let host = cargo::path(cargo::Target::Example(name))?;
    Ok(ExtraFile { host, dom0: format!("/root/{name}") })
}

/// Our own guest kernel for as many devices as a VM may have; dom0 finds it as `/guest/unikernel-wide`.
///
/// # Errors
/// It does not build.
pub fn build_wide_unikernel() -> Result<ExtraFile> {
    let host = unikernel(Build::Fresh, Unikernel::Wide)?.context("the checkout has no guest/")?;
    Ok(ExtraFile { host, dom0: "/guest/unikernel-wide".to_owned() })
}

/// How many devices a guest kernel of ours has room for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unikernel {
    Small,
    Wide,
}

/// Our own guest kernel, if the checkout has one: an ELF file, built by its own workspace.
pub(crate) fn unikernel(build: Build, which: Unikernel) -> Result<Option<PathBuf>> {
    let folder = workspace().join("guest");
    if !folder.join("Cargo.toml").is_file() {
        return Ok(None);
    }
    let (target, features): (_, &[&str]) = match which {
        Unikernel::Small => (target_directory()?.join("guest"), &[]),
        Unikernel::Wide => (target_directory()?.join("guest-wide"), &["--features", "wide"]),
    };
    if build == Build::Fresh {
        let script = folder.join("build.sh");
        let mut command = if script.is_file() {
            Command::new(script)
        } else {
            let mut cargo = cargo::cargo();
            cargo.args(["build", "--release"]).args(features);
            cargo
        };
        command.current_dir(&folder).env("CARGO_TARGET_DIR", &target);
        cargo::build_with(&mut command, "guest/ does not build")?;
    }
    let places = ["release/unikernel", "x86_64-unknown-linux-gnu/release/unikernel"];
    match places.iter().map(|place| target.join(place)).find(|path| path.is_file()) {
        Some(path) => Ok(Some(path)),
        None if build == Build::AsIs => Ok(None),
        None => bail!("guest/ was built, but left no {}/release/unikernel", target.display()),
    }
}

/// A program without its debugging information; `None` if there is no such file.
fn stripped(path: &Path) -> Result<Option<Vec<u8>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let copy = std::env::temp_dir().join(format!("xylem-lab-strip-{}", std::process::id()));
    // Without binutils the program is taken as it is: larger, but the same.
    let strip = Command::new("strip").arg("--strip-debug").arg("-o").arg(&copy).arg(path).status();
    let source = if strip.is_ok_and(|status| status.success()) { &copy } else { path };
    let content = std::fs::read(source);
    let _ = std::fs::remove_file(&copy);
    Ok(Some(content.with_context(|| format!("cannot read {}", path.display()))?))
}

fn add(archive: &mut Archive, file: &ExtraFile) -> Result<()> {
    let target = file.dom0.trim_start_matches('/');
    let content = std::fs::read(&file.host)
        .with_context(|| format!("cannot take {} into dom0", file.host.display()))?;
    let is_program = [&b"\x7fELF"[..], b"#!"].iter().any(|magic| content.starts_with(magic));
    let permissions = if is_program { 0o755 } else { 0o644 };
    archive.file(target, permissions, &content);
    Ok(())
}

/// What lets root of each host in at the other one, without a question. The key is this run's only.
fn add_keys(archive: &mut Archive, keys: &Keys) {
    let Keys { private, public } = keys;
    archive.file("root/.ssh/id_ed25519", 0o600, private);
    archive.file("root/.ssh/authorized_keys", 0o600, format!("{public}\n").as_bytes());
    archive.file("etc/ssh/ssh_host_ed25519_key", 0o600, private);
    let hosts = format!("a,b,steady-a,steady-b {public}\n");
    archive.file("etc/ssh/ssh_known_hosts", 0o644, hosts.as_bytes());
}

/// Shell text that dom0's init reads.
fn settings(options: &Options, mode: &Mode, peer: Option<&Membership>) -> String {
    let store = options.store;
    let host = peer.map(|peer| format!("host={}\n", peer.side)).unwrap_or_default();
    host + &match mode {
        Mode::Scenario { arguments, .. } => {
            format!("store={store}\nmode=scenario\nset --{}\n", quoted(arguments))
        }
        Mode::Shell { rows, columns } => {
            format!("store={store}\nmode=shell\nrows={rows}\ncolumns={columns}\n")
        }
    }
}

/// Words for a shell, each with a space before it.
pub(crate) fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!(" {}", quote(word))).collect()
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_shell() {
        let words = ["plain", "two words", "it's", "$HOME `x` \"", ""].map(str::to_owned);
        let script = quoted(&words);
        let output = Command::new("sh")
            .arg("-c")
            .arg(format!("set --{script}; for word; do echo \"[$word]\"; done"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, "[plain]\n[two words]\n[it's]\n[$HOME `x` \"]\n[]\n");
    }
}
