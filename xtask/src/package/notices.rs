//! What the programs contain that others wrote: licences, notices and a list for machines.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use lab::cargo;

/// Beginnings of the names of files that have to come along.
const TEXTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];

pub(super) struct Notices {
    /// For people.
    pub(super) text: String,
    /// CycloneDX, version 1.5.
    pub(super) sbom: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
    /// `None` for those of this workspace.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `None` for what is linked; else `build` or `dev`.
    kind: Option<String>,
}

/// Of these packages of the workspace.
pub(super) fn of_programs(programs: &[&str], version: &str) -> Result<Notices> {
    let output = cargo::cargo()
        .args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            cargo::PLATFORM,
        ])
        .output()
        .context("cargo metadata does not start")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let linked = linked(&metadata, programs);
    Ok(Notices { text: text(&linked)?, sbom: sbom(&linked, version)? })
}

/// Packages of others that are linked into the programs, by name and version.
fn linked<'a>(metadata: &'a Metadata, programs: &[&str]) -> Vec<&'a Package> {
    let nodes: HashMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let mut ids = BTreeSet::new();
    let ours = |it: &&Package| it.source.is_none() && programs.contains(&it.name.as_str());
    let mut next: Vec<&str> =
        metadata.packages.iter().filter(ours).map(|it| it.id.as_str()).collect();
    while let Some(id) = next.pop() {
        if ids.insert(id) {
            let is_linked = |it: &&Dependency| it.dep_kinds.iter().any(|kind| kind.kind.is_none());
            next.extend(nodes[id].deps.iter().filter(is_linked).map(|it| it.pkg.as_str()));
        }
    }
    let theirs =
        metadata.packages.iter().filter(|it| it.source.is_some() && ids.contains(it.id.as_str()));
    let by_name: BTreeMap<_, _> = theirs.map(|it| ((&it.name, &it.version), it)).collect();
    by_name.into_values().collect()
}

fn text(packages: &[&Package]) -> Result<String> {
    let mut text = String::from(
        "Libraries that are linked into xylemd, xylem-xenstored and xy, with their licences and notices.\n\
         Where a licence can be chosen, any of those that are named may be.\n",
    );
    for package in packages {
        let licence = package.license.as_deref().context(package.name.clone())?;
        let rule = "=".repeat(80);
        let _ =
            write!(text, "\n{rule}\n{} {}\nLicence: {licence}\n", package.name, package.version);
        if let Some(repository) = &package.repository {
            let _ = writeln!(text, "Source: {repository}");
        }
        if !package.authors.is_empty() {
            let _ = writeln!(text, "Authors: {}", package.authors.join(", "));
        }
        let folder = package.manifest_path.parent().unwrap_or(Path::new("/"));
        for file in texts_in(folder)? {
            let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let _ =
                write!(text, "\n---- {name}\n\n{}\n", String::from_utf8_lossy(&bytes).trim_end());
        }
    }
    Ok(text)
}

fn texts_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && TEXTS.iter().any(|begin| name.starts_with(begin)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn sbom(packages: &[&Package], version: &str) -> Result<String> {
    let components: Vec<_> = packages
        .iter()
        .map(|package| {
            let purl = format!("pkg:cargo/{}@{}", package.name, package.version);
            json!({
                "type": "library",
                "bom-ref": purl,
                "name": package.name,
                "version": package.version,
                "purl": purl,
                "licenses": [{ "expression": package.license }],
            })
        })
        .collect();
    let whole = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "xylem", "version": version } },
        "components": components,
    });
    Ok(serde_json::to_string_pretty(&whole)? + "\n")
}

#[derive(Deserialize)]
struct PageLock {
    packages: BTreeMap<String, PagePackage>,
}

#[derive(Deserialize)]
struct PagePackage {
    version: Option<String>,
    license: Option<String>,
    /// It builds or tests the page, and is no part of it.
    #[serde(default)]
    dev: bool,
}

/// What the web page contains that others wrote, for people.
pub(super) fn of_page() -> Result<String> {
    let folder = crate::page::folder();
    let lock = fs::read(folder.join("package-lock.json")).context("the page's packages")?;
    let lock: PageLock = serde_json::from_slice(&lock).context("package-lock.json")?;
    let mut text = String::from("\n\nThe web page contains these packages of npm's registry.\n");
    for (path, package) in &lock.packages {
        let Some(name) = path.rsplit("node_modules/").next().filter(|_| !path.is_empty()) else {
            continue;
        };
        if package.dev {
            continue;
        }
        let version = package.version.as_deref().unwrap_or_default();
        let license = package.license.as_deref().unwrap_or("see below");
        let _ = writeln!(text, "\n{}\n{name} {version}: {license}", "-".repeat(72));
        let entries = fs::read_dir(folder.join(path));
        let entries = entries.with_context(|| format!("{name} has not been brought"))?;
        let mut texts: Vec<_> = entries.flatten().map(|it| it.path()).collect();
        texts.retain(|it| {
            let name = it.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            TEXTS.iter().any(|start| name.starts_with(start)) && it.is_file()
        });
        texts.sort();
        for path in texts {
            let _ = writeln!(text, "\n{}", String::from_utf8_lossy(&fs::read(path)?));
        }
    }
    Ok(text)
}
