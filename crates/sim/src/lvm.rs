//! The parts of LVM that storage uses: one command at a time, each atomic.

use std::collections::{BTreeMap, BTreeSet};

use storage::{DeviceNumber, HostError};

use crate::os::{File, OsState, SimOs};

/// Major number of mapped devices.
const MAPPED_MAJOR: u32 = 253;
/// Extent size.
const EXTENT_BYTES: u64 = 4 << 20;
/// Size of a group.
const GROUP_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, Default)]
struct Volume {
    bytes: u64,
    sectors: BTreeMap<u64, u8>,
    tags: BTreeSet<String>,
    /// Minor number while it is active.
    active: Option<u32>,
    thin: bool,
}

#[derive(Debug, Default)]
struct Group {
    tags: BTreeSet<String>,
    volumes: BTreeMap<String, Volume>,
}

/// Volume groups by name.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<String, Group>, Forged);

/// Devices with a label that a guest wrote, and the names of their groups.
type Forged = BTreeMap<String, String>;

fn refused<T>(words: impl Into<String>) -> Result<T, HostError> {
    Err(HostError::Refused(words.into()))
}

/// A command's options with values, and its operands.
struct Words<'a> {
    flags: BTreeSet<&'a str>,
    values: BTreeMap<&'a str, &'a str>,
    operands: Vec<&'a str>,
}

fn words<'a>(arguments: &[&'a str]) -> Words<'a> {
    const VALUED: [&str; 16] = [
        "--config",
        "--devices",
        "--reportformat",
        "--units",
        "-o",
        "--addtag",
        "--deltag",
        "-L",
        "-V",
        "-n",
        "--thinpool",
        "--type",
        "--errorwhenfull",
        "-l",
        "-S",
        "-T",
    ];
    let (mut flags, mut values, mut operands) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
    let mut rest = arguments.iter().copied();
    while let Some(word) = rest.next() {
        if VALUED.contains(&word) {
            values.insert(word, rest.next().unwrap_or_default());
        } else if word.starts_with('-') {
            flags.insert(word);
        } else {
            operands.push(word);
        }
    }
    Words { flags, values, operands }
}

fn size(text: &str) -> u64 {
    let bytes: u64 = text.trim_end_matches('b').parse().unwrap_or(0);
    bytes.div_ceil(EXTENT_BYTES) * EXTENT_BYTES
}

fn joined(tags: &BTreeSet<String>) -> String {
    tags.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

impl Group {
    fn free(&self) -> u64 {
        let taken = self.volumes.values().filter(|it| !it.thin).map(|it| it.bytes).sum::<u64>();
        GROUP_BYTES.saturating_sub(taken)
    }
}

impl Groups {
    /// Sectors of an active volume.
    pub(crate) fn image(&mut self, device: DeviceNumber) -> Option<&mut BTreeMap<u64, u8>> {
        self.active(device).map(|volume| &mut volume.sectors)
    }

    /// Length of an active volume, in bytes.
    pub(crate) fn bytes(&self, device: DeviceNumber) -> Option<u64> {
        let volumes = self.0.values().flat_map(|group| group.volumes.values());
        let mut found =
            volumes.filter(|it| device.major == MAPPED_MAJOR && it.active == Some(device.minor));
        found.next().map(|it| it.bytes)
    }

    fn active(&mut self, device: DeviceNumber) -> Option<&mut Volume> {
        let volumes = self.0.values_mut().flat_map(|group| group.volumes.values_mut());
        let mut found =
            volumes.filter(|it| device.major == MAPPED_MAJOR && it.active == Some(device.minor));
        found.next()
    }

    /// Active volumes of VDIs, by name.
    pub(crate) fn active_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (group, it) in &self.0 {
            let active = it
                .volumes
                .iter()
                .filter(|(name, volume)| *name != "pool" && volume.active.is_some());
            names.extend(active.map(|(name, _)| format!("{group}/{name}")));
        }
        names
    }

    fn volume(&mut self, path: &str) -> Result<&mut Volume, HostError> {
        let (group, name) = path.split_once('/').unwrap_or((path, ""));
        let found = self.0.get_mut(group).and_then(|group| group.volumes.get_mut(name));
        found.ok_or_else(|| {
            HostError::Refused(format!("Failed to find logical volume \"{group}/{name}\""))
        })
    }
}

