//! Namespaces, resource limits and capabilities.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use xen_linux::Namespaces;

use crate::Kind;

/// Folders that no such program writes to. Disks are devices, or lie elsewhere.
const READ_ONLY: [&str; 8] =
    ["/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/var/lib/xylem"];

const DESCRIPTORS_MAX: u64 = 4096;

/// As far as the kernel has them. What is missing is said; an error is one about the namespace of mounts.
pub(crate) fn leave_namespaces(kind: Kind) -> io::Result<()> {
    let network = match kind {
        // Its interfaces and its screen are the host's.
        Kind::DeviceModel | Kind::PassthroughModel | Kind::DeviceServer => Namespaces::default(),
        Kind::ImageServer => Namespaces { network: true, ..Namespaces::default() },
    };
    // One after the other: a kernel may be built without one of them.
    for (name, wanted) in [
        ("network", network),
        ("IPC", Namespaces { ipc: true, ..Namespaces::default() }),
        ("host name", Namespaces { uts: true, ..Namespaces::default() }),
    ] {
        if let Err(errno) = xen_linux::unshare(wanted) {
            eprintln!("xylem-jail: without a {name} namespace of its own: {errno}");
        }
    }
    let mounts = Namespaces { mount: true, ..Namespaces::default() };
    let left = xen_linux::unshare(mounts).and_then(|()| protect_folders());
    if let Err(errno) = left {
        eprintln!("xylem-jail: without protected folders: {errno}");
    }
    Ok(left?)
}

/// Puts the devices by which grants are mapped and events are bound into a folder, for whoever has it as root. Only this
/// process and its own see them there.
pub(crate) fn show_xen(root: &Path) -> io::Result<()> {
    const DEVICES: [&str; 2] = ["/dev/xen/gntdev", "/dev/xen/evtchn"];
    mount(
        "tmpfs",
        root,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        Some(c"mode=755,size=64k"),
    )?;
    let all = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    fs::DirBuilder::new().recursive(true).mode(0o755).create(root.join("dev/xen"))?;
    for path in DEVICES {
        let number = fs::metadata(path)?.rdev();
        let place = root.join(path.trim_start_matches('/'));
        mknodat(CWD, &place, FileType::CharacterDevice, all, number)?;
        // Whatever this process's mask says.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o666))?;
    }
    for folder in ["dev", "dev/xen"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o755))?;
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(mount_remount(root, MountFlags::BIND | flags, "")?)
}

fn protect_folders() -> rustix::io::Result<()> {
    // The host's unmounts still reach this process, so that it keeps no file system busy.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    for folder in READ_ONLY {
        let path = Path::new(folder);
        // On most hosts some of them are links to others.
        if path.is_symlink() || !path.is_dir() {
            continue;
        }
        mount_bind_recursive(path, path)?;
        mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

pub(crate) fn limit_resources() -> rustix::io::Result<()> {
    // Do not inherit the daemon's priority. Refused without root, where it is not raised either.
    let _refused = setpriority_process(None, 0);
    for (resource, most) in [(Resource::Core, 0), (Resource::Nofile, DESCRIPTORS_MAX)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

fn needed(kind: Kind) -> CapabilitySet {
    // Files of other users.
    let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    match kind {
        // `/dev/mem`, for a device's table of interrupts; and all of its configuration.
        Kind::PassthroughModel => {
            needed(Kind::DeviceModel) | CapabilitySet::SYS_RAWIO | CapabilitySet::SYS_ADMIN
        }
        Kind::DeviceModel => {
            files
                // It takes another user and an empty root folder itself.
                | CapabilitySet::SETUID
                | CapabilitySet::SETGID
                | CapabilitySet::SYS_CHROOT
                // Interfaces of emulated cards, and a VNC port below 1024.
                | CapabilitySet::NET_ADMIN
                | CapabilitySet::NET_BIND_SERVICE
                | CapabilitySet::IPC_LOCK
        }
        Kind::DeviceServer => {
            files
                | CapabilitySet::SETUID
                | CapabilitySet::SETGID
                | CapabilitySet::SYS_CHROOT
                | CapabilitySet::NET_BIND_SERVICE
                | CapabilitySet::IPC_LOCK
                // Owners and modes in a folder, as the guest sets them.
                | CapabilitySet::CHOWN
                | CapabilitySet::FSETID
        }
        // To connect a network block device.
        Kind::ImageServer => files | CapabilitySet::SYS_ADMIN,
    }
}

/// Keeps no capability, and gains none by executing other programs.
pub(crate) fn keep_none() -> rustix::io::Result<()> {
    keep(CapabilitySet::empty())
}

/// Keeps the capabilities that the program needs, and gains none by executing other programs.
pub(crate) fn keep_capabilities(kind: Kind) -> rustix::io::Result<()> {
    keep(needed(kind))
}

fn keep(needed: CapabilitySet) -> rustix::io::Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if !needed.contains(capability) {
            // Fails for capabilities unknown to the kernel, and without root.
            let _unknown = remove_capability_from_bounding_set(capability);
        }
    }
    let had = capabilities(None)?;
    let kept = had.permitted & needed;
    clear_ambient_capability_set()?;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    set_no_new_privs(true)
}
