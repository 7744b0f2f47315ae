//! One element of `disk = [..]`.
//!
//! Source: xen `docs/man/xl-disk-configuration.5.pod.in`: `TARGET, FORMAT, VDEV, ACCESS`, mixed with
//! `key=value` parameters and flags, where `target=` takes all that follows it.

use storage::VdiName;

use super::keys::nearest;
use super::shown;
use super::vif::{self, is_word};
use crate::config::{DiskConfig, ImageFormat, Mode, Trust, Vdev};
use crate::hotplug;

/// Parameters of the form `key=value`, for suggestions.
pub(super) const PARAMETERS: &[&str] = &[
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

/// What `format=` may say.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Format {
    Image(ImageFormat),
    /// A drive without a medium.
    Empty,
}

#[derive(Default)]
struct Spec<'a> {
    target: Option<&'a str>,
    format: Option<Format>,
    /// An old prefix stands for the format: positions shift by one.
    has_prefix: bool,
    vdev: Option<&'a str>,
    mode: Option<Mode>,
    backend: Option<&'a str>,
    /// Named, if it is not domain 0.
    driver_domain: Option<Option<String>>,
    cdrom: bool,
    no_discard: bool,
    script: Option<String>,
    is_untrusted: bool,
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

    /// `phy:/dev/..` and its like, which stand before the target and say its format. There may be several.
    fn old_prefix(&mut self, rest: &'a str) -> Result<Option<&'a str>, String> {
        let Some((prefix, after)) = rest.split_once(':') else { return Ok(None) };
        let is_word = prefix.starts_with(|c: char| c.is_ascii_lowercase())
            && prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !is_word {
            return Ok(None);
        }
        match prefix {
            "phy" | "file" | "aio" | "tap" | "tap2" | "tapdisk" | "ioemu" => {}
            "raw" | "qcow" | "qcow2" | "vhd" => self.format(prefix)?,
            "iscsi" | "nbd" | "enbd" | "drbd" => {
                set("script", &mut self.script, format!("block-{prefix}"))?;
            }
            // As xl has it: what goes on like a word is one.
            _ if after.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) => {
                return Ok(None);
            }
            _ => return Err(format!("{prefix}: is no known prefix; write the path alone")),
        }
        self.has_prefix = true;
        Ok(Some(after))
    }

    fn keyed(&mut self, key: &str, value: &'a str) -> Result<(), String> {
        match key {
            "format" => self.format(value),
            "vdev" => set("vdev", &mut self.vdev, value),
            "access" => set("access", &mut self.mode, mode(value)?),
            "devtype" => self.device_type(value),
            "backendtype" => {
                check(
                    key,
                    value,
                    &["phy", "qdisk"],
                    "expected phy or qdisk; there is no blktap, and no virtio",
                )?;
                set("backendtype", &mut self.backend, value)
            }
            "specification" => check(key, value, &["xen"], "domain 0 has no backend for it"),
            "grant_usage" => check(key, value, &["1"], "a xen disk always uses grants"),
            "backend" => {
                let named = vif::backend(value);
                let named = named.map_err(|problem| format!("backend={}: {problem}", shown(value)));
                set("backend", &mut self.driver_domain, named?)
            }
            "script" if hotplug::path(value) == hotplug::BLOCK => Ok(()),
            "script" if is_word(value) => set("script", &mut self.script, value.to_owned()),
            "script" => Err(format!(
                "script={}: expected the name of a script in /etc/xen/scripts, or its path",
                shown(value)
            )),
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
            // Said of QEMU's disk server, which is not used.
            "direct-io-safe" => {}
            "trusted" => self.is_untrusted = false,
            "untrusted" => self.is_untrusted = true,
            "discard" => self.no_discard = false,
            "no-discard" => self.no_discard = true,
            "colo" => return Err(format!("{word}: COLO is not supported")),
            "no-colo" => {}
            _ if self.target.is_none() => self.target = Some(word),
            _ if self.format.is_none() && !self.has_prefix => match word.rsplit_once(':') {
                Some((vdev, device_type)) if self.target == Some("") => {
                    self.format = Some(Format::Empty);
                    set("vdev", &mut self.vdev, vdev)?;
                    self.device_type(device_type)?;
                }
                _ => self.format(word)?,
            },
            _ if self.vdev.is_none() => match word.rsplit_once(':') {
                Some((vdev, device_type)) => {
                    self.vdev = Some(vdev);
                    self.device_type(device_type)?;
                }
                None => self.vdev = Some(word),
            },
            _ if self.mode.is_none() => self.mode = Some(mode(word)?),
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
        let known = ImageFormat::ALL.into_iter().find(|it| it.as_str() == value);
        let format = match (known, value) {
            (Some(format), _) => Format::Image(format),
            (None, "") => Format::Image(ImageFormat::Raw),
            (None, "empty") => Format::Empty,
            (None, _) => {
                return Err(format!(
                    "{} is no known format; expected raw, qcow, qcow2, qed, vhd or empty",
                    shown(value)
                ));
            }
        };
        match self.format.replace(format) {
            Some(before) if before != format => Err("format is given twice".to_owned()),
            _ => Ok(()),
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
        let target = self.target()?;
        if target.contains(char::is_control) {
            return Err(format!("target {}: a path has no control characters", shown(target)));
        }
        let vdev = self
            .vdev
            .filter(|vdev| !vdev.is_empty())
            .ok_or("the vdev is missing, as in vdev=xvda")?;
        let vdev: Vdev = vdev.parse().map_err(|error| format!("{}: {error}", shown(vdev)))?;
        let format = match self.format {
            Some(Format::Image(format)) if !target.is_empty() => format,
            _ => ImageFormat::Raw,
        };
        if format != ImageFormat::Raw && self.backend == Some("phy") {
            let format = format.as_str();
            return Err(format!(
                "backendtype=phy: serves raw disks only; format {format} needs qdisk"
            ));
        }
        let driver_domain = self.driver_domain.clone().flatten();
        if let Some(domain) = &driver_domain {
            self.check_served_elsewhere(domain, target, format)?;
        } else if self.script.is_some() {
            self.check_scripted(target, format)?;
        } else if format != ImageFormat::Raw && VdiName::parse(target).is_some() {
            return Err(format!("{target}: a VDI has the format of its SR; leave format out"));
        }
        // As xl has it, a CD is only read, whatever is said.
        let mode = if self.cdrom { Mode::ReadOnly } else { self.mode.unwrap_or(Mode::ReadWrite) };
        let (target, cdrom, discard) = (target.to_owned(), self.cdrom, !self.no_discard);
        let trust = if self.is_untrusted { Trust::Untrusted } else { Trust::Trusted };
        Ok(DiskConfig {
            vdev,
            target,
            format,
            mode,
            cdrom,
            discard,
            script: self.script,
            trust,
            backend: driver_domain,
        })
    }

    /// blkback of a driver domain serves what its script finds there.
    fn check_served_elsewhere(
        &self,
        domain: &str,
        target: &str,
        format: ImageFormat,
    ) -> Result<(), String> {
        let refuse = |problem: &str| Err(format!("backend={}: {problem}", shown(domain)));
        if target.is_empty() {
            refuse("an empty drive has no backend")
        } else if format != ImageFormat::Raw {
            refuse("the kernel of a driver domain serves raw disks only; leave format out")
        } else if self.backend == Some("qdisk") {
            refuse("backendtype=qdisk: a driver domain serves disks by its kernel (phy)")
        } else {
            Ok(())
        }
    }

    /// As libxl has it, only blkback serves what a script connects.
    fn check_scripted(&self, target: &str, format: ImageFormat) -> Result<(), String> {
        if target.is_empty() {
            Err("a disk with a script has a target, which the script is told".to_owned())
        } else if format != ImageFormat::Raw {
            let format = format.as_str();
            Err(format!(
                "format {format}: what a script connects is a block device; leave format out"
            ))
        } else if self.backend == Some("qdisk") {
            Err("backendtype=qdisk: what a script connects is served by phy only".to_owned())
        } else {
            Ok(())
        }
    }

    /// The path; none for a CD drive without a medium.
    fn target(&self) -> Result<&'a str, String> {
        match (self.format, self.target.unwrap_or_default()) {
            (Some(Format::Empty), _) if !self.cdrom => {
                Err("only a CD drive can be empty; write devtype=cdrom".to_owned())
            }
            (Some(Format::Empty), _) => Ok(""),
            (_, "") if !self.cdrom => {
                Err("the target is missing: the path of a disk image or block device".to_owned())
            }
            (_, target) => Ok(target),
        }
    }
}

