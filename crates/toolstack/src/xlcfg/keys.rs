//! Every key that xl knows, and what becomes of it here.
//!
//! Source: xen `tools/xl/xl_parse.c` (staging of August 2026) and `docs/man/xl.cfg.5.pod.in`.

/// What becomes of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Treatment {
    /// It is read by `vm`.
    Read,
    /// It says something about HVM or its device model, which xl ignores for PV and PVH too; see `hvm`.
    Ignored,
    /// It would mean something that cannot be had, unless its value is empty or one of `harmless`.
    Refused { harmless: &'static [&'static str], reason: &'static str },
    /// As `Refused`, but it means nothing for PV, and `hvm` reads it for HVM.
    RefusedForPvh { harmless: &'static [&'static str], reason: &'static str },
    /// As `Refused`, but `hvm` reads it for HVM.
    RefusedUnlessHvm { harmless: &'static [&'static str], reason: &'static str },
}

use Treatment::{Ignored, Read, Refused, RefusedForPvh, RefusedUnlessHvm};

const fn later(harmless: &'static [&'static str]) -> Treatment {
    Refused { harmless, reason: "not supported yet" }
}

const fn never(harmless: &'static [&'static str], reason: &'static str) -> Treatment {
    Refused { harmless, reason }
}

const NONE: &[&str] = &[];
const OFF: &[&str] = &["0"];
const ON: &[&str] = &["1"];
const NO_QEMU: &str = "not supported yet: it needs QEMU, which PV and PVH domains run without here";
const ARM: &str = "only for Arm hosts";

/// In the order of the alphabet, because it is searched by halving.
const KEYS: &[(&str, Treatment)] = &[
    ("acpi", RefusedForPvh { harmless: ON, reason: "PVH domains always have ACPI" }),
    ("acpi_firmware", Ignored),
    ("acpi_laptop_slate", Ignored),
    ("acpi_s3", Ignored),
    ("acpi_s4", Ignored),
    ("altp2m", never(&["0", "disabled"], "not supported yet")),
    ("altp2m_count", later(OFF)),
    ("altp2mhvm", Ignored),
    ("apic", RefusedForPvh { harmless: ON, reason: "PVH domains always have a local APIC" }),
    ("arm_sci", never(&["none"], ARM)),
    ("bios", Ignored),
    ("bios_path_override", Ignored),
    ("boot", Ignored),
    ("bootloader", never(NONE, "not supported yet: name the guest's kernel by kernel= instead")),
    ("bootloader_args", later(NONE)),
    ("bootloader_restrict", Ignored),
    ("bootloader_user", Ignored),
    ("builder", Read),
    ("cap", later(OFF)),
    ("channel", later(NONE)),
    ("cmdline", Read),
    ("cpu_weight", later(&["256"])),
    ("cpuid", later(&["host"])),
    ("cpus", later(&["all"])),
    ("cpus_soft", later(&["all"])),
    ("device_model", Ignored),
    ("device_model_args", Ignored),
    ("device_model_args_hvm", Ignored),
    ("device_model_args_pv", Ignored),
    ("device_model_override", Ignored),
    ("device_model_stubdomain_override", Ignored),
    ("device_model_stubdomain_seclabel", Ignored),
    ("device_model_user", Ignored),
    ("device_model_version", Ignored),
    ("device_tree", never(NONE, ARM)),
    ("disk", Read),
    ("display", Ignored),
    ("dm_restrict", Ignored),
    ("driver_domain", later(OFF)),
    ("dtdev", later(NONE)),
    ("e820_host", later(OFF)),
    ("extra", Read),
    ("extratime", later(OFF)),
    ("firmware", never(NONE, "not supported yet: name the guest's kernel by kernel= instead")),
    ("firmware_override", Ignored),
    ("gfx_passthru", Ignored),
    ("gic_version", never(&["default"], ARM)),
    ("hap", RefusedForPvh { harmless: ON, reason: "PVH domains always have hardware paging" }),
    ("hdtype", Ignored),
    ("hpet", Ignored),
    ("hvm_pirq", Ignored),
    ("init_seclabel", later(NONE)),
    ("iomem", later(NONE)),
    ("ioports", later(NONE)),
    ("irqs", later(NONE)),
    ("kernel", Read),
    ("keymap", Ignored),
    ("latency", later(OFF)),
    ("llc_colors", later(NONE)),
    ("localtime", later(OFF)),
    ("max_event_channels", later(NONE)),
    ("max_grant_frames", Read),
    ("max_grant_version", later(ON)),
    ("max_maptrack_frames", later(NONE)),
    ("maxmem", Read),
    ("maxvcpus", Read),
    ("mca_caps", Ignored),
    ("memory", Read),
    ("mmio_hole", Ignored),
    ("ms_vm_genid", Ignored),
    ("msr_relaxed", later(OFF)),
    ("name", Read),
    ("nestedhvm", later(OFF)),
    ("nographic", Ignored),
    ("nomigrate", later(OFF)),
    ("nr_spis", never(NONE, ARM)),
    ("nx", Ignored),
    ("on_crash", Read),
    ("on_poweroff", Read),
    ("on_reboot", Read),
    ("on_soft_reset", Read),
    ("on_watchdog", Read),
    ("oos", later(NONE)),
    ("opengl", Ignored),
    ("p9", later(NONE)),
    ("pae", Ignored),
    ("passthrough", later(&["disabled"])),
    ("pci", later(NONE)),
    ("pci_msitranslate", Ignored),
    ("pci_permissive", Ignored),
    ("pci_power_mgmt", Ignored),
    ("pci_seize", Ignored),
    ("period", later(OFF)),
    ("pool", later(&["Pool-0"])),
    ("pvcalls", later(NONE)),
    ("pvshim", later(OFF)),
    ("pvshim_cmdline", Ignored),
    ("pvshim_extra", Ignored),
    ("pvshim_path", Ignored),
    ("ramdisk", Read),
    ("rdm", later(NONE)),
    ("rdm_mem_boundary", Ignored),
    ("root", Read),
    ("rtc_timeoffset", later(OFF)),
    ("sdl", never(OFF, NO_QEMU)),
    ("seclabel", later(NONE)),
    ("serial", Ignored),
    ("shadow_memory", later(OFF)),
    ("slice", later(OFF)),
    ("smbios", Ignored),
    ("smbios_firmware", Ignored),
    ("soundhw", Ignored),
    ("spice", Ignored),
    ("spice_clipboard_sharing", Ignored),
    ("spice_image_compression", Ignored),
    ("spice_streaming_video", Ignored),
    ("spiceagent_mouse", Ignored),
    ("spicedisable_ticketing", Ignored),
    ("spicehost", Ignored),
    ("spicepasswd", Ignored),
    ("spiceport", Ignored),
    ("spicetls_port", Ignored),
    ("spiceusbredirection", Ignored),
    ("spicevdagent", Ignored),
    ("stdvga", Ignored),
    ("stubdomain_cmdline", Ignored),
    ("stubdomain_kernel", Ignored),
    ("stubdomain_memory", Ignored),
    ("stubdomain_ramdisk", Ignored),
    ("sve", never(&["disabled"], ARM)),
    ("tee", never(&["none"], ARM)),
    (
        "timer_mode",
        RefusedForPvh { harmless: &["no_delay_for_missed_ticks"], reason: "not supported yet" },
    ),
    ("trap_unmapped_accesses", never(ON, ARM)),
    ("tsc_mode", Read),
    ("type", Read),
    ("usb", Ignored),
    ("usbctrl", later(NONE)),
    ("usbdev", later(NONE)),
    ("usbdevice", Ignored),
    ("usbversion", Ignored),
    ("uuid", Read),
    ("vcpus", Read),
    ("vdispl", later(NONE)),
    ("vendor_device", Ignored),
    ("vfb", never(NONE, NO_QEMU)),
    ("vga", Ignored),
    ("videoram", Ignored),
    ("vif", Read),
    ("vif2", never(NONE, "netchannel2 is not supported by any Xen of today")),
    ("viridian", Ignored),
    ("virtio", later(NONE)),
    ("vkb", later(NONE)),
    ("vkb_device", Ignored),
    ("vmtrace_buf_kb", later(OFF)),
    ("vnc", RefusedUnlessHvm { harmless: OFF, reason: NO_QEMU }),
    ("vncdisplay", Ignored),
    ("vnclisten", Ignored),
    ("vncpasswd", Ignored),
    ("vncunused", Ignored),
    ("vncviewer", Ignored),
    ("vnuma", later(NONE)),
    ("vpmu", later(OFF)),
    ("vpt_align", Ignored),
    ("vsnd", later(NONE)),
    ("vtpm", later(NONE)),
    ("vuart", never(NONE, ARM)),
    ("xauthority", Ignored),
    ("xen_platform_pci", Ignored),
    ("xen_platform_pci_bar_uc", Ignored),
    ("xend_suspend_evtchn_compat", later(OFF)),
    ("xenstore_feature_mask", later(NONE)),
    ("xenstore_quota", later(NONE)),
];

