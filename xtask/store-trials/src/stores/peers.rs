//! The packaged servers, taken from Debian's packages, and the fake Xen that they run on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use lab::packages;

/// The shim's source.
const SHIM: &str = include_str!("../../../../lab/xsfake.c");

/// The package with both servers, and the libraries of Xen's that they need.
const PACKAGES: [&str; 9] = [
    "xen-utils-4.17",
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenmisc4.17",
    "libxentoolcore1",
    "libxentoollog1",
];

/// What compiles the shim, with the packages it comes in.
const NEEDS: [(&str, &str); 3] = [
    ("/usr/include/xenctrl.h", "libxen-dev"),
    ("/usr/bin/cc", "gcc"),
    ("/usr/include/dlfcn.h", "libc6-dev"),
];

/// The servers' files, unpacked, and the compiled shim.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    root: PathBuf,
    shim: PathBuf,
}

impl Peers {
    /// Finds them in the cache, or fetches and compiles them.
    ///
    /// # Errors
    /// A package or a compiler is missing.
    pub(super) fn prepare() -> Result<Self> {
        let root = unpack_packages("peers", &PACKAGES)?;
        let folder = root.parent().context("the cache is a folder")?;
        Ok(Self { shim: shim(folder)?, root })
    }

    /// A command that runs a program of the package's `bin` folder on the fake Xen of `folder`.
    pub(super) fn command(&self, folder: &Path) -> (Vec<(&'static str, PathBuf)>, PathBuf) {
        let environment = vec![
            ("XSFAKE_DIR", folder.to_owned()),
            ("XENSTORED_RUNDIR", folder.to_owned()),
            ("XENSTORED_ROOTDIR", folder.to_owned()),
            ("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu")),
            ("LD_PRELOAD", self.shim.clone()),
        ];
        (environment, self.root.join("usr/lib/xen-4.17/bin"))
    }
}

/// Packages as apt has them today, unpacked together into a folder of the cache.
///
/// # Errors
/// A package cannot be fetched.
pub fn unpack_packages(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let cache = lab::cache_directory()?;
    let names: Vec<String> = packages.iter().map(|name| (*name).to_owned()).collect();
    let apt = packages::Apt::of_machine()?;
    let resolved = apt.resolve(&names)?;
    let version: String = resolved.iter().map(|package| &package.sha256[..4]).collect();
    let folder = cache.join(name);
    let root = folder.join(version);
    if !root.is_dir() {
        let files = apt.download(&names, &resolved, &cache.join("packages"))?;
        // Built beside its final place and renamed, so that an incomplete file is never used.
        let partial = folder.join(format!("partial-{}", std::process::id()));
        std::fs::create_dir_all(&partial)?;
        for file in &files {
            packages::unpack(file, &partial)?;
        }
        // Another run may have been faster; its files are as good as ours.
        if std::fs::rename(&partial, &root).is_err() {
            std::fs::remove_dir_all(&partial)?;
        }
    }
    Ok(root)
}

/// Compiles the shim, unless it was compiled from the same source before.
fn shim(folder: &Path) -> Result<PathBuf> {
    let source = folder.join("xsfake.c");
    let library = folder.join("libxsfake.so");
    let is_same = std::fs::read_to_string(&source).is_ok_and(|text| text == SHIM);
    if is_same && library.is_file() {
        return Ok(library);
    }
    let missing = NEEDS.iter().filter(|(file, _)| !Path::new(file).exists());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        lab::install(&missing)?;
    }
    let id = std::process::id();
    let own = |name: &str| folder.join(format!("{id}-{name}"));
    std::fs::write(own("xsfake.c"), SHIM)?;
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([own("libxsfake.so"), own("xsfake.c")])
        .arg("-ldl")
        .status()
        .context("cc does not start")?;
    ensure!(status.success(), "lab/xsfake.c does not compile");
    std::fs::rename(own("libxsfake.so"), &library)?;
    std::fs::rename(own("xsfake.c"), &source)?;
    Ok(library)
}
