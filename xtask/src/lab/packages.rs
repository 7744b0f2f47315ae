//! Debian packages: resolved, downloaded, verified and unpacked, outside the checkout.
//!
//! Versions are whatever apt would install today; nothing here names one. A package file in the
//! cache is used again as long as apt still names it with the same hash.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::host_tools;

/// One package file as apt resolves it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Package {
    /// File name with version and architecture.
    pub file: String,
    pub sha256: String,
}

/// What `names` resolve to, in that order or apt's.
///
/// # Errors
/// apt does not know one of the names, even after its lists were updated.
pub(crate) fn resolve(names: &[String]) -> Result<Vec<Package>> {
    update_lists_if_missing()?;
    let print = || {
        Command::new("apt-get")
            .args(["download", "--print-uris", "-qq"])
            .args(names)
            .stderr(Stdio::piped())
            .output()
            .context("apt-get does not start")
    };
    let mut output = print()?;
    if !output.status.success() && update_lists().is_ok() {
        output = print()?;
    }
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("apt cannot resolve the lab's packages (it needs Debian 12): {}", message.trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let packages: Vec<Package> = text.lines().filter_map(parse_uri_line).collect();
    ensure!(
        packages.len() == names.len(),
        "apt resolved {} of {} packages with a SHA256; its answer was:\n{text}",
        packages.len(),
        names.len(),
    );
    Ok(packages)
}

/// The first dependency of `name`: how a metapackage names the real kernel package.
///
/// # Errors
/// The package is unknown or depends on nothing.
pub(crate) fn first_dependency(name: &str) -> Result<String> {
    update_lists_if_missing()?;
    let output = Command::new("apt-cache")
        .args(["show", "--no-all-versions", name])
        .output()
        .context("apt-cache does not start")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find_map(|line| line.strip_prefix("Depends: "))
        .and_then(|depends| depends.split([' ', ',']).next())
        .map(str::to_owned)
        .with_context(|| format!("apt knows no package {name}: the lab needs Debian 12's sources"))
}

/// Puts `packages` into `directory`, verified; returns their paths.
///
/// # Errors
/// A download fails or a file differs from the hash that apt's signed lists give.
pub(crate) fn download(
    names: &[String],
    packages: &[Package],
    directory: &Path,
) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let is_here = |package: &Package| directory.join(&package.file).is_file();
    if !packages.iter().all(is_here) {
        eprintln!("lab: downloading Debian packages into {}", directory.display());
        // Into a directory of our own, so that two labs may start at once.
        let partial = directory.join(format!("partial-{}", std::process::id()));
        std::fs::create_dir_all(&partial)?;
        let fetched = fetch(names, &partial);
        for entry in std::fs::read_dir(&partial)?.flatten() {
            if fetched.is_ok() && entry.path().is_file() {
                std::fs::rename(entry.path(), directory.join(entry.file_name()))?;
            }
        }
        std::fs::remove_dir_all(&partial)?;
        fetched?;
    }
    for package in packages {
        let path = directory.join(&package.file);
        let found = sha256_of_file(&path)?;
        if found != package.sha256 {
            let _ = std::fs::remove_file(&path);
            bail!("{} has SHA256 {found}, apt says {}; removed", path.display(), package.sha256);
        }
    }
    Ok(packages.iter().map(|package| directory.join(&package.file)).collect())
}

fn fetch(names: &[String], directory: &Path) -> Result<()> {
    let attempt = || {
        Command::new("apt-get")
            // Root's apt would switch to its own user, who may not write here.
            .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
            .args(names)
            .current_dir(directory)
            .status()
            .context("apt-get does not start")
    };
    if attempt()?.success() {
        return Ok(());
    }
    // Lists that are too old name files that the mirror has replaced.
    update_lists().context("the download failed and apt's lists cannot be updated")?;
    ensure!(attempt()?.success(), "apt-get download failed; is the Debian mirror reachable?");
    Ok(())
}

/// Unpacks one package file into `root`.
///
/// # Errors
/// dpkg fails.
pub(crate) fn unpack(package: &Path, root: &Path) -> Result<()> {
    let status = Command::new("dpkg")
        .arg("-x")
        .args([package, root])
        .status()
        .context("dpkg does not start")?;
    ensure!(status.success(), "dpkg -x {} failed", package.display());
    Ok(())
}

/// Hash of a file's bytes, in hexadecimal.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn sha256_of_file(path: &Path) -> Result<String> {
    let output =
        Command::new("sha256sum").arg(path).output().context("sha256sum does not start")?;
    ensure!(
        output.status.success(),
        "cannot hash {}: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    // A name with unusual characters makes sha256sum put a backslash in front.
    Ok(text.trim_start_matches('\\').split(' ').next().unwrap_or_default().to_owned())
}

/// Fetches apt's lists if there are none yet.
///
/// # Errors
/// There are none and they cannot be fetched.
pub(crate) fn update_lists_if_missing() -> Result<()> {
    let is_list = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
    };
    let have_lists =
        std::fs::read_dir("/var/lib/apt/lists").is_ok_and(|mut entries| entries.any(is_list));
    if have_lists { Ok(()) } else { update_lists() }
}

fn update_lists() -> Result<()> {
    ensure!(host_tools::is_root(), "apt's lists are missing or too old: run `apt-get update`");
    eprintln!("lab: apt-get update");
    let status = Command::new("apt-get")
        .args(["update", "-qq"])
        .status()
        .context("apt-get does not start")?;
    ensure!(status.success(), "apt-get update failed; is the Debian mirror reachable?");
    Ok(())
}

/// `'URI' FILE SIZE SHA256:HASH`
fn parse_uri_line(line: &str) -> Option<Package> {
    let mut words = line.split_whitespace();
    words.next()?.strip_prefix('\'')?;
    let file = words.next()?.to_owned();
    words.next()?;
    let sha256 = words.next()?.strip_prefix("SHA256:")?.to_owned();
    Some(Package { file, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_line_gives_file_and_hash_and_other_lines_give_nothing() {
        let line = "'http://mirror/x%2b1.deb' x_1%3a1+1_amd64.deb 928188 SHA256:3d3f";
        let package = Package { file: "x_1%3a1+1_amd64.deb".into(), sha256: "3d3f".into() };
        assert_eq!(parse_uri_line(line), Some(package));
        for other in ["", "E: no such package", "'http://mirror/x.deb' x.deb 1 MD5Sum:00"] {
            assert_eq!(parse_uri_line(other), None);
        }
    }
}
