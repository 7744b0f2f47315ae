//! Disks that share bytes with a disk, from sysfs.

use std::collections::{BTreeMap, BTreeSet};

use super::{DiskId, DiskUse, Mode};
use crate::system::text_if_there;
use crate::{Access, BlockDevice, DeviceNumber, HostError, System};

/// A loop device and its backing file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoopUse {
    pub device: BlockDevice,
    pub behind: DiskId,
    pub access: Access,
    /// The name of the device.
    pub tag: String,
}

/// A disk with all that share bytes with it.
///
/// Lower devices count as a whole: a user of a whole disk uses its partitions too. Siblings do not
/// count: two partitions, or two logical volumes, of one disk do not overlap.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Family {
    members: BTreeSet<DiskId>,
    stacked: Vec<DiskUse>,
}

/// Deepest stack of devices; there are no cycles.
const DEPTH_MAX: usize = 32;

fn sys(number: DeviceNumber) -> String {
    format!("/sys/dev/block/{}:{}", number.major, number.minor)
}

fn text(system: &mut dyn System, path: &str) -> Option<String> {
    // What disappears while it is read does not count.
    text_if_there(system, path).ok().flatten().map(|it| it.trim().to_owned())
}

fn number(system: &mut dyn System, path: &str) -> Option<DeviceNumber> {
    DeviceNumber::parse_decimal(&text(system, path)?)
}

/// Device numbers of the links in a sysfs folder: `slaves` or `holders`.
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

/// The device-mapper device or RAID that holds a disk.
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
        // A second loop device over the same file.
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

    /// Devices below the disk.
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

    /// Devices on top of the disk.
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
                    // Our own loop devices belong to users with claims.
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

    /// Uses of the disk by devices that dom0 stacked on it.
    #[must_use]
    pub fn stacked(&self) -> &[DiskUse] {
        &self.stacked
    }
}

/// Tag prefixes of our loop devices: for VMs' files, and for VDIs.
const OUR_TAGS: [&str; 2] = ["xylem/", "vdi/"];

fn is_ours(it: &LoopUse) -> bool {
    OUR_TAGS.iter().any(|beginning| it.tag.starts_with(beginning))
}
