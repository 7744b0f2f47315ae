//! One element of `disk = [..]`.
//!
//! Source: xen `docs/man/xl-disk-configuration.5.pod.in`: `TARGET, FORMAT, VDEV, ACCESS`, mixed with
//! `key=value` parameters and flags, where `target=` takes all that follows it.

use super::keys::nearest;
use super::shown;
use crate::config::{Access, DiskConfig, Vdev};

/// Parameters of the form `key=value`, for suggestions.
const PARAMETERS: &[&str] = &[
    "access",
    "backend",
    "backendtype",
    "devtype",
    "format",
    "script",
    "specification",
    "target",
    "vdev",
];

const RAW_ONLY: &str = "raw files and block devices only, for now";

#[derive(Default)]
struct Spec<'a> {
    target: Option<&'a str>,
    /// Given, or implied by an old prefix: positions shift by one.
    format_known: bool,
    vdev: Option<&'a str>,
    access: Option<Access>,
    cdrom: bool,
}

/// Reads one disk. The error is the problem alone; the caller knows file, line and index.
pub(super) fn parse(text: &str) -> Result<DiskConfig, String> {
    let mut spec = Spec::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        rest = spec.parameter(rest)?.trim_start();
    }
    spec.finish()
}

impl<'a> Spec<'a> {
    /// Takes the first parameter of `rest` and returns what follows it.
    fn parameter(&mut self, rest: &'a str) -> Result<&'a str, String> {
        if let Some(target) = rest.strip_prefix("target=") {
            // A comma in front of the closing quote is the list's habit, not part of the path.
            let target = target.strip_suffix(',').unwrap_or(target);
            set("target", &mut self.target, target)?;
            return Ok("");
        }
        if let Some(after) = self.old_prefix(rest)? {
            return Ok(after);
        }
        let (parameter, after) = rest.split_once(',').unwrap_or((rest, ""));
        let parameter = parameter.trim();
        match parameter.split_once('=') {
            Some((key, value)) => self.keyed(key.trim(), value.trim())?,
            None => self.flag_or_position(parameter)?,
        }
        Ok(after)
    }

    /// `phy:/dev/..` and its like, which stand before the target and say its format.
    fn old_prefix(&mut self, rest: &'a str) -> Result<Option<&'a str>, String> {
        let Some((prefix, after)) = rest.split_once(":/") else { return Ok(None) };
        if prefix.is_empty()
            || !prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        {
            return Ok(None);
        }
        match prefix {
            "phy" | "file" | "raw" | "aio" => self.format_known = true,
            "qcow" | "qcow2" | "vhd" | "tap" | "tap2" | "tapdisk" | "ioemu" => {
                return Err(format!("{prefix}: is not supported; {RAW_ONLY}"));
            }
            "iscsi" | "nbd" | "enbd" | "drbd" => {
                return Err(format!("{prefix}: is not supported yet; {RAW_ONLY}"));
            }
            _ => return Err(format!("{prefix}: is no known prefix; write the path alone")),
        }
        // The path's own slash.
        debug_assert!(rest.ends_with(after));
        Ok(Some(&rest[prefix.len() + 1..]))
    }

    fn keyed(&mut self, key: &str, value: &'a str) -> Result<(), String> {
        match key {
            "format" => self.format(value),
            "vdev" => set("vdev", &mut self.vdev, value),
            "access" => set("access", &mut self.access, access(value)?),
            "devtype" => self.device_type(value),
            "backendtype" => check(key, value, &["phy"], RAW_ONLY),
            "specification" => check(key, value, &["xen"], "not supported yet"),
            "grant_usage" => check(key, value, &["1"], "a xen disk always uses grants"),
            "backend" => check(
                key,
                value,
                &["0", "Domain-0", "dom0"],
                "disks are served by domain 0 only, for now",
            ),
            "script" => check(
                key,
                value,
                &["block", "/etc/xen/scripts/block"],
                "no script is run for disks; only the default script's work is done",
            ),
            _ => Err(match nearest(key, PARAMETERS.iter().copied()) {
                Some(name) => format!("{}: unknown parameter; did you mean {name}?", shown(key)),
                None => format!(
                    "{}: unknown parameter; a path with = in it is written target=PATH, at the end",
                    shown(key)
                ),
            }),
        }
    }

    fn flag_or_position(&mut self, word: &'a str) -> Result<(), String> {
        match word {
            "cdrom" => self.cdrom = true,
            // Said of QEMU's disk server, which is not used; discard and trust are the defaults.
            "direct-io-safe" | "discard" | "trusted" => {}
            "no-discard" | "untrusted" | "colo" => {
                return Err(format!("{word} is not supported yet"));
            }
            "no-colo" => {}
            _ if self.target.is_none() => self.target = Some(word),
            _ if !self.format_known => self.format(word)?,
            _ if self.vdev.is_none() => match word.rsplit_once(':') {
                Some((vdev, device_type)) => {
                    self.vdev = Some(vdev);
                    self.device_type(device_type)?;
                }
                None => self.vdev = Some(word),
            },
            _ if self.access.is_none() => self.access = Some(access(word)?),
            _ => {
                return Err(format!(
                    "{} is one too many; expected target, format, vdev, access",
                    shown(word)
                ));
            }
        }
        Ok(())
    }

    fn format(&mut self, value: &str) -> Result<(), String> {
        self.format_known = true;
        match value {
            "" | "raw" => Ok(()),
            "empty" => Err("an empty drive is not supported yet; name a target".to_owned()),
            "qcow" | "qcow2" | "vhd" | "qed" => {
                Err(format!("format {value} is not supported; {RAW_ONLY}"))
            }
            _ => Err(format!("{} is no known format; expected raw", shown(value))),
        }
    }

    fn device_type(&mut self, value: &str) -> Result<(), String> {
        match value {
            "cdrom" => self.cdrom = true,
            "disk" => self.cdrom = false,
            _ => return Err(format!("{} is no device type; expected disk or cdrom", shown(value))),
        }
        Ok(())
    }

    fn finish(self) -> Result<DiskConfig, String> {
        let target = self.target.filter(|target| !target.is_empty()).ok_or(if self.cdrom {
            "an empty drive is not supported yet; name a target"
        } else {
            "the target is missing: the path of a raw file or block device"
        })?;
        if target.contains(char::is_control) {
            return Err(format!("target {}: a path has no control characters", shown(target)));
        }
        let vdev = self
            .vdev
            .filter(|vdev| !vdev.is_empty())
            .ok_or("the vdev is missing, as in vdev=xvda")?;
        let vdev: Vdev = vdev.parse().map_err(|error| format!("{}: {error}", shown(vdev)))?;
        let access = match (self.cdrom, self.access) {
            (true, Some(Access::ReadWrite)) => {
                return Err("a cdrom is read-only; write access=r or leave it out".to_owned());
            }
            (true, _) => Access::ReadOnly,
            (false, access) => access.unwrap_or(Access::ReadWrite),
        };
        Ok(DiskConfig { vdev, target: target.to_owned(), access, cdrom: self.cdrom })
    }
}

fn set<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name} is given twice")),
    }
}

