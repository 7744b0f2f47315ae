//! `cargo xtask package`: Debian packages and a tarball, the same bytes for the same commit.
//!
//! The tool is debhelper, Debian's own: it writes the maintainer scripts for systemd, strips, compresses and links as that
//! distribution wants it, and lintian knows what it does. cargo-deb and nfpm need no Debian to run on, but write those
//! scripts in their own ways. The tarball is for everybody else: the programs are static.

mod notices;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;

use lab::{cargo, workspace};

const HELP: &str = "\
cargo xtask package [--check]

Builds xylem-xenstored_*.deb, xylem_*.deb, xylem-web_*.deb and xylem-*.tar.xz below the target directory, in `package`: the
programs (static, with link-time optimisation), units, manual pages, completion, licences and an SBOM.

  --check    build everything a second time, from nothing, and compare; run lintian";

/// What has to be on this machine, with the packages it comes in.
const NEEDS: [(&str, &str); 3] = [
    ("/usr/bin/dh", "debhelper"),
    ("/usr/bin/dpkg-buildpackage", "dpkg-dev"),
    ("/usr/bin/xz", "xz-utils"),
];
const LINTIAN: (&str, &str) = ("/usr/bin/lintian", "lintian");

/// Packages of the workspace, their programs, and where these go.
const PROGRAMS: [(&str, &str, &str, &str); 4] = [
    ("xenstored", "xylem-xenstored", "sbin", "xylem-xenstored"),
    ("xylemd", "xylemd", "sbin", "xylem"),
    ("xy", "xy", "bin", "xylem"),
    ("web", "xylem-web", "sbin", "xylem-web"),
];
const PACKAGES: [&str; 3] = ["xylem-xenstored", "xylem", "xylem-web"];

pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut checks = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("check") => checks = true,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let (release, folder, made) = make_first(checks)?;
    if checks {
        // What an earlier check has built would only be compared with itself.
        let built = lab::target_directory()?.join("programs-again");
        if built.exists() {
            fs::remove_dir_all(built)?;
        }
        let again = make(&release, &folder.join("again"), "programs-again")?;
        for (one, other) in made.iter().zip(&again) {
            let same = fs::read(one)? == fs::read(other)?;
            ensure!(same, "{} and {} differ", one.display(), other.display());
            println!("the same twice: {}", name_of(one));
        }
        fs::remove_dir_all(folder.join("again"))?;
        lint(&made)?;
    }
    for file in &made {
        println!("{} ({} kB)", file.display(), fs::metadata(file)?.len() / 1000);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the packages of the last commit.
pub(crate) fn build_all() -> Result<()> {
    make_first(false).map(|_| ())
}

fn make_first(checks: bool) -> Result<(Release, PathBuf, Vec<PathBuf>)> {
    let mut needs = NEEDS.to_vec();
    needs.extend(checks.then_some(LINTIAN));
    let missing: Vec<&str> =
        needs.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        lab::install(&missing)?;
    }
    let release = Release::of_head()?;
    let folder = lab::target_directory()?.join("package");
    let made = make(&release, &folder, "programs")?;
    Ok((release, folder, made))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What is packaged.
struct Release {
    /// As Debian compares versions: that of the workspace, the number of commits, and the last one's name.
    version: String,
    commit: String,
    /// Of the commit, in seconds since 1970: the age of all files.
    time: u64,
    date: String,
}

impl Release {
    fn of_head() -> Result<Self> {
        let changed = git(&["status", "--porcelain"])?;
        ensure!(
            changed.is_empty(),
            "commit first: packages are of a commit, and these files differ:\n{changed}"
        );
        let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
        let count = git(&["rev-list", "--count", "HEAD"])?;
        let time =
            git(&["log", "-1", "--format=%ct"])?.parse().context("the time of the commit")?;
        let date = git(&["log", "-1", "--format=%cD"])?;
        let version = format!("{}+r{count}.g{commit}", env!("CARGO_PKG_VERSION"));
        Ok(Self { version, commit, time, date })
    }
}

fn git(words: &[&str]) -> Result<String> {
    let output = Command::new("git").args(words).current_dir(workspace()).output()?;
    ensure!(
        output.status.success(),
        "git {}: {}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Builds and packs all, and returns the files.
fn make(release: &Release, folder: &Path, programs: &str) -> Result<Vec<PathBuf>> {
    crate::page::build()?;
    let built = build(release, programs)?;
    if folder.exists() && folder.join("source").exists() {
        fs::remove_dir_all(folder.join("source"))?;
    }
    let source = folder.join("source");
    let staging = source.join("staging");
    stage(release, &built, &staging)?;
    let mut made = debian(release, folder, &source)?;
    made.push(tarball(release, folder, &staging)?);
    Ok(made)
}

/// Builds the programs in a target folder of that name, and returns where they are.
fn build(release: &Release, name: &str) -> Result<PathBuf> {
    let target = lab::target_directory()?.join(name);
    let mut flags = cargo::FLAGS.map(str::to_owned).to_vec();
    flags.push(format!("--remap-path-prefix={}=xylem", workspace().display()));
    // What lies where differs from machine to machine.
    for (variable, folder, name) in
        [("CARGO_HOME", ".cargo", "cargo"), ("RUSTUP_HOME", ".rustup", "rustup")]
    {
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(folder));
        if let Some(path) = std::env::var_os(variable).map(PathBuf::from).or(home) {
            flags.push(format!("--remap-path-prefix={}={name}", path.display()));
        }
    }
    let mut command = cargo::cargo();
    command.args(["build", "--locked", "--profile", "dist", "--target", cargo::PLATFORM]);
    for (package, ..) in PROGRAMS {
        command.args(["--package", package]);
    }
    command
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("XYLEM_COMMIT", &release.commit)
        .env("SOURCE_DATE_EPOCH", release.time.to_string());
    cargo::build_with(&mut command, "the programs do not build")?;
    Ok(target.join(cargo::PLATFORM).join("dist"))
}

/// Lays out what is installed: a folder for each package.
fn stage(release: &Release, built: &Path, staging: &Path) -> Result<()> {
    for (_, program, place, package) in PROGRAMS {
        put(
            &staging.join(package).join("usr").join(place).join(program),
            &fs::read(built.join(program))?,
            0o755,
        )?;
    }
    let xylem = staging.join("xylem/usr/share");
    let xy = built.join("xy");
    for (words, path) in [
        (&["manual"][..], "man/man1/xy.1"),
        (&["completion", "bash"], "bash-completion/completions/xy"),
        (&["completion", "zsh"], "zsh/vendor-completions/_xy"),
        (&["completion", "fish"], "fish/vendor_completions.d/xy.fish"),
    ] {
        put(&xylem.join(path), &said(&xy, words)?, 0o644)?;
    }
    for (package, program, about) in [
        ("xylem", "xylemd", "toolstack daemon for Xen hosts"),
        ("xylem-xenstored", "xylem-xenstored", "store daemon for Xen hosts"),
        ("xylem-web", "xylem-web", "web page and API of Xen hosts"),
    ] {
        let help = String::from_utf8(said(&built.join(program), &["--help"])?)?;
        let page = daemons_page(program, about, &help);
        let path = staging.join(package).join(format!("usr/share/man/man8/{program}.8"));
        put(&path, page.as_bytes(), 0o644)?;
    }
    for (script, path) in [
        ("auto-start", "xylem/usr/libexec/xylem/auto-start"),
        ("reconnect-consoled", "xylem-xenstored/usr/libexec/xylem-xenstored/reconnect-consoled"),
    ] {
        put(&staging.join(path), &fs::read(workspace().join("dist").join(script))?, 0o755)?;
    }
    let notices = notices::of_programs(&PROGRAMS.map(|(package, ..)| package), &release.version)?;
    for package in PACKAGES {
        let folder = staging.join(package).join("usr/share/doc").join(package);
        let page = if package == "xylem-web" { notices::of_page()? } else { String::new() };
        put(&folder.join("third-party"), format!("{}{page}", notices.text).as_bytes(), 0o644)?;
        put(&folder.join("sbom.cdx.json"), notices.sbom.as_bytes(), 0o644)?;
    }
    let examples = staging.join("xylem-web/usr/share/doc/xylem-web/examples");
    for example in ["grafana/xylem.json", "prometheus/xylem.rules.yml"] {
        let path = workspace().join("dist").join(example);
        put(&examples.join(name_of(&path)), &fs::read(&path)?, 0o644)?;
    }
    for document in fs::read_dir(workspace().join("docs"))? {
        let path = document?.path();
        put(
            &staging.join("xylem/usr/share/doc/xylem").join(name_of(&path)),
            &fs::read(&path)?,
            0o644,
        )?;
    }
    Ok(())
}

/// A manual page that has the help of a daemon as it is.
fn daemons_page(name: &str, about: &str, help: &str) -> String {
    let release = concat!("Xylem ", env!("CARGO_PKG_VERSION"));
    let title = name.to_uppercase();
    let mut page = format!(
        ".TH {title} 8 \"\" \"{release}\" Xylem\n.SH NAME\n{name} \\- {about}\n.SH USAGE\n.nf\n"
    );
    for line in help.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these would be an order to roff.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        let _ = writeln!(page, "{guard}{line}");
    }
    page.push_str(".fi\n.SH SEE ALSO\n.BR xy (1),\n.BR xl (1)\n");
    page
}

fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = path.parent().context("no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// What a program prints.
fn said(program: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(words)
        .output()
        .with_context(|| program.display().to_string())?;
    ensure!(output.status.success(), "{} {} fails", program.display(), words.join(" "));
    Ok(output.stdout)
}

/// Runs debhelper in a copy of `dist/debian`.
fn debian(release: &Release, folder: &Path, source: &Path) -> Result<Vec<PathBuf>> {
    let dist = workspace().join("dist");
    let debian = source.join("debian");
    copy_all(&dist.join("debian"), &debian)?;
    for (unit, name) in [
        ("xylem-xenstored.service", "xylem-xenstored.xenstored.service"),
        ("xylem-xenstored.sysusers", "xylem-xenstored.sysusers"),
        ("xylem.sysusers", "xylem.sysusers"),
        ("xylemd.service", "xylem.xylemd.service"),
        ("xylemd.socket", "xylem.xylemd.socket"),
        ("xylem-auto.service", "xylem.xylem-auto.service"),
        ("xylem-host-shutdown.service", "xylem.xylem-host-shutdown.service"),
        ("xylem-web.service", "xylem-web.service"),
        ("xylem-web.sysusers", "xylem-web.sysusers"),
        ("xylem-web.tmpfiles", "xylem-web.tmpfiles"),
    ] {
        fs::copy(dist.join(unit), debian.join(name)).with_context(|| unit.to_owned())?;
    }
    let Release { version, commit, date, .. } = release;
    let changes = format!(
        "xylem ({version}) unstable; urgency=medium\n\n  * Commit {commit}.\n\n -- {}  {date}\n",
        "The Xylem project <xylem@xylem.invalid>"
    );
    fs::write(debian.join("changelog"), changes)?;
    for old in fs::read_dir(folder)?.flatten().map(|entry| entry.path()) {
        if ["deb", "xz", "buildinfo", "changes"]
            .iter()
            .any(|it| old.extension().is_some_and(|is| is == *it))
        {
            fs::remove_file(old)?;
        }
    }
    let output = Command::new("dpkg-buildpackage")
        .args(["-b", "-us", "-uc", "-d"])
        .current_dir(source)
        .env("SOURCE_DATE_EPOCH", release.time.to_string())
        .env("DEB_BUILD_OPTIONS", "noautodbgsym")
        .output()
        .context("dpkg-buildpackage does not start")?;
    if !output.status.success() {
        bail!(
            "dpkg-buildpackage:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let made = PACKAGES.map(|name| folder.join(format!("{name}_{version}_amd64.deb")));
    for file in &made {
        ensure!(file.exists(), "there is no {}", file.display());
    }
    Ok(made.to_vec())
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, target) = (entry?.path(), to.to_owned());
        let target = target.join(name_of(&path));
        if path.is_dir() {
            copy_all(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// The same files for any distribution, with a script that installs them.
fn tarball(release: &Release, folder: &Path, staging: &Path) -> Result<PathBuf> {
    let name = format!("xylem-{}", release.version);
    let tree = folder.join("tree").join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for package in PACKAGES {
        copy_all(&staging.join(package).join("usr"), &tree.join("files"))?;
    }
    let dist = workspace().join("dist");
    for (unit, name) in [
        ("xylem-xenstored.service", "xenstored.service"),
        ("xylemd.service", "xylemd.service"),
        ("xylemd.socket", "xylemd.socket"),
        ("xylem-auto.service", "xylem-auto.service"),
        ("xylem-host-shutdown.service", "xylem-host-shutdown.service"),
        ("xylem-web.service", "xylem-web.service"),
    ] {
        put(&tree.join("files/lib/systemd/system").join(name), &fs::read(dist.join(unit))?, 0o644)?;
    }
    for name in PACKAGES {
        let users = fs::read(dist.join(format!("{name}.sysusers")))?;
        put(&tree.join(format!("files/lib/sysusers.d/{name}.conf")), &users, 0o644)?;
    }
    let folders = fs::read(dist.join("xylem-web.tmpfiles"))?;
    put(&tree.join("files/lib/tmpfiles.d/xylem-web.conf"), &folders, 0o644)?;
    for script in fs::read_dir(dist.join("openrc"))? {
        let script = script?.path();
        put(&tree.join("openrc").join(name_of(&script)), &fs::read(&script)?, 0o755)?;
    }
    put(&tree.join("install.sh"), &fs::read(dist.join("install.sh"))?, 0o755)?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
        put(&tree.join(file), &fs::read(workspace().join(file))?, 0o644)?;
    }
    let path = folder.join(format!("{name}.tar.xz"));
    let mut command = Command::new("tar");
    command
        .args([
            "--create",
            "--xz",
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u=rwX,go=rX",
        ])
        .args([format!("--mtime=@{}", release.time).as_str(), "--format=gnu", "--file"])
        .arg(&path)
        .arg("--directory")
        .arg(folder.join("tree"))
        .arg(&name)
        // A thread each would make other blocks on other machines.
        .env("XZ_OPT", "-T1 -6");
    cargo::run(&mut command, "tar fails")?;
    fs::remove_dir_all(folder.join("tree"))?;
    Ok(path)
}

/// lintian's findings, of which there may be none that is not explained in `dist/debian`.
fn lint(made: &[PathBuf]) -> Result<()> {
    let packages = made.iter().filter(|it| it.extension().is_some_and(|is| is == "deb"));
    let output = Command::new("lintian")
        .args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"])
        .args(packages)
        .output()
        .context("lintian does not start")?;
    let mut text = String::new();
    let _ = write!(
        text,
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(output.status.success(), "lintian:\n{text}");
    println!("lintian has nothing to say");
    Ok(())
}