fn report(os: &OsState, command: &str, words: &Words<'_>) -> Result<String, HostError> {
    let groups = &os.storage.lvm.0;
    let target = words.operands.first().copied();
    let selected = words.values.get("-S").and_then(|it| it.strip_prefix("vg_name="));
    let rows: Vec<String> = if command == "vgs" {
        let wanted = target.or(selected);
        let found = groups.iter().filter(|(name, _)| wanted == Some(name.as_str()));
        let row = |(_, group): (&String, &Group)| {
            let (free, tags) = (group.free(), joined(&group.tags));
            format!(
                "{{\"vg_size\":\"{GROUP_BYTES}\",\"vg_free\":\"{free}\",\"vg_tags\":\"{tags}\"}}"
            )
        };
        let rows: Vec<String> = found.map(row).collect();
        if rows.is_empty() && selected.is_none() {
            return refused("Volume group not found");
        }
        rows
    } else {
        let (group, volume) = match target.unwrap_or_default().split_once('/') {
            Some((group, volume)) => (group, Some(volume)),
            None => (target.unwrap_or_default(), None),
        };
        let found = groups
            .get(group)
            .ok_or_else(|| HostError::Refused(format!("Volume group \"{group}\" not found")))?;
        let mut rows = Vec::new();
        for (name, it) in &found.volumes {
            if volume.is_none_or(|wanted| wanted == name) {
                let state = if it.active.is_some() { 'a' } else { '-' };
                let percent = if it.thin || name == "pool" { "0.50" } else { "" };
                rows.push(format!(
                    "{{\"lv_name\":\"{name}\",\"lv_size\":\"{}\",\"lv_tags\":\"{}\",\
                     \"lv_attr\":\"-wi-{state}-----\",\"data_percent\":\"{percent}\"}}",
                    it.bytes,
                    joined(&it.tags),
                ));
            }
        }
        if rows.is_empty() && volume.is_some() {
            return refused("Failed to find logical volume");
        }
        rows
    };
    let key = if command == "vgs" { "vg" } else { "lv" };
    Ok(format!("{{\"report\":[{{\"{key}\":[{}]}}]}}", rows.join(",")))
}

fn create(os: &mut OsState, words: &Words<'_>) -> Result<(), HostError> {
    let target = words.operands.first().copied().unwrap_or_default();
    let name = words.values.get("-n").copied().unwrap_or_default().to_owned();
    let tags: BTreeSet<String> =
        words.values.get("--addtag").map(|it| (*it).to_owned()).into_iter().collect();
    let groups = &mut os.storage.lvm;
    let (group_name, new) = if words.flags.contains("-s") {
        let origin = groups.volume(target)?.clone();
        let new = Volume { tags, active: None, ..origin };
        (target.split_once('/').map_or(target, |(group, _)| group), new)
    } else {
        let thin = words.values.get("--type") == Some(&"thin");
        if thin && words.flags.contains("-Zn") {
            return refused("--zero is supported only with thin pool creation.");
        }
        let bytes = match words.values.get("-l") {
            Some(_) => GROUP_BYTES / 10 * 9 / EXTENT_BYTES * EXTENT_BYTES,
            None => size(words.values.get("-L").or(words.values.get("-V")).copied().unwrap_or("0")),
        };
        (target, Volume { bytes, tags, thin, ..Volume::default() })
    };
    let group = groups.0.get_mut(group_name);
    let group = group.ok_or_else(|| HostError::Refused("Volume group not found".to_owned()))?;
    if !new.thin && new.bytes > group.free() {
        return refused(format!("Volume group \"{group_name}\" has insufficient free space"));
    }
    if group.volumes.contains_key(&name) {
        return refused(format!("Logical Volume \"{name}\" already exists"));
    }
    group.volumes.insert(name, new);
    Ok(())
}

fn change(os: &mut OsState, words: &Words<'_>) -> Result<(), HostError> {
    let path = words.operands.first().copied().unwrap_or_default();
    let taken: BTreeSet<u32> = os
        .storage
        .lvm
        .0
        .values()
        .flat_map(|group| group.volumes.values().filter_map(|it| it.active))
        .collect();
    let free = (0..).find(|minor| !taken.contains(minor)).expect("numbers abound");
    let device = format!("/dev/{path}");
    let volume = os.storage.lvm.volume(path)?;
    if let Some(tag) = words.values.get("--addtag") {
        volume.tags.insert((*tag).to_owned());
    }
    if let Some(tag) = words.values.get("--deltag") {
        volume.tags.remove(*tag);
    }
    if words.flags.contains("-ay") {
        let minor = *volume.active.get_or_insert(free);
        let number = DeviceNumber { major: MAPPED_MAJOR, minor };
        os.files.insert(device, File::Block(number));
    } else if words.flags.contains("-an") {
        volume.active = None;
        os.files.remove(&device);
    }
    Ok(())
}

