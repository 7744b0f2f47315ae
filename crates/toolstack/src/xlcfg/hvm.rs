//! The keys that only HVM domains have.
//!
//! Source: xen `docs/man/xl.cfg.5.pod.in`, `tools/xl/xl_parse.c`.

use xen::DomainKind;

use super::syntax::{Setting, Value};
use super::vm::{Findings, Reader, Result};
use super::{ConfigError, shown};
use crate::config::{
    Bios, DiskBus, DiskConfig, HvmSettings, ModelUser, SmbiosText, SoundCard, UsbVersion, Vga, Vnc,
    place_problem,
};

/// A key, values that are harmless, and what is wrong with others.
pub(super) type Row = (&'static str, &'static [&'static str], &'static str);

/// Without these the VM would not be what was asked for.
pub(super) const REFUSED: &[Row] = &[
    (
        "device_model_stubdomain_override",
        &["0"],
        "not supported: Debian has no stub domains; QEMU is confined instead",
    ),
    ("device_model_version", &["qemu-xen"], "only qemu-xen is supported"),
    (
        "gfx_passthru",
        &["0"],
        "pci gives a guest a graphics card as any other device; what makes one its first screen is not there yet",
    ),
];

/// Without these the VM works, and a warning says what it lacks.
pub(super) const TOLERATED: &[Row] = &[
    ("sdl", &["0"], "ignored: no window is opened in domain 0; vnc or spice shows the screen"),
    ("device_model_stubdomain_seclabel", &[], "ignored: there are no stub domains"),
    ("device_model", &[], "ignored, as xl ignores it; use device_model_override"),
    ("nx", &["1"], "ignored: libxl ignores it too; see cpuid"),
    ("vkb_device", &["0"], "ignored: the keyboard is an emulated one; vkb adds others"),
    ("xen_platform_pci_bar_uc", &["1"], "ignored: the BAR is always uncached"),
];

/// What hvmloader needs below 4 GiB, and what it leaves for memory there.
const HOLE_MIB_MIN: i64 = 256;
const HOLE_MIB_MAX: i64 = 3840;
const OEM_TEXTS_MAX: usize = 99;
const VIDEO_MIB_MAX: i64 = 256;
/// So that the port is one.
pub(super) const DISPLAY_MAX: i64 = 65535 - 5900;

impl Reader<'_> {
    /// What an HVM domain has beyond others; `None` for those, and after a fault.
    pub(super) fn hvm(
        &self,
        kind: DomainKind,
        disks: &[DiskConfig],
        found: &mut Findings,
    ) -> Option<Box<HvmSettings>> {
        if kind != DomainKind::Hvm {
            return None;
        }
        self.check_hvm_keys(found);
        let settings = self.check_places(disks).and_then(|()| self.hvm_settings());
        settings.and_then(|it| self.with_redirections(it)).map_or_else(
            |fault| {
                found.faults.push(fault);
                None
            },
            |settings| Some(Box::new(settings)),
        )
    }

    fn hvm_settings(&self) -> Result<HvmSettings> {
        let default = HvmSettings::default();
        let (vga, video_mib) = self.screen()?;
        let mut model_arguments = self.words("device_model_args")?;
        model_arguments.extend(self.words("device_model_args_hvm")?);
        let usb_devices = self.usb_devices()?;
        let (bios, loader) = self.firmware()?;
        let usb = self.flag("usb", default.usb)? || !usb_devices.is_empty();
        let usb_version = self.usb_version(usb)?;
        Ok(HvmSettings {
            loader,
            bios,
            bios_path: self.path("bios_path_override")?.map(str::to_owned),
            boot: self.boot(default.boot)?,
            vga,
            video_mib,
            vnc: self.vnc()?,
            spice: self.spice()?,
            keymap: self.plain("keymap")?,
            nographic: self.flag("nographic", false)?,
            serial: self.words("serial")?,
            usb,
            usb_devices,
            usb_version,
            sound: self.word("soundhw", &SoundCard::ALL, SoundCard::as_str)?,
            disk_bus: self.disk_bus()?,
            vendor_device: self.vendor_device()?,
            apic: self.flag("apic", default.apic)?,
            acpi: self.flag("acpi", default.acpi)?,
            acpi_s3: self.flag("acpi_s3", default.acpi_s3)?,
            acpi_s4: self.flag("acpi_s4", default.acpi_s4)?,
            hpet: self.flag("hpet", default.hpet)?,
            generation_id: self.generation_id()?,
            viridian: self.viridian()?,
            platform_device: self.flag("xen_platform_pci", default.platform_device)?,
            model: self.path("device_model_override")?.map(str::to_owned),
            model_user: self.model_user()?,
            model_arguments,
            laptop_slate: self.flag("acpi_laptop_slate", default.laptop_slate)?,
            pae: self.flag("pae", default.pae)?,
            lmce: self.machine_checks()?,
            hole_mib: self.hole()?,
            smbios: self.smbios()?,
            acpi_tables: self.path("acpi_firmware")?.map(str::to_owned),
            smbios_structures: self.path("smbios_firmware")?.map(str::to_owned),
        })
    }

    fn check_hvm_keys(&self, found: &mut Findings) {
        let check = |table: &[(&str, &[&str], &str)], findings: &mut Vec<ConfigError>| {
            for (key, harmless, reason) in table {
                let setting = self.settings.get(*key);
                let error = |it| self.unless_harmless(key, it, harmless, reason);
                findings.extend(setting.and_then(error));
            }
        };
        check(REFUSED, &mut found.faults);
        check(TOLERATED, &mut found.warnings);
    }

    /// No two disks at one place, and none that cannot be emulated under a name that only emulated ones have.
    fn check_places(&self, disks: &[DiskConfig]) -> Result<()> {
        match place_problem(disks, self.disk_bus()?) {
            None => Ok(()),
            Some((number, problem)) => {
                Err(self.error(&format!("disk[{number}]"), self.place("disk"), problem))
            }
        }
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.number(key, i64::MIN..=i64::MAX)?.map_or(default, |number| number != 0))
    }

    /// One text or a list of them.
    pub(super) fn words(&self, key: &str) -> Result<Vec<String>> {
        match self.settings.get(key) {
            Some(Setting { value: Value::Atom(_), .. }) => {
                Ok(self.path(key)?.map(str::to_owned).into_iter().collect())
            }
            _ => {
                let items = self.list(key)?;
                Ok(items.into_iter().map(|(_, text, _)| text.to_owned()).collect())
            }
        }
    }

    fn usb_devices(&self) -> Result<Vec<String>> {
        const KNOWN: [&str; 3] = ["tablet", "mouse", "keyboard"];
        let devices = self.words("usbdevice")?;
        match devices.iter().find(|device| !KNOWN.contains(&device.as_str())) {
            None => Ok(devices),
            Some(other) => {
                let known = KNOWN.join(", ");
                let problem = format!("{}: expected one of {known}", shown(other));
                Err(self.error("usbdevice", self.place("usbdevice"), problem))
            }
        }
    }

    /// A text that stands in a list of QEMU's, which commas part.
    pub(super) fn plain(&self, key: &str) -> Result<Option<String>> {
        match self.path(key)? {
            Some(text) if text.contains(',') => {
                let problem = format!("{}: expected no comma", shown(text));
                Err(self.error(key, self.place(key), problem))
            }
            text => Ok(text.map(str::to_owned)),
        }
    }

    /// One of these words; none if it is empty.
    pub(super) fn word<T: Copy>(
        &self,
        key: &str,
        all: &[T],
        as_str: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>> {
        let Some((word, place)) = self.atom(key)?.filter(|(word, _)| !word.is_empty()) else {
            return Ok(None);
        };
        let known = all.iter().copied().find(|it| as_str(*it) == word);
        known.map(Some).ok_or_else(|| {
            let words: Vec<_> = all.iter().map(|it| as_str(*it)).collect();
            let problem = format!("{}: expected one of {}", shown(word), words.join(", "));
            self.error(key, place, problem)
        })
    }

    /// Not beside a controller of version 1.
    fn usb_version(&self, usb: bool) -> Result<Option<UsbVersion>> {
        let number = self.number("usbversion", 0..=3)?;
        let version =
            number.and_then(|it| UsbVersion::ALL.into_iter().find(|v| i64::from(v.number()) == it));
        match version {
            Some(_) if usb => {
                let problem =
                    "not together with usb or usbdevice, which have a controller of version 1";
                Err(self.error("usbversion", self.place("usbversion"), problem))
            }
            version => Ok(version),
        }
    }

    fn generation_id(&self) -> Result<bool> {
        let word = |is_there| if is_there { "generate" } else { "none" };
        Ok(self.word("ms_vm_genid", &[false, true], word)?.unwrap_or_default())
    }

    fn disk_bus(&self) -> Result<DiskBus> {
        Ok(self.word("hdtype", &DiskBus::ALL, DiskBus::as_str)?.unwrap_or_default())
    }

    fn vendor_device(&self) -> Result<bool> {
        let word = |is_there| if is_there { "xenserver" } else { "none" };
        Ok(self.word("vendor_device", &[false, true], word)?.unwrap_or_default())
    }

    fn machine_checks(&self) -> Result<bool> {
        let items = self.list("mca_caps")?;
        match items.iter().find(|(_, text, _)| *text != "lmce") {
            None => Ok(!items.is_empty()),
            Some((name, text, place)) => {
                Err(self.error(name, *place, format!("{}: expected lmce", shown(text))))
            }
        }
    }

    fn hole(&self) -> Result<Option<u32>> {
        let mib = self.number("mmio_hole", HOLE_MIB_MIN..=HOLE_MIB_MAX)?;
        Ok(mib.and_then(|mib| u32::try_from(mib).ok()))
    }

    fn smbios(&self) -> Result<Vec<SmbiosText>> {
        let mut texts: Vec<SmbiosText> = Vec::new();
        for (name, text, place) in self.list("smbios")? {
            let fault = |problem: String| self.error(&name, place, problem);
            let (key, value) = text
                .split_once('=')
                .ok_or_else(|| fault(format!("{}: expected KEY=TEXT", shown(text))))?;
            let key = SmbiosText::KEYS.into_iter().find(|it| *it == key).ok_or_else(|| {
                let keys = SmbiosText::KEYS.join(", ");
                fault(format!("{}: expected one of {keys}", shown(key)))
            })?;
            if value.is_empty() || value.contains(char::is_control) {
                return Err(fault(format!("{key}: expected a text without control characters")));
            }
            let same = texts.iter().filter(|it| it.key == key).count();
            let most = if key == SmbiosText::OEM { OEM_TEXTS_MAX } else { 1 };
            if same == most {
                return Err(fault(format!("{key}: at most {most}")));
            }
            texts.push(SmbiosText { key, value: value.to_owned() });
        }
        Ok(texts)
    }

    /// The BIOS and the loader, each by its own key or by `firmware`, which is a word for the one or the path of the other.
    fn firmware(&self) -> Result<(Bios, Option<String>)> {
        let loader = self.path("firmware_override")?.map(str::to_owned);
        match self.path("firmware")? {
            None | Some("bios" | "") => Ok((self.bios("bios")?, loader)),
            Some("uefi") => Ok((Bios::Ovmf, loader)),
            Some(path) if path.starts_with('/') => {
                Ok((self.bios("bios")?, loader.or_else(|| Some(path.to_owned()))))
            }
            Some(_) => Ok((self.bios("firmware")?, loader)),
        }
    }

    fn bios(&self, key: &str) -> Result<Bios> {
        match self.atom(key)? {
            None | Some(("" | "seabios", _)) => Ok(Bios::SeaBios),
            Some(("ovmf", _)) => Ok(Bios::Ovmf),
            Some((other, place)) => {
                let problem = format!("{}: expected seabios or ovmf", shown(other));
                Err(self.error(key, place, problem))
            }
        }
    }

    fn boot(&self, default: String) -> Result<String> {
        match self.path("boot")? {
            None => Ok(default),
            Some(order) if order.chars().all(|letter| "acdn".contains(letter)) => {
                Ok(order.to_owned())
            }
            Some(order) => {
                let problem = format!("{}: expected letters of c, d, n and a", shown(order));
                Err(self.error("boot", self.place("boot"), problem))
            }
        }
    }

    fn screen(&self) -> Result<(Vga, u64)> {
        let card = match self.atom("vga")? {
            None => None,
            Some((word, place)) => {
                let known = Vga::ALL.into_iter().find(|card| card.as_str() == word);
                let problem = || format!("{}: expected stdvga, cirrus, qxl or none", shown(word));
                Some(known.ok_or_else(|| self.error("vga", place, problem()))?)
            }
        };
        let standard = self.flag("stdvga", false)?.then_some(Vga::Standard);
        let card = card.or(standard).unwrap_or_default();
        let (usual, least) = card.video_mib();
        let wanted = self.number("videoram", 0..=VIDEO_MIB_MAX)?.map(i64::unsigned_abs);
        match wanted {
            _ if card == Vga::None => Ok((card, 0)),
            Some(mib) if mib < least => {
                let card = card.as_str();
                let problem = format!("{mib} MiB is too little; {card} needs {least}");
                Err(self.error("videoram", self.place("videoram"), problem))
            }
            // The card's memory is a region of a PCI device.
            Some(mib) if !mib.is_power_of_two() => {
                let problem = format!("{mib} MiB: expected a power of two");
                Err(self.error("videoram", self.place("videoram"), problem))
            }
            mib => Ok((card, mib.unwrap_or(usual))),
        }
    }

    /// An address may bring its display: `127.0.0.1:2`.
    pub(super) fn vnc(&self) -> Result<Option<Vnc>> {
        if !self.flag("vnc", true)? {
            return Ok(None);
        }
        // xl's vncunused lets QEMU look for a display; here each domain has its own unless it names one.
        self.flag("vncunused", true)?;
        let display = self.number("vncdisplay", 0..=DISPLAY_MAX)?;
        let listen = self.plain("vnclisten")?.unwrap_or_else(|| "127.0.0.1".to_owned());
        let (listen, with) = match listen.rsplit_once(':') {
            Some((address, text)) if !address.ends_with(':') => {
                let number = text.parse().ok().filter(|it: &u16| i64::from(*it) <= DISPLAY_MAX);
                let problem = || format!("{}: expected ADDRESS or ADDRESS:DISPLAY", shown(&listen));
                let place = self.place("vnclisten");
                let number = number.ok_or_else(|| self.error("vnclisten", place, problem()))?;
                (address.to_owned(), Some(number))
            }
            _ => (listen, None),
        };
        if display.is_some_and(|number| number != 0) && with.is_some() {
            let problem = "vnclisten has a display already";
            return Err(self.error("vncdisplay", self.place("vncdisplay"), problem));
        }
        let display = with.or(display.and_then(|number| u16::try_from(number).ok()));
        let password = self.path("vncpasswd")?.map(str::to_owned);
        Ok(Some(Vnc { listen, display, password }))
    }

    fn model_user(&self) -> Result<ModelUser> {
        let user = self.plain("device_model_user")?;
        Ok(match (user, self.flag("dm_restrict", true)?) {
            (Some(name), _) if name == "root" => ModelUser::Root,
            (Some(name), _) => ModelUser::Named(name),
            (None, true) => ModelUser::Restricted,
            (None, false) => ModelUser::Root,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::xlcfg::keys::{self, Treatment};

    /// Keys that this file reads, and PV and PVH ignore.
    pub(in crate::xlcfg) const READ: &[&str] = &[
        "acpi",
        "acpi_firmware",
        "acpi_laptop_slate",
        "acpi_s3",
        "acpi_s4",
        "altp2mhvm",
        "apic",
        "bios",
        "bios_path_override",
        "boot",
        "device_model_args",
        "device_model_args_hvm",
        "device_model_override",
        "device_model_user",
        "dm_restrict",
        "firmware",
        "firmware_override",
        "hdtype",
        "hpet",
        "hvm_pirq",
        "keymap",
        "mca_caps",
        "mmio_hole",
        "ms_vm_genid",
        "nographic",
        "pae",
        "rdm",
        "rdm_mem_boundary",
        "serial",
        "smbios",
        "smbios_firmware",
        "soundhw",
        "spice",
        "spice_clipboard_sharing",
        "spice_image_compression",
        "spice_streaming_video",
        "spiceagent_mouse",
        "spicedisable_ticketing",
        "spicehost",
        "spicepasswd",
        "spiceport",
        "spicetls_port",
        "spiceusbredirection",
        "spicevdagent",
        "stdvga",
        "usb",
        "usbdevice",
        "usbversion",
        "vendor_device",
        "vga",
        "videoram",
        "viridian",
        "vnc",
        "vncdisplay",
        "vnclisten",
        "vncpasswd",
        "vncunused",
        "vpt_align",
        "xen_platform_pci",
    ];

    /// Keys that mean nothing for an HVM domain either, or nothing without one that is refused.
    const IGNORED: &[&str] = &[
        "device_model_args_pv",
        "display",
        "opengl",
        "stubdomain_cmdline",
        "stubdomain_kernel",
        "stubdomain_memory",
        "stubdomain_ramdisk",
        "vncviewer",
        "xauthority",
    ];

    fn is_dealt_with(key: &str) -> bool {
        READ.contains(&key)
            || IGNORED.contains(&key)
            || REFUSED.iter().chain(TOLERATED).any(|(name, ..)| *name == key)
    }

    #[test]
    fn no_key_that_others_ignore_is_forgotten() {
        for (key, treatment) in keys::all() {
            let hvm_only =
                matches!(treatment, Treatment::Ignored | Treatment::RefusedForPvh { .. });
            assert!(!hvm_only || is_dealt_with(key), "{key}");
        }
    }
}
