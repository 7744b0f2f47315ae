//! Where hosts have the programs that come with Xen: Debian, Xen's own build and others.

use alloc::string::String;
use alloc::vec::Vec;

/// QEMU for Xen; the first that exists is used.
pub const DEVICE_MODELS: [&str; 7] = [
    "/usr/libexec/xen-qemu-system-i386",
    "/usr/lib/xen/bin/qemu-system-i386",
    "/usr/libexec/xen/bin/qemu-system-i386",
    "/usr/local/lib/xen/bin/qemu-system-i386",
    "/usr/local/libexec/xen/bin/qemu-system-i386",
    "/usr/bin/qemu-system-i386",
    "/usr/bin/qemu-system-x86_64",
];

/// Folders of bootloaders; `{}` is Xen's version.
const BOOTLOADER_FOLDERS: [&str; 6] = [
    "/usr/lib/xen-{}/bin",
    "/usr/lib/xen/bin",
    "/usr/libexec/xen/bin",
    "/usr/local/lib/xen/bin",
    "/usr/local/libexec/xen/bin",
    "/usr/bin",
];

/// Where a bootloader of this name may be, for a version of Xen such as `4.17`; the first that exists is used.
#[must_use]
pub fn bootloaders(name: &str, version: &str) -> Vec<String> {
    let place = |folder: &&str| [&folder.replace("{}", version), name].join("/");
    BOOTLOADER_FOLDERS.iter().map(place).collect()
}
