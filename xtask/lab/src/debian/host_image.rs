//! The image of a Debian host, made of the suite's packages and kept in the cache.

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::packages::{self, Apt};
use crate::{host_tools, image, kernel};

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
    "iputils-ping",
    "iproute2",
    "bridge-utils",
    "lvm2",
    "openssh-server",
    "bash-completion",
    "grub-xen-host",
    "less",
    "netbase",
    "procps",
];

const INTERFACES: &str = include_str!("../../../../lab/debian/interfaces");
const SERVICE: &str = include_str!("../../../../lab/debian/lab.service");
/// An emulated host that shares its CPUs with others may be ten times slower than systemd expects one to be.
const MANAGER: &str = "[Manager]\nDefaultDeviceTimeoutSec=900s\nDefaultTimeoutStartSec=600s\nDefaultTimeoutStopSec=300s\n";
/// Everything that decides what an image contains, beside the packages.
const SOURCES: &[&str] =
    &[include_str!("host_image.rs"), include_str!("../kernel.rs"), INTERFACES, SERVICE];

/// Files that an installer or an operator would have written.
const FILES: &[(&str, &str)] = &[
    ("etc/fstab", "/dev/vda / ext4 errors=remount-ro 0 1\n/dev/vdb /lab ext4 ro 0 2\n"),
    ("etc/hostname", "lab\n"),
    ("etc/hosts", "127.0.0.1 localhost\n127.0.1.1 lab\n"),
    ("etc/machine-id", "6c61622d6465626961682d686f737421\n"),
    ("etc/network/interfaces", INTERFACES),
    ("etc/systemd/system.conf.d/lab.conf", MANAGER),
    ("etc/systemd/system/lab.service", SERVICE),
];

/// Each has an image of some 900 MB; one for each suite, and one to change over to.
const IMAGES_KEPT: usize = 3;

const ROOT_SIZE: &str = "4G";

/// A finished image: paths of files that exist.
pub(super) struct Image {
    pub xen: PathBuf,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub root: PathBuf,
}

/// Finds the image in the cache, or builds it.
pub(super) fn prepare(suite: Suite) -> Result<Image> {
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
        image::build_beside(&directory, |work| build(&suite_name, work))
            .with_context(|| format!("no Debian host of {suite}"))?;
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
    install_host(suite, work, &root)?;
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
    make_file_system(&root, ROOT_SIZE, &work.join("root.img"), &[])?;
    Ok(std::fs::remove_dir_all(&root)?)
}

fn install_host(suite: &str, work: &Path, root: &Path) -> Result<()> {
    // The initrd has what this machine needs, and not all drivers: its size is time at each boot.
    let modules = "printf '%s\\n' virtio_pci virtio_blk ext4 >\"$1/etc/initramfs-tools/modules\"";
    let hook = format!(
        "mkdir -p \"$1/etc/initramfs-tools/conf.d\" && {modules} && \
         echo MODULES=list >\"$1/etc/initramfs-tools/conf.d/lab\""
    );
    // What would take its share of an emulated CPU, or apt's lock, at a time of its own.
    let quiet = "chroot \"$1\" systemctl --quiet disable e2scrub_reap.service apt-daily.timer \
                 apt-daily-upgrade.timer";
    let options = [format!("--essential-hook={hook}"), format!("--customize-hook={quiet}")];
    install(suite, PACKAGES, &options, work, root)
}

/// Installs packages of a suite, and what is essential, into `root`.
pub(super) fn install(
    suite: &str,
    packages: &[&str],
    options: &[String],
    work: &Path,
    root: &Path,
) -> Result<()> {
    let sources = packages::write_sources(suite, work)?;
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--mode=root", "--variant=minbase", "--quiet"])
        .arg(format!("--include={}", packages.join(",")))
        .args(options)
        .arg(suite)
        .arg(root)
        .args(&sources);
    host_tools::run(&mut command, "install the packages")?;
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
pub(super) fn only(folder: &Path, prefix: &str, suffix: &str) -> Result<PathBuf> {
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
pub(super) fn make_file_system(
    folder: &Path,
    size: &str,
    image: &Path,
    options: &[&str],
) -> Result<()> {
    let program = host_tools::find("mke2fs").context("mke2fs is missing")?;
    let mut command = Command::new(program);
    command
        .args(["-q", "-F", "-t", "ext4", "-m", "0"])
        .args(options)
        .arg("-d")
        .arg(folder)
        .arg(image)
        .arg(size);
    host_tools::run(&mut command, &format!("make a file system of {}", folder.display()))
}

/// Writes a file, and makes the folders above it.
pub(super) fn put(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let folder = path.parent().context("no folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
