//! What guests can boot from on this host, without a kernel of their own here.

use api::BootRow;
use storage::{FileKind, System};
use xen::programs::{self, DEVICE_MODELS};

/// GRUB for guests, where Debian's package `grub-xen-host` and others have it.
const PVH_GRUB: [&str; 3] = [
    "/usr/lib/grub-xen/grub-i386-xen_pvh.bin",
    "/usr/share/grub/i386-xen_pvh/grub.elf",
    "/usr/lib/xen/boot/pvhgrub",
];
const PV_GRUB: [&str; 3] = [
    "/usr/lib/grub-xen/grub-x86_64-xen.bin",
    "/usr/share/grub/x86_64-xen/grub.elf",
    "/usr/lib/xen/boot/pvgrub64",
];
/// Xen's own boot loader for PV guests.
const PYGRUB: &str = "pygrub";

/// `version` is Xen's, such as `4.17`.
pub(crate) fn boot(system: &mut dyn System, version: &str) -> BootRow {
    let mut is_there = |path: &&str| matches!(system.inspect(path), Ok(FileKind::Regular { .. }));
    let pygrub = programs::bootloaders(PYGRUB, version);
    BootRow {
        pvh_grub: PVH_GRUB.iter().copied().find(&mut is_there).map(str::to_owned),
        pv_grub: PV_GRUB.iter().copied().find(&mut is_there).map(str::to_owned),
        pygrub: pygrub.iter().any(|it| is_there(&it.as_str())),
        device_model: DEVICE_MODELS.iter().any(&mut is_there),
    }
}
