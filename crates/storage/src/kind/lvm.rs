//! Logical volumes of a volume group that belongs to the SR alone; thick, or thin in one pool.
//!
//! The group is on devices of this host, or on a LUN of an iSCSI target.
//!
//! A VDI `NAME` is the volume `vdi-NAME` of the group `xylem-SR`. Tags record what LVM does not:
//! that a volume is a snapshot, is incomplete, or has a part that still contains old data.
//!
//! Thin volumes begin as zeros, share common blocks and can be copied while they are written. A
//! thick one is zeroed before its first use, has no snapshots, and is copied byte by byte while
//! there is no writer.

use serde::Deserialize;

use super::{Driver, Place, Result, Source, iscsi};
use crate::error::Naming as _;
use crate::{Access, BlockDevice, Command, HostError, Space, StorageError, Vdi, name};

/// Time limit of LVM for a metadata change.
const LVM_SECONDS: u64 = 120;
/// Lowest rate for zeroing and copying.
const BYTES_PER_SECOND_MIN: u64 = 4 << 20;

const VOLUME_PREFIX: &str = "vdi-";
const POOL: &str = "pool";
/// Marks the group as ours.
const GROUP_TAG: &str = "xylem.sr";
/// The volume is being created: if that is interrupted, it is removed.
const PARTIAL_TAG: &str = "xylem.partial";
/// Active for the SR's own work, not for a user.
const BUSY_TAG: &str = "xylem.busy";
/// Followed by the VDI that this is a snapshot of.
const SNAPSHOT_TAG: &str = "xylem.snapshot-of.";
/// Followed by the offset from which it must still be zeroed.
const DIRTY_TAG: &str = "xylem.dirty-from.";

/// For a host without udev: LVM creates the device nodes itself.
const WITHOUT_UDEV: &str =
    "activation{udev_sync=0 udev_rules=0} devices{obtain_device_list_from_udev=0}";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lvm {
    Thick,
    Thin,
}

/// What `lvs` and `vgs` print with `--reportformat json`.
#[derive(Deserialize)]
struct Report {
    report: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    #[serde(default)]
    lv: Vec<Volume>,
    #[serde(default)]
    vg: Vec<Group>,
}

#[derive(Clone, Deserialize)]
struct Volume {
    lv_name: String,
    lv_size: String,
    lv_tags: String,
    lv_attr: String,
    data_percent: String,
}

#[derive(Deserialize)]
struct Group {
    vg_size: String,
    vg_free: String,
    vg_tags: String,
}

impl Volume {
    fn tag(&self, prefix: &str) -> Option<&str> {
        self.lv_tags.split(',').find_map(|tag| tag.strip_prefix(prefix))
    }

    fn has(&self, tag: &str) -> bool {
        self.lv_tags.split(',').any(|it| it == tag)
    }

    fn bytes(&self) -> u64 {
        self.lv_size.parse().unwrap_or(0)
    }

    /// The fifth character of `lv_attr` is `a` for an active volume.
    fn is_active(&self) -> bool {
        self.lv_attr.as_bytes().get(4) == Some(&b'a')
    }

    /// Space used by a thin volume.
    fn used_bytes(&self) -> Option<u64> {
        share(self.bytes(), &self.data_percent)
    }
}

/// `percent` of `bytes`, where the percentage is text with two decimals.
fn share(bytes: u64, percent: &str) -> Option<u64> {
    let (whole, cents) = percent.split_once('.').unwrap_or((percent, "0"));
    let hundredths =
        whole.parse::<u64>().ok()? * 100 + format!("{cents:0<2}").get(..2)?.parse::<u64>().ok()?;
    u64::try_from(u128::from(bytes) * u128::from(hundredths) / 10_000).ok()
}

fn group(place: &Place<'_>) -> String {
    format!("xylem-{}", place.sr.name)
}

fn volume(place: &Place<'_>, vdi: &str) -> String {
    format!("{}/{VOLUME_PREFIX}{vdi}", group(place))
}

fn device_path(place: &Place<'_>, vdi: &str) -> String {
    format!("/dev/{}", volume(place, vdi))
}

/// The group's physical volumes, separated by commas.
fn devices(place: &mut Place<'_>) -> Result<String> {
    if is_remote(place) {
        iscsi::device(place)
    } else {
        place.sr.setting("device").map(str::to_owned)
    }
}

/// LVM sees the SR's own devices only, so metadata that a guest wrote to another device is ignored.
fn command(place: &mut Place<'_>, arguments: &[&str]) -> Result<Command> {
    let devices = devices(place)?;
    let mut all = vec![arguments[0], "--devices", &devices];
    if place.system.inspect("/run/udev/control") == Err(HostError::Missing) {
        all.extend(["--config", WITHOUT_UDEV]);
    }
    all.extend(&arguments[1..]);
    Ok(Command::new("/usr/sbin/lvm", &all, LVM_SECONDS))
}

