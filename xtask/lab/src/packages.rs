//! Debian packages: resolved, downloaded, verified and unpacked, outside the checkout.
//!
//! Versions are whatever apt would install today; nothing here names one. A package file in the
//! cache is used again as long as apt still names it with the same hash.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{host_tools, progress};

/// One package file as apt resolves it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Package {
    /// File name with version and architecture.
    pub file: String,
    pub size_bytes: u64,
    pub sha256: String,
}

/// The package client, on this machine's own suite or on another one of the same mirror.
#[derive(Debug)]
pub struct Apt {
    /// Settings that keep it apart from the machine's own state.
    settings: Option<PathBuf>,
    suite: String,
}

impl Apt {
    /// This machine's packages. Fetches apt's lists if there are none yet.
    ///
    /// # Errors
    /// There are none and they cannot be fetched.
    pub fn of_machine() -> Result<Self> {
        update_lists_if_missing()?;
        Ok(Self { settings: None, suite: "Debian 12".to_owned() })
    }

    /// Another suite of the mirrors that this machine is set to, below `cache` and beside the machine's
    /// own lists, which stay as they are.
    ///
    /// # Errors
    /// The machine's sources cannot be read or name no suite, or the suite's lists cannot be fetched.
    pub fn of_suite(suite: &str, cache: &Path) -> Result<Self> {
        let folder = cache.join(format!("apt-{suite}"));
        for part in ["parts", "state/lists/partial", "archives/partial"] {
            std::fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        write_sources(suite, &folder.join("parts"))?;
        std::fs::write(folder.join("status"), "")?;
        let at = folder.display();
        let settings = format!(
            "Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"{at}/parts\";\n\
             Dir::State \"{at}/state\";\nDir::State::status \"{at}/status\";\n\
             Dir::Cache \"{at}\";\nAPT::Sandbox::User \"root\";\n"
        );
        let path = folder.join("apt.conf");
        std::fs::write(&path, settings)?;
        let apt = Self { settings: Some(path), suite: suite.to_owned() };
        if !has_lists(&folder.join("state/lists")) {
            apt.update()?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Some(settings) = &self.settings {
            command.env("APT_CONFIG", settings);
        }
        command
    }

    fn update(&self) -> Result<()> {
        if self.settings.is_none() {
            return update_lists();
        }
        eprintln!("lab: apt-get update for {}", self.suite);
        let status = self
            .command("apt-get")
            .args(["update", "-qq"])
            // The error is reported below, without the mirror's name.
            .stderr(Stdio::null())
            .status()
            .context("apt-get does not start")?;
        ensure!(
            status.success(),
            "the lists of {} cannot be fetched; does this machine's mirror have that suite?",
            self.suite
        );
        Ok(())
    }

    /// What `names` resolve to, in that order or apt's.
    ///
    /// # Errors
    /// apt does not know one of the names, even after its lists were updated.
    pub fn resolve(&self, names: &[String]) -> Result<Vec<Package>> {
        let print = || {
            self.command("apt-get")
                .args(["download", "--print-uris", "-qq"])
                .args(names)
                .stderr(Stdio::piped())
                .output()
                .context("apt-get does not start")
        };
        let mut output = print()?;
        if !output.status.success() && self.update().is_ok() {
            output = print()?;
        }
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("apt cannot resolve packages of {}: {}", self.suite, message.trim());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let packages: Vec<Package> = text.lines().filter_map(parse_uri_line).collect();
        ensure!(
            packages.len() == names.len(),
            "apt resolved {} of {} packages of {} with a SHA256",
            packages.len(),
            names.len(),
            self.suite,
        );
        Ok(packages)
    }

    /// The first dependency of `name`: how a metapackage names the real kernel package.
    ///
    /// # Errors
    /// The package is unknown or depends on nothing.
    pub fn first_dependency(&self, name: &str) -> Result<String> {
        let output = self
            .command("apt-cache")
            .args(["show", "--no-all-versions", name])
            .output()
            .context("apt-cache does not start")?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .find_map(|line| line.strip_prefix("Depends: "))
            .and_then(|depends| depends.split([' ', ',']).next())
            .map(str::to_owned)
            .with_context(|| {
                format!("apt knows no package {name}: the lab needs Debian 12's sources")
            })
    }

    /// Puts `packages` into `directory`, verified; returns their paths.
    ///
    /// # Errors
    /// A download fails or a file differs from the hash that apt's signed lists give.
    pub fn download(
        &self,
        names: &[String],
        packages: &[Package],
        directory: &Path,
    ) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let is_here = |package: &Package| directory.join(&package.file).is_file();
        if !packages.iter().all(is_here) {
            let missing = packages.iter().filter(|package| !is_here(package));
            let bytes = missing.map(|package| package.size_bytes).sum();
            eprintln!("lab: downloading packages of {} into {}", self.suite, directory.display());
            // Into a directory of our own, so that two labs may start at once.
            let partial = directory.join(format!("partial-{}", std::process::id()));
            std::fs::create_dir_all(&partial)?;
            let fetched = progress::while_filling(&partial, bytes, || self.fetch(names, &partial));
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
                let wanted = &package.sha256;
                bail!("{} has SHA256 {found}, apt says {wanted}; removed", path.display());
            }
        }
        Ok(packages.iter().map(|package| directory.join(&package.file)).collect())
    }