/// Whether LVM sees another group with the name in a command.
fn is_ambiguous(forged: &Forged, words: &Words<'_>) -> bool {
    let selected = words.values.get("-S").and_then(|it| it.strip_prefix("vg_name="));
    let target = words.operands.first().and_then(|it| it.split('/').next());
    let shown = words.values.get("--devices");
    forged.iter().any(|(device, group)| {
        shown.is_none_or(|shown| shown.split(',').any(|it| it == device))
            && target.or(selected) == Some(group.as_str())
    })
}

impl SimOs {
    /// A guest writes the label of a volume group to its disk, which dom0 has as `device`.
    pub fn forge_group(&self, device: &str, group: &str) {
        self.get_mut().storage.lvm.1.insert(device.to_owned(), group.to_owned());
    }
}

/// Runs one LVM command.
pub(crate) fn run(os: &mut OsState, arguments: &[&str]) -> Result<String, HostError> {
    let Some((command, rest)) = arguments.split_first() else { return refused("No command") };
    let words = words(rest);
    let target = words.operands.first().copied().unwrap_or_default();
    if is_ambiguous(&os.storage.lvm.1, &words) {
        return refused(format!("Multiple VGs found with the same name: skipping {target}"));
    }
    match *command {
        "vgs" | "lvs" => return report(os, command, &words),
        "vgcreate" => {
            let tags =
                words.values.get("--addtag").map(|it| (*it).to_owned()).into_iter().collect();
            let group = Group { tags, volumes: BTreeMap::new() };
            os.storage.lvm.0.insert(target.to_owned(), group);
        }
        "vgchange" => {}
        "vgremove" => drop(os.storage.lvm.0.remove(target)),
        "lvcreate" => create(os, &words)?,
        "lvchange" => change(os, &words)?,
        "lvextend" => {
            let bytes = size(words.values.get("-L").copied().unwrap_or("0"));
            let group = os.storage.lvm.0.get(target.split('/').next().unwrap_or_default());
            let free = group.map_or(0, Group::free);
            let volume = os.storage.lvm.volume(target)?;
            if !volume.thin && bytes.saturating_sub(volume.bytes) > free {
                return refused("Insufficient free space");
            }
            // Old data is visible.
            if !volume.thin {
                for sector in [volume.bytes / 512, bytes / 512 - 1] {
                    volume.sectors.insert(sector, 0xee);
                }
            }
            volume.bytes = bytes;
        }
        "lvremove" => {
            os.storage.lvm.volume(target)?;
            let (group, name) = target.split_once('/').unwrap_or((target, ""));
            let group = os.storage.lvm.0.get_mut(group);
            group.and_then(|group| group.volumes.remove(name));
            os.files.remove(&format!("/dev/{target}"));
        }
        other => return refused(format!("No such command: {other}")),
    }
    Ok(String::new())
}

/// `blkdiscard --zeroout`.
pub(crate) fn zero(os: &mut OsState, arguments: &[&str]) -> Result<String, HostError> {
    let ["--zeroout", "--offset", from, "--length", length, device] = arguments else {
        return refused("blkdiscard: wrong arguments");
    };
    let volume = os.storage.lvm.volume(device.trim_start_matches("/dev/"))?;
    let from: u64 = from.parse().unwrap_or(0);
    let end = from + length.parse::<u64>().unwrap_or(0);
    volume.sectors.retain(|sector, _| !(from..end).contains(&(sector * 512)));
    Ok(String::new())
}

/// `dd if=.. of=..`
pub(crate) fn copy(os: &mut OsState, arguments: &[&str]) -> Result<String, HostError> {
    let path = |key: &str| {
        let found = arguments.iter().find_map(|word| word.strip_prefix(key));
        found.unwrap_or_default().trim_start_matches("/dev/").to_owned()
    };
    let groups = &mut os.storage.lvm;
    let source = groups.volume(&path("if="))?;
    if source.active.is_none() {
        return refused("dd: failed to open: No such file or directory");
    }
    let sectors = source.sectors.clone();
    groups.volume(&path("of="))?.sectors = sectors;
    Ok(String::new())
}
