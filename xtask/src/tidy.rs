//! `cargo xtask tidy`: rules of this workspace that no compiler checks.
//!
//! Each rule is a sentence of ARCHITECTURE.md or of the licence; a finding names file and rule.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use lab::workspace;

/// Crates that never touch the operating system.
const PURE: [&str; 16] = [
    "live",
    "gate",
    "metrics",
    "disk-image",
    "xen",
    "xenstore",
    "xen-build",
    "storage",
    "text-screen",
    "timeline",
    "migrate",
    "toolstack",
    "service",
    "sim",
    "sim-trials",
    "xenapi",
];

/// Who may depend on which crates of the workspace. Dev-dependencies are free.
const EDGES: [(&str, &[&str]); 35] = [
    ("live", &[]),
    ("gate", &["api"]),
    ("metrics", &["api"]),
    ("text-screen", &[]),
    (
        "web",
        &[
            "api",
            "gate",
            "live",
            "metrics",
            "service-manager",
            "text-screen",
            "timeline",
            "xen",
            "xenapi",
        ],
    ),
    ("disk-image", &[]),
    ("xen", &[]),
    ("xenstore", &["xen"]),
    ("xen-build", &["xen"]),
    ("storage", &[]),
    ("timeline", &[]),
    ("migrate", &["xen"]),
    ("toolstack", &["live", "migrate", "storage", "xen", "xen-build", "xenstore"]),
    ("api", &[]),
    ("xenapi", &["api", "live", "xen"]),
    ("service", &["api", "live", "storage", "toolstack", "xen", "xenstore"]),
    ("sim", &["storage", "timeline", "toolstack", "xen", "xen-build", "xenstore"]),
    ("sim-trials", &["sim", "storage", "timeline", "toolstack", "xen", "xenstore"]),
    ("sim-pair", &["migrate", "sim", "storage", "toolstack", "xen", "xenstore"]),
    ("local-door", &["api", "service", "toolstack", "xen", "xen-linux"]),
    (
        "sim-daemon",
        &["api", "local-door", "service", "sim", "storage", "toolstack", "xen", "xenstore"],
    ),
    ("xen-linux", &["xen"]),
    ("image-parser", &["xen-build", "xen-linux"]),
    ("jail", &["xen-linux"]),
    ("peer-link", &[]),
    ("service-manager", &["xen-linux"]),
    ("storage-host", &["jail", "storage", "xen", "xen-linux"]),
    ("xenstore-socket", &["xen", "xenstore"]),
    ("file-host", &["xen", "xen-linux", "xenstore"]),
    ("xenstored", &["file-host", "service-manager", "xen", "xen-linux", "xenstore"]),
    (
        "xylemd",
        &[
            "api",
            "image-parser",
            "jail",
            "local-door",
            "peer-link",
            "service",
            "service-manager",
            "storage",
            "storage-host",
            "toolstack",
            "xen",
            "xen-build",
            "xen-linux",
            "xenstore",
            "xenstore-socket",
        ],
    ),
    (
        "xy",
        &["api", "disk-image", "image-parser", "timeline", "xen", "xenstore", "xenstore-socket"],
    ),
    ("lab", &[]),
    ("store-trials", &["file-host", "lab", "xen", "xenstore"]),
    ("xtask", &["api", "file-host", "lab", "store-trials", "xen", "xenstore"]),
];

/// Where unsafe code may stand.
const UNSAFE_FOLDERS: [&str; 2] = ["crates/xen-linux/", "guest/"];

/// Words that pure crates do not say.
const IMPURE: [&str; 8] = [
    "std::time::",
    "std::fs::",
    "std::net::",
    "std::env::",
    "std::thread",
    "std::process::",
    "HashMap",
    "HashSet",
];