fn lvm(place: &mut Place<'_>, name: impl std::fmt::Display, arguments: &[&str]) -> Result<String> {
    let command = command(place, arguments)?;
    place.system.run(&command).of(name)
}

/// For one volume, possibly combined with concurrent requests for others of the group.
fn lvm_for(
    place: &mut Place<'_>,
    arguments: &[&str],
    volume: &str,
) -> Result<std::result::Result<String, HostError>> {
    let (command, group) = (command(place, arguments)?, group(place));
    Ok(place.system.run_with(&group, &command, volume))
}

fn run(place: &mut Place<'_>, name: impl std::fmt::Display, arguments: &[&str]) -> Result<()> {
    lvm(place, name, arguments).map(drop)
}

const REPORT: [&str; 6] = ["--reportformat", "json", "--units", "b", "--nosuffix", "-o"];
const VOLUME_FIELDS: &str = "lv_name,lv_size,lv_tags,lv_attr,data_percent";

fn section(name: &str, text: &str) -> Result<Section> {
    let report: Report = serde_json::from_str(text)
        .map_err(|error| StorageError::refused(format!("{name}: LVM's report: {error}")))?;
    let section = report.report.into_iter().next();
    section.ok_or_else(|| StorageError::refused(format!("{name}: LVM's report is empty")))
}

fn report(place: &mut Place<'_>, arguments: &[&str]) -> Result<Section> {
    let name = place.sr.name.clone();
    let mut all = arguments[..1].to_vec();
    all.extend(REPORT);
    all.extend(&arguments[1..]);
    let text = lvm(place, &name, &all)?;
    section(&name, &text)
}

fn volumes(place: &mut Place<'_>) -> Result<Vec<Volume>> {
    let group = group(place);
    report(place, &["lvs", VOLUME_FIELDS, &group]).map(|it| it.lv)
}

fn one_volume(place: &mut Place<'_>, vdi: &str) -> Result<Volume> {
    let (name, volume) = (place.name(vdi), volume(place, vdi));
    let mut arguments = vec!["lvs"];
    arguments.extend(REPORT);
    arguments.push(VOLUME_FIELDS);
    let text = lvm_for(place, &arguments, &volume)?.of(&name)?;
    // The report may contain others.
    let wanted = format!("{VOLUME_PREFIX}{vdi}");
    let found = section(&name, &text)?.lv.into_iter().find(|it| it.lv_name == wanted);
    found.ok_or_else(|| StorageError::Missing(format!("{name}: no such VDI")))
}

