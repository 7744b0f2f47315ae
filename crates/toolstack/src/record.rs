//! Formats of a VM's record, and compatibility with other releases.
//!
//! A daemon must be able to replace an older or a later one under running VMs. The first release
//! had no `format` node, read `config-N` and destroyed a VM whose record it could not read. So
//! `config-N` is always written with that release's keys. What these cannot express is in `full-N`,
//! a whole configuration, whose first line names the `config-N` that it belongs to: a daemon that
//! does not know `full-N` changes only the latter, which then takes precedence.

use std::fmt::Write as _;

use crate::config::VmConfig;
use crate::layout::Completion;
use crate::work::Record;
use crate::xlcfg;

/// The format of this release, which reads all formats up to it. Raised by a release whose records
/// earlier ones would misunderstand.
pub const FORMAT: u32 = 2;

/// A record's node with its format; without it, the format is 1.
pub const FORMAT_NODE: &str = "format";

/// Keys of format 1. Must never change.
const KEYS_1: &[&str] = &[
    "name",
    "uuid",
    "type",
    "kernel",
    "ramdisk",
    "cmdline",
    "memory",
    "maxmem",
    "vcpus",
    "maxvcpus",
    "disk",
    "vif",
    "on_poweroff",
    "on_reboot",
    "on_crash",
    "on_watchdog",
    "on_soft_reset",
    "tsc_mode",
    "max_grant_frames",
    "firmware_override",
    "bios_path_override",
    "keymap",
    "device_model_override",
    "bios",
    "boot",
    "vga",
    "videoram",
    "vnc",
    "vnclisten",
    "vncdisplay",
    "vncpasswd",
    "serial",
    "usbdevice",
    "device_model_args",
    "usb",
    "acpi",
    "acpi_s3",
    "acpi_s4",
    "hpet",
    "xen_platform_pci",
    "dm_restrict",
    "device_model_user",
];
/// Parameters of disks and interfaces in format 1.
const DISK_1: &[&str] = &["format", "vdev", "access", "devtype"];
const VIF_1: &[&str] = &["devid", "bridge", "model", "type", "mac", "mtu", "rate"];

/// Replaces the kernel of a VM with a bootloader, and the target of a disk that the first release would attach wrongly. It uses the target
/// only when it attaches the disk again, and then fails to start the VM instead of damaging the
/// disk.
const NOT_FOR_1: &str = "/needs/a/later/release/of/xylemd";

/// The same of an interface; no bridge has such a name.
const NO_BRIDGE_FOR_1: &str = "bridge=needs-a-later-1";

/// A configuration as in its record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Texts {
    /// In format 1.
    pub config: String,
    /// The whole configuration; empty if `config` is sufficient.
    pub full: String,
}

impl Texts {
    /// `text` as [`VmConfig::to_cfg_text`] writes it.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let config = in_words_of_1(text);
        let full = match config == text {
            true => String::new(),
            false => format!("{}\n{text}", belongs_to(&config)),
        };
        Self { config, full }
    }
}

/// The first line of a full text.
fn belongs_to(config: &str) -> String {
    // FNV-1a.
    let hash = config.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("# with {hash:016x}")
}

/// Whether the first release fully understands this text.
#[must_use]
pub fn is_format_1(text: &str) -> bool {
    in_words_of_1(text) == text
}

/// A canonical text reduced to format 1.
fn in_words_of_1(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((key, value)) = line.split_once(" = ") else { continue };
        let is_known = KEYS_1.contains(&key);
        if value != "[" {
            if key == "bootloader" && !out.contains("\nkernel = ") {
                // The first release knows no VM without a kernel.
                let _ = writeln!(out, "kernel = \"{NOT_FOR_1}\"");
            }
            if is_known {
                let _ = writeln!(out, "{line}");
            }
            continue;
        }
        let items = lines.by_ref().take_while(|line| *line != "]");
        let items: Vec<String> = items.filter_map(|item| item_in_words_of_1(key, item)).collect();
        if is_known && !items.is_empty() {
            let _ = writeln!(out, "{key} = [\n{}\n]", items.join("\n"));
        }
    }
    out
}

/// One element of a list, quoted and escaped; `None` if it cannot be expressed.
fn item_in_words_of_1(key: &str, line: &str) -> Option<String> {
    let inner = line.trim().strip_prefix('"')?.strip_suffix("\",")?;
    let item = match key {
        "disk" => disk_in_words_of_1(inner)?,
        "vif" => vif_in_words_of_1(inner),
        _ => return Some(line.to_owned()),
    };
    Some(format!("  \"{item}\","))
}

fn parameters<'a>(spec: &'a str, known: &[&str]) -> Vec<&'a str> {
    let is_known = |it: &&str| it.split_once('=').is_some_and(|(name, _)| known.contains(&name));
    spec.split(',').filter(is_known).collect()
}

/// The first release would put an interface on a bridge that a script or another domain connects otherwise, or without a
/// filter: it finds none, and fails to start the VM.
fn vif_in_words_of_1(spec: &str) -> String {
    let mut known = parameters(spec, VIF_1);
    let later = ["script=", "backend=", "antispoof="];
    if spec.split(',').any(|it| later.iter().any(|name| it.starts_with(name))) {
        for parameter in known.iter_mut().filter(|it| it.starts_with("bridge=")) {
            *parameter = NO_BRIDGE_FOR_1;
        }
    }
    known.join(",")
}

