//! The configuration in an exported VM's file: what of it is taken from others, and what is new.
//!
//! It is text as the daemon writes it: `KEY = VALUE` lines, and lists with an element a line.

use crate::session::Failure;

/// Keys that name nothing of a host.
const PLAIN: [&str; 42] = [
    "acpi",
    "apic",
    "boot",
    "bios",
    "cap",
    "cmdline",
    "cpu_weight",
    "hap",
    "hpet",
    "localtime",
    "max_event_channels",
    "max_grant_frames",
    "max_grant_version",
    "max_maptrack_frames",
    "maxmem",
    "maxvcpus",
    "memory",
    "ms_vm_genid",
    "name",
    "nestedhvm",
    "nographic",
    "nomigrate",
    "nx",
    "on_crash",
    "on_host_shutdown",
    "on_poweroff",
    "on_reboot",
    "on_soft_reset",
    "on_watchdog",
    "pae",
    "rtc_timeoffset",
    "timer_mode",
    "tsc_mode",
    "type",
    "usb",
    "uuid",
    "vcpus",
    "vga",
    "videoram",
    "vif",
    "viridian",
    "vpt_align",
];
/// Keys with the values that name nothing of a host.
const WITH: [(&str, &[&str]); 4] = [
    ("serial", &["\"pty\""]),
    ("usbdevice", &["\"tablet\"", "\"mouse\""]),
    ("vnc", &["0", "1"]),
    ("vnclisten", &["\"127.0.0.1\""]),
];
/// GRUB for guests, which is no file of the host's own.
const KERNELS: &str = "\"/usr/lib/grub-xen/";
/// What a network interface may say.
const OF_VIF: [&str; 8] = ["devid", "bridge", "model", "type", "mac", "ip", "mtu", "rate"];

/// What a disk may say beside its target, which is another one here.
const OF_DISK: [&str; 4] = ["format", "vdev", "access", "devtype"];

/// A key with its value, or its elements.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Entry {
    key: String,
    values: Vec<String>,
    is_list: bool,
}

/// A configuration, in parts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Config(Vec<Entry>);

