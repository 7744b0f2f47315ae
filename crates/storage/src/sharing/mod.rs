//! Sharing of disks: many readers or one writer.
//!
//! The rule applies to a disk's identity ([`DiskId`]), not its name, and to all disks that share
//! bytes with it ([`Family`]): a partition and its whole disk, a logical volume and the disk below
//! it, a file and the loop devices over it. Users are VMs of ours ([`claims`], files that outlive
//! the daemon), domains of other toolstacks (by their nodes in the store) and dom0 itself
//! ([`dom0`]).
//!
//! The claim is written before other users are checked: of two concurrent users, at least one finds
//! the other's claim.

mod claims;
mod dom0;
mod family;

use std::fmt;

use crate::{Access, AttachError, BlockDevice, DeviceNumber, System};

pub use claims::{Claim, Claims};
pub(crate) use claims::{DISKS, OWNERS};
pub use family::{Family, LoopUse};

/// Identity of a disk, independent of its name.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DiskId {
    /// A file, by its file system and inode.
    File {
        filesystem: DeviceNumber,
        inode: u64,
    },
    Device(DeviceNumber),
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { filesystem, inode } => write!(f, "file-{filesystem}-{inode}"),
            Self::Device(number) => write!(f, "device-{number}"),
        }
    }
}

impl DiskId {
    fn parse(text: &str) -> Option<Self> {
        if let Some(number) = text.strip_prefix("device-") {
            return DeviceNumber::parse(number).map(Self::Device);
        }
        let (filesystem, inode) = text.strip_prefix("file-")?.split_once('-')?;
        let filesystem = DeviceNumber::parse(filesystem)?;
        Some(Self::File { filesystem, inode: inode.parse().ok()? })
    }
}

/// How a disk is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    ReadOnly,
    ReadWrite,
    /// Writes, and others may write too: `w!`.
    Shared,
}

impl Mode {
    /// As in a configuration and in the backend's `mode`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "r",
            Self::ReadWrite => "w",
            Self::Shared => "w!",
        }
    }

    #[must_use]
    pub fn access(self) -> Access {
        match self {
            Self::ReadOnly => Access::ReadOnly,
            Self::ReadWrite | Self::Shared => Access::ReadWrite,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::ReadOnly, Self::ReadWrite, Self::Shared].into_iter().find(|it| it.as_str() == text)
    }

    fn words(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite | Self::Shared => "read-write",
        }
    }
}

impl From<Access> for Mode {
    fn from(access: Access) -> Self {
        match access {
            Access::ReadOnly => Self::ReadOnly,
            Access::ReadWrite => Self::ReadWrite,
        }
    }
}

/// Whether a disk may be used as `wanted` while another user has it as `other`. `w!` is always
/// allowed. A disk shared with `w!` may be read too, as with xl's block script, but not be written
/// exclusively.
#[must_use]
pub fn may_join(wanted: Mode, other: Mode) -> bool {
    match (wanted, other) {
        (Mode::Shared, _) | (Mode::ReadOnly, Mode::ReadOnly | Mode::Shared) => true,
        (Mode::ReadOnly, Mode::ReadWrite) | (Mode::ReadWrite, _) => false,
    }
}

/// A use of a disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskUse {
    pub disk: DiskId,
    pub mode: Mode,
    /// As in "in use by ...".
    pub who: String,
    /// What to do about it.
    pub advice: String,
}

/// The advice for users that are domains.
pub const DETACH_THERE: &str = "detach it there first, or share it with mode w!";

/// A requested disk.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// As the user named it.
    pub target: &'a str,
    pub mode: Mode,
    /// The owner's tag of up to 63 bytes, which identifies the use.
    pub owner: &'a str,
    /// The owner, in words.
    pub who: &'a str,
    /// Disks in use by domains of other toolstacks.
    pub others: &'a [DiskUse],
}

/// Why the disk is refused.
fn refusal(target: &str, by: &DiskUse) -> AttachError {
    AttachError::InUse(format!(
        "{target} is in use {} by {}; {}",
        by.mode.words(),
        by.who,
        by.advice
    ))
}