fn access(value: &str) -> Result<Access, String> {
    match value {
        "r" | "ro" => Ok(Access::ReadOnly),
        "w" | "rw" | "" => Ok(Access::ReadWrite),
        _ => Err(format!("{} is no access mode; expected r or w", shown(value))),
    }
}

fn check(key: &str, value: &str, allowed: &[&str], reason: &str) -> Result<(), String> {
    if allowed.contains(&value) { Ok(()) } else { Err(format!("{key}={}: {reason}", shown(value))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> String {
        match parse(text) {
            Ok(DiskConfig { vdev, target, access, cdrom }) => format!(
                "{}={} {target} {}{}",
                vdev.name,
                vdev.number,
                access.as_str(),
                if cdrom { " cdrom" } else { "" }
            ),
            Err(problem) => problem,
        }
    }

    #[test]
    fn disks_are_read_in_every_form() {
        for (text, expected) in [
            ("/dev/vg/x,raw,xvda,rw", "xvda=51712 /dev/vg/x w"),
            ("/dev/vg/x, raw, hda, ro", "hda=768 /dev/vg/x r"),
            ("/dev/vg/x,,xvda,w", "xvda=51712 /dev/vg/x w"),
            ("/dev/vg/x,,xvda", "xvda=51712 /dev/vg/x w"),
            ("phy:/dev/vg/x,xvda,w", "xvda=51712 /dev/vg/x w"),
            ("file:/img/a.img,xvda1,r", "xvda1=51713 /img/a.img r"),
            ("file:/img/a.iso,hdc:cdrom,r", "hdc=5632 /img/a.iso r cdrom"),
            ("/img/a.iso,,hdc,cdrom", "hdc=5632 /img/a.iso r cdrom"),
            ("/img/a.iso,,hdc,devtype=cdrom,r", "hdc=5632 /img/a.iso r cdrom"),
            ("format=raw, vdev=xvdb, access=ro, target=/a,b=c d", "xvdb=51728 /a,b=c d r"),
            ("vdev=xvdb,target=/a,", "xvdb=51728 /a w"),
            ("vdev=xvdb,target=/a,,", "xvdb=51728 /a, w"),
            ("backendtype=phy,vdev=d0p0,access=,target=rel/path", "d0p0=51712 rel/path w"),
            ("/x,raw,xvda,backend=0,script=block,discard,direct-io-safe", "xvda=51712 /x w"),
            ("raw:/x,xvda", "xvda=51712 /x w"),
        ] {
            assert_eq!(render(text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_disk_cannot_be_is_said() {
        for (text, expected) in [
            ("", "the target is missing: the path of a raw file or block device"),
            (",raw,xvda", "the target is missing: the path of a raw file or block device"),
            ("/x,raw", "the vdev is missing, as in vdev=xvda"),
            (
                "/x,qcow2,xvda,w",
                "format qcow2 is not supported; raw files and block devices only, for now",
            ),
            (
                "format=vhd,vdev=xvda,target=/x",
                "format vhd is not supported; raw files and block devices only, for now",
            ),
            (
                "qcow2:/x,xvda,w",
                "qcow2: is not supported; raw files and block devices only, for now",
            ),
            ("tap2:/x,xvda,w", "tap2: is not supported; raw files and block devices only, for now"),
            ("http:/x,xvda,w", "http: is no known prefix; write the path alone"),
            ("/x,foo,xvda,w", "\"foo\" is no known format; expected raw"),
            (
                "/x,raw,vda,w",
                "\"vda\": not a virtual disk: expected xvda to xvdbgqcv with or without a partition up to 255, hda to hdd, sda to sdp, d0p0 or a number",
            ),
            ("/x,raw,xvda,x", "\"x\" is no access mode; expected r or w"),
            (
                "/x,raw,xvda,w,more",
                "\"more\" is one too many; expected target, format, vdev, access",
            ),
            ("/x,raw,xvda:tape", "\"tape\" is no device type; expected disk or cdrom"),
            ("/x,raw,hdc,cdrom,w", "a cdrom is read-only; write access=r or leave it out"),
            (",hdc:cdrom,r", "\"hdc:cdrom\" is no known format; expected raw"),
            ("devtype=cdrom,vdev=hdc", "an empty drive is not supported yet; name a target"),
            (
                "/x,raw,xvda,backend=storage",
                "backend=\"storage\": disks are served by domain 0 only, for now",
            ),
            (
                "/x,raw,xvda,backendtype=qdisk",
                "backendtype=\"qdisk\": raw files and block devices only, for now",
            ),
            (
                "/x,raw,xvda,script=block-drbd",
                "script=\"block-drbd\": no script is run for disks; only the default script's work is done",
            ),
            ("/x,raw,xvda,no-discard", "no-discard is not supported yet"),
            ("/x,raw,xvda,acces=r", "\"acces\": unknown parameter; did you mean access?"),
            (
                "/a=b,raw,xvda",
                "\"/a\": unknown parameter; a path with = in it is written target=PATH, at the end",
            ),
            ("/x,raw,xvda,target=/y", "target is given twice"),
            ("vdev=xvda,target=/a\nb", "target \"/a\\nb\": a path has no control characters"),
        ] {
            assert_eq!(render(text), expected, "{text}");
        }
    }
}
