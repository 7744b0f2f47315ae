//! HVM settings: firmware, emulated devices, and the device model.

use super::{Access, DiskConfig, Spice};

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
    /// SPICE's own.
    Qxl,
}

impl Vga {
    pub const ALL: [Self; 4] = [Self::None, Self::Cirrus, Self::Standard, Self::Qxl];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cirrus => "cirrus",
            Self::Standard => "stdvga",
            Self::Qxl => "qxl",
        }
    }

    /// Default and minimum video memory of this card, in MiB.
    #[must_use]
    pub fn video_mib(self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::Cirrus => (8, 8),
            Self::Standard => (16, 16),
            Self::Qxl => (128, 128),
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

/// An emulated sound card.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SoundCard {
    Ac97,
    Adlib,
    Cs4231a,
    Es1370,
    Gus,
    Hda,
    Sb16,
}

impl SoundCard {
    pub const ALL: [Self; 7] =
        [Self::Ac97, Self::Adlib, Self::Cs4231a, Self::Es1370, Self::Gus, Self::Hda, Self::Sb16];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ac97 => "ac97",
            Self::Adlib => "adlib",
            Self::Cs4231a => "cs4231a",
            Self::Es1370 => "es1370",
            Self::Gus => "gus",
            Self::Hda => "hda",
            Self::Sb16 => "sb16",
        }
    }
}

/// The version of an emulated USB controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UsbVersion {
    One,
    Two,
    Three,
}

impl UsbVersion {
    pub const ALL: [Self; 3] = [Self::One, Self::Two, Self::Three];

    /// The number in a configuration file.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// The controller of emulated disks that are no SCSI disks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DiskBus {
    #[default]
    Ide,
    Ahci,
}

impl DiskBus {
    pub const ALL: [Self; 2] = [Self::Ide, Self::Ahci];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ide => "ide",
            Self::Ahci => "ahci",
        }
    }
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

/// A text that the guest's firmware tells in its SMBIOS tables.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SmbiosText {
    /// One of [`SmbiosText::KEYS`].
    pub key: &'static str,
    pub value: String,
}

impl SmbiosText {
    /// Any number of these.
    pub const OEM: &'static str = "oem";
    /// Names in a configuration file. In the store they have dashes. Source: libxl's `smbios_type`.
    pub const KEYS: [&'static str; 18] = [
        "bios_vendor",
        "bios_version",
        "system_manufacturer",
        "system_product_name",
        "system_version",
        "system_serial_number",
        "baseboard_manufacturer",
        "baseboard_product_name",
        "baseboard_version",
        "baseboard_serial_number",
        "baseboard_asset_tag",
        "baseboard_location_in_chassis",
        "enclosure_manufacturer",
        "enclosure_serial_number",
        "enclosure_asset_tag",
        "battery_manufacturer",
        "battery_device_name",
        Self::OEM,
    ];
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
    pub spice: Option<Spice>,
    pub keymap: Option<String>,
    /// Whether its firmware is to use its serial port, without a screen.
    pub nographic: bool,
    /// Serial ports, in QEMU's syntax.
    pub serial: Vec<String>,
    pub usb: bool,
    pub usb_devices: Vec<String>,
    /// The version of a USB controller without devices.
    pub usb_version: Option<UsbVersion>,
    pub sound: Option<SoundCard>,
    pub disk_bus: DiskBus,
    /// Whether there is a device by which drivers are found for a guest of XenServer's.
    pub vendor_device: bool,
    pub apic: bool,
    pub acpi: bool,
    pub acpi_s3: bool,
    pub acpi_s4: bool,
    pub hpet: bool,
    /// Whether its firmware tells it the generation of its memory.
    pub generation_id: bool,
    /// Hyper-V enlightenments (`HVMPV_*`), 0 for none.
    pub viridian: u64,
    /// Whether there is the Xen platform PCI device.
    pub platform_device: bool,
    /// A device model instead of the host's.
    pub model: Option<String>,
    pub model_user: ModelUser,
    /// Extra arguments.
    pub model_arguments: Vec<String>,
    /// Whether its firmware says that it can be a tablet or a laptop.
    pub laptop_slate: bool,
    /// Whether its CPUs have addresses of more than 32 bits.
    pub pae: bool,
    /// Whether its CPUs report machine checks to one of them only.
    pub lmce: bool,
    /// Below 4 GiB, for its devices.
    pub hole_mib: Option<u32>,
    pub smbios: Vec<SmbiosText>,
    /// A file with ACPI tables that its firmware adds to its own.
    pub acpi_tables: Option<String>,
    /// A file with SMBIOS structures, each after its size, in place of its firmware's own.
    pub smbios_structures: Option<String>,
}