fn disk_in_words_of_1(spec: &str) -> Option<String> {
    let (before, target) = spec.split_once("target=")?;
    let mut known = parameters(before, DISK_1);
    let mut target = target;
    if before.split(',').any(|it| it.starts_with("script=") || it.starts_with("backend=")) {
        target = NOT_FOR_1;
    }
    for parameter in &mut known {
        match *parameter {
            "format=raw" => {}
            "access=w!" => *parameter = "access=w",
            it if it.starts_with("format=") => {
                *parameter = "format=raw";
                target = NOT_FOR_1;
            }
            _ => {}
        }
    }
    // It does not support empty drives.
    (!target.is_empty()).then(|| format!("{},target={target}", known.join(",")))
}

/// A decoded record.
#[derive(Debug)]
pub(crate) struct Understood {
    pub(crate) config: VmConfig,
    pub(crate) complete: Option<Completion>,
}

impl Record {
    /// Its format.
    fn format(&self) -> Result<u32, String> {
        let Some(text) = &self.format else { return Ok(1) };
        match text.parse() {
            Ok(format @ 1..=FORMAT) => Ok(format),
            Ok(format) => Err(format!(
                "its record has format {format} and this xylemd knows formats up to {FORMAT}"
            )),
            Err(_) => Err(format!("its record has the unknown format {text:?}")),
        }
    }

    /// Whether it was written by this or an earlier release, and never completed.
    pub(crate) fn was_never_whole(&self) -> bool {
        self.format().is_ok() && self.complete.is_none()
    }

    pub(crate) fn read(&self) -> Result<Understood, String> {
        self.format()?;
        let text = self.full_text.strip_prefix(&belongs_to(&self.config_text));
        let text = text.unwrap_or(&self.config_text);
        let source = xlcfg::Source { file: "config", text, overrides: &[] };
        let config =
            xlcfg::parse(source).map_err(|error| format!("its record cannot be read: {error}"))?;
        let complete = self.complete.as_deref().map(|text| {
            Completion::decode(text)
                .ok_or_else(|| format!("its record cannot be read: complete: {text:?}"))
        });
        Ok(Understood { config, complete: complete.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_1_text_is_stored_once() {
        let text = "name = \"a\"\ntype = \"pv\"\nkernel = \"/k\"\ndisk = [\n  \
                    \"format=raw,vdev=xvda,access=w,target=/a,b=c\",\n]\nvif = [\n  \
                    \"devid=0,bridge=xenbr0,type=vif,rate=1B/s@1us\",\n]\n";
        assert!(is_format_1(text));
        assert_eq!(Texts::of(text), Texts { config: text.to_owned(), full: String::new() });
    }

    #[test]
    fn newer_keys_are_stored_in_the_full_text() {
        let text = "name = \"a\"\nwarp = 9\ntype = \"pv\"\nlanes = [\n  \"x\",\n]\ndisk = [\n  \
                    \"format=qcow2,vdev=xvda,access=w!,shared=1,target=/a,b\",\n  \
                    \"format=raw,vdev=xvdb,access=r,devtype=cdrom,target=\",\n]\nvif = [\n  \
                    \"devid=0,bridge=br,ip=10.0.0.2\",\n  \"devid=1,bridge=br,script=vif-nat,untrusted\",\n  \"devid=2,bridge=br,antispoof=1\",\n]\n";
        let texts = Texts::of(text);
        assert_eq!(
            texts.config,
            format!(
                "name = \"a\"\ntype = \"pv\"\ndisk = [\n  \
                 \"format=raw,vdev=xvda,access=w,target={NOT_FOR_1}\",\n]\nvif = [\n  \
                 \"devid=0,bridge=br\",\n  \"devid=1,bridge=needs-a-later-1\",\n  \"devid=2,bridge=needs-a-later-1\",\n]\n"
            )
        );
        assert!(texts.full.ends_with(text) && texts.full.starts_with("# with "), "{texts:?}");
    }

    #[test]
    fn the_first_release_reads_a_vm_with_a_bootloader() {
        let text = "name = \"a\"\ntype = \"pv\"\nmemory = 8\nbootloader = \"pygrub\"\nbootloader_args = [\n  \"-q\",\n]\n";
        assert_eq!(
            Texts::of(text).config,
            format!("name = \"a\"\ntype = \"pv\"\nmemory = 8\nkernel = \"{NOT_FOR_1}\"\n")
        );
    }

    #[test]
    fn a_later_write_of_an_earlier_daemon_takes_precedence() {
        let old = "name = \"a\"\ntype = \"pv\"\nkernel = \"/k\"\nmemory = 8\n";
        let full = format!("{}\n{}", belongs_to(old), old.replace("\"a\"", "\"all of a\""));
        let mut record = Record {
            format: Some("2".to_owned()),
            config_text: old.to_owned(),
            full_text: full,
            ..Record::default()
        };
        assert_eq!(record.read().unwrap().config.name, "all of a");
        record.config_text = old.replace("\"a\"", "\"b\"");
        assert_eq!(record.read().unwrap().config.name, "b");
    }
}