/// `None` if xl knows no such key.
pub(super) fn treatment(key: &str) -> Option<Treatment> {
    let index = KEYS.binary_search_by_key(&key, |&(name, _)| name).ok()?;
    Some(KEYS[index].1)
}

#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, Treatment)> {
    KEYS.iter().copied()
}

/// The key that was probably meant.
pub(super) fn suggestion(key: &str) -> Option<&'static str> {
    nearest(key, KEYS.iter().map(|&(name, _)| name))
}

/// The candidate that is at most two edits, and less than half of its letters, away from `word`.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    /// No name is that long, so that a longer word is near none of them.
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase();
    candidates
        .map(|name| (edits(word.as_bytes(), name.as_bytes()), name))
        .filter(|&(edits, name)| edits <= 2 && edits * 2 < name.len())
        .min()
        .map(|(_, name)| name)
}

/// Insertions, deletions and replacements that turn `from` into `to`.
fn edits(from: &[u8], to: &[u8]) -> usize {
    // Row by row: costs[j] is that of turning what was read of `from` into the first j of `to`.
    let mut costs: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut costs[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = costs[j + 1];
            costs[j + 1] = replaced.min(costs[j] + 1).min(diagonal + 1);
        }
    }
    costs[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_order_and_each_is_there_once() {
        for pair in KEYS.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} {}", pair[0].0, pair[1].0);
        }
    }

    #[test]
    fn the_nearest_key_is_suggested_if_it_is_near() {
        for (key, expected) in [
            ("memroy", Some("memory")),
            ("Memory", Some("memory")),
            ("vcpu", Some("vcpus")),
            ("on_powerof", Some("on_poweroff")),
            ("dsk", Some("disk")),
            ("disks", Some("disk")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(suggestion(key), expected, "{key}");
        }
        assert_eq!(suggestion(&"m".repeat(65)), None);
    }

    #[test]
    fn edits_count_both_ways() {
        for (a, b, count) in [("", "abc", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), count);
            assert_eq!(edits(b.as_bytes(), a.as_bytes()), count);
        }
    }
}