impl Config {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        while let Some(line) = lines.next() {
            let cannot = || format!("its configuration cannot be read at {line:?}");
            let (key, value) = line.split_once(" = ").ok_or_else(cannot)?;
            let is_list = value == "[";
            let mut values = vec![value.to_owned()];
            if is_list {
                values.clear();
                loop {
                    let element = lines.next().ok_or_else(cannot)?;
                    if element == "]" {
                        break;
                    }
                    let element = element.strip_prefix("  ").and_then(|it| it.strip_suffix(','));
                    values.push(element.ok_or_else(cannot)?.to_owned());
                }
            }
            if !values.iter().all(|value| is_plain(value)) {
                return Err(cannot());
            }
            entries.push(Entry { key: key.to_owned(), values, is_list });
        }
        Ok(Self(entries))
    }

    /// Finds what others may not decide on this host.
    pub(super) fn check(&self) -> Result<(), String> {
        for Entry { key, values, .. } in &self.0 {
            let known = WITH.iter().find(|(name, _)| name == key);
            let is_taken = match key.as_str() {
                "kernel" => values.iter().all(|it| it.starts_with(KERNELS) && !it.contains("..")),
                // QEMU takes a path for one.
                "keymap" => !values.iter().any(|it| it.contains(['/', '\\'])),
                "vif" => values.iter().all(|it| is_plain_vif(it)),
                "disk" => values.iter().all(|it| is_plain_disk(it)),
                _ if PLAIN.contains(&key.as_str()) => true,
                _ => known
                    .is_some_and(|(_, good)| values.iter().all(|it| good.contains(&it.as_str()))),
            };
            if !is_taken {
                return Err(format!(
                    "its configuration has {key} = {}, which names something of this host; --trust takes it",
                    values.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// The disks' specifications, without quotes.
    pub(super) fn disks(&self) -> Vec<String> {
        let disks = self.0.iter().filter(|entry| entry.key == "disk");
        disks.flat_map(|entry| entry.values.iter().map(|value| unquoted(value))).collect()
    }

    /// The text with other disks, and without what tells this VM from others unless that is kept.
    pub(super) fn text(&self, disks: &[String], keeps_identity: bool) -> String {
        let mut text = String::new();
        for Entry { key, values, is_list } in &self.0 {
            match key.as_str() {
                "disk" => continue,
                "uuid" if !keeps_identity => continue,
                _ => {}
            }
            if !is_list {
                text.push_str(&format!("{key} = {}\n", values[0]));
                continue;
            }
            let element = |value: &String| match key == "vif" && !keeps_identity {
                true => format!("\"{}\"", without_mac(&unquoted(value))),
                false => value.clone(),
            };
            let values: Vec<_> = values.iter().map(element).collect();
            text.push_str(&format!("{key} = [{}]\n", values.join(", ")));
        }
        let disks: Vec<_> = disks.iter().map(|disk| format!("'{disk}'")).collect();
        text.push_str(&format!("disk = [{}]\n", disks.join(", ")));
        text
    }
}

/// A number or one string in double quotes.
fn is_plain(value: &str) -> bool {
    if let Some(text) = value.strip_prefix('"').and_then(|it| it.strip_suffix('"')) {
        let mut escaped = false;
        return text.chars().all(|c| match (escaped, c) {
            (true, _) => {
                escaped = false;
                true
            }
            (false, '\\') => {
                escaped = true;
                true
            }
            (false, c) => c != '"',
        }) && !escaped;
    }
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn unquoted(value: &str) -> String {
    let text = value.trim_matches('"');
    text.replace("\\\"", "\"").replace("\\\\", "\\")
}

fn is_plain_vif(value: &str) -> bool {
    let text = unquoted(value);
    text.split(',').all(|part| {
        matches!(part, "untrusted" | "antispoof=1")
            || part.split_once('=').is_some_and(|(key, _)| OF_VIF.contains(&key))
                && !part.contains(['\'', '"', '\\'])
    })
}

/// As the daemon writes disks. One without a target is a drive without a medium: any other form of it could name a disk, or a
/// script, of this host.
fn is_plain_disk(value: &str) -> bool {
    let text = unquoted(value);
    let (before, target) = match text.split_once(",target=") {
        Some((before, target)) => (before, Some(target)),
        None => (text.as_str(), None),
    };
    let mut parts = before.split(',');
    let is_empty_drive = before.split(',').any(|part| part == "format=empty");
    parts.all(|part| {
        matches!(part, "no-discard" | "untrusted")
            || part.split_once('=').is_some_and(|(key, _)| OF_DISK.contains(&key))
    }) && target.is_none() == is_empty_drive
        && !text.contains(['\'', '"', '\\'])
}

fn without_mac(vif: &str) -> String {
    let parts = vif.split(',').filter(|part| !part.starts_with("mac="));
    parts.collect::<Vec<_>>().join(",")
}

/// The target of a disk, as the daemon writes disks: the last part. Empty for a drive without a medium.
pub(super) fn target(disk: &str) -> &str {
    disk.split_once(",target=").map_or("", |(_, target)| target)
}

/// Whether a disk has a hotplug script, as the daemon writes disks.
pub(super) fn has_script(disk: &str) -> bool {
    let (before, _) = disk.split_once(",target=").unwrap_or((disk, ""));
    before.split(',').any(|part| part.starts_with("script="))
}

/// The same disk with another target.
pub(super) fn with_target(disk: &str, target: &str) -> Result<String, Failure> {
    let (before, _) = disk.split_once(",target=").unwrap_or((disk, ""));
    let parts =
        before.split(',').map(|part| if part.starts_with("format=") { "format=raw" } else { part });
    let before = parts.collect::<Vec<_>>().join(",");
    match before.contains(['\'', '\\']) {
        true => Err(Failure::failed(format!("{disk:?}: no disk"))),
        false => Ok(format!("{before},target={target}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"web\"\nuuid = \"u\"\ntype = \"pv\"\nmemory = 512\ndisk = [\n  \"format=raw,vdev=xvda,access=w,target=local:web\",\n  \"format=empty,vdev=hdc,access=r,devtype=cdrom\",\n]\nvif = [\n  \"devid=0,bridge=xenbr0,mac=00:16:3e:00:00:01\",\n]\n";

    fn checked(more: &str) -> Result<(), String> {
        Config::parse(&format!("{TEXT}{more}")).and_then(|config| config.check())
    }

    #[test]
    fn a_vm_is_new_unless_its_identity_is_kept() {
        let config = Config::parse(TEXT).unwrap();
        config.check().unwrap();
        let disks = config.disks();
        assert_eq!((target(&disks[0]), target(&disks[1])), ("local:web", ""));
        let new = with_target(&disks[0], "other:b").unwrap();
        assert_eq!(new, "format=raw,vdev=xvda,access=w,target=other:b");
        assert_eq!(
            config.text(std::slice::from_ref(&new), false),
            "name = \"web\"\ntype = \"pv\"\nmemory = 512\nvif = [\"devid=0,bridge=xenbr0\"]\n\
             disk = ['format=raw,vdev=xvda,access=w,target=other:b']\n"
        );
        assert!(config.text(&[new], true).contains("uuid = \"u\"\n"));
    }

    #[test]
    fn what_names_something_of_the_host_is_refused() {
        checked("kernel = \"/usr/lib/grub-xen/grub-x86_64-xen.bin\"\nserial = \"pty\"\n").unwrap();
        for line in [
            "ramdisk = \"/etc/shadow\"",
            "kernel = \"/etc/shadow\"",
            "kernel = \"/usr/lib/grub-xen/../../../etc/shadow\"",
            "serial = \"file:/etc/passwd\"",
            "keymap = \"/etc/shadow\"",
            "device_model_override = \"/tmp/x\"",
            "vif = [\n  \"bridge=b,script=/tmp/x\",\n]",
            // The host may want it for all.
            "vif = [\n  \"bridge=b,antispoof=0\",\n]",
            "disk = [\n  \"/dev/sda,raw,xvdb,w\",\n]",
            "disk = [\n  \"target=/dev/sda,format=raw,vdev=xvdb\",\n]",
            "disk = [\n  \"format=raw,vdev=xvdb,access=w\",\n]",
            "disk = [\n  \"format=raw,vdev=xvdb,script=/tmp/x,target=local:a\",\n]",
            "disk = [\n  \"format=raw,vdev=xvdb,backend=2,target=local:a\",\n]",
            "disk = [\n  \"format=empty,vdev=hdd,devtype=cdrom,/etc/shadow\",\n]",
            "disk = [\n  \"format=empty,vdev=hdd,target=/etc/shadow\",\n]",
        ] {
            let error = checked(&format!("{line}\n")).unwrap_err();
            assert!(error.ends_with("--trust takes it"), "{error}");
        }
        for line in [
            "memory = 1; kernel = 2",
            "name = \"a\" kernel = \"b\"",
            "x",
            "disk = [\n  \"a\"",
            "name = \"\\\"",
        ] {
            let error = checked(&format!("{line}\n")).unwrap_err();
            assert!(error.starts_with("its configuration cannot be read"), "{line}: {error}");
        }
    }
}