/// A file that a newcomer still finds their way in.
const LINES_MAX: usize = 900;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Prints every finding; fails if there is one.
///
/// # Errors
/// The workspace cannot be read.
pub(crate) fn main() -> Result<ExitCode> {
    let mut findings = import_edges(&metadata(true)?);
    findings.extend(licences(&metadata(false)?));
    findings.extend(walls());
    for (file, text) in sources()? {
        findings.extend(file_findings(&file, &text));
    }
    for finding in &findings {
        println!("tidy: {finding}");
    }
    println!("tidy: {} findings", findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn metadata(own_only: bool) -> Result<Metadata> {
    let mut cargo = lab::cargo::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    if own_only {
        cargo.arg("--no-deps");
    }
    let output = cargo.output().context("cargo does not start")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn import_edges(metadata: &Metadata) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let Some(allowed) = allowed.get(package.name.as_str()) else {
            findings.push(format!("crate {}: not in the list of import edges", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let own = dependency.path.is_some() && dependency.kind.is_none();
            if own && !allowed.contains(&dependency.name.as_str()) {
                findings.push(format!("crate {} imports {}", package.name, dependency.name));
            }
        }
    }
    findings
}

/// Whether one of the licences on offer lets us link the crate.
fn is_free(licence: &str) -> bool {
    const FREE: [&str; 9] = [
        "MIT",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "Unicode-3.0",
        "Zlib",
        "0BSD",
        "ISC",
        "Unlicense",
    ];
    let plain = licence.replace(['(', ')'], "").replace('/', " OR ");
    let licence_is_free = |name: &str| {
        let name = name.split(" WITH ").next().unwrap_or_default().trim();
        FREE.contains(&name)
    };
    plain.split(" OR ").any(|choice| choice.split(" AND ").all(licence_is_free))
}

fn licences(metadata: &Metadata) -> Vec<String> {
    let bad = metadata.packages.iter().filter(|p| !p.license.as_deref().is_some_and(is_free));
    bad.map(|package| {
        let licence = package.license.as_deref().unwrap_or("none stated");
        format!("crate {}: its licence ({licence}) may not be linked", package.name)
    })
    .collect()
}

fn walls() -> Vec<String> {
    let walled = |name: &str| workspace().join("crates").join(name).join("clippy.toml").is_file();
    let missing = PURE.into_iter().filter(|name| !walled(name));
    missing.map(|name| format!("crate {name}: pure, but has no clippy.toml")).collect()
}

/// All files that git tracks and a person wrote, by path from the workspace's root.
fn sources() -> Result<Vec<(String, String)>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(workspace())
        .output()
        .context("git does not start")?;
    ensure!(output.status.success(), "git ls-files failed");
    let mut sources = Vec::new();
    for name in output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let own = !name.starts_with("LICENSE") && !name.ends_with(".lock");
        // A file that was deleted but not yet committed is no finding.
        if let (true, Ok(text)) = (own, fs::read_to_string(workspace().join(&name))) {
            sources.push((name, text));
        }
    }
    Ok(sources)
}

fn file_findings(file: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let is_rust = Path::new(file).extension().is_some_and(|extension| extension == "rs");
    let is_this = file == "xtask/src/tidy.rs";
    if is_rust && text.lines().count() > LINES_MAX {
        findings.push(format!("{file}: more than {LINES_MAX} lines"));
    }
    let is_test = file.contains("/tests/");
    if is_rust && !is_test && !text.starts_with("//!") {
        findings.push(format!("{file}: does not say what it is (//! at the top)"));
    }
    let pure = PURE.iter().any(|name| file.starts_with(&format!("crates/{name}/src/")));
    let mut in_tests = false;
    for (index, line) in text.lines().enumerate() {
        in_tests |= line == "#[cfg(test)]";
        let place = format!("{file}:{}", index + 1);
        let code = line.split("//").next().unwrap_or_default();
        if is_rust && !UNSAFE_FOLDERS.iter().any(|folder| file.starts_with(folder)) {
            let unsafe_code = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
            if unsafe_code.iter().any(|word| code.contains(word)) && !is_this {
                findings.push(format!("{place}: unsafe code"));
            }
        }
        if pure
            && !in_tests
            && let Some(word) = IMPURE.iter().find(|word| code.contains(**word))
        {
            findings.push(format!("{place}: {word} in a pure crate"));
        }
        let unfinished = ["TODO", "FIXME", "XXX", "#[ignore"];
        if is_rust && !is_this && unfinished.iter().any(|word| line.contains(word)) {
            findings.push(format!("{place}: unfinished or silenced"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_free_if_one_choice_is() {
        for free in
            ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert!(is_free(free), "{free}");
        }
        for bound in ["GPL-2.0-or-later", "MIT AND GPL-2.0", ""] {
            assert!(!is_free(bound), "{bound}");
        }
    }

    #[test]
    fn findings_name_file_line_and_rule() {
        let text = "//! A file.\nfn f() { unsafe { g() } }\nuse std::time::Instant;\n";
        let findings = file_findings("crates/xen/src/a.rs", text);
        assert_eq!(
            findings,
            [
                "crates/xen/src/a.rs:2: unsafe code",
                "crates/xen/src/a.rs:3: std::time:: in a pure crate"
            ]
        );
        assert!(file_findings("crates/xen-linux/src/a.rs", text).is_empty());
    }
}
