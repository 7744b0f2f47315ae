//! A Debian host as people have it: systemd, Debian's Xen packages, a root file system on a disk.
//!
//! ```text
//! mmdebstrap -> image (cached): xen, vmlinux, initrd, root.img --+
//! scenario, packages of ours, guests -> a disk of this run ------+-> machine -> session
//! ```
//! What a host writes to its disks goes with the run.

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::machine::Software;
use super::overlay::{self, Unikernel};
use super::packages::{self, Apt};
use super::session::{self, Plan, ScratchFolder};
use super::{GuestKernel, Mode, Options, Outcome, Series, cpio, host_tools, image, kernel};

/// A release of Debian.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Suite {
    #[default]
    Bookworm,
    Trixie,
}

impl std::str::FromStr for Suite {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "bookworm" => Ok(Self::Bookworm),
            "trixie" => Ok(Self::Trixie),
            _ => bail!("there is no Debian host of suite '{name}'; choose bookworm or trixie"),
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        })
    }
}

/// What a host of Xen guests has, beside Debian's essential packages and what these depend on.
const PACKAGES: &[&str] = &[
    "linux-image-amd64",
    "xen-system-amd64",
    "xenstore-utils",
    "initramfs-tools",
    "systemd-sysv",
    "dbus",
    "udev",
    "kmod",
    "ifupdown",
    "iproute2",
    "bridge-utils",
    "lvm2",
    "openssh-server",
    "bash-completion",
    "less",
    "netbase",
    "procps",
];

const INTERFACES: &str = include_str!("../../../lab/debian/interfaces");
const SERVICE: &str = include_str!("../../../lab/debian/lab.service");
const START: &str = include_str!("../../../lab/debian/start.sh");
const LIB: &str = include_str!("../../../lab/lib.sh");
const LIB_DEBIAN: &str = include_str!("../../../lab/debian/lib.sh");

/// Everything that decides what an image contains, beside the packages.
const SOURCES: &[&str] =
    &[include_str!("debian.rs"), include_str!("kernel.rs"), INTERFACES, SERVICE];

/// Files that an installer or an operator would have written.
const FILES: &[(&str, &str)] = &[
    ("etc/fstab", "/dev/vda / ext4 errors=remount-ro 0 1\n/dev/vdb /lab ext4 ro 0 2\n"),
    ("etc/hostname", "lab\n"),
    ("etc/hosts", "127.0.0.1 localhost\n127.0.1.1 lab\n"),
    ("etc/machine-id", "6c61622d6465626961682d686f737421\n"),
    ("etc/network/interfaces", INTERFACES),
    ("etc/systemd/system/lab.service", SERVICE),
];

/// Each has an image of some 900 MB; one for each suite, and one to change over to.
const IMAGES_KEPT: usize = 3;

const ROOT_SIZE: &str = "4G";

const KERNEL_ARGUMENTS: &str = "root=/dev/vda rw";

/// Emulated systemd at a low priority takes minutes.
const BOOT_TIME_MAX: Duration = Duration::from_secs(900);

/// A Debian host to boot.
#[derive(Clone, Debug)]
pub struct Debian {
    pub suite: Suite,
    pub options: Options,
    /// Debian packages of ours; the host finds them in `/lab/packages`.
    pub packages: Vec<PathBuf>,
}

/// A finished image: paths of files that exist.
struct Image {
    xen: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
    root: PathBuf,
}

impl Debian {
    /// Boots the host and does there what `mode` says.
    ///
    /// # Errors
    /// A [`Failure`](super::Failure) if the host died or hung; another error if it could not be set up.
    pub(crate) fn run(&self, mode: &Mode, on_line: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let Image { xen, kernel, initrd, root } = prepare(self.suite)?;
        let scratch = ScratchFolder::create()?;
        let disks = vec![
            overlay_of(&root, &scratch.0.join("root.qcow2"))?,
            overlay_of(&self.disk(mode, &scratch.0)?, &scratch.0.join("lab.qcow2"))?,
        ];
        session::prepare_results(&self.options.results)?;
        let software = Software {
            xen,
            kernel,
            initrd,
            kernel_arguments: KERNEL_ARGUMENTS,
            disks,
            reboots: true,
        };
        let plan = Plan {
            options: &self.options,
            mode,
            software,
            folder: scratch.0.clone(),
            side: None,
            boot_time_max: BOOT_TIME_MAX,
        };
        session::run_plan(&plan, on_line)
    }

