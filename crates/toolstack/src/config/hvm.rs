//! HVM settings: firmware, emulated devices, and the device model.

use super::{Access, DiskConfig};

/// The firmware that Xen's loader starts. Source: xl.cfg(5), `bios`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Bios {
    #[default]
    SeaBios,
    Ovmf,
}

impl Bios {
    /// The name in a configuration file and in the store, where hvmloader reads it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SeaBios => "seabios",
            Self::Ovmf => "ovmf",
        }
    }
}

/// The emulated graphics card.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Vga {
    None,
    #[default]
    Cirrus,
    Standard,
}

impl Vga {
    pub const ALL: [Self; 3] = [Self::None, Self::Cirrus, Self::Standard];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cirrus => "cirrus",
            Self::Standard => "stdvga",
        }
    }

    /// Default and minimum video memory of this card, in MiB.
    #[must_use]
    pub fn video_mib(self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::Cirrus => (8, 8),
            Self::Standard => (16, 16),
        }
    }
}

/// VNC settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vnc {
    /// Address to listen at.
    pub listen: String,
    /// Port 5900 plus this. `None`: the domid, which is unique.
    pub display: Option<u16>,
    pub password: Option<String>,
}

/// The user of the device model.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ModelUser {
    /// A user for this domain only, restricted to it.
    #[default]
    Restricted,
    /// Root, as xl without `dm_restrict`.
    Root,
    Named(String),
}

/// HVM-specific settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HvmSettings {
    /// A loader instead of Xen's hvmloader.
    pub loader: Option<String>,
    pub bios: Bios,
    /// A file instead of the host's BIOS.
    pub bios_path: Option<String>,
    /// Boot order, letter by letter: `c` disk, `d` CD, `n` network.
    pub boot: String,
    pub vga: Vga,
    pub video_mib: u64,
    pub vnc: Option<Vnc>,
    pub keymap: Option<String>,
    /// Serial ports, in QEMU's syntax.
    pub serial: Vec<String>,
    pub usb: bool,
    pub usb_devices: Vec<String>,
    pub acpi: bool,
    pub acpi_s3: bool,
    pub acpi_s4: bool,
    pub hpet: bool,
    /// Hyper-V enlightenments (`HVMPV_*`), 0 for none.
    pub viridian: u64,
    /// Whether there is the Xen platform PCI device.
    pub platform_device: bool,
    /// A device model instead of the host's.
    pub model: Option<String>,
    pub model_user: ModelUser,
    /// Extra arguments.
    pub model_arguments: Vec<String>,
}

impl Default for HvmSettings {
    fn default() -> Self {
        let vga = Vga::default();
        Self {
            loader: None,
            bios: Bios::default(),
            bios_path: None,
            boot: "cda".to_owned(),
            vga,
            video_mib: vga.video_mib().0,
            vnc: Some(Vnc { listen: "127.0.0.1".to_owned(), display: None, password: None }),
            keymap: None,
            serial: Vec::new(),
            usb: false,
            usb_devices: Vec::new(),
            acpi: true,
            acpi_s3: true,
            acpi_s4: true,
            hpet: true,
            viridian: 0,
            platform_device: true,
            model: None,
            model_user: ModelUser::default(),
            model_arguments: Vec::new(),
        }
    }
}

/// The IDE index at which a disk is emulated in addition to its PV device, for the first four whole
/// disks `hda` to `hdd` or `xvda` to `xvdd`.
#[must_use]
pub fn ide_index(number: u32) -> Option<u32> {
    let (major, minor) = (number >> 8, number & 0xff);
    match (major, minor) {
        (3, 0 | 64) => Some(minor / 64),
        (22, 0 | 64) => Some(2 + minor / 64),
        (202, 0 | 16 | 32 | 48) => Some(minor / 16),
        _ => None,
    }
}

/// A conflict between emulated disks: the index of one in the list, and the problem.
#[must_use]
pub fn place_problem(disks: &[DiskConfig]) -> Option<(usize, String)> {
    let mut taken: [Option<&str>; 4] = [None; 4];
    for (number, disk) in disks.iter().enumerate() {
        let name = disk.vdev.name.as_str();
        let Some(index) = ide_index(disk.vdev.number) else { continue };
        if let Some(other) = taken[index as usize].replace(name) {
            let problem = format!("{name} and {other} are the same emulated disk; rename one");
            return Some((number, problem));
        }
        // xvda has a PV device, and can do without the emulated one.
        let is_ide = disk.vdev.number >> 8 != 202;
        if is_ide && !disk.cdrom && disk.access() == Access::ReadOnly {
            let letter = char::from(b"abcd"[index as usize]);
            return Some((
                number,
                format!(
                    "an emulated disk cannot be read-only; use devtype=cdrom, \
                     or xvd{letter} instead of {name}"
                ),
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg::parse_vdev;

    #[test]
    fn the_first_four_whole_disks_are_emulated() {
        for (name, index) in [
            ("hda", Some(0)),
            ("hdb", Some(1)),
            ("hdc", Some(2)),
            ("hdd", Some(3)),
            ("xvda", Some(0)),
            ("xvdd", Some(3)),
            ("xvde", None),
            ("xvda1", None),
            ("hda1", None),
            ("sda", None),
            ("xvdq", None),
        ] {
            assert_eq!(ide_index(parse_vdev(name).unwrap()), index, "{name}");
        }
    }
}