fn first_in_the_way<'a>(
    wanted: Mode,
    family: &Family,
    uses: impl IntoIterator<Item = &'a DiskUse>,
) -> Option<&'a DiskUse> {
    uses.into_iter().find(|it| family.contains(it.disk) && !may_join(wanted, it.mode))
}

/// Claims a disk for `wanted.owner`, which may have it already. `device` is its block device, if it
/// is one.
///
/// # Errors
/// [`AttachError::InUse`] if another user has it; then nothing is claimed.
pub(crate) fn claim(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    disk: DiskId,
    device: Option<&BlockDevice>,
    note: &str,
) -> Result<(), AttachError> {
    let refused = AttachError::host(wanted.target);
    let family = Family::of(system, disk).map_err(&refused)?;
    Claims::new(system).claim(wanted, disk, &family, note)?;
    if wanted.mode == Mode::Shared {
        return Ok(());
    }
    let checked = check_others(system, wanted, &family, device);
    checked.inspect_err(|_| {
        // Report the first error; a stale claim only keeps the disk from others until the VM is
        // gone.
        let _kept = Claims::new(system).release(wanted.owner);
    })
}

/// Whether [`claim`] would succeed.
///
/// # Errors
/// As for [`claim`].
pub(crate) fn check(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    disk: DiskId,
    device: Option<&BlockDevice>,
) -> Result<(), AttachError> {
    let refused = AttachError::host(wanted.target);
    let family = Family::of(system, disk).map_err(&refused)?;
    Claims::new(system).check(wanted, &family)?;
    match wanted.mode {
        Mode::Shared => Ok(()),
        Mode::ReadOnly | Mode::ReadWrite => check_others(system, wanted, &family, device),
    }
}

fn check_others(
    system: &mut dyn System,
    wanted: &Wanted<'_>,
    family: &Family,
    device: Option<&BlockDevice>,
) -> Result<(), AttachError> {
    let refused = AttachError::host(wanted.target);
    let by_dom0 = dom0::uses(system, family).map_err(&refused)?;
    let all = family.stacked().iter().chain(&by_dom0).chain(wanted.others);
    if let Some(by) = first_in_the_way(wanted.mode, family, all) {
        return Err(refusal(wanted.target, by));
    }
    let Some(device) = device else { return Ok(()) };
    // A known user of dom0 does not conflict, so it may be the one that has the device open
    // exclusively.
    let is_known = by_dom0.iter().chain(family.stacked()).any(|it| family.contains(it.disk));
    if !is_known && !system.is_unclaimed(&device.path).map_err(&refused)? {
        return Err(refusal(
            wanted.target,
            &DiskUse {
                disk: DiskId::Device(device.number),
                mode: Mode::ReadWrite,
                who: "dom0's kernel or a program, which has it to itself".to_owned(),
                advice: "a file system, a volume group or RAID on it is in use".to_owned(),
            },
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{ReadOnly, ReadWrite, Shared};

    #[test]
    fn many_readers_or_one_writer_or_shared() {
        let table = [
            (ReadOnly, ReadOnly, true),
            (ReadOnly, ReadWrite, false),
            (ReadOnly, Shared, true),
            (ReadWrite, ReadOnly, false),
            (ReadWrite, ReadWrite, false),
            (ReadWrite, Shared, false),
            (Shared, ReadOnly, true),
            (Shared, ReadWrite, true),
            (Shared, Shared, true),
        ];
        for (wanted, other, expected) in table {
            assert_eq!(may_join(wanted, other), expected, "{wanted:?} beside {other:?}");
        }
    }

    #[test]
    fn an_identity_round_trips() {
        let number = DeviceNumber { major: 253, minor: 10 };
        for disk in [DiskId::Device(number), DiskId::File { filesystem: number, inode: 77 }] {
            assert_eq!(DiskId::parse(&disk.to_string()), Some(disk));
        }
        assert_eq!(DiskId::parse("device-x:1"), None);
    }
}