    /// The disk with what belongs to this run.
    fn disk(&self, mode: &Mode, scratch: &Path) -> Result<PathBuf> {
        let folder = scratch.join("lab");
        put(&folder.join("start"), START)?;
        put(&folder.join("lib.sh"), LIB)?;
        put(&folder.join("lib-debian.sh"), LIB_DEBIAN)?;
        put(&folder.join("settings"), settings(mode))?;
        if let Mode::Scenario { text, .. } = mode {
            put(&folder.join("scenario"), text)?;
        }
        for package in &self.packages {
            let name = package.file_name().context("a package has no name")?;
            put(&folder.join("packages").join(name), image::read(package)?)?;
        }
        let small = image::prepare(Series::default())?;
        let archive = image::read(&small.root)?;
        for name in ["guest/vmlinuz", "guest/initramfs", "guest/disk.img"] {
            let content = cpio::content(&archive, name)
                .with_context(|| format!("there is no {name} in {}", small.root.display()))?;
            put(&folder.join(name), content)?;
        }
        if self.options.guest_kernel == GuestKernel::AlsoUnpacked {
            put(&folder.join("guest/vmlinux"), image::read(&small.kernel)?)?;
        }
        if let Some(path) = overlay::unikernel(self.options.build, Unikernel::Small)? {
            put(&folder.join("guest/unikernel"), image::read(&path)?)?;
        }
        for file in &self.options.files {
            let target = folder.join("files").join(file.dom0.trim_start_matches('/'));
            put(&target, "")?;
            std::fs::copy(&file.host, &target)
                .with_context(|| format!("cannot take {} along", file.host.display()))?;
        }
        let disk = scratch.join("lab.img");
        make_file_system(&folder, "1G", &disk)?;
        Ok(disk)
    }
}

/// Finds the image in the cache, or builds it.
fn prepare(suite: Suite) -> Result<Image> {
    host_tools::require_all()?;
    host_tools::require_for_debian()?;
    let cache = image::cache_directory()?;
    let suite_name = suite.to_string();
    let apt = Apt::of_suite(&suite_name, &cache)?;
    let mut names: Vec<String> = PACKAGES.iter().map(|name| (*name).to_owned()).collect();
    // Those behind the two that only name them.
    names.push(apt.first_dependency("linux-image-amd64")?);
    names.push("xen-utils-common".to_owned());
    let key = image::key(SOURCES, &apt.resolve(&names)?)?;
    let images = cache.join("debian");
    let directory = images.join(format!("{suite}-{key}"));
    if !directory.is_dir() {
        eprintln!("lab: installing Debian {suite} into {}", directory.display());
        // Built beside its final place and renamed, so that a half-built image is never used.
        let work = images.join(format!("partial-{}", std::process::id()));
        std::fs::create_dir_all(&work)?;
        let built = build(&suite_name, &work)
            .and_then(|()| Ok(std::fs::rename(&work, &directory)?))
            .with_context(|| format!("no Debian host of {suite}"));
        if built.is_err() {
            std::fs::remove_dir_all(&work)?;
        }
        built?;
        image::remove_old(&images, IMAGES_KEPT)?;
    }
    Ok(Image {
        xen: directory.join("xen"),
        kernel: directory.join("vmlinux"),
        initrd: directory.join("initrd"),
        root: directory.join("root.img"),
    })
}

