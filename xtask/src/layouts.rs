//! `cargo xtask layouts`: our layouts against the public headers of each Xen that Debian has.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use lab::cargo;
use lab::packages::{Apt, unpack};

/// Suites beside the machine's own, whose headers the test reads anyway.
const SUITES: [&str; 1] = ["trixie"];
const PACKAGE: &str = "libxen-dev";

/// Runs the test of layouts on the machine's headers and on those of newer suites, as far as they are
/// available.
///
/// # Errors
/// A layout differs.
pub(crate) fn main() -> Result<ExitCode> {
    check("this machine's", None)?;
    for suite in SUITES {
        match headers(suite) {
            Ok((version, folder)) => check(&format!("{suite}'s ({version})"), Some(&folder))?,
            Err(error) => println!("layouts: {suite}'s headers are left out: {error:#}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(whose: &str, headers: Option<&std::path::Path>) -> Result<()> {
    println!("layouts: {whose} headers");
    let mut command = cargo::cargo();
    command.args(["test", "--quiet", "--package", "xen", "--test", "it"]);
    // As CI builds all tests.
    cargo::for_platform(&mut command).args(["--", "layouts"]);
    if let Some(headers) = headers {
        command.env("XEN_HEADERS", headers);
    }
    cargo::run(&mut command, &format!("our layouts are not those of {whose} headers"))
}

/// The version of a suite's package, and the folder in which its `xen/xen.h` is.
fn headers(suite: &str) -> Result<(String, std::path::PathBuf)> {
    let cache = lab::cache_directory()?;
    let apt = Apt::of_suite(suite, &cache)?;
    let names = [PACKAGE.to_owned()];
    let packages = apt.resolve(&names)?;
    let files = apt.download(&names, &packages, &cache.join("packages"))?;
    let package = packages.first().context("apt resolved nothing")?;
    let version = package.file.split('_').nth(1).unwrap_or("unknown version").to_owned();
    let folder = cache.join(format!("headers-{suite}-{}", &package.sha256[..16]));
    let include = folder.join("usr/include");
    if !include.join("xen/xen.h").is_file() {
        std::fs::create_dir_all(&folder)?;
        unpack(files.first().context("apt downloaded nothing")?, &folder)?;
    }
    ensure!(include.join("xen/xen.h").is_file(), "{PACKAGE} of {suite} has no xen/xen.h");
    Ok((version, include))
}
