//! What shares bytes with a disk, as the kernel tells it in sysfs.

use std::collections::{BTreeMap, BTreeSet};

use super::{DiskId, DiskUse, Mode};
use crate::system::text_if_there;
use crate::{Access, BlockDevice, DeviceNumber, HostError, System};

/// A loop device and what is behind it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoopUse {
    pub device: BlockDevice,
    pub behind: DiskId,
    pub access: Access,
    /// The name that the device carries.
    pub tag: String,
}

/// A disk with all that shares bytes with it.
///
/// What the disk lies on counts as a whole: somebody who uses all of it uses the disk. Others that lie on a part of the
/// same are no relatives: two partitions, or two logical volumes of one disk, do not touch.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Family {
    members: BTreeSet<DiskId>,
    stacked: Vec<DiskUse>,
}

/// How deep devices are stacked at most; a cycle cannot be.
const DEPTH_MAX: usize = 32;

fn sys(number: DeviceNumber) -> String {
    format!("/sys/dev/block/{}:{}", number.major, number.minor)
}

fn text(system: &mut dyn System, path: &str) -> Option<String> {
    // What goes while it is read is not there.
    text_if_there(system, path).ok().flatten().map(|it| it.trim().to_owned())
}

fn number(system: &mut dyn System, path: &str) -> Option<DeviceNumber> {
    DeviceNumber::parse_decimal(&text(system, path)?)
}

/// Device numbers of what a folder of sysfs links to: `slaves` or `holders`.
fn linked(
    system: &mut dyn System,
    of: DeviceNumber,
    folder: &str,
) -> Result<Vec<DeviceNumber>, HostError> {
    let folder = format!("{}/{folder}", sys(of));
    let names = system.list(&folder)?;
    Ok(names.iter().filter_map(|name| number(system, &format!("{folder}/{name}/dev"))).collect())
}

fn partitions(system: &mut dyn System, of: DeviceNumber) -> Result<Vec<DeviceNumber>, HostError> {
    let folder = sys(of);
    if text(system, &format!("{folder}/partition")).is_some() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for name in system.list(&folder)? {
        if text(system, &format!("{folder}/{name}/partition")).is_some() {
            found.extend(number(system, &format!("{folder}/{name}/dev")));
        }
    }
    Ok(found)
}

fn whole_disk(system: &mut dyn System, of: DeviceNumber) -> Option<DeviceNumber> {
    text(system, &format!("{}/partition", sys(of)))?;
    number(system, &format!("{}/../dev", sys(of)))
}

/// The device-mapper device or RAID that has taken a disk.
fn holder(system: &mut dyn System, disk: DeviceNumber, holder: DeviceNumber) -> DiskUse {
    let folder = sys(holder);
    let mapped = text(system, &format!("{folder}/dm/name"));
    let is_volume =
        text(system, &format!("{folder}/dm/uuid")).is_some_and(|it| it.starts_with("LVM-"));
    let is_read_only = text(system, &format!("{folder}/ro")).as_deref() == Some("1");
    let (who, advice) = match mapped {
        Some(name) if is_volume => (
            format!("the logical volume /dev/mapper/{name}, which lies on it"),
            "deactivate the volume group first",
        ),
        Some(name) => (
            format!("the device-mapper device /dev/mapper/{name}, which lies on it"),
            "remove that first",
        ),
        None => (
            format!("the device {}:{}, which lies on it", holder.major, holder.minor),
            "stop that RAID first",
        ),
    };
    DiskUse {
        disk: DiskId::Device(disk),
        mode: if is_read_only { Mode::ReadOnly } else { Mode::ReadWrite },
        who,
        advice: advice.to_owned(),
    }
}

fn loop_use(it: &LoopUse) -> DiskUse {
    let path = &it.device.path;
    DiskUse {
        disk: it.behind,
        mode: it.access.into(),
        who: format!("dom0 as {path}"),
        advice: format!("detach it first (`losetup -d {path}`)"),
    }
}

impl Family {
    /// # Errors
    /// The kernel's files cannot be read.
    pub fn of(system: &mut dyn System, disk: DiskId) -> Result<Self, HostError> {
        let loops = system.loops()?;
        let mut family = Self::default();
        let below = family.below(system, disk, &loops)?;
        family.above(system, disk, &loops)?;
        // Beside it, over the same: a second loop device.
        for it in loops.iter().filter(|it| !is_ours(it) && below.contains(&it.behind)) {
            if !below.contains(&DiskId::Device(it.device.number))
                && DiskId::Device(it.device.number) != disk
            {
                family.members.insert(DiskId::Device(it.device.number));
                family.stacked.push(loop_use(it));
            }
        }
        family.members.extend(below);
        Ok(family)
    }

    /// What the disk lies on.
    fn below(
        &mut self,
        system: &mut dyn System,
        disk: DiskId,
        loops: &[LoopUse],
    ) -> Result<BTreeSet<DiskId>, HostError> {
        let behind: BTreeMap<DeviceNumber, DiskId> =
            loops.iter().map(|it| (it.device.number, it.behind)).collect();
        let mut below = BTreeSet::new();
        let mut open = vec![disk];
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            for device in open {
                let DiskId::Device(device) = device else { continue };
                next.extend(behind.get(&device));
                next.extend(whole_disk(system, device).map(DiskId::Device));
                next.extend(linked(system, device, "slaves")?.into_iter().map(DiskId::Device));
            }
            next.retain(|it| below.insert(*it));
            open = next;
        }
        Ok(below)
    }

    /// What lies on the disk.
    fn above(
        &mut self,
        system: &mut dyn System,
        disk: DiskId,
        loops: &[LoopUse],
    ) -> Result<(), HostError> {
        let mut open = vec![disk];
        self.members.insert(disk);
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            for disk in open {
                for it in loops.iter().filter(|it| it.behind == disk) {
                    // Those of ours are the disks of users that have claimed them.
                    if !is_ours(it) {
                        self.stacked.push(loop_use(it));
                    }
                    next.push(DiskId::Device(it.device.number));
                }
                let DiskId::Device(device) = disk else { continue };
                next.extend(partitions(system, device)?.into_iter().map(DiskId::Device));
                for upper in linked(system, device, "holders")? {
                    self.stacked.push(holder(system, device, upper));
                    next.push(DiskId::Device(upper));
                }
            }
            next.retain(|it| self.members.insert(*it));
            open = next;
        }
        Ok(())
    }

    /// The disk, and all that shares bytes with it.
    pub fn members(&self) -> impl Iterator<Item = DiskId> + '_ {
        self.members.iter().copied()
    }

    #[must_use]
    pub fn contains(&self, disk: DiskId) -> bool {
        self.members.contains(&disk)
    }

    /// Devices of dom0 that were stacked on the disk, which therefore use it.
    #[must_use]
    pub fn stacked(&self) -> &[DiskUse] {
        &self.stacked
    }
}

/// Beginnings of the tags of our loop devices: of VMs' files, and of VDIs.
const OUR_TAGS: [&str; 2] = ["xylem/", "vdi/"];

fn is_ours(it: &LoopUse) -> bool {
    OUR_TAGS.iter().any(|beginning| it.tag.starts_with(beginning))
}
