//! Every key that xl knows, those that others write into its files, and what becomes of each here.
//!
//! Sources: xen `tools/xl/xl_parse.c` (staging of August 2026) and `docs/man/xl.cfg.5.pod.in`; for xend's
//! keys `tools/python/xen/xm/create.py` and `tools/examples` up to Xen 4.4.

/// What becomes of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Treatment {
    /// It is read by `vm`.
    Read,
    /// It says something about HVM or its device model, which xl ignores for PV and PVH too; see `hvm`.
    Ignored,
    /// The VM would not be what was asked for, unless the value is empty or one of `harmless`.
    Refused { harmless: &'static [&'static str], reason: &'static str },
    /// As `Refused`, but it means nothing for PV, and `hvm` reads it for HVM.
    RefusedForPvh { harmless: &'static [&'static str], reason: &'static str },
    /// The VM works without it: ignored with a warning, unless the value is empty or one of `harmless`.
    Tolerated { harmless: &'static [&'static str], reason: &'static str },
}

use Treatment::{Ignored, Read, Refused, RefusedForPvh, Tolerated};

const fn never(harmless: &'static [&'static str], reason: &'static str) -> Treatment {
    Refused { harmless, reason }
}

const fn warn(harmless: &'static [&'static str], reason: &'static str) -> Treatment {
    Tolerated { harmless, reason }
}

const NONE: &[&str] = &[];
const OFF: &[&str] = &["0"];
const ON: &[&str] = &["1"];
const ARM: &str = "only for Arm hosts";
const NO_XSM: &str =
    "ignored: Debian's Xen has no security policy (XSM), without which xl ignores it too";
const NO_BACKEND: &str = "not supported: neither Linux nor QEMU has a backend for it";
const NO_USB: &str = "not supported: Debian's Linux has no frontend for it, and QEMU, its backend, is confined \
                      from the host's devices";
const NO_STORE: &str = "not supported: the store has the same limits for every guest";
const SEDF: &str = "ignored: a parameter of the sedf scheduler, which Xen no longer has";