    fn fetch(&self, names: &[String], directory: &Path) -> Result<()> {
        let attempt = || {
            self.command("apt-get")
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
        self.update().context("the download failed and apt's lists cannot be updated")?;
        ensure!(attempt()?.success(), "apt-get download failed; is the Debian mirror reachable?");
        Ok(())
    }
}

/// Writes this machine's sources, with another suite in the place of its own, into `folder`; returns the files.
///
/// # Errors
/// The machine's sources cannot be read, or name no suite.
pub(crate) fn write_sources(suite: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let own = machines_suite()?;
    let mut written = Vec::new();
    for path in source_files() {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let changed = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => other_suite_of_stanzas(&text, &own, suite),
            _ => other_suite_of_lines(&text, &own, suite),
        };
        if !changed.is_empty() {
            let name = path.file_name().context("a file of apt's sources has no name")?;
            std::fs::write(folder.join(name), changed)?;
            written.push(folder.join(name));
        }
    }
    ensure!(!written.is_empty(), "no source of this machine's apt has packages of {own}");
    Ok(written)
}

/// The suite that this machine was installed from, as `/etc/os-release` has it.
fn machines_suite() -> Result<String> {
    let text = std::fs::read_to_string("/etc/os-release").context("there is no /etc/os-release")?;
    text.lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release has no VERSION_CODENAME")
}

/// The files in which apt's sources are.
fn source_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    for entry in std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten() {
        files.push(entry.path());
    }
    let is_source = |path: &PathBuf| {
        path.is_file()
            && matches!(path.extension().and_then(|it| it.to_str()), Some("list" | "sources"))
    };
    files.retain(is_source);
    files
}

/// Whether a word names the suite or one of its kin, as `bookworm-updates` is of `bookworm`.
fn is_of(word: &str, suite: &str) -> bool {
    word.strip_prefix(suite).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The stanzas of a `.sources` file that have `own`, with `suite` in its place.
fn other_suite_of_stanzas(text: &str, own: &str, suite: &str) -> String {
    let mut changed = String::new();
    for stanza in text.split("\n\n") {
        let suites = |line: &str| line.strip_prefix("Suites:").map(str::to_owned);
        let has_own = stanza
            .lines()
            .filter_map(suites)
            .any(|suites| suites.split_whitespace().any(|word| is_of(word, own)));
        if !has_own {
            continue;
        }
        for line in stanza.lines() {
            match suites(line) {
                Some(suites) => {
                    changed += "Suites:";
                    for word in suites.split_whitespace().filter(|word| is_of(word, own)) {
                        changed += " ";
                        changed += &word.replacen(own, suite, 1);
                    }
                }
                None => changed += line,
            }
            changed += "\n";
        }
        changed += "\n";
    }
    changed
}

/// The lines of a `.list` file that have `own`, with `suite` in its place.
fn other_suite_of_lines(text: &str, own: &str, suite: &str) -> String {
    let mut changed = String::new();
    for line in text.lines().filter(|line| line.starts_with("deb ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.iter().any(|word| is_of(word, own)) {
            let replaced = words.iter().map(|word| match is_of(word, own) {
                true => word.replacen(own, suite, 1),
                false => (*word).to_owned(),
            });
            changed += &replaced.collect::<Vec<_>>().join(" ");
            changed += "\n";
        }
    }
    changed
}

/// Unpacks one package file into `root`.
///
/// # Errors
/// dpkg fails.
pub fn unpack(package: &Path, root: &Path) -> Result<()> {
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
pub fn sha256_of_file(path: &Path) -> Result<String> {
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
pub fn update_lists_if_missing() -> Result<()> {
    if has_lists(Path::new("/var/lib/apt/lists")) { Ok(()) } else { update_lists() }
}

fn has_lists(folder: &Path) -> bool {
    let is_list = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
    };
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_list))
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
    let size_bytes = words.next()?.parse().ok()?;
    let sha256 = words.next()?.strip_prefix("SHA256:")?.to_owned();
    Some(Package { file, size_bytes, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_suite_takes_the_place_of_the_machines_and_other_sources_are_left_out() {
        let stanzas = "Types: deb\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\
                       Components: main\n\nTypes: deb\nURIs: http://other\nSuites: nodistro\n";
        assert_eq!(
            other_suite_of_stanzas(stanzas, "bookworm", "trixie"),
            "Types: deb\nURIs: http://mirror/debian\nSuites: trixie trixie-updates\n\
             Components: main\n\n"
        );
        let lines = "# deb http://mirror/debian bookworm main\n\
                     deb http://mirror/debian bookworm-security main\ndeb http://other stable main\n";
        assert_eq!(
            other_suite_of_lines(lines, "bookworm", "trixie"),
            "deb http://mirror/debian trixie-security main\n"
        );
    }

    #[test]
    fn a_uri_line_gives_file_and_hash_and_other_lines_give_nothing() {
        let line = "'http://mirror/x%2b1.deb' x_1%3a1+1_amd64.deb 928188 SHA256:3d3f";
        let file = "x_1%3a1+1_amd64.deb".into();
        let package = Package { file, size_bytes: 928_188, sha256: "3d3f".into() };
        assert_eq!(parse_uri_line(line), Some(package));
        for other in ["", "E: no such package", "'http://mirror/x.deb' x.deb 1 MD5Sum:00"] {
            assert_eq!(parse_uri_line(other), None);
        }
    }
}