impl HvmSettings {
    /// Whether a serial port is a pseudo-terminal, whose path is QEMU's to say.
    pub(crate) fn has_terminals(&self) -> bool {
        self.serial.iter().any(|port| port == "pty" || port.starts_with("pty:"))
    }
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
            spice: None,
            keymap: None,
            nographic: false,
            serial: Vec::new(),
            usb: false,
            usb_devices: Vec::new(),
            usb_version: None,
            sound: None,
            disk_bus: DiskBus::default(),
            vendor_device: false,
            apic: true,
            acpi: true,
            acpi_s3: true,
            acpi_s4: true,
            hpet: true,
            generation_id: false,
            viridian: 0,
            platform_device: true,
            model: None,
            model_user: ModelUser::default(),
            model_arguments: Vec::new(),
            laptop_slate: false,
            pae: true,
            lmce: false,
            hole_mib: None,
            smbios: Vec::new(),
            acpi_tables: None,
            smbios_structures: None,
        }
    }
}

/// Where a disk is emulated in addition to its PV device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DiskPlace {
    /// The drive of one of two channels, of two drives each.
    Ide(u32),
    /// The port of the controller.
    Ahci(u32),
    /// The target of the controller.
    Scsi(u32),
}

impl DiskPlace {
    /// That of a whole disk: of `hda` to `hdd`, and of `xvda` to `xvdd`, or to `xvdf` with AHCI, by their letter; of `sda`
    /// to `sdg`, because the controller itself has the eighth place. CDs are always IDE.
    #[must_use]
    pub fn of(number: u32, is_cd: bool, bus: DiskBus) -> Option<Self> {
        /// Drives of the IDE controller, ports of the AHCI controller and targets of the SCSI controller.
        const IDE: u32 = 4;
        const AHCI: u32 = 6;
        const SCSI: u32 = 7;
        let (major, minor) = (number >> 8, number & 0xff);
        let index = match (major, minor % 16, minor % 64) {
            (3, _, 0) if minor / 64 < 2 => minor / 64,
            (22, _, 0) if minor / 64 < 2 => 2 + minor / 64,
            (202, 0, _) => minor / 16,
            (8, 0, _) if !is_cd => return (minor / 16 < SCSI).then_some(Self::Scsi(minor / 16)),
            _ => return None,
        };
        match bus {
            DiskBus::Ahci if !is_cd => (index < AHCI).then_some(Self::Ahci(index)),
            _ => (index < IDE).then_some(Self::Ide(index)),
        }
    }

    /// Its number on its bus.
    #[must_use]
    pub fn index(self) -> u32 {
        match self {
            Self::Ide(index) | Self::Ahci(index) | Self::Scsi(index) => index,
        }
    }
}

/// A conflict between emulated disks: the index of one in the list, and the problem.
#[must_use]
pub fn place_problem(disks: &[DiskConfig], bus: DiskBus) -> Option<(usize, String)> {
    let mut taken: Vec<(DiskPlace, &str)> = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let name = disk.vdev.name.as_str();
        let Some(place) = DiskPlace::of(disk.vdev.number, disk.cdrom, bus) else { continue };
        if let Some((_, other)) = taken.iter().find(|(it, _)| *it == place) {
            let problem = format!("{name} and {other} are the same emulated disk; rename one");
            return Some((number, problem));
        }
        taken.push((place, name));
        // xvda has a PV device, and can do without the emulated one.
        let needs_it = disk.vdev.number >> 8 != 202 && !matches!(place, DiskPlace::Scsi(_));
        if needs_it && !disk.cdrom && disk.access() == Access::ReadOnly {
            let letter =
                char::from(b"abcd"[usize::try_from(place.index()).unwrap_or_default() % 4]);
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
    fn the_first_whole_disks_are_emulated() {
        use DiskPlace::{Ahci, Ide, Scsi};
        for (name, ide, ahci, cd) in [
            ("hda", Some(Ide(0)), Some(Ahci(0)), Some(Ide(0))),
            ("hdb", Some(Ide(1)), Some(Ahci(1)), Some(Ide(1))),
            ("hdc", Some(Ide(2)), Some(Ahci(2)), Some(Ide(2))),
            ("hdd", Some(Ide(3)), Some(Ahci(3)), Some(Ide(3))),
            ("xvda", Some(Ide(0)), Some(Ahci(0)), Some(Ide(0))),
            ("xvdd", Some(Ide(3)), Some(Ahci(3)), Some(Ide(3))),
            ("xvde", None, Some(Ahci(4)), None),
            ("xvdf", None, Some(Ahci(5)), None),
            ("xvdg", None, None, None),
            ("xvda1", None, None, None),
            ("hda1", None, None, None),
            ("sda", Some(Scsi(0)), Some(Scsi(0)), None),
            ("sdg", Some(Scsi(6)), Some(Scsi(6)), None),
            ("sdh", None, None, None),
            ("sda1", None, None, None),
            ("xvdq", None, None, None),
        ] {
            let number = parse_vdev(name).unwrap();
            let of = |is_cd, bus| DiskPlace::of(number, is_cd, bus);
            assert_eq!(of(false, DiskBus::Ide), ide, "{name}");
            assert_eq!(of(false, DiskBus::Ahci), ahci, "{name}");
            assert_eq!(of(true, DiskBus::Ahci), cd, "{name}");
        }
    }
}