/// Does something with the device of a volume that is being created.
fn while_made<T>(
    place: &mut Place<'_>,
    vdi: &str,
    what: impl FnOnce(&mut Place<'_>) -> Result<T>,
) -> Result<T> {
    let (name, volume) = (place.name(vdi), volume(place, vdi));
    run(place, name, &["lvchange", "-ay", "-K", &volume])?;
    let done = what(place)?;
    release(place, vdi)?;
    Ok(done)
}

/// Does something with the volume's device; deactivates it afterwards unless it was active before.
fn while_active<T>(
    place: &mut Place<'_>,
    vdi: &str,
    what: impl FnOnce(&mut Place<'_>) -> Result<T>,
) -> Result<T> {
    if one_volume(place, vdi)?.is_active() {
        return what(place);
    }
    let (name, volume) = (place.name(vdi), volume(place, vdi));
    run(place, &name, &["lvchange", "--addtag", BUSY_TAG, &volume])?;
    run(place, &name, &["lvchange", "-ay", "-K", &volume])?;
    let done = what(place);
    let idle = release(place, vdi)
        .and_then(|()| run(place, &name, &["lvchange", "--deltag", BUSY_TAG, &volume]));
    done.and_then(|done| idle.map(|()| done))
}

/// Deactivates a volume, after waiting until it is closed.
fn release(place: &mut Place<'_>, vdi: &str) -> Result<()> {
    let (name, volume) = (place.name(vdi), volume(place, vdi));
    let mut waits = 0;
    loop {
        match lvm_for(place, &["lvchange", "-an"], &volume)? {
            Ok(_) => return Ok(()),
            Err(HostError::Refused(words)) if words.contains("in use") => {
                if !place.system.pause(waits) {
                    return Err(StorageError::InUse(format!("{name}: {words}")));
                }
                waits += 1;
            }
            Err(error) => return Err(error).of(name),
        }
    }
}

/// Zeros a device from an offset on.
fn zero(place: &mut Place<'_>, vdi: &str, from: u64, to: u64) -> Result<()> {
    let (name, device) = (place.name(vdi), device_path(place, vdi));
    let (from, length) = (from.to_string(), to.saturating_sub(from));
    let seconds = 60 + length / BYTES_PER_SECOND_MIN;
    let length = length.to_string();
    let arguments = ["--zeroout", "--offset", &from, "--length", &length, &device];
    place.system.run(&Command::new("/usr/sbin/blkdiscard", &arguments, seconds)).map(drop).of(name)
}

/// Whether the group is on a LUN.
fn is_remote(place: &Place<'_>) -> bool {
    place.sr.config.contains_key("target")
}

impl Lvm {
    fn size(bytes: u64) -> String {
        format!("{bytes}b")
    }

    /// A thick volume with the tag by which it is removed if we are interrupted.
    fn add_partial(place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()> {
        let (name, group) = (place.name(vdi), group(place));
        let volume = format!("{VOLUME_PREFIX}{vdi}");
        let size = Self::size(bytes);
        let arguments = [
            "lvcreate",
            "-y",
            "-an",
            "-Zn",
            "-Wn",
            "--addtag",
            PARTIAL_TAG,
            "-L",
            &size,
            "-n",
            &volume,
            &group,
        ];
        run(place, name, &arguments)
    }

    /// Creates a thick volume and fills it; it becomes permanent when `fill` returns.
    fn appear(
        place: &mut Place<'_>,
        vdi: &str,
        bytes: u64,
        fill: impl FnOnce(&mut Place<'_>, u64) -> Result<()>,
    ) -> Result<()> {
        Self::add_partial(place, vdi, bytes)?;
        let (name, volume) = (place.name(vdi), volume(place, vdi));
        let size = one_volume(place, vdi)?.bytes();
        let filled = while_made(place, vdi, |place| fill(place, size))
            .and_then(|()| run(place, &name, &["lvchange", "--deltag", PARTIAL_TAG, &volume]));
        filled.inspect_err(|_| {
            // If this fails too, the next scan removes it.
            let _left = lvm(place, &name, &["lvremove", "-y", &volume]);
        })
    }

    /// Finishes the zeroing that a killed daemon left, and removes the tag.
    fn clean(place: &mut Place<'_>, vdi: &str, found: &Volume) -> Result<()> {
        if found.has(BUSY_TAG) {
            let (name, volume) = (place.name(vdi), volume(place, vdi));
            run(place, name, &["lvchange", "--deltag", BUSY_TAG, &volume])?;
        }
        let Some(from) = found.tag(DIRTY_TAG) else { return Ok(()) };
        let tag = format!("{DIRTY_TAG}{from}");
        let (name, volume) = (place.name(vdi), volume(place, vdi));
        let start: u64 = from.parse().unwrap_or(0);
        let end = found.bytes();
        if end > start {
            while_active(place, vdi, |place| zero(place, vdi, start, end))?;
        }
        run(place, name, &["lvchange", "--deltag", &tag, &volume])
    }

    fn thin_copy(place: &mut Place<'_>, from: &Vdi, to: &str, tag: Option<&str>) -> Result<()> {
        let (name, origin) = (place.name(to), volume(place, &from.name));
        let volume = format!("{VOLUME_PREFIX}{to}");
        let mut arguments = vec!["lvcreate", "-s", "-n", &volume];
        match tag {
            Some(tag) => arguments.extend(["-pr", "--addtag", tag]),
            None => arguments.push("-prw"),
        }
        arguments.push(&origin);
        run(place, name, &arguments)
    }
}

impl Driver for Lvm {
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        let (name, group) = (place.sr.name.clone(), group(place));
        if is_remote(place) {
            iscsi::connect(place)?;
        }
        let devices = devices(place)?;
        let devices: Vec<&str> = devices.split(',').collect();
        if let Some(wrong) = devices.iter().find(|device| !device.starts_with("/dev/")) {
            return Err(StorageError::refused(format!(
                "{name}: device={wrong:?}: expected /dev/.."
            )));
        }
        let ours =
            report(place, &["vgs", "vg_size,vg_free,vg_tags", "-S", &format!("vg_name={group}")])?;
        match ours.vg.first() {
            // A daemon was killed while creating it.
            Some(half)
                if half.vg_tags == GROUP_TAG
                    && volumes(place)?.iter().all(|it| it.lv_name == POOL) => {}
            Some(_) => {
                return Err(StorageError::refused(format!(
                    "{name}: there is a volume group {group}; `xy sr-introduce` takes over one that has VDIs"
                )));
            }
            None => {
                let mut arguments = vec!["vgcreate", "--addtag", GROUP_TAG, &group];
                arguments.extend(devices);
                run(place, &name, &arguments)?;
            }
        }
        if *self == Self::Thin {
            if volumes(place)?.is_empty() {
                // The rest is for the pool's metadata and its repair.
                let arguments =
                    ["lvcreate", "-y", "--type", "thin-pool", "-l", "90%FREE", "-n", POOL, &group];
                run(place, &name, &arguments)?;
            }
            // Writes to a full pool fail at once: by default they block for a minute, and with them
            // any attempt to stop or detach the writer.
            let pool = format!("{group}/{POOL}");
            run(place, &name, &["lvchange", "--errorwhenfull", "y", &pool])?;
        }
        Ok(())
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        // LVM scans all devices for each command; local devices need no connection.
        if is_remote(place) { iscsi::connect(place) } else { Ok(()) }
    }

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()> {
        if is_remote(place) && !iscsi::is_connected(place)? {
            return iscsi::disconnect(place);
        }
        let (name, group) = (place.sr.name.clone(), group(place));
        let there =
            report(place, &["vgs", "vg_size,vg_free,vg_tags", "-S", &format!("vg_name={group}")])?;
        if !there.vg.is_empty() {
            run(place, name, &["vgchange", "-an", &group])?;
        }
        if is_remote(place) { iscsi::disconnect(place) } else { Ok(()) }
    }

    fn destroy(&self, place: &mut Place<'_>) -> Result<()> {
        let (name, group) = (place.sr.name.clone(), group(place));
        let there =
            report(place, &["vgs", "vg_size,vg_free,vg_tags", "-S", &format!("vg_name={group}")])?;
        if there.vg.is_empty() {
            return Ok(());
        }
        for found in volumes(place)? {
            if found.lv_name != POOL {
                return Err(StorageError::InUse(format!(
                    "{name}: the volume {} is not ours; remove it first",
                    found.lv_name
                )));
            }
            run(place, &name, &["lvremove", "-y", &format!("{group}/{POOL}")])?;
        }
        run(place, name, &["vgremove", &group])
    }

    fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        let group = group(place);
        if *self == Self::Thin {
            let pool = volumes(place)?.into_iter().find(|it| it.lv_name == POOL);
            let pool = pool.ok_or_else(|| {
                StorageError::refused(format!("{}: the group has no thin pool", place.sr.name))
            })?;
            let used = pool.used_bytes().unwrap_or(0);
            return Ok(Space {
                bytes: pool.bytes(),
                free_bytes: pool.bytes().saturating_sub(used),
            });
        }
        let found = report(place, &["vgs", "vg_size,vg_free,vg_tags", &group])?;
        let number = |text: Option<&String>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
        let group = found.vg.first();
        Ok(Space {
            bytes: number(group.map(|it| &it.vg_size)),
            free_bytes: number(group.map(|it| &it.vg_free)),
        })
    }

    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        let mut vdis = Vec::new();
        for found in volumes(place)? {
            let Some(vdi) = found.lv_name.strip_prefix(VOLUME_PREFIX) else { continue };
            if !name::is_vdi(vdi) {
                continue;
            }
            let (name, path) = (place.name(vdi), volume(place, vdi));
            if found.has(PARTIAL_TAG) {
                run(place, name, &["lvremove", "-y", &path])?;
                continue;
            }
            if found.has(BUSY_TAG) {
                // An attach removes the tag: none has, so it is not in use.
                release(place, vdi)?;
                run(place, name, &["lvchange", "--deltag", BUSY_TAG, &path])?;
            }
            vdis.push(Vdi {
                name: vdi.to_owned(),
                bytes: found.bytes(),
                used_bytes: match self {
                    Self::Thick => Some(found.bytes()),
                    Self::Thin => found.used_bytes(),
                },
                snapshot_of: found.tag(SNAPSHOT_TAG).map(str::to_owned),
            });
        }
        vdis.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(vdis)
    }

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()> {
        if *self == Self::Thick {
            return Self::appear(place, vdi, bytes, |place, size| zero(place, vdi, 0, size));
        }
        let (name, group) = (place.name(vdi), group(place));
        let (volume, size) = (format!("{VOLUME_PREFIX}{vdi}"), Self::size(bytes));
        let arguments = [
            "lvcreate",
            "-y",
            "-an",
            "-Wn",
            "--type",
            "thin",
            "-V",
            &size,
            "--thinpool",
            POOL,
            "-n",
            &volume,
            &group,
        ];
        run(place, name, &arguments)
    }

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        let (name, volume) = (place.name(vdi), volume(place, vdi));
        run(place, name, &["lvremove", "-y", &volume])
    }

    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        let (name, volume) = (place.name(&vdi.name), volume(place, &vdi.name));
        // Sizes are whole extents: there may be room already.
        if bytes <= vdi.bytes {
            return Ok(());
        }
        let size = Self::size(bytes);
        let extend = ["lvextend", "-L", &size, &volume];
        if *self == Self::Thin {
            return run(place, name, &extend);
        }
        if device.is_some() {
            return Err(StorageError::InUse(format!(
                "{name}: a thick volume is zeroed where it grows, while nobody uses it; stop its VM"
            )));
        }
        let tag = format!("{DIRTY_TAG}{}", vdi.bytes);
        run(place, &name, &["lvchange", "--addtag", &tag, &volume])?;
        run(place, &name, &extend)?;
        let found = one_volume(place, &vdi.name)?;
        Self::clean(place, &vdi.name, &found)
    }

    fn check_snapshot(&self, place: &mut Place<'_>, from: &Vdi, _: Source) -> Result<()> {
        match self {
            Self::Thin => Ok(()),
            Self::Thick => Err(StorageError::refused(format!(
                "{}: thick volumes have no snapshots; clone it, or keep it in an SR of kind lvmthin",
                place.name(&from.name)
            ))),
        }
    }

    fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()> {
        self.check_snapshot(place, from, source)?;
        let tag = format!("{SNAPSHOT_TAG}{}", from.name);
        Self::thin_copy(place, from, to, Some(&tag))
    }

    fn seal_vdi(&self, place: &mut Place<'_>, vdi: &Vdi) -> Result<()> {
        if *self == Self::Thick || vdi.snapshot_of.is_some() {
            return Ok(());
        }
        let (name, volume) = (place.name(&vdi.name), volume(place, &vdi.name));
        let tag = format!("{SNAPSHOT_TAG}{}", vdi.name);
        run(place, name, &["lvchange", "-pr", "--addtag", &tag, &volume])
    }

    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()> {
        if *self == Self::Thin {
            return Self::thin_copy(place, from, to, None);
        }
        if source == Source::Written {
            return Err(StorageError::InUse(format!(
                "{}: is written to, and a thick volume is copied byte by byte; stop its VM",
                place.name(&from.name)
            )));
        }
        Self::appear(place, to, from.bytes, |place, size| {
            while_active(place, &from.name, |place| {
                let input = format!("if={}", device_path(place, &from.name));
                let output = format!("of={}", device_path(place, to));
                let arguments = [&input, &output, "bs=1M", "conv=fsync"];
                let seconds = 60 + size / BYTES_PER_SECOND_MIN;
                let copied = place.system.run(&Command::new("/usr/bin/dd", &arguments, seconds));
                copied.map(drop).of(place.name(to))
            })
        })
    }

    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()> {
        let found = one_volume(place, vdi)?;
        if found.has(PARTIAL_TAG) {
            return Err(StorageError::InUse(format!(
                "{}: is being made, or was when a daemon died; `xy sr-scan` clears away what nobody goes on with",
                place.name(vdi)
            )));
        }
        if access == Access::ReadWrite && found.tag(SNAPSHOT_TAG).is_some() {
            return Err(StorageError::refused(format!(
                "{}: is a snapshot and cannot be written to; clone it",
                place.name(vdi)
            )));
        }
        Self::clean(place, vdi, &found)
    }

    fn activate(&self, place: &mut Place<'_>, vdi: &str, _: Access) -> Result<BlockDevice> {
        let (name, volume) = (place.name(vdi), volume(place, vdi));
        // Snapshots have the activation-skip flag; override it.
        lvm_for(place, &["lvchange", "-ay", "-K"], &volume)?.of(&name)?;
        let path = device_path(place, vdi);
        place.block_device(&name, path)
    }

    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        // A volume that is still open would fail the combined run, and each would need one of its
        // own.
        if let Some(device) = device {
            place.await_unserved(&place.name(vdi), device)?;
        }
        release(place, vdi)
    }

    fn detach(&self, _: &mut Place<'_>, _: &str) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_of_any_size_is_computed() {
        for (bytes, percent, expected) in [
            (1000, "50.00", Some(500)),
            (1000, "0.10", Some(1)),
            (u64::MAX, "100.00", Some(u64::MAX)),
            (1000, "7", Some(70)),
            (1000, "7.5", Some(75)),
            (1000, "", None),
        ] {
            assert_eq!(share(bytes, percent), expected, "{percent}");
        }
    }
}
