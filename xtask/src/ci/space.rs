//! Space on the disk: a full one makes steps fail, or hang, without saying why.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// What a run from a clean checkout writes: what cargo builds, the lab's images, files of tests.
const RUN_GIB: u64 = 20;
/// Below this a run cannot pass even if all is built.
const LEAST_GIB: u64 = 2;

/// Says how much is free where that may be too little.
///
/// # Errors
/// So little is free that no run could pass.
pub(super) fn require() -> Result<()> {
    for folder in folders()? {
        let Some(free) = free_gib(&folder) else { continue };
        let folder = folder.display();
        if free < LEAST_GIB {
            bail!(
                "{folder} has {free} GiB free; the tests need {LEAST_GIB}, and {RUN_GIB} the first time"
            );
        }
        if free < RUN_GIB {
            println!("ci: {folder} has {free} GiB free; the first run writes about {RUN_GIB}");
        }
    }
    Ok(())
}

/// A line for each folder that is full.
pub(super) fn full() -> Vec<String> {
    let full = |folder: &PathBuf| free_gib(folder) == Some(0);
    let folders = folders().unwrap_or_default();
    folders.iter().filter(|it| full(it)).map(|it| format!("{} is full", it.display())).collect()
}

/// Where runs write: builds and images, and temporary files.
fn folders() -> Result<[PathBuf; 2]> {
    Ok([lab::target_directory()?, std::env::temp_dir()])
}

/// Of the file system of a folder that may not be there yet.
fn free_gib(folder: &Path) -> Option<u64> {
    let found = folder.ancestors().find_map(|it| rustix::fs::statvfs(it).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize) >> 30)
}
