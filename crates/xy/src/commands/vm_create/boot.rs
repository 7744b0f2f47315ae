//! How a guest boots from its own disk, without a kernel on the host.

use api::BootRow;

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

/// GRUB for guests, where Debian's package `grub-xen-host` has it.
const PVH_GRUB: &str = "/usr/lib/grub-xen/grub-i386-xen_pvh.bin";
const PV_GRUB: &str = "/usr/lib/grub-xen/grub-x86_64-xen.bin";
/// Xen's own boot loader for PV guests.
const PYGRUB: &str = "pygrub";

/// What the host has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Host {
    pub(super) row: BootRow,
    /// The machine runs guests of Xen's own hardware support.
    hardware: bool,
}

impl Host {
    /// `info` says of Xen what `xy info` prints.
    pub(super) fn of(row: BootRow, info: &[(String, String)]) -> Self {
        let caps = info.iter().find(|it| it.0 == "xen_caps").map_or("", |it| &it.1);
        Self { row, hardware: caps.split_whitespace().any(|word| word.starts_with("hvm-")) }
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
        let pvh =
            self.row.pvh_grub.as_ref().filter(|_| self.hardware).map(|path| grub("pvh", path));
        // GRUB unpacks a PV guest's kernel itself, and knows neither lz4, which Debian's cloud kernels are packed with, nor
        // zstd, which most others are. What a bootloader finds is unpacked by us.
        let pv = if self.row.pygrub {
            Some(Boot {
                settings: vec!["type = 'pv'".to_owned(), format!("bootloader = '{PYGRUB}'")],
                disk: "xvda",
            })
        } else {
            self.row.pv_grub.as_ref().map(|path| grub("pv", path))
        };
        let emulated = (self.hardware && self.row.device_model).then(hvm);
        let without = "this machine, or Xen on it, has no hardware support for such guests; --type pv needs none";
        match wanted {
            None => pvh.or(pv).or(emulated).ok_or_else(|| {
                "nothing here boots a guest from its own disk: install grub-xen-host, which has GRUB for guests".to_owned()
            }),
            Some(Kind::Pvh) if !self.hardware => Err(format!("--type pvh: {without}")),
            Some(Kind::Hvm) if !self.hardware => Err(format!("--type hvm: {without}")),
            Some(Kind::Pvh) => pvh.ok_or_else(|| {
                format!("--type pvh: there is no GRUB for such guests ({PVH_GRUB}): install grub-xen-host")
            }),
            Some(Kind::Pv) => pv.ok_or_else(|| {
                format!("--type pv: there is neither pygrub nor GRUB for such guests ({PV_GRUB}): install Xen's utilities, or grub-xen-host")
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
        let path = |path: &str| Some(path.to_owned());
        let row = BootRow { pv_grub: path("/g"), ..BootRow::default() };
        let pv = Host { row: row.clone(), hardware: false };
        assert_eq!(chosen(&pv, None), "type = 'pv'");
        let both = Host { row: BootRow { pygrub: true, ..row.clone() }, hardware: false };
        assert_eq!(both.boot(Some(Kind::Pv)).unwrap().settings[1], "bootloader = 'pygrub'");
        let unable = Host { row: BootRow { pvh_grub: path("/h"), ..row }, hardware: false };
        assert_eq!(chosen(&unable, None), "type = 'pv'");
        let able = Host { hardware: true, ..unable };
        assert_eq!(chosen(&able, None), "type = 'pvh'");
        assert!(chosen(&able, Some(Kind::Hvm)).contains("install qemu-system-xen"));
        let row = BootRow { device_model: true, ..BootRow::default() };
        let emulated = Host { row, hardware: true };
        assert_eq!(chosen(&emulated, None), "type = 'hvm'");
        assert!(chosen(&emulated, Some(Kind::Pv)).contains("grub-x86_64-xen.bin"));
    }
}