fn set<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name} is given twice")),
    }
}

fn mode(value: &str) -> Result<Mode, String> {
    match value {
        "r" | "ro" => Ok(Mode::ReadOnly),
        "w" | "rw" | "" => Ok(Mode::ReadWrite),
        "w!" | "rw!" | "!" => Ok(Mode::Shared),
        _ => Err(format!("{} is no access mode; expected r, w or w!", shown(value))),
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
            Ok(DiskConfig {
                vdev,
                target,
                format,
                mode,
                cdrom,
                discard,
                script,
                trust,
                backend,
            }) => {
                format!(
                    "{}={} {target} {}{}{}{}{}{}{}",
                    vdev.name,
                    vdev.number,
                    mode.as_str(),
                    if cdrom { " cdrom" } else { "" },
                    if format == ImageFormat::Raw {
                        String::new()
                    } else {
                        format!(" {}", format.as_str())
                    },
                    if discard { "" } else { " no-discard" },
                    script.map(|script| format!(" by {script}")).unwrap_or_default(),
                    if trust == Trust::Trusted { "" } else { " untrusted" },
                    backend.map(|domain| format!(" in {domain}")).unwrap_or_default(),
                )
            }
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
            ("qcow2:/x,xvda,w", "xvda=51712 /x w qcow2"),
            ("tap2:/x,xvda,w", "xvda=51712 /x w"),
            ("tap:aio:/x,xvda,w", "xvda=51712 /x w"),
            ("tap:qcow2:x.img,xvda,w", "xvda=51712 x.img w qcow2"),
            ("file:data.iso,xvda,w", "xvda=51712 data.iso w"),
            ("phy:/x,ioemu:hda,w", "hda=768 /x w"),
            ("/x,qcow2,xvda,w", "xvda=51712 /x w qcow2"),
            ("format=vhd,vdev=xvda,target=/x", "xvda=51712 /x w vhd"),
            ("/x,qed,xvda,backendtype=qdisk", "xvda=51712 /x w qed"),
            ("/x,raw,xvda,w!", "xvda=51712 /x w!"),
            ("access=w!,vdev=xvda,target=/x", "xvda=51712 /x w!"),
            ("/x,raw,xvda,no-discard", "xvda=51712 /x w no-discard"),
            ("/x,raw,hdc,cdrom,w", "hdc=5632 /x r cdrom"),
            (",hdc:cdrom,r", "hdc=5632  r cdrom"),
            (",,hdc:cdrom", "hdc=5632  r cdrom"),
            (",empty,hdc,cdrom", "hdc=5632  r cdrom"),
            ("devtype=cdrom,vdev=hdc", "hdc=5632  r cdrom"),
            ("format=empty,vdev=hdc,access=r,devtype=cdrom", "hdc=5632  r cdrom"),
            ("devtype=cdrom,vdev=hdc,target=", "hdc=5632  r cdrom"),
            ("iscsi:/x,xvda,w", "xvda=51712 /x w by block-iscsi"),
            ("drbd:web,xvda,w", "xvda=51712 web w by block-drbd"),
            ("vdev=xvda,script=block-mine,target=a:b,c=d", "xvda=51712 a:b,c=d w by block-mine"),
            (
                "backendtype=phy,vdev=xvda,script=/opt/connect,target=iqn=iqn.2001-05:x,portal=p",
                "xvda=51712 iqn=iqn.2001-05:x,portal=p w by /opt/connect",
            ),
            ("/x,raw,xvda,script=/etc/xen/scripts/block,untrusted", "xvda=51712 /x w untrusted"),
            ("/x,raw,xvda,w,untrusted,trusted", "xvda=51712 /x w"),
        ] {
            assert_eq!(render(text), expected, "{text}");
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn what_a_disk_cannot_be_is_said() {
        for (text, expected) in [
            ("", "the target is missing: the path of a disk image or block device"),
            (",raw,xvda", "the target is missing: the path of a disk image or block device"),
            ("/x,raw", "the vdev is missing, as in vdev=xvda"),
            ("iscsi:/x,xvda,script=block-nbd", "script is given twice"),
            (
                "/x,qcow2,xvda,script=block-mine",
                "format qcow2: what a script connects is a block device; leave format out",
            ),
            (
                "/x,raw,xvda,backendtype=qdisk,script=block-mine",
                "backendtype=qdisk: what a script connects is served by phy only",
            ),
            (
                "format=empty,vdev=hdc,devtype=cdrom,script=block-mine",
                "a disk with a script has a target, which the script is told",
            ),
            ("qcow2:/x,raw,xvda,w", "\"xvda\" is no access mode; expected r, w or w!"),
            (
                "format=qcow2,vdev=xvda,target=sr:vdi",
                "sr:vdi: a VDI has the format of its SR; leave format out",
            ),
            (
                "/x,qcow2,xvda,backendtype=phy",
                "backendtype=phy: serves raw disks only; format qcow2 needs qdisk",
            ),
            ("format=empty,vdev=xvda", "only a CD drive can be empty; write devtype=cdrom"),
            ("http:/x,xvda,w", "http: is no known prefix; write the path alone"),
            (
                "/x,foo,xvda,w",
                "\"foo\" is no known format; expected raw, qcow, qcow2, qed, vhd or empty",
            ),
            (
                "/x,raw,vda,w",
                "\"vda\": not a virtual disk: expected xvda to xvdbgqcv with or without a partition up to 255, hda to hdd, sda to sdp, d0p0 or a number",
            ),
            ("/x,raw,xvda,x", "\"x\" is no access mode; expected r, w or w!"),
            (
                "/x,raw,xvda,w,more",
                "\"more\" is one too many; expected target, format, vdev, access",
            ),
            ("/x,raw,xvda:tape", "\"tape\" is no device type; expected disk or cdrom"),
            (
                "/x,qcow2,xvda,backend=storage",
                "backend=\"storage\": the kernel of a driver domain serves raw disks only; leave format out",
            ),
            (
                "/x,raw,xvda,backendtype=qdisk,backend=storage",
                "backend=\"storage\": backendtype=qdisk: a driver domain serves disks by its kernel (phy)",
            ),
            (
                ",empty,xvda,cdrom,backend=storage",
                "backend=\"storage\": an empty drive has no backend",
            ),
            (
                "/x,raw,xvda,backendtype=tap",
                "backendtype=\"tap\": expected phy or qdisk; there is no blktap, and no virtio",
            ),
            (
                "/x,raw,xvda,script=",
                "script=\"\": expected the name of a script in /etc/xen/scripts, or its path",
            ),
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
