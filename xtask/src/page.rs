//! The web page: built by Node, with exactly the packages that page/package-lock.json names.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use lab::workspace;

/// What builds it, with the Debian package it comes in.
const NEEDS: [(&str, &str); 2] = [("node", "nodejs"), ("npm", "npm")];

pub(crate) fn folder() -> PathBuf {
    workspace().join("page")
}

/// Builds the page, unless it is newer than all that it is made of. `xylem-web` embeds it when that is built.
pub(crate) fn build() -> Result<()> {
    let page = folder();
    let made = newest(&page.join("dist"), &[])?;
    let source = newest(&page, &["dist", "node_modules"])?;
    if made.is_some() && made >= source {
        return Ok(());
    }
    packages()?;
    npm(&["run", "--silent", "build"], "the page does not build")
}

/// Brings the packages that build and test the page.
pub(crate) fn packages() -> Result<()> {
    require_node()?;
    let page = folder();
    let modified = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    // npm leaves this file behind when it has brought all.
    let brought = modified(&page.join("node_modules/.package-lock.json"));
    if brought.is_some() && brought >= modified(&page.join("package-lock.json")) {
        return Ok(());
    }
    println!("page: npm brings what builds it");
    npm(
        &["ci", "--no-audit", "--no-fund", "--loglevel=error"],
        "npm cannot bring what builds the page",
    )
}

fn require_node() -> Result<()> {
    let is_missing = |program: &str| {
        let found = Command::new(program).arg("--version").output();
        !found.is_ok_and(|output| output.status.success())
    };
    let missing = NEEDS.iter().filter(|(program, _)| is_missing(program)).map(|(_, name)| *name);
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() { Ok(()) } else { lab::install(&missing) }
}

/// Runs npm in the page's folder.
pub(crate) fn npm(words: &[&str], failure: &'static str) -> Result<()> {
    let status = Command::new("npm").args(words).current_dir(folder()).status();
    ensure!(status.context("npm does not start")?.success(), failure);
    Ok(())
}

/// When the newest file below a folder was changed; `None` if there is none.
fn newest(folder: &Path, without: &[&str]) -> Result<Option<SystemTime>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let mut newest = None;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if without.iter().any(|it| name == *it) {
            continue;
        }
        let metadata = entry.metadata()?;
        let changed = if metadata.is_dir() {
            self::newest(&entry.path(), &[])?
        } else {
            Some(metadata.modified()?)
        };
        newest = newest.max(changed);
    }
    Ok(newest)
}
