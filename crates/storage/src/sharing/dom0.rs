//! Disks that dom0 itself uses: mounted file systems and swap.

use super::{DiskId, DiskUse, Family, Mode};
use crate::system::text_if_there;
use crate::{DeviceNumber, HostError, System};

/// The mounts of PID 1, or of this process where that cannot be read.
const MOUNTS: [&str; 2] = ["/proc/1/mountinfo", "/proc/self/mountinfo"];
const SWAPS: &str = "/proc/swaps";
const BTRFS: &str = "/sys/fs/btrfs";

/// Uses of members of this family by dom0.
pub(super) fn uses(system: &mut dyn System, family: &Family) -> Result<Vec<DiskUse>, HostError> {
    let mut uses = mounted(system, family)?;
    uses.extend(swaps(system)?);
    uses.retain(|it| family.contains(it.disk));
    Ok(uses)
}

/// Decodes a path of the kernel's tables, where spaces and the like are octal escapes.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits =
            after.get(..3).filter(|it| *first == b'\\' && it.iter().all(u8::is_ascii_digit));
        let byte = digits.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 8).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// One line of `mountinfo`.
struct Mount {
    number: DeviceNumber,
    point: String,
    source: String,
    is_read_only: bool,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(2);
        let number = DeviceNumber::parse_decimal(words.next()?)?;
        let point = unescaped(words.nth(1)?);
        let mut words = filesystem.split(' ').skip(1);
        let source = unescaped(words.next()?);
        // The mount may be read-only while the file system is not.
        let is_read_only = words.next()?.split(',').any(|it| it == "ro");
        Some(Self { number, point, source, is_read_only })
    }

    fn of(&self, disk: DiskId) -> DiskUse {
        DiskUse {
            disk,
            mode: if self.is_read_only { Mode::ReadOnly } else { Mode::ReadWrite },
            who: format!("dom0, mounted at {}", self.point),
            advice: "unmount it first".to_owned(),
        }
    }
}

fn mounted(system: &mut dyn System, family: &Family) -> Result<Vec<DiskUse>, HostError> {
    let mut table = None;
    for path in MOUNTS {
        table = text_if_there(system, path).ok().flatten();
        if table.is_some() {
            break;
        }
    }
    let mut uses = Vec::new();
    for mount in table.unwrap_or_default().lines().filter_map(Mount::parse) {
        uses.push(mount.of(DiskId::Device(mount.number)));
        // A file system with an anonymous device number, on one disk or several.
        if mount.number.major == 0 && mount.source.starts_with("/dev/") {
            uses.extend(system.identify(&mount.source).ok().map(|disk| mount.of(disk)));
            for member in family.members() {
                if is_beside(system, &mount.source, member)? {
                    uses.push(mount.of(member));
                }
            }
        }
    }
    Ok(uses)
}

/// Whether a disk belongs to the btrfs that has `source` too.
fn is_beside(system: &mut dyn System, source: &str, disk: DiskId) -> Result<bool, HostError> {
    let (DiskId::Device(wanted), Ok(DiskId::Device(known))) = (disk, system.identify(source))
    else {
        return Ok(false);
    };
    for filesystem in system.list(BTRFS)? {
        let folder = format!("{BTRFS}/{filesystem}/devices");
        let mut numbers = Vec::new();
        for name in system.list(&folder)? {
            let number = text_if_there(system, &format!("{folder}/{name}/dev")).ok().flatten();
            numbers.extend(number.and_then(|it| DeviceNumber::parse_decimal(it.trim())));
        }
        if numbers.contains(&known) && numbers.contains(&wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn swaps(system: &mut dyn System) -> Result<Vec<DiskUse>, HostError> {
    let table = text_if_there(system, SWAPS)?.unwrap_or_default();
    let mut uses = Vec::new();
    for line in table.lines().skip(1) {
        let Some(path) = line.split_whitespace().next().map(unescaped) else { continue };
        // A deleted one is still in use, but has no path.
        if let Ok(disk) = system.identify(&path) {
            uses.push(DiskUse {
                disk,
                mode: Mode::ReadWrite,
                who: "dom0 as swap".to_owned(),
                advice: format!("`swapoff {path}` first"),
            });
        }
    }
    Ok(uses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read() {
        let line =
            r"36 35 98:0 /mnt1 /a\040b rw,noatime master:1 - ext3 /dev/root ro,errors=continue";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.number, DeviceNumber { major: 98, minor: 0 });
        assert_eq!((mount.point.as_str(), mount.source.as_str()), ("/a b", "/dev/root"));
        assert!(mount.is_read_only, "by the file system's options, not the mount's");
        assert!(Mount::parse("1 2 3").is_none());
        assert_eq!(unescaped(r"a\b\134"), r"a\b\");
    }
}