/// Sorted for binary search.
const KEYS: &[(&str, Treatment)] = &[
    ("acpi", RefusedForPvh { harmless: ON, reason: "PVH domains always have ACPI" }),
    ("acpi_firmware", Ignored),
    ("acpi_laptop_slate", Ignored),
    ("acpi_s3", Ignored),
    ("acpi_s4", Ignored),
    ("altp2m", Read),
    ("altp2m_count", Read),
    ("altp2mhvm", Ignored),
    ("apic", RefusedForPvh { harmless: ON, reason: "PVH domains always have a local APIC" }),
    ("arm_sci", never(&["none"], ARM)),
    ("bios", Ignored),
    ("bios_path_override", Ignored),
    ("boot", Ignored),
    ("bootloader", Read),
    ("bootloader_args", Read),
    ("bootloader_restrict", warn(ON, "ignored: bootloaders always run confined")),
    ("bootloader_user", Read),
    ("builder", Read),
    ("cap", Read),
    ("channel", Read),
    ("cmdline", Read),
    ("cpu_weight", Read),
    ("cpuid", Read),
    ("cpus", Read),
    ("cpus_soft", Read),
    ("device_model", Ignored),
    ("device_model_args", Read),
    ("device_model_args_hvm", Ignored),
    ("device_model_args_pv", Read),
    ("device_model_override", Read),
    ("device_model_stubdomain_override", Ignored),
    ("device_model_stubdomain_seclabel", Ignored),
    ("device_model_user", Ignored),
    ("device_model_version", Ignored),
    ("device_tree", never(NONE, ARM)),
    ("disk", Read),
    ("display", Ignored),
    ("dm_restrict", Ignored),
    ("driver_domain", Read),
    ("dtdev", never(NONE, ARM)),
    ("e820_host", Read),
    ("extra", Read),
    ("extratime", warn(OFF, SEDF)),
    ("firmware", Read),
    ("firmware_override", Ignored),
    ("gfx_passthru", Ignored),
    ("gic_version", never(&["default"], ARM)),
    ("hap", Read),
    ("hdtype", Ignored),
    ("hpet", Ignored),
    ("hvm_pirq", Ignored),
    ("init_seclabel", warn(NONE, NO_XSM)),
    ("iomem", Read),
    ("ioports", Read),
    ("irqs", Read),
    ("kernel", Read),
    ("keymap", Read),
    ("latency", warn(OFF, SEDF)),
    ("llc_colors", never(NONE, ARM)),
    ("localtime", Read),
    ("max_event_channels", Read),
    ("max_grant_frames", Read),
    ("max_grant_version", Read),
    ("max_maptrack_frames", Read),
    ("maxmem", Read),
    ("maxvcpus", Read),
    ("mca_caps", Ignored),
    ("memory", Read),
    ("mmio_hole", Ignored),
    ("ms_vm_genid", Ignored),
    ("msr_relaxed", Read),
    ("name", Read),
    ("nestedhvm", Read),
    ("nographic", Ignored),
    ("nomigrate", Read),
    ("nr_spis", never(NONE, ARM)),
    ("nx", Ignored),
    ("on_crash", Read),
    ("on_host_shutdown", Read),
    ("on_poweroff", Read),
    ("on_reboot", Read),
    ("on_soft_reset", Read),
    ("on_watchdog", Read),
    ("oos", Read),
    ("opengl", Ignored),
    ("p9", Read),
    ("pae", Ignored),
    ("passthrough", Read),
    ("pci", Read),
    ("pci_msitranslate", Read),
    ("pci_permissive", Read),
    ("pci_power_mgmt", Read),
    ("pci_seize", Read),
    ("period", warn(OFF, SEDF)),
    ("pool", Read),
    ("pvcalls", never(NONE, "not supported: Debian's Linux has no backend for it")),
    ("pvshim", Read),
    ("pvshim_cmdline", Read),
    ("pvshim_extra", Read),
    ("pvshim_path", Read),
    ("ramdisk", Read),
    ("rdm", Ignored),
    ("rdm_mem_boundary", Ignored),
    ("root", Read),
    ("rtc_timeoffset", Read),
    ("sdl", Ignored),
    ("seclabel", warn(NONE, NO_XSM)),
    ("serial", Ignored),
    ("shadow_memory", Read),
    ("slice", warn(OFF, SEDF)),
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
    ("timer_mode", Read),
    ("trap_unmapped_accesses", never(ON, ARM)),
    ("tsc_mode", Read),
    ("type", Read),
    ("usb", Ignored),
    ("usbctrl", never(NONE, NO_USB)),
    ("usbdev", never(NONE, NO_USB)),
    ("usbdevice", Ignored),
    ("usbversion", Ignored),
    ("uuid", Read),
    ("vcpus", Read),
    ("vdispl", never(NONE, NO_BACKEND)),
    ("vendor_device", Ignored),
    ("vfb", Read),
    ("vga", Ignored),
    ("videoram", Ignored),
    ("vif", Read),
    ("vif2", warn(NONE, "ignored: netchannel2 is gone from Xen")),
    ("viridian", Ignored),
    ("virtio", never(NONE, "not supported: its backends are other projects' and for Arm hosts")),
    ("vkb", Read),
    ("vkb_device", Ignored),
    ("vmtrace_buf_kb", Read),
    ("vnc", Read),
    ("vncdisplay", Read),
    ("vnclisten", Read),
    ("vncpasswd", Read),
    ("vncunused", Read),
    ("vncviewer", Ignored),
    (
        "vnuma",
        never(NONE, "guests get no NUMA topology of their own; xl gives one to HVM domains only"),
    ),
    ("vpmu", Read),
    ("vpt_align", Ignored),
    ("vsnd", never(NONE, NO_BACKEND)),
    ("vtpm", never(NONE, "not supported: its backend is a domain of its own, from Xen's mini-os")),
    ("vuart", never(NONE, ARM)),
    ("xauthority", Ignored),
    ("xen_platform_pci", Ignored),
    ("xen_platform_pci_bar_uc", Ignored),
    (
        "xend_suspend_evtchn_compat",
        warn(OFF, "ignored: guests are asked to suspend as they offer it"),
    ),
    ("xenstore_feature_mask", never(NONE, NO_STORE)),
    ("xenstore_quota", never(NONE, NO_STORE)),
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

/// Keys that xl does not know but that are found in its files, with xl's name for the same where it has one.
/// Sorted for binary search.
const FOREIGN: &[(&str, &str)] = &[
    ("access_control", "seclabel"),
    ("arch", ""),
    ("audio", "soundhw"),
    ("autostart", ""),
    ("blkif", ""),
    ("bootargs", "bootloader_args"),
    ("bootentry", ""),
    ("broadcast", ""),
    ("cdrom", "disk"),
    ("console", ""),
    ("cpu", "cpus"),
    ("cpu_cap", "cap"),
    ("cpuid_check", ""),
    ("description", ""),
    ("dhcp", ""),
    ("dt_passthrough_nodes", ""),
    ("fda", ""),
    ("fdb", ""),
    ("features", ""),
    ("gateway", ""),
    ("guest_os_type", ""),
    ("home", ""),
    ("hostname", ""),
    ("interface", ""),
    ("ip", "vif"),
    ("irq", "irqs"),
    ("isa", ""),
    ("libdir", ""),
    ("loader", "firmware_override"),
    ("machine_address_size", ""),
    ("maxcpus", "maxvcpus"),
    ("memory_sharing", ""),
    ("monitor", ""),
    ("monitor_path", ""),
    ("ne2000", ""),
    ("netif", ""),
    ("netmask", ""),
    ("nfs_root", ""),
    ("nfs_server", ""),
    ("nics", "vif"),
    ("on_shutdown", "on_poweroff"),
    ("on_xend_start", ""),
    ("on_xend_stop", ""),
    ("parallel", ""),
    ("paused", ""),
    ("restart", "on_poweroff"),
    ("s3_integrity", ""),
    ("snapshot", ""),
    ("superpages", ""),
    ("suppress_spurious_page_faults", ""),
    ("target", ""),
    ("tpmif", ""),
    ("usbport", ""),
    ("vcpu", "vcpus"),
    ("vcpu_avail", "vcpus"),
    ("vgt", ""),
    ("vgt_fence_sz", ""),
    ("vgt_high_gm_sz", ""),
    ("vgt_low_gm_sz", ""),
    ("vhpt", ""),
    ("vmid", ""),
    ("vncconsole", ""),
    ("vscsi", ""),
    ("vusb", ""),
    ("xen_shell", ""),
];

/// What a key may be that xl does not know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unknown {
    /// xend or a template of others has it. xl's name for the same may be another.
    Foreign {
        instead: Option<&'static str>,
    },
    /// Probably this key, misspelt.
    Typo(&'static str),
    Other,
}

pub(super) fn unknown(key: &str) -> Unknown {
    if let Ok(index) = FOREIGN.binary_search_by_key(&key, |&(name, _)| name) {
        let instead = FOREIGN[index].1;
        return Unknown::Foreign { instead: (!instead.is_empty()).then_some(instead) };
    }
    nearest(key, KEYS.iter().map(|&(name, _)| name)).map_or(Unknown::Other, Unknown::Typo)
}

/// The candidate that is at most two typing mistakes, and fewer than half of its letters, away from `word`.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    /// No name is that long, so a longer word is near none of them.
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let letters = |word: &str| {
        let mut letters = word.as_bytes().to_vec();
        letters.sort_unstable();
        letters
    };
    let typed = letters(&word);
    candidates
        .map(|name| (strsim::osa_distance(&word, name), name))
        .filter(|&(mistakes, name)| mistakes <= 2 && mistakes * 2 < name.len())
        // Letters are exchanged more often than replaced.
        .min_by_key(|&(mistakes, name)| (mistakes, letters(name) != typed, name))
        .map(|(_, name)| name)
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
    fn foreign_keys_are_in_order_and_unknown_to_xl() {
        for pair in FOREIGN.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} {}", pair[0].0, pair[1].0);
        }
        for (name, instead) in FOREIGN {
            assert_eq!(treatment(name), None, "{name}");
            assert!(instead.is_empty() || treatment(instead).is_some(), "{instead}");
        }
    }

    #[test]
    fn an_unknown_key_is_a_typo_only_if_a_known_one_is_near() {
        for (key, expected) in [
            ("memroy", Unknown::Typo("memory")),
            ("Memory", Unknown::Typo("memory")),
            ("vcpsu", Unknown::Typo("vcpus")),
            ("vcpu", Unknown::Foreign { instead: Some("vcpus") }),
            ("on_powerof", Unknown::Typo("on_poweroff")),
            ("on_carsh", Unknown::Typo("on_crash")),
            ("dsk", Unknown::Typo("disk")),
            ("disks", Unknown::Typo("disk")),
            // Two letters changed places: one mistake.
            ("vfi", Unknown::Typo("vif")),
            ("pfv", Unknown::Other),
            ("cpu", Unknown::Foreign { instead: Some("cpus") }),
            ("dhcp", Unknown::Foreign { instead: None }),
            ("colour", Unknown::Other),
            ("OVM_simple_name", Unknown::Other),
            ("x", Unknown::Other),
            ("", Unknown::Other),
        ] {
            assert_eq!(unknown(key), expected, "{key}");
        }
        assert_eq!(unknown(&"m".repeat(65)), Unknown::Other);
    }
}
