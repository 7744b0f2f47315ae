//! A Debian guest as clouds have it, for what `xy image` and `xy vm-create` make of one: a disk with a partition table, GRUB's
//! menu, Debian's cloud kernel, and a cloud-init that others wrote. Debian's own images are on no package mirror.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::host_image::{Suite, install, make_file_system, only, put};
use crate::packages::Apt;
use crate::{host_tools, image};

const PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    "systemd-sysv",
    "systemd-resolved",
    "udev",
    "dbus",
    "kmod",
    "netplan.io",
    "cloud-init",
    "cloud-guest-utils",
    "e2fsprogs",
    "fdisk",
    "openssh-server",
    "sudo",
];

/// What no guest reads, and an emulated one would copy.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];

const FILE_SYSTEM: &str = "6c61622d-636c-6f75-642d-696d61676521";
const DISK_MIB: u64 = 1000;
/// GPT has its tables before and behind.
const PARTITION_MIB: u64 = DISK_MIB - 2;

/// The name that Debian gives its own.
pub(super) fn file_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Bookworm => "debian-12-genericcloud-amd64.qcow2",
        Suite::Trixie => "debian-13-genericcloud-amd64.qcow2",
    }
}

/// Finds the image in the cache, or builds it.
pub(super) fn prepare(suite: Suite) -> Result<PathBuf> {
    host_tools::require_for_cloud_images()?;
    let cache = image::cache_directory()?;
    let suite_name = suite.to_string();
    let apt = Apt::of_suite(&suite_name, &cache)?;
    let mut names: Vec<String> = PACKAGES.iter().map(|name| (*name).to_owned()).collect();
    names.push(apt.first_dependency("linux-image-cloud-amd64")?);
    let key = image::key(&[include_str!("cloud_image.rs")], &apt.resolve(&names)?)?;
    let images = cache.join("cloud");
    let directory = images.join(format!("{suite}-{key}"));
    if !directory.is_dir() {
        eprintln!("lab: installing a guest of Debian {suite} into {}", directory.display());
        image::build_beside(&directory, |work| build(&suite_name, work))
            .with_context(|| format!("no cloud image of {suite}"))?;
        image::remove_old(&images, 2)?;
    }
    Ok(directory.join("disk.qcow2"))
}

fn build(suite: &str, work: &Path) -> Result<()> {
    ensure!(
        host_tools::is_root(),
        "its image can only be made by root, who may make files of all owners"
    );
    let root = work.join("root");
    let left_out = LEFT_OUT.map(|path| format!("--dpkgopt=path-exclude={path}"));
    install(suite, PACKAGES, &left_out, work, &root)?;
    let kernel = only(&root.join("boot"), "vmlinuz-", "")?;
    let kernel = kernel.file_name().unwrap_or_default().to_string_lossy();
    let version = kernel.trim_start_matches("vmlinuz-");
    put(&root.join("boot/grub/grub.cfg"), menu(version))?;
    let mount =
        format!("UUID={FILE_SYSTEM} / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1\n");
    put(&root.join("etc/fstab"), mount)?;
    // None but C.UTF-8 is there, and update-locale fails for another.
    put(&root.join("etc/cloud/cloud.cfg.d/01_lab.cfg"), "locale: false\n")?;
    // Each machine makes its own at its first boot.
    put(&root.join("etc/machine-id"), "")?;
    let keys = root.join("etc/ssh");
    for entry in std::fs::read_dir(&keys)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("ssh_host_") {
            std::fs::remove_file(entry.path())?;
        }
    }
    let disk = work.join("disk.raw");
    write_disk(&root, &disk)?;
    let mut pack = Command::new("qemu-img");
    pack.args(["convert", "-c", "-O", "qcow2"]).arg(&disk).arg(work.join("disk.qcow2"));
    host_tools::run(&mut pack, "pack the disk")?;
    std::fs::remove_file(&disk)?;
    Ok(std::fs::remove_dir_all(&root)?)
}

/// As Debian's cloud images have it. That the console is a virtual one or a serial line is not true for a PV guest, and it must
/// not mind.
fn menu(version: &str) -> String {
    format!(
        "set default=0\nset timeout=0\nmenuentry 'Debian GNU/Linux' {{\n\
         search --no-floppy --fs-uuid --set=root {FILE_SYSTEM}\n\
         linux /boot/vmlinuz-{version} root=UUID={FILE_SYSTEM} ro console=tty0 console=ttyS0,115200 consoleblank=0\n\
         initrd /boot/initrd.img-{version}\n}}\n"
    )
}

/// A disk with one partition, and `root` in it. No mount is needed for it.
fn write_disk(root: &Path, disk: &Path) -> Result<()> {
    File::create_new(disk)?.set_len(DISK_MIB << 20)?;
    let table = format!("label: gpt\nstart=1MiB, size={PARTITION_MIB}MiB, type=linux\n");
    let mut child = Command::new(host_tools::find("sfdisk").context("sfdisk is missing")?)
        .arg("--quiet")
        .arg(disk)
        .stdin(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no input")?.write_all(table.as_bytes())?;
    ensure!(child.wait()?.success(), "sfdisk cannot make a partition");
    let place = ["-U", FILE_SYSTEM, "-E", "offset=1048576"];
    make_file_system(root, &format!("{PARTITION_MIB}M"), disk, &place)
}