fn build(suite: &str, work: &Path) -> Result<()> {
    ensure!(
        host_tools::is_root(),
        "its image can only be made by root, who may make files of all owners"
    );
    let root = work.join("root");
    install(suite, work, &root)?;
    for (path, text) in FILES {
        put(&root.join(path), text)?;
    }
    for folder in ["lab", "results"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    symlink("lab/guest", root.join("guest"))?;
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/lab.service");
    symlink("/etc/systemd/system/lab.service", wanted)?;
    log_consoles(&root)?;

    let boot = root.join("boot");
    std::fs::write(work.join("xen"), image::gunzip(&only(&boot, "xen-", "-amd64.gz")?)?)?;
    let bz_image = image::read(&only(&boot, "vmlinuz-", "")?)?;
    std::fs::write(work.join("vmlinux"), kernel::unpack(&bz_image)?)?;
    std::fs::copy(only(&boot, "initrd.img-", "")?, work.join("initrd"))?;
    make_file_system(&root, ROOT_SIZE, &work.join("root.img"))?;
    Ok(std::fs::remove_dir_all(&root)?)
}

/// Installs the packages into `root`.
fn install(suite: &str, work: &Path, root: &Path) -> Result<()> {
    let sources = packages::write_sources(suite, work)?;
    // The initrd has what this machine needs, and not all drivers: its size is time at each boot.
    let modules = "printf '%s\\n' virtio_pci virtio_blk ext4 >\"$1/etc/initramfs-tools/modules\"";
    let hook = format!(
        "mkdir -p \"$1/etc/initramfs-tools/conf.d\" && {modules} && \
         echo MODULES=list >\"$1/etc/initramfs-tools/conf.d/lab\""
    );
    let output = Command::new("mmdebstrap")
        .args(["--mode=root", "--variant=minbase", "--quiet"])
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg(format!("--essential-hook={hook}"))
        .arg(suite)
        .arg(root)
        .args(&sources)
        .stdin(Stdio::null())
        .output()
        .context("mmdebstrap does not start")?;
    ensure!(
        output.status.success(),
        "mmdebstrap fails:\n{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    for file in sources {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

/// Guests' consoles are logged, as scenarios read them.
fn log_consoles(root: &Path) -> Result<()> {
    let path = root.join("etc/default/xen");
    let settings = std::fs::read_to_string(&path)
        .with_context(|| format!("Xen's packages left no {}", path.display()))?;
    std::fs::write(&path, settings + "\nXENCONSOLED_ARGS=--log=all\n")?;
    Ok(std::fs::create_dir_all(root.join("var/log/xen/console"))?)
}

/// The one file of a folder with such a name.
fn only(folder: &Path, prefix: &str, suffix: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(suffix) {
            found.push(path);
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        number => bail!("{} has {number} files {prefix}*{suffix}", folder.display()),
    }
}

/// An ext4 image with the files of a folder; no mount is needed for it.
fn make_file_system(folder: &Path, size: &str, image: &Path) -> Result<()> {
    let program = host_tools::find("mke2fs").context("mke2fs is missing")?;
    let output = Command::new(program)
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-d"])
        .arg(folder)
        .arg(image)
        .arg(size)
        .output()?;
    ensure!(
        output.status.success(),
        "mke2fs makes no file system of {}: {}",
        folder.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// A disk that takes what is written, so that the image stays as it is.
fn overlay_of(base: &Path, path: &Path) -> Result<PathBuf> {
    let output = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([base, path])
        .output()
        .context("qemu-img does not start")?;
    ensure!(
        output.status.success(),
        "qemu-img makes no overlay of {}: {}",
        base.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(path.to_owned())
}

/// Writes a file, and makes the folders above it.
fn put(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let folder = path.parent().context("no folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Shell text that `start.sh` reads.
fn settings(mode: &Mode) -> String {
    match mode {
        Mode::Scenario { arguments, .. } => {
            format!("mode=scenario\nset --{}\n", overlay::quoted(arguments))
        }
        Mode::Shell { rows, columns } => format!("mode=shell\nrows={rows}\ncolumns={columns}\n"),
    }
}
