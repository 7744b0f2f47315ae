//! How a guest boots from its own disk, without a kernel on the host.

use std::path::Path;

use xen::programs::{self, DEVICE_MODELS};

/// A kind of guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Pvh,
    Pv,
    Hvm,
}

impl Kind {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "pvh" => Some(Self::Pvh),
            "pv" => Some(Self::Pv),
            "hvm" => Some(Self::Hvm),
            _ => None,
        }
    }
}

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

/// What this host has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Host {
    pvh_grub: Option<String>,
    pv_grub: Option<String>,
    pygrub: bool,
    device_model: bool,
    /// The machine runs guests of Xen's own hardware support.
    hardware: bool,
}

impl Host {
    /// `info` says of Xen what `xy info` prints.
    pub(super) fn look(info: &[(String, String)]) -> Self {
        let word = |key: &str| info.iter().find(|it| it.0 == key).map_or("", |it| &it.1);
        let is_there = |path: &&str| Path::new(path).is_file();
        let first = |paths: &[&str]| paths.iter().copied().find(is_there).map(str::to_owned);
        let version = format!("{}.{}", word("xen_major"), word("xen_minor"));
        Self {
            pvh_grub: first(&PVH_GRUB),
            pv_grub: first(&PV_GRUB),
            pygrub: programs::bootloaders(PYGRUB, &version).iter().any(|it| is_there(&it.as_str())),
            device_model: first(&DEVICE_MODELS).is_some(),
            hardware: word("xen_caps").split_whitespace().any(|word| word.starts_with("hvm-")),
        }
    }

    /// The settings by which a guest boots, and the name of its first disk.
    pub(super) fn boot(&self, wanted: Option<Kind>) -> Result<Boot, String> {
        let grub = |kind: &str, grub: &str| Boot {
            settings: vec![format!("type = '{kind}'"), format!("kernel = '{grub}'")],
            disk: "xvda",
        };
        let hvm = || Boot {
            settings: vec![
                "type = 'hvm'".to_owned(),
                "boot = 'c'".to_owned(),
                "serial = 'pty'".to_owned(),
            ],
            disk: "hda",
        };
        let pvh = self.pvh_grub.as_ref().filter(|_| self.hardware).map(|path| grub("pvh", path));
        // GRUB unpacks a PV guest's kernel itself, and knows neither lz4, which Debian's cloud kernels are packed with, nor
        // zstd, which most others are. What a bootloader finds is unpacked by us.
        let pv = if self.pygrub {
            Some(Boot {
                settings: vec!["type = 'pv'".to_owned(), format!("bootloader = '{PYGRUB}'")],
                disk: "xvda",
            })
        } else {
            self.pv_grub.as_ref().map(|path| grub("pv", path))
        };
        let emulated = (self.hardware && self.device_model).then(hvm);
        let without = "this machine, or Xen on it, has no hardware support for such guests; --type pv needs none";
        match wanted {
            None => pvh.or(pv).or(emulated).ok_or_else(|| {
                "nothing here boots a guest from its own disk: install grub-xen-host, which has GRUB for guests".to_owned()
            }),
            Some(Kind::Pvh) if !self.hardware => Err(format!("--type pvh: {without}")),
            Some(Kind::Hvm) if !self.hardware => Err(format!("--type hvm: {without}")),
            Some(Kind::Pvh) => pvh.ok_or_else(|| {
                format!("--type pvh: there is no GRUB for such guests ({}): install grub-xen-host", PVH_GRUB[0])
            }),
            Some(Kind::Pv) => pv.ok_or_else(|| {
                format!("--type pv: there is neither pygrub nor GRUB for such guests ({}): install Xen's utilities, or grub-xen-host", PV_GRUB[0])
            }),
            Some(Kind::Hvm) => emulated.ok_or_else(|| {
                "--type hvm: there is no QEMU for Xen: install qemu-system-xen (qemu-system-x86 on older Debian)".to_owned()
            }),
        }
    }
}

/// Lines of a configuration, and how its first disk is called.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Boot {
    pub(super) settings: Vec<String>,
    pub(super) disk: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(host: &Host, wanted: Option<Kind>) -> String {
        match host.boot(wanted) {
            Ok(boot) => boot.settings[0].clone(),
            Err(why) => why,
        }
    }

    #[test]
    fn the_best_of_what_is_there_is_chosen() {
        let nothing = Host::default();
        assert!(
            chosen(&nothing, None).ends_with("install grub-xen-host, which has GRUB for guests")
        );
        assert!(chosen(&nothing, Some(Kind::Pvh)).contains("no hardware support"));
        let pv = Host { pv_grub: Some("/g".to_owned()), ..nothing };
        assert_eq!(chosen(&pv, None), "type = 'pv'");
        let both = Host { pygrub: true, ..pv.clone() };
        assert_eq!(both.boot(Some(Kind::Pv)).unwrap().settings[1], "bootloader = 'pygrub'");
        let unable = Host { pvh_grub: Some("/h".to_owned()), ..pv.clone() };
        assert_eq!(chosen(&unable, None), "type = 'pv'");
        let able = Host { hardware: true, ..unable };
        assert_eq!(chosen(&able, None), "type = 'pvh'");
        assert!(chosen(&able, Some(Kind::Hvm)).contains("install qemu-system-xen"));
        let emulated = Host { device_model: true, hardware: true, ..Host::default() };
        assert_eq!(chosen(&emulated, None), "type = 'hvm'");
        assert!(chosen(&emulated, Some(Kind::Pv)).contains("grub-x86_64-xen.bin"));
    }
}
